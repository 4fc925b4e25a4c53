"""Averages of weights: the moving average during a training, and the mean of checkpoints or models as a new run.

At the end of a training the weights oscillate around a minimum; their mean is closer to it (Polyak and Juditsky 1992;
Izmailov et al. 2018).
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from nmt.decoding.engines import shared_tokenizers
from nmt.decoding.translator import load
from nmt.errors import RunError
from nmt.evaluation.evaluate import corpus_test_set, evaluate
from nmt.evaluation.metrics import configured_metrics
from nmt.evaluation.stored import AveragedRun
from nmt.runs.folder import RunFolder, checkpoint_steps, run_named
from nmt.runs.weights import mean_of_weights, weights_of, write_weights
from nmt.system.files import file_sha256, replacing, write_json
from nmt.training.record import read_record


class MovingAverage:
    """An exponential moving average of a model's parameters, in fp32 on their device.

    Validations score it, and it is saved as the run's model. After update t: average = d(t) * average + (1 - d(t)) *
    weights, with d(t) = min(decay, (1 + t) / (10 + t)), so that the random initial weights soon lose their influence
    (TensorFlow's ExponentialMovingAverage with `num_updates`).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: value.clone() for name, value in weights_of(model).items()}
        """By parameter name, as in a weights file."""

    def update(self, model: nn.Module, step: int) -> None:
        """Include the weights after update number `step`, counted from 1, without synchronising with the device."""
        decay = min(self.decay, (1 + step) / (10 + step))
        # All tensors in one call, as in torch.optim.swa_utils.
        torch._foreach_lerp_(list(self.values.values()), list(weights_of(model).values()), 1 - decay)


@contextlib.contextmanager
def exchanged(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give the model other weights within the block; afterwards its own are restored, unchanged to the bit."""
    own = weights_of(model)
    parameters = dict(model.named_parameters())
    try:
        for name, parameter in parameters.items():
            parameter.data = weights[name].to(parameter.device)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]


def average_checkpoints(run: RunFolder, last: int | None, name: str | None = None, device: str = "auto") -> AveragedRun:
    """Write the mean weights of a run's `last` checkpoints as the new run `name`, by default RUN-average, and score it.

    `last` is `training.keep_checkpoints` by default, and at least 2. Raises `RunError` if there are fewer checkpoints,
    or the new run exists; nothing is written then.
    """
    with _new_run(name, run) as target:
        steps = _steps(run, last)
        files = [run.checkpoints / str(step) / "model.safetensors" for step in steps]
        return _write_average([run], steps, files, target, device)


def average_models(runs: Sequence[RunFolder], name: str | None = None, device: str = "auto") -> AveragedRun:
    """Write the mean of several runs' models as the new run `name`, by default FIRST-average (Wortsman et al. 2022).

    The weights of models that were trained separately do not correspond, and their mean translates nothing. So these
    have the same base model (`training.init_from`), or are the base model. Raises `RunError` if they have not, if two
    have the same model, if they differ in vocabulary, sources or shapes, or if the new run exists; nothing is written
    then.
    """
    with _new_run(name, runs[0]) as target:
        for run in runs:
            run.config()  # refuses exports, which have no training
        shared_tokenizers(runs)
        _check_same_base(runs)
        return _write_average(runs, [], [run.model_file for run in runs], target, device)


@contextlib.contextmanager
def _new_run(name: str | None, first: RunFolder) -> Iterator[RunFolder]:
    """The folder of the average, locked; `RunError` if it exists."""
    target = run_named(f"{first.name}-average" if name is None else name)
    with target.locked():  # otherwise a training that starts here meanwhile would be overwritten
        if os.path.lexists(target.path):
            raise RunError(f"{target.path} exists already; give the average another --name")
        yield target


def _write_average(
    runs: Sequence[RunFolder], steps: list[int], files: Sequence[Path], target: RunFolder, device: str
) -> AveragedRun:
    config = runs[0].config()
    metrics = configured_metrics(config.evaluation, config.data.tgt_lang)
    validation = corpus_test_set(config.data.validation, config.source)
    with replacing(target.path) as temporary:
        temporary.mkdir()
        new = RunFolder(temporary)
        shutil.copyfile(runs[0].config_file, new.config_file)
        shutil.copytree(runs[0].tokenizer, new.tokenizer)
        write_weights(mean_of_weights(files), new.model_file)
        *run_scores, average_scores = (
            evaluate(load(folder.path, device=device, engine="torch", own_process=True), validation, metrics).scores
            for folder in (*runs, new)
        )
        result = AveragedRun(
            average=str(target.path),
            runs=[str(run.path) for run in runs],
            steps=steps,
            run_scores=run_scores,
            average_scores=average_scores,
        )
        write_json(new.average_file, result.model_dump(mode="json"))
    return result


def _check_same_base(runs: Sequence[RunFolder]) -> None:
    """`RunError` if the runs do not have the same base model; one of them may be it."""
    seen: dict[str, RunFolder] = {}
    common: set[str] = set()
    for run in runs:
        own, record = file_sha256(run.model_file), read_record(run)
        if own in seen:
            raise RunError(f"{seen[own].path} and {run.path} have the same model; name each once")
        bases = {own} if record is None or record.init_from is None else {own, record.init_from.model.sha256}
        common = common & bases if seen else bases
        seen[own] = run
        if not common:
            raise RunError(
                f"{run.path} does not have the same base model (training.init_from) as {runs[0].path}: the mean of "
                "models that were trained separately translates nothing; use an ensemble (nmt translate --model A "
                "--model B)"
            )


def _steps(run: RunFolder, last: int | None) -> list[int]:
    """The checkpoints to average, in the order of training."""
    kept = run.config().training.keep_checkpoints
    steps, count = checkpoint_steps(run.checkpoints), last or max(2, kept)
    if len(steps) < count:
        raise RunError(
            f"{run.path}: there are {len(steps)} checkpoints, not {count}; a training keeps the last "
            f"training.keep_checkpoints ({kept}) and the best"
        )
    return steps[-count:]
