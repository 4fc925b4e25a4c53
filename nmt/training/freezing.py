"""Parts of a model that keep their weights: `training.freeze`, and the rows of padding where they must stay zero."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nmt.config.section import ModelPart
from nmt.errors import ConfigError
from nmt.models.interface import TrainableModel


def freeze(model: TrainableModel[Any, Any], parts: Sequence[ModelPart]) -> None:
    """Give the parameters of some parts no gradient; one that several parts share is frozen by the name of any.

    Before the optimizer is made, so that it has no state for them. Raises `ConfigError` for a part without parameters,
    and if nothing is left to train.
    """
    # With all names of shared parameters.
    named = [(model.part_of(name), parameter) for name, parameter in model.named_parameters(remove_duplicate=False)]
    found = {part for part, _ in named}
    for part in parts:
        if part not in found:
            raise ConfigError(f"training.freeze: {part}: this model has no such parameters; leave it out")
    for part, parameter in named:
        if part in parts:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"training.freeze: {', '.join(parts)}: nothing is left to train; leave one of them out")


def clear_rows(rows: Sequence[tuple[Tensor, int]]) -> None:
    """Set rows of matrices to zero; entries of a bias keep their values."""
    with torch.no_grad():
        for parameter, row in rows:
            if parameter.ndim > 1:
                parameter[row] = 0.0


def keep_rows(rows: Sequence[tuple[Tensor, int]]) -> None:
    """Give rows of parameters no gradient; after the backward passes, and before the gradients are clipped."""
    for parameter, row in rows:
        if parameter.grad is not None:
            parameter.grad[row] = 0.0
