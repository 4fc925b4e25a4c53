"""What may end a training from outside: signals, a disk that cannot be written, no more memory."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from nmt.errors import NmtError, TrainingError, is_out_of_memory
from nmt.runs import RunFolder

# The first one of these that came is the reason why a training stops.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


class Stopped(BaseException):
    """A signal came in a block that it ends."""


class Signals:
    """SIGINT, SIGTERM and SIGHUP (a terminal that is closed), so that the update under way ends and is saved."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._ends_block = False

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Take them for the length of the block; a second one ends all at once.

        One that is ignored (by nohup) stays so.
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
        """For a block that takes long and changes nothing: the first signal ends it by `Stopped`."""
        self._ends_block = True
        try:
            yield
        finally:
            self._ends_block = False


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
        if isinstance(error, ConnectionError):
            raise
        where = f"{error.filename}: " if error.filename else f"{run.path}: "
        raise TrainingError(
            f"{where}cannot be written: {error.strerror or error}; make room, or see to it that the folder may be "
            f"written; {hint}"
        ) from None
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"out of memory; lower training.batch_tokens ({error}); {hint}") from None
