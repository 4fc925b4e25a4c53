"""Opening files that may be compressed, as their names say: .gz, .bz2, .xz, .zst."""

import contextlib
import gzip
import sys
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader, FileIO
from pathlib import Path
from types import ModuleType
from typing import Any

from nmt.errors import DataError, MissingExtraError, how_to_install

_BUFFER_BYTES = 1 << 16


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """The open file, decompressed; an OS error inside the block, or damaged content, becomes a `DataError`."""
    open_file, damage = _format(path)
    try:
        with BufferedReader(open_file(path, "rb"), _BUFFER_BYTES) as file:  # finds the lines in C
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, EOFError, damage) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _format(path: Path) -> tuple[Callable[..., Any], type[Exception]]:
    """What opens the file, and what reading it raises if its content is damaged, apart from `OSError` and `EOFError`."""
    match path.suffix:
        case ".gz":
            return gzip.GzipFile, zlib.error
        case ".bz2":
            import bz2

            return bz2.BZ2File, EOFError
        case ".xz":
            import lzma

            return lzma.LZMAFile, lzma.LZMAError
        case ".zst":
            zstd = _zstd(path)
            return zstd.ZstdFile, zstd.ZstdError
    return FileIO, EOFError


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
