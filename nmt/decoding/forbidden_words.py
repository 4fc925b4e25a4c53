"""Forbidden words as sequences of pieces: all the ways in which a vocabulary can spell them."""

import functools
import unicodedata
from collections.abc import Iterator

from nmt.system.console import log
from nmt.tokenizers.tokenizer import Tokenizer

MAX_SPELLINGS = 2000  # of one word
_SPACE = "▁"
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "IDEOGRAPHIC")


class ForbiddenWords:
    """Spells forbidden words with the pieces of a target vocabulary.

    A word is spelled as it is at the beginning of a line and after a space. In scripts without spaces it is also
    spelled as it is inside a sentence. With a word vocabulary it has one spelling. Characters outside the vocabulary
    have no pieces of their own, so a word with them is spelled only as the tokenizer does it, in bytes; a word that
    needs `<unk>` is never emitted anyway.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.spellings = functools.lru_cache(maxsize=64)(self._spellings)  # the engine asks for each batch

    def _spellings(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The ids of each spelling of each word."""
        found = (ids for word in words for ids in self._spellings_of(self._tokenizer.normalize(word)))
        return tuple(dict.fromkeys(found))

    def _spellings_of(self, word: str) -> Iterator[tuple[int, ...]]:
        ids = self._tokenizer.encode(word)
        if not ids or self._tokenizer.special.unk in ids:
            return
        yield tuple(ids)
        written = "".join(self._tokenizer.pieces(ids))
        if not written.startswith(_SPACE) or any(index in self._tokenizer.byte_ids for index in ids):
            return
        yield from self._splits(written, word)
        inside = written.removeprefix(_SPACE)
        if unicodedata.name(inside[0], "").startswith(_WITHOUT_SPACES):
            yield from self._splits(inside, word)

    def _splits(self, text: str, word: str) -> Iterator[tuple[int, ...]]:
        """The ways to write `text` in pieces, those of the fewest pieces first; at most `MAX_SPELLINGS`."""
        pieces, count = self._pieces, 0
        longest = max(map(len, pieces))
        growing: list[tuple[int, tuple[int, ...]]] = [(0, ())]  # characters written, and with which pieces
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
                        message = "%r can be spelled in more than %d ways; those of the fewest pieces are forbidden"
                        log.warning(message, word, MAX_SPELLINGS)
                        return
            growing = longer[: 20 * MAX_SPELLINGS]

    @functools.cached_property
    def _pieces(self) -> dict[str, int]:
        """The id of each piece of text."""
        size, special = self._tokenizer.vocab_size, self._tokenizer.special
        byte_ids = self._tokenizer.byte_ids
        pieces = self._tokenizer.pieces(range(size))
        return {
            piece: index
            for index, piece in enumerate(pieces)
            if piece and index not in special and index not in byte_ids
        }
