"""Runs that survive a kill at any time, a failure of any write, damaged checkpoints, and two trainings at once."""

import contextlib
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from conftest import write_copy_task
from forked import TRAIN, Forked, ForkServer
from safetensors.torch import load_file

import nmt.batches.batches
import nmt.system.files
import nmt.training.feeding
import nmt.training.resuming
from nmt.config.reading import load_config, to_yaml
from nmt.config.training import TrainingConfig
from nmt.errors import InterruptedTrainingError, NmtError, RunError, TrainingError
from nmt.runs.folder import RunFolder, checkpoint_steps, run_named
from nmt.runs.history import Progress
from nmt.runs.weights import check_checkpoint, load_weights, write_weights
from nmt.system.files import append, flush_one, rename, write_bytes
from nmt.training.loss import Objective
from nmt.training.monitor import Monitor
from nmt.training.preparation import prepare
from nmt.training.record import read_record
from nmt.training.resuming import resolve_processes, starting_step, validation_key
from nmt.training.start import train
from nmt.training.stopping import reached
from nmt.training.trainer import Trainer
from nmt.training.validation import Validator

# Everything that a checkpoint has to hold: a moving average, sampled subwords, noise, epochs that end within an
# update, intervals of the log on both sides of a save, early stopping that counts.
EVERYTHING = [
    "tokenizer.type=bpe", "tokenizer.vocab_size=280", "data.max_length=40", "augmentation.subword_sampling=0.3",
    "augmentation.fragments=0.1", "augmentation.tgt_word_dropout=0.1",
    "training.batches_per_update=2", "training.ema_decay=0.9", "training.log_every=7", "training.validate_every=15",
    "training.patience=50", "training.max_steps=60", "training.best_metric=loss", "training.schedule=linear",
]  # fmt: skip
TIMES = ("seconds", "seconds_left", "total_steps", "tgt_tokens_per_second")  # and how long it will still be trained


def trained(config: Path, name: str, *overrides: str, fresh: bool = False) -> RunFolder:
    run = run_named(name)
    train(load_config(config, overrides), run, fresh)
    return run


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return {f"{file.name}:{name}": value
            for file in sorted([path] if path.is_file() else path.glob("*.safetensors"))
            for name, value in load_file(file).items()}  # fmt: skip


def assert_same_run(run: RunFolder, straight: RunFolder) -> None:
    """The same last checkpoint and best model, to the bit, the same state and, times aside, the same log."""
    last = checkpoint_steps(straight.checkpoints)[-1]
    for path in (Path("checkpoints", str(last)), Path("model.safetensors")):
        ours, theirs = tensors(run.path / path), tensors(straight.path / path)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs), path
    progress = [check_checkpoint(of_one.checkpoints / str(last)) for of_one in (run, straight)]
    for of_one in progress:
        of_one.seconds = 0.0
        of_one.interval[-1:] = []
    assert progress[0] == progress[1]
    assert records(run) == records(straight)


def records(run: RunFolder) -> list[dict[str, Any]]:
    lines = run.metrics_file.read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def begun(forks: ForkServer, name: str, *settings: str, first: str = "") -> Forked:
    """A training in another process, which runs the code `first` before it."""
    return forks.start(f"{first}\n{TRAIN}", "train", "copy.yaml", "--name", name,
                       *(part for setting in settings for part in ("--set", setting)))  # fmt: skip


def ended(process: Forked) -> tuple[int | None, str]:
    _, stderr = process.communicate(timeout=120)
    return process.returncode, stderr


def being_written(run: RunFolder) -> set[str]:
    """The incomplete checkpoints at this moment, except the trial checkpoint of a training."""
    with contextlib.suppress(FileNotFoundError):
        return {path.name for path in run.checkpoints.iterdir() if re.match(r"\.\d", path.name)}
    return set()


