"""Files opened as their names tell (.gz, .bz2, .xz, .zst; members of a ZIP archive), and their lines.

A line ends only at "\\n". Python's text mode and `str.splitlines` also break lines at "\\r", U+2028 and a dozen other
characters, which misaligns the two sides of a corpus.
"""

import codecs
import contextlib
import gzip
import io
import lzma
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Protocol, cast

from nmt.config.section import MAX_POSITIONS
from nmt.errors import DataError, MissingExtraError, how_to_install
from nmt.system.console import log

BLOCK_PAIRS = 2000  # to read at once: enough to send to another process at little cost
LINES_BYTES = 1 << 17  # a block of lines to translate: about 2,000 lines, enough to sort by length
# Bytes of a line to translate: as many pieces as a model can have positions, each of 16 characters of 4 bytes.
MAX_LINE_BYTES = MAX_POSITIONS * 16 * 4

_BUFFER_BYTES = 1 << 16
_SURROGATE = re.compile(b"\xed[\xa0-\xbf]")  # in JSON "\\ud800"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """The open file, decompressed; an OS error inside the block, or damaged content, becomes a `DataError`."""
    open_file, damage = _format(path)
    with _as_data_error(path, "", damage), BufferedReader(open_file(path, "rb"), _BUFFER_BYTES) as file:  # fast lines
        yield file


@contextlib.contextmanager
def opened_member(path: Path, name: str) -> Iterator[BufferedReader]:
    """The open member of an archive, as from `opened`."""
    with _archive(path) as archive, archive.open(name) as file:
        yield BufferedReader(cast(BufferedReader, file), _BUFFER_BYTES)


def members(path: Path) -> list[str]:
    """The names of an archive's files; `DataError` if the archive cannot be read."""
    with _archive(path) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    damage = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError, NotImplementedError)
    with _as_data_error(path, " as a ZIP archive", *damage), zipfile.ZipFile(path) as archive:
        yield archive


@contextlib.contextmanager
def _as_data_error(path: Path, what: str, *damage: type[Exception]) -> Iterator[None]:
    """Turn OS errors and errors of damaged content into a `DataError`."""
    errors: tuple[type[Exception], ...] = (OSError, EOFError, *damage)
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except errors as error:
        raise DataError(f"{path}: cannot be read{what}: {error}") from None


def _format(path: Path) -> tuple[Callable[..., Any], type[Exception]]:
    """The class that opens the file, and its error for damaged content that is no `OSError` or `EOFError`."""
    match path.suffix:
        case ".gz":
            return gzip.GzipFile, zlib.error
        case ".bz2":
            import bz2

            return bz2.BZ2File, EOFError
        case ".xz":
            return lzma.LZMAFile, lzma.LZMAError
        case ".zst":
            zstd = _zstd(path)
            return zstd.ZstdFile, zstd.ZstdError
    return Path.open, EOFError


