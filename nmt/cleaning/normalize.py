"""Normalization of lines, and counts of the pairs that cleaning drops."""

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
    """Normalize a line for a tokenizer, in training and in translation.

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
    """Numbers of pairs read and dropped. A pair that violates several rules counts for the first."""

    read: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By rule, in the order of the rules; only rules that dropped pairs."""

    @classmethod
    def of(cls, recorded: Mapping[str, int]) -> "CleaningCounts":
        """Return the counts from `as_dict`."""
        return cls(recorded["read"], {rule: count for rule, count in recorded.items() if rule != "read" and count})

    def as_dict(self) -> dict[str, int]:
        """Return `read` and the number of each rule, for a file."""
        return {"read": self.read, **self.dropped}

    @property
    def kept(self) -> int:
        return self.read - sum(self.dropped.values())

    def then(self, later: "CleaningCounts") -> "CleaningCounts":
        """Add the counts of a later pass over the pairs that are kept."""
        return CleaningCounts(self.read, Counter(self.dropped) + Counter(later.dropped))

    def __add__(self, other: "CleaningCounts") -> "CleaningCounts":
        return CleaningCounts(self.read + other.read, Counter(self.dropped) + Counter(other.dropped))

    def __str__(self) -> str:
        listed = ", ".join(f"{rule.replace('_', ' ')} {count:,}" for rule, count in self.dropped.items())
        return f"{self.kept:,} pairs" + (f" (dropped: {listed})" if listed else "")


def clean(
    src_lengths: "NDArray[np.integer]", tgt_lengths: "NDArray[np.integer]", max_length: int
) -> "tuple[NDArray[np.bool_], CleaningCounts]":
    """Keep the pairs with 1 to `max_length` pieces on both sides; return their mask, and the counts."""
    empty = (src_lengths == 0) | (tgt_lengths == 0)
    too_long = ~empty & ((src_lengths > max_length) | (tgt_lengths > max_length))
    dropped = +Counter(empty=int(empty.sum()), too_long=int(too_long.sum()))  # those above 0
    return ~(empty | too_long), CleaningCounts(len(empty), dropped)
