"""The verdict of a comparison: better, worse, within chance, equal; several systems and several seeds."""

import pytest

from nmt.config.training import Metric
from nmt.evaluation.metrics import Score
from nmt.evaluation.significance import Interval, TestedScore
from nmt.insight.verdict import OutputScores, SystemScores, best_system, judge, verdict

METRICS: tuple[Metric, ...] = ("bleu", "chrf", "ter")
NAMES: dict[Metric, str] = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}
BASE = (20.0, 50.0, 60.0)


def system(name: str, *seeds: tuple[float, ...], ps: tuple[float | None, ...] = (None, None, None)) -> SystemScores:
    """A system with the BLEU, chrF and TER of each seed, and the p of the first."""
    outputs = [
        {
            metric: TestedScore(Score(NAMES[metric], value, ""), Interval(value, value - 1, value + 1), 0.0, p)
            for metric, value, p in zip(METRICS, seed, ps, strict=False)
        }
        for seed in seeds
    ]
    return SystemScores(name, tuple(OutputScores(name, scores, 1.0) for scores in outputs), {})


def of(*systems: SystemScores, changed: int = 521, best_ps: tuple[float | None, ...] = ()) -> tuple[str, ...]:
    return verdict(systems, [changed] * (len(systems) - 1), 1000, best_ps or [None] * len(systems))


def test_of_two_systems_the_clear_metrics_come_first() -> None:
    deep = system("deep", (20.3, 50.97, 59.5), ps=(0.2, 0.001, 0.06))
    assert of(system("base", BASE), deep) == (
        "deep against base: chrF2 better (+0.97, p 0.001); BLEU and TER within chance; "
        "521 of 1,000 translations differ",
    )


def test_a_lower_ter_is_better_and_a_higher_one_worse() -> None:
    (sentence,) = of(system("base", BASE), system("deep", (20.0, 49.0, 58.0), ps=(None, 0.04, 0.0001)))
    assert "TER better (-2.00, p 0.0001)" in sentence
    assert "chrF2 worse (-1.00, p 0.040)" in sentence
    assert "BLEU equal" in sentence


@pytest.mark.parametrize(("p", "result"), [(0.049, "better"), (0.05, "within chance")])
def test_from_which_p_on_it_is_chance(p: float, result: str) -> None:
    assert judge("bleu", [20.0], [21.0], p).result == result


def test_equal_systems_are_called_equal() -> None:
    base, again = system("base", BASE), system("again", BASE)
    assert of(base, again, changed=0) == ("again: the same translations as base",)
    (sentence,) = of(base, again, changed=3)
    assert "BLEU, chrF2 and TER equal; 3 of 1,000 translations differ" in sentence
    assert of(base, again, system("third", BASE))[0] == "All 3 systems are equal by BLEU (20.00)"


def test_of_three_systems_the_best_is_named_with_what_is_within_chance_of_it() -> None:
    base = system("base", BASE)
    deep = system("deep", (21.0, 51.0, 59.0), ps=(0.01, 0.01, 0.01))
    wide = system("wide", (22.0, 50.5, 59.0), ps=(0.001, 0.02, 0.01))
    best, *others = of(base, deep, wide, best_ps=(0.001, 0.3, None))
    assert best == (
        "Best by BLEU: wide (22.00); within chance of it: deep (-1.00, p 0.300); worse: base (-2.00, p 0.001); "
        "best by chrF2: deep (51.00)"
    )
    assert [sentence.split(":")[0] for sentence in others] == ["deep against base", "wide against base"]
    twin = system("twin", (22.0, 50.5, 59.0))
    assert of(base, wide, twin, best_ps=(0.001, None, None))[0].startswith("Best by BLEU: wide and twin (22.00); worse")


def test_the_best_by_ter_has_the_lowest() -> None:
    low, high = system("low", BASE), system("high", (20.0, 50.0, 61.0))
    assert best_system([high, low], "ter") is low


def test_several_seeds_are_judged_by_their_means() -> None:
    base = system("base", (20.0, 50.0, 60.0), (20.4, 50.4, 60.4))
    deep = system("deep", (21.0, 50.1, 59.0), (21.4, 50.5, 59.2), (21.2, 50.3, 59.1), ps=(0.5, 0.0001, 0.5))
    (sentence,) = of(base, deep)
    assert sentence == (
        "deep against base: BLEU better (+1.00, means of 2 and 3 seeds); TER better (-1.10, means of 2 and 3 seeds); "
        "chrF2 within the spread of the seeds"
    )
    one = system("one", (23.0, 50.0, 60.0), ps=(0.001, 0.001, 0.001))
    best, _, against = of(base, deep, one)
    assert best.startswith("Best by BLEU: one (23.00); not judged: base (-2.80, one seed against several), deep (")
    assert against == "one against base: BLEU, chrF2 and TER not judged"
