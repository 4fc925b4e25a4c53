"""Mixtures: how often the pairs of each corpus occur in an epoch, by weight or by temperature."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.config.training import DataConfig
from nmt.errors import DataError

Pairs = NDArray[np.integer]


def epoch_counts(sizes: Sequence[int], data: DataConfig) -> list[int]:
    """How many pairs of each corpus an epoch has; `sizes` are those of the corpora after cleaning.

    With weights, size * weight. With a temperature T, shares in proportion to size ** (1 / T) (Arivazhagan et al. 2019)
    of as many pairs as there are.
    """
    if data.temperature is None:
        return [round(size * files.weight) for size, files in zip(sizes, data.train, strict=True)]
    shares = np.array(sizes, dtype=np.float64) ** (1 / data.temperature) * (np.array(sizes) > 0)
    ends = np.rint(np.cumsum(shares) / shares.sum() * sum(sizes)).astype(
        np.int64
    )  # so that nothing is lost in rounding
    return [int(count) for count in np.diff(ends, prepend=0)]


def pairs_of_epoch(sizes: Sequence[int], data: DataConfig, seed: int, epoch: int) -> Pairs | None:
    """The numbers of an epoch's pairs, each as often as it occurs; None if every pair occurs once.

    The corpora's pairs are numbered through, one corpus after the other. A corpus of n pairs that has c in the epoch
    gives each of them c // n times, and c % n different ones once more, which hang on `(seed, epoch)`.
    Raises `DataError` if the weights leave nothing.
    """
    counts = epoch_counts(sizes, data)
    if counts == list(sizes):
        return None
    if not sum(counts):
        raise DataError("the weights of data.train leave no pair in an epoch; raise them")
    random = np.random.default_rng([seed, epoch, 1])  # not the stream of the epoch's plan
    dtype = np.dtype(np.int32 if sum(sizes) < 2**31 else np.int64)
    parts: list[Pairs] = []
    begin = 0
    for size, count in zip(sizes, counts, strict=True):
        if size:
            every: Pairs = np.arange(begin, begin + size).astype(dtype)
            parts += [every] * (count // size)
            parts.append(every[random.permutation(size)[: count % size]])
        begin += size
    return np.concatenate(parts)


def describe_mixture(sizes: Sequence[int], data: DataConfig) -> str:
    """Each corpus's share of an epoch, or '' if every pair occurs once."""
    counts = epoch_counts(sizes, data)
    total = sum(counts)
    if counts == list(sizes):
        return ""
    shares = (f"{files.src.name} {count / total:.1%}" for files, count in zip(data.train, counts, strict=True))
    return f"{', '.join(shares)} of {total:,} pairs an epoch"
