"""Comparison of systems: scores with their significance, and differences of the translations.

The first system is the baseline. Differences are in sentences, words and n-grams; n-grams that are too many or too few
are those of compare-mt (Neubig et al. 2019), ordered by how far two systems differ.
"""

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.metrics.bleu import BLEU

from nmt.config.training import Metric
from nmt.evaluation.buckets import (
    LENGTH_DIFFERENCES,
    SENTENCE_SCORES,
    Bucket,
    SentenceStatistics,
    count_words,
    scores_by,
    words_by_frequency,
)
from nmt.evaluation.metrics import configured_metrics, make_metrics
from nmt.evaluation.significance import DEFAULT_SAMPLES, Test, TestedScore, paired_test
from nmt.insight.systems import Material, System, TranslatedSet

MAX_NGRAM = 4
Words = Sequence[Sequence[str]]
"""The words of each sentence."""
Key = TypeVar("Key", str, tuple[str, ...])


@dataclasses.dataclass(frozen=True)
class Changed:
    """A word or n-gram that two systems get right, or produce too often or too rarely, a different number of times."""

    text: str
    expected: int
    """Occurrences in the references."""
    counts: tuple[int, int]
    """The numbers of times in the baseline and in the other system, counted sentence by sentence."""


def changed_sentences(before: Sequence[float], after: Sequence[float], limit: int) -> tuple[list[int], list[int]]:
    """Find the sentences whose score rose most, and fell most: at most `limit` of each, largest change first.

    >>> changed_sentences([50, 50, 50, 50], [50, 60, 20, 90], limit=2)
    ([3, 1], [2])
    """
    changes = [new - old for old, new in zip(before, after, strict=True)]
    rising = sorted((line for line, change in enumerate(changes) if change > 0), key=lambda line: -changes[line])
    falling = sorted((line for line, change in enumerate(changes) if change < 0), key=lambda line: changes[line])
    return rising[:limit], falling[:limit]


def changed_words(
    baseline: Words, other: Words, references: Words, limit: int
) -> tuple[tuple[Changed, ...], tuple[Changed, ...]]:
    """Find the words that the other system gets right more often than the baseline, and less often.

    >>> changed_words([["a", "b"], ["c"]], [["a", "d"], ["d", "a"]], [["a", "c"], ["c", "d"]], limit=5)
    ((Changed(text='d', expected=1, counts=(0, 1)),), (Changed(text='c', expected=2, counts=(1, 0)),))
    """
    expected = _total(Counter(words) for words in references)
    right = [
        _total(Counter(ours) & Counter(theirs) for ours, theirs in zip(words, references, strict=True))
        for words in (baseline, other)
    ]
    largest = _largest_changes(*right)
    found = [Changed(word, expected[word], (right[0][word], right[1][word])) for word in largest]
    more = tuple(one for one in found if one.counts[1] > one.counts[0])
    fewer = tuple(one for one in found if one.counts[1] < one.counts[0])
    return more[:limit], fewer[:limit]


def changed_ngrams(
    baseline: Words, other: Words, references: Words, limit: int
) -> tuple[tuple[Changed, ...], tuple[Changed, ...]]:
    """Find the n-grams of 1 to 4 words that differ most in how often they are too many, and too few.

    An n-gram that only occurs inside a longer one of the list is left out.
    """
    expected = [_ngrams(words) for words in references]
    both = [
        [(_ngrams(ours), theirs) for ours, theirs in zip(system, expected, strict=True)] for system in (baseline, other)
    ]
    too_many = [_total(ours - theirs for ours, theirs in pairs) for pairs in both]
    too_few = [_total(theirs - ours for ours, theirs in pairs) for pairs in both]
    total = _total(expected)
    more, fewer = (
        tuple(Changed(" ".join(one), total[one], (before[one], after[one])) for one in _listed(before, after, limit))
        for before, after in (too_many, too_few)
    )
    return more, fewer


