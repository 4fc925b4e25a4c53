"""Translating streams and files: when lines are written, interruptions, and several devices."""

import bz2
import contextlib
import dataclasses
import functools
import gc
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import random
import re
import signal
import subprocess
import sys
import termios
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from conftest import Cli, assert_says
from hypothesis import given
from hypothesis import strategies as st

import nmt
from nmt.config.source import TEXT
from nmt.corpora.lines import LINES_BYTES, MAX_LINE_BYTES, line_blocks, opened, read_lines
from nmt.decoding.blocks import shard_of
from nmt.decoding.files import Files, OutputFiles, made_from, prefixes_identity, translate_files
from nmt.decoding.hypothesis import Request
from nmt.decoding.parallel import ParallelTranslator
from nmt.decoding.translator import Translation, with_prefixes
from nmt.errors import ConfigError, DataError, RunError
from nmt.runs.folder import open_run, open_runs

NMT = [sys.executable, "-m", "nmt", "translate"]
MADE_FROM = {"model": "one", "search": {"beam_size": 5}}


class Shouting:
    """A translator into capitals that stops after some lines."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.seen: list[str] = []

    def stream(
        self, blocks: Iterable[Sequence[str]], first: int, prefixes: None, request: Request
    ) -> Iterator[Translation]:
        for block in blocks:
            for line in block:
                if len(self.seen) == self.stop_after:
                    raise KeyboardInterrupt
                self.seen.append(line)
                yield Translation(line.upper(), len(line.split()), f"{first}-{first}")
                first += 1


class Repeating:
    """A translator that writes each line's prefix before it in capitals."""

    def stream(
        self, blocks: Iterable[Sequence[str]], first: int, prefixes: Iterable[str] | None, request: Request
    ) -> Iterator[Translation]:
        for block, beginnings in with_prefixes(blocks, prefixes, first):
            for line, beginning in itertools.zip_longest(block, beginnings or ()):
                yield Translation(f"{beginning or ''} {line.upper()}".strip(), 1)


# --- Lines in blocks -------------------------------------------------------------------------------------


@given(st.lists(st.text(st.sampled_from("aé漢\r\u2028 "), max_size=6)), st.booleans(), st.integers(1, 12))
def test_blocks_are_the_lines_of_the_file_for_any_reads(lines: list[str], ends: bool, at_once: int) -> None:
    data = "\n".join(lines).encode() + (b"\n" if ends else b"")

    class Slow:
        at = 0

        def read1(self, size: int) -> bytes:
            self.at += at_once
            return data[self.at - at_once : self.at]

    found = [line for block in line_blocks(Slow(), "x") for line in block]
    expected = data.decode().split("\n")
    expected = [line.removesuffix("\r") for line in (expected[:-1] if expected[-1] == "" else expected)]
    assert found == expected


