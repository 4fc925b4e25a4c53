"""The input of a model. Only its first layer, and the code that creates the input, distinguish ids from vectors.

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
        """The source on another device; the copy is asynchronous if the memory is pinned."""
        return Source(*(tensor.to(device, non_blocking=True) for tensor in self))

    def pin_memory(self) -> "Source":
        """The source in pinned memory, from which a GPU can copy directly."""
        return Source(*(tensor.pin_memory() for tensor in self))

    def repeat(self, times: int) -> "Source":
        """The batch repeated along its first dimension: (times * B, S)."""
        return Source(*(torch.cat([tensor] * times) for tensor in self))
