"""The encoded corpus: every pair's ids, on disk, memory-mapped.

The text is tokenized once. A folder holds

    src.ids  tgt.ids            the ids of all pairs, concatenated, without <s> and </s>
    src.lengths  tgt.lengths    the number of ids of each pair
    src.starts  tgt.starts      the offset of each pair's first id
    lines                       the line number of each pair in its files, since some pairs are dropped
    corpus.json                 number types, pairs of each corpus, counts of dropped pairs
    made_from.json              hashes of all that the content depends on: text, tokenizers, selection, settings

If the sources are vectors or images, src.ids holds their vectors, and src.lengths and src.starts count vectors. The
folder is named by a hash of made_from.json. No process holds a copy in its memory: the pages in use are in the kernel's
cache, which all processes share.
"""

import dataclasses
import hashlib
import json
import mmap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.batches.encoding import Encoded, Job, encode_blocks
from nmt.cleaning.normalize import CleaningCounts
from nmt.cleaning.selection import Selection, chosen_blocks, no_pair_left
from nmt.config.corpus import CorpusFiles, TrainingFiles
from nmt.config.source import TEXT, SourceConfig
from nmt.corpora.hashes import CACHE, corpus_keys, file_hashes
from nmt.corpora.pairs import Block, count_pairs
from nmt.corpora.vectors import open_vectors
from nmt.system.console import log
from nmt.system.files import building, read_json, write_json
from nmt.system.processes import num_processes_for
from nmt.tokenizers.tokenizer import Tokenizers, tag_id, tokenizer_files
from nmt.tokenizers.vocabulary import SpecialIds

Ragged = tuple[NDArray[Any], NDArray[np.integer]]
"""Concatenated ids, or vectors (sum of the lengths, F), and the length of each sequence."""

_FORMAT = 3  # raise it when the files above or the plan of an epoch change: a run cannot resume with other ones
_SIDES = ("src", "tgt")
_WRITTEN = (*(f"{side}.{kind}" for side in _SIDES for kind in ("ids", "lengths")), "lines")
_FILES = (*_WRITTEN, *(f"{side}.starts" for side in _SIDES), "corpus.json", "made_from.json")
_PAIRS_MAPPED = 1 << 11  # after this many, the pages that were read are released
_REPORT_INTERVAL = 60  # seconds


