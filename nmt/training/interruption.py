"""What may end a training from outside: signals, a full disk, no more memory."""

import contextlib
import errno
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from nmt.errors import NmtError, TrainingError
from nmt.runs import RunFolder


@contextlib.contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM so that the update under way ends and is saved; a second one ends at once."""
    received: list[int] = []
    old: dict[signal.Signals, Any] = {}

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for name, handler in old.items():
            signal.signal(name, handler)

    old.update({name: signal.signal(name, receive) for name in (signal.SIGINT, signal.SIGTERM)})
    try:
        yield received
    finally:
        for name, handler in old.items():
            signal.signal(name, handler)


@contextlib.contextmanager
def plain_messages(run: RunFolder) -> Iterator[None]:
    """Turn a full disk or memory into one line; the last checkpoint is untouched by either."""
    hint = f"the last checkpoint in {run.path} is whole, and the same command goes on from it"
    try:
        yield
    except NmtError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise TrainingError(f"the disk is full ({error}); {hint}") from None
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"out of memory; lower training.batch_tokens ({error}); {hint}") from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator gave up, Python's, the GPU's or the CPU's."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
