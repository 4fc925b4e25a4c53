"""training.json, the record of a training."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from conftest import Cli
from safetensors import safe_open

import nmt
from nmt.config.reading import load_config
from nmt.errors import RunError
from nmt.runs.folder import RunFolder, run_named
from nmt.training.preparation import TrainingInputs
from nmt.training.record import TrainingRecord, read_record, record_start
from nmt.training.start import train


def trained(config: Path, *overrides: str) -> tuple[RunFolder, TrainingRecord]:
    run = run_named("run")
    train(load_config(config, ["training.max_steps=6", *overrides]), run)
    record = read_record(run)
    assert record is not None
    return run, record


def test_it_holds_what_was_read_and_with_what(copy_task: Path) -> None:
    with Path("train.en").open("a") as src, Path("train.de").open("a") as tgt:
        for side in (src, tgt):
            side.write(f"{'1 ' * 30}\n7 7 7 7 7 7 7 7\n7 7 7 7 7 7 7 7\n")
        src.write("\n\n")
        tgt.write("1\n\n")
    pairs = len(Path("train.en").read_text().splitlines())
    run, record = trained(copy_task, "data.cleaning.duplicates=pair")

    assert record.pairs == {"read": pairs, "empty": 2, "duplicates": 1, "too_long": 1}
    assert record.corpus_sizes == (pairs - 4,)
    assert str(record.counts) == f"{pairs - 4:,} pairs (dropped: empty 2, duplicates 1, too long 1)"
    assert record.validation_pairs == 50
    for corpus, name in ((record.train[0], "train"), (record.validation, "val"), (record.test["test"], "test")):
        for side, suffix in ((corpus.src, "en"), (corpus.tgt, "de")):
            assert side.path == str(Path(f"{name}.{suffix}").resolve())
            assert side.sha256 == hashlib.sha256(Path(side.path).read_bytes()).hexdigest()
    with safe_open(run.model_file, "pt") as file:  # independent of the model's own count
        assert sum(record.parameters.values()) == sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert record.vocabulary == {"joint": 14}
    (start,) = record.starts
    assert (start.step, start.device, start.precision, start.processes, start.threads) == (0, "cpu", "float32", 1, 1)
    assert start.versions["torch"] == torch.__version__
    assert start.versions["nmt"] == nmt.__version__
    assert record.folder == str(Path.cwd())


@pytest.mark.slow
def test_a_resume_adds_its_start_and_what_it_changes(copy_task: Path) -> None:
    trained(copy_task)
    file = Path("runs/run/training.json")
    recorded = json.loads(file.read_text())
    recorded["starts"][0]["versions"]["torch"] = "0.1"
    file.write_text(json.dumps(recorded))
    old = RunFolder(Path("runs/run")).config_file.read_bytes()
    run, record = trained(copy_task, "training.max_steps=12", "training.validate_every=4")
    first, second = record.starts
    assert (first.step, first.changed, second.step) == (0, (), 6)
    assert second.changed == ("training.max_steps: 6 -> 12", "training.validate_every: 6 -> 4")
    # Killed before config.yaml was written, and started again.
    config, new = run.config(), run.config_file.read_bytes()
    run.config_file.write_bytes(old)
    prepared = cast(TrainingInputs, SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32))
    record_start(config, run, prepared, {}, 6, 1)
    run.config_file.write_bytes(new)
    assert [start.changed for start in (read_record(run) or record).starts] == [(), second.changed]
    # A start is forgotten if nothing after it was kept.
    file.write_text(record.model_copy(update={"starts": (first, second, second.model_copy(update={"step": 12}))})
                    .model_dump_json())  # fmt: skip
    assert [start.step for start in trained(copy_task, "training.max_steps=18")[1].starts] == [0, 6, 12]


@pytest.mark.slow
def test_a_damaged_record_is_an_error_and_does_not_prevent_a_resume(copy_task: Path) -> None:
    run, _ = trained(copy_task)
    for damaged in ("", "[]", "{}", '{"folder": 3}', '{"starts": {}}', "[" * 100_000):
        run.record_file.write_text(damaged)
        with pytest.raises(RunError, match=r"^runs/run/training\.json: "):
            read_record(run)
    _, record = trained(copy_task, "training.max_steps=7")
    assert [start.step for start in record.starts] == [6]


@pytest.mark.slow
def test_a_dry_run_records_nothing(copy_task: Path, cli: Cli) -> None:
    code, _, _ = cli("train", "copy.yaml", "--dry-run")
    assert code == 0
    assert not Path("runs/copy/training.json").exists()
