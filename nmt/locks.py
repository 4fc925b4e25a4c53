"""One process at a time.

A lock belongs to a process for as long as it lives, and goes with it however it ends. Its file lies beside what is
locked, is empty, and stays: whoever removed it could take it from under another process that has it open already, and
a third one would make and lock a new one. What is locked may be renamed or removed meanwhile.
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock

# Network file systems without locks; Linux has one number for the last two.
_UNKNOWN_HERE = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Lock a file or folder, which need not exist, against every other process that asks here, for the block's length.

    Gives whether this process has the lock: always if it may `wait`. Otherwise False means that another one has it.
    """
    from filelock import FileLock, SoftFileLock, Timeout  # what only translates needs no locks

    real = path.resolve() if path.is_symlink() else path  # whatever leads to a folder, its lock is one
    real.parent.mkdir(parents=True, exist_ok=True)
    lock: BaseFileLock = FileLock(real.with_name(f".{real.name}.lock"))
    try:
        try:
            lock.acquire(blocking=wait)
        except OSError as error:
            if error.errno not in _UNKNOWN_HERE:
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
