"""What a corpus is made of: counts of its blocks, taken in several processes, that add up to those of the whole.

Nothing that is counted grows with the corpus, but for 16 bytes a pair: a hash of each side.
"""

import dataclasses
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nmt.config.cleaning import CleaningConfig
from nmt.config.corpus import CorpusFiles
from nmt.config.source import TEXT
from nmt.data.cleaning import normalize
from nmt.data.corpus import Block, over_blocks
from nmt.data.rules import PairRules, length_of
from nmt.data.scripts import is_out_of_script, scripts_of
from nmt.data.sentence_index import Hashes, Pair, SentenceIndex, sentence_hashes
from nmt.data.vectors import all_blocks
from nmt.languages import is_without_spaces

RATIO_EDGES = (
    0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0
)  # fmt: skip
"""Where the bins of the length ratio begin, but for the first, which begins at 0."""

EXAMPLES = 3
"""Pairs that are remembered for each rule."""

Place = tuple[int, int]
"""A pair: the number of its corpus, from 0, and its own in it, from 1."""


@dataclasses.dataclass
class SideCounts:
    """Counts of one side of some pairs, which further ones are added to."""

    empty: int = 0
    undecodable: int = 0
    """Lines that are not UTF-8, or hold a NUL: their text is counted nowhere else."""
    words: Counter[int] = dataclasses.field(default_factory=Counter)
    """Number of lines by length; nothing for a language without spaces."""
    characters: Counter[int] = dataclasses.field(default_factory=Counter)
    """Number of lines by length, normalized."""
    longest: tuple[int, Place] = (0, (0, 0))
    """Characters of the longest line, and where it is first."""
    code_points: Counter[int] = dataclasses.field(default_factory=Counter)
    """How often each character occurs."""
    odd_places: dict[str, Place] = dataclasses.field(default_factory=dict)
    """Where each character out of script occurs first."""

    def add(self, other: "SideCounts") -> None:
        """Add the counts of other pairs."""
        self.empty += other.empty
        self.undecodable += other.undecodable
        self.words.update(other.words)
        self.characters.update(other.characters)
        self.longest = min(self.longest, other.longest, key=lambda one: (-one[0], one[1]))
        self.code_points.update(other.code_points)
        for character, place in other.odd_places.items():
            self.odd_places[character] = min(place, self.odd_places.get(character, place))


@dataclasses.dataclass
class Counts:
    """Counts of some pairs, which further ones are added to."""

    pairs: int = 0
    copies: int = 0
    """Pairs with identical sides."""
    ratios: Counter[int] = dataclasses.field(default_factory=Counter)
    """Number of pairs by bin of `RATIO_EDGES`: the target's length divided by the source's."""
    violations: Counter[str] = dataclasses.field(default_factory=Counter)
    """Number of pairs that each rule would leave out if it were the only one."""
    violating: dict[str, list[Place]] = dataclasses.field(default_factory=dict)
    """The first few pairs that each rule would leave out."""
    known: dict[Pair, Place] = dataclasses.field(default_factory=dict)
    """The first pair with each sentence or pair of the test sets, as `SentenceIndex.known` names it."""
    src: SideCounts = dataclasses.field(default_factory=SideCounts)
    tgt: SideCounts = dataclasses.field(default_factory=SideCounts)

    def add(self, other: "Counts") -> None:
        """Add the counts of other pairs."""
        self.pairs += other.pairs
        self.copies += other.copies
        self.ratios.update(other.ratios)
        self.violations.update(other.violations)
        for rule, places in other.violating.items():
            self.violating[rule] = (self.violating.get(rule, []) + places)[:EXAMPLES]
        for one, place in other.known.items():
            self.known.setdefault(one, place)
        self.src.add(other.src)
        self.tgt.add(other.tgt)


class BlockProfile(NamedTuple):
    """What is counted of a block of P pairs."""

    corpus: int
    """Its corpus's number, from 0."""
    counts: Counts
    hashes: Hashes
    """(2, P) of the source and of the target; 0 for a line that is empty or undecodable."""


