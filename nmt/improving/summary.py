"""What an improvement has come to: each step's score, gain and time, and the best run."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt.history import read_history
from nmt.improving.deciding import Decision, read_decision, read_scores, scores_file
from nmt.improving.plan import Plan
from nmt.runs import RunFolder


@dataclasses.dataclass(frozen=True)
class StepResult:
    """A row of the table."""

    step: str
    hours: float
    """Of its trainings."""
    decision: Decision | None
    """None: the step makes what others need."""
    scores: dict[str, float] | None
    """On the validation set; None if nothing of the step was scored."""


def results(plan: Plan, decided: Sequence[str], folder: Path) -> list[StepResult]:
    """What each step has come to; the plan is to be carried out already."""
    found = []
    for step in plan.steps:
        targets = [target for target in plan.targets if target.step == step]
        runs = [Path(target.file).stem for target in targets if target.is_stamp]
        seconds = sum(read_history(RunFolder(folder / "runs" / run)).seconds or 0.0 for run in runs)
        decision = read_decision(step, folder) if step in decided else None
        scored = [target.file for target in targets if target.file == scores_file(Path(target.file).stem)]
        scores = read_scores(Path(scored[-1]).stem, folder) if scored else None
        if scores is not None or runs:
            found.append(StepResult(step, seconds / 3600, decision, scores))
    return found


def table(found: Sequence[StepResult]) -> list[list[str]]:
    """Cells for a terminal."""
    rows = [["step", "BLEU", "chrF", "gain", "", "hours"]]
    for one in found:
        scores = [f"{one.scores[metric]:.2f}" for metric in ("bleu", "chrf")] if one.scores else ["", ""]
        gain = "" if one.decision is None or one.decision.gain is None else f"{one.decision.gain:+.2f}"
        kept = "" if one.decision is None else "kept" if one.decision.kept else "left out"
        rows.append([one.step, *scores, gain, kept, f"{one.hours:.2f}"])
    return rows


def as_json(found: Sequence[StepResult], best: Path) -> dict[str, Any]:
    """The same for a program."""
    return {"best": best.as_posix(), "steps": [dataclasses.asdict(one) for one in found]}
