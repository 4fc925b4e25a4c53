"""Which positions may attend to which. In every mask, True means "may attend".

Shapes: B batch, S source length, T target length.
"""

import torch
from torch import Tensor


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
