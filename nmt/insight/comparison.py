"""Comparison of systems: scores with their significance, and differences of the translations.

The first system is the baseline.
"""

import dataclasses
import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
from nmt.insight.changes import Changed, Words, changed_ngrams, changed_sentences, changed_words, word_tags
from nmt.insight.systems import Material, System, Trainings, TranslatedSet
from nmt.insight.verdict import OutputScores, SystemScores, best_system, spread_of, verdict

LISTED = 10
"""Maximum number of sentences, words and n-grams in each list."""
MAX_EXAMPLE_BYTES = 5_000_000
"""Maximum size of the examples on a page, all test sets and systems together."""


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


class PageSentence(NamedTuple):
    """A sentence that changed, as a page has it."""

    sentence: SentenceDifference
    tags: frozenset[str]
    """The rows that it belongs to: `1:20 to 40` is one of the second table of buckets; others as in `word_tags`."""


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
    examples: tuple[PageSentence, ...]
    """All sentences that changed, or those of the largest changes that fit into a page; none if not asked for."""

    @property
    def listed(self) -> tuple[tuple[Changed, ...], ...]:
        """All lists of words and n-grams."""
        return self.words_right_more_often, self.words_right_less_often, self.ngrams_too_many, self.ngrams_too_few


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

    def for_programs(self) -> dict[str, object]:
        """Everything but what only a page shows."""
        content = dataclasses.asdict(self)
        del content["trainings"]
        for test_set in content["test_sets"]:
            for one in test_set["differences"]:
                del one["examples"]
        return content


def compare(
    material: Material, test: Test = "bs", samples: int | None = None, with_examples: bool = False
) -> Comparison:
    """Score, test and compare all outputs of the material; `test` and `samples` as in `paired_test`."""
    language, tokenizer, lowercase = material.tgt_lang, material.settings.bleu_tokenizer, material.lowercase
    metrics = configured_metrics(material.settings, language, lowercase)
    bleu, chrf = make_metrics(("bleu", "chrf"), language, tokenizer, lowercase).values()
    assert isinstance(bleu, BLEU)
    views = [[_View(system, one.references, bleu, chrf) for system in one.systems] for one in material.test_sets]
    references = [_words(bleu, one.references[0]) for one in material.test_sets]
    frequencies = _frequencies(material, bleu, [*references, *(view.words for of_set in views for view in of_set)])
    num_pairs = sum(len(of_systems) - 1 for of_systems in views)
    room = MAX_EXAMPLE_BYTES // num_pairs if with_examples else 0
    test_sets = []
    for one, of_systems, ref_words in zip(material.test_sets, views, references, strict=True):
        scores = _scores(one, metrics, bleu, test, samples)
        buckets = _buckets(one, of_systems, ref_words, frequencies)
        differences = [
            _differences(one, of_systems[0], view, ref_words, _Rows(buckets, number, frequencies), room)
            for number, view in enumerate(of_systems[1:], 1)
        ]
        num_lines, num_changed = len(one.references[0]), [each.num_changed for each in differences]
        sentences = verdict(scores, num_changed, num_lines, _best_ps(one, metrics, scores, test, samples))
        left_out = "" if one.src is None else one.src.lengths.why_left_out
        tables = tuple(table for table, _ in buckets)
        test_sets.append(ComparedSet(one.name, num_lines, scores, sentences, tables, tuple(differences), left_out))
    return Comparison(test, samples or DEFAULT_SAMPLES[test], material.tgt_lang, tuple(test_sets), material.trainings)


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
    scored: list[SystemScores] = []
    for system in test_set.systems:
        outputs = tuple(
            OutputScores(one.name, next(tested), bleu.corpus_score(one.hypotheses, references).ratio)
            for one in system.outputs
        )
        scores = SystemScores(system.name, outputs, {})
        baseline = scored[0] if scored else scores
        for metric in metrics:
            scores.spread[metric] = spread_of(baseline.values(metric), scores.values(metric), baseline is scores)
        scored.append(scores)
    return tuple(scored)


def _best_ps(
    test_set: TranslatedSet,
    metrics: dict[Metric, SacreMetric],
    systems: Sequence[SystemScores],
    test: Test,
    samples: int | None,
) -> list[float | None]:
    """The p of each system against the best of three or more, in the first metric: of the first output of each."""
    metric = next(iter(metrics))
    best = systems.index(best_system(systems))
    if len(systems) < 3 or best == 0:
        return [system.outputs[0].scores[metric].p for system in systems]
    order = sorted(range(len(systems)), key=lambda number: number != best)
    hypotheses = [test_set.systems[number].outputs[0].hypotheses for number in order]
    tested = paired_test({metric: metrics[metric]}, hypotheses, test_set.references, test, samples)
    ps = dict(zip(order, (scores[metric].p for scores in tested), strict=True))
    return [ps[number] for number in range(len(systems))]


