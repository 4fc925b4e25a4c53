"""`nmt average`."""

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.options import DeviceOption, JsonOption, RunOption
from nmt.runs import open_run

if TYPE_CHECKING:  # imported when the command runs
    from nmt.evaluation.averaged_run import AveragedRun


def average(
    model: RunOption = None,
    last: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="The last N checkpoints. Default: training.keep_checkpoints.")
    ] = None,
    best: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="The N kept checkpoints with the best validations.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The new run's name; default: RUN-average.")] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Average a run's last or best checkpoints into a new run, and score both on the validation set."""
    from nmt.evaluation.averaged_run import average_run

    _print(average_run(open_run(model), last, best, name, device or "auto"), as_json)


def _print(result: "AveragedRun", as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(result)))
        return
    print(f"{result.average}: the mean of {len(result.steps)} checkpoints of {result.run}, steps "
          f"{', '.join(map(str, result.steps))}")  # fmt: skip
    print("on the validation set: the run's model, the average")
    for metric, score in result.run_scores.items():
        print(f"  {score.name:6} {score.value:6.2f} {result.average_scores[metric].value:6.2f}  {score.signature}")
