"""The input of a model: padded sequences of ids or vectors, and masks, in which True means "may attend".

Only a model's first layer and the functions here distinguish ids from vectors. Sequences come as a list, or ragged:
concatenated in one array, with the length of each.

Shapes: B batch, S source length, T target length, F features of a vector, N sum of the lengths.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.models.joined import Joined

Row = Sequence[int] | NDArray[Any]
"""Ids, or vectors (S, F)."""


class PaddingIds(Protocol):
    """The ids that complete a sequence; every tokenizer's `SpecialIds` has them."""

    @property
    def pad(self) -> int: ...
    @property
    def eos(self) -> int: ...


class Source(NamedTuple):
    """A batch of sequences of ids, or of vectors, padded on the right; or joined in one row."""

    values: Tensor
    """(B, S) int64 ids, or (B, S, F) vectors"""
    mask: Tensor
    """(B, S) bool, True = may attend"""
    joined: Joined | None = None
    """Where the pairs begin if each row holds several; every position is then real, and the mask all True"""

    def to(self, device: torch.device) -> "Source":
        """The source on another device; the copy is asynchronous if the memory is pinned."""
        values, mask = (tensor.to(device, non_blocking=True) for tensor in self[:2])
        return Source(values, mask, None if self.joined is None else self.joined.to(device))

    def repeat(self, times: int) -> "Source":
        """The batch repeated along its first dimension: (times * B, S)."""
        return Source(self.values.repeat(times, *[1] * (self.values.ndim - 1)), self.mask.repeat(times, 1), self.joined)


def source_of(sequences: Sequence[Row], special: PaddingIds) -> Source:
    """The padded source of sentences of ids, which come without `</s>`, or of vectors (S, F)."""
    return ragged_source(*ragged(sequences), special)


def ragged_source(values: NDArray[Any], lengths: NDArray[np.integer], special: PaddingIds) -> Source:
    """The padded source of ragged ids (N,), without `</s>`, or vectors (N, F), which have none; lengths (B,)."""
    if values.ndim == 1:
        ids = pad_ragged(values, lengths, special.pad, last=[special.eos])  # (B, S)
        return Source(ids, torch.from_numpy(is_real(lengths + 1)))
    numbers, real = values.astype(np.float32), is_real(lengths)
    padded = np.zeros((*real.shape, values.shape[1]), dtype=np.float32)  # (B, S, F)
    padded[real] = numbers / np.float32(127.5) - np.float32(1) if values.dtype == np.uint8 else numbers  # pixels: -1..1
    return Source(torch.from_numpy(padded), torch.from_numpy(real))


def pad(sequences: Sequence[Row], pad_id: int, first: Sequence[int] = (), last: Sequence[int] = ()) -> Tensor:
    """Stack id sequences as (B, longest) int64, each between `first` and `last`, with `pad_id` at the end."""
    return pad_ragged(*ragged(sequences), pad_id, first, last)


def pad_ragged(
    ids: NDArray[np.integer],
    lengths: NDArray[np.integer],
    pad_id: int,
    first: Sequence[int] = (),
    last: Sequence[int] = (),
) -> Tensor:
    """`pad` for ragged ids (N,), lengths (B,)."""
    width = int(lengths.max())
    padded = np.full((len(lengths), len(first) + width + len(last)), pad_id, dtype=np.int64)
    padded[:, : len(first)] = first
    padded[:, len(first) : len(first) + width][is_real(lengths)] = ids
    for place, index in enumerate(last, start=len(first)):
        padded[np.arange(len(lengths)), lengths + place] = index
    return torch.from_numpy(padded)


def ragged(sequences: Sequence[Row]) -> tuple[NDArray[Any], NDArray[np.integer]]:
    """The sequences in one array, and the length of each."""
    rows = [row if isinstance(row, np.ndarray) else np.array(row, dtype=np.int64) for row in sequences]
    return np.concatenate(rows), np.array([*map(len, rows)])


def is_real(lengths: NDArray[np.integer]) -> NDArray[np.bool_]:
    """(B,) -> (B, longest), False at padded positions."""
    real: NDArray[np.bool_] = np.arange(int(lengths.max())) < lengths[:, None]
    return real


def look_ahead_mask(length: int, device: torch.device | None = None) -> Tensor:
    """(T, T) bool, True at [i, j] where position i may attend to position j: j <= i.

    >>> look_ahead_mask(3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def for_heads(mask: Tensor) -> Tensor:
    """A padding mask in the shape for attention: (B, S) -> (B, 1, 1, S), the same for each head and query."""
    return mask[:, None, None, :]
