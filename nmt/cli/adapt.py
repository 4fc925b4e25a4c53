"""`nmt adapt`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from nmt.cli import options
from nmt.errors import ConfigError
from nmt.runs.base import base_run
from nmt.runs.folder import run_named
from nmt.system.distributed import is_launched


def adapt(
    model: Annotated[str, options.run_option(help="The base run, which stays unchanged.")],
    data: Annotated[list[Path], Option(metavar="CORPUS", help="Text of the new domain; may be repeated.")],
    keep: Annotated[list[Path] | None, Option(metavar="CORPUS", help="General text. Default: the base run's.")] = None,
    max_drop: Annotated[float, Option(min=0, max=100, help="Maximum loss of BLEU on general text.")] = 1.0,
    name: Annotated[str | None, Option(help="Name of the new run. Default: RUN-adapted.")] = None,
    overrides: options.SetOption = None,
    fresh: options.FreshOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Fine-tune a model on a new domain, with general text mixed in so that it forgets little.

    Writes a configuration, NAME.yaml, trains with it, and scores test sets of both texts before and after. If general
    text may have lost more than --max-drop BLEU, or this cannot be checked, the first line is a warning and the exit
    code is 3; the new run is kept.
    """
    if is_launched():
        raise ConfigError(
            "nmt adapt starts its processes itself; under torchrun, let it write its configuration first, and run nmt "
            "train with that"
        )
    base = base_run(model, "--model")
    run = run_named(f"{base.name}-adapted" if name is None else name)
    if base.path.resolve() == run.path.resolve():
        raise ConfigError(f"{base.path} is the folder of the new run, too; give it another --name")
    from nmt.recipes import adapt as recipe
    from nmt.system.console import styled
    from nmt.training.fine_tuning import table

    config, trained, plan = recipe.adapt(base, run, data, keep or (), overrides or (), fresh)
    from nmt.insight.after_training import finish

    changes = sorted(finish(config, run, trained), key=lambda one: one.name != plan.new)
    line, is_warning = recipe.verdict(changes, plan.general, max_drop)
    tests = [{"is_general": one.name in plan.general, **dataclasses.asdict(one)} for one in changes]
    result = {"run": str(run.path), "result": line, "is_warning": is_warning, "tests": tests}
    tables = [table(changes)] if changes else []
    options.show_result(as_json, result, [styled(line, "bold yellow" if is_warning else "bold green"), *tables])
    if is_warning:
        raise typer.Exit(3)
