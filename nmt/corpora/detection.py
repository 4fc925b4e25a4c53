"""What one file of a corpus holds, by its name and its first lines: its languages, and where the two sides are."""

import csv
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nmt.config.formats import pairs_format, without_compression
from nmt.config.languages import LANGUAGE_CODES, base_language, check_language, language_suffix, script_of
from nmt.corpora.lines import members, read_lines
from nmt.corpora.tables import listed
from nmt.corpora.tmx import languages_of_tmx
from nmt.errors import ConfigError, DataError

_SOURCE_WORDS = frozenset({"src", "source", "original"})
_TARGET_WORDS = frozenset({"tgt", "trg", "target", "translation", "translated"})
# The names of spreadsheets' columns; any other name of a language can be given as a code.
_ENGLISH_NAMES = {
    "arabic": "ar", "bulgarian": "bg", "catalan": "ca", "chinese": "zh", "croatian": "hr", "czech": "cs",
    "danish": "da", "dutch": "nl", "english": "en", "estonian": "et", "finnish": "fi", "french": "fr", "german": "de",
    "greek": "el", "hebrew": "he", "hindi": "hi", "hungarian": "hu", "indonesian": "id", "irish": "ga", "italian": "it",
    "japanese": "ja", "korean": "ko", "latvian": "lv", "lithuanian": "lt", "norwegian": "no", "persian": "fa",
    "polish": "pl", "portuguese": "pt", "romanian": "ro", "russian": "ru", "serbian": "sr", "slovak": "sk",
    "slovenian": "sl", "spanish": "es", "swedish": "sv", "thai": "th", "turkish": "tr", "ukrainian": "uk",
    "vietnamese": "vi",
}  # fmt: skip
_OPUS_NAME = re.compile(r"\.([A-Za-z_]{2,8})-([A-Za-z_]{2,8})\.([A-Za-z_]{2,8})$")  # Books.de-hsb.hsb


class Found(NamedTuple):
    """One corpus: its languages, each with the place of its side (a file, or a column), in order of appearance."""

    name: str
    pairs: Path | None
    """The file with both sides; None: the places are two files or more."""
    places: Mapping[str, Path | str]
    """By language code; empty if neither the name nor the content says a language."""
    source: str = ""
    """The language that the file itself calls the source; '': it does not say."""
    in_order: tuple[Path, Path] | tuple[str, str] | None = None
    """Source and target as named: two texts on the command line, or columns called `source` and `target`."""


def language_of_name(path: Path) -> str:
    """The language at the end of a text's name; of three letters only in a name of OPUS, `Books.de-hsb.hsb`."""
    return language_suffix(path) or _language_of_member(without_compression(path).name)


def _language_of_member(name: str) -> str:
    """The language at the end of a text's name, as OPUS writes it (`zh_CN`), in standard case; '' for other files."""
    opus = _OPUS_NAME.search(name)
    ending = name.rpartition(".")[2]
    if opus is None or ending not in opus.groups()[:2]:
        return language_suffix(Path(name))
    return _as_language(ending)


def _as_language(text: str) -> str:
    """The language code in standard case, or '' if it is none."""
    try:
        return check_language(text.strip().replace("_", "-"))
    except ValueError:
        return ""


def sides_of_file(path: Path) -> Found:
    """What a file with both sides says of its languages."""
    match pairs_format(path):
        case "zip":
            return _in_archive(path)
        case "tmx":
            return _in_tmx(path)
        case "jsonl":
            return _in_jsonl(path)
    return _in_table(path)


def _in_archive(path: Path) -> Found:
    """Its members' names end in languages; which is the source, the order in the archive does not say."""
    names = sorted(members(path))
    places: dict[str, Path | str] = {}
    for name in names:
        if language := _language_of_member(Path(name).name):
            if language in places:
                raise ConfigError(
                    f"{path}: holds several texts in {language}: {places[language]} and {name}; unpack it, and name "
                    "two texts with --src and --tgt"
                )
            places[language] = name
    if len(places) < 2:
        raise DataError(
            f"{path}: holds no two texts with language codes at the end of their names; it holds {listed(names)}"
        )
    return Found(str(path), path, places)


def _in_tmx(path: Path) -> Found:
    """Its languages by the first units; its header may say which is the source."""
    source, codes = languages_of_tmx(path)
    languages = {language: code for code in codes if (language := _as_language(code))}
    if not languages:
        raise DataError(f"{path}: its first units have no language codes (xml:lang); found {listed(codes) or 'none'}")
    short = shortest_codes(languages)
    source_code = _as_language(source)
    return Found(
        str(path), path, {short[language]: short[language] for language in languages}, short.get(source_code, "")
    )


