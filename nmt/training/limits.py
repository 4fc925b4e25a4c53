"""Signals, full disks and exhausted memory during training."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from nmt.errors import NmtError, TrainingError, is_out_of_memory
from nmt.runs.folder import RunFolder

# If several have been received, the first in this order is reported.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


class Stopped(BaseException):
    """Raised by a signal inside `ending_the_block`."""


class Signals:
    """Collects SIGINT, SIGTERM and SIGHUP (a closed terminal), so that the current update is completed and saved."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._ends_block = False

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Collect signals during the block; a second one ends the program at once.

        An ignored signal (SIGHUP under nohup) stays ignored.
        """
        old: dict[signal.Signals, Any] = {}

        def receive(number: int, frame: FrameType | None) -> None:
            self.received.append(number)
            for name, handler in old.items():
                signal.signal(name, handler)
            if self._ends_block:
                raise Stopped

        for name in SIGNALS:
            if signal.getsignal(name) != signal.SIG_IGN:
                old[name] = signal.signal(name, receive)
        try:
            yield
        finally:
            for name, handler in old.items():
                signal.signal(name, handler)

    @contextlib.contextmanager
    def ending_the_block(self) -> Iterator[None]:
        """For a long block without side effects: a signal before or in it raises `Stopped`."""
        self._ends_block = True
        try:
            if self.received:
                raise Stopped
            yield
        finally:
            self._ends_block = False


@contextlib.contextmanager
def plain_messages(run: RunFolder) -> Iterator[None]:
    """Turn a failed write or exhausted memory, which leave the last checkpoint intact, into one message."""
    hint = f"{run.path} is intact, and the same command resumes from its last checkpoint"
    try:
        yield
    except (NmtError, ConnectionError):
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else f"{run.path}: "
        raise TrainingError(
            f"{where}cannot be written: {error.strerror or error}; free disk space, or make the folder writable; {hint}"
        ) from None
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"out of memory; lower training.batch_tokens ({error}); {hint}") from None
