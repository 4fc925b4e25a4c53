"""Where two translations of the same sentences differ: in sentences, words and n-grams.

Of two systems, the first is the baseline. n-grams too many and too few are those of compare-mt (Neubig et al. 2019),
ordered by how far the two systems differ.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

MAX_NGRAM = 4
Words = Sequence[Sequence[str]]
"""The words of each sentence."""
Key = TypeVar("Key", str, tuple[str, ...])


@dataclasses.dataclass(frozen=True)
class WordDifference:
    """A word that one system gets right more often."""

    word: str
    expected: int
    """Occurrences in the references."""
    matched: tuple[int, int]
    """How many of them the baseline and the other system have in the same sentence."""


@dataclasses.dataclass(frozen=True)
class NgramDifference:
    """Words in a row that the references have more rarely, or more often, than a translation."""

    ngram: str
    counts: tuple[int, int]
    """Occurrences too many, or too few, of the baseline and the other system, each sentence counted for itself."""


def changed_sentences(before: Sequence[float], after: Sequence[float], limit: int) -> tuple[list[int], list[int]]:
    """The sentences whose score rose most, and those whose score fell most: at most `limit` of each, largest first.

    >>> changed_sentences([50, 50, 50, 50], [50, 60, 20, 90], limit=2)
    ([3, 1], [2])
    """
    changes = [new - old for old, new in zip(before, after, strict=True)]
    rising = sorted((line for line, change in enumerate(changes) if change > 0), key=lambda line: -changes[line])
    falling = sorted((line for line, change in enumerate(changes) if change < 0), key=lambda line: changes[line])
    return rising[:limit], falling[:limit]


def changed_words(
    baseline: Words, other: Words, references: Words, limit: int
) -> tuple[tuple[WordDifference, ...], tuple[WordDifference, ...]]:
    """The words that the other system gets right more often than the baseline, and those that it gets right less often.

    >>> changed_words([["a", "b"], ["c"]], [["a", "d"], ["d", "a"]], [["a", "c"], ["c", "d"]], limit=5)
    ((WordDifference(word='d', expected=1, matched=(0, 1)),), (WordDifference(word='c', expected=2, matched=(1, 0)),))
    """
    expected = _total(Counter(words) for words in references)
    right = [
        _total(Counter(ours) & Counter(theirs) for ours, theirs in zip(words, references, strict=True))
        for words in (baseline, other)
    ]
    largest = _largest_changes(*right)
    found = [WordDifference(word, expected[word], (right[0][word], right[1][word])) for word in largest]
    more = tuple(one for one in found if one.matched[1] > one.matched[0])
    fewer = tuple(one for one in found if one.matched[1] < one.matched[0])
    return more[:limit], fewer[:limit]


def changed_ngrams(
    baseline: Words, other: Words, references: Words, limit: int
) -> tuple[tuple[NgramDifference, ...], tuple[NgramDifference, ...]]:
    """The n-grams of 1 to 4 words with the largest differences in how often they are too many, and too few.

    One that only occurs inside a longer one of the list is left out.
    """
    expected = [_ngrams(words) for words in references]
    both = [
        [(_ngrams(ours), theirs) for ours, theirs in zip(system, expected, strict=True)] for system in (baseline, other)
    ]
    too_many = [_total(ours - theirs for ours, theirs in pairs) for pairs in both]
    too_few = [_total(theirs - ours for ours, theirs in pairs) for pairs in both]
    return _listed(too_many[0], too_many[1], limit), _listed(too_few[0], too_few[1], limit)


def _ngrams(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    starts = range(len(words))
    return Counter(tuple(words[i : i + n]) for n in range(1, MAX_NGRAM + 1) for i in starts if i + n <= len(words))


def _listed(
    baseline: Counter[tuple[str, ...]], other: Counter[tuple[str, ...]], limit: int
) -> tuple[NgramDifference, ...]:
    found: list[tuple[str, ...]] = []
    for ngram in _largest_changes(baseline, other):
        if len(found) == limit:
            break
        counts = baseline[ngram], other[ngram]
        if not any(counts == (baseline[longer], other[longer]) and _is_part(ngram, longer) for longer in found):
            found.append(ngram)
    return tuple(NgramDifference(" ".join(ngram), (baseline[ngram], other[ngram])) for ngram in found)


def _is_part(ngram: tuple[str, ...], longer: tuple[str, ...]) -> bool:
    return any(longer[start : start + len(ngram)] == ngram for start in range(len(longer) - len(ngram) + 1))


def _largest_changes(baseline: Counter[Key], other: Counter[Key]) -> list[Key]:
    """The keys with different counts, the largest difference first; of equal ones the longest, then by alphabet."""
    keys = [key for key in baseline.keys() | other.keys() if baseline[key] != other[key]]
    return sorted(keys, key=lambda key: (-abs(baseline[key] - other[key]), -len(key), key))


def _total(counts: Iterable[Counter[Key]]) -> Counter[Key]:
    total: Counter[Key] = Counter()
    for one in counts:
        total.update(one)
    return total
