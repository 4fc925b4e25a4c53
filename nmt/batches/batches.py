"""Padded batches of encoded pairs, the plan of an epoch, and its DataLoader.

Shapes: B batch, S source length, T target length, N real target positions.
"""

import copy
import ctypes
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from multiprocessing.sharedctypes import RawValue
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nmt.batches.augmentation import Augmentation, Augmented
from nmt.batches.dataset import EncodedCorpus
from nmt.batches.joining import JoinedShape, joined_rows
from nmt.models.source import Source, is_real, pad_ragged, ragged_source
from nmt.system.processes import SIGNALS
from nmt.tokenizers.vocabulary import SpecialIds

Plan = list[NDArray[np.integer]]
"""Indices of the pairs of each batch."""

_CHUNK = 1 << 20  # pairs that are sorted at once


class Batch(NamedTuple):
    """Pairs of similar length, padded on the right; or pairs of any length, joined in one row (`source.joined`).

    For the pair "a b" -> "x y" and one row:

        source    a   b   </s>         the encoder's input
        tgt_in    <s> x   y            the decoder's input
        tgt_out   x   y   </s>         the correct output at each position
    """

    source: Source
    """(B, S), with a mask that is True at real positions"""
    tgt_in: Tensor
    """(B, T) int64"""
    tgt_out: Tensor
    """(B, T) int64"""
    tgt_positions: Tensor
    """(N,) int64: indices of the real positions in `tgt_out.flatten()`, in order"""
    num_tgt_tokens: int
    """N, known without waiting for the device"""

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device. The copy is asynchronous if a DataLoader has pinned the memory."""
        return self._replace(
            source=self.source.to(device),
            tgt_in=self.tgt_in.to(device, non_blocking=True),
            tgt_out=self.tgt_out.to(device, non_blocking=True),
            tgt_positions=self.tgt_positions.to(device, non_blocking=True),
        )


def collate(
    pairs: Augmented, src_special: SpecialIds, tgt_special: SpecialIds, shape: JoinedShape | None = None
) -> Batch:
    """Pad pairs (ids without `<s>` and `</s>`) into a `Batch`, or join them if there is a `shape`."""
    tgt_ids, tgt_lengths = pairs.tgt
    if shape is not None:
        real = int(tgt_lengths.sum()) + len(tgt_lengths)
        return Batch(*joined_rows(pairs, src_special, tgt_special, shape), torch.arange(real), real)
    return Batch(
        source=ragged_source(*pairs.src, src_special),
        tgt_in=pad_ragged(pairs.tgt_seen, tgt_lengths, tgt_special.pad, first=[tgt_special.start]),
        tgt_out=pad_ragged(tgt_ids, tgt_lengths, tgt_special.pad, last=[tgt_special.eos]),
        tgt_positions=torch.from_numpy(np.flatnonzero(is_real(tgt_lengths + 1)).astype(np.int64)),
        num_tgt_tokens=int(tgt_lengths.sum()) + len(tgt_lengths),
    )


def plan_epoch(
    src_lengths: NDArray[np.integer],
    tgt_lengths: NDArray[np.integer],
    batch_tokens: int,
    seed: int,
    epoch: int,
    pairs: NDArray[np.integer] | None = None,
) -> Plan:
    """Plan the batches of an epoch, in the order of training.

    Pairs are sorted by the length of their longer side and, within one length, by the difference of source and target,
    ascending and descending in turn so that the last pairs of a length resemble the first of the next; ties are broken
    at random. A batch is filled while the larger of its padded source and padded target positions is at most
    `batch_tokens`; one that is half full ends where the next length begins. Then the batches are shuffled. All draws
    depend only on `(seed, epoch)`, so a plan is not saved but computed again on a resume.

    Lengths are in pieces without `<s>` and `</s>`, or in vectors (planned with one position too many). No pair may be
    longer than `batch_tokens` - 1. `pairs` holds the epoch's pairs, each as often as it occurs (mixture.py); by default
    every pair occurs once.
    """
    random = np.random.default_rng([seed, epoch])
    order, edges = _sorted_by_length(src_lengths, tgt_lengths, random, pairs)
    cuts = _cuts(edges, batch_tokens)
    batches = [order[begin:end] for begin, end in itertools.pairwise([*cuts, len(order)])]
    return [batches[index] for index in random.permutation(len(batches))]


def _sorted_by_length(
    src_lengths: NDArray[np.integer],
    tgt_lengths: NDArray[np.integer],
    random: np.random.Generator,
    pairs: NDArray[np.integer] | None,
) -> tuple[NDArray[np.integer], list[int]]:
    """Sort the pairs as `plan_epoch` describes; for n = 0, 1, ... also returns the number of pairs shorter than n.

    The sort key of a pair is a 64-bit number. From the highest bits on, it holds the pair's length and the difference
    of its sides, random bits, and the pair's index. Length n has 2n + 1 differences; the lengths below n, n * n in all.
    """
    count = len(src_lengths) if pairs is None else len(pairs)
    longest = max(int(src_lengths.max()), int(tgt_lengths.max()))
    number_bits = len(src_lengths).bit_length()
    chance_bits = min(32, 63 - number_bits - ((longest + 1) ** 2).bit_length())
    assert chance_bits > 0
    keys = np.empty(count, dtype=np.uint64)
    for begin in range(0, count, _CHUNK):  # keeps temporary arrays small
        end = min(begin + _CHUNK, count)
        numbers = np.arange(begin, end) if pairs is None else pairs[begin:end].astype(np.int64)
        src, tgt = src_lengths[numbers].astype(np.int64), tgt_lengths[numbers].astype(np.int64)
        longer = np.maximum(src, tgt)
        zigzag = np.where(longer % 2 == 0, src - tgt, tgt - src)
        chance = random.integers(1 << chance_bits, size=end - begin)
        keys[begin:end] = ((longer * (longer + 1) + zigzag << chance_bits | chance) << number_bits) | numbers
    keys.sort()
    shift = np.uint64(chance_bits + number_bits)
    edges = np.searchsorted(keys, np.arange(longest + 2, dtype=np.uint64) ** 2 << shift)
    keys &= np.uint64((1 << number_bits) - 1)
    return keys.astype(np.int32 if number_bits < 32 else np.int64), [int(edge) for edge in edges]


def _cuts(edges: Sequence[int], batch_tokens: int) -> list[int]:
    """The index in the sorted pairs at which each batch begins; `edges[n]` of them are shorter than n.

    The loops iterate over lengths and batches, not over pairs.
    """
    cuts, start, width_before = [0], 0, 0
    for length, (begin, end) in enumerate(itertools.pairwise(edges)):
        if begin == end:
            continue
        width = length + 1  # with </s>; the batch is as wide as its last pair
        if width_before * (begin - start) >= batch_tokens / 2:
            start = begin
            cuts.append(start)
        room = max(1, batch_tokens // width)
        while start + room < end:
            start = max(start + room, begin)
            cuts.append(start)
        width_before = width
    return cuts


def share_of_real_positions(corpus: EncodedCorpus, plan: Plan, shape: JoinedShape | None = None) -> float:
    """The share of real positions in a plan's batches, padded or of a joined shape, over both sides."""
    pairs = np.concatenate(plan)
    sizes = np.array([len(batch) for batch in plan])
    begins = np.cumsum(sizes) - sizes
    real = padded = 0
    for side in (corpus.src, corpus.tgt):
        lengths = side.lengths[pairs]
        real += int(lengths.sum(dtype=np.int64)) + len(lengths)
        padded += int(((np.maximum.reduceat(lengths, begins) + 1) * sizes).sum())
    return real / (padded if shape is None else len(plan) * sum(shape.lengths))


