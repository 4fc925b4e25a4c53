"""Weights and training state on disk: safetensors and JSON, nothing that is unpickled."""

import dataclasses
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nmt.errors import RunError
from nmt.runs import read_json, replacing, write_json


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
    corpus_key: str = ""
    """The encoded corpus that the plan is made for."""


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the parameters; one that is shared is written once, under its first name."""
    with replacing(path) as temporary:
        save_file(_weights(model), temporary, metadata={"format": "pt"})


def load_weights(model: nn.Module, path: Path) -> None:
    """Read what `save_weights` wrote into a model of the same shape; `RunError` if it does not fit."""
    stored = _read(path)
    parameters = dict(model.named_parameters())
    unlike = sorted(stored.keys() ^ parameters.keys()) or [
        name for name, parameter in parameters.items() if parameter.shape != stored[name].shape
    ]
    if unlike:
        raise RunError(f"{path}: not the weights of this model: {unlike[0]} does not fit")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(stored[name])


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    progress: Progress,
) -> None:
    """Write all that a resume needs to `folder`, whole or not at all."""
    state = {
        f"optimizer.{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    with replacing(folder) as temporary:
        temporary.mkdir(parents=True)
        save_file(_weights(model), temporary / "model.safetensors", metadata={"format": "pt"})
        save_file(state, temporary / "state.safetensors")
        write_json(
            temporary / "progress.json",
            {"progress": dataclasses.asdict(progress), "scaler": scaler.state_dict()},
        )


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> Progress:
    """Bring model, optimizer and loss scale back to where `folder` was saved."""
    load_weights(model, folder / "model.safetensors")
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


def retain(checkpoints: Path, last: int, best_step: int) -> None:
    """Remove all but the `last` newest checkpoints and the best one."""
    for step in checkpoint_steps(checkpoints)[:-last]:
        if step != best_step:
            shutil.rmtree(checkpoints / str(step))


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read as safetensors: {error}") from None
