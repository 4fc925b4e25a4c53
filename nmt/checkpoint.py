"""Weights and training state on disk: safetensors and JSON, nothing that is unpickled."""

import contextlib
import dataclasses
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nmt.errors import RunError
from nmt.runs import read_json, replacing, write_json

MOST_HEADER_BYTES = 1 << 24  # of a file of tensors: a hundred thousand of them


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
    corpus_key: str = ""
    """The encoded corpus that the plan is made for."""


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the parameters; one that is shared is written once, under its first name."""
    write_weights(weights_of(model), path)


def write_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors by name."""
    with replacing(path) as temporary:
        save_file(dict(weights), temporary, metadata={"format": "pt"})


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
        for name, shape in (shapes or {}).items():
            total = torch.zeros(shape, dtype=torch.float64)
            for file in opened.values():
                total += file.get_tensor(name)
            if current is not None:
                total += current[name].cpu()
            means[name] = (total / (len(files) + (current is not None))).float()
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
    with replacing(folder) as temporary:
        temporary.mkdir(parents=True)
        save_file(weights_of(model), temporary / "model.safetensors", metadata={"format": "pt"})
        save_file(state, temporary / "state.safetensors")
        if average is not None:
            save_file(dict(average), temporary / "average.safetensors", metadata={"format": "pt"})
        write_json(
            temporary / "progress.json",
            {"progress": dataclasses.asdict(progress), "scaler": scaler.state_dict()},
        )


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    average: Mapping[str, Tensor] | None = None,
) -> Progress:
    """Bring model, optimizer, loss scale and `average`, if there is one, back to where `folder` was saved."""
    load_weights(model, folder / "model.safetensors")
    if average is not None:
        _read_into(average, folder / "average.safetensors")
    state = _read(folder / "state.safetensors")
    for name, parameter in model.named_parameters():
        prefix = f"optimizer.{name}."
        optimizer.state[parameter] = {
            key.removeprefix(prefix): value.to(parameter.device)
            for key, value in state.items()
            if key.startswith(prefix)
        }
    scaler.load_state_dict(read_json(folder / "progress.json")["scaler"])
    return read_progress(folder)


def read_progress(folder: Path) -> Progress:
    """How far the training was when a checkpoint was saved."""
    return Progress(**read_json(folder / "progress.json")["progress"])


def checkpoint_steps(checkpoints: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    return sorted(int(path.name) for path in checkpoints.glob("*") if path.name.isdigit())


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


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    """A file of tensors, to be read one by one."""
    try:
        file = safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read as safetensors: {error}") from None
    with file:
        yield file


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read as safetensors: {error}") from None


def check_weights(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """`RunError` if the file does not hold weights of these shapes; its header alone is read.

    So a configuration and a file that do not belong together are told before memory is taken for either.
    """
    try:
        with path.open("rb") as start:
            header_bytes = int.from_bytes(start.read(8), "little")
        if header_bytes > MOST_HEADER_BYTES:  # it would be read whole, and take ten times as much memory
            raise RunError(f"{path}: cannot be read as safetensors: a header of {header_bytes:,} bytes")
    except OSError as error:
        raise RunError(f"{path}: cannot be read as safetensors: {error.strerror or error}") from None
    with _open(path) as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
    _check_alike(path, found, shapes)
