"""Reading parallel text: two files, line n of one the translation of line n of the other.

A line ends at "\\n" and nowhere else. Python's text mode and `str.splitlines` also break at "\\r",
U+2028 and a dozen other characters, which shifts one side of a corpus against the other.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, cast

from nmt.config import CorpusFiles
from nmt.errors import DataError


def read_lines(path: Path) -> Iterator[str]:
    """The file's lines without their ends: "\\n", and a "\\r" before it.

    Raises `DataError` if the file is missing or a line is not UTF-8.
    """
    try:
        with cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb") as file:
            yield from decode_lines(file, str(path))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def decode_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """`read_lines` of a file that is open, standard input for example; `name` is for messages."""
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")  # the mark that some editors put first
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}:{number}: not UTF-8 ({error.reason}); convert the text") from None


def read_pairs(files: CorpusFiles) -> Iterator[tuple[str, str]]:
    """The (source, target) lines of two files.

    Raises `DataError`, with both counts, if one of them is longer.
    """
    src_lines, tgt_lines = read_lines(files.src), read_lines(files.tgt)
    for count, (src, tgt) in enumerate(zip_longest(src_lines, tgt_lines)):
        if src is None or tgt is None:
            longer = 1 + sum(1 for _ in (tgt_lines if src is None else src_lines))
            src_count, tgt_count = (count, count + longer) if src is None else (count + longer, count)
            raise DataError(
                f"the two sides differ in length: {files.src} has {src_count:,} lines, "
                f"{files.tgt} has {tgt_count:,}; every line needs its translation"
            )
        yield src, tgt


def count_pairs(corpora: Sequence[CorpusFiles]) -> int:
    """Read every file once and return the number of pairs.

    Raises `DataError` if a file cannot be read, two sides differ in length, or there is nothing.
    """
    total = 0
    for files in corpora:
        count = sum(1 for _ in read_pairs(files))
        if not count:
            raise DataError(f"{files.src} and {files.tgt} are empty")
        total += count
    return total


def file_hash(path: Path) -> bytes:
    """SHA-256 of a file's content; `DataError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
