"""From blocks of text to ids, in several processes at once, in order.

The processes import this file and no torch.
"""

import dataclasses
import itertools
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.data.cleaning import CleaningCounts, clean, normalize
from nmt.data.corpus import Block
from nmt.data.duplicates import pair_hash
from nmt.data.tokenizer import Tokenizer, Tokenizers, load_tokenizers
from nmt.processes import Answer, Workers, answer_requests, available_cores

# A process takes about 45 MB of its own, and the one that trains 240 MB with torch: together at most 500 MB.
# Where there are more cores, SentencePiece uses them in threads.
MAX_PROCESSES = 5
MIN_PAIRS = 20_000  # below, starting processes takes longer than encoding
BYTES_UNDER_WAY = 1 << 23  # of text, however long its lines are
LONG_LINE_BYTES = 1 << 16  # bytes; SentencePiece needs a hundred times as much memory for a line


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
    lines: NDArray[np.int64]
    """(P,) where each pair stands in its files: the number of its line, from 1"""
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
        lines=block.first + np.flatnonzero(keep).astype(np.int64),
        hashes=np.frombuffer(hashes, dtype=np.uint8),
    )


def _lengths(sequences: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    return np.fromiter(map(len, sequences), dtype=np.int32, count=len(sequences))


def _encode_lines(tokenizer: Tokenizer, lines: list[str], max_length: int, threads: int) -> list[Sequence[int]]:
    """Ids of lines, once normalized. A line so long that it cannot be kept is only made out to be too long: a piece of
    SentencePiece's has at most 16 characters of 4 bytes."""
    longest = max(LONG_LINE_BYTES, 64 * max_length) // 4
    long = {index for index, line in enumerate(lines) if len(line) > longest and len(line.encode()) > 4 * longest}
    normalized = ["" if index in long else normalize(line) for index, line in enumerate(lines)]
    ids: list[Sequence[int]] = list(tokenizer.encode_lines(normalized, threads))
    for index in long:
        ids[index] = range(max_length + 1) if lines[index].strip() else ()
    return ids


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
    settings = [str(tokenizer_folder.resolve()), dataclasses.asdict(job), threads]
    # numpy's matrix products are not needed, and their threads cost memory.
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with Workers("nmt.data.encoding", [settings] * num_processes, environment) as workers:
        under_way: deque[tuple[Future[Sequence[bytes]], int]] = deque()
        total = 0
        for block in blocks:
            size = len(block.src) + len(block.tgt)
            while under_way and (len(under_way) >= 2 * num_processes or total + size > BYTES_UNDER_WAY):
                done, done_size = under_way.popleft()
                total -= done_size
                yield _from_bytes(done.result(), job)
            about = json.dumps([block.src_name, block.tgt_name, block.first]).encode()
            request = [about, block.src, block.tgt]
            under_way.append((workers.submit(request, f"encoded {block.src_name}"), size))
            total += size
        for future, _ in under_way:
            yield _from_bytes(future.result(), job)


def serve(settings: str) -> None:
    """What a process does: encode each block that it is sent."""
    folder, fields, threads = json.loads(settings)
    job = Job(**fields)

    def prepare() -> Answer:
        tokenizers = load_tokenizers(Path(folder))

        def answer(request: Sequence[bytes]) -> Sequence[bytes]:
            src_name, tgt_name, first = json.loads(request[0])
            return _to_bytes(encode_block(Block(src_name, tgt_name, first, *request[1:]), tokenizers, job, threads))

        return answer

    answer_requests(prepare)


def _to_bytes(encoded: Encoded) -> list[bytes]:
    ids = (encoded.src_lengths, encoded.tgt_lengths, encoded.src_ids, encoded.tgt_ids)
    arrays = (*ids, encoded.lines, encoded.hashes)
    return [json.dumps(dataclasses.astuple(encoded.counts)).encode(), *(array.tobytes() for array in arrays)]


def _from_bytes(parts: Sequence[bytes], job: Job) -> Encoded:
    counts, src_lengths, tgt_lengths, src_ids, tgt_ids, lines, hashes = parts
    return Encoded(
        counts=CleaningCounts(*json.loads(counts)),
        src_lengths=np.frombuffer(src_lengths, dtype=np.int32),
        tgt_lengths=np.frombuffer(tgt_lengths, dtype=np.int32),
        src_ids=np.frombuffer(src_ids, dtype=job.dtype),
        tgt_ids=np.frombuffer(tgt_ids, dtype=job.dtype),
        lines=np.frombuffer(lines, dtype=np.int64),
        hashes=np.frombuffer(hashes, dtype=np.uint8),
    )


def num_processes_for(num_pairs: int) -> int:
    """How many processes a corpus of so many pairs is encoded by, beside this one."""
    return min(available_cores(), MAX_PROCESSES) if num_pairs >= MIN_PAIRS else 0