class Batches(Dataset[Batch]):
    """The batches of a plan, indexed by `(number, pairs)`: a batch's number and the indices of its pairs."""

    def __init__(
        self, corpus: EncodedCorpus, augmentation: Augmentation | None = None, shape: JoinedShape | None = None
    ) -> None:
        self._corpus = corpus
        self._augmentation = augmentation
        self._shape = shape

    def __getitem__(self, key: tuple[int, NDArray[np.integer]]) -> Batch:
        number, pairs = key
        src, tgt = self._corpus.src.gather(pairs), self._corpus.tgt.gather(pairs)
        augmented = Augmented(src, tgt, tgt[0])
        if self._augmentation:
            augmented = self._augmentation(number, src, tgt)
        return collate(augmented, self._corpus.src.special, self._corpus.tgt.special, self._shape)


# Workers are not forked from the trainer: that could copy locks held by threads of OpenMP, CUDA, NCCL or the progress
# bar. Instead they are forked from a server without threads that has loaded torch. It starts in a second or two, and
# then each worker in milliseconds. Outside Linux, forking is unsafe (macOS) or unavailable (Windows).
START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"


def num_workers(device: torch.device, is_augmented: bool) -> int:
    """Number of processes that prepare batches: two for a GPU; for a CPU one with augmentation, else none."""
    return 2 if device.type == "cuda" else int(is_augmented)


