"""OpenMP wait policy: threads spin less at barriers while other programs compete for the cores.

A step of training or decoding has hundreds of OpenMP barriers, where the first thread to finish waits for the others.
GNU's library spins there for milliseconds, which is fastest on an idle machine. When another program occupies a core,
a thread spins while the thread that it waits for has no core, and a step takes 65 times as long. Always spinning less
costs a fifth of the speed (docs/lab/speed.md). So a background thread measures how long this process's threads wait
for a core, and makes them spin less while that is long. The results are the same to the bit.
"""

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
from pathlib import Path

SPIN_COUNT, BLOCK_TIME, POLICY = "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY"
TASKS = Path("/proc/self/task")
POLL_SECONDS = 0.25
# Time that threads wait for a core, relative to elapsed time: 30% or more with another busy program, else below 5%.
BUSY, QUIET = 0.20, 0.05
_ENDING = threading.Event()


def limit_spinning() -> None:
    """Limit spinning for the whole process if waiting cannot be measured; call it before torch is loaded.

    The user's own settings are kept.
    """
    if _is_set_by_user():
        return
    os.environ[BLOCK_TIME] = "1"  # LLVM's and Intel's libraries, in milliseconds
    if sys.platform == "win32":
        os.environ[POLICY] = "PASSIVE"  # Microsoft's runtime has only this and spinning
    elif waited_for_cores() is None:
        os.environ[SPIN_COUNT] = "1000"


def _is_set_by_user() -> bool:
    # A block time of 1 may be ours, inherited from the parent process.
    return bool(os.environ.keys() & {SPIN_COUNT, POLICY}) or os.environ.get(BLOCK_TIME, "1") != "1"


def waited_for_cores() -> float | None:
    """Seconds in which this process's threads were ready to run but had no core; None if that cannot be measured."""
    nanoseconds = 0
    try:
        for task in TASKS.iterdir():
            with contextlib.suppress(ProcessLookupError):  # the thread has just exited
                nanoseconds += int((task / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return nanoseconds / 1e9


@functools.cache
def start_monitor() -> None:
    """Start the background thread that makes this process spin less while other programs compete for the cores."""
    import torch

    num_threads = torch.get_num_threads()
    if not _is_set_by_user() and num_threads > 1 and waited_for_cores() is not None:
        count = teams_needed(num_threads, len(os.sched_getaffinity(0)))
        monitor = threading.Thread(target=_monitor, args=[count], name="nmt-waiting", daemon=True)
        monitor.start()
        atexit.register(_end_monitor, monitor)


def _end_monitor(monitor: threading.Thread) -> None:
    """Wait until no thread is within torch, where the end of Python would abort the process."""
    _ENDING.set()
    monitor.join()


def teams_needed(num_threads: int, cores: int) -> int:
    """Number of idle teams that make the threads outnumber the cores; each team adds `num_threads - 1` threads."""
    return max(0, cores - num_threads) // (num_threads - 1) + 1


def _monitor(count: int) -> None:
    teams: list[threading.Event] = []
    waited, now = waited_for_cores() or 0.0, time.perf_counter()
    while not _ENDING.wait(POLL_SECONDS):
        before, began = waited, now
        waited, now = waited_for_cores() or 0.0, time.perf_counter()
        share = (waited - before) / (now - began)
        if share > BUSY and not teams:
            teams = [_idle_team() for _ in range(count)]
        elif share < QUIET and teams:
            for team in teams:
                team.set()
            teams = []


def _idle_team() -> threading.Event:
    """Start a team of OpenMP threads that does nothing and occupies no core, until the returned event is set.

    While a process has more OpenMP threads than the machine has cores, GNU's library spins 100 times instead of
    300,000 (GOMP_SPINCOUNT in its manual).
    """
    has_started, ended = threading.Event(), threading.Event()

    def run() -> None:
        import torch

        try:
            torch.zeros(1 << 20).add_(1)  # large enough to start a team, which this thread then keeps
        finally:
            has_started.set()
        ended.wait()

    threading.Thread(target=run, name="nmt-idle-team", daemon=True).start()
    has_started.wait()
    return ended
