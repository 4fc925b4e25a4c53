"""Attention weights of one sentence pair, in every layer and head, with the names of its positions.

    maps = attention_maps(model, tokenizers, src_ids, tgt_ids)
    maps.cross[5, 0, 3]         # layer 6, head 1: what it attends to when maps.out_tokens[3] is predicted, (S,)

Shapes: L layers, H heads, S source positions with `</s>`, T target positions with `<s>` or `</s>`.
"""

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.config.languages import is_without_spaces
from nmt.corpora.vectors import image_of
from nmt.decoding.alignment import word_numbers
from nmt.decoding.hypothesis import EncodedSource
from nmt.models.interface import Seq2SeqModel
from nmt.models.source import Source, pad, source_of
from nmt.tokenizers.tokenizer import Tokenizer, Tokenizers

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
_NAMES: Mapping[Kind, str] = {
    "encoder": r"encoder\.(\d+)\.self",
    "decoder": r"decoder\.(\d+)\.self",
    "cross": r"decoder\.(\d+)\.cross",
}


class AttentionMaps(NamedTuple):
    """Attention weights of one pair: row q of a map is what position q attends to, and sums to 1."""

    src_tokens: tuple[str, ...]
    """The S pieces of the source, with `</s>` last; or the names of a picture's patches."""
    tgt_tokens: tuple[str, ...]
    """The T pieces that the decoder reads, with `<s>` first."""
    out_tokens: tuple[str, ...]
    """The T pieces that the decoder predicts, with `</s>` last: at row t it reads `tgt_tokens[: t + 1]` and predicts
    `out_tokens[t]`."""
    src_words: tuple[int, ...]
    """The number of each piece's word, from 0. A special token is its own word. In a language without spaces, every
    piece is its own word, except that the bytes of a character are one word."""
    tgt_words: tuple[int, ...]
    out_words: tuple[int, ...]
    encoder: NDArray[np.float32]
    """(L, H, S, S)"""
    decoder: NDArray[np.float32]
    """(L, H, T, T); row t is 0 after column t, which it may not attend to."""
    cross: NDArray[np.float32]
    """(L, H, T, S)"""

    def of(self, kind: Kind) -> NDArray[np.float32]:
        """The weights of a kind: `encoder` and `decoder` self-attention, and `cross` from decoder to encoder."""
        found: NDArray[np.float32] = self._asdict()[kind]
        return found

    def labels(self, kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tokens of a kind's rows and columns; a row of the decoder is named after what it predicts."""
        rows = self.src_tokens if kind == "encoder" else self.out_tokens
        return rows, self.tgt_tokens if kind == "decoder" else self.src_tokens


class Picture(NamedTuple):
    """A source image, as the model reads it."""

    pixels: NDArray[np.uint8]
    """(size, size, 3): RGB"""
    grid: int
    """Patches in a row, and in a column."""

    @classmethod
    def of(cls, patches: NDArray[np.uint8]) -> "Picture":
        """The image of which these are the patches."""
        return cls(image_of(patches), math.isqrt(len(patches)))

    def to_uri(self) -> str:
        """Encode the image as a `data:` URI for an HTML page."""
        from PIL import Image  # without Pillow, no image was read

        file = io.BytesIO()
        Image.fromarray(self.pixels).save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON; `rgb` is base64 of the pixels, row by row."""
        rgb = base64.b64encode(self.pixels.tobytes()).decode()
        return {"size": len(self.pixels), "grid": self.grid, "rgb": rgb}


@torch.no_grad()
def attention_maps(
    model: Seq2SeqModel[Any, Any],
    tokenizers: Tokenizers,
    src_ids: EncodedSource,
    tgt_ids: Sequence[int],
    src_lang: str = "",
    tgt_lang: str = "",
) -> AttentionMaps:
    """Compute the attention of a model in evaluation mode to ids without `<s>` and `</s>`, or to patches.

    The weights are those of `Seq2SeqModel.attention_weights`, computed in basic operations for one pair without
    padding. The languages decide how words are separated; without them, by white space.
    """
    assert not model.training  # dropout would change the states
    src, tgt = tokenizers.src, tokenizers.tgt
    weights = model.attention_weights(*model_inputs(model, tokenizers, src_ids, tgt_ids))
    tgt_pieces, tgt_words = tgt.pieces(tgt_ids), _words(tgt, tgt_ids, tgt_lang)
    if isinstance(src_ids, np.ndarray):
        src_tokens, src_words = patch_names(len(src_ids)), [*range(len(src_ids))]
    else:
        src_tokens = (*src.pieces(src_ids), *src.pieces([src.special.eos]))
        src_words = _words(src, src_ids, src_lang)
        src_words.append(_next(src_words))
    return AttentionMaps(
        src_tokens=src_tokens,
        tgt_tokens=(*tgt.pieces([tgt.special.start]), *tgt_pieces),
        out_tokens=(*tgt_pieces, *tgt.pieces([tgt.special.eos])),
        src_words=tuple(src_words),
        tgt_words=(0, *(number + 1 for number in tgt_words)),
        out_words=(*tgt_words, _next(tgt_words)),
        encoder=_stacked(weights, "encoder", len(src_tokens), len(src_tokens)),
        decoder=_stacked(weights, "decoder", len(tgt_ids) + 1, len(tgt_ids) + 1),
        cross=_stacked(weights, "cross", len(tgt_ids) + 1, len(src_tokens)),
    )


def model_inputs(
    model: Seq2SeqModel[Any, Any], tokenizers: Tokenizers, src_ids: EncodedSource, tgt_ids: Sequence[int]
) -> tuple[Source, Tensor]:
    """The model's inputs for one pair, on its device: the source with `</s>`, and (1, T) ids that begin with `<s>`."""
    special, device = tokenizers.tgt.special, next(model.parameters()).device
    tgt_in = pad([tgt_ids], special.pad, first=[special.start]).to(device)
    return source_of([src_ids], tokenizers.src.special).to(device), tgt_in


def patch_names(count: int) -> tuple[str, ...]:
    """The names of an image's patches: row and column, from 1.

    >>> patch_names(4)
    ('1,1', '1,2', '2,1', '2,2')
    """
    grid = math.isqrt(count)
    return tuple(f"{number // grid + 1},{number % grid + 1}" for number in range(count))


def word_at(tokenizer: Tokenizer, ids: Sequence[int], position: int, language: str) -> str:
    """The word that the piece at a position is part of; after the last piece, the name of the end's piece."""
    if position == len(ids):
        return tokenizer.pieces([tokenizer.special.eos])[0]
    numbers = _words(tokenizer, ids, language)
    of_word = [piece for piece, number in zip(ids, numbers, strict=True) if number == numbers[position]]
    return tokenizer.decode(of_word).strip() or tokenizer.pieces([ids[position]])[0]


def _stacked(weights: Mapping[str, Tensor], kind: Kind, queries: int, keys: int) -> NDArray[np.float32]:
    """The weights of one kind, layer by layer: (L, H, queries, keys); without layers if the model has none."""
    layers = {int(match[1]): one[0] for name, one in weights.items() if (match := re.fullmatch(_NAMES[kind], name))}
    if not layers:
        return np.zeros((0, 0, queries, keys), dtype=np.float32)
    stacked: NDArray[np.float32] = torch.stack([layers[number] for number in sorted(layers)]).float().cpu().numpy()
    return stacked


def _words(tokenizer: Tokenizer, ids: Sequence[int], language: str) -> list[int]:
    """The word number of each id."""
    words = tokenizer.words(ids)
    if not is_without_spaces(language):
        return words
    # A piece may be several characters: the first one is enough to tell whether the next piece is another word.
    firsts = [characters[0] for characters in word_numbers(words, tokenizer.pieces(ids), language)]
    numbers = {first: number for number, first in enumerate(dict.fromkeys(firsts))}
    return [numbers[first] for first in firsts]


def _next(words: Sequence[int]) -> int:
    return words[-1] + 1 if words else 0
