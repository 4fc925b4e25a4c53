"""Special ids of tokenizers, the pieces of tags, and the words that pieces belong to."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

from nmt.errors import RunError


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """Ids of a tokenizer that represent no text; two of them may be equal."""

    pad: int
    """Pads a sequence to the width of its batch."""
    start: int
    """The decoder's first input: `<s>` in vocabularies that nmt builds, often `<pad>` in others."""
    eos: int
    """Ends a sequence."""
    unk: int
    """Represents text outside the vocabulary."""
    tags: tuple[int, ...] = ()
    """The ids of `tokenizer.tags`, in order, or of an imported model's target tags; a source may begin with a tag."""

    def __contains__(self, index: int) -> bool:
        return index in (self.pad, self.start, self.eos, self.unk) or index in self.tags


SPECIAL_PIECES = ("<pad>", "<s>", "</s>", "<unk>")
"""The first pieces of every vocabulary that nmt builds."""
PAD_ID, BOS_ID, EOS_ID, UNK_ID = range(4)
OWN_SPECIAL_IDS = SpecialIds(PAD_ID, BOS_ID, EOS_ID, UNK_ID)
_TAG_PIECE = re.compile("<tag (.+)>")


def tag_piece(tag: str) -> str:
    """The piece of a tag: `<tag bt>`. It contains a space, so that no word of a text equals it."""
    return f"<tag {tag}>"


def tag_of(piece: str) -> str | None:
    """The tag of its piece; None for any other piece."""
    found = _TAG_PIECE.fullmatch(piece)
    return found[1] if found else None


def with_tag(tag: int | None, ids: Sequence[int]) -> Sequence[int]:
    """Put a tag before the ids of a source; an empty source stays empty."""
    return ids if tag is None or not ids else [tag, *ids]


def word_numbers(pieces: Iterable[str]) -> list[int]:
    """The index of each SentencePiece piece's word, from 0; `▁` stands for a space, which belongs to what follows.

    >>> word_numbers(["▁he", "llo", "▁", "w", "orld", "▁"])
    [0, 0, 1, 1, 1, 1]
    """
    word, after_space, words = -1, True, []
    for piece in pieces:
        after_space = after_space or piece.startswith("▁")
        if after_space and piece.strip("▁"):  # a space before another space begins no word
            word, after_space = word + 1, False
        words.append(word + after_space)
    return [max(0, min(number, word)) for number in words]


def sentencepiece_processor(model: bytes, name: object) -> Any:
    """Load a SentencePiece model; `RunError` with its file's `name` if it is damaged."""
    import sentencepiece  # here, so that a broken installation does not end commands that do not need it

    try:
        if model:  # SentencePiece takes an empty file for a model
            return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
        pass
    raise RunError(f"{name}: cannot be read as a SentencePiece model")