def test_blocks_begin_small_and_grow_and_none_is_large(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"0123456789abcde\n" * 100_000)
    with (tmp_path / "a.txt").open("rb") as file:
        sizes = [16 * len(block) for block in line_blocks(file, "a.txt")]
    assert sum(sizes) == 1_600_000
    assert sizes[:3] == [LINES_BYTES // 64, LINES_BYTES // 32, LINES_BYTES // 16]
    assert max(sizes) == LINES_BYTES


def test_a_block_does_not_wait_for_more_input() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\nthr")
    closing = threading.Timer(10, os.close, [writer])
    closing.start()
    with os.fdopen(reader, "rb") as file:
        blocks = line_blocks(file, "pipe")
        assert next(blocks) == ["one", "two"]
        assert closing.is_alive()
        os.write(writer, b"ee\n")
        assert next(blocks) == ["three"]
        assert closing.is_alive()
        closing.cancel()
        closing.join()
        os.close(writer)
        assert list(blocks) == []


@pytest.mark.parametrize("kind", ["pipe", "file", "gzip"])
def test_a_line_without_an_end_takes_linear_time_and_bounded_memory(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A line of 24 MB, of characters of 3 bytes, between two others; quadratic time would be over 10 s."""
    long = itertools.repeat("漢字か".encode() * 1000, 24_000_000 // 9000)
    content = itertools.chain([b"first\r\n"], long, [b"\nlast"])
    path = tmp_path / ("a.txt.gz" if kind == "gzip" else "a.txt")
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb") as file:
            file.writelines(content)

    if kind == "pipe":
        threading.Thread(target=write).start()
    else:
        with gzip.open(path, "wb", 1) if kind == "gzip" else path.open("wb") as file:
            file.writelines(content)
    start = time.process_time()
    tracemalloc.start()
    with os.fdopen(reader, "rb") as pipe, contextlib.nullcontext(pipe) if kind == "pipe" else opened(path) as reading:
        blocks = list(line_blocks(reading, "text"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.process_time() - start < 4
    first, second, last = itertools.chain.from_iterable(blocks)
    assert (first, last) == ("first", "last")
    assert MAX_LINE_BYTES - 3 <= len(second.encode()) <= MAX_LINE_BYTES
    assert second == ("漢字か" * MAX_LINE_BYTES)[: len(second)]
    assert peak < 8 * MAX_LINE_BYTES
    (message,) = caplog.messages
    assert_says(message, "text:2: line longer than 4,194,304 bytes")
    if kind != "pipe":
        os.close(writer)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_line_is_cut_where_it_is_longer_than_the_longest(
    tmp_path: Path, more: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nmt.corpora.lines.MAX_LINE_BYTES", 10_000)
    line = ("0123456789" * 1001)[: 10_000 + more]
    (tmp_path / "a.txt").write_text(f"{line}\n\n{line}\n{line}", encoding="utf-8")
    with (tmp_path / "a.txt").open("rb") as file:
        found = list(itertools.chain.from_iterable(line_blocks(file, "text")))
    assert found == [line[:10_000], "", line[:10_000], line[:10_000]]
    assert [message.split(" ")[0] for message in caplog.messages] == ["text:1:", "text:3:", "text:4:"] * (more > 0)


def test_a_line_that_is_not_utf8_is_named_in_whatever_block(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\n" * 5000 + b"K\xf6ln\n" + b"abc\n" * 5000)
    with (tmp_path / "a.txt").open("rb") as file, pytest.raises(DataError, match=r"a\.txt:5001: not UTF-8"):
        list(line_blocks(file, "a.txt"))


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--devices", "cpu,cpu"]], ids=["one device", "two devices"])
@pytest.mark.parametrize("end", ["end of file", "interrupted"])
def test_a_line_in_a_pipe_is_answered_while_the_pipe_stays_open(in_solved: Path, options: list[str], end: str) -> None:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*NMT, *options], **pipes) as process:  # type: ignore[call-overload]
        for line in (b"3 1 4\n", b"\n", b"1 5 9 2\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line
        if end == "interrupted":
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130 if end == "interrupted" else 0, b"", b"")


def test_good_lines_before_a_bad_one_are_translated(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = io.BufferedReader(io.BytesIO(b"one\ntwo\ncaf\xe9\nthree\n"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data))
    with pytest.raises(DataError, match=r"^standard input:3: not UTF-8"):
        translate_files(Shouting(), Files(None, None), MADE_FROM, resume=False)
    assert capsysbinary.readouterr().out == b"ONE\nTWO\n"
    gc.collect()
    assert not data.closed


def test_a_bad_line_of_a_file_can_be_mended_and_the_translation_continued(tmp_path: Path) -> None:
    files = Files(tmp_path / "in.txt", tmp_path / "out.txt")
    lines = [b"a line\n"] * 3000
    for bad, text in ((2500, b"caf\xe9\n"), (2500, "café\n".encode())):
        lines[bad] = text
        files.input.write_bytes(b"".join(lines))
        with (
            pytest.raises(DataError, match=r"in\.txt:2501: not UTF-8") if b"\xe9" in text else contextlib.nullcontext()
        ):
            translate_files(Shouting(), files, MADE_FROM, resume=True)
    assert files.output.read_bytes() == "".join(line.decode().upper() for line in lines).encode()


class Answered:
    """The worker processes of a `ParallelTranslator`, which answer at once; as many requests as it was sent."""

    def __init__(self) -> None:
        self.sent = 0

    def __len__(self) -> int:
        return 2

    def submit(self, block: tuple[int, list[str], list[str] | None, Request], task: str) -> Future[object]:
        self.sent += 1
        future: Future[object] = Future()
        future.set_result(("none", [Translation(line.upper(), 1) for line in block[1]]))
        return future


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> ParallelTranslator:
    monkeypatch.setattr("nmt.decoding.parallel.Workers", lambda prepare, environment: Answered())
    return ParallelTranslator(functools.partial(nmt.load), ["cpu", "cpu"])


def test_several_devices_share_the_threads_that_the_user_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[dict[str, str]] = []
    monkeypatch.setattr("nmt.decoding.parallel.Workers", lambda _, environment: environments.append(environment))
    for threads in ("6", "1"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        ParallelTranslator(functools.partial(nmt.load), ["cpu", "cpu"])
    assert environments == [{"OMP_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "1"}]


def test_several_devices_answer_a_block_before_the_next_is_there(parallel: ParallelTranslator) -> None:
    answered: list[str] = []

    def conversation() -> Iterator[list[str]]:
        for number in range(8):
            deadline = time.monotonic() + 5
            while len(answered) < number and time.monotonic() < deadline:
                time.sleep(0.001)
            assert len(answered) == number, "the next line is written when the last is answered"
            yield [f"line {number}"]
        raise DataError("bad")

    with pytest.raises(DataError, match="bad"):
        for translation in parallel.stream(conversation()):
            answered.append(translation.text)
    assert answered == [f"LINE {number}" for number in range(8)]


def test_several_devices_read_few_blocks_ahead_and_none_after_an_end(parallel: ParallelTranslator) -> None:
    read, threads = itertools.count(), threading.active_count()
    found = parallel.stream([str(number)] for number in read)
    assert [next(found).text for _ in range(3)] == ["0", "1", "2"]
    found.close()
    assert next(read) <= 3 + 4 + 1  # two blocks a device, and one that waits
    assert threading.active_count() == threads


@contextlib.contextmanager
def terminal() -> Iterator[Callable[[], str]]:
    """Makes standard error a terminal within the block; what it shows."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    with os.fdopen(theirs, "w") as stderr, contextlib.redirect_stderr(stderr):
        yield lambda: os.read(ours, 1 << 16).decode()
    os.close(ours)


@pytest.mark.parametrize("which", ["input", "prefixes"])
def test_a_pipe_is_read_once_even_at_a_terminal(
    which: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n")
    os.close(writer)
    pipe, text = Path(f"/dev/fd/{reader}"), tmp_path / "in.txt"  # as the shell's <(...)
    text.write_text("one\ntwo\n")
    files = Files(pipe if which == "input" else text, None, prefixes=pipe if which == "prefixes" else None)
    prefixes_identity(files.prefixes)
    with terminal():
        translate_files(Repeating(), files, MADE_FROM, resume=False)
    os.close(reader)
    assert capsysbinary.readouterr().out == (b"ONE\nTWO\n" if which == "input" else b"one ONE\ntwo TWO\n")


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_the_bar_shows_the_bytes_of_a_file_that_is_read_once(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / f"in.txt{suffix}", []
    write = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}[suffix]
    with write(path, "wb") as file:
        file.write("".join(f"{random.Random(number).random()}\n" for number in range(3000)).encode())
    monkeypatch.setattr("nmt.decoding.blocks.opened", lambda path: seen.append(path) or opened(path))
    with terminal() as shows:
        translate_files(Shouting(), Files(path, tmp_path / "out.txt"), MADE_FROM, resume=False)
        shown = shows()
    size = f"{path.stat().st_size / 1000:.1f}k"
    assert "100%|" in shown
    assert f" {size}/{size} " in shown
    assert seen == [path]


# --- Output files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", "\n"])
@pytest.mark.parametrize(("size", "count"), [(3000, 1), (3000, 7), (3, 5), (0, 2)])
@pytest.mark.parametrize("has_prefixes", [False, True])
def test_shards_are_the_whole_and_resume(
    tmp_path: Path, size: int, count: int, ending: str, has_prefixes: bool
) -> None:
    lines = [f"a line {number}" for number in range(size)]
    for name in ("in.txt", "prefixes.txt"):
        (tmp_path / name).write_text("\n".join(lines) + ending * bool(lines))
    whole = Files(tmp_path / "in.txt", tmp_path / "whole", None, tmp_path / "prefixes.txt" if has_prefixes else None)
    shards = [shard_of(tmp_path / "in.txt", TEXT, f"{number}/{count}") for number in range(1, count + 1)]
    outputs = [tmp_path / str(number) for number in range(count)]
    for shard, output in zip(shards, outputs, strict=True):
        files, stopping = dataclasses.replace(whole, output=output, shard=shard), Shouting(stop_after=10)
        if not has_prefixes and shard.end - shard.first > 10:
            with pytest.raises(KeyboardInterrupt):
                translate_files(stopping, files, MADE_FROM, resume=True)
            assert stopping.seen == lines[shard.first : shard.first + 10]
        translate_files(Repeating() if has_prefixes else Shouting(), files, MADE_FROM, resume=True)
    translate_files(Repeating() if has_prefixes else Shouting(), whole, MADE_FROM, resume=False)
    assert b"".join(output.read_bytes() for output in outputs) == whole.output.read_bytes()
    for shard, output in zip(shards, outputs, strict=True):
        sharded = {**MADE_FROM, "--shard": shard.name}
        output.unlink()
        files = dataclasses.replace(whole, output=output, shard=shard)
        translate_files(Repeating() if has_prefixes else Shouting(), files, sharded, resume=True)
        files.check_finished(sharded)
    sizes = [shard.end - shard.first for shard in shards]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", ["0/2", "3/2", "1", "1/", "/2", "1/0", "-1/2", "a/b", "1/2/3"])
def test_no_such_shard(tmp_path: Path, name: str) -> None:
    (tmp_path / "in.txt").write_text("a line\n")
    with pytest.raises(ConfigError, match=f"--shard {name}: .*from 1/16"):
        shard_of(tmp_path / "in.txt", TEXT, name)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("stops", [[1], [400], [1, 2, 3, 500, 999, 1000], [0, 0, 7]])
def test_an_interrupted_and_continued_translation_equals_a_straight_one(
    tmp_path: Path, stops: list[int], suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"a line {number} {'x' * (number % 50)}" for number in range(1000)]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    files = Files(tmp_path / "in.txt", tmp_path / f"out.txt{suffix}", tmp_path / f"out.al{suffix}")
    done = 0
    for stop in stops:
        translator = Shouting(stop_after=stop - done if stop < 1000 else None)
        if stop < 1000:
            with pytest.raises(KeyboardInterrupt):
                translate_files(translator, files, MADE_FROM, resume=True)
            assert not files.are_finished()
            assert (f"{stop:,} lines are in" in capsys.readouterr().err) == (stop > 0)
        else:
            translate_files(translator, files, MADE_FROM, resume=True)
        assert translator.seen == lines[done:stop]
        done = stop
    if done < 1000:
        totals = translate_files(Shouting(), files, MADE_FROM, resume=True)
        assert totals.lines == 1000 - done
    assert files.are_finished()
    assert files.output and files.alignments
    assert list(read_lines(files.output)) == [line.upper() for line in lines]
    assert list(read_lines(files.alignments)) == [f"{number}-{number}" for number in range(1, 1001)]
    record = f"out.txt{suffix}.from.json"
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", f"out.al{suffix}", f"out.txt{suffix}", record}


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_of_files_cut_anywhere_the_lines_whole_in_all_are_kept(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"]
    parts = [tmp_path / f"a{suffix}.part", tmp_path / f"b{suffix}.part"]
    rows = [(f"first {number} é", f"{number}-{number}") for number in range(40)]
    with pytest.raises(KeyboardInterrupt), OutputFiles(paths, MADE_FROM, resume=False) as outputs:
        for row in rows:
            outputs.write(*row)
        raise KeyboardInterrupt
    whole = [part.read_bytes() for part in parts]
    kept = set()
    for cut in random.Random(1).sample(range(len(whole[0])), 60):
        parts[0].write_bytes(whole[0][:cut])
        parts[1].write_bytes(whole[1])
        outputs = OutputFiles(paths, MADE_FROM, resume=True)
        kept.add(outputs.done)
        if not suffix:
            assert outputs.done == whole[0][:cut].count(b"\n")
        with outputs:
            for row in rows[outputs.done :]:
                outputs.write(*row)
        assert [list(read_lines(path)) for path in paths] == [list(column) for column in zip(*rows, strict=True)]
        (tmp_path / f"a{suffix}.from.json").write_text(json.dumps(MADE_FROM))
    assert len(kept) > 5 or suffix  # gzip buffers its output


def test_an_output_that_was_broken_off_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt), OutputFiles([path], MADE_FROM, resume=False) as outputs:
        outputs.write("one")
        raise KeyboardInterrupt
    with pytest.raises(RunError, match=r"out\.txt\.part holds .* --continue.* remove .*out\.txt\.from\.json"):
        OutputFiles([path], MADE_FROM, resume=False)
    with pytest.raises(RunError, match="was started with another search"):
        OutputFiles([path], {"model": "one", "search": {"beam_size": 1}}, resume=True)
    (tmp_path / "out.txt.from.json").write_text("[]")
    with pytest.raises(RunError, match="was started with another model"):
        OutputFiles([path], MADE_FROM, resume=True)
    assert (tmp_path / "out.txt.part").read_text() == "one\n"
    (tmp_path / "out.txt.from.json").unlink()
    with OutputFiles([path], MADE_FROM, resume=False) as outputs:
        outputs.write("two")
    assert path.read_text() == "two\n"


LINES = [f"line {number} of the input, as it is at first" for number in range(2000)]


def write_input(path: Path, lines: Sequence[str]) -> None:
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def stop_after(files: Files, count: int) -> dict[str, bytes]:
    """Translate `count` lines of an input that is only partly read; returns the files that are left."""
    with pytest.raises(KeyboardInterrupt):
        translate_files(Shouting(stop_after=count), files, MADE_FROM, resume=False)
    return left_of(files)


def left_of(files: Files) -> dict[str, bytes]:
    assert files.output
    return {path.name: path.read_bytes() for path in files.output.parent.iterdir() if path != files.input}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*LINES[:50], LINES[50].replace("first", "FIRST"), *LINES[51:]], "has changed since"),
        ([LINES[0].upper(), *LINES[1:]], "has changed since"),
        (LINES[1:], "has changed since"),
        (["", *LINES], "has changed since"),
        ([line.replace("input", "other") for line in LINES], "has changed since"),
        (LINES[:99], "has become shorter since"),
        (LINES[:10], "has become shorter since"),
        ([], "has become shorter since"),
    ],
)
def test_an_input_that_changed_in_the_part_already_read_is_refused(
    tmp_path: Path, lines: list[str], message: str, suffix: str
) -> None:
    files = Files(tmp_path / f"in.txt{suffix}", tmp_path / "out.txt", tmp_path / "out.al")
    assert files.input and files.output
    write_input(files.input, LINES)
    left = stop_after(files, 100)
    write_input(files.input, lines)
    with pytest.raises(RunError, match=rf"in\.txt{suffix} {message} .*out\.txt\.part was started; .*remove .*json"):
        translate_files(Shouting(), files, MADE_FROM, resume=True)
    assert left_of(files) == left
    write_input(files.input, LINES)
    translate_files(Shouting(), files, MADE_FROM, resume=True)
    assert list(read_lines(files.output)) == [line.upper() for line in LINES]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_input_may_change_after_the_part_already_read(tmp_path: Path, suffix: str) -> None:
    """It is stopped twice; each time, the lines after the part already read are replaced."""
    files = Files(tmp_path / f"in.txt{suffix}", tmp_path / "out.txt")
    assert files.input and files.output
    write_input(files.input, LINES)
    stop_after(files, 100)
    lines = [*LINES[:1500], "another", *LINES[1600:], "and one more"]
    write_input(files.input, lines)
    translator = Shouting(stop_after=200)
    with pytest.raises(KeyboardInterrupt):
        translate_files(translator, files, MADE_FROM, resume=True)
    assert translator.seen == LINES[100:300]
    lines = [*lines, "the last"]
    write_input(files.input, lines)
    translate_files(Shouting(), files, MADE_FROM, resume=True)
    assert list(read_lines(files.output)) == [line.upper() for line in lines]


