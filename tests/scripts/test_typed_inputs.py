"""Typed input: how the lines are made, and that each fault of a translator shows in its row."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sacrebleu import corpus_chrf

from nmt.config.corpus import CorpusFiles
from nmt.corpora.pairs import read_pairs
from nmt.errors import DataError

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "scripts" / "typed_inputs.py"
VALIDATION = REPOSITORY / "data" / "tiny" / "val"

Edit = Callable[[str], str]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("typed_inputs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()
KINDS = {kind.name: kind for kind in (script.SHORT, *script.CHANGED)}


def tiny_pairs() -> list[tuple[str, str]]:
    return list(read_pairs(CorpusFiles(src=VALIDATION.with_suffix(".en"), tgt=VALIDATION.with_suffix(".zh"))))


def copied(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """A corpus that `list` translates."""
    return [(src, src) for src, _ in pairs]


def results(edit: Callable[[str, str], str]) -> dict[str, Any]:
    """Rows by kind, 10 lines each, of a translator that copies clean lines and edits (kind, line) otherwise."""
    pairs = copied(tiny_pairs())
    typed = {
        kind.typed(pairs[index][0]): kind.name
        for kind, indices in script.choose(pairs, 10)
        if kind is not script.SHORT
        for index in indices
    }

    def translate(lines: list[str]) -> list[str]:
        return [edit(typed[line], line) if line in typed else line for line in lines]

    rows, _ = script.measure(translate, pairs, 10)
    return {row.kind: row for row in rows}


@pytest.mark.parametrize(
    ("kind", "line", "typed"),
    [
        ("short", "A dog runs.", "A dog runs."),
        ("ALL CAPS", "A dog's T-shirt.", "A DOG'S T-SHIRT."),
        ("without punctuation", "„Ein“ dog's - T-shirt, at 5 $…", "Ein dogs Tshirt at 5 $"),
        ("without punctuation", "你好，世界。", "你好世界"),
        ("doubled", "A dog runs.", "A dog runs. A dog runs."),
        ("fragment", "A dog, it seems, runs away.", "A dog, it"),
        ("fragment", "A dog runs  away fast.", "A dog"),
        ("fragment", "一只狗在跑步", "一只狗"),
        ("fragment", "狗", ""),
    ],
)
def test_how_each_kind_is_typed(kind: str, line: str, typed: str) -> None:
    assert KINDS[kind].typed(line) == typed


def test_the_checks_of_each_kind() -> None:
    expected = {name: kind.compared(kind.expected("Ein Hund, er rennt.")) for name, kind in KINDS.items()}
    assert expected == {
        "short": "Ein Hund, er rennt.",
        "ALL CAPS": "ein hund, er rennt.",
        "without punctuation": "Ein Hund er rennt",
        "doubled": "Ein Hund, er rennt. Ein Hund, er rennt.",
        "fragment": "Ein Hund",
    }


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("", 0),
        ("a b", 0),
        ("a b c", 1),
        ("a b c a b c", 2),
        ("a b c, A b c a - b c.", 3),
        ("a a a a", 2),
        ("a a a a a", 3),
        ("aaaaaaaaaaaaaaa", 0),
        ("一只狗，一只狗和一只狗", 3),
    ],
)
def test_how_often_a_3_gram_occurs(text: str, times: int) -> None:
    assert [script.repeats(text, n) for n in (1, 2, 3, 4)] == [times >= n for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("output", "typed", "ratio"),
    [
        ("Ein Hund.", "A dog!", 7 / 4),
        ("EEEEEEEEEE E", "a b", 11 / 2),
        ("", "a", 0),
        ("你好，世界。", "hello world", 12 / 10),
        ("ね", "cat", 1),
    ],
)
def test_length_is_counted_in_letters(output: str, typed: str, ratio: float) -> None:
    assert script.length_ratio(output, typed) == ratio


def test_half_and_twice_the_length_are_allowed() -> None:
    assert [script.is_wrong_length(ratio) for ratio in (0.49, 0.5, 2.0, 2.01)] == [True, False, False, True]


def test_fifty_lines_of_fifty_pairs() -> None:
    pairs = tiny_pairs()
    chosen = script.choose(pairs, 10)
    assert [(kind.name, len(indices)) for kind, indices in chosen] == [(name, 10) for name in KINDS]
    drawn = [index for _, indices in chosen for index in indices]
    assert len({pairs[index][0] for index in drawn}) == 50
    assert max(len(pairs[index][0].split()) for index in drawn[:10]) <= 9
    for _, indices in chosen[1:]:
        assert indices[0] < 20
        assert indices[-1] > 170


def test_which_lines_are_drawn_is_fixed() -> None:
    # Line 3 is the shortest, 9 the next; of the other 16, every second one is drawn and dealt to the four kinds.
    lines = [f"n{n} " + " ".join(f"w{n}{i}" for i in range({3: 2, 9: 3}.get(n, 5))) for n in range(18)]
    chosen = {kind.name: indices for kind, indices in script.choose(copied([(line, "") for line in lines]), 2)}
    assert chosen == {
        "short": [3, 9],
        "ALL CAPS": [0, 10],
        "without punctuation": [2, 12],
        "doubled": [5, 14],
        "fragment": [7, 16],
    }


@pytest.mark.parametrize(
    ("src", "tgt"),
    [
        ("one two three four one two three", "eins zwei drei vier fünf sechs"),
        ("one two three four five six", "eins zwei drei vier eins zwei drei"),
        ("one two three four", "eins zwei drei vier fünf sechs sieben acht neun"),
        ("", "eins zwei drei vier"),
        ("one two three four", " - "),
    ],
)
def test_pairs_that_fail_the_checks_themselves_are_not_drawn(src: str, tgt: str) -> None:
    good = [(f"a{n} b{n} c{n} d{n}",) * 2 for n in range(6)]
    assert len(script.choose(good, 1)) == 5
    drawn = [index for _, indices in script.choose([(src, tgt), *good], 1) for index in indices]
    assert 0 not in drawn


def test_too_small_a_validation_set_is_one_plain_message() -> None:
    pairs = tiny_pairs()[:49]
    with pytest.raises(DataError, match="50 lines are to be made, and the validation set has 10 short lines and 3"):
        script.choose(pairs, 10)
    with pytest.raises(DataError, match="5 lines are to be made"):  # a line that occurs five times counts once
        script.choose(pairs[:1] * 5, 1)


def test_a_perfect_translator_passes() -> None:
    rows = results(lambda kind, line: line)
    assert list(rows) == [*KINDS, "all"]
    for row in rows.values():
        assert (row.clean, row.typed, row.share, row.passes) == (100, 100, 1, True)
    assert rows["all"].lines == 50
    assert script.table(list(rows.values())).endswith("\npasses\n")


@pytest.mark.parametrize(
    ("kind", "edit", "repeating", "wrong_length"),
    [
        ("ALL CAPS", lambda line: "", 0, 10),
        ("ALL CAPS", lambda line: f"{line} {'x' * round(0.9 * len(line))}", 0, 10),  # its chrF alone passes
        ("without punctuation", lambda line: line[::-1], 0, 0),
        ("doubled", lambda line: line[: len(line) // 2 + 4], 0, 0),
        ("doubled", lambda line: f"{line} {line[: len(line) // 2]}", 10, 0),
        ("fragment", lambda line: f"{line} {'x' * round(0.7 * len(line))}", 0, 0),
        ("fragment", lambda line: " ".join([line] * 3), 10, 10),
    ],
)
def test_a_fault_shows_in_its_own_row(kind: str, edit: Edit, repeating: int, wrong_length: int) -> None:
    rows = results(lambda of, line: edit(line) if of == kind else line)
    assert [name for name, row in rows.items() if not row.passes and name != "all"] == [kind]
    assert script.table(list(rows.values())).endswith(f"\nfails: {kind}\n")
    for name in (kind, "all"):
        assert (rows[name].repeating, rows[name].wrong_length) == (repeating, wrong_length)
    if (repeating, wrong_length) == (0, 0):
        assert rows[kind].share < 0.8


def test_the_chrf_is_sacrebleus() -> None:
    pairs = copied(tiny_pairs())

    def translate(lines: list[str]) -> list[str]:  # worse in capitals than in lowercase
        return [line[:-12] + " EEEEEEEEE" if line.isupper() else line.replace("the", "de") for line in lines]

    rows, _ = script.measure(translate, pairs, 10)
    sources = [src for src, _ in pairs]
    short, capitals = rows[:2]
    assert short.clean == corpus_chrf(translate(sources), [sources]).score < 100
    (_, first), (_, indices), *_ = script.choose(pairs, 10)
    first, taken = [sources[index] for index in first], [sources[index] for index in indices]
    assert short.typed == corpus_chrf(translate(first), [first]).score
    assert capitals.clean == corpus_chrf(translate(taken), [taken]).score
    shouted = [line.lower() for line in translate([line.upper() for line in taken])]
    assert capitals.typed == corpus_chrf(shouted, [taken]).score
    assert capitals.share == capitals.typed / capitals.clean
    assert rows[-1].clean == sum(row.clean for row in rows[:-1]) / 5


@pytest.mark.slow
def test_a_run_is_measured(copy_task: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)

    assert run("-m", "nmt", "train", str(copy_task)).returncode == 0
    refused = run(str(SCRIPT))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("typed_inputs: 50 lines are to be made, and the validation set has ")
    assert refused.stderr.count("\n") == 1

    shown = run(str(SCRIPT), "--model", "runs/copy", "--per-kind", "2", "--show")
    assert shown.returncode == 0, shown.stderr  # although 12 updates are too few to learn anything
    assert "\n| all | 10 | " in shown.stdout
    assert "\nfails: " in shown.stdout
