"""The frontier of an adaptation: what each candidate gains on the new text and loses on general text; the choice."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from nmt.atomic import read_json
from nmt.config.guard import GuardConfig
from nmt.ctranslate2.exports import ModelFile
from nmt.errors import RunError
from nmt.runs import RunFolder
from nmt.training.guarding import Weights

AdaptMetric = Literal["bleu", "chrf", "loss"]
METRICS: tuple[AdaptMetric, ...] = ("bleu", "chrf", "loss")
NAMES: dict[AdaptMetric, str] = {"bleu": "BLEU", "chrf": "chrF2", "loss": "loss"}
"""In tables."""
_FILE = "frontier.json"
WORDS: dict[Weights, str] = {
    "base": "the old model",
    "tuned": "best for the new text",
    "kept": "best within the budget",
    "last": "last validation",
}


class _Recorded(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True, allow_inf_nan=False)


class Drop(_Recorded):
    """How much worse a model is on general text than the base; negative where it is better."""

    value: float
    low: float
    """Of a 95% interval by a paired bootstrap."""
    high: float


class Point(_Recorded):
    """A candidate, scored on the validation set and, if there is general text, on `guard.validation`."""

    weights: Weights
    """The weights at alpha 1."""
    step: int
    """The update after which they were validated."""
    alpha: float
    """0: the base's weights."""
    new: dict[AdaptMetric, float]
    general: dict[AdaptMetric, float] | None
    gain: float
    """How much better the metric of the new text is than the base's."""
    drop: Drop | None
    """Of the guard's metric; None without general text."""

    @property
    def name(self) -> str:
        """In words, for tables."""
        return WORDS["base"] if self.alpha == 0 else f"{WORDS[self.weights]}, alpha {self.alpha:g}"


class Frontier(_Recorded):
    """All candidates and the choice, as in adaptation/frontier.json."""

    max_drop: float
    drop_metric: AdaptMetric
    gain_metric: AdaptMetric
    points: tuple[Point, ...]
    """The first is the base."""
    chosen: int
    """Its number in `points`; 0 if the base is kept."""
    made_from: dict[Weights, ModelFile]
    model: ModelFile
    """The model that was written."""

    @property
    def point(self) -> Point:
        """The chosen one."""
        return self.points[self.chosen]

    @property
    def is_base_kept(self) -> bool:
        """Whether no candidate was better within the budget."""
        return self.chosen == 0

    @property
    def reason(self) -> str:
        """Why the base is kept, in words; '' if it is not."""
        if not self.is_base_kept:
            return ""
        metric = NAMES[self.gain_metric]
        if not any(point.gain > 0 for point in self.points):
            return f"no candidate has a better {metric} on the new text's validation set"
        return (
            f"no candidate with a better {metric} on the new text surely loses at most {self.max_drop:g} "
            f"{NAMES[self.drop_metric]} on the general text"
        )


def choose(points: Sequence[Point], guard: GuardConfig, standard_error: Callable[[int, int], float]) -> int:
    """The number of the point that becomes the model.

    `points[0]` is the base, which always qualifies. Another one must gain something, and the upper end of its drop's
    interval must be within the budget; without general text, `guard.max_alpha` has limited the candidates. Of those
    that qualify, the best has the largest gain, of equal ones the smallest drop and alpha.

    Few lines of new text cannot tell which candidate gains most, and general text can tell which loses least. So of all
    whose gain is within one `standard_error` of the best one's, that with the least loss on general text is chosen, as
    in the one-standard-error rule of Breiman et al. 1984 (CART). The function is given two numbers of points.
    """

    def qualifies(point: Point) -> bool:
        return point.gain > 0 and (point.drop is None or guard.within(point.drop.high))

    def merit(number: int) -> tuple[float, float, float]:
        point = points[number]
        return point.gain, -(point.drop.value if point.drop else 0.0), -point.alpha

    qualified = [number for number, point in enumerate(points) if qualifies(point)]
    best = max(qualified, key=merit, default=0)
    losses = {
        n: general["loss"]
        for n in qualified
        if (general := points[n].general) and points[n].gain >= points[best].gain - standard_error(best, n)
    }
    return min(losses, key=lambda number: losses[number]) if losses else best


def table(frontier: Frontier) -> list[list[str]]:
    """The points as rows of cells, with a head."""
    gain, drop = NAMES[frontier.gain_metric], NAMES[frontier.drop_metric]
    rows = [["validation", f"new text: {gain}", f"general: {drop}", "drop", "95% interval", ""]]
    for number, point in enumerate(frontier.points):
        general = "" if point.general is None else _number(point.general[frontier.drop_metric], frontier.drop_metric)
        cells = [point.name, _number(point.new[frontier.gain_metric], frontier.gain_metric), general]
        if point.drop is None or point.alpha == 0:
            cells += ["", ""]
        else:
            low, value, high = (
                _number(end, frontier.drop_metric) for end in (point.drop.low, point.drop.value, point.drop.high)
            )
            cells += [value, f"{low} to {high}"]
        rows.append([*cells, "chosen" if number == frontier.chosen else ""])
    return rows


def shown_metrics(frontier: Frontier) -> list[AdaptMetric]:
    """The metrics of test sets that tables show."""
    always: list[AdaptMetric] = ["bleu", "chrf"]
    return list(dict.fromkeys([*always, frontier.drop_metric, frontier.gain_metric]))


def _number(value: float, metric: AdaptMetric) -> str:
    return f"{value:.3f}" if metric == "loss" else f"{value:.2f}"


def frontier_file(run: RunFolder) -> str:
    """The path of the frontier within a run's folder."""
    return str(run.adaptation / _FILE)


def read_frontier(run: RunFolder) -> Frontier | None:
    """What was chosen in a run; None if nothing was. `RunError` if the file is damaged."""
    path = run.adaptation / _FILE
    if not path.is_file():
        return None
    try:
        return Frontier.model_validate(read_json(path))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise RunError(f"{path}: {place}: {problem['msg']}; remove the file, and give the same command again") from None


def fresh_frontier(run: RunFolder) -> Frontier | None:
    """What was chosen, unless the weights that it was chosen from, or the model, have changed since."""
    frontier = read_frontier(run)
    if frontier is None or not run.model_file.is_file() or not frontier.model.is_still(run.model_file):
        return None
    files = ((run.adaptation / f"{weights}.safetensors", file) for weights, file in frontier.made_from.items())
    return frontier if all(path.is_file() and file.is_still(path) for path, file in files) else None


def points_of(frontier: Frontier, weights: Weights) -> Iterator[Point]:
    """The base and the points towards some weights, in the order of alpha."""
    yield from (point for point in frontier.points if point.alpha == 0 or point.weights == weights)
