"""`nmt runs`."""

import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from nmt.cli.options import JsonOption, RunOption
from nmt.errors import ConfigError, RunError, printable
from nmt.runs.folder import RUNS, find_run
from nmt.system.console import log

if TYPE_CHECKING:
    from nmt.insight.progress import RunStatus


SortKey = Literal["name", "state", "step", "validation", "test", "parameters", "changed"]


def runs(
    sort: Annotated[SortKey, Option(help="Column to sort by; figures and times with the largest first.")] = "name",
    prune_cache: Annotated[bool, Option("--prune-cache", help="First empty runs/cache; it is made again.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List all runs in this folder's runs/, with their scores."""
    from nmt.insight.progress import all_statuses, sorted_by

    found = sorted_by(all_statuses(), sort)
    if prune_cache:
        from nmt.corpora import hashes

        if live := ", ".join(status.name for status in found if status.is_being_trained):
            raise RunError(f"{live}: is being trained, from text in {hashes.CACHE}; prune it after that")
        log.info(f"{hashes.CACHE}: {hashes.prune_cache():,} bytes removed")
    if as_json:
        print(json.dumps([dataclasses.asdict(status) for status in found]))
        return
    if not found:
        log.info(f"there are no runs under {RUNS}/ here; nmt train FILE makes one")
        return
    for line in table(found):
        print(printable(line))


def table(found: "list[RunStatus]") -> list[str]:
    """A header and a line a run, in columns; a broken run's line says what is wrong."""
    from nmt.system.console import aligned

    rows = [["", "name", "state", "step", "validation", "test", "parameters", "changed"], *map(_row, found)]
    problems = [status.reason for status in found if status.state == "broken"]
    return [*aligned(rows, left=range(len(rows[0]))).split("\n"), *problems]


def _row(status: "RunStatus") -> list[str]:
    from nmt.insight.progress import main_score

    validation = main_score(status.validation_scores)
    tests = {name: main_score(scores) for name, scores in status.test_scores.items()}
    return [
        "*" if status.is_latest else "",
        status.name,
        status.state,
        f"{status.step:,}" if status.step else "",
        "" if validation is None else f"{validation:.2f}",
        "  ".join(f"{name} {value:.2f}" for name, value in tests.items() if value is not None),
        "" if status.parameters is None else f"{status.parameters:,}",
        "" if status.changed is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(status.changed)),
    ]


# ---- `nmt show`.


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
