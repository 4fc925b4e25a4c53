"""Confidence intervals and paired tests: sacreBLEU's own, where no difference is not a small p."""

import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest
from test_evaluation import ALL, SENTENCES, corrupted, sacrebleu_command

import nmt.evaluation.significance
from nmt.config.training import Metric
from nmt.errors import ConfigError
from nmt.evaluation.metrics import make_metrics, score
from nmt.evaluation.significance import Interval, Test, confidence_intervals, paired_test

WriteLines = Callable[[str, list[str]], Path]
TRUTH = SENTENCES["de"] * 8
NEAR, FAR = corrupted(TRUTH, seed=1), corrupted(corrupted(TRUTH, seed=2), seed=3)
NAMES: dict[Metric, str] = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}


def half_width(interval: Interval) -> float:
    """What sacreBLEU's command prints as ±."""
    return (interval.high - interval.low) / 2


def paired_command(reference: Path, systems: list[Path], test: Test) -> list[list[list[float]]]:
    """The numbers of sacreBLEU's paired tests, by system and metric: score, mean, half width, p, or without some.

    From its LaTeX, as its JSON fails where a number is a float32.
    """
    command = [sys.executable, "-m", "sacrebleu", str(reference), "-i", *map(str, systems), f"--paired-{test}",
               f"--paired-{test}-n", "200", "-m", "bleu", "chrf", "ter", "-f", "latex", "-w", "6"]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, encoding="utf-8").stdout
    rows = shown.partition("midrule")[2].partition("bottomrule")[0].strip().splitlines()
    cells = [row.split("&")[1:] for row in rows if "&" in row]
    return [[[float(number) for number in re.findall(r"\d+\.\d+", cell)] for cell in row] for row in cells]


@pytest.mark.parametrize("test", ["bs", pytest.param("ar", marks=pytest.mark.slow)])
def test_p_values_and_intervals_are_those_of_sacrebleus_command(write_lines: WriteLines, test: Test) -> None:
    files = [write_lines("near.de", NEAR), write_lines("far.de", FAR)]
    shown = paired_command(write_lines("ref.de", TRUTH), files, test)
    ours = paired_test(make_metrics(ALL, "de"), [NEAR, FAR], [TRUTH], test, samples=200)
    for row, system in zip(shown, ours, strict=True):
        for expected, tested in zip(row, system.values(), strict=True):
            one = tested.interval
            interval = [one.mean, half_width(one)] if test == "bs" else []  # it shows none for ar
            p = [] if tested.p is None else [tested.p]
            assert expected == pytest.approx([tested.score.value, *interval, *p], abs=6e-5)
    assert [tested.p for tested in ours[0].values()] == [None] * 3
    assert all(0 < (tested.p or 0) < 0.05 for tested in ours[1].values())


@pytest.mark.parametrize("test", ["bs", "ar"])
def test_blocks_draw_what_sacrebleu_draws_at_once(test: Test) -> None:
    """To the bit; 33 draws of 57 lines fill no block, no byte and no word."""
    systems, references = [NEAR, FAR, TRUTH[::-1]], [TRUTH, corrupted(TRUTH, seed=9)]
    systems, references = [lines * 2 for lines in systems], [lines * 2 for lines in references]
    systems, references = [lines[:57] for lines in systems], [lines[:57] for lines in references]
    ours = paired_test(make_metrics(ALL, "de"), systems, references, test, samples=33)
    for name, metric in make_metrics(ALL, "de").items():
        named = [(str(number), lines) for number, lines in enumerate(systems)]
        _, scores = PairedTest(named, {name: metric}, references, test, 33, 1000)()
        for result, tested in zip(scores[NAMES[name]], ours, strict=True):
            one = tested[name]
            assert (result.score, result.mean) == (one.score.value, one.interval.mean)
            assert result.ci == pytest.approx(half_width(one.interval), rel=1e-5)  # it subtracts in float32
            assert result.p_value == one.p


