"""Corpora of every format as pairs of lines, one at a time or in blocks.

two text files      line n of one is the translation of line n of the other
an archive (ZIP)    the same, for two of its members
TSV, CSV, JSONL     a pair a line (tables.py)
TMX                 a pair a unit (tmx.py)
vectors, images     source n belongs to line n of a text (vectors.py)
"""

import contextlib
import dataclasses
import functools
import io
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from io import BufferedReader
from itertools import compress, islice, zip_longest
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from nmt.config.corpus import CorpusFiles
from nmt.config.formats import pairs_format
from nmt.config.source import TEXT, ImageSource, SourceConfig, VectorSource
from nmt.corpora.lines import (
    BLOCK_PAIRS,
    count_lines,
    decode_line,
    members,
    opened,
    opened_member,
    read_lines,
    split_lines,
    undecoded,
)
from nmt.corpora.tables import NumberedPair, listed, read_csv, read_jsonl, read_tsv
from nmt.corpora.tmx import read_tmx
from nmt.errors import DataError
from nmt.system.processes import Workers

BLOCK_BYTES = 1 << 18
"""Approximate size of a block."""
MAX_PENDING_BYTES = 1 << 23
"""Maximum size of the blocks in memory at once, even with long lines."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class PairReader(Protocol):
    """Reader of a corpus. Each method opens the files again.

    All raise `DataError` if a file is missing or damaged, or if its pairs are not complete.
    """

    src_name: str
    """Name of the source side in messages; the number of a line follows."""
    tgt_name: str
    max_block: int = BLOCK_PAIRS
    """Maximum number of pairs to read at once."""

    def raw_pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each pair's lines, undecoded, with line ends."""

    def count(self) -> int:
        """Count the pairs, possibly 0."""

    def places(self, pairs: Sequence[int]) -> list[int]:
        """Return the line numbers of pairs (from 1, ascending), for messages; in a TMX, the numbers of their units."""
        return list(pairs)


class _Text(NamedTuple):
    """A text: a file, or a member of an archive."""

    name: str
    opened: Callable[[], contextlib.AbstractContextManager[BufferedReader]]

    def lines(self) -> Iterator[bytes]:
        """Yield its lines. A generator, so that its errors are not reported as those of another open text."""
        with self.opened() as file:
            yield from file


def _text(path: Path) -> _Text:
    return _Text(str(path), functools.partial(opened, path))


def _member(path: Path, wanted: str) -> _Text:
    """The text in an archive whose name is `wanted`, or the only one whose name ends in the language `wanted`."""
    names = members(path)
    suffix = wanted.lower().replace("_", "-")
    endings = {name: name.rpartition(".")[2].lower().replace("_", "-") for name in names}
    matching = (
        [name for name in names if name == wanted]
        or [name for name, ending in endings.items() if ending == suffix]
        or [name for name, ending in endings.items() if ending.startswith(f"{suffix}-")]
    )
    if len(matching) == 1:
        return _Text(f"{path}/{matching[0]}", functools.partial(opened_member, path, matching[0]))
    if matching:
        problem = f"several members end in .{wanted}: {listed(matching)}"
    else:
        problem = f"no member's name ends in .{wanted}; it holds {listed(names)}"
    raise DataError(f"{path}: {problem}; name one of them as src_column or tgt_column")


