"""`nmt info`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nmt.cli.options import JsonOption, show_result

if TYPE_CHECKING:  # imported when the command runs
    from nmt.system.environment import Device, Environment, Package


def info(as_json: JsonOption = False) -> None:
    """Print versions, devices and missing optional packages, for a bug report."""
    from nmt.system.environment import read_environment

    environment = read_environment()
    show_result(as_json, environment, _lines(environment))


def _lines(environment: "Environment") -> Iterator[str]:
    memory = "" if environment["memory_gb"] is None else f", {environment['memory_gb']:g} GB of memory"
    yield f"nmt         {environment['nmt']}, Python {environment['python']}"
    yield f"system      {environment['system']}"
    yield f"processor   {environment['processor']}{memory}"
    yield f"cores       {environment['cores']}, of which commands use {environment['threads']}"
    for number, device in enumerate(environment["devices"]):
        yield f"{'' if number else 'devices':<12}{_device(device)}"
    working = [f"{package['name']}={package['version']}" for package in environment["packages"] if not package["error"]]
    yield f"packages    {' '.join(working) or 'none'}"
    for package in environment["packages"]:
        if package["error"]:
            yield f"            {_broken(package)}"
    for number, extra in enumerate(environment["extras"]):
        versions = ", ".join(f"{package['name']} {package['version']}" for package in extra["packages"])
        found = f"for {extra['purpose']}" if extra["how_to_install"] else versions
        yield f"{'' if number else 'extras':<12}{extra['name']:<12} {found}"
        yield from (f"{'':<25}{_broken(package)}" for package in extra["packages"] if package["error"])
        if extra["how_to_install"]:
            yield f"{'':<25}{extra['how_to_install']}"


def _device(device: "Device") -> str:
    memory = "" if device["memory_gb"] is None else f", {device['memory_gb']:g} GB"
    speed = "" if device["bf16_speed"] is None else f"; bf16 {device['bf16_speed']:g} times as fast as fp32"
    return f"{device['name']} ({device['model']}{memory}){speed}"


def _broken(package: "Package") -> str:
    return f"{package['name']} {package['version']}".rstrip() + f": {package['error']}"
