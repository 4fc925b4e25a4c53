"""`nmt translate`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import nmt
from nmt.cli.options import (
    BeamOption,
    DeviceOption,
    EngineOption,
    ModelsOption,
    PenaltyOption,
    PrecisionOption,
    search_settings,
)
from nmt.errors import ConfigError, DataError
from nmt.runs import open_runs


def translate(
    text: Annotated[list[str] | None, typer.Argument(help="What to translate; default: standard input.")] = None,
    models: ModelsOption = None,
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Read lines from here.")] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write here instead of standard output.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--continue", help="Go on with an --output that was broken off, or begin it.")
    ] = False,
    alignments: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write here which words come from which, as 0-0 2-1: source-target."),
    ] = None,
    beam_size: BeamOption = None,
    length_penalty: PenaltyOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = None,
    devices: Annotated[
        str | None, typer.Option(metavar="D,D,...", help="Share the lines among devices: cuda:0,cuda:1.")
    ] = None,
    engine: EngineOption = None,
) -> None:
    """Translate an argument, a file, or standard input line by line. Files whose names end in .gz are compressed.

    With several models, each --model RUN, their probabilities are averaged.
    """
    from nmt.decoding.files import Files, made_from, translate_files

    if text and (input_file or output_file or alignments):
        raise ConfigError("give a text, or files (--input, --output, --alignments), not both")
    if resume and not (input_file and output_file):
        raise ConfigError("--continue needs --input FILE and --output FILE")
    if devices is not None and device is not None:
        raise ConfigError("--device names one device, --devices several; give one of the two")
    if devices is not None and (text or (not input_file and sys.stdin.isatty())):
        raise ConfigError("--devices shares the lines of a file or a pipe: give --input FILE")
    files = Files(input_file, output_file, alignments)
    if resume and files.are_finished():
        print(f"nmt: {output_file} is finished: it is there, and no part of it", file=sys.stderr)
        return
    runs = open_runs(models)
    decoding = search_settings(runs[0].config().decoding, beam_size, length_penalty, precision)
    paths = [str(run.path) for run in runs]
    aligned, engine = alignments is not None, engine or "auto"
    if devices is not None:
        from nmt.decoding.parallel import ParallelTranslator

        with ParallelTranslator(paths, devices.split(","), decoding, aligned, engine, precision) as workers:
            totals = translate_files(workers, files, made_from(files, runs, decoding, workers.engine_name), resume)
    else:
        translator = nmt.load(
            paths,
            device=device or "auto",
            decoding=decoding,
            engine=engine,
            alignments=aligned,
            precision=precision,
            own_process=True,
        )
        if text:
            sys.stdout.buffer.write(f"{translator.translate([_utf8(' '.join(text))])[0]}\n".encode())
            return
        if not (input_file or output_file or alignments) and sys.stdin.isatty():
            _interactive(translator)
            return
        totals = translate_files(translator, files, made_from(files, runs, decoding, translator.engine_name), resume)
    if input_file:
        print(totals, file=sys.stderr)


def _utf8(text: str) -> str:
    """The text itself; `DataError` if the shell was given bytes that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError("the text to translate is not UTF-8; convert it") from None
    return text


def _interactive(translator: nmt.Translator) -> None:
    """A line typed, a line answered, until end of file."""
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
        print(translator.translate([line])[0])
