"""Detection of divergence: skipped updates, an exploding loss, and a diagnosis for finding the cause."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmt.batches.dataset import EncodedCorpus
from nmt.config.formats import pairs_format
from nmt.config.training import Config
from nmt.corpora.pairs import places_of
from nmt.errors import TrainingError
from nmt.runs.folder import RunFolder
from nmt.runs.history import Progress
from nmt.runs.weights import weights_of
from nmt.system.distributed import Ranks
from nmt.system.files import write_json
from nmt.training.resuming import restart_hint

MAX_SKIPPED = 20  # consecutive updates whose gradients are not finite
MAX_LINES_SHOWN = 10


class Skipped(NamedTuple):
    """An update that was skipped because its gradient was not finite."""

    step: int
    lines: dict[str, list[int]]
    """For each source file, the lines of the update's pairs."""

    def __str__(self) -> str:
        return f"step {self.step:,}: skipped, its gradient is not finite; its pairs: {listed(self.lines)}"


class DivergenceDetector:
    """A detector of skipped updates and exploding losses, which waits for the device at logging intervals only."""

    def __init__(self, config: Config, corpus: EncodedCorpus, vocab_size: int, run: RunFolder, ranks: Ranks) -> None:
        self._config = config
        self._run = run
        self._ranks = ranks
        self._corpus = corpus
        # An untrained model's loss is ln(vocab_size) nats a token; an increase by half as much is no fluctuation.
        self._max_increase = math.log(vocab_size) / 2
        self._updates: list[tuple[int, Sequence[NDArray[np.integer]], Tensor]] = []

    def add(self, step: int, pairs: Sequence[NDArray[np.integer]], norm: Tensor) -> None:
        """Record an update's pairs and, without waiting for the device, whether its gradient was finite."""
        self._updates.append((step, pairs, norm.isfinite()))

    def skipped(self, progress: Progress) -> list[Skipped]:
        """The skipped updates since the last call; also counts consecutive ones in `progress`."""
        if not self._updates:
            return []
        finite = torch.stack([flag for _, _, flag in self._updates]).tolist()
        skipped = []
        for (step, pairs, _), is_finite in zip(self._updates, finite, strict=True):
            progress.skipped_in_row = 0 if is_finite else progress.skipped_in_row + 1
            if not is_finite:
                skipped.append(Skipped(step, self.lines(pairs)))
        self._updates.clear()
        return skipped

    def verdict(self, progress: Progress, figures: Mapping[str, Any]) -> str:
        """The reason to stop after an interval, or ''; `figures` are those of `IntervalSums.read`."""
        if progress.skipped_in_row >= MAX_SKIPPED:
            return f"the gradients of the last {progress.skipped_in_row:,} updates are not finite"
        if figures["skipped_updates"] == figures["updates"]:
            return ""
        loss, lowest = figures["loss"], progress.lowest_loss
        if lowest is not None and not loss <= lowest + self._max_increase:
            return f"the loss has exploded: {loss:.2f}, where it was {lowest:.2f} before"
        progress.lowest_loss = loss if lowest is None else min(loss, lowest)
        return ""

    def stop(self, reason: str, step: int, model: nn.Module) -> NoReturn:
        """Write a diagnosis and end the training with a `TrainingError`; the last checkpoint is kept."""
        run, settings = self._run, self._config.training
        if self._ranks.is_main:
            write_json(run.diagnosis_file, _diagnosis(reason, step, model))
        raise TrainingError(
            f"{reason}, at step {step:,}; {run.diagnosis_file} holds figures of the weights, {run.metrics_file} "
            f"the losses and the lines of skipped updates, and the last checkpoint is kept. If the training has "
            f"diverged, lower training.learning_rate ({settings.learning_rate:g}) or raise training.warmup_steps "
            f"({settings.warmup_steps}), and {restart_hint(run)}"
        )

    def lines(self, pairs: Sequence[NDArray[np.integer]]) -> dict[str, list[int]]:
        """The line numbers of pairs, by source file; they are the same in the target file. In a TMX, units count."""
        numbers = self._corpus.line_numbers(np.concatenate(pairs))
        corpora = {corpus: self._config.data.train[corpus] for corpus in numbers}
        return {str(files.src_file): places_of(files, numbers[corpus]) for corpus, files in corpora.items()}


def listed(lines: Mapping[str, Sequence[int]]) -> str:
    """Line numbers as text, the first few of each file.

    >>> listed({"train.en": [3, 7]})
    'train.en: lines 3, 7'
    """
    units = {path: "units" if pairs_format(Path(path)) == "tmx" else "lines" for path in lines}
    return "; ".join(
        f"{path}: {units[path]} {', '.join(map(str, numbers[:MAX_LINES_SHOWN]))}"
        + (f" and {len(numbers) - MAX_LINES_SHOWN:,} more" if len(numbers) > MAX_LINES_SHOWN else "")
        for path, numbers in lines.items()
    )


def _diagnosis(reason: str, step: int, model: nn.Module) -> dict[str, Any]:
    """JSON for finding the cause: statistics of the weights; metrics.jsonl has the losses and the skipped lines."""
    weights = {
        name: {
            "largest": value.where(value.isfinite(), 0).abs().max().item(),
            "not_finite": int((~value.isfinite()).sum()),
            "size": value.numel(),
        }
        for name, value in weights_of(model).items()
    }
    return {"reason": reason, "step": step, "weights": weights}
