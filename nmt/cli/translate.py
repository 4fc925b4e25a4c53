"""`nmt translate`."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli import options, searching
from nmt.errors import ConfigError
from nmt.runs import open_runs

if TYPE_CHECKING:  # imported when the command runs
    from nmt.decoding.parallel import LineTranslator
    from nmt.decoding.translator import Translation


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
    beam_size: options.BeamOption = None,
    length_penalty: options.PenaltyOption = None,
    precision: options.PrecisionOption = None,
    device: options.DeviceOption = None,
    devices: Annotated[
        str | None, typer.Option(metavar="D,D,...", help="Share the lines among devices: cuda:0,cuda:1.")
    ] = None,
    engine: options.EngineOption = None,
    as_json: options.JsonOption = False,
    n_best: searching.NBestOption = None,
    align: searching.AlignOption = False,
    prefix: searching.PrefixOption = None,
    prefixes: searching.PrefixesOption = None,
    forbid: searching.ForbidOption = None,
    forbid_file: searching.ForbidFileOption = None,
    min_length: searching.MinLengthOption = None,
    max_length: searching.MaxLengthOption = None,
    min_length_ratio: searching.MinRatioOption = None,
    max_length_ratio: searching.RatioOption = None,
    sample: searching.SampleOption = False,
    temperature: searching.TemperatureOption = None,
    top_k: searching.TopKOption = None,
    top_p: searching.TopPOption = None,
    seed: searching.SeedOption = None,
    mbr: searching.MbrOption = None,
    split_sentences: searching.SentencesOption = None,
    tgt_tag: searching.TagOption = None,
) -> None:
    """Translate an argument, a file, or standard input line by line.

    An --input whose name ends in .gz, .bz2, .xz or .zst is compressed; an --output, if its name ends in .gz.

    With several models, each --model RUN, their probabilities are averaged.
    """
    if text and (input_file or output_file or alignments or prefixes):
        raise ConfigError("give a text, or files (--input, --output, --alignments, --prefixes), not both")
    if prefix is not None and prefixes is not None:
        raise ConfigError(
            "--prefix is one text for all lines, --prefixes a file with one for each; give one of the two"
        )
    if resume and not (input_file and output_file):
        raise ConfigError("--continue needs --input FILE and --output FILE")
    if devices is not None and device is not None:
        raise ConfigError("--device names one device, --devices several; give one of the two")
    if devices is not None and (text or (not input_file and sys.stdin.isatty())):
        raise ConfigError("--devices shares the lines of a file or a pipe: give --input FILE")
    from nmt.decoding.files import Files, made_from, prefixes_of, translate_files
    from nmt.decoding.parallel import line_translator
    from nmt.decoding.records import as_json as json_of

    files = Files(input_file, output_file, alignments, prefixes)
    if resume and files.are_finished():
        print(f"nmt: {output_file} is finished already", file=sys.stderr)
        return
    runs = open_runs(models)
    config = runs[0].inference_config()
    source = config.source
    if source.type != "text" and not input_file:
        given = "a text" if text else "standard input"
        raise ConfigError(f"{runs[0].path}: reads {source.type}, not {given}; name a file of them: --input FILE")
    decoding = options.search_settings(config.decoding, beam_size, length_penalty, precision)
    decoding = searching.limits(
        decoding, min_length, max_length, min_length_ratio, max_length_ratio, forbid, forbid_file
    )
    sampled = searching.Sampled(sample, mbr, temperature, top_k, top_p, seed)
    request = searching.request(decoding, as_json, n_best, align, beam_size, sampled)
    is_typed = bool(text) or (not (input_file or output_file or alignments or prefixes) and sys.stdin.isatty())
    by_sentence = is_typed if split_sentences is None else split_sentences
    if by_sentence and source.type != "text":
        raise ConfigError(f"{runs[0].path}: reads {source.type}, which have no sentences; leave --split-sentences out")
    request = dataclasses.replace(request, by_sentence=by_sentence, tgt_tag=tgt_tag)
    record = functools.partial(json_of, n_best=n_best or 0, alignment=align) if as_json else attrgetter("text")
    paths, aligned = [str(run.path) for run in runs], align or alignments is not None
    with line_translator(paths, decoding, device, devices, aligned, engine or "auto", precision, request) as translator:
        if text:
            line = options.utf8(" ".join(text))
            sys.stdout.buffer.write(f"{_translated(translator, line, prefix, record)}\n".encode())
        elif is_typed:
            _interactive(translator, prefix, record)
        else:
            written = {"--json": str(as_json), "--n-best": str(n_best), "--align": str(align), "--prefix": str(prefix)}
            written |= {
                "--split-sentences": str(by_sentence),
                "--sample": str(request.sampling),
                "--prefixes": prefixes_of(prefixes),
                "--tgt-tag": str(tgt_tag),
            }
            sources = made_from(files, runs, decoding, translator.engine_name, source, written)
            totals = translate_files(translator, files, sources, resume, source, record, prefix)
            if input_file:
                print(totals, file=sys.stderr)


def _translated(
    translator: "LineTranslator", line: str, prefix: str | None, record: Callable[["Translation"], str]
) -> str:
    (translation,) = translator.stream([[line]], prefixes=prefix)
    return record(translation)


def _interactive(translator: "LineTranslator", prefix: str | None, record: Callable[["Translation"], str]) -> None:
    """Translate each line as it is typed, until end of file."""
    print("end with Ctrl-D", file=sys.stderr)
    while True:
        try:
            line = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
        except UnicodeDecodeError:
            print("nmt: not UTF-8", file=sys.stderr)
            continue
        print(_translated(translator, line, prefix, record))
