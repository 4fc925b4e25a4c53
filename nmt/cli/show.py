"""`nmt show`."""

import dataclasses
import json
import sys
from typing import Annotated

import typer

from nmt.cli.options import JsonOption, RunOption
from nmt.errors import ConfigError
from nmt.runs.folder import find_run


def show(
    model: RunOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Redraw until its training ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show where a run stands: progress, scores, time left, and a curve of the loss."""
    if watch and as_json:
        raise ConfigError("--watch is for people and --json for programs; leave one of them out")
    run = find_run(model)
    from nmt.insight import progress_text
    from nmt.insight.progress import read_status

    if as_json:
        print(json.dumps(dataclasses.asdict(read_status(run))))
    elif watch:
        progress_text.watch(run, sys.stdout)
    else:
        progress_text.show(run, sys.stdout)
