"""Detection of a corpus in one file: its languages and the places of its two sides, by its name and first lines."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nmt.config.formats import pairs_format, without_compression
from nmt.config.languages import LANGUAGE_CODES, base_language, check_language, language_suffix, script_of
from nmt.corpora.lines import members, read_lines
from nmt.corpora.tables import first_row, listed
from nmt.corpora.tmx import is_read_as, languages_of_tmx
from nmt.errors import ConfigError, DataError

_SOURCE_WORDS = frozenset({"src", "source", "original"})
_TARGET_WORDS = frozenset({"tgt", "trg", "target", "translation", "translated"})
# Column names in spreadsheets; for any other language, the column is named with its code.
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


class DetectedCorpus(NamedTuple):
    """A corpus and its languages, each with the place of its side: a file, a column, a field or an archive member."""

    name: str
    pairs: Path | None
    """The file with both sides; None: the places are two or more files."""
    places: Mapping[str, Path | str]
    """By language code, in order of appearance; empty if neither a name nor the content tells a language."""
    source: str = ""
    """The source language according to the file itself; '' if it does not tell."""
    in_order: tuple[Path, Path] | tuple[str, str] | None = None
    """Source and target as named: two texts on the command line, or columns called `source` and `target`."""


def language_of_name(path: Path) -> str:
    """The language at the end of a text's name; three letters only in an OPUS name, `Books.de-hsb.hsb`."""
    return language_suffix(path) or _language_of_member(without_compression(path).name)


def _language_of_member(name: str) -> str:
    """The language at the end of a text's name, also as OPUS writes it (`zh_CN`), in standard case; '' for none."""
    opus = _OPUS_NAME.search(name)
    ending = name.rpartition(".")[2]
    if opus is None or ending not in opus.groups()[:2]:
        return language_suffix(Path(name))
    return _as_language(ending)


def _as_language(text: str) -> str:
    """The language code in standard case; '' for a text that is no code."""
    try:
        return check_language(text.strip().replace("_", "-"))
    except ValueError:
        return ""


def detect(path: Path) -> DetectedCorpus:
    """Detect the languages and columns of a file with both sides.

    Raises `DataError` for a file that cannot be read, `ConfigError` where two readings are possible.
    """
    match pairs_format(path):
        case "zip":
            return _detect_in_archive(path)
        case "tmx":
            return _detect_in_tmx(path)
        case "jsonl":
            return _detect_in_jsonl(path)
    return _detect_in_table(path)


def _detect_in_archive(path: Path) -> DetectedCorpus:
    """Detect by the languages at the end of the members' names. Their order does not tell the source."""
    names = sorted(members(path))
    places: dict[str, Path | str] = {}
    for name in names:
        if language := _language_of_member(Path(name).name):
            if language in places:
                raise ConfigError(
                    f"{path}: holds several texts in {language}: {places[language]} and {name}; unpack it and name two "
                    "texts with --src and --tgt"
                )
            places[language] = name
    if len(places) < 2:
        raise DataError(
            f"{path}: holds no two texts with language codes at the end of their names; it holds {listed(names)}; "
            "unpack it and name two texts with --src and --tgt"
        )
    return DetectedCorpus(str(path), path, places)


def _detect_in_tmx(path: Path) -> DetectedCorpus:
    """Detect by the languages of the first units; the header may tell the source."""
    source, codes = languages_of_tmx(path)
    languages = {language: code for code in codes if (language := _as_language(code))}
    if not languages:
        raise DataError(
            f"{path}: its first units have no known language codes (xml:lang), but "
            f"{listed([code for code in codes if code]) or 'none'}; add one to each <tuv>"
        )
    short = shortest_codes(languages)
    # `eng` and `iw` are English and Hebrew, which a reader who is asked for `en` and `he` does not find.
    places = {code: code if is_read_as(languages[own], code) else languages[own] for own, code in short.items()}
    return DetectedCorpus(str(path), path, places, short.get(_as_language(source), ""))


