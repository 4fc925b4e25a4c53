"""Buckets partition a set, and their statistics add up to the scores of sacreBLEU's command."""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_evaluation import ALL, SENTENCES, corrupted, sacrebleu_command

from nmt.config.source import TEXT, ImageSource, VectorSource
from nmt.evaluation.buckets import (
    LENGTH_DIFFERENCES,
    SENTENCE_SCORES,
    SOURCE_LENGTHS,
    SentenceStatistics,
    SourceLengths,
    count_words,
    partition,
    scores_by,
    words_by_frequency,
)
from nmt.evaluation.metrics import make_metrics, score

WriteLines = Callable[[str, list[str]], Path]
WORDS = st.lists(st.sampled_from(["ein", "Hund", "rennt", ",", "über", "Bälle", "."]), max_size=12)


def test_sources_that_are_no_text_are_counted_in_vectors_and_patches() -> None:
    vectors = [np.zeros((length, 2), np.float32) for length in (3, 0, 700)]
    found = SourceLengths.of(vectors, VectorSource(type="vectors", features=2), "zxx")
    assert (found.values, found.unit, found.why_left_out) == ((3, 0, 700), "vectors", "")
    assert [len(bucket) for bucket in partition(found.values, found.edges)] == [2, 0, 0, 0, 0, 0, 1, 0]
    patches = [np.zeros((4, 48), np.uint8)] * 2
    same = SourceLengths.of(patches, ImageSource(type="images", image_size=8, patch_size=4), "zxx")
    assert same.why_left_out == "BLEU by source length is left out: every source has 4 patches."
    words = SourceLengths.of(["ein Hund", "eine Katze"], TEXT, "de")  # of a test set of text, one row says something
    assert (words.values, words.unit, words.why_left_out) == ((2, 2), "words", "")
    assert SourceLengths.of(["一只小狗。"], TEXT, "zh").unit == "characters"


@settings(max_examples=30)
@given(
    st.lists(st.integers(-40, 80) | st.floats(0, 100)),
    st.sampled_from([SOURCE_LENGTHS, LENGTH_DIFFERENCES, SENTENCE_SCORES]),
)
def test_each_sentence_is_in_the_one_bucket_of_its_value(values: list[float], edges: tuple[int, ...]) -> None:
    found = partition(values, edges)
    assert sorted(itertools.chain(*found)) == list(range(len(values)))
    limits = [float("-inf"), *edges, float("inf")]
    for lines, (low, high) in zip(found, itertools.pairwise(limits), strict=True):
        assert all(low <= values[line] < high for line in lines)


@pytest.mark.parametrize("num_references", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_sums_over_buckets_give_the_score_of_sacrebleus_command(write_lines: WriteLines, num_references: int) -> None:
    truth = SENTENCES["de"] * 5
    guess = corrupted(truth, seed=4)
    references = [corrupted(truth, seed=10 + number) for number in range(num_references)]
    files = [write_lines(f"ref{number}.de", lines) for number, lines in enumerate(references)]
    shown = sacrebleu_command(write_lines("hyp.de", guess), files)
    lengths = SourceLengths.of(truth, TEXT, "de").values
    for name, metric in make_metrics(ALL, "de").items():
        statistics = SentenceStatistics(metric, guess, references)
        scores = statistics.sentence_scores()
        for values, edges in ((lengths, (5, 8, 12)), (scores, (30, 60, 90))):
            parts = [statistics.sums(lines) for lines in partition(values, edges)]
            assert len([part for part in parts if part]) > 1
            total = [sum(column) for column in zip(*(part for part in parts if part), strict=True)]
            recombined = statistics.score_of(total)
            assert recombined is not None
            assert round(recombined, 6) == shown["chrF2" if name == "chrf" else name.upper()]["score"]
            whole = score({name: metric}, guess, references)[name].value
            assert recombined == pytest.approx(whole, rel=1e-14)
            if num_references == 1:  # thirds of a word are not summed exactly
                assert recombined == whole


@settings(max_examples=30)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=8), st.integers(0))
def test_any_partition_recombines_to_the_last_digit(pairs: list[tuple[list[str], list[str]]], seed: int) -> None:
    guess, truth = ([" ".join(words) for words in side] for side in zip(*pairs, strict=True))
    chance = random.Random(seed)
    for metric in make_metrics(ALL, "de").values():
        statistics = SentenceStatistics(metric, guess, [truth])
        values = [chance.random() * 100 for _ in guess]
        sums = [part for lines in partition(values, SENTENCE_SCORES) if (part := statistics.sums(lines))]
        total = [sum(column) for column in zip(*sums, strict=True)]
        assert statistics.score_of(total) == metric.corpus_score(guess, [truth]).score


