"""The rules of `data.cleaning` that look at one pair alone."""

import functools
import html.entities
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable

import regex  # needed by sacreBLEU, too; knows the scripts of Unicode, which `re` does not

from nmt.config.cleaning import CleaningConfig
from nmt.data.cleaning import normalize
from nmt.languages import script_of

# Names are keys of data.cleaning; the cheapest first.
PAIR_RULES: tuple[str, ...] = ("encoding", "identical", "html", "script", "numbers", "length_ratio", "language")


class PairRules:
    """The rules that are on, for pairs of two languages ('' if unknown)."""

    def __init__(self, cleaning: CleaningConfig, src_lang: str, tgt_lang: str, usual_ratio: float = 1.0) -> None:
        """`usual_ratio`: what target lengths are divided by.

        Raises `MissingExtraError` if `language` is on and its package is not installed.
        """
        self._rules: list[tuple[str, Callable[[str, str], bool]]] = []
        if cleaning.encoding:
            self._add("encoding", Either(is_wrongly_decoded))
        if cleaning.identical:
            self._add("identical", are_identical)
        if cleaning.html:
            self._add("html", Either(has_html))
        if cleaning.script is not None:
            self._add("script", ScriptRule(cleaning.script, src_lang, tgt_lang))
        if cleaning.numbers:
            self._add("numbers", have_different_numbers)
        if cleaning.length_ratio is not None:
            self._add("length_ratio", LengthRule(cleaning.length_ratio, usual_ratio))

    def _add(self, name: str, rule: Callable[[str, str], bool]) -> None:
        self._rules.append((name, rule))

    def violated(self, src: str, tgt: str) -> list[str]:
        """The names of all rules that a pair violates, in the order of `PAIR_RULES`.

        The lines are decoded with `errors="surrogateescape"`, so that `encoding` sees what is not UTF-8.
        """
        return [name for name, is_violated in self._rules if is_violated(src, tgt)]


class Either:
    """Whether a line has a fault, for either line of a pair. A class, since closures cannot be pickled."""

    def __init__(self, is_faulty: Callable[[str], bool]) -> None:
        self._is_faulty = is_faulty

    def __call__(self, src: str, tgt: str) -> bool:
        return self._is_faulty(src) or self._is_faulty(tgt)


# --- encoding

# The characters that the bytes 80 to BF become in Windows-1252, or in Latin-1.
_CONTINUATION = "".join(bytes([byte]).decode("cp1252", errors="ignore") for byte in range(0x80, 0xC0))
_C = f"[{re.escape(_CONTINUATION)}\x80-\x9f]"
# Of these, what may follow a capital at the end of a word: closing quotes, dashes, signs.
_CLOSING = "”’»›…–—™®°ºª²³¹·•“\u00a0"
# The same for Windows-1251, in which the UTF-8 of Cyrillic text is a row of Р and С, each with one of these.
_C_1251 = "".join(bytes([byte]).decode("cp1251", errors="ignore") for byte in range(0x80, 0xC0))
_DOUBLE_ENCODED = re.compile(
    "|".join(
        [
            "[\ud800-\udfff\ufffd]",  # not UTF-8 (surrogateescape), and the replacement character
            "[Â-ô][\x80-\x9f]",  # control characters, which text does not have
            f"Â{_C}",  # C2: signs
            f"[ÃÄÅ](?![{_CLOSING}]){_C}",  # C3 to C5: Latin letters
            f"(?:(?<=[a-zß-ÿ])[ÃÄÅ][{_CLOSING}]|[ÃÄÅ][{_CLOSING}](?=[a-zß-ÿ]))",
            f"(?:[ÎÏ]{_C}){{2}}|(?:[ÐÑ]{_C}){{2}}|(?:×{_C}){{2}}|(?:[ØÙÚÛ]{_C}){{2}}",  # other alphabets
            f"â€{_C}|â[‚„†ˆ‰‹˜š›œžŸ]{_C}|ï»¿|ï¿½|ï[¼½]{_C}|ðŸ",  # punctuation, signs, full-width forms, emoji
            f"(?:[à-ï]{_C}{_C}){{2}}",  # all other scripts
            f"(?:[РС][{re.escape(_C_1251)}]){{3}}",
        ]
    )
)


