"""Normalizing lines, and the rules that leave pairs out of training, with counts."""

import dataclasses
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
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
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By rule, in the order of the rules; only rules that left pairs out."""

    @classmethod
    def of(cls, recorded: Mapping[str, int]) -> "CleaningCounts":
        """The counts from `as_dict`."""
        return cls(recorded["read"], {rule: count for rule, count in recorded.items() if rule != "read" and count})

    def as_dict(self) -> dict[str, int]:
        """`read` and the number for each rule, for a file."""
        return {"read": self.read, **self.left_out}

    @property
    def kept(self) -> int:
        return self.read - sum(self.left_out.values())

    def then(self, later: "CleaningCounts") -> "CleaningCounts":
        """These counts and those of a later look at the pairs that are kept."""
        return CleaningCounts(self.read, Counter(self.left_out) + Counter(later.left_out))

    def __add__(self, other: "CleaningCounts") -> "CleaningCounts":
        return CleaningCounts(self.read + other.read, Counter(self.left_out) + Counter(other.left_out))

    def __str__(self) -> str:
        listed = ", ".join(f"{rule.replace('_', ' ')} {count:,}" for rule, count in self.left_out.items())
        return f"{self.kept:,} pairs" + (f" (left out: {listed})" if listed else "")


def clean(
    src_lengths: "NDArray[np.integer]", tgt_lengths: "NDArray[np.integer]", max_length: int
) -> "tuple[NDArray[np.bool_], CleaningCounts]":
    """Keep the pairs with 1 to `max_length` pieces on both sides: a mask of them, and the counts."""
    empty = (src_lengths == 0) | (tgt_lengths == 0)
    too_long = ~empty & ((src_lengths > max_length) | (tgt_lengths > max_length))
    left_out = +Counter(empty=int(empty.sum()), too_long=int(too_long.sum()))  # those above 0
    return ~(empty | too_long), CleaningCounts(len(empty), left_out)
