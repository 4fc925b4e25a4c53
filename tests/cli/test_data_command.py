"""`nmt data`: figures of tiny corpora that were counted by hand, what is written, and the page in a browser."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser
from conftest import Cli, Screen, assert_says

from nmt.cleaning.profile import Profile, bin_width, length_bins, profile_corpora
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.insight.data_output import data_text
from nmt.system.console import bar

# Pair 1 and 5 are the same, 2 is a copy, 3 has an empty side, 4 is not UTF-8, 6 is in another script, 7 has tags.
DIRTY = [
    (b"A dog runs.", b"Ein Hund rennt."),
    (b"Linux 6.1", b"Linux 6.1"),
    (b"A cat.", b""),
    (b"The door.", b"Die T\xfcr."),
    (b"A dog runs.", b"Ein Hund rennt."),
    ("Two men, \u200btalking\x07.".encode(), "Привет, привет!".encode()),
    (b"A <b>big</b> house.", b"Ein Haus."),
    (b"A dog runs.", b"Ein Hund l\xc3\xa4uft dort."),
]


def write_pairs(folder: Path, pairs: list[tuple[bytes, bytes]], name: str = "dirty") -> CorpusFiles:
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_bytes(b"".join(pair[side] + b"\n" for pair in pairs))
    return CorpusFiles(src=Path(f"{name}.en"), tgt=Path(f"{name}.de"))


@pytest.fixture
def dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CorpusFiles:
    monkeypatch.chdir(tmp_path)
    return write_pairs(tmp_path, DIRTY)


@pytest.fixture
def profile(dirty: CorpusFiles, cli: Cli) -> dict[str, Any]:
    """The profile of the dirty corpus against two pairs, as JSON."""
    write_pairs(Path(), [(b"A dog runs.", b"Ein Hund rennt."), (b"Nothing.", b"Ein  Haus.")], "test")
    code, out, err = cli("data", "dirty.en", "dirty.de", "--against", "test.en", "--against", "test.de", "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def of_rules(profile: dict[str, Any], field: str) -> dict[str, Any]:
    return {rule["rule"]: rule[field] for rule in profile["rules"] if rule[field]}


def test_figures_that_were_counted_by_hand(profile: dict[str, Any]) -> None:
    assert list(profile) == [
        "pairs", "kept", "corpora", "rules", "src", "tgt", "ratio", "copies", "duplicates", "against"
    ]  # fmt: skip
    assert profile["pairs"] == 8
    assert profile["copies"] == 1
    # Six pairs have text on both sides; the seventh and the eighth line begin with nothing that was there before.
    assert profile["duplicates"] == {"pair": 1, "source": 2, "target": 1}
    src, tgt = profile["src"], profile["tgt"]
    assert [src[key] for key in ("language", "empty", "undecodable", "different")] == ["en", 0, 0, 6]
    assert [tgt[key] for key in ("language", "empty", "undecodable", "different")] == ["de", 1, 1, 5]
    # A dog runs. 3 (three times), Linux 6.1 2, A cat. 2, The door. 2, Two men, talking. 3, A big house. 3
    assert (src["words"]["total"], src["words"]["median"], src["words"]["longest"]) == (21, 3, 3)
    assert src["words"]["mean"] == 21 / 8
    assert src["characters"]["total"] == 3 * 11 + 9 + 6 + 9 + len("Two men, \u200btalking\x07.") + 19
    assert [one["count"] for one in src["words"]["bins"]][:4] == [0, 3, 5, 0]
    assert tgt["longest"] == "dirty.de:8"
    assert src["repeated"] == [{"text": "A dog runs.", "count": 3, "where": "dirty.en:1"}]
    assert tgt["repeated"] == [{"text": "Ein Hund rennt.", "count": 2, "where": "dirty.de:1"}]
    assert profile["corpora"] == [{"name": "dirty.en, dirty.de", "pairs": 8, "kept": profile["kept"]}]


def test_unusual_characters_have_names_and_places(profile: dict[str, Any]) -> None:
    assert profile["src"]["odd_characters"] == [
        {"character": "\x07", "code_point": "U+0007", "name": "", "count": 1, "where": "dirty.en:6"}
    ]
    found = {one["character"]: one for one in profile["tgt"]["odd_characters"]}
    assert found["р"] == {
        "character": "р", "code_point": "U+0440", "name": "CYRILLIC SMALL LETTER ER", "count": 2, "where": "dirty.de:6"
    }  # fmt: skip
    assert set(found) == set("Приветп")
    assert profile["tgt"]["odd_occurrences"] == 12


def test_what_each_rule_drops(profile: dict[str, Any]) -> None:
    # Pairs 1, 5 and 8 share the source with the test set; 7 shares the target, but its tags come first.
    assert of_rules(profile, "dropped") == {
        "empty": 1, "encoding": 1, "identical": 1, "html": 1, "script": 1, "overlap": 3
    }  # fmt: skip
    assert profile["kept"] == 0
    assert of_rules(profile, "alone") == {"encoding": 1, "identical": 1, "html": 1, "script": 1}
    places = {rule: [one["where"] for one in examples] for rule, examples in of_rules(profile, "examples").items()}
    assert places["overlap"] == ["dirty.en:1", "dirty.en:5", "dirty.en:8"]
    assert places["script"] == ["dirty.en:6"]
    assert places["html"] == ["dirty.en:7"]
    (undecodable,) = of_rules(profile, "examples")["encoding"]
    assert undecodable == {"where": "dirty.en:4", "src": "The door.", "tgt": "Die T\ufffdr."}
    assert of_rules(profile, "setting")["duplicates"] == "pair"
    assert of_rules(profile, "setting")["numbers"] == "off"
    assert {rule["rule"] for rule in profile["rules"] if rule["alone"] is None} == {
        "empty", "language", "overlap", "duplicates", "max_repeats"
    }  # fmt: skip


def test_the_overlap_counts_pairs_of_the_test_set(profile: dict[str, Any]) -> None:
    (found,) = profile["against"]
    assert {key: found[key] for key in ("name", "pairs", "src", "tgt", "both")} == {
        "name": "test.en, test.de", "pairs": 2, "src": 1, "tgt": 2, "both": 1
    }  # fmt: skip
    assert [(one["where"], one["also"]) for one in found["examples"]] == [
        ("test.en:1", "dirty.en:1"), ("test.en:2", "dirty.en:7")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "width"), [({1: 5}, 1), ({3: 90, 1000: 10}, 150), ({7: 95, 900: 5}, 1), ({80: 1}, 10), ({}, 1)]
)
def test_bins_add_up_to_the_total_and_hold_most_lines(lengths: dict[int, int], width: int) -> None:
    total = sum(lengths.values())
    each = np.repeat(np.array([*lengths], dtype=np.int32), [*lengths.values()])
    found = bin_width(each)
    assert found >= width - 30
    bins = length_bins(each, found)
    assert sum(one.count for one in bins) == total
    assert bins[-1].count <= total * 0.05
    for one in bins:
        in_it = [count for length, count in lengths.items() if one.low <= length <= (one.high or 1e9)]
        assert one.count == sum(in_it)


def profiled(pairs: list[tuple[bytes, bytes]]) -> Profile:
    files = [write_pairs(Path(), pairs, "one"), write_pairs(Path(), DIRTY, "two")]
    return profile_corpora(files, ("en", "de"), CleaningConfig.recommended(), {"test": files[0]}, [files[0]])[0]


def test_several_processes_count_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmt.corpora.pairs.BLOCK_PAIRS", 3)
    pairs = [(f"Line {n} of {n % 7}.".encode(), f"Zeile {n % 5}.{'я' * (n % 3)}".encode()) for n in range(40)]
    alone = profiled(pairs)
    with monkeypatch.context() as patched:
        patched.setattr("nmt.cleaning.selection.num_processes_for", lambda pairs: 3)
        assert alone == profiled(pairs)
    assert alone.pairs == 48
    assert alone.corpora[0].pairs == 40
    monkeypatch.setattr("nmt.corpora.pairs.BLOCK_PAIRS", 1000)
    assert alone == profiled(pairs)
    assert sum(one.count for one in alone.ratio) == 46  # two pairs of the second are not complete
    for side in (alone.src, alone.tgt):
        for lengths in (side.words, side.characters):
            assert lengths is not None
            assert sum(one.count for one in lengths.bins) == 48 - side.empty - side.undecodable


def test_what_is_written_has_nothing_left_to_drop(dirty: CorpusFiles, cli: Cli) -> None:
    write_pairs(Path(), [*DIRTY, (b"\xef\xbb\xbfA bird sings.\r", b"Ein Vogel singt.\r")], "dirty")
    code, _, err = cli("data", "dirty.en", "dirty.de", "--write", "clean")
    assert code == 0
    assert_says(err, "clean: dirty.en, dirty.de, and cleaning.tsv")
    assert Path("clean/dirty.en").read_text() == "A dog runs.\nA dog runs.\nA bird sings.\n"
    assert Path("clean/dirty.de").read_text() == "Ein Hund rennt.\nEin Hund läuft dort.\nEin Vogel singt.\n"
    rows = [line.split("\t") for line in Path("clean/cleaning.tsv").read_text().splitlines()]
    assert ["identical", "dirty.en", "2", "Linux 6.1", "Linux 6.1"] in rows
    code, out, _ = cli("data", "clean/dirty.en", "clean/dirty.de", "--json")
    again = json.loads(out)
    assert (code, again["pairs"], again["kept"]) == (0, 3, 3)
    before = Path("clean/dirty.en").read_bytes()
    code, _, err = cli("data", "dirty.en", "dirty.de", "--write", "clean")
    assert (code, Path("clean/dirty.en").read_bytes()) == (2, before)
    assert err.startswith("nmt: --write clean: exists already")


def test_corpora_of_the_same_name_are_written_beside_each_other(dirty: CorpusFiles, cli: Cli) -> None:
    for folder in ("a", "b"):
        Path(folder).mkdir()
        write_pairs(Path(folder), [(folder.encode() * 9, b"Text dazu.")], "train")
    assert cli("data", "a", "b", "--src-lang", "en", "--write", "out")[0] == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "cleaning.tsv", "train.2.de", "train.2.en", "train.de", "train.en"
    ]  # fmt: skip
    assert Path("out/train.2.en").read_text() == "bbbbbbbbb\n"
    Path("c").mkdir()
    write_pairs(Path("c"), [(b"ccccccccc", b"Text dazu.")], "train.2")
    assert cli("data", "c", "a", "b", "--src-lang", "en", "--write", "named")[0] == 0
    texts = {path.name: path.read_text()[0] for path in Path("named").glob("*.en")}
    assert texts == {"train.2.en": "c", "train.en": "a", "train.3.en": "b"}
    assert cli("data", "out", "--src-lang", "en")[0] == 0  # cleaning.tsv is no corpus


def test_a_line_with_a_nul_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = write_pairs(Path(), [(b"A\0B in UTF-16?", b"So sieht es aus."), (b"Fine text.", b"Guter Text.")])
    found, _ = profile_corpora([files], ("en", "de"), CleaningConfig(), {})
    assert (found.src.undecodable, found.kept) == (1, 1)


CONFIG = """
data:
  train: {src: dirty.en, tgt: dirty.de}
  validation: {src: test.en, tgt: test.de}
  cleaning: {identical: true}
