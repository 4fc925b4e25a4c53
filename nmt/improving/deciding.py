"""Does a step help? Its candidate against the best run so far, by BLEU on the validation set."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from nmt.atomic import read_json
from nmt.errors import RunError


@dataclasses.dataclass(frozen=True)
class Decision:
    """What became of a step's candidate."""

    step: str
    candidate: str
    """The name of its run."""
    candidate_scores: dict[str, float]
    """On the validation set, by the search that the configuration names."""
    previous: str | None
    """The best run until then; None for the first."""
    previous_scores: dict[str, float] | None
    gain: float | None
    """In BLEU, of the candidate over the best run until then."""
    min_gain: float
    kept: bool
    """Whether the gain is at least `min_gain`."""

    @property
    def best(self) -> str:
        """The best run from now on."""
        return self.candidate if self.kept or self.previous is None else self.previous

    @property
    def best_scores(self) -> dict[str, float]:
        """Its scores."""
        return self.candidate_scores if self.kept or self.previous_scores is None else self.previous_scores


def decide(step: str, candidate: str, previous: Decision | None, min_gain: float) -> Decision:
    """Compare a candidate with the best run so far; the first run is always kept."""
    scores = read_scores(candidate)
    if previous is None:
        return Decision(step, candidate, scores, None, None, None, min_gain, kept=True)
    # Rounded, because 30.3 - 30.0 is less than 0.3 in binary numbers.
    gain = round(scores["bleu"] - previous.best_scores["bleu"], 4)
    return Decision(step, candidate, scores, previous.best, previous.best_scores, gain, min_gain, gain >= min_gain)


def read_scores(run: str, folder: Path = Path()) -> dict[str, float]:
    """The validation scores of a run, by metric, which `nmt eval --json` has printed; `RunError` if they are not."""
    file = folder / scores_file(run)
    found = read_json(file)
    try:
        return {metric: float(score["value"]) for metric, score in found["scores"].items()}
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{file}: holds no scores of nmt eval; remove it, and it is made again") from None


def scores_file(run: str) -> str:
    """The file with the validation scores of a run."""
    return f"scores/{run}.json"


def decision_file(step: str) -> str:
    """The file with the decision on a step."""
    return f"decisions/{step}.json"


def best_file(step: str) -> str:
    """The file with the name of the run that is the best after a step."""
    return f"decisions/{step}.best"


def read_decision(step: str, folder: Path = Path()) -> Decision:
    """What was decided; `RunError` if the file cannot be read."""
    file = folder / decision_file(step)
    try:
        return Decision(**read_json(file))
    except TypeError as error:
        raise RunError(f"{file}: is no decision ({error}); remove it, and it is made again") from None


def decision_text(decision: Decision) -> str:
    """The decision as JSON."""
    return json_text(dataclasses.asdict(decision))


def json_text(value: Any) -> str:
    """A value as the text of a file."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
