"""Validations under a guard: two sets are scored, and three models are remembered.

`tuned` is the best for the new text, `kept` the best of those whose drop on general text is within the budget, and
`last` the latest: where few lines score the new text, the best is so by chance, and general text has regained more at
the end. Weights between the old run's and each of them are tried after the training (nmt/adaptation).
"""

import dataclasses
import shutil
from collections.abc import Mapping
from typing import Literal

from torch import nn

from nmt.atomic import replacing
from nmt.checkpoint import Progress, save_weights
from nmt.config.guard import GuardConfig
from nmt.config.training import Config
from nmt.history import HIGHER_IS_BETTER, is_better
from nmt.runs import RunFolder

HOPELESS = 4.0
"""A model with more than this many times the allowed drop is not counted as better by `training.patience`. Near the old
weights, the drop grows with the square of the distance: less than half of the way would be left."""
Weights = Literal["base", "tuned", "kept", "last"]
GENERAL = "general_"
"""Before a metric's name in metrics.jsonl: of the general text."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a validation means for the models that are remembered."""

    is_tuned: bool
    """Whether it is the best for the new text."""
    is_kept: bool
    """Whether it is the best of those within the budget; of all, without a guard."""
    is_progress: bool
    """Whether `training.patience` starts to count again."""


def drop_of(guard: GuardConfig, before: float, after: float) -> float:
    """How much worse a value of `drop_metric` is; negative where it is better."""
    return before - after if HIGHER_IS_BETTER[guard.drop_metric] else after - before


def judge(config: Config, progress: Progress, values: Mapping[str, float]) -> Verdict:
    """Compare a validation with the earlier ones that `progress` knows."""
    guard, metric = config.guard, config.training.best_metric
    value = values[metric]
    is_best = is_better(metric, value, progress.best_value)
    if not guard.is_on:
        return Verdict(is_best, is_best, is_best)
    is_first = progress.kept_value is None
    if guard.validation is None:  # only the old weights are known to be within the budget
        return Verdict(is_best, is_first, is_best)
    before = progress.general_before
    drop = 0.0 if before is None else drop_of(guard, before, values[f"{GENERAL}{guard.drop_metric}"])
    is_kept = guard.within(drop) and is_better(metric, value, progress.kept_value)
    return Verdict(is_best, is_first or is_kept, is_kept or (is_best and guard.within(drop, HOPELESS)))


def remember(config: Config, progress: Progress, values: Mapping[str, float], verdict: Verdict) -> None:
    """Note a validation, at the present step, in `progress`."""
    value, guard = values[config.training.best_metric], config.guard
    if verdict.is_tuned:
        progress.best_value, progress.best_step = value, progress.step
    if guard.is_on:
        if verdict.is_kept:
            progress.kept_value, progress.kept_step = value, progress.step
        if guard.validation is not None and progress.general_before is None:
            progress.general_before = values[f"{GENERAL}{guard.drop_metric}"]
    progress.validations_since_best = 0 if verdict.is_progress else progress.validations_since_best + 1


def save_models(model: nn.Module, run: RunFolder, guard: GuardConfig, verdict: Verdict) -> None:
    """Write the weights that a validation has shown to be the best, within a guard's budget if there is one."""
    if guard.is_on:
        save_weights(model, run.adaptation / weights_file_name("last"))
        if verdict.is_tuned:
            save_weights(model, run.adaptation / weights_file_name("tuned"))
        if verdict.is_kept:
            save_weights(model, run.adaptation / weights_file_name("kept"))
    if verdict.is_kept:
        save_weights(model, run.model_file)


def weights_file_name(weights: Weights) -> str:
    """The name of a remembered model in the folder adaptation/ of a run."""
    return f"{weights}.safetensors"


def copy_base(old: RunFolder, new: RunFolder) -> None:
    """Keep the old run's weights, to the byte: the old run may be gone when the model is chosen."""
    new.adaptation.mkdir(exist_ok=True)
    with replacing(new.adaptation / weights_file_name("base")) as temporary:
        shutil.copyfile(old.model_file, temporary)
