"""A chart made of characters, for a terminal.

rich, which typer brings, has no charts. plotext was tried: its version 6 has none of version 5's functions, and it
draws more than one curve needs, in 2.9 MB.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

# The dots of a Braille character, by column (2) and row (4) from the top: bits to add to U+2800.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_MARK, _ASCII_LINE, _ASCII_MARK = "●", ".", "o"
_UNICODE = "⠁⣿●│└─"
_MIN_WIDTH, _MIN_HEIGHT = 8, 3


class Point(NamedTuple):
    """A value at a step."""

    step: int
    value: float


def can_draw(encoding: str | None) -> bool:
    """Whether a terminal's encoding has the characters of a chart that is not `plain`."""
    try:
        _UNICODE.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def chart(curve: Sequence[Point], marks: Sequence[Point], width: int, height: int, plain: bool = False) -> list[str]:
    """Lines of text, `width` characters at most, that show a curve and marks over it, with both axes.

    `height` is the number of lines, two of them for the steps. `plain` uses ASCII only. No lines without a point, or
    with too little room.
    """
    points = [*curve, *marks]
    if not points:
        return []
    lowest, highest = min(point.value for point in points), max(point.value for point in points)
    last = max(point.step for point in points)
    labels = _labels(lowest, highest, height - 2)
    margin = max(map(len, labels)) + 2
    columns, rows = width - margin, height - 2
    if columns < _MIN_WIDTH or rows < _MIN_HEIGHT:
        return []
    grid = _Grid(columns, rows, last, lowest, highest, plain)
    grid.draw(curve)
    grid.mark(marks)
    axis, corner, line = ("|", "+", "-") if plain else ("│", "└", "─")
    drawn = [f"{label:>{margin - 2}} {axis}{text}" for label, text in zip(labels, grid.lines(), strict=True)]
    left, right = "0", f"{last:,}"
    return [
        *drawn,
        " " * (margin - 1) + corner + line * columns,
        " " * margin + left + " " * max(1, columns - len(left) - len(right)) + right,
    ]


class _Grid:
    """Characters in which points are drawn: 2 by 4 dots each, or one in plain text."""

    def __init__(self, columns: int, rows: int, last: int, lowest: float, highest: float, plain: bool) -> None:
        self._columns, self._rows, self._plain = columns, rows, plain
        self._last, self._lowest, self._range = max(1, last), lowest, (highest - lowest) or 1.0
        self._fine = (1, 1) if plain else (2, 4)
        self._dots: dict[tuple[int, int], int] = {}
        self._marks: set[tuple[int, int]] = set()

    def draw(self, points: Sequence[Point]) -> None:
        """Draw a line through the points."""
        places = [self._place(point, self._fine) for point in points]
        for (x, y), (next_x, next_y) in zip(places, places[1:] or places, strict=False):
            length = max(abs(next_x - x), abs(next_y - y), 1)
            for part in range(length + 1):
                place = x + round((next_x - x) * part / length), y + round((next_y - y) * part / length)
                (column, left), (row, top) = map(divmod, place, self._fine)
                self._dots[column, row] = self._dots.get((column, row), 0) | _DOTS[left][top]

    def mark(self, points: Sequence[Point]) -> None:
        """Put a mark at each point."""
        self._marks.update(self._place(point, (1, 1)) for point in points)

    def lines(self) -> list[str]:
        """The grid from top to bottom, without spaces at the end."""
        return ["".join(self._character(x, y) for x in range(self._columns)).rstrip() for y in range(self._rows)]

    def _place(self, point: Point, fine: tuple[int, int]) -> tuple[int, int]:
        """Column and row of a point, counted from the top left, with `fine` of them in a character."""
        columns, rows = self._columns * fine[0], self._rows * fine[1]
        x = round((columns - 1) * point.step / self._last)
        return x, round((rows - 1) * (1 - (point.value - self._lowest) / self._range))

    def _character(self, x: int, y: int) -> str:
        if (x, y) in self._marks:
            return _ASCII_MARK if self._plain else _MARK
        dots = self._dots.get((x, y), 0)
        if not dots:
            return " "
        return _ASCII_LINE if self._plain else chr(0x2800 + dots)


def _labels(lowest: float, highest: float, rows: int) -> list[str]:
    """The values on the axis, one a line; only the first, the middle and the last line have one."""
    shown, digits = {rows - 1: lowest}, 2
    if highest > lowest:
        shown |= {0: highest, rows // 2: highest - (highest - lowest) * (rows // 2) / (rows - 1)}
        digits = min(6, max(0, 2 - math.floor(math.log10(highest - lowest))))
    return [f"{shown[row]:.{digits}f}" if row in shown else "" for row in range(rows)]
