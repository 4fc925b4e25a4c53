"""Mixtures: the number of times that each corpus's pairs occur in an epoch, by weight or by temperature."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.config.data import DataConfig
from nmt.errors import DataError

Pairs = NDArray[np.integer]


def epoch_counts(sizes: Sequence[int], data: DataConfig) -> list[int]:
    """The number of pairs of each corpus in an epoch; `sizes` are the corpora's sizes after cleaning.

    With weights, size * weight; with `data.replay`, the weights of the replayed corpora are multiplied by one number
    so that together they have this share of the epoch. With a temperature T, the total number of pairs is divided in
    proportion to size ** (1 / T) (Arivazhagan et al. 2019).
    """
    if data.temperature is None:
        weighted = [size * files.weight for size, files in zip(sizes, data.train, strict=True)]
        return [round(count) for count in (_replaying(weighted, data) if data.replay else weighted)]
    shares = np.array(sizes, dtype=np.float64) ** (1 / data.temperature) * (np.array(sizes) > 0)
    ends = np.rint(np.cumsum(shares) / shares.sum() * sum(sizes))  # rounded sums, so that the total is exact
    return [int(count) for count in np.diff(ends, prepend=0)]


def _replaying(counts: Sequence[float], data: DataConfig) -> list[float]:
    """Scale the counts of the replayed corpora so that they make up the share `data.replay` of the sum.

    `DataError` if the replayed corpora have no pair left.
    """
    old = sum(count for count, files in zip(counts, data.train, strict=True) if files.replayed)
    new = sum(count for count, files in zip(counts, data.train, strict=True) if not files.replayed)
    if not old:
        raise DataError("data.replay: no pair of the base run's training corpora is left; remove the key")
    factor = data.replay / (1 - data.replay) * new / old
    return [count * factor if files.replayed else count for count, files in zip(counts, data.train, strict=True)]


def pairs_of_epoch(sizes: Sequence[int], data: DataConfig, seed: int, epoch: int) -> Pairs | None:
    """The indices of an epoch's pairs, repeated as often as they occur; None if every pair occurs once.

    Pairs are numbered consecutively over the corpora. If a corpus has n pairs, and c in the epoch, each pair occurs
    c // n times, and c % n different pairs, chosen by `(seed, epoch)`, one more time. `DataError` if no pair is left.
    """
    counts = epoch_counts(sizes, data)
    if counts == list(sizes):
        return None
    if not sum(counts):
        raise DataError("the weights of data.train leave no pair in an epoch; raise them")
    random = np.random.default_rng([seed, epoch, 1])  # 1: independent of the plan's draws
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
    shares = (f"{files.src_file.name} {count / total:.1%}" for files, count in zip(data.train, counts, strict=True))
    return f"{', '.join(shares)} of {total:,} pairs an epoch"