def is_wrongly_decoded(line: str) -> bool:
    """Whether a line is not UTF-8, lost characters, or was encoded twice.

    >>> is_wrongly_decoded("MÃ¼nchen"), is_wrongly_decoded("donâ€™t"), is_wrongly_decoded("«CAFÉ»")
    (True, True, False)
    """
    return not line.isascii() and _DOUBLE_ENCODED.search(line) is not None


# --- identical


def are_identical(src: str, tgt: str) -> bool:
    """Whether the lines are the same text after normalization."""
    return src == tgt or normalize(src) == normalize(tgt)


# --- html

_TAGS = (
    "a|abbr|address|article|aside|audio|b|big|blockquote|body|br|button|canvas|caption|center|cite|code|col|dd|del|"
    "details|div|dl|dt|em|embed|fieldset|figure|font|footer|form|frame|h1|h2|h3|h4|h5|h6|head|header|hr|html|i|"
    "iframe|img|input|ins|kbd|label|legend|li|link|main|map|mark|meta|nav|object|ol|optgroup|option|p|param|pre|q|s|"
    "samp|script|section|select|small|source|span|strike|strong|style|sub|summary|sup|table|tbody|td|textarea|tfoot|"
    "th|thead|title|tr|tt|u|ul|var|video|wbr"
)
_HTML = re.compile(
    f"<(?:/?(?:{_TAGS})(?:\\s[^<>]*)?/?\\s*>|!--|!DOCTYPE)"
    r"|&(?:#\d{2,7}|#x[\da-f]{2,6}|([a-z][a-z\d]{1,31}));",
    re.IGNORECASE,
)


def has_html(line: str) -> bool:
    """Whether a line has a tag or an entity of HTML.

    >>> has_html("a <b>bold</b> man"), has_html("Tom &amp; Jerry"), has_html("if a < b and c > d")
    (True, True, False)
    """
    if "<" not in line and "&" not in line:  # nearly all lines
        return False
    return any(not found[1] or f"{found[1]};" in html.entities.html5 for found in _HTML.finditer(line))


# --- script

# Scripts in which a character is a syllable or a word.
_DENSE = frozenset(["Hani", "Hira", "Kana", "Bopo", "Hang", "Yiii"])
_PARTS = {"Jpan": "Hani Hira Kana", "Kore": "Hang Hani", "Hans": "Hani Bopo", "Hant": "Hani Bopo"}
# Languages that are written in several scripts.
_SEVERAL = {
    **dict.fromkeys(("sr", "sh", "bs", "cnr", "uz", "tk", "tt", "crh"), "Cyrl Latn"),
    **dict.fromkeys(("kk", "ky", "az", "tg"), "Cyrl Latn Arab"),
    **dict.fromkeys(("ku", "kmr", "ms", "ha"), "Latn Arab"),
    **dict.fromkeys(("pa", "pnb"), "Guru Arab"),
    **dict.fromkeys(("ks", "sd"), "Arab Deva"),
    "mn": "Cyrl Mong",
    "ckb": "Arab Latn",
}


def scripts_of(language: str) -> frozenset[str]:
    """The scripts (ISO 15924, those of single characters) in which a language is written; none if unknown.

    >>> sorted(scripts_of("ja")), sorted(scripts_of("sr")), sorted(scripts_of("sr-Latn"))
    (['Hani', 'Hira', 'Kana'], ['Cyrl', 'Latn'], ['Latn'])
    """
    subtags = language.split("-")
    names_script = any(len(subtag) == 4 and subtag.isalpha() for subtag in subtags[1:])
    if not names_script and subtags[0] in _SEVERAL:
        return frozenset(_SEVERAL[subtags[0]].split())
    script = script_of(language)
    scripts = frozenset(_PARTS.get(script, script).split())
    return scripts if all(map(_is_known, scripts)) else frozenset()


def is_out_of_script(character: str, scripts: frozenset[str]) -> bool:
    """Whether a character is a letter of another script.

    >>> [is_out_of_script(character, frozenset(["Latn"])) for character in "äя漢3,"]
    [False, True, True, False, False]
    """
    return _letters_outside(scripts).fullmatch(character) is not None


class ScriptRule:
    """Whether too few of a line's letters are in the scripts of its language."""

    def __init__(self, min_share: float, src_lang: str, tgt_lang: str) -> None:
        self._min_share = min_share
        self._scripts = scripts_of(src_lang), scripts_of(tgt_lang)

    def __call__(self, src: str, tgt: str) -> bool:
        return any(
            bool(scripts) and share_in_script(line, scripts) < self._min_share
            for line, scripts in zip((src, tgt), self._scripts, strict=True)
        )


