"""Starting the processes of a training on this machine.

torch.distributed.elastic.multiprocessing, the part of torchrun that starts and supervises processes, is used alone:
torchrun itself prints pages about an error, kills a process that is saving after 30 seconds, and exits with 1.
"""

import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from types import FrameType

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, start_processes
from torch.distributed.elastic.utils.distributed import create_c10d_store

from nmt.system.processes import cores_to_use
from nmt.training.limits import SIGNALS

HOST = "127.0.0.1"

# It logs how it handles a failed process, which has already printed its own message.
logging.getLogger("torch.distributed.elastic").addHandler(logging.NullHandler())
logging.getLogger("torch.distributed.elastic").propagate = False


def launch(count: int, command: Sequence[str], threads: int | None = None) -> int:
    """Run `command` in `count` processes that meet in `nmt.system.distributed.joined`; return the exit code.

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
