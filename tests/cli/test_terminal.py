"""Output on terminals of 80 and 120 columns, with and without colour: it fits, and has the words that a pipe gets."""

import re
import shutil
from pathlib import Path

import pytest
from conftest import Cli, Screen

from nmt.config.training import Metric
from nmt.evaluation.metrics import Score
from nmt.system.console import show
from nmt.training.fine_tuning import Forgetting, table

COMMANDS = {
    "init": "init --no-trial --src few.en --tgt few.de --src-lang en --tgt-lang de --output new/few.yaml",
    "eval": "eval --src val.en --ref val.de --confidence",
    "average": "average --last 2 --name new",
    "export": "export ctranslate2 --src val.en --ref val.de",
    "filter": "filter pairs.tsv --forward copy --keep 0.9 --write new/kept",
    "translate": "translate --input val.en --output new/out --alignments new/alignments",
    "vocab": "vocab copy.yaml --name new",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_output_fits_the_terminal(
    command: str, solved: Path, cli: Cli, screen: Screen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(solved, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    sides = [Path(f"val.{side}").read_text().splitlines() for side in ("en", "de")]
    Path("pairs.tsv").write_text("en\tde\n" + "".join(f"{src}\t{tgt}\n" for src, tgt in zip(*sides, strict=True)))
    for side in ("en", "de"):
        Path(f"few.{side}").write_text("".join(f"{side} line {number}\n" for number in range(5)))

    def run() -> str:
        for folder in ("new", "runs/new", "runs/copy/export", "runs/copy/evaluation"):
            shutil.rmtree(folder, ignore_errors=True)
        Path("new").mkdir()
        code, out, err = cli(*COMMANDS[command].split())
        assert code == 0, err
        return out + err

    def words(text: str) -> list[str]:
        return re.sub(r"\d[\d.,:]*", "0", text).split()  # times differ

    written = run()
    lines = screen.lines(re.sub(r"\x1b]8;[^\x1b]*\x1b\\", "", written))
    monkeypatch.delenv("FORCE_COLOR")
    piped = run()
    assert "\x1b" not in piped
    assert words(" ".join(lines)) == words(piped)
    for path in re.findall(r"(?:wrote|, in|: )\s*((?:new|runs)/[\w/.]+)", piped):
        assert f"{Path(path).absolute().as_uri()}\x1b\\" in written


def test_changes_beyond_chance_are_coloured(screen: Screen, capsys: pytest.CaptureFixture[str]) -> None:
    before: dict[Metric, Score] = {"bleu": Score("BLEU", 40.0, ""), "ter": Score("TER", 40.0, "")}
    after: dict[Metric, Score] = {"bleu": Score("BLEU", 41.5, ""), "ter": Score("TER", 41.5, "")}
    sure = Forgetting("new text", 100, before, after, {"bleu": (0.5, 2.5), "ter": (0.5, 2.5)})
    chance = Forgetting("news", 100, before, after, {"bleu": (-0.5, 2.5), "ter": (-0.5, 2.5)})
    show(table([sure, chance]))
    out = capsys.readouterr().out
    head, *lines = screen.lines(out)
    assert head.split() == ["test", "set", "lines", "score", "before", "after", "change", "95%", "interval"]
    assert [line.index("+1.50") for line in lines] == [head.index("change") + 1] * 4
    for color in ("32", "31"):  # green, red
        assert len(re.findall(rf"\x1b\[{color}m *\+1\.50", out)) == screen.has_color


def test_the_environment_fits_the_terminal(screen: Screen, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"name": "package", "version": "1.2.3", "error": ""}
    broken = package | {"error": "cannot be imported, because of a library that is missing on this machine: libx.so.1"}
    environment = {
        "nmt": "0.1", "python": "3.11", "system": "Linux", "processor": "a processor", "memory_gb": 8, "cores": 2,
        "threads": 2, "devices": [{"name": "cpu", "model": "a processor", "memory_gb": None, "bf16_speed": 2.5}],
        "packages": [package] * 20 + [broken],
        "extras": [{"name": "ja", "purpose": "Japanese", "packages": [broken], "how_to_install": "pip install x"}],
    }  # fmt: skip
    monkeypatch.setattr("nmt.system.environment.read_environment", lambda: environment)
    lines = screen.lines(cli("info")[1])
    place = next(place for place, line in enumerate(lines) if line.startswith("packages"))
    assert all(line.startswith(" " * 12) for line in lines[place + 1 : place + 3])
    monkeypatch.delenv("FORCE_COLOR")
    assert " ".join(lines).split() == cli("info")[1].split()
