"""Drawing with matplotlib in fonts that have the glyphs of the text.

From version 3.11 on, matplotlib shapes text: Arabic letters join and run from right to left, Devanagari has its
conjuncts. It takes each glyph from the first font of a list that has it; that list is made here.
"""

import contextlib
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from nmt.system.console import log

FIRST_FAMILY = "DejaVu Sans"  # comes with matplotlib
MAX_NAMED = 20
_NOT_DRAWN = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # categories of Unicode: controls, joiners, spaces
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)
_NO_LETTERS = ("Last Resort", "STIXNonUnicode", "STIXSize", "cmex", "cmmi", "cmsy")
"""How the names of fonts begin that have a box for each character, or parts of formulas in the places of others."""


@contextlib.contextmanager
def drawing(texts: Iterable[str]) -> Iterator[None]:
    """In the block, matplotlib draws in its default style and with fonts that have the glyphs of `texts`.

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
    """Choose font families, and return the characters that none has. Each has most of what those before it lack, so
    that the letters of a script are of one font: letters of two would not join."""
    from matplotlib.font_manager import fontManager, weight_dict
    from matplotlib.ft2font import FT2Font

    def boldness(entry: Any) -> int:
        return abs(int(weight_dict.get(entry.weight, entry.weight)) - 400)

    by_weight = sorted(fontManager.ttflist, key=boldness, reverse=True)
    # Of a family, the font nearest to 400.
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
