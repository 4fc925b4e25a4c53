"""Sentences, words and n-grams that differ between two systems.

n-grams that are too many or too few are those of compare-mt (Neubig et al. 2019), ordered by how far two systems
differ.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

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


def word_tags(
    listed: Sequence[Sequence[Changed]], baseline: Sequence[str], other: Sequence[str], reference: Sequence[str]
) -> Iterator[str]:
    """Name the listed words and n-grams that a sentence has right, or wrong, a different number of times.

    `w0:3` is the fourth of the first list.
    """
    before, after, expected = map(_ngrams, (baseline, other, reference))
    nearest: tuple[Callable[[int, int], int], ...] = (min, min, max, min)  # right, right, too many, too few
    for number, changed in enumerate(listed):
        for place, one in enumerate(changed):
            ngram = tuple(one.text.split(" "))
            if nearest[number](before[ngram], expected[ngram]) != nearest[number](after[ngram], expected[ngram]):
                yield f"w{number}:{place}"
