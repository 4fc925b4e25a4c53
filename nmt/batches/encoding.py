"""Encoding of text blocks as ids, in parallel processes, in order.

The processes import this module but not torch.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.cleaning.normalize import CleaningCounts, clean
from nmt.config.source import TEXT, SourceConfig
from nmt.corpora.pairs import Block, over_blocks, places_of
from nmt.corpora.vectors import VectorFile, open_vectors
from nmt.errors import DataError
from nmt.system.processes import available_cores
from nmt.tokenizers.tokenizer import LONG_LINE_BYTES, Tokenizer, Tokenizers, load_tokenizers
from nmt.tokenizers.vocabulary import with_tag


@dataclasses.dataclass(frozen=True)
class Job:
    """The settings for encoding a block."""

    max_length: int
    dtype: str
    """Type of the ids: `uint16` or `int32`."""
    source: SourceConfig = TEXT
    """The kind of source."""
    src_dtype: str = ""
    """Type of the features of vectors."""
    tag: int | None = None
    """An id before each source, which counts in its length."""


class Encoded(NamedTuple):
    """The P kept pairs of a block."""

    counts: CleaningCounts
    src_lengths: NDArray[np.int32]
    """(P,) pieces, without `<s>` and `</s>`"""
    tgt_lengths: NDArray[np.int32]
    src_ids: NDArray[Any]
    """The concatenated ids of all sources, or their vectors (sum of the lengths, F)."""
    tgt_ids: NDArray[np.integer]
    lines: NDArray[np.int64]
    """(P,) the line number of each pair in its files, from 1"""


def encode_block(
    block: Block,
    tokenizers: Tokenizers,
    job: Job,
    threads: int = 1,
    open_file: Callable[..., VectorFile] = open_vectors,
) -> Encoded:
    """Encode a block's lines, and drop empty and too long pairs; `DataError` if a line is not UTF-8.

    Sources that are not text are read from files that `open_file` opens; `DataError` if one cannot be used.
    """
    numbers = block.of_chosen(range(block.first, block.rows[1] + 1))
    src: list[Any]
    if job.source.type == "text":
        src_lines, tgt_lines = block.lines()
        try:
            src = _encode_lines(tokenizers.src, src_lines, job.max_length, threads)
        except DataError as error:  # a target tag that the model lacks
            raise _with_place(error, tokenizers.src, src_lines, numbers, block) from None
        src = [with_tag(job.tag, ids) for ids in src]
    else:
        tgt_lines = block.tgt_lines()
        src = block.of_chosen(open_file(Path(block.src_name), job.source).read(*block.rows))
    tgt = _encode_lines(tokenizers.tgt, tgt_lines, job.max_length, threads)
    keep, counts = clean(_lengths(src), _lengths(tgt), job.max_length)
    src, tgt = list(itertools.compress(src, keep)), list(itertools.compress(tgt, keep))
    return Encoded(
        counts=counts,
        src_lengths=_lengths(src),
        tgt_lengths=_lengths(tgt),
        src_ids=_concatenated(src, job.dtype) if job.source.type == "text" else _stacked(src, job),
        tgt_ids=_concatenated(tgt, job.dtype),
        lines=np.array(numbers, dtype=np.int64)[keep],
    )


def _with_place(
    error: DataError, tokenizer: Tokenizer, lines: list[str], numbers: Sequence[int], block: Block
) -> DataError:
    """The error of the first line that cannot be encoded, with its place."""
    for pair, line in zip(numbers, lines, strict=True):
        try:
            tokenizer.encode_lines([tokenizer.normalize(line)])
        except DataError as of_line:
            (number,) = places_of(block.files, [pair])
            return DataError(f"{block.src_name}:{number}: {of_line}")
    return error


def _lengths(sequences: Sequence[Sized]) -> NDArray[np.int32]:
    return np.fromiter(map(len, sequences), dtype=np.int32, count=len(sequences))


def _concatenated(sequences: Sequence[Sequence[int]], dtype: str) -> NDArray[np.integer]:
    return np.fromiter(itertools.chain.from_iterable(sequences), dtype=dtype)


def _stacked(sources: Sequence[NDArray[Any]], job: Job) -> NDArray[Any]:
    """Sources (S, F) one after another: (sum of the lengths, F)."""
    if not sources:
        return np.empty((0, 0), dtype=job.src_dtype)
    return np.concatenate(sources).astype(job.src_dtype)


def _encode_lines(tokenizer: Tokenizer, lines: list[str], max_length: int, threads: int) -> list[Sequence[int]]:
    """Encode lines after normalization. One that is certainly too long gets `max_length` + 1 arbitrary ids instead: a
    SentencePiece piece has at most 16 characters of 4 bytes."""
    longest = max(LONG_LINE_BYTES, 64 * max_length) // 4
    long = {index for index, line in enumerate(lines) if len(line) > longest and len(line.encode()) > 4 * longest}
    normalized = ["" if index in long else tokenizer.normalize(line) for index, line in enumerate(lines)]
    ids: list[Sequence[int]] = list(tokenizer.encode_lines(normalized, threads))
    for index in long:
        ids[index] = range(max_length + 1) if lines[index].strip() else ()
    return ids


def encode_blocks(
    blocks: Iterable[Block], tokenizers: Tokenizers, tokenizer_folder: Path, job: Job, num_processes: int
) -> Iterator[Encoded]:
    """`encode_block` for each block, in order, by N worker processes, or with N < 2 in this process.

    The workers load the tokenizers from their folder. Raises `DataError` for the first line that is not UTF-8, and
    `TrainingError` if a worker dies.
    """
    if num_processes < 2:
        open_file = functools.cache(open_vectors)
        return (encode_block(block, tokenizers, job, 1, open_file) for block in blocks)
    threads = -(-available_cores() // num_processes)
    prepare = functools.partial(_encoder, tokenizer_folder.resolve(), job, threads)
    return over_blocks(prepare, blocks, num_processes, "encoded")


def _encoder(folder: Path, job: Job, threads: int) -> Callable[[Block], Encoded]:
    """The function that encodes blocks in a worker."""
    tokenizers, open_file = load_tokenizers(folder), functools.cache(open_vectors)
    return lambda block: encode_block(block, tokenizers, job, threads, open_file)
