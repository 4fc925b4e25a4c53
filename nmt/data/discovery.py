"""Corpora from what a command line names: files, pairs of files, and folders of them.

What each file holds is found by its name and its first lines: the languages, and where the two sides are. Nothing is
guessed: where two readings are possible, one message says which option decides.
"""

import csv
import dataclasses
import itertools
import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.config.corpus import CorpusFiles
from nmt.data.lines import read_lines
from nmt.data.tables import listed
from nmt.data.tmx import languages_of_tmx
from nmt.errors import ConfigError, DataError
from nmt.languages import LANGUAGE_CODES, base_language, check_language, language_suffix, script_of
from nmt.suffixes import pairs_format, without_compression

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
_GIVE_BOTH = "give both languages: --src-lang CODE --tgt-lang CODE"


@dataclasses.dataclass(frozen=True)
class Corpora:
    """The corpora that a command line names, in two languages."""

    src_lang: str
    tgt_lang: str
    files: tuple[CorpusFiles, ...]
    """Complete: of a file with both sides, the columns are written out."""


@dataclasses.dataclass(frozen=True)
class _Found:
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


def discover(
    corpora: Sequence[Path],
    src: Path | None = None,
    tgt: Path | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
) -> Corpora:
    """The corpora that a command line names, with their languages.

    Each of `corpora` is a file with both sides (.tsv, .csv, .jsonl, .tmx, .zip), a text whose other side is named too,
    or a folder of such files, as from OPUS. `src` and `tgt` are two texts. Languages that are not given come from the
    ends of names, headers, fields, or the attributes of a TMX. Raises `ConfigError` where something is missing or
    several readings are possible, and `DataError` for a file that cannot be read.
    """
    given = (_checked("--src-lang", src_lang), _checked("--tgt-lang", tgt_lang))
    if given[0] and given[0] == given[1]:
        raise ConfigError(f"--src-lang and --tgt-lang are both {given[0]}")
    found = [*_two_texts(src, tgt, given), *_named(corpora)]
    if not found:
        raise ConfigError("name a corpus: a file with both sides, two texts, or a folder of such files")
    languages = _directed(found, given)
    files = [corpus for one in found if (corpus := _resolved(one, languages)) is not None]
    if not files:
        raise ConfigError(f"nothing named is in {languages[0]} and {languages[1]}; found {_said(found)}")
    return Corpora(*languages, tuple(files))


def _checked(option: str, code: str | None) -> str:
    if not code:
        return ""
    try:
        return check_language(code)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _two_texts(src: Path | None, tgt: Path | None, given: tuple[str, str]) -> list[_Found]:
    """The corpus of --src and --tgt."""
    if src is None and tgt is None:
        return []
    if src is None or tgt is None:
        missing, present = ("--src", "--tgt") if src is None else ("--tgt", "--src")
        raise ConfigError(f"{present} names one side of a corpus; name the other with {missing}")
    for option, path in (("--src", src), ("--tgt", tgt)):
        if pairs_format(path) in ("tmx", "zip"):
            raise ConfigError(f"{option}: {path} holds both sides of a corpus; name it alone, without {option}")
        _check_file(path)
    names = (_language_of_name(src), _language_of_name(tgt))
    for side, option in enumerate(("--src", "--tgt")):
        own, other = names[side], names[1 - side]
        if own != other and given[side] and other and _same(given[side], other):
            raise ConfigError(
                f"{option}-lang is {given[side]}, and by their names the other text is in it; swap --src and --tgt"
            )
    return [_pair_of_texts(src, tgt)]


def _pair_of_texts(src: Path, tgt: Path) -> _Found:
    """Two texts in the order in which they were named."""
    if src == tgt:
        raise ConfigError(f"{src} is named as both sides")
    codes = (_language_of_name(src), _language_of_name(tgt))
    if codes[0] == codes[1]:  # then the names say nothing
        codes = ("", "")
    places = {code: path for code, path in zip(codes, (src, tgt), strict=True) if code}
    return _Found(f"{src} and {tgt}", None, places, source=codes[0], in_order=(src, tgt))