# Killed ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_anywhere_and_resumed_equals_straight_to_the_bit(forks: ForkServer, copy_task: Path) -> None:
    settings = [*EVERYTHING, "training.save_every_minutes=0.002"]
    straight = trained(copy_task, "straight", *settings)
    random = Random(0)
    kills = in_a_write = number = 0
    while kills < 20:  # on a fast machine, some end before they are killed
        assert number < 40
        number += 1
        run = run_named(f"killed{number}")
        process = begun(forks, run.name, *settings)
        if number % 2:  # while a checkpoint is written
            wanted, seen = random.randint(1, 8), set()
            while process.poll() is None and len(seen) < wanted:
                seen |= being_written(run)
        else:
            while process.poll() is None and not run.metrics_file.exists():
                time.sleep(0.001)
            time.sleep(random.random())
        process.send_signal(signal.SIGKILL)
        code, _ = ended(process)
        kills += code == -signal.SIGKILL
        in_a_write += bool(being_written(run))
        assert_same_run(trained(copy_task, run.name, *settings), straight)
        assert not list(run.path.rglob(".*"))
    assert in_a_write >= 3


def test_a_second_training_of_a_run_is_refused_and_a_killed_one_reported(
    copy_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(copy_task, "run", "training.max_steps=6")
    program = (
        "import sys, time\nfrom nmt.runs.folder import run_named\n"
        "run = run_named('run')\nwith run.locked(), run.marked_as_training():\n"
        "    print('locked', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        for fresh in (False, True):
            with pytest.raises(RunError, match=rf"runs/run: is being trained \(process {other.pid} on .*--name"):
                trained(copy_task, "run", fresh=fresh)
        assert checkpoint_steps(run.checkpoints) == [6]
        other.kill()
        other.wait()
    capsys.readouterr()
    trained(copy_task, "run")
    assert f"the last training here (process {other.pid} on " in capsys.readouterr().err
    trained(copy_task, "run", "training.max_steps=18")
    assert "before this one" not in capsys.readouterr().err
    assert not run.training_file.exists()


def test_a_training_that_is_refused_leaves_no_folder(copy_task: Path) -> None:
    with pytest.raises(NmtError):
        trained(copy_task, "run", "data.test.src=missing.en")
    assert not run_named("run").path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_stopped_in_its_last_update_is_validated_on_resume(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    settings = ["training.validate_every=100", "training.log_every=5"]
    straight = trained(copy_task, "straight", *settings)
    original, handler = Trainer.update, signal.signal(number, signal.SIG_DFL)  # not as nohup left it

    def last(self: Trainer, *arguments: Any) -> None:
        original(self, *arguments)
        if self.progress.step == 12:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", last)
        with pytest.raises(InterruptedTrainingError, match="at step 12") as error:
            trained(copy_task, "run", *settings)
    assert error.value.exit_code == 128 + number
    assert not run_named("run").model_file.exists()
    assert_same_run(trained(copy_task, "run", *settings), straight)
    assert signal.signal(number, handler) == signal.SIG_DFL


@pytest.mark.parametrize("step", [6, 12])
def test_a_validation_ended_by_a_signal_is_repeated_on_resume(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    straight = trained(copy_task, "straight", "training.ema_decay=0.9")
    original, steps = Validator._loss, iter([6, 12])

    def signalled(self: Validator) -> float:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Validator, "_loss", signalled)
        with pytest.raises(InterruptedTrainingError, match=f"stopped by SIGTERM at step {step}; saved"):
            trained(copy_task, "run", "training.ema_decay=0.9")
    run = run_named("run")
    assert [record["step"] for record in records(run) if record["kind"] == "validation"] == [6][: step // 12]
    assert check_checkpoint(run.checkpoints / str(step)).validated_step < step
    assert_same_run(trained(copy_task, "run", "training.ema_decay=0.9"), straight)


def test_a_signal_before_a_due_validation_comes_before_it(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A validation may take long, and a second signal would lose what has not been saved."""
    straight = trained(copy_task, "straight")
    original = Trainer.update

    def signalled(self: Trainer, *arguments: Any) -> None:
        original(self, *arguments)
        if self.progress.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", signalled)
        patch.setattr(Validator, "scores", lambda self: pytest.fail("validated"))
        with pytest.raises(InterruptedTrainingError, match="stopped by SIGTERM at step 6; saved"):
            trained(copy_task, "run")
    assert_same_run(trained(copy_task, "run"), straight)


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once_and_keeps_the_last_checkpoint(forks: ForkServer, copy_task: Path) -> None:
    program = (
        "import time, nmt.training.trainer as t\n"
        "original = t.Trainer.update\n"
        "def slow(self, *arguments):\n"
        "    original(self, *arguments)\n"
        "    if self.progress.step == 8:\n        print('now', flush=True)\n        time.sleep(60)\n"
        "t.Trainer.update = slow\n"
    )
    process = begun(forks, "run", first=program)
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None  # it finishes the step
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, stderr = process.communicate(timeout=30)
    assert time.monotonic() - began < 20
    assert (process.returncode, "Traceback" in stderr) == (130, False)
    run = run_named("run")
    assert checkpoint_steps(run.checkpoints) == [6]
    assert_same_run(trained(copy_task, "run"), trained(copy_task, "straight"))


def test_checkpoints_by_the_clock_change_nothing_else(copy_task: Path) -> None:
    straight = trained(copy_task, "straight", "training.log_every=5")
    run = trained(copy_task, "run", "training.log_every=5", "training.save_every_minutes=1e-9")
    assert checkpoint_steps(straight.checkpoints) == [6, 12]
    assert checkpoint_steps(run.checkpoints) == sorted({check_checkpoint(run.checkpoints / "12").best_step, 11, 12})
    assert_same_run(run, straight)


def test_a_process_that_prepares_batches_may_die(copy_task: Path, monkeypatch: pytest.MonkeyPatch,
                                                 capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    straight = trained(copy_task, "straight", "augmentation.fragments=0.3")
    original = Trainer.update

    def deadly(self: Trainer, *arguments: Any) -> None:
        if self.progress.step == 7:
            for worker in multiprocessing.active_children():
                assert worker.pid is not None
                os.kill(worker.pid, signal.SIGTERM)
        original(self, *arguments)

    monkeypatch.setattr(Trainer, "update", deadly)
    # The loader prepares a few batches ahead, so wait for a batch that it has not prepared.
    run = trained(copy_task, "run", "augmentation.fragments=0.3")
    assert_same_run(run, straight)
    assert "a process that prepares batches was killed" in capsys.readouterr().err


def test_a_process_that_prepares_a_validation_may_die(copy_task: Path, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """As on a GPU, where validations have such processes too."""
    straight = trained(copy_task, "straight", "training.batch_tokens=25")
    monkeypatch.setattr(nmt.batches.batches, "num_workers", lambda device, is_augmented: 1)
    original = Objective.forward

    def deadly(self: Objective, *arguments: Any) -> Any:
        if not self.model.training and not died:
            for worker in multiprocessing.active_children():
                assert worker.pid is not None
                os.kill(worker.pid, signal.SIGKILL)
                died.append(worker.pid)
        return original(self, *arguments)

    died: list[int] = []
    monkeypatch.setattr(Objective, "forward", deadly)
    run = trained(copy_task, "run", "training.batch_tokens=25")
    assert died
    assert_same_run(run, straight)
    assert "a process that prepares batches was killed" in capsys.readouterr().err


def test_processes_that_die_again_and_again_end_the_training(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(*arguments: Any) -> Iterator[None]:
        raise RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed. ")
        yield

    monkeypatch.setattr(nmt.training.feeding, "batch_loader", dying)
    with pytest.raises(TrainingError, match=r"died 3 times in a row \(.*4711.*if memory ran out"):
        trained(copy_task, "run")
    assert not run_named("run").diagnosis_file.exists()  # in the validation before the first update, or in an update


def test_a_corpus_that_two_trainings_encode_at_once_is_encoded_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "key"
    (tmp_path / "cache" / ".key.a1b2c3d4.nmt-part").mkdir(parents=True)  # of one that was killed
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom nmt.system.files import building\n"
        "with building(Path(sys.argv[1])) as temporary:\n"
        "    print('waited' if temporary is None else 'made', flush=True)\n"
        "    if temporary is not None:\n"
        "        time.sleep(1)\n        (temporary / 'whole').touch()\n"
    )
    arguments = [sys.executable, "-c", program, str(folder)]
    both = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate(timeout=60)[0] for process in both) == ["made\n", "waited\n"]
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [".key.lock", "key"]
    assert [path.name for path in folder.iterdir()] == ["whole"]


# Writes that fail --------------------------------------------------------------------------------------------------


class Faults:
    """Counts disk operations, and lets the operation number `failing` fail half-way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: int, code: int) -> None:
        self.done: list[str] = []
        self._failing, self._code = failing, code
        for original in (write_bytes, append, flush_one, rename):
            for module in [module for name, module in sys.modules.items() if name.split(".")[0] == "nmt"]:
                if getattr(module, original.__name__, None) is original:
                    monkeypatch.setattr(module, original.__name__, self._counted(original))

    def _counted(self, original: Callable[..., None]) -> Callable[..., None]:
        def operation(path: Path, *arguments: Any) -> None:
            self.done.append(f"{original.__name__} {path.name}")
            if len(self.done) == self._failing:
                if original is write_bytes:
                    path.write_bytes(arguments[0][: len(arguments[0]) // 2])
                if original is append:
                    with path.open("a") as file:
                        file.write(arguments[0][: len(arguments[0]) // 2])
                raise OSError(self._code, os.strerror(self._code), str(path))
            original(path, *arguments)

        return operation


SAVED = ["training.ema_decay=0.9", "training.log_every=2", "training.best_metric=loss", "training.max_steps=6",
         "training.validate_every=3", "training.save_every_minutes=1e-9"]  # fmt: skip


@pytest.mark.parametrize("stride", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_resumes_after_any_operation_of_a_save_fails_and_ends_the_same(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    straight = trained(copy_task, "straight", *SAVED)
    begun = trained(copy_task, "begun", *SAVED, "training.max_steps=3")
    kinds = set()
    for failing in itertools.count(1, stride):
        run = run_named(f"run{failing}")
        shutil.copytree(begun.path, run.path)
        with monkeypatch.context() as patch:
            faults = Faults(patch, failing, code=[28, 5, 27, 30][failing % 4])
            try:
                trained(copy_task, run.name, *SAVED)
            except TrainingError as error:
                assert error.exit_code == 3
                assert "cannot be written" in str(error)
            else:
                assert len(faults.done) < failing, faults.done  # every operation's failure is noticed
                break
        kinds.add(faults.done[-1])
        if not list(run.checkpoints.glob("*")):
            pytest.fail(faults.done[-1])
        check_checkpoint(run.checkpoints / str(checkpoint_steps(run.checkpoints)[-1]))
        assert tensors(run.model_file)
        assert not list(run.path.rglob(".*"))
        assert_same_run(trained(copy_task, run.name, *SAVED), straight)
    if stride == 1:  # every kind of file was reached: the best model, the log, each file of a checkpoint, its name
        assert kinds >= {
            "write_bytes model.safetensors", "write_bytes state.safetensors", "write_bytes average.safetensors",
            "write_bytes progress.json", "append metrics.jsonl", "flush_one metrics.jsonl", "flush_one checkpoints",
            "flush_one state.safetensors", "rename 6", "rename model.safetensors", "rename config.yaml",
        }  # fmt: skip


@pytest.mark.slow
def test_a_disk_that_the_kernel_reports_full(forks: ForkServer, copy_task: Path) -> None:
    trained(copy_task, "run", "training.max_steps=6")
    before = {path: path.read_bytes() for path in Path("runs/run").rglob("*") if path.is_file()}
    # The weights fit, and the optimizer's moments do not.
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))"
    code, stderr = ended(begun(forks, "run", "training.max_steps=12", first=limited))
    assert code == 3, stderr
    assert "cannot be written: File too large; free disk space" in stderr
    assert "Traceback" not in stderr
    after = {path: path.read_bytes() for path in Path("runs/run").rglob("*") if path.is_file()}
    assert {path for path in before if before[path] != after.get(path)} <= {
        Path("runs/run", name) for name in ("config.yaml", "metrics.jsonl", "training.json")
    }
    assert_same_run(trained(copy_task, "run"), trained(copy_task, "straight"))


# File permissions hold for root too.
OBEYING_PERMISSIONS = """
import ctypes
libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # man 2 capset
assert libc.capget(header, sets) == 0
sets[0] &= ~(1 << 1 | 1 << 2)  # the effective ones without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
assert libc.capset(header, sets) == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel to hold root by permissions")
def test_what_cannot_be_written_is_named_and_not_a_temporary_file(tmp_path: Path) -> None:
    program = """
from pathlib import Path
from nmt.system.files import building, write_text
from nmt.system.files import locked

def tried(path, write):
    try:
        write(Path(path))
    except OSError as error:
        print(error)

tried("closed/page.html", lambda path: write_text(path, ""))
tried("closed/key", lambda path: building(path).__enter__())
tried("closed/set.en", lambda path: locked(path, wait=True).__enter__())
tried("open", lambda path: write_text(path, ""))
"""
    (tmp_path / "open").mkdir()
    (tmp_path / "closed").mkdir(mode=0o555)
    done = subprocess.run(
        [sys.executable, "-c", OBEYING_PERMISSIONS + program], cwd=tmp_path, capture_output=True, text=True
    )
    denied = "[Errno 13] Permission denied"
    assert done.stdout.splitlines() == [
        f"{denied}: 'closed/page.html'", f"{denied}: 'closed/key'", f"{denied}: 'closed/set.en'",
        "[Errno 21] Is a directory: 'open'",
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel to hold root by permissions")
@pytest.mark.parametrize(
    "folder", ["runs/run/checkpoints", *(pytest.param(name, marks=pytest.mark.slow) for name in ("runs/run", "runs"))]
)
def test_a_read_only_folder(forks: ForkServer, copy_task: Path, folder: str) -> None:
    trained(copy_task, "run", "training.max_steps=6")
    before = {path: path.read_bytes() for path in Path("runs/run").rglob("*") if path.is_file()}
    name = "new" if folder == "runs" else "run"
    Path(folder).chmod(0o555)
    try:
        code, stderr = ended(begun(forks, name, "training.max_steps=12", first=OBEYING_PERMISSIONS))
    finally:
        Path(folder).chmod(0o755)
    assert code == 3, stderr
    assert ("runs/new: cannot be written" if folder == "runs" else f"nmt: {folder}") in stderr
    assert "cannot be written: Permission denied" in stderr
    assert "Traceback" not in stderr
    assert {path: path.read_bytes() for path in Path("runs/run").rglob("*") if path.is_file()} == before


# Damaged -----------------------------------------------------------------------------------------------------------


def flipped(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


AVERAGED = ["training.ema_decay=0.9", "training.best_metric=loss"]


@pytest.fixture(scope="module")
def twelve_and_eighteen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two runs with the settings `AVERAGED`, named after their updates; to be read only."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        config = write_copy_task(tmp_path_factory.mktemp("averaged"), monkeypatch)
        trained(config, "twelve", *AVERAGED)
        trained(config, "eighteen", *AVERAGED, "training.max_steps=18")
    return config.parent / "runs"


@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "average.safetensors", "progress.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "empty"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(
    twelve_and_eighteen: Path, copy_task: Path, capsys: pytest.CaptureFixture[str], name: str, damage: str
) -> None:
    run = run_named("run")
    shutil.copytree(twelve_and_eighteen / "twelve", run.path)
    path = run.checkpoints / "12" / name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        at = len(data) - 40
        path.write_bytes({"truncated": data[:-7], "empty": b"",
                          "flipped": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]}[damage])  # fmt: skip
    trained(copy_task, "run", *AVERAGED, "training.max_steps=18")
    err = capsys.readouterr().err
    assert f"runs/run/checkpoints/12/{name}: " in err
    assert "runs/run/checkpoints/12.damaged" in err
    assert "resuming at step 6" in err
    assert_same_run(run, RunFolder(twelve_and_eighteen / "eighteen"))


def test_every_flipped_bit_is_detected(copy_task: Path, tmp_path: Path) -> None:
    run = trained(copy_task, "run", "training.ema_decay=0.9")
    folder = run.checkpoints / "12"
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    expected, progress = tensors(folder), check_checkpoint(folder)
    random = Random(0)
    harmless = 0
    for name, data in whole.items():
        path = folder / name
        for _ in range(100):
            path.write_bytes(flipped(data, random))
            try:
                of_flipped: Progress | None = check_checkpoint(folder)
            except RunError as error:
                assert str(path) in str(error)
                continue
            harmless += 1  # a space in a header, or between JSON's words
            assert of_flipped == progress
            read = tensors(folder)
            assert read.keys() == expected.keys()
            assert all(torch.equal(read[of_one], expected[of_one]) for of_one in expected)
        path.write_bytes(data)
    assert harmless < 40
    assert check_checkpoint(folder) == progress


def test_every_flipped_bit_of_the_model_is_detected(copy_task: Path) -> None:
    run = trained(copy_task, "run")
    config = load_config(copy_task)
    trainer = Trainer(config, run, prepare(config, run, True), Monitor(run.metrics_file))
    data, expected = run.model_file.read_bytes(), tensors(run.model_file)
    random = Random(1)
    noticed = 0
    for _ in range(200):
        run.model_file.write_bytes(flipped(data, random))
        try:
            load_weights(trainer.model, run.model_file)
        except RunError as error:
            noticed += 1
            assert str(run.model_file) in str(error)
        else:
            read = tensors(run.model_file)
            assert all(torch.equal(read[name], expected[name]) for name in expected)
    assert noticed > 150


def test_weights_of_another_program_without_a_checksum_are_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = torch.nn.Linear(2, 3)
    wanted = {"weight": torch.randn(3, 2), "bias": torch.randn(3)}
    save_file(wanted, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    load_weights(model, tmp_path / "theirs.safetensors")
    assert torch.equal(model.weight, wanted["weight"])
    # and what is written twice is the same file
    for name in ("a", "b"):
        write_weights(wanted, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_second_checkpoint_of_a_step_that_is_damaged_has_a_name_of_its_own(copy_task: Path) -> None:
    run = trained(copy_task, "run")
    for aside in ("12.damaged1", "12.damaged2"):
        (run.checkpoints / "12" / "state.safetensors").write_bytes(aside.encode())
        trained(copy_task, "run")
        assert (run.checkpoints / aside / "state.safetensors").read_bytes() == aside.encode()
    assert checkpoint_steps(run.checkpoints) == [6, 12]


def test_no_whole_checkpoint_is_one_message_that_names_each(copy_task: Path) -> None:
    run = trained(copy_task, "run")
    for step in (6, 12):
        (run.checkpoints / str(step) / "state.safetensors").write_bytes(b"")
    with pytest.raises(RunError) as error:
        starting_step(load_config(copy_task, ["training.max_steps=24"]), run)
    for part in (
        "12/state.safetensors: cannot be read",
        "6/state.safetensors: cannot be read",
        "--name run-2",
        "--fresh",
    ):
        assert part in str(error.value)
    assert checkpoint_steps(run.checkpoints) == [6, 12]


def test_a_folder_whose_replacement_was_interrupted_is_restored(copy_task: Path) -> None:
    run = trained(copy_task, "run", "training.max_steps=6")
    holder = run.path / ".tokenizer.x1y2z3_0.nmt-part"
    holder.mkdir()
    rename(run.tokenizer, holder / "old")
    assert_same_run(trained(copy_task, "run"), trained(copy_task, "straight"))
    assert not list(run.path.glob(".*"))


def test_foreign_files_in_a_run_are_kept(copy_task: Path) -> None:
    run = trained(copy_task, "run", "training.max_steps=6")
    theirs = [".git/HEAD", ".cache/old", ".tokenizer.bak/old", ".nmt-part", ".x.nmt-part/a", "checkpoints/.sync/index",
              "checkpoints/trial/notes", ".gone.12345678/old/a", "checkpoints/.6.ABCDEFGH.nmt-part/old"]  # fmt: skip
    for name in theirs:
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).write_text(name)
    ours = [run.path / ".tokenizer.x1y2z3_0.nmt-part", run.checkpoints / ".12.abcdefgh.nmt-part"]
    for folder in ours:
        (folder / "half").mkdir(parents=True)
    (run.path / ".linked.abcdefgh.nmt-part").symlink_to(".git")
    trained(copy_task, "run")
    assert [(run.path / name).read_text() for name in theirs] == theirs
    assert (run.path / ".linked.abcdefgh.nmt-part" / "HEAD").is_file()
    assert not any(folder.exists() for folder in ours)


# What changed ------------------------------------------------------------------------------------------------------


def test_all_changes_are_shown_and_forbidden_ones_refused_with_both_remedies(
    copy_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(copy_task, "run")
    capsys.readouterr()
    with pytest.raises(RunError) as error:
        trained(copy_task, "run", "model.dropout=0.3", "training.seed=2", "training.max_steps=24")
    message = str(error.value)
    for part in (
        "model.dropout: 0.1, not 0.3",
        "training.seed: 1, not 2",
        "--name run-2",
        "--fresh",
        "deletes nothing",
    ):
        assert part in message
    assert "max_steps" not in message
    trained(copy_task, "run", "training.max_steps=18", "decoding.beam_size=2")
    err = capsys.readouterr().err
    assert "changed: training.max_steps: 12 -> 18\n" in err
    assert "changed: decoding.beam_size: 3 -> 2\n" in err
    trained(copy_task, "run", "training.max_steps=18")
    err = capsys.readouterr().err
    assert "--set training.max_steps=36" in err and "--fresh" in err


@pytest.mark.parametrize(
    ("override", "dropout", "is_last_bits"),
    [("threads=2", 0.1, True), ("batch_parts=2", 0.1, False), ("batch_parts=2", 0, True)],
)
def test_a_resume_says_how_much_the_weights_will_differ(
    copy_task: Path, capsys: pytest.CaptureFixture[str], override: str, dropout: float, is_last_bits: bool
) -> None:
    """Dropout is seeded by part, so that other parts are as another seed."""
    run = RunFolder(Path("runs/run"))
    settings = [f"model.dropout={dropout}"]
    (run.checkpoints / "6").mkdir(parents=True)
    old = resolve_processes(load_config(copy_task, [*settings, "training.joined=false"]), 1)
    run.config_file.write_text(to_yaml(old))
    with pytest.MonkeyPatch.context() as patch:
        progress = Progress(step=6, validation_key=validation_key(old))
        patch.setattr(nmt.training.resuming, "check_checkpoint", lambda folder: progress)
        assert starting_step(load_config(copy_task, [*settings, f"training.{override}"]), run) == 6
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"changed: training.{override.split('=')[0]}: ")
    assert ("last bits" in said[1], "dropout" in said[1]) == (is_last_bits, not is_last_bits)


# A schedule that ends -----------------------------------------------------------------------------------------------

DECAYING = ["training.warmup_steps=4", "training.log_every=1"]


def rates(run: RunFolder) -> dict[int, float]:
    lines = map(json.loads, run.metrics_file.read_text().splitlines())
    return {record["step"]: record["learning_rate"] for record in lines if record["kind"] == "train"}


def schedules(run: RunFolder) -> dict[int, tuple[int, int | None]]:
    """By checkpoint, where the schedule began, and its `max_steps`."""
    found = {step: check_checkpoint(run.checkpoints / str(step)) for step in checkpoint_steps(run.checkpoints)}
    return {step: (progress.schedule_start, progress.schedule_end) for step, progress in found.items()}


@pytest.mark.parametrize("schedule", ["linear", pytest.param("cosine", marks=pytest.mark.slow)])
def test_a_schedule_that_ends_is_restarted_with_another_end_and_resumes_to_the_bit(
    copy_task: Path, schedule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [*DECAYING, f"training.schedule={schedule}", "training.validate_every=1000"]
    begun = trained(copy_task, "begun", *settings)
    trained(copy_task, "begun", *settings)
    assert "the same command with --set training.max_steps=24;" in capsys.readouterr().err
    assert schedules(begun) == {12: (0, 12)}
    shutil.copytree(begun.path, begun.path.with_name("stopped"))
    stopped = run_named("stopped")

    restart = [*settings, "training.max_steps=64"]
    straight = trained(copy_task, "begun", *restart)
    err = capsys.readouterr().err
    assert "changed: training.max_steps: 12 -> 64\n" in err
    assert "the learning rate starts again at step 12" in err
    assert schedules(straight)[64] == (12, 64)
    # Of the 52 updates that were added, 4 warm up and 48 decay to 0.
    for step, rate in {13: 1 / 4, 15: 3 / 4, 16: 1.0, 40: 0.5, 64: 0.0}.items():
        assert rates(straight)[step] == pytest.approx(5e-3 * rate)
    assert rates(straight)[12] == 0.0

    # Stopped in the middle and moved, it continues with the same command.
    trained(copy_task, "stopped", *restart, "training.max_epochs=1")
    assert schedules(stopped)[21] == (12, 64)
    stopped.path.rename(stopped.path.with_name("moved"))
    moved = run_named("moved")
    capsys.readouterr()
    trained(copy_task, "moved", *restart)
    assert "starts again" not in capsys.readouterr().err
    ends = [tensors(of_one.checkpoints / "64") for of_one in (moved, straight)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert rates(moved) == rates(straight)
    record = read_record(moved)
    assert record is not None
    assert "training.max_steps: 12 -> 64" in record.starts[1].changed

    with pytest.raises(RunError, match=r"the 0 updates from step 64 to training\.max_steps \(12\)"):
        trained(copy_task, "moved", *settings)  # the file that the run was started with
    trained(copy_task, "moved", *settings, "training.max_steps=80")
    assert schedules(moved)[80] == (64, 80)


def test_a_restart_needs_updates(copy_task: Path) -> None:
    settings = [*DECAYING, "training.schedule=linear"]
    run = trained(copy_task, "run", *settings)
    before = run.config_file.read_bytes()
    for steps, added in ((16, 4), (9, 0)):
        with pytest.raises(RunError, match=rf"the {added} updates from step 12 .*warmup_steps \(4\)"):
            trained(copy_task, "run", *settings, f"training.max_steps={steps}")
    assert run.config_file.read_bytes() == before
    trained(copy_task, "run", *settings, "training.max_steps=17")
    assert [rates(run)[step] for step in (16, 17)] == [5e-3, 0.0]


def test_a_restart_whose_checkpoint_is_damaged_starts_at_the_one_before_it(copy_task: Path) -> None:
    settings = [*DECAYING, "training.schedule=linear"]
    run = trained(copy_task, "run", *settings)
    (run.checkpoints / "12" / "state.safetensors").write_bytes(b"")
    trained(copy_task, "run", *settings, "training.max_steps=24")
    assert schedules(run)[24] == (6, 24)
    assert [rates(run)[step] for step in (7, 10, 24)] == pytest.approx([5e-3 / 4, 5e-3, 0.0])


def test_a_restart_that_is_killed_before_its_first_checkpoint_is_done_again(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config.yaml has the new end already; the checkpoint still has the schedule that was trained with."""
    settings = [*DECAYING, "training.schedule=linear"]
    run = trained(copy_task, "run", *settings)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", lambda self: None)
        trained(copy_task, "run", *settings, "training.max_steps=24")
    assert run.config().training.max_steps == 24
    trained(copy_task, "run", *settings, "training.max_steps=24")
    assert schedules(run)[24] == (12, 24)
    assert rates(run)[16] == 5e-3
    record = read_record(run)
    assert record is not None
    assert [one.changed for one in record.starts] == [(), ("training.max_steps: 12 -> 24",)]


def test_the_hint_of_a_finished_run_names_all_reached_limits_and_works() -> None:
    settings = TrainingConfig(max_steps=100, max_epochs=3, schedule="cosine", warmup_steps=10)
    both = reached(Progress(step=100, epoch=3), settings)
    assert both is not None
    assert both.to_continue == "--set training.max_steps=200 --set training.max_epochs=6"
    # Before max_steps, epochs may be added: the rates do not depend on them.
    epochs = reached(Progress(step=50, epoch=3), settings)
    assert epochs is not None
    assert epochs.to_continue == "--set training.max_epochs=6"
    # For a run beyond the given limit, the hint is beyond the run's step.
    lowered = reached(
        Progress(step=100, epoch=4, seconds=600), TrainingConfig(max_steps=40, max_epochs=2, max_minutes=1)
    )
    assert lowered is not None
    assert lowered.to_continue == (
        "--set training.max_steps=200 --set training.max_epochs=8 --set training.max_minutes=20"
    )
