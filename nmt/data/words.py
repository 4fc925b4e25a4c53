"""Words of encoded text, as text.

A word is what is between two spaces, without the punctuation around it; a run of punctuation is a word of its own. In
scripts without spaces every piece is a word. A word keeps the spaces before it, so that words can be put together.

>>> split('A t-shirt, "black".')
['A', ' t-shirt', ',', ' "', 'black', '".']
"""

import unicodedata

import numpy as np
import regex

from nmt.batches.dataset import Ragged
from nmt.tokenizers.tokenizer import Tokenizer

# Unicode's categories P and S: punctuation and symbols.
_WORD = regex.compile(r"\s*(?:[\p{P}\p{S}]+|[^\s\p{P}\p{S}](?:\S*[^\s\p{P}\p{S}])?)")


def split(text: str) -> list[str]:
    """The words of a text with spaces between them."""
    found: list[str] = _WORD.findall(text)
    return found


def is_text(word: str) -> bool:
    """Whether a word is neither punctuation nor a byte of a character."""
    text = word.lstrip()
    return bool(text) and unicodedata.category(text[0])[0] not in "PS"


def words_of(side: Ragged, tokenizer: Tokenizer, by_piece: bool) -> list[list[str]]:
    """The words of each row of ids; none of a row with `<unk>`, which stands for text that nobody knows."""
    ids, lengths = side
    rows = [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]
    unk, words = tokenizer.special.unk, _pieces if by_piece else _between_spaces
    return [[] if unk in row else words(row, tokenizer) for row in rows]


def _between_spaces(row: list[int], tokenizer: Tokenizer) -> list[str]:
    return split(tokenizer.decode(row))


def _pieces(row: list[int], tokenizer: Tokenizer) -> list[str]:
    """The pieces without tags; one that is a space alone is part of the next one."""
    pieces = tokenizer.pieces([index for index in row if index not in tokenizer.special])
    return "\n".join(pieces).replace("▁\n", "▁").replace("▁", " ").split("\n")
