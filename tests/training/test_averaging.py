"""Averages of weights: against their closed forms, in validations and the kept model, and over resumes."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_training import digest, new_trainer, newest_weights, records, trained
from torch import nn

import nmt.training.trainer
from nmt.config.reading import load_config
from nmt.errors import ConfigError, InterruptedTrainingError, RunError, TrainingError
from nmt.models.transformer import Transformer
from nmt.runs.folder import RunFolder, checkpoint_steps, run_named
from nmt.runs.weights import check_checkpoint, load_weights, mean_of_weights, save_weights, weights_of
from nmt.training.averaging import MovingAverage, exchanged
from nmt.training.preflight import rehearse
from nmt.training.trainer import Trainer

EMA = "training.ema_decay=0.9"
LONGER = ["training.max_steps=24", "training.validate_every=4", "training.best_metric=loss"]


def interrupted(config: Path, name: str, step: int, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> RunFolder:
    """A run that a signal stopped in the update before `step`."""
    original = Trainer.update

    def update(self: Trainer, *arguments: Any) -> None:
        original(self, *arguments)
        if self.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", update)
        with pytest.raises(InterruptedTrainingError):
            trained(config, name, *overrides)
    run = run_named(name)
    assert checkpoint_steps(run.checkpoints)[-1] == step
    return run


def weights_at(run: RunFolder, step: int, file: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return load_file(run.checkpoints / str(step) / file)


def test_the_moving_average_is_its_closed_form_with_the_warm_up_of_its_decay() -> None:
    model = nn.Linear(3, 2)
    average = MovingAverage(model, decay=0.8)
    history = [model.weight.detach().double().numpy().copy()]
    for step in range(1, 51):
        with torch.no_grad():
            model.weight.copy_(torch.randn(2, 3))
        history.append(model.weight.detach().double().numpy().copy())
        average.update(model, step)
        # sum over s of (1 - d_s) d_(s+1) ... d_step w_s, the initial weights included; d_s is 0.8 from s = 35 on
        decays = np.minimum(0.8, [(1 + s) / (10 + s) for s in range(1, step + 1)])
        shares = np.append(1.0, 1 - decays) * np.append(np.cumprod(decays[::-1])[::-1], 1.0)
        assert shares.sum() == pytest.approx(1.0)
        expected = np.tensordot(shares, np.stack(history), 1)
        np.testing.assert_allclose(average.values["weight"].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert decays[33] < 0.8 == decays[34]
    assert torch.equal(average.values["bias"], model.bias)  # the bias has not changed


def test_a_tied_matrix_is_averaged_once(small_model: Transformer) -> None:
    average = MovingAverage(small_model, decay=0.9)
    assert average.values.keys() == {name for name, _ in small_model.named_parameters()}
    start = small_model.output.weight.detach().clone()
    with torch.no_grad():
        small_model.output.weight.add_(1.0)
    average.update(small_model, 1)
    torch.testing.assert_close(average.values["src_embedding.weight"], start + 9 / 11)
    with exchanged(small_model, average.values):
        assert torch.equal(small_model.output.weight, average.values["src_embedding.weight"])
        assert small_model.output.weight.data_ptr() == small_model.src_embedding.weight.data_ptr()


def test_the_mean_of_several_files_is_numpys(small_model: Transformer, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.safetensors" for number in range(5)]
    for number, file in enumerate(files):
        with torch.no_grad():
            for parameter in small_model.parameters():
                parameter.normal_(std=10.0**number)
        save_weights(small_model, file)
    stored = [{name: value.double().numpy() for name, value in load_file(file).items()} for file in files]
    means = mean_of_weights(files)
    for name, mean in means.items():
        expected = np.mean([of_file[name] for of_file in stored], axis=0).astype(np.float32)
        assert mean.dtype == torch.float32
        np.testing.assert_array_equal(mean.numpy(), expected)
    assert means.keys() == stored[0].keys()
    other_order = mean_of_weights(files[::-1])
    assert all(torch.equal(mean, other_order[name]) for name, mean in means.items())


def test_files_that_do_not_hold_the_same_weights_have_no_mean(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for file, model in zip(files, (nn.Linear(3, 2), nn.Linear(4, 2), nn.Linear(3, 2, bias=False)), strict=True):
        save_weights(model, file)
    for other, named in zip(files[1:], ("weight", "bias"), strict=True):
        with pytest.raises(RunError, match=rf"{other.name}: not the weights of this model: {named} does not fit"):
            mean_of_weights([files[0], other])
    with pytest.raises(RunError, match=r"nowhere: cannot be read"):
        mean_of_weights([files[0], tmp_path / "nowhere"])
    files[1].write_bytes(files[0].read_bytes()[:-1])
    with pytest.raises(RunError, match=r"1\.safetensors: cannot be read"):
        mean_of_weights(files[:2])


def test_the_model_has_its_own_weights_again_whatever_happens(small_model: Transformer) -> None:
    before = {name: value.clone() for name, value in weights_of(small_model).items()}
    places = {name: value.data_ptr() for name, value in weights_of(small_model).items()}
    others = {name: torch.randn_like(value) for name, value in before.items()}
    with pytest.raises(KeyError, match="in a validation"), exchanged(small_model, others):
        assert all(torch.equal(value, others[name]) for name, value in weights_of(small_model).items())
        raise KeyError("in a validation")
    assert all(torch.equal(value, before[name]) for name, value in weights_of(small_model).items())
    assert {name: value.data_ptr() for name, value in weights_of(small_model).items()} == places


def test_validations_score_the_average_and_keep_its_best_while_training_is_unchanged(
    copy_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = trained(copy_task, "plain", *LONGER)
    assert "average " not in capsys.readouterr().err
    run = trained(copy_task, "run", EMA, *LONGER, "training.keep_checkpoints=9")
    assert "average     exponential, decay 0.9\n" in capsys.readouterr().err
    assert newest_weights(run) == newest_weights(plain)
    assert [r["loss"] for r in records(run, "train")] == [r["loss"] for r in records(plain, "train")]

    best = check_checkpoint(run.checkpoints / "24").best_step
    assert best >= 12
    expected = weights_at(run, best, "average.safetensors")
    model = load_file(run.model_file)
    assert all(torch.equal(value, expected[name]) for name, value in model.items())

    trainer = new_trainer(load_config(copy_task), "other")
    load_weights(trainer.model, run.model_file)
    [record] = [record for record in records(run, "validation") if record["step"] == best]
    assert trainer.validator.scores() == {key: record[key] for key in ("loss", "bleu", "chrf")}
    [of_plain] = [record for record in records(plain, "validation") if record["step"] == best]
    assert record["loss"] != of_plain["loss"]


def test_an_average_resumed_equals_a_straight_one_to_the_bit(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = trained(copy_task, "straight", EMA, *LONGER)
    run = interrupted(copy_task, "run", 13, monkeypatch, EMA, *LONGER)  # between validations
    trained(copy_task, "run", EMA, *LONGER)
    assert newest_weights(run) == newest_weights(straight)
    assert digest(run.model_file) == digest(straight.model_file)
    for of_ours, of_theirs in zip(records(run, "validation"), records(straight, "validation"), strict=True):
        assert {**of_ours, "seconds": 0} == {**of_theirs, "seconds": 0}
    ours, theirs = (folder.checkpoints / "24" / "average.safetensors" for folder in (run, straight))
    assert digest(ours) == digest(theirs)


def test_a_resumed_run_may_not_change_ema_decay(copy_task: Path) -> None:
    trained(copy_task, "run")
    with pytest.raises(RunError, match=r"  training\.ema_decay: null, not 0\.9"):
        trained(copy_task, "run", EMA, "training.max_steps=24")


def test_a_checkpoint_without_its_average_is_one_message(copy_task: Path) -> None:
    run = trained(copy_task, "run", EMA)
    for step in ("6", "12"):
        (run.checkpoints / step / "average.safetensors").unlink()
    with pytest.raises(RunError, match=r"12/average\.safetensors: cannot be read"):
        trained(copy_task, "run", EMA, "training.max_steps=24")


@pytest.mark.parametrize("decay", [0, 1])
def test_a_decay_is_between_0_and_1(copy_task: Path, decay: int) -> None:
    with pytest.raises(ConfigError, match=r"training\.ema_decay"):
        load_config(copy_task, [f"training.ema_decay={decay}"])


@pytest.mark.parametrize(("average", "copies"), [("training.ema_decay=null", 3 * 4 + 1), (EMA, 4 * 4 + 1)])
def test_disk_space_for_averages_is_checked(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch, average: str, copies: int
) -> None:
    config = load_config(copy_task, [average])
    weights = 4 * sum(new_trainer(config, "first").model.parameter_counts().values())
    # The last two, the best and the one being written, of 3 or 4 copies each; and the model.
    for name, free in (("enough", copies * weights), ("less", copies * weights - 1)):
        usage = shutil._ntuple_diskusage(0, 0, free)  # type: ignore[attr-defined]
        monkeypatch.setattr(nmt.training.preflight.shutil, "disk_usage", lambda path, usage=usage: usage)
        trainer = new_trainer(config, name)
        if name == "enough":
            rehearse(trainer)
        else:
            with pytest.raises(TrainingError, match=r"or lower training\.keep_checkpoints"):
                rehearse(trainer)
