"""The validation and test texts of an improvement, as plain files, and the check that no text to train on has a line
of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nmt.atomic import write_text
from nmt.config.corpus import CorpusFiles
from nmt.config.training import Config
from nmt.data.cleaning import normalize
from nmt.data.corpus import read_pairs
from nmt.data.holdout import with_hold_outs
from nmt.data.profiling import side_names
from nmt.errors import ConfigError, DataError

FOLDER = Path("text/held_out")


def held_out_names(config: Config) -> list[str]:
    """The texts that nothing may be trained on: the validation set, the test sets, and what `data.exclude` names."""
    return [*config.data.held_out, *(f"exclude.{number}" for number, _ in enumerate(config.data.exclude, start=1))]


def held_out_files(config: Config) -> dict[str, CorpusFiles]:
    """Where `write_held_out` writes each of them."""
    languages = config.data.src_lang, config.data.tgt_lang
    return {name: corpus_in(FOLDER, name, languages) for name in held_out_names(config)}


def corpus_in(folder: Path, stem: str, languages: tuple[str, str]) -> CorpusFiles:
    """Two texts in a folder, as `nmt data --write` names them."""
    src, tgt = side_names(stem, languages)
    return CorpusFiles(src=folder / src, tgt=folder / tgt)


def write_held_out(config: Config) -> dict[str, int]:
    """Write the texts that are kept apart; hold-outs are drawn now, unless they are there. Returns numbers of pairs."""
    drawn = with_hold_outs(config, lambda line: None).data
    if drawn.validation.holdout == 0:
        raise ConfigError(
            "data.validation: the training pairs themselves would say which model is best; give more pairs, or files"
        )
    corpora = [*drawn.held_out.values(), *drawn.exclude]
    sizes = {}
    for (name, files), corpus in zip(held_out_files(config).items(), corpora, strict=True):
        pairs = list(read_pairs(corpus))
        for side, path in enumerate((files.src_file, files.tgt_file)):
            write_text(path, "".join(f"{pair[side]}\n" for pair in pairs))
        sizes[name] = len(pairs)
    return sizes


def check_no_leakage(corpora: Sequence[CorpusFiles], held_out: Mapping[str, CorpusFiles]) -> None:
    """`DataError` if a line of a text to train on is a line of a text that is kept apart, in the same language."""
    apart: tuple[dict[str, str], dict[str, str]] = {}, {}
    for name, files in held_out.items():
        for pair in read_pairs(files):
            for lines, line in zip(apart, map(normalize, pair), strict=True):
                if line:
                    lines[line] = name
    for corpus in corpora:
        for number, pair in enumerate(read_pairs(corpus), start=1):
            for lines, line, file in zip(apart, pair, (corpus.src_file, corpus.tgt_file), strict=True):
                if name := lines.get(normalize(line), ""):
                    raise DataError(
                        f"{file}:{number}: leakage: {line!r} is a line of {name}, and nothing may be trained on that; "
                        f"remove this text, and what was made from it"
                    )
