"""What training needs of the device's memory: counted with the worst batch, tried, and fitted to what is free."""

import contextlib
import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from nmt.config.training import TrainingConfig
from nmt.data.augmentation import Reach
from nmt.data.batches import Batch
from nmt.errors import TrainingError, is_out_of_memory
from nmt.source import Source
from nmt.training.loss import Objective, logits_bytes

# Of what is free: the rest is for fragments, and for what other programs will want.
USABLE = 0.85
# Backward passes hold gradients of activations, for a moment each, beside the activations.
PASSING = 1.25
# Rows of the two batches that are counted when the largest is sought.
FEW, MORE = 2, 6


@dataclasses.dataclass(frozen=True)
class MemoryAccount:
    """Bytes that training takes of its device."""

    parameters: int
    gradients: int
    optimizer: int
    """AdamW's two moments."""
    activations: int
    """What the backward pass of the worst batch needs of its forward pass."""
    logits: int
    """Held at one time."""
    batch: tuple[int, int]
    """Sentences of the worst batch, and positions of each."""
    average: int = 0
    """The moving average of the weights."""

    @property
    def total(self) -> int:
        """At the worst moment."""
        fixed = self.parameters + self.gradients + self.optimizer + self.average
        return fixed + round(PASSING * self.activations) + self.logits

    def __str__(self) -> str:
        sentences, width = self.batch
        average = f"moving average {size(self.average)}, " if self.average else ""
        return (
            f"{size(self.total)}: parameters {size(self.parameters)}, gradients {size(self.gradients)}, "
            f"optimizer {size(self.optimizer)}, {average}and of the worst batch "
            f"({sentences:,} pairs of {width:,} pieces) activations {size(self.activations)} "
            f"and logits {size(self.logits)}"
        )