def _zstd(path: Path) -> ModuleType:
    """`compression.zstd`, or its backport for a Python before 3.14."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise MissingExtraError(f"{path}: reading .zst needs backports.zstd: {how_to_install('zst')}") from None
    return zstd


def read_lines(path: Path) -> Iterator[str]:
    """The file's lines without line ends: "\\n" or "\\r\\n".

    Raises `DataError` if the file is missing or a line is not UTF-8.
    """
    with opened(path) as file:
        yield from decode_lines(file, str(path))


def decode_lines(file: BinaryIO, name: str, first: int = 1) -> Iterator[str]:
    """The lines of an open file, as from `read_lines`; messages use its `name` and the number of the first line."""
    for number, line in enumerate(file, start=first):
        yield decode_line(line, name, number)


def escaped_lines(file: BinaryIO) -> Iterator[str]:
    """The lines of an open file in any encoding.

    Bytes that are not UTF-8 become surrogates (Python's `surrogateescape`), which `undecoded` turns back into bytes.
    """
    for number, line in enumerate(file):
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")


def undecoded(text: str) -> bytes:
    """The bytes of a text from `escaped_lines`; another surrogate becomes bytes that are not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


class Readable(Protocol):
    """An open file or pipe, or an object that behaves like one."""

    def read1(self, size: int, /) -> bytes:
        """Return up to `size` bytes of those available now; none at the end."""


def line_blocks(file: Readable, name: str, good_first: bool = False) -> Iterator[list[str]]:
    """The lines of an open file or a pipe in blocks; a block holds the lines available now, without waiting for more.

    The first blocks are small, so that output starts soon. No block is much larger than `LINES_BYTES`, except for one
    long line. A line is truncated at `MAX_LINE_BYTES`, with a warning. Raises `DataError` for a line that is not UTF-8;
    with `good_first`, after the lines before it in its block.
    """
    size, number, partial = LINES_BYTES // 64, 1, b""
    while data := file.read1(size):
        part, end, following = data.partition(b"\n")
        partial += part[: MAX_LINE_BYTES + 1 - len(partial)]  # a byte above the limit marks a line to truncate
        if not end:
            continue
        whole, end, rest = following.rpartition(b"\n")
        content = b"".join([_truncated(partial, f"{name}:{number}"), b"\n", whole, end])
        try:
            lines = split_lines(content, name, number)
        except DataError:
            if good_first:
                lines = []
                with contextlib.suppress(DataError):
                    lines.extend(decode_lines(io.BytesIO(content), name, number))  # keeps those before the error
                yield lines
            raise
        number += len(lines)
        partial = rest
        yield lines
        size = min(2 * size, LINES_BYTES)
    if partial:
        yield split_lines(_truncated(partial, f"{name}:{number}"), name, number)


def _truncated(line: bytes, place: str) -> bytes:
    """The line up to the last whole character within `MAX_LINE_BYTES`; warns if that is not all."""
    if len(line) <= MAX_LINE_BYTES:
        return line
    log.warning("%s: line longer than %s bytes; the rest is left out", place, f"{MAX_LINE_BYTES:,}")
    _, length = codecs.utf_8_decode(line[:MAX_LINE_BYTES], "replace", False)  # stops before an incomplete character
    return line[:length]


def decode_line(line: bytes, name: str, number: int) -> str:
    """A line of a text without its line end; `DataError` if it is not UTF-8 or holds a NUL.

    Messages use the text's `name` and the line's `number`. Line 1 loses its byte order mark.
    """
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        is_surrogate = _SURROGATE.match(error.object, error.start)
        reason = "half of a surrogate pair" if is_surrogate else error.reason
        raise DataError(f"{name}:{number}: not UTF-8 ({reason}); convert the text") from None
    if "\0" in text:
        raise DataError(f"{name}:{number}: a NUL character: not plain text (UTF-16?); convert the text to UTF-8")
    return text


def split_lines(data: bytes, name: str, first: int, strict: bool = True) -> list[str]:
    """The lines of a block, as from `decode_lines`, but decoded at once, which is faster.

    Not `strict`: a NUL is kept, and bytes that are not UTF-8 become surrogates (Python's `surrogateescape`).
    """
    try:
        text = data.decode("utf-8", "strict" if strict else "surrogateescape")
    except UnicodeDecodeError:
        text = "\0"
    if strict and "\0" in text:
        return list(decode_lines(io.BytesIO(data), name, first))  # raises the error with the number of the line
    if first == 1:
        text = text.removeprefix("\ufeff")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def count_lines(file: BinaryIO) -> int:
    """Count the lines that `decode_lines` would yield, without decoding."""
    count, last = 0, b"\n"
    while chunk := file.read(1 << 20):
        count += chunk.count(b"\n")
        last = chunk[-1:]
    return count + (last != b"\n")  # the last line may lack a line end


def listed_images(path: Path) -> list[Path]:
    """The images of a list with a path a line, relative to the list's folder; `DataError` for an empty line."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name a list of images, with a path a line")
    names = list(read_lines(path))
    for number, name in enumerate(names, start=1):
        if not name.strip():
            raise DataError(f"{path}:{number}: is empty; name an image, or remove the line here and on the other side")
    return [path.parent / name for name in names]
