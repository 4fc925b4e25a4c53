"""How threads that wait for each other leave the cores to other programs.

A step of training or decoding has hundreds of OpenMP barriers, where the thread that is done first waits for the
others. GNU's library lets it spin for milliseconds, which is fastest on an idle machine. Where another program has
taken a core, the thread spins while the one that it waits for is off the core, and a step takes 65 times as long. To
spin less always costs a fifth of the speed (scripts/README.md). So a thread watches how long those of this process
wait for a core, and has them spin less while they do. What is computed stays the same, to the bit.
"""

import contextlib
import functools
import os
import sys
import threading
import time
from pathlib import Path

SPIN_COUNT, BLOCK_TIME, POLICY = "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY"
TASKS = Path("/proc/self/task")
SECONDS_BETWEEN_LOOKS = 0.25
# Shares of the time that threads wait for a core: with another program at work some 30% or more, without one below 5%.
BUSY, QUIET = 0.20, 0.05


def bound_waiting() -> None:
    """Where waiting cannot be watched, have threads sleep soon always; before torch is loaded, for a whole process.

    What the user has set stays.
    """
    if _is_chosen():
        return
    os.environ[BLOCK_TIME] = "1"  # LLVM's and Intel's libraries, in milliseconds
    if sys.platform == "win32":
        os.environ[POLICY] = "PASSIVE"  # Microsoft's has nothing between this and spinning
    elif waited_for_cores() is None:
        os.environ[SPIN_COUNT] = "1000"


def _is_chosen() -> bool:
    # Our own block time is inherited by processes that this one starts.
    return bool(os.environ.keys() & {SPIN_COUNT, POLICY}) or os.environ.get(BLOCK_TIME, "1") != "1"


def waited_for_cores() -> float | None:
    """Seconds that this process's threads have been ready to run without a core; None where that is not known."""
    nanoseconds = 0
    try:
        for task in TASKS.iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                nanoseconds += int((task / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return nanoseconds / 1e9


@functools.cache
def watch() -> None:
    """From now on, have the threads of this process spin only while no other program wants their cores."""
    import torch

    num_threads = torch.get_num_threads()
    if not _is_chosen() and num_threads > 1 and waited_for_cores() is not None:
        count = teams_needed(num_threads, len(os.sched_getaffinity(0)))
        threading.Thread(target=_watch, args=[count], name="nmt-waiting", daemon=True).start()


def teams_needed(num_threads: int, cores: int) -> int:
    """Idle teams beside a team of so many threads that make more threads than cores; each adds all but its first."""
    return max(0, cores - num_threads) // (num_threads - 1) + 1


def _watch(count: int) -> None:
    teams: list[_IdleTeam] = []
    waited, now = waited_for_cores() or 0.0, time.perf_counter()
    while True:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        before, began = waited, now
        waited, now = waited_for_cores() or 0.0, time.perf_counter()
        share = (waited - before) / (now - began)
        if share > BUSY and not teams:
            teams = [_IdleTeam() for _ in range(count)]
        elif share < QUIET and teams:
            for team in teams:
                team.leave()
            teams = []


class _IdleTeam:
    """One more team of OpenMP threads, which does nothing and takes no core.

    While a process has more such threads than the machine has cores, GNU's library spins 100 times instead of 300,000
    (its manual, at GOMP_SPINCOUNT).
    """

    def __init__(self) -> None:
        self._left = threading.Event()
        threading.Thread(target=self._stay, name="nmt-idle-team", daemon=True).start()

    def _stay(self) -> None:
        import torch

        torch.zeros(1 << 20).add_(1)  # large enough to be shared by a team, which this thread has from now on
        self._left.wait()

    def leave(self) -> None:
        """Have the team end."""
        self._left.set()
