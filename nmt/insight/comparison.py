"""Comparison of systems: scores with their significance, and differences of the translations.

The first system is the baseline. Words that systems have right or wrong are counted as in compare-mt (Neubig et al.
2019), and ordered by how far two systems differ.
"""

import dataclasses
import itertools
import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.metrics.bleu import BLEU

from nmt.config.training import Metric
from nmt.evaluation.buckets import (
    FREQUENCIES,
    FREQUENCY_LABELS,
    LENGTH_DIFFERENCES,
    SENTENCE_SCORES,
    Bucket,
    SentenceStatistics,
    count_words,
    labels,
    scores_by,
    words_by_frequency,
)
from nmt.evaluation.metrics import configured_metrics, make_metrics
from nmt.evaluation.significance import DEFAULT_SAMPLES, Test, paired_test
from nmt.insight.systems import Material, System, Trainings, TranslatedSet
from nmt.insight.verdict import OutputScores, SystemScores, best_system, verdict

MAX_LISTED = 10
"""Maximum number of words in each list."""
MAX_NGRAM = 4
Words = Sequence[Sequence[str]]
"""The words of each sentence."""


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
class Changed:
    """A word or n-gram that two systems have right, or wrong, a different number of times."""

    text: str
    expected: int
    """Occurrences in the references."""
    counts: tuple[int, int]
    """The numbers of times in the baseline and in the other system, counted sentence by sentence."""


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
    rows: tuple[str, ...]
    """The rows of the tables that it belongs to: `source length in words: 20 to 29`, `right more often: Hund`."""

    @property
    def change(self) -> float:
        """The chrF of the other system minus the baseline's."""
        return self.scores[1] - self.scores[0]


@dataclasses.dataclass(frozen=True)
class Differences:
    """Differences between a system's first output and the baseline's, the largest first."""

    system: str
    num_changed: int
    """Number of lines that differ."""
    words: dict[str, tuple[Changed, ...]]
    """At most `MAX_LISTED` for each of `right more often`, `right less often`, and so on for `_KINDS`."""
    sentences: tuple[SentenceDifference, ...]
    """All that changed."""


@dataclasses.dataclass(frozen=True)
class ComparedSet:
    """One test set."""

    name: str
    num_lines: int
    systems: tuple[SystemScores, ...]
    """The first is the baseline. `buckets` and `differences` are about the first output of each."""
    verdict: tuple[str, ...]
    """The scores in sentences."""
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
    trainings: Trainings


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
        scores = beside_best = _scores(one.systems, one.references, metrics, bleu, test, samples)
        if len(scores) > 2 and (best := best_system(scores)):
            order = sorted(one.systems, key=lambda system: system is not one.systems[best])
            first = dict(itertools.islice(metrics.items(), 1))
            beside_best = _scores(order, one.references, first, bleu, test, samples)
        tables = _buckets(one, of_systems, ref_words, frequencies)
        differences = [_differences(one, of_systems, number, ref_words, tables) for number in range(1, len(of_systems))]
        num_lines = len(one.references[0])
        sentences = verdict(scores, beside_best, [each.num_changed for each in differences], num_lines)
        left_out = "" if one.src is None else one.src.lengths.why_left_out
        buckets = tuple(table for table, _ in tables)
        test_sets.append(ComparedSet(one.name, num_lines, scores, sentences, buckets, tuple(differences), left_out))
    return Comparison(test, samples or DEFAULT_SAMPLES[test], material.tgt_lang, tuple(test_sets), material.trainings)


class _View:
    """The first output of a system, with its words and sentence scores."""

    def __init__(self, system: System, references: list[list[str]], bleu: BLEU, chrf: SacreMetric) -> None:
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
    systems: Sequence[System],
    references: list[list[str]],
    metrics: Mapping[Metric, SacreMetric],
    bleu: BLEU,
    test: Test,
    samples: int | None,
) -> tuple[SystemScores, ...]:
    """The scores of systems, each beside the first."""
    hypotheses = [output.hypotheses for system in systems for output in system.outputs]
    tested = iter(paired_test(metrics, hypotheses, references, test, samples))
    scored: list[SystemScores] = []
    for system in systems:
        outputs = [
            OutputScores(one.name, next(tested), bleu.corpus_score(one.hypotheses, references).ratio)
            for one in system.outputs
        ]
        scored.append(SystemScores.of(system.name, outputs, scored[0].outputs if scored else outputs))
    return tuple(scored)


_Rows = Callable[[int, int], set[str]]
"""The rows of a table to which a line (from 0) belongs, by a system's translation or the baseline's."""
_Table = tuple[BucketTable, _Rows]


