"""Verdict on systems: their scores, the spread of their seeds, and the sentences that sum them up.

A single output is judged by the p of a paired test, several seeds by the distance between the means. A mean is never
compared with a single output.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Literal, get_args

from nmt.config.training import Metric
from nmt.evaluation.significance import TestedScore
from nmt.runs.history import HIGHER_IS_BETTER

SIGNIFICANT = 0.05
"""Significance level: a smaller p is significant."""
Result = Literal["better", "worse", "within chance", "within the spread of the seeds", "not judged", "equal"]


@dataclasses.dataclass(frozen=True)
class OutputScores:
    """The scores of one output."""

    name: str
    scores: dict[Metric, TestedScore]
    """`p` and `difference` compare with the first output of all."""
    length_ratio: float
    """Length of the translations divided by that of the references, in BLEU's words."""


@dataclasses.dataclass(frozen=True)
class SeedScores:
    """Scores of a system's seeds in one metric, judged beside those of another system."""

    mean: float
    deviation: float | None
    """Standard deviation of a sample; None for one seed."""
    low: float
    high: float
    gap: float
    """This mean minus the other's."""
    result: Result
    evidence: str
    """The p of two outputs, or the numbers of seeds."""


@dataclasses.dataclass(frozen=True)
class SystemScores:
    """The outputs of a system, and their scores beside the first system's."""

    name: str
    outputs: tuple[OutputScores, ...]
    seeds: dict[Metric, SeedScores]

    @classmethod
    def of(cls, name: str, outputs: Sequence[OutputScores], baseline: Sequence[OutputScores]) -> "SystemScores":
        """Judge a system's outputs beside the baseline's."""
        seeds = {}
        for metric, tested in outputs[0].scores.items():
            before, after = ([one.scores[metric].score.value for one in scored] for scored in (baseline, outputs))
            seeds[metric] = judge(metric, before, after, tested.p)
        return cls(name, tuple(outputs), seeds)


def gap_exceeds_spread(before: Sequence[float], after: Sequence[float]) -> bool:
    """True if the means of two systems are farther apart than the lowest and the highest score of either."""
    gap = abs(statistics.fmean(after) - statistics.fmean(before))
    return gap > max(max(scores) - min(scores) for scores in (before, after))


def judge(metric: Metric, before: Sequence[float], after: Sequence[float], p: float | None) -> SeedScores:
    """Judge the scores of a system's seeds beside those of another; `p` is of the first seeds.

    >>> judge("ter", [60.0], [58.5], p=0.001).result, judge("bleu", [20.0, 21.0], [20.5, 20.9], p=0.001).result
    ('better', 'within the spread of the seeds')
    """
    mean, counts = statistics.fmean(after), (len(before), len(after))
    gap = mean - statistics.fmean(before)
    is_single = counts == (1, 1)
    is_clear = p is not None and p < SIGNIFICANT if is_single else gap_exceeds_spread(before, after)
    result: Result
    if gap == 0:
        result = "equal"
    elif not is_single and 1 in counts:
        result = "not judged"
    elif is_clear:
        result = "better" if (gap > 0) == HIGHER_IS_BETTER[metric] else "worse"
    else:
        result = "within chance" if is_single else "within the spread of the seeds"
    evidence = p_text(p) if is_single else f"means of {counts[0]} and {counts[1]} seeds"
    deviation = statistics.stdev(after) if len(after) > 1 else None
    return SeedScores(mean, deviation, min(after), max(after), gap, result, evidence)


def p_text(p: float | None) -> str:
    """Format p: `p 0.012`; `same` where there was no difference to test."""
    return "same" if p is None else f"p {p:.{3 if p >= 0.0005 else 4}f}"


def best_system(systems: Sequence[SystemScores]) -> int:
    """The place of the first system with the best mean in the first metric."""
    metric = next(iter(systems[0].seeds))
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    return max(range(len(systems)), key=lambda place: sign * systems[place].seeds[metric].mean)


def verdict(
    systems: Sequence[SystemScores], beside_best: Sequence[SystemScores], num_changed: Sequence[int], num_lines: int
) -> tuple[str, ...]:
    """Sum up the scores in sentences: of three and more systems the best one first, then each beside the baseline.

    `beside_best` has the best system by the first metric, and then the others, judged beside it; `num_changed` the
    number of lines in which each system but the baseline differs from it.

    `deep against base: chrF2 better (+0.97, p 0.001); BLEU within chance; 521 of 1,000 translations differ`
    """
    sentences = [_best(*beside_best)] if len(systems) > 2 else []
    baseline = systems[0]
    for system, count in zip(systems[1:], num_changed, strict=True):
        is_single = len(baseline.outputs) == len(system.outputs) == 1
        scores = [(tested.score.name, system.seeds[metric]) for metric, tested in system.outputs[0].scores.items()]
        changed = [f"{count:,} of {num_lines:,} translations differ"] if is_single else []
        if is_single and not count:
            sentences.append(f"{system.name}: the same translations as {baseline.name}")
        else:
            sentences.append(f"{system.name} against {baseline.name}: {'; '.join([*_results(scores), *changed])}")
    return tuple(sentences)


def _best(best: SystemScores, *others: SystemScores) -> str:
    """`Best by BLEU: deep (31.20). Against it: base worse (-1.20, p 0.001); wide within chance`."""
    metric, name = next((metric, one.score.name) for metric, one in best.outputs[0].scores.items())
    mean = f"({'mean ' if len(best.outputs) > 1 else ''}{best.seeds[metric].mean:.2f})"
    if all(one.seeds[metric].result == "equal" for one in others):
        return f"All {1 + len(others)} systems are equal by {name} {mean}"
    results = _results([(one.name, one.seeds[metric]) for one in others])
    return f"Best by {name}: {best.name} {mean}. Against it: {'; '.join(results)}"


def _results(judged: Sequence[tuple[str, SeedScores]]) -> list[str]:
    """The clear results singly, with their evidence, then the names of each other result."""
    clear, unclear = get_args(Result)[:2], get_args(Result)[2:]
    parts = [f"{name} {one.result} ({one.gap:+.2f}, {one.evidence})" for name, one in judged if one.result in clear]
    for result in unclear:
        if names := [name for name, one in judged if one.result == result]:
            parts.append(f"{' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))} {result}")
    return parts
