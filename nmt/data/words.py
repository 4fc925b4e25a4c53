"""The words of encoded text, found without decoding it.

A word is the pieces between two spaces, without the punctuation around it; a run of punctuation is a word of its own,
marked as such. In scripts without spaces every piece is a word.

    ▁"  ▁A  ▁t  -  shirt  ."     has the words     ▁"   ▁A   ▁t - shirt   ."
"""

import dataclasses
import unicodedata

import numpy as np
from numpy.typing import NDArray

from nmt.data.dataset import Ragged
from nmt.data.tokenizer import Tokenizer

# Of the hash of a word's ids: any odd number with many bits.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of several rows of ids, concatenated."""

    edges: NDArray[np.int64]
    """The place in the concatenated ids where each word begins, and their number at the end."""
    counts: NDArray[np.int64]
    """The number of words of each row."""
    is_text: NDArray[np.bool_]
    """False for punctuation, and for words with a special id, such as `<unk>`, which no text is encoded to."""
    hashes: NDArray[np.uint64]
    """A hash of the ids of each word."""


class Splitter:
    """Finds the words of ids; what it knows of each id comes from the tokenizer."""

    def __init__(self, tokenizer: Tokenizer, by_piece: bool) -> None:
        self._made_from = tokenizer, by_piece
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        texts = [piece.replace("▁", "") for piece in pieces]
        of_bytes = tokenizer.byte_ids
        # A piece begins a word if it does not continue a word of the same piece; a space alone belongs to what follows.
        self._begins = np.array(
            [
                index not in of_bytes if by_piece else not text or tokenizer.words([index, index])[1] == 1
                for index, text in enumerate(texts)
            ]
        )
        self._is_space = np.array([not text for text in texts])
        self._is_punctuation = np.array(
            [bool(text) and all(unicodedata.category(character)[0] in "PS" for character in text) for text in texts]
        )
        self._is_special = np.array([index in tokenizer.special for index in range(len(pieces))])
        self._is_punctuation &= ~self._is_special
        self._is_punctuation[list(of_bytes)] = False

    def __reduce__(self) -> tuple[type["Splitter"], tuple[Tokenizer, bool]]:
        return Splitter, self._made_from  # smaller than the tables

    def __call__(self, side: Ragged) -> Words:
        """The words of rows of ids; no row may be empty."""
        ids, lengths = side
        row_ends = np.cumsum(lengths)
        row_begins = row_ends - lengths
        begins = self._begins[ids]
        begins[1:] &= ~self._is_space[ids[:-1]]  # a word after a space that is a piece of its own begins there
        begins[row_begins] = True
        is_space = self._is_space[ids]
        is_punctuation = self._is_punctuation[ids] | is_space
        begins = _with_punctuation_apart(begins, is_punctuation, is_space)
        edges = np.flatnonzero(begins)
        is_text = np.logical_not(
            np.logical_and.reduceat(is_punctuation, edges) | np.logical_or.reduceat(self._is_special[ids], edges)
        )
        return Words(
            np.append(edges, len(ids)),
            np.add.reduceat(begins.astype(np.int64), row_begins),
            is_text,
            _hashes(ids, edges),
        )


def _with_punctuation_apart(
    begins: NDArray[np.bool_], is_punctuation: NDArray[np.bool_], is_space: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Where words begin if the punctuation at the two ends of each becomes a word of its own.

    A piece that is a space alone counts as punctuation, too, but belongs to what follows.
    """
    edges = np.flatnonzero(begins)
    sizes = np.diff(np.append(edges, len(begins)))
    others = np.logical_not(is_punctuation).astype(np.int64)
    up_to = np.cumsum(others)  # the pieces up to each place that are no punctuation
    is_leading = up_to == np.repeat((up_to - others)[edges], sizes)
    is_trailing = up_to - others == np.repeat(up_to[edges + sizes - 1], sizes)
    inner = begins.copy()
    inner[1:] |= is_leading[:-1] & ~is_leading[1:] & ~is_space[:-1]
    inner[1:] |= ~is_trailing[:-1] & is_trailing[1:]
    return inner


def _hashes(ids: NDArray[np.integer], edges: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A hash of each word's ids and their order. Two of a million words are hashed alike with a chance of 3e-8."""
    places = np.arange(len(ids)) - np.repeat(edges, np.diff(np.append(edges, len(ids))))
    mixed = _mixed(_mixed(ids.astype(np.uint64) + np.uint64(1)) + places.astype(np.uint64))
    found: NDArray[np.uint64] = np.add.reduceat(mixed, edges)  # modulo 2 ** 64
    return found


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit depends on the others (the end of splitmix64, Steele et al. 2014)."""
    numbers = numbers * _MULTIPLIER
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
