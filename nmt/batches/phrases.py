"""Phrase pairs: short translations extracted from sentence pairs by word alignment.

A model trained on sentences alone turns every input into a sentence: "woman" becomes "Eine Frau Frau.". Precision
matters here, recall does not: a sentence has many phrases, and a single one is enough.

Shapes: S source words, T target words.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.batches.dataset import Ragged
from nmt.batches.lexicon import Lexicon, is_text
from nmt.tokenizers.tokenizer import Tokenizer

LENGTH_CHANCES = (0.4, 0.3, 0.2, 0.1)
"""Probabilities of phrases with 1, 2, ... source words, renormalized over the lengths that a sentence has."""
MAX_WORDS = len(LENGTH_CHANCES)
MAX_DIFFERENCE = 1
"""Maximum difference in words between the two sides of a phrase."""
SURE = 0.5
"""A link is sure if each word generates the other with more than this probability."""
POSSIBLE = 0.15
"""A link is possible if a word generates the other with at least this probability."""


Block = tuple[slice, slice]
"""A phrase pair's word positions on both sides."""


class Phrase(NamedTuple):
    """A phrase pair as ids, and the index of its row."""

    row: int
    src: NDArray[np.integer]
    tgt: NDArray[np.integer]


def blocks(sure: NDArray[np.bool_], possible: NDArray[np.bool_]) -> list[Block]:
    """Extract the phrase pairs of a sentence pair with at most MAX_WORDS source words; both arguments are (S, T).

    A phrase pair is consistent (Koehn et al. 2003): no possible link leads from inside to outside. The first and the
    last word of both sides have sure links. Pairs whose sides differ by more than MAX_DIFFERENCE words are dropped.
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
                found.append((slice(src_begin, src_last + 1), slice(tgt_begin, tgt_last + 1)))
    return found


def _extents(links: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The first and last link of each row; (width, -1) for a row without links."""
    width = links.shape[1]
    is_linked = links.any(axis=1)
    first = np.where(is_linked, links.argmax(axis=1), width)
    last = np.where(is_linked, width - 1 - links[:, ::-1].argmax(axis=1), -1)
    return list(zip(first.tolist(), last.tolist(), strict=True))


def draw_phrases(lexicon: Lexicon, src: Ragged, tgt: Ragged, random: np.random.Generator) -> list[Phrase]:
    """Draw a phrase pair without punctuation from each row that has any. No phrase has more pieces than its row."""
    found = []
    for row, (src_words, tgt_words) in enumerate(zip(*lexicon.words(src, tgt), strict=True)):
        if not (src_words and tgt_words):
            continue
        forward, backward = lexicon.posteriors(src_words, tgt_words)
        sure, possible = np.minimum(forward, backward) > SURE, np.maximum(forward, backward) >= POSSIBLE
        every = [
            (of_src, of_tgt)
            for of_src, of_tgt in blocks(sure, possible)
            if all(map(is_text, src_words[of_src] + tgt_words[of_tgt]))
        ]
        if not every:
            continue
        sizes = [of_src.stop - of_src.start for of_src, _ in every]
        chances = np.array([LENGTH_CHANCES[size - 1] / sizes.count(size) for size in sizes])
        of_src, of_tgt = every[random.choice(len(every), p=chances / chances.sum())]
        src_ids = _encoded(src_words[of_src], lexicon.tokenizers.src, src[0].dtype)
        tgt_ids = _encoded(tgt_words[of_tgt], lexicon.tokenizers.tgt, tgt[0].dtype)
        if 0 < len(src_ids) <= src[1][row] and 0 < len(tgt_ids) <= tgt[1][row]:
            found.append(Phrase(row, src_ids, tgt_ids))
    return found


def _encoded(words: Sequence[str], tokenizer: Tokenizer, dtype: np.dtype[Any]) -> NDArray[np.integer]:
    """Encode a phrase as a line of its own; its first word may have other pieces than inside a line."""
    return np.array(tokenizer.encode(tokenizer.normalize("".join(words).strip())), dtype=dtype)
