"""Linear maps for decoding on a CPU, their weights laid out once as oneDNN multiplies them.

For fp32, torch's own linear map takes MKL's product, which on AMD's processors is slower than oneDNN's. The operations
here are those of torch's compiler, which does not document them: so they are tried before they are relied on.

Shapes: D width in, E width out.
"""

import functools

import torch
from torch import Tensor, nn

TYPICAL_ROWS = 64  # what oneDNN lays the weights out for; any other number of rows works too


class PackedLinear(nn.Module):
    """An `nn.Linear` that only computes: it has no parameters, and a change of the original's does not reach it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), TYPICAL_ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., E)"""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product


def pack_linear_maps(model: nn.Module) -> None:
    """Replace every linear map of a model that will only decode, if it is in fp32 on a CPU and this torch can."""
    if not can_pack():
        return
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and child.weight.is_cpu and child.weight.dtype == torch.float32:
                setattr(module, name, PackedLinear(child))


@functools.cache
def can_pack() -> bool:
    """Whether this torch has the operations, and they give what a linear map does."""
    linear, x = nn.Linear(4, 3), torch.ones(2, 4)
    try:
        return torch.allclose(PackedLinear(linear)(x), linear(x), atol=1e-5)
    except (AttributeError, RuntimeError):
        return False