def _named(corpora: Sequence[Path]) -> list[_Found]:
    """The corpora of the arguments: files with both sides, texts in pairs, folders."""
    found: list[_Found] = []
    texts: list[Path] = []
    for path in corpora:
        if path.is_dir():
            found += _in_folder(path)
            continue
        _check_file(path)
        if pairs_format(path) is None:
            texts.append(path)
        else:
            found.append(_one_file(path))
    if len(texts) == 2:
        return [_pair_of_texts(*texts), *found]
    for stem, group in _grouped(texts).items():
        if len(group) != 2:
            other = "its other side" if len(group) == 1 else "two texts"
            raise ConfigError(
                f"{', '.join(map(str, group))}: name {other}, such as {stem.name}.en {stem.name}.de, or a file with "
                "both sides (.tsv, .csv, .jsonl, .tmx, .zip)"
            )
        found.append(_pair_of_texts(*group))
    return found


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path}: is a folder, not a text")
    if not path.exists():
        raise DataError(f"{path}: no such file")


def _grouped(texts: Iterable[Path]) -> dict[Path, list[Path]]:
    """Texts whose names differ in the language at the end alone."""
    groups: dict[Path, list[Path]] = {}
    for path in texts:
        bare = Path(without_compression(path))
        groups.setdefault(bare.with_suffix("") if _language_of_name(path) else bare, []).append(path)
    return groups


def _in_folder(folder: Path) -> list[_Found]:
    """The corpora of a folder, in the order of their names; other files (README, LICENSE, .ids) are left alone."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    found = [_one_file(path) for path in files if pairs_format(path)]
    texts = [path for path in files if not pairs_format(path) and _language_of_name(path)]
    for stem, group in _grouped(texts).items():
        places: dict[str, Path | str] = {}
        for path in group:
            language = _language_of_name(path)
            if language in places:
                raise ConfigError(f"{places[language]} and {path.name} are the same text twice; keep one of them")
            places[language] = path
        found.append(_Found(str(stem), None, places))
    if not found:
        raise ConfigError(
            f"{folder}: holds no corpus: two texts with language codes at the end of their names, such as train.en "
            "and train.de, or a file with both sides (.tsv, .csv, .jsonl, .tmx, .zip)"
        )
    return found


def _language_of_name(path: Path) -> str:
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


def _one_file(path: Path) -> _Found:
    """What a file with both sides says of its languages."""
    match pairs_format(path):
        case "zip":
            return _in_archive(path)
        case "tmx":
            return _in_tmx(path)
        case "jsonl":
            return _in_jsonl(path)
    return _in_table(path)


def _in_archive(path: Path) -> _Found:
    """Its members' names end in languages; which is the source, the order in the archive does not say."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if not name.endswith("/"))
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path}: cannot be read as a ZIP archive: {error}") from None
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
    return _Found(str(path), path, places)


def _in_tmx(path: Path) -> _Found:
    """Its languages by the first units; its header may say which is the source."""
    source, codes = languages_of_tmx(path)
    languages = {language: code for code in codes if (language := _as_language(code))}
    if not languages:
        raise DataError(f"{path}: its first units have no language codes (xml:lang); found {listed(codes) or 'none'}")
    short = _shortest(languages)
    source_code = _as_language(source)
    return _Found(
        str(path), path, {short[language]: short[language] for language in languages}, short.get(source_code, "")
    )


def _shortest(languages: Iterable[str]) -> dict[str, str]:
    """Each code without its region, where that leaves the codes different and the script as it was.

    `de-DE` becomes `de`, but `zh-TW` stays (another script than `zh`), and so do `pt-BR` beside `pt-PT`.
    """
    bases = {code: base_language(code) for code in languages}
    counts = [*bases.values()]
    return {
        code: base if base and counts.count(base) == 1 and script_of(base) == script_of(code) else code
        for code, base in bases.items()
    }


def _in_table(path: Path) -> _Found:
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
    return _Found(str(path), path, {})


