"""The memory of a training on its device: measured with the largest possible batch, and fitted to what is free."""

import contextlib
import itertools
import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.batches.augmentation import MaxBatchShape
from nmt.batches.batches import Batch
from nmt.config.training import TrainingConfig
from nmt.errors import TrainingError, is_out_of_memory
from nmt.models.source import Source
from nmt.system.processes import control_groups
from nmt.training.loss import Objective, logits_bytes

# Fraction of the free memory; the rest is for fragmentation and for other programs.
USABLE = 0.85
# The backward pass needs this multiple of the saved activations: it also holds some of their gradients temporarily.
BACKWARD_FACTOR = 1.25
KERNELS = 128_000_000  # oneDNN's in bf16, as measured with `bound_kernel_caches`: 100 to 160 MB
FEW, MORE = 2, 6  # rows of the two small batches from which the memory for a pair is estimated


class MemoryAccount(NamedTuple):
    """Bytes that training needs on its device."""

    parameters: int
    gradients: int
    optimizer: int
    """AdamW's two moments."""
    activations: int
    """Saved by the forward pass of the worst batch for its backward pass."""
    logits: int
    """The logits in memory at once."""
    batch: str
    """The worst batch, in words."""
    average: int = 0
    """The moving average of the weights."""
    program: int = 0
    """Other memory of the process, if it is the same memory: Python, torch, kernels and the encoded text."""

    @property
    def total(self) -> int:
        """The peak of all memory use."""
        fixed = self.parameters + self.gradients + self.optimizer + self.average + self.program
        return fixed + round(BACKWARD_FACTOR * self.activations) + self.logits

    def __str__(self) -> str:
        average = f"moving average {size(self.average)}, " if self.average else ""
        program = f"program {size(self.program)}, " if self.program else ""
        return (
            f"{size(self.total)}: {program}parameters {size(self.parameters)}, gradients {size(self.gradients)}, "
            f"optimizer {size(self.optimizer)}, {average}and for the worst batch "
            f"({self.batch}) activations {size(self.activations)} and logits {size(self.logits)}"
        )


