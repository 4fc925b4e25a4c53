"""When a training ends, and how long that is."""

from nmt.checkpoint import Progress
from nmt.config import TrainingConfig


def stop_reason(progress: Progress, settings: TrainingConfig) -> str:
    """Which limit a training has reached, or ''."""
    if settings.max_steps is not None and progress.step >= settings.max_steps:
        return f"training.max_steps, {settings.max_steps:,}, is reached"
    if settings.max_epochs is not None and progress.epoch >= settings.max_epochs:
        return f"training.max_epochs, {settings.max_epochs:,}, is reached"
    if settings.max_minutes is not None and progress.seconds >= 60 * settings.max_minutes:
        return f"training.max_minutes, {settings.max_minutes:g}, is reached"
    if settings.patience is not None and progress.validations_since_best >= settings.patience:
        return f"training.patience: {settings.patience} validations without a better {settings.best_metric}"
    return ""


def to_go_on(progress: Progress, settings: TrainingConfig) -> str:
    """The option by which a training that has reached a limit goes on."""
    if settings.max_steps is not None and progress.step >= settings.max_steps:
        return f"--set training.max_steps={2 * settings.max_steps}"
    if settings.max_epochs is not None and progress.epoch >= settings.max_epochs:
        return f"--set training.max_epochs={2 * settings.max_epochs}"
    if settings.max_minutes is not None and progress.seconds >= 60 * settings.max_minutes:
        return f"--set training.max_minutes={2 * settings.max_minutes:g}"
    return "--set training.patience=null"


def total_steps(settings: TrainingConfig, batches_an_epoch: int) -> int | None:
    """Updates until max_steps or max_epochs; None if neither is set."""
    updates_an_epoch = -(-batches_an_epoch // settings.batches_per_update)
    limits = [settings.max_steps, settings.max_epochs and settings.max_epochs * updates_an_epoch]
    return min((limit for limit in limits if limit), default=None)


def seconds_left(
    progress: Progress, settings: TrainingConfig, batches_an_epoch: int, seconds_per_update: float
) -> float:
    """Time until the nearest limit, early stopping aside."""
    candidates = []
    if (total := total_steps(settings, batches_an_epoch)) is not None:
        candidates.append((total - progress.step) * seconds_per_update)
    if settings.max_minutes is not None:
        candidates.append(60 * settings.max_minutes - progress.seconds)
    return max(0.0, min(candidates))
