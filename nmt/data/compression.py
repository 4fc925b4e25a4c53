"""Opening files that may be compressed, as their names say: .gz, .bz2, .xz, .zst."""

import contextlib
import gzip
import sys
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from types import ModuleType
from typing import Any

from nmt.errors import DataError, MissingExtraError, how_to_install

_BUFFER_BYTES = 1 << 16


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """The open file, decompressed; an OS error inside the block, or damaged content, becomes a `DataError`."""
    try:
        with _open(path) as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except _errors(path) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _open(path: Path) -> BufferedReader:
    match path.suffix:
        case ".gz":
            return _buffered(gzip.GzipFile(path, "rb"))
        case ".bz2":
            import bz2

            return _buffered(bz2.BZ2File(path, "rb"))
        case ".xz":
            import lzma

            return _buffered(lzma.LZMAFile(path, "rb"))
        case ".zst":
            return _buffered(_zstd(path).ZstdFile(path, "rb"))
    return path.open("rb")


def _buffered(file: Any) -> BufferedReader:
    """The file, of which the lines are found in C."""
    return BufferedReader(file, _BUFFER_BYTES)


def _errors(path: Path) -> tuple[type[Exception], ...]:
    """What reading the file raises if it cannot be read or its content is damaged."""
    match path.suffix:
        case ".gz":
            return OSError, EOFError, zlib.error
        case ".xz":
            import lzma

            return OSError, EOFError, lzma.LZMAError
        case ".zst":
            return OSError, EOFError, _zstd(path).ZstdError
    return OSError, EOFError


def _zstd(path: Path) -> ModuleType:
    """`compression.zstd`, or for a Python before 3.14 the package that has the same."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise MissingExtraError(f"{path}: reading .zst needs backports.zstd: {how_to_install('zst')}") from None
    return zstd
