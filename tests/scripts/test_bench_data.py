"""The measurements of the data path."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_data.py"


def test_the_folder_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("bench_data", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_data", script)
    spec.loader.exec_module(script)
    folders = []

    def measure_size(num_pairs: int, folder: Path) -> dict[str, Any]:
        assert folder.samefile(Path.cwd())  # each measurement is started in this folder
        folders.append(folder)
        return {}

    monkeypatch.setattr(script, "measure_size", measure_size)
    monkeypatch.setattr(script, "print_table", lambda results: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(sys, "argv", ["bench_data.py", "--sizes", "7,8", "--folder", "there"])
    assert script.main() == 0
    assert [folder.parent for folder in folders] == [tmp_path / "there"] * 2
    assert list((tmp_path / "there").iterdir()) == []
