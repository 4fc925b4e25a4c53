"""A command's worker processes: their errors are reported like those of the command."""

import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.errors import MissingExtraError, TrainingError
from nmt.processes import BROKEN_OFF, Workers

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
        with pytest.raises(BROKEN_OFF):
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


def measuring(text: str) -> Callable[[str], int]:
    return lambda request: len(text) + len(request)


def test_what_a_process_works_with_may_be_large() -> None:
    prepare = functools.partial(measuring, "x" * 1_000_000)  # an argument of a program has 128 KiB at most
    with Workers[str, int]([prepare] * 2, {}) as workers:
        assert [workers.submit("ab", "tried").result() for _ in range(3)] == [1_000_002] * 3
