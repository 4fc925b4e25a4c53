"""Weights and training state on disk, in safetensors and JSON; nothing is unpickled.

Every file contains a checksum of its content, and a checkpoint's progress.json lists the names and checksums of the
other files. A file whose content has changed is reported and never used.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from nmt.errors import RunError
from nmt.runs.folder import checkpoint_steps
from nmt.runs.history import Progress
from nmt.system.files import read_json, replacing, write_bytes

FORMAT = 5  # version of the checkpoint format; raise it when older checkpoints cannot be resumed
MAX_HEADER_BYTES = 1 << 24  # of a safetensors file; enough for 100,000 tensors


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the parameters; a shared one is written once, under its first name."""
    write_weights(weights_of(model), path)


def write_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors by name."""
    with replacing(path) as temporary:
        _write(weights, temporary)


def load_weights(model: nn.Module, path: Path) -> None:
    """Read a weights file into a model; raises `RunError` if names or shapes differ."""
    copy_weights(read_weights(path), weights_of(model), path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; raises `RunError` if it is damaged."""
    return dict(_verified(path))


def copy_weights(stored: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors from the file `path` into `weights`; raises `RunError` if their names or shapes differ."""
    shapes, expected = ({name: tuple(value.shape) for name, value in part.items()} for part in (stored, weights))
    _check_alike(path, shapes, expected)
    for name, value in weights.items():
        value.copy_(stored[name])


def mean_of_weights(files: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights in several files, on the CPU.

    Vaswani et al. 2017, section 6.1, translate with such a mean of their last checkpoints. It is computed tensor by
    tensor, so that no file is in memory as a whole, and summed in fp64, so that it is rounded once. Raises `RunError`
    if the files do not contain the same names and shapes.
    """
    with open_tensors(files[0]) as first:
        shapes = _shapes(first)
    for path in files[1:]:
        with open_tensors(path) as file:
            _check_alike(path, _shapes(file), shapes)
    means = {}
    for tensors in zip(*map(_verified, files), strict=True):
        total = sum(value.double() for _, value in tensors)
        means[tensors[0][0]] = (total / len(files)).float()
    return means


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    progress: Progress,
    average: Mapping[str, Tensor] | None = None,
) -> None:
    """Write all that a resume needs to `folder`, atomically; `average` is the moving average of the weights."""
    state = {
        f"optimizer.{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    parts = {"model": weights_of(model), "state": state} | ({} if average is None else {"average": average})
    with replacing(folder) as temporary:
        temporary.mkdir(parents=True)
        files = {f"{name}.safetensors": _write(tensors, temporary / f"{name}.safetensors")
                 for name, tensors in parts.items()}  # fmt: skip
        write_bytes(temporary / "progress.json", _progress_json(progress, scaler, files))


def replace_progress(folder: Path, progress: Progress, scaler: torch.amp.GradScaler) -> None:
    """Replace the progress of the checkpoint in `folder`, which was saved at the same step with the same weights."""
    with replacing(folder / "progress.json") as temporary:
        write_bytes(temporary, _progress_json(progress, scaler, _read_description(folder).files))


def _progress_json(progress: Progress, scaler: torch.amp.GradScaler, files: dict[str, str]) -> bytes:
    """The content of progress.json, including its checksum."""
    state, scaler_state = dataclasses.asdict(progress), scaler.state_dict()
    content = {"format": FORMAT, "progress": state, "scaler": scaler_state, "files": files}
    return (json.dumps({**content, "sha256": _sum_of_json(content)}, indent=2) + "\n").encode()


def _sum_of_json(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    average: Mapping[str, Tensor] | None = None,
) -> Progress:
    """Restore model, optimizer, loss scale and, if given, `average` from the checkpoint in `folder`.

    Raises `RunError` if a file is missing, damaged or from another model.
    """
    description = _read_description(folder)
    load_weights(model, folder / "model.safetensors")
    if average is not None:
        path = folder / "average.safetensors"
        copy_weights(read_weights(path), average, path)
    state = read_weights(folder / "state.safetensors")
    for name, parameter in model.named_parameters():
        prefix = f"optimizer.{name}."
        values = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {
            # Only a fused optimizer keeps the step count on the device; others would wait there to read it.
            key: value if key == "step" and not optimizer.defaults["fused"] else value.to(parameter.device)
            for key, value in values.items()
        }
    scaler.load_state_dict(description.scaler)
    return description.progress


def check_checkpoint(folder: Path) -> Progress:
    """Read and verify all files of a checkpoint; returns the progress when it was saved.

    Raises `RunError` with the file's name if a file has changed or another version of nmt wrote it.
    """
    description = _read_description(folder)
    for name, described in description.files.items():
        for _ in _verified(folder / name, described):
            pass
    return description.progress


class _Description(NamedTuple):
    """The content of progress.json."""

    progress: Progress
    scaler: dict[str, Any]
    files: dict[str, str]
    """Checksums by name."""


def _read_description(folder: Path) -> _Description:
    path = folder / "progress.json"
    content = read_json(path)
    checksum = content.pop("sha256", None) if isinstance(content, dict) else None
    if checksum != _sum_of_json(content):
        raise RunError(f"{path}: damaged: its content has changed since it was written")
    if content.pop("format", None) != FORMAT:
        raise RunError(f"{path}: saved by another version of nmt; only that version can resume it")
    try:
        description = _Description(Progress(**content.pop("progress")), **content)
        if all(Path(name).name == name for name in description.files):
            return description
    except (KeyError, TypeError):
        pass
    raise RunError(f"{path}: does not describe a checkpoint")


def retain(checkpoints: Path, last: int, others: Collection[int]) -> None:
    """Remove all checkpoints except the `last` newest and those at the steps `others`."""
    for step in checkpoint_steps(checkpoints)[:-last]:
        if step not in others:
            shutil.rmtree(checkpoints / str(step))


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name, as in a weights file: a shared one only under its first name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _check_alike(
    path: Path, shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], remedy: str = ""
) -> None:
    unlike = sorted(shapes.keys() ^ expected.keys()) or [name for name in expected if expected[name] != shapes[name]]
    if unlike:
        raise RunError(f"{path}: not the weights of this model: {unlike[0]} does not fit{remedy}")


