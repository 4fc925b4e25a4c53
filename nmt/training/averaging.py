"""The moving average of the weights, which is scored in validations and saved as the run's model.

At the end of training the weights oscillate around a minimum; their mean is closer to it (Polyak and Juditsky 1992;
Izmailov et al. 2018).
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from nmt.runs.weights import weights_of


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
