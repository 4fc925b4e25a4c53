"""What a model reads. Only the model's first layer and the reader that made it know whether it is ids or vectors.

Shapes: B batch, S source length, F features of a vector.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Source(NamedTuple):
    """A batch of sequences of ids, or of vectors, padded on the right."""

    values: Tensor
    """(B, S) int64 ids, or (B, S, F) vectors"""
    mask: Tensor
    """(B, S) bool, True = may attend"""

    def to(self, device: torch.device) -> "Source":
        """The source on another device; does not wait for the copy if the memory is pinned."""
        return Source(*(tensor.to(device, non_blocking=True) for tensor in self))

    def pin_memory(self) -> "Source":
        """The source in memory that a GPU can copy from by itself."""
        return Source(*(tensor.pin_memory() for tensor in self))

    def repeat(self, times: int) -> "Source":
        """The batch several times, one after the other: (times * B, S)."""
        return Source(*(torch.cat([tensor] * times) for tensor in self))
