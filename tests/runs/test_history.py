"""The history in metrics.jsonl: as a training wrote it, and as a kill or another version may have left it."""

import json
import math
from pathlib import Path

import pytest

from nmt.runs.folder import RunFolder
from nmt.runs.history import Example, History, ValidationMetric, is_better, read_history

TRAIN = {
    "kind": "train", "step": 3, "epoch": 1, "loss": 2.5, "smoothed_loss": 2.75, "learning_rate": 1e-3, "grad_norm": 0.5,
    "updates": 3, "skipped_updates": 1, "tgt_tokens_per_second": 100.0, "seconds": 4.0,
}  # fmt: skip


def history_of(folder: Path, *lines: str | bytes) -> History:
    run = RunFolder(folder)
    run.metrics_file.write_bytes(b"".join(line.encode() if isinstance(line, str) else line for line in lines))
    return read_history(run)


def validation(step: int, **values: object) -> str:
    return json.dumps({"kind": "validation", "step": step, "epoch": 1, **values, "seconds": float(step)}) + "\n"


def test_every_figure_that_a_training_wrote_is_read(in_solved: Path) -> None:
    run = RunFolder(Path("runs/copy"))
    lines = [json.loads(line) for line in run.metrics_file.read_text(encoding="utf-8").splitlines()]
    history = read_history(run)
    written = [line for line in lines if line["kind"] == "train"]
    for name in ("step", "epoch", "loss", "smoothed_loss", "learning_rate", "grad_norm", "skipped_updates",
                 "tgt_tokens_per_second", "seconds", "total_steps", "seconds_left"):  # fmt: skip
        assert [getattr(interval, name) for interval in history.intervals] == [line[name] for line in written]
    written = [line for line in lines if line["kind"] == "validation"]
    assert [each.step for each in history.validations] == [line["step"] for line in written] == [250, 500]
    for each, line in zip(history.validations, written, strict=True):
        assert each.values == {name: line[name] for name in ("loss", "bleu", "chrf")}
    assert (history.step, history.epoch, history.seconds) == (500, lines[-1]["epoch"], lines[-1]["seconds"])
    progress = json.loads(Path("runs/copy/checkpoints/500/progress.json").read_text(encoding="utf-8"))["progress"]
    best = history.best("bleu")
    assert best is not None
    assert (best.step, best.values["bleu"]) == (progress["best_step"], progress["best_values"]["bleu"])


def test_damaged_lines_are_ignored(tmp_path: Path) -> None:
    assert read_history(RunFolder(tmp_path)) == History()
    good = json.dumps(TRAIN) + "\n"
    bad = b'3\n"a"\n{}\n[]\nnull\n\n{"kind": "train"}\n{"kind": "train", "step": "x"}\n{"step": 7}\n\xff\0\n'
    deep = b"[" * 100_000 + b"\n"
    history = history_of(tmp_path, good, bad, deep, validation(4, bleu=9.0), good[: len(good) // 2])
    assert [each.step for each in history.intervals] == [3]
    assert [each.step for each in history.validations] == [4]
    assert history.step == 4


def test_null_and_not_finite_figures_are_none(tmp_path: Path) -> None:
    record = TRAIN | {"loss": None, "smoothed_loss": math.nan, "grad_norm": math.inf, "seconds": 10**400}
    del record["learning_rate"]
    history = history_of(tmp_path, json.dumps(record) + "\n", validation(5, loss=math.nan, bleu=math.nan, chrf=1.0))
    (interval,) = history.intervals
    assert (interval.loss, interval.smoothed_loss, interval.grad_norm, interval.learning_rate) == (None,) * 4
    assert (interval.seconds, interval.tgt_tokens_per_second, interval.skipped_updates) == (None, 100.0, 1)
    assert history.validations[0].values == {"chrf": 1.0}
    assert history.best("bleu") is None


def test_skipped_updates_are_records_of_steps(tmp_path: Path) -> None:
    records = ('{"kind": "skipped", "step": 9, "lines": {"train.en": [3, 7]}}\n', '{"kind": "skipped", "step": 8}\n')
    history = history_of(tmp_path, *records)
    assert (history.skipped, history.step, history.seconds) == ((8, 9), 9, None)


@pytest.mark.parametrize(("metric", "step"), [("bleu", 3), ("chrf", 4), ("ter", 4), ("loss", 5)])
def test_the_best_validation_has_the_best_value_then_the_lowest_loss_and_is_the_first(
    metric: ValidationMetric, step: int, tmp_path: Path
) -> None:
    history = history_of(
        tmp_path,
        validation(1, loss=math.nan, bleu=1, chrf=1, ter=90),
        validation(2, loss=3, bleu=5, chrf=2, ter=80),
        validation(3, loss=2, bleu=5, chrf=9, ter=70),
        validation(4, loss=1.5, bleu=4, chrf=9, ter=20),
        validation(5, loss=1, bleu=math.nan, chrf=3, ter=30),
        validation(6, loss=1, bleu=4),
    )
    best = history.best(metric)
    assert best is not None
    assert best.step == step


def test_the_best_validation_is_one_of_the_latest_text_and_search(tmp_path: Path) -> None:
    history = history_of(
        tmp_path,
        validation(1, loss=1, bleu=90, validation_key="old"),
        validation(2, loss=3, bleu=5, validation_key="new"),
        validation(3, loss=3, bleu=4, validation_key="new"),
    )
    best = history.best("bleu")
    assert best is not None
    assert best.step == 2


def test_without_a_metric_the_last_validation_is_the_best(tmp_path: Path) -> None:
    best = history_of(tmp_path, validation(1, bleu=9), validation(2, bleu=5)).best(None)
    assert best is not None
    assert best.step == 2
    assert History().best(None) is None


def test_a_validation_may_have_an_example(tmp_path: Path) -> None:
    example = Example(src="a", reference="b", translation="c")
    history = history_of(tmp_path, validation(1, example=example), validation(2))
    assert [one.example for one in history.validations] == [example, None]


def test_a_number_is_better_than_nan() -> None:
    assert is_better("bleu", {"bleu": 0.0, "loss": 9.0}, {"bleu": math.nan, "loss": 1.0})
    assert is_better("loss", {"loss": 9.0}, {})
    assert not is_better("bleu", {"bleu": math.nan, "loss": 1.0}, {"bleu": 0.0, "loss": 9.0})
    assert not is_better("loss", {"loss": math.nan}, {"loss": 9.0})


def test_of_equal_values_the_lower_loss_is_better() -> None:
    best = {"bleu": 0.0, "loss": 5.0}
    assert is_better("bleu", {"bleu": 0.0, "loss": 4.0}, best)
    assert not is_better("bleu", {"bleu": 0.0, "loss": 5.0}, best)
    assert not is_better("bleu", {"bleu": 0.0, "loss": math.nan}, best)
    assert is_better("ter", {"ter": 0.0, "loss": 4.0}, {"ter": 0.0, "loss": math.nan})
