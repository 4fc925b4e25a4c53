"""Worker processes as fresh interpreters that receive pickled requests and return pickled answers.

A worker reads requests from standard input and writes answers to standard output; it exits at the end of its input,
even if the parent was killed. It imports only what it needs. It runs in a new session, so Ctrl-C does not reach it.

`concurrent.futures.ProcessPoolExecutor` falls short. Its workers import `__main__`, which runs a script without a guard
again; they outlive a parent that is killed, and share the terminal's process group while they start. There are
workarounds: hiding `__main__`, blocking signals, watching the parent in a thread. Even then a pool takes twice as long
to start, delays Ctrl-C until the current work is done, does not report how a worker died, and hangs after a worker's
death in some releases of Python 3.11 (gh-94777).
"""

import contextlib
import os
import pickle
import platform
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

from nmt.errors import NmtError, TrainingError, missing_package

Request = TypeVar("Request")
Answer = TypeVar("Answer")

MAX_PROCESSES = 5
"""A process that encodes text takes about 45 MB, and the trainer 240 MB with torch: together at most 500 MB. Threads of
SentencePiece use the other cores."""
MIN_PAIRS = 20_000  # with fewer, starting processes takes longer than the work

GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
"""Signals that end a training; if several have been received, the first in this order is reported."""

WRITER_EXITED = (EOFError, pickle.UnpicklingError)
"""Exceptions of pickle when the writer has exited, before a message or in the middle of one."""


def available_cores() -> int:
    """Number of cores that this process may use, by its affinity and the container's quota of CPU time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in control_groups("cpu"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no quota (version 2)
            quota, period = (group / "cpu.max").read_text().split()
            cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def control_groups(controller: str) -> Iterator[Path]:
    """Folders of this process's control group and of all groups around it (Linux, version 2 or 1); some may not exist.

    A container often sees the path of its group on the host, while its own group is at the top.
    """
    with contextlib.suppress(OSError):
        for line in OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                top = GROUPS / controller if controllers else GROUPS
                group = top / path.lstrip("/")
                yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def cores_to_use() -> int:
    """Number of cores to compute with: OMP_NUM_THREADS if it is set, else all available ones."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else available_cores()


def bound_kernel_caches(capacity: str) -> None:
    """Bound the number of CPU kernels kept in memory; call it before torch is loaded. The user's own settings are kept.

    oneDNN makes a kernel of up to 2 MB for each batch shape. It keeps 1,024, and torch as many again.
    """
    if "DNNL_PRIMITIVE_CACHE_CAPACITY" not in os.environ:  # the older name, which the new one would override
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", capacity)
    os.environ.setdefault("LRU_CACHE_CAPACITY", capacity)


def num_processes_for(num_pairs: int) -> int:
    """The number of worker processes for reading a corpus of N pairs."""
    return min(available_cores(), MAX_PROCESSES) if num_pairs >= MIN_PAIRS else 0


def processor_name() -> str:
    """The processor's name, as far as the system reports it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def python_command(program: str, *arguments: str) -> list[str]:
    """The command that runs a program's source text in a fresh interpreter with the same import path."""
    head = "import sys; sys.path[:] = sys.argv.pop(1).split(chr(10)); "
    return [sys.executable, "-c", head + program, "\n".join(sys.path), *arguments]


class Workers(Generic[Request, Answer]):
    """Worker processes, one for each function in `prepare`, which returns the function that answers requests.

    A worker calls its `prepare` function at its first request. In this process, one thread for each worker sends it
    requests and waits for the answers.
    """

    def __init__(
        self, prepare: Sequence[Callable[[], Callable[[Request], Answer]]], environment: Mapping[str, str]
    ) -> None:
        self._processes = [
            subprocess.Popen(
                python_command("from nmt.system.processes import serve; serve()"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **environment},
                start_new_session=True,
            )
            for _ in prepare
        ]
        # With the pickled function, which is sent before the first request: it may exceed a command line's 128 KB.
        self._idle: queue.SimpleQueue[tuple[subprocess.Popen[bytes], bytes]] = queue.SimpleQueue()
        for process, function in zip(self._processes, prepare, strict=True):
            self._idle.put((process, pickle.dumps(function)))
        self._pool = ThreadPoolExecutor(len(prepare))

    def __len__(self) -> int:
        return len(self._processes)

    def __enter__(self) -> "Workers[Request, Answer]":
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()  # it has no state to save
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(OSError):  # unsent data for a dead worker
                    stream.close()

    def submit(self, request: Request, task: str) -> Future[Answer]:
        """Send a request to the first idle worker; the future holds its answer.

        The future raises the `NmtError` that the worker raised, or a `TrainingError`, "a process that `task` ...", if
        the worker dies.
        """
        return self._pool.submit(self._ask, request, task)

    def _ask(self, request: Request, task: str) -> Answer:
        process, prepare = self._idle.get()  # never waits: there are as many threads as processes
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if prepare:
                pickle.dump(prepare, process.stdin, pickle.HIGHEST_PROTOCOL)
            pickle.dump(request, process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            answer: Answer | NmtError = pickle.load(process.stdout)
        except (OSError, *WRITER_EXITED):
            raise TrainingError(
                f"a process that {task} {exit_reason(process.wait())}; if memory ran out, close other programs or "
                "raise the limit, and run the same command again"
            ) from None
        finally:
            self._idle.put((process, b""))  # even if it is dead: the next request would wait forever
        if isinstance(answer, NmtError):
            raise answer
        return answer


def exit_reason(code: int) -> str:
    """The end of a sentence about a process with this exit code: `was ended by SIGKILL`."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def serve() -> None:
    """Answer the requests from standard input until its end: the main function of a worker.

    The worker's pickled function comes before the first request. An `NmtError` that it raises is the answer.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that a library's print cannot corrupt an answer
    prepare: bytes | None = None
    work: Callable[[object], object] | None = None
    while True:
        try:
            prepare = prepare or pickle.load(sys.stdin.buffer)
            request = pickle.load(sys.stdin.buffer)
        except WRITER_EXITED:
            return
        try:
            work = work or pickle.loads(prepare)()
            answer = work(request)
        except NmtError as error:
            answer = error
        except ModuleNotFoundError as error:
            answer = missing_package(error)
            if answer is None:
                raise
        try:
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
        except BrokenPipeError:  # the parent has exited
            os._exit(0)
