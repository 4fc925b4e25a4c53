"""The table of scripts/break_it matches the code: each old text occurs once, and each test exists."""

import ast
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "nmt"


def quick_tests_of(file: Path) -> set[str]:
    """Those that are not marked slow, which scripts/break_it would not run."""
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.exists() else []
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in functions if "pytest.mark.slow" not in map(ast.unparse, node.decorator_list)}


def problems(mutations: list[dict[str, str]]) -> list[str]:
    """The problems of the table, a line each."""
    found = []
    names = [mutation["name"] for mutation in mutations]
    files = {mutation["test"].partition("::")[0] for mutation in mutations}
    tests = {f"{file}::{name}" for file in files for name in quick_tests_of(TESTS / file)}
    for mutation in mutations:
        name, old, path = mutation["name"], mutation["old"], PACKAGE / mutation["file"]
        count = path.read_text(encoding="utf-8").count(old) if path.exists() else 0
        if count != 1:
            found.append(f"{name}: {mutation['file']} holds {old!r} {count} times, not once")
        if old == mutation["new"]:
            found.append(f"{name}: `new` is `old`")
        if mutation["test"].partition("[")[0] not in tests:
            found.append(f"{name}: there is no quick test {mutation['test']}")
        if names.count(name) > 1:
            found.append(f"{name}: another mutation has this name")
    return found


def test_the_table_fits_the_code() -> None:
    table = tomllib.loads((TESTS / "mutations.toml").read_text(encoding="utf-8"))
    found = problems(table["mutation"])
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("name", "first", "another mutation has this name"),
        ("old", "no such code", "source.py holds 'no such code' 0 times"),
        ("old", "device", "source.py holds 'device' "),
        ("file", "no_such_file.py", "no_such_file.py holds"),
        ("new", ".tril()", "`new` is `old`"),
        ("test", "models/test_source.py::test_nothing", "there is no quick test models/test_source.py::test_nothing"),
        ("test", "training/test_record.py::test_a_dry_run_records_nothing", "there is no quick test training/test_rec"),
        ("test", "test_nothing.py::test_nothing", "there is no quick test test_nothing.py::test_nothing"),
    ],
)
def test_what_does_not_fit_is_reported(key: str, value: str, problem: str) -> None:
    test = "models/test_source.py::test_a_position_sees_itself_and_earlier_ones"
    first = {"name": "first", "file": "models/source.py", "old": ".tril()", "new": ".triu()", "test": test}
    second = {**first, "name": "second"}
    assert problems([first, second]) == []
    assert problem in problems([first, {**second, key: value}])[-1]
