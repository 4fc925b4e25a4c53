"""The start of a training, new or resumed: prepare, try everything once, train."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from nmt.cleaning.holdout import with_hold_outs
from nmt.cleaning.selection import write_examples
from nmt.config.reading import to_yaml
from nmt.config.training import Config
from nmt.corpora.tmx_cache import with_parsed_tmx
from nmt.errors import ConfigError, RunError
from nmt.runs.folder import RunFolder
from nmt.system.console import RESULT, log
from nmt.system.devices import configure_process
from nmt.system.distributed import ALONE, Ranks, is_launched
from nmt.system.files import rename, write_text
from nmt.system.processes import python_command
from nmt.training.fine_tuning import find_base, score_before
from nmt.training.launching import choose_processes, launch, shared
from nmt.training.monitor import Monitor
from nmt.training.preflight import data_warnings, rehearse
from nmt.training.preparation import announce, prepare
from nmt.training.record import record_start
from nmt.training.resuming import resolve_processes, starting_step, with_recorded_settings
from nmt.training.stopping import plain_messages
from nmt.training.trainer import Trainer


def train_in_processes(
    config: Config, run: RunFolder, fresh: bool, ranks: Ranks, dry_run: bool, arguments: Sequence[str]
) -> bool | None:
    """Train here, or in several processes, which get these arguments of the command line.

    Returns False if there was nothing to train, and None after several processes, which have also done all that
    follows a training. If they fail, this process ends with their exit code; they have printed the error.
    """
    if is_launched():
        if config.training.processes != "auto":
            raise ConfigError("training.processes: torchrun decides how many processes there are; leave it out")
    elif (count := num_processes(config, run, fresh)) > 1:
        alone = ["--set", "training.processes=auto"]  # so that none of them starts others
        command = python_command("from nmt.cli.main import main; main()", *arguments, *alone)
        if code := launch(count, command, config.training.threads):
            sys.exit(code)
        return None
    return train(config, run, fresh, ranks, dry_run)


def train(config: Config, run: RunFolder, fresh: bool = False, ranks: Ranks = ALONE, dry_run: bool = False) -> bool:
    """Train a model into `run`, together with the other `ranks`; only rank 0 writes.

    An existing run is resumed, or set aside with `fresh`. With `dry_run`, everything is tried and nothing trained.
    Returns False if nothing was trained: for a finished run, and with `dry_run`. Raises an `NmtError` for mistakes,
    `TrainingError` if the training cannot continue, and `InterruptedTrainingError` after a signal, with everything
    saved.
    """
    resolve_processes(config, ranks.size)  # raises before anything is written
    tensorboard = run.tensorboard if config.training.monitor == "tensorboard" else None
    monitor = Monitor(run.metrics_file, silent=not ranks.is_main, tensorboard=tensorboard)
    with plain_messages(run), contextlib.ExitStack() as stack:
        if ranks.is_main:
            stack.enter_context(run.locked())
            if fresh and run.path.exists():
                log.info(f"{run.path}: set aside as {run.set_aside()}")
            if vanished := stack.enter_context(run.marked_as_training()):
                log.info(
                    f"{run.path}: the last training here ({vanished}) ended abruptly: it was killed, memory ran out, "
                    f"or the machine went down"
                )
        with ranks.main_first():
            config = with_hold_outs(with_parsed_tmx(config))
        step = ranks.from_main(lambda: starting_step(config, run, ranks.size))
        if step is None:
            return False
        resumed_at = ranks.from_main(lambda: step if run.has_checkpoints() else None)
        return _train_from(resumed_at, config, run, monitor, ranks, dry_run)


def num_processes(config: Config, run: RunFolder, fresh: bool) -> int:
    """The number of processes for this training on this machine; `ConfigError` if they cannot share an update."""
    if not fresh and run.has_checkpoints():
        config = with_recorded_settings(config, run)
    count = choose_processes(config.training)
    shared(config.training, count)
    return count


def _train_from(
    resumed_at: int | None, config: Config, run: RunFolder, monitor: Monitor, ranks: Ranks, dry_run: bool
) -> bool:
    """Train from the checkpoint of a step, or a new model."""
    is_new = resumed_at is None
    config = resolve_processes(config if is_new else with_recorded_settings(config, run), ranks.size)
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    configure_process()
    base = find_base(config) if is_new else None
    with ranks.main_first():
        if not (ranks.is_main or run.tokenizer.is_dir()):
            raise RunError(f"{run.tokenizer} does not exist on all machines; train in a folder that they share")
        prepared = prepare(config, run, resuming=not is_new, ranks=ranks)
        if ranks.is_main and is_new:
            for line in data_warnings(config, prepared):
                log.warning(line)
    if prepared.corpus.key != ranks.from_main(lambda: prepared.corpus.key):
        raise RunError("the machines have different training corpora; train in a folder that they share")
    weights = None if base is None else Path(base.model.path)
    trainer = Trainer(config, run, prepared, monitor, ranks=ranks, initial_weights=weights)
    if resumed_at is not None:
        trainer.resume(run.checkpoints / str(resumed_at))
    memory = rehearse(trainer)
    plan, shape = trainer.feed.plan(trainer.progress.epoch), trainer.feed.shape
    announce(trainer.config, run, prepared, trainer.model, plan, shape, memory)
    if dry_run:
        log.info("dry run: everything works; nothing was trained", extra=RESULT)
        return False
    if ranks.is_main:
        counts = trainer.model.parameter_counts()
        record_start(trainer.config, run, prepared, counts, resumed_at, ranks.size, base)
        if is_new and prepared.selection is not None:
            write_examples(run.cleaning_file, config.data.train, prepared.selection.verdicts, config.source)
        write_text(run.config_file, to_yaml(trainer.config))
        if run.fine_tuned_file.exists():  # the model is a mean with the base model, and the training goes on
            rename(run.fine_tuned_file, run.model_file)
        run.remember_as_latest()
    with ranks.main_first():
        if ranks.is_main and base is not None:
            score_before(config, run, base)
    trainer.run()
    return True
