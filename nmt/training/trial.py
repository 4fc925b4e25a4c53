"""How long a training will take: real updates on this machine, timed before it starts."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from nmt.config.cleaning import CleaningConfig
from nmt.config.corpus import HeldOutFiles, TrainingFiles
from nmt.config.training import Config
from nmt.runs.folder import RunFolder
from nmt.system.devices import bf16_slowdown, own_the_process
from nmt.training.monitor import Monitor
from nmt.training.preparation import Prepared, prepare
from nmt.training.trainer import Trainer

SECONDS = 20.0
_MUCH_FASTER = 1.2  # times as fast: less may be chance


class Speed(NamedTuple):
    """What a trial measured."""

    seconds: float
    """Of an update, in the mean."""
    device: str
    precision: str
    """`bf16` if that is much faster on this CPU than fp32, otherwise `auto`."""
    gain: float
    """How many times as fast as fp32 that is; 1.0 with `auto`."""


def time_updates(config: Config, sample: Sequence[tuple[str, str]]) -> Speed:
    """Train on some pairs for about `SECONDS`, preparation included, in a folder that is removed at the end.

    The vocabulary is built from these pairs alone; `VocabularyError` if they do not allow its size, and `TrainingError`
    if memory runs out.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="nmt-trial-") as folder, contextlib.chdir(folder):
        run = RunFolder(Path("runs/trial"))
        run.path.mkdir(parents=True)
        trial = _on(config, sample, Path(folder))
        if config.training.threads:
            torch.set_num_threads(config.training.threads)
        own_the_process()
        prepared = prepare(trial, run, resuming=False)
        dtypes = [prepared.dtype]
        if prepared.device.type == "cpu":
            # Where a matrix product is not faster in bf16, no update is, and one may take ten times as long.
            dtypes = [torch.float32, *([torch.bfloat16] if bf16_slowdown() < 1 else [])]
        left = max(began + SECONDS - time.perf_counter(), 8.0) / len(dtypes)
        taken = [_seconds_of_an_update(trial, run, prepared._replace(dtype=one), left) for one in dtypes]
    gain = taken[0] / taken[-1]
    if gain < _MUCH_FASTER:
        return Speed(taken[0], str(prepared.device), "auto", 1.0)
    return Speed(taken[-1], str(prepared.device), "bf16", gain)


def _seconds_of_an_update(config: Config, run: RunFolder, prepared: Prepared, seconds: float) -> float:
    trainer = Trainer(config, run, prepared, Monitor(run.metrics_file, silent=True))
    taken = trainer.timed_updates(seconds)
    trainer.monitor.close()
    return statistics.fmean(taken[2:] or taken[-1:])  # the first ones allocate memory


def _on(config: Config, pairs: Sequence[tuple[str, str]], folder: Path) -> Config:
    """The configuration with this text for training, and a little of it for validation."""
    for side, name in enumerate(("src", "tgt")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"train.{name}").write_bytes(text.encode())
        (folder / f"val.{name}").write_bytes("".join(f"{pair[side]}\n" for pair in pairs[:10]).encode())
    data = config.data.model_copy(
        update={
            "train": (TrainingFiles(src=folder / "train.src", tgt=folder / "train.tgt"),),
            "validation": HeldOutFiles(src=folder / "val.src", tgt=folder / "val.tgt"),
            "test": {},
            "cleaning": CleaningConfig(),
        }
    )
    return config.model_copy(update={"data": data})
