"""The profile of a corpus: lengths, repetitions, characters, overlap with test text; made of arrays about its pairs."""

import dataclasses
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.config.corpus import CorpusFiles
from nmt.data.selection import PairAt, Violations, pairs_at
from nmt.data.sentence_index import Hashes, SentenceIndex, pair_hashes, sentence_hashes, times_before

RATIO_EDGES = (
    0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0
)  # fmt: skip
"""Where the bins of the length ratio begin, but for the first, which begins at 0."""

_NUM_BINS = 9  # of lengths: eight of the same width, and one for what is longer
_SHOWN = 10  # characters, at most
_REPEATED = 5  # lines, at most
_EXAMPLES = 3

Counts = NDArray[np.int32]
Pairs = Mapping[int, PairAt]
Odd = dict[str, tuple[int, int]]
"""How often each unusual character occurs, and the index of the first pair with it."""


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
class Shared(PairExample):
    """A pair of a test set that shares a side with a pair of the corpora."""

    also: str
    """Where the other is in the corpora."""


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
    duplicates: dict[str, int]
    """Pairs that repeat an earlier `pair`, `source` or `target`; those with a line that is empty or undecodable are not
    counted."""
    against: tuple[Overlap, ...]
    """The overlap with each test set."""


class Counted(NamedTuple):
    """Counts of P pairs: those of a block, or all."""

    violations: Violations
    """(P,)"""
    hashes: Hashes
    """(2, P) of the sources and of the targets; 0 for a line that is empty or undecodable."""
    characters: Counts
    """(2, P) of each line, normalized; -1 for one that is undecodable, whose text is counted nowhere else."""
    words: Counts
    """(2, P); 0 for a language without spaces."""
    ratios: NDArray[np.uint8]
    """The bin of `RATIO_EDGES` of each complete pair: the target's length divided by the source's."""
    odd: tuple[Odd, Odd]
    """Of each side."""

    @classmethod
    def together(cls, blocks: Sequence["Counted"]) -> "Counted":
        """The counts of all blocks."""
        all_odd: tuple[Odd, Odd] = {}, {}
        begin = 0
        for block in blocks:
            for odd, of_block in zip(all_odd, block.odd, strict=True):
                for character, (count, index) in of_block.items():
                    before, first = odd.get(character, (0, begin + index))
                    odd[character] = before + count, first
            begin += len(block.violations)
        columns = list(zip(*blocks, strict=True))[:-1]
        violations, hashes, characters, words, ratios = (np.concatenate(parts, axis=-1) for parts in columns)
        return cls(violations, hashes, characters, words, ratios, all_odd)


def side_profile(side: int, language: str, counted: Counted, pairs: Callable[[Iterable[int]], Pairs]) -> SideProfile:
    """What is said of a side: 0 for the source, 1 for the target."""
    hashes, characters, words = counted.hashes[side], counted.characters[side], counted.words[side]
    different, counts = np.unique(hashes[hashes != 0], return_counts=True)
    most = np.argsort(-counts, kind="stable")[:_REPEATED]
    repeated = [(int(np.argmax(hashes == different[at])), int(counts[at])) for at in most if counts[at] > 1]
    odd = sorted(counted.odd[side].items(), key=lambda one: (-one[1][0], one[0]))[:_SHOWN]
    longest = int(characters.argmax())
    found = pairs([longest, *(first for first, _ in repeated), *(first for _, (_, first) in odd)])
    return SideProfile(
        language=language,
        empty=int((characters == 0).sum()),
        undecodable=int((characters < 0).sum()),
        different=len(different),
        words=_lengths(words, counted.words) if words.any() else None,
        characters=_lengths(characters, counted.characters),
        longest=found[longest].where(side) if characters[longest] > 0 else "",
        odd_characters=tuple(
            OddCharacter(
                character, f"U+{ord(character):04X}", unicodedata.name(character, ""), count, found[first].where(side)
            )
            for character, (count, first) in odd
        ),
        num_odd_characters=len(counted.odd[side]),
        odd_occurrences=sum(count for count, _ in counted.odd[side].values()),
        repeated=tuple(
            Repeated(found[first].texts[side], count, found[first].where(side))
            for first, count in sorted(repeated, key=lambda one: (-one[1], one[0]))
        ),
    )


