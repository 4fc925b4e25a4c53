"""Dropout that is fast on a CPU: 16 random bits an element.

torch's own dropout draws a Bernoulli number for every element, which takes a tenth of a training step on a CPU. Here
4 elements share one 64-bit word from torch's generator. All tensors may have any shape.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014): in training, zeroes each element with probability p and scales up the others.

    On a CPU, p is rounded to a multiple of 2^-16 below 1, and the scale follows from the rounded p, so that the
    expectation is exact. All draws come from torch's default generator: `torch.manual_seed` makes them deterministic.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape"""
        if not self.training or not self.p:
            return x
        if not x.is_cpu or torch.compiler.is_compiling():  # a GPU, or compiled code, draws and writes in one kernel
            return F.dropout(x, self.p)
        return _word_dropout(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _WordDropout(torch.autograd.Function):
    """x * keep * scale. The backward pass repeats the comparison with the saved random bits, two bytes an element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        dropped = min(round(p * 2**16), 2**16 - 1)  # of 2^16 equally likely values
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        ctx.save_for_backward(bits)
        ctx.threshold = dropped - 2**15  # int16 values begin at -2^15
        ctx.scale = 2**16 / (2**16 - dropped)
        return _keep(x, bits, ctx.threshold, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, None]:
        (bits,) = ctx.saved_tensors
        return _keep(d_output, bits, ctx.threshold, ctx.scale), None


_word_dropout: Callable[[Tensor, float], Tensor] = _WordDropout.apply


def _keep(x: Tensor, bits: Tensor, threshold: int, scale: float) -> Tensor:
    """x * scale where bits >= threshold, else 0. The mask is numeric because torch is slow with bool on a CPU."""
    kept = torch.ge(bits, threshold, out=torch.empty_like(x))
    return kept.mul_(x).mul_(scale)