def test_an_input_changed_after_a_translation_resumed_is_refused(tmp_path: Path) -> None:
    """When it was first stopped, the whole input had been read; then the input has grown."""
    files = Files(tmp_path / "in.txt", tmp_path / "out.txt")
    write_input(tmp_path / "in.txt", LINES[:2])
    stop_after(files, 1)
    write_input(tmp_path / "in.txt", LINES[:30])
    with pytest.raises(KeyboardInterrupt):
        translate_files(Shouting(stop_after=10), files, MADE_FROM, resume=True)
    write_input(tmp_path / "in.txt", [*LINES[:5], LINES[5].upper(), *LINES[6:30]])
    with pytest.raises(RunError, match="has changed since"):
        translate_files(Shouting(), files, MADE_FROM, resume=True)


def test_the_hash_covers_the_bytes_that_were_translated(tmp_path: Path) -> None:
    files = Files(tmp_path / "in.txt", tmp_path / "out.txt")
    write_input(tmp_path / "in.txt", LINES)
    left = stop_after(files, 500)
    read = json.loads(left["out.txt.from.json"])["read"]
    content = (tmp_path / "in.txt").read_bytes()
    assert read["sha256"] == hashlib.sha256(content[: read["size"]]).hexdigest()
    assert 500 <= content[: read["size"]].count(b"\n") < len(LINES)


