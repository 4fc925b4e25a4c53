"""Averaged weights, which are scored in validations and saved as the run's model; training uses the others.

At the end of training the weights oscillate around a minimum; their mean is closer to it (Polyak and Juditsky 1992;
Izmailov et al. 2018).
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from nmt.checkpoint import mean_of_weights, weights_of
from nmt.config.training import TrainingConfig


class MovingAverage:
    """An exponential moving average of a model's parameters, in fp32 on their device.

    After update t: average = d(t) * average + (1 - d(t)) * weights, with d(t) = min(decay, (1 + t) / (10 + t)), so that
    the random initial weights soon lose their influence (TensorFlow's ExponentialMovingAverage with `num_updates`).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: value.clone() for name, value in weights_of(model).items()}
        """By parameter name, as in a weights file."""

    def update(self, model: nn.Module, step: int) -> None:
        """Include the weights after update number `step`, counted from 1, without synchronising with the device."""
        decay = min(self.decay, (1 + step) / (10 + step))
        # All tensors in one call, as in torch.optim.swa_utils.
        torch._foreach_lerp_(list(self.values.values()), list(weights_of(model).values()), 1 - decay)


class Averaging:
    """Averaging as set by `training.ema_decay` or `training.average_last`; with neither, no averaging."""

    def __init__(self, model: nn.Module, settings: TrainingConfig, checkpoints: Path) -> None:
        self._model = model
        self._checkpoints = checkpoints
        self._count = settings.average_last or 1
        self._moving = None if settings.ema_decay is None else MovingAverage(model, settings.ema_decay)

    @property
    def state(self) -> dict[str, Tensor] | None:
        """The tensors to save in a checkpoint, by name; loading a checkpoint writes into them."""
        return None if self._moving is None else self._moving.values

    def update(self, step: int) -> None:
        """Include the weights after update number `step`; after a skipped update they are unchanged."""
        if self._moving is not None:
            self._moving.update(self._model, step)

    def scored(self, validations: list[int]) -> contextlib.AbstractContextManager[None]:
        """Give the model the averaged weights within the block.

        `validations` are the steps of earlier validations, as returned by `remembered`.
        """
        if self._moving is not None:
            return exchanged(self._model, self._moving.values)
        if self._count > 1:
            files = [self._checkpoints / str(step) / "model.safetensors" for step in self._needed(validations)]
            return exchanged(self._model, mean_of_weights(files, weights_of(self._model)))
        return contextlib.nullcontext()

    def remembered(self, validations: list[int], step: int) -> list[int]:
        """After a validation at `step`, the steps of the validations whose checkpoints the next one needs.

        Checkpoints saved because of a signal are not included, so that an interrupted run averages the same weights
        as an uninterrupted one.
        """
        return self._needed([*validations, step])

    def _needed(self, validations: list[int]) -> list[int]:
        return validations[max(0, len(validations) + 1 - self._count) :]


@contextlib.contextmanager
def exchanged(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give the model other weights within the block; afterwards its own are restored, unchanged to the bit."""
    own = weights_of(model)
    parameters = dict(model.named_parameters())
    try:
        for name, parameter in parameters.items():
            parameter.data = weights[name].to(parameter.device)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]
