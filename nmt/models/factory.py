"""From the configuration's section to a model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nmt.config import ModelConfig
from nmt.models.interface import TrainableModel
from nmt.models.transformer import Transformer


def build_model(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> TrainableModel:
    """The model that the section describes, freshly initialised from torch's generator."""
    return Transformer(config, src_vocab_size, tgt_vocab_size)


def parameter_shapes(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters of such a model, by name, without the memory for it; a shared one is named once."""
    with torch.device("meta"), _WithoutRandomNumbers():
        model = build_model(config, src_vocab_size, tgt_vocab_size)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


class _WithoutRandomNumbers(TorchFunctionMode):
    """Leaves out initialisations: for a tensor without memory torch first imports, for seconds, how to do them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_):
            return args[0]
        return func(*args, **(kwargs or {}))
