"""`nmt data`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from nmt.cli import options
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.config.reading import load_config
from nmt.errors import ConfigError
from nmt.system.console import RESULT, log

if TYPE_CHECKING:  # imported when the command runs
    from nmt.config.training import Config


def data(
    corpora: options.CorporaArgument = None,
    against: Annotated[
        list[Path] | None, Option(metavar="TEST", help="Test set to check overlap with; may be repeated.")
    ] = None,
    config: Annotated[Path | None, Option(metavar="FILE", help="Take rules, test sets and corpora from here.")] = None,
    src_lang: options.SrcLangOption = None,
    tgt_lang: options.TgtLangOption = None,
    output: options.PageOption = None,
    is_opened: options.OpenOption = False,
    write: Annotated[Path | None, Option(metavar="FOLDER", help="Write the cleaned pairs into a new folder.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Profile a corpus, and show what cleaning drops, before training on it.

    The cleaning rules are those that `nmt init` writes, or those of --config.
    """
    from nmt.cleaning.profile import profile_corpora
    from nmt.cleaning.selection import check_folder, write_cleaned
    from nmt.insight.data_output import data_text, write_page

    options.check_output(output, ".html", is_opened=is_opened)
    if write is not None:
        check_folder(write)
    settings = None if config is None else load_config(config)
    files, languages, cleaning, tests, excluded = _chosen(corpora or (), against or (), settings, src_lang, tgt_lang)
    profile, verdicts = profile_corpora(files, languages, cleaning, tests, excluded)
    if write is not None:
        written = ", ".join(write_cleaned(files, verdicts, languages, write))
        log.info(f"{write}: {written}, and cleaning.tsv with examples of dropped pairs", extra=RESULT)
    options.show_result(as_json, profile, map(data_text, [profile]))
    if output is not None:
        write_page(profile, output)
        options.show_written(output, is_opened)
    if not as_json:
        given = [*(("--test", test) for test in against or ()), ("--src-lang", src_lang), ("--tgt-lang", tgt_lang)]
        init = [*([write] if write else corpora or ()), *(part for pair in given if pair[1] for part in pair)]
        command = ["train", config] if config and not corpora else ["init", *init]
        log.info(f"next:\n  nmt {shlex.join(map(str, command))}")


def _chosen(
    corpora: Sequence[Path],
    against: Sequence[Path],
    config: "Config | None",
    src_lang: str | None,
    tgt_lang: str | None,
) -> tuple[Sequence[CorpusFiles], tuple[str, str], CleaningConfig, dict[str, CorpusFiles], list[CorpusFiles]]:
    """The corpora that the command line names, their languages, the rules, the test sets by display name, and the
    held-out texts: test sets, sets drawn from the corpora, and `data.exclude`."""
    from nmt.corpora.discovery import discover
    from nmt.corpora.pairs import name_of

    cleaning, tests, excluded = CleaningConfig.recommended(), dict[str, CorpusFiles](), list[CorpusFiles]()
    if config is not None:
        if config.source.type != "text":
            raise ConfigError(f"the sources of this configuration are {config.source.type}, and nmt data reads text")
        cleaning = config.data.cleaning
        src_lang, tgt_lang = src_lang or config.data.src_lang, tgt_lang or config.data.tgt_lang
        held_out = {name: files for name, files in config.data.held_out.items() if files.holdout != 0}
        tests = {name: files for name, files in held_out.items() if not files.is_drawn}
        drawn = (files for files in held_out.values() if files.is_drawn and files.src_file.exists())
        excluded = [*drawn, *config.data.exclude]
    if corpora or config is None:
        named = discover(corpora, None, None, src_lang, tgt_lang)
        files, languages = named.files, (named.src_lang, named.tgt_lang)
    else:
        files = tuple(map(_near, config.data.train))
        languages = config.data.src_lang, config.data.tgt_lang
    if against:
        tests |= {name_of(test): test for test in discover(against, None, None, *languages).files}
    tests = {name: _near(test) for name, test in tests.items()}
    return files, languages, cleaning, tests, [*excluded, *(tests.values() if cleaning.overlap else ())]


def _near(files: CorpusFiles) -> CorpusFiles:
    """The corpus with paths relative to the current folder, if they are below it: a configuration's are absolute."""
    here = Path.cwd()
    near = {key: path.relative_to(here) for key, path in files if isinstance(path, Path) and path.is_relative_to(here)}
    return files.model_copy(update=near)
