"""Messages on standard error, progress bars, and tables and bars of characters for a terminal.

Code says `log.info` for progress, and `log.warning` for what a user should look into. In a program that uses nmt as a
library, Python's logging shows the warnings alone; the command line shows all. Results are printed on standard output.
"""

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len, set_cell_size  # comes with typer

from nmt.errors import printable

if TYPE_CHECKING:
    from tqdm import tqdm

log = logging.getLogger("nmt")

_PREFIXES = {logging.INFO: "", logging.WARNING: "warning: "}
_EIGHTHS = " ▏▎▍▌▋▊▉"


class _Console(logging.Handler):
    """Writes each message, made safe for a terminal, above a progress bar if there is one."""

    write: Callable[..., None] = staticmethod(print)

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is not None:
            with contextlib.suppress(OSError):  # a closed terminal or pipe must not end a training
                text = printable(_PREFIXES.get(record.levelno, "nmt: ") + self.format(record))
                if path := getattr(record, "link", None):  # given as `extra`: a file that the message names
                    text = text.replace(printable(str(path)), linked(path, sys.stderr))
                self.write(text, file=sys.stderr)


_CONSOLE = _Console()


def linked(path: Path, stream: TextIO) -> str:
    """The path, with a link that opens it (OSC 8) if the stream is a terminal."""
    from rich.console import Console  # takes time to load
    from rich.text import Text

    console = Console(file=stream)
    with console.capture() as shown:
        name = Text(printable(str(path)), f"link {path.absolute().as_uri()}")
        console.print(name, end="", soft_wrap=True)
    return shown.get()


def show_messages(level: int = logging.INFO) -> None:
    """Write this process's messages of a level or above, by default all, to standard error."""
    logging.getLogger().addHandler(_CONSOLE)
    log.setLevel(level)


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning the first time only, for a file that is read several times."""
    log.warning("%s", message)


def progress_bar(**options: Any) -> "tqdm[Any] | None":
    """A progress bar with tqdm's options; None if standard error is not a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from tqdm import tqdm

    _CONSOLE.write = tqdm.write
    return tqdm(dynamic_ncols=True, **options)


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table of aligned columns: those in `left` to the left, the others to the right."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            gap = " " * (width - cell_len(cell))
            cells.append(cell + gap if number in left else gap + cell)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def shortened(text: str, width: int) -> str:
    """The text, cut with `...` if it is wider than `width` columns.

    >>> shortened("a long line", 8), shortened("short", 8)
    ('a lon...', 'short')
    """
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 3)}..."


def bar(share: float, width: int) -> str:
    """A bar that fills a share, 0 to 1, of `width` columns; a share above 0 is always visible.

    >>> bar(0.5, 4), bar(0, 4), bar(0.001, 4)
    ('██', '', '▏')
    """
    if share <= 0:
        return ""
    whole, eighths = divmod(max(1, round(share * width * 8)), 8)
    return "█" * whole + _EIGHTHS[eighths].strip()