def _verified(path: Path, *stated: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file, in the order of their names.

    Raises `RunError` after the last if their checksum is not that in the file, or one that is `stated` elsewhere.
    """
    digest = hashlib.sha256()
    with open_tensors(path) as file:
        for name in sorted(file.keys()):
            value = file.get_tensor(name)
            _add(digest, name, value)
            yield name, value
        header = file.metadata() or {}
    sums = {*stated, header.get("sha256", digest.hexdigest())}  # other programs write none
    if sums != {digest.hexdigest()}:
        raise RunError(f"{path}: damaged: its content has changed since it was written")


def _add(digest: "hashlib._Hash", name: str, tensor: Tensor) -> None:
    """Include a tensor in a checksum: its name, dtype, shape and bytes."""
    flat = tensor.detach().cpu().contiguous().flatten()
    digest.update(f"{name} {flat.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(flat.view(torch.uint8).numpy().data)


def _write(tensors: Mapping[str, Tensor], path: Path) -> str:
    """Write tensors with their checksum in the header; returns it."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        _add(digest, name, tensors[name])
    metadata = {"sha256": digest.hexdigest()}  # one key: the order of several keys is not deterministic
    write_bytes(path, save({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, metadata))
    return digest.hexdigest()


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a file of tensors, to be read tensor by tensor."""
    try:
        with path.open("rb") as start:
            header_bytes = int.from_bytes(start.read(8), "little")
        if header_bytes > MAX_HEADER_BYTES:  # safetensors would parse it in ten times as much memory
            raise RunError(f"{path}: cannot be read as safetensors: a header of {header_bytes:,} bytes")
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read as safetensors: {error}") from None


def check_weights(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `RunError` if the file does not contain weights of these shapes.

    Reads only the header, so that a configuration that does not match is detected before memory is allocated.
    """
    with open_tensors(path) as file:
        _check_alike(path, _shapes(file), shapes, "; was the model section of its configuration changed?")


def _shapes(file: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