def test_a_part_file_without_the_input_position_is_refused(tmp_path: Path) -> None:
    files = Files(tmp_path / "in.txt", tmp_path / "out.txt")
    write_input(tmp_path / "in.txt", LINES)
    stop_after(files, 100)
    (tmp_path / "out.txt.from.json").write_text(json.dumps(MADE_FROM))
    with pytest.raises(RunError, match=r"out\.txt\.from\.json: .*remove .*json"):
        translate_files(Shouting(), files, MADE_FROM, resume=True)


@pytest.mark.parametrize(
    ("lines", "made_from", "message"),
    [
        (LINES, {**MADE_FROM, "search": {"beam_size": 1}}, r"out\.txt was made with another search; remove .*txt to"),
        (
            [*LINES[:-1], LINES[-1].upper()],
            MADE_FROM,
            r"in\.txt has changed since .*out\.txt was made; restore it, or remove .*txt to",
        ),
        ([*LINES, "another"], MADE_FROM, r"in\.txt has grown since"),
        (LINES[:-1], MADE_FROM, r"in\.txt has become shorter since"),
        (None, MADE_FROM, r"in\.txt: no such file"),
    ],
)
def test_an_output_is_finished_for_the_same_input_and_settings_alone(
    tmp_path: Path, lines: list[str] | None, made_from: dict[str, object], message: str
) -> None:
    files = Files(tmp_path / "in.txt", tmp_path / "out.txt")
    write_input(tmp_path / "in.txt", LINES)
    translate_files(Shouting(), files, MADE_FROM, resume=True)
    assert files.are_finished()
    files.check_finished(MADE_FROM)
    (tmp_path / "in.txt").unlink()
    if lines is not None:
        write_input(tmp_path / "in.txt", lines)
    left = left_of(files)
    with pytest.raises((RunError, DataError), match=message):
        files.check_finished(made_from)
    assert left_of(files) == left


