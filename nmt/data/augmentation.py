"""Random changes to training pairs, different each time a pair is seen: subword sampling, word dropout, noise, copies.

A pair's text is decoded from its ids. Everything random depends on the seed, the epoch and the number of the batch
in the epoch's plan, so it is the same after a resume, in any worker and in any process.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.config.augmentation import AugmentationConfig
from nmt.config.training import Config
from nmt.data.copying import Copies
from nmt.data.dataset import EncodedCorpus, Ragged
from nmt.data.letters import has_dotless_i, lowercase, title_case, without_punctuation
from nmt.data.subwords import SubwordSampler
from nmt.data.tokenizer import SentencePieceTokenizer, Tokenizer, Tokenizers
from nmt.languages import base_language

# A sampled sentence has more pieces than the epoch's plan counted: with a BPE of 4,000 on captions and a dropout of
# 0.1, 1.2 times as many. A sentence that would have more than STRETCH times the pieces of the longest one in its batch
# is not changed, which limits the size of a batch.
STRETCH = 2.0
JOINED = 4 / 3  # three rows of n positions become two rows of 2n

Change = Callable[[str], str] | None


class Augmented(NamedTuple):
    """The augmented pairs of a batch."""

    src: Ragged
    tgt: Ragged
    tgt_seen: NDArray[np.integer]
    """The ids of `tgt` that the decoder reads, with `<unk>` in place of those that word dropout chose."""


class Augmentation:
    """A run's `augmentation`, for the batches of one epoch."""

    def __init__(self, config: Config, tokenizers: Tokenizers, epoch: int) -> None:
        self._config = config.augmentation
        self._max_length = config.data.max_length
        dotless_i = has_dotless_i(base_language(config.data.src_lang))
        self._lowercase = functools.partial(lowercase, dotless_i=dotless_i)
        self._title_case = functools.partial(title_case, dotless_i=dotless_i)
        self._seed = (config.training.seed, epoch)
        self._tokenizer = tokenizers.src
        self._src_unk, self._tgt_unk = tokenizers.src.special.unk, tokenizers.tgt.special.unk
        self._copies = Copies(tokenizers, config.augmentation.copies) if config.augmentation.copies else None
        self._samplers = [_sampler(tokenizer, config) for tokenizer in (tokenizers.src, tokenizers.tgt)]

    def __call__(self, number: int, src: Ragged, tgt: Ragged) -> Augmented:
        """Augment the pairs of batch `number` of the epoch."""
        config = self._config
        random = np.random.default_rng([*self._seed, 2, number])  # 2: other draws than plan and mixture
        cuts = [(0, 0)] * len(src[1])
        if config.join and random.random() < config.join:
            src, tgt, cuts = self._joined(src, tgt)
        if config.changes_text:
            limits = self._limit(src), self._limit(tgt)
            changes = self._changes(len(src[1]), random)
            draws = Random(int(random.integers(2**62)))
            if self._copies:
                pairs = list(zip(_rows(src), _rows(tgt), strict=True))
                copied = self._copies.insert(pairs, cuts, limits, draws)
                src, tgt = (ragged(side) for side in zip(*pairs, strict=True))
                # A change of the source alone would teach the model to change what it copies.
                changes = [None if has_copy else change for change, has_copy in zip(changes, copied, strict=True)]
            if src[0].ndim == 1:  # ids: vectors are not text
                src = self._rewritten(src, changes, self._samplers[0], draws, limits[0])
            tgt = self._rewritten(tgt, [None] * len(tgt[1]), self._samplers[1], draws, limits[1])
        return Augmented(
            (_word_dropout(src[0], config.src_word_dropout, self._src_unk, random), src[1]),
            tgt,
            _word_dropout(tgt[0], config.tgt_word_dropout, self._tgt_unk, random),
        )

    def _changes(self, count: int, random: np.random.Generator) -> list[Change]:
        """A randomly chosen change, or None, for each of `count` sources."""
        chances = self._config.source_changes
        changes: list[Change] = [self._lowercase, without_punctuation, self._title_case, None]
        return [changes[index] for index in random.choice(len(changes), size=count, p=[*chances, 1 - sum(chances)])]

    def _limit(self, side: Ragged) -> int:
        """Maximum number of ids of a changed row."""
        return min(self._max_length, int(STRETCH * int(side[1].max())))

    def _joined(self, src: Ragged, tgt: Ragged) -> tuple[Ragged, Ragged, list[tuple[int, int]]]:
        """Concatenate every two pairs: the batch has half the rows, twice as long.

        A sentence's first SentencePiece piece includes the space before it, so the ids are simply concatenated. Two
        pairs that would be too long together stay separate. Also returns the numbers of ids of each row's first pair,
        (0, 0) for a row of one.
        """
        sides = [_rows(side) for side in (src, tgt)]
        rows: list[list[NDArray[np.integer]]] = [[], []]
        cuts: list[tuple[int, int]] = []
        half = len(src[1]) // 2
        for index in range(half):
            two = [(side[index], side[index + half]) for side in sides]
            if max(len(a) + len(b) for a, b in two) <= self._max_length:
                cuts.append((len(two[0][0]), len(two[1][0])))
                for row, both in zip(rows, two, strict=True):
                    row.append(np.concatenate(both))
            else:
                cuts += [(0, 0)] * 2
                for row, both in zip(rows, two, strict=True):
                    row.extend(both)
        for row, side in zip(rows, sides, strict=True):
            row.extend(side[2 * half :])
        return ragged(rows[0]), ragged(rows[1]), cuts + [(0, 0)] * (len(src[1]) - 2 * half)

    def _rewritten(
        self, side: Ragged, changes: Sequence[Change], sampler: SubwordSampler | None, draws: Random, limit: int
    ) -> Ragged:
        """A side's sentences with changed texts and sampled pieces; one that would have more than `limit` stays."""
        rows = _rows(side)
        for index, (row, change) in enumerate(zip(rows, changes, strict=True)):
            new = own = row.tolist()
            if change and self._src_unk not in own:  # <unk> cannot be decoded
                changed = change(self._tokenizer.decode(own))
                new = self._tokenizer.encode(self._tokenizer.normalize(changed))
            if sampler:
                new = sampler(new, draws)
            if new is not own and 0 < len(new) <= limit:
                rows[index] = np.array(new, dtype=row.dtype)
        return ragged(rows)


