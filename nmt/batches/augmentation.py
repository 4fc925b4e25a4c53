"""Augmentation: random changes to training pairs, different each time a pair is seen.

The changes are subword sampling, typed input, fragments, synthetic copies, and word dropout of the decoder's input. A
pair's text is decoded from its ids; a tag before its source (`data.train.tag`, or an imported model's) is set aside
meanwhile. Typed input, fragments and copies change whole batches: one row that grew would widen all the others. Every
draw depends on the seed, the epoch and the number of the batch in the epoch's plan, so it is the same after a resume,
in any worker and in any process.
"""

import dataclasses
import functools
import unicodedata
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.batches.dataset import EncodedCorpus, Ragged
from nmt.batches.lexicon import Lexicon
from nmt.batches.phrases import draw_phrases
from nmt.cleaning.casing import has_dotless_i, lowercase, title_case, without_punctuation
from nmt.config.languages import base_language, has_case
from nmt.config.training import AugmentationConfig, Config
from nmt.models.source import ragged
from nmt.tokenizers.subwords import SubwordSampler
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer, Tokenizers

STRETCH = 2.0
"""A sentence that would get more than this many times the pieces of the longest one in its batch is not changed, which
limits the size of a batch. Sampled sentences have more pieces than the plan counted: 1.2 times as many with 4,000 BPE
pieces on captions and a dropout of 0.1."""
CONCATENATED = 4 / 3  # three rows of n positions become two rows of 2n

Change = Callable[[str], str]
Row = NDArray[np.integer]
NO_TAGS = np.zeros(0, dtype=np.int64)


class Augmented(NamedTuple):
    """Augmented pairs of a batch."""

    src: Ragged
    tgt: Ragged
    tgt_seen: NDArray[np.integer]
    """The decoder's input: the ids of `tgt`, with `<unk>` where word dropout chose so."""


