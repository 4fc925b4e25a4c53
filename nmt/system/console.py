"""Messages on standard error, progress bars, and results on standard output, fitted to a terminal.

Code says `log.info` for progress, with `extra=RESULT` for what a user waits for, and `log.warning` for what a user
should look into. In a program that uses nmt as a library, Python's logging shows the warnings alone; the command line
shows all. `show` prints results on standard output.

On a terminal, lines are wrapped between words and carry styles, which `NO_COLOR` and `FORCE_COLOR` govern as in rich.
Files and pipes get every line whole and plain.
"""

import contextlib
import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len, set_cell_size  # comes with typer

from nmt.errors import printable

if TYPE_CHECKING:  # imported where a terminal is written to
    from rich.console import Console
    from rich.style import Style
    from rich.text import Text
    from tqdm import tqdm

log = logging.getLogger("nmt")

RESULT = {"style": ""}
"""The `extra` of a log call that says a result; other information is dim on a terminal."""
_MIN_TEXT = 8
"""Minimum width of a table's text columns; numbers are never cut."""
_WHOLE = 1_000_000
"""Columns for tables in files and pipes."""
_PREFIXES = {logging.INFO: "", logging.WARNING: "warning: "}
_PREFIX_STYLES = {logging.WARNING: "bold yellow", logging.ERROR: "bold red"}
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LABEL = re.compile(r"\A *(?:(?:\S+ )*?\S+ {2,})?")  # before the text of a line: "  BLEU   ", "device      "


def is_terminal(stream: TextIO) -> bool:
    """True if lines are fitted and styled: for a terminal, or with FORCE_COLOR."""
    return stream.isatty() or bool(os.environ.get("FORCE_COLOR"))


def terminal_width(stream: TextIO | None = None) -> int | None:
    """The columns of the terminal that `stream`, by default standard output, writes to; None if it is none."""
    return _console().width if is_terminal(stream or sys.stdout) else None


def _console() -> "Console":
    from rich.console import Console

    return Console(force_terminal=True, highlight=False, markup=False, emoji=False)


def show(*parts: "str | Text", stream: TextIO | None = None, link: str | Path | None = None) -> None:
    """Print each part on lines of its own, by default on standard output; a path in them that is `link` opens it."""
    for part in parts:
        print(_fitted(part, stream or sys.stdout, link), file=stream)


def styled(text: "str | Text", style: "str | Style" = "") -> "Text":
    """A text, made safe for a terminal, in a style of rich's: `bold`, `dim`, `green`; a `Text` as it is."""
    from rich.text import Text

    return Text(printable(text), style) if isinstance(text, str) else text


def joined(separator: str, parts: "Iterable[str | Text]") -> "Text":
    """Join texts of any style."""
    return styled(separator).join(map(styled, parts))


def _fitted(part: "str | Text", stream: TextIO, link: str | Path | None) -> str:
    """The characters to print: wrapped, with styles and the link for a terminal, else the text as it is."""
    if not is_terminal(stream):
        return printable(str(part))
    console, text = _console(), styled(part)
    if link:
        text.highlight_words([printable(str(link))], f"link {Path(link).absolute().as_uri()}")
    with console.capture() as captured:
        for line in text.split(allow_blank=True):
            console.print(_wrapped(line, console), soft_wrap=True)
    return captured.get().removesuffix("\n")


def _wrapped(line: "Text", console: "Console") -> "Text":
    """Break a line between words; what follows hangs below the text after its label, or two columns in.

    A word that is wider than the terminal, such as a path, stays whole, as does a command, to be copied; text without
    spaces breaks anywhere.
    """
    if cell_len(line.plain) <= console.width or line.plain.lstrip().startswith("nmt "):
        return line
    (label,) = _LABEL.findall(line.plain)
    if len(label) > console.width // 2:
        label = " " * (len(line.plain) - len(line.plain.lstrip(" ")))
    indent = cell_len(label) if label.strip() else len(label) + 2
    head, text = line.divide([len(label)])
    text.overflow = "fold" if cell_len(text.plain) > len(text.plain) else "ignore"
    return joined("", [head, joined("\n" + " " * indent, text.wrap(console, console.width - indent))])


class _Console(logging.Handler):
    """Writes each message, made safe for a terminal, above a progress bar if there is one."""

    write: Callable[..., None] = staticmethod(print)

    def emit(self, record: logging.LogRecord) -> None:
        prefix = styled(_PREFIXES.get(record.levelno, "nmt: "), _PREFIX_STYLES.get(record.levelno, ""))
        style = getattr(record, "style", "dim" if record.levelno <= logging.INFO else "")
        text = joined("", [prefix, styled(self.format(record), style)])
        if sys.stderr is not None:
            with contextlib.suppress(OSError):  # a closed terminal or pipe must not end a training
                self.write(_fitted(text, sys.stderr, getattr(record, "link", None)), file=sys.stderr)


_CONSOLE = _Console()


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


def show_fields(bar: "tqdm[Any]", fields: Sequence[str]) -> None:
    """Show fields beside a progress bar, the most important first, as many as leave it 20 columns."""
    for count in range(len(fields), -1, -1):
        bar.set_postfix_str(", ".join(fields[:count]), refresh=False)
        state = bar.format_dict
        width = len(bar.format_meter(**{**state, "ncols": None}))  # with a bar of 10 columns
        if width + 10 * bool(bar.total) < (state["ncols"] or 80):
            break
    bar.refresh()


def aligned(
    rows: "Sequence[Sequence[str | Text]]",
    left: Sequence[int] = (0,),
    *,
    has_head: bool = False,
    has_keys: bool = False,
) -> "Text":
    """A table of aligned columns: those in `left` to the left, the others, numbers, to the right.

    On a terminal, those to the left are wrapped where there is no room, but not the first one if it `has_keys`, and a
    head, the first row, is bold. A table of many numbers may be wider.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    cells = [[styled(cell) for cell in row] for row in rows]
    needed = 0
    for number, column in enumerate(zip(*cells, strict=True)):
        for cell in column:
            cell.expand_tabs(1)
        width = widest(column)
        if number in left:
            width = width if has_keys and not number else min(width, _MIN_TEXT)
            table.add_column(overflow="fold", min_width=width)
        else:
            table.add_column(justify="right", no_wrap=True, min_width=width)
        needed += width + 2
    for row in cells:
        table.add_row(*row, style="bold" if has_head and row is cells[0] else "")
    console = Console(width=max(terminal_width() or _WHOLE, needed))
    lines = joined("", [styled(part.text, part.style or "") for part in console.render(table)]).split()
    for line in lines:
        line.rstrip()
    return joined("\n", lines)


def widest(cells: "Iterable[str | Text]") -> int:
    """The columns that the widest line of the cells takes."""
    return max(cell_len(line) for cell in cells for line in str(cell).split("\n"))


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