tokenizer: {vocab_size: 100}
training: {max_steps: 1}
"""


def test_a_configuration_gives_corpora_rules_and_test_sets(dirty: CorpusFiles, cli: Cli) -> None:
    write_pairs(Path(), [(b"A dog runs.", b"Ein Hund rennt.")], "test")
    Path("c.yaml").write_text(CONFIG)
    code, out, err = cli("data", "--config", "c.yaml", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["corpora"][0]["name"] == "dirty.en, dirty.de"
    # A line that is not UTF-8 is dropped although the rule is off: it can only be refused in a training.
    assert of_rules(found, "dropped") == {"empty": 1, "encoding": 1, "identical": 1}
    assert [one["name"] for one in found["against"]] == ["validation"]
    assert of_rules(found, "alone")["html"] == 1  # off, and what it would drop


def test_text_that_a_configuration_excludes_leaves_the_corpora(dirty: CorpusFiles, cli: Cli) -> None:
    write_pairs(Path(), [(b"Nothing", b"Nichts")], "test")
    write_pairs(Path(), [(b"A dog runs.", b"Something else")], "later")
    Path("c.yaml").write_text(CONFIG.replace("cleaning:", "exclude: [{src: later.en, tgt: later.de}]\n  cleaning:"))
    for words in ([], ["dirty.en", "dirty.de"]):
        code, out, _ = cli("data", *words, "--config", "c.yaml", "--json")
        found = of_rules(json.loads(out), "examples")["overlap"]
        assert code == 0 and {one["src"] for one in found} == {"A dog runs."}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.en", "missing.de"], "missing.en: no such file"),
        (["empty.en", "empty.de"], "empty.en and empty.de are empty"),
        (["dirty.en", "short.de"], "the two sides differ in length: dirty.en has 8 lines, short.de has 1"),
        ([], "name a corpus"),
        (["dirty.en", "dirty.de", "--output", "page.txt"], "its name should end in .html"),
        (["dirty.en", "dirty.de", "--against", "no.tsv"], "no.tsv: no such file"),
        (["--config", "no.yaml"], "no.yaml: no such file"),
    ],
)
def test_mistakes_are_one_plain_message(dirty: CorpusFiles, cli: Cli, arguments: list[str], message: str) -> None:
    for name, text in (("empty.en", ""), ("empty.de", ""), ("short.de", "x\n")):
        Path(name).write_text(text)
    code, out, err = cli("data", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("arguments", "command"), [
    (["dirty.en", "dirty.de", "--src-lang", "en"], "init dirty.en dirty.de --src-lang en"),
    (["dirty.en", "dirty.de", "--against", "test.en", "--against", "test.de", "--write", "my text"],
     "init 'my text' --test test.en --test test.de"),
    (["--config", "c.yaml"], "train c.yaml"),
])  # fmt: skip
def test_it_ends_with_the_next_command(dirty: CorpusFiles, cli: Cli, arguments: list[str], command: str) -> None:
    write_pairs(Path(), DIRTY[:1], "test")
    pair = "{src: test.en, tgt: test.de}"
    data = f"data: {{src_lang: en, tgt_lang: de, train: {pair}, validation: {pair}}}"
    Path("c.yaml").write_text(f"{data}\ntraining: {{max_steps: 2}}\n")
    code, _, err = cli("data", *arguments)
    assert code == 0, err
    assert err.endswith(f"next:\n  nmt {command}\n")


def test_the_text_fits_a_terminal(dirty: CorpusFiles, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    long = [(b"word " * 100, b"Wort " * 100)] * 3
    shown = data_text(profiled(long)).plain
    assert max(map(len, shown.split("\n"))) <= 80
    assert "  en  3 times  word word" in shown
    assert "\x07" not in shown


def test_the_profile_on_a_terminal(
    dirty: CorpusFiles, cli: Cli, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("data", "dirty.en", "dirty.de", "--against", "dirty.en", "--against", "dirty.de")
    lines = screen.lines(cli(*command)[1])
    monkeypatch.delenv("FORCE_COLOR")
    is_bar = re.compile("[█▏▎▍▌▋▊▉]+")
    assert is_bar.sub("", " ".join(lines)).split() == is_bar.sub("", cli(*command)[1]).split()


def test_spaces_and_joiners_of_good_text_are_shown_as_they_are(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = "<b>5\u00a0km</b> 1\u202f000, 東京\u3000駅, 👩\u200d🚀, می\u200cخواهم, \u200e!"
    write_pairs(tmp_path, [(good.encode(), b"5 km \x07.")])
    code, out, err = cli("data", "dirty.en", "dirty.de")
    assert code == 0, err
    assert good in out
    assert "5 km \ufffd." in out


def test_bars() -> None:
    assert [bar(share, 10) for share in (0, 0.001, 0.25, 1)] == ["", "▏", "██▌", "█" * 10]


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_the_page_in_a_browser(dirty: CorpusFiles, cli: Cli, browser: Browser, width: int, dark: bool) -> None:
    write_pairs(Path(), [(b"A dog runs.", b"Ein <i>Hund</i> rennt.")], "test")
    code, _, _ = cli(
        "data", "dirty.en", "dirty.de", "--against", "test.en", "--against", "test.de", "--output", "p.html"
    )
    assert code == 0
    page = Path("p.html").resolve()
    browser.open_page(page, width, dark)
    browser.check_page(page)
    browser.check_accessibility()
    assert browser.text("h1") == "dirty.en, dirty.de"
    assert "A <b>big</b> house." in browser.run("return document.body.innerText")
    bars = "return [...document.querySelectorAll('.histogram')[0].querySelectorAll('.bar')]"
    wide = browser.run(f"{bars}.map((one) => one.getBoundingClientRect().width)")
    assert [round(one / max(wide), 1) for one in wide] == [0.6, 1.0]  # lines of 2 and of 3 words: 3 and 5
