"""Reading parallel text: two files, where line n of one is the translation of line n of the other.

A line ends only at "\\n". Python's text mode and `str.splitlines` also break lines at "\\r", U+2028 and a dozen other
characters, which misaligns the two sides of a corpus.
"""

import codecs
import contextlib
import dataclasses
import gzip
import io
import logging
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from nmt.config.section import MAX_POSITIONS
from nmt.config.source import SourceConfig
from nmt.config.training import CorpusFiles
from nmt.errors import DataError

log = logging.getLogger("nmt")

# Limits of a block: small enough to hold several at once, large enough to send to another process at little cost.
BLOCK_PAIRS = 2000
BLOCK_BYTES = 1 << 18
LINES_BYTES = 1 << 17  # a block of lines to translate: about 2,000 lines, enough to sort by length
# Maximum bytes of a line to translate: as many pieces as a model can have positions, each of 16 characters of 4 bytes.
LONGEST_LINE = MAX_POSITIONS * 16 * 4


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """The open file, through gzip if its name ends in .gz; an OS error inside the block becomes a `DataError`."""
    try:
        with cast(BufferedReader, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _raw_lines(path: Path) -> Iterator[bytes]:
    with opened(path) as file:
        yield from file


def read_lines(path: Path) -> Iterator[str]:
    """The file's lines without line ends: "\\n" or "\\r\\n".

    Raises `DataError` if the file is missing or a line is not UTF-8.
    """
    with opened(path) as file:
        yield from decode_lines(file, str(path))


def decode_lines(file: BinaryIO, name: str, first: int = 1) -> Iterator[str]:
    """`read_lines` for an open file; its `name` and the number of the first line are for messages."""
    for number, line in enumerate(file, start=first):
        yield _decode(line, name, number)


class Readable(Protocol):
    """An open file or pipe, or an object that behaves like one."""

    def read1(self, size: int, /) -> bytes:
        """Up to `size` bytes of those available now; none at the end."""


def line_blocks(file: Readable, name: str) -> Iterator[list[str]]:
    """The lines of an open file or a pipe in blocks; a block holds the lines available now, without waiting for more.

    The first blocks are small, so that output starts soon; no block is much larger than `LINES_BYTES`, except for one
    long line. A line is truncated at `LONGEST_LINE`, with a warning. Raises `DataError` if a line is not UTF-8.
    """
    size, number = LINES_BYTES // 64, 1
    partial = _PartialLine(f"{name}:{number}")
    while data := file.read1(size):
        part, end, following = data.partition(b"\n")
        partial.add(part)
        if not end:
            continue
        whole, end, rest = following.rpartition(b"\n")
        lines = _split(b"".join([partial.content(), b"\n", whole, end]), name, number)
        number += len(lines)
        partial = _PartialLine(f"{name}:{number}")
        partial.add(rest)
        yield lines
        size = min(2 * size, LINES_BYTES)
    if content := partial.content():
        yield _split(content, name, number)


class _PartialLine:
    """A line that has been read in part."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._parts: list[bytes] = []
        self._room = LONGEST_LINE
        self._is_cut = False

    def add(self, part: bytes) -> None:
        """Append the next part, up to the limit."""
        if len(part) > self._room and not self._is_cut:
            self._is_cut = True
            log.warning("%s: line longer than %s bytes; the rest is left out", self._place, f"{LONGEST_LINE:,}")
        if kept := part[: self._room]:
            self._parts.append(kept)
            self._room -= len(kept)

    def content(self) -> bytes:
        """The line's bytes, without an incomplete character at the limit."""
        content = b"".join(self._parts)
        if self._is_cut:
            _, length = codecs.utf_8_decode(content, "replace", False)  # stops before an incomplete character
            return content[:length]
        return content


def _decode(line: bytes, name: str, number: int) -> str:
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
    try:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}:{number}: not UTF-8 ({error.reason}); convert the text") from None
    if "\0" in text:
        raise DataError(f"{name}:{number}: a NUL character, so this is not plain text (UTF-16?); convert the text")
    return text


def read_pairs(files: CorpusFiles, chosen: bytes | None = None) -> Iterator[tuple[str, str]]:
    """The (source, target) lines of two files; with `chosen`, only pair n if byte n of it is not 0.

    Raises `DataError` if the numbers of lines differ.
    """
    src_name, tgt_name = str(files.src), str(files.tgt)
    for index, (src, tgt) in enumerate(raw_pairs(files)):
        if chosen is None or chosen[index]:
            yield _decode(src, src_name, index + 1), _decode(tgt, tgt_name, index + 1)


