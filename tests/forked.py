"""Python processes that have loaded torch and nmt when they start: forks of one process, which computes nothing itself.

Loading both takes four seconds of a core, more than most trainings of the tests. For a test of what a process does,
how it ends, or what it leaves; one of how a process starts needs `subprocess`.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

TRAIN = "from nmt.cli.main import main\nmain()"


class Forked:
    """What `subprocess.Popen([sys.executable, "-c", program, *arguments], text=True)` gives, with both outputs kept."""

    def __init__(self, server: "ForkServer", program: str, arguments: tuple[str, ...], new_session: bool) -> None:
        self._server = server
        self.returncode: int | None = None
        reading, writing = os.pipe()
        self.stdout = os.fdopen(reading, encoding="utf-8")
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed by communicate
        request = {"program": program, "arguments": arguments, "cwd": str(Path.cwd()), "environment": dict(os.environ),
                   "new_session": new_session}  # fmt: skip
        self.pid: int = server.ask(request, [writing, self._stderr.fileno()])
        os.close(writing)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"ended": self.pid})
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Both outputs; standard output must fit into a pipe."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        with self.stdout, self._stderr:
            self._stderr.seek(0)
            return self.stdout.read(), self._stderr.read()


class ForkServer:
    """Starts programs; `close` ends it, not them."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def start(self, program: str, *arguments: str, new_session: bool = False) -> Forked:
        return Forked(self, program, arguments, new_session)

    def ask(self, request: dict[str, Any], fds: list[int] | None = None) -> Any:
        socket.send_fds(self._socket, [json.dumps(request).encode() + b"\n"], fds or [])
        return json.loads(self._socket.recv(100))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(timeout=60)


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; the request in a fork, None when the tests have ended."""
    while True:
        data, fds, _, _ = socket.recv_fds(connection, 1 << 16, 2)
        while data and not data.endswith(b"\n"):
            data += connection.recv(1 << 16)
        if not data:
            return None
        request = json.loads(data)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif (answer := os.fork()) == 0:
            connection.close()
            for ours, theirs in zip(fds, (1, 2), strict=True):
                os.dup2(ours, theirs)
                os.close(ours)
            return request
        for fd in fds:
            os.close(fd)
        connection.sendall(json.dumps(answer).encode())


def main() -> None:
    for name in ("torch._dynamo", "nmt.cli.main", "nmt.training.start"):  # the first optimizer loads torch._dynamo
        importlib.import_module(name)
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", *request["arguments"]]
    sys.path[0] = ""
    sys.modules["__main__"] = types.ModuleType("__main__")  # as with -c, other processes find no file to load
    exec(request["program"], sys.modules["__main__"].__dict__)


if __name__ == "__main__":
    main()
