"""Weights and training state on disk: safetensors and JSON, nothing that is unpickled.

Every file carries a checksum of what it holds, and a checkpoint's progress.json names the others with theirs and
their sizes. What does not hold what was written is named, and never used.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from nmt.atomic import read_json, replacing, write_bytes
from nmt.errors import RunError

FORMAT = 2  # of a checkpoint's progress.json and what it stands for; raise it when an older one cannot be resumed
MAX_HEADER_BYTES = 1 << 24  # of a file of tensors: a hundred thousand of them


@dataclasses.dataclass
class Progress:
    """Where a training stands; with weights and optimizer, all that a resume needs."""

    step: int = 0
    """Updates made."""
    epoch: int = 0
    """Passes over the corpus that are complete."""
    batch: int = 0
    """Batches of the current epoch's plan that are used."""
    seconds: float = 0.0
    """Time spent in training, validation included."""
    tgt_tokens: int = 0
    """Real target tokens seen."""
    best_value: float | None = None
    """The best validation's metric, and where it was."""
    best_step: int = 0
    validations_since_best: int = 0
    validations: list[int] = dataclasses.field(default_factory=list)
    """The steps of the last validations, of whose checkpoints `training.average_last` will need the weights."""
    validated_step: int = 0
    """The step of the last validation."""
    corpus_key: str = ""
    """The encoded corpus that the plan is made for."""
    interval: list[float] = dataclasses.field(default_factory=list)
    """Sums since the last line of the log, as `Interval.state` gives them."""
    lowest_loss: float | None = None
    """Of the intervals so far."""
    skipped_in_row: int = 0
    """How many updates before this one were skipped, without a break."""


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the parameters; one that is shared is written once, under its first name."""
    write_weights(weights_of(model), path)


def write_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors by name."""
    with replacing(path) as temporary:
        _write(weights, temporary)


def load_weights(model: nn.Module, path: Path) -> None:
    """Read what `save_weights` wrote into a model of the same shape; `RunError` if it does not fit."""
    _read_into(weights_of(model), path)


