"""The command-line options of the benchmarks."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_environment_may_be_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """eole runs in another folder."""
    (tmp_path / "eole" / "bin").mkdir(parents=True)
    (tmp_path / "eole" / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench_train.py", "--against", "eole/bin/python"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert script("bench_train").parse().against == tmp_path / "eole" / "bin" / "python"
