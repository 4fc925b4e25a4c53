"""The mean of a run's checkpoints as a new run, compared with the original."""

import dataclasses
import os
import shutil

from nmt.atomic import replacing, write_json
from nmt.checkpoint import checkpoint_steps, mean_of_weights, write_weights
from nmt.config.evaluation import Metric
from nmt.decoding.translator import load
from nmt.errors import ConfigError, RunError
from nmt.evaluation.evaluate import corpus_test_set, evaluate
from nmt.evaluation.metrics import Score, make_metrics
from nmt.history import HIGHER_IS_BETTER, read_history
from nmt.runs import RunFolder, run_named


@dataclasses.dataclass(frozen=True)
class AveragedRun:
    """An averaged run and its scores; average.json in the new run holds the same."""

    run: str
    """Folder of the original run."""
    average: str
    """Folder of the new run."""
    steps: list[int]
    """Steps of the averaged checkpoints."""
    run_scores: dict[Metric, Score]
    """Scores of the original model on the validation set."""
    average_scores: dict[Metric, Score]


def average_run(
    run: RunFolder, last: int | None, best: int | None, name: str | None = None, device: str = "auto"
) -> AveragedRun:
    """Write the mean weights of some of a run's checkpoints as the new run `name`, by default RUN-average.

    These are the `last` N checkpoints, the `best` N, or without either the last `training.keep_checkpoints`. Raises
    `RunError` if there are fewer, or the new run exists; nothing is written then.
    """
    target = run_named(f"{run.name}-average" if name is None else name)
    with target.locked():  # a training that starts here meanwhile would be overwritten
        if os.path.lexists(target.path):
            raise RunError(f"{target.path} exists already; give the average another --name")
        return _write_average(run, _steps(run, last, best), target, device)


def _write_average(run: RunFolder, steps: list[int], target: RunFolder, device: str) -> AveragedRun:
    config = run.config()
    metrics = make_metrics(config.evaluation.metrics, config.data.tgt_lang, config.evaluation.bleu_tokenizer)
    validation = corpus_test_set(config.data.validation, config.source)
    with replacing(target.path) as temporary:
        temporary.mkdir()
        new = RunFolder(temporary)
        shutil.copyfile(run.config_file, new.config_file)
        shutil.copytree(run.tokenizer, new.tokenizer)
        files = [run.checkpoints / str(step) / "model.safetensors" for step in steps]
        write_weights(mean_of_weights(files), new.model_file)
        run_scores, average_scores = (
            evaluate(load(folder.path, device=device, engine="torch", own_process=True), validation, metrics).scores
            for folder in (run, new)
        )
        result = AveragedRun(str(run.path), str(target.path), steps, run_scores, average_scores)
        write_json(temporary / "average.json", dataclasses.asdict(result))
    return result


def _steps(run: RunFolder, last: int | None, best: int | None) -> list[int]:
    """The checkpoints to average, in the order of training."""
    if last is not None and best is not None:
        raise ConfigError("--last and --best exclude each other")
    settings = run.config().training
    steps = checkpoint_steps(run.checkpoints)
    count, kind = best or last or max(2, settings.keep_checkpoints), "checkpoints"
    if best is not None:
        metric = settings.best_metric
        validations = read_history(run).validations
        values = {each.step: each.values[metric] for each in validations if metric in each.values}
        sign = -1 if HIGHER_IS_BETTER[metric] else 1
        steps = sorted((step for step in steps if step in values), key=lambda step: sign * values[step])
        kind = "checkpoints with a validation"
    if len(steps) < count:
        raise RunError(
            f"{run.path}: there are {len(steps)} {kind}, not {count}; a training keeps the last "
            f"training.keep_checkpoints ({settings.keep_checkpoints}) and the best"
        )
    return sorted(steps[:count]) if best is not None else steps[-count:]
