"""Scripts of languages and lines, and the rule of `data.cleaning` about them."""

import functools
import itertools
import re
from collections.abc import Iterable, Sequence

import regex  # needed by sacreBLEU, too; knows the scripts of Unicode, which `re` does not

from nmt.config.languages import base_language, script_of

# Scripts in which a character is a syllable or a word.
_DENSE = frozenset(["Hani", "Hira", "Kana", "Bopo", "Hang", "Yiii"])
_PARTS = {"Jpan": "Hani Hira Kana", "Kore": "Hang Hani", "Hans": "Hani Bopo", "Hant": "Hani Bopo"}
# Scripts that UAX #31 recommends. In others (Tifinagh, runes) few texts are written, even in their own languages.
_WIDESPREAD = """
Arab Armn Beng Bopo Cyrl Deva Ethi Geor Grek Gujr Guru Hang Hani Hebr Hira Kana Khmr Knda Laoo Latn Mlym Mymr Orya Sinh
Taml Telu Thaa Thai Tibt
"""
# Languages (`base_language`) written in several scripts: those of CLDR's languageData, and more.
_SEVERAL = {
    language: frozenset(scripts.split())
    for languages, scripts in (
        ("sr bs tt crh kaa", "Cyrl Latn"),
        ("az kk ku ky tg tk ug uz", "Arab Cyrl Latn"),
        ("ace bal bjn brh ckb ha kr min ms swb wni zdj", "Arab Latn"),
        ("doi ks sd", "Arab Deva"),
        ("pa", "Arab Guru"),
        ("gom hif kok", "Deva Latn"),
        ("gmv gof wal", "Ethi Latn"),
        ("bm dyu man", "Latn Nkoo"),
        ("kab taq tzm", "Latn Tfng"),
        ("hak nan", "Bopo Hani Latn"),
        ("cr iu oj", "Cans Latn"),
        ("unr unx", "Beng Deva"),
        ("ff", "Adlm Latn"), ("gon", "Deva Telu"), ("grt", "Beng Latn"), ("lad", "Hebr Latn"), ("mn", "Cyrl Mong"),
        ("mni", "Beng Mtei"),
    )
    for language in languages.split()
}  # fmt: skip


def scripts_of(language: str) -> frozenset[str]:
    """The scripts of a language's characters (ISO 15924); none if they are uncertain.

    >>> sorted(scripts_of("ja")), sorted(scripts_of("sr")), sorted(scripts_of("sr-Latn"))
    (['Hani', 'Hira', 'Kana'], ['Cyrl', 'Latn'], ['Latn'])
    """
    names_script = any(len(subtag) == 4 and subtag.isalpha() for subtag in language.split("-")[1:])
    if not names_script and (several := _SEVERAL.get(base_language(language))):
        return several
    script = script_of(language)
    scripts = frozenset(_PARTS.get(script, script).split())
    is_certain = names_script or scripts <= set(_WIDESPREAD.split())
    return scripts if is_certain and all(map(_is_known, scripts)) else frozenset()


def is_out_of_script(character: str, scripts: frozenset[str]) -> bool:
    """True if a character is a letter of another script.

    >>> [is_out_of_script(character, frozenset(["Latn"])) for character in "äя漢3,"]
    [False, True, True, False, False]
    """
    return bool(scripts) and _words_outside(scripts).fullmatch(character) is not None


def are_out_of_script(min_share: float, scripts: Sequence[frozenset[str]], src: str, tgt: str) -> bool:
    """True if too few letters of a line are in the scripts of its side."""
    return share_in_script(src, scripts[0], tgt) < min_share or share_in_script(tgt, scripts[1], src) < min_share


def share_in_script(line: str, scripts: frozenset[str], other: str = "") -> float:
    """The share of a line's letters that are in the scripts; 1 without letters of other scripts or without `scripts`.

    A vowel sign, as in Hindi, counts as a letter. A single letter of another script is a symbol. A word of another
    script that is also in the `other` line is a name or a code and does not count, unless it is all of the line.
    In scripts whose characters are syllables or words (Han, kana, Hangul), a word of an alphabet counts as one letter:
    with Microsoft in it, a Chinese line is still Chinese.
    """
    if not scripts or ("Latn" in scripts and line.isascii()) or not _may_be_outside(scripts).search(line):
        return 1.0
    words = _words_outside(scripts).findall(line)
    if sum(map(len, words)) < 2:
        return 1.0
    inside = len(_letters_inside(scripts).findall(line))
    if inside:
        words = [word for word in words if word not in other]
    outside = len(words) if scripts & _DENSE else sum(map(len, words))
    return inside / (inside + outside) if outside else 1.0


def _class_of(scripts: Iterable[str]) -> str:
    return "".join(rf"\p{{Script={script}}}" for script in sorted(scripts))


@functools.cache
def _is_known(script: str) -> bool:
    try:
        regex.compile(_class_of([script]))
    except regex.error:
        return False
    return True


@functools.cache
def _letters_inside(scripts: frozenset[str]) -> "regex.Pattern[str]":
    return regex.compile(rf"(?V1)[[\p{{L}}\p{{M}}]&&[{_class_of(scripts)}]]")


@functools.cache
def _words_outside(scripts: frozenset[str]) -> "regex.Pattern[str]":
    """Runs of letters of other scripts, with their marks; in dense scripts, each letter."""
    # Zyyy and Zinh are letters of no script, such as µ, the kelvin sign and the long-vowel mark of Japanese.
    dense, own = _class_of(_DENSE - scripts), _class_of({*scripts, *_DENSE, "Zyyy", "Zinh"})
    return regex.compile(rf"(?V1)[\p{{L}}&&[{dense}]]|[\p{{L}}--[{own}]][[\p{{L}}\p{{M}}]--[{own}]]*")


@functools.cache
def _may_be_outside(scripts: frozenset[str]) -> re.Pattern[str]:
    """A character that can be in `_words_outside`, for a first search: `re` takes a tenth of the time of `regex`.

    Exact in the Basic Multilingual Plane; all characters outside it match.
    """
    plane = "\n".join(map(chr, itertools.chain(range(0xD800), range(0xE000, 0x10000))))
    outside = sorted(map(ord, "".join(_words_outside(scripts).findall(plane))))
    # Consecutive code points have the same difference to their indexes.
    runs = [list(run) for _, run in itertools.groupby(enumerate(outside), lambda pair: pair[1] - pair[0])]
    ranges = [rf"\u{run[0][1]:04x}-\u{run[-1][1]:04x}" for run in runs]
    return re.compile(f"[{''.join(ranges)}\U00010000-\U0010ffff]")
