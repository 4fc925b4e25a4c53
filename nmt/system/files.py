"""Atomic writing of files and folders, and file locks.

A kill at any instant leaves the old file or the new one, never a partial one: everything is written under a temporary
name in the same folder, flushed to the disk, then renamed. Only `write_bytes`, `append`, `flush_one` and `rename`
change a disk; the tests make every call of them fail.

A lock is released when its process ends, even by a kill. The lock file is empty and lies next to the locked file or
folder, which may meanwhile be renamed or removed. The lock file stays, or is removed by the process that holds the
lock; a process that had the removed file open notices (its link count is 0) and retries with a new one (`filelock`).
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.errors import RunError
from nmt.system.console import log

if TYPE_CHECKING:
    from filelock import BaseFileLock

# Errors of network file systems without locks; on Linux the last two are the same number.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
# Unfinished files are in a temporary folder next to their destination, named `.NAME.` + eight characters + this.
_TEMPORARY = ".nmt-part"


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file at a temporary path that `replacing` yielded."""
    with path.open("wb") as file:
        file.write(data)


def append(path: Path, line: str) -> None:
    """Append a line to a file; if the write fails, part of the line may remain."""
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


def flush(path: Path) -> None:
    """Flush a file, or a folder with everything in it, to the disk."""
    for inner in path.rglob("*") if path.is_dir() else ():
        flush_one(inner)
    flush_one(path)


def rename(path: Path, to: Path) -> None:
    """Rename a file or a folder; an existing file named `to` is replaced atomically."""
    path.replace(to)


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder next to `path`; after a kill, `remove_leftovers` removes it.

    An `OSError` about it or its content names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        holder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_TEMPORARY, dir=path.parent))
        try:
            yield holder
        finally:
            shutil.rmtree(holder, ignore_errors=True)
    except OSError as error:
        if _TEMPORARY in str(error.filename):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write a file or a folder at; it is renamed to `path` if the block raises nothing.

    Replacing a folder takes two renames. After a kill between them, the old folder is in the temporary one, as `old`,
    and `remove_leftovers` restores it. Checkpoints are never replaced: each has a different name.
    """
    with temporary_folder(path) as holder:
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
    """The `temporary_folder`s that killed processes left in `folder`, each with the name that it was made for."""
    for path in folder.glob(f".*{_TEMPORARY}"):
        match = re.fullmatch(rf"\.(.+)\.[a-z0-9_]{{8}}{re.escape(_TEMPORARY)}", path.name, re.DOTALL)
        if match and path.is_dir() and not path.is_symlink():
            yield path, match[1]


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path | None]:
    """`replacing` for a folder that several processes may need at once: the first builds it, the others wait.

    Yields None if the folder exists, at once or after waiting. Removes leftovers of killed processes.
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


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def locked(path: Path, wait: bool, leaves_no_file: bool = False) -> Iterator[bool]:
    """Hold the lock of a file or folder, which need not exist, during the block.

    Yields True if this process has the lock. If another process has it: with `wait`, logs a message and waits for it;
    else yields False. With `leaves_no_file`, the lock file is removed afterwards, except on Windows, where an open file
    cannot be.
    """
    from filelock import FileLock, SoftFileLock, Timeout  # most commands need no locks

    file, soft_file = _files(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    lock: BaseFileLock = FileLock(file)
    seconds = 0.2  # for `is_locked` of another process to release it
    try:
        try:
            lock.acquire(timeout=seconds)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                error.filename = str(path)  # rather than the hidden file
                raise
            lock = SoftFileLock(soft_file)
            lock.acquire(timeout=seconds)
    except Timeout:
        if not wait:
            yield False
            return
        log.info(f"{path}: waiting for another process that uses it")
        lock.acquire()
    try:
        yield True
    finally:
        if leaves_no_file:  # while the lock is held: no other process has locked a new file of that name yet
            with contextlib.suppress(OSError):
                Path(lock.lock_file).unlink()
        lock.release()


def is_locked(path: Path) -> bool:
    """True if a process, on any machine, holds the lock of a file or folder, or if this one lacks permission to try.

    False on a read-only disk, where no process can hold it.
    """
    if not any(file.exists() for file in _files(path)):
        return False
    try:
        with locked(path, wait=False) as is_free:
            return not is_free
    except OSError as error:
        return error.errno != errno.EROFS


def _files(path: Path) -> tuple[Path, Path]:
    real = path.resolve()  # one lock for a file and all links to it; "." has no name
    return real.with_name(f".{real.name}.lock"), real.with_name(f".{real.name}.softlock")
