"""Thirty dirty corpora, as bytes in many formats: which pairs a `data.cleaning` section keeps, or what is refused."""

import bz2
import dataclasses
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from nmt.config.cleaning import CleaningConfig
from nmt.config.corpus import CorpusFiles
from nmt.data.corpus import read_pairs
from nmt.data.selection import select
from nmt.errors import DataError


@dataclasses.dataclass(frozen=True)
class Dirty:
    """A corpus, and what becomes of it."""

    files: dict[str, bytes]
    """By name; two texts, or one file with both sides."""
    cleaning: dict[str, Any]
    kept: str | None = None
    """The kept pairs by their place, from 0; None if the corpus is refused."""
    refused: str = ""
    languages: str = "en de"


def texts(src: str | bytes, tgt: str | bytes, languages: str = "en de") -> dict[str, bytes]:
    """Two texts; the lines are separated by | in a string."""
    sides = (side if isinstance(side, bytes) else side.replace("|", "\n").encode() + b"\n" for side in (src, tgt))
    return {f"a.{language}": side for language, side in zip(languages.split(), sides, strict=True)}


def tsv(*rows: str) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def jsonl(*pairs: tuple[str, str]) -> bytes:
    return "".join(json.dumps({"en": src, "de": tgt}) + "\n" for src, tgt in pairs).encode()


def tmx(*pairs: tuple[str, str]) -> bytes:
    """The texts are XML already, so that entities stay as they are written."""
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{src}</seg></tuv><tuv xml:lang="de"><seg>{tgt}</seg></tuv></tu>\n'
        for src, tgt in pairs
    )
    return f'<?xml version="1.0"?><tmx version="1.4"><body>\n{units}</body></tmx>'.encode()


LONG_EN = "A man in a blue shirt is standing on a ladder cleaning a window."
LONG_DE = "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster."
LONG_FR = "Un homme en chemise bleue se tient sur une échelle pour nettoyer une fenêtre."
RECOMMENDED = CleaningConfig.recommended().model_dump()

