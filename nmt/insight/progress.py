"""Status of runs: read from their folders, without torch, while they are trained or later."""

import dataclasses
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from nmt.config.training import TrainingConfig
from nmt.errors import NmtError
from nmt.evaluation.stored import AveragedRun, stored_evaluations
from nmt.runs.folder import RUNS, Recorded, RunFolder, checkpoint_steps, find_run, latest_in
from nmt.runs.history import (
    VALIDATION_METRICS,
    History,
    Progress,
    TrainInterval,
    Validation,
    ValidationMetric,
    read_history,
)
from nmt.system.files import is_locked
from nmt.training.stopping import reached

State = Literal[
    "vocabulary", "preparing", "training", "interrupted", "finished", "diverged", "average", "model", "export", "broken"
]
MEANING: Mapping[State, str] = {
    "vocabulary": "has a vocabulary, and no training yet",
    "preparing": "its training is starting",
    "training": "is being trained",
    "interrupted": "its training was interrupted",
    "finished": "its training is finished",
    "diverged": "its training diverged",
    "average": "a mean of checkpoints; it was not trained itself",
    "model": "a model without a training: a copy, or imported",
    "export": "an exported model",
    "broken": "cannot be read",
}


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """Status of a run; None for what is unknown or does not exist."""

    name: str
    path: str
    state: State
    reason: str = ""
    """The reason why it is finished, diverged or broken."""
    trainer: str = ""
    """The process that trains, or that was killed while training."""
    is_latest: bool = False
    step: int = 0
    total_steps: int | None = None
    epoch: int | None = None
    seconds: float | None = None
    """Training time."""
    seconds_left: float | None = None
    """Estimate for a run that is being trained, without validations and early stopping."""
    interval: TrainInterval | None = None
    """The last logged interval."""
    best_metric: ValidationMetric | None = None
    best_validation: Validation | None = None
    """The validation whose weights are the run's model."""
    last_validation: Validation | None = None
    num_validations: int = 0
    validations_since_best: int = 0
    skipped_updates: int = 0
    checkpoint: int | None = None
    """Step of the last checkpoint."""
    has_model: bool = False
    parameters: int | None = None
    """Number of parameters of the model; shared ones count once."""
    test_scores: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """By test set and metric: the run's own evaluations (`stored_evaluations`)."""
    other_scores: Sequence[tuple[str, Mapping[str, float], str]] = ()
    """Other evaluations: test set, scores by metric, and how they deviate from the configuration."""
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Validation scores of an average of checkpoints."""
    validates_on_training_text: bool = False
    """True if the validation scores are of training text: they say nothing about other text."""
    changed: float | None = None
    """Time of the last record of the training, or else of the model: seconds since 1970."""

    @property
    def is_being_trained(self) -> bool:
        """True if a process trains the run now."""
        return self.state in ("preparing", "training")

    @property
    def validation_scores(self) -> Mapping[str, float]:
        """The scores of the run's model on the validation set, by metric."""
        if self.best_validation is None:
            return self.scores
        return {name: value for name, value in self.best_validation.values.items() if name != "loss"}


def read_status(run: RunFolder, with_text: bool = True) -> RunStatus:
    """Read the status of a run; `with_text` as in `stored_evaluations`.

    Raises `RunError` if the folder or its configuration cannot be read.
    """
    trainer = run.marked_trainer()
    is_alive = bool(trainer) and is_locked(run.path)
    scored: list[tuple[str, Mapping[str, float], str]] = [
        (one.name, {key: score.value for key, score in one.content.scores.items()}, one.deviation)
        for one in (stored_evaluations(run, with_text) if run.exists() else ())
    ]
    files = (run.metrics_file, run.model_file, run.config_file)
    has_config = run.exists() and run.has_training_config()
    basic = RunStatus(
        name=run.name,
        path=str(run.path),
        state="model",
        trainer=trainer,
        is_latest=latest_in(run.path.parent) == run.name,
        has_model=run.model_file.is_file(),
        parameters=_num_parameters(run.model_file),
        test_scores={name: values for name, values, deviation in scored if not deviation},
        other_scores=[one for one in scored if one[2]],
        validates_on_training_text=has_config and run.config().data.validates_on_training_text,
        changed=next((file.stat().st_mtime for file in files if file.is_file()), None),
    )
    if not run.exists():
        return dataclasses.replace(basic, state="preparing" if is_alive else "interrupted" if trainer else "vocabulary")
    if run.is_export():
        return dataclasses.replace(basic, state="export")
    if run.average_file.is_file():
        scores = AveragedRun.read(run.average_file, "average it again").average_scores
        return dataclasses.replace(basic, state="average", scores={name: score.value for name, score in scores.items()})
    if not has_config or not run.metrics_file.is_file():
        state: State = "preparing" if is_alive else "model" if basic.has_model else "interrupted"
        return dataclasses.replace(basic, state=state)
    return _of_training(run, basic, run.config().training, read_history(run), is_alive)


