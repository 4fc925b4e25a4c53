"""Where a training begins: anew, or at the newest checkpoint that is whole; and what may be different by then."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from nmt.atomic import rename
from nmt.checkpoint import Progress, check_checkpoint, checkpoint_steps
from nmt.config.training import Config, TrainingConfig
from nmt.device import choose_device
from nmt.errors import ConfigError, RunError
from nmt.processes import cores_to_use
from nmt.runs import RunFolder
from nmt.training.memory import recorded_batch_size
from nmt.training.sharing import shared
from nmt.training.stopping import reached

# What a resumed run may change: nothing that the weights so far, or the moving average of them, hang on.
FREE_TO_CHANGE = {
    "data": {"train", "validation", "test"},  # where the text lies; that it is the same text is checked apart
    "training": {
        "max_steps", "max_epochs", "max_minutes", "device", "threads", "compile", "validate_every", "log_every",
        "save_every_minutes", "max_skipped_updates", "patience", "keep_checkpoints", "average_last", "processes",
        "batch_parts", "restart_schedule",
    },
    "decoding": {"*"},
    "evaluation": {"metrics", "validation_beam_size"},  # of two tokenizers, no BLEU is the better one
}  # fmt: skip


# What sums are made in another order by: the weights differ in their last bits then.
AFFECTS_ROUNDING = ("training.processes", "training.batch_parts", "training.threads", "training.device")


def starting_step(
    config: Config, run: RunFolder, mode: str, say: Callable[[str], None], num_processes: int = 1
) -> int | None:
    """The step of the checkpoint to go on from, 0 for a new run, None for one that is finished.

    A checkpoint that is damaged is named and renamed, and the one before it taken. Raises `RunError` if the run
    cannot go on with `config`, or there is none to go on with and `mode` is `resume`.
    """
    steps = checkpoint_steps(run.checkpoints)
    if mode == "resume" and not steps:
        raise RunError(f"{run.path}: nothing to resume; leave --resume out to start")
    if not steps:
        if run.model_file.exists() and not run.metrics_file.exists():  # an average, or a copy
            raise RunError(
                f"{run.path}: holds a model and no training to go on with, and a new one would replace the model; "
                f"{restart_hint(run)}"
            )
        if start := config.training.schedule_start:
            raise ConfigError(
                f"training.schedule_start ({start}): nmt writes it for a run whose schedule was restarted, and a new "
                f"run has none; leave it out"
            )
        run.remove_leftovers()
        return 0
    old = run.config()
    changed = check_same(old, resolve_processes(with_recorded_settings(config, run), num_processes), run)
    if old.training.ends_at_max_steps and not config.training.restart_schedule:
        _check_max_steps(old.training, config.training, run)
    progress = _newest_whole(run, steps, say)
    if _is_restarted(old.training, config.training):
        changed.append(_restart(config.training, progress.step, run))
    limit = reached(progress, config.training)
    if limit and progress.validated_step == progress.step:
        run.remember_as_latest()
        say(
            f"{run.path}: this run is finished ({limit.reason}); to go on: the same command with {limit.to_continue}; "
            f"to start over: with --fresh, which sets this run aside"
        )
        return None
    for line in changed:
        say(f"changed: {line}")
    if any(line.startswith(AFFECTS_ROUNDING) for line in changed):
        say("the training is the same; its weights will differ in their last bits from those it would have had")
    run.remove_leftovers()
    return progress.step


def _newest_whole(run: RunFolder, steps: list[int], say: Callable[[str], None]) -> Progress:
    """That of the newest checkpoint that holds what was written."""
    damages = []
    for step in reversed(steps):
        try:
            progress = check_checkpoint(run.checkpoints / str(step))
        except RunError as error:
            damages.append(str(error))
            continue
        for damaged, damage in zip(reversed(steps), damages, strict=False):
            aside = _free(run.checkpoints / f"{damaged}.damaged")
            say(f"{damage}; going on from the checkpoint before it, and this one is {aside} now")
            rename(run.checkpoints / str(damaged), aside)
        return progress
    raise RunError("\n".join([f"{run.path}: no checkpoint can be gone on from; {restart_hint(run)}", *damages]))


def _free(path: Path) -> Path:
    """The path, or with the first number behind it that makes it one that is not there: `12.damaged2`."""
    number = 1
    while os.path.lexists(free := path if number == 1 else path.with_name(f"{path.name}{number}")):
        number += 1
    return free


def with_recorded_settings(config: Config, run: RunFolder, step: int | None = None) -> Config:
    """`config` with what the run's own config.yaml has recorded.

    That is what `training.batch_tokens` and `batch_parts` were found to be when the run was begun, and where its
    schedule was restarted: at `step`, from which it is resumed, if `config` restarts it, and never later than that.
    """
    old, settings = run.config().training, config.training
    start = settings.schedule_start or old.schedule_start
    if step is not None:
        start = step if _is_restarted(old, settings) else min(start, step)
    if settings.batch_tokens == "auto":
        settings = recorded_batch_size(settings, old)
    if settings.batch_parts == "auto":
        settings = settings.model_copy(update={"batch_parts": old.batch_parts})
    return config.model_copy(update={"training": settings.model_copy(update={"schedule_start": start})})


def _is_restarted(old: TrainingConfig, new: TrainingConfig) -> bool:
    """Whether a run of `old` starts its schedule again when it is resumed with `new`."""
    return new.restart_schedule and new.max_steps != old.max_steps


def _check_max_steps(old: TrainingConfig, new: TrainingConfig, run: RunFolder) -> None:
    if old.max_steps != new.max_steps:
        raise RunError(
            f"{run.path}: training.max_steps: {old.max_steps}, not {new.max_steps}: under training.schedule: "
            f"{old.schedule} the learning rate of every update so far depends on it; set it back, or add --set "
            f"training.restart_schedule=true: warm-up and decay then run again, from here to training.max_steps"
        )


def _restart(settings: TrainingConfig, step: int, run: RunFolder) -> str:
    """What a schedule that is restarted at `step` does; `RunError` if it has no time to."""
    assert settings.max_steps is not None, "checked by TrainingConfig"
    added = max(0, settings.max_steps - step)
    if added <= settings.warmup_steps:
        raise RunError(
            f"{run.path}: training.restart_schedule: the {added:,} updates from step {step:,} to training.max_steps "
            f"({settings.max_steps}) must be more than training.warmup_steps ({settings.warmup_steps}); raise max_steps"
        )
    return (
        f"the learning rate starts again at step {step:,}: a warm-up of {settings.warmup_steps:,} updates, then "
        f"{settings.schedule} to step {settings.max_steps:,}"
    )


def resolve_processes(config: Config, num_processes: int) -> Config:
    """`config` with the processes, their shares and their threads in numbers, for so many processes.

    `ConfigError` if an update is too small for them.
    """
    settings = shared(config.training, num_processes)
    with contextlib.suppress(ConfigError):  # a device that is not there is reported by `prepare`
        if choose_device(settings.device).type == "cpu":
            # torch's choice does not know of a container's quota.
            threads = settings.threads or min(torch.get_num_threads(), cores_to_use())
            settings = settings.model_copy(update={"threads": threads})
    return config.model_copy(update={"training": settings})


def check_same(old: Config, new: Config, run: RunFolder) -> list[str]:
    """What is different from when a run was begun, a line each.

    `RunError` if it is to go on with settings that its weights so far were not made with.
    """
    changed, refused = [], []
    for key, of_old, of_new in _differences(old, new):
        section, _, field = key.partition(".")
        free = FREE_TO_CHANGE.get(section, set())
        if free & {field, "*"}:
            changed.append(f"{key}: {of_old} -> {of_new}")
        else:
            refused.append(f"{key}: {of_old}, not {of_new}")
    if refused:
        raise RunError(
            "\n  ".join([f"{run.path}: this run was begun with other settings, which its weights hang on:", *refused])
            + f"\nset them back, or {restart_hint(run)}"
        )
    return changed


def _differences(old: Config, new: Config) -> Iterator[tuple[str, object, object]]:
    """Key, old and new value of all that differs."""
    asked = new.model_dump(mode="json")
    for section, fields in old.model_dump(mode="json").items():
        for field, old_value in fields.items():
            if old_value != asked[section][field]:
                yield f"{section}.{field}", old_value, asked[section][field]
    weights = [[files.weight for files in config.data.train] for config in (old, new)]
    if weights[0] != weights[1]:
        before, now = (", ".join(f"{weight:g}" for weight in of_one) for of_one in weights)
        yield "data.train.weight", before, now


def restart_hint(run: RunFolder) -> str:
    """The two ways to train with other settings, or on other text, without losing a run."""
    number = 2
    while run.path.with_name(f"{run.name}-{number}").exists():
        number += 1
    return (
        f"train beside this run: the same command with --name {run.name}-{number}; or start over: with --fresh, which "
        f"sets this run aside and deletes nothing"
    )
