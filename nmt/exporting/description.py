"""What the export.json of every export says: what it was made from, how it was checked, and how it is called."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.atomic import write_json
from nmt.ctranslate2.exports import ModelFile
from nmt.errors import ConfigError, RunError
from nmt.exporting.proof import Verification
from nmt.runs import Recorded, RunFolder, find_run
from nmt.training.record import read_record

UNKNOWN_LICENSE = "unknown"
"""Hugging Face's word where no licence is stated; nobody may use such a model without asking."""


@dataclasses.dataclass(frozen=True)
class Base:
    """The model that a run was imported from, or that its training started from."""

    name: str
    sha256: Mapping[str, str]
    """Of its files, by name."""
    license: str = UNKNOWN_LICENSE


@dataclasses.dataclass(frozen=True)
class ExportedRun:
    """A written export and its comparisons; its export.json also holds the model's hash."""

    run: str
    folder: str
    format: str
    comparisons: Sequence[Verification]
    usage: Sequence[str]
    """How the export is called, a line each."""
    quantization: str | None = None
    """The type of the weights, of exports to CTranslate2's format."""
    notes: Sequence[str] = ()
    """What the format cannot express, and what that costs."""


def exportable(run: RunFolder) -> RunFolder:
    """The run, if it has a model of its own; `RunError` for an export."""
    if run.is_export():
        raise RunError(f"{run.path}: is an export; name the run that it was made from")
    return run


def text_config_error(run: RunFolder, source: str, format: str) -> ConfigError:
    """The error for a model that reads something else than text, which no other program's format has."""
    return ConfigError(f"{run.path}: {format} has no models that read {source}; PyTorch translates it")


def describe(run: RunFolder, format: str, license: str | None = None) -> dict[str, Any]:
    """The part of export.json that is known before the export is checked."""
    base = base_of(run)
    return {
        "format": format,
        "model": dataclasses.asdict(ModelFile.of(run.model_file)),
        "base": None if base is None else dataclasses.asdict(base),
        "license": license or (UNKNOWN_LICENSE if base is None else base.license),
    }


def write_description(file: Path, description: Mapping[str, Any], result: ExportedRun) -> None:
    """Write an export.json."""
    write_json(file, {**description, **dataclasses.asdict(result)})


class _Imported(Recorded):
    """What imported.json says of where a model is from."""

    name: str
    files: dict[str, str]
    license: str | None


def base_of(run: RunFolder) -> Base | None:
    """What an imported run was imported from, or the run that a training started from; None for random weights."""
    file = run.path / "imported.json"
    if file.is_file():
        imported = _Imported.read(file, "import the model again")
        return Base(imported.name, imported.files, imported.license or UNKNOWN_LICENSE)
    record = read_record(run)
    if record is None or record.init_from is None:
        return None
    origin = record.init_from
    license = UNKNOWN_LICENSE
    with contextlib.suppress(RunError):  # it may be gone, and its licence with it
        if (earlier := base_of(find_run(origin.run))) is not None:
            license = earlier.license
    return Base(origin.run, {Path(origin.model.path).name: origin.model.sha256}, license)
