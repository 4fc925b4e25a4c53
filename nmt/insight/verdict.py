"""Verdict on systems: their scores, the spread of their seeds, and the sentences that sum them up.

A single output is judged by the p of a paired test, several seeds by the distance between the means. A mean is never
judged beside a single output.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from nmt.config.training import Metric
from nmt.evaluation.significance import TestedScore
from nmt.runs.history import HIGHER_IS_BETTER

SIGNIFICANT = 0.05
"""A smaller p is more than chance."""


@dataclasses.dataclass(frozen=True)
class OutputScores:
    """The scores of one output."""

    name: str
    scores: dict[Metric, TestedScore]
    """`p` and `difference` compare with the first output of all."""
    length_ratio: float
    """Length of the translations divided by that of the references, in BLEU's words."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """Scores of a system's seeds in one metric, and the distance of their mean from the baseline's."""

    count: int
    mean: float
    deviation: float | None
    """Standard deviation of a sample; None for one seed."""
    low: float
    high: float
    gap: float
    """This mean minus the baseline's."""
    gap_exceeds_spread: bool | None
    """`gap_exceeds_spread`; None for the baseline, and if this system or the baseline has one seed only."""


@dataclasses.dataclass(frozen=True)
class SystemScores:
    """The outputs of a system, and the spread of their seeds."""

    name: str
    outputs: tuple[OutputScores, ...]
    spread: dict[Metric, Spread]

    def values(self, metric: Metric) -> list[float]:
        """The score of each output."""
        return [output.scores[metric].score.value for output in self.outputs]

    def mean(self, metric: Metric) -> float:
        """The mean of the outputs' scores."""
        return statistics.fmean(self.values(metric))


def gap_exceeds_spread(before: Sequence[float], after: Sequence[float]) -> bool:
    """True if the means of two systems are farther apart than the lowest and the highest score of either."""
    gap = abs(statistics.fmean(after) - statistics.fmean(before))
    return gap > max(max(scores) - min(scores) for scores in (before, after))


def spread_of(before: Sequence[float], after: Sequence[float], is_baseline: bool) -> Spread:
    """The spread of a system's seeds, beside the scores of the baseline's."""
    mean = statistics.fmean(after)
    is_judged = not is_baseline and min(len(before), len(after)) > 1
    return Spread(
        len(after),
        mean,
        statistics.stdev(after) if len(after) > 1 else None,
        min(after),
        max(after),
        mean - statistics.fmean(before),
        gap_exceeds_spread(before, after) if is_judged else None,
    )


Result = Literal["better", "worse", "within chance", "within the spread of the seeds", "equal", "not judged"]
_UNCLEAR: tuple[Result, ...] = ("within chance", "within the spread of the seeds", "equal", "not judged")


class Judged(NamedTuple):
    """A system beside another one in a metric."""

    result: Result
    evidence: str
    """Its score, or mean, minus that of the other, and what the judgement rests on."""


def judge(metric: Metric, before: Sequence[float], after: Sequence[float], p: float | None) -> Judged:
    """Judge the scores of a system's seeds beside those of another; `p` is of the first seeds.

    >>> judge("ter", [60.0], [58.5], p=0.001)
    Judged(result='better', evidence='-1.50, p 0.001')
    >>> judge("bleu", [20.0, 21.0], [20.5, 20.9], p=0.001).result
    'within the spread of the seeds'
    """
    gap = statistics.fmean(after) - statistics.fmean(before)
    chance: Result
    if gap == 0:
        return Judged("equal", "")
    if len(before) == len(after) == 1:
        is_clear, evidence, chance = p is not None and p < SIGNIFICANT, p_of(p), "within chance"
    elif min(len(before), len(after)) == 1:
        return Judged("not judged", f"{gap:+.2f}, one seed against several")
    else:
        is_clear, chance = gap_exceeds_spread(before, after), "within the spread of the seeds"
        evidence = f"means of {len(before)} and {len(after)} seeds"
    is_better = (gap > 0) == HIGHER_IS_BETTER[metric]
    return Judged(("better" if is_better else "worse") if is_clear else chance, f"{gap:+.2f}, {evidence}")