def worst_batch(max_shape: MaxBatchShape, batch_tokens: int, parts: int = 1) -> Batch:
    """The largest batch of any plan, every pair as long as the longest, or one of `parts` equal parts of it."""
    rows = max(1, int(max_shape.stretch * batch_tokens) // max_shape.width)
    return _batch_of(-(-rows // parts), max_shape)


def _batch_of(rows: int, max_shape: MaxBatchShape) -> Batch:
    """A batch without padding; the ids or vectors do not matter, and are all 0."""
    width = max_shape.width
    src_ids, tgt_in, tgt_out = (torch.zeros(rows, width, dtype=torch.int64) for _ in range(3))
    values = src_ids if max_shape.vectors is None else torch.zeros(rows, *max_shape.vectors)
    source = Source(values, torch.ones(values.shape[:2], dtype=torch.bool))
    return Batch(source, tgt_in, tgt_out, torch.arange(rows * width), rows * width)


def try_batch(objective: Objective, batch: Batch, dtype: torch.dtype) -> MemoryAccount:
    """Measure the memory of a forward and a backward pass over a batch; the model is not changed.

    Raises `TrainingError` if there is not enough memory.
    """
    parameters = list(objective.parameters())
    device = parameters[0].device
    kept: dict[int, int] = {}  # bytes by address: storage that several operations save counts once
    excluded = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in excluded:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows, width = batch.tgt_out.shape
    try:
        with (
            torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
            torch.autocast(device.type, dtype, enabled=dtype != torch.float32),
        ):
            sums = objective(batch.to(device))
        torch.autograd.backward(sums.smoothed)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise _too_large(batch, device) from None
    finally:
        objective.zero_grad(set_to_none=True)
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    logits = logits_bytes(rows * width, len(objective.model.output.weight), device)
    learned = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    return MemoryAccount(size, learned, 2 * learned, sum(kept.values()), logits, _in_words(batch))


def _in_words(batch: Batch) -> str:
    """The size of a batch."""
    rows, width = batch.tgt_out.shape
    return f"{rows:,} pairs of {width:,} pieces" if batch.source.joined is None else f"joined pairs, {width:,} pieces"


def try_worst_batch(
    objective: Objective,
    max_shape: MaxBatchShape,
    batch_tokens: int,
    dtype: torch.dtype,
    free: int | None,
    parts: int = 1,
) -> MemoryAccount:
    """`try_batch` with the worst batch, or one of `parts` of it, if small batches show that it fits into `free` bytes.

    This is estimated because a program that takes too much memory on a CPU gets no error; it is killed.
    """
    batch = worst_batch(max_shape, batch_tokens, parts)
    rows = len(batch.tgt_out)
    if free is not None and rows > MORE:
        fixed, per_pair = _estimate(objective, max_shape, dtype)
        if fixed + rows * per_pair > free:
            raise _too_large(batch, batch.tgt_out.device, free)
    return try_batch(objective, batch, dtype)


def fit_batch_tokens(
    objective: Objective, max_shape: MaxBatchShape, dtype: torch.dtype, free: int | None, update_tokens: int
) -> int:
    """The largest `training.batch_tokens`, up to `update_tokens`, with a worst batch that fits into `free` bytes.

    The first size is estimated from two small batches; it is tried, and reduced until it fits. Raises
    `TrainingError` if not even one pair fits.
    """
    width, stretch = max_shape.width, max_shape.stretch
    rows = int(stretch * update_tokens) // width
    if free is not None and rows > MORE:
        fixed, per_pair = _estimate(objective, max_shape, dtype)
        rows = min(rows, int((USABLE * free - fixed) / per_pair))
    while rows > 0:
        batch_tokens = min(update_tokens, int(((rows + 1) * width - 1) / stretch))
        try:
            try_batch(objective, worst_batch(max_shape, batch_tokens), dtype)
        except TrainingError:
            rows = rows * 4 // 5
            torch.cuda.empty_cache()  # fragments left by the failed batch; no effect without a GPU
        else:
            return batch_tokens
    raise _too_large(_batch_of(1, max_shape), next(objective.parameters()).device, free)


def _estimate(objective: Objective, max_shape: MaxBatchShape, dtype: torch.dtype) -> tuple[float, float]:
    """Bytes for a batch of any size, and additional bytes for each pair as long as the longest."""
    few, more = (try_batch(objective, _batch_of(rows, max_shape), dtype) for rows in (FEW, MORE))
    per_pair = BACKWARD_FACTOR * (more.activations - few.activations) / (MORE - FEW)
    return few.total - FEW * per_pair, per_pair


def _too_large(batch: Batch, device: torch.device, free: int | None = None) -> TrainingError:
    space = f"the memory of {device}" if free is None else f"the {size(free)} of free memory"
    remedy = "lower training.batch_tokens or data.max_length, or set training.batch_tokens: auto"
    if len(batch.tgt_out) == 1 and batch.source.joined is None:
        remedy = "lower data.max_length or use a smaller model"
    return TrainingError(f"the worst batch, {_in_words(batch)}, does not fit into {space}; {remedy}")


def batch_error(step: int, batch: Batch, lines: str, settings: TrainingConfig) -> TrainingError:
    """The error of an update with a micro-batch, of these lines, that does not fit into memory."""
    (rows, src_length), tgt_length = batch.source.mask.shape, batch.tgt_in.shape[1]
    pairs = f"{rows:,} pairs" if batch.source.joined is None else "joined pairs"
    return TrainingError(
        f"out of memory in step {step:,}, with {pairs} of {src_length:,} and {tgt_length:,} pieces "
        f"({lines}); lower training.batch_tokens ({settings.batch_tokens}) or data.max_length, "
        f"and resume from the last checkpoint"
    )


def with_batches(settings: TrainingConfig, count: int) -> TrainingConfig:
    """Replace `batch_tokens: auto` by `count` micro-batches an update, which share `update_tokens`."""
    assert settings.update_tokens is not None, "checked by TrainingConfig"
    tokens = -(-settings.update_tokens // count)
    return settings.model_copy(update={"batch_tokens": tokens, "batches_per_update": count, "update_tokens": None})


def free_memory(device: torch.device) -> int | None:
    """Bytes of the device's memory that are free for training; None if unknown."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # unused, in torch's cache
        return torch.cuda.mem_get_info(device)[0] + held
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        return min([free, *_free_in_control_groups()])
    return None


def _free_in_control_groups() -> list[int]:
    """Bytes free within the limits of a container, if any; the file cache counts as free."""
    free = []
    files = (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for folder, (limit, used, cache) in itertools.product(control_groups("memory"), files):
        with contextlib.suppress(OSError, ValueError, KeyError):  # "max" is not a number
            allowed, taken = (int((folder / name).read_text()) for name in (limit, used))
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            free.append(allowed - taken + int(counts[cache]))
    return free


def held_memory(dtype: torch.dtype) -> int:
    """Bytes that this process holds, with the kernels that it will create; 0 if the system does not report them."""
    with contextlib.suppress(OSError):
        held = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return held + (0 if dtype == torch.float32 else KERNELS)
    return 0


def size(count: int) -> str:
    """Bytes in readable units.

    >>> size(42_000), size(7_000_000), size(3_210_000_000)
    ('42 kB', '7 MB', '3.2 GB')
    """
    if count < 1e6:
        return f"{count / 1e3:,.0f} kB"
    return f"{count / 1e6:,.0f} MB" if count < 1e9 else f"{count / 1e9:,.1f} GB"
