"""The table that finds duplicates, against Python's sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nmt.data.duplicates import HASH_BYTES, PairTable, pair_hash

KEYS = st.lists(st.tuples(st.sampled_from([0, 1, 2, 2**64 - 1]), st.integers(0, 12)), max_size=60)


def in_a_row(keys: list[tuple[int, int]]) -> NDArray[np.uint8]:
    return np.array(keys, dtype=np.uint64).reshape(-1, 2).view(np.uint8).reshape(-1)


@given(keys=KEYS, block=st.integers(1, 70), spare=st.integers(0, 5))
def test_only_the_first_of_equal_hashes_is_new(keys: list[tuple[int, int]], block: int, spare: int) -> None:
    # Few different halves, so that many hashes collide. A first half of 0 counts as 1.
    table = PairTable(len(keys) + spare)
    found = [
        bool(is_new)
        for start in range(0, len(keys), block)
        for is_new in table.add(in_a_row(keys[start : start + block]))
    ]
    seen: set[tuple[int, int]] = set()
    expected = []
    for first, second in keys:
        key = (max(first, 1), second)
        expected.append(key not in seen)
        seen.add(key)
    assert found == expected


def test_a_hundred_thousand_hashes_in_blocks_agree_with_a_set() -> None:
    chance = np.random.default_rng(0)
    hashes = [pair_hash(str(number), "x") for number in chance.integers(50_000, size=100_000).tolist()]
    table = PairTable(len(hashes))
    seen: set[bytes] = set()
    for start in range(0, len(hashes), 2000):
        block = hashes[start : start + 2000]
        expected = []
        for one in block:
            expected.append(one not in seen)
            seen.add(one)
        assert table.add(np.frombuffer(b"".join(block), dtype=np.uint8)).tolist() == expected
    assert 40_000 < len(seen) < 50_000


@pytest.mark.parametrize("num_pairs", [1, 2, 3, 10, 1001, 123_457])
def test_the_table_takes_at_most_24_bytes_a_pair_and_holds_as_many(num_pairs: int) -> None:
    table = PairTable(num_pairs)
    assert table.nbytes <= 24 * num_pairs
    hashes = b"".join(pair_hash(str(number), "") for number in range(num_pairs))
    assert table.add(np.frombuffer(hashes, dtype=np.uint8)).all()


def test_pairs_with_the_same_concatenation_are_distinguished() -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a ", "bc"), ("é", "x"), ("e\u0301", "x")]
    assert len({pair_hash(*pair) for pair in pairs}) == len(pairs)
    assert {len(pair_hash(*pair)) for pair in pairs} == {HASH_BYTES}
    assert pair_hash("a", "b") == pair_hash("a", "b")