def shortest_codes(languages: Iterable[str]) -> dict[str, str]:
    """Map each code to itself without its region, where the codes stay different and the script the same.

    `de-DE` becomes `de`, but `zh-TW` stays (another script than `zh`), and so do `pt-BR` beside `pt-PT`.
    """
    bases = {code: base_language(code) for code in languages}
    counts = [*bases.values()]
    return {
        code: base if base and counts.count(base) == 1 and script_of(base) == script_of(code) else code
        for code, base in bases.items()
    }


def _detect_in_table(path: Path) -> DetectedCorpus:
    """Detect by a header that names languages, or source and target; without one, by columns 1 and 2."""
    header = [name.strip() for name in first_row(path)]
    detected = _detect_by_names(path, header)
    if detected is not None:
        return detected
    if len(header) < 2:
        what = "tabs" if pairs_format(path) == "tsv" else "commas"
        raise DataError(
            f"{path}:1: has {len(header)} column{'s' if not header else ''}; {what} separate source and target"
        )
    texts = header[:2]
    if not all(any(character.isalpha() for character in text) for text in texts) and len(header) > 2:
        raise ConfigError(
            f"{path}:1: has {len(header)} columns, and the first two are not both text; add a first line that names "
            "the columns: language codes (en, de) for the two texts, and anything for the others"
        )
    return DetectedCorpus(str(path), path, {})


def _detect_by_names(path: Path, names: Sequence[str]) -> DetectedCorpus | None:
    """Detect by columns or fields named after languages, or source and target; None without such names."""
    codes = [_language_of_column(name) for name in names]
    languages = {code: name for code, name in zip(codes, names, strict=True) if code}
    if len(languages) > 2 and languages.get("id", "").lower() == "id":  # a number, not Indonesian
        del languages["id"]
        codes.remove("id")
    if len(languages) >= 2:
        if len(languages) < sum(map(bool, codes)):
            raise ConfigError(
                f"{path}:1: several columns are in the same language: {listed(names)}; rename all but one"
            )
        first = next(iter(languages))
        return DetectedCorpus(str(path), path, languages, source=first if len(languages) == 2 else "")
    src, tgt = (next((name for name in names if _last(name) in words), "") for words in (_SOURCE_WORDS, _TARGET_WORDS))
    if src and tgt:
        return DetectedCorpus(str(path), path, {}, in_order=(src, tgt))
    if languages or src or tgt:
        known = next(iter(languages.values()), "") or src or tgt
        is_table = pairs_format(path) in ("tsv", "csv")
        raise ConfigError(
            f"{path}:1: {known!r} names one side, and no column or field names the other; it has {listed(names)}; name "
            f"both with language codes, or source and target"
            f"{'; if line 1 is a pair, add a line above it that names the columns' if is_table else ''}"
        )
    return None


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _language_of_column(name: str) -> str:
    """The language that a column is named after: a code, `de_DE`, or an English name; '' for another name."""
    last = _last(name)
    if last in _ENGLISH_NAMES:
        return _ENGLISH_NAMES[last]
    primary = re.split("[-_]", name.rpartition(".")[2])[0]
    # `Hi` is a word; `hi` and `HI` may be Hindi.
    is_code = primary.lower() in LANGUAGE_CODES and primary in (primary.lower(), primary.upper())
    return _as_language(last) if is_code else ""


def _detect_in_jsonl(path: Path) -> DetectedCorpus:
    """Detect by the fields of the first object, and those inside a field, `translation.en`."""
    first = next(read_lines(path), "")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:1: is not JSON ({error}); a JSONL file has one object per line") from None
    names = _text_fields(value) if isinstance(value, dict) else []
    detected = _detect_by_names(path, names)
    if detected is None:
        raise ConfigError(
            f"{path}:1: no two fields are named after languages, or source and target, but "
            f"{listed(names) or 'none holds text'}; name two texts by language codes, such as en and de"
        )
    return detected


def _text_fields(value: Mapping[str, Any]) -> list[str]:
    """The names of fields that hold text, `outer.inner` for those inside another."""
    names = [name for name, inner in value.items() if isinstance(inner, str)]
    for name, inner in value.items():
        if isinstance(inner, dict):
            names += [f"{name}.{key}" for key, text in inner.items() if isinstance(text, str)]
    return names
