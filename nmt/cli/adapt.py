"""`nmt adapt`."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from nmt.cli import options
from nmt.errors import ConfigError, NmtError
from nmt.runs.base import load_run_config, starting_run
from nmt.runs.folder import RunFolder, run_named
from nmt.system.distributed import ALONE, is_launched

if TYPE_CHECKING:  # imported when the command runs
    from nmt.recipes.adapt import Plan
    from nmt.training.fine_tuning import Forgetting


def adapt(
    model: Annotated[str, options.run_option(help="The run to start from, which is only read.")],
    data: Annotated[list[Path], Option(metavar="CORPUS", help="The new text; may be repeated.")],
    keep: Annotated[list[Path] | None, Option(metavar="CORPUS", help="General text. Default: the model's own.")] = None,
    max_drop: Annotated[float, Option(min=0, max=100, help="How much BLEU general text may lose.")] = 1.0,
    name: Annotated[str | None, Option(help="The new run's name; default: RUN-adapted.")] = None,
    overrides: options.SetOption = None,
    fresh: options.FreshOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Teach a model a domain, with general text mixed in, so that it keeps what it knows.

    Writes a configuration, NAME.yaml, trains with it, and scores test sets of both texts before and after. If general
    text may have lost more than --max-drop, or this cannot be checked, the first line says so, and the exit code is 3;
    the new run is kept.
    """
    if is_launched():
        raise ConfigError(
            "nmt adapt starts its processes itself; under torchrun, let it write its configuration first, and run nmt "
            "train with that"
        )
    base = starting_run(model)
    run = run_named(f"{base.name}-adapted" if name is None else name)
    if base.path.resolve() == run.path.resolve():
        raise ConfigError(f"{base.path} is the folder of the new run, too; give it another --name")
    from nmt.recipes.adapt import write_plan

    file = Path(f"{run.name}.yaml")
    plan = write_plan(base, data, keep or [], overrides or [], file, fresh)
    try:
        changes = _trained(file, run, fresh, None if plan.general else base)
    except (NmtError, SystemExit):
        if plan.is_written and not run.exists():  # nothing has begun, and a corrected command would be refused
            file.unlink()
        raise
    if _print_result(run, changes, plan, max_drop, as_json):
        raise typer.Exit(3)


def _print_result(run: RunFolder, changes: "list[Forgetting]", plan: "Plan", max_drop: float, as_json: bool) -> bool:
    """Print the verdict and the scores; return whether it is a warning."""
    from nmt.recipes.adapt import verdict
    from nmt.system.console import aligned
    from nmt.training.fine_tuning import table

    line, is_warning = verdict(changes, plan.general, max_drop)
    changes.sort(key=lambda one: one.name != plan.new)
    if as_json:
        tests = [{"is_general": one.name in plan.general, **dataclasses.asdict(one)} for one in changes]
        print(json.dumps({"run": str(run.path), "result": line, "is_warning": is_warning, "tests": tests}))
    else:
        print("\n".join([line, *([aligned(table(changes), left=(0, 2))] if changes else [])]))
    return is_warning


def _trained(file: Path, run: RunFolder, fresh: bool, base: RunFolder | None) -> "list[Forgetting]":
    """Train as `nmt train FILE` does, average the model with that of `base`, if given, and score it."""
    from nmt.evaluation.metrics import metric_names
    from nmt.insight.report_output import report_after_training
    from nmt.interop.after_training import finish
    from nmt.training.start import train_in_processes

    settings = load_run_config(file, (), run, fresh)
    if "bleu" not in metric_names(settings.evaluation, settings.data.tgt_lang):
        raise ConfigError("evaluation.metrics: add bleu, by which --max-drop is measured")
    if base is not None:
        for key in ("num_encoder_layers", "num_decoder_layers"):
            if (here := getattr(settings.model, key)) != (there := getattr(base.inference_config().model, key)):
                raise ConfigError(
                    f"model.{key}: {there} in {base.path}, {here} here, and without general text the model is the mean "
                    f"of both; leave it out, or give --keep FILE"
                )
    arguments = ["train", str(file), "--name", run.name, *(["--fresh"] if fresh else [])]
    trained = bool(train_in_processes(settings, run, fresh, ALONE, False, arguments))
    if base is not None:
        from nmt.recipes.adapt import average_with_base

        last = run.report_page if settings.evaluation.report else run.exports  # absent after a kill
        trained = average_with_base(base, run) or trained or not last.exists()
    changes = finish(settings, run, trained)
    if trained:
        report_after_training(settings, run)
    return changes
