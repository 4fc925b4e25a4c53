"""Translating a file or a pipe to files or a pipe: in order, in constant memory, resumed after an interruption."""

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
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from nmt.atomic import flush, read_json, write_json
from nmt.config.inference import DecodingConfig
from nmt.data.corpus import Readable, count_lines, line_blocks, opened
from nmt.decoding.parallel import LineTranslator
from nmt.errors import ConfigError, DataError, RunError, TrainingError
from nmt.runs import RunFolder


@dataclasses.dataclass(frozen=True)
class Files:
    """What is read and what is written; None is standard input or output."""

    input: Path | None
    output: Path | None
    alignments: Path | None = None
    """None: no alignments."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` if one file is named twice, or an output cannot be a file."""
        paths = [path for path in (self.input, self.output, self.alignments) if path]
        if len({os.path.realpath(path) for path in paths}) < len(paths):
            raise ConfigError("--input, --output and --alignments must be different files")
        for option, output in (("--output", self.output), ("--alignments", self.alignments)):
            if output is not None:
                _check_output(option, output)

    def outputs(self) -> list[Path]:
        """The files that get a line each for every line of the input; of a link, what it leads to."""
        paths = [path for path in (self.output, self.alignments) if path]
        return [Path(os.path.realpath(path)) if path.is_symlink() else path for path in paths]

    def are_finished(self) -> bool:
        """Whether the outputs are there and no parts of them."""
        return all(path.exists() for path in self.outputs()) and not _made_from_file(self.outputs()[0]).exists()


def _check_output(option: str, path: Path) -> None:
    if len(os.fsencode(path.name)) > 240:  # a name has at most 255 bytes, and .part.json is added
        raise ConfigError(f"{option} {path.name[:20]}...: this name is too long for a file")
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder; name a file in it")
    if path.exists() and not path.is_file():  # /dev/null, which the finished output would replace
        raise ConfigError(f"{option} {path}: is not a file; to write into it, leave {option} out and use > or |")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; make it first")


@dataclasses.dataclass
class Totals:
    """What was translated, and in how long."""

    lines: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rates = f"{self.lines / self.seconds:,.0f} lines/s, {self.tokens / self.seconds:,.0f} tokens/s"
        return f"{self.lines:,} lines, {self.tokens:,} tokens in {self.seconds:.1f} s: {rates}"


def translate_files(translator: LineTranslator, files: Files, made_from: dict[str, Any], resume: bool) -> Totals:
    """Translate line by line; each comes out as soon as it and all before it are done.

    With `resume`, unfinished output files are continued; see `OutputFiles` for what it raises.
    """
    totals = Totals()
    start = time.perf_counter()
    paths = files.outputs()
    with OutputFiles(paths, made_from, resume, files.input) if paths else contextlib.nullcontext() as outputs:
        done, note_read = (outputs.done, outputs.note_read) if outputs else (0, None)
        for translation in translator.stream(_input_blocks(files.input, done, note_read), done + 1):
            totals.lines += 1
            totals.tokens += translation.num_tokens
            columns = [translation.text]
            if files.output is None:
                sys.stdout.buffer.write(f"{columns.pop()}\n".encode())
                sys.stdout.buffer.flush()
            if files.alignments:
                columns.append(translation.alignment)
            if outputs:
                outputs.write(*columns)
    totals.seconds = time.perf_counter() - start
    return totals


def made_from(files: Files, runs: Sequence[RunFolder], decoding: DecodingConfig, engine: str) -> dict[str, Any]:
    """Everything that affects the output of a translation, for `OutputFiles`: by name, as JSON."""
    model_files = [run.export_file if run.is_export() else run.model_file for run in runs]
    models = [[_written(path), path.stat().st_mtime] for path in model_files]
    alignments = _written(files.alignments)
    return {
        "--input": _written(files.input),
        "--alignments": alignments,
        "--model, or a model that has been trained since,": models,
        "search": decoding.model_dump(mode="json"),
        "engine": engine,
    }


def _written(path: Path | None) -> str:
    """The path as JSON can hold it: a name may have bytes that are not text."""
    return os.fsencode(path.resolve()).decode(errors="backslashreplace") if path else "None"


@dataclasses.dataclass(frozen=True)
class Beginning:
    """The first bytes of a text, after decompression."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path, size: int) -> "Beginning":
        """The beginning of a file, shorter than `size` if the file is. `DataError` if it cannot be read."""
        with opened(path) as file:
            beginning = _Hashed(file)
            while beginning.size < size and beginning.read1(min(1 << 20, size - beginning.size)):
                pass
        return beginning.so_far()


class _Hashed:
    """An open file, and what has been read of it."""

    def __init__(self, file: Readable) -> None:
        self.size = 0
        self._file = file
        self._hash = hashlib.sha256()

    def read1(self, size: int, /) -> bytes:
        """As the file's."""
        data = self._file.read1(size)
        self.size += len(data)
        self._hash.update(data)
        return data

    def so_far(self) -> Beginning:
        """All that has been read."""
        return Beginning(self.size, self._hash.hexdigest())


