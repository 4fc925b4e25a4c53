"""Sentences that occur more than once, against Python's sets and counters."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nmt.cleaning.sentence_index import SentenceIndex, independent, pair_hashes, sentence_hashes, times_before
from nmt.config.corpus import CorpusFiles

WriteLines = Callable[[str, list[str]], Path]
LINES = st.sampled_from(["", "a", "b", "ab", "e\u0301"])
PAIRS = st.lists(st.tuples(LINES, LINES), max_size=60)


@given(pairs=PAIRS)
def test_repetitions_agree_with_a_counter(pairs: list[tuple[str, str]]) -> None:
    hashes = sentence_hashes(pairs)
    assert hashes.shape == (2, len(pairs))
    columns: list[list[object]] = [[src for src, _ in pairs], [tgt for _, tgt in pairs], [*pairs]]
    for column, of_column in zip(columns, (*hashes, pair_hashes(hashes)), strict=True):
        seen, expected = Counter[object](), []
        for one in column:
            expected.append(seen[one])
            seen[one] += 1
        assert times_before(of_column).tolist() == expected


def test_a_hundred_thousand_sentences_agree_with_a_set() -> None:
    lines = [str(number) for number in np.random.default_rng(0).integers(50_000, size=100_000).tolist()]
    hashes = sentence_hashes((line, None) for line in lines)
    assert not hashes[1].any()
    assert np.count_nonzero(times_before(hashes[0]) == 0) == len(set(lines)) > 40_000


def test_pairs_with_the_same_concatenation_are_distinguished() -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a ", "bc"), ("é", "x"), ("e\u0301", "x")]
    assert len(set(pair_hashes(sentence_hashes(pairs)).tolist())) == len(pairs)


def test_a_sentence_is_a_normalized_line_of_its_side(write_lines: WriteLines) -> None:
    files = CorpusFiles(src=write_lines("t.en", ["cafe\u0301  x", "", "no"]), tgt=write_lines("t.de", ["y ", "z", ""]))
    index = SentenceIndex([files])
    assert index.pairs == [("café x", "y"), ("", "z"), ("no", "")]
    shared = [index.shares(*pair) for pair in [("café x", "y"), ("no", "q"), ("q", "z"), ("z", "no"), ("", "")]]
    assert shared == [True, True, True, False, False]
    assert list(independent([("a", "b"), ("a ", "c"), ("d", "c"), ("e", "b")])) == [("a", "b"), ("d", "c")]
