"""From the configuration's section to a model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from nmt.config.inference import ModelConfig
from nmt.models.interface import TrainableModel
from nmt.models.transformer import Transformer


def build_model(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> TrainableModel[Any, Any]:
    """The model that the section describes, freshly initialised from torch's generator."""
    match config.architecture:
        case "transformer":
            return Transformer(config, src_vocab_size, tgt_vocab_size)


def parameter_shapes(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of such a model's parameters by name, a shared one once; no memory is taken for them."""
    with torch.device("meta"), _NotInitialised():
        model = build_model(config, src_vocab_size, tgt_vocab_size)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


class _NotInitialised(TorchFunctionMode):
    """Draws no normal numbers: without memory, torch would import its compiler for it, for seconds."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return None if func is nn.init.normal_ else func(*args, **(kwargs or {}))
