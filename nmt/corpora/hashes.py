"""Hashes of files and corpora, cached for large files so that a start does not read them again.

As in git, the hash of a large file is cached with its size, times and inode. A file that was written to, replaced or
renamed since then has a different change time (ctime), which no program can reset.
"""

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nmt.config.corpus import CorpusFiles
from nmt.config.formats import pairs_format
from nmt.config.source import TEXT, SourceConfig
from nmt.corpora.lines import listed_images, opened
from nmt.corpora.pairs import Side
from nmt.errors import RunError
from nmt.runs.folder import RUNS
from nmt.system.files import leftovers, locked, read_json, write_json

CACHE = RUNS / "cache"
_HASHES_FILE = "files.json"
LARGE = 1 << 25  # bytes; smaller files are read each time
_TICK_NS = 3_000_000_000  # longer than the resolution of any file system's clock


def file_hash(path: Path) -> bytes:
    """SHA-256 of a file's content, decompressed; `DataError` if it cannot be read."""
    return file_hashes([path])[0]


def corpus_hashes(corpora: Sequence[CorpusFiles], source: SourceConfig = TEXT) -> list[bytes]:
    """The `file_hash` of every source and target, in order; for sources in several files, `source_hash`."""
    sides = [side for files in corpora for side in (_source_files(files.src_file, source), [files.tgt_file])]
    digests = iter(file_hashes(path for side in sides for path in side))
    return [_combined([next(digests) for _ in side]) for side in sides]


def corpus_keys(corpora: Sequence[CorpusFiles], source: SourceConfig = TEXT) -> list[bytes]:
    """A hash of each source and target: of its file and, where the file holds both sides, its format and column."""
    files_of_sides = [files for files in corpora for _ in ("src", "tgt")]
    return [
        _combined([digest, json.dumps([pairs_format(files.src_file), *files.columns, files.inline_tags]).encode()])
        if files.pairs
        else digest
        for digest, files in zip(corpus_hashes(corpora, source), files_of_sides, strict=True)
    ]


def source_hash(path: Path, source: SourceConfig) -> bytes:
    """A hash of sources: the `file_hash` of their file, or a hash of the hashes of their files."""
    return _combined(file_hashes(_source_files(path, source)))


def _source_files(path: Path, source: SourceConfig) -> list[Path]:
    """The files of sources: a text, arrays, or a list of images and the images."""
    if source.type == "images":
        return [path, *listed_images(path)]
    return [path / "values.npy", path / "offsets.npy"] if source.type == "vectors" and path.is_dir() else [path]


def side_key(side: Side, source: SourceConfig = TEXT) -> str:
    """A hash of a side's lines, or the `source_hash` of vectors and images."""
    return lines_key(side.lines()) if source.type == "text" else source_hash(side.path, source).hex()


def lines_key(lines: Iterable[str]) -> str:
    """A hash of lines."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def _combined(digests: Sequence[bytes]) -> bytes:
    return digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()


def file_hashes(paths: Iterable[Path]) -> list[bytes]:
    """The `file_hash` of each path; several files are read in parallel."""
    paths = list(paths)
    cached = _cached()
    with ThreadPoolExecutor(4) as pool:
        hashed = list(pool.map(lambda path: _hash(path, cached), paths))
    new = {
        str(path.resolve()): [state, digest.hex()] for path, (digest, state) in zip(paths, hashed, strict=True) if state
    }
    if cached | new != cached:
        with contextlib.suppress(OSError):  # a disk that is full or read-only
            write_json(CACHE / _HASHES_FILE, cached | new)
    return [digest for digest, _ in hashed]


def _hash(path: Path, cached: dict[str, list[object]]) -> tuple[bytes, list[int] | None]:
    """A file's hash, and the state under which to cache it, or None if it must not be cached."""
    with opened(path) as file:
        state = _state(path)
        is_large = state[0] >= LARGE
        known = cached.get(str(path.resolve())) if is_large else None
        if known is not None and known[0] == state:
            return bytes.fromhex(str(known[1])), state
        began = time.time_ns()
        digest = hashlib.file_digest(file, "sha256").digest()
        # A file that was just written could change again, unnoticed, within a tick of the file system's clock.
        is_settled = is_large and _state(path) == state and max(state[1:3]) < began - _TICK_NS
        return digest, state if is_settled else None


def _state(path: Path) -> list[int]:
    """A file's size, mtime, ctime and inode."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def prune_cache() -> int:
    """Empty the cache, except for what a process is writing; return the number of bytes removed."""
    num_bytes = 0
    for path, name in [*((path, path.name) for path in CACHE.glob("[!.]*")), *leftovers(CACHE)]:
        with locked(CACHE / name, wait=False, leaves_no_file=True) as is_ours:
            if is_ours:
                num_bytes += sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return num_bytes


def _cached() -> dict[str, list[object]]:
    try:
        value = read_json(CACHE / _HASHES_FILE)
    except RunError:
        return {}
    is_valid = isinstance(value, dict) and all(isinstance(entry, list) and len(entry) == 2 for entry in value.values())
    return value if is_valid else {}
