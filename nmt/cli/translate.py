"""`nmt translate`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli import options
from nmt.errors import ConfigError
from nmt.runs import open_runs

if TYPE_CHECKING:  # imported when the command runs
    from nmt.decoding.parallel import LineTranslator


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
    split_sentences: Annotated[
        bool | None,
        typer.Option(
            help="Translate each sentence by itself and keep the white space; default: of what is typed, not of files."
        ),
    ] = None,
) -> None:
    """Translate an argument, a file, or standard input line by line. Files whose names end in .gz are compressed.

    With several models, each --model RUN, their probabilities are averaged.
    """
    if text and (input_file or output_file or alignments):
        raise ConfigError("give a text, or files (--input, --output, --alignments), not both")
    if resume and not (input_file and output_file):
        raise ConfigError("--continue needs --input FILE and --output FILE")
    if devices is not None and device is not None:
        raise ConfigError("--device names one device, --devices several; give one of the two")
    if devices is not None and (text or (not input_file and sys.stdin.isatty())):
        raise ConfigError("--devices shares the lines of a file or a pipe: give --input FILE")
    from nmt.decoding.files import Files, made_from, translate_files
    from nmt.decoding.parallel import line_translator

    files = Files(input_file, output_file, alignments)
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
    is_typed = bool(text) or (not (input_file or output_file or alignments) and sys.stdin.isatty())
    by_sentence = is_typed if split_sentences is None else split_sentences
    if by_sentence and source.type != "text":
        raise ConfigError(f"{runs[0].path}: reads {source.type}, which have no sentences; leave --split-sentences out")
    paths, aligned = [str(run.path) for run in runs], alignments is not None
    with line_translator(
        paths, decoding, device, devices, aligned, engine or "auto", precision, by_sentence
    ) as translator:
        if text:
            sys.stdout.buffer.write(f"{_translated(translator, options.utf8(' '.join(text)))}\n".encode())
        elif is_typed:
            _interactive(translator)
        else:
            sources = made_from(files, runs, decoding, translator.engine_name, source, by_sentence)
            totals = translate_files(translator, files, sources, resume, source)
            if input_file:
                print(totals, file=sys.stderr)


def _translated(translator: "LineTranslator", line: str) -> str:
    (translation,) = translator.stream([[line]])
    return translation.text


def _interactive(translator: "LineTranslator") -> None:
    """Translate each line as it is typed, until end of file."""
    print("one sentence a line; end with Ctrl-D", file=sys.stderr)
    while True:
        try:
            line = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
        except UnicodeDecodeError:
            print("nmt: not UTF-8", file=sys.stderr)
            continue
        print(_translated(translator, line))
