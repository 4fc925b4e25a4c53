"""Forbidden words as sequences of pieces: all spellings that a vocabulary allows."""

import functools
import unicodedata
from collections.abc import Iterator

from nmt.system.console import log
from nmt.tokenizers.tokenizer import Tokenizer

MAX_SPELLINGS = 2000  # of one word
_SPACE = "▁"
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "IDEOGRAPHIC")


class ForbiddenWords:
    """The spellings of forbidden words in the pieces of a target vocabulary.

    A word is spelled as at the beginning of a line or after a space; in scripts without spaces, also as inside a
    sentence. In a word vocabulary it has one spelling. A word with characters outside the vocabulary is spelled only as
    the tokenizer does it, in bytes. A word that needs `<unk>` has no spelling, since `<unk>` is always forbidden.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.spellings = functools.lru_cache(maxsize=64)(self._spellings)  # the engine asks for each batch

    def _spellings(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the ids of each spelling of each word, without duplicates."""
        spellings = (ids for word in words for ids in self._spellings_of(self._tokenizer.normalize(word)))
        return tuple(dict.fromkeys(spellings))

    def _spellings_of(self, word: str) -> Iterator[tuple[int, ...]]:
        ids = self._tokenizer.encode(word)
        if not ids or self._tokenizer.special.unk in ids:
            return
        yield tuple(ids)
        text = "".join(self._tokenizer.pieces(ids))
        if not text.startswith(_SPACE) or any(index in self._tokenizer.byte_ids for index in ids):
            return
        yield from self._splits(text, word)
        inside = text.removeprefix(_SPACE)
        if unicodedata.name(inside[0], "").startswith(_WITHOUT_SPACES):
            yield from self._splits(inside, word)

    def _splits(self, text: str, word: str) -> Iterator[tuple[int, ...]]:
        """Yield the ways to split `text` into pieces, fewest pieces first; at most `MAX_SPELLINGS`."""
        pieces, count = self._pieces, 0
        longest = max(map(len, pieces))
        growing: list[tuple[int, tuple[int, ...]]] = [(0, ())]  # number of characters, and their pieces
        while growing:
            longer = []
            for start, ids in growing:
                for end in range(start + 1, min(start + longest, len(text)) + 1):
                    piece = pieces.get(text[start:end])
                    if piece is None:
                        continue
                    if end < len(text):
                        longer.append((end, (*ids, piece)))
                        continue
                    yield (*ids, piece)
                    count += 1
                    if count == MAX_SPELLINGS:
                        message = "%r has more than %d spellings; only those of the fewest pieces are forbidden"
                        log.warning(message, word, MAX_SPELLINGS)
                        return
            growing = longer[: 20 * MAX_SPELLINGS]

    @functools.cached_property
    def _pieces(self) -> dict[str, int]:
        """The id of each piece that is text."""
        size, special = self._tokenizer.vocab_size, self._tokenizer.special
        byte_ids = self._tokenizer.byte_ids
        pieces = self._tokenizer.pieces(range(size))
        return {
            piece: index
            for index, piece in enumerate(pieces)
            if piece and index not in special and index not in byte_ids
        }
