"""Minimum Bayes risk decoding: the sample most like the others (Kumar and Byrne 2004; Eikema and Aziz 2020,
arXiv:2005.10283), by sentence-level chrF.

Shapes: N samples of a source, D distinct texts among them, F n-grams that occur in them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ORDER, BETA = 6, 2  # sacreBLEU's chrF2


def expected_chrf(texts: Sequence[str]) -> NDArray[np.float64]:
    """(N,) the mean of each text's chrF2 against all N, itself included; 0 to 100, as sacreBLEU's sentence score.

    All texts count as references with the same weight, so a text that was drawn twice counts twice. Matrix products
    give all N * N scores, much faster than N * N calls of sacreBLEU.
    """
    index = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    counts = np.bincount([index[text] for text in texts])  # (D,)
    scores = _pairwise_chrf(list(index)) @ counts / len(texts)  # (D,)
    return np.array([scores[index[text]] for text in texts])


def by_risk(texts: Sequence[str]) -> list[int]:
    """The indices of the texts, highest `expected_chrf` first; ties as strings, then in the order of the draws."""
    scores = expected_chrf(texts).round(9)
    return sorted(range(len(texts)), key=lambda index: (-scores[index], texts[index], index))


def _pairwise_chrf(texts: Sequence[str]) -> NDArray[np.float64]:
    """(N, N) chrF2 of each text, the row, against each as its reference, the column."""
    characters = ["".join(text.split()) for text in texts]
    precisions, recalls, orders = np.zeros((3, len(texts), len(texts)))
    for size in range(1, ORDER + 1):
        counts = _ngram_counts(characters, size)  # (N, F)
        totals = counts.sum(axis=1)  # (N,)
        matches = _overlaps(counts)  # (N, N)
        both = (totals[:, None] > 0) & (totals[None, :] > 0)  # texts shorter than `size` do not count
        precisions += np.divide(matches, totals[:, None], out=np.zeros_like(precisions), where=both)
        recalls += np.divide(matches, totals[None, :], out=np.zeros_like(recalls), where=both)
        orders += both
    product, mixed = (1 + BETA**2) * precisions * recalls, orders * (BETA**2 * precisions + recalls)
    return 100 * np.divide(product, mixed, out=np.zeros_like(product), where=mixed > 0)


def _ngram_counts(texts: Sequence[str], size: int) -> NDArray[np.int64]:
    """(N, F) how often each n-gram of `size` characters occurs in each text."""
    index: dict[str, int] = {}
    rows = [
        [index.setdefault(text[start : start + size], len(index)) for start in range(len(text) - size + 1)]
        for text in texts
    ]
    return np.array([np.bincount(row, minlength=len(index)) for row in rows], dtype=np.int64).reshape(len(texts), -1)


def _overlaps(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N, N) sums over n-grams of the smaller count: over c = 1, 2, ..., how many occur at least c times in both."""
    overlaps = np.zeros((len(counts), len(counts)), dtype=np.int64)
    for count in range(1, int(counts.max(initial=0)) + 1):
        has = (counts >= count).astype(np.float32)
        overlaps += (has @ has.T).round().astype(np.int64)
    return overlaps