def _first_rows(path: Path) -> list[list[str]]:
    lines = itertools.islice(read_lines(path), 1)
    if pairs_format(path) == "tsv":
        return [line.split("\t") for line in lines]
    return list(csv.reader(f"{line}\n" for line in lines))


def _sides_by_name(path: Path, names: Sequence[str]) -> _Found | None:
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
        return _Found(str(path), path, languages, source=next(iter(languages)) if len(languages) == 2 else "")
    words = [next((name for name in names if _last(name) in meant), "") for meant in (_SOURCE_WORDS, _TARGET_WORDS)]
    if all(words):
        return _Found(str(path), path, {}, in_order=(words[0], words[1]))
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


def _in_jsonl(path: Path) -> _Found:
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


def _directed(found: Sequence[_Found], given: tuple[str, str]) -> tuple[str, str]:
    """Source and target language."""
    if given[0] and given[1]:
        return given
    by_base: dict[str, str] = {}  # one code for a language that several files write differently
    for code in (code for one in found for code in one.places):
        by_base.setdefault(base_language(code) + script_of(code), code)
    codes = list(_shortest(by_base.values()).values())
    known = given[0] or given[1]
    if known:
        others = [code for code in codes if not _same(code, known)]
        if len(others) != 1:
            raise ConfigError(f"the languages found are {', '.join(codes) or 'none'}; {_GIVE_BOTH}")
        return (given[0], others[0]) if given[0] else (others[0], given[1])
    if len(codes) != 2:
        unknown = (
            f"{found[0].name}: no language is named" if not codes else f"the languages found are {', '.join(codes)}"
        )
        raise ConfigError(f"{unknown}; {_GIVE_BOTH}")
    sources = {code for one in found for code in codes if one.source and _same(code, one.source)}
    if len(sources) == 1:
        src = sources.pop()
        return src, codes[1 - codes.index(src)]
    raise ConfigError(f"{_said(found)}: which is the source? Give --src-lang {codes[0]} or --src-lang {codes[1]}")


def _said(found: Sequence[_Found]) -> str:
    one = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{one.name} ({', '.join(code for code in one.places)}){more}"


def _same(code: str, other: str) -> bool:
    """Whether two codes mean the same language in the same script; `de` is also `de-DE`."""
    return base_language(code) == base_language(other) and script_of(code) == script_of(other)


def _resolved(one: _Found, languages: tuple[str, str]) -> CorpusFiles | None:
    """The corpus in these languages; None if it lies in a folder and is in other ones."""
    sides = _sides(one, languages)
    if one.pairs is None:
        if sides is None:
            present = next(
                (place for code, place in one.places.items() if any(_same(code, x) for x in languages)), None
            )
            if present is None:
                return None
            raise ConfigError(f"{present}: its other side is not in the folder; add it, or take this file away")
        return CorpusFiles(src=Path(sides[0]), tgt=Path(sides[1]))
    if sides is None:
        if one.places:
            raise ConfigError(
                f"{one.name}: holds {', '.join(one.places)}, not {languages[0]} and {languages[1]}; {_GIVE_BOTH}"
            )
        return CorpusFiles(pairs=one.pairs).in_languages(*languages)
    return CorpusFiles(pairs=one.pairs, src_column=sides[0], tgt_column=sides[1]).in_languages(*languages)


def _sides(one: _Found, languages: tuple[str, str]) -> tuple[Any, Any] | None:
    """The places of source and target, if the languages or the order in which they are named say them."""
    src, tgt = (_place(one, language) for language in languages)
    if src is not None and tgt is not None:
        return src, tgt
    if one.in_order is None:
        return None
    # One text's name may say its language, and the other's not.
    is_swapped = one.in_order[0] == tgt or one.in_order[1] == src
    return (one.in_order[1], one.in_order[0]) if is_swapped else one.in_order


def _place(one: _Found, language: str) -> Path | str | None:
    """Where the side in a language is."""
    loosely = (place for code, place in one.places.items() if _same(code, language))
    return one.places[language] if language in one.places else next(loosely, None)
