"""From blocks of text to ids, in several processes at once, in order.

A worker is a fresh interpreter that imports this file and no torch. It reads blocks from its standard input and
answers on its standard output; it goes when its input ends, however the parent ended. So there is no `__main__` to
import again, nothing to be pickled, and nobody who outlives the training. A session of its own keeps Ctrl-C from it.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import queue
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nmt.data.cleaning import CleaningCounts, clean
from nmt.data.corpus import Block
from nmt.data.duplicates import pair_hash
from nmt.data.tokenizer import Tokenizer, Tokenizers, load_tokenizers
from nmt.errors import DataError, NmtError, TrainingError

# A process takes about 45 MB of its own, and the one that trains 240 MB with torch: together at most 500 MB.
# Where there are more cores, SentencePiece uses them in threads.
MAX_PROCESSES = 5
MIN_PAIRS = 20_000  # below, starting processes takes longer than encoding
BYTES_UNDER_WAY = 1 << 23  # of text, however long its lines are
LONG_LINE = 1 << 16  # bytes; SentencePiece needs a hundred times as much memory for a line


@dataclasses.dataclass(frozen=True)
class Job:
    """What decides how blocks are encoded."""

    max_length: int
    dtype: str
    """Of the ids: `uint16` or `int32`."""
    hashes: bool
    """Whether the pairs are to be told from each other."""


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The pairs of a block that are kept; `P` pairs."""

    counts: CleaningCounts
    src_lengths: NDArray[np.int32]
    """(P,) pieces, without `<s>` and `</s>`"""
    tgt_lengths: NDArray[np.int32]
    src_ids: NDArray[np.integer]
    """All ids of all sources, one after the other."""
    tgt_ids: NDArray[np.integer]
    hashes: NDArray[np.uint8]
    """Of all pairs, one after the other, or empty if they were not asked for"""


def encode_block(block: Block, tokenizers: Tokenizers, job: Job, threads: int = 1) -> Encoded:
    """Encode a block's lines and leave out the pairs that cleaning does; `DataError` if a line is not UTF-8."""
    src_lines, tgt_lines = block.lines()
    src = _encode_lines(tokenizers.src, src_lines, job.max_length, threads)
    tgt = _encode_lines(tokenizers.tgt, tgt_lines, job.max_length, threads)
    keep, counts = clean(_lengths(src), _lengths(tgt), job.max_length)
    src, tgt = list(itertools.compress(src, keep)), list(itertools.compress(tgt, keep))
    hashes = b""
    if job.hashes:
        pairs = itertools.compress(zip(src_lines, tgt_lines, strict=True), keep)
        hashes = b"".join(itertools.starmap(pair_hash, pairs))
    return Encoded(
        counts=counts,
        src_lengths=_lengths(src),
        tgt_lengths=_lengths(tgt),
        src_ids=np.fromiter(itertools.chain.from_iterable(src), dtype=job.dtype),
        tgt_ids=np.fromiter(itertools.chain.from_iterable(tgt), dtype=job.dtype),
        hashes=np.frombuffer(hashes, dtype=np.uint8),
    )


