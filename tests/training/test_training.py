"""The training loop: its arithmetic, the files kept, its limits, and resumed runs that equal uninterrupted ones."""

import gzip
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import batch_of, write_copy_task
from forked import TRAIN, ForkServer
from safetensors.torch import load_file

import nmt.training.monitor
import nmt.training.preflight
import nmt.training.trainer
from nmt.batches.mixture import pairs_of_epoch
from nmt.config.reading import load_config
from nmt.config.training import Config, TrainingConfig
from nmt.errors import DataError, InterruptedTrainingError, NmtError, RunError, TrainingError
from nmt.insight.progress import read_status
from nmt.runs.folder import RunFolder, checkpoint_steps, run_named
from nmt.runs.history import HIGHER_IS_BETTER, Progress
from nmt.runs.weights import check_checkpoint, load_checkpoint
from nmt.training.feeding import Share
from nmt.training.monitor import Monitor
from nmt.training.preparation import prepare
from nmt.training.resuming import validation_key
from nmt.training.start import train
from nmt.training.stopping import reached, seconds_left, total_steps
from nmt.training.trainer import Trainer
from nmt.training.validation import Validator, evaluating


def trained(config: Path, name: str, *overrides: str, fresh: bool = False) -> RunFolder:
    run = run_named(name)
    train(load_config(config, overrides), run, fresh)
    return run


def records(run: RunFolder, kind: str) -> list[dict[str, Any]]:
    lines = run.metrics_file.read_text(encoding="utf-8").splitlines()
    return [record for line in lines if (record := json.loads(line))["kind"] == kind]