class _TwoTexts(PairReader):
    """Reader of two texts with the same number of lines."""

    def __init__(self, src: _Text, tgt: _Text) -> None:
        self._src, self._tgt = src, tgt
        self.src_name, self.tgt_name = src.name, tgt.name

    def raw_pairs(self) -> Iterator[tuple[bytes, bytes]]:
        src_lines, tgt_lines = self._src.lines(), self._tgt.lines()
        for count, (src, tgt) in enumerate(zip_longest(src_lines, tgt_lines)):
            if src is None or tgt is None:
                longer = count + 1 + sum(1 for _ in (tgt_lines if src is None else src_lines))
                raise self._mismatch(*((count, longer) if src is None else (longer, count)))
            yield src, tgt

    def count(self) -> int:
        counts = []
        for side in (self._src, self._tgt):
            with side.opened() as file:
                counts.append(count_lines(file))
        if counts[0] != counts[1]:
            raise self._mismatch(*counts)
        return counts[0]

    def _mismatch(self, src_count: int, tgt_count: int) -> DataError:
        return DataError(
            f"the two sides differ in length: {self.src_name} has {src_count:,} lines, "
            f"{self.tgt_name} has {tgt_count:,}; every line needs its translation{self._probable_gap()}"
        )

    def _probable_gap(self) -> str:
        """The place where lines are missing, for a message; '' if it is unclear."""
        from nmt.corpora.misalignment import find_gap  # only for this message

        with self._src.opened() as src_lines, self._tgt.opened() as tgt_lines:
            gap = find_gap(map(len, src_lines), map(len, tgt_lines))
        if gap is None:
            return ""
        shorter, longer = (self._src, self._tgt) if gap.in_src else (self._tgt, self._src)
        if gap.line is None:
            return f" (by line lengths, {shorter.name} lacks the last lines of {longer.name})"
        return f" (by line lengths, lines are missing near {shorter.name}:{gap.line})"


class _OneFile(PairReader):
    """Reader of a file with both texts of each pair."""

    def __init__(self, files: CorpusFiles) -> None:
        self._files = files
        self.src_name = self.tgt_name = str(files.src_file)

    def _pairs(self) -> Iterator[NumberedPair]:
        files, path = self._files, self._files.src_file
        src, tgt = files.columns
        match pairs_format(path):
            case "tsv":
                return read_tsv(path, src, tgt)
            case "csv":
                return read_csv(path, src, tgt)
            case "jsonl":
                return read_jsonl(path, str(src), str(tgt))
        return read_tmx(path, str(src), str(tgt), files.inline_tags or "drop")

    def raw_pairs(self) -> Iterator[tuple[bytes, bytes]]:
        for _, src, tgt in self._pairs():
            yield undecoded(f"{src}\n"), undecoded(f"{tgt}\n")

    def count(self) -> int:
        return sum(1 for _ in self._pairs())

    def places(self, pairs: Sequence[int]) -> list[int]:
        wanted = set(pairs)
        first = enumerate(islice(self._pairs(), max(wanted, default=0)), start=1)
        return [pair.number for index, pair in first if index in wanted]


class _CachedTmx(_TwoTexts):
    """Reader of a TMX that was parsed into the cache (tmx_cache.py): two texts, and the numbers of the units."""

    def __init__(self, files: CorpusFiles, folder: Path) -> None:
        super().__init__(*(_text(folder / side)._replace(name=str(files.src_file)) for side in ("src", "tgt")))
        self._numbers = folder / "numbers"

    def places(self, pairs: Sequence[int]) -> list[int]:
        with opened(self._numbers) as file:
            numbers = array("q", file.read())
        return [numbers[pair - 1] for pair in pairs]


class _Vectors(PairReader):
    """Reader of vectors or images with a text that has a line for each. The source line of a pair is empty."""

    def __init__(self, files: CorpusFiles, source: VectorSource | ImageSource) -> None:
        from nmt.corpora.vectors import open_vectors, rows_at_once  # which imports numpy

        self.src_name, self.tgt_name = str(files.src), str(files.tgt)
        self._text = _text(files.tgt_file)
        vectors = open_vectors(files.src_file, source)
        self._num_sources, self.max_block = len(vectors), rows_at_once(vectors)

    def raw_pairs(self) -> Iterator[tuple[bytes, bytes]]:
        self.count()
        return ((b"", line) for line in self._text.lines())

    def count(self) -> int:
        with self._text.opened() as file:
            lines = count_lines(file)
        if lines != self._num_sources:
            raise DataError(
                f"the two sides differ in length: {self.src_name} has {self._num_sources:,} sources, {self.tgt_name} "
                f"has {lines:,} lines; every source needs its line"
            )
        return lines