def _ngrams(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    starts = range(len(words))
    return Counter(tuple(words[i : i + n]) for n in range(1, MAX_NGRAM + 1) for i in starts if i + n <= len(words))


def _listed(baseline: Counter[tuple[str, ...]], other: Counter[tuple[str, ...]], limit: int) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for ngram in _largest_changes(baseline, other):
        if len(found) == limit:
            break
        counts = baseline[ngram], other[ngram]
        if not any(counts == (baseline[longer], other[longer]) and _is_part(ngram, longer) for longer in found):
            found.append(ngram)
    return found


def _is_part(ngram: tuple[str, ...], longer: tuple[str, ...]) -> bool:
    return any(longer[start : start + len(ngram)] == ngram for start in range(len(longer) - len(ngram) + 1))


def _largest_changes(baseline: Counter[Key], other: Counter[Key]) -> list[Key]:
    """The keys with different counts, the largest difference first; ties by length, then by alphabet."""
    keys = [key for key in baseline.keys() | other.keys() if baseline[key] != other[key]]
    return sorted(keys, key=lambda key: (-abs(baseline[key] - other[key]), -len(key), key))


def _total(counts: Iterable[Counter[Key]]) -> Counter[Key]:
    total: Counter[Key] = Counter()
    for one in counts:
        total.update(one)
    return total


LISTED = 10
"""Maximum number of sentences, words and n-grams in each list."""


@dataclasses.dataclass(frozen=True)
class OutputScores:
    """The scores of one output."""

    name: str
    scores: dict[Metric, TestedScore]
    """`p` and `difference` compare with the first output of all."""
    length_ratio: float
    """Length of the translations divided by that of the references, in BLEU's words."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """Scores of a system's seeds in one metric, and the distance of their mean from the baseline's."""

    count: int
    mean: float
    deviation: float | None
    """Standard deviation of a sample; None for one seed."""
    low: float
    high: float
    gap: float
    """This mean minus the baseline's."""
    gap_exceeds_spread: bool | None
    """`gap_exceeds_spread`; None for the baseline, and if this system or the baseline has one seed only."""


@dataclasses.dataclass(frozen=True)
class SystemScores:
    """The outputs of a system, and the spread of their seeds."""

    name: str
    outputs: tuple[OutputScores, ...]
    spread: dict[Metric, Spread]


@dataclasses.dataclass(frozen=True)
class BucketTable:
    """Scores by a partition of the test set; rows at both ends that are empty for all systems are left out."""

    by: str
    unit: str
    """Unit of the buckets' counts: sentences or words."""
    metric: str
    """Name of the buckets' scores."""
    rows: tuple[tuple[Bucket, ...], ...]
    """For each label, the bucket of each system."""


@dataclasses.dataclass(frozen=True)
class SentenceDifference:
    """A sentence that changed."""

    line: int
    """From 1."""
    src: str | None
    """The line, or the name of the vectors or the image; None if the sources are unknown."""
    reference: str
    hypotheses: tuple[str, str]
    """The baseline's and the other system's."""
    scores: tuple[float, float]
    """chrF of the two."""


@dataclasses.dataclass(frozen=True)
class Differences:
    """Differences between a system's first output and the baseline's, at most `LISTED` of each kind, largest first."""

    system: str
    num_changed: int
    """Number of lines that differ."""
    better: tuple[SentenceDifference, ...]
    worse: tuple[SentenceDifference, ...]
    words_right_more_often: tuple[Changed, ...]
    words_right_less_often: tuple[Changed, ...]
    ngrams_too_many: tuple[Changed, ...]
    ngrams_too_few: tuple[Changed, ...]


@dataclasses.dataclass(frozen=True)
class ComparedSet:
    """One test set."""

    name: str
    num_lines: int
    systems: tuple[SystemScores, ...]
    """The first is the baseline. `buckets` and `differences` are about the first output of each."""
    buckets: tuple[BucketTable, ...]
    differences: tuple[Differences, ...]
    """One for each system but the baseline."""
    left_out: str
    """The table that is left out because it says nothing about this set, with the reason; or empty."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Systems compared on test sets."""

    test: Test
    samples: int
    tgt_lang: str
    test_sets: tuple[ComparedSet, ...]


def compare(material: Material, test: Test = "bs", samples: int | None = None) -> Comparison:
    """Score, test and compare all outputs of the material; `test` and `samples` as in `paired_test`."""
    language, tokenizer, lowercase = material.tgt_lang, material.settings.bleu_tokenizer, material.lowercase
    metrics = configured_metrics(material.settings, language, lowercase)
    bleu, chrf = make_metrics(("bleu", "chrf"), language, tokenizer, lowercase).values()
    assert isinstance(bleu, BLEU)
    views = [[_View(system, one.references, bleu, chrf) for system in one.systems] for one in material.test_sets]
    references = [_words(bleu, one.references[0]) for one in material.test_sets]
    frequencies = _frequencies(material, bleu, [*references, *(view.words for of_set in views for view in of_set)])
    test_sets = []
    for one, of_systems, ref_words in zip(material.test_sets, views, references, strict=True):
        buckets = _buckets(one, of_systems, ref_words, frequencies)
        scores = _scores(one, metrics, bleu, test, samples)
        differences = [_differences(one, of_systems[0], view, ref_words) for view in of_systems[1:]]
        left_out = "" if one.src is None else one.src.lengths.why_left_out
        test_sets.append(ComparedSet(one.name, len(one.references[0]), scores, buckets, tuple(differences), left_out))
    return Comparison(test, samples or DEFAULT_SAMPLES[test], material.tgt_lang, tuple(test_sets))


class _View:
    """The first output of a system, with its words and sentence scores."""

    def __init__(self, system: System, references: list[list[str]], bleu: BLEU, chrf: SacreMetric) -> None:
        self.name = system.outputs[0].name
        self.hypotheses = system.outputs[0].hypotheses
        self.words = _words(bleu, self.hypotheses)
        self.bleu = SentenceStatistics(bleu, self.hypotheses, references)
        self.sentence_scores = SentenceStatistics(chrf, self.hypotheses, references).sentence_scores()


def _words(bleu: BLEU, lines: Sequence[str]) -> list[list[str]]:
    """The words that BLEU counts."""
    return [bleu.tokenizer(line.rstrip()).split() for line in lines]


def _frequencies(material: Material, bleu: BLEU, texts: Sequence[Words]) -> dict[str, int] | None:
    """Count the words of the texts in the training text; None without one."""
    if not material.train:
        return None
    wanted = frozenset(word for words in texts for sentence in words for word in sentence)
    lines = itertools.chain.from_iterable(side.lines() for side in material.train)
    return count_words(lines, bleu.tokenizer, wanted)


def _scores(
    test_set: TranslatedSet, metrics: dict[Metric, SacreMetric], bleu: BLEU, test: Test, samples: int | None
) -> tuple[SystemScores, ...]:
    references = test_set.references
    hypotheses = [output.hypotheses for system in test_set.systems for output in system.outputs]
    tested = iter(paired_test(metrics, hypotheses, references, test, samples))
    scored = [
        tuple(
            OutputScores(one.name, next(tested), bleu.corpus_score(one.hypotheses, references).ratio)
            for one in system.outputs
        )
        for system in test_set.systems
    ]
    return tuple(
        SystemScores(system.name, of_system, {metric: _spread(scored[0], of_system, metric) for metric in metrics})
        for system, of_system in zip(test_set.systems, scored, strict=True)
    )


def gap_exceeds_spread(before: Sequence[float], after: Sequence[float]) -> bool:
    """True if the means of two systems are farther apart than the lowest and the highest score of either."""
    gap = abs(statistics.fmean(after) - statistics.fmean(before))
    return gap > max(max(scores) - min(scores) for scores in (before, after))


def _spread(baseline: Sequence[OutputScores], system: Sequence[OutputScores], metric: Metric) -> Spread:
    before, after = ([output.scores[metric].score.value for output in outputs] for outputs in (baseline, system))
    mean = statistics.fmean(after)
    gap = mean - statistics.fmean(before)
    is_judged = system is not baseline and min(len(before), len(after)) > 1
    exceeds = gap_exceeds_spread(before, after) if is_judged else None
    deviation = statistics.stdev(after) if len(after) > 1 else None
    return Spread(len(after), mean, deviation, min(after), max(after), gap, exceeds)


def _buckets(
    test_set: TranslatedSet, systems: Sequence[_View], references: Words, frequencies: dict[str, int] | None
) -> tuple[BucketTable, ...]:
    """Sentences by source length, by length of the translation, and by score; words by frequency."""

    def by_sentence(
        by: str, values: Sequence[Sequence[float]], edges: Sequence[int], whole: bool = True
    ) -> BucketTable:
        columns = [scores_by(one, edges, system.bleu, whole) for one, system in zip(values, systems, strict=True)]
        return _table(by, "sentences", "BLEU", columns)

    tables = []
    if test_set.src is not None and not (lengths := test_set.src.lengths).why_left_out:
        by = f"source length in {lengths.unit}"
        tables.append(by_sentence(by, [lengths.values] * len(systems), lengths.edges))
    longer = [
        [len(ours) - len(theirs) for ours, theirs in zip(system.words, references, strict=True)] for system in systems
    ]
    tables.append(by_sentence("translation's length minus reference's, in words", longer, LENGTH_DIFFERENCES))
    scores = [system.sentence_scores for system in systems]
    tables.append(by_sentence("chrF of the sentence", scores, SENTENCE_SCORES, whole=False))
    if frequencies is not None:
        columns = [words_by_frequency(system.words, references, frequencies) for system in systems]
        tables.append(_table("occurrences of the word in the training text", "words", "F-measure", columns))
    return tuple(tables)


def _table(by: str, unit: str, metric: str, columns: Sequence[Sequence[Bucket]]) -> BucketTable:
    rows = list(zip(*columns, strict=True))
    filled = [number for number, row in enumerate(rows) if any(bucket.score is not None for bucket in row)] or [0]
    return BucketTable(by, unit, metric, tuple(rows[filled[0] : filled[-1] + 1]))


def _differences(test_set: TranslatedSet, baseline: _View, system: _View, references: Words) -> Differences:
    def sentences(lines: Sequence[int]) -> tuple[SentenceDifference, ...]:
        return tuple(
            SentenceDifference(
                line + 1,
                test_set.src.names[line] if test_set.src is not None else None,
                test_set.references[0][line],
                (baseline.hypotheses[line], system.hypotheses[line]),
                (baseline.sentence_scores[line], system.sentence_scores[line]),
            )
            for line in lines
        )

    better, worse = changed_sentences(baseline.sentence_scores, system.sentence_scores, LISTED)
    more, fewer = changed_words(baseline.words, system.words, references, LISTED)
    too_many, too_few = changed_ngrams(baseline.words, system.words, references, LISTED)
    num_changed = sum(one != other for one, other in zip(baseline.hypotheses, system.hypotheses, strict=True))
    return Differences(system.name, num_changed, sentences(better), sentences(worse), more, fewer, too_many, too_few)
