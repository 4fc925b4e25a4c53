"""The command-line options of the benchmarks."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt.batches.batches import Batch
from nmt.config.inference import RnnConfig
from nmt.models.factory import build_model
from nmt.models.source import Source

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_environment_may_be_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """eole runs in another folder."""
    (tmp_path / "eole" / "bin").mkdir(parents=True)
    (tmp_path / "eole" / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench_train.py", "--against", "eole/bin/python"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert script("bench_train").parse().against == tmp_path / "eole" / "bin" / "python"


@pytest.mark.parametrize(
    "settings",
    [
        {"attention": "additive", "num_decoder_layers": 2},
        {"attention": "general", "num_encoder_layers": 2, "input_feeding": False},
        {"attention": "dot", "d_embedding": 16},
        {"attention": "none"},
    ],
    ids=lambda settings: settings["attention"],
)
def test_the_flops_of_a_recurrent_model_are_those_that_torch_counts(settings: dict[str, Any]) -> None:
    """But for the bridge, one product a pair; the products of gradients are twice as many."""
    config = RnnConfig(**{"d_embedding": 8, "d_model": 16} | settings)
    model = build_model(config, 50, 50)
    rows = 5
    source = Source(torch.full((rows, 7), 5), torch.ones(rows, 7, dtype=torch.bool))
    tgt = torch.full((rows, 9), 6)
    with FlopCounterMode(display=False) as counter:
        model(source, tgt)
    bridge = 2 * rows * 16 * 16 * config.num_decoder_layers
    counted = counter.get_total_flops() - bridge
    batch = Batch(source, tgt, tgt, torch.arange(rows * 9), rows * 9)
    assert 3 * counted == script("bench_train").batch_flops(batch, config, 50)
