"""Processes that `nmt train` starts: they have ranks, and get signals and end together."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from conftest import Cli

from nmt.system.processes import python_command
from nmt.training.launching import launch


@pytest.mark.parametrize("system", [sys.platform, "darwin", "win32"])
def test_each_process_gets_its_rank(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other systems than this one are emulated: Windows has no `os.uname`."""
    if system != sys.platform:
        monkeypatch.delattr(os, "uname", raising=False)
        monkeypatch.setattr("nmt.training.launching.sys", SimpleNamespace(platform=system))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    program = """
import json, os, sys
open(sys.argv[1] + os.environ["RANK"] + ".loopback", "w").write(os.environ.get("GLOO_SOCKET_IFNAME", ""))
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS"]
open(sys.argv[1] + os.environ["RANK"], "w").write(json.dumps([os.environ[name] for name in names]))
"""
    assert launch(3, python_command(program, f"{tmp_path}/rank")) == 0
    for rank in range(3):
        of_one = json.loads((tmp_path / f"rank{rank}").read_text(encoding="utf-8"))
        assert of_one == [str(rank), str(rank), "3", "3", "127.0.0.1", "2"]
    assert launch(1, python_command(program, f"{tmp_path}/alone"), threads=5) == 0
    assert json.loads((tmp_path / "alone0").read_text(encoding="utf-8"))[-1] == "5"
    assert {"linux": "lo", "darwin": "lo0"}.get(system, "") == (tmp_path / "alone0.loopback").read_text()


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("1 / 0", 1)])
def test_one_that_fails_ends_the_others_with_its_exit_code(
    end: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    program = f"""
import os, sys, time
if os.environ["RANK"] == "1":
    {end}
time.sleep(60)
"""
    start = time.monotonic()
    assert launch(2, python_command(program)) == code
    assert time.monotonic() - start < 20
    said = capfd.readouterr().err
    assert said.count("Traceback") == (code == 1)
    assert said == "" or said.endswith("ZeroDivisionError: division by zero\n")  # torch's launcher says nothing


def test_a_signal_is_forwarded_to_all_and_the_handlers_are_restored(tmp_path: Path) -> None:
    program = """
import os, signal, sys, time
def saved(number, frame):
    open(sys.argv[1] + os.environ["RANK"], "w").close()
    sys.exit(128 + number)
signal.signal(signal.SIGINT, saved)
open(sys.argv[1] + "ready" + os.environ["RANK"], "w").close()
time.sleep(60)
"""

    def send() -> None:
        while len([*tmp_path.glob("ready*")]) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for background processes
    threading.Thread(target=send).start()
    assert launch(2, python_command(program, f"{tmp_path}/")) == 130
    assert {path.name for path in tmp_path.glob("?")} == {"0", "1"}
    assert signal.signal(signal.SIGINT, before) == signal.default_int_handler


# Each process loads the elastic launcher, gloo and the wrapper of the model, which takes seconds.
@pytest.mark.slow
def test_nmt_train_starts_its_processes_and_ends_as_one_would(copy_task: Path) -> None:
    def nmt_train(*overrides: str) -> subprocess.CompletedProcess[str]:
        options = [part for override in ["training.batches_per_update=2", *overrides] for part in ("--set", override)]
        command = [sys.executable, "-m", "nmt", "train", "copy.yaml", *options]
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)

    done = nmt_train("training.processes=2")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "processes   2, which share the batches of each update" in done.stderr
    assert done.stderr.count("finished: training.max_steps") == 1
    written = yaml.safe_load(Path("runs/copy/config.yaml").read_text(encoding="utf-8"))["training"]
    assert (written["processes"], written["batch_parts"], written["threads"]) == (2, 1, 1)

    resumed = nmt_train("training.processes=1", "training.max_steps=24")
    assert resumed.returncode == 0, resumed.stderr
    assert "changed: training.processes: 2 -> 1" in resumed.stderr
    assert "weights will differ in their last bits" in resumed.stderr

    mistaken = nmt_train("training.processes=2", "data.validation.src=missing.en", "training.max_steps=48")
    assert mistaken.returncode == 2
    assert mistaken.stderr.count("missing.en: no such file") == 1
    assert "Traceback" not in mistaken.stderr
    too_many = nmt_train("training.processes=3")
    assert too_many.returncode == 2
    assert too_many.stderr.startswith("nmt: training.batches_per_update (2) is less than the 3 processes")


def test_torchrun_decides_how_many_there_are(copy_task: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")  # as torchrun --nproc-per-node=1 sets it
    code, _, stderr = cli("train", "copy.yaml", "--set", "training.processes=2")
    assert code == 2
    assert stderr.startswith("nmt: training.processes: torchrun ")
    assert not Path("runs").exists()
