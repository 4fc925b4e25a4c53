"""Opening files that may be compressed, as their names say (.gz, .bz2, .xz, .zst), and the members of ZIP archives."""

import contextlib
import gzip
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from nmt.errors import DataError, MissingExtraError, how_to_install

_BUFFER_BYTES = 1 << 16


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """The open file, decompressed; an OS error inside the block, or damaged content, becomes a `DataError`."""
    open_file, damage = _format(path)
    with _reported(path, "", damage), BufferedReader(open_file(path, "rb"), _BUFFER_BYTES) as file:  # finds lines in C
        yield file


@contextlib.contextmanager
def opened_member(path: Path, name: str) -> Iterator[BufferedReader]:
    """`opened` for a member of an archive."""
    with _archive(path) as archive, archive.open(name) as file:
        yield BufferedReader(cast(BufferedReader, file), _BUFFER_BYTES)


def members(path: Path) -> list[str]:
    """The names of an archive's files; `DataError` if it cannot be read."""
    with _archive(path) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    damage = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError)
    with _reported(path, " as a ZIP archive", *damage), zipfile.ZipFile(path) as archive:
        yield archive


@contextlib.contextmanager
def _reported(path: Path, what: str, *damage: type[Exception]) -> Iterator[None]:
    """`DataError` for an error of the system, or for damaged content, in the block."""
    errors: tuple[type[Exception], ...] = (OSError, EOFError, *damage)
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except errors as error:
        raise DataError(f"{path}: cannot be read{what}: {error}") from None


def _format(path: Path) -> tuple[Callable[..., Any], type[Exception]]:
    """What opens the file, and the error of damaged content that is no `OSError` or `EOFError`."""
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
    return Path.open, EOFError


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
