"""Word translation probabilities: IBM Model 1 (Brown et al. 1993), and those of a corpus in both directions.

The types of a side are its different words, numbered. A link is a word of a source and a word of its target. An entry
is a source type and a target type that have a link.
"""

import dataclasses
import time
import unicodedata
from collections.abc import Sequence

import numpy as np
import regex
from numpy.typing import NDArray

from nmt.batches.dataset import EncodedCorpus, Ragged
from nmt.system.console import log
from nmt.tokenizers.tokenizer import Tokenizer, Tokenizers

# ---- Words of encoded text, as text.
#
# A word is what is between two spaces, without the punctuation around it; a run of punctuation is a word of its own. In
# scripts without spaces every piece is a word. A word keeps the spaces before it, so that words can be put together.
#
# >>> split('A t-shirt, "black".')
# ['A', ' t-shirt', ',', ' "', 'black', '".']


# Unicode's categories P and S: punctuation and symbols.
_WORD = regex.compile(r"\s*(?:[\p{P}\p{S}]+|[^\s\p{P}\p{S}](?:\S*[^\s\p{P}\p{S}])?)")


def split(text: str) -> list[str]:
    """The words of a text with spaces between them."""
    found: list[str] = _WORD.findall(text)
    return found


def is_text(word: str) -> bool:
    """Whether a word is neither punctuation nor a byte of a character."""
    text = word.lstrip()
    return bool(text) and unicodedata.category(text[0])[0] not in "PS"


def words_of(side: Ragged, tokenizer: Tokenizer, by_piece: bool) -> list[list[str]]:
    """The words of each row of ids; none of a row with `<unk>`, which stands for text that nobody knows."""
    ids, lengths = side
    rows = [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]
    unk, words = tokenizer.special.unk, _pieces if by_piece else _between_spaces
    return [[] if unk in row else words(row, tokenizer) for row in rows]


def _between_spaces(row: list[int], tokenizer: Tokenizer) -> list[str]:
    return split(tokenizer.decode(row))


def _pieces(row: list[int], tokenizer: Tokenizer) -> list[str]:
    """The pieces without tags; one that is a space alone is part of the next one."""
    pieces = tokenizer.pieces([index for index in row if index not in tokenizer.special])
    return "\n".join(pieces).replace("▁\n", "▁").replace("▁", " ").split("\n")


MAX_PAIRS = 100_000
MAX_LINKS = 12_000_000
"""Maximum number of links that a sample may have, of pieces instead of words."""
ITERATIONS = 5
MIN_CHANCE = 0.005
"""Entries that are less probable in both directions are left out."""


