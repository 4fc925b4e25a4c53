"""Short phrase pairs that are translations of each other, taken out of sentence pairs by word alignment.

A model that has seen sentences alone makes sentences of all it reads: of "woman", "Eine Frau Frau.". Precision matters
here, and recall does not: a sentence has many phrases, and one is enough.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.dataset import Ragged
from nmt.data.lexicon import Lexicon, Links
from nmt.data.tokenizer import Tokenizer, Tokenizers
from nmt.data.words import Splitter

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

    def __init__(self, tokenizers: Tokenizers, lexicon: Lexicon) -> None:
        self._tokenizers = tokenizers.src, tokenizers.tgt
        self._splitters = [Splitter(*of_side) for of_side in zip(self._tokenizers, lexicon.by_piece, strict=True)]
        self._lexicon = lexicon

    def draw(self, src: Ragged, tgt: Ragged, random: np.random.Generator) -> list[Phrase]:
        """A random phrase pair of each row that has any. No phrase has more pieces than its row."""
        sides = src, tgt
        words = [splitter(side) for splitter, side in zip(self._splitters, sides, strict=True)]
        links = Links.of(words[0].counts, words[1].counts)
        forward, backward = self._lexicon.posteriors(words[0], words[1], links)
        sure = np.minimum(forward, backward) > SURE
        possible = np.maximum(forward, backward) >= POSSIBLE
        begins = [0, 0]  # of the row's words
        begin = 0  # of its links
        found = []
        for row, shape in enumerate(zip(words[0].counts.tolist(), words[1].counts.tolist(), strict=True)):
            end = begin + shape[0] * shape[1]
            every = blocks(sure[begin:end].reshape(shape), possible[begin:end].reshape(shape))
            spans = [_spans(block, begins) for block in every]
            spans = [
                both for both in spans if all(of.is_text[span].all() for of, span in zip(words, both, strict=True))
            ]
            if spans:
                both = _chosen(spans, random)
                ids = [
                    side[0][of.edges[s.start] : of.edges[s.stop]]
                    for side, of, s in zip(sides, words, both, strict=True)
                ]
                found.append(Phrase(row, *map(self._tokenized, self._tokenizers, ids)))
            begins, begin = [begins[0] + shape[0], begins[1] + shape[1]], end
        lengths = [side[1] for side in sides]
        return [
            phrase
            for phrase in found
            if 0 < len(phrase.src) <= lengths[0][phrase.row] and 0 < len(phrase.tgt) <= lengths[1][phrase.row]
        ]

    def _tokenized(self, tokenizer: Tokenizer, ids: NDArray[np.integer]) -> NDArray[np.integer]:
        """The ids of a phrase as a line of its own; its first word may be written in other pieces than in a line."""
        text = tokenizer.decode(ids.tolist()).strip()
        return np.array(tokenizer.encode(tokenizer.normalize(text)), dtype=ids.dtype)


def _spans(block: Block, begins: Sequence[int]) -> tuple[slice, slice]:
    """A block of a row, whose words begin at these places, as places among the words of all rows."""
    return (
        slice(begins[0] + block.src_begin, begins[0] + block.src_end),
        slice(begins[1] + block.tgt_begin, begins[1] + block.tgt_end),
    )


def _chosen(spans: Sequence[tuple[slice, slice]], random: np.random.Generator) -> tuple[slice, slice]:
    """One at random, its number of source words by LENGTH_CHANCES."""
    sizes = [src.stop - src.start for src, _ in spans]
    chances = np.array([LENGTH_CHANCES[size - 1] / sizes.count(size) for size in sizes])
    return spans[random.choice(len(spans), p=chances / chances.sum())]
