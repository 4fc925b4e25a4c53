"""Curves and bars as pictures: SVG in the colours of its page, and PNG for everything else.

Drawn with matplotlib's figures alone, without pyplot, whose state is global, and without settings that outlive a
drawing. From version 3.11 on, matplotlib shapes text: Arabic letters join and run from right to left, Devanagari has
its conjuncts. It takes each glyph from the first font of a list that has it; `find_fonts` makes that list.
"""

import contextlib
import io
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nmt.system.console import log

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FIRST_FAMILY = "DejaVu Sans"  # comes with matplotlib
MAX_NAMED = 20
_NOT_DRAWN = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # categories of Unicode: controls, joiners, spaces
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)
_NO_LETTERS = ("Last Resort", "STIXNonUnicode", "STIXSize", "cmex", "cmmi", "cmsy")
"""Prefixes of the names of fonts with a box for each character, or with parts of formulas in place of letters."""


@contextlib.contextmanager
def drawing(texts: Iterable[str]) -> Iterator[None]:
    """Let matplotlib draw in its default style, with fonts that have the glyphs of `texts`, inside the block.

    A warning names the characters that no installed font has.
    """
    import matplotlib

    families, missing = find_fonts(texts)
    if missing:
        named = ", ".join(f"{character} (U+{ord(character):04X})" for character in missing[:MAX_NAMED])
        packages = "fonts-noto-core, fonts-noto-cjk or fonts-symbola"
        log.warning("no installed font has %s, so boxes are drawn; Debian's packages: %s", named, packages)
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # not the user's own settings
        # Text as paths looks the same everywhere, with or without the fonts; as a comment, it can be searched for, too.
        matplotlib.rcParams.update({"font.family": families, "svg.fonttype": "path", "svg.hashsalt": "nmt"})
        matplotlib.rcParams["text.parse_math"] = False  # a dollar is a dollar
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        yield


