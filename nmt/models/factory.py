"""The model that the `model` section of a configuration describes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from nmt.config.inference import ModelConfig
from nmt.config.source import TEXT, SourceConfig
from nmt.models.interface import TrainableModel
from nmt.models.rnn import Rnn
from nmt.models.transformer import Transformer


def build_model(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, source: SourceConfig = TEXT
) -> TrainableModel[Any, Any]:
    """Build the model, initialised with torch's random generator."""
    match config.architecture:
        case "transformer":
            return Transformer(config, src_vocab_size, tgt_vocab_size, source)
        case "rnn":
            return Rnn(config, src_vocab_size, tgt_vocab_size, source)


def parameter_shapes(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, source: SourceConfig = TEXT
) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's parameters by name, shared ones once; allocates no memory for the parameters."""
    with torch.device("meta"), _WithoutInitialisation():
        model = build_model(config, src_vocab_size, tgt_vocab_size, source)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


class _WithoutInitialisation(TorchFunctionMode):
    """A mode without `nn.init.normal_`: on the meta device torch would import its compiler for it, for seconds."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return None if func is nn.init.normal_ else func(*args, **(kwargs or {}))