def reader_of(files: CorpusFiles, source: SourceConfig = TEXT) -> PairReader:
    """The reader for a corpus; `DataError` for an archive without the two texts, or sources that cannot be read."""
    if source.type != "text":
        return _Vectors(files, source)
    if files.parsed is not None and files.parsed.is_dir():  # the cache may be deleted at any time
        return _CachedTmx(files, files.parsed)
    if files.src is not None and files.tgt is not None:
        return _TwoTexts(_text(files.src), _text(files.tgt))
    if pairs_format(files.src_file) == "zip":
        src, tgt = files.columns
        return _TwoTexts(_member(files.src_file, str(src)), _member(files.tgt_file, str(tgt)))
    return _OneFile(files)


def read_pairs(
    files: CorpusFiles, chosen: bytes | None = None, source: SourceConfig = TEXT
) -> Iterator[tuple[str, str]]:
    """Yield the (source, target) lines of a corpus; with `chosen`, the pairs whose byte in it is not 0.

    The line of a source that is not text is empty. Raises `DataError` as a `PairReader` does.
    """
    reader = reader_of(files, source)
    for index, (src, tgt) in enumerate(reader.raw_pairs()):
        if chosen is None or chosen[index]:
            yield _decoded(src, reader.src_name, index + 1, files), _decoded(tgt, reader.tgt_name, index + 1, files)


def _decoded(line: bytes, name: str, pair: int, files: CorpusFiles) -> str:
    """Decode a side of the pair with this number; its line may have another number, which an error names."""
    try:
        return decode_line(line, name, pair)
    except DataError:
        (number,) = places_of(files, [pair])
        return decode_line(line, name, number)


def places_of(files: CorpusFiles, pairs: Sequence[int]) -> list[int]:
    """`PairReader.places`, or the numbers of the pairs if the file can no longer be read, as late in a training."""
    try:
        return reader_of(files).places(pairs)
    except DataError:
        return list(pairs)


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a corpus or test set."""

    path: Path
    files: CorpusFiles | None = None
    """The corpus, if the file holds both sides; None: the file is this side."""
    is_src: bool = True

    def lines(self) -> Iterator[str]:
        """Return its lines; `DataError` as from `read_pairs`."""
        if self.files is None:
            return read_lines(self.path)
        return (src if self.is_src else tgt for src, tgt in read_pairs(self.files))

    def __str__(self) -> str:
        return str(self.path)


def sides_of(files: CorpusFiles) -> tuple[Side, Side]:
    """The source and the target side of a corpus."""
    both = files if files.pairs else None
    return Side(files.src_file, both), Side(files.tgt_file, both, is_src=False)


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive pairs of a corpus, undecoded."""

    src_name: str
    tgt_name: str
    first: int
    """Number of the first pair, from 1."""
    src: bytes
    """Empty for a source that is not text: its vectors are read from the file by their numbers."""
    tgt: bytes
    files: CorpusFiles
    """The corpus, in which messages look up the line number of a pair."""
    chosen: bytes | None = None
    """A byte for each pair, 0 for one that is dropped; None: all are chosen."""

    def __len__(self) -> int:
        """Number of its pairs, chosen or not."""
        return self.tgt.count(b"\n") + (not self.tgt.endswith(b"\n"))

    @property
    def rows(self) -> tuple[int, int]:
        """Begin and end of its pairs in the corpus, from 0."""
        return self.first - 1, self.first - 1 + len(self)

    def lines(self, strict: bool = True) -> tuple[list[str], list[str]]:
        """Return both sides' chosen lines without line ends; `DataError` for one that is not UTF-8.

        Not `strict`: bytes that are not UTF-8 become surrogates (Python's `surrogateescape`).
        """
        return self.of_chosen(self._split(self.src, self.src_name, strict)), self.tgt_lines(strict)

    def tgt_lines(self, strict: bool = True) -> list[str]:
        """Return the target's lines, as `lines` does."""
        return self.of_chosen(self._split(self.tgt, self.tgt_name, strict))

    def _split(self, side: bytes, name: str, strict: bool) -> list[str]:
        strict = strict and self.chosen is None  # chosen lines have been decoded before
        try:
            return split_lines(side, name, self.first, strict)
        except DataError:
            lines = enumerate(io.BytesIO(side), start=self.first)
            return [_decoded(line, name, pair, self.files) for pair, line in lines]  # raises it with the line number

    def of_chosen(self, items: Sequence[Item]) -> list[Item]:
        """Return the items of the chosen pairs, given an item for each pair."""
        return list(items) if self.chosen is None else list(compress(items, self.chosen))


