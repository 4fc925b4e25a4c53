"""`nmt train`, and what every training ends with."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from nmt.cli.options import ConfigArgument, FreshOption, NameOption, SetOption, configured_run, run_option
from nmt.config.training import Config
from nmt.errors import ConfigError, NmtError
from nmt.runs.folder import RunFolder
from nmt.system.console import log
from nmt.system.distributed import Ranks, is_launched, joined
from nmt.system.processes import python_command

if TYPE_CHECKING:  # imported when the command runs
    from nmt.training.fine_tuning import Forgetting


def train(
    file: ConfigArgument = None,
    config: Annotated[Path | None, Option(metavar="FILE", help="The same as the argument FILE.")] = None,
    overrides: SetOption = None,
    name: NameOption = None,
    fresh: FreshOption = False,
    init_from: Annotated[str | None, run_option(help="Start from the weights of a trained run.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Run all checks; stop before the first update.")] = False,
) -> None:
    """Train a model, or resume a training that was stopped."""
    with joined() as ranks:
        if file is not None and config is not None:
            raise ConfigError("name one configuration, as FILE or as --config FILE, not both")
        if dry_run and fresh:
            raise ConfigError("--dry-run changes nothing, and --fresh sets a run aside; try it with another --name")
        settings, run = configured_run("train", file or config, overrides, name, init_from, fresh)
        trained = train_run(settings, run, fresh, ranks, dry_run, sys.argv[1:])
    if ranks.is_main and not dry_run and trained is not None and (changes := finish(settings, run, trained)):
        from nmt.system.console import aligned
        from nmt.training.fine_tuning import table

        log.info(aligned(table(changes), left=(0, 2)))


def train_run(
    settings: Config, run: RunFolder, fresh: bool, ranks: Ranks, dry_run: bool, arguments: Sequence[str]
) -> bool | None:
    """Train here, or in several processes, which get these arguments of the command line.

    Returns whether there was anything to train; None after several processes, one of which has done all that follows a
    training. `typer.Exit` says that they failed.
    """
    from nmt.training.launching import launch
    from nmt.training.start import num_processes
    from nmt.training.start import train as run_training

    if is_launched():
        if settings.training.processes != "auto":
            raise ConfigError("training.processes: torchrun decides how many processes there are; leave it out")
    elif (count := num_processes(settings, run, fresh)) > 1:
        alone = ["--set", "training.processes=auto"]  # so that none of them starts others
        command = python_command("from nmt.cli.main import main; main()", *arguments, *alone)
        if code := launch(count, command, settings.training.threads):
            raise typer.Exit(code)
        return None
    return run_training(settings, run, fresh, ranks, dry_run)


def finish(settings: Config, run: RunFolder, trained: bool) -> "list[Forgetting]":
    """What follows a training: what it gained and forgot, which is returned; the exports; the report."""
    changes = []
    if settings.training.init_from is not None:
        from nmt.training.fine_tuning import score_after

        try:
            changes = score_after(run)
        except NmtError as error:  # the training is done
            log.warning(f"the scores before and after are not compared: {error}; to try again: the same command")
    if trained and settings.export.after_training:
        from nmt.interop.after_training import export_after_training

        export_after_training(run, settings)
    if trained and settings.evaluation.report:
        _write_report(run, settings.training.device)
    return changes


def _write_report(run: RunFolder, device: str) -> None:
    """Write the report about a run; the training is done, so a failure is a line."""
    began = time.perf_counter()
    try:
        from nmt.insight.report_output import write_report

        page = write_report(run, device, with_data=True)
    except Exception as error:  # also a bug: `nmt report` shows it with its traceback
        again = f"nmt report --with-data --model {run.path}"
        log.warning(f"no report was made: {str(error) or type(error).__name__}; to try again: {again}")
    else:
        log.info(f"report: {page} ({time.perf_counter() - began:.1f} s)")
