"""What a corpus is made of: counts of its blocks, taken in several processes, that add up to those of the whole.

Nothing that is counted grows with the corpus, but for 16 bytes a pair: a hash of each side.
"""

import dataclasses
import functools
import hashlib
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from nmt.config.corpus import CorpusFiles
from nmt.data.corpus import Block, read_blocks
from nmt.languages import is_without_spaces
import unicodedata
def is_odd(character, language):
    return unicodedata.category(character) in ("Lo","Cc","Co") or (ord(character)>0x370 and character.isalpha())
from nmt.processes import Workers

RATIO_EDGES = (
    0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0
)  # fmt: skip
"""Where the bins of the length ratio begin, but for the first, which begins at 0."""
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
    """Number of lines by length, without white space at the ends."""
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
    """Number of pairs by bin of `RATIO_EDGES`: characters of the target for each of the source."""
    src: SideCounts = dataclasses.field(default_factory=SideCounts)
    tgt: SideCounts = dataclasses.field(default_factory=SideCounts)

    def add(self, other: "Counts") -> None:
        """Add the counts of other pairs."""
        self.pairs += other.pairs
        self.copies += other.copies
        self.ratios.update(other.ratios)
        self.src.add(other.src)
        self.tgt.add(other.tgt)


@dataclasses.dataclass(frozen=True)
class BlockProfile:
    """What is counted of a block of P pairs."""

    counts: Counts
    hashes: NDArray[np.uint64]
    """(2, P) of the source and of the target; 0 for a line that is empty or undecodable."""


class Profiler:
    """Counts blocks. It remembers which characters it has seen, to look for the first line of each only once."""

    def __init__(self, src_lang: str, tgt_lang: str) -> None:
        self._languages = (src_lang, tgt_lang)
        self._seen: tuple[set[int], set[int]] = (set(), set())

    def __call__(self, request: tuple[int, Block]) -> BlockProfile:
        """The counts of a block of the corpus with this number."""
        corpus, block = request
        sides = [tolerant_lines(data, block.first) for data in (block.src, block.tgt)]
        counts = Counts(pairs=len(sides[0]))
        counts.src, counts.tgt = (self._side(number, lines, (corpus, block.first)) for number, lines in enumerate(sides))
        bins: list[int] = []
        for src, tgt in zip(*sides, strict=True):
            if src and tgt:
                counts.copies += src == tgt
                bins.append(bisect_right(RATIO_EDGES, len(tgt) / len(src)))
        counts.ratios = Counter(bins)
        return BlockProfile(counts, np.stack([line_hashes(lines) for lines in sides]))

    def _side(self, number: int, lines: Sequence[str | None], first: Place) -> SideCounts:
        """The counts of one side's lines, of which the first has the place `first`."""
        language, seen = self._languages[number], self._seen[number]
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
            if is_odd(character, language):
                index = next(index for index, line in enumerate(lines) if line and character in line)
                counts.odd_places[character] = (first[0], first[1] + index)
        return counts


def tolerant_lines(data: bytes, first: int) -> list[str | None]:
    """Lines without white space at the ends, as they are compared; None for one that is not UTF-8 or holds a NUL.

    Of line 1, a byte order mark is dropped.
    """
    lines: list[str | None]
    if first == 1:
        data = data.removeprefix(b"\xef\xbb\xbf")
    raw = data.removesuffix(b"\n")
    try:
        lines = [line.strip() for line in raw.decode().split("\n")]
    except UnicodeDecodeError:
        lines = [_decoded(line) for line in raw.split(b"\n")]
    return lines if b"\0" not in raw else [None if line and "\0" in line else line for line in lines]


def _decoded(line: bytes) -> str | None:
    try:
        return line.decode().strip()
    except UnicodeDecodeError:
        return None


def line_hashes(lines: Sequence[str | None]) -> NDArray[np.uint64]:
    """64 bits of BLAKE2b of each line; 0 for one that is empty or undecodable.

    The probability that any two of n different lines collide is below n**2 / 2**65: 3e-6 for ten million.
    """
    digests = (
        hashlib.blake2b(line.encode("utf-8"), digest_size=8).digest() if line else bytes(8)
        for line in lines
    )
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


@dataclasses.dataclass(frozen=True)
class Counted:
    """What is counted of some corpora."""

    counts: Counts
    pairs: tuple[int, ...]
    """Of each corpus."""
    hashes: NDArray[np.uint64]
    """(2, N) of all sources and targets, in order; 0 for a line that is empty or undecodable."""

    def place(self, index: int) -> Place:
        """The place of the pair with this number among all, from 0."""
        for corpus, pairs in enumerate(self.pairs):
            if index < pairs:
                return corpus, index + 1
            index -= pairs
        raise AssertionError("there are fewer pairs")


def count(corpora: Sequence[CorpusFiles], src_lang: str, tgt_lang: str, num_processes: int) -> Counted:
    """Count all pairs of some corpora, in N worker processes, or with N < 2 in this one.

    Raises `DataError` if a file cannot be read or its sides differ in length.
    """
    total, pairs = Counts(), [0] * len(corpora)
    hashes = [np.zeros((2, 0), np.uint64)]
    requests = ((number, block) for number, files in enumerate(corpora) for block in read_blocks(files))
    for number, found in _in_order(requests, functools.partial(Profiler, src_lang, tgt_lang), num_processes):
        total.add(found.counts)
        pairs[number] += found.counts.pairs
        hashes.append(found.hashes)
    return Counted(total, tuple(pairs), np.concatenate(hashes, axis=1))


def _in_order(
    requests: Iterator[tuple[int, Block]], prepare: Callable[[], Profiler], num_processes: int
) -> Iterator[tuple[int, BlockProfile]]:
    if num_processes < 2:
        profiler = prepare()
        for request in requests:
            yield request[0], profiler(request)
        return
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with Workers([prepare] * num_processes, environment) as workers:
        pending: deque[tuple[int, Future[BlockProfile]]] = deque()
        for request in requests:
            if len(pending) >= 2 * num_processes:
                number, future = pending.popleft()
                yield number, future.result()
            pending.append((request[0], workers.submit(request, f"read {request[1].src_name}")))
        for number, future in pending:
            yield number, future.result()
