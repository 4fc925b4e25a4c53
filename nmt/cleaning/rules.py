"""Rules of `data.cleaning` about a single pair."""

import bisect
import html.entities
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING

from nmt.cleaning.scripts import are_out_of_script, scripts_of
from nmt.config.data import CleaningConfig
from nmt.config.languages import base_language
from nmt.errors import ConfigError, MissingExtraError, how_to_install

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

# The names are keys of data.cleaning; the cheapest rules come first.
PAIR_RULES: tuple[str, ...] = ("encoding", "identical", "html", "script", "numbers", "length_ratio", "language")


class PairRules:
    """Rules that are on, for pairs of two languages ('' if unknown)."""

    def __init__(self, cleaning: CleaningConfig, src_lang: str, tgt_lang: str, typical_ratio: float = 1.0) -> None:
        """Prepare the rules; `typical_ratio` is target length / source length.

        Raises `MissingExtraError` if `language` is on and its package is not installed, and `ConfigError` if the
        package does not know a language.
        """
        rules: dict[str, Callable[[str, str], bool]] = {}
        if cleaning.encoding:
            rules["encoding"] = partial(_is_either, is_wrongly_decoded)
        if cleaning.identical:
            rules["identical"] = are_identical
        if cleaning.html:
            rules["html"] = partial(_is_either, has_html)
        if cleaning.script is not None:
            rules["script"] = partial(are_out_of_script, cleaning.script, (scripts_of(src_lang), scripts_of(tgt_lang)))
        if cleaning.numbers:
            rules["numbers"] = have_different_numbers
        if cleaning.length_ratio is not None:
            rules["length_ratio"] = partial(have_unlike_lengths, cleaning.length_ratio, typical_ratio)
        if cleaning.language:
            rules["language"] = LanguageRule(src_lang, tgt_lang)
        self._rules = list(rules.items())

    def violated(self, src: str, tgt: str) -> list[str]:
        """The names of all rules that a pair of normalized lines violates, in the order of `PAIR_RULES`.

        The lines are decoded with `errors="surrogateescape"`, so that `encoding` sees bytes that are not UTF-8.
        """
        return [name for name, is_violated in self._rules if is_violated(src, tgt)]


def _is_either(is_faulty: Callable[[str], bool], src: str, tgt: str) -> bool:
    return is_faulty(src) or is_faulty(tgt)


# encoding

# NUL, controls of windows-1252 read as Latin-1, surrogates (bytes that are not UTF-8), and U+FFFD
_LOST = re.compile("[\0\x80-\x84\x86-\x9f\ud800-\udfff\ufffd]")


def _continuation(code_page: str) -> str:
    """The characters that a continuation byte of UTF-8 becomes in a code page, for a character class."""
    return re.escape(bytes(range(0x80, 0xC0)).decode(code_page, errors="ignore"))


_C = f"[{_continuation('cp1252')}\x80-\x9f]"
_C_1250 = f"[{_continuation('cp1250')}]"
_C_1251 = f"[{_continuation('cp1251')}]"
# Those that may follow a capital at the end of a word: closing quotes, dashes, signs.
_CLOSING = "”’»›…–—™®°ºª²³¹·•“\u00a0"
_LEAD = re.compile(f"[Â-ôĂĹРС][{''.join(map(_continuation, ('cp1250', 'cp1251', 'cp1252')))}\x80-\x9f]")
_ENCODED_TWICE = re.compile(
    "|".join(
        [
            "[Â-ô][\x80-\x9f]",  # control characters, which text does not have
            f"Â{_C}",  # C2: signs
            f"[ÃÄÅ](?![{_CLOSING}]){_C}",  # C3 to C5: Latin letters
            f"(?<=[a-zß-ÿ])[ÃÄÅ][{_CLOSING}]|[ÃÄÅ][{_CLOSING}](?=[a-zß-ÿ])",
            f"(?:[ÎÏ]{_C}){{2}}|(?:[ÐÑ]{_C}){{2}}|(?:×{_C}){{2}}|(?:[ØÙÚÛ]{_C}){{2}}",  # other alphabets
            f"â€{_C}|â[‚„†ˆ‰‹˜š›œžŸ]{_C}|ï»¿|ï¿½|ï[¼½]{_C}|ðŸ",  # punctuation, signs, full-width forms, emoji
            f"(?:[à-ï]{_C}{_C}){{2}}",  # all other scripts
            f"(?<=[a-zß-ÿ])[ĂĹ]{_C_1250}|[ĂĹ][€‚„†‡‰‹ˇ˘¤¦§¨©¬±˛´¶¸˝]",  # the same in the code page of Central Europe
            f"(?:[РС]{_C_1251}){{3}}",  # Cyrillic letters in their code page
        ]
    )
)