def p_of(p: float | None) -> str:
    """Format p: `p 0.012`; `same` where there was no difference to test."""
    return "same" if p is None else f"p {p:.{3 if p >= 0.0005 else 4}f}"


def verdict(
    systems: Sequence[SystemScores], num_changed: Sequence[int], num_lines: int, best_ps: Sequence[float | None]
) -> tuple[str, ...]:
    """Sum up the scores in sentences: of three and more systems the best one first, then each beside the baseline.

    `num_changed` has the number of lines in which each system but the baseline differs from it; `best_ps` the p of each
    system against `best_system`, in the first metric.
    """
    changed = zip(systems[1:], num_changed, strict=True)
    sentences = tuple(_against(systems[0], system, count, num_lines) for system, count in changed)
    return (_best(systems, best_ps), *sentences) if len(systems) > 2 else sentences


def best_system(systems: Sequence[SystemScores], metric: Metric | None = None) -> SystemScores:
    """The first system with the best score or mean in a metric, by default the first metric."""
    by = metric or _metrics(systems[0])[0]
    return max(systems, key=lambda system: system.mean(by) * (1 if HIGHER_IS_BETTER[by] else -1))


def _against(baseline: SystemScores, system: SystemScores, num_changed: int, num_lines: int) -> str:
    """`deep against base: chrF2 better (+0.97, p 0.001); BLEU within chance; 521 of 1,000 translations differ`."""
    is_single = len(baseline.outputs) == len(system.outputs) == 1
    if is_single and not num_changed:
        return f"{system.name}: the same translations as {baseline.name}"
    results = [
        (name, judge(metric, baseline.values(metric), system.values(metric), tested.p))
        for metric, tested in system.outputs[0].scores.items()
        for name in [tested.score.name]
    ]
    parts = [f"{name} {one.result} ({one.evidence})" for name, one in results if one.result in ("better", "worse")]
    for result in _UNCLEAR:
        if names := [name for name, one in results if one.result == result]:
            parts.append(f"{_joined(names)} {result}")
    parts += [f"{num_changed:,} of {num_lines:,} translations differ"] * is_single
    return f"{system.name} against {baseline.name}: {'; '.join(parts)}"


def _best(systems: Sequence[SystemScores], best_ps: Sequence[float | None]) -> str:
    """`Best by BLEU: deep (31.20); within chance of it: wide (-0.10, p 0.400); worse: base (-1.20, p 0.001)`."""
    best = best_system(systems)
    metric, *others = _metrics(best)
    judged = [
        (system.name, judge(metric, best.values(metric), system.values(metric), p))
        for system, p in zip(systems, best_ps, strict=True)
        if system is not best
    ]
    equal = [name for name, one in judged if one.result == "equal"]
    if len(equal) == len(judged):
        return f"All {len(systems)} systems are equal by {_name(best, metric)} ({_mean(best, metric)})"
    parts = [f"Best by {_name(best, metric)}: {_joined([best.name, *equal])} ({_mean(best, metric)})"]
    for result in (*_UNCLEAR, "worse"):
        if result != "equal" and (
            names := [f"{name} ({one.evidence})" for name, one in judged if one.result == result]
        ):
            parts.append(f"{result}{' of it' * (result == 'within chance')}: {', '.join(names)}")
    for other in others:
        if (leader := best_system(systems, other)).mean(other) != best.mean(other):
            parts.append(f"best by {_name(best, other)}: {leader.name} ({_mean(leader, other)})")
    return "; ".join(parts)


def _metrics(system: SystemScores) -> list[Metric]:
    return list(system.outputs[0].scores)


def _name(system: SystemScores, metric: Metric) -> str:
    return system.outputs[0].scores[metric].score.name


def _mean(system: SystemScores, metric: Metric) -> str:
    return f"{'mean ' if len(system.outputs) > 1 else ''}{system.mean(metric):.2f}"


def _joined(names: Sequence[str]) -> str:
    """`BLEU, chrF2 and TER`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
