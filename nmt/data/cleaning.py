"""Normalizing lines, and the rules that leave pairs out of training, with counts."""

import dataclasses
import operator
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a translator normalizes lines, and needs no numpy
    import numpy as np
    from numpy.typing import NDArray

_SPACES = re.compile("[ \u2581]+")


def normalize(line: str) -> str:
    """The line as input for a tokenizer, in training and in translation.

    Unicode NFC, so that all ways to type an accented letter give the same characters; no white space at the ends; and
    one space for a run of spaces, where SentencePiece's mark for a space (U+2581) counts as a space. Other white space
    within a line is kept: a no-break space in French and an ideographic space in Japanese carry meaning.

    >>> normalize("\\t a   b\\u3000c \\u3000")
    'a b\\u3000c'
    """
    line = unicodedata.normalize("NFC", line)
    if "  " in line or "\u2581" in line:  # false for most lines, which saves time
        line = _SPACES.sub(" ", line)
    return line.strip()


@dataclasses.dataclass(frozen=True)
class CleaningCounts:
    """Numbers of pairs that were read and left out; a pair that violates several rules is counted for the first."""

    read: int = 0
    empty: int = 0
    too_long: int = 0
    duplicate: int = 0

    @property
    def kept(self) -> int:
        return self.read - self.empty - self.too_long - self.duplicate

    def __add__(self, other: "CleaningCounts") -> "CleaningCounts":
        return CleaningCounts(*map(operator.add, dataclasses.astuple(self), dataclasses.astuple(other)))

    def __str__(self) -> str:
        reasons = ((self.empty, "empty"), (self.too_long, "too long"), (self.duplicate, "duplicate"))
        dropped = [f"{count:,} {reason}" for count, reason in reasons if count]
        listed = " and ".join([", ".join(dropped[:-1]), dropped[-1]] if len(dropped) > 1 else dropped)
        return f"{self.kept:,} pairs" + (f" ({listed} left out)" if dropped else "")


def clean(
    src_lengths: "NDArray[np.integer]", tgt_lengths: "NDArray[np.integer]", max_length: int
) -> "tuple[NDArray[np.bool_], CleaningCounts]":
    """A mask of the pairs to keep, and the counts; lengths are in pieces, without `<s>` and `</s>`."""
    empty = (src_lengths == 0) | (tgt_lengths == 0)
    too_long = ~empty & ((src_lengths > max_length) | (tgt_lengths > max_length))
    counts = CleaningCounts(len(empty), int(empty.sum()), int(too_long.sum()))
    return ~(empty | too_long), counts
