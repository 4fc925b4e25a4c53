"""Pictures of attention: the weights, tokens and masks that are drawn, and the fonts that their text needs."""

import dataclasses
import logging
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTFont
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread

from nmt.errors import ConfigError
from nmt.insight.attention_output import draw, make_figure
from nmt.insight.drawing import drawing, find_fonts
from tests.conftest import Cli

L, H, S, T = 2, 3, 4, 5
SRC, TGT, OUT = (
    ("a", "man", "$x^2$", "▁window"),
    ("<s>", "▁ein", "Mann", "xyz", "."),
    ("▁ein", "Mann", "xyz", ".", "</s>"),
)


@dataclasses.dataclass(frozen=True)
class Maps:
    """As nmt.insight.attention.AttentionMaps, of random weights."""

    encoder: Any
    decoder: Any
    cross: Any
    src: tuple[str, ...] = SRC

    def of(self, kind: str) -> Any:
        return dataclasses.asdict(self)[kind]

    def labels(self, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return {"encoder": (self.src, self.src), "decoder": (OUT, TGT), "cross": (OUT, self.src)}[kind]


@pytest.fixture
def maps() -> Any:
    random = np.random.default_rng(0)
    encoder, decoder, cross = (random.random((L, H, *shape), dtype=np.float32) for shape in ((S, S), (T, T), (T, S)))
    decoder = np.tril(decoder)
    return Maps(*(weights / weights.sum(-1, keepdims=True) for weights in (encoder, decoder, cross)))


def figure_of(maps: Any, kind: str = "cross", layer: int | None = None, head: int | None = None) -> Figure:
    with drawing([]):
        return make_figure(maps, kind, layer, head, "run_1")


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_label() != "colours"]


def drawn(axes: Axes) -> Any:
    """The weights of a panel; what is masked is NaN."""
    return np.ma.filled(axes.images[0].get_array(), np.nan)


@pytest.mark.parametrize("kind", ["encoder", "cross"])
def test_a_panel_for_every_head_and_their_mean(maps: Any, kind: str) -> None:
    figure = figure_of(maps, kind)
    expected = [each for layer in maps.of(kind) for each in (layer.mean(0), *layer)]
    assert len(panels(figure)) == len(expected) == L * (H + 1)
    for axes, weights in zip(panels(figure), expected, strict=True):
        np.testing.assert_array_equal(drawn(axes), weights)
        assert axes.images[0].get_clim() == (0.0, max(each.max() for each in expected))  # the same colours everywhere
    titles = [axes.get_title() for axes in panels(figure)]
    assert titles[:4] == ["layer 1, mean of 3 heads", "layer 1, head 1", "layer 1, head 2", "layer 1, head 3"]
    tops = [axes.get_position().y1 for axes in panels(figure)]
    assert len(set(tops[:4])) == len(set(tops[4:])) == 1  # a row a layer
    assert tops[0] > tops[4]


def test_the_tokens_are_on_the_axes_from_left_to_right_and_from_top_to_bottom(maps: Any) -> None:
    for axes in panels(figure_of(maps)):
        assert [label.get_text() for label in axes.get_xticklabels()] == list(SRC)
        assert [label.get_text() for label in axes.get_yticklabels()] == list(OUT)
        assert not any(label.get_parse_math() for label in axes.get_xticklabels())  # a dollar is a dollar
        assert axes.yaxis_inverted() and not axes.xaxis_inverted()
        assert [label.get_rotation() for label in axes.get_xticklabels()] == [0, 90, 90, 90]


def test_what_is_masked_is_hatched_and_has_no_weight(maps: Any) -> None:
    figure = figure_of(maps, "decoder", layer=2)
    expected = [maps.decoder[1].mean(0), *maps.decoder[1]]
    for axes, weights in zip(panels(figure), expected, strict=True):
        np.testing.assert_array_equal(np.isnan(drawn(axes)), np.triu(np.ones((T, T), dtype=bool), 1))
        np.testing.assert_array_equal(np.tril(drawn(axes)), np.tril(weights))
        assert axes.patch.get_hatch()
    assert [text.get_text() for text in figure.texts] == ["run_1: decoder self-attention, layer 2 (hatched: masked)"]