class _Table(NamedTuple):
    """A table of buckets."""

    table: BucketTable
    labels: list[list[str]]
    """The bucket of each system's sentences; empty for a table of words."""


def _buckets(
    test_set: TranslatedSet, systems: Sequence[_View], references: Words, frequencies: dict[str, int] | None
) -> list[_Table]:
    """Sentences by source length, by length of the translation, and by score; words by frequency."""

    def by_sentence(by: str, values: Sequence[Sequence[float]], edges: Sequence[int], whole: bool = True) -> _Table:
        columns = [scores_by(one, edges, system.bleu, whole) for one, system in zip(values, systems, strict=True)]
        names = labels(edges, whole)
        of_lines = [[names[bisect_right(edges, value)] for value in one] for one in values]
        return _Table(_filled(by, "sentences", "BLEU", columns), of_lines)

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
        tables.append(
            _Table(_filled("occurrences of the word in the training text", "words", "F-measure", columns), [])
        )
    return tables


def _filled(by: str, unit: str, metric: str, columns: Sequence[Sequence[Bucket]]) -> BucketTable:
    rows = list(zip(*columns, strict=True))
    filled = [number for number, row in enumerate(rows) if any(bucket.score is not None for bucket in row)] or [0]
    return BucketTable(by, unit, metric, tuple(rows[filled[0] : filled[-1] + 1]))


class _Rows(NamedTuple):
    """The rows of all tables of buckets, for a system beside the baseline."""

    tables: Sequence[_Table]
    system: int
    frequencies: dict[str, int] | None

    def tags(self, line: int, baseline: Sequence[str], other: Sequence[str]) -> Iterator[str]:
        """The rows of both translations of a line; by word frequency, those of the words in which they differ."""
        for number, (_, of_lines) in enumerate(self.tables):
            if of_lines:
                yield from (f"{number}:{of_lines[system][line]}" for system in (0, self.system))
            elif self.frequencies is not None:
                before, after = Counter(baseline), Counter(other)
                for word in (before - after) | (after - before):
                    label = FREQUENCY_LABELS[bisect_right(FREQUENCIES, self.frequencies.get(word, 0))]
                    yield f"{number}:{label}"


def _differences(
    test_set: TranslatedSet, baseline: _View, system: _View, references: Words, rows: _Rows, room: int
) -> Differences:
    """The differences, with examples of at most `room` bytes."""

    def sentence(line: int) -> SentenceDifference:
        return SentenceDifference(
            line + 1,
            test_set.src.names[line] if test_set.src is not None else None,
            test_set.references[0][line],
            (baseline.hypotheses[line], system.hypotheses[line]),
            (baseline.sentence_scores[line], system.sentence_scores[line]),
        )

    before, after = baseline.sentence_scores, system.sentence_scores
    better, worse = (tuple(map(sentence, lines)) for lines in changed_sentences(before, after, LISTED))
    more, fewer = changed_words(baseline.words, system.words, references, LISTED)
    too_many, too_few = changed_ngrams(baseline.words, system.words, references, LISTED)
    changed = [
        line
        for line, texts in enumerate(zip(baseline.hypotheses, system.hypotheses, strict=True))
        if texts[0] != texts[1]
    ]
    found = Differences(system.name, len(changed), better, worse, more, fewer, too_many, too_few, ())
    examples = []
    for line in sorted(changed, key=lambda line: -abs(after[line] - before[line])):
        example, words = sentence(line), (baseline.words[line], system.words[line], references[line])
        room -= _page_bytes(example)
        if room < 0:
            break
        tags = (*rows.tags(line, *words[:2]), *word_tags(found.listed, *words))
        examples.append(PageSentence(example, frozenset(tags)))
    return dataclasses.replace(found, examples=tuple(examples))


def _page_bytes(sentence: SentenceDifference) -> int:
    """The size of an example on a page, at most, unless most of its characters are escaped."""
    texts = (sentence.src or "", sentence.reference, *sentence.hypotheses)
    units = sum(len(text) if " " not in text else 2 * len(text.split()) for text in sentence.hypotheses)
    return 1000 + sum(len(text.encode()) for text in texts) + 30 * units
