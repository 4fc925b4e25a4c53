"""`nmt average`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from typer import Option

from nmt.cli.options import DeviceOption, JsonOption, ModelsOption, show_result
from nmt.errors import ConfigError
from nmt.runs.folder import open_runs
from nmt.runs.history import HIGHER_IS_BETTER
from nmt.system.console import aligned, styled

if TYPE_CHECKING:  # imported when the command runs
    from rich.text import Text

    from nmt.evaluation.stored import AveragedRun


def average(
    models: ModelsOption = None,
    last: Annotated[
        int | None, Option(min=2, metavar="N", help="Average the last N. Default: training.keep_checkpoints.")
    ] = None,
    name: Annotated[str | None, Option(help="Name of the new run. Default: RUN-average.")] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Average the last checkpoints of a run, or the models of several runs, into a new run, and score them.

    Scores are of the validation set. Several runs (--model, repeated) must be fine-tuned from the same base model
    (training.init_from).
    """
    from nmt.training.averaging import average_checkpoints, average_models

    runs = open_runs(models)
    if len(runs) == 1:
        result = average_checkpoints(runs[0], last, name, device or "auto")
    elif last is None:
        result = average_models(runs, name, device or "auto")
    else:
        raise ConfigError("--last chooses checkpoints of one run; of several, models are averaged")
    show_result(as_json, result.model_dump(mode="json"), _lines(result), link=result.average)


def _lines(result: "AveragedRun") -> "Iterator[str | Text]":
    steps = ", ".join(map(str, result.steps))
    parts = f"{len(result.steps)} checkpoints (steps {steps})" if steps else "the models"
    yield f"{result.average}: the mean of {parts} of {', '.join(result.runs)}"
    rows: list[list[str | Text]] = [["validation", *result.runs, "average"]]
    for metric, average in result.average_scores.items():
        values = [scores[metric].value for scores in (*result.run_scores, result.average_scores)]
        best = max(values) if HIGHER_IS_BETTER[metric] else min(values)
        cells = (styled(f"{value:.2f}", "bold" if value == best else "") for value in values)
        rows.append([average.name, *cells])
    yield aligned(rows, has_head=True)
    yield from (styled(f"{one.name:6} {one.signature}", "dim") for one in result.average_scores.values())