def test_a_buckets_score_is_that_of_its_sentences_alone() -> None:
    truth = SENTENCES["de"] * 3
    guess = corrupted(truth, seed=6)
    lengths = SourceLengths.of(truth, TEXT, "de").values
    metric = make_metrics(["bleu"], "de")["bleu"]
    rows = scores_by(lengths, (7, 9, 11, 20), SentenceStatistics(metric, guess, [truth]))
    assert [row.label for row in rows] == ["below 7", "7 to 8", "9 to 10", "11 to 19", "20 or more"]
    for row, (low, high) in zip(rows, itertools.pairwise([0, 7, 9, 11, 20, 99]), strict=True):
        chosen = [line for line, length in enumerate(lengths) if low <= length < high]
        assert row.count == len(chosen)
        alone = [[side[line] for line in chosen] for side in (guess, truth)]
        assert row.score == (metric.corpus_score(alone[0], [alone[1]]).score if chosen else None)


def test_lengths_are_words_or_characters() -> None:
    assert SourceLengths.of(["ein Hund  rennt .", ""], TEXT, "de").values == (4, 0)
    assert SourceLengths.of(["一只 小狗。", ""], TEXT, "zh").values == (5, 0)
    assert SourceLengths.of(["一只 小狗。"], TEXT, "").values == (2,)


def test_words_by_frequency_by_hand() -> None:
    """As compare-mt defines it: 2 of 3 "a" agree in the first sentence, and no "b"; "c" was never seen in training."""
    hypotheses = [["a", "a", "a", "b"], ["c", "b"]]
    references = [["a", "a", "c"], ["c", "b", "b"]]
    rows = words_by_frequency(hypotheses, references, {"a": 7, "b": 2, "c": 0})
    found = [(row.label, row.count) for row in rows]
    assert found == [("0", 2), ("1", 0), ("2", 2), ("3 to 4", 0), ("5 to 9", 2), ("10 to 99", 0), ("100 to 999", 0),
                     ("1000 or more", 0)]  # fmt: skip
    # precision 1, recall 1/2; nothing; 1/2 and 1/2; nothing; 2/3 and 1
    assert [row.score for row in rows] == [pytest.approx(200 / 3), None, 50, None, 80, None, None, None]


@settings(max_examples=30)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=8))
def test_words_are_bleus_unigrams(pairs: list[tuple[list[str], list[str]]]) -> None:
    hypotheses, references = ([pair[side] for pair in pairs] for side in (0, 1))
    frequencies = {"ein": 0, "Hund": 1, "rennt": 4, ",": 5000, "über": 30, "Bälle": 300, ".": 100}
    total = sum(map(len, references))
    assert sum(row.count for row in words_by_frequency(hypotheses, references, frequencies)) == total
    lines = [[" ".join(words) for words in side] for side in (hypotheses, references)]
    matched, produced, _ = map(int, _unigrams(lines[0], lines[1]))
    never_seen = words_by_frequency(hypotheses, references, {})[0]
    assert never_seen.count == total
    assert never_seen.score == (200 * matched / (produced + total) if produced + total else None)


def _unigrams(hypotheses: list[str], references: list[str]) -> tuple[int, int, int]:
    result = make_metrics(["bleu"], "de")["bleu"].corpus_score(hypotheses, [references])
    return result.counts[0], result.totals[0], result.ref_len


def test_only_wanted_words_are_counted() -> None:
    text = ["ein Hund, ein Ball", "Ein Hund."]
    tokenize = make_metrics(["bleu"], "de")["bleu"].tokenizer
    words = Counter(itertools.chain(*(tokenize(line).split() for line in text)))
    assert count_words(text, tokenize, frozenset(["ein", "Hund", "Katze", "."])) == {
        "ein": words["ein"], "Hund": words["Hund"], "Katze": 0, ".": words["."]
    }  # fmt: skip
    assert words["ein"] == words["Hund"] == 2
