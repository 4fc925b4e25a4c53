"""Fresh interpreters that work beside this one: messages go in, answers come out.

A worker imports the module that it is told, and nothing else of this process. It reads requests from its standard input
and answers on its standard output; it goes when its input ends, however the parent ended. So there is no `__main__` to
import again, nothing to be pickled, and nobody who outlives the parent. A session of its own keeps Ctrl-C from it.
"""

import contextlib
import json
import os
import queue
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, BinaryIO

from nmt import errors
from nmt.errors import NmtError, TrainingError, missing_package

Answer = Callable[[Sequence[bytes]], Sequence[bytes]]
"""What a worker does: the parts of a request -> the parts of its answer."""


def available_cores() -> int:
    """Cores that this process may use: by its affinity, and by a container's quota of CPU time where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no quota (Linux control groups, version 2)
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def cores_to_use() -> int:
    """Cores that computing may keep busy: as many as OMP_NUM_THREADS says, or all that are available."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else available_cores()


def python_command(program: str, *arguments: str) -> list[str]:
    """The command that runs a program's text in a fresh interpreter, which finds what this one finds."""
    head = "import sys; sys.path[:] = sys.argv.pop(1).split(chr(10)); "
    return [sys.executable, "-c", head + program, "\n".join(sys.path), *arguments]


class Workers:
    """One process for each of `settings`, which are JSON, running `serve(settings)` of a module.

    Here, each has a thread that hands it a request and waits for what comes of it.
    """

    def __init__(self, module: str, settings: Sequence[Any], environment: Mapping[str, str]) -> None:
        program = f"from {module} import serve; serve(sys.argv[1])"
        self._processes = [
            subprocess.Popen(
                python_command(program, json.dumps(of_one)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **environment},
                start_new_session=True,
            )
            for of_one in settings
        ]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._pool = ThreadPoolExecutor(len(settings))

    def __len__(self) -> int:
        return len(self._processes)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()  # it holds nothing that could be lost
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(OSError):  # what the dead one did not read
                    stream.close()

    def submit(self, parts: Sequence[bytes], task: str) -> "Future[Sequence[bytes]]":
        """The answer to a request, from whichever worker is free first.

        Raises the `NmtError` that ended the work, or a `TrainingError`, "a process that `task` ...", if its process
        dies.
        """
        return self._pool.submit(self._ask, parts, task)

    def _ask(self, parts: Sequence[bytes], task: str) -> Sequence[bytes]:
        process = self._idle.get()  # there are as many threads as processes
        assert process.stdin is not None
        assert process.stdout is not None
        answer = None
        try:
            with contextlib.suppress(OSError):
                send(process.stdin, parts)
                answer = receive(process.stdout)
        finally:
            self._idle.put(process)  # dead or alive, or the thread of another request would wait for it for ever
        if answer is None:
            raise TrainingError(
                f"a process that {task} {_end_of(process.wait())}; if memory ran out, close other programs or raise "
                "the limit; the same command begins again"
            )
        kind, *result = answer
        if kind:
            raise getattr(errors, kind.decode())(result[0].decode())
        return result


def _end_of(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def answer_requests(prepare: Callable[[], Answer]) -> None:
    """What a worker's `serve` does: answer each request of standard input until there are no more.

    `prepare` is called at the first one, so that its `NmtError` has a request to answer.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    answer: Answer | None = None
    while (request := receive(sys.stdin.buffer)) is not None:
        try:
            answer = answer or prepare()
            parts = [b"", *answer(request)]
        except NmtError as error:
            parts = _reported(error)
        except ModuleNotFoundError as error:
            missing = missing_package(error)
            if missing is None:
                raise
            parts = _reported(missing)
        try:
            send(answers, parts)
        except BrokenPipeError:  # nobody listens any more
            os._exit(0)


def _reported(error: NmtError) -> list[bytes]:
    return [type(error).__name__.encode(), str(error).encode()]


def send(stream: IO[bytes], parts: Sequence[bytes]) -> None:
    """A message: the number of its parts, their sizes, the parts."""
    stream.write(struct.pack(f"<{len(parts) + 1}q", len(parts), *map(len, parts)))
    stream.writelines(parts)
    stream.flush()


def receive(stream: IO[bytes] | BinaryIO) -> list[bytes] | None:
    """The parts of the next message; None if the other side has gone."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (number,) = struct.unpack("<q", head)
    sizes = stream.read(8 * number)
    if len(sizes) < 8 * number:
        return None
    parts = [stream.read(size) for size in struct.unpack(f"<{number}q", sizes)]
    return parts if sum(map(len, parts)) == sum(struct.unpack(f"<{number}q", sizes)) else None