def sample(src_lengths: NDArray[np.integer], tgt_lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """At most MAX_PAIRS pairs, evenly spread, or fewer that have at most MAX_LINKS links of pieces."""
    count = min(len(src_lengths), MAX_PAIRS)
    pairs = np.linspace(0, len(src_lengths) - 1, count).astype(np.int64)
    links = np.cumsum(src_lengths[pairs].astype(np.int64) * tgt_lengths[pairs])
    if links[-1] > MAX_LINKS:
        pairs = pairs[np.linspace(0, count - 1, max(1, count * MAX_LINKS // int(links[-1]))).astype(np.int64)]
        links = np.cumsum(src_lengths[pairs].astype(np.int64) * tgt_lengths[pairs])
    return pairs[: max(1, int(np.searchsorted(links, MAX_LINKS, side="right")))]


def links_of(src_counts: NDArray[np.int64], tgt_counts: NDArray[np.int64]) -> tuple[NDArray[np.int32], ...]:
    """Every source word of a pair with each of its target words, pair by pair: the numbers of both words.

    >>> [side.tolist() for side in links_of(np.array([2, 1]), np.array([1, 2]))]
    [[0, 1, 2, 2], [0, 0, 1, 2]]
    """
    sizes = src_counts * tgt_counts

    def repeated(numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        return np.repeat(numbers.astype(np.int32), sizes)

    places = np.arange(sizes.sum(), dtype=np.int32) - repeated(np.cumsum(sizes) - sizes)
    src, tgt = np.divmod(places, repeated(tgt_counts))
    src += repeated(np.cumsum(src_counts) - src_counts)
    tgt += repeated(np.cumsum(tgt_counts) - tgt_counts)
    return src, tgt


def model_1(
    entry_of_links: NDArray[np.int32], given: NDArray[np.int64], words: NDArray[np.int32], types: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The probability of each entry's type on one side, given that on the other; and of each type, given NULL.

    For each link, `entry_of_links` has its entry, and `words` its word on the generated side, whose type is in `types`;
    `given` has the other side's type of each entry. Expectation maximization begins with equal probabilities: what
    generates a word is any word of the other side, or NULL, in proportion to how probably it does.
    """
    chances, null = np.ones(len(given)), np.ones(types.max(initial=0) + 1)
    for _ in range(ITERATIONS):
        of_links = chances[entry_of_links]
        totals = np.bincount(words, of_links, minlength=len(types)) + null[types]
        of_links /= totals[words]
        counts = np.bincount(entry_of_links, of_links, minlength=len(given))
        null_counts = np.bincount(types, null[types] / totals, minlength=len(null))
        chances = counts / np.bincount(given, counts)[given]
        null = null_counts / null_counts.sum()
    return chances, null


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """Word translation probabilities of a corpus. Words are the same if their text is the same in lowercase."""

    tokenizers: Tokenizers
    by_piece: tuple[bool, bool]
    """Whether the pieces of the source and of the target are their words."""
    types: tuple[dict[str, int], dict[str, int]]
    entries: NDArray[np.int64]
    """Source type * (number of target types + 1) + target type, sorted; the last one is larger than any."""
    chances: tuple[NDArray[np.float64], NDArray[np.float64]]
    """Of each entry: of the target type, given the source type; and the other way round."""
    nulls: tuple[NDArray[np.float64], NDArray[np.float64]]
    """Of each target type, given NULL; and of each source type. The last one is that of unknown words."""

    def words(self, src: Ragged, tgt: Ragged) -> tuple[list[list[str]], list[list[str]]]:
        """The words of each row of both sides."""
        of_src, of_tgt = self.by_piece
        return words_of(src, self.tokenizers.src, of_src), words_of(tgt, self.tokenizers.tgt, of_tgt)

    def posteriors(self, src: Sequence[str], tgt: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(S, T): how probably each target word was generated by each source word; and the other way round.

        Words that the lexicon does not know have no probable link.
        """
        rows, columns = (
            np.array([types.get(_type(word), len(types)) for word in words])
            for types, words in zip(self.types, (src, tgt), strict=True)
        )
        keys = rows[:, None] * (len(self.types[1]) + 1) + columns  # (S, T)
        places = np.searchsorted(self.entries, keys)
        is_entry = self.entries[places] == keys
        forward, backward = (np.where(is_entry, chances[places], 0.0) for chances in self.chances)
        forward /= forward.sum(0) + self.nulls[0][columns]
        backward /= (backward.sum(1) + self.nulls[1][rows])[:, None]
        return forward, backward


def learn_lexicon(corpus: EncodedCorpus, tokenizers: Tokenizers, by_piece: tuple[bool, bool]) -> Lexicon:
    """The lexicon of an encoded corpus: of at most MAX_PAIRS pairs and MAX_LINKS links, which take some seconds."""
    began = time.monotonic()
    pairs = sample(corpus.src.lengths, corpus.tgt.lengths)
    numbers: tuple[dict[str, int], dict[str, int]] = {}, {}
    types, counts = [], []
    for side, tokenizer, pieces, of_side in zip(
        (corpus.src, corpus.tgt), (tokenizers.src, tokenizers.tgt), by_piece, numbers, strict=True
    ):
        rows = words_of(side.gather(pairs), tokenizer, pieces)
        counts.append(np.array([len(row) for row in rows]))
        types.append(np.array([of_side.setdefault(_type(word), len(of_side)) for row in rows for word in row], int))
    src_words, tgt_words = links_of(counts[0], counts[1])
    size = len(numbers[1]) + 1
    entries, inverse = np.unique(types[0][src_words] * size + types[1][tgt_words], return_inverse=True)
    of_links = inverse.astype(np.int32)
    del inverse  # memory that model_1 needs
    forward, forward_null = model_1(of_links, entries // size, tgt_words, types[1])
    backward, backward_null = model_1(of_links, entries % size, src_words, types[0])
    is_kept = np.maximum(forward, backward) >= MIN_CHANCE
    log.info(f"aligned the words of {len(pairs):,} pairs in {time.monotonic() - began:.1f} s")
    return Lexicon(
        tokenizers,
        by_piece,
        numbers,
        np.append(entries[is_kept], np.iinfo(np.int64).max),
        (np.append(forward[is_kept], 0), np.append(backward[is_kept], 0)),
        (np.append(forward_null, 1), np.append(backward_null, 1)),
    )


def _type(word: str) -> str:
    return word.strip().lower()
