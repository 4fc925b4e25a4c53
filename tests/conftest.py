"""What several tests share: a small model, a small corpus, and one CPU thread."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nmt.config import ModelConfig
from nmt.models.transformer import Transformer

VOCAB_SIZE = 11


@pytest.fixture(autouse=True)
def _same_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture
def small_config() -> ModelConfig:
    """Two layers a side, two heads, no dropout."""
    return ModelConfig(
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_model=16,
        num_heads=2,
        d_ff=32,
        dropout=0.0,
        max_positions=64,
    )


@pytest.fixture
def small_model(small_config: ModelConfig) -> Transformer:
    """A Transformer of `small_config` over 11 ids, random, in evaluation mode."""
    return Transformer(small_config, VOCAB_SIZE, VOCAB_SIZE).eval()


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[[str, list[str]], Path]:
    """`write_lines("train.en", ["a", "b"])` writes the file, a line each, and returns its path."""

    def write(name: str, lines: list[str]) -> Path:
        path = tmp_path / name
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
        return path

    return write
