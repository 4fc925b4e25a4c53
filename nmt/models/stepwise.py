"""Linear maps that are applied step by step in training, with the gradients of their weights computed once.

In a loop over T steps, autograd would make T gradients of each weight and add them up, which takes a third of the time
of a small recurrent decoder. Here the backward pass keeps each step's input x_t and gradient dy_t, and multiplies all
of them at the end: dW = sum over t of dy_t^T x_t = dY^T X.

Shapes: F input width, E output width.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LinearMap = Callable[[Tensor], Tensor]


def product_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which a product with this tensor is computed: autocast's, if it is on."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


class StepwiseLinear:
    """A linear map for the steps of one forward pass: (..., F) -> (..., E), with W (E, F) and perhaps a bias (E,).

    Under autocast it multiplies in its dtype, as `F.linear` does.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        dtype = product_dtype(weight)
        self.weight = weight.detach().to(dtype)
        self.bias = None if bias is None else bias.detach().to(dtype)
        self.inputs: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self._end = _end(weight, bias, self)

    def __call__(self, x: Tensor) -> Tensor:
        """(..., F) -> (..., E)"""
        return _step(x, self._end, self)


class _End(torch.autograd.Function):
    """The scalar 0. Every step depends on it, so its backward pass runs after those of all steps."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, linear: StepwiseLinear) -> Tensor:
        ctx.linear, ctx.has_bias = linear, bias is not None
        return weight.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        linear: StepwiseLinear = ctx.linear
        gradients = torch.cat(linear.gradients)  # (rows of all steps, E)
        d_weight = gradients.t() @ torch.cat(linear.inputs)  # (E, F)
        linear.inputs, linear.gradients = [], []
        return d_weight, gradients.sum(dim=0) if ctx.has_bias else None, None


class _Step(torch.autograd.Function):
    """x W^T + b, and the gradient of x alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, end: Tensor, linear: StepwiseLinear) -> Tensor:
        x = x.to(linear.weight.dtype)
        ctx.save_for_backward(x)
        ctx.linear = linear
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x, linear.weight, linear.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        linear: StepwiseLinear = ctx.linear
        (x,) = ctx.saved_tensors
        d_output = d_output.to(x.dtype)
        if ctx.needs_input_grad[1]:
            linear.inputs.append(x.flatten(0, -2))
            linear.gradients.append(d_output.flatten(0, -2))
        return d_output @ linear.weight, d_output.new_zeros(()), None


_end: Callable[[Tensor, Tensor | None, StepwiseLinear], Tensor] = _End.apply
_step: Callable[[Tensor, Tensor, StepwiseLinear], Tensor] = _Step.apply
