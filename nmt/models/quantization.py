"""int8 as CTranslate2 computes it on a CPU, imitated in floating point, so that a model is trained for it.

A row of a matrix of weights, or a position's vector that is multiplied with it, v, becomes whole numbers with a scale:

    s = 127 / max |v|          q = round(s v), from -127 to 127          fake(v) = q / s
    y = (q_x . q_w) / (s_x s_w) + b = fake(x) . fake(w) + b

The sum over q_x q_w is of whole numbers, and exact; here it is one of their floating-point values. Embeddings are rows,
too. Biases, normalisations, positions and the products within attention stay floating-point numbers there and here.

The gradient takes fake(v) for v: straight through (Bengio et al. 2013, "Estimating or Propagating Gradients Through
Stochastic Neurons for Conditional Computation"). Training with imitated whole numbers is that of Jacob et al. 2018,
"Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", with the scales of
each row instead of learned ones.

Shapes: D input width, E output width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LEVELS = 127
"""The largest whole number; -128 is not used."""
SMALLEST = 1e-30
"""The least maximum of a row, so that a row of zeros has a scale, and stays one."""


class Linear(nn.Linear):
    """`nn.Linear`, which may imitate int8: (..., D) -> (..., E)"""

    is_quantized = False
    """Set by `quantize`."""

    def operands(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What is multiplied: the vectors, (..., D), and the weight, (E, D)."""
        return (fake_int8(x), fake_int8(self.weight)) if self.is_quantized else (x, self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., E)"""
        x, weight = self.operands(x)
        return F.linear(x, weight, self.bias)


class Embedding(nn.Embedding):
    """`nn.Embedding`, which may imitate int8: ids (...) -> (..., D)"""

    is_quantized = False
    """Set by `quantize`."""

    def forward(self, ids: Tensor) -> Tensor:
        """(...) -> (..., D)"""
        rows = super().forward(ids)
        return fake_int8(rows) if self.is_quantized else rows


def quantize(model: nn.Module) -> None:
    """Let all linear maps and embeddings imitate int8, in training and in evaluation; the parameters stay as they are.

    They are what is saved: a program that exports them rounds them in the same way.
    """
    for module in model.modules():
        if isinstance(module, Linear | Embedding):
            module.is_quantized = True


def fake_int8(x: Tensor) -> Tensor:
    """Each row of the last dimension rounded to 255 levels, in fp32: (..., D) -> (..., D); the gradient is that of `x`.

    >>> fake_int8(torch.tensor([[127.0, 63.4, -0.6], [0.0, 0.0, 0.0]])).tolist()
    [[127.0, 63.0, -1.0], [0.0, 0.0, 0.0]]
    """
    return _fake_int8(x.float())


class _FakeInt8(torch.autograd.Function):
    """q / s, and the gradient straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        highest = x.abs().amax(dim=-1, keepdim=True).clamp_(min=SMALLEST)
        return (x * (LEVELS / highest)).round_().mul_(highest / LEVELS)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> Tensor:
        return d_output


_fake_int8: Callable[[Tensor], Tensor] = _FakeInt8.apply
