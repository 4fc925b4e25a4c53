"""Where the two sides of a corpus go apart, if one of them lacks lines: found by the lengths of the lines.

The length of a line and that of its translation go together; those of other lines do not (Gale and Church 1993).
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAX_LINES = 3_000_000  # 100 MB of memory
_WINDOW = 60  # lines before and after the place that must go together
_MIN_LINES = 200
_MIN_AFTER = 20  # with fewer lines after the place, it is the end


class Gap(NamedTuple):
    """Where one side lacks lines."""

    in_src: bool
    line: int | None
    """The number of the first line that does not match, give or take a few; None: the last lines are missing."""


def find_gap(src_lengths: Iterable[int], tgt_lengths: Iterable[int]) -> Gap | None:
    """Where the side with fewer lines lacks all the missing ones, by the lengths of the lines in bytes.

    None if that is not clear: the lines go together well before and after the gap, or nothing is said. So lines that
    are missing in several places, far from each other, are not found.
    """
    src, tgt = (np.fromiter(lengths, dtype=np.int32) for lengths in (src_lengths, tgt_lengths))
    short, long = (src, tgt) if len(src) < len(tgt) else (tgt, src)
    count, missing = len(short), len(long) - len(short)
    if not missing or not _MIN_LINES <= count <= _MAX_LINES:
        return None
    logs, others = np.log1p(short.astype(np.float32)), np.log1p(long.astype(np.float32))
    logs += np.median(others) - np.median(logs)
    in_place, shifted = np.abs(others[:count] - logs), np.abs(others[missing:] - logs)
    # With the gap before line k, lines 0 to k - 1 are in place and the others shifted.
    cost = np.concatenate([[0], np.cumsum(in_place, dtype=np.float64)])
    cost[:-1] += np.cumsum(shifted[::-1], dtype=np.float64)[::-1]
    place = int(cost.argmin())
    # Half the mean difference of lines that are no translations of each other.
    enough = float(np.abs(np.roll(others[: len(logs)], 7) - logs).mean()) / 2
    if not _go_together(in_place[max(0, place - _WINDOW) : place], enough):
        return None
    if count - place < _MIN_AFTER:
        return Gap(short is src, None)
    return Gap(short is src, place + 1) if _go_together(shifted[place : place + _WINDOW], enough) else None


def _go_together(differences: NDArray[np.float32], enough: float) -> bool:
    return not len(differences) or float(differences.mean()) < enough
