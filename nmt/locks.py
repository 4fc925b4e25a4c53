"""File locks between processes.

A lock is released when its process ends, even if killed. The empty lock file is next to the locked one. It stays, or is
removed by the process that holds the lock: one that had it open meanwhile finds that it has no name any more, and tries
again with a new one (`filelock` looks at the number of its links). The locked file may be renamed or removed meanwhile.
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.system.console import log

if TYPE_CHECKING:
    from filelock import BaseFileLock

# Errors of network file systems without locks; on Linux the last two are the same number.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path, wait: bool, leaves_no_file: bool = False) -> Iterator[bool]:
    """Hold the lock of a file or folder, which need not exist, during the block.

    With `leaves_no_file`, the lock file is removed afterwards; not on Windows, where an open file cannot be. Yields
    whether this process has the lock: with `wait` always True, else False if another process has it. Says that it
    waits.
    """
    from filelock import FileLock, SoftFileLock, Timeout  # translating needs no locks

    file, soft_file = _files(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    lock: BaseFileLock = FileLock(file)
    seconds = 0.2  # time for `is_locked` elsewhere to let it go
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
        if leaves_no_file:  # while the lock is held: nobody else has locked a new file of that name yet
            with contextlib.suppress(OSError):
                Path(lock.lock_file).unlink()
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process, on whatever machine, holds the lock of a file or folder; True if it may not be tried.

    False on a read-only disk, where nobody can have it.
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
