"""Significance of scores and of their differences: sacreBLEU's bootstrap and its paired tests.

All of them resample the sentences of a test set. They say nothing about the variance between trainings with different
seeds.
"""

import dataclasses
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.significance import _compute_p_value

from nmt.config.training import Metric
from nmt.errors import ConfigError
from nmt.evaluation.metrics import Score

Test = Literal["bs", "ar"]
"""Paired bootstrap resampling (Koehn 2004), or approximate randomization (Riezler and Maxwell 2005)."""
DEFAULT_SAMPLES: dict[Test, int] = {"bs": 1000, "ar": 10_000}  # sacreBLEU's
CONFIDENCE_SAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Interval:
    """95% confidence interval of a corpus score by the bootstrap: the middle 95% of the resampled test sets' scores."""

    mean: float
    """Mean score of the resampled test sets."""
    low: float
    """The score below which 2.5% of them lie."""
    high: float
    """The score above which 2.5% of them lie."""

    @classmethod
    def of(cls, scores: NDArray[Any]) -> "Interval":
        """The interval of resampled scores, cut where sacreBLEU cuts them."""
        ordered = np.sort(scores)
        cut = len(ordered) // 40
        return cls(float(ordered.mean()), float(ordered[cut]), float(ordered[-cut - 1]))


@dataclasses.dataclass(frozen=True)
class TestedScore:
    """Score of a system on a test set, tested against the baseline's."""

    __test__ = False  # pytest: not a test

    score: Score
    interval: Interval
    difference: float
    """The score minus the baseline's; 0 for the baseline itself."""
    p: float | None
    """Probability of a difference this large between equally good systems; None for the baseline, and for a system with
    the baseline's score."""


def confidence_intervals(
    metrics: Mapping[Metric, SacreMetric], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[Metric, Interval]:
    """95% intervals of a system's scores, from the resampled test sets of `sacrebleu --confidence`.

    The seed is sacreBLEU's: 12345, or SACREBLEU_SEED in the environment.
    """
    intervals = {}
    for name, metric in metrics.items():
        statistics = metric._extract_corpus_statistics(hypotheses, references)
        scores = _resampled(metric, statistics, CONFIDENCE_SAMPLES, np.random.default_rng(_seed()))
        # Scores may be float32, except those of sets without any match.
        intervals[name] = Interval.of(np.array(scores, dtype=np.float64))
    return intervals


def paired_test(
    metrics: Mapping[Metric, SacreMetric],
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    test: Test = "bs",
    samples: int | None = None,
) -> list[dict[Metric, TestedScore]]:
    """Scores of each system's hypotheses, tested against those of the first system, the baseline.

    `samples` is the number of resampled test sets (`bs`) or random exchanges of outputs (`ar`), by default sacreBLEU's.
    sacreBLEU gives a system with the baseline's score the smallest possible p (0.001 with 1,000 samples), since it
    counts the samples that differ by more than 0; here its p is None.
    """
    count = samples or DEFAULT_SAMPLES[test]
    tested: list[dict[Metric, TestedScore]] = [{} for _ in systems]
    seed = _seed()
    for name, metric in metrics.items():
        baseline: tuple[Any, NDArray[Any]] | None = None
        for hypotheses, of_system in zip(systems, tested, strict=True):
            statistics = metric._extract_corpus_statistics(hypotheses, references)
            generator = np.random.default_rng(seed)  # the same draws for all systems
            result = metric._aggregate_and_compute(statistics)
            changes = (
                _exchanged(metric, baseline[0], statistics, count, generator) if baseline and test == "ar" else None
            )
            sets = count if test == "bs" else CONFIDENCE_SAMPLES
            resampled = np.array(_resampled(metric, statistics, sets, generator))
            baseline = baseline or (statistics, resampled)
            if changes is None:
                changes = np.abs(resampled - baseline[1])
                changes -= changes.mean()
            score = Score(result.name, result.score, str(metric.get_signature()))
            first = tested[0][name].score if name in tested[0] else score
            difference = score.value - first.value
            p = _compute_p_value(changes, abs(difference)) if difference else None
            of_system[name] = TestedScore(score, Interval.of(resampled), difference, p)
    return tested


def _seed() -> int:
    """The seed of sacreBLEU's generator: 12345 or SACREBLEU_SEED; a random one if that is `none`."""
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if not seed.isdecimal() and seed.lower() != "none":
        raise ConfigError(f"SACREBLEU_SEED={seed}: is no seed; give a whole number, or none")
    return int(seed) if seed.isdecimal() else secrets.randbits(63)


def _resampled(metric: SacreMetric, statistics: Any, samples: int, generator: np.random.Generator) -> list[float]:
    """The scores of resampled test sets, as sacreBLEU's, but drawn singly: all sets of 200,000 lines take 10 GB."""
    sums = np.array(statistics, dtype=np.float32)
    drawn = (sums[generator.choice(len(sums), len(sums))].sum(0) for _ in range(samples))
    return [metric._compute_score_from_stats(sample).score for sample in drawn]


def _exchanged(metric: SacreMetric, a: Any, b: Any, samples: int, generator: np.random.Generator) -> NDArray[Any]:
    """Differences of two systems whose outputs are exchanged at random, as sacreBLEU's, but 32 samples at a time.

    numpy draws bits by 32, so that blocks of 32 samples have the same bits as all samples at once.
    """
    a, b = np.array(a, dtype=np.float64), np.array(b, dtype=np.float64)
    differences: list[float] = []
    for start in range(0, samples, 32):
        kept = generator.integers(2, size=(min(32, samples - start), len(a)), dtype=bool)
        for systems in zip(kept @ a + ~kept @ b, ~kept @ a + kept @ b, strict=True):
            differences.append(np.ptp([metric._aggregate_and_compute(sums[None]).score for sums in systems]))
    return np.array(differences)


def paired_interval(
    metric: SacreMetric, first: Sequence[str], second: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[float, float]:
    """The 95% confidence interval of the score of `second` minus that of `first`, by a paired bootstrap (Koehn 2004).

    Each sample draws as many lines as there are, with replacement, the same for both systems. The interval holds the
    middle 95% of the samples' differences.
    """
    seed = _seed()
    before, after = (metric._extract_corpus_statistics(lines, references) for lines in (first, second))
    scores = [_resampled(metric, one, CONFIDENCE_SAMPLES, np.random.default_rng(seed)) for one in (before, after)]
    low, high = np.quantile(np.diff(scores, axis=0), [0.025, 0.975])
    return float(low), float(high)
