"""From encoded pairs to padded batches: the plan of an epoch, and its DataLoader.

Shapes: B batch, S source length, T target length.
"""

import dataclasses
import signal
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nmt.data.dataset import EncodedCorpus
from nmt.data.vocabulary import BOS_ID, EOS_ID, PAD_ID
from nmt.masks import padding_mask

Ids = Sequence[int] | NDArray[np.integer]
Plan = list[NDArray[np.int64]]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Pairs of similar length, padded on the right.

    For the pair "a b" -> "x y" and one row:

        src_ids   a   b   </s>         what the encoder reads
        src_mask  T   T   T            True at real tokens
        tgt_in    <s> x   y            what the decoder reads
        tgt_out   x   y   </s>         what it should say at each position
    """

    src_ids: Tensor
    """(B, S) int64"""
    src_mask: Tensor
    """(B, S) bool, True = may attend"""
    tgt_in: Tensor
    """(B, T) int64"""
    tgt_out: Tensor
    """(B, T) int64"""
    num_tgt_tokens: int
    """Real positions of `tgt_out`, counted before it leaves the CPU."""

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device; does not wait for the copy if the memory is pinned."""
        return dataclasses.replace(
            self,
            src_ids=self.src_ids.to(device, non_blocking=True),
            src_mask=self.src_mask.to(device, non_blocking=True),
            tgt_in=self.tgt_in.to(device, non_blocking=True),
            tgt_out=self.tgt_out.to(device, non_blocking=True),
        )

    def pin_memory(self) -> "Batch":
        """The batch in memory that a GPU can copy from by itself; the DataLoader calls this."""
        return dataclasses.replace(
            self,
            src_ids=self.src_ids.pin_memory(),
            src_mask=self.src_mask.pin_memory(),
            tgt_in=self.tgt_in.pin_memory(),
            tgt_out=self.tgt_out.pin_memory(),
        )


def pad(sequences: Sequence[Ids], first: Sequence[int] = (), last: Sequence[int] = ()) -> Tensor:
    """Stack id sequences as (B, longest) int64, each between `first` and `last`, with `<pad>` at the end."""
    extra = len(first) + len(last)
    padded = np.full((len(sequences), max(map(len, sequences)) + extra), PAD_ID, dtype=np.int64)
    for row, ids in zip(padded, sequences, strict=True):
        row[: len(first)] = first
        row[len(first) : len(first) + len(ids)] = ids
        row[len(first) + len(ids) : extra + len(ids)] = last
    return torch.from_numpy(padded)


def collate(pairs: Sequence[tuple[Ids, Ids]]) -> Batch:
    """Pad pairs of ids (without `<s>` and `</s>`) into a `Batch`."""
    src_ids = pad([src for src, _ in pairs], last=[EOS_ID])
    targets = [tgt for _, tgt in pairs]
    return Batch(
        src_ids=src_ids,
        src_mask=padding_mask(src_ids, PAD_ID),
        tgt_in=pad(targets, first=[BOS_ID]),
        tgt_out=pad(targets, last=[EOS_ID]),
        num_tgt_tokens=sum(len(tgt) + 1 for tgt in targets),
    )


def plan_epoch(
    src_lengths: NDArray[np.integer],
    tgt_lengths: NDArray[np.integer],
    batch_tokens: int,
    seed: int,
    epoch: int,
) -> Plan:
    """Which pairs stand together in each batch of an epoch, in the order of training.

    Pairs are sorted by the longer of their sides and, within one length, by how much longer the source is,
    upwards and downwards in turn so that neighbours across the border are alike too; ties fall at random.
    A batch is filled while the larger of its padded source and padded target positions is at most
    `batch_tokens`; one that is half full ends where the next length begins. Then the batches are shuffled.
    Everything random hangs on `(seed, epoch)`, so that a plan is made again on a resume, not saved.

    Lengths are in pieces, without `<s>` and `</s>`; no pair may be longer than `batch_tokens` - 1.
    """
    random = np.random.default_rng([seed, epoch])
    longer = np.maximum(src_lengths, tgt_lengths)
    zigzag = np.where(longer % 2 == 0, 1, -1) * (src_lengths.astype(np.int64) - tgt_lengths)
    order = np.lexsort((random.random(len(longer)), zigzag, longer))
    cuts, start, before = [0], 0, 0
    for end, width in enumerate((longer[order] + 1).tolist()):  # never falls: the batch is as wide as its last pair
        is_full = width * (end + 1 - start) > batch_tokens
        if is_full or (width > before and before * (end - start) >= batch_tokens / 2):
            start = end
            cuts.append(start)
        before = width
    batches = np.split(order, cuts[1:])
    return [batches[index] for index in random.permutation(len(batches))]


def share_of_real_positions(corpus: EncodedCorpus, plan: Plan) -> float:
    """Real positions over padded ones, both sides together."""
    real = padded = 0
    for batch in plan:
        for side in (corpus.src, corpus.tgt):
            lengths = side.lengths[batch] + 1
            real += int(lengths.sum())
            padded += int(lengths.max()) * len(batch)
    return real / padded


class _Batches(Dataset[Batch]):
    def __init__(self, corpus: EncodedCorpus, plan: Plan) -> None:
        self._corpus = corpus
        self._plan = plan

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, index: int) -> Batch:
        return collate([self._corpus[pair] for pair in self._plan[index].tolist()])


def _leave_signals_to_the_trainer(worker: int) -> None:
    """A launcher signals whole groups of processes, and the trainer still needs its loaders until it has saved."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def batch_loader(corpus: EncodedCorpus, plan: Plan, device: torch.device) -> DataLoader[Batch]:
    """A DataLoader of the plan's batches, in its order; for a GPU they are made in two other processes."""
    on_gpu = device.type == "cuda"
    return DataLoader(
        _Batches(corpus, plan),
        batch_size=None,  # an item is a batch already
        num_workers=2 if on_gpu else 0,
        pin_memory=on_gpu,
        worker_init_fn=_leave_signals_to_the_trainer,
        generator=torch.Generator(),  # its own, so that making an iterator draws nothing from the model's
    )
