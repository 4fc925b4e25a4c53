"""nmt show and nmt runs: where runs stand, as their folders say."""

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from safetensors.numpy import load_file, save_file

from nmt.config.training import Metric
from nmt.errors import ConfigError
from nmt.evaluation.metrics import Score
from nmt.evaluation.stored import Evaluated, store
from nmt.insight import progress_text
from nmt.insight.progress import RunStatus, read_status
from nmt.runs.exports import ModelFile
from nmt.runs.folder import RunFolder
from nmt.system.files import locked
from tests.conftest import RUN_CONFIG, Cli, Screen, assert_says

NO_PROCESS = 2**22 + 1  # Linux numbers no process higher than 2**22; nor do others


def mark(number: int, host: str | None = None) -> str:
    return f"process {number} on {host or socket.gethostname()}, started 2026-01-02 03:04:05\n"


def train_record(step: int, **values: Any) -> str:
    record = {"kind": "train", "step": step, "epoch": 1, "loss": 4.0 / step, "learning_rate": 2e-3, "updates": 3,
              "skipped_updates": 0, "tgt_tokens_per_second": 1234.5, "seconds": float(step), "total_steps": 12,
              "seconds_left": 90.0}  # fmt: skip
    return json.dumps(record | values) + "\n"


def validation(step: int, bleu: float, **values: Any) -> str:
    record = {"kind": "validation", "step": step, "epoch": 1, "loss": 1.5, "bleu": bleu, "chrf": 50.0}
    return json.dumps(record | {"seconds": step + 0.5} | values) + "\n"


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunFolder]]:
    """Write runs/NAME/ with a configuration, the given records and other files; `live` holds its lock."""
    monkeypatch.chdir(tmp_path)
    locks = contextlib.ExitStack()

    def make(
        name: str, *records: str, trainer: str = "", config: str = RUN_CONFIG, model: bool = True, live: bool = False
    ) -> RunFolder:
        run = RunFolder(Path("runs", name))
        run.path.mkdir(parents=True)
        run.config_file.write_text(config, encoding="utf-8")
        if records:
            run.metrics_file.write_text("".join(records), encoding="utf-8")
        if trainer:
            run.training_file.write_text(trainer, encoding="utf-8")
        if model:
            save_file({"a": np.zeros((3, 5), np.float32), "b": np.zeros(7, np.float32)}, run.model_file)
        if live:
            locks.enter_context(run.locked())
        return run

    with locks:
        yield make


def write_evaluation(run: RunFolder, name: str, bleu: float, models: int = 1) -> None:
    """An evaluation by the run's model as configured, or by an ensemble with it."""
    weights, config = ModelFile.of(run.model_file), run.inference_config()
    signatures: dict[Metric, str] = {"bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp", "chrf": "s", "ter": "s"}
    evaluated = Evaluated(
        test_set=name, models=("a",) * models, weights=(weights,) * models, engine="torch", decoding=config.decoding,
        src_sha256="", references_sha256=(), lines=3,
        scores={metric: Score(metric, bleu, signature) for metric, signature in signatures.items()},
    )  # fmt: skip
    store(run, evaluated, [], run.evaluation)


RECORDS = (train_record(3), train_record(6), validation(6, 20.0), train_record(9), validation(9, 15.0))


