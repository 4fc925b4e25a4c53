"""A CUDA graph of the model: all kernels of its forward and backward pass, recorded once and launched together.

A small model's kernels take less time than Python needs to launch them one by one. Joined batches have one shape, so
the same graph serves all of them. The loss, whose number of positions varies, stays outside.
"""

from typing import Any

import torch
from torch import Tensor, nn

from nmt.models.interface import TrainableModel
from nmt.models.joined import Joined
from nmt.models.source import Source
from nmt.system.console import log

MAX_DIFFERENCE = 0.01
"""Between what is recorded and what is launched kernel by kernel, relative; the draws of dropout are the same."""


class Trunk(nn.Module):
    """A model without its loss, from tensors to a tensor, as a graph needs it."""

    def __init__(self, model: TrainableModel[Any, Any], longest: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.longest = longest
        self.dtype = dtype

    def forward(self, values: Tensor, tgt_in: Tensor, src_starts: Tensor, tgt_starts: Tensor) -> Tensor:
        """Sources (R, S), (R, T), starts (P + 1,) each, as in `Joined` -> states (R, T, D)"""
        source = Source(values, torch.ones_like(values, dtype=torch.bool), Joined(src_starts, tgt_starts, self.longest))
        # A graph must contain the conversions of weights that autocast would keep from an earlier pass.
        mixed = torch.autocast(values.device.type, self.dtype, self.dtype != torch.float32, cache_enabled=False)
        with mixed:
            return self.model.states(source, tgt_in)


def recorded(model: TrainableModel[Any, Any], source: Source, tgt_in: Tensor, dtype: torch.dtype) -> Trunk | None:
    """The model's trunk with a graph for joined batches of this shape; None, with a line, if that is impossible.

    To be called on a GPU before any loader runs: a thread that pins memory would disturb the recording. Gradients are
    then allocated once and must stay: without them, autograd would take a buffer that the next batch overwrites.
    """
    assert source.joined is not None
    trunk = Trunk(model, source.joined.longest, dtype)
    inputs = (source.values, tgt_in, *source.joined[:2])
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        expected = _results(trunk, inputs, parameters)
        torch.cuda.empty_cache()  # a graph has memory of its own
        torch.cuda.make_graphed_callables(trunk, inputs, allow_unused_input=True)
        found = _results(trunk, inputs, parameters)
    except RuntimeError as error:
        log.info(f"no CUDA graph could be recorded ({str(error).splitlines()[0]}); training goes on without")
        return None
    if any((one - other).norm() > MAX_DIFFERENCE * other.norm() for one, other in zip(found, expected, strict=True)):
        log.warning("the CUDA graph does not compute what the model does; training goes on without")
        return None
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    return trunk


def _results(trunk: Trunk, inputs: tuple[Tensor, ...], parameters: list[nn.Parameter]) -> list[Tensor]:
    """The states, and the gradients of a function of them."""
    torch.manual_seed(0)
    states: Tensor = trunk(*inputs)
    gradients = torch.autograd.grad(states, parameters, states.detach().roll(1, -1), allow_unused=True)
    return [states.detach(), *(gradient.clone() for gradient in gradients if gradient is not None)]
