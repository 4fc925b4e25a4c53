"""`nmt info`: a broken package is reported, and the required packages are those of pyproject.toml."""

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

import nmt.system.devices
from nmt.errors import PACKAGES
from nmt.system import environment
from nmt.system.environment import EXTRAS, Device, Extra, read_environment

REPOSITORY = Path(__file__).resolve().parents[2]


def test_packages_and_extras_are_those_of_pyproject() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert set(PACKAGES) == names
    extras = {name: packages for name, packages in project["optional-dependencies"].items() if name != "dev"}
    assert EXTRAS.keys() == extras.keys()
    for name, extra in EXTRAS.items():
        wanted = extras[name][0]
        if wanted.startswith("sacrebleu["):
            marked = importlib.metadata.requires("sacrebleu") or []
            parts = [one for one in marked if re.search(rf"extra == ['\"]{name}['\"]", one)]
            assert set(extra.packages) == {re.split(r"[<>=;! ]", one)[0] for one in parts}
        elif name == "zst" and sys.version_info >= (3, 14):
            assert not extra.packages
        else:
            assert list(extra.packages) == [re.split(r"[<>=]", one)[0] for one in extras[name]]


BROKEN = {
    "made_up_good": "print('hello')",
    "made_up_library": "raise ImportError('libgone.so: cannot open\\nshared object')",
    "made_up_inner": "import made_up_that_is_not_there",
    "made_up_exit": "raise SystemExit(3)",
}


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with packages that are broken, one that works, and one that is missing; and with a GPU."""
    for name, source in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(source)
        metadata = tmp_path / f"{name}-1.2.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    cpu = Device(name="cpu", model="A processor", memory_gb=None, bf16_speed=None)
    gpu = Device(name="cuda:0", model="Made Up 9000", memory_gb=12.5, bf16_speed=8.0)
    monkeypatch.setattr(environment, "PACKAGES", ("numpy", *BROKEN))
    monkeypatch.setattr(environment, "_devices", lambda: [cpu, gpu])
    some = {"ja": Extra(("made_up_good",), "Japanese"), "image": Extra(("numpy", "made_up_missing"), "images")}
    monkeypatch.setattr(environment, "EXTRAS", some)


def test_what_is_missing_or_broken_is_said_with_its_remedy(made_up: None, cli: Cli) -> None:
    code, out, err = cli("info")
    assert (code, err) == (0, "hello\n")  # said when it was imported
    numpy = importlib.metadata.version("numpy")
    assert out.splitlines()[-10:] == [
        "devices     cpu (A processor)",
        "            cuda:0 (Made Up 9000, 12.5 GB); bf16 8 times as fast as fp32",
        f"packages    numpy={numpy} made_up_good=1.2",
        "            made_up_library 1.2: ImportError: libgone.so: cannot open shared object",
        "            made_up_inner 1.2: ModuleNotFoundError: No module named 'made_up_that_is_not_there'",
        "            made_up_exit 1.2: SystemExit: 3",
        "extras      ja           made_up_good 1.2",
        "            image        for images",
        f"{'':<25}made_up_missing: not installed",
        f"{'':<25}in your clone of nmt, scripts/install image, or pip install '.[image]'",
    ]


def test_json_says_the_same(made_up: None, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = json.loads(cli("info", "--json")[1])
    assert found["threads"] == 3
    assert [extra["name"] for extra in found["extras"] if extra["how_to_install"]] == ["image"]
    assert [device["name"] for device in found["devices"]] == ["cpu", "cuda:0"]
    if hasattr(os, "sysconf") and Path("/proc/meminfo").is_file():
        kilobytes = re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
        assert kilobytes
        assert found["memory_gb"] == pytest.approx(int(kilobytes[1]) * 1024 / 1e9, abs=0.1)


def test_without_torch_no_devices_are_known(made_up: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PACKAGES", ("made_up_missing", "numpy"))
    assert read_environment()["devices"] == []


def test_a_broken_gpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(index: int) -> None:
        raise RuntimeError("CUDA error: unknown error\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    monkeypatch.setattr(nmt.system.devices, "bf16_slowdown", lambda device: 1.0)
    found = [device for device in environment._devices() if device["name"] == "cuda:0"]
    assert found == [Device(name="cuda:0", model="CUDA error: unknown error", memory_gb=None, bf16_speed=None)]


@pytest.mark.slow
def test_this_machine() -> None:
    found = read_environment()
    assert not [package for package in found["packages"] if package["error"]]
    versions = {package["name"]: package["version"] for package in found["packages"]}
    assert versions["torch"] == torch.__version__
    assert [extra["name"] for extra in found["extras"] if extra["how_to_install"]] == []
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    assert [device["name"] for device in found["devices"] if device["name"] != "mps"] == names
    assert all(device["bf16_speed"] for device in found["devices"])
