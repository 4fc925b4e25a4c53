"""Worker processes as fresh interpreters: requests go in, answers come out, both pickled.

A worker reads requests from its standard input and answers on its standard output; it ends when its input does, however
the parent ended. It imports only what its work needs. It runs in a session of its own, so Ctrl-C does not reach it.

Why not `concurrent.futures.ProcessPoolExecutor`: its workers import `__main__`, which runs a script without a guard
again; they outlive a parent that is killed, and share the terminal's process group while they start. Each has a
workaround: hiding `__main__`, blocking signals, watching the parent in a thread. Even then a pool takes twice as long
to start, delays Ctrl-C until the current work is done, does not say how a worker died, and in some releases of
Python 3.11 hangs when one dies (gh-94777).
"""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

from nmt.errors import NmtError, TrainingError, missing_package

Request = TypeVar("Request")
Answer = TypeVar("Answer")

BROKEN_OFF = (EOFError, pickle.UnpicklingError)
"""What pickle raises when the writer has ended, before a message or in the middle of one."""


def available_cores() -> int:
    """Cores that this process may use: by its affinity, and by a container's quota of CPU time where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no quota (Linux control groups, version 2)
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def cores_to_use() -> int:
    """Cores to compute with: OMP_NUM_THREADS if it is set, else all that are available."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else available_cores()


def python_command(program: str, *arguments: str) -> list[str]:
    """The command that runs a program's text in a fresh interpreter with this one's import path."""
    head = "import sys; sys.path[:] = sys.argv.pop(1).split(chr(10)); "
    return [sys.executable, "-c", head + program, "\n".join(sys.path), *arguments]


class Workers(Generic[Request, Answer]):
    """One process for each of `prepare`, which are functions that return the function that answers requests.

    A worker calls its `prepare` at its first request. In this process, a thread for each worker sends it a request and
    waits for the answer.
    """

    def __init__(
        self, prepare: Sequence[Callable[[], Callable[[Request], Answer]]], environment: Mapping[str, str]
    ) -> None:
        program = "from nmt.processes import serve; serve(sys.argv[1])"
        self._processes = [
            subprocess.Popen(
                python_command(program, pickle.dumps(of_one).hex()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **environment},
                start_new_session=True,
            )
            for of_one in prepare
        ]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._pool = ThreadPoolExecutor(len(prepare))

    def __len__(self) -> int:
        return len(self._processes)

    def __enter__(self) -> "Workers[Request, Answer]":
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()  # it holds nothing that could be lost
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(OSError):  # data that a dead worker did not read
                    stream.close()

    def submit(self, request: Request, task: str) -> Future[Answer]:
        """The answer to a request, from the first worker that is free.

        Raises the `NmtError` that ended the work, or a `TrainingError`, "a process that `task` ...", if its process
        dies.
        """
        return self._pool.submit(self._ask, request, task)

    def _ask(self, request: Request, task: str) -> Answer:
        process = self._idle.get()  # there are as many threads as processes
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(request, process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            answer: Answer | NmtError = pickle.load(process.stdout)
        except (OSError, *BROKEN_OFF):
            raise TrainingError(
                f"a process that {task} {_end_of(process.wait())}; if memory ran out, close other programs or raise "
                "the limit, and run the same command again"
            ) from None
        finally:
            self._idle.put(process)  # even if dead, or another request's thread would wait for it forever
        if isinstance(answer, NmtError):
            raise answer
        return answer


def _end_of(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def serve(prepare: str) -> None:
    """A worker's main function: answer each request on standard input until there are no more.

    `prepare` is one of those of `Workers`, pickled, in hexadecimal; an `NmtError` that it raises answers the first
    request.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that what a library prints is not taken for an answer
    work: Callable[[object], object] | None = None
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except BROKEN_OFF:
            return
        try:
            work = work or pickle.loads(bytes.fromhex(prepare))()
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
        except BrokenPipeError:  # the parent has ended
            os._exit(0)
