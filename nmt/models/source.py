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


# ---- Which positions may attend to which. In every mask, True means "may attend".
#
# Shapes: B batch, S source length, T target length.


def look_ahead_mask(length: int, device: torch.device | None = None) -> Tensor:
    """(T, T) bool, True at [i, j] where position i may attend to position j: j <= i.

    >>> look_ahead_mask(3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def for_heads(mask: Tensor) -> Tensor:
    """A padding mask in the shape for attention: (B, S) -> (B, 1, 1, S), the same for each head and query."""
    return mask[:, None, None, :]