def _input_blocks(
    path: Path | None, skip: int, note_read: Callable[[Beginning], None] | None = None
) -> Iterator[list[str]]:
    """The lines after the first `skip`, in blocks; of a file, with a progress bar if standard error is a terminal.

    Before each block of a file, `note_read` gets what has been read to its end, and maybe more.
    """
    if path is None:
        yield from line_blocks(cast(BufferedReader, sys.stdin.buffer), "standard input")
        return
    bar = None
    if sys.stderr.isatty():
        from tqdm import tqdm

        bar = tqdm(total=count_lines(path), initial=skip, unit=" lines", dynamic_ncols=True)
    with opened(path) as file:
        hashed = _Hashed(file)
        for block in line_blocks(hashed, str(path)):
            if skip < len(block):
                if note_read is not None:
                    note_read(hashed.so_far())
                yield block[skip:]
                if bar is not None:  # the next block is asked for: this one is done
                    bar.update(len(block) - skip)
            skip = max(0, skip - len(block))
    if bar is not None:
        bar.close()
    if skip:
        raise DataError(f"{path} has {skip:,} lines fewer than its output: it is not the same text")


_READ = "read"


class OutputFiles:
    """Files that get a line each for every line of an input, and their names once all are there.

    Until then the lines are in NAME.part, and NAME.part.json beside the first says what they are made from, and how
    much of the input has been read, with its hash. With `resume`, the lines of an unfinished translation are kept:
    `done` of them, as many as are complete in all files. A name that ends in .gz is written through gzip.

    Raises `RunError` if there are such parts and `resume` is not set, or they were made from something else: another
    input, or one that has changed where it had been read. What comes after that may change and grow.
    """

    def __init__(
        self, paths: Sequence[Path], made_from: dict[str, Any], resume: bool, input_file: Path | None = None
    ) -> None:
        self.done = 0
        self._paths = paths
        self._parts = [path.with_name(f"{path.name}.part") for path in paths]
        self._made_from = made_from
        self._made_from_file = _made_from_file(paths[0])
        read = Beginning(0, hashlib.sha256().hexdigest())
        if self._made_from_file.exists():
            read = self._check(resume, input_file) or read
            self.done = min(sum(1 for _ in _complete_lines(part)) for part in self._parts)
        self.note_read(read)
        with _writing(self._parts[0]):
            self._files = [_reopened(part, self.done) for part in self._parts]

    def _check(self, resume: bool, input_file: Path | None) -> Beginning | None:
        """What had been read of the input file, if there is one."""
        part = self._parts[0]
        remedy = f"remove {self._made_from_file} to start over"
        if not resume:
            raise RunError(
                f"{part} holds the lines of an unfinished translation: resume it with --continue, or {remedy}"
            )
        before = read_json(self._made_from_file)
        before = before if isinstance(before, dict) else {}
        for key, value in self._made_from.items():
            if (old := before.get(key)) != value:
                which = f" ({old} before, {value} now)" if isinstance(old, str) and isinstance(value, str) else ""
                raise RunError(
                    f"{part} was started with another {key}{which}; resume with what it was started with, or {remedy}"
                )
        if input_file is None:
            return None
        try:
            read = Beginning(**before[_READ])
            now = Beginning.of(input_file, read.size)
        except (KeyError, TypeError):
            raise RunError(f"{self._made_from_file}: does not say what had been read; {remedy}") from None
        if now != read:
            what = "is shorter than what had been read of it" if now.size < read.size else "has changed"
            raise RunError(f"{input_file} {what} since {part} was started; restore it, or {remedy}")
        return read

    def note_read(self, read: Beginning) -> None:
        """Remember what has been read of the input, for a translation that resumes."""
        with _writing(self._made_from_file):
            write_json(self._made_from_file, {**self._made_from, _READ: dataclasses.asdict(read)})

    def write(self, *lines: str) -> None:
        """A line for each of the files."""
        with _writing(self._parts[0]):
            for file, line in zip(self._files, lines, strict=True):
                file.write(f"{line}\n".encode())
        self.done += 1

    def __enter__(self) -> "OutputFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None:
            with _writing(self._parts[0]):
                for file, part, path in zip(self._files, self._parts, self._paths, strict=True):
                    file.close()
                    flush(part)
                    part.replace(path)
                self._made_from_file.unlink()
            return
        for file in self._files:
            with contextlib.suppress(OSError):  # the error that is being raised says it
                file.close()
        if self.done:
            message = f"{self.done:,} lines are in {self._parts[0]}; the same command with --continue resumes it"
            print(f"nmt: {message}", file=sys.stderr)
        else:
            for path in (*self._parts, self._made_from_file):
                path.unlink(missing_ok=True)


def _made_from_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.part.json")


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
    """The complete lines of a file that may end anywhere."""
    if part.exists():
        with _opened_part(part, "rb") as file, contextlib.suppress(EOFError, zlib.error, gzip.BadGzipFile):
            yield from (line for line in file if line.endswith(b"\n"))


def _reopened(part: Path, keep: int) -> BinaryIO:
    """The file, opened to write after its first `keep` lines; the old one stays until these are written."""
    new = part.with_name(f"{part.name}.new")
    file = _opened_part(new, "wb")
    file.writelines(itertools.islice(_complete_lines(part), keep))
    file.flush()
    new.replace(part)
    return file
