"""The layout: packages import only those above them, and light modules no torch; examples in docstrings are true."""

import ast
import doctest
import graphlib
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "nmt"
LAYERS = [
    "errors", "version", "system", "config", "models", "runs", "corpora", "cleaning", "tokenizers", "batches",
    "decoding", "evaluation", "training", "interop", "recipes", "insight", "cli", "__init__", "__main__",
]  # fmt: skip
"""Each imports only those before it."""
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py" or path.parent == PACKAGE
}


def imported_modules(name: str) -> set[str]:
    """The project's other modules that a module imports, anywhere in it, named as in MODULES."""
    names = []
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute here"
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]  # the name may be a module
    return {inner for full in names if full and (inner := full.removeprefix("nmt.")) in MODULES and inner != full}


def test_a_package_imports_only_packages_above_it() -> None:
    layer = {name: LAYERS.index(name.partition(".")[0]) for name in MODULES}
    assert [(a, b) for a in MODULES for b in imported_modules(a) if layer[b] > layer[a]] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graphlib.TopologicalSorter({name: imported_modules(name) for name in MODULES}).prepare()  # CycleError names them


def test_a_command_imports_no_other_command() -> None:
    allowed = {"cli.options", *(name for name in MODULES if not name.startswith("cli."))}
    commands = [name for name in MODULES if name.startswith("cli.") and name != "cli.main"]
    assert [(name, other) for name in commands for other in imported_modules(name) - allowed] == []


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


OF_A_RUN = {"__init__", "tokenizers.tokenizer", "decoding.alignment", "decoding.translator"}  # whose examples need one


@pytest.mark.parametrize(
    "name",
    [name for name, path in MODULES.items() if ">>> " in path.read_text(encoding="utf-8") and name not in OF_A_RUN],
)
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"nmt.{name}"))
    assert result.attempted
    assert not result.failed
