"""Reading parallel text: two files, line n of one the translation of line n of the other.

A line ends at "\\n" and nowhere else. Python's text mode and `str.splitlines` also break at "\\r",
U+2028 and a dozen other characters, which shifts one side of a corpus against the other.
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

from nmt.config.inference import MAX_POSITIONS
from nmt.config.training import CorpusFiles
from nmt.errors import DataError

log = logging.getLogger("nmt")

# Of a block. Small enough that several are held at once, large enough that handing one over costs nothing.
BLOCK_PAIRS = 2000
BLOCK_BYTES = 1 << 18
LINES_BYTES = 1 << 17  # of lines to be translated: about 2,000, enough to sort by length
# Bytes of a line to be translated: as many pieces as a model may have positions, each of 16 characters of 4 bytes.
LONGEST_LINE = MAX_POSITIONS * 16 * 4


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """The file's bytes, through gzip if its name says so; whatever fails inside the block is a `DataError`."""
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
    """The file's lines without their ends: "\\n", and a "\\r" before it.

    Raises `DataError` if the file is missing or a line is not UTF-8.
    """
    with opened(path) as file:
        yield from decode_lines(file, str(path))


def decode_lines(file: BinaryIO, name: str, first: int = 1) -> Iterator[str]:
    """`read_lines` of a file that is open; `name`, and the number of its first line, are for messages."""
    for number, line in enumerate(file, start=first):
        yield _decode(line, name, number)


class Readable(Protocol):
    """An open file, a pipe, or what stands for one."""

    def read1(self, size: int, /) -> bytes:
        """Up to `size` bytes, of those that are there; none at the end."""


def line_blocks(file: Readable, name: str) -> Iterator[list[str]]:
    """The lines of an open file or a pipe in blocks: those that are there, without waiting for more.

    The first blocks are small, so that something comes out soon; no block has much more than `LINES_BYTES`, except
    where one line has. A line is cut at `LONGEST_LINE`, with a warning that names it. Raises `DataError` if a line is
    not UTF-8.
    """
    size, number = LINES_BYTES // 64, 1
    begun = _BegunLine(f"{name}:{number}")
    while data := file.read1(size):
        part, end, following = data.partition(b"\n")
        begun.add(part)
        if not end:
            continue
        whole, end, rest = following.rpartition(b"\n")
        lines = _split(b"".join([begun.content(), b"\n", whole, end]), name, number)
        number += len(lines)
        begun = _BegunLine(f"{name}:{number}")
        begun.add(rest)
        yield lines
        size = min(2 * size, LINES_BYTES)
    if content := begun.content():
        yield _split(content, name, number)


class _BegunLine:
    """A line whose end has not come yet."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._parts: list[bytes] = []
        self._room = LONGEST_LINE
        self._is_cut = False

    def add(self, part: bytes) -> None:
        """What follows, as far as there is room for it."""
        if len(part) > self._room and not self._is_cut:
            self._is_cut = True
            log.warning(
                "%s: a line of more than %s bytes; the rest of it is left out", self._place, f"{LONGEST_LINE:,}"
            )
        if kept := part[: self._room]:
            self._parts.append(kept)
            self._room -= len(kept)

    def content(self) -> bytes:
        """Its bytes; a character that the cut went through is left out."""
        content = b"".join(self._parts)
        if self._is_cut:
            _, length = codecs.utf_8_decode(content, "replace", False)  # stops before a character without its end
            return content[:length]
        return content


def _decode(line: bytes, name: str, number: int) -> str:
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")  # the mark that some editors put first
    try:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}:{number}: not UTF-8 ({error.reason}); convert the text") from None
    if "\0" in text:
        raise DataError(f"{name}:{number}: a NUL character, so this is not plain text (UTF-16?); convert the text")
    return text


def read_pairs(files: CorpusFiles, chosen: bytes | None = None) -> Iterator[tuple[str, str]]:
    """The (source, target) lines of two files; with `chosen`, those of the pairs whose byte in it is not 0.

    Raises `DataError`, with both counts, if one of them is longer.
    """
    src_name, tgt_name = str(files.src), str(files.tgt)
    for index, (src, tgt) in enumerate(raw_pairs(files)):
        if chosen is None or chosen[index]:
            yield _decode(src, src_name, index + 1), _decode(tgt, tgt_name, index + 1)


def raw_pairs(files: CorpusFiles) -> Iterator[tuple[bytes, bytes]]:
    """`read_pairs` of the bytes as they stand in the files, with their line ends."""
    src_lines, tgt_lines = _raw_lines(files.src), _raw_lines(files.tgt)
    for count, (src, tgt) in enumerate(zip_longest(src_lines, tgt_lines)):
        if src is None or tgt is None:
            longer = 1 + sum(1 for _ in (tgt_lines if src is None else src_lines))
            raise _differing(files, *((count, count + longer) if src is None else (count + longer, count)))
        yield src, tgt


def _differing(files: CorpusFiles, src_count: int, tgt_count: int) -> DataError:
    return DataError(
        f"the two sides differ in length: {files.src} has {src_count:,} lines, "
        f"{files.tgt} has {tgt_count:,}; every line needs its translation"
    )


@dataclasses.dataclass(frozen=True)
class Block:
    """Some pairs of two files, one after the other, as the bytes that the files hold."""

    src_name: str
    tgt_name: str
    first: int
    """Line number of the first pair, from 1."""
    src: bytes
    tgt: bytes

    def lines(self) -> tuple[list[str], list[str]]:
        """Both sides' lines without their ends; `DataError` if one is not UTF-8."""
        return _split(self.src, self.src_name, self.first), _split(self.tgt, self.tgt_name, self.first)


def _split(data: bytes, name: str, first: int) -> list[str]:
    """`decode_lines` in one go."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return list(decode_lines(io.BytesIO(data), name, first))  # which finds the line
    if first == 1:
        text = text.removeprefix("\ufeff")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_blocks(files: CorpusFiles) -> Iterator[Block]:
    """All pairs in blocks of about `BLOCK_BYTES`, and at most `BLOCK_PAIRS` pairs; `DataError` as `read_pairs`."""
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

    Raises `DataError` if a file cannot be read, two sides differ in length, or there is nothing.
    """
    counts = [pairs_in(files) for files in corpora]
    for files, count in zip(corpora, counts, strict=True):
        if not count:
            raise DataError(f"{files.src} and {files.tgt} are empty")
    return sum(counts)


def pairs_in(files: CorpusFiles) -> int:
    """The number of pairs in two files, which may be none; `DataError` as `count_pairs`."""
    src_count, tgt_count = count_lines(files.src), count_lines(files.tgt)
    if src_count != tgt_count:
        raise _differing(files, src_count, tgt_count)
    return src_count


def count_lines(path: Path) -> int:
    """The number of lines that `read_lines` gives, without decoding them; `DataError` if the file cannot be read."""
    count, last = 0, b"\n"
    with opened(path) as file:
        while chunk := file.read(1 << 20):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return count + (last != b"\n")  # a last line may lack its end
