"""How processes share each update: the number of processes, and of parts of a micro-batch.

An update has the same pairs for any number of processes. Each of N processes takes every N-th micro-batch; if there
are too few, every micro-batch is first cut into parts. Dropout and augmentation depend on the parts, not on processes.
"""

import contextlib
import math
import sys

import torch

from nmt.config.training import TrainingConfig
from nmt.errors import ConfigError
from nmt.system.devices import choose_device
from nmt.system.processes import cores_to_use

# Padded tokens of a part: with fewer, one process with all threads is faster than a process a core (docs/lab/speed.md).
MIN_PART_TOKENS = 1_000


def choose_processes(settings: TrainingConfig) -> int:
    """The number of processes on this machine; `auto` means the most that can share an update evenly."""
    if settings.processes != "auto":
        return settings.processes
    return next((count for count in range(_max_processes(settings), 1, -1) if _parts(settings, count)), 1)


def _max_processes(settings: TrainingConfig) -> int:
    """The most processes for which each has its own GPU, or its own cores for its threads."""
    with contextlib.suppress(ConfigError):  # a missing device is reported when the training starts
        device = choose_device(settings.device)
        if device.type == "cuda" and device.index is None:
            return torch.cuda.device_count()
        if device.type == "cpu" and torch.distributed.is_available() and sys.platform != "win32":  # Windows is untested
            return cores_to_use() // (settings.threads or 1)
    return 1


def shared(settings: TrainingConfig, num_processes: int) -> TrainingConfig:
    """The settings with `processes` and `batch_parts` as numbers, for N processes.

    `ConfigError` if an update is too small for them.
    """
    parts = _parts(settings, num_processes)
    if not parts:
        if settings.batches_per_update * settings.parts < num_processes:
            raise ConfigError(
                f"training.batches_per_update ({settings.batches_per_update}) is less than the {num_processes} "
                f"processes, which share an update's batches, and parts of a batch of training.batch_tokens "
                f"({settings.batch_tokens}) would have fewer than {MIN_PART_TOKENS:,} positions; set "
                f"training.batches_per_update={num_processes}, or a multiple"
            )
        parts = settings.parts  # some processes have one batch more than others
    return settings.model_copy(update={"processes": num_processes, "batch_parts": parts})


def _parts(settings: TrainingConfig, num_processes: int) -> int:
    """The fewest parts of a micro-batch that give each process the same number; 0 if they would be too small."""
    if settings.update_tokens is not None:  # the number of micro-batches is chosen to suit the processes
        return int(num_processes == 1 or settings.update_tokens >= num_processes * MIN_PART_TOKENS)
    count = settings.batches_per_update * settings.parts
    parts = settings.parts * num_processes // math.gcd(count, num_processes)
    return parts if parts == settings.parts or settings.micro_batch_tokens >= parts * MIN_PART_TOKENS else 0
