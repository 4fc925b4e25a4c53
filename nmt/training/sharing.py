"""How processes share each update: how many there are, and what one of them gets.

An update is the same pairs however many processes share it. Each takes every n-th of its micro-batches; where there are
too few, every micro-batch is cut into parts first. Dropout and augmentation depend on the parts, not on the processes.
"""

import contextlib
import math
import sys

import torch

from nmt.config.training import TrainingConfig
from nmt.device import choose_device
from nmt.errors import ConfigError
from nmt.processes import cores_to_use

# Of a part: with fewer, one process with all threads is faster than a process a core (scripts/README.md).
MIN_PART_TOKENS = 1_000


def choose_processes(settings: TrainingConfig) -> int:
    """What `training.processes` is on this machine: for `auto` as many as can share an update evenly."""
    if settings.processes != "auto":
        return settings.processes
    return next((count for count in range(_max_processes(settings), 1, -1) if _parts(settings, count)), 1)


def _max_processes(settings: TrainingConfig) -> int:
    """As many as have a GPU, or the cores for their threads, to themselves."""
    with contextlib.suppress(ConfigError):  # a device that is not there is reported when the training begins
        device = choose_device(settings.device)
        if device.type == "cuda" and device.index is None:
            return torch.cuda.device_count()
        if device.type == "cpu" and torch.distributed.is_available() and sys.platform != "win32":  # not tried there
            return cores_to_use() // (settings.threads or 1)
    return 1


def shared(settings: TrainingConfig, num_processes: int) -> TrainingConfig:
    """The settings with `processes` and `batch_parts` in numbers, for so many processes.

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
        parts = settings.parts  # some have a batch more than others
    return settings.model_copy(update={"processes": num_processes, "batch_parts": parts})


def _parts(settings: TrainingConfig, num_processes: int) -> int:
    """As few parts of a micro-batch as give each process the same number of them; 0 if they would be too small."""
    if settings.update_tokens is not None:  # the micro-batches will be as many as suit the processes
        return int(num_processes == 1 or settings.update_tokens >= num_processes * MIN_PART_TOKENS)
    count = settings.batches_per_update * settings.parts
    parts = settings.parts * num_processes // math.gcd(count, num_processes)
    return parts if parts == settings.parts or settings.micro_batch_tokens >= parts * MIN_PART_TOKENS else 0