class Profiler:
    """Counts blocks. It remembers which characters it has seen, to look for the first line of each only once."""

    def __init__(
        self, languages: tuple[str, str], rules: CleaningConfig, usual_ratio: float, tests: SentenceIndex
    ) -> None:
        self._languages, self._tests = languages, tests
        self._scripts = tuple(map(scripts_of, languages))
        self._rules = PairRules(rules, *languages, usual_ratio)
        self._seen: tuple[set[int], set[int]] = (set(), set())

    def __call__(self, block: Block) -> BlockProfile:
        """The counts of a block."""
        lines = block.lines(strict=False)
        sides = [comparable(of_side) for of_side in lines]
        of_src, of_tgt = (
            self._side(number, of_side, (block.corpus, block.first)) for number, of_side in enumerate(sides)
        )
        counts = Counts(pairs=len(block), src=of_src, tgt=of_tgt)
        bins: list[int] = []
        for index, pair in enumerate(zip(*sides, strict=True)):
            src, tgt = pair
            for one in self._tests.known(src or "", tgt or ""):
                counts.known.setdefault(one, (block.corpus, block.first + index))
            if src and tgt:
                counts.copies += src == tgt
                bins.append(bisect_right(RATIO_EDGES, length_of(tgt) / max(1, length_of(src))))
            if "" in pair:  # left out before the rules are asked
                continue
            raw = lines[0][index], lines[1][index]
            given = (normalize(line) if one is None else one for one, line in zip(pair, raw, strict=True))
            for rule in self._rules.violated(*given):
                counts.violations[rule] += 1
                if counts.violations[rule] <= EXAMPLES:
                    counts.violating.setdefault(rule, []).append((block.corpus, block.first + index))
        counts.ratios = Counter(bins)
        return BlockProfile(block.corpus, counts, sentence_hashes(zip(*sides, strict=True)))

    def _side(self, number: int, lines: Sequence[str | None], first: Place) -> SideCounts:
        """The counts of one side's lines, of which the first has the place `first`."""
        language, scripts, seen = self._languages[number], self._scripts[number], self._seen[number]
        texts = [line for line in lines if line]
        counts = SideCounts(empty=lines.count(""), undecodable=lines.count(None))
        counts.characters = Counter(map(len, texts))
        if not is_without_spaces(language):
            counts.words = Counter(len(text.split()) for text in texts)
        if texts:
            length = max(counts.characters)
            index = next(index for index, line in enumerate(lines) if line is not None and len(line) == length)
            counts.longest = (length, (first[0], first[1] + index))
        found = np.bincount(np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32))
        points = np.flatnonzero(found)
        counts.code_points = Counter(dict(zip(points.tolist(), found[points].tolist(), strict=True)))
        for point in counts.code_points.keys() - seen:
            seen.add(point)
            character = chr(point)
            if is_unusual(character, scripts):
                index = next(index for index, line in enumerate(lines) if line and character in line)
                counts.odd_places[character] = (first[0], first[1] + index)
        return counts


def comparable(lines: Sequence[str]) -> list[str | None]:
    """Lines, decoded with `surrogateescape`, as the rules compare them: normalized; None for one that is no text."""
    if is_text("".join(lines)):  # nearly always, and one test is faster than one a line
        return [normalize(line) for line in lines]
    return [normalize(line) if is_text(line) else None for line in lines]


def is_text(line: str) -> bool:
    """Whether a line that was decoded with `surrogateescape` was UTF-8, without a NUL."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in line


def is_unusual(character: str, scripts: frozenset[str]) -> bool:
    """Whether text in these scripts hardly has this character.

    That is a letter of another script, a control character, one for private use or without a meaning in Unicode, and
    U+FFFD, which stands where a program could not decode something.
    """
    is_meaningless = unicodedata.category(character) in ("Cc", "Co", "Cn") or character == "\ufffd"
    return is_meaningless or is_out_of_script(character, scripts)


class Counted(NamedTuple):
    """What is counted of some corpora."""

    counts: Counts
    pairs: tuple[int, ...]
    """Of each corpus."""
    hashes: Hashes
    """(2, N) of all sources and targets, in order; 0 for a line that is empty or undecodable."""

    def place(self, index: int) -> Place:
        """The place of the pair with this number among all, from 0."""
        for corpus, pairs in enumerate(self.pairs):
            if index < pairs:
                return corpus, index + 1
            index -= pairs
        raise AssertionError("there are fewer pairs")


def count_text(corpora: Sequence[CorpusFiles], prepare: Callable[[], Profiler], num_processes: int) -> Counted:
    """Count all pairs of some corpora, in N worker processes, or with N < 2 in this one.

    Raises `DataError` if a file cannot be read or its sides differ in length.
    """
    total, pairs = Counts(), [0] * len(corpora)
    hashes = [np.zeros((2, 0), np.uint64)]
    for found in over_blocks(prepare, all_blocks(corpora, TEXT), num_processes, "read"):
        total.add(found.counts)
        pairs[found.corpus] += found.counts.pairs
        hashes.append(found.hashes)
    return Counted(total, tuple(pairs), np.concatenate(hashes, axis=1))
