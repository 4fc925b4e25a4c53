"""Scores by bucket: sentences by their length or score, words by their frequency in the training text.

Buckets partition a test set. A bucket's score is computed from the sum of its sentences' statistics, so the sums of all
buckets give the corpus score.
"""

import dataclasses
import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from sacrebleu.metrics.base import Metric as SacreMetric

from nmt.config.languages import is_without_spaces
from nmt.config.source import SourceConfig
from nmt.decoding.source_text import Item

# Buckets begin at these values; the first one begins below them.
SOURCE_LENGTHS = (10, 20, 30, 40, 50, 60)
VECTOR_LENGTHS = (10, 20, 50, 100, 200, 500, 1000)
LENGTH_DIFFERENCES = (-10, -5, -2, 0, 1, 3, 6, 11)
SENTENCE_SCORES = (20, 40, 60, 80)
FREQUENCIES = (1, 2, 3, 5, 10, 100, 1000)


class SentenceStatistics:
    """Statistics of each sentence that a metric sums up for a corpus: matched and total n-grams, edits, lengths.

    sacreBLEU's public functions do not return them. Its own significance tests use the same two methods.
    """

    def __init__(self, metric: SacreMetric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        self._metric = metric
        self._rows: list[list[float]] = metric._extract_corpus_statistics(hypotheses, references)

    def sums(self, lines: Iterable[int]) -> list[float]:
        """Sum the statistics of some sentences; empty for none. Sums of disjoint sentences may be added."""
        return [sum(column) for column in zip(*(self._rows[line] for line in lines), strict=True)]

    def score_of(self, sums: Sequence[float]) -> float | None:
        """Compute the corpus score from `sums`; None for no sentence."""
        return float(self._metric._compute_score_from_stats(list(sums)).score) if sums else None

    def score(self, lines: Iterable[int]) -> float | None:
        """Compute the corpus score of some sentences; None for no sentence."""
        return self.score_of(self.sums(lines))

    def sentence_scores(self) -> list[float]:
        """Compute each sentence's score as a corpus of its own. BLEU is mostly 0, so chrF is the metric to use."""
        return [float(self._metric._compute_score_from_stats(list(row)).score) for row in self._rows]


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Score of the sentences or words of a bucket."""

    label: str
    count: int
    score: float | None
    """Corpus score of these sentences, or F-measure of these words; None for an empty bucket."""


def partition(values: Sequence[float], edges: Sequence[float]) -> list[list[int]]:
    """The positions of the values in each bucket; bucket k begins at edge k - 1, so there is one more than edges.

    >>> partition([5, 10, 3, 30], (10, 20))
    [[0, 2], [1], [3]]
    """
    buckets: list[list[int]] = [[] for _ in range(len(edges) + 1)]
    for position, value in enumerate(values):
        buckets[bisect_right(edges, value)].append(position)
    return buckets


def labels(edges: Sequence[int], whole: bool = True) -> list[str]:
    """The name of each bucket, of whole numbers or of any.

    >>> labels((1, 2, 10)), labels((20, 40), whole=False)
    (['below 1', '1', '2 to 9', '10 or more'], ['below 20', '20 to 40', '40 or more'])
    """
    between = [
        f"{low}" if whole and high == low + 1 else f"{low} to {high - 1 if whole else high}"
        for low, high in itertools.pairwise(edges)
    ]
    return [f"below {edges[0]}", *between, f"{edges[-1]} or more"]


FREQUENCY_LABELS = ("0", *labels(FREQUENCIES)[1:])


def scores_by(
    values: Sequence[float], edges: Sequence[int], statistics: SentenceStatistics, whole: bool = True
) -> tuple[Bucket, ...]:
    """The score of each bucket; `values` holds a number for each sentence, whole or not."""
    buckets = zip(labels(edges, whole), partition(values, edges), strict=True)
    return tuple(Bucket(label, len(lines), statistics.score(lines)) for label, lines in buckets)


class SourceLengths(NamedTuple):
    """Lengths of the sources of a test set."""

    values: tuple[int, ...]
    unit: str
    """Words, characters, vectors or patches."""
    edges: tuple[int, ...]
    """Of the buckets."""

    @classmethod
    def of(cls, sources: Sequence[Item], source: SourceConfig, language: str) -> "SourceLengths":
        """Count a line's words, or its characters in a language without spaces; else vectors or patches."""
        if source.type == "text":
            words = [item.split() for item in sources if isinstance(item, str)]
            if language and is_without_spaces(language):
                return cls(tuple(sum(map(len, line)) for line in words), "characters", SOURCE_LENGTHS)
            return cls(tuple(map(len, words)), "words", SOURCE_LENGTHS)
        return cls(tuple(map(len, sources)), "patches" if source.type == "images" else "vectors", VECTOR_LENGTHS)

    @property
    def why_left_out(self) -> str:
        """The reason to omit scores by these lengths: they are all the same, as those of images are; '' for none."""
        if self.unit not in ("vectors", "patches") or len(set(self.values)) > 1:
            return ""
        return f"BLEU by source length is left out: every source has {self.values[0]:,} {self.unit}."


def words_by_frequency(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]], frequencies: Mapping[str, int]
) -> tuple[Bucket, ...]:
    """The words of the references by their frequency in the training text, with their F-measures.

    As in compare-mt, 0 to 100: the harmonic mean of precision and recall. The matches of a word in a sentence are the
    smaller of its two counts there.
    """

    def by_bucket(words: Iterable[str]) -> Counter[int]:
        return Counter(bisect_right(FREQUENCIES, frequencies.get(word, 0)) for word in words)

    expected, both, matched = Counter[int](), Counter[int](), Counter[int]()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        expected += by_bucket(reference)
        both += by_bucket((*hypothesis, *reference))
        matched += by_bucket((Counter(hypothesis) & Counter(reference)).elements())
    return tuple(
        Bucket(name, expected[place], 200 * matched[place] / both[place] if both[place] else None)
        for place, name in enumerate(FREQUENCY_LABELS)
    )


def count_words(lines: Iterable[str], tokenize: Callable[[str], str], wanted: frozenset[str]) -> dict[str, int]:
    """Count the wanted words in a text; only these are held in memory."""
    counts = dict.fromkeys(wanted, 0)
    for line in lines:
        for word in tokenize(line.rstrip()).split():
            if word in counts:
                counts[word] += 1
    return counts