def shortest_codes(languages: Iterable[str]) -> dict[str, str]:
    """Each code without its region, where that leaves the codes different and the script as it was.

    `de-DE` becomes `de`, but `zh-TW` stays (another script than `zh`), and so do `pt-BR` beside `pt-PT`.
    """
    bases = {code: base_language(code) for code in languages}
    counts = [*bases.values()]
    return {
        code: base if base and counts.count(base) == 1 and script_of(base) == script_of(code) else code
        for code, base in bases.items()
    }


def _in_table(path: Path) -> Found:
    """A header names languages, or source and target; without one, columns 1 and 2 are source and target."""
    rows = _first_rows(path)
    header = [name.strip() for name in rows[0]] if rows else []
    found = _sides_by_name(path, header)
    if found is not None:
        return found
    if len(header) < 2:
        what = "tabs" if pairs_format(path) == "tsv" else "commas"
        raise DataError(
            f"{path}:1: has {len(header)} column{'s' if not header else ''}; {what} separate source and target"
        )
    texts = header[:2]
    if not all(any(character.isalpha() for character in text) for text in texts) and len(header) > 2:
        raise ConfigError(
            f"{path}:1: has {len(header)} columns, and the first two are not both text; add a first line that names "
            "the columns: the two languages by their codes (en, de), and anything for the others"
        )
    return Found(str(path), path, {})


def _first_rows(path: Path) -> list[list[str]]:
    lines = itertools.islice(read_lines(path), 1)
    if pairs_format(path) == "tsv":
        return [line.split("\t") for line in lines]
    return list(csv.reader(f"{line}\n" for line in lines))


def _sides_by_name(path: Path, names: Sequence[str]) -> Found | None:
    """The two sides, if the names of columns or fields say them: languages, or source and target."""
    codes = [_language_named(name) for name in names]
    languages = {code: name for code, name in zip(codes, names, strict=True) if code}
    if len(languages) > 2 and languages.get("id") == "id":  # a number, not Indonesian
        del languages["id"]
        codes.remove("id")
    if len(languages) >= 2:
        if len(languages) < sum(map(bool, codes)):
            raise ConfigError(
                f"{path}:1: several columns are in the same language: {listed(names)}; rename all but one"
            )
        return Found(str(path), path, languages, source=next(iter(languages)) if len(languages) == 2 else "")
    words = [next((name for name in names if _last(name) in meant), "") for meant in (_SOURCE_WORDS, _TARGET_WORDS)]
    if all(words):
        return Found(str(path), path, {}, in_order=(words[0], words[1]))
    if languages or any(words):
        known = next(iter(languages.values()), "") or words[0] or words[1]
        raise ConfigError(
            f"{path}:1: {known!r} names one side, and no other column or field names the other; it has "
            f"{listed(names)}: name them with language codes, or source and target"
        )
    return None


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _language_named(name: str) -> str:
    """The language that a column's name says: a code, `de_DE`, or an English name."""
    last = _last(name)
    if last in _ENGLISH_NAMES:
        return _ENGLISH_NAMES[last]
    primary = re.split("[-_]", name.rpartition(".")[2])[0]
    # `Hi` is a word, and `hi` or `HI` may be Hindi
    is_code = primary.lower() in LANGUAGE_CODES and primary in (primary.lower(), primary.upper())
    return _as_language(last) if is_code else ""


def _in_jsonl(path: Path) -> Found:
    """The fields of its first object, and those inside a field, `translation.en`."""
    first = next(read_lines(path), "")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:1: is not JSON ({error}); a JSONL has one object a line") from None
    names = _text_fields(value) if isinstance(value, dict) else []
    found = _sides_by_name(path, names)
    if found is None:
        raise ConfigError(
            f"{path}:1: no two fields are named after languages, or source and target; found {listed(names) or 'none'}"
        )
    return found


def _text_fields(value: Mapping[str, Any]) -> list[str]:
    """The names of fields that hold text, `outer.inner` for those inside another."""
    names = [name for name, inner in value.items() if isinstance(inner, str)]
    for name, inner in value.items():
        if isinstance(inner, dict):
            names += [f"{name}.{key}" for key, text in inner.items() if isinstance(text, str)]
    return names
