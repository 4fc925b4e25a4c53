"""`nmt attention` without a file: the words, what they depend on, and what the least certain could have been."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from conftest import Cli, Screen

from nmt.insight.attention_output import summary, word_summaries
from nmt.insight.explanation import Explanation
from nmt.system.console import show


def explanation(**changed: Any) -> Explanation:
    """`the ladder` as `die Läuter`, in pieces `▁die ▁L <0xC3> <0xA4> uter`."""
    gradients = [[0.8, 0.1, 0.05, 0.05], *[[0.1, 0.5, 0.3, 0.1], [0.1, 0.3, 0.5, 0.1]] * 2, [0.1, 0.2, 0.3, 0.4]]
    maps = SimpleNamespace(
        src_tokens=("▁the", "▁lad", "der", "</s>"), src_words=(0, 1, 1, 2),
        out_tokens=("▁die", "▁L", "<0xC3>", "<0xA4>", "uter", "</s>"), out_words=(0, 1, 1, 1, 1, 2),
    )  # fmt: skip
    what_if = [
        (0, 0.4, "der", "der Läuter"), (0, 0.05, "das", "das Läuter"), (0, 0.1, "</s>", ""),
        (1, 0.1, "Sprosse", "die Sprosse"), (4, 0.1, "Läufer", "die Sprosse"), (4, 0.05, "Läuter", "die Läuter"),
        (4, 0.001, "Läute", "die Läute"),
    ]  # fmt: skip
    values = {
        "src": "the ladder", "tgt": "die Läuter", "maps": maps, "gradients": np.array(gradients), "picture": None,
        "steps": [SimpleNamespace(log_prob=math.log(p)) for p in (0.5, 0.96, 1.0, 1.0, 0.8, 0.999)],
        "what_if": [SimpleNamespace(position=position, log_prob=math.log(p), word=word, text=text)
                    for position, p, word, text in what_if],
    }  # fmt: skip
    return cast(Explanation, SimpleNamespace(**values | changed))


def test_a_word_sums_over_its_pieces() -> None:
    def rounded(shares: list[tuple[str, float]]) -> list[tuple[str, float]]:
        return [(name, round(share, 5)) for name, share in shares]

    words = [(one.text, round(one.probability, 3), rounded(one.sources), rounded(one.others))
             for one in word_summaries(explanation())]  # fmt: skip
    assert words == [
        ("die", 0.5, [("the", 0.8), ("ladder", 0.15)], [("der", 0.4), ("end", 0.1)]),
        # What leads to the same translation is left out.
        ("Läuter", 0.768, [("ladder", 0.8), ("the", 0.1)], [("Sprosse", 0.1), ("Läute", 0.00096)]),
    ]


def test_a_summary_fits_a_terminal(screen: Screen, capsys: pytest.CaptureFixture[str]) -> None:
    show(*summary(explanation(src="梯子 " * 50, tgt="[bold]die\x1b[2J Leiter")))
    output = capsys.readouterr().out
    lines = screen.lines(output)
    assert "[bold]die\ufffd[2J Leiter" in lines
    assert [line.split() for line in lines[-2:]] == [
        ["die", "50%", "the", "80%,", "ladder", "15%", "der", "40%,", "end", "10%"],
        ["Läuter", "77%", "ladder", "80%,", "the", "10%", "Sprosse", "10%,", "Läute", "<1%"],
    ]
    assert "\x1b[1mdie" in output  # the least certain words are bold


def test_through_the_command_line(in_solved: Path, cli: Cli) -> None:
    code, out, err = cli("attention", "1 2 3")
    assert code == 0, err
    assert out.splitlines()[:2] == ["1 2 3", cli("translate", "1 2 3", "--engine", "torch")[1].strip()]
    assert [line.split()[0] for line in out.splitlines()[4:]] == ["1", "2", "3"]
    assert "--output page.html" in err
    code, out, err = cli("attention", "1 2 3", "--layer", "1")
    assert (code, out) == (2, "")
    assert "shows chosen heads: leave out --layer" in err
    assert "--open opens the file of --output" in cli("attention", "1 2 3", "--open")[2]


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
