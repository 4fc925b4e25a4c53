"""The layout: no circle of imports, light modules do not load torch, and the examples in docstrings are true."""

import ast
import doctest
import graphlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "nmt"

FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py" or path.parent == PACKAGE]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = {module_name(path): path for path in FILES}


def imported_modules(path: Path) -> Iterator[str]:
    """The project's modules that a file imports, anywhere in it, named as in MODULES."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            # `from nmt.data import corpus` names a module too
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "nmt":
                inner = parts[1:]
                while inner and ".".join(inner) not in MODULES:
                    inner.pop()
                yield ".".join(inner) or "__init__"


def test_no_files_import_each_other_in_a_circle() -> None:
    sorter = graphlib.TopologicalSorter({name: set(imported_modules(path)) for name, path in MODULES.items()})
    sorter.prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("program", ["import nmt", "import nmt.tokenizers.tokenizer"])
def test_torch_is_not_loaded_without_need(program: str) -> None:
    check = f"{program}\nimport sys; sys.exit('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_help_loads_next_to_nothing() -> None:
    program = (
        "import nmt.cli.main, sys; sys.argv = ['nmt', '--help']\ntry: nmt.cli.main.main()\nexcept SystemExit: pass"
    )
    slow = {"torch", "numpy", "ctranslate2", "asyncio", "sacrebleu", "sentencepiece"}
    check = f"{program}\nprint(*{slow} & set(sys.modules), file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert result.stderr == "\n"


OF_A_RUN = {"__init__", "data.tokenizer", "decoding.alignment", "decoding.translator"}  # whose examples need one


@pytest.mark.parametrize(
    "name",
    [name for name, path in MODULES.items() if ">>> " in path.read_text(encoding="utf-8") and name not in OF_A_RUN],
)
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"nmt.{name}"))
    assert result.attempted
    assert not result.failed
