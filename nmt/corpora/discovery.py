"""Corpora from what a command line names: files, pairs of files, and folders of them.

Nothing is guessed: where two readings are possible, one message says which option decides.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nmt.config.corpus import CorpusFiles
from nmt.config.formats import CLEANING_FILE, pairs_format, without_compression
from nmt.config.languages import base_language, check_language, script_of
from nmt.corpora.detection import Found, language_of_name, shortest_codes, sides_of_file
from nmt.errors import ConfigError, DataError

_GIVE_BOTH = "give both languages: --src-lang CODE --tgt-lang CODE"


class Corpora(NamedTuple):
    """The corpora that a command line names, in two languages."""

    src_lang: str
    tgt_lang: str
    files: tuple[CorpusFiles, ...]
    """Complete: of a file with both sides, the columns are written out."""


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


def _two_texts(src: Path | None, tgt: Path | None, given: tuple[str, str]) -> list[Found]:
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
    names = (language_of_name(src), language_of_name(tgt))
    for side, option in enumerate(("--src", "--tgt")):
        own, other = names[side], names[1 - side]
        if own != other and given[side] and other and _same(given[side], other):
            raise ConfigError(
                f"{option}-lang is {given[side]}, and by their names the other text is in it; swap --src and --tgt"
            )
    return [_pair_of_texts(src, tgt)]


def _pair_of_texts(src: Path, tgt: Path) -> Found:
    """Two texts in the order in which they were named."""
    if src == tgt:
        raise ConfigError(f"{src} is named as both sides")
    codes = (language_of_name(src), language_of_name(tgt))
    if codes[0] == codes[1]:  # then the names say nothing
        codes = ("", "")
    places = {code: path for code, path in zip(codes, (src, tgt), strict=True) if code}
    return Found(f"{src} and {tgt}", None, places, source=codes[0], in_order=(src, tgt))


def _named(corpora: Sequence[Path]) -> list[Found]:
    """The corpora of the arguments: files with both sides, texts in pairs, folders."""
    found: list[Found] = []
    texts: list[Path] = []
    for path in corpora:
        if path.is_dir():
            found += _in_folder(path)
            continue
        _check_file(path)
        if pairs_format(path) is None:
            texts.append(path)
        else:
            found.append(sides_of_file(path))
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
        groups.setdefault(bare.with_suffix("") if language_of_name(path) else bare, []).append(path)
    return groups


def _in_folder(folder: Path) -> list[Found]:
    """The corpora of a folder, in the order of their names; other files (README, LICENSE, .ids) are left alone."""
    names = (path for path in folder.iterdir() if path.name != CLEANING_FILE and not path.name.startswith("."))
    files = sorted(path for path in names if path.is_file())
    found = [sides_of_file(path) for path in files if pairs_format(path)]
    texts = [path for path in files if not pairs_format(path) and language_of_name(path)]
    for stem, group in _grouped(texts).items():
        places: dict[str, Path | str] = {}
        for path in group:
            language = language_of_name(path)
            if language in places:
                raise ConfigError(f"{places[language]} and {path.name} are the same text twice; keep one of them")
            places[language] = path
        found.append(Found(str(stem), None, places))
    if not found:
        raise ConfigError(
            f"{folder}: holds no corpus: two texts with language codes at the end of their names, such as train.en "
            "and train.de, or a file with both sides (.tsv, .csv, .jsonl, .tmx, .zip)"
        )
    return found


def _directed(found: Sequence[Found], given: tuple[str, str]) -> tuple[str, str]:
    """Source and target language."""
    if given[0] and given[1]:
        return given
    by_base: dict[str, str] = {}  # one code for a language that several files write differently
    for code in (code for one in found for code in one.places):
        by_base.setdefault(base_language(code) + script_of(code), code)
    codes = list(shortest_codes(by_base.values()).values())
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


def _said(found: Sequence[Found]) -> str:
    one = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{one.name} ({', '.join(code for code in one.places)}){more}"


def _same(code: str, other: str) -> bool:
    """Whether two codes mean the same language in the same script; `de` is also `de-DE`."""
    return base_language(code) == base_language(other) and script_of(code) == script_of(other)


def _resolved(one: Found, languages: tuple[str, str]) -> CorpusFiles | None:
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


def _sides(one: Found, languages: tuple[str, str]) -> tuple[Any, Any] | None:
    """The places of source and target, if the languages or the order in which they are named say them."""
    src, tgt = (_place(one, language) for language in languages)
    if src is not None and tgt is not None:
        return src, tgt
    if one.in_order is None:
        return None
    # One text's name may say its language, and the other's not.
    is_swapped = one.in_order[0] == tgt or one.in_order[1] == src
    return (one.in_order[1], one.in_order[0]) if is_swapped else one.in_order


def _place(one: Found, language: str) -> Path | str | None:
    """Where the side in a language is."""
    loosely = (place for code, place in one.places.items() if _same(code, language))
    return one.places[language] if language in one.places else next(loosely, None)
