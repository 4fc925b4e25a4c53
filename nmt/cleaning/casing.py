"""Case and punctuation of text in any script."""

import re
import unicodedata

# Languages in which I is the capital of ı, and İ of i: tr and az by Unicode's SpecialCasing; Crimean Tatar and Gagauz
# have the same letters.
_DOTLESS_I = ("tr", "az", "crh", "gag")
_LOWERCASE_I = str.maketrans({"I": "ı", "İ": "i"})
# Unicode has lowercase Cherokee letters, but texts do not use them.
_CHEROKEE = "\u13a0-\u13f5\u13f8-\u13fd\uab70-\uabbf"
_WORD_BEGINNING = re.compile(r"(?<!\S)([^\w\s]*)(\w)")
_RUN_OF_CHEROKEE = re.compile(f"([{_CHEROKEE}]+)")


def has_dotless_i(language: str) -> bool:
    """True if a language (a code without script or region) distinguishes i and ı."""
    return language in _DOTLESS_I


def lowercase(text: str, dotless_i: bool = False) -> str:
    """Lowercase a text; characters without case stay.

    >>> lowercase("ISPARTA İL SINIRI"), lowercase("ISPARTA İL SINIRI", dotless_i=True)
    ('isparta i̇l siniri', 'ısparta il sınırı')
    """
    if dotless_i:
        text = text.replace("I\u0307", "i").translate(_LOWERCASE_I)
    if not _RUN_OF_CHEROKEE.search(text):
        return text.lower()
    return "".join(part if place % 2 else part.lower() for place, part in enumerate(_RUN_OF_CHEROKEE.split(text)))


def title_case(text: str, dotless_i: bool = False) -> str:
    """Capitalize each word, as in headlines.

    >>> title_case("a man's t-shirt, 'in red'"), title_case("ılık iplik", dotless_i=True)
    ("A Man's T-shirt, 'In Red'", 'Ilık İplik')
    """

    def capital(beginning: re.Match[str]) -> str:
        before, letter = beginning[1], beginning[2]
        return before + ("İ" if dotless_i and letter == "i" else letter.title())

    return _WORD_BEGINNING.sub(capital, text)


def is_in_capitals(line: str) -> bool:
    """True if a line has several words in capitals and no other letters.

    >>> is_in_capitals("NO PARKING!"), is_in_capitals("我 在 IBM 工作"), is_in_capitals("NATO 2024")
    (True, False, False)
    """
    if not line.isupper() or _RUN_OF_CHEROKEE.search(line):
        return False
    # Lo is a letter of a script without case; a line of them with a name in capitals is not in capitals.
    return not any(unicodedata.category(c) == "Lo" for c in line) and sum(map(str.isupper, line.split())) > 1


def without_punctuation(text: str) -> str:
    """Remove punctuation and symbols, as in carelessly typed text.

    They are the characters of Unicode's categories P and S, with their combining marks. Punctuation inside a word
    stays. In scripts written without spaces, all punctuation is between words.

    >>> without_punctuation("A man (in a t-shirt) sings, smiles, and waves.")
    'A man in a t-shirt sings smiles and waves'
    >>> without_punctuation("हिन्दी भाषा।"), without_punctuation("你好，3.5世界！")
    ('हिन्दी भाषा', '你好3.5世界')
    """
    kinds = "".join(map(_kind, text))
    kept, begin = [], 0
    for run in re.finditer("p[pm]*", kinds):
        if not _is_inside_a_word(text, kinds, *run.span()):
            kept.append(text[begin : run.start()])
            begin = run.end()
    return "".join([*kept, text[begin:]])


def _kind(character: str) -> str:
    """The kind of a character: p for punctuation or symbol, m for combining mark, s for white space, w for others."""
    if character.isspace():
        return "s"
    category = unicodedata.category(character)
    return "p" if category[0] in "PS" else "m" if category[0] == "M" or category == "Cf" else "w"


def _is_inside_a_word(text: str, kinds: str, begin: int, end: int) -> bool:
    """True if the punctuation `text[begin:end]` is inside a word, as in "t-shirt", "3.50" and "o'clock"."""
    if not 0 < begin < end < len(text) or "s" in (kinds[begin - 1], kinds[end]):
        return False
    before, after = text[begin - 1], text[end]
    if before.isdecimal() and after.isdecimal():
        return True
    return not any(unicodedata.east_asian_width(character) in "WF" for character in (before, *text[begin:end], after))
