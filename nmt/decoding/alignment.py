"""Word alignment of source and translation, from the model's attention.

Most, but not all, attention is on the source word that is translated (Koehn and Knowles 2017, "Six Challenges for
Neural Machine Translation", section 3.5).

Shapes: T target pieces, S source pieces.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.config.languages import is_without_spaces
from nmt.decoding.engines import Engine
from nmt.decoding.hypothesis import WordAlignment
from nmt.tokenizers.tokenizer import Tokenizer, Tokenizers

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def word_numbers(words: Sequence[int], pieces: Sequence[str], language: str) -> list[list[int]]:
    """The word numbers of each piece, from 0: its word, `words[i]`, or in a language without spaces its characters.

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
            characters = int(int(byte[1], 16) & 0xC0 != 0x80)  # 0 for a continuation byte of UTF-8
        else:
            characters = len(piece.replace("▁", ""))
        numbers.append(list(range(count, count + characters)) or [max(0, count - 1)])
        count += characters
    return numbers


def align(weights: NDArray[np.float32], src_words: list[list[int]], tgt_words: list[list[int]]) -> WordAlignment:
    """Link each target word to the source word with the largest attention weight.

    `weights` is (T, S); `src_words` and `tgt_words` are the word numbers of each piece. The weights of a word's pieces
    are summed.
    """
    num_src_words, num_tgt_words = (1 + max(map(max, words), default=-1) for words in (src_words, tgt_words))
    if not src_words or not tgt_words:
        return WordAlignment((), num_src_words, num_tgt_words)
    word_weights = np.zeros((num_tgt_words, num_src_words))
    for row, tgt in zip(weights, tgt_words, strict=True):
        for weight, src in zip(row, src_words, strict=True):
            word_weights[np.ix_(tgt, src)] += weight
    links = tuple((int(src), tgt) for tgt, src in enumerate(word_weights.argmax(axis=1)))
    return WordAlignment(links, num_src_words, num_tgt_words)


class WordAligner:
    """Aligner of the words of sources and translations, given as ids."""

    def __init__(self, engine: Engine, tokenizers: Tokenizers, src_lang: str, tgt_lang: str) -> None:
        self._engine = engine
        self._tokenizers = tokenizers
        self._src_lang = src_lang
        self._tgt_lang = tgt_lang

    def align(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[WordAlignment]:
        """Return the alignment of each pair."""
        return [
            align(
                weights,
                _words(self._tokenizers.src, src, self._src_lang),
                _words(self._tokenizers.tgt, tgt, self._tgt_lang),
            )
            for weights, src, tgt in zip(self._engine.attention(sources, targets), sources, targets, strict=True)
        ]

    def align_copy(self, text: str) -> WordAlignment:
        """Return the alignment of a text and its copy.

        >>> str(WordAligner(engine, tokenizers, "en", "zh").align_copy("12 :-)"))
        '0-0 0-1 1-2 1-3 1-4'
        """
        src, tgt = (_words_of_characters(text, language) for language in (self._src_lang, self._tgt_lang))
        links = {tgt_word: src_word for src_word, tgt_word in reversed(list(zip(src, tgt, strict=True)))}
        ordered = tuple((links[tgt_word], tgt_word) for tgt_word in sorted(links))
        return WordAlignment(ordered, len({*src}), len(links))


def _words_of_characters(text: str, language: str) -> list[int]:
    """The word number of each character that is not white space."""
    if is_without_spaces(language):
        return list(range(len("".join(text.split()))))
    return [number for number, word in enumerate(text.split()) for _ in word]


def _words(tokenizer: Tokenizer, ids: Sequence[int], language: str) -> list[list[int]]:
    pieces = [tokenizer.split_tag(piece)[1] for piece in tokenizer.pieces(ids)]  # without target tag
    return word_numbers(tokenizer.words(ids), pieces, language)
