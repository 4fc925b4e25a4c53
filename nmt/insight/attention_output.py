"""Attention as a picture (PNG or SVG), as a page (HTML), and as a summary for a terminal.

A picture has a panel for each head and for their mean, with the tokens on its axes. A page shows how one translation
was chosen, and the alternatives; the summary has the essence of it.
"""

import io
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.errors import ConfigError
from nmt.insight.drawing import drawing
from nmt.insight.explanation import Explanation
from nmt.insight.pages import packed, render
from nmt.system.console import aligned, styled
from nmt.system.files import replacing, write_bytes, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.text import Text

    from nmt.insight.attention import AttentionMaps, Kind


PIXELS_PER_INCH = 120  # of a PNG
MAX_PIXELS = 80_000_000  # 4 bytes each while it is drawn, and in the program that shows it
MAX_LABEL = 24  # characters of a token
MAX_UNSURE = 5  # words of a summary with alternatives
MAX_SHOWN = 2  # alternatives, and source words, of a word
MIN_SHARE = 0.1  # of a source word
CERTAIN = 0.9  # the probability of a word whose alternatives do not matter

# Labels of the rows (y) and columns (x) of each kind.
AXES = {
    "encoder": ("source", "attends to source"),
    "decoder": ("predicted", "attends to output so far"),
    "cross": ("predicted", "attends to source"),
}
TITLES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}

# Sizes in inches, font sizes in points.
_MARGIN, _GAP, _TITLE, _AXIS_TITLE, _BAR = 0.15, 0.35, 0.4, 0.25, 0.9
_CELL, _CELL_ALONE, _MIN_PANEL, _WIDE_PANEL = 0.17, 0.3, 1.3, 10.0
_FONT, _PANEL_FONT, _TITLE_FONT = 8, 9, 11


class Panel(NamedTuple):
    """The weights of one head, or the mean of all."""

    title: str
    weights: NDArray[np.float32]
    """(rows, columns)"""


def draw(
    maps: "AttentionMaps",
    path: Path,
    kind: "Kind" = "cross",
    layer: int | None = None,
    head: int | None = None,
    model: str = "",
) -> None:
    """Draw the weights of one `kind` as PNG or SVG, as the name of `path` ends.

    A panel for each head and their mean, a row for each layer; of one `layer` or `head`, counted from 1, if given.
    `model` is a name for the title. Raises `ConfigError` for a kind, a layer or a head that cannot be, and if the
    panels are too many for one picture.
    """
    if not maps.of(kind).size:  # a recurrent model
        raise ConfigError(f"the model has no {TITLES[kind]}; draw its cross-attention")
    rows, columns = maps.labels(kind)
    with drawing(map(_drawable, [*rows, *columns, model])):
        data = io.BytesIO()
        figure = make_figure(maps, kind, layer, head, model)
        # Without the date, the same figure gives the same bytes.
        figure.savefig(data, format=path.suffix.lower()[1:], dpi=PIXELS_PER_INCH, metadata={"Date": None})
    with replacing(path) as temporary:
        write_bytes(temporary, data.getvalue())


def make_figure(
    maps: "AttentionMaps", kind: "Kind" = "cross", layer: int | None = None, head: int | None = None, model: str = ""
) -> "Figure":
    """The figure that `draw` writes; call it in the block of `nmt.insight.drawing.drawing`."""
    from matplotlib.figure import Figure

    grid = panels(maps.of(kind), layer, head)
    rows, columns = ([_shortened(_drawable(token)) for token in tokens] for tokens in maps.labels(kind))
    parts = [f"layer {layer}"] * (layer is not None) + [f"head {head}"] * (head is not None)
    named = f"{_drawable(model)}: " * bool(model) + ", ".join([TITLES[kind], *parts])
    title = named + " (hatched: masked)" * (kind == "decoder")
    is_alone = len(grid) == len(grid[0]) == 1
    cell = max(_CELL, _MIN_PANEL / len(columns), min(_CELL_ALONE, _WIDE_PANEL / len(columns)) if is_alone else 0.0)
    figure = Figure()
    row_width, column_height, turned = _label_sizes(figure, rows, columns, cell)
    width, height = cell * len(columns), cell * len(rows)
    step_x = row_width + _AXIS_TITLE + width + _GAP
    step_y = _TITLE + height + column_height + _AXIS_TITLE
    title_width = _text_size(figure, title, _TITLE_FONT)[0]
    total_x = max(2 * _MARGIN + len(grid[0]) * step_x + _BAR, 2 * _MARGIN + title_width)
    total_y = 2 * _MARGIN + _TITLE + len(grid) * step_y
    _check_size(total_x, total_y, maps.of(kind).shape, layer, head)
    figure.set_size_inches(total_x, total_y)
    left = _MARGIN / total_x
    top = 1 - _MARGIN / total_y
    figure.text(left, top, title, fontsize=_TITLE_FONT, verticalalignment="top")
    largest = max(float(panel.weights.max()) for line in grid for panel in line)
    for y, line in enumerate(grid):
        for x, panel in enumerate(line):
            corner_x = _MARGIN + x * step_x + row_width + _AXIS_TITLE
            corner_y = total_y - _MARGIN - 2 * _TITLE - y * step_y - height
            axes = figure.add_axes(
                (corner_x / total_x, corner_y / total_y, width / total_x, height / total_y), label=panel.title
            )
            _draw_panel(axes, panel, rows, columns, largest, masked=kind == "decoder", turned=turned)
            axes.set_ylabel(AXES[kind][0], fontsize=_FONT)
            axes.set_xlabel(AXES[kind][1], fontsize=_FONT)
    bar_x = _MARGIN + len(grid[0]) * step_x
    bar_height = min(height, 3.0)
    bar = figure.add_axes(
        (bar_x / total_x, 1 - (_MARGIN + 2 * _TITLE + bar_height) / total_y, 0.15 / total_x, bar_height / total_y),
        label="colours",
    )
    figure.colorbar(figure.axes[0].images[0], cax=bar)
    bar.tick_params(labelsize=_FONT)
    bar.set_ylabel("weight", fontsize=_FONT)
    return figure


