"""File locks between processes.

A lock is released when its process ends, even if killed. The empty lock file is next to the locked one, and is never
removed: if one process removed it while another had it open, a third could create and lock a new one. The locked file
may be renamed or removed meanwhile.
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock

# Errors of network file systems without locks; on Linux the last two are the same number.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Hold the lock of a file or folder, which need not exist, during the block.

    Yields whether this process has the lock: with `wait` always True, else False if another process has it.
    """
    from filelock import FileLock, SoftFileLock, Timeout  # translating needs no locks

    real = path.resolve() if path.is_symlink() else path  # one lock for a file and all links to it
    real.parent.mkdir(parents=True, exist_ok=True)
    lock: BaseFileLock = FileLock(real.with_name(f".{real.name}.lock"))
    try:
        try:
            lock.acquire(blocking=wait)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            lock = SoftFileLock(real.with_name(f".{real.name}.softlock"))
            lock.acquire(blocking=wait)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
