"""Data-parallel training in several processes: ranks, collective operations, and failing together.

`nmt train` itself (training/launching.py) or `torchrun` starts the processes, and sets the rank of each in the
environment. Every process makes the same plan and the same decisions; signals, times and partial sums are exchanged.
There are two process groups: one on the hosts (Gloo, CPU tensors) for these few numbers, and one for the gradients
(NCCL on GPUs). With one process, the functions here do nothing, and torch is not loaded.
"""

import contextlib
import dataclasses
import datetime
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from nmt.errors import ConfigError, InterruptedTrainingError, NmtError, TrainingError
from nmt.system.console import log

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

HOST_TIMEOUT = datetime.timedelta(days=2)
"""Timeout on the hosts: rank 0 may encode a corpus for hours while the others wait. `_FailureMonitor` detects failures
earlier."""
TIMEOUT = datetime.timedelta(minutes=10)
"""Timeout of the rendezvous and of an exchange of gradients; all ranks synchronise on the hosts after rank 0 has worked
alone, so they never differ as much in an update."""
SECONDS_BETWEEN_CHECKS = 1.0


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The place of this process among those that train together."""

    rank: int = 0
    """Number of this process, from 0."""
    size: int = 1
    """Number of processes."""
    local_rank: int = 0
    """Number of this process on its machine."""
    local_size: int = 1
    """Number of processes on this machine."""

    @property
    def is_main(self) -> bool:
        """True for the process that writes the files and logs."""
        return self.rank == 0

    def share(self, items: list[T]) -> list[T]:
        """This process's share of `items`: every `size`-th."""
        return items[self.rank :: self.size]

    def gather(self, share: list[T]) -> list[T]:
        """The inverse of `share`: the results of all processes in the order of the items, on every process."""
        if self.size == 1:
            return share
        import torch.distributed as dist

        shares: list[list[T]] = [[] for _ in range(self.size)]
        dist.all_gather_object(shares, share)
        return [shares[index % self.size][index // self.size] for index in range(sum(map(len, shares)))]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the processes; the same numbers on every process."""
        if self.size == 1:
            return list(values)
        import torch
        import torch.distributed as dist

        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def from_main(self, make: Callable[[], T]) -> T:
        """The result of `make` on rank 0, broadcast to every process."""
        if self.size == 1:
            return make()
        import torch.distributed as dist

        made: list[Any] = [make() if self.is_main else None]
        dist.broadcast_object_list(made, src=0)
        value: T = made[0]
        return value

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block on rank 0 first, and then on the others, with the files that rank 0 has made."""
        if not self.is_main:
            self.wait()
        yield
        if self.is_main:
            self.wait()

    def wait(self) -> None:
        """A barrier: wait until every process has reached this point."""
        self.sum([0.0])

    def device(self, chosen: "torch.device") -> "torch.device":
        """This process's device: `chosen`, or its own GPU if that is cuda; `ConfigError` if there is none."""
        import torch

        if self.size == 1 or chosen.type == "cpu":
            return chosen
        if chosen.type != "cuda" or chosen.index is not None:
            raise ConfigError(
                f"training.device: {chosen} cannot be shared by processes; set training.device=cuda or cpu"
            )
        count = torch.cuda.device_count()
        if self.local_rank >= count:
            raise ConfigError(
                f"this machine has {count} GPUs but more processes, and each needs its own; set "
                f"training.processes={count}, or start with torchrun --nproc-per-node={count}"
            )
        device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(device)
        return device

    def synchronised(self, module: "nn.Module", device: "torch.device") -> "nn.Module":
        """Wrap the module so that each backward pass ends by averaging the gradients over the processes."""
        if self.size == 1:
            return module
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
        wrapped = DistributedDataParallel(
            module,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=dist.new_group(backend=backend, timeout=TIMEOUT),
            gradient_as_bucket_view=True,
        )
        wrapped.broadcast_buffers = False  # they are constants; torch 2.13 has renamed the argument
        return wrapped

    def unsynchronised(self, module: "nn.Module") -> contextlib.AbstractContextManager[None]:
        """A context for all micro-batches of an update but the last: gradients accumulate in this process."""
        if self.size == 1:
            return contextlib.nullcontext()
        from torch.nn.parallel import DistributedDataParallel

        assert isinstance(module, DistributedDataParallel)
        return module.no_sync()


ALONE = Ranks()


@contextlib.contextmanager
def process_group() -> Iterator[Ranks]:
    """Join the processes that a launcher has started, for the duration of the block; with one process, do nothing.

    If the block fails in one process, all end with that exit code, and the message is printed once.
    """
    ranks = _from_environment()
    if ranks.size == 1:
        yield ranks
        return
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
        dist.init_process_group("gloo", store=store, rank=ranks.rank, world_size=ranks.size, timeout=HOST_TIMEOUT)
        # A separate connection: a waiting operation may hold the first.
        monitor = _FailureMonitor(ranks, store.clone())
    except RuntimeError as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise TrainingError(
            f"process {ranks.rank} of {ranks.size} could not connect to the others at {place}: {error}"
        ) from None
    if not ranks.is_main:
        log.setLevel(logging.ERROR)
    try:
        yield ranks
        ranks.wait()  # the store must outlive every process that needs it
    except BaseException as error:
        monitor.fail(error)
    monitor.close()
    dist.destroy_process_group()


def is_launched() -> bool:
    """True if a launcher started this process, and so set the number of processes."""
    return "WORLD_SIZE" in os.environ


def _from_environment() -> Ranks:
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(f"WORLD_SIZE is {size} and {missing[0]} is not set; start with torchrun, or unset WORLD_SIZE")
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    return Ranks(int(os.environ["RANK"]), size, int(os.environ["LOCAL_RANK"]), local_size)


class _FailureMonitor:
    """Ends this process when another one has failed, even inside a collective operation.

    A process that fails records its exit code in the shared store. A process inside a collective operation does not
    notice (on a GPU it would wait until a timeout), so a thread checks the store once a second.
    """

    def __init__(self, ranks: Ranks, store: "Store") -> None:
        self._prefix = "" if ranks.is_main else f"process {ranks.rank} of {ranks.size}: "
        self._store = store
        self._keeps_store = ranks.is_main and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._check, name="nmt-watch", daemon=True)
        self._thread.start()

    def _check(self) -> None:
        while not self._closed.wait(SECONDS_BETWEEN_CHECKS):
            try:
                if self._store.check(["nmt/exit_code"]):
                    self._leave(int(self._store.get("nmt/exit_code")))
            except RuntimeError:  # the store ended with the process that hosted it
                if not self._closed.wait(10 * SECONDS_BETWEEN_CHECKS):  # otherwise that process just finished first
                    log.error(f"{self._prefix}the process that started this one, or the first one, has ended")
                    _exit(TrainingError.exit_code)

    def fail(self, error: BaseException) -> NoReturn:
        """End this process and thereby all others; the first to fail prints its message."""
        for number in (signal.SIGINT, signal.SIGTERM):  # from a launcher that has seen another process fail
            signal.signal(number, signal.SIG_IGN)
        import torch.distributed as dist

        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
            error = TrainingError(
                "another process died without an error message; the same command resumes from the last checkpoint"
            )
        prefix = "" if isinstance(error, InterruptedTrainingError) else self._prefix  # all processes raise it together
        if isinstance(error, NmtError):
            code, message = error.exit_code, f"{prefix}{error}"
        elif isinstance(error, SystemExit):
            code, message = error.code if isinstance(error.code, int) else 1, ""
        else:
            code, message = 1, "".join(traceback.format_exception(error)).rstrip()
        try:
            is_first = self._store.add("nmt/failures", 1) == 1
        except RuntimeError:
            is_first = True
        if not is_first:
            # Meanwhile `_check` ends this process with the exit code of the first failure.
            self._closed.wait(10 * SECONDS_BETWEEN_CHECKS)
            _exit(code)
        if message:
            log.error(message)
        self._closed.set()
        with contextlib.suppress(RuntimeError):
            self._store.set("nmt/exit_code", str(code))
        self._leave(code)

    def _leave(self, code: int) -> NoReturn:
        if self._keeps_store:
            time.sleep(3 * SECONDS_BETWEEN_CHECKS)  # until the others have checked
        _exit(code)

    def close(self) -> None:
        """Stop checking, after success."""
        self._closed.set()
        self._thread.join()


def _exit(code: int) -> NoReturn:
    """Exit at once; destroying the process groups would wait for processes that have ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
