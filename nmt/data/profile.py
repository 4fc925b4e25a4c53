"""What a corpus is made of: lengths, repetitions, characters, overlap with test text; made of counts of its pairs."""

import dataclasses
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from nmt.config.corpus import CorpusFiles
from nmt.data.corpus import reader_of
from nmt.data.counts import RATIO_EDGES, Counted, Place
from nmt.data.sentence_index import Hashes, Pair, SentenceIndex, pair_hashes, times_before

_NUM_BINS = 9  # of lengths: eight of the same width, and one for what is longer
_SHOWN = 10  # characters, at most
_REPEATED = 5  # lines, at most
_EXAMPLES = 3


@dataclasses.dataclass(frozen=True)
class Bin:
    """How many lie between two limits."""

    low: float
    high: float | None
    """Of lengths, the largest one; of ratios, the limit, which lies in the next bin. None: no limit."""
    count: int


@dataclasses.dataclass(frozen=True)
class Lengths:
    """The lengths of one side's lines, without those that are empty or undecodable."""

    total: int
    mean: float
    median: int
    longest: int
    bins: tuple[Bin, ...]


@dataclasses.dataclass(frozen=True)
class PairExample:
    """A pair, and where it is."""

    where: str
    """The file and the number of the line; of a TMX, of the unit."""
    src: str
    tgt: str


@dataclasses.dataclass(frozen=True)
class OddCharacter:
    """A character that the language is not written with."""

    character: str
    code_point: str
    """`U+0430`"""
    name: str
    """Unicode's; '' for one without."""
    count: int
    where: str
    """Where it is first."""


@dataclasses.dataclass(frozen=True)
class Repeated:
    """A line that occurs several times."""

    text: str
    count: int
    where: str
    """Where it is first."""


@dataclasses.dataclass(frozen=True)
class SideProfile:
    """One side of the corpora."""

    language: str
    empty: int
    undecodable: int
    """Lines that are not UTF-8, or hold a NUL. They are in none of the other figures."""
    different: int
    """Number of different lines, without the empty ones."""
    words: Lengths | None
    """None for a language that is written without spaces."""
    characters: Lengths
    longest: str
    """Where the longest line is first."""
    odd_characters: tuple[OddCharacter, ...]
    """The most frequent ones."""
    num_odd_characters: int
    """How many different ones there are."""
    odd_occurrences: int
    """How often they occur, all together."""
    repeated: tuple[Repeated, ...]
    """The most frequent lines."""


@dataclasses.dataclass(frozen=True)
class Shared:
    """A pair of a test set that shares a side with a pair of the corpora."""

    where: str
    """Where it is in the test set."""
    also: str
    """Where the other is in the corpora."""
    src: str
    tgt: str


@dataclasses.dataclass(frozen=True)
class Overlap:
    """How much of a test set is in the corpora."""

    name: str
    pairs: int
    src: int
    """Pairs whose source is a source there."""
    tgt: int
    """Pairs whose target is a target there."""
    both: int
    """Pairs that are a pair there."""
    examples: tuple[Shared, ...]
    """Some of the pairs that share either side."""


@dataclasses.dataclass(frozen=True)
class Duplicates:
    """How many pairs repeat an earlier one; pairs with a line that is empty or undecodable are not counted."""

    pair: int
    source: int
    target: int


@dataclasses.dataclass(frozen=True)
class RuleProfile:
    """What one rule of `data.cleaning` drops."""

    rule: str
    setting: str
    """Its value in the configuration, as YAML."""
    dropped: int
    """Pairs that it drops and no rule before it does."""
    alone: int | None
    """Pairs that it would drop if it were the only rule, or that it would drop if it were on. None for rules that
    compare pairs with each other."""
    examples: tuple[PairExample, ...]