def digest(path: Path) -> str:
    """A digest of a file's content, short enough for pytest to show a difference."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def newest_weights(run: RunFolder) -> str:
    return digest(run.checkpoints / str(checkpoint_steps(run.checkpoints)[-1]) / "model.safetensors")


def new_trainer(config: Config, name: str) -> Trainer:
    run = run_named(name)
    run.path.mkdir(parents=True)
    prepared = prepare(config, run, resuming=False)
    return Trainer(config, run, prepared, Monitor(run.metrics_file))


FIRST = np.array([0])  # the number of a pair, where it does not matter


def share_of(parts: list[list[tuple[list[int], list[int]]]]) -> Share:
    return Share([batch_of(pairs) for pairs in parts], [FIRST] * len(parts), [FIRST])


def test_an_update_is_the_gradient_of_the_mean_over_all_its_tokens(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(copy_task, ["model.dropout=0", "training.label_smoothing=0.1"])
    trainer = new_trainer(config, "ours")
    pairs = [([4, 5], [6, 7, 8, 9, 10]), ([4], [5]), ([9, 9, 9], [8, 8])]
    reference = new_trainer(config, "reference").model
    # AdamW's first step is the gradient's sign, so compare the gradients before it.
    monkeypatch.setattr(nmt.training.trainer, "clip_and_step", lambda *_: torch.zeros(()))
    trainer.update(share_of([pairs[:1], pairs[1:]]), num_tokens=6 + 2 + 3)

    # All three pairs in one batch, torch's own mean over the real positions.
    batch = batch_of(pairs)
    logits = reference(batch.source, batch.tgt_in)
    loss = F.cross_entropy(logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=0, label_smoothing=0.1)
    loss.backward()
    for ours, theirs in zip(trainer.model.parameters(), reference.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tie", ["all", "none"])
def test_padding_stays_zero_where_a_model_needs_it(copy_task: Path, tie: str) -> None:
    """In the embeddings, as with torch's `padding_idx`, and in the output; other models train the output's row."""
    for zero_bos, layout in ((True, "marianmt"), (False, "marianmt-own-start")):
        run = trained(copy_task, layout, f"model.layout={layout}", f"model.tie_embeddings={tie}",
                      "training.max_steps=3", "training.weight_decay=0.1")  # fmt: skip
        weights, state = (load_file(run.checkpoints / "3" / f"{name}.safetensors") for name in ("model", "state"))
        names = [name for name in weights if name.startswith(("src_embedding", "tgt_embedding", "output"))]
        assert len(names) == (2 if tie == "all" else 4)
        for name in names:
            moments = state[f"optimizer.{name}.exp_avg"]  # a row of each piece
            assert moments[4:].any(), name
            if zero_bos:
                assert not weights[name][0].any(), name
                assert not moments[0].any(), name
        assert zero_bos or state["optimizer.output.bias.exp_avg"][0] != 0


@pytest.mark.parametrize("scaled", [False, True])
def test_the_loss_is_given_the_scale_that_its_gradients_will_have(copy_task: Path, scaled: bool) -> None:
    """As with fp16: the upstream gradient of the loss is the scale divided by the tokens of the update."""
    trainer = new_trainer(load_config(copy_task, ["model.dropout=0"]), "run")
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    given: list[Any] = []
    objective = trainer.objective

    def seen(batch: Any, scale: Any) -> Any:
        sums = objective(batch, scale)
        sums.smoothed.register_hook(lambda gradient: given.append((scale, gradient.item())))
        return sums

    trainer.synchronised = seen  # type: ignore[assignment]
    share = share_of([[([4, 5], [6, 7, 8])], [([4], [5])]])
    trainer.update(share, num_tokens=8)
    expected = 128.0 if scaled else 0.125
    assert [gradient for _, gradient in given] == [expected, expected]
    assert [scale if scale is None else scale.item() for scale, _ in given] == [expected if scaled else None] * 2


def test_the_logged_loss_is_the_plain_cross_entropy_of_a_token(copy_task: Path) -> None:
    config = load_config(copy_task, ["model.dropout=0", "training.learning_rate=1e-12", "training.min_learning_rate=0"])
    trainer = new_trainer(config, "run")
    batches = [batch_of([([4, 5], [6, 7])]), batch_of([([9], [9, 8, 7, 6])])]
    total = 0.0
    for batch in batches:
        logits = trainer.model(batch.source, batch.tgt_in)
        total += F.cross_entropy(logits.flatten(0, 1), batch.tgt_out.flatten(), reduction="sum").item()
        trainer.update(Share([batch], [FIRST], [FIRST]), batch.num_tgt_tokens)
    assert trainer.interval.read()[0]["loss"] == pytest.approx(total / 8, rel=1e-5)


def test_a_model_returns_to_training_mode_after_any_evaluation() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.5)).train()
    with pytest.raises(KeyboardInterrupt), evaluating(model):
        assert not any(module.training for module in model.modules())
        raise KeyboardInterrupt
    assert all(module.training for module in model.modules())


def test_the_validation_loss_is_the_plain_cross_entropy_of_the_whole_set(copy_task: Path) -> None:
    trainer = new_trainer(load_config(copy_task), "run")
    corpus = trainer.prepared.validation_corpus
    batch = batch_of([corpus[index] for index in range(len(corpus))])
    logits = trainer.model.eval()(batch.source, batch.tgt_in)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=0).item()
    trainer.model.train()
    assert trainer.validator.scores()["loss"] == pytest.approx(expected, rel=1e-5)
    assert trainer.model.training


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(copy_task: Path) -> None:
    first, second = trained(copy_task, "first"), trained(copy_task, "second")
    other = trained(copy_task, "other", "training.seed=2")
    assert newest_weights(first) == newest_weights(second) != newest_weights(other)


LONG = ["training.max_steps=80", "training.validate_every=20", "training.batches_per_update=2"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with the settings `LONG`, never interrupted; to be read only."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = trained(write_copy_task(tmp_path_factory.mktemp("straight"), monkeypatch), "straight", *LONG)
        return RunFolder(run.path.absolute())


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        signal.SIGKILL,
    ],
)
def test_stopped_and_resumed_equals_straight_to_the_bit(
    forks: ForkServer, straight: RunFolder, copy_task: Path, number: int
) -> None:
    options = [part for setting in LONG for part in ("--set", setting)]
    process = forks.start(TRAIN, "train", "copy.yaml", "--name", "stopped", *options)
    metrics = Path("runs/stopped/metrics.jsonl")
    while process.poll() is None and not (metrics.exists() and '"step": 27' in metrics.read_text()):
        time.sleep(0.01)
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), stderr
    run = run_named("stopped")
    saved = checkpoint_steps(run.checkpoints)[-1]
    assert 20 <= saved < 80 if number == signal.SIGKILL else 27 <= saved < 80
    trained(copy_task, "stopped", *LONG)
    assert newest_weights(run) == newest_weights(straight)
    assert digest(run.model_file) == digest(straight.model_file)
    # The log is that of a straight run, too: each step once, with the same losses at validation.
    assert [r["step"] for r in records(run, "validation")] == [20, 40, 60, 80]
    assert [r["loss"] for r in records(run, "validation")] == [r["loss"] for r in records(straight, "validation")]
    steps = [r["step"] for r in records(run, "train")]
    assert steps == sorted(set(steps))


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_written_leaves_the_previous_one(forks: ForkServer, copy_task: Path) -> None:
    program = (
        "import os, sys, nmt.runs.weights as c\n"
        "original = c.write_bytes\n"
        "def dying(path, data):\n"
        "    os._exit(9) if path.name == 'state.safetensors' and path.parent.name == '12' else original(path, data)\n"
        "c.write_bytes = dying\n"
        "from nmt.cli.main import main\n"
        "main()\n"
    )
    process = forks.start(program, "train", "copy.yaml")
    process.communicate()
    assert process.returncode == 9
    run = run_named("copy")
    assert checkpoint_steps(run.checkpoints) == [6]
    assert list(run.checkpoints.glob(".*"))
    trained(copy_task, "copy")
    assert not list(run.path.rglob(".*"))
    assert newest_weights(run) == newest_weights(trained(copy_task, "straight"))


def test_a_finished_run_says_so_and_changes_nothing(copy_task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(copy_task, "run")
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    capsys.readouterr()
    Path("val.en").unlink()
    trained(copy_task, "run")
    assert "finished (training.max_steps, 12, is reached)" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_a_run_resumes_when_its_limit_is_raised(copy_task: Path) -> None:
    (trained(copy_task, "run").tokenizer / ".DS_Store").write_text("a desktop's notes")
    Path("train.en.gz").write_bytes(gzip.compress(Path("train.en").read_bytes()))
    run = trained(copy_task, "run", "training.max_steps=18", "data.train={src: train.en.gz, tgt: train.de}")
    assert newest_weights(run) == newest_weights(trained(copy_task, "straight", "training.max_steps=18"))
    assert run.config().training.max_steps == 18


def test_a_run_does_not_resume_with_other_settings_or_other_text(copy_task: Path) -> None:
    run = trained(copy_task, "run")
    with pytest.raises(RunError, match=r"model\.dropout: 0\.1, not 0\.3"):
        trained(copy_task, "run", "model.dropout=0.3", "training.max_steps=18")
    for path in (copy_task.with_name("train.en"), copy_task.with_name("train.de")):
        path.write_text(path.read_text() + "1 2 3\n")
    before = newest_weights(run)
    with pytest.raises(RunError, match=r"train\.en, \S*train\.de: changed since"):
        trained(copy_task, "run", "training.max_steps=18")
    for path in (copy_task.with_name("train.en"), copy_task.with_name("train.de")):
        path.write_text(path.read_text().removesuffix("1 2 3\n"))
    first = Path("train.en").read_text().splitlines()[0]
    for side in ("en", "de"):
        Path(f"out.{side}").write_text(f"{first}\n")
    with pytest.raises(RunError, match=r"data\.cleaning.*: changed since") as error:
        trained(copy_task, "run", "training.max_steps=18", "data.exclude=[{src: out.en, tgt: out.de}]")
    assert "train.en" not in str(error.value).partition("changed since")[0]
    (words,) = run.tokenizer.glob("*.words")
    words.write_text(words.read_text().replace("7", "x"))
    with pytest.raises(RunError, match=r"runs/run: tokenizer/: changed since"):
        trained(copy_task, "run", "training.max_steps=18")
    assert newest_weights(run) == before


def test_fresh_sets_the_old_run_aside(copy_task: Path) -> None:
    old = newest_weights(trained(copy_task, "run"))
    new = trained(copy_task, "run", "training.seed=5", fresh=True)
    assert newest_weights(run_named("run.old1")) == old != newest_weights(new)


def test_the_best_model_and_the_last_checkpoints_are_kept(copy_task: Path) -> None:
    # The rate rises until the model gets worse, so that the best checkpoint is not among the last.
    run = trained(
        copy_task, "run", "training.max_steps=40", "training.validate_every=5", "training.warmup_steps=1000",
        "training.best_metric=loss", "training.learning_rate=12",
    )  # fmt: skip
    losses = {record["step"]: record["loss"] for record in records(run, "validation")}
    best = min(losses, key=lambda step: losses[step])
    assert list(losses) == [5, 10, 15, 20, 25, 30, 35, 40]
    assert best < 35, losses
    assert checkpoint_steps(run.checkpoints) == sorted({best, 35, 40})
    kept = load_file(run.checkpoints / str(best) / "model.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in load_file(run.model_file).items())
    assert check_checkpoint(run.checkpoints / "40").best_step == best


@pytest.mark.parametrize(
    "metric",
    ["loss", "bleu", pytest.param("chrf", marks=pytest.mark.slow), pytest.param("ter", marks=pytest.mark.slow)],
)
def test_patience_ends_a_training_that_stops_improving(copy_task: Path, metric: str) -> None:
    run = trained(
        copy_task, "run", "training.max_steps=1000", "training.validate_every=2", "training.patience=3",
        f"training.best_metric={metric}", "training.learning_rate=0.3", "training.schedule=constant",
        "training.warmup_steps=0",
    )  # fmt: skip
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    ranks = [(sign * record[metric], -record["loss"]) for record in records(run, "validation")]
    best = max(range(len(ranks)), key=lambda index: (ranks[index], -index))
    assert len(ranks) == best + 4 < 500


def test_a_last_validation_that_is_the_best_continues_a_training(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = iter([50.0, 40.0, 40.0, 60.0, 30.0, 30.0])  # at steps 2, 4, 6, 7, 8, 10
    monkeypatch.setattr(Validator, "scores", lambda self: {"loss": 1.0, "bleu": next(values)})
    report = Trainer._report

    def stopping(trainer: Trainer) -> None:
        report(trainer)
        trainer.signals.received += [signal.SIGTERM] * (trainer.progress.step == 7)

    with monkeypatch.context() as stopped, pytest.raises(InterruptedTrainingError, match="at step 7"):
        stopped.setattr(Trainer, "_report", stopping)
        trained(copy_task, "run", "training.validate_every=2")
    run = trained(copy_task, "run", "training.validate_every=2", "training.patience=2")
    assert [record["step"] for record in records(run, "validation")] == [2, 4, 6, 7, 8, 10]
    assert "finished: training.patience: 2 validations without a better bleu; best bleu 60" in capsys.readouterr().err


@pytest.mark.parametrize("changed", ["text", "decoding.length_penalty=0", "evaluation.validation_beam_size=2"])
def test_a_resume_with_other_validations_decides_anew_which_model_is_best(
    copy_task: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """The best of an easy text ended the training by patience, and its model stayed, however good the next ones."""
    values = iter([50.0, 40.0, 10.0, 12.0, 11.0])  # at steps 2, 4, ...
    monkeypatch.setattr(Validator, "scores", lambda self: {"loss": 1.0, "bleu": next(values)})
    settings = ["training.validate_every=2", "training.patience=1", "training.keep_checkpoints=9"]
    run = trained(copy_task, "run", *settings)
    assert checkpoint_steps(run.checkpoints) == [2, 4]
    of_step_2 = digest(run.model_file)
    if changed == "text":
        for side in ("en", "de"):
            with Path(f"val.{side}").open("a") as file:
                file.write("1 2 3\n")
    else:
        settings.append(changed)
    capsys.readouterr()
    trained(copy_task, "run", *settings)
    assert "model.2.safetensors" in capsys.readouterr().err
    assert checkpoint_steps(run.checkpoints) == [2, 4, 6, 8, 10]
    assert digest(run.path / "model.2.safetensors") == of_step_2
    assert digest(run.model_file) == digest(run.checkpoints / "8" / "model.safetensors")
    status = read_status(run)
    assert (status.state, "patience" in status.reason) == ("finished", True)
    assert status.best_validation is not None
    assert status.best_validation.step == 8
    trained(copy_task, "run", *settings)
    assert "this run is finished" in capsys.readouterr().err


def test_what_decides_which_validations_can_be_compared(copy_task: Path) -> None:
    def key(*overrides: str) -> str:
        return validation_key(load_config(copy_task, overrides))

    same = ["decoding.beam_size=9", "decoding.batch_tokens=9", "decoding.precision=bf16", "evaluation.metrics=[ter]"]
    assert {key(override) for override in same} == {key()}
    assert key("decoding.length_penalty=0") != key()
    by_loss = "training.best_metric=loss"
    assert key(by_loss) == key(by_loss, "decoding.length_penalty=0")
    before = [key(), key(by_loss), key("training.best_metric=null")]
    Path("val.de").write_text(Path("val.de").read_text().replace("1", "2"))
    now = [key(), key(by_loss), key("training.best_metric=null")]
    assert [one == other for one, other in zip(before, now, strict=True)] == [False, False, True]


def test_limits_by_epochs_and_by_minutes(copy_task: Path) -> None:
    by_epochs = trained(copy_task, "epochs", "training.max_steps=null", "training.max_epochs=2", "training.log_every=1")
    progress = check_checkpoint(by_epochs.checkpoints / str(checkpoint_steps(by_epochs.checkpoints)[-1]))
    assert (progress.epoch, progress.batch) == (2, 0)
    tokens = sum(len(line.split()) + 1 for line in Path("train.de").read_text().splitlines())
    assert progress.tgt_tokens == 2 * tokens
    assert [record["epoch"] for record in records(by_epochs, "train")] == [1] * 21 + [2] * 21
    status = read_status(by_epochs)
    assert (status.state, status.epoch) == ("finished", 2)
    assert "training.max_epochs" in status.reason
    start = time.monotonic()
    trained(copy_task, "minutes", "training.max_steps=null", "training.max_minutes=0.02")
    assert time.monotonic() - start > 1.2


def test_stop_reasons_and_the_time_left() -> None:
    limits = TrainingConfig(max_steps=100, max_epochs=3, max_minutes=1, patience=2)
    assert reached(Progress(step=99, epoch=2, seconds=59, validations_since_best=1), limits) is None
    for limit, progress in (
        ("max_steps", Progress(step=100)),
        ("max_epochs", Progress(epoch=3)),
        ("max_minutes", Progress(seconds=60)),
        ("patience", Progress(validations_since_best=2)),
    ):
        assert (found := reached(progress, limits)) and limit in found.reason
    # 10 batches an epoch, 3 an update: 4 updates an epoch, 12 in all, fewer than 100
    three = limits.model_copy(update={"batches_per_update": 3})
    assert total_steps(three, 10) == 12
    assert seconds_left(Progress(step=2), three, 10, seconds_per_update=0.5) == 5.0
    assert seconds_left(Progress(step=2, seconds=58), three, 10, seconds_per_update=0.5) == 2.0


def test_a_diverged_training_stops_with_one_message(copy_task: Path) -> None:
    with pytest.raises(TrainingError, match=r"diverged, lower training\.learning_rate \(1e\+30\)") as error:
        trained(copy_task, "run", "training.learning_rate=1e30", "training.warmup_steps=0", "training.clip_norm=null")
    assert error.value.exit_code == 3


def test_a_disk_too_small_is_found_before_the_first_step(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(nmt.training.preflight.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(TrainingError, match=r"need about [1-9][0-9]* MB and 1 kB are free; make room"):
        trained(copy_task, "run")
    assert not records_exist("run")


def records_exist(name: str) -> bool:
    return run_named(name).metrics_file.exists()


def test_a_full_disk_is_one_message_and_the_checkpoint_is_kept(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = nmt.training.trainer.save_checkpoint

    def full(folder: Path, *arguments: Any) -> None:
        if folder.name == "12":
            raise OSError(28, os.strerror(28))
        original(folder, *arguments)

    monkeypatch.setattr(nmt.training.trainer, "save_checkpoint", full)
    with pytest.raises(TrainingError, match="cannot be written: No space left on device; free disk space"):
        trained(copy_task, "run")
    assert checkpoint_steps(run_named("run").checkpoints) == [6]


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("data.test.src=missing.en", "missing.en: no such file"),
        ("data.validation.tgt=train.de", "the two sides differ|every line needs"),
        ("data.train.tgt=val.de", "1,396 lines|lines"),
        ("training.device=cuda:7", "no such GPU"),
        ("training.precision=fp16", "fp16 is for GPUs"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(copy_task: Path, override: str, error: str) -> None:
    key, value = override.split("=")
    if key.startswith("data"):
        value = str(copy_task.with_name(value))
    if key == "data.test.src":
        copy_task.write_text(copy_task.read_text().replace("{src: test.en", f"{{src: {value}"))
        overrides: list[str] = []
    else:
        overrides = [f"{key}={value}"]
    with pytest.raises(NmtError, match=error) as raised:
        trained(copy_task, "run", *overrides)
    assert raised.value.exit_code == 2
    assert not records_exist("run")


def test_unknown_words_and_long_lines_are_warned_of(copy_task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(copy_task, "run", "tokenizer.vocab_size=10", "training.max_steps=1", "data.max_length=6")
    err = capsys.readouterr().err
    assert "longer than data.max_length (6 pieces) and are translated in parts" in err
    assert "of the src pieces are <unk>; raise tokenizer.vocab_size" in err
    assert "of the tgt pieces" in err


def test_a_checkpoint_restores_the_optimizer_and_needs_no_generator(copy_task: Path) -> None:
    run = trained(copy_task, "run")
    trainer = new_trainer(load_config(copy_task), "other")
    progress = load_checkpoint(run.checkpoints / "12", trainer.model, trainer.optimizer, trainer.scaler)
    assert progress.step == 12
    stored = load_file(run.checkpoints / "12" / "state.safetensors")
    assert all(name.startswith("optimizer.") for name in stored)
    for name, parameter in trainer.model.named_parameters():
        assert set(trainer.optimizer.state[parameter]) == {"step", "exp_avg", "exp_avg_sq"}
        assert torch.equal(trainer.optimizer.state[parameter]["exp_avg"], stored[f"optimizer.{name}.exp_avg"])
        assert stored[f"optimizer.{name}.step"].item() == 12


def test_an_empty_corpus_is_an_error(copy_task: Path) -> None:
    copy_task.with_name("train.en").write_text("")
    copy_task.with_name("train.de").write_text("")
    with pytest.raises(DataError, match="are empty"):
        trained(copy_task, "run")


def test_a_mixture_is_trained_on_and_announced(copy_task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = "data.train=[{src: train.en, tgt: train.de, weight: 0.5}, {src: val.en, tgt: val.de, weight: 4.2}]"
    config = load_config(copy_task, [mixed, "training.max_epochs=2", "training.max_steps=null"])
    run = run_named("mixed")
    train(config, run)
    sizes = [len(Path(f"{name}.en").read_text().splitlines()) for name in ("train", "val")]
    counts = [round(sizes[0] * 0.5), round(sizes[1] * 4.2)]
    shares = [f"{count / sum(counts):.1%}" for count in counts]
    said = f"mixture     train.en {shares[0]}, val.en {shares[1]} of {sum(counts):,} pairs an epoch"
    assert said in capsys.readouterr().err
    lines = [line.split() for name in ("train", "val") for line in Path(f"{name}.de").read_text().splitlines()]
    progress = check_checkpoint(run.checkpoints / str(checkpoint_steps(run.checkpoints)[-1]))
    expected = sum(
        len(lines[pair]) + 1
        for epoch in (0, 1)
        for pair in pairs_of_epoch(sizes, config.data, config.training.seed, epoch).tolist()  # type: ignore[union-attr]
    )
    assert (progress.epoch, progress.tgt_tokens) == (2, expected)


def test_start_validations_and_checkpoints_are_no_part_of_the_updates(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    def taking(owner: Any, name: str, seconds: float) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any) -> Any:
            clock.now += seconds
            return original(*args)

        monkeypatch.setattr(owner, name, wrapped)

    clock = Clock()
    monkeypatch.setattr(nmt.training.trainer, "time", clock)
    monkeypatch.setattr(nmt.training.monitor, "time", clock)
    taking(nmt.training.start, "announce", 100)
    taking(Validator, "scores", 100)
    taking(nmt.training.trainer, "save_checkpoint", 100)
    for steps in (15, 30):
        taking(Trainer, "update", 2)  # the second one, which resumes within an interval, takes 4 seconds an update
        train(load_config(copy_task, ["training.log_every=20", f"training.max_steps={steps}"]), run_named("run"))
    assert "2.00 s an update; about 0:10 left" in capsys.readouterr().err
    (rate,) = [record["tgt_tokens_per_second"] for record in records(run_named("run"), "train")]
    progress = check_checkpoint(run_named("run").checkpoints / "30")
    assert 0.9 < rate / (20 * progress.tgt_tokens / 30 / (15 * 2 + 5 * 4)) < 1.1  # not all updates have as many tokens


def test_a_run_resumes_only_with_the_same_corpus_weights(copy_task: Path) -> None:
    def mixed(weight: float) -> str:
        return f"data.train=[{{src: train.en, tgt: train.de, weight: {weight}}}, {{src: val.en, tgt: val.de}}]"

    straight = trained(copy_task, "straight", mixed(0.7), "training.max_steps=24")
    trained(copy_task, "run", mixed(0.7), "training.max_steps=12")
    for other in (mixed(0.8), "training.log_every=1"):  # the latter leaves the file's own corpus, without weights
        with pytest.raises(RunError, match=r"data\.train\.weight: 0\.7, 1, not (0\.8, 1|1)\n"):
            trained(copy_task, "run", other, "training.max_steps=24")
    with pytest.raises(RunError, match=r"  data\.temperature: null, not 2"):
        weightless = "data.train=[{src: train.en, tgt: train.de}, {src: val.en, tgt: val.de}]"
        trained(copy_task, "other", weightless)
        trained(copy_task, "other", weightless, "data.temperature=2", "training.max_steps=24")
    assert newest_weights(trained(copy_task, "run", mixed(0.7), "training.max_steps=24")) == newest_weights(straight)


def test_a_checkpoint_of_another_format_is_refused(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr(nmt.runs.weights, "FORMAT", 1)
        run = trained(copy_task, "run")
    with pytest.raises(RunError, match=r"12/progress\.json: saved by another version of nmt"):
        trained(copy_task, "run", "training.max_steps=24")
    assert checkpoint_steps(run.checkpoints) == [6, 12]
