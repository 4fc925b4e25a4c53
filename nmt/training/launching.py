"""Starting the processes of a training on this machine, and ending with them.

They are started and watched by the part of torchrun that does just this (torch.distributed.elastic.multiprocessing):
torchrun as a whole would print pages of its own about an error, end a saving process after 30 seconds, and exit with 1.
"""

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Sequence
from types import FrameType

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, start_processes
from torch.distributed.elastic.utils.distributed import create_c10d_store

from nmt.processes import cores_to_use
from nmt.training.interruption import SIGNALS

HOST = "127.0.0.1"

# It logs what it does about a process that failed, which has said all that a user can use.
logging.getLogger("torch.distributed.elastic").addHandler(logging.NullHandler())
logging.getLogger("torch.distributed.elastic").propagate = False


def launch(count: int, command: Sequence[str], threads: int | None = None) -> int:
    """Run `command` in `count` processes that find each other by `nmt.distributed.joined`; return its exit code.

    Each computes with `threads` threads, by default its share of the cores. A signal to this process goes to all of
    them. One that fails has said why, and ends the others; its exit code is returned.
    """
    # Here, so that it cannot be gone before those who ask it; on a free port.
    store = create_c10d_store(is_server=True, server_addr=HOST, server_port=0, wait_for_workers=False)
    of_all = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": str(True),
        "OMP_NUM_THREADS": str(threads or max(1, cores_to_use() // count)),
        # Nothing but this machine, whose own name may lead nowhere.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo0" if os.uname().sysname == "Darwin" else "lo"),
    }
    environments = {rank: {**of_all, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)}
    program, *arguments = command
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # by ending; the others are seen to here
    with tempfile.TemporaryDirectory() as folder:
        logs = DefaultLogsSpecs(log_dir=folder)  # of no use to us, and it cannot be had without
        context = start_processes("nmt", program, dict.fromkeys(environments, tuple(arguments)), environments, logs)
        _pass_on(context, [number for number, handler in handlers.items() if handler != signal.SIG_IGN])
        try:
            result = context.wait(period=0.2)
        finally:
            context.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
    assert result is not None, "it waits without a timeout"
    codes = [failure.exitcode for failure in sorted(result.failures.values(), key=lambda failure: failure.timestamp)]
    # Who was killed could not say why; the others say that it is gone, and exit with a code of their own.
    return next((code for code in codes if code > 0), 128 - codes[0]) if codes else 0


def _pass_on(context: PContext, numbers: Sequence[int]) -> None:
    """Send signals on to the processes, which are in sessions of their own; ignore the others, as before."""

    def send(number: int, frame: FrameType | None) -> None:
        for pid in context.pids().values():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)

    for number in SIGNALS:
        signal.signal(number, send if number in numbers else signal.SIG_IGN)
