"""`nmt train`."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from nmt.cli.options import ConfigArgument, FreshOption, NameOption, SetOption, configured_run, run_option
from nmt.errors import ConfigError
from nmt.system.console import show
from nmt.system.distributed import process_group


def train(
    file: ConfigArgument = None,
    config: Annotated[Path | None, Option(metavar="FILE", help="Same as the argument FILE.")] = None,
    overrides: SetOption = None,
    name: NameOption = None,
    fresh: FreshOption = False,
    init_from: Annotated[str | None, run_option(help="Fine-tune: start from the weights of this run.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Run all checks; stop before the first update.")] = False,
) -> None:
    """Train a model, or resume an interrupted training."""
    with process_group() as ranks:
        if file is not None and config is not None:
            raise ConfigError("name one configuration, as FILE or as --config FILE, not both")
        if dry_run and fresh:
            raise ConfigError("--dry-run changes nothing, and --fresh sets a run aside; try it with another --name")
        settings, run = configured_run("train", file or config, overrides, name, init_from, fresh)
        from nmt.training.start import train_in_processes

        trained = train_in_processes(settings, run, fresh, ranks, dry_run, sys.argv[1:])
    if ranks.is_main and not dry_run and trained is not None:
        from nmt.insight.after_training import finish
        from nmt.training.fine_tuning import table

        if changes := finish(settings, run, trained):
            with contextlib.suppress(OSError):  # the training is complete
                show(table(changes), stream=sys.stderr)
