"""Averages of the weights: against their closed forms, in validations and their models, over resumes, and `nmt average`."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_training import digest, new_trainer, newest_weights, records, trained
from torch import nn

import nmt.training.trainer
from nmt.checkpoint import checkpoint_steps
from nmt.errors import InterruptedTrainingError
from nmt.runs import RunFolder, run_named

EMA, LAST = "training.ema_decay=0.9", "training.average_last=3"
LONGER = ["training.max_steps=24", "training.validate_every=4"]


def interrupted(config: Path, name: str, step: int, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> RunFolder:
    """A run that was stopped by a signal in the update that leads to `step`."""
    original = nmt.training.trainer.Trainer._update

    def update(self: nmt.training.trainer.Trainer, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        if self.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(nmt.training.trainer.Trainer, "_update", update)
        with pytest.raises(InterruptedTrainingError):
            trained(config, name, *overrides)
    return run_named(name)


@pytest.mark.parametrize("average", [EMA, LAST])
def test_an_average_resumed_equals_a_straight_one_to_the_bit(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch, average: str
) -> None:
    straight = trained(copy_task, "straight", average, *LONGER)
    run = interrupted(copy_task, "run", 13, monkeypatch, average, *LONGER)
    assert checkpoint_steps(run.checkpoints)[-1] == 13
    trained(copy_task, "run", average, *LONGER)
    assert newest_weights(run) == newest_weights(straight)
    assert digest(run.model_file) == digest(straight.model_file)
    for of_ours, of_theirs in zip(records(run, "validation"), records(straight, "validation"), strict=True):
        assert {**of_ours, "seconds": 0} == {**of_theirs, "seconds": 0}
    if average == EMA:
        ours, theirs = (folder.checkpoints / "24" / "average.safetensors" for folder in (run, straight))
        assert digest(ours) == digest(theirs)