@dataclasses.dataclass(frozen=True)
class CorpusProfile:
    """One of the corpora."""

    name: str
    pairs: int
    kept: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """What some corpora are made of."""

    pairs: int
    kept: int
    """Pairs that no rule drops."""
    corpora: tuple[CorpusProfile, ...]
    rules: tuple[RuleProfile, ...]
    """In the order in which they are applied."""
    src: SideProfile
    tgt: SideProfile
    ratio: tuple[Bin, ...]
    """Complete pairs by the characters of the target for each of the source."""
    copies: int
    """Pairs with identical sides."""
    duplicates: Duplicates
    against: tuple[Overlap, ...]
    """The overlap with each test set."""


def length_bins(lengths: Mapping[int, int], width: int) -> tuple[Bin, ...]:
    """Lengths in bins of a width: 1 to `width` and so on; the last one has no limit."""
    bins = [0] * _NUM_BINS
    for length, number in lengths.items():
        bins[min((max(length, 1) - 1) // width, _NUM_BINS - 1)] += number
    limits = [(index * width + 1, (index + 1) * width) for index in range(_NUM_BINS - 1)]
    return (
        *(Bin(low, high, number) for (low, high), number in zip(limits, bins, strict=False)),
        Bin((_NUM_BINS - 1) * width + 1, None, bins[-1]),
    )


def bin_width(lengths: Mapping[int, int]) -> int:
    """A round width such that 95% of the lengths are in the bins that have a limit."""
    wide = -(-_quantile(lengths, 0.95) // (_NUM_BINS - 1))
    steps: Iterator[int] = (base * 10**power for power in range(10) for base in (1, 2, 3, 4, 5, 6, 8))
    return next(step for step in steps if step >= wide)


def _quantile(lengths: Mapping[int, int], share: float) -> int:
    """The smallest length that this share of the lines has at most; 0 for no lines."""
    left = math.ceil(share * sum(lengths.values()))
    for length in sorted(lengths):
        left -= lengths[length]
        if left <= 0:
            return length
    return 0


def _lengths(lengths: Mapping[int, int], width: int) -> Lengths:
    total = sum(length * number for length, number in lengths.items())
    number = sum(lengths.values())
    return Lengths(
        total, total / max(1, number), _quantile(lengths, 0.5), max(lengths, default=0), length_bins(lengths, width)
    )


def side_profiles(
    counted: Counted, corpora: Sequence[CorpusFiles], src_lang: str, tgt_lang: str
) -> tuple[SideProfile, SideProfile]:
    """What is said of each side; the corpora are read again for examples."""
    sides = (counted.counts.src, counted.counts.tgt)
    repeated = [_most_repeated(of_side) for of_side in counted.hashes]
    odd = [sorted(side.odd_places, key=lambda one: (-side.code_points[ord(one)], one))[:_SHOWN] for side in sides]
    places = {counted.place(index) for of_side in repeated for index, _ in of_side}
    for side, characters in zip(sides, odd, strict=True):
        places |= {side.odd_places[character] for character in characters}
        places |= {side.longest[1]} if side.longest[0] else set()
    found = texts_at(corpora, places)
    word_width = bin_width(sides[0].words + sides[1].words)
    character_width = bin_width(sides[0].characters + sides[1].characters)

    def profile_of(number: int, language: str) -> SideProfile:
        side = sides[number]

        def line(place: Place) -> _Line:
            return found[place][number]

        lines = [line(counted.place(index)) for index, _ in repeated[number]]
        return SideProfile(
            language=language,
            empty=side.empty,
            undecodable=side.undecodable,
            different=int(np.count_nonzero(np.unique(counted.hashes[number]))),
            words=_lengths(side.words, word_width) if side.words else None,
            characters=_lengths(side.characters, character_width),
            longest=line(side.longest[1]).where if side.longest[0] else "",
            odd_characters=tuple(
                _odd_character(one, side.code_points[ord(one)], line(side.odd_places[one]).where) for one in odd[number]
            ),
            num_odd_characters=len(side.odd_places),
            odd_occurrences=sum(side.code_points[ord(one)] for one in side.odd_places),
            repeated=tuple(
                Repeated(one.text, times, one.where) for one, (_, times) in zip(lines, repeated[number], strict=True)
            ),
        )

    return profile_of(0, src_lang), profile_of(1, tgt_lang)


def duplicates(hashes: Hashes) -> Duplicates:
    """How many of the pairs with these hashes, (2, P), repeat an earlier one."""
    complete = hashes[:, (hashes != 0).all(axis=0)]
    return Duplicates(*(int(np.count_nonzero(times_before(one))) for one in (pair_hashes(complete), *complete)))


def ratio_bins(ratios: Mapping[int, int]) -> tuple[Bin, ...]:
    """Numbers of pairs by bin of `RATIO_EDGES`, with the limits of the bins."""
    limits = zip((0.0, *RATIO_EDGES), (*RATIO_EDGES, None), strict=True)
    return tuple(Bin(low, high, ratios.get(index, 0)) for index, (low, high) in enumerate(limits))


def _most_repeated(hashes: Hashes) -> list[tuple[int, int]]:
    """The lines that occur most often: the number of the pair that has it first, from 0, and how often it occurs."""
    different, counts = np.unique(hashes, return_counts=True)
    counts[different == 0] = 1
    most = np.argsort(-counts, kind="stable")[:_REPEATED]
    firsts = [(int(np.flatnonzero(hashes == different[at])[0]), int(counts[at])) for at in most if counts[at] > 1]
    return sorted(firsts, key=lambda one: (-one[1], one[0]))


def _odd_character(character: str, count: int, where: str) -> OddCharacter:
    name = unicodedata.name(character, "")
    return OddCharacter(character, f"U+{ord(character):04X}", name, count, where)


class _Line(NamedTuple):
    where: str
    text: str


def texts_at(corpora: Sequence[CorpusFiles], places: Iterable[Place]) -> dict[Place, tuple[_Line, _Line]]:
    """Source and target at some places. What cannot be decoded in them is replaced by U+FFFD."""
    by_corpus: dict[int, list[int]] = {}
    for corpus, pair in sorted(places):
        by_corpus.setdefault(corpus, []).append(pair)
    found = {}
    for corpus, pairs in by_corpus.items():
        reader = reader_of(corpora[corpus])
        numbers = dict(zip(pairs, reader.places(pairs), strict=True))
        for pair, (src, tgt) in enumerate(islice(reader.raw_pairs(), pairs[-1]), start=1):
            if pair in numbers:
                found[corpus, pair] = (
                    _Line(f"{reader.src_name}:{numbers[pair]}", _decoded(src)),
                    _Line(f"{reader.tgt_name}:{numbers[pair]}", _decoded(tgt)),
                )
    return found


def _decoded(line: bytes) -> str:
    return line.decode(errors="replace").removeprefix("\ufeff").strip()


def overlap(name: str, test: CorpusFiles, known: Mapping[Pair, Place], corpora: Sequence[CorpusFiles]) -> Overlap:
    """How much of a test set is known in the corpora; both are read again for examples."""
    pairs = SentenceIndex([test]).pairs
    sides = [[(src, "") in known for src, _ in pairs], [("", tgt) in known for _, tgt in pairs]]
    shared = [index for index, known_sides in enumerate(zip(*sides, strict=True)) if any(known_sides)][:_EXAMPLES]
    others = [known[(pairs[index][0], "") if sides[0][index] else ("", pairs[index][1])] for index in shared]
    here, there = texts_at([test], [(0, index + 1) for index in shared]), texts_at(corpora, others)
    examples = []
    for index, other in zip(shared, others, strict=True):
        src_line, tgt_line = here[0, index + 1]
        examples.append(Shared(src_line.where, there[other][0].where, src_line.text, tgt_line.text))
    both = sum(all(pair) and pair in known for pair in pairs)
    return Overlap(name, len(pairs), sum(sides[0]), sum(sides[1]), both, tuple(examples))