def share_in_script(line: str, scripts: frozenset[str]) -> float:
    """The share of the line's letters that are in the scripts; 1 without letters.

    Where a character is a syllable or a word (Han, kana, Hangul), a word of an alphabet counts as one letter: with
    Microsoft in it, a Chinese line is still Chinese.
    """
    if "Latn" in scripts and line.isascii():
        return 1.0
    outside = len((_words_outside if scripts & _DENSE else _letters_outside)(scripts).findall(line))
    if not outside:
        return 1.0
    inside = len(_letters_inside(scripts).findall(line))
    return inside / (inside + outside)


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
    return regex.compile(rf"(?V1)[\p{{L}}&&[{_class_of(scripts)}]]")


@functools.cache
def _letters_outside(scripts: frozenset[str]) -> "regex.Pattern[str]":
    # Zyyy and Zinh: letters of no script, such as µ, the kelvin sign and Japan's mark of a long vowel.
    return regex.compile(rf"(?V1)[\p{{L}}--[{_class_of({*scripts, 'Zyyy', 'Zinh'})}]]")


@functools.cache
def _words_outside(scripts: frozenset[str]) -> "regex.Pattern[str]":
    dense, common = _class_of(_DENSE - scripts), _class_of({*scripts, *_DENSE, "Zyyy", "Zinh"})
    return regex.compile(rf"(?V1)[\p{{L}}&&[{dense}]]|[\p{{L}}--[{common}]][\p{{L}}\p{{M}}--[{common}]]*")


# --- numbers

_GROUP = "[ \u00a0\u2009\u202f]"
_NUMBER = re.compile(rf"\d{{1,3}}(?:{_GROUP}\d{{3}})+(?!\d)|\d+(?:[.,'’٫٬．，]\d+)*")
_DIGIT = re.compile(r"\d")
_MAX_AS_WORD = 12
"""Numbers up to this one are often words: "two dogs"."""


def have_different_numbers(src: str, tgt: str) -> bool:
    """Whether the lines have different numbers, however these are written.

    A number is the value of its digits, of any script, without separators: 1,000 and 1.000 and ١٠٠٠ are the same, and
    so are 3.5 and 3,5. Where numbers differ, the same digits in another order or grouping will do, as in dates. Numbers
    up to 12 may be missing on one side, where they can be words.
    """
    if not _DIGIT.search(src) and not _DIGIT.search(tgt):
        return False
    src_numbers, tgt_numbers = Counter(_numbers(src)), Counter(_numbers(tgt))
    only_src, only_tgt = src_numbers - tgt_numbers, tgt_numbers - src_numbers
    if not only_src and not only_tgt:
        return False
    if only_src and only_tgt:
        return _digits(only_src) != _digits(only_tgt)
    return any(number > _MAX_AS_WORD for number in only_src or only_tgt)


def _numbers(line: str) -> list[int]:
    # int() reads the digits of every script.
    return [int("".join(filter(str.isdecimal, number))[:1000]) for number in _NUMBER.findall(line)]


def _digits(numbers: Counter[int]) -> list[str]:
    return sorted("".join(map(str, numbers.elements())))


# --- length_ratio


def length_of(line: str) -> int:
    """The length of a line for `length_ratio`: its characters without white space."""
    return len("".join(line.split()))


def usual_ratio(pairs: Iterable[tuple[str, str]]) -> float:
    """The median of target length / source length; 1.0 without pairs. By it, target lengths are to be divided."""
    lengths = [(length_of(src), length_of(tgt)) for src, tgt in pairs]
    ratios = [tgt_length / src_length for src_length, tgt_length in lengths if src_length and tgt_length]
    return statistics.median(ratios) if ratios else 1.0


class LengthRule:
    """Whether a side of a pair is too long for the other."""

    def __init__(self, max_ratio: float, usual: float) -> None:
        self._max_ratio = max_ratio
        self._usual = usual

    def __call__(self, src: str, tgt: str) -> bool:
        src_length, tgt_length = length_of(src), length_of(tgt) / self._usual
        shorter, longer = sorted((src_length, tgt_length))
        return longer > self._max_ratio * shorter
