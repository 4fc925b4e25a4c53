"""`nmt average`."""

from typing import TYPE_CHECKING, Annotated

from typer import Option

from nmt.cli.options import DeviceOption, JsonOption, ModelsOption
from nmt.errors import ConfigError
from nmt.runs.folder import open_runs
from nmt.system.console import joined, show, styled

if TYPE_CHECKING:  # imported when the command runs
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
    _print(result, as_json)


def _print(result: "AveragedRun", as_json: bool) -> None:
    if as_json:
        print(result.model_dump_json())
        return
    runs = ", ".join(result.runs)
    if result.steps:
        steps = ", ".join(map(str, result.steps))
        show(f"{result.average}: the mean of {len(result.steps)} checkpoints of {runs}, steps {steps}")
        show("on the validation set: the run's model, the average")
    else:
        show(f"{result.average}: the mean of the models of {runs}")
        show("on the validation set: these models, the average")
    for metric, average in result.average_scores.items():
        values = " ".join(f"{scores[metric].value:6.2f}" for scores in (*result.run_scores, result.average_scores))
        show(joined("", [f"  {average.name:6} {values}  ", styled(average.signature, "dim")]))
