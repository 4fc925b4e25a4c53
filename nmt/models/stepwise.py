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
        self._tape = _Tape(weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype))
        self._end = _end(weight, bias, self._tape)

    def __call__(self, x: Tensor) -> Tensor:
        """(..., F) -> (..., E)"""
        return _step(x, self._end, self._tape)


class _Tape:
    """What the backward passes of the steps leave for the end. It refers to no node of the graph: no cycle is made."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self.inputs: list[Tensor] = []
        self.gradients: list[Tensor] = []


class _End(torch.autograd.Function):
    """The scalar 0. Every step depends on it, so its backward pass runs after those of all steps."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, tape: _Tape) -> Tensor:
        ctx.tape, ctx.has_bias = tape, bias is not None
        return weight.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        tape: _Tape = ctx.tape
        gradients = torch.cat(tape.gradients)  # (rows of all steps, E)
        d_weight = gradients.t() @ torch.cat(tape.inputs)  # (E, F)
        tape.inputs, tape.gradients = [], []
        return d_weight, gradients.sum(dim=0) if ctx.has_bias else None, None


class _Step(torch.autograd.Function):
    """x W^T + b, and the gradient of x alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, end: Tensor, tape: _Tape) -> Tensor:
        x = x.to(tape.weight.dtype)
        ctx.save_for_backward(x)
        ctx.tape = tape
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x, tape.weight, tape.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        tape: _Tape = ctx.tape
        (x,) = ctx.saved_tensors
        d_output = d_output.to(x.dtype)
        if ctx.needs_input_grad[1]:
            tape.inputs.append(x.flatten(0, -2))
            tape.gradients.append(d_output.flatten(0, -2))
        return d_output @ tape.weight, d_output.new_zeros(()), None


_end: Callable[[Tensor, Tensor | None, _Tape], Tensor] = _End.apply
_step: Callable[[Tensor, Tensor, _Tape], Tensor] = _Step.apply
