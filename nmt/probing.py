"""Whether packages can be imported, and what torch's devices are, found out by other processes.

A package that is broken may raise anything, or end its process; here it gives a line instead.
"""

import dataclasses
import functools
import importlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nmt.processes import end_of, processor_name, python_command

if TYPE_CHECKING:  # imported in the other process
    import torch

DEVICES = "devices"
"""The question for torch's devices, beside those for modules."""
_SECONDS = 120.0
_GB = 1e9


@dataclasses.dataclass(frozen=True)
class Device:
    """A device that torch can compute on."""

    name: str
    """As `training.device` names it: `cpu`, `cuda:0`, `mps`."""
    model: str
    memory_gb: float | None
    """Its own memory; None for the CPU, or if torch does not say."""
    speed: dict[str, float]
    """Matrix products in each precision, as measured: how many times as fast as in fp32."""
    error: str
    """Why nothing could be measured, on one line; '' if it could."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What was found out about a module, or about the devices."""

    question: str
    """The module's name, or `DEVICES`."""
    version: str = ""
    """The module's own, or ''."""
    error: str = ""
    """Why it cannot be imported, on one line; '' if it can."""
    is_missing: bool = False
    """Whether there is no such module, rather than a broken one."""
    devices: tuple[Device, ...] = ()


def probe(groups: Sequence[Sequence[str]], seconds: float = _SECONDS) -> dict[str, Answer]:
    """An answer to each question; each group has its own process, at the same time as the others."""
    with ThreadPoolExecutor(len(groups)) as pool:
        answers = pool.map(lambda questions: _asked(questions, seconds), groups)
        return {answer.question: answer for of_group in answers for answer in of_group}


def _asked(questions: Sequence[str], seconds: float) -> list[Answer]:
    """The answers of one process; if it ends at a question, that is the answer, and another process takes the rest."""
    answers: list[Answer] = []
    while rest := list(questions[len(answers) :]):
        command = python_command("from nmt.probing import answer; answer(sys.argv[1:])", *rest)
        try:
            child = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds)
            output, errors, end = child.stdout, child.stderr, end_of(child.returncode)
        except subprocess.TimeoutExpired as late:
            output, errors, end = late.stdout or b"", b"", f"has not ended after {seconds:g} seconds"
        except OSError as error:  # no memory for a process
            output, errors, end = b"", b"", f"cannot be started: {error}"
        answers += [_received(line) for line in output.decode().split("\n")[:-1]]
        if len(answers) < len(questions):
            last = errors.decode(errors="replace").strip().rpartition("\n")[2]
            reason = f"a process that tried it {end}{f': {last}' if last else ''}"
            answers.append(Answer(questions[len(answers)], error=_shortened(reason)))
    return answers


def _received(line: str) -> Answer:
    fields = json.loads(line)
    return Answer(**{**fields, "devices": tuple(Device(**device) for device in fields["devices"])})


def answer(questions: Sequence[str]) -> None:
    """The other process's main function: a line of JSON for each answer, to standard output."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # so that what a package prints is not taken for an answer
        for question in questions:
            print(json.dumps(dataclasses.asdict(_found_out(question))), file=out, flush=True)


def _found_out(question: str) -> Answer:
    try:
        if question == DEVICES:
            return Answer(question, devices=tuple(_devices()))
        version = getattr(importlib.import_module(question), "__version__", "")
    except ModuleNotFoundError as error:
        return Answer(question, error=_one_line(error), is_missing=error.name == question)
    except BaseException as error:  # whatever a broken package raises, SystemExit included
        return Answer(question, error=_one_line(error))
    return Answer(question, str(version) if version else "")


def _devices() -> Iterator[Device]:
    import torch

    yield _measured(torch.device("cpu"), processor_name(), None, lambda: None)
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        properties = torch.cuda.get_device_properties(device)
        yield _measured(device, properties.name, properties.total_memory / _GB, torch.cuda.synchronize)
    if torch.backends.mps.is_available():
        memory = torch.mps.recommended_max_memory() / _GB
        yield _measured(torch.device("mps"), processor_name(), memory, torch.mps.synchronize)


def _measured(device: "torch.device", model: str, memory_gb: float | None, wait: Callable[[], None]) -> Device:
    """The device with the speed of a matrix product in each precision; `wait` returns when the device has computed."""
    import torch

    torch.set_num_threads(1)  # so that other programs on the machine disturb less
    size, seconds, error = 256 if device.type == "cpu" else 4096, {}, ""
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        try:
            matrix = torch.ones(size, size, dtype=dtype, device=device)
            seconds[name] = min(_seconds(functools.partial(torch.matmul, matrix, matrix), wait) for _ in range(4))
        except Exception as failure:  # a device that is full, or lacks the precision
            error = error or f"{name}: {_one_line(failure)}"
    speed = {name: round(seconds["fp32"] / time, 2) for name, time in seconds.items() if "fp32" in seconds}
    return Device(str(device), model, memory_gb and round(memory_gb, 1), speed, error)


def _seconds(compute: Callable[[], object], wait: Callable[[], None]) -> float:
    wait()
    began = time.perf_counter()
    compute()
    wait()
    return time.perf_counter() - began


def _one_line(error: BaseException) -> str:
    return _shortened(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:297]}..."
