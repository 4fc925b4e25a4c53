"""The processes of a training on this machine: their number, the share of each, and their start.

An update has the same pairs for any number of processes. Each of N processes takes every N-th micro-batch; if there are
too few, every micro-batch is first cut into parts. Dropout and augmentation depend on the parts, not on the processes.

torch.distributed.elastic.multiprocessing, the part of torchrun that starts and supervises processes, is used alone:
torchrun itself prints pages about an error, kills a process that is saving after 30 seconds, and exits with 1.
"""

import contextlib
import logging
import math
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from types import FrameType

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, start_processes
from torch.distributed.elastic.utils.distributed import create_c10d_store

from nmt.config.training import TrainingConfig
from nmt.errors import ConfigError
from nmt.system.devices import choose_device
from nmt.system.processes import SIGNALS, cores_to_use

# Padded tokens of a part: with fewer, one process with all threads is faster than a process a core (docs/lab/speed.md).
MIN_PART_TOKENS = 1_000
HOST = "127.0.0.1"

# It logs how it handles a failed process, which has already printed its own message.
logging.getLogger("torch.distributed.elastic").addHandler(logging.NullHandler())
logging.getLogger("torch.distributed.elastic").propagate = False


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
                f"({settings.batch_tokens}) would have fewer than {MIN_PART_TOKENS:,} positions, or its pairs are "
                f"joined (training.joined); set training.batches_per_update={num_processes}, or a multiple"
            )
        parts = settings.parts  # some processes have one batch more than others
    return settings.model_copy(update={"processes": num_processes, "batch_parts": parts})


def _parts(settings: TrainingConfig, num_processes: int) -> int:
    """The fewest parts of a micro-batch that give each process the same number; 0 if they would be too small."""
    if settings.update_tokens is not None:  # the number of micro-batches is chosen to suit the processes
        return int(num_processes == 1 or settings.update_tokens >= num_processes * MIN_PART_TOKENS)
    count = settings.batches_per_update * settings.parts
    parts = settings.parts * num_processes // math.gcd(count, num_processes)
    if settings.joined is True and parts > 1:
        return 0
    return parts if parts == settings.parts or settings.micro_batch_tokens >= parts * MIN_PART_TOKENS else 0


def launch(count: int, command: Sequence[str], threads: int | None = None) -> int:
    """Run `command` in `count` processes that meet in `nmt.system.distributed.process_group`; return the exit code.

    Each process uses `threads` threads, by default its share of the cores. Signals to this process are forwarded to
    all of them. A process that fails prints its message and ends the others; its exit code is returned.
    """
    # In this process, so that it outlives its clients; on a free port.
    store = create_c10d_store(is_server=True, server_addr=HOST, server_port=0, wait_for_workers=False)
    common = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": str(True),
        "OMP_NUM_THREADS": str(threads or max(1, cores_to_use() // count)),
    }
    if loopback := {"linux": "lo", "darwin": "lo0"}.get(sys.platform):  # the machine's own name may not resolve
        common["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", loopback)
    environments = {rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)}
    program, *arguments = command
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # ends the program; other signals are handled here
    with tempfile.TemporaryDirectory() as folder:
        logs = DefaultLogsSpecs(log_dir=folder)  # not used, but required
        context = start_processes("nmt", program, dict.fromkeys(environments, tuple(arguments)), environments, logs)
        _forward_signals(context, [number for number, handler in handlers.items() if handler != signal.SIG_IGN])
        try:
            result = context.wait(period=0.2)
        finally:
            context.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
    assert result is not None, "it waits without a timeout"
    codes = [failure.exitcode for failure in sorted(result.failures.values(), key=lambda failure: failure.timestamp)]
    # A killed process has no message; the others report its death and exit with their own code.
    return next((code for code in codes if code > 0), 128 - codes[0]) if codes else 0


def _forward_signals(context: PContext, numbers: Sequence[int]) -> None:
    """Forward signals to the processes, which are in sessions of their own; ignored signals stay ignored."""

    def send(number: int, frame: FrameType | None) -> None:
        for pid in context.pids().values():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)

    for number in SIGNALS:
        signal.signal(number, send if number in numbers else signal.SIG_IGN)