def panels(weights: NDArray[np.float32], layer: int | None, head: int | None) -> list[list[Panel]]:
    """The panels of a picture, row by row, for weights (layers, heads, rows, columns).

    `ConfigError` for a layer or a head that does not exist.
    """
    num_layers, num_heads = weights.shape[:2]
    for name, number, count in (("layer", layer, num_layers), ("head", head, num_heads)):
        if number is not None and not 1 <= number <= count:
            raise ConfigError(f"{name} {number} does not exist: this attention has the {name}s 1 to {count}")
    layers = range(1, num_layers + 1) if layer is None else [layer]
    grid = [_panels_of_layer(weights[number - 1], number, head) for number in layers]
    if len(grid) > 1:
        return grid
    width = math.ceil(math.sqrt(len(grid[0])))
    return [grid[0][start : start + width] for start in range(0, len(grid[0]), width)]


def _panels_of_layer(weights: NDArray[np.float32], layer: int, head: int | None) -> list[Panel]:
    """The mean, if there are several heads, and the heads; or one head. `weights` is (heads, rows, columns)."""
    heads = [Panel(f"layer {layer}, head {number}", each) for number, each in enumerate(weights, start=1)]
    if head is not None:
        return [heads[head - 1]]
    mean = Panel(f"layer {layer}, mean of {len(heads)} heads", weights.mean(axis=0))
    return [mean, *heads] if len(heads) > 1 else heads


def _draw_panel(
    axes: "Axes", panel: Panel, rows: list[str], columns: list[str], largest: float, masked: bool, turned: list[bool]
) -> None:
    """Draw one panel; if `masked`, what is right of the diagonal is hatched."""
    weights = np.ma.masked_array(panel.weights, mask=np.triu(np.ones(panel.weights.shape, dtype=bool), 1) & masked)
    axes.set_facecolor("#dddddd")
    axes.patch.set_hatch("////")
    axes.patch.set_edgecolor("#888888")
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=largest, interpolation="nearest", aspect="auto")
    axes.set_title(panel.title, fontsize=_PANEL_FONT)
    axes.set_xticks(range(len(columns)), columns, fontsize=_FONT)
    for label, is_turned in zip(axes.get_xticklabels(), turned, strict=True):
        label.set_rotation(90 if is_turned else 0)
    axes.set_yticks(range(len(rows)), rows, fontsize=_FONT)
    axes.tick_params(length=0)


def _label_sizes(
    figure: "Figure", rows: Sequence[str], columns: Sequence[str], cell: float
) -> tuple[float, float, list[bool]]:
    """Inches for the labels left of a panel and below it, and for each label below, True if it is turned."""
    sizes = {token: _text_size(figure, token, _FONT) for token in {*rows, *columns}}
    is_narrow = all(sizes[token][0] <= 0.9 * cell for token in columns)
    turned = [len(token) > 1 and not is_narrow for token in columns]  # Chinese characters stay upright
    below = [sizes[token][not is_turned] for token, is_turned in zip(columns, turned, strict=True)]
    return max(sizes[token][0] for token in rows) + 0.1, max(below) + 0.1, turned


def _text_size(figure: "Figure", text: str, size: int) -> tuple[float, float]:
    """Width and height in inches."""
    drawn = figure.text(0, 0, text, fontsize=size)
    extent = drawn.get_window_extent()
    drawn.remove()
    return extent.width / figure.dpi, extent.height / figure.dpi


def _check_size(width: float, height: float, shape: tuple[int, ...], layer: int | None, head: int | None) -> None:
    """Raise `ConfigError` if a picture of this size in inches is too large."""
    if width * height * PIXELS_PER_INCH**2 <= MAX_PIXELS and max(width, height) * PIXELS_PER_INCH < 2**16:
        return
    choices = [f"--layer 1 to {shape[0]}"] * (layer is None) + [f"--head 1 to {shape[1]}"] * (head is None)
    remedy = f"choose {' or '.join(choices)}, or " if choices else ""
    raise ConfigError(
        f"a picture of {shape[2]} x {shape[3]} tokens would have {width * PIXELS_PER_INCH:,.0f} x "
        f"{height * PIXELS_PER_INCH:,.0f} pixels; {remedy}write a page (--output FILE.html)"
    )


