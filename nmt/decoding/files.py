"""Translation of a file or pipe into files or a pipe: in order, in constant memory, resumable after an interruption."""

import contextlib
import dataclasses
import gzip
import hashlib
import itertools
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, cast

from nmt.config.formats import COMPRESSIONS
from nmt.config.inference import DecodingConfig
from nmt.config.source import TEXT, SourceConfig
from nmt.corpora.hashes import source_hash
from nmt.corpora.lines import read_lines
from nmt.decoding.blocks import Beginning, Shard, source_blocks, text_blocks
from nmt.decoding.hypothesis import BEST, Request
from nmt.decoding.parallel import LineTranslator
from nmt.decoding.source_text import Item
from nmt.decoding.translator import Translation
from nmt.errors import ConfigError, RunError, TrainingError
from nmt.runs.folder import RunFolder
from nmt.system.console import log
from nmt.system.files import flush, locked, read_json, write_json


@dataclasses.dataclass(frozen=True)
class Files:
    """The files to read and write; None is standard input or output."""

    input: Path | None
    output: Path | None
    alignments: Path | None = None
    """None: no alignments are written."""
    prefixes: Path | None = None
    """The text that each line's translation begins with, one per line. None: nothing is forced."""
    shard: Shard | None = None
    """The part of the input to translate. None: all."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` if a file is named twice, or an output cannot be a file."""
        for read in (self.input, self.prefixes):
            paths = [path for path in (read, self.output, self.alignments) if path]
            if len({os.path.realpath(path) for path in paths}) < len(paths):
                given = "--input" if read == self.input else "--prefixes"
                raise ConfigError(f"{given}, --output and --alignments must be different files")
        for option, output in (("--output", self.output), ("--alignments", self.alignments)):
            if output is not None:
                _check_output(option, output)

    def outputs(self) -> list[Path]:
        """The output files, which get one line for each input line; links are resolved."""
        paths = [path for path in (self.output, self.alignments) if path]
        return [Path(os.path.realpath(path)) if path.is_symlink() else path for path in paths]

    def are_finished(self) -> bool:
        """True if all outputs exist and none is unfinished."""
        return all(path.exists() for path in self.outputs()) and not _are_unfinished(self.outputs())

    def check_finished(self, made_from: dict[str, Any], source: SourceConfig = TEXT) -> None:
        """Raise `RunError` unless finished outputs are recorded to be made from these files, models and settings."""
        output = self.outputs()[0]
        if not _made_from_file(output).exists():
            raise RunError(
                f"{output} was not made with --continue, so its input and settings are not recorded; remove it first"
            )
        text = self.input if source.type == "text" else None
        _check_made_from(output, made_from, text, is_finished=True)


def _check_output(option: str, path: Path) -> None:
    if len(os.fsencode(path.name)) > 240:  # a name has at most 255 bytes, and .from.json is added
        raise ConfigError(f"{option} {path.name[:20]}...: this name is too long for a file; choose a shorter one")
    if path.suffix in COMPRESSIONS and path.suffix != ".gz":  # only gzip can be resumed at any line
        raise ConfigError(f"{option} {path}: outputs are compressed with gzip only; let the name end in .gz")
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder; name a file in it")
    if path.exists() and not path.is_file():  # /dev/null, which the finished output would replace
        raise ConfigError(f"{option} {path}: is not a file; to write into it, leave {option} out and use > or |")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; make it first")


@dataclasses.dataclass
class Throughput:
    """Amount of text translated, and the time taken."""

    lines: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rates = f"{self.lines / self.seconds:,.0f} lines/s, {self.tokens / self.seconds:,.0f} tokens/s"
        return f"{self.lines:,} lines, {self.tokens:,} tokens in {self.seconds:.1f} s: {rates}"


