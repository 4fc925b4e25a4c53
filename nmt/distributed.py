"""Several processes that train one model: who is who, what they tell each other, and how they end together.

`nmt train` itself (training/launching.py) or `torchrun` starts them, and says in the environment who each one is. Every
process makes the same plan and the same decisions; what only one can know (a signal, the time, a share's sum) goes
round among all. Two process groups: one of the hosts (Gloo, on CPU tensors) for these few numbers, and one for the
gradients (NCCL on GPUs).

Alone, nothing here does anything, and torch is not loaded.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from nmt.errors import ConfigError, InterruptedTrainingError, NmtError, TrainingError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

MEETING_TIMEOUT = datetime.timedelta(minutes=10)
# Rank 0 may encode a corpus for hours while the others wait; who fails is found by `_FailureMonitor`, not by waiting.
HOST_TIMEOUT = datetime.timedelta(days=2)
# Between two updates the ranks are never this far apart: after whatever rank 0 does alone they meet on the host first.
GRADIENT_TIMEOUT = datetime.timedelta(minutes=10)
SECONDS_BETWEEN_LOOKS = 1.0


@dataclasses.dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

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
        """Whether this is the one process that writes files and talks."""
        return self.rank == 0

    def share(self, items: list[T]) -> list[T]:
        """What of `items` falls to this process: every `size`-th."""
        return items[self.rank :: self.size]

    def gather(self, share: list[T]) -> list[T]:
        """The reverse of `share`: all processes' results in the order of the items, for everyone."""
        if self.size == 1:
            return share
        import torch.distributed as dist

        shares: list[list[T]] = [[] for _ in range(self.size)]
        dist.all_gather_object(shares, share)
        return [shares[index % self.size][index // self.size] for index in range(sum(map(len, shares)))]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the processes, the same numbers for everyone."""
        if self.size == 1:
            return list(values)
        import torch
        import torch.distributed as dist

        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def from_main(self, make: Callable[[], T]) -> T:
        """What `make` gives on rank 0, for everyone; the others wait for it."""
        if self.size == 1:
            return make()
        import torch.distributed as dist

        made: list[Any] = [make() if self.is_main else None]
        dist.broadcast_object_list(made, src=0)
        value: T = made[0]
        return value

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """Rank 0 does the block alone, then all others do, and find what it has made."""
        if not self.is_main:
            self.wait()
        yield
        if self.is_main:
            self.wait()

    def wait(self) -> None:
        """Until every process has come here."""
        self.sum([0.0])

    def device(self, chosen: "torch.device") -> "torch.device":
        """The device of this process where all were given `chosen`: on GPUs, each its own.

        Raises `ConfigError` if there is none.
        """
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
                f"this machine has {count} GPUs and more processes, each of which needs one; set "
                f"training.processes={count}, or start with torchrun --nproc-per-node={count}"
            )
        device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(device)
        return device

    def synchronised(self, module: "nn.Module", device: "torch.device") -> "nn.Module":
        """The module, its gradients averaged over the processes at the end of each backward pass."""
        if self.size == 1:
            return module
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
        wrapped = DistributedDataParallel(
            module,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=dist.new_group(backend=backend, timeout=GRADIENT_TIMEOUT),
            gradient_as_bucket_view=True,
        )
        wrapped.broadcast_buffers = False  # they are constants; as an argument, torch 2.13 has renamed it
        return wrapped

    def unsynchronised(self, module: "nn.Module") -> contextlib.AbstractContextManager[None]:
        """For the forward and backward passes of all but an update's last micro-batch: their gradients add up here."""
        if self.size == 1:
            return contextlib.nullcontext()
        from torch.nn.parallel import DistributedDataParallel

        assert isinstance(module, DistributedDataParallel)
        return module.no_sync()


ALONE = Ranks()


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """Join the processes that a launcher has started, for the length of the block; alone, nothing is done.

    If the block fails in one process all of them end, with its message, once, and its exit code.
    """
    ranks = _from_environment()
    if ranks.size == 1:
        yield ranks
        return
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(rendezvous("env://", timeout=MEETING_TIMEOUT))
        dist.init_process_group("gloo", store=store, rank=ranks.rank, world_size=ranks.size, timeout=HOST_TIMEOUT)
        # Its own connection: an operation that waits may hold the other.
        monitor = _FailureMonitor(ranks, store.clone())
    except RuntimeError as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise TrainingError(
            f"process {ranks.rank} of {ranks.size} has not met the others at {place}: {error}"
        ) from None
    try:
        yield ranks
        ranks.wait()  # nobody takes the store away while another still needs it
    except BaseException as error:
        monitor.fail(error)
    monitor.close()
    dist.destroy_process_group()


def is_launched() -> bool:
    """Whether a launcher has started this process, and has decided how many there are."""
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
    """Ends this process when another has failed, wherever it may be waiting.

    A process that fails says so in the store that all share. A process that waits for it inside a collective operation
    cannot see that by itself: on a GPU it would wait until a timeout. So a thread looks once a second.
    """

    def __init__(self, ranks: Ranks, store: "Store") -> None:
        self._who = "" if ranks.is_main else f"process {ranks.rank} of {ranks.size}: "
        self._store = store
        self._keeps_store = ranks.is_main and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="nmt-watch", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._closed.wait(SECONDS_BETWEEN_LOOKS):
            try:
                if self._store.check(["nmt/exit_code"]):
                    self._leave(int(self._store.get("nmt/exit_code")))
            except RuntimeError:  # the store has gone with the process that kept it
                if not self._closed.wait(10 * SECONDS_BETWEEN_LOOKS):  # else all is well: that one was done first
                    print(
                        f"nmt: {self._who}the process that started this one, or the first one, has ended",
                        file=sys.stderr,
                    )
                    _end(TrainingError.exit_code)

    def fail(self, error: BaseException) -> NoReturn:
        """End this process and thereby all; the first to fail says why."""
        for number in (signal.SIGINT, signal.SIGTERM):  # from a launcher that has seen another one fail
            signal.signal(number, signal.SIG_IGN)
        if _is_lost_connection(error):
            error = TrainingError(
                "another process has died without a word; the same command goes on from the last checkpoint"
            )
        who = "" if isinstance(error, InterruptedTrainingError) else self._who  # that one, all raise together
        if isinstance(error, NmtError):
            code, message = error.exit_code, f"nmt: {who}{error}"
        elif isinstance(error, SystemExit):
            code, message = error.code if isinstance(error.code, int) else 1, ""
        else:
            code, message = 1, "".join(traceback.format_exception(error)).rstrip()
        try:
            is_first = self._store.add("nmt/failures", 1) == 1
        except RuntimeError:
            is_first = True
        if not is_first:
            self._closed.wait(10 * SECONDS_BETWEEN_LOOKS)  # `_look` ends this process, with the first one's exit code
            _end(code)
        if message:
            print(message, file=sys.stderr)
            _report_to_torchrun(message)
        self._closed.set()
        with contextlib.suppress(RuntimeError):
            self._store.set("nmt/exit_code", str(code))
        self._leave(code)

    def _leave(self, code: int) -> NoReturn:
        if self._keeps_store:
            time.sleep(3 * SECONDS_BETWEEN_LOOKS)  # until the others have looked
        _end(code)

    def close(self) -> None:
        """All went well; stop looking."""
        self._closed.set()
        self._thread.join()


def _is_lost_connection(error: BaseException) -> bool:
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _report_to_torchrun(message: str) -> None:
    """Into the file whose text torchrun shows below the pages that it prints by itself when a process fails."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        details = {"py_callstack": message, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError):
            Path(file).write_text(json.dumps({"message": {"message": message, "extraInfo": details}}), encoding="utf-8")


def _end(code: int) -> NoReturn:
    """Leave at once: taking the groups down would wait for processes that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