def _lengths(sequences: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    return np.fromiter(map(len, sequences), dtype=np.int32, count=len(sequences))


def _encode_lines(tokenizer: Tokenizer, lines: list[str], max_length: int, threads: int) -> list[Sequence[int]]:
    """Ids of lines. A line so long that it cannot be kept is only made out to be too long: a piece of SentencePiece's
    has at most 16 characters of 4 bytes."""
    longest = max(LONG_LINE, 64 * max_length) // 4
    long = [index for index, line in enumerate(lines) if len(line) > longest and len(line.encode()) > 4 * longest]
    short = lines.copy() if long else lines
    for index in long:
        short[index] = ""
    ids: list[Sequence[int]] = list(tokenizer.encode_lines(short, threads))
    for index in long:
        ids[index] = range(max_length + 1) if lines[index].strip() else ()
    return ids


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_blocks(
    blocks: Iterable[Block], tokenizers: Tokenizers, tokenizer_folder: Path, job: Job, num_processes: int
) -> Iterator[Encoded]:
    """`encode_block` of each, in order, by so many processes beside this one; by this one alone if they are 0 or 1.

    The processes read the tokenizers from their folder. Raises `DataError` for the first line that is not UTF-8, and
    `TrainingError` if a process dies.
    """
    if num_processes < 2:
        for block in blocks:
            yield encode_block(block, tokenizers, job)
        return
    threads = -(-available_cores() // num_processes)
    with _Workers(num_processes, tokenizer_folder, job, threads) as workers:
        under_way: deque[tuple[Future[Encoded], int]] = deque()
        total = 0
        for block in blocks:
            size = len(block.src) + len(block.tgt)
            while under_way and (len(under_way) >= 2 * num_processes or total + size > BYTES_UNDER_WAY):
                done, done_size = under_way.popleft()
                total -= done_size
                yield done.result()
            under_way.append((workers.submit(block), size))
            total += size
        for future, _ in under_way:
            yield future.result()


class _Workers:
    """The processes, each with a thread here that hands it a block and waits for what comes of it."""

    def __init__(self, number: int, tokenizer_folder: Path, job: Job, threads: int) -> None:
        self._job = job
        settings = json.dumps([str(tokenizer_folder.resolve()), dataclasses.asdict(job), threads])
        program = "import sys; sys.path[:] = sys.argv[2:]; from nmt.data.encoding import serve; serve(sys.argv[1])"
        command = [sys.executable, "-c", program, settings, *sys.path]
        # numpy's matrix products are not needed, and their threads cost memory.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )
            for _ in range(number)
        ]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._pool = ThreadPoolExecutor(number)

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()  # it holds nothing that could be lost
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(OSError):  # what the dead one did not read
                    stream.close()

    def submit(self, block: Block) -> "Future[Encoded]":
        return self._pool.submit(self._encode, block)

    def _encode(self, block: Block) -> Encoded:
        process = self._idle.get()  # there are as many threads as processes
        assert process.stdin is not None
        assert process.stdout is not None
        names = json.dumps([block.src_name, block.tgt_name, block.first])
        answer = None
        try:
            with contextlib.suppress(OSError):
                _send(process.stdin, [names.encode(), block.src, block.tgt])
                answer = _receive(process.stdout)
        finally:
            self._idle.put(process)  # dead or alive, or the thread of another block would wait for it for ever
        if answer is None:
            raise TrainingError(
                f"a process that encoded {block.src_name} {_end_of(process.wait())}; if memory ran out, close other "
                f"programs or raise the limit; the same command begins the encoding again"
            )
        error, counts, src_lengths, tgt_lengths, src_ids, tgt_ids, hashes = answer
        if error:
            raise DataError(error.decode())
        return Encoded(
            counts=CleaningCounts(*json.loads(counts)),
            src_lengths=np.frombuffer(src_lengths, dtype=np.int32),
            tgt_lengths=np.frombuffer(tgt_lengths, dtype=np.int32),
            src_ids=np.frombuffer(src_ids, dtype=self._job.dtype),
            tgt_ids=np.frombuffer(tgt_ids, dtype=self._job.dtype),
            hashes=np.frombuffer(hashes, dtype=np.uint8),
        )


def _end_of(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def serve(settings: str) -> None:
    """What a worker does: answer each block of standard input until there are no more."""
    folder, fields, threads = json.loads(settings)
    job = Job(**fields)
    tokenizers = load_tokenizers(Path(folder))
    while (request := _receive(sys.stdin.buffer)) is not None:
        src_name, tgt_name, first = json.loads(request[0])
        try:
            encoded = encode_block(Block(src_name, tgt_name, first, *request[1:]), tokenizers, job, threads)
        except NmtError as error:
            answer = [str(error).encode(), *[b""] * 6]
        else:
            arrays = (encoded.src_lengths, encoded.tgt_lengths, encoded.src_ids, encoded.tgt_ids, encoded.hashes)
            counts = json.dumps(dataclasses.astuple(encoded.counts)).encode()
            answer = [b"", counts, *(array.tobytes() for array in arrays)]
        try:
            _send(sys.stdout.buffer, answer)
        except BrokenPipeError:  # nobody listens any more
            os._exit(0)


def _send(stream: IO[bytes], parts: Sequence[bytes]) -> None:
    """A message: the number of its parts, their sizes, the parts."""
    stream.write(struct.pack(f"<{len(parts) + 1}q", len(parts), *map(len, parts)))
    stream.writelines(parts)
    stream.flush()


def _receive(stream: IO[bytes] | BinaryIO) -> list[bytes] | None:
    """The parts of the next message; None if the other side has gone."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (number,) = struct.unpack("<q", head)
    sizes = stream.read(8 * number)
    if len(sizes) < 8 * number:
        return None
    parts = [stream.read(size) for size in struct.unpack(f"<{number}q", sizes)]
    return parts if sum(map(len, parts)) == sum(struct.unpack(f"<{number}q", sizes)) else None


def num_processes_for(num_pairs: int) -> int:
    """How many processes a corpus of so many pairs is encoded by, beside this one."""
    return min(available_cores(), MAX_PROCESSES) if num_pairs >= MIN_PAIRS else 0
