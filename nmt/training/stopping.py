"""The end of a training: limits, signals, full disks and exhausted memory."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

from nmt.config.training import TrainingConfig
from nmt.errors import InterruptedTrainingError, NmtError, TrainingError, is_out_of_memory
from nmt.runs.folder import RunFolder
from nmt.runs.history import Progress
from nmt.system.processes import SIGNALS


class Limit(NamedTuple):
    """A limit that a training has reached."""

    reason: str
    to_continue: str
    """The options that raise the limit."""


def reached(progress: Progress, settings: TrainingConfig) -> Limit | None:
    """The first limit that is reached, if any, with the options that raise all limits that are reached."""
    limits = list(_all_reached(progress, settings))
    return Limit(limits[0].reason, " ".join(limit.to_continue for limit in limits)) if limits else None


def _all_reached(progress: Progress, settings: TrainingConfig) -> Iterator[Limit]:
    steps, epochs, minutes, patience = settings.max_steps, settings.max_epochs, settings.max_minutes, settings.patience
    if steps is not None and progress.step >= steps:
        more = f"--set training.max_steps={2 * max(steps, progress.step)}"
        yield Limit(f"training.max_steps, {steps:,}, is reached", more)
    if epochs is not None and progress.epoch >= epochs:
        more = f"--set training.max_epochs={2 * max(epochs, progress.epoch)}"
        yield Limit(f"training.max_epochs, {epochs:,}, is reached", more)
    if minutes is not None and progress.seconds >= 60 * minutes:
        more = f"--set training.max_minutes={2 * max(minutes, progress.seconds / 60):g}"
        yield Limit(f"training.max_minutes, {minutes:g}, is reached", more)
    if patience is not None and progress.validations_since_best >= patience:
        reason = f"training.patience: {patience} validations without a better {settings.best_metric}"
        yield Limit(reason, "--set training.patience=null")


def total_steps(settings: TrainingConfig, batches_an_epoch: int) -> int | None:
    """Updates until max_steps or max_epochs; None if neither is set."""
    updates_an_epoch = -(-batches_an_epoch // settings.batches_per_update)
    limits = [settings.max_steps, settings.max_epochs and settings.max_epochs * updates_an_epoch]
    return min((limit for limit in limits if limit), default=None)


def seconds_left(
    progress: Progress, settings: TrainingConfig, batches_an_epoch: int, seconds_per_update: float
) -> float:
    """Time until the nearest limit, not counting early stopping."""
    candidates = []
    if (total := total_steps(settings, batches_an_epoch)) is not None:
        candidates.append((total - progress.step) * seconds_per_update)
    if settings.max_minutes is not None:
        candidates.append(60 * settings.max_minutes - progress.seconds)
    return max(0.0, min(candidates))


class Stopped(BaseException):
    """A signal before or inside an `ending_the_block`."""


class Signals:
    """Received SIGINT, SIGTERM and SIGHUP (a closed terminal), collected so that the update is completed and saved."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._ends_block = False

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Collect signals during the block; a second one ends the program at once.

        An ignored signal (SIGHUP under nohup) stays ignored.
        """
        handlers: dict[signal.Signals, Any] = {}

        def receive(number: int, frame: FrameType | None) -> None:
            self.received.append(number)
            for name, handler in handlers.items():
                signal.signal(name, handler)
            if self._ends_block:
                raise Stopped

        for name in SIGNALS:
            if signal.getsignal(name) != signal.SIG_IGN:
                handlers[name] = signal.signal(name, receive)
        try:
            yield
        finally:
            for name, handler in handlers.items():
                signal.signal(name, handler)

    @contextlib.contextmanager
    def ending_the_block(self) -> Iterator[None]:
        """Let a signal before or in the block raise `Stopped`; for a long block without side effects."""
        self._ends_block = True
        try:
            if self.received:
                raise Stopped
            yield
        finally:
            self._ends_block = False


def interruption(number: int, step: int, run: RunFolder) -> InterruptedTrainingError:
    """The error that ends a training after a signal, when its checkpoint is saved."""
    return InterruptedTrainingError(
        f"stopped by {signal.Signals(number).name} at step {step:,}; saved in {run.path}, "
        f"and the same command resumes from there",
        number,
    )


@contextlib.contextmanager
def plain_messages(run: RunFolder) -> Iterator[None]:
    """Turn a failed write or exhausted memory, which leave the last checkpoint intact, into one message."""
    hint = f"{run.path} is intact, and the same command resumes from its last checkpoint"
    try:
        yield
    except (NmtError, ConnectionError):
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else f"{run.path}: "
        raise TrainingError(
            f"{where}cannot be written: {error.strerror or error}; free disk space, or make the folder writable; {hint}"
        ) from None
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"out of memory; lower training.batch_tokens ({error}); {hint}") from None
