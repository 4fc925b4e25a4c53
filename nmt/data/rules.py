"""The rules of `data.cleaning` that look at one pair of lines alone.

What each rule cannot see is listed in docs/cleaning.md.
"""

import functools
import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from html.entities import html5

from nmt.config.cleaning import CleaningConfig
from nmt.languages import base_language, script_of

PAIR_RULES = ("encoding", "identical", "html", "script", "numbers", "length_ratio", "language")
"""Names as in `data.cleaning`, in the order in which they are applied."""


class PairRules:
    """The rules of a configuration that are on, for a language pair. Raises `NmtError` if `language` needs a package.

    `usual_ratio`: by what target lengths are divided before they are compared with source lengths.
    """

    def __init__(self, cleaning: CleaningConfig, src_lang: str, tgt_lang: str, usual_ratio: float = 1.0) -> None:
        rules: dict[str, Callable[[str, str], bool]] = {}
        if cleaning.encoding:
            rules["encoding"] = _either(is_badly_encoded)
        if cleaning.identical:
            rules["identical"] = _are_identical
        if cleaning.html:
            rules["html"] = _either(_HTML.search)
        if cleaning.script is not None:
            rules["script"] = functools.partial(
                _are_out_of_script, scripts=(scripts_of(src_lang), scripts_of(tgt_lang)), min_share=cleaning.script
            )
        if cleaning.numbers:
            rules["numbers"] = numbers_differ
        if cleaning.length_ratio is not None:
            rules["length_ratio"] = functools.partial(
                _differ_in_length, max_ratio=cleaning.length_ratio, usual=usual_ratio
            )
        if cleaning.language:
            rules["language"] = _LanguageRule(src_lang, tgt_lang)
        self._rules = rules

    def violated(self, src: str, tgt: str) -> list[str]:
        """The names of all rules that the pair violates, in the order of `PAIR_RULES`.

        Bytes that are not UTF-8 are surrogates, as with Python's `surrogateescape`.
        """
        return [name for name, is_violated in self._rules.items() if is_violated(src, tgt)]


def _either(is_bad: Callable[[str], object]) -> Callable[[str, str], bool]:
    return lambda src, tgt: bool(is_bad(src) or is_bad(tgt))


def _are_identical(src: str, tgt: str) -> bool:
    """Whether the sides are the same text. A copy without letters, such as a time or a number, is a translation."""
    return src == tgt and any(map(str.isalpha, src))


# Encoding

# Not UTF-8 (a surrogate), U+FFFD, or a control character of Latin-1, which windows-1252 text read as Latin-1 has.
_UNREADABLE = re.compile("[\ud800-\udfff\ufffd\x80-\x84\x86-\x9f]")
# UTF-8 of a letter or sign of Latin-1, or of typographic punctuation, read as windows-1252. Left out are the
# continuation bytes that are quotation marks in it, since they may follow a real Â or Ã.
_ENCODED_TWICE = re.compile(
    "Ã[\u00a1-\u00aa\u00ac-\u00ba\u00bc-\u00bf]|Â[\u00a0-\u00aa\u00ac-\u00ba\u00bc-\u00bf]|â€|ï»¿"
)
_CODE_PAGES = ("cp1252", "cp1251", "cp1250")
_AMBIGUOUS = re.compile("[^ÂÃ][\u2013-\u2026\u2122\u20ac\u00bb\u00ab\u2039\u203a]")


def is_badly_encoded(line: str) -> bool:
    """Whether a line has undecodable bytes, replacement characters, or UTF-8 that was read in a one-byte encoding.

    >>> is_badly_encoded("MÃ¼nchen"), is_badly_encoded("München"), is_badly_encoded("Ð¼Ð¸Ñ€")
    (True, False, True)
    """
    if line.isascii():
        return False
    if _UNREADABLE.search(line) or _ENCODED_TWICE.search(line):
        return True
    return any(_is_utf8_read_as(line, code_page) for code_page in _CODE_PAGES)


