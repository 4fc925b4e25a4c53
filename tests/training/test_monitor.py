"""The reports of a training."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nmt.config.reading import load_config
from nmt.runs.folder import run_named
from nmt.runs.history import Example, Progress
from nmt.training.divergence import Skipped
from nmt.training.monitor import Monitor
from nmt.training.resuming import check_same, resolve_processes, with_recorded_settings
from tests.conftest import Cli


def figures_in(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard itself reads: step and value of each figure, in the order of its files."""
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert all(len(events.Scalars(tag)) == len({event.step for event in events.Scalars(tag)}) for tag in tags)
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in tags}


def figures_of(metrics_file: Path) -> dict[str, dict[int, float]]:
    """The figures in metrics.jsonl, rounded to TensorBoard's fp32."""
    found: dict[str, dict[int, float]] = {}
    for record in map(json.loads, metrics_file.read_text(encoding="utf-8").splitlines()):
        for key, value in record.items():
            if key != "step" and isinstance(value, int | float):
                found.setdefault(f"{record['kind']}/{key}", {})[record["step"]] = float(np.float32(value))
    return found


def example(translation: str, src: str = "a dog") -> Example:
    return Example(src=src, reference="ein Hund", translation=translation)


def test_tensorboard_reads_the_figures_of_metrics_jsonl_each_step_once(tmp_path: Path) -> None:
    metrics, folder = tmp_path / "metrics.jsonl", tmp_path / "tensorboard"

    def monitored(start: int, end: int) -> Monitor:
        made = Monitor(metrics, tensorboard=folder)
        made.start(start, None)
        for step in range(start + 1, end + 1):
            loss = None if step == 2 else 1 / (step + start)  # differs between the trainings
            made.interval(Progress(step), {"loss": loss, "tgt_tokens_per_second": 1e5 / 3}, 1e-3 * step, None, 1.0)
        made.skipped(Skipped(end, {"train.en": [3]}), is_usual=False)
        made.validation(Progress(end), {"loss": 2 / 3, "bleu": 100 / 3}, True, example("Hund"))
        return made

    killed = monitored(0, 5)
    killed.flush()  # a checkpoint
    assert figures_in(folder) == figures_of(metrics)
    resumed = monitored(3, 7)
    resumed.close()
    figures = figures_in(folder)
    assert figures == figures_of(metrics)
    assert list(figures["train/loss"]) == [1, 3, 4, 5, 6, 7]
    assert figures["train/loss"][4] == pytest.approx(1 / 7)  # of the second training
    assert list(figures["validation/bleu"]) == [7]
    killed.close()


@pytest.mark.slow
def test_a_training_writes_for_tensorboard_and_its_resume_may_do_otherwise(copy_task: Path, cli: Cli) -> None:
    assert cli("train", "copy.yaml", "--set", "training.monitor=tensorboard")[0] == 0
    run = run_named("copy")
    figures = figures_in(run.tensorboard)
    assert figures == figures_of(run.metrics_file)
    assert list(figures["train/grad_norm"]) == [3, 6, 9, 12]
    assert list(figures["validation/loss"]) == list(figures["validation/bleu"]) == [6, 12]
    without = resolve_processes(with_recorded_settings(load_config(copy_task), run), 1)
    assert check_same(run.config(), without, run) == ["training.monitor: tensorboard -> null"]


def test_without_tensorboard_nothing_is_started(copy_task: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    code, _, stderr = cli("train", "copy.yaml", "--set", "training.monitor=tensorboard")
    assert code == 2
    assert "nmt: training.monitor: TensorBoard is not installed: " in stderr
    assert "scripts/install tensorboard" in stderr
    assert not Path("runs/copy/config.yaml").exists()


def test_figures_that_are_not_finite_are_null(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    reports = Monitor(file)
    reports.interval(Progress(1), {"loss": math.inf, "tgt_tokens_per_second": 9.0}, 0.1, None, 9.0)
    reports.validation(Progress(1), {"loss": math.nan, "bleu": 0.5}, False, example("Hund"))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    interval, validation = (json.loads(line, parse_constant=refuse) for line in file.read_text().splitlines())
    assert (interval["loss"], interval["learning_rate"]) == (None, 0.1)
    assert (validation["loss"], validation["bleu"]) == (None, 0.5)


def test_a_new_best_validation_shows_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "metrics.jsonl"
    reports = Monitor(file)
    for step, is_best in ((1, True), (2, False)):
        reports.validation(Progress(step), {"bleu": 5.0}, is_best, example(f"Hund {step}"))
    reports.validation(Progress(3), {"bleu": 6.0}, True, example("Hund 3", src=""))
    said = capsys.readouterr().err.splitlines()
    assert said[1:4] == ["  source       a dog", "  translation  Hund 1", "step 2  validation: bleu 5.00"]
    assert said[5:] == ["  reference    ein Hund", "  translation  Hund 3"]
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["example"]["translation"] for record in records] == ["Hund 1", "Hund 2", "Hund 3"]
