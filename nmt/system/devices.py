"""The choice of device and precision, and settings of the whole process."""

import ctypes
import re
import sys
import time

import torch

from nmt.errors import ConfigError
from nmt.system.openmp import start_monitor


def choose_device(name: str) -> torch.device:
    """The device that `training.device` or `--device` names.

    `auto` is CUDA if available, else Apple's MPS, else the CPU. Raises `ConfigError` for a device that this machine
    does not have.
    """
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "mps" if has_mps else "cpu")
    try:
        # torch accepts many more device types, most of which this build does not support.
        device = torch.device(name) if re.fullmatch(r"cpu|mps|cuda(:\d+)?", name) else None
    except RuntimeError:  # an index too large for torch
        device = None
    if device is None:
        raise ConfigError(f"device {name!r} is not one of auto, cpu, cuda, cuda:N and mps")
    if device.type == "cuda" and (device.index or 0) >= (torch.cuda.device_count() if has_cuda else 0):
        raise ConfigError(f"device {name}: this machine has no such GPU; use `auto` or `cpu`")
    if device.type == "mps" and not has_mps:
        raise ConfigError(f"device {name}: this machine has no MPS; use `auto` or `cpu`")
    return device


def choose_dtype(precision: str, device: torch.device, key: str = "training.precision") -> torch.dtype:
    """The dtype of matrix products at a precision; `auto` is bf16 on a GPU that supports it, else fp32.

    Raises `ConfigError` if the device does not support the precision; the message names the setting `key`.
    """
    if precision == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bf16 else torch.float32
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError(f"{key}: fp16 is for GPUs; use fp32 or bf16 on the CPU")
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def bf16_slowdown(device: str = "cpu") -> float:
    """The time of a matrix product in bf16 on a device, divided by its time in fp32.

    A CPU without instructions for bf16 emulates it, which took 70 times as long when measured with AVX2 alone.
    """

    def seconds(matrix: torch.Tensor) -> float:
        began = time.perf_counter()
        (matrix @ matrix)[0, 0].item()  # waits for the device
        return time.perf_counter() - began

    size = 256 if device == "cpu" else 4096
    fp32, bf16 = (torch.ones(size, size, dtype=dtype, device=device) for dtype in (torch.float32, torch.bfloat16))
    # The shortest of five: other programs may disturb some, and a device's first product takes longer.
    return min(seconds(bf16) for _ in range(5)) / min(seconds(fp32) for _ in range(5))


def configure_process() -> None:
    """Apply process-wide settings, in a process that only trains or translates."""
    keep_freed_memory()
    start_monitor()


def keep_freed_memory() -> None:
    """Make glibc keep freed memory in the process instead of returning it to the system.

    By default glibc maps each large tensor and unmaps it when it is freed. The page faults take up to a fifth of a
    training step on a CPU, as measured. Other C libraries are not changed.
    """
    if sys.platform != "linux" or not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return
    trim_threshold, mmap_threshold = -1, -3  # malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
    # Older versions of glibc refuse more than 32 MB. Setting either threshold ends glibc's own adjustment, so this
    # value, which all accept, is set first.
    if libc.mallopt(mmap_threshold, 2**25):
        for option in (trim_threshold, mmap_threshold):
            libc.mallopt(option, 2**30)
