"""Curves and bars as pictures: SVG that follows a page's colours, and PNG for everything else.

Drawn with matplotlib's figures alone: no pyplot, whose state all of a program shares, and no settings that outlive a
drawing.
"""

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nmt.insight.fonts import drawing

if TYPE_CHECKING:  # an extra
    from matplotlib.axes import Axes

# Colours of a PNG, and the CSS variables that they become in a page's SVG. Each is used for nothing else.
_TEXT, _MUTED, _LINE = "#1c2024", "#5c6570", "#d9dde2"
_ACCENT, _SECOND, _MARK = "#0b57a4", "#b35c00", "#1b7f4b"
_VARIABLES = {
    _TEXT: "--text", _MUTED: "--muted", _LINE: "--line", _ACCENT: "--accent", _SECOND: "--warm", _MARK: "--good",
}  # fmt: skip
_WIDTH, _HEIGHT, _DPI = 6.0, 3.2, 160  # inches, and pixels an inch
_SHOWN_POINTS = 40


class Curve(NamedTuple):
    """A line through points."""

    label: str
    points: Sequence[tuple[float, float]]
    """(x, y), in the order of x."""


class Chart(NamedTuple):
    """A drawn picture."""

    name: str
    """The stem of its file."""
    title: str
    description: str
    """What a person sees who cannot see it."""
    svg: str
    """Of a page: it is drawn in the page's colours."""
    png: bytes
    """On white."""


def curves(
    name: str, title: str, y_label: str, lines: Sequence[Curve], marked_step: int | None = None, marked_as: str = ""
) -> Chart:
    """Lines over the updates of a training; a vertical line marks a step.

    A line of few points shows each of them.
    """
    with _drawing(y_label) as axes:
        for line, colour in zip(lines, (_ACCENT, _SECOND), strict=False):
            x, y = [point[0] for point in line.points], [point[1] for point in line.points]
            marker = "o" if len(x) <= _SHOWN_POINTS else ""
            axes.plot(x, y, color=colour, linewidth=1.6, label=line.label, marker=marker, markersize=3.5)
        if marked_step is not None:
            axes.axvline(marked_step, color=_MARK, linewidth=1.2, linestyle=(0, (4, 3)), label=marked_as)
        axes.set_xlabel("updates", color=_MUTED)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if len(lines) > 1 or marked_step is not None:
            axes.legend(frameon=False, labelcolor=_TEXT, fontsize=10)
        ends = [f"{line.label} from {line.points[0][1]:.4g} to {line.points[-1][1]:.4g}" for line in lines]
        mark = f" {marked_as}: update {marked_step:,}." if marked_step is not None else ""
        return _chart(axes, name, title, f"{title}: {', '.join(ends)}.{mark}")


def bars(name: str, title: str, y_label: str, values: Sequence[tuple[str, float, str]]) -> Chart:
    """A bar for each (label, height, text above it)."""
    with _drawing(y_label) as axes:
        drawn = axes.bar(
            [label for label, _, _ in values], [height for _, height, _ in values], color=_ACCENT, width=0.7
        )
        axes.bar_label(drawn, [text for _, _, text in values], color=_MUTED, fontsize=9, padding=2)
        axes.margins(y=0.12)
        axes.grid(visible=False, axis="x")
        described = ", ".join(f"{label}: {height:.1f}" for label, height, _ in values)
        return _chart(axes, name, title, f"{title}. {described}.")


@contextlib.contextmanager
def _drawing(y_label: str) -> Iterator["Axes"]:
    """The axes of an empty figure; its few words need no other fonts than matplotlib's."""
    with drawing(()):
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
    return Chart(name, title, description, _for_page(svg.getvalue().decode(), name), png.getvalue())


def _for_page(svg: str, name: str) -> str:
    """The `<svg>` element alone, in the page's colours, as wide as its place, with ids that no other picture has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:width|height)="[^"]*pt"| version="[^"]*"| xmlns(?::xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'd="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)  # hundredths are enough
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg
