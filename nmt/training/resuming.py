"""Resuming a training from its newest complete checkpoint, and the settings that a resumed run may change."""

import contextlib
import hashlib
import json
from collections.abc import Mapping

import torch

from nmt.config.training import Config
from nmt.config.values import differences
from nmt.corpora.hashes import corpus_keys
from nmt.errors import ConfigError, DataError, RunError
from nmt.runs.folder import RunFolder, checkpoint_steps, unused
from nmt.runs.history import Progress
from nmt.runs.weights import check_checkpoint
from nmt.system.console import RESULT, log
from nmt.system.devices import choose_device
from nmt.system.files import rename
from nmt.system.processes import cores_to_use
from nmt.training.launching import shared
from nmt.training.memory import with_batches
from nmt.training.stopping import reached

# The keys that a resumed run may change: none affects the weights so far or their moving average.
FREE_TO_CHANGE = {
    "data": {"train", "exclude", "validation", "test"},  # the paths; the text is compared by its hash
    "training": {
        "max_steps", "max_epochs", "max_minutes", "device", "threads", "compile", "validate_every", "log_every",
        "save_every_minutes", "patience", "keep_checkpoints", "processes",
        "batch_parts", "monitor",
    },
    "decoding": {"*"},
    "evaluation": {"metrics", "validation_beam_size", "report"},  # not the tokenizer, which changes BLEU
    "export": {"*"},
}  # fmt: skip

# Keys that change the draws of dropout. These and keys that change the order of sums change the last bits of weights.
AFFECTS_DROPOUT = ("training.batch_parts", "training.device")
AFFECTS_ROUNDING = (*AFFECTS_DROPOUT, "training.processes", "training.threads")


def starting_step(config: Config, run: RunFolder, num_processes: int = 1) -> int | None:
    """The step of the checkpoint to resume from, 0 for a new run, None for a finished one.

    A damaged checkpoint is reported and renamed, and the one before it is used. Raises `RunError` if the run cannot be
    resumed with `config`.
    """
    steps = checkpoint_steps(run.checkpoints)
    if not steps:
        if run.model_file.exists() and not run.metrics_file.exists():  # an average or a copy
            raise RunError(
                f"{run.path}: holds a model and no training to resume, and a new training would replace the model; "
                f"{restart_hint(run)}"
            )
        run.remove_leftovers()
        return 0
    old = run.config()
    changed = check_same(old, resolve_processes(with_recorded_settings(config, run), num_processes), run)
    progress = _newest_complete(run, steps)
    with contextlib.suppress(DataError):  # `prepare` reports it, if the run is not finished
        changed += adopt_changes(progress, config, run)
    limit = reached(progress, config.training)
    if limit and progress.validated_step == progress.step:
        run.remember_as_latest()
        log.info(
            f"{run.path}: this run is finished ({limit.reason}); to train further: the same command with "
            f"{limit.to_continue}; to start over: with --fresh, which sets this run aside",
            extra=RESULT,
        )
        return None
    for line in changed:
        log.info(f"changed: {line}")
    if config.model.dropout and any(line.startswith(AFFECTS_DROPOUT) for line in changed):
        log.info(
            "the batches are the same; for other parts or another device, dropout draws others, as with another seed"
        )
    elif any(line.startswith(AFFECTS_ROUNDING) for line in changed):
        log.info("the training is the same; its weights will differ in their last bits from those it would have had")
    run.remove_leftovers()
    return progress.step


def _newest_complete(run: RunFolder, steps: list[int]) -> Progress:
    """The progress of the newest checkpoint that is not damaged."""
    damages = []
    for step in reversed(steps):
        try:
            progress = check_checkpoint(run.checkpoints / str(step))
        except RunError as error:
            damages.append(str(error))
            continue
        for damaged, damage in zip(reversed(steps), damages, strict=False):
            aside = unused(run.checkpoints / f"{damaged}.damaged")
            log.warning(f"{damage}; resuming from the checkpoint before it; this one is now {aside}")
            rename(run.checkpoints / str(damaged), aside)
        return progress
    raise RunError("\n".join([f"{run.path}: no checkpoint can be resumed; {restart_hint(run)}", *damages]))


def with_recorded_settings(config: Config, run: RunFolder) -> Config:
    """`config` with the run's recorded values where `training.batch_tokens`, `batch_parts`, `joined` are `auto`."""
    old, settings = run.config().training, config.training
    if settings.batch_tokens == "auto":
        divided = with_batches(settings, old.batches_per_update)
        if divided.batch_tokens == old.batch_tokens:  # otherwise another `update_tokens` is refused
            settings = divided
    if settings.batch_parts == "auto":
        settings = settings.model_copy(update={"batch_parts": old.batch_parts})
    if settings.joined == "auto":
        settings = settings.model_copy(update={"joined": old.joined is True})
    return config.model_copy(update={"training": settings})


