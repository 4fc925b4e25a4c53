"""Averages of the weights: what validations score and a run keeps as its model, while the weights are trained as ever.

The last updates of a training walk around a good place more than towards one; the mean of their weights lies nearer to
it (Polyak and Juditsky 1992; Izmailov et al. 2018).
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from nmt.checkpoint import mean_of_weights, weights_of
from nmt.config.training import TrainingConfig


class MovingAverage:
    """An exponential moving average of a model's parameters, in fp32 and where they are.

    Update t makes it d(t) * itself + (1 - d(t)) * weights, where d(t) = min(decay, (1 + t) / (10 + t)), so that the
    random weights of the start are soon forgotten (TensorFlow's ExponentialMovingAverage with `num_updates`).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: value.clone() for name, value in weights_of(model).items()}
        """By name, as in a file of weights."""

    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after update number `step`, counted from 1; nothing here waits for the device."""
        decay = min(self.decay, (1 + step) / (10 + step))
        # All tensors in one call, as torch.optim.swa_utils does it.
        torch._foreach_lerp_(list(self.values.values()), list(weights_of(model).values()), 1 - decay)


class Averaging:
    """What of `training.ema_decay` and `training.average_last` a run asks for; neither: the weights are as they are."""

    def __init__(self, model: nn.Module, settings: TrainingConfig, checkpoints: Path) -> None:
        self._model = model
        self._checkpoints = checkpoints
        self._count = settings.average_last or 1
        self._moving = None if settings.ema_decay is None else MovingAverage(model, settings.ema_decay)

    @property
    def state(self) -> dict[str, Tensor] | None:
        """What a checkpoint has to hold of it, by name; loading writes into these tensors."""
        return None if self._moving is None else self._moving.values

    def update(self, step: int) -> None:
        """Take in the weights after an update; one that was skipped has left them as they were."""
        if self._moving is not None:
            self._moving.update(self._model, step)

    def scored(self, validations: list[int]) -> contextlib.AbstractContextManager[None]:
        """The model with the averaged weights, for the length of a block.

        `validations` are the steps of those before this one, as `remembered` gave them.
        """
        if self._moving is not None:
            return exchanged(self._model, self._moving.values)
        if self._count > 1:
            files = [self._checkpoints / str(step) / "model.safetensors" for step in self._needed(validations)]
            return exchanged(self._model, mean_of_weights(files, weights_of(self._model)))
        return contextlib.nullcontext()

    def remembered(self, validations: list[int], step: int) -> list[int]:
        """The validations whose checkpoints the next one needs, after one at `step`.

        Other checkpoints (saved because of a signal) do not count, so that an interrupted run averages what a
        straight one does.
        """
        return self._needed([*validations, step])

    def _needed(self, validations: list[int]) -> list[int]:
        return validations[max(0, len(validations) + 1 - self._count) :]


@contextlib.contextmanager
def exchanged(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with other weights, for the length of the block; then it has its own again, to the bit."""
    own = weights_of(model)
    parameters = dict(model.named_parameters())
    try:
        for name, parameter in parameters.items():
            parameter.data = weights[name].to(parameter.device)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]