def is_wrongly_decoded(line: str) -> bool:
    """True if a line is not UTF-8, lost characters, or was encoded twice.

    >>> is_wrongly_decoded("MÃ¼nchen"), is_wrongly_decoded("donâ€™t"), is_wrongly_decoded("«CAFÉ»")
    (True, True, False)
    """
    if line.isascii():
        return "\0" in line
    return _LOST.search(line) is not None or (
        # Mostly False, and much faster than the search for all forms.
        _LEAD.search(line) is not None and _ENCODED_TWICE.search(line) is not None
    )


def are_identical(src: str, tgt: str) -> bool:
    """True if normalized lines are the same text with letters. Numbers and signs are their own translation."""
    return src == tgt and any(map(str.isalpha, src))


# html

# Elements whose names are rarely placeholders, unlike <address>, <code>, <label>, <object> and <title>.
_ELEMENTS = (
    "a|b|big|blockquote|body|br|center|div|em|font|h[1-6]|head|hr|html|i|iframe|img|li|ol|p|pre|small|span|strike|"
    "strong|sub|sup|table|tbody|td|th|thead|tr|tt|u|ul"
)
_NAME = r"[a-z][\w:.-]*"
_HTML = re.compile(
    rf"<(?:(?:{_ELEMENTS})\s*>"
    rf"|/{_NAME}\s*>"  # the end of any element
    rf"|{_NAME}\s[^<>]*=[^<>]*>"  # any element with an attribute
    rf"|{_NAME}(?:\s[^<>]*)?/>"  # any element without content
    r"|!--|!\[CDATA\[|!DOCTYPE\b|\?xml\b)"
    r"|&(?:#\d{2,7}|#x[\da-f]{2,6}|([a-z][a-z\d]{1,31}));",
    re.IGNORECASE,
)


def has_html(line: str) -> bool:
    """True if a line has a tag or an entity of HTML, or a tag of XML, but for placeholders such as <file>.

    >>> has_html("a <b>bold</b> man"), has_html("Tom &amp; Jerry"), has_html("if a < b and c > d")
    (True, True, False)
    """
    if "<" not in line and "&" not in line:  # nearly all lines
        return False
    return any(not match[1] or f"{match[1]};" in html.entities.html5 for match in _HTML.finditer(line))


# numbers

# A number with its separators of thousands. Decimals are a number of their own.
_NUMBER = re.compile("(?<!\\d)\\d{1,3}(?:([.,٫٬'’．， \u00a0\u2009\u202f])\\d{3})(?:\\1\\d{3})*(?!\\d)|\\d+")
_NUMERIC_ENTITY = re.compile(r"&#\w+;")
_DIGIT = re.compile(r"\d")
_MAX_AS_WORD = 12
"""The largest number that is often a word: "two dogs"."""
# Words and signs that stand for zeros, in languages where this is common.
_MAGNITUDE = re.compile(
    r"[万萬亿億만억]|\dk\b|[mb]il[lj]|milj|mio|ml[nj]|mrd|тыс|милли|млн|млрд|мільй|lakh|crore", re.IGNORECASE
)
_TWELVE_HOURS = re.compile(r"\d\s?[ap]\.?m\b", re.IGNORECASE)


def have_different_numbers(src: str, tgt: str) -> bool:
    """True if the lines have different numbers, in any digits and with any separators.

    Numbers up to 12 may be missing on one side, since they can be words. If a line has a word such as million, zeros at
    the end do not count.

    >>> have_different_numbers("1,000.5 km, 2 days", "1.000,5 km, zwei Tage"), have_different_numbers("1914", "1941")
    (False, True)
    """
    if not _DIGIT.search(src) and not _DIGIT.search(tgt):
        return False
    src_numbers, tgt_numbers = _numbers(src), _numbers(tgt)
    if _are_same_numbers(src_numbers, tgt_numbers):
        return False
    if _MAGNITUDE.search(src) or _MAGNITUDE.search(tgt):
        src_numbers, tgt_numbers = ([number.rstrip("0") for number in side] for side in (src_numbers, tgt_numbers))
        if _are_same_numbers(src_numbers, tgt_numbers):
            return False
    only_src = list((Counter(src_numbers) - Counter(tgt_numbers)).elements())
    only_tgt = list((Counter(tgt_numbers) - Counter(src_numbers)).elements())
    if _TWELVE_HOURS.search(src) or _TWELVE_HOURS.search(tgt):
        only_src, only_tgt = ([number for number in side if _is_above(24, number)] for side in (only_src, only_tgt))
    return bool(only_src and only_tgt) or any(_is_above(_MAX_AS_WORD, number) for number in only_src + only_tgt)