class Augmentation:
    """The `augmentation` of a run, for the batches of an epoch."""

    def __init__(self, config: Config, tokenizers: Tokenizers, epoch: int, lexicon: Lexicon | None = None) -> None:
        """`lexicon` is learned from the training corpus; without it, all `fragments` are concatenated pairs."""
        self._config = config.augmentation
        self._max_length = config.data.max_length
        language = config.data.src_lang
        dotless_i = has_dotless_i(base_language(language))
        self._changes: list[Change] = [without_punctuation]
        if has_case(language):
            self._changes += [functools.partial(change, dotless_i=dotless_i) for change in (lowercase, title_case)]
        self._seed = (config.training.seed, epoch)
        self._tokenizer = tokenizers.src
        self._src_unk, self._tgt_unk = tokenizers.src.special.unk, tokenizers.tgt.special.unk
        self._copies = SyntheticCopies(tokenizers) if config.augmentation.copies else None
        self._lexicon = lexicon
        self._tags = np.array(tokenizers.src.special.tags, dtype=np.int64)
        alpha, kind = config.augmentation.subword_sampling, config.tokenizer.type
        self._samplers = [
            SubwordSampler(tokenizer, kind, alpha) if alpha and isinstance(tokenizer, SentencePieceTokenizer) else None
            for tokenizer in (tokenizers.src, tokenizers.tgt)
        ]

    def __call__(self, number: int, src: Ragged, tgt: Ragged) -> Augmented:
        """Augment the pairs of batch `number` of the epoch."""
        config = self._config
        random = np.random.default_rng([*self._seed, 2, number])  # 2: independent of the draws of plan and mixture
        src, tags = self._without_tags(src)
        is_fragments = random.random() < config.fragments
        cuts: list[tuple[int, int]] = []
        if is_fragments and self._lexicon and random.random() < 0.5:
            if phrases := draw_phrases(self._lexicon, src, tgt, random):
                src, tgt = ragged([phrase.src for phrase in phrases]), ragged([phrase.tgt for phrase in phrases])
                tags = tags[[phrase.row for phrase in phrases]]
        elif is_fragments:
            src, tgt, tags, cuts = self._concatenated(src, tgt, tags)
        if config.changes_text:
            limits = self._limit(src, tags), self._limit(tgt, NO_TAGS)
            change = self._drawn_change(random)
            draws = Random(int(random.integers(2**62)))
            if self._copies and random.random() < config.copies:
                pairs = list(zip(_rows(src), _rows(tgt), strict=True))
                self._copies.insert(pairs, cuts or [(0, 0)] * len(pairs), limits, draws)
                src, tgt = (ragged(side) for side in zip(*pairs, strict=True))
                change = None  # changing the source alone would teach the model to change what it copies
            if src[0].ndim == 1:  # ids: vectors are not text
                src = self._rewritten(src, change, self._samplers[0], draws, limits[0], tags)
            tgt = self._rewritten(tgt, None, self._samplers[1], draws, limits[1])
        seen = tgt[0]
        if config.tgt_word_dropout:
            seen = np.where(random.random(len(seen)) < config.tgt_word_dropout, self._tgt_unk, seen)
        return Augmented(_with_tags(src, tags), tgt, seen)

    def _drawn_change(self, random: np.random.Generator) -> Change | None:
        """A randomly chosen change for the sources of a batch, or None."""
        is_changed = random.random() < self._config.typed_input
        chosen = random.integers(len(self._changes))
        return self._changes[chosen] if is_changed else None

    def _without_tags(self, src: Ragged) -> tuple[Ragged, NDArray[np.integer]]:
        """The sources without tags, and the tag of each; 0 (`<pad>`) for none."""
        ids, lengths = src
        if not len(self._tags):
            return src, np.zeros(len(lengths), dtype=np.int64)
        first = ids[np.cumsum(lengths) - lengths]
        tags = np.where(np.isin(first, self._tags), first, 0)
        return (np.delete(ids, (np.cumsum(lengths) - lengths)[tags > 0]), lengths - (tags > 0)), tags

    def _room(self, tags: NDArray[np.integer]) -> int:
        """Maximum number of ids of a row, without its tag."""
        return self._max_length - bool(tags.any())

    def _limit(self, side: Ragged, tags: NDArray[np.integer]) -> int:
        """Maximum number of ids of a changed row."""
        return min(self._room(tags), int(STRETCH * int(side[1].max())))

    def _concatenated(
        self, src: Ragged, tgt: Ragged, tags: NDArray[np.integer]
    ) -> tuple[Ragged, Ragged, NDArray[np.integer], list[tuple[int, int]]]:
        """Concatenate every two pairs: the batch has half the rows, twice as long.

        A sentence's first SentencePiece piece includes the space before it, so the ids are simply concatenated. Two
        pairs that would be too long together, or have different tags, stay separate. Also returns each row's tag, and
        the lengths of both sides of its first pair, (0, 0) for a row of a single pair.
        """
        groups: list[tuple[int, ...]] = []
        half, room = len(tags) // 2, self._room(tags)
        for pair in zip(range(half), range(half, 2 * half), strict=True):
            one, other = pair
            fits = all(lengths[one] + lengths[other] <= room for _, lengths in (src, tgt))
            groups += [pair] if fits and tags[one] == tags[other] else [(one,), (other,)]
        groups += [(index,) for index in range(2 * half, len(tags))]
        sides = [_rows(side) for side in (src, tgt)]
        both = [ragged([np.concatenate([rows[index] for index in group]) for group in groups]) for rows in sides]
        firsts = [group[0] for group in groups]
        cuts = [(int(src[1][group[0]]), int(tgt[1][group[0]])) if len(group) > 1 else (0, 0) for group in groups]
        return both[0], both[1], tags[firsts], cuts

    def _rewritten(
        self,
        side: Ragged,
        change: Change | None,
        sampler: SubwordSampler | None,
        draws: Random,
        limit: int,
        tags: NDArray[np.integer] = NO_TAGS,
    ) -> Ragged:
        """Change the texts of a side's sentences and sample their pieces; one that would exceed `limit` stays."""
        if not (change or sampler):
            return side
        rows = _rows(side)
        for index, row in enumerate(rows):
            new = own = row.tolist()
            if change and self._src_unk not in own:  # <unk> cannot be decoded
                changed = change(self._tokenizer.decode(own))
                tag = int(tags[index]) or None
                new = self._tokenizer.encode(self._tokenizer.normalize(changed), tag)[bool(tag) :]
            if sampler:
                new = sampler(new, draws)
            if new is not own and 0 < len(new) <= limit:
                rows[index] = np.array(new, dtype=row.dtype)
        return ragged(rows)


def _with_tags(src: Ragged, tags: NDArray[np.integer]) -> Ragged:
    """Put the tags back before their sources."""
    ids, lengths = src
    tagged = np.flatnonzero(tags)
    begins = np.cumsum(lengths) - lengths
    return (np.insert(ids, begins[tagged], tags[tagged]), lengths + (tags > 0)) if len(tagged) else src


def _rows(side: Ragged) -> list[NDArray[Any]]:
    ids, lengths = side
    return np.split(ids, np.cumsum(lengths)[:-1])


@dataclasses.dataclass(frozen=True)
class MaxBatchShape:
    """Upper limits on an augmented batch."""

    width: int
    """Maximum number of positions of a row."""
    stretch: float = 1.0
    """Maximum ratio of a batch's positions to the planned ones."""
    vectors: tuple[int, int] | None = None
    """Of a source of vectors: the length of the longest, and the number of features."""


def max_batch_shape(corpus: EncodedCorpus, config: AugmentationConfig, max_length: int) -> MaxBatchShape:
    """Upper limits on the batches from `corpus`; a sentence has at most `max_length` pieces."""
    width, stretch = 1 + max(int(side.lengths.max()) for side in (corpus.src, corpus.tgt)), 1.0
    if config.fragments:
        width, stretch = 2 * width, stretch * CONCATENATED
    if config.changes_text:
        width, stretch = int(STRETCH * width), stretch * STRETCH
    vectors = (int(corpus.src.lengths.max()), corpus.src.features) if corpus.src.features else None
    return MaxBatchShape(min(width, max_length + 1), stretch, vectors)


