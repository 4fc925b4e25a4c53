"""The name of the installed package, its extras, and the messages where one is missing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from nmt.errors import missing_package

REPOSITORY = Path(__file__).parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_no_message_installs_nmt_from_the_package_index() -> None:
    assert PROJECT["name"] != "nmt"  # another project's name there
    assert PROJECT["scripts"] == {"nmt": "nmt.cli.main:main"}
    files = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", REPOSITORY / "pyproject.toml"]
    for folder in ("nmt", "configs", "scripts"):
        files += [path for path in (REPOSITORY / folder).rglob("*") if path.suffix in (".py", ".md", ".yaml", "")]
    for path in files:
        if path.is_file():
            found = re.search(r"""(?<!un)install\s+['"]?nmt\b(?!-)|['"]nmt\[""", path.read_text(encoding="utf-8"))
            assert found is None, f"{path}: {found}"


def test_extras_named_in_messages_exist() -> None:
    named = set()
    for path in (REPOSITORY / "nmt").rglob("*.py"):
        calls = r"(?:how_to_install\(|import_extra\([^,)]+, )['\"](\w+)"
        named |= set(re.findall(calls, path.read_text(encoding="utf-8")))
    assert named == {
        "image",
        "tensorboard",
        "langid",
        "hf",
        "onnx",
        "zst",
    }  # BLEU's follow from the language, and are tested with it
    assert named < PROJECT["optional-dependencies"].keys()
    of_dev = PROJECT["optional-dependencies"]["dev"][0]
    extras = ",".join(PROJECT["optional-dependencies"].keys() - {"dev"})
    assert sorted(of_dev) == sorted(f"{PROJECT['name']}[{extras}]")  # so that no test is skipped


@pytest.mark.parametrize(
    ("system", "machine", "has_wheels"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", True),
        ("darwin", "arm64", True),
        ("win32", "AMD64", True),
        ("win32", "ARM64", False),
        ("linux", "ppc64le", False),
        ("linux", "armv7l", False),
    ],
)
def test_ctranslate2_is_needed_where_it_has_wheels(system: str, machine: str, has_wheels: bool) -> None:
    """As `pip download --only-binary=:all: --platform` finds them for 4.8.2 and 4.8.5."""
    (marker,) = (one.marker for one in map(Requirement, PROJECT["dependencies"]) if one.name == "ctranslate2")
    assert marker
    assert marker.evaluate({"sys_platform": system, "platform_machine": machine}) is has_wheels


def test_each_package_that_a_command_can_lack_is_named() -> None:
    for one in map(Requirement, PROJECT["dependencies"]):
        if one.name not in ("typer", "pyyaml", "pydantic"):  # without these, no command starts
            error = missing_package(ModuleNotFoundError(name=one.name))
            assert error is not None, one.name
            assert f"pip install {one.name}" in str(error)
    assert missing_package(ModuleNotFoundError(name="nmt.misspelt")) is None


def test_an_unknown_extra_is_refused() -> None:
    install = [REPOSITORY / "scripts" / "install", "ja", "jp"]
    done = subprocess.run(install, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "jp is not an extra of nmt; there are: ja ko image tensorboard langid onnx hf zst dev\n",
    )


@pytest.mark.parametrize(
    ("error", "code", "last_line"),
    [
        ("RuntimeError('the cause')", 1, "RuntimeError: the cause"),
        ("RuntimeError('CUDA failed with error out of memory')", 3, "nmt: out of memory; lower decoding.batch_tokens"),
        ("MemoryError", 3, "nmt: out of memory; lower decoding.batch_tokens"),
    ],
)
def test_without_torch_the_cause_of_an_error_is_shown(error: str, code: int, last_line: str) -> None:
    program = f"""
import sys
for missing in ("torch", "safetensors", "sacrebleu"):
    sys.modules[missing] = None
import nmt.cli.main, nmt.cli.translate
def fail(*arguments):
    raise {error}
nmt.cli.translate.open_runs = fail
sys.argv = ["nmt", "translate", "hello"]
nmt.cli.main.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1].startswith(last_line)
    assert "ModuleNotFoundError" not in done.stderr