def worst_batch(reach: Reach, batch_tokens: int, parts: int = 1) -> Batch:
    """A batch, or a part of it, as large as any plan can make one: every pair as long as the longest, and no room."""
    rows = max(1, int(reach.stretch * batch_tokens) // reach.width)
    return _batch_of(-(-rows // parts), reach.width)


def _batch_of(rows: int, width: int) -> Batch:
    """Every position real, and the same id: any will do."""
    src_ids, tgt_in, tgt_out = (torch.zeros(rows, width, dtype=torch.int64) for _ in range(3))
    source = Source(src_ids, torch.ones(rows, width, dtype=torch.bool))
    return Batch(source, tgt_in, tgt_out, torch.arange(rows * width), rows * width)


def try_batch(objective: Objective, batch: Batch, dtype: torch.dtype) -> MemoryAccount:
    """Go through a batch forward and backward, change nothing, and account for the memory.

    Raises `TrainingError` if there is not enough.
    """
    parameters = list(objective.parameters())
    device = parameters[0].device
    kept: dict[int, int] = {}  # storages by address, so that what several operations keep counts once
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
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
        raise _too_large(rows, width, device) from None
    finally:
        objective.zero_grad(set_to_none=True)
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    logits = logits_bytes(rows * width, len(objective.model.output.weight), device)
    return MemoryAccount(size, size, 2 * size, sum(kept.values()), logits, (rows, width))


def try_worst_batch(
    objective: Objective, reach: Reach, batch_tokens: int, dtype: torch.dtype, free: int | None, parts: int = 1
) -> MemoryAccount:
    """`try_batch` with the worst batch, or a part, unless small ones say already that it needs more than `free` bytes.

    On a CPU nothing refuses memory: a program that takes too much of it is killed without a word.
    """
    batch = worst_batch(reach, batch_tokens, parts)
    rows, width = batch.tgt_out.shape
    if free is not None and rows > MORE:
        fixed, of_a_pair = _needs(objective, width, dtype)
        if fixed + rows * of_a_pair > free:
            raise _too_large(rows, width, batch.tgt_out.device, free)
    return try_batch(objective, batch, dtype)


def fit_batch_tokens(
    objective: Objective, reach: Reach, dtype: torch.dtype, free: int | None, update_tokens: int
) -> int:
    """The largest `training.batch_tokens`, up to `update_tokens`, whose worst batch fits into `free` bytes.

    Two small batches tell what a pair takes; the batch that follows from it is tried, and made smaller until it fits.
    Raises `TrainingError` if not even one pair does.
    """
    width, stretch = reach.width, reach.stretch
    rows = int(stretch * update_tokens) // width
    if free is not None and rows > MORE:
        fixed, of_a_pair = _needs(objective, width, dtype)
        rows = min(rows, int((USABLE * free - fixed) / of_a_pair))
    while rows > 0:
        batch_tokens = min(update_tokens, int(((rows + 1) * width - 1) / stretch))
        try:
            try_batch(objective, worst_batch(reach, batch_tokens), dtype)
        except TrainingError:
            rows = rows * 4 // 5
            torch.cuda.empty_cache()  # what the failed batch left in pieces; nothing where there is no GPU
        else:
            return batch_tokens
    raise _too_large(1, width, next(objective.parameters()).device, free)


def _needs(objective: Objective, width: int, dtype: torch.dtype) -> tuple[float, float]:
    """Bytes that any batch takes, and bytes for every pair of it, `width` long."""
    few, more = (try_batch(objective, _batch_of(rows, width), dtype) for rows in (FEW, MORE))
    of_a_pair = PASSING * (more.activations - few.activations) / (MORE - FEW)
    return few.total - FEW * of_a_pair, of_a_pair


def _too_large(rows: int, width: int, device: torch.device, free: int | None = None) -> TrainingError:
    space = f"the memory of {device}" if free is None else f"the {size(free)} of memory that are free"
    remedy = "lower training.batch_tokens or data.max_length, or let training.batch_tokens: auto find what fits"
    if rows == 1:
        remedy = "lower data.max_length, or take a smaller model"
    return TrainingError(f"the worst batch, {rows:,} pairs of {width:,} pieces, does not fit into {space}; {remedy}")


def resolve_auto_batch(settings: TrainingConfig, largest: int, num_processes: int) -> TrainingConfig:
    """`batch_tokens: auto` in numbers: as few micro-batches of at most `largest` positions as make `update_tokens`.

    Every process gets as many of them.
    """
    assert settings.update_tokens is not None, "checked by TrainingConfig"
    rounds = -(-settings.update_tokens // (largest * num_processes))
    return _divided(settings, rounds * num_processes)


def recorded_batch_size(settings: TrainingConfig, recorded: TrainingConfig) -> TrainingConfig:
    """`batch_tokens: auto` as a run that is resumed found it; unchanged if the run's update is another."""
    divided = _divided(settings, recorded.batches_per_update)
    return divided if divided.batch_tokens == recorded.batch_tokens else settings


def _divided(settings: TrainingConfig, count: int) -> TrainingConfig:
    assert settings.update_tokens is not None, "checked by TrainingConfig"
    batch_tokens = -(-settings.update_tokens // count)
    return settings.model_copy(
        update={"batch_tokens": batch_tokens, "batches_per_update": count, "update_tokens": None}
    )


def free_memory(device: torch.device) -> int | None:
    """Bytes that training may take of the device now; None where that cannot be asked."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, unused
        return torch.cuda.mem_get_info(device)[0] + held
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        return min([free, *_left_in_control_groups()])
    return None


def _left_in_control_groups() -> list[int]:
    """What a container's limit leaves, where there is one (Linux control groups, version 2 and 1)."""
    left = []
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            folder = Path("/sys/fs/cgroup")
            left.append(int((folder / limit).read_text()) - int((folder / used).read_text()))
    return left


def size(count: int) -> str:
    """Bytes for people.

    >>> size(7_000_000), size(3_210_000_000)
    ('7 MB', '3.2 GB')
    """
    return f"{count / 1e6:,.0f} MB" if count < 1e9 else f"{count / 1e9:,.1f} GB"
