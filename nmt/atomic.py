"""Writing files and folders so that a kill at any instant leaves the old one or the new one, never half of one.

Everything is written to a temporary name beside its place, flushed to the disk, then renamed. Only `write_bytes`,
`append`, `flush_one` and `rename` change a disk; the tests make each call of each of them fail.
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt.errors import RunError
from nmt.locks import locked

# Unfinished files are in a folder beside their place, named `.NAME.` + eight characters + this.
_TEMPORARY = ".nmt-part"


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file that nobody else uses yet, in a folder that `replacing` gave."""
    with path.open("wb") as file:
        file.write(data)


def append(path: Path, line: str) -> None:
    """Add a line to a file; if the write fails, a part of the line may stay."""
    with path.open("ab") as file:
        file.write(f"{line}\n".encode())


def flush_one(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to the disk."""
    if os.name != "nt":  # Windows opens no folders and flushes on close
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def rename(path: Path, to: Path) -> None:
    """Rename a file or a folder; a file of that name is replaced atomically."""
    path.replace(to)


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Give an empty folder beside `path` for the length of the block; after a kill, `remove_leftovers` removes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_TEMPORARY, dir=path.parent))
    try:
        yield holder
    finally:
        shutil.rmtree(holder, ignore_errors=True)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write a file or a folder at; it becomes `path` if the block ends well.

    Replacing a folder takes two renames; a kill between them leaves the old one in the folder `beside`, as `old`, from
    where `remove_leftovers` restores it. Nothing replaces a checkpoint: each has a name of its own.
    """
    with beside(path) as holder:
        temporary, old = holder / path.name, holder / "old"
        try:
            yield temporary
            flush(temporary)
            if temporary.is_dir() and path.exists():  # a folder cannot be renamed onto another
                rename(path, old)
            rename(temporary, path)
            flush_one(path.parent)
        finally:
            if old.exists() and not path.exists():
                rename(old, path)


def leftovers(folder: Path) -> Iterator[tuple[Path, str]]:
    """The folders that `beside` made in `folder` and a killed process left, each with the name it was writing."""
    for path in folder.glob(f".*{_TEMPORARY}"):
        match = re.fullmatch(rf"\.(.+)\.[a-z0-9_]{{8}}{re.escape(_TEMPORARY)}", path.name, re.DOTALL)
        if match and path.is_dir() and not path.is_symlink():
            yield path, match[1]


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path | None]:
    """As `replacing`, for a folder that several processes may want at once: the first makes it, the others wait.

    Gives None if it exists by then. What a killed process left of it is removed.
    """
    with locked(folder, wait=True):
        if folder.is_dir():
            yield None
            return
        for leftover, name in leftovers(folder.parent):
            if name == folder.name:
                shutil.rmtree(leftover, ignore_errors=True)
        with replacing(folder) as temporary:
            temporary.mkdir()
            yield temporary


def write_text(path: Path, text: str) -> None:
    """Replace the file's content."""
    with replacing(path) as temporary:
        write_bytes(temporary, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace the file's content with indented JSON."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file of a run; `RunError` if it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None


def flush(path: Path) -> None:
    """Flush a file, or a folder with everything in it, to the disk."""
    for inner in path.rglob("*") if path.is_dir() else ():
        flush_one(inner)
    flush_one(path)
