"""`nmt translate`."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from nmt.cli import options
from nmt.config.inference import DecodingConfig
from nmt.config.section import MAX_BEAMS
from nmt.errors import ConfigError, DataError
from nmt.runs.folder import RunFolder, open_runs
from nmt.system.console import RESULT, log

if TYPE_CHECKING:  # imported when the command runs
    from nmt.decoding.files import Files
    from nmt.decoding.hypothesis import Request
    from nmt.decoding.parallel import LineTranslator


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FileOptions:
    """The options for input and output; None or False means not given."""

    input: Annotated[Path | None, Option(metavar="FILE", help="Input: text, vectors or a list of images.")] = None
    prefix: Annotated[str | None, Option(metavar="TEXT", help="Beginning of each translation.")] = None
    prefixes: Annotated[Path | None, Option(metavar="FILE", help="A prefix for each line of --input.")] = None
    split_sentences: Annotated[bool | None, Option(help="Translate by sentence. Default: only typed text.")] = None
    tgt_tag: Annotated[str | None, Option(metavar="TAG", help="Target language of a multilingual model: deu.")] = None
    devices: Annotated[str | None, Option(metavar="D,D,...", help="Share lines among devices: cuda:0,cuda:1.")] = None
    shard: Annotated[str | None, Option(metavar="I/N", help="Only part I of N of --input: 3/16.")] = None
    output: Annotated[Path | None, Option(metavar="FILE", help="Output. Default: standard output.")] = None
    resume: Annotated[bool, Option("--continue", help="Resume an unfinished --output, or start it.")] = False
    alignments: Annotated[Path | None, Option(metavar="FILE", help="Write word alignments (0-0 2-1) here.")] = None
    as_json: options.JsonOption = False
    n_best: Annotated[int | None, Option(min=1, max=MAX_BEAMS, help="With --json: the N best translations.")] = None
    align: Annotated[bool, Option("--align", help="With --json: word alignments.")] = False
    tokens: Annotated[bool, Option("--tokens", help="With --json: the log-probability of each piece.")] = False

    def files(self, has_text: bool, device: str | None) -> "Files":
        """The files to read and write; `ConfigError` for options that contradict each other."""
        from nmt.decoding.files import Files

        files = Files(self.input, self.output, self.alignments, self.prefixes)
        if has_text and files != Files(None, None):
            raise ConfigError("give a text, or files (--input, --output, --alignments, --prefixes), not both")
        if self.prefix is not None and self.prefixes is not None:
            raise ConfigError("--prefix is a text for all lines, --prefixes one for each; give one of the two")
        if self.resume and not (self.input and self.output):
            raise ConfigError("--continue needs --input FILE and --output FILE")
        if self.resume and (pipes := [path for path in (self.input, self.prefixes) if path and path.is_fifo()]):
            raise ConfigError(f"--continue rereads its input, which a pipe does not allow: {pipes[0]}; name a file")
        if self.shard is not None and not (self.input and self.input.is_file()):
            raise ConfigError("--shard takes a part of a file: give --input FILE")
        if self.devices is not None and device is not None:
            raise ConfigError("--device names a single device, --devices several; give one of the two")
        if self.devices is not None and (has_text or (not self.input and sys.stdin.isatty())):
            raise ConfigError("--devices shares the lines of a file or a pipe: give --input FILE")
        return files

    def check_source(self, run: RunFolder, source: str, by_sentence: bool) -> None:
        """`ConfigError` if a model that reads vectors or images is given text."""
        if source != "text" and not self.input:
            raise ConfigError(f"{run.path}: reads {source}, not text; name a file of {source}: --input FILE")
        if source != "text" and by_sentence:
            raise ConfigError(f"{run.path}: reads {source}, which have no sentences; leave out --split-sentences")

    def request(self, search: options.SearchOptions, decoding: DecodingConfig, by_sentence: bool) -> "Request":
        """The request to the translator; `ConfigError` if options contradict each other."""
        from nmt.decoding.hypothesis import Request

        wanted = {"--n-best": self.n_best, "--align": self.align, "--tokens": self.tokens}
        if not self.as_json and (given := [option for option, value in wanted.items() if value]):
            raise ConfigError(f"{given[0]} needs --json: otherwise each line of input gives one line of output")
        count, sampling = self.n_best or 1, search.sampling(self.n_best or 1)
        if sampling is None and count > decoding.beam_size:
            raise ConfigError(
                f"--n-best {count}: the search keeps {decoding.beam_size} hypotheses; add --beam-size {count}"
            )
        if sampling and count > sampling.count:
            drawn = sampling.count
            raise ConfigError(f"--n-best {count}: --mbr {drawn} draws {drawn} translations; draw at least {count}")
        alignment = self.align or self.alignments is not None
        return Request(count, count if self.tokens else 0, sampling, by_sentence, alignment, self.as_json)

    def made_by(self, request: "Request") -> dict[str, object]:
        """The options that determine the output, which --continue compares."""
        return {
            "--json": self.as_json, "--n-best": self.n_best, "--align": self.align, "--tokens": self.tokens,
            "--prefix": self.prefix, "--tgt-tag": self.tgt_tag, "--split-sentences": request.by_sentence,
            "--sample": request.sampling,
        }  # fmt: skip


@options.grouped
def translate(
    text: Annotated[
        list[str] | None, Argument(metavar="TEXT", help="Text to translate. Default: standard input.")
    ] = None,
    models: options.ModelsOption = None,
    *,
    given: _FileOptions,
    search: options.SearchOptions,
) -> None:
    """Translate an argument, a file, or standard input line by line.

    Files are compressed if their names end in .gz, .bz2, .xz or .zst (--input) or .gz (--output).

    Several models (--model, repeated) form an ensemble, which averages their probabilities.
    """
    from nmt.decoding.blocks import shard_of
    from nmt.decoding.files import Files, made_from, translate_files
    from nmt.decoding.parallel import ParallelTranslator
    from nmt.decoding.translator import as_json, load

    files = given.files(bool(text), search.device)
    runs = open_runs(models)
    config = runs[0].inference_config()
    is_typed = bool(text) or (files == Files(None, None) and sys.stdin.isatty())
    by_sentence = is_typed if given.split_sentences is None else given.split_sentences
    given.check_source(runs[0], config.source.type, by_sentence)
    if files.input and given.shard is not None:
        files = dataclasses.replace(files, shard=shard_of(files.input, config.source, given.shard))
    decoding = search.settings(config.decoding)
    request = given.request(search, decoding, by_sentence)
    to_json = functools.partial(as_json, n_best=given.n_best or 0, alignment=given.align, tokens=given.tokens)
    record = to_json if given.as_json else attrgetter("text")
    load_on = functools.partial(
        load, [str(run.path) for run in runs], decoding=decoding, engine=search.engine_to_load(),
        precision=search.precision, tgt_tag=given.tgt_tag, own_process=True,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        translator: LineTranslator
        if given.devices is None:
            translator = load_on(device=search.device or "auto")
        else:
            translator = stack.enter_context(ParallelTranslator(load_on, given.devices.split(",")))
        if is_typed:
            _translate_typed(
                text, lambda line: record(*translator.stream([[line]], prefixes=given.prefix, request=request))
            )
            return
        made_by = made_from(files, runs, decoding, translator.engine_name, config.source, given.made_by(request))
        if given.resume and files.are_finished():
            files.check_finished(made_by, config.source)
            log.info(f"{files.output} is already finished", extra=RESULT)
            return
        totals = translate_files(translator, files, made_by, given.resume, config.source, record, given.prefix, request)
        if files.input:
            log.info(totals, extra=RESULT)
        for path in (files.output, files.alignments):
            if path is not None and path.is_file():
                options.show_written(path)


def _translate_typed(text: list[str] | None, translated: Callable[[str], str]) -> None:
    """Translate an argument, or each typed line until end of file."""
    if text:
        sys.stdout.buffer.write(f"{translated(options.utf8(' '.join(text)))}\n".encode())
        return
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
        print(translated(line), flush=True)
