"""The page on back-translation: its commands and configurations do what it says, and nothing held out is learned."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import Cli

from nmt.cleaning.selection import select
from nmt.corpora.pairs import read_pairs
from nmt.runs.folder import RunFolder

REPOSITORY = Path(__file__).parents[2]
TINY = REPOSITORY / "data" / "tiny"
SMALL = """\
model: {num_encoder_layers: 1, num_decoder_layers: 1, d_model: 32, num_heads: 2, d_ff: 64}
evaluation: {report: false}
export: {after_training: []}
decoding: {beam_size: 2, max_length: 20}
"""
UPDATES = ["training.max_steps=40", "training.validate_every=20", "training.batch_tokens=500", "training.threads=1",
           "training.processes=1", "training.device=cpu", "tokenizer.vocab_size=600"]  # fmt: skip


def of_the_page() -> tuple[dict[str, str], list[list[str]]]:
    """Its configurations by name, and the arguments of its commands, in Chinese instead of German."""
    page = (REPOSITORY / "docs" / "back-translation.md").read_text(encoding="utf-8").replace(".de", ".zh")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    configs = {text.split()[1]: text for kind, text in blocks if kind == "yaml"}
    written = [text for kind, text in blocks if not kind and not text.startswith("$ ")]  # the others have output, too
    commands = [shlex.split(line, comments=True) for text in written for line in text.splitlines()]
    assert all(words[0] == "nmt" for words in commands)
    return configs, [words[1:] for words in commands]


def lines_of(path: Path, start: int = 0, stop: int | None = None) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True)[start:stop]


@pytest.fixture
def held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The lines, by language, of three held-out texts, some of which are in the pairs and in the monolingual text."""
    monkeypatch.chdir(tmp_path)
    found = {}
    for language in ("en", "zh"):
        train, news = (lines_of(TINY / f"train.{language}", *part) for part in ((0, 600), (600, 700)))
        texts = {name: lines_of(TINY / f"{name}.{language}", 0, 20) for name in ("val", "test")}
        texts["later"] = lines_of(TINY / f"train.{language}", 700, 720)
        for lines in texts.values():
            train += lines[:5]
            news += lines[5:10]
        for name, lines in {**texts, "train": train, "news": news}.items():
            if (name, language) != ("news", "en"):
                Path(f"{name}.{language}").write_text("".join(lines), encoding="utf-8")
        found[language] = {line.strip() for lines in texts.values() for line in lines}
    return found


@pytest.mark.slow
def test_the_commands_of_the_page_learn_nothing_that_is_held_out(held_out: dict[str, set[str]], cli: Cli) -> None:
    configs, commands = of_the_page()
    for name, text in configs.items():
        Path(name).write_text(text + SMALL, encoding="utf-8")
    assert [words[0] for words in commands] == [
        "train",
        "eval",
        "translate",
        "data",
        "train",
        "train",
        "compare",
        "filter",
    ]
    assert held_out["zh"] & {line.strip() for line in lines_of(Path("news.zh"))}
    for words in commands:
        sets = [word for update in UPDATES for word in ("--set", update)] if words[0] == "train" else []
        if words[0] == "filter":  # so small a model writes no text that the recommended rules keep
            words = [word.replace("synthetic/news.", "train.") for word in words]
        code, _, errors = cli(*words, *sets)
        assert code == 0, (words, errors)
    synthetic = [[line.strip() for line in lines_of(Path(f"synthetic/news.{language}"))] for language in ("en", "zh")]
    assert 50 < len(synthetic[0]) == len(synthetic[1])
    assert not held_out["en"] & set(synthetic[0])
    assert not held_out["zh"] & set(synthetic[1])
    for name, sides, num_corpora in (
        ("back", ("zh", "en"), 1),
        ("captions", ("en", "zh"), 2),
        ("pairs", ("en", "zh"), 1),
    ):
        config = RunFolder(Path("runs") / name).config()
        data = config.data
        chosen = select(data.train, data.cleaning, (data.src_lang, data.tgt_lang), data.excluded_from_training)
        assert chosen is not None
        learned = [list(read_pairs(files, chosen.chosen(index))) for index, files in enumerate(data.train)]
        assert len(learned) == num_corpora
        assert all(learned)
        for side, language in enumerate(sides):
            assert not held_out[language] & {pair[side] for pairs in learned for pair in pairs}
        assert [files.tag for files in data.train] == [None, "bt"][:num_corpora]