def test_one_layer_or_one_head(maps: Any) -> None:
    (axes,) = panels(figure_of(maps, "cross", layer=2, head=3))
    np.testing.assert_array_equal(drawn(axes), maps.cross[1, 2])
    both = panels(figure_of(maps, "cross", head=2))
    assert [axes.get_title() for axes in both] == ["layer 1, head 2", "layer 2, head 2"]
    for axes, weights in zip(both, maps.cross[:, 1], strict=True):
        np.testing.assert_array_equal(drawn(axes), weights)


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [
        (0, None, "layer 0 does not exist: this attention has the layers 1 to 2"),
        (3, 1, "layer 3 does not exist: this attention has the layers 1 to 2"),
        (None, 4, "head 4 does not exist: this attention has the heads 1 to 3"),
    ],
)
def test_a_layer_or_a_head_that_does_not_exist(maps: Any, layer: int | None, head: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        figure_of(maps, "cross", layer, head)


def test_labels_and_panels_do_not_overlap(maps: Any) -> None:
    figure = figure_of(maps)
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes]
    whole = figure.bbox
    for number, box in enumerate(boxes):
        assert box is not None
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
        assert not any(box.overlaps(other) for other in boxes[:number] if other is not None)


def test_a_picture_too_large_to_open_is_refused() -> None:
    size = 400
    weights = np.full((L, H, size, size), 1 / size, dtype=np.float32)

    class Long(Maps):
        def labels(self, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
            return ("a",) * size, ("b",) * size

    with pytest.raises(ConfigError, match=r"^a picture of 400 x 400 tokens .* pixels; choose --layer 1 to 2 or --head"):
        figure_of(Long(weights, weights, weights))


def test_png_and_svg_are_written(maps: Any, tmp_path: Path) -> None:
    settings = dict(matplotlib.rcParams)
    for name in ("a.png", "folder/b.SVG"):
        draw(maps, tmp_path / name, layer=1, head=1)
        first = (tmp_path / name).read_bytes()
        draw(maps, tmp_path / name, layer=1, head=1)
        assert (tmp_path / name).read_bytes() == first
    assert dict(matplotlib.rcParams) == settings
    svg = (tmp_path / "folder/b.SVG").read_text(encoding="utf-8")
    assert (
        svg.count("<!-- ▁window -->") == svg.count("<!-- $x^2$ -->") == 1
    )  # what it says, beside the paths of its letters
    assert "<text" not in svg
    assert not re.search(r"(href|src|url)\S*(http|//)", svg)  # it requests nothing
    image = imread(tmp_path / "a.png")
    darkest = matplotlib.colormaps["Blues"](1.0)[:3]
    assert (np.abs(image[..., :3] - darkest).sum(-1) < 0.01).sum() > 100  # the largest weight


def test_an_svg_is_xml_whatever_the_tokens_hold(maps: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    strange = ("--", "\x1b[2J", "<&\udc80", "\uffff")
    maps = dataclasses.replace(maps, src=strange)
    draw(maps, tmp_path / "a.svg", layer=1, head=1, model="a\x00--")
    ElementTree.parse(tmp_path / "a.svg")
    assert not caplog.records
    with drawing([]):
        (axes,) = panels(make_figure(maps, layer=1, head=1))
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["--", "\ufffd[2J", "<&\ufffd", "\ufffd"]


def test_a_character_that_no_font_has_is_named(maps: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw(maps, tmp_path / "a.png", layer=1, head=1, model="r\u0378")  # U+0378 is not assigned
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "no installed font has \u0378 (U+0378), so boxes are drawn" in warning
    assert find_fonts(["plain \u200d\ufe0f\t text"]) == (["DejaVu Sans"], [])  # joiners need no glyph


def test_through_the_command_line(in_solved: Path, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.svg"
    assert cli("attention", "1 2 3", "--layer", "1", "--head", "2", "--output", str(file)) == (0, "", f"wrote {file}\n")
    svg = file.read_text(encoding="utf-8")
    assert "<!-- copy: cross-attention, layer 1, head 2 -->" in svg
    assert svg.count("<!-- 2 -->") == 2 and svg.count("<!-- &lt;/s&gt; -->") + svg.count("<!-- </s> -->") == 2
    code, out, stderr = cli("attention", "1 2 3", "--layer", "2", "--output", str(file))
    assert (code, out, stderr) == (2, "", "nmt: layer 2 does not exist: this attention has the layers 1 to 1\n")


def write_font(path: Path, characters: str, family: str) -> None:
    """A font in which each of the characters is a black square as large as the text."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 1000), (1000, 1000), (1000, 0)):
        pen.lineTo(corner)
    pen.closePath()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "square"])
    builder.setupCharacterMap({ord(character): "square" for character in characters})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "square": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (1000, 0), "square": (1000, 0)})
    builder.setupHorizontalHeader(ascent=1000, descent=0)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2(usWeightClass=400)
    builder.setupPost()
    builder.save(path)


@pytest.fixture
def no_other_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the fonts that come with matplotlib are known."""
    own = [entry for entry in font_manager.fontManager.ttflist if entry.fname.startswith(matplotlib.get_data_path())]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)


def black_squares(texts: list[str], size: int = 36) -> float:
    """The area that the texts cover, in letters that are black squares; each is half an inch."""
    with drawing(texts):
        figure = Figure(figsize=(4, 4), dpi=100)
        for row, text in enumerate(texts):
            figure.text(0.1, 0.05 + 0.2 * row, text, fontsize=size)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return float((np.asarray(canvas.buffer_rgba())[..., :3] == 0).all(-1).sum()) / 50**2


def test_a_font_that_was_installed_since_is_found_and_used(
    no_other_fonts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "squares.ttf"
    write_font(file, "\u0378", "Squares")
    (tmp_path / "broken.ttf").write_bytes(b"nothing")
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(tmp_path / "broken.ttf"), str(file)])
    assert find_fonts(["a\u0378"]) == (["DejaVu Sans", "Squares"], [])
    assert black_squares(["\u0378"]) == pytest.approx(1, abs=0.06)


def test_private_characters_are_not_drawn_as_parts_of_formulas(
    no_other_fonts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    assert find_fonts(["\ue000"]) == (["DejaVu Sans"], ["\ue000"])
    fonts = [entry for entry in font_manager.fontManager.ttflist if entry.name != "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)  # the first cannot be read
    assert find_fonts(["a"])[1] == []


TEXTS = {"Chinese": "你好世界", "Japanese": "こんにちは", "Korean": "안녕", "Arabic": "مرحبا", "Hindi": "नमस्ते"}


def test_each_script_is_drawn_in_a_font_that_has_it(
    no_other_fonts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for language, text in TEXTS.items():
        write_font(tmp_path / f"{language}.ttf", text, language)
    write_font(tmp_path / "some.ttf", "你こ안", "A Few")  # nearly nothing of each
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(path) for path in tmp_path.iterdir()])
    families, missing = find_fonts(list(TEXTS.values()))
    # DejaVu Sans has Arabic letters; of the others, the most letters come first.
    assert (families, missing) == (["DejaVu Sans", "Hindi", "Japanese", "Chinese", "Korean"], [])
    assert black_squares([TEXTS[name] for name in ("Chinese", "Korean")]) == pytest.approx(6, abs=0.3)
    assert find_fonts(["語" + TEXTS["Hindi"]])[1] == ["語"]


@pytest.mark.parametrize("language", TEXTS)
def test_what_no_installed_font_has_is_what_no_character_map_has(language: str) -> None:
    known: set[str] = set()
    for entry in font_manager.fontManager.ttflist:
        if entry.style == "normal" and not entry.name.startswith("Last Resort"):
            known |= {chr(code) for code in TTFont(entry.fname, fontNumber=entry.index).getBestCmap()}
    families, missing = find_fonts([TEXTS[language]])
    assert missing == sorted(set(TEXTS[language]) - known)
    assert len(families) == 1 or missing != sorted(set(TEXTS[language]))


def test_arabic_letters_join() -> None:
    widths = []
    with drawing(["س"]):
        for text in ("سسس", "س", "سس"):
            figure = Figure()
            drawn_text = figure.text(0, 0, text)
            widths.append(drawn_text.get_window_extent(FigureCanvasAgg(figure).get_renderer()).width)
    three, alone, two = widths
    assert three - two < 0.8 * alone  # the one in the middle has no tail
