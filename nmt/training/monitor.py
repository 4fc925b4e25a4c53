"""Reports of a training: a progress bar or log lines, metrics.jsonl, and TensorBoard."""

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from nmt.runs.folder import RunFolder
from nmt.runs.history import Example, Progress, duration, in_words
from nmt.system.console import RESULT, log, progress_bar, show_fields
from nmt.system.distributed import ALONE, Ranks
from nmt.system.files import append, flush_one, write_text
from nmt.training.divergence import Skipped


class Monitor:
    """The output of a training: standard error for people, metrics.jsonl for programs, and figures for TensorBoard.

    Standard error gets a progress bar on a terminal, and a line an interval elsewhere. A silent monitor writes no
    files and shows no bar: of several processes, only one reports.
    """

    def __init__(self, metrics_file: Path, silent: bool = False, tensorboard: Path | None = None) -> None:
        self._metrics_file = metrics_file
        self._silent = silent
        self._tensorboard = tensorboard
        self._writer: Any = None
        self._bar: tqdm[Any] | None = None

    def start(self, step: int, total_steps: int | None) -> None:
        """Begin at `step` of `total_steps` (None: unknown); records of later steps are removed from metrics.jsonl.

        With -1, also those of step 0.
        """
        if self._silent:
            return
        self._metrics_file.touch()  # also marks that a training has begun here
        lines = self._metrics_file.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _step_of(line) <= step]
        if len(kept) != len(lines):
            write_text(self._metrics_file, "".join(line + "\n" for line in kept))
        if self._tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            # TensorBoard then ignores later steps of an earlier training.
            self._writer = SummaryWriter(str(self._tensorboard), purge_step=step + 1)
        shape = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{remaining} left{postfix}]" if total_steps else None
        self._bar = progress_bar(initial=max(0, step), total=total_steps, unit=" steps", bar_format=shape)

    def advance(self) -> None:
        """Count an update."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.update()

    def interval(
        self,
        progress: Progress,
        figures: Mapping[str, Any],
        learning_rate: float,
        total_steps: int | None,
        seconds_left: float,
    ) -> None:
        """Log an interval's `figures`, as `IntervalSums.read` returns them."""
        record = {
            "step": progress.step,
            "epoch": progress.current_epoch,
            **figures,
            "learning_rate": learning_rate,
            "seconds": progress.seconds,
            "total_steps": total_steps,
            "seconds_left": seconds_left,
        }
        self._append({"kind": "train", **record})
        loss = "loss -" if figures["loss"] is None else f"loss {figures['loss']:.3f}"
        rate, speed = f"lr {learning_rate:.2e}", f"tokens/s {figures['tgt_tokens_per_second']:,.0f}"
        left = f"left {duration(seconds_left)}"
        if self._bar is None:
            place = f"step {progress.step:,}  epoch {progress.current_epoch}"
            log.info("  ".join([place, loss, rate, speed, left]), extra=RESULT)
        else:  # with a total, the bar shows the time left
            with contextlib.suppress(OSError):
                show_fields(self._bar, [loss, speed, rate] if self._bar.total else [left, loss, speed, rate])

    def validation(self, progress: Progress, scores: Mapping[str, float], is_best: bool, example: Example) -> None:
        """Log the scores of a validation; below the best so far, also the example."""
        record = {
            "step": progress.step,
            "epoch": progress.current_epoch,
            "complete_epochs": progress.epoch,
            **scores,
            "seconds": progress.seconds,
            "validation_key": progress.validation_key,
            "example": example,
        }
        self._append({"kind": "validation", **record})
        best, style = ("  (best so far)", "bold") if is_best else ("", "")
        log.info(f"step {progress.step:,}  validation: {in_words(scores)}{best}", extra={"style": style})
        if is_best:
            side, text = ("source", example["src"]) if example["src"] else ("reference", example["reference"])
            log.info(f"  {side:11}  {text}\n  translation  {example['translation']}")

    def finished(self, reason: str, progress: Progress, metric: str | None, run: RunFolder) -> None:
        """Log the end of a training; `metric` chose its model, the one of the last step if it is None."""
        step, seconds = progress.best_step, duration(progress.seconds)
        best = f"best {metric} {progress.best_values[metric]:.3f} at step" if metric else "the weights of step"
        message = f"finished: {reason}; {best} {step:,}; {seconds} of training; the model is in {run.path}"
        log.info(message, extra={"style": "bold green", "link": run.path})

    def skipped(self, skipped: Skipped, is_usual: bool) -> None:
        """Log a skipped update; not printed where this `is_usual` (fp16 finds its loss scale this way)."""
        self._append({"kind": "skipped", **skipped._asdict()})
        if not is_usual:
            log.warning(skipped)

    def flush(self) -> None:
        """Flush the records to disk, so that a checkpoint never exists without the records before it."""
        if not self._silent and self._metrics_file.exists():
            flush_one(self._metrics_file)
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the progress bar and TensorBoard's files."""
        if self._writer is not None:
            self._writer.close()
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.close()

    def _append(self, record: dict[str, Any]) -> None:
        if not self._silent:
            no_json = [key for key, value in record.items() if isinstance(value, float) and not math.isfinite(value)]
            append(self._metrics_file, json.dumps(record | dict.fromkeys(no_json)))
        for key, value in record.items() if self._writer is not None else ():
            if isinstance(value, int | float) and key != "step":
                self._writer.add_scalar(f"{record['kind']}/{key}", value, record["step"])


