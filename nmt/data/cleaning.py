"""The rules that mend a line, or leave a pair out of training, and how often each of these did."""

import dataclasses
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a translator mends lines, and needs no numpy
    import numpy as np
    from numpy.typing import NDArray

_SPACES = re.compile("[ \u2581]+")


def normalize(line: str) -> str:
    """A line as every tokenizer gets it, in training and in translation: what people type, and nobody sees, made one.

    Unicode NFC, so that a letter with its accent is one character however it was typed; no white space at the ends;
    and one space for any number of spaces in a row, SentencePiece's own mark for a space (U+2581) being one. Other
    white space within a line stays: a no-break space in French and an ideographic one in Japanese mean something.

    >>> normalize("\\t a   b\\u3000c \\u3000")
    'a b\\u3000c'
    """
    line = unicodedata.normalize("NFC", line)
    if "  " in line or "\u2581" in line:  # of most lines, nothing else has to be looked at
        line = _SPACES.sub(" ", line)
    return line.strip()


@dataclasses.dataclass(frozen=True)
class CleaningCounts:
    """What became of the pairs that were read; one that breaks several rules is counted under the first."""

    read: int = 0
    empty: int = 0
    too_long: int = 0
    duplicate: int = 0

    @property
    def kept(self) -> int:
        return self.read - self.empty - self.too_long - self.duplicate

    def __add__(self, other: "CleaningCounts") -> "CleaningCounts":
        return CleaningCounts(
            self.read + other.read,
            self.empty + other.empty,
            self.too_long + other.too_long,
            self.duplicate + other.duplicate,
        )

    def __str__(self) -> str:
        reasons = ((self.empty, "empty"), (self.too_long, "too long"), (self.duplicate, "duplicate"))
        dropped = [f"{count:,} {reason}" for count, reason in reasons if count]
        listed = " and ".join([", ".join(dropped[:-1]), dropped[-1]] if len(dropped) > 1 else dropped)
        return f"{self.kept:,} pairs" + (f" ({listed} left out)" if dropped else "")


def clean(
    src_lengths: "NDArray[np.integer]", tgt_lengths: "NDArray[np.integer]", max_length: int
) -> "tuple[NDArray[np.bool_], CleaningCounts]":
    """Which pairs stay, and why the others do not; lengths are in pieces, without `<s>` and `</s>`."""
    empty = (src_lengths == 0) | (tgt_lengths == 0)
    too_long = ~empty & ((src_lengths > max_length) | (tgt_lengths > max_length))
    counts = CleaningCounts(len(empty), int(empty.sum()), int(too_long.sum()))
    return ~(empty | too_long), counts
