"""What cleaning leaves of corpora, written as plain texts."""

import itertools
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nmt.cleaning.selection import RULES, Verdicts, write_examples
from nmt.config.corpus import CorpusFiles
from nmt.config.formats import CLEANING_FILE, without_compression
from nmt.corpora.pairs import reader_of
from nmt.errors import ConfigError, DataError
from nmt.system.files import replacing


def check_folder(folder: Path) -> None:
    """`ConfigError` if `write_cleaned` cannot write there."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"--write {folder}: exists already, and nothing is overwritten; name a new folder")


def write_cleaned(
    corpora: Sequence[CorpusFiles],
    verdicts: Sequence[Verdicts],
    languages: tuple[str, str],
    folder: Path,
    rules: Sequence[str] = RULES,
) -> list[str]:
    """Write what is left of each corpus as two texts, and cleaning.tsv with examples of what was dropped.

    Returns the names of the texts, which are `cleaned_names`. The folder is written as a whole.
    """
    check_folder(folder)
    names = cleaned_names(corpora, languages)
    with replacing(folder) as temporary:
        temporary.mkdir()
        for files, of_corpus, pair in zip(corpora, verdicts, names, strict=True):
            with (temporary / pair[0]).open("wb") as src_file, (temporary / pair[1]).open("wb") as tgt_file:
                for verdict, pair_read in itertools.zip_longest(of_corpus.tolist(), reader_of(files).raw_pairs()):
                    if verdict is None or pair_read is None:
                        raise DataError(f"{files.src_file}: has changed while it was read; run the command again")
                    if not verdict:
                        src_file.write(_plain(pair_read[0]))
                        tgt_file.write(_plain(pair_read[1]))
        write_examples(temporary / CLEANING_FILE, corpora, verdicts, rules=rules)
    return [name for pair in names for name in pair]


def cleaned_names(corpora: Sequence[CorpusFiles], languages: tuple[str, str]) -> list[tuple[str, str]]:
    """The names of the two texts that are written of each corpus, after its source's file: `train.en` and `train.de`;
    `train.src.en` and `train.tgt.en` if the languages are one."""
    (src, tgt), names = languages, []
    stems: Counter[str] = Counter()
    for files in corpora:
        stem = without_compression(files.src_file).stem
        stems[stem] += 1
        if stems[stem] > 1:
            stem = f"{stem}.{stems[stem]}"
        names.append((f"{stem}.{src}", f"{stem}.{tgt}") if src != tgt else (f"{stem}.src.{src}", f"{stem}.tgt.{tgt}"))
    return names


def _plain(line: bytes) -> bytes:
    """A line of a plain text: with one line end, and without a byte order mark."""
    return line.removeprefix(BOM_UTF8).removesuffix(b"\n").removesuffix(b"\r") + b"\n"