def validation_key(config: Config) -> str:
    """A hash of the text and the search on which the `best_metric` of a validation depends; '' without a metric."""
    metric = config.training.best_metric
    if metric is None:
        return ""
    search = config.decoding.model_dump(mode="json", exclude={"precision", "batch_tokens"})
    search["beam_size"] = config.evaluation.validation_beam_size
    digest = hashlib.sha256(b"" if metric == "loss" else json.dumps(search).encode())
    digest.update(b"".join(corpus_keys([config.data.validation], config.source)))
    return digest.hexdigest()[:20]


def adopt_changes(progress: Progress, config: Config, run: RunFolder) -> list[str]:
    """Restart, in `progress`, what cannot be continued with `config`; returns a line for each.

    A schedule restarts if it ends at another `max_steps`, since the learning rates so far depended on it; so does the
    choice of the best model if validations have another text or search. `RunError` if too few updates are left.
    """
    settings, step, changed = config.training, progress.step, []
    if settings.schedule_end != progress.schedule_end:
        assert settings.max_steps is not None, "checked by TrainingConfig"
        added = max(0, settings.max_steps - step)
        if added <= settings.warmup_steps:
            raise RunError(
                f"{run.path}: with another training.max_steps, training.schedule: {settings.schedule} starts again; "
                f"the {added:,} updates from step {step:,} to training.max_steps ({settings.max_steps}) must be more "
                f"than training.warmup_steps ({settings.warmup_steps}); restore max_steps, or raise it"
            )
        progress.schedule_start, progress.schedule_end = step, settings.schedule_end
        changed.append(
            f"the learning rate starts again at step {step:,}: a warmup of {settings.warmup_steps:,} updates, then "
            f"{settings.schedule} to step {settings.max_steps:,}"
        )
    if (key := validation_key(config)) != progress.validation_key:
        progress.validation_key, progress.best_values, progress.validations_since_best = key, {}, 0
        kept = f"; the earlier best stays, as model.{progress.best_step}.safetensors" if progress.best_step else ""
        changed.append(f"the text or the search of validations: the best model is chosen again{kept}")
    return changed


def resolve_processes(config: Config, num_processes: int) -> Config:
    """`config` with `processes`, `batch_parts` and `threads` as numbers, for `num_processes` processes.

    `ConfigError` if an update is too small for them.
    """
    settings = shared(config.training, num_processes)
    with contextlib.suppress(ConfigError):  # `prepare` reports a missing device
        if choose_device(settings.device).type == "cpu":
            # torch's default ignores a container's quota
            threads = settings.threads or min(torch.get_num_threads(), cores_to_use())
            settings = settings.model_copy(update={"threads": threads})
    return config.model_copy(update={"training": settings})


def check_same(old: Config, new: Config, run: RunFolder) -> list[str]:
    """The settings changed since a run was started, a line each; `RunError` if they affect its weights."""
    changed, refused = [], []
    for key, old_value, new_value in differences(old, new):
        section, field, *_ = key.split(".")
        if key != "data.train.weight" and FREE_TO_CHANGE.get(section, set()) & {field, "*"}:
            changed.append(f"{key}: {old_value} -> {new_value}")
        else:
            refused.append(f"{key}: {old_value}, not {new_value}")
    if refused:
        raise RunError(
            "\n  ".join([f"{run.path}: this run was started with other settings, which affect its weights:", *refused])
            + f"\nrestore them, or {restart_hint(run)}"
        )
    return changed


def check_same_corpus(then: Mapping[str, str], now: Mapping[str, str], config: Config, run: RunFolder) -> None:
    """`RunError` if the encoded corpus has changed since a run was started."""
    words = {
        "encoding": "how nmt encodes text",
        "selection": "the pairs that data.cleaning, data.exclude and held-out text drop",
        "tokenizer": "tokenizer/",
    }
    changed = [name for name in now if now[name] != then.get(name)]
    if changed:
        paths = [path for files in config.data.train for path in (files.src_file, files.tgt_file)]
        texts = dict.fromkeys(str(paths[int(name)]) for name in changed if name.isdigit())
        raise RunError(
            f"{run.path}: {', '.join(texts or map(words.__getitem__, changed))}: changed since this run was started, "
            f"so its batches cannot be repeated; restore it, or {restart_hint(run)}"
        )


def restart_hint(run: RunFolder) -> str:
    """The ways to train with other settings or text without losing a run, as part of a message."""
    name = unused(run.path.with_name(f"{run.name}-"), 2).name
    weights = (
        f"; or start a new run from this one's weights, with its model and tokenizer: the same command with "
        f"--init-from {run.path} --name {name}"
    )
    return (
        f"train a second run: the same command with --name {name}; or start over: with --fresh, which sets this run "
        f"aside and deletes nothing{weights if run.model_file.is_file() else ''}"
    )
