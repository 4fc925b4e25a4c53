"""Locks: never two owners among many processes, and no lock left by a process that has ended."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import assert_says

from nmt.errors import RunError
from nmt.runs.folder import RUNS, RunFolder, run_named
from nmt.system.files import building, is_locked, locked
from nmt.training.averaging import average_checkpoints

# Each child repeatedly takes and releases a lock; its owner creates the file `owner`, which must not exist.
MANY = """
import os, sys, time
from pathlib import Path
from nmt.errors import RunError
from nmt.system.files import building
from nmt.system.files import locked
from nmt.runs.folder import run_named

def own():
    os.close(os.open("owner", os.O_CREAT | os.O_EXCL))
    time.sleep(0.0005)
    os.unlink("owner")

def train():
    try:
        with run_named("run").locked():
            own()
            return True
    except RunError:
        return False

def build():
    try:
        with building(Path("cache/key")) as temporary:
            own()
            raise InterruptedError
    except InterruptedError:
        return True

def draw():
    with locked(Path("set.en"), wait=True, leaves_no_file=True):
        own()
        return True

take = {"train": train, "build": build, "draw": draw}[sys.argv[1]]
children = []
for _ in range(6):
    child = os.fork()
    if not child:
        until, owned = time.monotonic() + 0.7, 0
        while time.monotonic() < until:
            owned += take()
        Path(f"owned{os.getpid()}").write_text(str(owned))
        os._exit(0)
    children.append(child)
print(*[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
# On a busy machine, a process may never find it free.
owned = [int(path.read_text()) for path in Path().glob("owned*")]
assert sum(owned) > 5 and sum(map(bool, owned)) > 1, owned
"""

# Holds a lock, and has a forked child, like a worker that prepares batches.
HOLDER = """
import os, sys, time
from pathlib import Path
from nmt.system.files import locked

with locked(Path("kept"), wait=False) as is_ours:
    assert is_ours
    if not os.fork():
        print("held", flush=True)  # by its parent: the inherited descriptor is closed
        time.sleep(30)
        os._exit(0)
    time.sleep(30)
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", ["train", "build", "draw"])
def test_of_many_processes_one_at_a_time_owns_the_lock(kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", MANY, kind], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0 0 0 0 0 0\n", "")
    assert not Path(".set.en.lock").exists()


def test_a_lock_is_released_when_its_process_ends_though_a_child_is_running(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True,
                          start_new_session=True) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with locked(Path("kept"), wait=False) as is_ours:
            assert not is_ours
        holder.kill()
        holder.wait()
        os.killpg(holder.pid, 0)  # the child is running
        try:
            with locked(Path("kept"), wait=False) as is_ours:
                assert is_ours
        finally:
            os.killpg(holder.pid, 9)
    assert not Path("kept").exists()


def test_a_waiting_process_gets_the_lock_when_it_is_free() -> None:
    program = "import sys, time\nfrom pathlib import Path\nfrom nmt.system.files import locked\n" \
              "with locked(Path('kept'), wait=True):\n    print('held', flush=True)\n    time.sleep(0.3)\n"  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        began = time.monotonic()
        with locked(Path("kept"), wait=True) as is_ours:
            assert is_ours
            assert 0.1 < time.monotonic() - began < 20


def test_a_process_that_waits_for_another_ones_encoding_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with building(Path("cache/key")) as temporary:
        assert temporary is not None
    assert capsys.readouterr().err == ""
    program = (
        "import time\nfrom pathlib import Path\nfrom nmt.system.files import locked\n"
        "with locked(Path('cache/other'), wait=True):\n    print('held', flush=True)\n    time.sleep(0.5)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with building(Path("cache/other")) as temporary:
            assert temporary is not None
    (line,) = capsys.readouterr().err.splitlines()
    assert_says(line, "cache/other", "waiting for another process that uses it")


def test_a_folder_reached_by_a_link_is_the_same_folder() -> None:
    run_named("run").path.mkdir(parents=True)
    Path("elsewhere").mkdir()
    Path("elsewhere/other").symlink_to(Path("runs/run").resolve())
    with run_named("run").locked(), pytest.raises(RunError, match="other: is being trained"), \
         RunFolder(Path("elsewhere/other")).locked():  # fmt: skip
        pass


def test_the_current_folder_has_the_lock_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("here").mkdir()
    with locked(Path("here"), wait=False):
        monkeypatch.chdir("here")
        with locked(Path(), wait=False) as is_ours:
            assert not is_ours


def test_a_lock_survives_the_renaming_of_its_folder() -> None:
    run = run_named("run")
    with run.locked():
        run.path.mkdir()
        run.set_aside()
        with pytest.raises(RunError, match=r"runs/run: is being trained \(by another process\)"), run.locked():
            pass
    with run.locked():
        pass


def test_an_average_is_not_made_during_a_training_of_the_run() -> None:
    with run_named("mean").locked(), pytest.raises(RunError, match="mean: is being trained"):
        average_checkpoints(run_named("run"), last=2, name="mean")


@pytest.mark.parametrize(("code", "expected"), [(errno.EROFS, False), (errno.EACCES, True)])
def test_nobody_trains_on_a_read_only_disk(monkeypatch: pytest.MonkeyPatch, code: int, expected: bool) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    with locked(Path("run"), wait=False):
        pass
    monkeypatch.setattr("os.open", refuse)
    assert is_locked(Path("run")) == expected


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_file_locks_the_existence_of_a_file_is_the_lock(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    run = run_named("run")
    with run.locked(), pytest.raises(RunError, match="is being trained"), run.locked():
        pass
    with run.locked():
        pass


def test_the_mark_of_a_killed_training_is_reported_once_and_blocks_nothing() -> None:
    run = run_named("run")
    run.path.mkdir(parents=True)
    (run.path / "training.lock").write_text("process 4711 on there, started 2026-11-01 10:00:00\n")
    for vanished in ("process 4711 on there, started 2026-11-01 10:00:00", ""):
        with run.locked(), run.marked_as_training() as before:
            assert before == vanished
            assert f"process {os.getpid()} on " in (run.path / "training.lock").read_text()
    assert [path.name for path in RUNS.iterdir()] == [".run.lock"]