def _lengths(of_side: Counts, of_both: Counts) -> Lengths:
    """What is said of the lengths of a side's lines, in bins that suit both sides."""
    lengths = of_side[of_side > 0]
    total = int(lengths.sum())
    bins = length_bins(lengths, bin_width(of_both[of_both > 0]))
    return Lengths(total, total / max(1, len(lengths)), _quantile(lengths, 0.5), int(lengths.max(initial=0)), bins)


def length_bins(lengths: Counts, width: int) -> tuple[Bin, ...]:
    """Lengths above 0 in bins of a width: 1 to `width` and so on; the last one has no limit."""
    last = _NUM_BINS - 1
    counts = np.bincount(np.minimum((lengths - 1) // width, last), minlength=_NUM_BINS).tolist()
    return tuple(
        Bin(index * width + 1, (index + 1) * width if index < last else None, count)
        for index, count in enumerate(counts)
    )


def bin_width(lengths: Counts) -> int:
    """A round width such that 95% of the lengths are in the bins that have a limit."""
    wide = -(-_quantile(lengths, 0.95) // (_NUM_BINS - 1))
    steps: Iterator[int] = (base * 10**power for power in range(10) for base in (1, 2, 3, 4, 5, 6, 8))
    return next(step for step in steps if step >= wide)


def _quantile(lengths: Counts, share: float) -> int:
    """The smallest length that this share of the lines has at most; 0 for no lines."""
    return int(np.quantile(lengths, share, method="inverted_cdf")) if len(lengths) else 0


def ratio_bins(bins: NDArray[np.uint8]) -> tuple[Bin, ...]:
    """Numbers of pairs by bin of `RATIO_EDGES`, with the limits of the bins."""
    counts = np.bincount(bins, minlength=len(RATIO_EDGES) + 1).tolist()
    return tuple(map(Bin, (0.0, *RATIO_EDGES), (*RATIO_EDGES, None), counts))


def duplicates(hashes: Hashes) -> dict[str, int]:
    """How many of the pairs with these hashes, (2, P), repeat an earlier one."""
    complete = hashes[:, (hashes != 0).all(axis=0)]
    compared = {"pair": pair_hashes(complete), "source": complete[0], "target": complete[1]}
    return {name: int(np.count_nonzero(times_before(one))) for name, one in compared.items()}


def overlap(name: str, test: CorpusFiles, hashes: Hashes, pairs: Callable[[Iterable[int]], Pairs]) -> Overlap:
    """How much of a test set is in the corpora, whose sources and targets have these hashes, (2, P)."""
    own = sentence_hashes(SentenceIndex([test]).pairs)
    known = np.array([np.isin(one, of_all) & (one != 0) for one, of_all in zip(own, hashes, strict=True)])
    both = np.isin(pair_hashes(own), pair_hashes(hashes)) & (own != 0).all(axis=0)
    shared = np.flatnonzero(known.any(axis=0))[:_EXAMPLES].tolist()
    sides = [int(known[:, index].argmax()) for index in shared]
    others = [int(np.argmax(hashes[side] == own[side, index])) for index, side in zip(shared, sides, strict=True)]
    here, there = pairs_at([test], [own.shape[1]], shared), pairs(others)
    examples = tuple(
        Shared(here[index].where(), *here[index].texts, also=there[other].where())
        for index, other in zip(shared, others, strict=True)
    )
    src, tgt = known.sum(axis=1).tolist()
    return Overlap(name, own.shape[1], src, tgt, int(both.sum()), examples)