def start_worker_server() -> None:
    """Start the server that workers are forked from, unless it is running; started early, it loads torch meanwhile.

    A launcher or a terminal signals whole process groups. Workers end with their server, and the trainer needs them
    until it has saved; so the server blocks signals and ends when the trainer does.
    """
    if sys.platform == "linux" and START_METHOD == "forkserver":
        from multiprocessing import forkserver, resource_tracker  # missing on Windows

        multiprocessing.set_forkserver_preload(["__main__", "nmt.batches.batches"])
        resource_tracker.ensure_running()  # or the server would start it, then unblock signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_process_group(worker: int) -> None:
    """Shield a worker from signals to the process group; the trainer ends it by a SIGTERM to it alone."""
    if hasattr(os, "setsid"):
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_exit_with_trainer, daemon=True).start()


def _exit_with_trainer() -> None:
    """End a worker, and with it its server, when the trainer ends; torch's watchdog only watches the server."""
    if (trainer := multiprocessing.parent_process()) is not None:
        trainer.join()
        os._exit(1)


class _Flag:
    """An event that is set once, in shared memory, without a lock."""

    def __init__(self) -> None:
        self._value = RawValue(ctypes.c_bool)

    def is_set(self) -> bool:
        return bool(self._value.value)

    def set(self) -> None:
        self._value.value = True


def _worker_context() -> BaseContext:
    """The context of `START_METHOD`, with events in which a worker may be killed.

    Workers keep polling an event that tells them to end. multiprocessing's own event takes a lock for that. A worker
    killed at that moment never releases it, and the trainer, which reads the event when it replaces the worker, would
    wait forever. torch's comments mention this ("hanging in `Event.set()`").
    """
    context = copy.copy(multiprocessing.get_context(START_METHOD))  # get_context returns one object for all
    vars(context)["Event"] = _Flag
    return context


def batch_loader(
    corpus: EncodedCorpus,
    plan: Plan,
    device: torch.device,
    numbers: Sequence[int] | None = None,
    augmentation: Augmentation | None = None,
    shape: JoinedShape | None = None,
) -> DataLoader[Batch]:
    """A DataLoader of the plan's batches, or of those with the given `numbers`, in that order; joined with a `shape`.

    `num_workers` other processes prepare them in advance.
    """
    workers = num_workers(device, augmentation is not None)
    if workers:
        start_worker_server()
    return DataLoader(
        Batches(corpus, augmentation, shape),
        sampler=[(number, plan[number]) for number in (range(len(plan)) if numbers is None else numbers)],
        batch_size=None,  # an item is a batch already
        num_workers=workers,
        multiprocessing_context=_worker_context() if workers else None,
        pin_memory=device.type == "cuda",
        worker_init_fn=_leave_process_group,
        generator=torch.Generator(),  # so that iterators draw nothing from torch's default one
    )
