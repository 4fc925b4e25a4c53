"""`nmt adapt`."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nmt.cli import options
from nmt.cli.completion import complete_run
from nmt.cli.train import finish, say_choice, train_run
from nmt.distributed import ALONE, is_launched
from nmt.errors import ConfigError, NmtError
from nmt.inheritance import load_run_config, starting_run
from nmt.runs import RunFolder, run_named

if TYPE_CHECKING:  # imported when the command runs
    from nmt.adaptation.frontier import Frontier

# The same as nmt.adaptation.frontier.AdaptMetric, which is imported when the command runs.
DropMetric = Literal["bleu", "chrf", "loss"]


def adapt(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="The run to start from, which is only read: its folder or name.",
            autocompletion=complete_run,
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="CORPUS", help="The new text (.tsv .csv .jsonl .tmx .zip, or two texts); may be repeated."
        ),
    ] = None,
    keep: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="CORPUS", help="General text, to mix in and to measure; may be repeated. Default: the model's own."
        ),
    ] = None,
    keep_src: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead: general text in the source language; the model translates it."),
    ] = None,
    max_drop: Annotated[float, typer.Option(help="How far general text may fall.")] = 0.5,
    drop_metric: Annotated[DropMetric, typer.Option(help="By which metric.")] = "bleu",
    name: Annotated[str | None, typer.Option(help="The new run's name; default: RUN-adapted.")] = None,
    overrides: options.SetOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; an existing run is set aside.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Teach a model a domain, and keep what it knows.

    Writes a configuration, NAME.yaml, and trains as `nmt train` does. Of all weights from the old to the new ones, the
    best for the new text that surely loses at most --max-drop on general text becomes the model. If none does, the new
    run holds the old weights, and the exit code is 3.
    """
    if model is None:  # the newest run may be the one that this command has begun before
        raise ConfigError("name the run to start from: --model RUN")
    if not data:
        raise ConfigError("name the new text: --data FILE, in any format that nmt train reads")
    if not (max_drop >= 0 and math.isfinite(max_drop)):
        raise ConfigError(f"--max-drop {max_drop:g}: should be 0 or more: how far the general text's score may fall")
    if keep and keep_src:
        raise ConfigError("--keep names general pairs, --keep-src one side of them; give one of the two")
    if is_launched():
        raise ConfigError(
            "nmt adapt starts its processes itself; under torchrun, let it write its configuration first, and run nmt "
            "train with that"
        )
    base = starting_run(model)
    run = run_named(f"{base.name}-adapted" if name is None else name)
    if base.path.resolve() == run.path.resolve():
        raise ConfigError(f"{base.path} is the folder of the new run, too; give it another --name")
    from nmt.adaptation.planning import Wish, write_plan

    file = Path(f"{run.name}.yaml")
    wish = Wish(base, data, keep or [], keep_src, max_drop, drop_metric, overrides or [])
    is_new = write_plan(wish, file, fresh, lambda line: print(line, file=sys.stderr))
    try:
        frontier = _trained(file, run, fresh)
    except (NmtError, typer.Exit) as ended:
        if is_new and not run.exists():  # nothing has begun, and a corrected command would be refused
            file.unlink()
        if isinstance(ended, typer.Exit):
            _print_outcome(run, as_json)
        raise
    _print_outcome(run, as_json)
    if frontier is not None:
        say_choice(run, frontier)


def _trained(file: Path, run: RunFolder, fresh: bool) -> "Frontier | None":
    """Train as `nmt train FILE` does, and choose the model.

    With several processes, `typer.Exit` says how they ended: one of them has chosen the model, and said which.
    """
    settings = load_run_config(file, (), run, fresh)
    arguments = ["train", str(file), "--name", run.name, *(["--fresh"] if fresh else [])]
    trained = train_run(settings, run, "fresh" if fresh else "auto", ALONE, False, arguments)
    return finish(settings, run, trained)


def _print_outcome(run: RunFolder, as_json: bool) -> None:
    """Print what was chosen and what it is worth; nothing after a training that was stopped."""
    from nmt.adaptation import frontier as frontiers
    from nmt.adaptation import outcome
    from nmt.insight.text_table import aligned

    frontier = frontiers.fresh_frontier(run)
    if frontier is None:
        return
    tests = outcome.read_tests(run) or ()
    if as_json:
        found: dict[str, Any] = {"run": str(run.path), "is_base_kept": frontier.is_base_kept, "reason": frontier.reason}
        found |= frontier.model_dump(mode="json", exclude={"made_from", "model"})
        found["tests"] = [test.model_dump(mode="json") for test in tests]
        print(json.dumps(found))
        return
    print(aligned(frontiers.table(frontier), left=(0, 5)))
    if tests:
        print()
        print(aligned(outcome.table(tests, frontiers.shown_metrics(frontier)), left=(0, 1)))
