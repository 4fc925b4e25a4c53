"""Joined batches: pairs one after the other in one row a side, so that all batches of a training have one shape.

What the pairs leave of a row is filled with filler sentences, whose targets the loss never sees.
"""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.batches.augmentation import Augmented
from nmt.batches.dataset import EncodedCorpus
from nmt.models.joined import Joined
from nmt.models.source import Source
from nmt.tokenizers.vocabulary import SpecialIds

_MULTIPLE = 128  # the shorter side's positions, so that a GPU's matrix products have whole tiles
_PAIRS_MARGIN = 1.15  # the most pairs in a batch, relative to those of mean length


class JoinedShape(NamedTuple):
    """The shape of all joined batches of a training."""

    lengths: tuple[int, int]
    """Number of positions of the source's row, and of the target's."""
    pairs: int
    """Maximum number of real pairs."""
    max_length: int
    """Maximum number of positions of a sentence."""

    @classmethod
    def of(cls, corpus: EncodedCorpus, batch_tokens: int, pairs: NDArray[np.integer] | None = None) -> "JoinedShape":
        """The shape for a corpus: `batch_tokens` positions of its longer side, and as many fewer of the other.

        A corpus with less text than that has smaller batches. `pairs` holds an epoch's pairs as in `plan_epoch`.
        """
        lengths = corpus.src.lengths, corpus.tgt.lengths
        max_length = 1 + max(int(side.max()) for side in lengths)
        sums = [int((side if pairs is None else side[pairs]).sum(dtype=np.int64)) for side in lengths]
        count = len(lengths[0]) if pairs is None else len(pairs)
        longer = max(sums) + count
        tokens = min(batch_tokens, longer + longer // (max_length - 1) + 2)
        scaled = [-(-tokens * (side + count) // (longer * _MULTIPLE)) * _MULTIPLE for side in sums]
        min_length = max_length + -(-tokens // max_length) + 1  # so that the longest pair fits beside fillers
        src, tgt = (max(min(length, tokens), min_length) for length in scaled)
        return cls((src, tgt), int(_PAIRS_MARGIN * tokens * count / longer) + 64, max_length)

    @property
    def spare(self) -> int:
        """Maximum number of fillers; each needs a position on both sides, which the plan leaves free."""
        return -(-max(self.lengths) // self.max_length)


def plan_joined(
    src_lengths: NDArray[np.integer],
    tgt_lengths: NDArray[np.integer],
    shape: JoinedShape,
    seed: int,
    epoch: int,
    pairs: NDArray[np.integer] | None = None,
) -> list[NDArray[np.integer]]:
    """Plan the joined batches of an epoch: its pairs in random order, cut where a side is full.

    Arguments as in `plan_epoch`; all draws depend only on `(seed, epoch)`.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(src_lengths) if pairs is None else pairs)
    order = order.astype(np.int32 if len(src_lengths) < 2**31 else np.int64)
    ends = [np.concatenate([[0], np.cumsum(side[order] + 1, dtype=np.int64)]) for side in (src_lengths, tgt_lengths)]
    rooms = [length - shape.spare for length in shape.lengths]
    cuts = [0]
    while cuts[-1] < len(order):
        begin = cuts[-1]
        fitting = (
            int(np.searchsorted(end, end[begin] + room, "right")) - 1 for end, room in zip(ends, rooms, strict=True)
        )
        cuts.append(min(begin + shape.pairs, *fitting))
    return [order[begin:end] for begin, end in itertools.pairwise(cuts)]


def joined_rows(
    pairs: Augmented, src_special: SpecialIds, tgt_special: SpecialIds, shape: JoinedShape
) -> tuple[Source, Tensor, Tensor]:
    """The source, the decoder's input and its correct output, (1, N) each, from ids without `<s>` and `</s>`."""
    (src, src_lengths), (tgt, tgt_lengths), (src_length, tgt_length) = pairs.src, pairs.tgt, shape.lengths
    src_row = _row(src, np.cumsum(src_lengths), src_special.eos, src_length)
    tgt_in = _row(pairs.tgt_seen, np.cumsum(tgt_lengths) - tgt_lengths, tgt_special.start, tgt_length)
    tgt_out = _row(tgt, np.cumsum(tgt_lengths), tgt_special.eos, tgt_length)
    rest = [src_length - int((src_lengths + 1).sum()), tgt_length - int((tgt_lengths + 1).sum())]
    fillers = -(-max(rest) // shape.max_length)
    starts = [
        _starts(np.concatenate([lengths + 1, np.diff(np.arange(fillers + 1) * left // max(1, fillers))]), shape)
        for lengths, left in zip((src_lengths, tgt_lengths), rest, strict=True)
    ]
    source = Source(
        src_row, torch.ones(src_row.shape, dtype=torch.bool), Joined(starts[0], starts[1], shape.max_length)
    )
    return source, tgt_in, tgt_out


def _row(ids: NDArray[np.integer], places: NDArray[np.integer], special: int, length: int) -> Tensor:
    """The ids as a row, (1, length), with `special` before these places and in what is left."""
    row = np.full((1, length), special, dtype=np.int64)
    row[0, : len(ids) + len(places)] = np.insert(ids, places, special)
    return torch.from_numpy(row)


def _starts(lengths: NDArray[np.integer], shape: JoinedShape) -> Tensor:
    """The starts of sentences of these lengths, and of empty ones up to the number that all batches have."""
    starts = np.full(shape.pairs + shape.spare + 1, int(lengths.sum()), dtype=np.int32)
    starts[: len(lengths) + 1] = np.concatenate([[0], np.cumsum(lengths)])
    return torch.from_numpy(starts)