def translate_files(
    translator: LineTranslator,
    files: Files,
    made_from: dict[str, Any],
    resume: bool,
    source: SourceConfig = TEXT,
    record: Callable[[Translation], str] = attrgetter("text"),
    prefix: str | None = None,
    request: Request = BEST,
) -> Throughput:
    """Translate line by line; a line is written as soon as it and all lines before it are translated.

    `record` makes the line of output from a translation, by default its text. All translations begin with `prefix`, or
    each with its line of `files.prefixes`. Sources that are not text are read from a file, and each gives a line. With
    `resume`, unfinished output files are continued. Raises errors as `OutputFiles` does.
    """
    throughput = Throughput()
    start = time.perf_counter()
    paths, shard = files.outputs(), files.shard
    # `made_from` has the hashes of arrays and images; of a text, which may grow, only the part read is compared.
    text = files.input if source.type == "text" else None
    with OutputFiles(paths, made_from, resume, text) if paths else contextlib.nullcontext() as outputs:
        done, record_read = (outputs.done, outputs.record_read) if outputs else (0, None)
        skip = done + (shard.first if shard else 0)
        end, share = (shard.end, shard.end / max(1, shard.total)) if shard else (None, 1.0)
        blocks = source_blocks(files.input, skip, source) if files.input and text is None else None
        lines: Iterator[Sequence[Item]] = blocks or text_blocks(text, skip, record_read, share)
        if end is not None:
            lines = _first_of(lines, end - skip)
        prefixes = prefix if files.prefixes is None else itertools.islice(read_lines(files.prefixes), skip, end)
        for translation in translator.stream(lines, skip + 1, prefixes, request):
            throughput.lines += 1
            throughput.tokens += translation.num_tokens
            columns = [record(translation)]
            if files.output is None:
                sys.stdout.buffer.write(f"{columns.pop()}\n".encode())
                sys.stdout.buffer.flush()
            if files.alignments:
                columns.append(str(translation.alignment))
            if outputs:
                outputs.write(*columns)
    throughput.seconds = time.perf_counter() - start
    return throughput


def _first_of(blocks: Iterator[Sequence[Item]], count: int) -> Iterator[Sequence[Item]]:
    """The first `count` lines of all."""
    while count > 0 and (block := next(blocks, None)):
        yield block[:count]
        count -= len(block)


def made_from(
    files: Files,
    runs: Sequence[RunFolder],
    decoding: DecodingConfig,
    engine: str,
    source: SourceConfig = TEXT,
    options: dict[str, object] | None = None,
) -> dict[str, Any]:
    """Return all that affects the output of a translation, for `OutputFiles`: by name, as JSON.

    `options` are the command's options that affect the output, beside the search settings.
    """
    content = {}
    if source.type != "text" and files.input and files.outputs():
        content["content of --input"] = source_hash(files.input, source).hex()
    models = [[_as_text(run.weights_file), run.weights_file.stat().st_mtime] for run in runs]
    return {
        "--input": _as_text(files.input),
        **content,
        "--alignments": _as_text(files.alignments),
        "--model, or one that has been trained since": models,
        "search": decoding.model_dump(mode="json"),
        "engine": engine,
        "--prefixes": prefixes_identity(files.prefixes),
        "--shard": files.shard.name if files.shard else None,
        **{option: str(value) for option, value in (options or {}).items()},
    }


def prefixes_identity(path: Path | None) -> str:
    """Return the path and hash of a file of prefixes, for `made_from`; `DataError` if it cannot be read."""
    if path is None or path.is_fifo():  # a pipe can be read only once
        return _as_text(path)
    return f"{_as_text(path)} {Beginning.of(path, sys.maxsize).sha256}"


def _as_text(path: Path | None) -> str:
    """Return the path as text for JSON; bytes that are not UTF-8 are escaped."""
    return os.fsencode(path.resolve()).decode(errors="backslashreplace") if path else "None"


_READ = "read"