def _is_utf8_read_as(line: str, code_page: str) -> bool:
    """Whether the whole line, in an encoding of one byte a character, is UTF-8."""
    try:
        repaired = line.encode(code_page).decode("utf-8")
    except UnicodeError:
        return False
    odd = "".join(character for character in line if not character.isascii())
    # A single capital before a quotation mark or an ellipsis may be meant: "MENÜ…"
    return len(odd) - sum(not character.isascii() for character in repaired) > 1 or not _AMBIGUOUS.fullmatch(odd)


# HTML

_TAGS = ["a", "abbr", "address", "area", "article", "aside", "audio", "b", "big", "blockquote", "body", "br", "button", "caption", "center", "cite", "code", "col", "dd", "del", "div", "dl", "dt", "em", "embed", "font", "footer", "form", "frame", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hr", "html", "i", "iframe", "img", "input", "ins", "kbd", "label", "li", "link", "main", "map", "meta", "nav", "noscript", "object", "ol", "option", "p", "pre", "q", "s", "samp", "script", "section", "select", "small", "source", "span", "strike", "strong", "style", "sub", "sup", "svg", "table", "tbody", "td", "textarea", "tfoot", "th", "thead", "title", "tr", "tt", "u", "ul", "var", "video"]
_ENTITIES = "|".join(sorted({name.rstrip(";") for name in html5 if name.endswith(";")}, key=len)[::-1])
_HTML = re.compile(
    rf"</?(?:{'|'.join(_TAGS)})(?:\s[^<>]*)?/?>"  # an element of HTML
    r"|</[A-Za-z][\w:.-]*\s*>|<[A-Za-z][\w:.-]*(?:\s[^<>]*)?/>"  # the end of any element, or one without content
    r"|<[A-Za-z][\w:.-]*\s[^<>]*=\s*[\"'\\][^<>]*>|<!--|-->|<!\[CDATA\[|<!DOCTYPE|<\?xml"
    rf"|&(?:{_ENTITIES});|&\#(?:[0-9]+|[xX][0-9A-Fa-f]+);",
    re.IGNORECASE,
)


# Scripts

# The first words of the names that Unicode gives to a script's letters.
_LETTER_NAMES = {
    "Hani": "CJK IDEOGRAPHIC", "Hira": "HIRAGANA", "Kana": "KATAKANA KATAKANA-HIRAGANA", "Bopo": "BOPOMOFO",
    "Hang": "HANGUL", "Latn": "LATIN", "Cyrl": "CYRILLIC", "Grek": "GREEK", "Arab": "ARABIC", "Hebr": "HEBREW",
    "Armn": "ARMENIAN", "Geor": "GEORGIAN", "Ethi": "ETHIOPIC", "Deva": "DEVANAGARI", "Beng": "BENGALI",
    "Guru": "GURMUKHI", "Gujr": "GUJARATI", "Orya": "ORIYA", "Taml": "TAMIL", "Telu": "TELUGU", "Knda": "KANNADA",
    "Mlym": "MALAYALAM", "Sinh": "SINHALA", "Thaa": "THAANA", "Tibt": "TIBETAN", "Thai": "THAI", "Laoo": "LAO",
    "Khmr": "KHMER", "Mymr": "MYANMAR", "Mong": "MONGOLIAN", "Cans": "CANADIAN", "Cher": "CHEROKEE", "Yiii": "YI",
    "Syrc": "SYRIAC", "Tfng": "TIFINAGH", "Nkoo": "NKO", "Java": "JAVANESE", "Bali": "BALINESE", "Olck": "OL",
    "Mtei": "MEETEI", "Talu": "NEW", "Tale": "TAI", "Tavt": "TAI", "Lana": "TAI",
}  # fmt: skip
_OF_SEVERAL = {
    "Hans": ("Hani", "Bopo"), "Hant": ("Hani", "Bopo"), "Jpan": ("Hani", "Hira", "Kana"), "Kore": ("Hang", "Hani"),
}  # fmt: skip
# Languages that are written in a second script, if the code does not name one.
_SECOND_SCRIPT = {
    "sr": "Latn", "bs": "Cyrl", "uz": "Cyrl", "kk": "Latn", "tt": "Latn", "tk": "Cyrl", "az": "Cyrl", "ku": "Arab",
    "ky": "Arab", "mn": "Mong", "pa": "Arab", "sd": "Deva", "ks": "Deva", "ms": "Arab", "ha": "Arab", "iu": "Latn",
    "cr": "Latn", "ber": "Latn",
}  # fmt: skip


def scripts_of(language: str) -> frozenset[str]:
    """The scripts in which a language is written, as ISO 15924 codes of single scripts; empty if unknown.

    >>> sorted(scripts_of("ja")), sorted(scripts_of("sr")), sorted(scripts_of("sr-Latn"))
    (['Hani', 'Hira', 'Kana'], ['Cyrl', 'Latn'], ['Latn'])
    """
    script = script_of(language)
    scripts = set(_OF_SEVERAL.get(script, (script,)))
    if f"-{script}" not in language and base_language(language) in _SECOND_SCRIPT:
        scripts.add(_SECOND_SCRIPT[base_language(language)])
    return frozenset(scripts) if scripts <= _LETTER_NAMES.keys() else frozenset()


@functools.cache
def is_out_of_script(character: str, scripts: frozenset[str]) -> bool:
    """Whether a character is a letter of another script than these; none is if there are no scripts."""
    if not (scripts and character.isalpha()):
        return False
    name = unicodedata.name(character, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
    word = name.partition(" ")[0]
    # Signs that count as letters, such as µ, º or ʼ, are in no script.
    return word in _WORDS and not any(word in _LETTER_NAMES[script].split() for script in scripts)


_WORDS = {word for words in _LETTER_NAMES.values() for word in words.split()}
_MIN_FOREIGN = 3  # fewer letters are a symbol: ε, Ω


def _are_out_of_script(src: str, tgt: str, scripts: tuple[frozenset[str], frozenset[str]], min_share: float) -> bool:
    return _is_out(src, tgt, scripts[0], min_share) or _is_out(tgt, src, scripts[1], min_share)


def _is_out(line: str, other: str, scripts: frozenset[str], min_share: float) -> bool:
    """Whether too few of a line's letters are in its scripts.

    A word of another script that is in the other line, too, is a name or a code. It does not count, unless the line has
    nothing else.
    """
    if line.isascii() and (not scripts or "Latn" in scripts):
        return False
    letters = sum(map(str.isalpha, line))
    foreign = sum(is_out_of_script(character, scripts) for character in line)
    if foreign < _MIN_FOREIGN or foreign <= (1 - min_share) * letters:
        return False
    if foreign == letters:
        return True
    names = 0
    for word in _runs(line, scripts):
        if word in other:
            names += len(word)
    return foreign - names > (1 - min_share) * (letters - names)


def _runs(line: str, scripts: frozenset[str]) -> list[str]:
    """The words in other scripts: runs of letters."""
    return "".join(one if is_out_of_script(one, scripts) else " " for one in line).split()


# Numbers

_SEPARATORS = "[.,٫٬'’\u00a0\u202f]"
_NUMBER = re.compile(rf"(?<![\d#])\d{{1,3}}(?:{_SEPARATORS}\d{{3}})+(?!\d)|(?<!&#)(?<!&#\d)\d+")
_MAGNITUDE = re.compile("[万萬亿億만억]|[mb]il[lj]|milj|mio|ml[nj]|mrd|милли|млн|млрд|мільй|lakh|crore", re.IGNORECASE)
_TWELVE_HOURS = re.compile(r"\d\s?[ap]\.?m\b", re.IGNORECASE)
_MAX_IN_WORDS = 12


def numbers_differ(src: str, tgt: str) -> bool:
    """Whether the sides have different numbers, in digits of any script, whatever separates thousands and decimals.

    Equal digits in another order or grouping are the same numbers. Up to twelve, a number may be a word on one side.

    >>> numbers_differ("1,000.5 km in 2 days", "1.000,5 km in zwei Tagen"), numbers_differ("in 1914", "im Jahr 1941")
    (False, True)
    """
    if not (_DIGIT.search(src) or _DIGIT.search(tgt)):
        return False
    src_numbers, tgt_numbers = _numbers(src), _numbers(tgt)
    if src_numbers == tgt_numbers or sorted("".join(src_numbers)) == sorted("".join(tgt_numbers)):
        return sorted(src_numbers) != sorted(tgt_numbers) and len(src_numbers) == len(tgt_numbers)
    if _MAGNITUDE.search(src) or _MAGNITUDE.search(tgt):
        src_numbers, tgt_numbers = ([one.rstrip("0") for one in some] for some in (src_numbers, tgt_numbers))
    only_src = list((Counter(src_numbers) - Counter(tgt_numbers)).elements())
    only_tgt = list((Counter(tgt_numbers) - Counter(src_numbers)).elements())
    if _TWELVE_HOURS.search(src) or _TWELVE_HOURS.search(tgt):
        only_src, only_tgt = ([one for one in some if int(one) > 24] for some in (only_src, only_tgt))
    return bool(only_src and only_tgt) or any(_is_never_a_word(one) for one in (*only_src, *only_tgt))


_DIGIT = re.compile(r"\d")


def _is_never_a_word(number: str) -> bool:
    return len(number) > 2 or int(number or 0) > _MAX_IN_WORDS


def _numbers(line: str) -> list[str]:
    """The numbers of a line in ASCII digits, without separators and leading zeros."""
    if not line.isascii():
        line = "".join(str(unicodedata.decimal(one)) if one.isdecimal() else one for one in line)
    return [re.sub(_SEPARATORS, "", number).lstrip("0") or "0" for number in _NUMBER.findall(line)]


# Lengths


def length_of(line: str) -> int:
    """The characters of a line without white space and combining marks, which is what `length_ratio` compares."""
    if line.isascii():
        return sum(map(len, line.split()))
    return sum(not unicodedata.category(character).startswith(("M", "Z", "C")) for character in line)


def usual_ratio(pairs: Iterable[tuple[str, str]]) -> float:
    """The median of target length over source length: 1 for related languages, about 0.3 from English to Chinese."""
    lengths = [(length_of(src), length_of(tgt)) for src, tgt in pairs]
    ratios = [tgt / src for src, tgt in lengths if src >= _SLACK and tgt] or [
        tgt / src for src, tgt in lengths if src and tgt
    ]
    return statistics.median(ratios) if ratios else 1.0


_SLACK = 10


def _differ_in_length(src: str, tgt: str, max_ratio: float, usual: float) -> bool:
    one, other = length_of(src), length_of(tgt) / usual
    return max(one, other) > max_ratio * min(one, other) + _SLACK


# Languages


class _LanguageRule:
    """Whether a line is identified as another language, for lines that are long enough."""

    MIN_LETTERS = 25
    MIN_PROBABILITY, MAX_OWN_PROBABILITY = 0.5, 0.05

    def __init__(self, src_lang: str, tgt_lang: str) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # an extra

        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        labels = set(self._identifier.labels)
        self._languages = [
            base_language(code) if base_language(code) in labels else "" for code in (src_lang, tgt_lang)
        ]

    def __call__(self, src: str, tgt: str) -> bool:
        return any(map(self._is_other, (src, tgt), self._languages))

    def _is_other(self, line: str, language: str) -> bool:
        # A character of a script without an alphabet counts for three letters.
        if not language or sum(1 if one < "\u3000" else 3 for one in line if one.isalpha()) < self.MIN_LETTERS:
            return False
        ranked = self._identifier.rank(line)
        best, probability = ranked[0]
        return (
            best != language
            and probability >= self.MIN_PROBABILITY
            and dict(ranked)[language] < self.MAX_OWN_PROBABILITY
        )
