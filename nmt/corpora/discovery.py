"""Corpora of a command line: files with both sides, two texts, and folders of them.

Nothing is guessed: where two readings are possible, a message names the option that decides.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nmt.config.corpus import CorpusFiles
from nmt.config.formats import CLEANING_FILE, pairs_format, without_compression
from nmt.config.languages import base_language, checked_language, script_of
from nmt.corpora.detection import DetectedCorpus, detect, language_of_name, shortest_codes
from nmt.errors import ConfigError, DataError

_GIVE_BOTH = "give both languages: --src-lang CODE --tgt-lang CODE"


class Corpora(NamedTuple):
    """The corpora that a command line names, in two languages."""

    src_lang: str
    tgt_lang: str
    files: tuple[CorpusFiles, ...]
    """With the columns written out where a file holds both sides."""


def discover(
    corpora: Sequence[Path],
    src: Path | None = None,
    tgt: Path | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
) -> Corpora:
    """Find the corpora that a command line names, and their languages.

    Each of `corpora` is a file with both sides (.tsv, .csv, .jsonl, .tmx, .zip), a text whose other side is named too,
    or a folder of such files, as from OPUS. `src` and `tgt` are two texts. Languages that are not given come from the
    ends of names, headers, fields, or the attributes of a TMX. Raises `ConfigError` where something is missing or
    several readings are possible, and `DataError` for a file that cannot be read.
    """
    given = (checked_language("--src-lang", src_lang), checked_language("--tgt-lang", tgt_lang))
    if given[0] and given[0] == given[1]:
        raise ConfigError(f"--src-lang and --tgt-lang are both {given[0]}")
    detected = [*_two_texts(src, tgt, given), *_arguments(corpora)]
    if not detected:
        raise ConfigError("name a corpus: a file with both sides, two texts, or a folder of such files")
    languages = _direction(detected, given)
    files = [files for corpus in detected if (files := _resolved(corpus, languages)) is not None]
    if not files:
        raise ConfigError(
            f"no corpus is in {languages[0]} and {languages[1]}; found {_summary(detected)}; give other languages"
        )
    return Corpora(*languages, tuple(files))


def _two_texts(src: Path | None, tgt: Path | None, given: tuple[str, str]) -> list[DetectedCorpus]:
    """The corpus of --src and --tgt; none without them."""
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
                f"{option}-lang is {given[side]}, and by their names the other text is in {other}; swap --src and --tgt"
            )
    return [_pair_of_texts(src, tgt)]


def _pair_of_texts(src: Path, tgt: Path) -> DetectedCorpus:
    """Two texts in the order in which they were named."""
    if src == tgt:
        raise ConfigError(f"{src} is named as both sides; name another file for one of them")
    codes = (language_of_name(src), language_of_name(tgt))
    if codes[0] == codes[1]:  # the names do not tell the languages
        codes = ("", "")
    places = {code: path for code, path in zip(codes, (src, tgt), strict=True) if code}
    return DetectedCorpus(f"{src} and {tgt}", None, places, source=codes[0], in_order=(src, tgt))


def _arguments(paths: Sequence[Path]) -> list[DetectedCorpus]:
    """The corpora of the arguments: files with both sides, texts in pairs, folders."""
    detected: list[DetectedCorpus] = []
    texts: list[Path] = []
    for path in paths:
        if path.is_dir():
            detected += _in_folder(path)
            continue
        _check_file(path)
        if pairs_format(path) is None:
            texts.append(path)
        else:
            detected.append(detect(path))
    if len(texts) == 2:
        return [_pair_of_texts(*texts), *detected]
    for stem, group in _grouped(texts).items():
        if len(group) != 2:
            other = "its other side" if len(group) == 1 else "two texts"
            raise ConfigError(
                f"{', '.join(map(str, group))}: name {other}, such as {stem.name}.en {stem.name}.de, or a file with "
                "both sides (.tsv, .csv, .jsonl, .tmx, .zip)"
            )
        detected.append(_pair_of_texts(*group))
    return detected


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path}: is a folder, not a text")
    if not path.exists():
        raise DataError(f"{path}: no such file")


def _grouped(texts: Iterable[Path]) -> dict[Path, list[Path]]:
    """Texts by their name without the language at its end."""
    groups: dict[Path, list[Path]] = {}
    for path in texts:
        bare = Path(without_compression(path))
        groups.setdefault(bare.with_suffix("") if language_of_name(path) else bare, []).append(path)
    return groups


def _in_folder(folder: Path) -> list[DetectedCorpus]:
    """The corpora of a folder, in the order of their names; other files (README, LICENSE, .ids) are ignored."""
    names = (path for path in folder.iterdir() if path.name != CLEANING_FILE and not path.name.startswith("."))
    files = sorted(path for path in names if path.is_file())
    detected = [detect(path) for path in files if pairs_format(path)]
    texts = [path for path in files if not pairs_format(path) and language_of_name(path)]
    for stem, group in _grouped(texts).items():
        places: dict[str, Path | str] = {}
        for path in group:
            language = language_of_name(path)
            if language in places:
                raise ConfigError(f"{places[language]} and {path.name} are the same text twice; keep one of them")
            places[language] = path
        detected.append(DetectedCorpus(str(stem), None, places))
    if not detected:
        raise ConfigError(
            f"{folder}: holds no corpus; add two texts with language codes at the end of their names, such as train.en "
            "and train.de, or a file with both sides (.tsv, .csv, .jsonl, .tmx, .zip)"
        )
    return detected


def _direction(detected: Sequence[DetectedCorpus], given: tuple[str, str]) -> tuple[str, str]:
    """Source and target language: those given, and for the others those of the corpora."""
    if given[0] and given[1]:
        return given
    by_base: dict[str, str] = {}  # a language that several files write differently has one code
    for code in (code for corpus in detected for code in corpus.places):
        by_base.setdefault(base_language(code) + script_of(code), code)
    codes = list(shortest_codes(by_base.values()).values())
    known = given[0] or given[1]
    if known:
        others = [code for code in codes if not _same(code, known)]
        if len(others) != 1:
            raise ConfigError(f"the languages found are {', '.join(codes) or 'none'}; {_GIVE_BOTH}")
        return (given[0], others[0]) if given[0] else (others[0], given[1])
    if len(codes) != 2:
        if codes:
            raise ConfigError(f"the languages found are {', '.join(codes)}; {_GIVE_BOTH}")
        raise ConfigError(f"{detected[0].name}: no language is named; {_GIVE_BOTH}")
    sources = {code for corpus in detected for code in codes if corpus.source and _same(code, corpus.source)}
    if len(sources) == 1:
        src = sources.pop()
        return src, codes[1 - codes.index(src)]
    raise ConfigError(f"{_summary(detected)}: which is the source? Give --src-lang {codes[0]} or --src-lang {codes[1]}")


def _summary(detected: Sequence[DetectedCorpus]) -> str:
    """The first corpus with its languages, and the number of others, for a message."""
    more = f", and {len(detected) - 1} more" if len(detected) > 1 else ""
    return f"{detected[0].name} ({', '.join(detected[0].places)}){more}"


def _same(code: str, other: str) -> bool:
    """True if two codes mean the same language in the same script; `de` is also `de-DE`."""
    return base_language(code) == base_language(other) and script_of(code) == script_of(other)


def _resolved(corpus: DetectedCorpus, languages: tuple[str, str]) -> CorpusFiles | None:
    """The corpus in these languages; None if it lies in a folder and is in other languages."""
    sides = _sides(corpus, languages)
    if corpus.pairs is None:
        if sides is None:
            present = [path for code, path in corpus.places.items() if any(_same(code, other) for other in languages)]
            if not present:
                return None
            raise ConfigError(f"{present[0]}: its other side is not in the folder; add it, or remove this file")
        return CorpusFiles(src=Path(sides[0]), tgt=Path(sides[1]))
    if sides is None:
        if corpus.places:
            wanted = f"{languages[0]} and {languages[1]}"
            is_table = pairs_format(corpus.pairs) in ("tsv", "csv")
            or_header = f", or, if its first line is a pair, add one above it: the codes {wanted}" if is_table else ""
            raise ConfigError(
                f"{corpus.name}: holds {', '.join(corpus.places)}, not {wanted}; name its own languages "
                f"(--src-lang, --tgt-lang){or_header}"
            )
        return CorpusFiles(pairs=corpus.pairs).in_languages(*languages)
    return CorpusFiles(pairs=corpus.pairs, src_column=sides[0], tgt_column=sides[1]).in_languages(*languages)


def _sides(corpus: DetectedCorpus, languages: tuple[str, str]) -> tuple[Any, Any] | None:
    """The places of source and target, by their languages or else by the order in which they are named."""
    src, tgt = (_place(corpus, language) for language in languages)
    if src is not None and tgt is not None:
        return src, tgt
    if corpus.in_order is None:
        return None
    # The name of one text may tell its language, and that of the other not.
    is_swapped = corpus.in_order[0] == tgt or corpus.in_order[1] == src
    return (corpus.in_order[1], corpus.in_order[0]) if is_swapped else corpus.in_order


def _place(corpus: DetectedCorpus, language: str) -> Path | str | None:
    """The place of the side in a language: under the same code, or one that differs in the region."""
    similar = (place for code, place in corpus.places.items() if _same(code, language))
    return corpus.places[language] if language in corpus.places else next(similar, None)
