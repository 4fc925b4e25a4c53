"""Drawing with matplotlib: fonts that have the glyphs of the text, and complete files.

From version 3.11 on, matplotlib shapes text: Arabic letters join and run from right to left, Devanagari has its
conjuncts. It takes each glyph from the first font of a list that has it; that list is made here.
"""

import contextlib
import importlib
import io
import logging
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.atomic import replacing, write_bytes
from nmt.errors import ConfigError, MissingExtraError, how_to_install

if TYPE_CHECKING:  # an extra
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontEntry

FIRST_FAMILY = "DejaVu Sans"  # comes with matplotlib
PIXELS_PER_INCH = 120  # of a PNG
MAX_NAMED = 20
# A box for each character of Unicode, and fonts for formulas only.
_NOT_FOR_TEXT = ("Last Resort", "STIX", "cmr", "cmss", "cmtt", "cmb", "cmex", "cmmi", "cmsy")
_NOT_DRAWN = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # categories of Unicode: controls, joiners, spaces
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)

log = logging.getLogger("nmt")


@contextlib.contextmanager
def drawing(texts: Iterable[str]) -> Iterator[None]:
    """In the block, matplotlib draws in its default style and with fonts that have the glyphs of `texts`.

    A warning names the characters that no installed font has. `MissingExtraError` if matplotlib is not installed.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ModuleNotFoundError:
        raise MissingExtraError(f"matplotlib is not installed: {how_to_install('plot')}") from None
    families, missing = find_fonts(texts)
    if missing:
        log.warning("%s", describe_missing(missing))
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # not the user's own settings
        # Text as paths looks the same everywhere, with or without the fonts; as a comment, it can be searched for, too.
        matplotlib.rcParams.update({"font.family": families, "svg.fonttype": "path", "svg.hashsalt": "nmt"})
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        yield


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG or SVG, as its name ends; the same figure gives the same bytes. Call it in `drawing`.

    Raises `ConfigError` for any other ending.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise ConfigError(f"{path}: a picture's name ends in .png or .svg")
    data = io.BytesIO()
    figure.savefig(data, format=kind, dpi=PIXELS_PER_INCH, metadata={"Date": None} if kind == "svg" else None)
    with replacing(path) as temporary:
        write_bytes(temporary, data.getvalue())


def find_fonts(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names of installed fonts that together have the characters of `texts`, and the characters that none of them has.

    Colour emoji fonts don't count: matplotlib draws outlines only.
    """
    from matplotlib.font_manager import fontManager

    characters = {character for text in texts for character in text if _is_drawn(character)}
    families, missing = _cover(fontManager.ttflist, characters)
    if missing and _add_new_fonts():
        families, missing = _cover(fontManager.ttflist, characters)
    return families, sorted(missing)


def describe_missing(characters: Sequence[str]) -> str:
    """A warning that names the characters that no font has, and Debian's packages of fonts that may have them.

    >>> describe_missing(["字", "😀"])
    'no installed font has 字 (U+5B57), 😀 (U+1F600), so boxes are drawn; install for example fonts-noto-cjk, \
fonts-symbola'
    """
    named = ", ".join(f"{character} (U+{ord(character):04X})" for character in characters[:MAX_NAMED])
    more = f" and {len(characters) - MAX_NAMED} more characters" if len(characters) > MAX_NAMED else ""
    packages = ", ".join(sorted({_package(character) for character in characters}))
    return f"no installed font has {named}{more}, so boxes are drawn; install for example {packages}"


def _is_drawn(character: str) -> bool:
    return unicodedata.category(character) not in _NOT_DRAWN and ord(character) not in _VARIATION_SELECTORS


def _cover(fonts: Iterable["FontEntry"], characters: set[str]) -> tuple[list[str], set[str]]:
    """Font families that have all the characters, except for the missing ones: each has most of what the others lack.

    So one family has all letters of a script if there is one: letters of two fonts would not join.
    """
    glyphs = _glyphs(fonts, characters)
    chosen, missing = [FIRST_FAMILY], characters - glyphs.pop(FIRST_FAMILY, set())
    while missing:
        best = min(glyphs, key=lambda name: (-len(glyphs[name] & missing), _rank(name, characters)), default="")
        if not best or not glyphs[best] & missing:
            break
        chosen.append(best)
        missing = missing - glyphs[best]
    return chosen, missing


def _glyphs(fonts: Iterable["FontEntry"], characters: set[str]) -> dict[str, set[str]]:
    """For each upright, normal font family, those of the characters that it has."""
    from matplotlib.ft2font import FT2Font

    found: dict[str, set[str]] = defaultdict(set)
    for entry in fonts:
        is_regular = entry.weight == "normal" or (isinstance(entry.weight, int) and 300 <= entry.weight <= 500)
        if not is_regular or entry.style != "normal" or entry.name.startswith(_NOT_FOR_TEXT):
            continue
        with contextlib.suppress(OSError, RuntimeError):  # removed since the list was made, or damaged
            font = FT2Font(entry.fname, face_index=entry.index)
            found[entry.name] |= {character for character in characters if font.get_char_index(ord(character))}
    return found


def _rank(name: str, characters: set[str]) -> tuple[bool, bool, bool, str]:
    """The order of families that have the same characters: sans serif first, Han characters as the text's language."""
    scripts = {unicodedata.name(character, "").partition(" ")[0] for character in characters}
    han = "JP" if scripts & {"HIRAGANA", "KATAKANA"} else "KR" if "HANGUL" in scripts else "SC"
    return "Sans" not in name, "Mono" in name, not name.endswith(f" {han}"), name


def _add_new_fonts() -> bool:
    """Add fonts that were installed after matplotlib made its list, which it keeps for years; whether there are any."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {str(Path(entry.fname).resolve()) for entry in fontManager.ttflist}
    before = len(fontManager.ttflist)
    for file in findSystemFonts():
        if str(Path(file).resolve()) not in known:
            # damaged, or without outlines
            with contextlib.suppress(OSError, RuntimeError, ValueError, NotImplementedError):
                fontManager.addfont(file)
    return len(fontManager.ttflist) > before


def _package(character: str) -> str:
    """Debian's package with a font for a character."""
    name = unicodedata.name(character, "")
    if name.startswith(("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH")):
        return "fonts-noto-cjk"
    return "fonts-symbola" if unicodedata.category(character) in ("So", "Sk", "Co", "Cn") else "fonts-noto-core"
