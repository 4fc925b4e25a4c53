"""The speed of a training, by real updates on this machine before it starts."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from nmt.config.corpus import HeldOutFiles, TrainingFiles
from nmt.config.data import CleaningConfig
from nmt.config.training import Config
from nmt.runs.folder import RunFolder
from nmt.system.devices import bf16_slowdown, configure_process
from nmt.training.monitor import Monitor
from nmt.training.preparation import TrainingInputs, prepare
from nmt.training.trainer import Trainer

SECONDS = 20.0
MIN_GAIN = 1.2  # of bf16 over fp32; less may be chance


class Speed(NamedTuple):
    """The measured speed of updates."""

    seconds: float
    """Mean time of an update."""
    device: str
    precision: str
    """`bf16` if that is clearly faster on this CPU than fp32, otherwise `auto`."""
    gain: float
    """The speed of this precision relative to fp32; 1.0 with `auto`."""
    pairs: float
    """Mean number of pairs in an update."""


def time_updates(config: Config, sample: Sequence[tuple[str, str]]) -> Speed:
    """Train on some pairs for about `SECONDS`, preparation included, in a folder that is removed at the end.

    The vocabulary is built from these pairs alone; `VocabularyError` if they do not allow its size, and `TrainingError`
    if memory runs out.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="nmt-trial-") as folder, contextlib.chdir(folder):
        run = RunFolder(Path("runs/trial"))
        run.path.mkdir(parents=True)
        trial = _with_text(config, sample, Path(folder))
        if config.training.threads:
            torch.set_num_threads(config.training.threads)
        configure_process()
        prepared = prepare(trial, run, resuming=False)
        dtypes = [prepared.dtype]
        if prepared.device.type == "cpu":
            # Where a matrix product is not faster in bf16, no update is, and one may take ten times as long.
            dtypes = [torch.float32, *([torch.bfloat16] if bf16_slowdown() < 1 else [])]
        left = max(began + SECONDS - time.perf_counter(), 8.0) / len(dtypes)
        taken = [_seconds_of_an_update(trial, run, prepared._replace(dtype=dtype), left) for dtype in dtypes]
    gain = taken[0] / taken[-1]
    longer_sides = 1 + np.maximum(prepared.corpus.src.lengths, prepared.corpus.tgt.lengths)
    settings = config.training
    pairs = settings.micro_batch_tokens * settings.batches_per_update / float(longer_sides.mean())
    if gain < MIN_GAIN:
        return Speed(taken[0], str(prepared.device), "auto", 1.0, pairs)
    return Speed(taken[-1], str(prepared.device), "bf16", gain, pairs)


def _seconds_of_an_update(config: Config, run: RunFolder, prepared: TrainingInputs, seconds: float) -> float:
    """Train for about this time, two updates at least, without validations, logs and checkpoints."""
    trainer = Trainer(config, run, prepared, Monitor(run.metrics_file, silent=True))
    trainer.model.train()
    trainer.capture_graph()
    taken: list[float] = []
    began = start = time.perf_counter()
    for share, num_tokens in trainer.updates():
        trainer.update(share, num_tokens)
        trainer.interval.read()  # waits for the device
        taken.append(time.perf_counter() - start)
        start = time.perf_counter()
        if len(taken) > 1 and start > began + seconds:
            break
    trainer.monitor.close()
    return statistics.fmean(taken[2:] or taken[-1:])  # the first ones allocate memory


def _with_text(config: Config, pairs: Sequence[tuple[str, str]], folder: Path) -> Config:
    """The configuration with this text for training, and its first pairs for validation."""
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
