"""A CUDA graph of the model: all kernels of its forward and backward pass, captured once and launched together.

A small model's kernels take less time than Python needs to launch them one by one. Joined batches have one shape, so
the same graph serves all of them. The loss, whose number of positions varies, stays outside.
"""

from typing import Any

import torch
from torch import Tensor, nn

from nmt.errors import TrainingError
from nmt.models.interface import TrainableModel
from nmt.models.joined import Joined
from nmt.models.source import Source
from nmt.system.console import log

MAX_DIFFERENCE = 0.01
"""Between the graph and the model, relative; the draws of dropout are the same."""


class Trunk(nn.Module):
    """A model without its loss, from tensors to a tensor, as a graph needs it."""

    def __init__(self, model: TrainableModel[Any, Any], max_length: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.max_length = max_length
        self.dtype = dtype

    def forward(self, values: Tensor, tgt_in: Tensor, src_starts: Tensor, tgt_starts: Tensor) -> Tensor:
        """Sources (R, S), (R, T), starts (P + 1,) each, as in `Joined` -> states (R, T, D)"""
        source = Source(
            values, torch.ones_like(values, dtype=torch.bool), Joined(src_starts, tgt_starts, self.max_length)
        )
        # A graph must contain the conversions of weights that autocast would keep from an earlier pass.
        mixed = torch.autocast(values.device.type, self.dtype, self.dtype != torch.float32, cache_enabled=False)
        with mixed:
            return self.model.states(source, tgt_in)


def captured(model: TrainableModel[Any, Any], source: Source, tgt_in: Tensor, dtype: torch.dtype) -> Trunk | None:
    """The model's trunk with a graph for joined batches of this shape; None, with a line, if it cannot be captured.

    To be called on a GPU before any loader runs: a thread that pins memory would disturb the capture. Gradients are
    then allocated once and must stay: without them, autograd would take a buffer that the next batch overwrites.
    Raises `TrainingError` if the GPU does not work after a failed capture.
    """
    assert source.joined is not None
    inputs = (source.values, tgt_in, *source.joined[:2])
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    plain, trunk = (Trunk(model, source.joined.max_length, dtype) for _ in range(2))
    expected = _results(plain, inputs, parameters)
    stream = torch.cuda.current_stream() if source.values.is_cuda else None
    try:
        torch.cuda.empty_cache()  # a graph has memory of its own
        torch.cuda.make_graphed_callables(trunk, inputs, allow_unused_input=True)
        found = _results(trunk, inputs, parameters)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        try:
            if stream is not None:
                torch.cuda.set_stream(stream)
            torch.cuda.empty_cache()
            _results(plain, inputs, parameters)
        except RuntimeError:
            raise TrainingError(f"a CUDA graph could not be captured ({reason}); set training.joined=false") from None
        log.info(f"no CUDA graph: it could not be captured ({reason}); training continues without")
        return None
    if not (_are_close(found[:1], expected[:1]) and _are_close(found[1:], expected[1:])):
        log.warning("no CUDA graph: what was captured does not compute what the model does; training continues without")
        return None
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    log.info("the model is captured as a CUDA graph")
    return trunk


def _results(trunk: Trunk, inputs: tuple[Tensor, ...], parameters: list[nn.Parameter]) -> list[Tensor]:
    """The states, and the gradients of a function of them."""
    torch.manual_seed(0)
    states: Tensor = trunk(*inputs)
    gradients = torch.autograd.grad(states, parameters, states.detach().roll(1, -1), allow_unused=True)
    return [states.detach(), *(gradient.clone() for gradient in gradients if gradient is not None)]


def _are_close(found: list[Tensor], expected: list[Tensor]) -> bool:
    """True if the tensors, as one vector, differ little: some gradients, as of a key's bias, are rounding errors."""
    errors = sum((one.double() - other.double()).square().sum() for one, other in zip(found, expected, strict=True))
    return bool(errors <= MAX_DIFFERENCE**2 * sum(other.double().square().sum() for other in expected))