def _are_same_numbers(src_numbers: list[str], tgt_numbers: list[str]) -> bool:
    if sorted(src_numbers) == sorted(tgt_numbers):
        return True
    # The same digits in another grouping, such as 10 000 and 1,0000; but 1914 is not 1941.
    return len(src_numbers) != len(tgt_numbers) and sorted("".join(src_numbers)) == sorted("".join(tgt_numbers))


def _is_above(limit: int, number: str) -> bool:
    return len(number) > 2 or int(number or 0) > limit


def _numbers(line: str) -> list[str]:
    """The numbers of a line in ASCII digits, without separators and leading zeros."""
    if "&#" in line:
        line = _NUMERIC_ENTITY.sub(" ", line)
    numbers = (match[0] for match in _NUMBER.finditer(line))
    return ["".join(str(int(digit)) for digit in number if digit.isdecimal()).lstrip("0") or "0" for number in numbers]


# length_ratio

_ALLOWED_CHARACTERS = 10
# White space for `str.split`, without the space itself.
_OTHER_SPACES = re.compile("[\t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")


def length_of(line: str) -> int:
    """The length of a line for `length_ratio`: its number of characters without white space."""
    if _OTHER_SPACES.search(line):
        return len("".join(line.split()))
    return len(line) - line.count(" ")


def typical_ratio(pairs: Iterable[tuple[str, str]]) -> float:
    """The weighted median of target length / source length; 1.0 without pairs.

    The weight of a pair is the square of its shorter side, up to 50 characters: a dictionary says little of sentences.
    """
    lengths = [(length_of(src), length_of(tgt)) for src, tgt in pairs]
    ratios = sorted((tgt / src, min(src, tgt, 50) ** 2) for src, tgt in lengths if src and tgt)
    weights = list(itertools.accumulate(weight for _, weight in ratios))
    return ratios[bisect.bisect_left(weights, weights[-1] / 2)][0] if ratios else 1.0


def have_unlike_lengths(max_ratio: float, typical_ratio: float, src: str, tgt: str) -> bool:
    """True if a side of a pair is too long for the other.

    Lengths are compared in characters of the language that takes more of them. A few characters more are always
    allowed, since the lengths of single words say little: "ETA" is "Verbleibende Zeit" in German.
    """
    src_length, tgt_length = length_of(src) * max(typical_ratio, 1.0), length_of(tgt) * max(1 / typical_ratio, 1.0)
    return max(src_length, tgt_length) > max_ratio * min(src_length, tgt_length) + _ALLOWED_CHARACTERS


# language

# Languages that are hard to tell apart, or that the model knows with their dialects.
_ALIKE = (
    "no nb nn da", "hr sr bs sh", "id ms", "en pcm", "es ext an gl", "pt gl", "it vec lij", "ar ary arz", "zh wuu yue",
    "lv ltg", "ht gcf gcr", "uz uzs", "el grc", "he hbo", "ku sdh", "ha guw", "fa ps", "hi mr ne gom",
)  # fmt: skip
_NO_LANGUAGE = "zxx"


class LanguageRule:
    """Identification of long lines in another language, with a clear margin, by py3langid."""

    MIN_LETTERS = 25
    """A character that is a syllable or a word counts as three."""
    MIN_PROBABILITY = 0.8
    """Of the other language."""
    MAX_OWN_PROBABILITY = 0.02

    def __init__(self, src_lang: str, tgt_lang: str) -> None:
        known = _identifier().labels
        self._accepted = [_alike(base_language(code)) for code in (src_lang, tgt_lang)]
        for code, accepted in zip((src_lang, tgt_lang), self._accepted, strict=True):
            if accepted.isdisjoint(known):
                language = code or "a language of the data"
                raise ConfigError(f"data.cleaning.language: py3langid does not know {language}; set it to false")

    def __call__(self, src: str, tgt: str) -> bool:
        return any(map(self._is_other, (src, tgt), self._accepted))

    def _is_other(self, line: str, accepted: frozenset[str]) -> bool:
        if sum(3 if "\u3040" <= letter < "\ue000" else 1 for letter in line if letter.isalpha()) < self.MIN_LETTERS:
            return False
        ranked = _identifier().rank(line)
        best = ranked[0][0]
        if best in accepted or best == _NO_LANGUAGE:
            return False
        other, own = (sum(p for language, p in ranked if language in alike) for alike in (_alike(best), accepted))
        return other >= self.MIN_PROBABILITY and own < self.MAX_OWN_PROBABILITY


def _alike(language: str) -> frozenset[str]:
    """A language and those that it may be confused with."""
    groups = [languages.split() for languages in _ALIKE if language in languages.split()]
    return frozenset([language]).union(*groups)


@cache
def _identifier() -> "LanguageIdentifier":
    """The package's model; loading it takes a second."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ModuleNotFoundError:
        raise MissingExtraError(f"data.cleaning.language needs py3langid: {how_to_install('langid')}") from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