class IntervalSums:
    """Sums over the updates of a logging interval, kept on the device so that adding never waits for it.

    With several processes, each adds the losses of its share.
    """

    def __init__(self, device: torch.device, ranks: Ranks = ALONE) -> None:
        self._device = device
        self._ranks = ranks
        self._if_skipped = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0], device=device)
        self._reset()

    def _reset(self) -> None:
        self._sums = torch.zeros(5, device=self._device)
        self._start = time.perf_counter()
        self._tokens = 0
        self.updates = 0

    def add(self, smoothed: Tensor, cross_entropy: Tensor, norm: Tensor, tokens: int) -> None:
        """Add an update; if its gradient was not finite, it counts as skipped only.

        The losses are sums over this process's share; norm and tokens are the whole update's.
        """
        finite = norm.isfinite()
        values = torch.stack([smoothed, cross_entropy, norm, torch.full_like(norm, tokens), torch.zeros_like(norm)])
        self._sums += torch.where(finite, values, self._if_skipped)
        self._tokens += tokens
        self.updates += 1

    def exclude(self, seconds: float) -> None:
        """Exclude time that was not spent on updates."""
        self._start += seconds

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.exclude(time.perf_counter() - start)

    def seconds(self) -> float:
        """Time since the last `read`."""
        return time.perf_counter() - self._start

    def state(self) -> list[float]:
        """The sums so far over all processes, for a checkpoint within an interval."""
        smoothed, cross_entropy, *shared = self._sums.tolist()
        return [*self._ranks.sum([smoothed, cross_entropy]), *shared, self._tokens, self.updates, self.seconds()]

    def restore(self, state: Sequence[float]) -> None:
        """Continue from a result of `state`."""
        if state:
            *sums, tokens, updates, seconds = state
            if not self._ranks.is_main:
                sums[:2] = [0.0, 0.0]
            self._sums = torch.tensor(sums, device=self._device)
            self._tokens, self.updates = int(tokens), int(updates)
            self._start = time.perf_counter() - seconds

    def read(self) -> tuple[dict[str, Any], float]:
        """Figures of the interval's record, and seconds an update, since the last call; waits for all computations.

        Skipped updates are not part of the means, which are None if all were skipped.
        """
        smoothed, cross_entropy, norm, tokens, skipped = self._sums.tolist()
        smoothed, cross_entropy = self._ranks.sum([smoothed, cross_entropy])
        made = self.updates - int(skipped)
        seconds = self.seconds()
        figures = {
            "loss": cross_entropy / tokens if made else None,
            "smoothed_loss": smoothed / tokens if made else None,
            "grad_norm": norm / made if made else None,
            "updates": self.updates,
            "skipped_updates": int(skipped),
            "tgt_tokens_per_second": self._tokens / seconds,
        }
        per_update = seconds / self.updates
        self._reset()
        return figures, per_update


def _step_of(line: str) -> float:
    """The step of a record; infinity for an incomplete line, left by a kill."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
