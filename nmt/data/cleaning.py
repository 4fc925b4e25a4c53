"""The rules that leave a pair out of training, and how often each did."""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass
class CleaningCounts:
    """What became of the pairs that were read."""

    read: int = 0
    empty: int = 0
    too_long: int = 0

    @property
    def kept(self) -> int:
        return self.read - self.empty - self.too_long

    def keep(self, src: Sequence[int], tgt: Sequence[int], max_length: int) -> bool:
        """Whether a pair of encoded lines (pieces, without `<s>` and `</s>`) stays; counts it either way."""
        self.read += 1
        if not src or not tgt:
            self.empty += 1
        elif max(len(src), len(tgt)) > max_length:
            self.too_long += 1
        else:
            return True
        return False

    def __str__(self) -> str:
        dropped = [
            f"{count:,} {reason}" for count, reason in ((self.empty, "empty"), (self.too_long, "too long")) if count
        ]
        return f"{self.kept:,} pairs" + (f" ({' and '.join(dropped)} left out)" if dropped else "")
