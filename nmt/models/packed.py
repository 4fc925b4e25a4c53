"""Packed linear maps for decoding on a CPU: weights in the memory layout that oneDNN multiplies fastest.

In fp32, torch's own linear map calls MKL, which is slower than oneDNN on AMD processors. The operations used here are
internal to torch's compiler and not documented, so `can_pack` tests them first.

Shapes: D input width, E output width.
"""

import functools

import torch
from torch import Tensor, nn

from nmt.models.recurrence import Recurrence

TYPICAL_ROWS = 64  # the layout is optimised for this number of rows; others work, too


class PackedLinear(nn.Module):
    """A linear map without parameters. It holds a copy of the weight (E, D), which later changes do not affect."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), TYPICAL_ROWS)
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., E)"""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product


def pack_linear_maps(model: nn.Module) -> None:
    """Pack every fp32 linear map on a CPU, in a model used only for decoding, if this torch supports it.

    This includes the steps of recurrent layers; over whole sequences they keep torch's kernels.
    """
    if not can_pack():
        return
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and _is_packable(child.weight):
                setattr(module, name, PackedLinear(child.weight, child.bias))
        if isinstance(module, Recurrence) and _is_packable(module.input_map[0]):
            module.packed_maps = PackedLinear(*module.input_map), PackedLinear(*module.recurrent_map)


def _is_packable(weight: Tensor) -> bool:
    return weight.is_cpu and weight.dtype == torch.float32


@functools.cache
def can_pack() -> bool:
    """True if this torch has the operations and they compute a linear map."""
    linear, x = nn.Linear(4, 3), torch.ones(2, 4)
    try:
        return torch.allclose(PackedLinear(linear.weight, linear.bias)(x), linear(x), atol=1e-5)
    except (AttributeError, RuntimeError):
        return False
