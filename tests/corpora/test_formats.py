"""Corpora in one file: TSV, CSV, JSONL, TMX and ZIP, plain and compressed, give the pairs that two texts give."""

import bz2
import csv
import gzip
import hashlib
import json
import logging
import lzma
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import numpy as np
import pytest
import yaml
from backports import zstd
from conftest import Cli, assert_says, refused

from nmt.batches.dataset import EncodedCorpus, encode_corpus
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TokenizerConfig
from nmt.config.reading import load_config, to_yaml
from nmt.corpora import lines
from nmt.corpora.hashes import corpus_hashes, corpus_keys
from nmt.corpora.lines import read_lines
from nmt.corpora.pairs import count_pairs, places_of, read_pairs, sides_of
from nmt.decoding.files import Files
from nmt.errors import ConfigError, DataError, MissingExtraError
from nmt.system.files import read_json
from nmt.tokenizers.building import ensure_tokenizers
from nmt.training.divergence import listed

TINY = Path(__file__).parents[2] / "data" / "tiny"
Pairs = Sequence[tuple[str, str]]
# What some format might take for markup, a quote, a separator or a line end.
HARD = [
    ('say "hello", she said', "„你好“, 她说"),
    ("a < b && c > d &amp; <b>e</b>", "x<y"),
    ("one\u2028two\x85three", "une\u00a0deux"),
    ("", "empty"),
    ('"quoted"', "'"),
    ("{\\n}", "\\u0041"),
    ("\ufeffa mark", "😀"),
]


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    """300 pairs of the tiny corpus, and hard ones."""
    sides = [(TINY / f"train.{side}").read_text(encoding="utf-8").split("\n")[:300] for side in ("en", "zh")]
    return [*zip(*sides, strict=True), *HARD]


def write_texts(pairs: Pairs, name: str = "a") -> CorpusFiles:
    files = {key: Path(f"{name}.{side}") for key, side in (("src", "en"), ("tgt", "zh"))}
    for index, path in enumerate(files.values()):
        path.write_text("".join(f"{pair[index]}\n" for pair in pairs), encoding="utf-8", newline="")
    return CorpusFiles(**files)


def write_tsv(pairs: Pairs, path: Path) -> CorpusFiles:
    path.write_text("".join(f"{tgt}\tid {n}\t{src}\r\n" for n, (src, tgt) in enumerate(pairs)), "utf-8", newline="")
    return CorpusFiles(pairs=path, src_column=3, tgt_column=1)


def write_csv(pairs: Pairs, path: Path) -> CorpusFiles:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "German, or Chinese", "English"])
        writer.writerows([n, tgt, src] for n, (src, tgt) in enumerate(pairs))
    return CorpusFiles(pairs=path, src_column="English", tgt_column="German, or Chinese")


def write_jsonl(pairs: Pairs, path: Path) -> CorpusFiles:
    rows = (json.dumps({"id": n, "translation": {"en": s, "zh": t}}) + "\n" for n, (s, t) in enumerate(pairs))
    path.write_text("".join(rows), encoding="utf-8")
    return CorpusFiles(pairs=path, src_column="translation.en", tgt_column="translation.zh")


def write_tmx(pairs: Pairs, path: Path, encoding: str = "utf-16") -> CorpusFiles:
    root = ElementTree.Element("tmx", version="1.4")
    ElementTree.SubElement(root, "header", srclang="en")
    body = ElementTree.SubElement(root, "body")
    for sides in pairs:
        unit = ElementTree.SubElement(body, "tu")
        for language, text in zip(("zh-CN", "EN-us"), reversed(sides), strict=True):
            segment = ElementTree.SubElement(unit, "tuv", {"xml:lang": language})
            ElementTree.SubElement(segment, "seg").text = text
    ElementTree.ElementTree(root).write(path, encoding=encoding, xml_declaration=True)
    return CorpusFiles(pairs=path, src_column="en", tgt_column="zh")


def write_zip(pairs: Pairs, path: Path) -> CorpusFiles:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README", "of no language")
        for index, side in ((1, "zh"), (0, "en")):
            archive.writestr(f"opus/a.en-zh.{side}", "".join(f"{pair[index]}\n" for pair in pairs))
        archive.writestr("opus/a.en-zh.ids", "1\n")
        archive.writestr("LICENSE", "free\n")
    return CorpusFiles(pairs=path, src_column="en", tgt_column="zh")


