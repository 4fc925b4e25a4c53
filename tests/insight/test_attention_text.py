"""`nmt attention` without a file: words, their source words, and the least certain steps, in any width."""

import io
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from conftest import Cli
from rich.cells import cell_len

from nmt.insight.attention_text import percent, print_explanation, uncertain_steps, word_rows
from nmt.insight.explanation import Candidate, Explanation, Step


def explanation(**changed: Any) -> Explanation:
    """`the ladder` as `die Leiter`, in pieces `▁die ▁Lei ter`; two layers of one head."""
    cross = np.array([[[[0.8, 0.1, 0.0, 0.1], [0.1, 0.5, 0.3, 0.1], [0.0, 0.3, 0.5, 0.2], [0.0, 0.05, 0.05, 0.9]]]])

    def step(token: str, probability: float, *others: tuple[str, float]) -> Step:
        of_all = [(token, probability), *others]
        candidates = tuple(Candidate(name, number, math.log(p)) for number, (name, p) in enumerate(of_all))
        return Step(token, 0, math.log(probability), 0.5, candidates)

    steps = (step("▁die", 0.5, ("▁der", 0.4), ("</s>", 0.1)), step("▁Lei", 0.96), step("ter", 0.8, ("m", 0.002)),
             step("</s>", 0.999))  # fmt: skip
    maps = SimpleNamespace(
        src_tokens=("▁the", "▁lad", "der", "</s>"), src_words=(0, 1, 1, 2),
        out_tokens=("▁die", "▁Lei", "ter", "</s>"), out_words=(0, 1, 1, 2), cross=np.concatenate([cross, cross]),
    )  # fmt: skip
    values = {"src": "the ladder", "tgt": "die Leiter", "maps": maps, "steps": steps, "picture": None}
    return cast(Explanation, SimpleNamespace(**values | changed))


def test_a_word_has_the_mean_attention_and_the_product_of_the_probabilities_of_its_pieces() -> None:
    rows = [(word, [(name, round(share, 3)) for name, share in sources], round(probability, 3))
            for word, sources, probability in word_rows(explanation())]  # fmt: skip
    assert rows == [
        ("die", [("the", 0.8), ("ladder", 0.1)], 0.5),
        ("Leiter", [("ladder", 0.8)], 0.768),
        ("end", [("ladder", 0.1)], 0.999),
    ]


def test_the_least_certain_steps_come_first_with_their_alternatives() -> None:
    steps = [(name, [other for other, _ in others]) for name, others, _ in uncertain_steps(explanation())]
    assert steps == [("die", ["der", "end"]), ("…ter", ["…m"])]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_none_moves_its_cursor(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    output = io.StringIO()
    print_explanation(explanation(src="梯子 " * 50, tgt="[bold]die\x1b[2J Leiter"), output)
    lines = output.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "[bold]die\ufffd[2J Leiter" in lines
    assert "\x1b" not in output.getvalue()


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    output = io.StringIO()
    print_explanation(explanation(), output)
    assert "\x1b[1mdie Leiter\x1b[0m" in output.getvalue()


def test_a_probability_is_never_rounded_to_0_or_to_certainty() -> None:
    assert [percent(value) for value in (0.0, 0.001, 0.01, 0.5, 0.994, 0.997, 1.0)] == [
        "0%", "<1%", "1%", "50%", "99%", ">99%", "100%",
    ]  # fmt: skip


def test_through_the_command_line(in_solved: Path, cli: Cli) -> None:
    code, out, err = cli("attention", "1 2 3")
    assert code == 0, err
    assert out.splitlines()[:2] == ["1 2 3", cli("translate", "1 2 3", "--engine", "torch")[1].strip()]
    assert "--output page.html" in err
    code, out, err = cli("attention", "1 2 3", "--layer", "1")
    assert (code, out) == (2, "")
    assert "leave out --layer, or write a picture" in err
    assert "--open opens what --output FILE writes" in cli("attention", "1 2 3", "--open")[2]


def test_what_was_written_is_said_and_opened(
    in_solved: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or len(opened) == 1)
    page = tmp_path / "a page.html"
    assert cli("attention", "1 2 3", "--output", str(page), "--open") == (0, "", f"wrote {page}\n")
    assert opened == [page.as_uri()]
    err = cli("attention", "1 2 3", "--output", str(tmp_path / "a.json"), "--open")[2]
    assert "a.json: no browser was found to open it" in err
