"""What is copied to the translation instead of translated: text that all languages write alike.

A model that never saw such text invents something for it, and a copy of it is never wrong.
"""

import re
import unicodedata
from collections.abc import Collection

from nmt.config.inference import Copied

_ADDRESS = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*://|www\.)\S+|(?:mailto:)?[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_AROUND_ADDRESSES = "()[]<>\"'„“”‚‘’«».,;:!?"


def is_copied(text: str, kinds: Collection[Copied]) -> bool:
    """Whether a text holds nothing but what is copied; not an empty one.

    >>> is_copied("😀 -- https://example.com/a", ("symbols", "addresses")), is_copied("5 km", ("symbols", "numbers"))
    (True, False)
    """
    words = text.split()
    return bool(words) and all(_kind(word) in kinds for word in words)


def _kind(word: str) -> Copied | None:
    categories = {unicodedata.category(character)[0] for character in word}
    if "L" not in categories:
        return "numbers" if "N" in categories else "symbols"
    if not _ADDRESS.fullmatch(word.strip(_AROUND_ADDRESSES)):
        return None
    # In scripts without spaces the sentence may begin right after an address.
    return None if any(unicodedata.category(character) == "Lo" for character in word) else "addresses"