def test_a_finished_run(in_solved: Path, cli: Cli) -> None:
    lines = [json.loads(line) for line in Path("runs/copy/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    code, out, stderr = cli("show", "--json")
    assert (code, stderr) == (0, "")
    status = json.loads(out)
    assert (status["state"], status["step"], status["total_steps"]) == ("finished", 500, 500)
    assert "training.max_steps" in status["reason"]
    assert status["seconds"] == lines[-1]["seconds"]
    assert status["interval"]["loss"] == [line["loss"] for line in lines if line["kind"] == "train"][-1]
    best = max((line for line in lines if line["kind"] == "validation"), key=lambda line: (line["bleu"], -line["loss"]))
    assert status["best_validation"]["step"] == best["step"]
    assert status["best_validation"]["values"] == {name: best[name] for name in ("loss", "bleu", "chrf")}
    assert status["parameters"] == sum(weights.size for weights in load_file("runs/copy/model.safetensors").values())
    assert status["checkpoint"] == 500
    code, out, _ = cli("show")
    assert out.startswith(f"runs/copy: its training is finished ({status['reason']})\n")
    assert f"at step {best['step']}: the model\n" in out
    assert "\x1b" not in out
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert re.search(rf"^loss +{losses[0]:.2f} █\S* {losses[-1]:.2f}$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("trainer", "live", "state"),
    [
        ("", False, "interrupted"),
        (mark(NO_PROCESS), False, "interrupted"),
        (mark(1), False, "interrupted"),  # in a container that was started again, another process with its number
        (mark(NO_PROCESS, "elsewhere"), False, "interrupted"),
        (mark(os.getpid()), True, "training"),
        (mark(NO_PROCESS, "elsewhere"), True, "training"),  # in another container
        ("nonsense", False, "interrupted"),
    ],
    ids=["no mark", "ended", "a number used again", "ended elsewhere", "this process", "elsewhere", "nonsense"],
)
def test_whether_a_run_is_being_trained(
    make_run: Callable[..., RunFolder], trainer: str, live: bool, state: str
) -> None:
    run = make_run("copy", *RECORDS, trainer=trainer, live=live)
    before = sorted(run.path.parent.iterdir())
    status = read_status(run)
    assert status.state == state
    assert (status.step, status.total_steps, status.num_validations, status.validations_since_best) == (9, 12, 2, 1)
    assert status.best_validation is not None and status.best_validation.step == 6
    assert status.last_validation is not None and status.last_validation.step == 9
    assert status.parameters == 22
    assert sorted(run.path.parent.iterdir()) == before  # no lock
    text = "\n".join(progress_text.describe(status))
    assert ("about 1:30 left" in text) == (state == "training")
    assert ("ended abruptly (process" in text) == (not live and trainer.startswith("process"))
    assert ("; the same command starts it again\n" in text) == (state == "interrupted")
    (run.checkpoints / "6").mkdir(parents=True)
    text = "\n".join(progress_text.describe(read_status(run)))
    assert ("; the same command resumes it\n" in text) == (state == "interrupted")


def test_a_training_that_is_killed_is_no_longer_being_trained(make_run: Callable[..., RunFolder]) -> None:
    run = make_run("copy", *RECORDS)
    program = (
        "import time\nfrom nmt.runs.folder import run_named\nrun = run_named('copy')\n"
        "with run.locked(), run.marked_as_training():\n    print('marked', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "marked\n"
        assert read_status(run).state == "training"
        trainer.kill()
        trainer.wait()
    run.training_file.write_text(mark(os.getpid()))  # as if this process had the same number in its container
    assert read_status(run).state == "interrupted"
    with run.locked():
        pass


def test_a_lock_that_may_not_be_tried_counts_as_held(
    make_run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user's may not be."""
    run = make_run("copy", *RECORDS, trainer=mark(1), live=True)

    def refuse(*arguments: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", refuse)
        assert read_status(run).state == "training"


def test_a_look_at_a_lock_does_not_refuse_a_training_that_starts(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom nmt.system.files import locked\n"
        "with locked(Path(sys.argv[1]), wait=False):\n    print('held', flush=True)\n    time.sleep(0.02)\n"
    )
    command = [sys.executable, "-c", program, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with run.locked():
            pass


def test_the_time_left_counts_down_while_nothing_is_captured(make_run: Callable[..., RunFolder]) -> None:
    run = make_run("copy", *RECORDS, trainer=mark(os.getpid()), live=True)
    now = time.time()
    os.utime(run.metrics_file, (now - 30, now - 30))
    left = read_status(run).seconds_left
    assert left is not None and 55 < left <= 60
    os.utime(run.metrics_file, (now - 300, now - 300))
    assert read_status(run).seconds_left == 0


def test_a_run_without_records_or_model(make_run: Callable[..., RunFolder], cli: Cli) -> None:
    make_run("begun", trainer=mark(os.getpid()), model=False, live=True)
    code, out, _ = cli("show", "--model", "begun")
    assert code == 0
    assert out.startswith(f"runs/begun: its training is starting ({mark(os.getpid()).strip()})\n")
    assert "none yet; the first validation writes it" in out
    preparing = make_run("preparing", trainer=mark(os.getpid()), model=False, live=True)
    preparing.config_file.unlink()
    assert cli("show", "--model", "preparing")[1].startswith("runs/preparing: its training is starting")
    code, _, stderr = cli("translate", "--model", "begun", "a")
    assert code == 2 and "no model yet" in stderr
    code, _, stderr = cli("show", "--model", "none")
    assert code == 2 and "none: no such run; under runs/ there are begun" in stderr


@pytest.mark.parametrize(("step", "state"), [(9, "diverged"), (6, "interrupted")])
def test_a_diverged_run(make_run: Callable[..., RunFolder], step: int, state: str) -> None:
    run = make_run("copy", *RECORDS)
    diagnosis = {"reason": "the loss has exploded", "step": step}
    run.diagnosis_file.write_text(json.dumps(diagnosis), encoding="utf-8")
    status = read_status(run)
    assert status.state == state  # a diagnosis of an earlier point was before a resume
    assert (status.reason == "the loss has exploded") == (state == "diverged")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("max_steps: 9", "training.max_steps"),
        ("max_minutes: 0.15", "training.max_minutes"),
        ("patience: 1\n  max_steps: 12", "training.patience"),
        ("max_epochs: 1\n  max_steps: 12", "training.max_epochs"),
        ("max_steps: 12", ""),
    ],
)
def test_a_run_is_finished_at_each_limit(make_run: Callable[..., RunFolder], settings: str, reason: str) -> None:
    config = RUN_CONFIG.replace("max_steps: 12", settings)
    records = (*RECORDS[:-1], validation(9, 15.0, complete_epochs=1))
    status = read_status(make_run("copy", *records, config=config))
    assert status.state == ("finished" if reason else "interrupted")
    assert status.reason.startswith(reason)
    unvalidated = read_status(make_run("other", *RECORDS[:-1], config=config))
    assert unvalidated.state == "interrupted"


def test_averages_models_and_exports(make_run: Callable[..., RunFolder]) -> None:
    average = make_run("copy-average")
    scores = {"bleu": {"name": "BLEU", "value": 31.5, "signature": "s"}}
    content = {"average": "a", "runs": ["copy"], "steps": [1], "run_scores": [scores], "average_scores": scores}
    average.average_file.write_text(json.dumps(content), encoding="utf-8")
    status = read_status(average)
    assert (status.state, status.validation_scores) == ("average", {"bleu": 31.5})
    assert read_status(make_run("copied")).state == "model"
    inference = re.sub(r"(?ms)^training:.*?(?=^decoding)", "", RUN_CONFIG)
    inference = re.sub(r"(?m)^  (train|validation|test|max_length: 20).*\n", "", inference)
    assert read_status(make_run("imported", config=inference)).state == "model"
    export = make_run("exported", config=inference, model=False)
    export.export_file.write_text("{}", encoding="utf-8")
    status = read_status(export)
    assert (status.state, status.parameters) == ("export", None)


def test_all_runs_are_listed_and_a_broken_one_stops_nothing(make_run: Callable[..., RunFolder], cli: Cli) -> None:
    best = make_run("b", *RECORDS, validation(12, 40.0))
    write_evaluation(best, "test", 33.25)
    write_evaluation(best, "test.1a2b3c4d", 99.0, models=2)
    make_run("a", *RECORDS)
    make_run("none", train_record(3), model=False)
    make_run("broken", config="data: [\n")
    make_run("metrics", *RECORDS).diagnosis_file.write_text("{", encoding="utf-8")
    Path("runs/empty").mkdir()
    Path("runs/cache").mkdir()
    Path("runs/.hidden.x.nmt-part").mkdir()
    Path("runs/latest").write_text("b\n", encoding="utf-8")
    code, out, stderr = cli("runs")
    assert (code, stderr) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["name", "state", "step", "validation", "test", "parameters", "changed"]
    assert lines[1].split() == ["BLEU", "BLEU"]
    assert [line[3:].split()[0] for line in lines[2:8]] == ["a", "b", "broken", "empty", "metrics", "none"]
    assert lines[3].startswith("*  b ") and lines[3].split()[2:7] == ["finished", "12", "40.00", "33.25", "22"]
    assert any("runs/broken/config.yaml:" in line for line in lines[8:])
    assert any(line == "runs/empty: not a run folder (it has no config.yaml)" for line in lines[8:])
    assert any(line.startswith("runs/metrics/diagnosis.json: cannot be read") for line in lines[8:])
    found = {status["name"]: status for status in json.loads(cli("runs", "--json")[1])}
    assert found["b"]["test_scores"] == {"test": {"bleu": 33.25, "chrf": 33.25, "ter": 33.25}}
    assert found["b"]["is_latest"] and not found["a"]["is_latest"]
    names = {
        key: [status["name"] for status in json.loads(cli("runs", "--json", "--sort", key)[1])]
        for key in ("step", "validation", "test", "parameters", "state")
    }
    assert names["step"][:3] == ["b", "a", "none"]
    assert names["validation"][:2] == ["b", "a"]
    assert names["test"][0] == "b"
    assert names["state"][:3] == ["broken", "empty", "metrics"]


def test_scores_of_training_text_are_marked_and_come_last(make_run: Callable[..., RunFolder], cli: Cli) -> None:
    learned = RUN_CONFIG.replace("val.", "train.")
    assert learned != RUN_CONFIG
    make_run("learned", *RECORDS, validation(12, 100.0), config=learned)
    make_run("honest", *RECORDS, validation(12, 40.0))
    _, _, *rows, note = cli("runs", "--sort", "validation")[1].splitlines()
    assert [row.split()[0] for row in rows] == ["honest", "learned"]
    assert ["40.00 " in rows[0], "!" in rows[0], "! 100.00" in rows[1]] == [True, False, True]
    assert note == "! scores of the training text, which say nothing about other text"
    found = {one["name"]: one["validates_on_training_text"] for one in json.loads(cli("runs", "--json")[1])}
    assert found == {"learned": True, "honest": False}
    assert "validation    ! scores of the training text" in cli("show", "--model", "learned")[1]
    assert "training text" not in cli("show", "--model", "honest")[1]


def test_pruning_removes_from_the_cache_all_that_no_process_writes(
    make_run: Callable[..., RunFolder], cli: Cli
) -> None:
    make_run("a", *RECORDS)
    cache = Path("runs/cache")
    for name in ("key", "1.selection", ".killed.a1b2c3d4.nmt-part", ".busy.a1b2c3d4.nmt-part"):
        (cache / name).mkdir(parents=True)
        (cache / name / "content").write_bytes(b"x" * 1000)
    (cache / "files.json").write_text("{}")
    with locked(cache / "busy", wait=False):
        code, out, stderr = cli("runs", "--prune-cache")
        assert code == 0
        assert "3,002 bytes" in stderr
        assert [line.split()[0] for line in out.splitlines()[2:]] == ["a"]
        assert {path.name for path in cache.iterdir()} == {".busy.a1b2c3d4.nmt-part", ".busy.lock"}
    assert Path("runs/a/config.yaml").exists()
    make_run("b", *RECORDS, trainer=mark(os.getpid()), live=True)
    (cache / "key").mkdir()
    code, _, stderr = cli("runs", "--prune-cache")
    assert code == 2
    assert_says(stderr, "nmt: b: ", "is being trained")
    assert (cache / "key").exists()


def test_a_folder_with_a_vocabulary_alone_is_one_of_a_training_to_come(copy_task: Path, cli: Cli) -> None:
    """`nmt vocab` leaves it, and a dry run."""
    assert cli("vocab", "copy.yaml", "--name", "words")[0] == 0
    assert cli("train", "copy.yaml", "--name", "tried", "--dry-run")[0] == 0
    found = {status["name"]: status["state"] for status in json.loads(cli("runs", "--json")[1])}
    assert found == {"tried": "vocabulary", "words": "vocabulary"}
    code, out, _ = cli("show", "--model", "tried")
    assert code == 0
    assert out.startswith("runs/tried: ")
    code, _, stderr = cli("translate", "--model", "words", "1 2")
    assert code == 2
    assert "no model yet" in stderr


def test_a_folder_does_not_move_the_terminals_cursor(make_run: Callable[..., RunFolder], cli: Cli) -> None:
    run = make_run("a\x1b[2J", *RECORDS, trainer=mark(os.getpid(), "host\x1b[2J"), live=True)
    write_evaluation(run, "x\x1by", 1.0)
    for command in (("show", "--model", str(run.path)), ("runs",)):
        code, out, stderr = cli(*command)
        assert (code, stderr) == (0, "")
        assert "\x1b" not in out and "\ufffd[2J" in out


def test_a_long_name_of_a_test_set_is_apart_from_its_scores(make_run: Callable[..., RunFolder], cli: Cli) -> None:
    run = make_run("a", *RECORDS)
    write_evaluation(run, "test_2016_flickr", 33.25)
    code, out, _ = cli("show", "--model", str(run.path))
    assert code == 0
    assert "\ntest test_2016_flickr  bleu 33.25" in out


def test_runs_on_a_terminal_take_a_line_each(make_run: Callable[..., RunFolder], cli: Cli, screen: Screen) -> None:
    names = ["a-name-that-says-all-of-the-settings-of-this-run", "b", "译文"]
    test_sets = "".join(
        f"    {name}: {{src: test.en, tgt: test.de}}\n" for name in ("test_2016_flickr", "test_2017_mscoco")
    )
    config = RUN_CONFIG.replace("  test: {src: test.en, tgt: test.de}\n", f"  test:\n{test_sets}")
    for name, bleu in zip(names, (40.0, 8.5, 0.25), strict=True):
        run = make_run(name, train_record(12), validation(12, bleu), config=config)
        write_evaluation(run, "test_2016_flickr", bleu - 0.25)
    write_evaluation(RunFolder(Path("runs/b")), "test_2017_mscoco", 7.0)
    out = cli("runs")[1]
    head, metrics, *lines = screen.lines(out)
    shown = ["name", "state", "step", "validation", "test_2016_flickr", "test_2017_mscoco", "parameters", "changed"]
    assert head.split() == [name for name in shown if screen.width == 120 or name in out]
    assert {"name", "state", "validation", "test_2016_flickr"} <= {*head.split()} and "changed" in head
    assert {*metrics.split()} == {"BLEU"} and len(lines) == 3
    end = head.index("validation") + len("validation")
    rows = ["".join(character + "\0" * (cell_len(character) - 1) for character in line) for line in lines]
    assert [row[end - 6 : end].strip() for row in rows] == ["40.00", "8.50", "0.25"]
    assert re.search(r"\x1b\[1m *40\.00", out) and not re.search(r"\x1b\[1m *8\.50", out)


def test_the_status_on_a_terminal_has_the_same_words(
    make_run: Callable[..., RunFolder], cli: Cli, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("a", *RECORDS, *(train_record(step) for step in range(10, 200)), trainer=mark(NO_PROCESS))
    write_evaluation(run, "test", 33.25)
    write_evaluation(run, "test.1a2b3c4d", 99.0, models=2)
    lines = screen.lines(cli("show", "--model", "a")[1])
    monkeypatch.delenv("FORCE_COLOR")
    bars = re.compile("[▁▂▃▄▅▆▇█]+")
    assert bars.sub("", " ".join(lines)).split() == bars.sub("", cli("show", "--model", "a")[1]).split()


def test_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("runs")
    assert (code, out, "nmt train FILE" in err) == (0, "", True)
    assert cli("runs", "--json") == (0, "[]\n", "")


# --watch ------------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A terminal that does `events`, one after each drawing."""

    def __init__(self, *events: Callable[[], object]) -> None:
        super().__init__()
        self.events = list(events)

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        if self.events:
            self.events.pop(0)()


def test_watch_redraws_until_the_training_ends(
    make_run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_text, "REDRAW_SECONDS", 0.0)
    run = make_run("copy", *RECORDS, trainer=mark(os.getpid()), live=True)

    def add(text: str) -> Callable[[], object]:
        def append() -> None:
            with run.metrics_file.open("a", encoding="utf-8") as file:
                file.write(text)

        return append

    def set_aside() -> None:  # as --fresh does: away, and back with no record
        run.path.rename("runs/copy.old1")
        fresh = make_run("copy", train_record(3), trainer=mark(os.getpid()))
        assert fresh.exists()

    half = len(train_record(12)) // 2
    terminal = Terminal(
        add(train_record(12)[:half]), add(train_record(12)[half:]), set_aside, lambda: run.training_file.unlink()
    )
    progress_text.watch(run, terminal)
    nothing, *screens = terminal.getvalue().split("\x1b[H\x1b[J")
    assert nothing == ""
    steps = [re.search(r"^step +(\d+) of 12", screen, re.MULTILINE) for screen in screens]
    assert [step and step[1] for step in steps] == ["9", "9", "12", "3", "3"]
    assert "is being trained" in screens[0] and "was interrupted" in screens[-1]
    assert not any(re.search(r"\x1b(?!\[[\d;]*m)", screen) for screen in screens)  # styles alone


def test_watch_waits_while_the_folder_is_replaced_but_not_for_ever(
    make_run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_text, "REDRAW_SECONDS", 0.0)
    run = make_run("copy", *RECORDS)
    states: list[RunStatus | ConfigError] = [ConfigError("half"), ConfigError("half"), read_status(run)]

    def read(run: RunFolder) -> RunStatus:
        state = states.pop(0)
        if isinstance(state, ConfigError):
            raise state
        return state

    monkeypatch.setattr(progress_text, "read_status", read)
    progress_text.watch(run, Terminal())
    assert states == []
    states.extend([ConfigError("gone")] * 9)
    with pytest.raises(ConfigError, match="gone"):
        progress_text.watch(run, Terminal())


def test_watch_is_refused_without_a_terminal(in_solved: Path, cli: Cli) -> None:
    code, out, stderr = cli("show", "--watch")
    assert (code, out) == (2, "")
    assert stderr.startswith("nmt: --watch ")
    code, out, stderr = cli("show", "--watch", "--json")
    assert code == 2 and "leave out one" in stderr


def test_torch_is_not_loaded(in_solved: Path) -> None:
    program = (
        "import sys; from nmt.cli.main import main; sys.argv = ['nmt', 'show']; main(); "
        "import nmt.cli.runs; sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("runs/copy: ")