def test_of_an_output_made_without_a_record_it_is_not_known_what_it_is_made_of(tmp_path: Path) -> None:
    files = Files(tmp_path / "in.txt", tmp_path / "out.txt")
    write_input(tmp_path / "in.txt", LINES)
    translate_files(Shouting(), files, MADE_FROM, resume=True)
    translate_files(Shouting(), files, MADE_FROM, resume=False)
    assert {*left_of(files)} == {"out.txt"}
    with pytest.raises(RunError, match=r"out\.txt was not made with --continue"):
        files.check_finished(MADE_FROM)


def test_the_command_finishes_once_and_notices_another_model(in_solved: Path, tmp_path: Path, cli: Cli) -> None:
    command = ["translate", "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt"), "--continue"]
    write_input(tmp_path / "in.txt", ["1 2 3"])
    assert cli(*command)[0] == 0
    code, _, err = cli(*command)
    assert (code, err) == (0, f"{tmp_path / 'out.txt'} is already finished\n")
    code, _, err = cli(*command, "--beam-size", "2")
    assert (code, "out.txt was made with another search" in err) == (2, True)
    (tmp_path / "in.txt").unlink()
    assert cli(*command)[0] == 2
    write_input(tmp_path / "in.txt", ["1 2 3"])
    model = open_run(None).model_file
    was = model.stat()
    os.utime(model)
    code, _, err = cli(*command)
    os.utime(model, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert (code, "or one that has been trained since;" in err) == (2, True)
    assert (tmp_path / "out.txt").read_text() == "1 2 3\n"


def test_an_output_with_more_lines_than_its_input_is_refused(tmp_path: Path) -> None:
    files = Files(tmp_path / "in.txt", tmp_path / "out.txt")
    write_input(tmp_path / "in.txt", ["a", "b", "c"])
    stop_after(files, 2)
    with (tmp_path / "out.txt.part").open("a") as part:
        part.write("C\nD\n")
    with pytest.raises(DataError, match=r"in\.txt has 1 lines fewer than its output"):
        translate_files(Shouting(), files, MADE_FROM, resume=True)


def test_a_translation_is_continued_only_with_the_same_engine(
    in_solved: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(tmp_path / "in.txt", ["1 2 3", "4 5"])
    files = Files(tmp_path / "in.txt", tmp_path / "out.txt")
    runs = open_runs(None)
    with pytest.raises(KeyboardInterrupt):
        begun = made_from(files, runs, runs[0].config().decoding, "ctranslate2, int8")
        translate_files(Shouting(stop_after=1), files, begun, resume=False)
    arguments = ["--input", str(files.input), "--output", str(files.output), "--continue"]
    for device in (["--device", "cpu"], ["--devices", "cpu,cpu"]):
        code, _, err = cli("translate", *arguments, *device)
        assert code == 2
        assert "was started with another engine (ctranslate2, int8 before, torch now); resume with" in err
    assert (tmp_path / "out.txt.part").read_text() == "1 2 3\n"


def test_files_must_differ(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be different files"):
        Files(tmp_path / "a", tmp_path / "b" / ".." / "a")
    with pytest.raises(ConfigError, match="must be different files"):
        Files(None, tmp_path / "a", tmp_path / "a")


def test_a_full_disk_is_one_message_and_finished_lines_are_kept(tmp_path: Path) -> None:
    program = f"""
import resource, signal
from pathlib import Path
from nmt.decoding.files import OutputFiles
from nmt.errors import TrainingError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    with OutputFiles([Path({str(tmp_path / "out.txt")!r})], {{}}, resume=False) as outputs:
        for number in range(10_000):
            outputs.write(f"line {{number}}")
except TrainingError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "out.txt.part: cannot be written: File too large" in result.stdout
    assert "Traceback" not in result.stderr
    kept = (tmp_path / "out.txt.part").read_text().splitlines()
    with OutputFiles([tmp_path / "out.txt"], {}, resume=True) as outputs:
        assert outputs.done >= len(kept) - 1 > 1000
        outputs.write("last")
    assert (tmp_path / "out.txt").read_text().splitlines() == [f"line {n}" for n in range(outputs.done - 1)] + ["last"]


# --- The command -----------------------------------------------------------------------------------------


def random_digits(count: int, longest: int = 8) -> list[str]:
    draw = random.Random(3)
    return [" ".join(draw.choices("0123456789", k=draw.randint(1, longest))) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_translation_continues(in_solved: Path, tmp_path: Path, cli: Cli, number: int) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{line}\n" for line in random_digits(3000)))
    assert cli("translate", "--beam-size", "1", "--input", str(source), "--output", str(output))[0] == 0
    straight = output.read_bytes()
    output.write_text("as it was\n")
    command = [*NMT, "--beam-size", "1", "--input", str(source), "--output", str(output)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    part = tmp_path / "out.txt.part"
    while process.poll() is None and not (part.exists() and part.stat().st_size):
        time.sleep(0.005)
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), stderr
    assert number == signal.SIGKILL or b"out.txt.part; the same command with --continue resumes it" in stderr
    assert b"Traceback" not in stderr
    assert output.read_text() == "as it was\n"
    code, _, err = cli(*command[3:])
    assert (code, "resume it with --continue" in err) == (2, True)
    code, _, err = cli(*command[3:], "--continue")
    assert code == 0, err
    assert output.read_bytes() == straight
    assert cli(*command[3:], "--continue")[0] == 0
    assert "already finished" in cli(*command[3:], "--continue")[2]


def test_the_last_line_reports_count_and_speed(in_solved: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "in.txt").write_text("1 2 3\n\n4 5\n")
    code, out, err = cli("translate", "--input", str(tmp_path / "in.txt"))
    assert (code, out) == (0, "1 2 3\n\n4 5\n")
    assert err.startswith("3 lines, 5 tokens in ")
    assert err.rstrip().endswith("tokens/s")
    code, out, _ = cli("translate", "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt.gz"))
    assert (code, out) == (0, "")
    assert gzip.decompress((tmp_path / "out.txt.gz").read_bytes()) == b"1 2 3\n\n4 5\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--continue"], "--continue needs --input FILE and --output FILE"),
        (["--continue", "--input", "val.en"], "--continue needs --input FILE and --output FILE"),
        (["1 2", "--output", "x.txt"], "a text, or files"),
        (["1 2", "--alignments", "x.txt"], "a text, or files"),
        (
            ["--input", "val.en", "--device", "cpu", "--devices", "cpu,cpu"],
            "--device names a single device, --devices several",
        ),
        (["1 2", "--devices", ""], "--devices shares the lines of a file or a pipe"),
        (["1 2", "--devices", "cpu,cpu"], "--devices shares the lines of a file or a pipe"),
        (["--input", "val.en", "--output", "./val.en"], "must be different files"),
        (["--input", "val.en", "--devices", "cpu,tpu"], "tpu"),
    ],
)
def test_contradictory_options_are_refused(in_solved: Path, cli: Cli, arguments: list[str], message: str) -> None:
    code, out, err = cli("translate", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_on_a_terminal_an_output_file_is_written_and_no_conversation_is_held(
    in_solved: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, keyboard = os.openpty()
    os.write(terminal, b"3 1 4\n\x04")  # a line, and the end
    with os.fdopen(keyboard) as stdin, os.fdopen(terminal, "wb"):
        monkeypatch.setattr(sys, "stdin", stdin)
        code, out, err = cli("translate", "--output", str(tmp_path / "out.txt"))
    assert (code, out) == (0, ""), err
    assert (tmp_path / "out.txt").read_bytes() == b"3 1 4\n"


# --- Several devices -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_devices_translate_as_one_does(
    in_solved: Path, tmp_path: Path, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    lines = random_digits(1500, longest=20)  # in six blocks, four of them queued
    lines[10] = "5 " * 30
    lines[1400] = "6 " * 25
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    options = ["--beam-size", "1", "--input", str(tmp_path / "in.txt"), "--alignments"]
    code, alone, err = cli("translate", *options, str(tmp_path / "one.al"))
    assert code == 0, err
    shared = subprocess.run(
        [*NMT, *options, str(tmp_path / "two.al"), "--devices", "cpu,cpu"], capture_output=True, text=True
    )
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout == alone
    assert shared.stdout.count("\n") == 1500
    assert (tmp_path / "one.al").read_text() == (tmp_path / "two.al").read_text()
    named = r"line (\d+): more than 20 pieces"  # by each process for the first that it gets
    assert re.findall(named, "\n".join(caplog.messages)) == ["11"]
    assert {"11"} <= set(re.findall(named, shared.stderr)) <= {"11", "1401"}


def test_scores_and_n_best_come_from_other_processes_too(in_solved: Path) -> None:
    blocks = [["1 2 3", "", "4 5"], ["6 7 8 9"]]
    expected = list(nmt.load(device="cpu").stream(blocks))
    decoding = open_run(None).config().decoding
    with ParallelTranslator(functools.partial(nmt.load, open_run(None).path), ["cpu"]) as workers:
        found = list(workers.stream(blocks))
        (limited,) = workers.stream([["1 2 3"]], request=Request(n_best=2))
    assert limited.n_best == found[0].n_best[:2]
    assert [len(one.n_best) for one in found] == [decoding.beam_size, 0, decoding.beam_size, decoding.beam_size]
    for ours, theirs in zip(expected, found, strict=True):
        assert [text for text, _ in theirs.n_best] == [text for text, _ in ours.n_best]
        assert [score for _, score in theirs.n_best] == pytest.approx([score for _, score in ours.n_best], abs=1e-5)
        assert {type(pair) for pair in theirs.n_best} <= {tuple}
        assert (theirs.text, theirs.score) == (theirs.n_best[0] if theirs.n_best else ("", 0.0))


@pytest.mark.slow
def test_a_device_that_dies_is_one_message(in_solved: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("1 2 3 4 5 6\n" * 50_000)
    command = [*NMT, "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "o"), "--devices", "cpu,cpu"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not ((part := tmp_path / "o.part").exists() and part.stat().st_size):
        time.sleep(0.01)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(children[0]), signal.SIGKILL)
    _, stderr = process.communicate()
    assert process.returncode == 3, stderr
    assert "was ended by SIGKILL" in stderr
    assert "the same command with --continue resumes it" in stderr
    assert not any(Path("/proc", child).exists() for child in children)


# --- Memory ----------------------------------------------------------------------------------------------


PEAK = r"""
import re, sys
from pathlib import Path
from nmt.config.inference import DecodingConfig
from nmt.tokenizers.tokenizer import Tokenizers, WordTokenizer
from nmt.tokenizers.vocabulary import SPECIAL_PIECES
from nmt.decoding.blocks import shard_of
from nmt.decoding.files import Files, translate_files
from nmt.decoding.hypothesis import Hypothesis
from nmt.decoding.translator import Translator

class Copying:
    batches_at_once = 1

    def search(self, sources, decoding, *_):
        return [[Hypothesis(tuple(ids), -1.0, -1.0)] for ids in sources]

tokenizer = WordTokenizer([*SPECIAL_PIECES, *"0123456789"])
translator = Translator(Tokenizers(tokenizer, tokenizer), Copying(), DecodingConfig(), 100)
source = Path(sys.argv[1])
translate_files(translator, Files(source, source.with_suffix(source.suffix + ".gz")), {}, False)
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])  # ru_maxrss counts the parent's too
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    peaks = []
    for count in (20_000, 200_000):
        path = tmp_path / f"{count}.txt"
        path.write_bytes(b"3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 3\n" * count)
        result = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
        peaks.append(int(result.stdout))  # KB
        assert sum(1 for _ in read_lines(path.with_suffix(".txt.gz"))) == count
    assert peaks[1] < peaks[0] + 2_000, peaks


def test_two_processes_cannot_write_one_output(tmp_path: Path) -> None:
    write_input(tmp_path / "in.txt", LINES)
    files = Files(tmp_path / "in.txt", tmp_path / "out.txt")
    with OutputFiles(files.outputs(), MADE_FROM, True, files.input) as outputs:
        outputs.write("A LINE")
        with pytest.raises(RunError, match=r"out\.txt: another process is writing it; wait for it"):
            translate_files(Shouting(), files, MADE_FROM, resume=True)
        outputs.write("ANOTHER")
        with pytest.raises(RunError, match=r"out\.txt: another process is writing it"):
            translate_files(Shouting(), Files(files.input, tmp_path / "b", files.output), MADE_FROM, resume=True)
    assert (tmp_path / "out.txt").read_text() == "A LINE\nANOTHER\n"
    assert not list(tmp_path.glob(".*lock"))