def _buckets(
    test_set: TranslatedSet, systems: Sequence[_View], references: Words, frequencies: dict[str, int] | None
) -> list[_Table]:
    """Sentences by source length, by length of the translation, and by score; words by frequency."""

    def by_sentence(by: str, values: Sequence[Sequence[float]], edges: Sequence[int]) -> _Table:
        whole = edges is not SENTENCE_SCORES
        columns = [scores_by(one, edges, system.bleu, whole) for one, system in zip(values, systems, strict=True)]
        names = labels(edges, whole)
        return (
            _filled(by, "sentences", "BLEU", columns),
            lambda system, line: {names[bisect_right(edges, values[one][line])] for one in (0, system)},
        )

    def of_different_words(system: int, line: int) -> set[str]:
        before, after = (Counter(systems[one].words[line]) for one in (0, system))
        counts = [(frequencies or {}).get(word, 0) for word in (before - after) | (after - before)]
        return {FREQUENCY_LABELS[bisect_right(FREQUENCIES, count)] for count in counts}

    tables = []
    if test_set.src is not None and not (lengths := test_set.src.lengths).why_left_out:
        by = f"source length in {lengths.unit}"
        tables.append(by_sentence(by, [lengths.values] * len(systems), lengths.edges))
    longer = [
        [len(ours) - len(theirs) for ours, theirs in zip(system.words, references, strict=True)] for system in systems
    ]
    tables.append(by_sentence("translation's length minus reference's, in words", longer, LENGTH_DIFFERENCES))
    scores = [system.sentence_scores for system in systems]
    tables.append(by_sentence("chrF of the sentence", scores, SENTENCE_SCORES))
    if frequencies is not None:
        columns = [words_by_frequency(system.words, references, frequencies) for system in systems]
        by = "occurrences of the word in the training text"
        tables.append((_filled(by, "words", "F-measure", columns), of_different_words))
    return tables


def _filled(by: str, unit: str, metric: str, columns: Sequence[Sequence[Bucket]]) -> BucketTable:
    rows = list(zip(*columns, strict=True))
    filled = [number for number, row in enumerate(rows) if any(bucket.score is not None for bucket in row)] or [0]
    return BucketTable(by, unit, metric, tuple(rows[filled[0] : filled[-1] + 1]))


def _differences(
    test_set: TranslatedSet, systems: Sequence[_View], number: int, references: Words, tables: Sequence[_Table]
) -> Differences:
    baseline, system = systems[0], systems[number]
    words = changed_words(baseline.words, system.words, references, MAX_LISTED)
    sentences = []
    for line, texts in enumerate(zip(baseline.hypotheses, system.hypotheses, strict=True)):
        if texts[0] != texts[1]:
            src = test_set.src.names[line] if test_set.src is not None else None
            scores = baseline.sentence_scores[line], system.sentence_scores[line]
            rows = [f"{table.by}: {row}" for table, rows in tables for row in sorted(rows(number, line))]
            rows += _rows_of_words(words, baseline.words[line], system.words[line], references[line])
            sentences.append(
                SentenceDifference(line + 1, src, test_set.references[0][line], texts, scores, tuple(rows))
            )
    sentences.sort(key=lambda sentence: -abs(sentence.change))
    return Differences(test_set.systems[number].outputs[0].name, len(sentences), words, tuple(sentences))


_KINDS: dict[str, Callable[[Counter[str], Counter[str]], Counter[str]]] = {
    "right": lambda ours, theirs: Counter({one: count for one, count in (ours & theirs).items() if " " not in one}),
    "superfluous": operator.sub,
    "missing": lambda ours, theirs: Counter({one: count for one, count in (theirs - ours).items() if " " in one}),
}
"""Kinds of n-grams: words of both translation and reference, n-grams of the translation only, of the reference only.

A word that is missing more often is right less often, so missing n-grams are longer."""


def changed_words(baseline: Words, other: Words, references: Words, limit: int) -> dict[str, tuple[Changed, ...]]:
    """Find the words and n-grams of `_KINDS` whose number differs between two systems.

    An n-gram that only occurs inside a longer one of the list is left out.

    >>> changed_words([["a", "b"], ["c"]], [["a", "d"], ["d", "a"]], [["a", "c"], ["c", "d"]], 1)["right more often"]
    (Changed(text='d', expected=1, counts=(0, 1)),)
    """
    ngrams, others, expected = ([_ngrams(words) for words in text] for text in (baseline, other, references))
    total = Counter(ngram for one in expected for ngram in one.elements())
    listed = {}
    for kind, chosen in _KINDS.items():
        before, after = (
            Counter(ngram for pair in zip(one, expected, strict=True) for ngram in chosen(*pair).elements())
            for one in (ngrams, others)
        )
        for often, largest in (("more", _largest(after, before, limit)), ("less", _largest(before, after, limit))):
            listed[f"{kind} {often} often"] = tuple(
                Changed(ngram, total[ngram], (before[ngram], after[ngram])) for ngram in largest
            )
    return listed


def _ngrams(words: Sequence[str]) -> Counter[str]:
    starts = range(len(words))
    return Counter(" ".join(words[i : i + n]) for n in range(1, MAX_NGRAM + 1) for i in starts if i + n <= len(words))


def _largest(more: Counter[str], less: Counter[str], limit: int) -> list[str]:
    """The n-grams that `more` has more often, the largest difference first; ties by length, then by alphabet."""
    gaps = more - less
    found: list[str] = []
    for ngram in sorted(gaps, key=lambda ngram: (-gaps[ngram], -ngram.count(" "), ngram)):
        if len(found) == limit:
            break
        alike = (longer for longer in found if (more[ngram], less[ngram]) == (more[longer], less[longer]))
        if not any(f" {ngram} " in f" {longer} " for longer in alike):
            found.append(ngram)
    return found


def _rows_of_words(
    listed: Mapping[str, Sequence[Changed]], baseline: Sequence[str], other: Sequence[str], reference: Sequence[str]
) -> Iterator[str]:
    """The listed words and n-grams that a sentence has right, or wrong, a different number of times."""
    before, after, expected = map(_ngrams, (baseline, other, reference))
    for title, words in listed.items():
        chosen = _KINDS[title.split()[0]]
        old, new = chosen(before, expected), chosen(after, expected)
        yield from (f"{title}: {one.text}" for one in words if old[one.text] != new[one.text])
