"""More than 30 dirty corpora as people have them: the pairs that each rule drops, or the error."""

import gzip
import io
import json
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import yaml

from nmt.cleaning.selection import RULES, select, write_examples
from nmt.config.reading import load_config
from nmt.corpora.pairs import read_pairs
from nmt.errors import NmtError

CLEAN = (
    ("A dog runs.", "Ein Hund rennt."), ("Two men sleep in a red tent.", "Zwei Männer schlafen in einem roten Zelt."),
    ("The house is big.", "Das Haus ist groß."),
)  # fmt: skip
TWO_TEXTS = {"src": "t.en", "tgt": "t.de"}


def texts(pairs: Sequence[tuple[str, str]], name: str = "t", languages: str = "en de") -> dict[str, bytes]:
    one, other = languages.split()
    return {
        f"{name}.{one}": "".join(f"{src}\n" for src, _ in pairs).encode(),
        f"{name}.{other}": "".join(f"{tgt}\n" for _, tgt in pairs).encode(),
    }


def zipped(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tmx(pairs: Sequence[tuple[str, str]], errors: str = "strict") -> bytes:
    units = "".join(
        f'<tu><tuv xml:lang="en-US"><seg>{src}</seg></tuv><tuv xml:lang="de"><seg>{tgt}</seg></tuv></tu>\n'
        for src, tgt in pairs
    )
    return f'<?xml version="1.0"?>\n<tmx version="1.4"><header/><body>\n{units}</body></tmx>'.encode(errors=errors)


@dataclass(frozen=True)
class Dirty:
    """A corpus, the rules, and for each of its pairs the rule that leaves it out, '' if none; or a refusal."""

    about: str
    cleaning: Mapping[str, object]
    rules: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()
    """Of two texts, unless `files` is given."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    train: object = field(default_factory=lambda: TWO_TEXTS)
    languages: str = "en de"
    refusal: str = ""


def dirty(about: str, cleaning: Mapping[str, object], *judged: tuple[str, str, str], languages: str = "en de") -> Dirty:
    """Two texts; each pair with its rule."""
    one, other = languages.split()
    return Dirty(
        about, cleaning, [rule for _, _, rule in judged], [(src, tgt) for src, tgt, _ in judged],
        train={"src": f"t.{one}", "tgt": f"t.{other}"}, languages=languages,
    )  # fmt: skip


def good(*pairs: tuple[str, str]) -> list[tuple[str, str, str]]:
    return [(src, tgt, "") for src, tgt in pairs or CLEAN]


ALL = {
    "duplicates": "pair", "length_ratio": 4, "identical": True, "script": 0.5, "encoding": True, "html": True,
    "numbers": True, "max_repeats": 20,
}  # fmt: skip
A_LINE = "word " * 40
CASES = [
    dirty("clean text", ALL, *good()),
    dirty(
        "empty and blank lines",
        {"html": True},
        *good(),
        ("", "Leer", "empty"),
        (" \u3000", "Leer", "empty"),
        ("x", "\t", "empty"),
    ),
    dirty(
        "the same pair twice", {"duplicates": "pair"}, *good(), (*CLEAN[1], "duplicates"), (CLEAN[1][0], "Zwei.", "")
    ),
    dirty(
        "white space alone differs",
        {"duplicates": "pair"},
        *good(),
        (f" {CLEAN[0][0]} ", f"{CLEAN[0][1]}  ", "duplicates"),
    ),
    dirty(
        "several translations of a source", {"duplicates": "source"}, *good(), (CLEAN[0][0], "Es rennt.", "duplicates")
    ),
    dirty(
        "several sources of a translation", {"duplicates": "target"}, *good(), ("It runs.", CLEAN[0][1], "duplicates")
    ),
    dirty(
        "either side repeated",
        {"duplicates": "either"},
        *good(),
        ("It runs.", CLEAN[0][1], "duplicates"),
        ("It runs.", "Neu.", "duplicates"),
        ("New.", "Auch neu.", ""),
    ),
    dirty(
        "boilerplate",
        {"max_repeats": 2},
        ("Next page", "Weiter", ""),
        *good(),
        ("Next page", "Nächste Seite", ""),
        ("Next page", "Weiter", "max_repeats"),
        ("Go on", "Weiter", "max_repeats"),  # twice before, once in a pair that was left out
        ("On", "Weiter", "max_repeats"),
    ),
    dirty(
        "boilerplate that is a duplicate, too",
        {"max_repeats": 2, "duplicates": "pair"},
        ("a", "b", ""),
        ("a", "c", ""),
        ("a", "d", "max_repeats"),
        ("a", "b", "duplicates"),
    ),
    dirty(
        "untranslated", {"identical": True}, *good(), ("Not translated at all.", "Not translated at all.", "identical")
    ),
    dirty(
        "a subtitle's tags and entities",
        {"html": True},
        ("<i>What?</i>", "<i>Was?</i>", "html"),
        *good(),
        ("Tom &amp; Jerry", "Tom und Jerry", "html"),
        ("a < b", "a < b", ""),
        ("So,&nbsp;no", "Also nein", "html"),
    ),
    dirty(
        "a web page's characters",
        {"encoding": True},
        *good(),
        ("It doesnâ€™t", "Es geht nicht", "encoding"),
        ("Munich", "MÃ¼nchen", "encoding"),
        ("caf\ufffd", "Café", "encoding"),
        ("Café", "„Straße“ – 5 €", ""),
    ),
    dirty(
        "Cyrillic read as windows-1251",
        {"encoding": True},
        ("Hello", "Привет", ""),
        ("world", "РјРёСЂ", "encoding"),
        ("peace", "Ð¼Ð¸Ñ€", "encoding"),
        languages="en ru",
    ),
    dirty(
        "sentences that went apart",
        {"length_ratio": 4},
        *good(),
        ("Yes.", A_LINE, "length_ratio"),
        (A_LINE, "Ja.", "length_ratio"),
        ("OK", "In Ordnung", ""),
    ),
    dirty(
        "Chinese is shorter",
        {"length_ratio": 3},
        ("The children are playing in the park", "孩子们在公园里玩", ""),
        ("A man in a blue shirt is standing on a ladder", "一个穿蓝衬衫的男人站在梯子上", ""),
        ("The weather is very good today", "今天天气很好", ""),
        ("The weather is good", "今天天气很好孩子们在公园里玩一个穿蓝衬衫的男人站在梯子上今天天气很好", "length_ratio"),
        languages="en zh",
    ),
    dirty(
        "Russian in a German column",
        {"script": 0.5},
        *good(),
        ("A dog", "Собака бежит", "script"),
        ("Собака бежит", "Ein Hund", "script"),
        ("The word мир", "Das Wort мир", ""),
    ),
    dirty(
        "names in Latin letters in Chinese",
        {"script": 0.5},
        ("Install LibreOffice now", "安装 LibreOffice 软件", ""),
        ("A dog runs", "yi zhi gou zai pao", "script"),
        languages="en zh",
    ),
    dirty(
        "three scripts of Japanese",
        {"script": 0.5},
        ("Tokyo tower", "東京タワー", ""),
        ("It is hot", "とても暑い", ""),
        ("hello", "여보세요 안녕", "script"),
        languages="en ja",
    ),
    dirty(
        "Serbian in both alphabets",
        {"script": 0.5},
        ("A dog runs", "Пас трчи", ""),
        ("A dog runs", "Pas trči", ""),
        ("A dog runs", "کلب یجری", "script"),
        languages="en sr",
    ),
    dirty(
        "right to left",
        {"script": 0.5, "numbers": True},
        ("Born in 1914", "ولد عام ١٩١٤", ""),
        ("Born in 1914", "ولد عام ١٩١٨", "numbers"),
        ("Hello world", "Hello there", "script"),
        languages="en ar",
    ),
    dirty(
        "other numbers",
        {"numbers": True},
        ("It costs 1,299.50", "Es kostet 1.299,50", ""),
        ("two dogs", "2 Hunde", ""),
        ("page 113", "Seite 114", "numbers"),
        ("in 2019", "damals", "numbers"),
        ("12/31/2020", "31.12.2020", ""),
    ),
    dirty("the first rule counts", ALL, ("<b>MÃ¼</b>", "собака", "encoding"), ("<b>x</b>", "собака", "html"), *good()),
    Dirty(
        "everything is dirt",
        {"html": True},
        pairs=(("<b>", "<b>"), ("", "")),
        refusal="t.en: no pair is left of 2: 1 have an empty side, 1 are dropped by data.cleaning.html",
    ),
    Dirty(
        "two corpora share pairs",
        {"duplicates": "pair"},
        ["", "", "", "duplicates", "", "duplicates"],
        files=texts(CLEAN) | texts([CLEAN[2], ("New.", "Neu."), CLEAN[0]], "u"),
        train=[{**TWO_TEXTS, "weight": 2}, {"src": "u.en", "tgt": "u.de"}],
    ),
    Dirty(
        "a translation memory",
        {"duplicates": "pair", "html": True},
        ["", "", "", "duplicates", "html", "empty"],
        files={"m.tmx": tmx([*CLEAN, CLEAN[0], ("&lt;b&gt;x&lt;/b&gt;", "x"), ("", "leer")])},
        train={"pairs": "m.tmx"},
    ),
    Dirty(
        "a spreadsheet",
        {"html": True, "identical": True},
        ["", "html", "identical"],
        files={"s.csv": b'id,en,de\r\n1,"A dog, a cat","Hund, Katze"\r\n2,<br>x,y\r\n3,Not done,Not done\r\n'},
        train={"pairs": "s.csv", "src_column": "en", "tgt_column": "de"},
    ),
    Dirty(
        "compressed JSON lines",
        {"numbers": True, "script": 0.9},
        ["", "numbers", "script"],
        files={
            "j.jsonl.gz": gzip.compress(
                "".join(
                    json.dumps({"en": src, "de": tgt}) + "\n"
                    for src, tgt in (CLEAN[0], ("page 113", "Seite 114"), ("cat", "кошка"))
                ).encode()
            )
        },
        train={"pairs": "j.jsonl.gz"},
    ),
    Dirty(
        "an archive of OPUS",
        {"duplicates": "pair"},
        ["", "", "", "duplicates"],
        files={"o.zip": zipped(texts([*CLEAN, CLEAN[0]], "o.de-en") | {"README": b"x"})},
        train={"pairs": "o.zip"},
    ),
    Dirty(
        "Latin-1 in one line, with the rule",
        {"encoding": True},
        ["", "encoding", ""],
        files={"t.en": b"A dog\nMunich\nA cat\n", "t.de": b"Ein Hund\n" + b"M\xfcnchen\n" + b"Eine Katze\n"},
    ),
    Dirty(
        "Latin-1 in some rows of a TSV, with the rule",
        {"encoding": True},
        ["", "encoding", "encoding", ""],
        files={
            "t.tsv": b"en\tremark\tde\nA dog\t\xfc\tHund\nMunich\t\tM\xfcnchen\nCaf\xe9\t\tCaf\xc3\xa9\nA cat\t\tE\n"
        },
        train={"pairs": "t.tsv", "src_column": "en", "tgt_column": "de"},
    ),
    Dirty(
        "a CSV with damaged fields, with the rule",
        {"encoding": True, "duplicates": "pair"},
        ["", "encoding", "encoding", "duplicates"],
        files={
            "t.csv": b'A dog,Hund\r\n"a,\nb","\xfc"\r\nIt doesn\xc3\xa2\xe2\x82\xac\xe2\x84\xa2t,x\r\nA dog,Hund\r\n'
        },
        train={"pairs": "t.csv"},
    ),
    Dirty(
        "JSON lines with damaged fields, with the rule",
        {"encoding": True},
        ["", "encoding", "encoding", "encoding", "encoding", ""],
        files={
            "j.jsonl": b'{"en": "A dog", "de": "Hund"}\n{"en": "x", "de": "K\xf6ln"}\n{"en": "\\ud800", "de": "x"}\n'
            b'{"en": "a\\u0000b", "de": "x"}\n{"en": "M\\u00c3\\u00bcnchen", "de": "x"}\n'
            b'{"en": "\\ud83d\\ude00", "de": "x"}\n'
        },
        train={"pairs": "j.jsonl"},
    ),
    Dirty(
        "Latin-1 in a table, without the rule",
        {"html": True},
        refusal="t.csv:4: not UTF-8",
        files={"t.csv": b'en,de\n"A\ndog",Ein Hund\nMunich,M\xfcnchen\n'},
        train={"pairs": "t.csv", "src_column": "en", "tgt_column": "de"},
    ),
    Dirty(
        "a translation memory that is not in its encoding",
        {"encoding": True},
        refusal="m.tmx:3: broken TMX",
        files={"m.tmx": tmx([("Munich", "M\udcfcnchen")], errors="surrogateescape")},
        train={"pairs": "m.tmx"},
    ),
    Dirty(
        "Latin-1 in one line, without the rule",
        {"html": True},
        refusal="t.de:2",
        files={"t.en": b"A dog\nMunich\n", "t.de": b"Ein Hund\nM\xfcnchen\n"},
    ),
    Dirty("a line is missing", ALL, refusal="t.de", files={"t.en": b"a\nb\nc\n", "t.de": b"a\nb\n"}),
    Dirty("no file", ALL, refusal="t.de", files={"t.en": b"a\n"}),
    Dirty(
        "a row without its second column",
        ALL,
        refusal="s.tsv:2",
        files={"s.tsv": b"a\tb\nc\n"},
        train={"pairs": "s.tsv"},
    ),
    Dirty(
        "broken JSON",
        ALL,
        refusal="j.jsonl:2",
        files={"j.jsonl": b'{"en": "a", "de": "b"}\n{"en": \n'},
        train={"pairs": "j.jsonl"},
    ),
    Dirty(
        "a truncated file",
        ALL,
        refusal="t.de.gz",
        files={"t.en": b"a\n" * 99, "t.de.gz": gzip.compress(b"ab\n" * 99)[:-9]},
        train={"src": "t.en", "tgt": "t.de.gz"},
    ),
    Dirty("an unknown rule", {"html_tags": True}, refusal="data.cleaning.html_tags", pairs=CLEAN),
    Dirty("a ratio that no pair can keep", {"length_ratio": 1}, refusal="data.cleaning.length_ratio", pairs=CLEAN),
    Dirty("a share in percent", {"script": 50}, refusal="data.cleaning.script", pairs=CLEAN),
    Dirty(
        "a number of repeats that keeps nothing", {"max_repeats": 0}, refusal="data.cleaning.max_repeats", pairs=CLEAN
    ),
    Dirty("an unknown kind of duplicate", {"duplicates": "both"}, refusal="data.cleaning.duplicates", pairs=CLEAN),
]


def config_of(folder: Path, case: Dirty) -> Path:
    """The corpus and a configuration beside it; validation and test text share no sentence with the corpora."""
    held_out = {"v": [("Nothing of this.", "Nichts davon.")], "w": [("Nor of that.", "Auch davon nicht.")]}
    one, other = case.languages.split()
    files = dict(case.files or texts(case.pairs, languages=case.languages))
    for name, pairs in held_out.items():
        files |= texts(pairs, name, case.languages)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    section = {
        "src_lang": one, "tgt_lang": other, "train": case.train, "cleaning": dict(case.cleaning),
        "validation": {"src": f"v.{one}", "tgt": f"v.{other}"}, "test": {"src": f"w.{one}", "tgt": f"w.{other}"},
    }  # fmt: skip
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"data": section, "training": {"max_steps": 10}}))
    return path


def judged(path: Path) -> list[str]:
    config = load_config(path)
    data = config.data
    selection = select(data.train, data.cleaning, (data.src_lang, data.tgt_lang), data.excluded_from_training)
    assert selection is not None
    found = ["" if verdict == 0 else RULES[verdict - 1] for one in selection.verdicts for verdict in one.tolist()]
    assert selection.counts.read == len(found)
    assert selection.counts.dropped == Counter(filter(None, found))
    return found


def test_there_are_thirty() -> None:
    assert len({case.about for case in CASES}) == len(CASES) >= 30


@pytest.mark.parametrize("case", CASES, ids=[case.about for case in CASES])
def test_a_dirty_corpus_is_cleaned_or_refused(case: Dirty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = config_of(tmp_path, case)
    if case.refusal:
        with pytest.raises(NmtError) as caught:
            judged(path)
        assert case.refusal in str(caught.value)
        assert caught.value.exit_code == 2
    else:
        assert judged(path) == case.rules


@pytest.mark.parametrize("overlap", [True, False])
def test_sentences_of_validation_and_test_text_leave_the_training_text(
    overlap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [
        *CLEAN,
        ("Nothing of this.", "Etwas anderes."),
        ("Else", "  Auch davon nicht. "),
        ("Nothing of THIS.", "Ja."),
    ]
    case = Dirty("", {"overlap": overlap, "html": True}, pairs=pairs)
    assert judged(config_of(tmp_path, case)) == ["", "", "", *(["overlap"] * 2 if overlap else ["", ""]), ""]


def test_the_rules_agree_with_sets_when_all_are_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 pairs, of which every third was made dirty in a known way."""
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(1)
    make_dirty = {
        "encoding": lambda src, tgt: (src, f"{tgt} Ã¼ber"), "html": lambda src, tgt: (f"<p>{src}</p>", tgt),
        "identical": lambda src, tgt: (src, src), "script": lambda src, tgt: (src, "собака бежит по снегу"),
        "numbers": lambda src, tgt: (f"{src} 1914", f"{tgt} 1915"), "empty": lambda src, tgt: (src, " "),
        "length_ratio": lambda src, tgt: (src, " ".join([tgt] * 30)),
    }  # fmt: skip
    pairs: list[tuple[str, str]] = []
    expected = []
    seen: set[tuple[str, str]] = set()
    for number in draws.integers(0, 900, 2000).tolist():
        name = "".join(chr(ord("a") + int(digit)) for digit in f"{number:03}")
        pair = f"the {name} runs through this street", f"die {name} rennt durch diese Straße"
        rule = str(draws.choice([*make_dirty])) if number % 3 == 0 else ""
        if rule:
            pair = make_dirty[rule](*pair)
        elif pair in seen:
            rule = "duplicates"
        else:
            seen.add(pair)
        pairs.append(pair)
        expected.append(rule)
    path = config_of(tmp_path, Dirty("", {**ALL, "max_repeats": None}, pairs=pairs))
    assert judged(path) == expected
    assert set(expected) == {"", "duplicates", *make_dirty}


def test_examples_name_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [CLEAN[0], *(((f"<b>{number}</b>", "x")) for number in range(50)), ("Same.", "Same.")]
    config = load_config(config_of(tmp_path, Dirty("", {"html": True, "identical": True}, pairs=pairs)))
    selection = select(config.data.train, config.data.cleaning, ("en", "de"))
    assert selection is not None
    write_examples(tmp_path / "cleaning.tsv", config.data.train, selection.verdicts)
    rows = [line.split("\t") for line in (tmp_path / "cleaning.tsv").read_text("utf-8").splitlines()[1:]]
    assert Counter(row[0] for row in rows) == {"html": 20, "identical": 1}
    written = list(read_pairs(config.data.train[0]))
    for _, file, number, src, tgt in rows:
        assert Path(file).name == "t.en"
        assert written[int(number) - 1] == (src, tgt)
    numbers = [int(row[2]) for row in rows if row[0] == "html"]
    assert (min(numbers), max(numbers)) == (2, 51)
