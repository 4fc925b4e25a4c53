"""Statistics of text before training: copies, and test text that is in the training text."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import nmt.tokenizers.statistics
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TokenizerConfig
from nmt.corpora.hashes import CACHE
from nmt.errors import DataError
from nmt.tokenizers.statistics import Seen, Survey, side_report, survey
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, WordTokenizer

WriteLines = Callable[[str, list[str]], Path]
WORDS = ["der", "Hund", "größer", "学习", "\u2028", "a"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def random_text(name: str, count: int, seed: int, mark: str = "", end: str = "\n") -> CorpusFiles:
    """Short lines, many of them empty, copies of the other side, or the same as others; the last without its end."""
    chance = random.Random(seed)
    pairs = [[" ".join(chance.choices(WORDS, k=chance.choice([0, 1, 1, 2]))) for _ in range(2)] for _ in range(count)]
    files = CorpusFiles(src=Path(f"{name}.en.gz"), tgt=Path(f"{name}.de.gz"))
    for path, lines in zip((files.src, files.tgt), zip(*pairs, strict=True), strict=True):
        path.write_bytes(gzip.compress((mark + end.join(lines)).encode()))
    return files


def lines_of(path: Path) -> list[str]:
    return [line.strip() for line in gzip.decompress(path.read_bytes()).decode("utf-8-sig").split("\n")]


def test_a_survey_agrees_with_sets_of_strings() -> None:
    corpora = [random_text("a", 900, 1), random_text("b", 50, 2, "\ufeff", " \r\n"), random_text("c", 1, 3)]
    held_out = {
        "validation": random_text("val", 90, 4, "\ufeff"),
        "test": random_text("test", 70, 5, end="\r\n"),
        "easy": corpora[1],
    }
    pairs = [pair for files in corpora for pair in zip(lines_of(files.src), lines_of(files.tgt), strict=True)]
    expected = {}
    for name, files in held_out.items():
        of_one = list(zip(lines_of(files.src), lines_of(files.tgt), strict=True))
        seen = sum(pair in pairs and "" not in pair for pair in of_one)
        expected[name] = Seen(len(of_one), seen)
    copied = sum(src == tgt != "" for src, tgt in pairs)
    assert survey(corpora, held_out) == Survey(951, copied, expected)
    assert 20 < copied < 300
    assert len(pairs) == 951
    assert 20 < expected["test"].seen < expected["test"].pairs == 70
    assert expected["easy"].seen == sum("" not in pair for pair in pairs[900:950])


def test_a_source_with_another_target_is_no_overlap(write_lines: WriteLines) -> None:
    train = CorpusFiles(src=write_lines("a.en", ["one", "two"]), tgt=write_lines("a.de", ["eins", "zwei"]))
    test = CorpusFiles(src=write_lines("t.en", ["one", "two"]), tgt=write_lines("t.de", ["eins", "zwo"]))
    assert survey([train], {"t": test}).held_out == {"t": Seen(2, 1)}
    assert survey([train], {}).held_out == {}


def test_the_second_survey_reads_nothing_until_a_text_changes(
    write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = CorpusFiles(src=write_lines("a.en", ["one", "two"]), tgt=write_lines("a.de", ["one", "zwei"]))
    test = CorpusFiles(src=write_lines("t.en", ["two"]), tgt=write_lines("t.de", ["zwei"]))
    first = survey([train], {"t": test})
    assert first == Survey(2, 1, {"t": Seen(1, 1)})
    with monkeypatch.context() as patch:
        patch.setattr(nmt.tokenizers.statistics, "chosen_blocks", None)
        assert survey([train], {"t": test}) == first
    assert survey([train], {"another name": test}).held_out == {"another name": Seen(1, 1)}
    assert survey([train, test], {}) == Survey(3, 1, {})
    write_lines("t.de", ["zwo"])
    assert survey([train], {"t": test}) == Survey(2, 1, {"t": Seen(1, 0)})
    write_lines("a.de", ["one", "two"])
    assert survey([train], {"t": test}) == Survey(2, 2, {"t": Seen(1, 0)})


@pytest.mark.parametrize("content", ["", "[]", "[1, 1, 3]", '[1, 1, {"t": [1]}]', "\x00"])
def test_a_damaged_cache_of_a_survey_is_rebuilt(write_lines: WriteLines, content: str) -> None:
    train = CorpusFiles(src=write_lines("a.en", ["one"]), tgt=write_lines("a.de", ["one"]))
    survey([train], {"t": train})
    (remembered,) = CACHE.glob("*.survey.json")
    remembered.write_text(content)
    assert survey([train], {"t": train}) == Survey(1, 1, {"t": Seen(1, 1)})
    assert list(CACHE.glob("*.survey.json")) == [remembered]


def test_held_out_text_that_cannot_be_used_is_named(write_lines: WriteLines) -> None:
    train = CorpusFiles(src=write_lines("a.en", ["one"]), tgt=write_lines("a.de", ["one"]))
    with pytest.raises(DataError, match=r"absent: no such file"):
        survey([train], {"t": CorpusFiles(src=Path("absent"), tgt=train.tgt)})
    uneven = CorpusFiles(src=train.src, tgt=write_lines("t.de", ["one", "two"]))
    with pytest.raises(DataError, match=r"a\.en has 1 lines, .*t\.de has 2;"):
        survey([train], {"t": uneven})


def test_a_report_counts_bytes_and_lengths_by_hand() -> None:
    lines = ["ab ba", "< 0 x 4 1 >"]
    characters = SentencePieceTokenizer.train(lines, TokenizerConfig(type="char", vocab_size=999))
    report = side_report(["ab", "aé", "", "<0x41> 😀"], characters, "de", max_length=3)
    # ▁ a b; ▁ a and 2 bytes; nothing; ▁ < 0 x 4 1 >, ▁ and 4 bytes
    assert (report.longest, report.too_long) == (12, 2)
    assert report.byte_share == pytest.approx(6 / 19)
    assert report.unknown_share == 0
    assert side_report(["aé"], characters, "de").too_long == 0
    words = WordTokenizer.train(lines, TokenizerConfig(type="word"))
    report = side_report(["ab 😀", "<0x41>"], words, "de", max_length=2)
    assert (report.byte_share, report.longest, report.too_long) == (0, 2, 0)