def _of_training(
    run: RunFolder, basic: RunStatus, settings: TrainingConfig, history: History, is_alive: bool
) -> RunStatus:
    interval = history.intervals[-1] if history.intervals else None
    last = history.validations[-1] if history.validations else None
    best = None if run.fine_tuned_file.is_file() else history.best(settings.best_metric)
    since_best = history.validations[history.validations.index(best) + 1 :] if best else history.validations
    status = dataclasses.replace(
        basic,
        step=history.step,
        total_steps=interval.total_steps if interval and interval.total_steps else settings.max_steps,
        epoch=history.epoch,
        seconds=history.seconds,
        interval=interval,
        best_metric=settings.best_metric,
        best_validation=best,
        last_validation=last,
        num_validations=len(history.validations),
        validations_since_best=len(since_best),
        skipped_updates=sum(each.skipped_updates for each in history.intervals),
        checkpoint=max(checkpoint_steps(run.checkpoints), default=None),
    )
    if is_alive:
        state: State = "training" if history.step else "preparing"
        left = interval.seconds_left if interval else None
        if left is not None and basic.changed is not None:  # since the last record, time has passed
            left = max(0.0, left - max(0.0, time.time() - basic.changed))
        return dataclasses.replace(status, state=state, seconds_left=left)
    if problem := _divergence(run, interval):
        return dataclasses.replace(status, state="diverged", reason=problem)
    if last and last.step == history.step:
        since = status.validations_since_best
        done = Progress(last.step, last.complete_epochs or 0, seconds=last.seconds or 0.0, validations_since_best=since)
        if limit := reached(done, settings):
            return dataclasses.replace(status, state="finished", reason=limit.reason)
    return dataclasses.replace(status, state="interrupted")


def all_statuses() -> list[RunStatus]:
    """The status of every folder under runs/ that is a run or was meant to be one, by name; unreadable ones, too."""
    folders = (path for path in RUNS.glob("*") if path.is_dir() and not path.name.startswith("."))
    return [_status_or_problem(path) for path in sorted(folders) if path.name != "cache"]


def sorted_by(statuses: Iterable[RunStatus], key: str) -> list[RunStatus]:
    """Sort names and states from A to Z, figures and times from the largest; runs without a value come last.

    So do, by validation scores, runs that were validated on training text.
    """

    def place(status: RunStatus) -> tuple[str, float, str]:
        tests = [score for scores in status.test_scores.values() if (score := main_score(scores)) is not None]
        values = {
            "validation": None if status.validates_on_training_text else main_score(status.validation_scores),
            "test": statistics.fmean(tests) if tests else None,
            "step": status.step,
            "parameters": status.parameters,
            "changed": status.changed,
        }
        value = values.get(key)
        return status.state if key == "state" else "", math.inf if value is None else -value, status.name

    return sorted(statuses, key=place)


def main_score(scores: Mapping[str, float]) -> float | None:
    """The score by which runs are compared; None if there is none."""
    return scores.get(main_metric(scores) or "")


def main_metric(scores: Mapping[str, float]) -> str | None:
    """The metric by which runs are compared: BLEU if there is one, else the first of the others."""
    return next((name for name in VALIDATION_METRICS[1:] if name in scores), None)


def _status_or_problem(path: Path) -> RunStatus:
    try:
        return read_status(find_run(str(path)))
    except NmtError as error:
        problem = " ".join(str(error).split())
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}"
    return RunStatus(path.name, str(path), "broken", problem)


class _Diagnosis(Recorded):
    """The content of diagnosis.json: the reason and the step of a divergence."""

    reason: str
    step: int


def _divergence(run: RunFolder, interval: TrainInterval | None) -> str:
    """The reason why the training diverged where its records end, or ''; an earlier diagnosis is out of date."""
    if not run.diagnosis_file.is_file():
        return ""
    diagnosis = _Diagnosis.read(run.diagnosis_file)
    return diagnosis.reason if interval is None or diagnosis.step >= interval.step else ""


def _num_parameters(file: Path) -> int | None:
    """Count the parameters in a weights file's header; None without a readable file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as weights:
            shapes: list[list[int]] = [weights.get_slice(name).get_shape() for name in sorted(weights.keys())]
    except (OSError, SafetensorError):
        return None
    return sum(map(math.prod, shapes))