def raw_pairs(files: CorpusFiles) -> Iterator[tuple[bytes, bytes]]:
    """`read_pairs` for the undecoded lines, with line ends."""
    src_lines, tgt_lines = _raw_lines(files.src), _raw_lines(files.tgt)
    for count, (src, tgt) in enumerate(zip_longest(src_lines, tgt_lines)):
        if src is None or tgt is None:
            longer = 1 + sum(1 for _ in (tgt_lines if src is None else src_lines))
            raise _length_mismatch(files, *((count, count + longer) if src is None else (count + longer, count)))
        yield src, tgt


def _length_mismatch(files: CorpusFiles, src_count: int, tgt_count: int) -> DataError:
    return DataError(
        f"the two sides differ in length: {files.src} has {src_count:,} lines, "
        f"{files.tgt} has {tgt_count:,}; every line needs its translation"
    )


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive pairs of two files, undecoded."""

    src_name: str
    tgt_name: str
    first: int
    """Line number of the first pair, from 1."""
    src: bytes
    """Empty for a source that is not text: its vectors are read from the file by their number."""
    tgt: bytes

    def lines(self) -> tuple[list[str], list[str]]:
        """Both sides' lines without line ends; `DataError` if one is not UTF-8."""
        return _split(self.src, self.src_name, self.first), self.tgt_lines()

    def tgt_lines(self) -> list[str]:
        """The target's lines, as in `lines`."""
        return _split(self.tgt, self.tgt_name, self.first)


def _split(data: bytes, name: str, first: int) -> list[str]:
    """`decode_lines` for a whole block at once, which is faster."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return list(decode_lines(io.BytesIO(data), name, first))  # finds the line for the message
    if first == 1:
        text = text.removeprefix("\ufeff")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_blocks(files: CorpusFiles) -> Iterator[Block]:
    """All pairs in blocks of about `BLOCK_BYTES` and at most `BLOCK_PAIRS` pairs; `DataError` as for `read_pairs`."""
    src_lines: list[bytes] = []
    tgt_lines: list[bytes] = []
    first, size = 1, 0

    def block() -> Block:
        return Block(str(files.src), str(files.tgt), first, b"".join(src_lines), b"".join(tgt_lines))

    for src, tgt in raw_pairs(files):
        src_lines.append(src)
        tgt_lines.append(tgt)
        size += len(src) + len(tgt)
        if size >= BLOCK_BYTES or len(src_lines) == BLOCK_PAIRS:
            yield block()
            first, size = first + len(src_lines), 0
            src_lines.clear()
            tgt_lines.clear()
    if src_lines:
        yield block()


def count_pairs(corpora: Sequence[CorpusFiles]) -> int:
    """Read every file once, as bytes, and return the number of pairs.

    Raises `DataError` if a file cannot be read, two sides differ in length, or both are empty.
    """
    counts = [pairs_in(files) for files in corpora]
    for files, count in zip(corpora, counts, strict=True):
        if not count:
            raise DataError(f"{files.src} and {files.tgt} are empty")
    return sum(counts)


def pairs_in(files: CorpusFiles) -> int:
    """The number of pairs in two files, possibly 0; `DataError` as for `count_pairs`."""
    src_count, tgt_count = count_lines(files.src), count_lines(files.tgt)
    if src_count != tgt_count:
        raise _length_mismatch(files, src_count, tgt_count)
    return src_count


def source_files(path: Path, source: SourceConfig) -> list[Path]:
    """The files that sources are read from: a text, arrays, or a list of images and the images."""
    if source.type == "images":
        return [path, *listed_images(path)]
    return [path / "values.npy", path / "offsets.npy"] if source.type == "vectors" and path.is_dir() else [path]


def listed_images(path: Path) -> list[Path]:
    """The images that a list names, a path a line, relative to the list's folder; `DataError` for an empty line."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name a list of images, a path a line")
    names = list(read_lines(path))
    for number, name in enumerate(names, start=1):
        if not name.strip():
            raise DataError(f"{path}:{number}: is empty; each line names an image, and has its line on the other side")
    return [path.parent / name for name in names]


def count_lines(path: Path) -> int:
    """The number of lines that `read_lines` would yield, counted without decoding; `DataError` if it cannot be read."""
    count, last = 0, b"\n"
    with opened(path) as file:
        while chunk := file.read(1 << 20):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return count + (last != b"\n")  # the last line may lack a line end
