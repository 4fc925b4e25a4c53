"""How far scores depend on the sentences of the test set: sacreBLEU's bootstrap and its paired tests.

All of it resamples the sentences of one test set. It says nothing about how far another training, with another seed,
would score from this one.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.significance import PairedTest, Result, _bootstrap_resample, estimate_ci

from nmt.config.evaluation import Metric
from nmt.evaluation.metrics import Score

Test = Literal["bs", "ar"]
"""Paired bootstrap resampling (Koehn 2004), or approximate randomization (Riezler and Maxwell 2005)."""
DEFAULT_SAMPLES: dict[Test, int] = {"bs": 1000, "ar": 10_000}  # sacreBLEU's
CONFIDENCE_SAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Interval:
    """A confidence interval of a corpus score by the bootstrap: `mean` ± `half_width`."""

    mean: float
    """Mean score of the resampled test sets."""
    half_width: float
    level: float = 0.95

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half_width


@dataclasses.dataclass(frozen=True)
class TestedScore:
    """A system's score on a test set, and how it differs from the baseline's."""

    __test__ = False  # pytest: not a test

    score: Score
    interval: Interval
    difference: float
    """The score minus the baseline's; 0 for the baseline itself."""
    p: float | None
    """Probability of a difference this large between equally good systems; None where there is no difference to test:
    for the baseline, and for a system with the baseline's score."""


def confidence_intervals(
    metrics: Mapping[Metric, SacreMetric], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[Metric, Interval]:
    """95% intervals of a system's scores, as `sacrebleu --confidence` prints them.

    The seed is sacreBLEU's: 12345, or SACREBLEU_SEED in the environment.
    """
    intervals = {}
    for name, metric in metrics.items():
        # As `corpus_score` with `n_bootstrap`, whose mean fails where some resampled scores are float32 and others, of
        # sets without any match, are not.
        statistics = metric._extract_corpus_statistics(hypotheses, references)
        _, scores = _bootstrap_resample(statistics, metric, CONFIDENCE_SAMPLES)
        mean, half_width = estimate_ci(np.array([one.score for one in scores], dtype=np.float64))
        intervals[name] = Interval(float(mean), float(half_width))
    return intervals


def paired_test(
    metrics: Mapping[Metric, SacreMetric],
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    test: Test = "bs",
    samples: int | None = None,
) -> list[dict[Metric, TestedScore]]:
    """Scores of each system's hypotheses, tested against those of the first, the baseline.

    `samples` are resampled test sets (`bs`) or random exchanges of outputs (`ar`); by default as many as sacreBLEU
    uses. sacreBLEU gives a system with the baseline's score the smallest possible p (0.001 with 1,000 samples), since
    it counts the samples that differ by more than 0; such a p is left out.
    """
    named = [(str(number), hypotheses) for number, hypotheses in enumerate(systems)]
    count = samples or DEFAULT_SAMPLES[test]
    tested: list[dict[Metric, TestedScore]] = [{} for _ in systems]
    for name, metric in metrics.items():
        _, scores = PairedTest(named, {name: metric}, references, test, count, CONFIDENCE_SAMPLES)()
        (title,) = (key for key in scores if key != "System")  # sacreBLEU's name: chrF2
        results = [result for result in scores[title] if isinstance(result, Result)]
        signature = str(metric.get_signature())
        for one, result in zip(tested, results, strict=True):
            assert result.mean is not None and result.ci is not None
            difference = result.score - results[0].score
            interval = Interval(float(result.mean), float(result.ci))
            p = result.p_value if difference else None
            one[name] = TestedScore(Score(title, result.score, signature), interval, difference, p)
    return tested


def paired_interval(
    metric: SacreMetric, first: Sequence[str], second: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[float, float]:
    """A 95% interval of the score of `second` minus that of `first`, by a paired bootstrap.

    Koehn 2004: each sample draws as many lines as there are, with replacement, the same for both systems. The interval
    holds the middle 95% of the samples' differences. The draws depend on the number of lines alone.
    """
    one, other = (
        np.array(metric._extract_corpus_statistics(lines, references), dtype=np.float64) for lines in (first, second)
    )
    generator = np.random.default_rng(12345)  # sacreBLEU's seed

    def score_of(sums: NDArray[np.float64]) -> float:
        return float(metric._compute_score_from_stats(list(sums)).score)

    differences = []
    for _ in range(CONFIDENCE_SAMPLES // 100):  # so that little is in memory
        # How often each line is drawn: (samples, lines).
        counts = generator.multinomial(len(one), np.full(len(one), 1 / len(one)), size=100)
        differences += [score_of(b) - score_of(a) for a, b in zip(counts @ one, counts @ other, strict=True)]
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)
