"""Which words of a translation come from which of its source, as the model's attention has it.

Attention says where the decoder looked, which is mostly, and not always, where a word comes from (Koehn and Knowles
2017, "Six Challenges for Neural Machine Translation", section 3.5).

Shapes: T target pieces, S source pieces.
"""

import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nmt.data.tokenizer import Tokenizer, Tokenizers
from nmt.languages import is_without_spaces

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def word_numbers(words: Sequence[int], pieces: Sequence[str], language: str) -> list[list[int]]:
    """For each piece, the words that it is of, counted from 0: `words` itself, or the piece's characters in a
    language that is written without spaces.

    >>> word_numbers([0, 0, 1], ["▁he", "llo", "▁you"], "en")
    [[0], [0], [1]]
    >>> word_numbers([0, 0], ["▁你好", "吗"], "zh")
    [[0, 1], [2]]
    """
    if not is_without_spaces(language):
        return [[number] for number in words]
    numbers: list[list[int]] = []
    count = 0
    for piece in pieces:
        if byte := _BYTE.fullmatch(piece):
            characters = int(int(byte[1], 16) & 0xC0 != 0x80)  # else it continues a character of UTF-8
        else:
            characters = len(piece.replace("▁", ""))
        numbers.append(list(range(count, count + characters)) or [max(0, count - 1)])
        count += characters
    return numbers


def align(weights: NDArray[np.float32], src_words: list[list[int]], tgt_words: list[list[int]]) -> str:
    """For each word of the target the one of the source that it looked at most: "0-0 2-1", source first.

    (T, S) attention, and the words of each piece. Attention to the pieces of a source word adds up. The format is
    that of Pharaoh, GIZA++'s symmetrisers and fast_align.
    """
    if not src_words or not tgt_words:
        return ""
    of_words = np.zeros((max(map(max, tgt_words)) + 1, max(map(max, src_words)) + 1))
    for row, tgt in zip(weights, tgt_words, strict=True):
        for weight, src in zip(row, src_words, strict=True):
            of_words[np.ix_(tgt, src)] += weight
    return " ".join(f"{src}-{tgt}" for tgt, src in enumerate(of_words.argmax(axis=1)))


@runtime_checkable
class Aligner(Protocol):
    """An engine that can tell where its model looked."""

    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[NDArray[np.float32]]:
        """How much each id of a target looked at each of its source: (T, S) for each pair."""


class WordAligner:
    """From ids to alignments of words."""

    def __init__(self, engine: Aligner, tokenizers: Tokenizers, src_lang: str, tgt_lang: str) -> None:
        self._engine = engine
        self._tokenizers = tokenizers
        self._src_lang = src_lang
        self._tgt_lang = tgt_lang

    def align(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[str]:
        """The alignment of each pair, as `align` writes it."""
        return [
            align(
                weights,
                _words(self._tokenizers.src, src, self._src_lang),
                _words(self._tokenizers.tgt, tgt, self._tgt_lang),
            )
            for weights, src, tgt in zip(self._engine.attention(sources, targets), sources, targets, strict=True)
        ]


def _words(tokenizer: Tokenizer, ids: Sequence[int], language: str) -> list[list[int]]:
    return word_numbers(tokenizer.words(ids), tokenizer.pieces(ids), language)
