"""`nmt info`: broken packages of every kind are a line, and what nmt needs is what pyproject.toml says."""

import importlib.metadata
import json
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from conftest import Cli

from nmt import environment
from nmt.environment import EXTRAS, PACKAGES, read_environment
from nmt.probing import DEVICES, Answer, Device, probe

REPOSITORY = Path(__file__).resolve().parents[1]
BROKEN = {
    "probed_good": "__version__ = '1.2'; print('hello'); print('{}')",
    "probed_import_error": "raise ImportError('libgone.so: cannot open\\nshared object')",
    "probed_inner": "import probed_that_is_not_there",
    "probed_exit": "raise SystemExit(3)",
    "probed_dies": "import os, sys; sys.stderr.write('first\\nOMP: Error #15\\n'); sys.stderr.flush(); os._exit(7)",
    "probed_killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "probed_last": "",
}


def test_a_module_that_is_broken_in_any_way_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "probed_hangs.py").write_text("import time; time.sleep(100)")
    answers = probe([[*BROKEN, "probed_missing"]]) | probe([["probed_hangs"]], seconds=0.5)
    assert list(answers) == [*BROKEN, "probed_missing", "probed_hangs"]
    assert answers["probed_good"] == Answer("probed_good", "1.2")
    assert answers["probed_last"] == Answer("probed_last")
    assert answers["probed_import_error"].error == "ImportError: libgone.so: cannot open shared object"
    assert answers["probed_inner"].error == "ModuleNotFoundError: No module named 'probed_that_is_not_there'"
    assert not answers["probed_inner"].is_missing
    assert answers["probed_exit"].error == "SystemExit: 3"
    assert answers["probed_dies"].error == "a process that tried it ended with exit code 7: OMP: Error #15"
    assert answers["probed_killed"].error == "a process that tried it was ended by SIGKILL"
    assert answers["probed_hangs"].error == "a process that tried it has not ended after 0.5 seconds"
    assert answers["probed_missing"].is_missing


def test_packages_and_extras_are_those_of_pyproject() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert set(PACKAGES.values()) == names
    extras = {name: packages for name, packages in project["optional-dependencies"].items() if name != "dev"}
    assert {extra.name for extra in EXTRAS} == set(extras)
    for extra in EXTRAS:
        wanted = extras[extra.name][0]
        if wanted.startswith("sacrebleu["):
            marked = importlib.metadata.requires("sacrebleu") or []
            parts = [one for one in marked if re.search(rf"extra == ['\"]{extra.name}['\"]", one)]
            assert set(extra.packages.values()) == {re.split(r"[<>=;! ]", one)[0] for one in parts}
        elif extra.name == "zst" and sys.version_info >= (3, 14):
            assert not extra.packages
        else:
            assert list(extra.packages.values()) == [re.split(r"[<>=]", one)[0] for one in extras[extra.name]]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose torch works, whose numpy is broken, and which has no Pillow and half of what Korean needs."""
    answers = {module: Answer(module, "1.0") for module in PACKAGES}
    answers |= {module: Answer(module, "2.0") for extra in EXTRAS for module in extra.packages}
    answers["numpy"] = Answer("numpy", error="ImportError: no libgfortran")
    answers["PIL"] = Answer("PIL", error="ModuleNotFoundError: No module named 'PIL'", is_missing=True)
    answers["mecab_ko"] = Answer("mecab_ko", error="OSError: bad")
    gpu = Device("cuda:0", "Made Up 9000", 12.5, {"fp32": 1.0, "bf16": 8.0, "fp16": 8.1}, "")
    answers[DEVICES] = Answer(DEVICES, devices=(Device("cpu", "A processor", None, {}, "fp32: RuntimeError: no"), gpu))

    def probed(groups: list[list[str]]) -> dict[str, Answer]:
        assert sorted(question for group in groups for question in group) == sorted(answers)
        return answers

    monkeypatch.setattr(environment, "probe", probed)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9" if name == "numpy" else "")


def test_what_is_missing_is_said_with_its_remedy(made_up: None, cli: Cli) -> None:
    code, out, err = cli("info")
    assert (code, err) == (0, "")
    assert "\ndevices     cpu (A processor); fp32: RuntimeError: no\n" in out
    assert "\n            cuda:0 (Made Up 9000, 12.5 GB); bf16 8 times as fast as fp32; fp16 8.1 times" in out
    assert "\npackages    torch=1.0 sentencepiece=1.0 " in out
    assert "\n            numpy 9.9 cannot be used: ImportError: no libgfortran\n" in out
    assert "\nextras      ct2          ctranslate2 2.0\n" in out
    how = "in your clone of nmt, scripts/install image, or pip install '.[image]'"
    lines = [
        "            image        for sources that are images",
        f"{'':<25}pillow is not installed",
        f"{'':<25}{how}",
    ]
    assert "\n".join(["", *lines, ""]) in out
    assert "\n            ko           for BLEU of Korean\n                         mecab-ko cannot be used: " in out
    assert all(len(line) <= 120 for line in out.splitlines() if not line.startswith("system"))


def test_json_says_the_same(made_up: None, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = json.loads(cli("info", "--json")[1])
    assert found["threads"] == 3
    assert [extra["name"] for extra in found["extras"] if not extra["works"]] == ["ko", "image"]
    assert [device["name"] for device in found["devices"]] == ["cpu", "cuda:0"]
    if hasattr(os, "sysconf") and Path("/proc/meminfo").is_file():
        kilobytes = re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
        assert kilobytes
        assert found["memory_gb"] == pytest.approx(int(kilobytes[1]) * 1024 / 1e9, abs=0.1)


@pytest.mark.slow
def test_this_machine() -> None:
    found = read_environment()
    assert not [package for package in found.packages if package.error]
    versions = {package.name: package.version for package in found.packages}
    assert versions["torch"] == torch.__version__
    assert versions["sacrebleu"] == importlib.metadata.version("sacrebleu")
    assert [extra.name for extra in found.extras if not extra.works] == []
    assert found.devices_error == ""
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    assert [device.name for device in found.devices if device.name != "mps"] == names
    for device in found.devices:
        assert (device.speed["fp32"], device.error) == (1.0, "")
        assert device.speed["bf16"] > 0
