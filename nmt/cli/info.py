"""`nmt info`."""

import dataclasses
import json
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nmt.cli.options import JsonOption

if TYPE_CHECKING:  # imported when the command runs
    from nmt.environment import Environment, Package
    from nmt.probing import Device


def info(as_json: JsonOption = False) -> None:
    """Print versions, devices, and which optional packages are missing: what a bug report needs."""
    from nmt.environment import read_environment

    environment = read_environment()
    print(json.dumps(dataclasses.asdict(environment)) if as_json else "\n".join(_lines(environment)))


def _lines(environment: "Environment") -> Iterator[str]:
    memory = "" if environment.memory_gb is None else f", {environment.memory_gb:g} GB of memory"
    yield f"nmt         {environment.nmt}, Python {environment.python}"
    yield f"system      {environment.system}"
    yield f"processor   {environment.processor}{memory}"
    yield f"cores       {environment.cores}, of which commands use {environment.threads}"
    for number, device in enumerate(environment.devices):
        yield f"{'' if number else 'devices':<12}{_device(device)}"
    if environment.devices_error:
        yield f"devices     not known: {environment.devices_error}"
    working = [f"{package.name}={package.version}" for package in environment.packages if not package.error]
    yield from textwrap.wrap(f"packages    {' '.join(working) or 'none'}", 100, subsequent_indent=" " * 12)
    for package in environment.packages:
        if package.error:
            yield f"            {_broken(package)}"
    for number, extra in enumerate(environment.extras):
        found = ", ".join(f"{package.name} {package.version}".rstrip() for package in extra.packages)
        yield f"{'' if number else 'extras':<12}{extra.name:<12} {found if extra.works else f'for {extra.purpose}'}"
        if not extra.works:
            yield from (f"{'':<25}{_broken(package)}" for package in extra.packages if package.error)
            yield f"{'':<25}{extra.how_to_install}"


def _device(device: "Device") -> str:
    memory = "" if device.memory_gb is None else f", {device.memory_gb:g} GB"
    speeds = [f"{name} {times:g} times as fast as fp32" for name, times in device.speed.items() if name != "fp32"]
    return "; ".join([f"{device.name} ({device.model}{memory})", *speeds, *([device.error] if device.error else [])])


def _broken(package: "Package") -> str:
    if package.is_missing:
        return f"{package.name} is not installed"
    return f"{package.name} {package.version}".rstrip() + f" cannot be used: {package.error}"
