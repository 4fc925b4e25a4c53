"""What the export.json of every export says: what it was made from, how it was checked, and how it is called."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from nmt.errors import RunError
from nmt.interop.verification import Verification
from nmt.runs.exports import ModelFile
from nmt.runs.folder import Recorded, RunFolder, find_run
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
    """An export: the content of its export.json."""

    run: str
    folder: str
    format: str
    model: ModelFile
    """What it was made from."""
    base: Base | None
    license: str
    usage: Sequence[str]
    """How the export is called, a line each."""
    comparisons: Sequence[Verification]
    quantization: str | None
    """The type of the weights, of exports to CTranslate2's format."""
    notes: Sequence[str]
    """What the format cannot express, and what that costs."""


def describe(
    run: RunFolder,
    folder: Path,
    format: str,
    usage: Sequence[str],
    comparisons: Sequence[Verification],
    quantization: str | None = None,
    notes: Sequence[str] = (),
    license: str | None = None,
) -> ExportedRun:
    """The description of an export to `folder`; its licence is that of the base if none is given."""
    base = base_of(run)
    license = license or (base.license if base else UNKNOWN_LICENSE)
    made_from = ModelFile.of(run.model_file)
    return ExportedRun(
        str(run.path), str(folder), format, made_from, base, license, usage, comparisons, quantization, notes
    )


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
