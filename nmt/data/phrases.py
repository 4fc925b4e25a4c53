"""Short phrase pairs that are translations of each other, taken out of sentence pairs by word alignment.

A model that has seen sentences alone makes sentences of all it reads: of "woman", "Eine Frau Frau.". Precision matters
here, and recall does not: a sentence has many phrases, and one is enough.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.dataset import Ragged
from nmt.data.lexicon import Lexicon
from nmt.data.tokenizer import Tokenizer
from nmt.data.words import is_text

LENGTH_CHANCES = (0.4, 0.3, 0.2, 0.1)
"""Of phrases of 1, 2, ... source words; what a sentence lacks is left out, and the others keep their proportions."""
MAX_WORDS = len(LENGTH_CHANCES)
MAX_DIFFERENCE = 1
"""Maximum difference of the numbers of words of the two sides of a phrase."""
SURE = 0.5
"""Two words are linked surely if each generates the other with more than this probability."""
POSSIBLE = 0.15
"""Two words are possibly linked if one generates the other with at least this probability."""


class Block(NamedTuple):
    """A phrase pair: the words `src_begin` to `src_end` - 1, and those of the target."""

    src_begin: int
    src_end: int
    tgt_begin: int
    tgt_end: int


class Phrase(NamedTuple):
    """A phrase pair as ids, and the number of the row that it is from."""

    row: int
    src: NDArray[np.integer]
    tgt: NDArray[np.integer]


def blocks(sure: NDArray[np.bool_], possible: NDArray[np.bool_]) -> list[Block]:
    """The phrase pairs of a sentence pair with at most MAX_WORDS source words; both arguments are (S, T).

    A phrase pair is consistent (Koehn et al. 2003): no possible link leads from inside to outside. The first and the
    last word of both sides have sure links. A pair whose sides differ by more than MAX_DIFFERENCE words is left out.
    """
    src_is_sure, tgt_is_sure = (np.logical_or.reduce(sure, axis=axis).tolist() for axis in (1, 0))
    targets, sources = _extents(possible), _extents(possible.T)
    found = []
    for src_begin in np.flatnonzero(src_is_sure).tolist():
        tgt_begin, tgt_last = targets[src_begin]
        for src_last in range(src_begin, min(src_begin + MAX_WORDS, len(sure))):
            tgt_begin, tgt_last = min(tgt_begin, targets[src_last][0]), max(tgt_last, targets[src_last][1])
            if not (src_is_sure[src_last] and tgt_is_sure[tgt_begin] and tgt_is_sure[tgt_last]):
                continue
            back = sources[tgt_begin : tgt_last + 1]
            is_consistent = all(src_begin <= first and last <= src_last for first, last in back if first <= last)
            if is_consistent and abs((tgt_last - tgt_begin) - (src_last - src_begin)) <= MAX_DIFFERENCE:
                found.append(Block(src_begin, src_last + 1, tgt_begin, tgt_last + 1))
    return found


def _extents(links: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The first and the last place of each row's links; of a row without any, (width, -1)."""
    width = links.shape[1]
    is_linked = links.any(axis=1)
    first = np.where(is_linked, links.argmax(axis=1), width)
    last = np.where(is_linked, width - 1 - links[:, ::-1].argmax(axis=1), -1)
    return list(zip(first.tolist(), last.tolist(), strict=True))


class Phrases:
    """Takes phrase pairs out of pairs of ids."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon

    def draw(self, src: Ragged, tgt: Ragged, random: np.random.Generator) -> list[Phrase]:
        """A random phrase pair of each row that has any. No phrase has more pieces than its row."""
        tokenizers, found = self._lexicon.tokenizers, []
        for row, words in enumerate(zip(*self._lexicon.words(src, tgt), strict=True)):
            every = self._blocks(*words) if all(words) else []
            if not every:
                continue
            block = _chosen(every, random)
            ids = (
                _encoded(words[0][block.src_begin : block.src_end], tokenizers.src, src[0].dtype),
                _encoded(words[1][block.tgt_begin : block.tgt_end], tokenizers.tgt, tgt[0].dtype),
            )
            if all(0 < len(of_phrase) <= side[1][row] for of_phrase, side in zip(ids, (src, tgt), strict=True)):
                found.append(Phrase(row, *ids))
        return found

    def _blocks(self, src: Sequence[str], tgt: Sequence[str]) -> list[Block]:
        """The phrase pairs of a sentence pair, without those that have punctuation."""
        forward, backward = self._lexicon.posteriors(src, tgt)
        return [
            block
            for block in blocks(np.minimum(forward, backward) > SURE, np.maximum(forward, backward) >= POSSIBLE)
            if all(map(is_text, src[block.src_begin : block.src_end]))
            and all(map(is_text, tgt[block.tgt_begin : block.tgt_end]))
        ]


def _encoded(words: Sequence[str], tokenizer: Tokenizer, dtype: np.dtype[Any]) -> NDArray[np.integer]:
    """The ids of a phrase as a line of its own; its first word may be written in other pieces than in a line."""
    return np.array(tokenizer.encode(tokenizer.normalize("".join(words).strip())), dtype=dtype)


def _chosen(every: Sequence[Block], random: np.random.Generator) -> Block:
    """One at random, its number of source words by LENGTH_CHANCES."""
    sizes = [block.src_end - block.src_begin for block in every]
    chances = np.array([LENGTH_CHANCES[size - 1] / sizes.count(size) for size in sizes])
    return every[random.choice(len(every), p=chances / chances.sum())]
