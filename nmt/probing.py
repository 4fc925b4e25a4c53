"""Whether packages can be imported, and what torch's devices are, found out by other processes.

A package that is broken may raise anything, or end its process; here it gives a line instead.
"""

import dataclasses
import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nmt.processes import end_of, processor_name, python_command

DEVICES = "devices"
"""The question for torch's devices, beside those for modules."""
_SECONDS = 120.0
_PROBED = str(Path(__file__).with_name("probed.py"))


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
        command = python_command(f"import runpy; runpy.run_path({_PROBED!r}, run_name='__main__')", *rest)
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
    devices = [
        Device(**{**device, "model": device["model"] or processor_name()}) for device in fields.get("devices", ())
    ]
    return Answer(**{**fields, "error": _shortened(fields.get("error", "")), "devices": tuple(devices)})


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:297]}..."
