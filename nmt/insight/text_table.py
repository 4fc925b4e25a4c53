"""Tables and bars of characters, for a terminal."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size  # comes with typer

_EIGHTHS = " ▏▎▍▌▋▊▉"


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table; the columns `left` are aligned on the left, the others on the right."""
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
    """The text, cut with `...` where it is wider than this.

    >>> shortened("a long line", 8), shortened("short", 8)
    ('a lon...', 'short')
    """
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 3)}..."


def bar(share: float, width: int) -> str:
    """A bar of this share, 0 to 1, of a width; anything above 0 can be seen.

    >>> bar(0.5, 4), bar(0, 4), bar(0.001, 4)
    ('██', '', '▏')
    """
    if share <= 0:
        return ""
    whole, eighths = divmod(max(1, round(share * width * 8)), 8)
    return "█" * whole + _EIGHTHS[eighths].strip()