@pytest.mark.parametrize("test", ["bs", "ar"])
def test_the_memory_of_a_test_does_not_grow_with_its_samples(test: Test, monkeypatch: pytest.MonkeyPatch) -> None:
    """All draws of these lines at once are 50 MB, and for 200,000 lines 10 GB."""
    monkeypatch.setattr(nmt.evaluation.significance, "CONFIDENCE_SAMPLES", 200)
    metric = make_metrics(["bleu"], "de")["bleu"]
    line = metric._extract_corpus_statistics(["a b c d"], [["a b c"]])
    monkeypatch.setattr(metric, "_extract_corpus_statistics", lambda lines, references: line * 5000)
    tracemalloc.start()
    try:
        paired_test({"bleu": metric}, [[], []], [[]], test, samples={"bs": 200, "ar": 1000}[test])
        confidence_intervals({"bleu": metric}, [], [[]])
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_intervals_are_those_of_sacrebleus_command(write_lines: WriteLines) -> None:
    options = ["--confidence", "--confidence-n", "1000"]
    shown = sacrebleu_command(write_lines("hyp.de", NEAR), [write_lines("ref.de", TRUTH)], *options)
    metrics = make_metrics(ALL, "de")
    before = score(metrics, NEAR, [TRUTH])
    for name, interval in confidence_intervals(metrics, NEAR, [TRUTH]).items():
        # Its scores of chrF and TER are float32, and so are their means.
        assert interval.mean == pytest.approx(shown[NAMES[name]]["confidence_mean"], abs=5e-6)
        assert half_width(interval) == pytest.approx(shown[NAMES[name]]["confidence_var"], abs=5e-6)
        assert interval.low < interval.mean < interval.high
    assert score(metrics, NEAR, [TRUTH]) == before  # the signatures too


def test_a_system_that_has_nearly_nothing_right_has_intervals() -> None:
    """A third of the resampled sets miss the one sentence with a match: their score is 0, and of another type."""
    hypotheses, references = ["Hund", *["x"] * 7], ["Hund", *["y"] * 7]
    (interval,) = confidence_intervals(make_metrics(["chrf"], "de"), hypotheses, [references]).values()
    drawn = np.random.default_rng(12345).choice(8, size=(1000, 8))
    sets = [([hypotheses[line] for line in lines], [references[line] for line in lines]) for lines in drawn]
    scores = sorted(CHRF().corpus_score(ours, [theirs]).score for ours, theirs in sets)
    assert scores[0] == 0 < scores[-1]
    assert interval.mean == pytest.approx(np.mean(scores), abs=1e-4)
    assert (interval.low, interval.high) == pytest.approx((scores[25], scores[-26]), abs=1e-4)


def test_a_perfect_score_is_within_its_interval() -> None:
    for interval in confidence_intervals(make_metrics(["bleu", "ter"], "de"), TRUTH, [TRUTH]).values():
        assert interval.low == interval.high == pytest.approx(interval.mean)
    nearly = [*TRUTH[1:], "x"]
    (interval,) = confidence_intervals(make_metrics(["bleu"], "de"), nearly, [[*TRUTH[1:], TRUTH[0]]]).values()
    assert interval.low < interval.mean < interval.high <= 100 + 1e-9
    assert interval.high - interval.mean < interval.mean - interval.low  # skewed, as the scores end at 100


@pytest.mark.parametrize("test", ["bs", "ar"])
def test_no_difference_has_no_p(test: Test) -> None:
    """sacreBLEU gives these p = 1 / (samples + 1). TER ignores case, so its scores are the same for other outputs."""
    shouted = [line.upper() for line in NEAR]
    metrics = make_metrics(ALL, "de")
    _, same, upper = paired_test(metrics, [NEAR, list(NEAR), shouted], [TRUTH], test, samples=20)
    assert [(tested.difference, tested.p) for tested in same.values()] == [(0, None)] * 3
    assert (upper["ter"].difference, upper["ter"].p) == (0, None)
    assert upper["bleu"].difference < 0
    assert upper["bleu"].p == pytest.approx(1 / 21)


@pytest.mark.parametrize("test", ["bs", "ar"])
def test_swapped_systems_mirror_each_other(test: Test) -> None:
    metrics = make_metrics(("bleu", "ter"), "de")
    forth, back = (paired_test(metrics, order, [TRUTH], test, samples=50) for order in ([NEAR, FAR], [FAR, NEAR]))
    for name in metrics:
        assert forth[1][name].p == back[1][name].p
        assert forth[1][name].difference == -back[1][name].difference
        assert forth[0][name].score == back[1][name].score
        if test == "bs":
            assert half_width(forth[0][name].interval) == pytest.approx(half_width(back[1][name].interval))


def test_a_random_seed_draws_the_same_lines_for_all_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    first, second, third = (
        paired_test(make_metrics(("bleu",), "de"), [NEAR] * 2, [TRUTH], samples=50) for _ in range(3)
    )
    assert all(one["bleu"].interval == other["bleu"].interval for one, other in (first, second, third))
    assert len({one["bleu"].interval for one, _ in (first, second, third)}) > 1


@pytest.mark.parametrize("seed", ["abc", "-1", ""])
def test_a_seed_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    with refused(ConfigError, f"SACREBLEU_SEED={seed}: is no seed"):
        paired_test(make_metrics(ALL, "de"), [NEAR, FAR], [TRUTH], "bs", samples=20)