WRITERS: dict[str, Callable[[Pairs, Path], CorpusFiles]] = {
    "tsv": write_tsv,
    "csv": write_csv,
    "jsonl": write_jsonl,
    "tmx": write_tmx,
    "zip": write_zip,
}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstd.compress,
}


def compressed(files: CorpusFiles, kind: str) -> CorpusFiles:
    """The same corpus in compressed files, each of two parts one after another."""
    new = {}
    for key in ("src", "tgt", "pairs"):
        if (path := getattr(files, key)) is not None:
            data = path.read_bytes()
            new[key] = path.with_name(f"{path.name}.{kind}")
            new[key].write_bytes(b"".join(map(COMPRESS[kind], (data[:5000], data[5000:]))))
    return files.model_copy(update=new)


def numbers(corpus: EncodedCorpus) -> list[list[list[int]]]:
    return [[side.tolist() for side in corpus[index]] for index in range(len(corpus))]


@pytest.mark.parametrize(
    "kinds", [["tsv"], ["csv"], ["jsonl"], ["tmx"], ["zip"], ["tmx", "text", "csv", "zip", "jsonl", "tsv"]], ids=str
)
def test_every_format_and_a_mixture_give_the_same_vocabulary_and_encoded_corpus(
    pairs: Pairs, kinds: list[str], tmp_path: Path
) -> None:
    corpora = []
    for index, part in enumerate(np.array_split(np.arange(len(pairs)), len(kinds))):
        texts, kind, path = [pairs[n] for n in part], kinds[index], Path(f"{index}.{kinds[index]}")
        corpora.append(write_texts(texts, f"part{index}") if kind == "text" else WRITERS[kind](texts, path))
    found = [
        encode_corpus(one, ensure_tokenizers(one, TokenizerConfig(vocab_size=600), folder), folder, 200)
        for one, folder in ((corpora, tmp_path / "of_kinds"), ([write_texts(pairs)], tmp_path / "of_text"))
    ]
    assert (tmp_path / "of_kinds/joint.model").read_bytes() == (tmp_path / "of_text/joint.model").read_bytes()
    assert numbers(found[0]) == numbers(found[1])
    assert found[0].counts == found[1].counts and found[0].counts.dropped == {"empty": 1}
    assert len(found[0]) == len(pairs) - 1


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("form", ["text", *[name for name in WRITERS if name != "zip"]])
def test_a_compressed_corpus_has_the_pairs_of_the_plain_one(pairs: Pairs, kind: str, form: str) -> None:
    few = [*pairs[:100], *HARD]
    files = compressed(write_texts(few) if form == "text" else WRITERS[form](few, Path(f"a.{form}")), kind)
    assert list(read_pairs(files)) == few
    assert count_pairs([files]) == len(few)
    assert [list(side.lines()) for side in sides_of(files)] == [list(side) for side in zip(*few, strict=True)]


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_compressed_file_that_is_cut_or_is_something_else_is_named(kind: str) -> None:
    path = Path(f"a.en.{kind}")
    text = "".join(f"{number}\n" for number in range(9000)).encode()
    for data in (COMPRESS[kind](text)[:-9], b"not compressed\n"):
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"a\.en\.{kind}: cannot be read: "):
            list(read_lines(path))


