"""Messages on standard error: progress, warnings and errors, through one logger, and progress bars.

Code says `log.info` for progress, and `log.warning` for what a user should look into. In a program that uses nmt as a
library, Python's logging shows the warnings alone; the command line shows all. Results are printed on standard output.
"""

import contextlib
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nmt.errors import printable

if TYPE_CHECKING:  # imported for a terminal
    from tqdm import tqdm

log = logging.getLogger("nmt")

_PREFIXES = {logging.INFO: "", logging.WARNING: "warning: "}


class _Console(logging.Handler):
    """Writes each message, made safe for a terminal, above a progress bar if there is one."""

    write: Callable[..., None] = staticmethod(print)

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is not None:
            with contextlib.suppress(OSError):  # a closed terminal or pipe must not end a training
                self.write(printable(_PREFIXES.get(record.levelno, "nmt: ") + self.format(record)), file=sys.stderr)


_CONSOLE = _Console()


def show_messages(level: int = logging.INFO) -> None:
    """Write this process's messages of a level or above, by default all, to standard error."""
    logging.getLogger().addHandler(_CONSOLE)
    log.setLevel(level)


def progress_bar(**options: Any) -> "tqdm[Any] | None":
    """A bar with tqdm's options; None if standard error is not a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from tqdm import tqdm

    _CONSOLE.write = tqdm.write
    return tqdm(dynamic_ncols=True, **options)
