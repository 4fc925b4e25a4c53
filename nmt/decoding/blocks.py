"""Blocks of lines, vectors or images to translate, read once, in constant memory, with a progress bar."""

import dataclasses
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, cast

from nmt.config.source import SourceConfig
from nmt.corpora.lines import Readable, count_lines, line_blocks, opened
from nmt.decoding.source_text import Item
from nmt.errors import ConfigError, DataError
from nmt.system.console import progress_bar


@dataclasses.dataclass(frozen=True)
class Beginning:
    """The beginning of a file after decompression: its size in bytes and its hash."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path, size: int) -> "Beginning":
        """Hash the first `size` bytes of a file, or all if it has fewer. `DataError` if it cannot be read."""
        with opened(path) as file:
            hashed = HashedReader(file)
            while hashed.size < size and hashed.read1(min(1 << 20, size - hashed.size)):
                pass
        return hashed.beginning()


class HashedReader:
    """An open file, with the hash of all bytes read from it."""

    def __init__(self, file: Readable) -> None:
        self.size = 0
        self._file = file
        self._hash = hashlib.sha256()

    def read1(self, size: int, /) -> bytes:
        """As `Readable.read1`."""
        data = self._file.read1(size)
        self.size += len(data)
        self._hash.update(data)
        return data

    def beginning(self) -> Beginning:
        """Return size and hash of the part read so far."""
        return Beginning(self.size, self._hash.hexdigest())


class Shard(NamedTuple):
    """The part of a file that is translated: the lines or sources from `first` to before `end`, counted from 0."""

    first: int
    end: int
    total: int
    name: str
    """`3/16 of 1,000 lines`."""


def shard_of(path: Path, source: SourceConfig, name: str) -> Shard:
    """Part `I/N` of a file; the N parts, one after the other, are all of it. `ConfigError` for another name."""
    number, slash, count = (int(part) if part.isdecimal() else part for part in name.partition("/"))
    if not (isinstance(number, int) and slash and isinstance(count, int) and 1 <= number <= count):
        raise ConfigError(f"--shard {name}: give I/N with I from 1 to N, such as from 1/16 to 16/16")
    if source.type == "text":
        with opened(path) as file:
            total = count_lines(file)
    else:
        from nmt.corpora.vectors import open_vectors  # imports numpy

        total = len(open_vectors(path, source))
    return Shard(total * (number - 1) // count, total * number // count, total, f"{name} of {total:,} lines")


def text_blocks(
    path: Path | None, skip: int, record_read: Callable[[Beginning], None] | None = None, share: float = 1.0
) -> Iterator[list[str]]:
    """Yield the lines after the first `skip`, in blocks, with a progress bar if standard error is a terminal.

    The bar counts the bytes of the file, of which a `share` is wanted; a pipe, whose size is unknown, has no bar.
    Before each block of a file, `record_read` is called with the part of the file read so far, which includes the block
    and may be longer.
    """
    if path is None:
        # A reader of its own: Python aborts if it exits while a thread waits in that of sys.stdin.
        stdin = BufferedReader(cast(BufferedReader, sys.stdin.buffer).raw)
        try:
            yield from line_blocks(stdin, "standard input", good_first=True)
        finally:
            stdin.detach()  # leaves standard input open
        return
    size = round(share * path.stat().st_size) if path.is_file() else 0
    bar = progress_bar(total=size, unit="B", unit_scale=True, smoothing=0) if path.is_file() else None
    with opened(path) as file:
        hashed = HashedReader(file)
        for block in line_blocks(hashed, str(path)):
            if skip < len(block):
                if record_read is not None:
                    record_read(hashed.beginning())
                yield block[skip:]
            if bar is not None:  # the consumer is done with this block
                bar.update(os.lseek(file.fileno(), 0, os.SEEK_CUR) - bar.n)
                bar.initial = bar.initial if skip < len(block) else bar.n  # skipped lines do not count in the speed
            skip = max(0, skip - len(block))
    if bar is not None:
        bar.close()
    if skip:
        raise DataError(f"{path} has {skip:,} lines fewer than its output, so it is not the same text")


def source_blocks(path: Path, skip: int, source: SourceConfig) -> Iterator[list[Item]]:
    """Yield the vectors or images of a file after the first `skip`, in blocks, with a progress bar as for text."""
    from nmt.corpora.vectors import open_vectors, vector_blocks  # imports numpy

    assert source.type != "text"
    bar = progress_bar(total=len(open_vectors(path, source)), initial=skip, unit=" sources")
    for block in vector_blocks(path, source, skip):
        yield [*block]
        if bar is not None:
            bar.update(len(block))
    if bar is not None:
        bar.close()