class OutputFiles:
    """Output files with one line for each input line, which get their names only when they are complete.

    Until then the lines are in NAME.part. NAME.from.json beside the first file records what they are made from, and the
    size and hash of the input read so far. With `resume`, the `done` lines that are complete in all files are kept, and
    NAME.from.json stays for the next time. A file whose name ends in .gz is compressed.

    Raises `RunError` if there are unfinished files and `resume` is not set, or they were made from another input, with
    other settings, or from an input that has changed in the part read, and if another process writes them. The rest of
    the input may change and grow.
    """

    def __init__(
        self, paths: Sequence[Path], made_from: dict[str, Any], resume: bool, input_file: Path | None = None
    ) -> None:
        self.done = 0
        self._paths = paths
        self._parts = [_part(path) for path in paths]
        self._made_from = made_from
        self._made_from_file = _made_from_file(paths[0])
        self._resume = resume
        with contextlib.ExitStack() as on_error:
            for path in paths:
                with _writing(path):
                    is_ours = on_error.enter_context(locked(path, wait=False, leaves_no_file=True))
                if not is_ours:
                    raise RunError(f"{path}: another process is writing it; wait for it, or name another file")
            self._open(input_file)
            self._lock = on_error.pop_all()

    def _open(self, input_file: Path | None) -> None:
        read = Beginning(0, hashlib.sha256().hexdigest())
        if _are_unfinished(self._paths):
            if not self._resume:
                raise RunError(
                    f"{self._parts[0]} holds the lines of an unfinished translation: resume it with --continue, or "
                    f"remove {self._made_from_file} to start over"
                )
            read = _check_made_from(self._paths[0], self._made_from, input_file) or read
            self.done = min(sum(1 for _ in _complete_lines(part)) for part in self._parts)
        self.record_read(read)
        with _writing(self._parts[0]):
            self._files = [_reopened(part, self.done) for part in self._parts]

    def record_read(self, read: Beginning) -> None:
        """Record the part of the input that has been read, to be checked when the translation resumes."""
        with _writing(self._made_from_file):
            write_json(self._made_from_file, {**self._made_from, _READ: dataclasses.asdict(read)})

    def write(self, *lines: str) -> None:
        """Write one line to each file."""
        with _writing(self._parts[0]):
            for file, line in zip(self._files, lines, strict=True):
                file.write(f"{line}\n".encode())
        self.done += 1

    def __enter__(self) -> "OutputFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        with self._lock:
            self._close(kind is None)

    def _close(self, is_complete: bool) -> None:
        if is_complete:
            with _writing(self._parts[0]):
                for file, part, path in zip(self._files, self._parts, self._paths, strict=True):
                    file.close()
                    flush(part)
                    part.replace(path)
                if not self._resume:
                    self._made_from_file.unlink()
            return
        for file in self._files:
            with contextlib.suppress(OSError):  # the error being raised is the one to report
                file.close()
        if self.done:
            again = "the same command" if self._resume else "the same command with --continue"
            log.info(f"{self.done:,} lines are in {self._parts[0]}; {again} resumes it")
        else:
            for path in (*self._parts, self._made_from_file):
                path.unlink(missing_ok=True)


def _made_from_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.from.json")


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _are_unfinished(paths: Sequence[Path]) -> bool:
    return _made_from_file(paths[0]).exists() and any(_part(path).exists() for path in paths)


def _check_made_from(
    output: Path, made_from: dict[str, Any], input_file: Path | None, is_finished: bool = False
) -> Beginning | None:
    """Return the part of the input file that had been read for an output; None without an input file.

    Raises `RunError` if the output has another `made_from`, or the input has changed in that part, or has grown and the
    output `is_finished`.
    """
    record = _made_from_file(output)
    made, remedy = f"{_part(output)} was started", f"remove {record} to start over"
    if is_finished:
        made, remedy = f"{output} was made", f"remove {output} to translate again"
    before = content if isinstance(content := read_json(record), dict) else {}
    for key, value in made_from.items():
        if (old := before.get(key)) != value:
            which = f" ({old} before, {value} now)" if isinstance(old, str) and isinstance(value, str) else ""
            again = "" if is_finished else "resume with the same one, or "
            raise RunError(f"{made} with another {key}{which}; {again}{remedy}")
    if input_file is None:
        return None
    try:
        read = Beginning(**before[_READ])
        may_go_on = not is_finished or before.get("--shard")  # which records the number of lines
        now = Beginning.of(input_file, read.size if may_go_on else sys.maxsize)
    except (KeyError, TypeError):
        raise RunError(f"{record}: does not record how much of the input had been read; {remedy}") from None
    if now != read:
        has_grown = now.size > read.size and Beginning.of(input_file, read.size) == read
        what = "has become shorter" if now.size < read.size else "has grown" if has_grown else "has changed"
        raise RunError(f"{input_file} {what} since {made}; restore it, or {remedy}")
    return read


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(f"{path}: cannot be written: {error.strerror or error}") from None


def _opened_part(path: Path, mode: str) -> BinaryIO:
    is_gzip = path.name.removesuffix(".new").endswith(".gz.part")
    return cast(BinaryIO, gzip.open(path, mode) if is_gzip else path.open(mode))


def _complete_lines(part: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file that may end within a line."""
    if part.exists():
        with _opened_part(part, "rb") as file, contextlib.suppress(EOFError, zlib.error, gzip.BadGzipFile):
            yield from (line for line in file if line.endswith(b"\n"))


def _reopened(part: Path, keep: int) -> BinaryIO:
    """Open the file for writing after its first `keep` lines, which are copied to a new file that replaces it."""
    new = part.with_name(f"{part.name}.new")
    file = _opened_part(new, "wb")
    file.writelines(itertools.islice(_complete_lines(part), keep))
    file.flush()
    new.replace(part)
    return file
