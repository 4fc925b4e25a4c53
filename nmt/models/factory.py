"""From the configuration's section to a model."""

from nmt.config import ModelConfig
from nmt.models.interface import TrainableModel
from nmt.models.transformer import Transformer


def build_model(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> TrainableModel:
    """The model that the section describes, freshly initialised from torch's generator."""
    return Transformer(config, src_vocab_size, tgt_vocab_size)
