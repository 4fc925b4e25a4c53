"""How a source line becomes the ids that a model reads: one path for translating, scoring and explaining."""

import itertools
import logging
import re
from collections.abc import Sequence

from nmt.config.inference import InferenceConfig
from nmt.data.cleaning import normalize
from nmt.data.letters import has_dotless_i, is_in_capitals, lowercase
from nmt.data.tokenizer import Tokenizer
from nmt.languages import base_language

log = logging.getLogger("nmt")

LONG_LINE_CHARACTERS = 1 << 14  # SentencePiece needs hundreds of bytes of memory for each character
PIECE_CHARACTERS = 16  # maximum length of SentencePiece's pieces


class SourceText:
    """Encodes source lines as a model is to read them.

    A line that is all capitals is lowercased if `decoding.lower_capitals` says so. Then it is normalized, split into
    pieces, and cut at `data.max_length` pieces.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int, lower_capitals: bool, src_lang: str) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._lower_capitals = lower_capitals
        self._dotless_i = lower_capitals and has_dotless_i(base_language(src_lang))

    @classmethod
    def of(cls, tokenizer: Tokenizer, configs: Sequence[InferenceConfig]) -> "SourceText":
        """For the models of an ensemble: the settings of the first, and the least `data.max_length`."""
        max_length = min(config.data.max_length for config in configs)
        return cls(tokenizer, max_length, configs[0].decoding.lower_capitals, configs[0].data.src_lang)

    def encode(self, line: str, place: str, done_to_it: str = "translated") -> list[int]:
        """The ids of a line, without `</s>`; none if it is empty.

        A line that is cut is reported in the log: its `place`, and what is `done_to_it`.
        """
        if self._lower_capitals and is_in_capitals(line):
            line = lowercase(line, self._dotless_i)
        ids = self._tokenizer.encode(normalize(beginning(line, self._max_length)))
        if len(ids) > self._max_length:
            log.warning(
                "%s: %s; only the first %d (data.max_length) are %s",
                place,
                f"{len(ids)} pieces" if len(line) <= LONG_LINE_CHARACTERS else f"{len(line):,} characters",
                self._max_length,
                done_to_it,
            )
            ids = ids[: self._max_length]
        return ids


def beginning(line: str, num_pieces: int) -> str:
    """The beginning of a long line, long enough that the rest cannot affect its first `num_pieces` pieces.

    A tokenizer reads several spaces as one, and Unicode's NFC composes up to three characters into one.
    """
    if len(line) <= LONG_LINE_CHARACTERS:
        return line
    count = max(LONG_LINE_CHARACTERS, 2 * PIECE_CHARACTERS * num_pieces)
    words = itertools.islice(re.finditer("[^ ]+", line), count)
    return " ".join(word[0] for word in words)[: 2 * count]
