"""The process that imports packages and measures devices, on behalf of probing.py.

It is run as a file and imports nothing of nmt, so that it starts quickly and needs no package. It writes a line of JSON
to standard output for each question among its arguments: a module's name, or `devices` for those of torch.
"""

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported where a question needs it
    import torch


def answer(questions: Sequence[str]) -> None:
    """Write the answers, each as the fields of `probing.Answer`."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # so that what a package prints is not taken for an answer
        for question in questions:
            print(json.dumps({"question": question, **_found_out(question)}), file=out, flush=True)


def _found_out(question: str) -> dict[str, Any]:
    try:
        if question == "devices":
            return {"devices": list(_devices())}
        version = getattr(importlib.import_module(question), "__version__", "")
    except ModuleNotFoundError as error:
        return {"error": _in_words(error), "is_missing": error.name == question}
    except BaseException as error:  # whatever a broken package raises, SystemExit included
        return {"error": _in_words(error)}
    return {"version": str(version) if version else ""}


def _devices() -> Iterator[dict[str, Any]]:
    import torch

    yield _measured(torch.device("cpu"), "", None, lambda: None)
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        properties = torch.cuda.get_device_properties(device)
        synchronize = functools.partial(torch.cuda.synchronize, device)
        yield _measured(device, properties.name, properties.total_memory, synchronize)
    if torch.backends.mps.is_available():
        yield _measured(torch.device("mps"), "", torch.mps.recommended_max_memory(), torch.mps.synchronize)


def _measured(device: "torch.device", model: str, memory: int | None, wait: Callable[[], None]) -> dict[str, Any]:
    """A device as the fields of `probing.Device`; `wait` returns when the device has computed."""
    import torch

    torch.set_num_threads(1)  # so that other programs on the machine disturb less
    size, error = 256 if device.type == "cpu" else 4096, ""
    seconds: dict[str, float] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        try:
            seconds[name] = seconds_of_a_product(size, dtype, device, wait)
        except Exception as failure:  # a device that is full, or lacks the precision
            error = error or f"{name}: {_in_words(failure)}"
    speed = {name: round(seconds["fp32"] / each, 2) for name, each in seconds.items() if "fp32" in seconds}
    memory_gb = None if memory is None else round(memory / 1e9, 1)
    return {"name": str(device), "model": model, "memory_gb": memory_gb, "speed": speed, "error": error}


def seconds_of_a_product(
    size: int, dtype: "torch.dtype", device: "torch.device", wait: Callable[[], None] = lambda: None
) -> float:
    """How long a product of two matrices takes; the shortest of four, since other programs may disturb some."""
    import torch

    matrix = torch.ones(size, size, dtype=dtype, device=device)
    return min(_seconds(functools.partial(torch.matmul, matrix, matrix), wait) for _ in range(4))


def _seconds(compute: Callable[[], object], wait: Callable[[], None]) -> float:
    wait()
    began = time.perf_counter()
    compute()
    wait()
    return time.perf_counter() - began


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


if __name__ == "__main__":
    answer(sys.argv[1:])