def find_fonts(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Find installed fonts that together have the characters of `texts`, and the characters that none of them has.

    Colour emoji fonts don't count: matplotlib draws outlines only.
    """
    from matplotlib.font_manager import findSystemFonts, fontManager

    characters = {
        character for text in texts for character in text
        if unicodedata.category(character) not in _NOT_DRAWN and ord(character) not in _VARIATION_SELECTORS
    }  # fmt: skip
    families, missing = _cover(characters)
    if missing:  # matplotlib keeps its list of fonts for years; some may have been installed since
        for file in set(findSystemFonts()) - {entry.fname for entry in fontManager.ttflist}:
            with contextlib.suppress(OSError, RuntimeError, ValueError, NotImplementedError):  # damaged, or no outlines
                fontManager.addfont(file)
        families, missing = _cover(characters)
    return families, sorted(missing)


def _cover(characters: set[str]) -> tuple[list[str], set[str]]:
    """Choose font families, and return the characters that none has.

    Each family has most of what those before it lack, so that all letters of a script are of one font and can join.
    """
    from matplotlib.font_manager import fontManager, weight_dict
    from matplotlib.ft2font import FT2Font

    def boldness(entry: Any) -> int:
        return abs(int(weight_dict.get(entry.weight, entry.weight)) - 400)

    by_weight = sorted(fontManager.ttflist, key=boldness, reverse=True)
    # The font of each family whose weight is nearest to 400 comes last, and stays.
    fonts = {
        entry.name: entry for entry in by_weight if entry.style == "normal" and not entry.name.startswith(_NO_LETTERS)
    }
    glyphs: dict[str, set[str]] = {}
    for name, entry in sorted(fonts.items()):
        with contextlib.suppress(OSError, RuntimeError):  # removed since the list was made, or damaged
            font = FT2Font(entry.fname, face_index=entry.index)
            glyphs[name] = {character for character in characters if font.get_char_index(ord(character))}
    families, missing = [FIRST_FAMILY], characters - glyphs.get(FIRST_FAMILY, set())
    while glyphs[best := max(glyphs, key=lambda name: len(glyphs[name] & missing))] & missing:
        families.append(best)
        missing = missing - glyphs[best]
    return families, missing


# Colours of a PNG, and the CSS variables that replace them in a page's SVG. Each has one purpose only.
_TEXT, _MUTED, _LINE = "#1c2024", "#5c6570", "#d9dde2"
_ACCENT, _SECOND, _THIRD, _MARK = "#0b57a4", "#b35c00", "#7b3fa0", "#1b7f4b"
_VARIABLES = {
    _TEXT: "--text", _MUTED: "--muted", _LINE: "--line", _ACCENT: "--accent", _SECOND: "--warm", _THIRD: "--violet",
    _MARK: "--good",
}  # fmt: skip
_COLOURS, _PATTERNS = (_ACCENT, _SECOND, _THIRD), ("-", "--", ":", "-.")
"""Of lines; 12 lines differ in one or both."""
_WIDTH, _HEIGHT, _DPI = 6.0, 3.2, 160  # inches, and pixels an inch
_SHOWN_POINTS = 40


class Curve(NamedTuple):
    """A line through points."""

    label: str
    points: Sequence[tuple[float, float]]
    """(x, y), in the order of x."""


class DrawnCurve(NamedTuple):
    """A curve and its place in a picture."""

    label: str
    colour: str
    """A CSS variable of style.css."""
    points: list[list[float]]
    """x, y, and the point's place from the left and from the bottom, from 0 to 1."""


class Chart(NamedTuple):
    """A drawn picture."""

    name: str
    """The stem of its file."""
    title: str
    description: str
    """Alternative text."""
    svg: str
    """The picture in the colours of the page that holds it."""
    png: bytes
    """The picture on white."""
    curves: Sequence[DrawnCurve] = ()
    """The curves of the picture, for charts.js."""


def curves(
    name: str,
    title: str,
    y_label: str,
    lines: Sequence[Curve],
    mark: tuple[int, str] | None = None,
    highest: float | None = None,
    runs: int = 1,
) -> Chart:
    """Draw lines over the updates of a training; short lines show their points.

    A vertical line shows the `mark`, a step and its meaning. Each `runs` lines have one colour, and different patterns.
    The axis never exceeds `highest`, the largest possible value.
    """
    with _drawing(y_label, [line.label for line in lines]) as axes:
        for number, line in enumerate(lines):
            colour, style = _COLOURS[number // runs % len(_COLOURS)], _PATTERNS[number % len(_PATTERNS)]
            x, y = zip(*line.points, strict=True)
            marker = "o" if len(x) <= _SHOWN_POINTS else ""
            axes.plot(x, y, style, color=colour, linewidth=1.6, label=line.label, marker=marker, markersize=3.5)
        if mark is not None:
            axes.axvline(mark[0], color=_MARK, linewidth=1.2, linestyle=(0, (4, 3)), label=mark[1])
        if highest is not None:
            axes.set_ylim(top=min(highest, axes.get_ylim()[1]))
        axes.set_xlabel("updates", color=_MUTED)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if len(lines) > 1 or mark is not None:
            drawn = axes.get_lines()  # named, or those whose names begin with _ would be left out
            labels = [str(line.get_label()) for line in drawn]
            axes.legend(drawn, labels, frameon=False, labelcolor=_TEXT, fontsize=10)
        ends = [f"{line.label} from {line.points[0][1]:.4g} to {line.points[-1][1]:.4g}" for line in lines]
        marked = f" {mark[1]}: update {mark[0]:,}." if mark is not None else ""
        return _chart(axes, name, title, f"{title}: {', '.join(ends)}.{marked}")


def bars(name: str, title: str, y_label: str, values: Sequence[tuple[str, float, str]], highest: float = 100) -> Chart:
    """Draw a bar for each (label, height, text above it); `highest` is the largest possible value."""
    labels, heights, texts = zip(*values, strict=True)
    with _drawing(y_label) as axes:
        drawn = axes.bar(labels, heights, color=_ACCENT, width=0.7)
        axes.bar_label(drawn, texts, color=_MUTED, fontsize=9, padding=2)
        axes.margins(y=0.2)  # room for two lines of text
        axes.set_yticks([tick for tick in axes.get_yticks() if tick <= highest])
        axes.grid(visible=False, axis="x")
        described = ", ".join(f"{label}: {height:.1f}" for label, height in zip(labels, heights, strict=True))
        return _chart(axes, name, title, f"{title}. {described}.")


@contextlib.contextmanager
def _drawing(y_label: str, labels: Iterable[str] = ()) -> Iterator["Axes"]:
    """The axes of an empty figure; all but `labels` are words that need only matplotlib's own font."""
    with drawing(labels):
        from matplotlib.figure import Figure

        axes = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained").add_subplot()
        axes.set_ylabel(y_label, color=_MUTED)
        axes.tick_params(colors=_MUTED, labelsize=10, length=0)
        axes.grid(color=_LINE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[:].set(visible=False, color=_LINE)
        axes.spines.bottom.set_visible(True)
        yield axes


def _chart(axes: "Axes", name: str, title: str, description: str) -> Chart:
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is found, and would be sought again for each file
    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png", dpi=_DPI, facecolor="white", metadata={"Software": None})
    figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    to_picture = axes.transData + figure.transFigure.inverted()
    drawn = []
    for line in axes.get_lines():
        if (colour := str(line.get_color())) != _MARK:
            points = np.asarray(line.get_xydata(), dtype=float)
            points = np.hstack([points, to_picture.transform(points).round(4)])
            drawn.append(DrawnCurve(str(line.get_label()), _VARIABLES[colour], points.tolist()))
    return Chart(name, title, description, _for_page(svg.getvalue().decode(), name), png.getvalue(), drawn)


def _for_page(svg: str, name: str) -> str:
    """Extract the `<svg>` element, with the page's colours, the width of its place, and ids unique in a page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:width|height)="[^"]*pt"| version="[^"]*"| xmlns(?::xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'd="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)  # hundredths are enough
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    svg = re.sub(r'\bid="|href="#|url\(#', rf"\g<0>{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg
