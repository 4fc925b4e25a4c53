"""Discovery of the corpora that a command line names, and of their languages."""

import gzip
import json
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from nmt.config.corpus import CorpusFiles
from nmt.corpora.discovery import discover
from nmt.corpora.pairs import empty_error, read_pairs
from nmt.errors import NmtError

PAIRS = [("one", "eins"), ("two", "zwei")]
EN, DE = ("".join(f"{pair[side]}\n" for pair in PAIRS).encode() for side in (0, 1))


def tmx(*languages: str, header: str = "") -> bytes:
    """A unit for each of PAIRS with a segment in each language."""
    units = "".join(
        "<tu>" + "".join(f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>'
                         for language, text in zip(languages, [*pair, "drei"], strict=False)) + "</tu>"
        for pair in PAIRS
    )  # fmt: skip
    return f'<tmx version="1.4"><header {header}/><body>{units}</body></tmx>'.encode()


def archive(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)


def jsonl(*objects: object) -> bytes:
    return "".join(f"{json.dumps(value)}\n" for value in objects).encode()


FILES: dict[str, bytes] = {
    "train.en": EN, "train.de": DE, "train.src": EN, "train.tgt": DE, "other.en": EN, "german.de": DE,
    "x.en.gz": gzip.compress(EN), "x.de.gz": gzip.compress(DE),
    "codes.tsv": b"id\ten\tde_DE\n1\tone\teins\n2\ttwo\tzwei\n",
    "words.csv": b"Target,Source\neins,one\nzwei,two\n",
    "names.csv": b"English,German\none,eins\ntwo,zwei\n",
    "bare.tsv": b"one\teins\ntwo\tzwei\n",
    "half.tsv": b"en\tother\none\teins\n",
    "ids.tsv": b"1\tone\t77\teins\n",
    "flat.jsonl": jsonl({"de": "eins", "en": "one"}, {"de": "zwei", "en": "two"}),
    "nested.jsonl": jsonl(*({"id": 7, "translation": {"en": en, "de": de}} for en, de in PAIRS)),
    "prompt.jsonl": jsonl({"prompt": "one", "answer": "eins"}),
    "two.tmx": tmx("en-US", "de-DE", header='srclang="de-DE"'),
    "any.tmx": tmx("en-US", "de-DE", header='srclang="*all*"'),
    "three.tmx": tmx("en", "de", "fr", header='srclang="en"'),
    "variants.tmx": tmx("pt-BR", "pt-PT", header='srclang="pt-BR"'),
    "old.tmx": tmx("eng", "de-DE", header='srclang="eng"'),
    "lines.csv": b'"one","eins"\n"two\nlines",zwei\n', "first.csv": b'"one\n","eins\n"\ntwo,zwei\n',
    "numbered.csv": b"ID,English,German\n7,one,eins\n8,two,zwei\n",
    "words.tsv": b"it\tes\nhouse\tHaus\n", "mac.csv": b'en,de\r"one, two",eins\r',
    "taiwan.tmx": tmx("en", "zh-TW", header='srclang="en"'),
    "opus/README": b"about", "opus/Books.de-en.de": DE, "opus/Books.de-en.en": EN, "opus/Books.de-en.ids": b"1\n2\n",
    "lone/Books.de-en.de": DE, "lone/News.de-en.de": DE, "lone/News.de-en.en": EN, "empty/notes.txt": b"hello",
    "sorbian/Web.de-hsb.de": DE, "sorbian/Web.de-hsb.hsb": EN,
    "trio/a.de": DE, "trio/a.en": EN, "trio/a.fr": EN,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    archive(tmp_path / "de-en.txt.zip", {"README": b"", "Books.de-en.de": DE, "Books.de-en.en": EN})
    archive(tmp_path / "poor.zip", {"README": b"", "Books.xml": b""})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def discovered(named: str) -> tuple[str, str, tuple[CorpusFiles, ...]]:
    """`discover` for a command line: corpora and options."""
    words = named.split()
    options: dict[str, str] = {}
    while any(word.startswith("--") for word in words):
        at = next(index for index, word in enumerate(words) if word.startswith("--"))
        options[words[at].removeprefix("--").replace("-", "_")] = words[at + 1]
        del words[at : at + 2]
    src, tgt = (Path(options[key]) if key in options else None for key in ("src", "tgt"))
    corpora = discover([Path(word) for word in words], src, tgt, options.get("src_lang"), options.get("tgt_lang"))
    return corpora.src_lang, corpora.tgt_lang, corpora.files


@pytest.mark.parametrize(
    ("named", "languages"),
    [
        ("--src train.en --tgt train.de", "en de"),
        ("--src train.de --tgt train.en", "de en"),
        ("--src train.src --tgt train.tgt --src-lang en --tgt-lang de", "en de"),
        ("--src train.src --tgt train.de --src-lang en", "en de"),
        ("--src train.en --tgt other.en --src-lang en --tgt-lang de", "en de"),
        ("train.en train.de", "en de"),
        ("train.de train.en --src-lang en", "en de"),
        ("other.en german.de", "en de"),
        ("train.de x.en.gz train.en x.de.gz --src-lang en", "en de"),
        ("train.src train.tgt --src-lang en --tgt-lang hsb", "en hsb"),
        ("codes.tsv", "en de"),
        ("words.csv --src-lang en --tgt-lang de", "en de"),
        ("names.csv", "en de"),
        ("bare.tsv --src-lang en --tgt-lang de", "en de"),
        ("flat.jsonl", "de en"),
        ("flat.jsonl --tgt-lang de", "en de"),
        ("nested.jsonl", "en de"),
        ("two.tmx", "de en"),
        ("two.tmx --src-lang en-GB", "en-GB de"),
        ("any.tmx --src-lang en", "en de"),
        ("three.tmx --src-lang de --tgt-lang en", "de en"),
        ("variants.tmx --src-lang pt-PT --tgt-lang pt-BR", "pt-PT pt-BR"),
        ("taiwan.tmx", "en zh-TW"),
        ("old.tmx", "en de"),
        ("lines.csv --src-lang en --tgt-lang de", "en de"),
        ("first.csv --src-lang en --tgt-lang de", "en de"),
        ("numbered.csv", "en de"),
        ("de-en.txt.zip --src-lang en", "en de"),
        ("opus --tgt-lang de", "en de"),
        ("sorbian --src-lang hsb", "hsb de"),
        ("trio --src-lang en --tgt-lang de", "en de"),
        ("de-en.txt.zip nested.jsonl codes.tsv opus --src train.en --tgt train.de", "en de"),
    ],
)
def test_languages_and_sides_are_found(folder: Path, named: str, languages: str) -> None:
    src_lang, tgt_lang, files = discovered(named)
    assert f"{src_lang} {tgt_lang}" == languages
    for corpus in files:
        first = next(iter(read_pairs(corpus)))
        german_first = src_lang == "de" or src_lang == "pt-PT"
        first = first[0].strip(), first[1].strip()
        if named.startswith("--src train.en --tgt other.en"):
            assert first == ("one", "one")
        else:
            assert first == (PAIRS[0][::-1] if german_first else PAIRS[0])


def test_every_corpus_is_listed_once_in_the_order_named(folder: Path) -> None:
    *_, files = discovered("nested.jsonl opus any.tmx train.en train.de x.en.gz x.de.gz")
    assert [str(corpus.src_file) for corpus in files] == [
        "nested.jsonl", "opus/Books.de-en.en", "any.tmx", "train.en", "x.en.gz"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("", "name a corpus"),
        ("--src train.en", "--src names one side"),
        ("--src two.tmx --tgt train.de", "--src: two.tmx holds both sides"),
        ("--src train.en --tgt missing.de", "missing.de: no such file"),
        ("--src train.en --tgt opus", "opus: is a folder, not a text"),
        ("--src train.en --tgt train.en", "train.en is named as both sides"),
        ("missing.tmx", "missing.tmx: no such file"),
        ("--src train.de --tgt train.en --src-lang en", "--src-lang is en, and by their names the other text is"),
        ("--src train.src --tgt train.tgt", "train.src and train.tgt: no language is named"),
        ("train.en train.de --src-lang english", "--src-lang: 'english' is not a language code"),
        ("train.en train.de --src-lang de --tgt-lang de", "--src-lang and --tgt-lang are both de"),
        ("train.en", "train.en: name its other side, such as train.en train.de"),
        ("de-en.txt.zip", "de-en.txt.zip (de, en): which is the source?"),
        ("opus", "opus/Books.de-en (de, en): which is the source?"),
        ("any.tmx", "any.tmx (en, de): which is the source?"),
        ("nested.jsonl flat.jsonl", "nested.jsonl (en, de), and 1 more: which is the source?"),
        ("three.tmx", "the languages found are en, de, fr"),
        ("three.tmx --src-lang de", "the languages found are en, de, fr"),
        ("three.tmx --src-lang de --tgt-lang it", "three.tmx: holds en, de, fr, not de and it"),
        ("words.csv", "words.csv: no language is named"),
        ("half.tsv", "half.tsv:1: 'en' names one side"),
        ("words.tsv --src-lang en --tgt-lang de", "words.tsv: holds it, es, not en and de; name its own"),
        ("mac.csv --src-lang en --tgt-lang de", "mac.csv:1: the row that begins here is not CSV"),
        ("ids.tsv --src-lang en --tgt-lang de", "ids.tsv:1: has 4 columns"),
        ("prompt.jsonl", "prompt.jsonl:1: no two fields are named after languages"),
        ("poor.zip", "poor.zip: holds no two texts"),
        ("empty", "empty: holds no corpus"),
        ("lone --src-lang en", "lone/Books.de-en.de: its other side is not in the folder"),
    ],
)  # fmt: skip
def test_what_is_ambiguous_or_missing_is_refused_with_what_to_give(folder: Path, named: str, message: str) -> None:
    with pytest.raises(NmtError, match=f"^{re.escape(message)}") as raised:
        discovered(named)
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_that_was_read_before_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("train.en")
    Path("train.de").write_bytes(DE)
    error = empty_error(CorpusFiles(src=Path("train.en"), tgt=Path("train.de")))
    assert str(error) == "train.en and train.de are empty; a pipe can be read only once: write the text to a file"
