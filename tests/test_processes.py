"""Processes that work beside a command: what they lack is told as the command itself would tell it."""

from pathlib import Path

import pytest

from nmt.errors import MissingExtraError, TrainingError
from nmt.processes import Workers

WORKER = """
from nmt.processes import answer_requests

def serve(settings):
    def prepare():
        import {package}
    answer_requests(prepare)
"""


@pytest.mark.parametrize(
    ("package", "error", "message"),
    [
        ("torch", MissingExtraError, "^torch is not installed here, and this needs it: pip install torch$"),
        ("nmt.misspelt", TrainingError, "a process that tried ended with exit code 1"),
    ],
)
def test_a_package_that_a_process_lacks_is_named(
    package: str, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    (tmp_path / "worker.py").write_text(WORKER.format(package=package))
    with Workers("worker", [None], {}) as workers, pytest.raises(error, match=message):
        workers.submit([b""], "tried").result()