def _sampler(tokenizer: Tokenizer, config: Config) -> SubwordSampler | None:
    alpha, kind = config.augmentation.subword_sampling, config.tokenizer.type
    if not alpha:
        return None
    assert isinstance(tokenizer, SentencePieceTokenizer), "checked by Config"
    assert kind in ("bpe", "unigram")
    return SubwordSampler(tokenizer, kind, alpha)


def _word_dropout(ids: NDArray[np.integer], share: float, unk: int, random: np.random.Generator) -> NDArray[np.integer]:
    """Each id replaced by `unk` with probability `share`."""
    return np.where(random.random(len(ids)) < share, unk, ids) if share else ids


def _rows(side: Ragged) -> list[NDArray[Any]]:
    ids, lengths = side
    return np.split(ids, np.cumsum(lengths)[:-1])


def ragged(rows: Sequence[NDArray[Any]]) -> Ragged:
    """The rows concatenated, and the length of each."""
    return np.concatenate(rows), np.array([len(row) for row in rows])


@dataclasses.dataclass(frozen=True)
class Reach:
    """The maximum size of an augmented batch."""

    width: int
    """Maximum number of positions of a row."""
    stretch: float = 1.0
    """Maximum ratio of the positions of a batch to the planned ones."""
    vectors: tuple[int, int] | None = None
    """Vectors in the longest source, and their features, if the sources are vectors."""


def reach(corpus: EncodedCorpus, config: AugmentationConfig, max_length: int) -> Reach:
    """The maximum size of a batch from `corpus`; a sentence has at most `max_length` pieces."""
    width, stretch = 1 + max(int(side.lengths.max()) for side in (corpus.src, corpus.tgt)), 1.0
    if config.join:
        width, stretch = 2 * width, stretch * JOINED
    if config.changes_text:
        width, stretch = int(STRETCH * width), stretch * STRETCH
    vectors = (int(corpus.src.lengths.max()), corpus.src.features) if corpus.src.features else None
    return Reach(min(width, max_length + 1), stretch, vectors)
