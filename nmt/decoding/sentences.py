"""Sentence splitting: the parts of a text that are translated separately, and the text that is copied.

Nothing is lost: the parts of a text, each with the white space after it, joined give the text again. Text that all
languages write alike is copied instead of translated: a copy is never wrong, and a model that never saw such text
invents something for it.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from nmt.config.inference import Copied
from nmt.config.languages import base_language, is_without_spaces, joins_sentences

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
# "1." of a list, or an initial ("A. Smith"), is not a sentence.
_ENUMERATOR = re.compile(r"[(\[]?(\d+|[^\W\d_])[.)]")
# Abbreviations that sentencex 1.0 mistakes for the end of a sentence.
_ABBREVIATIONS = {"fr": ("M.", "MM.")}
_CLAUSE_END = re.compile(r"[,;:.!?–—](?=\s)|[，；：、。！？؛،]")
_SPACE = re.compile(r"\s+")
# Unicode's blocks of emoji and other pictures, geometric shapes included.
_PICTURE = "[\u2300-\u23ff\u25a0-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
# Variation selectors, the joiner of "👩‍🚀", and the tags of "🏴󠁧󠁢󠁥󠁮󠁧󠁿".
_MARK = "[\ufe0e\ufe0f\u200d\U000e0020-\U000e007f]"
_KEYCAP = "[0-9#*]\ufe0f?\u20e3"
_EMOJI = re.compile(rf"(?:\s*(?:{_PICTURE}|{_KEYCAP}){_MARK}*)+")
# Matched on the reversed text, in time proportional to the length of the match.
_EMOJI_BACKWARDS = re.compile(rf"(?:\s*{_MARK}*(?:{_PICTURE}|\u20e3\ufe0f?[0-9#*]))+")
_ZERO_WIDTH_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
_ADDRESS = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*://|[Ww]{3}\.)\S+|(?:mailto:)?[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_MAX_ADDRESS = 2048  # characters; so that a long text is split in linear time
_CAPITALIZED = re.compile("[A-Z][a-z]")
_AROUND_ADDRESSES = "()[]<>\"'„“”‚‘’«».,;:!?"


class Part(NamedTuple):
    """A part of a text that is translated separately."""

    text: str
    """Without white space at its ends; empty if there is only white space."""
    after: str = ""
    """The white space up to the next part."""


def split_sentences(text: str, language: str) -> list[Part]:
    r"""Return the sentences of a text; a line end always ends a sentence.

    >>> split_sentences("Two men. A dog runs!\n\nWho is there?", "en")
    [Part(text='Two men.', after=' '), Part(text='A dog runs!', after='\n\n'), Part(text='Who is there?', after='')]
    """
    import sentencex

    language = base_language(language)
    parts: list[Part] = []
    for part in _stripped(sentence for line in _LINE.findall(text) for sentence in sentencex.segment(language, line)):
        if parts and part.text and (_is_incomplete(parts[-1], language) or _are_an_address(parts[-1], part)):
            before = parts.pop()
            part = Part(before.text + before.after + part.text, part.after)
        parts.append(part)
    return parts


def emoji_apart(part: Part) -> list[Part]:
    """Return the part without the emoji at its ends, which become parts of their own.

    >>> emoji_apart(Part("😀 a dog!👍", " "))
    [Part(text='😀', after=' '), Part(text='a dog!', after=''), Part(text='👍', after=' ')]
    """
    text = part.text
    if text.isascii():  # true for most lines of many languages, which saves time
        return [part]
    start = match.end() if (match := _EMOJI.match(text)) else 0
    end = len(text) - (match.end() if (match := _EMOJI_BACKWARDS.match(text[::-1])) else 0)
    if start >= end:  # emoji alone, or an empty part
        return [part]
    return _stripped([text[:start], text[start:end], text[end:] + part.after])


def split_to_fit(part: Part, fits: Callable[[str], bool]) -> list[Part]:
    """Halve the part, and its halves, until each fits.

    It is split after the clause that ends nearest to the middle. If no clause ends in the middle half, it is split at
    a space there, or else within a word. A single character is assumed to fit.
    """
    if len(part.text) < 2 or fits(part.text):
        return [part]
    place = _near_the_middle(part.text)
    first, second = _stripped([part.text[:place], part.text[place:] + part.after])
    return split_to_fit(first, fits) + split_to_fit(second, fits)


def join_parts(parts: Sequence[Part], translations: Iterable[str], src_lang: str, tgt_lang: str) -> str:
    """Join the translations of the parts with the white space of the source.

    Into Chinese and Japanese, a single space between sentences is dropped. Where there is no white space, a space is
    added from these into other languages, and from languages without spaces between words into those with spaces.
    """
    afters = spaces_after(parts, src_lang, tgt_lang)
    return "".join(translation + after for translation, after in zip(translations, afters, strict=True))


def spaces_after(parts: Sequence[Part], src_lang: str, tgt_lang: str) -> list[str]:
    """The white space after the translation of each part, as `join_parts` describes it."""
    drop_spaces = joins_sentences(tgt_lang)
    add_spaces = joins_sentences(src_lang) and not drop_spaces
    add_spaces = add_spaces or (is_without_spaces(src_lang) and not is_without_spaces(tgt_lang))
    afters = ["" if drop_spaces and part.after == " " else part.after for part in parts]
    return [after or " " if add_spaces else after for after in afters[:-1]] + afters[-1:]


def is_copied(text: str, kinds: Collection[Copied]) -> bool:
    """True if a text consists only of words of these kinds; False for an empty text.

    >>> is_copied("😀 -- https://example.com/a", ("symbols", "addresses")), is_copied("5 km", ("symbols", "numbers"))
    (True, False)
    """
    words = text.split()
    return bool(words) and all(_kind(word) in kinds for word in words)


def _kind(word: str) -> Copied | None:
    if word.isalpha():  # true for most words, which saves time
        return None
    categories = {unicodedata.category(character)[0] for character in word}
    if "L" not in categories:
        return "numbers" if "N" in categories else "symbols"
    if not _ADDRESS.fullmatch(word.strip(_AROUND_ADDRESSES)):
        return None
    # In scripts without spaces the sentence may begin right after an address.
    return None if any(unicodedata.category(character) == "Lo" for character in word) else "addresses"


def _is_incomplete(part: Part, language: str) -> bool:
    if not part.text or "\n" in part.after:
        return False
    return bool(_ENUMERATOR.fullmatch(part.text)) or part.text.split()[-1] in _ABBREVIATIONS.get(language, ())


def _are_an_address(before: Part, part: Part) -> bool:
    """True if a URL or an e-mail address was split, as before a capital: "example.com/?A=b".

    A word after a host is not part of it: "www.example.com.Then".
    """
    if before.after or not before.text or not (before.text[-1] + part.text[0]).isascii():
        return False
    last, first = before.text.rsplit(None, 1)[-1].lstrip(_AROUND_ADDRESSES), part.text.split(None, 1)[0]
    if len(last) > _MAX_ADDRESS or (_CAPITALIZED.match(first) and "/" not in (last.partition("://")[2] or last)):
        return False
    found = _ADDRESS.match(last + first)
    return found is not None and found.end() > len(last)


def _stripped(texts: Iterable[str]) -> list[Part]:
    """Make a part of each text; white space alone belongs to the part before it."""
    parts: list[Part] = []
    for text in texts:
        content = text.strip()
        start = len(text) - len(text.lstrip()) if content else len(text)
        before, after = text[:start], text[start + len(content) :]
        if before and parts:
            parts[-1] = Part(parts[-1].text, parts[-1].after + before)
        elif before:
            parts.append(Part("", before))
        if content:
            parts.append(Part(content, after))
    return parts


def _near_the_middle(text: str) -> int:
    """Return the index at which to split a text of at least two characters, without white space at its ends."""
    quarter = max(1, len(text) // 4)
    for boundary in (_CLAUSE_END, _SPACE):
        places = [match.end() for match in boundary.finditer(text, quarter, len(text) - quarter)]
        if places:
            return min(places, key=lambda place: abs(2 * place - len(text)))
    middle = len(text) // 2
    return next((place for place in range(middle, len(text)) if not _continues_a_character(text, place)), middle)


def _continues_a_character(text: str, place: int) -> bool:
    here = text[place]
    return (
        unicodedata.combining(here) > 0
        or here in (_ZERO_WIDTH_JOINER, _EMOJI_STYLE)
        or text[place - 1] == _ZERO_WIDTH_JOINER
    )
