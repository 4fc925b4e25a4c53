"""The encoded corpus: every pair's ids, on disk, memory-mapped.

Tokenisation happens once. A folder holds

    src.ids  tgt.ids            the ids of all pairs, one after the other, without <s> and </s>
    src.lengths  tgt.lengths    how many of them each pair has
    corpus.json                 the type of the ids, and how many pairs were left out

and is named by a hash of all that decides its content: the text, the tokenizers, the longest length.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.config import CorpusFiles
from nmt.data.cleaning import CleaningCounts
from nmt.data.corpus import file_hash, read_pairs
from nmt.data.tokenizer import Tokenizers
from nmt.errors import DataError
from nmt.runs import RUNS, read_json, replacing, write_json

CACHE = RUNS / "cache"
_FORMAT = 1  # raise it when the files above change


class EncodedSide:
    """One side of an encoded corpus: `side[n]` is the ids of line n."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self._ids = np.memmap(folder / f"{name}.ids", dtype=dtype, mode="r")
        self.lengths: NDArray[np.int32] = np.fromfile(folder / f"{name}.lengths", dtype=np.int32)
        self._ends = np.cumsum(self.lengths, dtype=np.int64)

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        end = self._ends[index]
        return self._ids[end - self.lengths[index] : end]


class EncodedCorpus:
    """Aligned ids of both sides, memory-mapped; `corpus[n]` is the pair `(src, tgt)` of id arrays."""

    def __init__(self, folder: Path) -> None:
        description = read_json(folder / "corpus.json")
        self.key = folder.name
        self.counts = CleaningCounts(**description["counts"])
        self.src = EncodedSide(folder, "src", description["dtype"])
        self.tgt = EncodedSide(folder, "tgt", description["dtype"])

    def __len__(self) -> int:
        return len(self.src.lengths)

    def __getitem__(self, index: int) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        return self.src[index], self.tgt[index]


def encode_corpus(
    corpora: Sequence[CorpusFiles], tokenizers: Tokenizers, tokenizer_folder: Path, max_length: int
) -> EncodedCorpus:
    """Open the encoded form of `corpora`, building it first where it is missing.

    Pairs with an empty side, or with more than `max_length` pieces on a side, are left out.
    Raises `DataError` if a file cannot be read, sides differ in length or no pair is left.
    """
    folder = CACHE / _fingerprint(corpora, tokenizer_folder, max_length)
    if not folder.is_dir():
        with replacing(folder) as temporary:
            temporary.mkdir()
            _encode(corpora, tokenizers, max_length, temporary)
    return EncodedCorpus(folder)


def _encode(corpora: Sequence[CorpusFiles], tokenizers: Tokenizers, max_length: int, folder: Path) -> None:
    sides = {"src": tokenizers.src, "tgt": tokenizers.tgt}
    dtype = "uint16" if max(side.vocab_size for side in sides.values()) <= 2**16 else "int32"
    counts = CleaningCounts()
    with ExitStack() as stack:
        ids = {side: stack.enter_context((folder / f"{side}.ids").open("wb")) for side in sides}
        lengths = {side: stack.enter_context((folder / f"{side}.lengths").open("wb")) for side in sides}
        for files in corpora:
            for src, tgt in read_pairs(files):
                encoded = {"src": tokenizers.src.encode(src), "tgt": tokenizers.tgt.encode(tgt)}
                if counts.keep(encoded["src"], encoded["tgt"], max_length):
                    for side, line in encoded.items():
                        ids[side].write(np.array(line, dtype=dtype).tobytes())
                        lengths[side].write(np.int32(len(line)).tobytes())
    if not counts.kept:
        names = ", ".join(str(files.src) for files in corpora)
        raise DataError(
            f"{names}: no pair is left of {counts.read:,}: {counts.empty:,} have an empty side, {counts.too_long:,} "
            f"are longer than data.max_length ({max_length}) pieces"
        )
    write_json(folder / "corpus.json", {"dtype": dtype, "counts": dataclasses.asdict(counts)})


def _fingerprint(corpora: Sequence[CorpusFiles], tokenizer_folder: Path, max_length: int) -> str:
    """A hash of everything that decides what the encoded corpus holds."""
    digest = hashlib.sha256(json.dumps([_FORMAT, max_length]).encode())
    for path in sorted(tokenizer_folder.iterdir()):
        if path.suffix != ".json":  # it only names the others
            digest.update(file_hash(path))
    for files in corpora:
        digest.update(file_hash(files.src) + file_hash(files.tgt))
    return digest.hexdigest()[:20]