def mean_of_weights(files: Sequence[Path], current: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The mean of what `save_weights` wrote to several files and, if given, of the `current` weights; on the CPU.

    Vaswani et al. 2017, section 6.1, translate with such a mean of their last checkpoints. It is made one tensor after
    another, so that no file is ever held whole; summed in fp64, so that it is rounded once. Raises `RunError` for files
    that do not hold the same weights.
    """
    means = {}
    with contextlib.ExitStack() as stack:
        opened = {path: stack.enter_context(_open(path)) for path in files}
        shapes = None if current is None else {name: tuple(value.shape) for name, value in current.items()}
        for path, file in opened.items():
            of_file = {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
            shapes = shapes or of_file
            _check_alike(path, of_file, shapes)
        checksums = {path: _Checksum() for path in files}
        for name, shape in sorted((shapes or {}).items()):
            total = torch.zeros(shape, dtype=torch.float64)
            for path, file in opened.items():
                value = file.get_tensor(name)
                checksums[path].add(name, value)
                total += value
            if current is not None:
                total += current[name].cpu()
            means[name] = (total / (len(files) + (current is not None))).float()
        for path, file in opened.items():
            checksums[path].check(path, _stated_sum(file))
    return means


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    progress: Progress,
    average: Mapping[str, Tensor] | None = None,
) -> None:
    """Write all that a resume needs to `folder`, whole or not at all; `average` is that of the weights by now."""
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
        write_bytes(temporary / "progress.json", _described(progress, scaler, files))


def replace_progress(folder: Path, progress: Progress, scaler: torch.amp.GradScaler) -> None:
    """Write again how far a training is that has saved the same weights at the same step to `folder`."""
    with replacing(folder / "progress.json") as temporary:
        write_bytes(temporary, _described(progress, scaler, _description(folder).files))


def _described(progress: Progress, scaler: torch.amp.GradScaler, files: dict[str, Any]) -> bytes:
    """The content of a progress.json, its own checksum included."""
    content = {
        "format": FORMAT,
        "progress": dataclasses.asdict(progress),
        "scaler": scaler.state_dict(),
        "files": files,
    }
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
    """Bring model, optimizer, loss scale and `average`, if there is one, back to where `folder` was saved.

    Raises `RunError` if one of its files is missing, damaged or not this model's.
    """
    description = _description(folder)
    load_weights(model, folder / "model.safetensors")
    if average is not None:
        _read_into(average, folder / "average.safetensors")
    state = _read(folder / "state.safetensors")
    for name, parameter in model.named_parameters():
        prefix = f"optimizer.{name}."
        of_parameter = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {
            # Only a fused optimizer counts on the device: another would wait there for each count that it reads.
            key: value if key == "step" and not optimizer.defaults["fused"] else value.to(parameter.device)
            for key, value in of_parameter.items()
        }
    scaler.load_state_dict(description.scaler)
    return description.progress


def check_checkpoint(folder: Path) -> Progress:
    """How far the training was when a checkpoint was saved; reads all of its files.

    `RunError`, naming the one, if it does not hold what was written, or another version wrote it.
    """
    description = _description(folder)
    for name, described in description.files.items():
        path = folder / name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error.strerror}") from None
        if size != described["size"]:
            raise RunError(f"{path}: damaged: it has {size:,} bytes instead of {described['size']:,}")
        checksum = _Checksum()
        with _open(path) as file:
            for tensor in sorted(file.keys()):
                checksum.add(tensor, file.get_tensor(tensor))
        checksum.check(path, described["sha256"])
    return description.progress


@dataclasses.dataclass(frozen=True)
class _Description:
    """What a progress.json holds."""

    progress: Progress
    scaler: dict[str, Any]
    files: dict[str, dict[str, Any]]


def _description(folder: Path) -> _Description:
    path = folder / "progress.json"
    content = read_json(path)
    checksum = content.pop("sha256", None) if isinstance(content, dict) else None
    if checksum is None:
        raise RunError(f"{path}: damaged, or saved by an earlier version of nmt, which alone can go on from it")
    if checksum != _sum_of_json(content):
        raise RunError(f"{path}: damaged: it does not hold what was written")
    if content.pop("format", None) != FORMAT:
        raise RunError(f"{path}: saved by another version of nmt, which alone can go on from it")
    try:
        description = _Description(Progress(**content.pop("progress")), **content)
        files = description.files.items()
        is_inside = all(Path(name).name == name and of["size"] and of["sha256"] for name, of in files)
    except (AttributeError, KeyError, TypeError):
        is_inside = False
    if not is_inside:
        raise RunError(f"{path}: does not describe a checkpoint")
    return description


def checkpoint_steps(checkpoints: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    return sorted(int(path.name) for path in checkpoints.glob("*") if path.name.isascii() and path.name.isdecimal())


def retain(checkpoints: Path, last: int, others: Collection[int]) -> None:
    """Remove all but the `last` newest checkpoints and those of the steps `others`."""
    for step in checkpoint_steps(checkpoints)[:-last]:
        if step not in others:
            shutil.rmtree(checkpoints / str(step))


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name, as the files hold them: one that is shared has its first name alone."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _read_into(weights: Mapping[str, Tensor], path: Path) -> None:
    stored = _read(path)
    _check_alike(path, *({name: tuple(value.shape) for name, value in part.items()} for part in (stored, weights)))
    for name, value in weights.items():
        value.copy_(stored[name])


def _check_alike(path: Path, found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    unlike = sorted(found.keys() ^ wanted.keys()) or [name for name in wanted if wanted[name] != found[name]]
    if unlike:
        raise RunError(f"{path}: not the weights of this model: {unlike[0]} does not fit")


class _Checksum:
    """SHA-256 of tensors: of each one's name, type, shape and bytes, in the order of the names."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, name: str, tensor: Tensor) -> None:
        """Take in the next one."""
        flat = tensor.detach().cpu().contiguous().flatten()
        self._digest.update(f"{name} {flat.dtype} {tuple(tensor.shape)}\n".encode())
        self._digest.update(flat.view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def check(self, path: Path, stated: str | None) -> None:
        """`RunError` if the file of these tensors is stated to hold others."""
        if stated is not None and stated != self.hexdigest():
            raise RunError(f"{path}: damaged: it does not hold what was written")


def _write(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """Write a file of tensors, its checksum in its header; returns what progress.json says of it."""
    checksum = _Checksum()
    for name in sorted(tensors):
        checksum.add(name, tensors[name])
    metadata = {"sha256": checksum.hexdigest()}  # one alone: several would come in an order of their own each time
    data = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, metadata=metadata)
    write_bytes(path, data)
    return {"size": len(data), **metadata}


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    """A file of tensors, to be read one by one."""
    try:
        with path.open("rb") as start:
            header_bytes = int.from_bytes(start.read(8), "little")
        if header_bytes > MAX_HEADER_BYTES:  # it would be read whole, and take ten times as much memory
            raise RunError(f"{path}: cannot be read as safetensors: a header of {header_bytes:,} bytes")
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read as safetensors: {error}") from None


def _read(path: Path) -> dict[str, Tensor]:
    tensors, checksum = {}, _Checksum()
    with _open(path) as file:
        for name in sorted(file.keys()):
            tensors[name] = file.get_tensor(name)
            checksum.add(name, tensors[name])
        checksum.check(path, _stated_sum(file))
    return tensors


def _stated_sum(file: Any) -> str | None:
    """What an open file of tensors says is their checksum; one that another program wrote says nothing."""
    return (file.metadata() or {}).get("sha256")


def check_weights(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """`RunError` if the file does not hold weights of these shapes; its header alone is read.

    So a configuration and a file that do not belong together are detected before memory is taken for either.
    """
    with _open(path) as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
    _check_alike(path, found, shapes)
