"""Mixtures: exact numbers, fresh subsets, and the same pairs for the same epoch."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.batches.batches import plan_epoch
from nmt.batches.mixture import describe_mixture, epoch_counts, pairs_of_epoch
from nmt.config.corpus import HeldOutFiles, TrainingFiles
from nmt.config.data import DataConfig
from nmt.errors import DataError


def data(weights: Sequence[float], temperature: float | None = None) -> DataConfig:
    train = tuple(
        TrainingFiles(src=Path(f"c{index}.en"), tgt=Path(f"c{index}.de"), weight=weight)
        for index, weight in enumerate(weights)
    )
    validation = HeldOutFiles(src=Path("v.en"), tgt=Path("v.de"))
    return DataConfig(train=train, validation=validation, temperature=temperature, src_lang="en", tgt_lang="de")


MIXTURES = st.lists(
    st.tuples(st.integers(1, 50), st.sampled_from([0.25, 0.5, 1, 1.5, 2, 2.2, 3])), min_size=1, max_size=4
)


@given(mixture=MIXTURES, seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 9))
def test_each_pair_occurs_as_often_as_its_weight_says(mixture: list[tuple[int, float]], seed: int, epoch: int) -> None:
    sizes, weights = zip(*mixture, strict=True)
    if not sum(round(size * weight) for size, weight in mixture):
        return
    pairs = pairs_of_epoch(sizes, data(weights), seed, epoch)
    times = Counter(range(sum(sizes)) if pairs is None else pairs.tolist())
    assert all(0 <= pair < sum(sizes) for pair in times)
    begin = 0
    for size, weight in mixture:
        occurrences = [times[pair] for pair in range(begin, begin + size)]
        assert sum(occurrences) == round(size * weight)
        # Whole parts for all, the fraction without replacement: no pair is two ahead of another.
        assert {round(size * weight) // size, -(-round(size * weight) // size)} >= set(occurrences)
        begin += size


def test_a_fraction_is_drawn_again_in_every_epoch_and_deterministic() -> None:
    settings = data([1, 0.3])
    epochs = [pairs_of_epoch([100, 1000], settings, 7, epoch) for epoch in range(4)]
    drawn = []
    for pairs in epochs:
        assert pairs is not None
        assert sorted(pairs.tolist())[:100] == list(range(100))
        drawn.append({pair for pair in pairs.tolist() if pair >= 100})
        assert len(drawn[-1]) == 300
    assert len(set(map(frozenset, drawn))) == 4
    # Drawn evenly: two subsets share 90 pairs, with a deviation of 6.6.
    assert 60 < len(drawn[0] & drawn[1]) < 120
    again = pairs_of_epoch([100, 1000], settings, 7, 2)
    np.testing.assert_array_equal(again, epochs[2])
    assert not np.array_equal(pairs_of_epoch([100, 1000], settings, 8, 2), epochs[2])


def test_without_weights_an_epoch_is_every_pair_once() -> None:
    assert pairs_of_epoch([5, 7], data([1, 1]), 1, 0) is None
    assert pairs_of_epoch([5, 7], data([1, 1], temperature=1), 1, 0) is None
    assert describe_mixture([5, 7], data([1, 1])) == ""


@pytest.mark.parametrize("temperature", [1, 1.5, 5, 100])
@pytest.mark.parametrize("sizes", [[1_000_000, 10_000, 300], [10, 10, 0], [7], [3, 5, 11]])
def test_a_temperature_shares_an_epoch_by_the_roots_of_the_sizes(temperature: float, sizes: list[int]) -> None:
    counts = epoch_counts(sizes, data([1] * len(sizes), temperature))
    roots = [size ** (1 / temperature) if size else 0 for size in sizes]
    assert sum(counts) == sum(sizes)
    for count, root in zip(counts, roots, strict=True):
        assert abs(count - sum(sizes) * root / sum(roots)) <= 1


def test_the_opening_line_says_the_shares() -> None:
    assert describe_mixture([1000, 3000], data([3, 1])) == "c0.en 50.0%, c1.en 50.0% of 6,000 pairs an epoch"


def test_a_plan_holds_the_pairs_of_its_mixture(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    src, tgt = chance.integers(1, 30, size=(2, 500)).astype(np.int32)
    pairs = pairs_of_epoch([400, 100], data([0.5, 3.5]), 1, 0)
    assert pairs is not None
    plan = plan_epoch(src, tgt, 200, 1, 0, pairs)
    assert Counter(index for batch in plan for index in batch.tolist()) == Counter(pairs.tolist())
    for batch in plan:
        assert (max(src[batch].max(), tgt[batch].max()) + 1) * len(batch) <= 200


def test_weights_that_leave_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="leave no pair"):
        pairs_of_epoch([3, 4], data([0.01, 0.01]), 1, 0)