class EncodedSide:
    """One side of an encoded corpus: `side[n]` is the ids of pair n, or its vectors (S, F) if there are `features`."""

    def __init__(
        self, folder: Path, name: str, ids_dtype: str, starts_dtype: str, special: SpecialIds, features: int = 0
    ) -> None:
        self.special = special
        self.features = features
        """F, or 0 for ids."""
        self._ids = np.memmap(folder / f"{name}.ids", dtype=ids_dtype, mode="r")
        # Views that are plain arrays, since a memmap's methods are slower.
        self.lengths: NDArray[np.int32] = np.asarray(np.memmap(folder / f"{name}.lengths", dtype=np.int32, mode="r"))
        self._starts: NDArray[np.integer] = np.asarray(
            np.memmap(folder / f"{name}.starts", dtype=starts_dtype, mode="r")
        )
        self._rows = self._ids.reshape(-1, features) if features else self._ids
        self._flat: NDArray[Any] = np.asarray(self._rows)
        self._pairs_read = 0

    def __getitem__(self, index: int) -> NDArray[Any]:
        start = int(self._starts[index])
        return self._rows[start : start + int(self.lengths[index])]

    def gather(self, pairs: NDArray[np.integer]) -> Ragged:
        """The ids or vectors of several pairs."""
        lengths = self.lengths[pairs]
        ends = np.cumsum(lengths, dtype=np.int64)
        # The ids of pair k are at starts[k] + 0, 1, 2, ...; in the result they begin at ends[k] - lengths[k].
        places = np.repeat(self._starts[pairs].astype(np.int64) - (ends - lengths), lengths)
        places += np.arange(len(places))
        ids = self._flat[places]
        self._pairs_read += len(pairs)
        if self._pairs_read > _PAIRS_MAPPED:
            self._release_pages()
        return ids, lengths

    def share_of(self, wanted: Iterable[int], pairs: int) -> float:
        """The share of the wanted ids among the ids of the first pairs; 0 if there are none."""
        end = int(self.lengths[:pairs].sum(dtype=np.int64))
        ids = np.array(sorted(wanted), dtype=self._flat.dtype)
        count = sum(
            int(np.isin(self._flat[begin : min(begin + (1 << 20), end)], ids).sum()) for begin in range(0, end, 1 << 20)
        )
        self._release_pages()
        return count / max(1, end)

    def _release_pages(self) -> None:
        """Unmap the pages that were read; they stay in the kernel's cache, but not in this process's memory."""
        self._pairs_read = 0
        if isinstance(self._ids.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self._ids.base.madvise(mmap.MADV_DONTNEED)


class EncodedCorpus:
    """Aligned ids of both sides, memory-mapped; `corpus[n]` is the pair `(src, tgt)` of id arrays.

    `special` holds the special ids of the source and of the target tokenizer.
    """

    def __init__(self, folder: Path, special: tuple[SpecialIds, SpecialIds]) -> None:
        description = read_json(folder / "corpus.json")
        self._folder = folder
        self.key = folder.name
        self.made_from: dict[str, str] = read_json(folder / "made_from.json")
        self._contents = {name: np.memmap(folder / name, dtype=np.uint8, mode="r") for name in _FILES}
        self.counts = CleaningCounts.of(description["counts"])
        self.sizes: tuple[int, ...] = tuple(description["sizes"])
        """Number of pairs of each text corpus, in order."""
        dtype, starts_dtype = description["dtype"], description["starts_dtype"]
        vectors = description.get("vectors", {"dtype": dtype, "features": 0})
        self.src = EncodedSide(folder, "src", vectors["dtype"], starts_dtype, special[0], vectors["features"])
        self.tgt = EncodedSide(folder, "tgt", dtype, starts_dtype, special[1])

    def __len__(self) -> int:
        return len(self.src.lengths)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], NDArray[np.integer]]:
        return self.src[index], self.tgt[index]

    def line_numbers(self, pairs: NDArray[np.integer]) -> dict[int, list[int]]:
        """The line numbers of some pairs in the text, from 1, sorted and unique, for each corpus that has any of them;
        a corpus is identified by its index in `data.train`."""
        lines = self._contents["lines"].view(np.int64)
        corpora = np.searchsorted(np.cumsum(self.sizes), pairs, side="right")
        return {int(corpus): np.unique(lines[pairs[corpora == corpus]]).tolist() for corpus in np.unique(corpora)}

    def __reduce__(self) -> tuple[type["EncodedCorpus"], tuple[Path, tuple[SpecialIds, SpecialIds]]]:
        """Pickle the paths only: another process opens the files itself, where a memory map would be copied whole.

        If they were deleted meanwhile, they are written again.
        """
        if not self._folder.is_dir():
            with building(self._folder) as temporary:
                if temporary is not None:
                    for name, content in self._contents.items():
                        content.tofile(temporary / name)
        return EncodedCorpus, (self._folder.resolve(), (self.src.special, self.tgt.special))


def encode_corpus(
    corpora: Sequence[CorpusFiles],
    tokenizers: Tokenizers,
    tokenizer_folder: Path,
    max_length: int,
    selection: Selection | None = None,
    num_processes: int | None = None,
    source: SourceConfig = TEXT,
) -> EncodedCorpus:
    """Open the encoded form of `corpora`; build it first if it is missing.

    Vectors and images are copied into it, images as patches. Drops pairs with an empty side, with more than
    `max_length` pieces or vectors on a side, or dropped by the `selection`. Raises `DataError` if a file cannot be
    read, sides differ in length or no pair is left. The number of processes does not change the files; its default
    depends on the numbers of pairs and cores.
    """
    made_from = _made_from(corpora, tokenizer_folder, max_length, selection, source)
    folder = CACHE / hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:20]
    if not folder.is_dir():
        num_pairs = count_pairs(corpora, source)
        if num_processes is None:
            num_processes = num_processes_for(num_pairs)
        dtype = "uint16" if max(tokenizers.src.vocab_size, tokenizers.tgt.vocab_size) <= 2**16 else "int32"
        src_dtype = ""
        if source.type != "text":
            src_dtype = np.result_type(*(open_vectors(files.src_file, source).dtype for files in corpora)).name
        job = Job(max_length, dtype, source, src_dtype)

        def encoded(files: CorpusFiles, blocks: Iterator[Block]) -> Iterator[Encoded]:
            tag = _tag(files)
            tagged = job if tag is None else dataclasses.replace(job, tag=tag_id(tokenizers.src, tag))
            return encode_blocks(blocks, tokenizers, tokenizer_folder, tagged, num_processes)

        with building(folder) as temporary:
            if temporary is not None:
                if num_processes > 1:
                    log.info(f"encoding {num_pairs:,} pairs in {num_processes} processes")
                _write(corpora, encoded, job, selection, num_pairs, temporary)
                write_json(temporary / "made_from.json", made_from)
    return EncodedCorpus(folder, (tokenizers.src.special, tokenizers.tgt.special))


