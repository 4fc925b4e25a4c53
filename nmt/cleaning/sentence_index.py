"""Index and hashes of sentences, to find those of one text in another, and pairs that repeat earlier pairs.

Two lines are the same sentence if their normalized forms are equal. An empty line is no sentence.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.cleaning.normalize import normalize
from nmt.config.corpus import CorpusFiles
from nmt.config.source import TEXT, SourceConfig
from nmt.corpora.pairs import Block, read_blocks
from nmt.corpora.vectors import VectorFile, fingerprint, open_vectors

Pair = tuple[str, str]

Hashes = NDArray[np.uint64]
"""Of sentences; 0 for a line that is no sentence."""

_PAIR_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so a target's hash and a source's one never cancel out


def normalized_pairs(
    block: Block, source: SourceConfig, open_file: Callable[..., VectorFile] = open_vectors, strict: bool = True
) -> list[Pair]:
    """The chosen pairs of a block, normalized; fingerprints of vectors. Raises `DataError` as `Block.lines` does."""
    if source.type == "text":
        src_lines, tgt_lines = block.lines(strict)
    else:
        vectors = open_file(Path(block.src_name), source).read(*block.rows)
        src_lines, tgt_lines = list(map(fingerprint, block.of_chosen(vectors))), block.tgt_lines()
    return [(normalize(src), normalize(tgt)) for src, tgt in zip(src_lines, tgt_lines, strict=True)]


class SentenceIndex:
    """Index of the sources, targets and pairs of some texts."""

    def __init__(self, texts: Iterable[CorpusFiles] = (), source: SourceConfig = TEXT) -> None:
        open_file = functools.cache(open_vectors)
        self.pairs = [
            pair for text in texts for block in read_blocks(text, source)
            for pair in normalized_pairs(block, source, open_file)
        ]  # fmt: skip
        self._sources, self._targets = ({pair[side] for pair in self.pairs} - {""} for side in (0, 1))

    def shares(self, src: str, tgt: str) -> bool:
        """True if the normalized source is a source of the index, or the target a target."""
        return src in self._sources or tgt in self._targets

    def add(self, src: str, tgt: str) -> None:
        """Add the sentences of a normalized pair without an empty side."""
        self._sources.add(src)
        self._targets.add(tgt)


def independent(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Yield each pair that shares no sentence with an earlier one. No pair may have an empty side."""
    before = SentenceIndex()
    for pair in pairs:
        normalized = normalize(pair[0]), normalize(pair[1])
        if not before.shares(*normalized):
            before.add(*normalized)
            yield pair


def comparable(lines: Sequence[str]) -> list[str | None]:
    """Replace lines that were not UTF-8 (decoded with `surrogateescape`), or hold a NUL, by None."""
    if _is_text("".join(lines)):  # nearly always, and faster than a test for each line
        return list(lines)
    return [line if _is_text(line) else None for line in lines]


def _is_text(line: str) -> bool:
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in line


def sentence_hashes(pairs: Iterable[Sequence[str | None]]) -> Hashes:
    """Hash the sources and targets of P normalized pairs: (2, P). None is no sentence.

    The probability that any two of n different sentences collide is below n**2 / 2**65: 3e-6 for ten million.
    """
    hashes = b"".join(
        [blake2b(line.encode(), digest_size=8).digest() if line else bytes(8) for pair in pairs for line in pair]
    )
    return np.frombuffer(hashes, dtype=np.uint64).reshape(-1, 2).T


def pair_hashes(hashes: Hashes) -> Hashes:
    """Hash pairs by the hashes of their sides: (2, P) -> (P,)."""
    mixed: Hashes = hashes[0] * _PAIR_FACTOR + hashes[1]
    return mixed


def times_before(hashes: Hashes) -> NDArray[np.uint32]:
    """Count the earlier occurrences of each hash: (P,) -> (P,)."""
    order = np.argsort(hashes, kind="stable")  # equal hashes side by side, in their order
    is_first = np.ones(len(hashes), dtype=np.bool_)
    is_first[1:] = np.diff(hashes[order]) != 0
    ranks = np.arange(len(hashes), dtype=np.uint32)
    ranks -= np.maximum.accumulate(ranks * is_first)
    before = np.empty_like(ranks)
    before[order] = ranks
    return before
