"""The history of a training, from its metrics.jsonl: intervals, validations, skipped updates."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypedDict, get_args

from nmt.config.training import Metric
from nmt.runs.folder import RunFolder

ValidationMetric = Literal["loss"] | Metric
VALIDATION_METRICS: tuple[ValidationMetric, ...] = ("loss", *get_args(Metric))
HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "chrf++": True, "ter": False, "loss": False}


def is_better(metric: str, values: Mapping[str, float], best: Mapping[str, float]) -> bool:
    """True if a validation is better than the best so far ({}: none), by the metric, then by a lower loss.

    A number is better than NaN, which a diverging loss can be.
    """
    return not best or _goodness(metric, values) > _goodness(metric, best)


def _goodness(metric: str, values: Mapping[str, float]) -> list[float]:
    signed = [values.get(name, math.nan) * (1 if HIGHER_IS_BETTER[name] else -1) for name in (metric, "loss")]
    return [-math.inf if math.isnan(value) else value for value in signed]


@dataclasses.dataclass
class Progress:
    """The progress of a run; with weights, optimizer and loss scale, everything that resuming needs."""

    step: int = 0
    """Number of updates made."""
    epoch: int = 0
    """Number of complete epochs."""
    batch: int = 0
    """Number of batches used from the current epoch's plan."""
    seconds: float = 0.0
    """Time spent in training, including validation."""
    tgt_tokens: int = 0
    """Number of target tokens seen, without padding."""
    best_values: dict[str, float] = dataclasses.field(default_factory=dict)
    """The scores and the loss of the best validation, or the last one if no metric decides; it was at `best_step`."""
    best_step: int = 0
    validations_since_best: int = 0
    validated_step: int = 0
    """The step of the last validation."""
    schedule_start: int = 0
    """The update after which the learning-rate schedule began: 0, or where it was restarted."""
    schedule_end: int | None = None
    """`training.max_steps` when it began, if it depends on it."""
    validation_key: str = ""
    """The identity of the validations that `best_values` can be compared with."""
    corpus: dict[str, str] = dataclasses.field(default_factory=dict)
    """`EncodedCorpus.made_from` of the corpus for which the plan was made."""
    interval: list[float] = dataclasses.field(default_factory=list)
    """Sums since the last log line, as `IntervalSums.state` returns them."""
    lowest_loss: float | None = None
    """The lowest loss of an interval so far."""
    skipped_in_row: int = 0
    """Number of consecutive skipped updates up to this step."""

    @property
    def current_epoch(self) -> int:
        """The epoch of the last update, from 1."""
        return self.epoch + 1 if self.batch or not self.epoch else self.epoch


@dataclasses.dataclass(frozen=True)
class TrainInterval:
    """Means over the updates of a logging interval; None where a figure is not finite or was not recorded."""

    step: int
    """The last update of the interval."""
    epoch: int | None
    """Counted from 1."""
    loss: float | None
    """Cross-entropy a token, without smoothing, in nats; None also if all updates were skipped, as the next two."""
    smoothed_loss: float | None
    """The training objective."""
    grad_norm: float | None
    """Before clipping."""
    learning_rate: float | None
    skipped_updates: int
    tgt_tokens_per_second: float | None
    seconds: float | None
    """Of training since its start, over all resumes, validations included."""
    total_steps: int | None
    """Updates until `max_steps` or `max_epochs`."""
    seconds_left: float | None
    """Until the nearest limit, not counting validations and early stopping."""


class Example(TypedDict):
    """A sentence of the validation set, the same in all validations of a training, and its translation."""

    src: str
    """Empty for vectors and images."""
    reference: str
    translation: str


@dataclasses.dataclass(frozen=True)
class Validation:
    """The scores of a validation."""

    step: int
    epoch: int | None
    complete_epochs: int | None
    values: Mapping[str, float]
    """By metric: `loss` (as an interval's), `bleu`, `chrf`, and `ter` if it is the `best_metric`; only finite ones."""
    seconds: float | None
    key: object = None
    """`Progress.validation_key` at that step."""
    example: Example | None = None


class History(NamedTuple):
    """All records of a training, each kind in the order of steps."""

    intervals: tuple[TrainInterval, ...] = ()
    validations: tuple[Validation, ...] = ()
    skipped: tuple[int, ...] = ()
    """The updates that were skipped because their gradients were not finite."""

    @property
    def step(self) -> int:
        """The last step that has a record; 0 without any."""
        return max((*(record.step for record in self._timed), *self.skipped), default=0)

    @property
    def epoch(self) -> int | None:
        """The last epoch that has a record, counted from 1."""
        return max((record.epoch for record in self._timed if record.epoch), default=None)

    @property
    def seconds(self) -> float | None:
        """The training time at the last record that has one."""
        return max((record.seconds for record in self._timed if record.seconds is not None), default=None)

    @property
    def _timed(self) -> tuple[TrainInterval | Validation, ...]:
        return (*self.intervals, *self.validations)

    def best(self, metric: ValidationMetric | None) -> Validation | None:
        """The validation with the best `metric`, by `is_better`, or None; as a training chooses its model.

        Validations of an earlier text or search do not count. Without a metric, the last one.
        """
        if metric is None:
            return self.validations[-1] if self.validations else None
        best = None
        for validation in self.validations:
            if validation.key != self.validations[-1].key:  # a resume with another text or search
                continue
            if metric in validation.values and is_better(metric, validation.values, best.values if best else {}):
                best = validation
        return best


def read_history(run: RunFolder) -> History:
    """The records in a run's metrics.jsonl; without that file, none.

    A line that is not a record is ignored: after a kill, the last line can be incomplete. Of several records of a step
    and kind, the last one counts.
    """
    try:
        lines = run.metrics_file.read_bytes().splitlines()
    except FileNotFoundError:
        return History()
    intervals: dict[int, TrainInterval] = {}
    validations: dict[int, Validation] = {}
    skipped = set[int]()
    for record in map(_record, lines):
        if not isinstance(step := record.get("step"), int):
            continue
        figures = {name: _finite(value) for name, value in record.items()}
        match record.get("kind"):
            case "train":
                known = {field.name: figures.get(field.name) for field in dataclasses.fields(TrainInterval)}
                intervals[step] = TrainInterval(**known | {"skipped_updates": known["skipped_updates"] or 0})
            case "validation":
                values = {str(name): figures[name] for name in VALIDATION_METRICS if figures.get(name) is not None}
                epochs = figures.get("epoch"), figures.get("complete_epochs")
                more = figures.get("seconds"), record.get("validation_key"), record.get("example")
                validations[step] = Validation(step, *epochs, values, *more)
            case "skipped":
                skipped.add(step)
    return History(
        tuple(intervals[step] for step in sorted(intervals)),
        tuple(validations[step] for step in sorted(validations)),
        tuple(sorted(skipped)),
    )


def _record(line: bytes) -> Mapping[str, Any]:
    """The record in a line, empty if there is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _finite(value: Any) -> Any:
    """A finite number, else None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a huge integer
        return None


def in_words(scores: Mapping[str, float]) -> str:
    """Scores in a line.

    >>> in_words({"loss": 1, "bleu": 40})
    'loss 1.000  bleu 40.00'
    """
    return "  ".join(f"{name} {value:.{3 if name == 'loss' else 2}f}" for name, value in scores.items())


def duration(seconds: float) -> str:
    """The time as h:mm:ss, or m:ss below an hour.

    >>> duration(123), duration(3723)
    ('2:03', '1:02:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