@pytest.mark.parametrize("damaged", ["en", "de"])
def test_of_two_texts_the_damaged_one_is_named(damaged: str) -> None:
    text = "".join(f"{number}\n" for number in range(90_000)).encode()
    for side in ("en", "de"):
        data = COMPRESS["gz"](text)
        Path(f"t.{side}.gz").write_bytes(data[: len(data) // 2] if side == damaged else data)
    with pytest.raises(DataError, match=rf"^t\.{damaged}\.gz: cannot be read: "):
        list(read_pairs(CorpusFiles(src=Path("t.en.gz"), tgt=Path("t.de.gz"))))


def test_without_the_package_for_zst_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backports", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with refused(MissingExtraError, "a.en.zst: ", "scripts/install zst"), lines.opened(Path("a.en.zst")):
        pass


def test_line_breaks_inside_a_text_become_a_space() -> None:
    Path("a.csv").write_bytes(b'1,"a\r\nb","c""\n\nd"\n2,e,f\n')
    Path("a.jsonl").write_bytes(b'{"x": "a\\r\\nb", "y": "c\\"\\n\\nd"}\n{"x": "e", "y": "f"}\n')
    Path("a.tmx").write_text(
        '<tmx><body><tu><tuv lang="x"><seg>a\nb</seg></tuv><tuv lang="y"><seg>c"&#13;\nd</seg></tuv></tu>'
        '<tu><tuv lang="x"><seg>e</seg></tuv><tuv lang="y"><seg>f</seg></tuv></tu></body></tmx>'
    )
    for files in (
        CorpusFiles(pairs=Path("a.csv"), src_column=2, tgt_column=3),
        CorpusFiles(pairs=Path("a.jsonl"), src_column="x", tgt_column="y"),
        CorpusFiles(pairs=Path("a.tmx"), src_column="x", tgt_column="y"),
    ):
        assert list(read_pairs(files)) == [("a b", 'c" d'), ("e", "f")]


def test_a_tsv_has_no_quoting() -> None:
    Path("a.tsv").write_bytes(b'"a\tb"\tc\n"\t""\td\n')
    assert list(read_pairs(CorpusFiles(pairs=Path("a.tsv"), src_column=1, tgt_column=2))) == [('"a', 'b"'), ('"', '""')]


# Each with its content, the columns, the place that the message begins with, and phrases of it.
BAD: dict[str, tuple[bytes, tuple[str | int, str | int], str, list[str]]] = {
    "short.tsv": (b"a\tb\nc\n", (1, 2), ":2: has 1 column", ["tgt_column is number 2", "tabs"]),
    "latin1.tsv": (b"en\tde\na\tb\nc\tK\xf6ln\n", ("en", "de"), ":3: not UTF-8", []),
    "utf16.tsv": ("a\tb\n".encode("utf-16"), (1, 2), ":2: a NUL character", ["UTF-16"]),
    "nul.csv": (b"a,b\na\0,b\n", (1, 2), ":2: a NUL character", []),
    "names.csv": (b"English,German \na,b\n", ("en", "German"), ":1: ", ["'en'", "'English', 'German'"]),
    "twice.csv": (b"en,en,de\na,b,c\n", ("en", "de"), ":1: several columns are named 'en'", []),
    "same.csv": (b"en,de\na,b\n", ("en", 1), ": src_column and tgt_column are both column 1", []),
    "nothing.csv": (b"", ("en", "de"), ": is empty", ["header"]),
    "short.csv": (b'a,"b\nb"\nc,d,e\nf\n', (3, 1), ":1: has 2 columns", ["src_column is number 3", "commas"]),
    "quote.csv": (b'a,b\n"c\nd,e\n', (1, 2), ":2: ", ["not CSV", "unexpected end of data"]),
    "after.csv": (b'a,"b" c\n', (1, 2), ":1: ", ["not CSV", "',' expected after '\"'"]),
    "list.jsonl": (b'{"en": "a", "de": "b"}\n["a", "b"]\n', ("en", "de"), ":2: is a list", []),
    "blank.jsonl": (b'{"en": "a", "de": "b"}\n\n', ("en", "de"), ":2: is not JSON", []),
    "field.jsonl": (b'{"id": 1, "translation": {"en": "a", "fr": "b"}}\n', ("translation.en", "translation.de"),
                    ":1: has no field 'translation.de'", ["'id', 'translation.en', 'translation.fr'"]),
    "null.jsonl": (b'{"en": "a", "de": null}\n', ("en", "de"), ":1: the field 'de' is null", []),
    "number.jsonl": (b'{"en": 1, "de": "b"}\n', ("en", "de"), ":1: the field 'en' is a number", []),
    "half.jsonl": (b'{"en": "\\ud800", "de": "b"}\n', ("en", "de"), ":1: not UTF-8", ["surrogate"]),
    "nul.jsonl": (b'{"en": "a", "de": "\\u0000"}\n', ("en", "de"), ":1: a NUL character", []),
    "utf16.jsonl": ('{"en": "a", "de": "b"}\n'.encode("utf-16"), ("en", "de"), ":1: not UTF-8", []),
    "latin1.csv": (b'"a\n",b\n"c\nd","K\xf6ln"\n', (1, 2), ":3: not UTF-8", []),
    "header.tsv": (b"Englisch\tD\xe4nisch\nx\ty\n", ("Englisch", "Danish"), ":1: not UTF-8", []),
    "deep.jsonl": (b"[" * 99_999 + b"\n", ("en", "de"), ":1: is not JSON", []),
    "cut.tmx": (b"<tmx><body>\n<tu>", ("en", "de"), ":2: broken TMX", ["column 5"]),
    "tags.tmx": (b"<tmx><body>\n <tu></tuv>", ("en", "de"), ":2: broken TMX", ["column 8: mismatched tag"]),
    "html.tmx": (b"<!DOCTYPE html>\n<html></html>", ("en", "de"), ":2: not a TMX", ["<html>"]),
    "odd.tmx": (b"<?xml version='1.0' encoding='x-odd'?><tmx/>", ("en", "de"), ": its encoding", ["x-odd"]),
    "none.tmx": (b"<tmx><body/></tmx>", ("en", "de"), " is empty", []),
    "langs.tmx": (b"<tmx><tu><tuv lang='EN-GB'><seg>a</seg></tuv><tuv lang='fr'><seg>b</seg></tuv></tu></tmx>",
                  ("en", "de"), ": no unit has both 'en' and 'de'", ["'EN-GB', 'fr'"]),
    "no.zip": (b"PK?", ("en", "de"), ": cannot be read as a ZIP archive", []),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_file_is_said_with_its_place(name: str) -> None:
    content, (src, tgt), place, phrases = BAD[name]
    Path(name).write_bytes(content)
    files = CorpusFiles(pairs=Path(name), src_column=src, tgt_column=tgt)
    with refused(DataError, f"{name}{place}", *phrases):
        count_pairs([files])
        list(read_pairs(files))


def archive(**members: str) -> CorpusFiles:
    with zipfile.ZipFile("a.zip", "w") as file:
        for name, content in members.items():
            file.writestr(name.replace("_", "."), content)
    return CorpusFiles(pairs=Path("a.zip"), src_column="en", tgt_column="de")


@pytest.mark.parametrize(
    ("members", "parts"),
    [
        ({"a_en": "x\n", "a_fr": "y\n"}, ["a.zip: ", "ends in .de", "'a.en', 'a.fr'"]),
        ({"a_en": "x\n", "a_de": "y\n", "b_de": "y\n"}, ["a.zip: several", "'a.de', 'b.de'"]),
        ({"a_en": "x\ny\n", "a_de": "x\n"}, ["", "a.zip/a.en has 2 lines", "a.zip/a.de has 1"]),
        ({"a_en": "x\ny\0\n", "a_de": "x\ny\n"}, ["a.zip/a.en:2: a NUL character"]),
    ],
)
def test_an_archive_needs_one_text_a_language(members: dict[str, str], parts: list[str]) -> None:
    with refused(DataError, *parts):
        list(read_pairs(archive(**members)))


def test_a_member_is_found_by_its_region_or_by_its_whole_name() -> None:
    files = archive(**{"a_en": "x\n", "a_de-AT": "y\n", "b_en-de": "z\n"})
    assert list(read_pairs(files)) == [("x", "y")]
    assert list(read_pairs(files.model_copy(update={"tgt_column": "b.en-de"}))) == [("x", "z")]


def test_a_damaged_member_is_an_error() -> None:
    files = write_zip([("text " * 9, "x")] * 50, Path("a.zip"))
    data = bytearray(Path("a.zip").read_bytes())
    start = data.index(b"a.en-zh.en") + 20
    data[start : start + 10] = bytes(10)
    Path("a.zip").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.zip: cannot be read as a ZIP archive: "):
        list(read_pairs(files))


def test_a_damaged_member_is_an_error_for_lzma_too() -> None:
    with zipfile.ZipFile("a.zip", "w", zipfile.ZIP_LZMA) as file:
        for side in ("en", "zh"):
            file.writestr(f"a.{side}", "text\n" * 50)
    data = bytearray(Path("a.zip").read_bytes())
    data[38] = 0xFF  # of the first member's options
    Path("a.zip").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.zip: cannot be read as a ZIP archive: "):
        list(read_pairs(CorpusFiles(pairs=Path("a.zip"), src_column="en", tgt_column="zh")))


def unit(*segments: tuple[str, str]) -> str:
    return "<tu>" + "".join(f"<tuv xml:lang='{name}'><seg>{text}</seg></tuv>" for name, text in segments) + "</tu>\n"


def tmx(*units: str, head: str = "", tags: str = "drop", languages: tuple[str, str] = ("en", "de")) -> CorpusFiles:
    Path("a.tmx").write_text(f"{head}<tmx version='1.4'><body>\n{''.join(units)}</body></tmx>", encoding="utf-8")
    return CorpusFiles(pairs=Path("a.tmx"), src_column=languages[0], tgt_column=languages[1], inline_tags=tags)


@pytest.mark.parametrize(
    ("segment", "dropped", "kept"),
    [
        ('Press <bpt i="1">&lt;b&gt;</bpt>Start<ept i="1">&lt;/b&gt;</ept>.', "Press Start.", "Press <b>Start</b>."),
        ("a <hi>b <hi>c</hi></hi> d", "a b c d", "a b c d"),
        ('a<ph x="1"/>b<it pos="begin"/>', "ab", 'a<ph x="1"/>b<it pos="begin"/>'),
        ("see <ph>{a <sub>the <bpt i='2'>[</bpt>title</sub>}</ph>!", "see !", "see {a the [title}!"),
        ("a <ut>{\\b</ut>b <unknown>c</unknown>", "a b c", "a {\\bb c"),
        ("&lt;b&gt; &amp;amp; &#x4e2d;<![CDATA[<c>]]>", "<b> &amp; 中<c>", "<b> &amp; 中<c>"),
        ("", "", ""),
    ],
)
def test_inline_tags_are_dropped_with_their_code_or_their_code_is_kept(segment: str, dropped: str, kept: str) -> None:
    for tags, text in (("drop", dropped), ("keep", kept)):
        files = tmx(unit(("en", segment), ("de", "x")), unit(("en", "next"), ("de", "y")), tags=tags)
        assert list(read_pairs(files)) == [(text, "x"), ("next", "y")]


def test_units_without_a_language_are_skipped_and_of_several_segments_one_is_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    files = tmx(
        unit(("en-US", "a"), ("de-DE", "A")),
        unit(("en", "b"), ("fr", "B")),
        unit(("DE_ch", "C1"), ("en-GB", "c"), ("de", "C2"), ("den", "no German")),
        unit(("fr", "D")),
        unit(("en", "e"), ("de-AT", "E1"), ("de-DE", "E2")),
    )
    for _ in range(2):
        assert list(read_pairs(files)) == [("a", "A"), ("c", "C2"), ("e", "E1")]
    for message, phrase in zip(caplog.messages, ("skipped", "the first is taken"), strict=True):
        assert_says(message, "a.tmx: 2 of 5 units ", phrase)
    assert places_of(files, [2, 3]) == [3, 5]
    assert listed({"a.tmx": [3, 5], "a.csv": [7]}) == "a.tmx: units 3, 5; a.csv: lines 7"
    Path("a.tmx").unlink()
    assert places_of(files, [2, 3]) == [2, 3]


def test_two_variants_of_a_language_are_two_sides() -> None:
    text = unit(("en-GB", "colour"), ("en", "color"))
    assert list(read_pairs(tmx(text, languages=("en", "en-GB")))) == [("color", "colour")]
    text = unit(("en-GB", "colour"), ("en-US", "color"))
    assert list(read_pairs(tmx(text, languages=("en", "en-GB")))) == [("color", "colour")]


def test_a_document_type_is_allowed_and_no_entity(tmp_path: Path) -> None:
    plain = unit(("en", "a"), ("de", "b"))
    assert list(read_pairs(tmx(plain, head='<!DOCTYPE tmx SYSTEM "tmx14.dtd">'))) == [("a", "b")]
    (tmp_path / "secret").write_text("secret")
    laughs = "".join(f'<!ENTITY l{n + 1} "{f"&l{n};" * 10}">' for n in range(9))
    used = unit(("en", "&l9;"), ("de", "b"))
    for subset, text, message in [
        (f'<!ENTITY l0 "lol">{laughs}', used, "a.tmx:2: defines the entity 'l0'"),
        ('<!ENTITY l9 SYSTEM "secret">', used, "a.tmx:2: defines the entity 'l9'"),
        ('<!ENTITY % p SYSTEM "secret"> %p;', plain, "a.tmx:2: defines the entity 'p'"),
        ("", used, "a.tmx:3: broken TMX, at column 29"),
    ]:
        with refused(DataError, message):
            list(read_pairs(tmx(text, head=f"<!DOCTYPE tmx [\n{subset}]>")))
    with refused(DataError, "a.tmx:3: the entity &l9; is not defined"):
        list(read_pairs(tmx(used, head='<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n')))


MEMORY = """
from pathlib import Path
from nmt.corpora.tmx import read_tmx

def peak():  # ru_maxrss would include that of the process that started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

before = peak()
count = sum(1 for _ in read_tmx(Path("a.tmx"), "en", "de"))
print(count, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_tmx_takes_the_memory_of_a_small_one() -> None:
    units = unit(("en", f"some English {escape('text & more')} " * 5), ("de-DE", "etwas deutscher Text " * 5)) * 400
    with Path("a.tmx").open("w") as file:
        file.write("<tmx><body>\n")
        for _ in range(500):
            file.write(units)
        file.write("</body></tmx>")
    assert Path("a.tmx").stat().st_size > 60e6
    output = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout
    count, kilobytes = map(int, output.split())
    assert count == 200_000
    assert kilobytes < 5_000


def configuration(train: object, **data: object) -> Path:
    """A small configuration, with `train` for the other sets, too, unless they are named."""
    sets = {"train": train, "validation": train, "src_lang": "en", "tgt_lang": "zh", "max_length": 90} | data
    model = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 16}
    training = {"max_steps": 2, "warmup_steps": 1, "batch_tokens": 500, "validate_every": 2, "processes": 1}
    sections = {"data": sets, "tokenizer": {"vocab_size": 600}, "model": model, "training": training}
    Path("t.yaml").write_text(
        yaml.safe_dump(sections | {"decoding": {"beam_size": 1, "max_length": 5}, "export": {"after_training": []}})
    )
    return Path("t.yaml")


def test_a_configuration_says_what_its_files_default_to_and_reads_itself_again() -> None:
    test = {"table": {"pairs": "a.tsv.zst"}, "memory": {"pairs": "m.TMX", "src_column": "en-US"}}
    config = load_config(
        configuration({"pairs": "o.zip", "weight": 2}, validation={"pairs": "v.zip"}, test=test, tgt_lang="de")
    )
    dumped = config.model_dump(mode="json")["data"]
    here = Path.cwd()
    (train,) = dumped["train"]
    assert train == {"pairs": f"{here}/o.zip", "src_column": "en", "tgt_column": "de", "weight": 2.0}
    assert dumped["test"] == {
        "table": {"pairs": f"{here}/a.tsv.zst", "src_column": 1, "tgt_column": 2},
        "memory": {"pairs": f"{here}/m.TMX", "src_column": "en-US", "tgt_column": "de", "inline_tags": "drop"},
    }
    Path("again.yaml").write_text(to_yaml(config))
    assert load_config(Path("again.yaml")) == config


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"pairs": "a.tmx", "src": "a.en"}, "data.train.src: pairs: a.tmx has both sides"),
        ({"src": "a.en"}, "data.train.tgt is missing"),
        ({"pairs": "a.doc.gz"}, "data.train.pairs: a.doc.gz: unknown format"),
        ({"pairs": "a.tmx", "src_column": 1}, "data.train: src_column is a number; in a.tmx it is a language"),
        ({"pairs": "a.csv", "src_column": 0}, "data.train.src_column: 0 is not a column"),
        ({"pairs": "a.csv", "src_column": 2}, "data.train: src_column and tgt_column are both 2"),
        ({"pairs": "a.csv", "inline_tags": "keep"}, "data.train: inline_tags: only for a TMX"),
        ({"src": "a.en", "tgt": "a.zh", "tgt_column": 3}, "data.train: tgt_column: only for `pairs`"),
        ({"src": "a.en", "tgt": "a.tmx"}, "data.train.tgt: a.tmx holds both sides"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_plain_message(files: dict[str, object], message: str) -> None:
    with refused(ConfigError, "t.yaml:", message):
        load_config(configuration(files, validation={"src": "v.en", "tgt": "v.zh"}))


def test_languages_are_needed_with_one_file_and_vectors_need_two() -> None:
    with pytest.raises(ConfigError, match=r"data\.src_lang: not given, and the name a\.tmx tells no language"):
        load_config(configuration({"pairs": "a.tmx"}, src_lang=None))
    path = configuration({"src": "a.npy", "tgt": "a.zh"}, test={"pairs": "a.csv"})
    with pytest.raises(ConfigError, match=r"data: pairs: needs text sources, and source\.type is vectors"):
        load_config(path, ["source.type=vectors", "source.features=3", "model.tie_embeddings=decoder"])


def test_a_link_is_read_by_its_own_name(cli: Cli) -> None:
    """As in the cache of the Hugging Face hub and in that of DVC, where files are named by their hashes."""
    pairs = [(f"sentence {number}", f"Satz {number}") for number in range(60)]
    Path("blobs").mkdir()
    for number, name in enumerate(("t.en.gz", "t.de.gz")):
        text = "".join(f"{pair[number]}\n" for pair in pairs)
        Path(f"blobs/{number}").write_bytes(gzip.compress(text.encode()))
        Path(name).symlink_to(f"blobs/{number}")
    Path("blobs/2").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    Path("t.tsv").symlink_to("blobs/2")
    for options in (("t.tsv",), ("--src", "t.en.gz", "--tgt", "t.de.gz")):
        output = f"{len(options)}.yaml"
        languages = ("--src-lang", "en", "--tgt-lang", "de")
        code, _, err = cli("init", *options, *languages, "--output", output, "--no-trial")
        assert code == 0, err
        config = load_config(Path(output))
        assert config.data.train[0].src_file.name in ("t.tsv", "t.en.gz")
        assert list(read_pairs(config.data.train[0])) == pairs


def test_what_is_read_from_a_file_belongs_to_its_key_and_not_to_its_hash() -> None:
    files = write_tsv([("a", "b")], Path("a.tsv"))
    other = files.model_copy(update={"src_column": 2})
    sha256 = hashlib.sha256(Path("a.tsv").read_bytes()).digest()
    assert corpus_hashes([files]) == corpus_hashes([other]) == [sha256, sha256]
    assert corpus_keys([files]) != corpus_keys([other])
    texts = write_texts([("a", "b")])
    assert corpus_keys([texts]) == corpus_hashes([texts])


def test_commands_end_with_one_message_for_a_bad_file(cli: Cli) -> None:
    Path("a.tmx").write_text("<tmx>")
    path = configuration({"pairs": "a.tmx"})
    code, _, error = cli("vocab", str(path))
    assert code == 2
    assert_says(error.splitlines()[-1], f"nmt: {Path.cwd()}/a.tmx:1: broken TMX", "column 6")
    code, _, error = cli("train", str(path))
    assert code == 2 and error.count("broken TMX") == 1


@pytest.mark.parametrize("kind", ["bz2", "xz", "zst"])
def test_what_is_written_is_compressed_with_gzip_or_refused(kind: str) -> None:
    with refused(ConfigError, f"--output a.de.{kind}: ", ".gz"):
        Files(Path("a.en"), Path(f"a.de.{kind}"))


@pytest.mark.slow
def test_all_commands_take_sets_in_one_file(pairs: Pairs, cli: Cli) -> None:
    """Vocabulary, training, record, scores, report, comparison, and a resume with other text."""
    few = [*pairs[:120]]
    write_tmx(few, Path("m.tmx"))
    write_jsonl(few[:9], Path("v.jsonl"))
    write_csv(few[:7], Path("t.csv"))
    validation = {"pairs": "v.jsonl", "src_column": "translation.en", "tgt_column": "translation.zh"}
    test = {"pairs": "t.csv", "src_column": "English", "tgt_column": "German, or Chinese"}
    one = configuration({"pairs": "m.tmx"}, validation=validation, test=test).rename("one.yaml")
    code, _, error = cli("train", "one.yaml")
    assert code == 0, error
    scores = []
    src, ref = write_texts(few[:7]).model_dump(mode="json").values()
    for files in ([], ["--src", src, "--ref", ref, "--tgt-lang", "zh"]):
        code, out, error = cli("eval", "--json", *files)
        assert code == 0, error
        scores.append(json.loads(out)["scores"])
    assert scores[0] == scores[1]
    assert len(list(read_lines(Path("runs/one/evaluation/test.hyp")))) == 7
    recorded = read_json(Path("runs/one/training.json"))["train"][0]
    sha256 = hashlib.sha256(Path("m.tmx").read_bytes()).hexdigest()
    assert recorded["src"] == recorded["tgt"] == {"path": f"{Path.cwd()}/m.tmx", "sha256": sha256}
    page = Path("runs/one/report/index.html").read_text(encoding="utf-8")
    assert ">m.tmx</td>" in page and sha256 in page and ">v.jsonl</td>" in page
    code, out, error = cli("compare", "one", "one", "--json")
    assert code == 0, error
    write_tmx(list(reversed(few)), Path("m.tmx"))
    code, _, error = cli("train", str(one), "--set", "training.max_steps=3")
    assert code == 2 and "m.tmx: changed since this run was started" in error
