"""What may end a training from outside: signals, a disk that cannot be written, no more memory."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from nmt.errors import NmtError, TrainingError
from nmt.runs import RunFolder

# The first one of these that came is the reason why a training stops.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


@contextlib.contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP (a terminal that is closed), so that the update under way ends and is saved.

    A second one ends at once. One that is ignored (by nohup) stays so.
    """
    received: list[int] = []
    old: dict[signal.Signals, Any] = {}

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for name, handler in old.items():
            signal.signal(name, handler)

    for name in SIGNALS:
        if signal.getsignal(name) != signal.SIG_IGN:
            old[name] = signal.signal(name, receive)
    try:
        yield received
    finally:
        for name, handler in old.items():
            signal.signal(name, handler)


@contextlib.contextmanager
def plain_messages(run: RunFolder) -> Iterator[None]:
    """Turn a disk that cannot be written, or memory that is full, into one line.

    The last checkpoint is untouched by either.
    """
    hint = f"what {run.path} holds is whole, and the same command goes on from its last checkpoint"
    try:
        yield
    except NmtError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else f"{run.path}: "
        raise TrainingError(
            f"{where}cannot be written: {error.strerror or error}; make room, or see to it that the folder may be "
            f"written; {hint}"
        ) from None
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"out of memory; lower training.batch_tokens ({error}); {hint}") from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator gave up, Python's, the GPU's or the CPU's."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
