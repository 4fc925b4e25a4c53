"""Misalignment of a corpus whose sides differ in length: the place of the missing lines, by line lengths.

The lengths of a line and its translation correlate; those of unrelated lines do not (Gale and Church 1993).
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAX_LINES = 3_000_000  # 100 MB of memory
_WINDOW = 60  # lines before and after the gap whose lengths must match
_MIN_LINES = 200
_MIN_AFTER = 20  # with fewer lines after the gap, it is the end


class Gap(NamedTuple):
    """The place in the shorter side where lines are missing."""

    in_src: bool
    line: int | None
    """The first line that does not match, give or take a few; None: the last lines are missing."""


def find_gap(src_lengths: Iterable[int], tgt_lengths: Iterable[int]) -> Gap | None:
    """Find the gap in the shorter side, by the lengths of the lines in bytes.

    None unless all missing lines are missing in one place, with matching lengths before and after it.
    """
    src, tgt = (np.fromiter(lengths, dtype=np.int32) for lengths in (src_lengths, tgt_lengths))
    short, long = (src, tgt) if len(src) < len(tgt) else (tgt, src)
    count, missing = len(short), len(long) - len(short)
    if not missing or not _MIN_LINES <= count <= _MAX_LINES:
        return None
    logs, long_logs = np.log1p(short.astype(np.float32)), np.log1p(long.astype(np.float32))
    logs += np.median(long_logs) - np.median(logs)
    in_place, shifted = np.abs(long_logs[:count] - logs), np.abs(long_logs[missing:] - logs)
    # With the gap before line k, lines 0 to k - 1 are in place and the others shifted.
    cost = np.concatenate([[0], np.cumsum(in_place, dtype=np.float64)])
    cost[:-1] += np.cumsum(shifted[::-1], dtype=np.float64)[::-1]
    place = int(cost.argmin())
    # Half the mean difference of lines that are not translations of each other.
    limit = float(np.abs(np.roll(long_logs[: len(logs)], 7) - logs).mean()) / 2
    if not _do_match(in_place[max(0, place - _WINDOW) : place], limit):
        return None
    if count - place < _MIN_AFTER:
        return Gap(short is src, None)
    return Gap(short is src, place + 1) if _do_match(shifted[place : place + _WINDOW], limit) else None


def _do_match(differences: NDArray[np.float32], limit: float) -> bool:
    return not len(differences) or float(differences.mean()) < limit
