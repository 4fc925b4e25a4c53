"""The exports of a run for CTranslate2, and the fingerprint that shows whether one is stale.

An export is a folder that translates alone: the model in another engine's format, the run's tokenizer/, and a
config.yaml with the inference sections. Its export.json names the model that it was made from, and holds the results of
its verification.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nmt.errors import RunError
from nmt.runs.folder import Recorded, RunFolder
from nmt.system.files import file_sha256

# Fastest on a CPU first. An export that exists was verified when it was made.
QUANTIZATIONS = ("int8", "int8_float32", "int8_bfloat16", "int8_float16", "int16", "float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """The fingerprint of a model.safetensors."""

    sha256: str
    size: int
    """Bytes."""
    written: int
    """Modification time in nanoseconds."""

    @classmethod
    def of(cls, path: Path) -> "ModelFile":
        """The file's current state."""
        status = path.stat()
        return cls(file_sha256(path), status.st_size, status.st_mtime_ns)

    def is_still(self, path: Path, sha256: Callable[[Path], str] = file_sha256) -> bool:
        """True if `path` has the same content; it is read only if the size is the same and the time differs."""
        status = path.stat()
        if status.st_size != self.size:
            return False
        return status.st_mtime_ns == self.written or sha256(path) == self.sha256


class Export(NamedTuple):
    """A model in CTranslate2's format."""

    folder: RunFolder
    quantization: str
    model: ModelFile
    """The model that it was made from."""


class _Made(Recorded):
    """The origin of an export in its export.json."""

    model: ModelFile


def exports_of(run: RunFolder) -> list[Export]:
    """The run's exports for CTranslate2, the fastest on a CPU first; `RunError` if an export.json is damaged."""
    exports = []
    for quantization in QUANTIZATIONS:
        folder = RunFolder(run.exports / f"ctranslate2-{quantization}")
        if folder.export_file.is_file():
            try:
                exports.append(Export(folder, quantization, _Made.read(folder.export_file).model))
            except RunError as error:
                raise RunError(f"{error}; {export_again(run, quantization)}") from None
    return exports


def export_again(run: RunFolder, quantization: str) -> str:
    """The remedy for a damaged or stale export."""
    return f"export it again: nmt export ctranslate2 --model {run.path} --quantization {quantization}"
