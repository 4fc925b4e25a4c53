"""`nmt runs` and `nmt show`."""

import sys
from typing import Annotated, Literal

from typer import Option

from nmt.cli.options import JsonOption, RunOption, show_result
from nmt.errors import ConfigError, RunError
from nmt.runs.folder import RUNS, find_run
from nmt.system.console import RESULT, log

SortKey = Literal["name", "state", "step", "validation", "test", "parameters", "changed"]


def runs(
    sort: Annotated[SortKey, Option(help="Column to sort by; numbers and times descending.")] = "name",
    prune_cache: Annotated[
        bool, Option("--prune-cache", help="First empty runs/cache; it is rebuilt if needed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List all runs under runs/, with their scores."""
    from nmt.insight.progress import all_statuses, sorted_by
    from nmt.insight.progress_text import table

    statuses = sorted_by(all_statuses(), sort)
    if prune_cache:
        from nmt.corpora import hashes

        if live := ", ".join(status.name for status in statuses if status.is_being_trained):
            raise RunError(f"{live}: is being trained, from text in {hashes.CACHE}; prune it afterwards")
        log.info(f"{hashes.CACHE}: {hashes.prune_cache():,} bytes removed", extra=RESULT)
    if not (statuses or as_json):
        log.info(f"there are no runs under {RUNS}/ here; nmt train FILE makes one", extra=RESULT)
    else:
        show_result(as_json, statuses, table(statuses))


def show(
    model: RunOption = None,
    watch: Annotated[bool, Option("--watch", help="Redraw until the training ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the status of a run: progress, scores, time left, and the loss curve."""
    if watch and as_json:
        raise ConfigError("--watch is for people and --json for programs; leave out one")
    run = find_run(model)
    from nmt.insight import progress_text
    from nmt.insight.progress import read_status

    if watch:
        progress_text.watch(run, sys.stdout)
    else:
        status = read_status(run)
        show_result(as_json, status, progress_text.lines(run, status, sys.stdout))