def _write(
    corpora: Sequence[CorpusFiles],
    encode: Callable[[CorpusFiles, Iterator[Block]], Iterator[Encoded]],
    job: Job,
    selection: Selection | None,
    num_pairs: int,
    folder: Path,
) -> None:
    """Encode all corpora and write them to a folder."""
    counts, sizes = CleaningCounts(), []
    reported = time.monotonic()
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in _WRITTEN}
        for index, corpus in enumerate(corpora):
            before = counts.kept
            for encoded in encode(corpus, chosen_blocks(corpus, job.source, selection, index)):
                counts += encoded.counts
                files["src.ids"].write(encoded.src_ids.tobytes())
                files["tgt.ids"].write(encoded.tgt_ids.tobytes())
                files["src.lengths"].write(encoded.src_lengths.tobytes())
                files["tgt.lengths"].write(encoded.tgt_lengths.tobytes())
                files["lines"].write(encoded.lines.tobytes())
                if time.monotonic() > reported + _REPORT_INTERVAL:
                    reported = time.monotonic()
                    log.info(f"encoded {counts.read:,} of {num_pairs:,} pairs")
            sizes.append(counts.kept - before)
    if selection is not None:
        counts = selection.counts.then(counts)
    if not counts.kept:
        raise no_pair_left(corpora, counts, job.max_length)
    starts_dtype = _write_starts(folder)
    description: dict[str, Any] = {"dtype": job.dtype, "starts_dtype": starts_dtype, "sizes": sizes}
    if job.source.type != "text":
        description["vectors"] = {"dtype": job.src_dtype, "features": job.source.width}
    write_json(folder / "corpus.json", {**description, "counts": counts.as_dict()})


def _tag(files: CorpusFiles) -> str | None:
    """The tag before each source of a corpus; only training corpora may have one."""
    return files.tag if isinstance(files, TrainingFiles) else None


def _write_starts(folder: Path) -> str:
    """Write each pair's offset, the cumulative sum of the lengths, in chunks. Returns the type of the numbers."""
    lengths = {side: np.memmap(folder / f"{side}.lengths", dtype=np.int32, mode="r") for side in _SIDES}
    total = max(int(counts.sum(dtype=np.int64)) for counts in lengths.values())
    dtype = "uint32" if total < 2**32 else "int64"
    for side, counts in lengths.items():
        start = 0
        with (folder / f"{side}.starts").open("wb") as file:
            for begin in range(0, len(counts), 1 << 20):
                ends = start + np.cumsum(counts[begin : begin + (1 << 20)], dtype=np.int64)
                file.write(np.concatenate([[start], ends[:-1]]).astype(dtype).tobytes())
                start = int(ends[-1])
    return dtype


def _made_from(
    corpora: Sequence[CorpusFiles],
    tokenizer_folder: Path,
    max_length: int,
    selection: Selection | None,
    source: SourceConfig,
) -> dict[str, str]:
    """Hashes of everything that the encoded corpus depends on; the sides of the corpora are numbered in order."""
    settings: list[object] = [_FORMAT, max_length, source.description() if source.type != "text" else ""]
    sides = {str(number): key.hex() for number, key in enumerate(corpus_keys(corpora, source))}
    return {
        "encoding": json.dumps([*settings, *map(_tag, corpora)]),
        "selection": "" if selection is None else selection.key,
        "tokenizer": b"".join(file_hashes(tokenizer_files(tokenizer_folder))).hex(),
        **sides,
    }