def _drawable(text: str) -> str:
    """Replace what XML, and so SVG, forbids: control characters and parts of characters."""
    return "".join(
        "\ufffd" if unicodedata.category(character) in ("Cc", "Cs") or character in "\ufffe\uffff" else character
        for character in text
    )


def _shortened(token: str) -> str:
    return token if len(token) <= MAX_LABEL else f"{token[: MAX_LABEL - 1]}…"


def write_page(explanation: Explanation, path: Path) -> None:
    """Write `explanation` as one HTML file that requests nothing."""
    write_text(path, page_of(explanation.to_json()))


def page_of(data: dict[str, Any]) -> str:
    """Render `Explanation.to_json()`: the JSON without its arrays, and the arrays as uint8, one after the other.

    The weights are rounded to 1/255 (an error of at most 0.002) and take a byte each. Both parts are compressed: at 60
    pieces, the alternatives are over 100 kB of repetitive JSON.
    """
    arrays = {**data["attention"], "gradients": data["gradients"]}
    weights = {name: np.rint(255 * np.asarray(values, np.float64)).astype(np.uint8) for name, values in arrays.items()}
    page = {name: value for name, value in data.items() if name not in ("attention", "gradients")}
    page["shapes"] = {name: array.shape for name, array in weights.items()}
    return render(
        "attention.html",
        title=f"Attention: {data['src']}",
        page=page,
        languages=" → ".join(filter(None, (data["src_lang"], data["tgt_lang"]))),
        explanation=packed(json.dumps(page, ensure_ascii=False).encode()),
        weights=packed(b"".join(array.tobytes() for array in weights.values())),
    )


class WordSummary(NamedTuple):
    """A word of a translation, and how the model came to it."""

    text: str
    probability: float
    """The product of those of its pieces."""
    sources: list[tuple[str, float]]
    """The source words that it depends on most, and their shares of gradient times input."""
    others: list[tuple[str, float]]
    """Likely other words and their probabilities, without those that lead to the same translation."""


def summary(explanation: Explanation) -> "Iterator[Text]":
    """Yield what fits a terminal: both texts, and a table of the words; the least certain have alternatives."""
    words = list(word_summaries(explanation))
    unsure = [one for one in sorted(words, key=lambda one: one.probability) if one.probability < CERTAIN][:MAX_UNSURE]
    rows: list[list[str | Text]] = [["", "probability", "depends on", "could have been"]]
    for one in words:
        others = _listed(one.others) if one in unsure else ""
        name = styled(one.text, "bold" if one in unsure else "")
        rows.append([name, _percent(one.probability), _listed(one.sources), others])
    yield from (styled(explanation.src), styled(explanation.tgt, "bold"), styled(""))
    yield aligned(rows, left=(0, 2, 3), has_head=True)


def word_summaries(explanation: Explanation) -> Iterator[WordSummary]:
    """Yield the words of a translation, without its end."""
    maps, log_probs = explanation.maps, [step.log_prob for step in explanation.steps]
    sources = _positions(maps.src_words)[: len(set(maps.src_words)) - (explanation.picture is None)]
    for pieces in _positions(maps.out_words)[:-1]:
        weights = explanation.gradients[pieces].mean(axis=0)
        shares = [(_text([maps.src_tokens[i] for i in of_word]), float(weights[of_word].sum())) for of_word in sources]
        largest = sorted(shares, key=lambda share: -share[1])[:MAX_SHOWN]
        options = [
            (math.exp(sum(log_probs[pieces[0] : one.position]) + one.log_prob), one)
            for one in explanation.what_if
            if one.position in pieces
        ]
        name = _text([maps.out_tokens[i] for i in pieces])
        others, texts = {name: 0.0}, {explanation.tgt}
        for probability, one in sorted(options, key=lambda option: -option[0]):
            if (other := _text([one.word])) not in others and one.text not in texts:
                others[other] = probability
                texts.add(one.text)
        yield WordSummary(
            text=name,
            probability=math.exp(sum(log_probs[i] for i in pieces)),
            sources=[share for share in largest if share[1] >= MIN_SHARE],
            others=[*others.items()][1 : 1 + MAX_SHOWN],
        )


def _positions(words: Sequence[int]) -> list[list[int]]:
    """The positions of each word, from the word of each position."""
    return [[i for i, word in enumerate(words) if word == number] for number in dict.fromkeys(words)]


def _text(pieces: Sequence[str]) -> str:
    """The pieces of a word as text; `end` for the end of a sentence."""
    whole = re.sub("(<0x[0-9A-F]{2}>)+", _characters, "".join(pieces))
    return "end" if whole == "</s>" else whole.replace("▁", " ").strip()


def _characters(of_bytes: re.Match[str]) -> str:
    return bytes.fromhex(re.sub("<0x|>", "", of_bytes[0])).decode(errors="replace")


def _listed(shares: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {_percent(share)}" for name, share in shares)


def _percent(share: float) -> str:
    return "<1%" if share < 0.01 else f"{share:.0%}"