def read_blocks(files: CorpusFiles, source: SourceConfig = TEXT) -> Iterator[Block]:
    """Yield all pairs in blocks of about `BLOCK_BYTES` and at most `BLOCK_PAIRS`; `DataError` as from `read_pairs`."""
    reader = reader_of(files, source)
    src_lines: list[bytes] = []
    tgt_lines: list[bytes] = []
    first, size = 1, 0

    def block() -> Block:
        return Block(reader.src_name, reader.tgt_name, first, b"".join(src_lines), b"".join(tgt_lines), files)

    for src, tgt in reader.raw_pairs():
        src_lines.append(src)
        tgt_lines.append(tgt)
        size += len(src) + len(tgt)
        if size >= BLOCK_BYTES or len(src_lines) == min(BLOCK_PAIRS, reader.max_block):
            yield block()
            first, size = first + len(src_lines), 0
            src_lines.clear()
            tgt_lines.clear()
    if src_lines:
        yield block()


def over_blocks(
    prepare: Callable[[], Callable[[Block], Result]], blocks: Iterable[Block], num_processes: int, task: str
) -> Iterator[Result]:
    """Map the function that `prepare` returns over the blocks, in order, in N processes; for N < 2 in this one.

    Raises `TrainingError`, "a process that `task` ...", if a process dies.
    """
    if num_processes < 2:
        yield from map(prepare(), blocks)
        return
    # Threads for numpy's matrix products, which are not needed here, cost memory.
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    pending: deque[tuple[Future[Result], int]] = deque()  # sent ahead, with the bytes of their blocks
    with Workers([prepare] * num_processes, environment) as workers:
        for block in blocks:
            size = len(block.src) + len(block.tgt)
            while pending and (
                len(pending) >= 2 * num_processes or size + sum(ahead for _, ahead in pending) > MAX_PENDING_BYTES
            ):
                yield pending.popleft()[0].result()
            pending.append((workers.submit(block, f"{task} {block.src_name}"), size))
        for future, _ in pending:
            yield future.result()


def name_of(files: CorpusFiles) -> str:
    """Display name of a corpus: its files."""
    return str(files.pairs) if files.pairs else f"{files.src}, {files.tgt}"


def empty_error(files: CorpusFiles) -> DataError:
    """The error for a corpus without pairs."""
    message = f"{files.pairs} is empty" if files.pairs else f"{files.src} and {files.tgt} are empty"
    is_pipe = not files.src_file.is_file()
    return DataError(message + "; a pipe can be read only once: write the text to a file" * is_pipe)


def count_pairs(corpora: Sequence[CorpusFiles], source: SourceConfig = TEXT) -> int:
    """Count the pairs of all corpora; `DataError` as from a `PairReader`, and for an empty corpus."""
    counts = [reader_of(files, source).count() for files in corpora]
    for files, count in zip(corpora, counts, strict=True):
        if not count:
            raise empty_error(files)
    return sum(counts)