CORPORA = {
    "nothing on, but a side is empty": Dirty(texts("a||c", "A|B|C"), {}, None),
    "an empty line and one of white space": Dirty(
        texts("one|\u3000 |three|four", "eins|zwei||vier"), {"identical": True}, "0 3"
    ),
    "Latin-1 is refused": Dirty(
        texts("Munich|Bonn", "München\nBonn\n".encode("latin-1")), {"identical": True}, refused=r"a\.de:1: not UTF-8"
    ),
    "Latin-1 is left out": Dirty(
        texts("Munich|Cologne|night", "München\nKoeln\nNacht\n".encode("latin-1")), {"encoding": True}, "1 2"
    ),
    "a broken character at the end of a line": Dirty(
        texts(b"caf\xc3\nbar\n", "Kaffee|Kneipe"), {"encoding": True}, "1"
    ),
    "encoded twice in a table": Dirty(
        {"a.tsv": tsv("a bridge\tÃ¼ber die BrÃ¼cke", "don't\tnicht doch", "donâ€™t\tnicht", "over\tüber")},
        {"encoding": True}, "1 3",
    ),
    "encoded twice, compressed": Dirty(
        {"a.tsv.gz": gzip.compress(tsv("peace\tÐ¼Ð¸Ñ€ Ð¸ Ð²Ð¾Ð¹Ð½Ð°", "peace\tмир и война"))},
        {"encoding": True}, "1", languages="en ru",
    ),
    "replacement characters": Dirty({"a.jsonl": jsonl(("it\ufffds", "es"), ("it's", "es"))}, {"encoding": True}, "1"),
    "copies": Dirty(texts("Hello|Name:|10:30|Bonn ", "Hallo|Name:|10:30|Bonn"), {"identical": True}, "0 2"),
    "copies in two Unicode forms": Dirty(
        {"a.jsonl": jsonl(("Cafe\u0301", "Caf\u00e9"), ("Cafe", "Caf\u00e9"))}, {"identical": True}, "1"
    ),
    "tags": Dirty(
        texts("<b>Bold</b>|x < y|Open <file>|line<br />", "Fett|x < y|<Datei> öffnen|Zeile"), {"html": True}, "1 2"
    ),
    "entities": Dirty(
        texts("Tom &amp; Jerry|AT&T|5&nbsp;km|R&D;", "Tom und Jerry|AT&T|5 km|F&E;"), {"html": True}, "1 3"
    ),
    "tags that are escaped in a TMX": Dirty(
        {"a.tmx": tmx(("&lt;i&gt;so&lt;/i&gt;", "so"), ("a &lt; b", "a &lt; b"), ("Q&amp;A", "F&amp;A"))},
        {"html": True}, "1 2",
    ),
    "entities that are escaped twice in a TMX": Dirty(
        {"a.tmx": tmx(("&amp;quot;yes&amp;quot;", "ja"), ("&quot;yes&quot;", "„ja“"))}, {"html": True}, "1"
    ),
    "Russian in German": Dirty(
        texts("Hello you|Good day|Yes", "Привет тебе|Guten Tag|Ja"), {"script": 0.5}, "1 2"
    ),
    "English in Chinese": Dirty(
        texts("I use Linux|not translated|Hello", "我用 Linux|not translated yet|你好", "en zh"),
        {"script": 0.5}, "0 2", languages="en zh",
    ),
    "Japanese in Chinese and numbers": Dirty(
        texts("a pen|100%|a book", "これはペンです|100%|书", "en zh"), {"script": 0.8}, "1 2", languages="en zh"
    ),
    "two scripts of Serbian": Dirty(
        texts("Good day|Good day|Good day", "Добар дан|Dobar dan|καλημέρα", "en sr"),
        {"script": 0.5}, "0 1", languages="en sr",
    ),
    "other numbers": Dirty(
        texts("page 25|page 25|1,000 men|two men", "Seite 25|Seite 26|1.000 Mann|2 Mann"), {"numbers": True}, "0 2 3"
    ),
    "other digits": Dirty(
        texts("in 2024|in 2024", "٢٠٢٤|٢٠٢٣", "en ar"), {"numbers": True}, "0", languages="en ar"
    ),
    "sides shifted by a line": Dirty(
        texts(
            "Good day.|Come in.|Hello.|No.|A long sentence that is about a dog.|Yes.|"
            "Another long sentence about two cats here.",
            "Guten Tag.|Herein!|Hallo.|Ein langer Satz, der von einem Hund handelt.|Ja.|"
            "Noch ein langer Satz über zwei Katzen hier.|Nein.",
        ),
        {"length_ratio": 2}, "0 1 2",
    ),
    "lengths of Chinese": Dirty(
        texts(
            "I am going home now, my dear friend.|She is reading a book in the garden.|Yes.|We are all here.",
            "我现在要回家了，亲爱的朋友。|她在花园里看书。|这一句话实在是太长了，因为它根本就不是译文而是别的东西。|我们都在。",
            "en zh",
        ),
        {"length_ratio": 3}, "0 1 3", languages="en zh",
    ),
    "the same pair": Dirty(texts("a|b|a|a", "A|B|A|C"), {"duplicates": "pair"}, "0 1 3"),
    "the same source": Dirty({"a.tsv.xz": lzma.compress(tsv("a\tA", "b\tB", "a\tC"))}, {"duplicates": "source"}, "0 1"),
    "the same target": Dirty(
        {"a.tsv.bz2": bz2.compress(tsv("a\tA", "b\tA", "c\tC"))}, {"duplicates": "target"}, "0 2"
    ),
    "boilerplate": Dirty(
        texts("ok|ok|ok|no|ok", "gut|ja|nun|nein|schön"), {"max_repeats": 2}, "0 1 3"
    ),
    "a line of another language": Dirty(
        texts(f"{LONG_EN}|{LONG_EN}|{LONG_DE}|Hi", f"{LONG_DE}|{LONG_FR}|{LONG_DE}|Salut"), {"language": True}, "0 3"
    ),
    "line ends of Windows and a byte order mark": Dirty(
        texts(b"\xef\xbb\xbfHello\r\nBonn\r\n", b"Hallo\r\nBonn\r\n"), {"identical": True, "encoding": True}, "0"
    ),
    "sides of different lengths are refused": Dirty(texts("a|b", "A"), RECOMMENDED, refused="lines"),
    "all that is recommended": Dirty(
        {
            "a.jsonl.gz": gzip.compress(
                jsonl(
                    ("Good morning", "Guten Morgen"), ("Good  morning ", "Guten Morgen"), ("OK", "OK"), ("", "leer"),
                    ("MÃ¼nchen is big", "München ist groß"), ("<p>Text</p>", "Text"), ("Good bye", "до свидания"),
                    (LONG_EN, "@@"), ("In 1914", "Im Jahr 1941"), ("ETA", "Verbleibende Zeit"),
                )
            )
        },
        RECOMMENDED, "0 8 9",
    ),
}  # fmt: skip


def test_there_are_thirty() -> None:
    assert len(CORPORA) == 30
    used = {key for dirty in CORPORA.values() for key in dirty.cleaning}
    assert used == set(CleaningConfig.model_fields)


@pytest.mark.parametrize("name", CORPORA)
def test_a_dirty_corpus(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirty = CORPORA[name]
    if dirty.cleaning.get("language"):
        pytest.importorskip("py3langid")
    monkeypatch.chdir(tmp_path)
    for file, content in dirty.files.items():
        Path(file).write_bytes(content)
    paths = [Path(file) for file in dirty.files]
    src_lang, tgt_lang = dirty.languages.split()
    files = CorpusFiles(src=paths[0], tgt=paths[1]) if len(paths) == 2 else CorpusFiles(pairs=paths[0])
    corpus = files.in_languages(src_lang, tgt_lang)
    cleaning = CleaningConfig(**dirty.cleaning)
    if dirty.refused:
        with pytest.raises(DataError, match=dirty.refused):
            select([corpus], cleaning, (src_lang, tgt_lang))
        return
    selection = select([corpus], cleaning, (src_lang, tgt_lang))
    if dirty.kept is None:
        assert selection is None
        return
    assert selection is not None
    chosen = selection.chosen(0)
    assert [index for index, one in enumerate(chosen) if one] == [int(index) for index in dirty.kept.split()]
    if cleaning.encoding:  # with the others, lines that are left out could not be read
        assert len(list(read_pairs(corpus, chosen))) == sum(chosen)