class SyntheticCopies:
    """Random texts that every language writes alike, inserted in both sides of a pair, so that a model learns to copy.

    A translator meets emoji, numbers, URLs and e-mail addresses that its corpus never had. Because the texts are
    random, a model can only learn to copy their pieces, not the texts.
    """

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = (tokenizers.src, tokenizers.tgt)
        self._punctuation = [_punctuation(tokenizer) for tokenizer in self._tokenizers]

    def insert(
        self, pairs: list[tuple[Row, Row]], cuts: list[tuple[int, int]], limits: tuple[int, int], random: Random
    ) -> None:
        """Insert a text into each of the pairs, in place.

        It is placed before both sides, after both, before the punctuation that ends both, or at the pair's cut: the
        lengths of the first sentence on both sides, or (0, 0). A pair stays as it is if a side would exceed its limit.
        """
        for index, (pair, cut) in enumerate(zip(pairs, cuts, strict=True)):
            ends = (len(pair[0]), len(pair[1]))
            places = {(0, 0), cut, ends}
            if all(int(row[-1]) in of_side for row, of_side in zip(pair, self._punctuation, strict=True)):
                places.add((ends[0] - 1, ends[1] - 1))
            chosen, text = random.choice(sorted(places)), synthetic_text(random)
            # A text's first piece includes the space before it, as everywhere in a line.
            inserted = [tokenizer.encode(text) for tokenizer in self._tokenizers]
            if all(end + len(ids) <= limit for end, ids, limit in zip(ends, inserted, limits, strict=True)):
                src, tgt = (
                    np.concatenate([row[:place], np.array(ids, dtype=row.dtype), row[place:]])
                    for row, place, ids in zip(pair, chosen, inserted, strict=True)
                )
                pairs[index] = src, tgt


def _punctuation(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of pieces that are punctuation without a space before it."""
    ids = range(tokenizer.vocab_size)
    return frozenset(
        index
        for index, piece in zip(ids, tokenizer.pieces(ids), strict=True)
        if all(unicodedata.category(character).startswith("P") for character in piece)
    )


_EMOJI = [*range(0x1F300, 0x1F321), *range(0x1F330, 0x1F394), *range(0x1F3A0, 0x1F3CB), *range(0x1F400, 0x1F4FE),
          *range(0x1F600, 0x1F650), *range(0x1F680, 0x1F6C6), *range(0x1F910, 0x1F93B)]  # fmt: skip
_OTHER_EMOJI = ["❤️", "☀️", "⭐", "✅", "⚽", "☕", "⚡", "✨"]  # three bytes each, some with a variation selector
_LETTERS = ["aeiou", "bcdfghjklmnprstvwz"]
_DOMAINS = ("com", "com", "org", "net", "de", "io", "info", "co.uk")


def synthetic_text(random: Random) -> str:
    """Emoji, a number, a URL or an e-mail address, each with the same probability; in lowercase."""
    return random.choice((_emoji, _number, _url, _address))(random)


def _emoji(random: Random) -> str:
    def emoji() -> str:
        return random.choice(_OTHER_EMOJI) if random.random() < 0.1 else chr(random.choice(_EMOJI))

    return "".join(emoji() for _ in range(random.choice((1, 1, 1, 2, 3))))


def _number(random: Random) -> str:
    """Digits, a time, or groups of digits as in a date or a version; nothing that languages write differently."""

    def digits(longest: int) -> str:
        return str(random.randrange(10 ** random.randint(1, longest)))

    kind = random.random()
    if kind < 0.7:
        return digits(8)
    if kind < 0.8:
        return f"{random.randrange(24)}:{random.randrange(60):02}"
    return random.choice("-./").join(digits(4) for _ in range(random.choice((2, 3))))


def _word(random: Random) -> str:
    """A pronounceable word, or any letters; sometimes with digits."""
    if random.random() < 0.3:
        return "".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(random.randint(2, 6)))
    start = random.randrange(2)
    word = "".join(random.choice(_LETTERS[(start + place) % 2]) for place in range(random.randint(3, 9)))
    return word + str(random.randrange(100)) if random.random() < 0.1 else word


def _host(random: Random) -> str:
    return f"{_word(random)}.{random.choice(_DOMAINS)}"


def _url(random: Random) -> str:
    url = random.choice(("https://", "https://", "http://", "https://www.", "www.")) + _host(random)
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        url += f"/{_word(random) if random.random() < 0.8 else random.randrange(10000)}"
    ending = random.random()
    return url + (f"?{_word(random)}={_word(random)}" if ending < 0.1 else ".html" if ending < 0.2 else "")


def _address(random: Random) -> str:
    name = _word(random) + (random.choice("._-") + _word(random) if random.random() < 0.5 else "")
    return f"{name}@{_host(random)}"
