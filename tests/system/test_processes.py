"""A command's worker processes: their errors are reported like those of the command."""

import functools
import importlib
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import Cli

from nmt.errors import MissingExtraError, TrainingError
from nmt.system.processes import WRITER_EXITED, Workers, control_groups

LACKING = """
def prepare():
    import {package}
"""


@pytest.mark.parametrize(
    ("package", "error", "message"),
    [
        ("torch", MissingExtraError, "^torch is needed for this and not installed: pip install torch$"),
        ("nmt.misspelt", TrainingError, "a process that tried ended with exit code 1"),
    ],
)
def test_a_package_that_a_process_lacks_is_named(
    package: str, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    (tmp_path / "lacking.py").write_text(LACKING.format(package=package))
    monkeypatch.delitem(sys.modules, "lacking", raising=False)
    prepare = importlib.import_module("lacking").prepare
    with Workers[str, None]([prepare], {}) as workers, pytest.raises(error, match=message):
        workers.submit("", "tried").result()


def test_a_truncated_message_is_an_error() -> None:
    message = pickle.dumps((b"abc" * 30_000, "defg", [1, 2]), pickle.HIGHEST_PROTOCOL)
    for end in [*range(100), 50_000, *range(len(message) - 100, len(message))]:
        with pytest.raises(WRITER_EXITED):
            pickle.load(io.BytesIO(message[:end]))


DEADLY = """
import os, signal

class Deadly:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)

def prepare():
    return lambda size: (bytes(size), Deadly() if size else None)
"""


def test_a_process_that_ends_within_its_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "deadly.py").write_text(DEADLY)
    with Workers[int, tuple[bytes, None]]([importlib.import_module("deadly").prepare], {}) as workers:
        assert workers.submit(0, "lived").result() == (b"", None)
        with pytest.raises(TrainingError, match="a process that died was ended by SIGKILL; if memory ran out"):
            workers.submit(1 << 20, "died").result()  # larger than a pipe's buffer


def test_a_process_is_given_more_than_a_command_line_holds() -> None:
    prepare = functools.partial(functools.partial, bytes.endswith, bytes(1 << 20))
    with Workers[bytes, bool]([prepare, prepare], {}) as workers:
        answers = [workers.submit(request, "read bytes") for request in (bytes(8), b"other", bytes(1 << 19))]
        assert [answer.result() for answer in answers] == [True, False, True]


@pytest.mark.skipif(not Path("/proc/self/cgroup").is_file(), reason="Linux has control groups")
def test_this_process_is_in_its_control_group() -> None:
    """As the kernel lists it; a container that sees no group of its own has no such list."""
    lists = [folder / "cgroup.procs" for folder in control_groups("memory")]
    found = [file.read_text().split() for file in lists if file.is_file()]
    assert not found or any(str(os.getpid()) in pids for pids in found)


KERNELS = """
import sys
from nmt.cli.main import main
sys.argv = ["nmt", sys.argv[1], "--help"]
try:
    main()
except SystemExit:
    import torch
linear, weight = torch.ops.mkldnn._linear_pointwise, torch.ones(8, 16)
for _ in range(2):
    for rows in range(1, 51):
        linear(torch.ones(rows, 16), weight, None, "none", [], "")
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
@pytest.mark.parametrize(
    ("command", "given", "made"),
    [
        ("train", {}, 100),
        ("translate", {}, 50),
        ("train", {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "200"}, 50),
        ("train", {"DNNL_PRIMITIVE_CACHE_CAPACITY": "200"}, 50),
    ],
)
def test_a_command_keeps_few_kernels_unless_the_user_says_otherwise(
    command: str, given: dict[str, str], made: int
) -> None:
    """As oneDNN itself reports: 50 shapes of two kernels each, twice; what it has kept is not made again."""
    environment = {key: value for key, value in os.environ.items() if "CACHE_CAPACITY" not in key}
    environment |= {"ONEDNN_VERBOSE": "profile_create", **given}
    done = subprocess.run(
        [sys.executable, "-c", KERNELS, command], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("cache_miss") == made


def test_torchs_own_cache_is_bounded_as_well(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for capacity in ("64", "7"):
        monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
        if capacity == "64":
            monkeypatch.delenv("LRU_CACHE_CAPACITY")
        cli("train", "--help")
        assert os.environ["LRU_CACHE_CAPACITY"] == capacity
