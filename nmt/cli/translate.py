"""`nmt translate`."""

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli import options
from nmt.cli.searching import TranslationOptions
from nmt.config.inference import DecodingConfig
from nmt.console import log
from nmt.errors import ConfigError, DataError
from nmt.runs import RunFolder, open_runs

if TYPE_CHECKING:  # imported when the command runs
    from nmt.decoding.files import Files
    from nmt.decoding.parallel import LineTranslator
    from nmt.decoding.request import Request
    from nmt.decoding.translator import Translation


@options.grouped
def translate(
    text: Annotated[list[str] | None, typer.Argument(help="Text to translate; default: standard input.")] = None,
    models: options.ModelsOption = None,
    input_file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Translate this file: text, vectors or a list of images."),
    ] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write here instead of standard output.")
    ] = None,
    resume: Annotated[bool, typer.Option("--continue", help="Resume an unfinished --output, or start it.")] = False,
    alignments: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write word alignments here: 0-0 2-1, source-target.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Each translation begins with this text of the target language.")
    ] = None,
    prefixes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same from a file, a line for each line of the input.")
    ] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="D,D,...", help="Share the lines among devices: cuda:0,cuda:1.")
    ] = None,
    *,
    search: TranslationOptions,
) -> None:
    """Translate an argument, a file, or standard input line by line.

    An --input whose name ends in .gz, .bz2, .xz or .zst is compressed; an --output, if its name ends in .gz.

    With several models, each --model RUN, their probabilities are averaged.
    """
    from nmt.decoding.files import Files
    from nmt.decoding.parallel import ParallelTranslator
    from nmt.decoding.records import as_json as json_of
    from nmt.decoding.translator import load

    files = Files(input_file, output_file, alignments, prefixes)
    _check(text, files, prefix, resume, search.device, devices)
    runs = open_runs(models)
    config = runs[0].inference_config()
    is_typed = bool(text) or (files == Files(None, None) and sys.stdin.isatty())
    by_sentence = is_typed if search.split_sentences is None else search.split_sentences
    _check_source(runs[0], config.source.type, bool(text), files, by_sentence)
    decoding = search.settings(config.decoding)
    request = search.request(decoding, by_sentence, bool(alignments))
    of_one = functools.partial(json_of, n_best=search.n_best or 0, alignment=search.align, tokens=search.tokens)
    record = of_one if search.as_json else attrgetter("text")
    load_on = functools.partial(
        load, [str(run.path) for run in runs], decoding=decoding, engine=search.engine_to_load(),
        precision=search.precision, tgt_tag=search.tgt_tag, own_process=True,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        translator: LineTranslator
        if devices is None:
            translator = load_on(device=search.device or "auto")
        else:
            translator = stack.enter_context(ParallelTranslator(load_on, devices.split(",")))
        if text:
            line = options.utf8(" ".join(text))
            sys.stdout.buffer.write(f"{_translated(translator, line, prefix, request, record)}\n".encode())
        elif is_typed:
            _interactive(translator, prefix, request, record)
        else:
            made_by = {
                "--json": search.as_json, "--n-best": search.n_best, "--align": search.align, "--prefix": prefix,
                "--tokens": search.tokens, "--split-sentences": by_sentence, "--sample": request.sampling,
                "--tgt-tag": search.tgt_tag,
            }  # fmt: skip
            _translate_files(translator, files, runs, decoding, request, made_by, resume, record, prefix)


def _check(
    text: list[str] | None, files: "Files", prefix: str | None, resume: bool, device: str | None, devices: str | None
) -> None:
    """`ConfigError` for options that contradict each other."""
    if text and (files.input or files.output or files.alignments or files.prefixes):
        raise ConfigError("give a text, or files (--input, --output, --alignments, --prefixes), not both")
    if prefix is not None and files.prefixes is not None:
        raise ConfigError(
            "--prefix is one text for all lines, --prefixes a file with one for each; give one of the two"
        )
    if resume and not (files.input and files.output):
        raise ConfigError("--continue needs --input FILE and --output FILE")
    if resume and (pipes := [path for path in (files.input, files.prefixes) if path and path.is_fifo()]):
        raise ConfigError(f"--continue reads again what was read, which a pipe does not allow: {pipes[0]}; name a file")
    if devices is not None and device is not None:
        raise ConfigError("--device names one device, --devices several; give one of the two")
    if devices is not None and (text or (not files.input and sys.stdin.isatty())):
        raise ConfigError("--devices shares the lines of a file or a pipe: give --input FILE")


def _check_source(run: RunFolder, source: str, has_text: bool, files: "Files", by_sentence: bool) -> None:
    """`ConfigError` if a model that reads vectors or images is given text."""
    if source != "text" and not files.input:
        given = "a text" if has_text else "standard input"
        raise ConfigError(f"{run.path}: reads {source}, not {given}; name a file of them: --input FILE")
    if source != "text" and by_sentence:
        raise ConfigError(f"{run.path}: reads {source}, which have no sentences; leave --split-sentences out")


def _translate_files(
    translator: "LineTranslator",
    files: "Files",
    runs: Sequence[RunFolder],
    decoding: DecodingConfig,
    request: "Request",
    made_by: Mapping[str, object],
    resume: bool,
    record: Callable[["Translation"], str],
    prefix: str | None,
) -> None:
    """Translate a file or standard input; `made_by`: the options on which the output depends, for --continue."""
    from nmt.decoding.files import made_from, prefixes_of, translate_files

    source = runs[0].inference_config().source
    written = {option: str(value) for option, value in made_by.items()} | {"--prefixes": prefixes_of(files.prefixes)}
    sources = made_from(files, runs, decoding, translator.engine_name, source, written)
    if resume and files.are_finished():
        files.check_finished(sources, source)
        log.info(f"{files.output} is finished already")
        return
    totals = translate_files(translator, files, sources, resume, source, record, prefix, request)
    if files.input:
        log.info(totals)


def _translated(
    translator: "LineTranslator",
    line: str,
    prefix: str | None,
    request: "Request",
    record: Callable[["Translation"], str],
) -> str:
    (translation,) = translator.stream([[line]], prefixes=prefix, request=request)
    return record(translation)


def _interactive(
    translator: "LineTranslator", prefix: str | None, request: "Request", record: Callable[["Translation"], str]
) -> None:
    """Translate each line as it is typed, until end of file."""
    log.info("end with Ctrl-D")
    prompts = sys.stdout if sys.stdout.isatty() else sys.stderr  # not into a file
    while True:
        try:
            with contextlib.redirect_stdout(prompts):
                line = options.utf8(input("> "))
        except EOFError:
            log.info("")
            return
        except (UnicodeDecodeError, DataError):
            log.error("not UTF-8")
            continue
        print(_translated(translator, line, prefix, request, record), flush=True)
