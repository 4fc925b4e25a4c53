"""The verdict of a comparison: better, worse, within chance, equal; several systems and several seeds."""

import pytest

from nmt.config.training import Metric
from nmt.evaluation.metrics import Score
from nmt.evaluation.significance import Interval, TestedScore
from nmt.insight.verdict import OutputScores, SystemScores, best_system, judge, verdict

Outputs = tuple[str, list[OutputScores]]
METRICS: tuple[Metric, ...] = ("bleu", "chrf", "ter")
NAMES: dict[Metric, str] = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}
BASE = (20.0, 50.0, 60.0)


def outputs(name: str, *seeds: tuple[float, ...], ps: tuple[float | None, ...] = (None, None, None)) -> Outputs:
    """A system with the BLEU, chrF and TER of each seed, and the p of the first."""
    scores = [
        {
            metric: TestedScore(Score(NAMES[metric], value, ""), Interval(value, value - 1, value + 1), 0.0, p)
            for metric, value, p in zip(METRICS, seed, ps, strict=False)
        }
        for seed in seeds
    ]
    return name, [OutputScores(name, one, 1.0) for one in scores]


def of(*systems: Outputs, changed: int = 521, best: tuple[Outputs, ...] = ()) -> tuple[str, ...]:
    """The verdict; `best` has the best system, and then the others with their p beside it."""
    scores, beside_best = (
        [SystemScores.of(name, one, some[0][1]) for name, one in some] for some in (systems, best or systems)
    )
    return verdict(scores, beside_best, [changed] * (len(systems) - 1), 1000)


def test_of_two_systems_the_clear_metrics_come_first() -> None:
    deep = outputs("deep", (20.3, 50.97, 59.5), ps=(0.2, 0.001, 0.06))
    assert of(outputs("base", BASE), deep) == (
        "deep against base: chrF2 better (+0.97, p 0.001); BLEU and TER within chance; "
        "521 of 1,000 translations differ",
    )


def test_a_lower_ter_is_better_and_a_higher_one_worse() -> None:
    (sentence,) = of(outputs("base", BASE), outputs("deep", (20.0, 49.0, 58.0), ps=(None, 0.04, 0.0001)))
    assert "TER better (-2.00, p 0.0001)" in sentence
    assert "chrF2 worse (-1.00, p 0.040)" in sentence
    assert "BLEU equal" in sentence


@pytest.mark.parametrize(("p", "result"), [(0.049, "better"), (0.05, "within chance")])
def test_from_which_p_on_it_is_chance(p: float, result: str) -> None:
    assert judge("bleu", [20.0], [21.0], p).result == result


def test_equal_systems_are_called_equal() -> None:
    base, again = outputs("base", BASE), outputs("again", BASE)
    assert of(base, again, changed=0) == ("again: the same translations as base",)
    (sentence,) = of(base, again, changed=3)
    assert "BLEU, chrF2 and TER equal; 3 of 1,000 translations differ" in sentence
    assert of(base, again, outputs("third", BASE))[0] == "All 3 systems are equal by BLEU (20.00)"


def test_of_three_systems_the_best_is_named_with_what_is_within_chance_of_it() -> None:
    base = outputs("base", BASE)
    deep = outputs("deep", (21.0, 51.0, 59.0), ps=(0.01, 0.01, 0.01))
    wide = outputs("wide", (22.0, 50.5, 59.0), ps=(0.001, 0.02, 0.01))
    beside_wide = (
        wide,
        outputs("base", BASE, ps=(0.001, 0.02, 0.01)),
        outputs("deep", (21.0, 51.0, 59.0), ps=(0.3, 0.3, None)),
    )
    best, *others = of(base, deep, wide, best=beside_wide)
    assert best == "Best by BLEU: wide (22.00). Against it: base worse (-2.00, p 0.001); deep within chance"
    assert [sentence.split(":")[0] for sentence in others] == ["deep against base", "wide against base"]
    twin = outputs("twin", (22.0, 50.5, 59.0))
    assert of(base, wide, twin, best=(wide, beside_wide[1], twin))[0].endswith(
        "base worse (-2.00, p 0.001); twin equal"
    )


def test_the_best_by_ter_has_the_lowest() -> None:
    scores = {
        name: OutputScores(name, {"ter": TestedScore(Score("TER", value, ""), Interval(value, 0, 100), 0.0, None)}, 1.0)
        for name, value in (("high", 61.0), ("low", 60.0))
    }
    assert best_system([SystemScores.of(name, [one], [one]) for name, one in scores.items()]) == 1


def test_several_seeds_are_judged_by_their_means() -> None:
    base = outputs("base", (20.0, 50.0, 60.0), (20.4, 50.4, 60.4))
    deep = outputs("deep", (21.0, 50.1, 59.0), (21.4, 50.5, 59.2), (21.2, 50.3, 59.1), ps=(0.5, 0.0001, 0.5))
    (sentence,) = of(base, deep)
    assert sentence == (
        "deep against base: BLEU better (+1.00, means of 2 and 3 seeds); TER better (-1.10, means of 2 and 3 seeds); "
        "chrF2 within the spread of the seeds"
    )
    one = outputs("one", (23.0, 50.0, 60.0), ps=(0.001, 0.001, 0.001))
    best, _, against = of(base, deep, one, best=(one, base, deep))
    assert best == "Best by BLEU: one (23.00). Against it: base and deep not judged"
    assert of(base, deep, deep, best=(deep, base, deep))[0].startswith(
        "Best by BLEU: deep (mean 21.20). Against it: base"
    )
    assert against == "one against base: BLEU, chrF2 and TER not judged"
