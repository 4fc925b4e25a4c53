"""A large file's hash is cached until the file changes."""

import gzip
import hashlib
import json
import lzma
import os
import time
from pathlib import Path

import pytest

import nmt.corpora.hashes
from nmt.corpora.hashes import CACHE, file_hash, file_hashes
from nmt.errors import DataError


@pytest.fixture(autouse=True)
def _every_file_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nmt.corpora.hashes, "LARGE", 0)
    monkeypatch.setattr(nmt.corpora.hashes, "_TICK_NS", -(10**12))


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashlib, "file_digest", None)


def test_an_unchanged_file_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [Path("a"), Path("b")]
    for path in paths:
        path.write_text(f"text of {path}")
    expected = [hashlib.sha256(path.read_bytes()).digest() for path in paths]
    assert file_hashes(paths) == expected
    forbid_reading(monkeypatch)
    assert file_hashes(reversed(paths)) == expected[::-1]
    assert file_hash(Path("./a").resolve()) == expected[0]
    with pytest.raises(TypeError):
        (Path("c").write_text("new"), file_hash(Path("c")))


def test_a_change_with_equal_size_and_date_is_detected() -> None:
    path = Path("a")
    path.write_text("one")
    before = path.stat()
    first = file_hash(path)
    time.sleep(0.02)
    path.write_text("two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as `cp -p` and `rsync -t` do
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert file_hash(path) == hashlib.sha256(b"two").digest() != first
    Path("b").write_text("six")
    os.utime("b", ns=(before.st_atime_ns, before.st_mtime_ns))
    Path("b").replace(path)
    assert file_hash(path) == hashlib.sha256(b"six").digest()


def test_a_file_that_has_just_been_written_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.corpora.hashes, "_TICK_NS", 3 * 10**9)
    Path("a").write_text("one")
    file_hash(Path("a"))
    assert not (CACHE / "files.json").exists()


def test_a_small_file_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.corpora.hashes, "LARGE", 4)
    Path("a").write_text("one")
    file_hash(Path("a"))
    assert not (CACHE / "files.json").exists()
    forbid_reading(monkeypatch)
    with pytest.raises(TypeError):
        file_hash(Path("a"))


@pytest.mark.parametrize("content", ["", "[]", '{"x": 3}', "\x00"])
def test_a_damaged_cache_is_rebuilt(content: str) -> None:
    Path("a").write_text("one")
    CACHE.mkdir(parents=True)
    (CACHE / "files.json").write_text(content)
    assert file_hash(Path("a")) == hashlib.sha256(b"one").digest()
    assert len(json.loads((CACHE / "files.json").read_text())) == 1


def test_a_compressed_file_has_the_hash_of_its_text(tmp_path: Path) -> None:
    Path("a.en.gz").write_bytes(gzip.compress(b"one\n", mtime=1))
    Path("a.en.xz").write_bytes(lzma.compress(b"one\n"))
    assert file_hashes([Path("a.en.gz"), Path("a.en.xz")]) == [hashlib.sha256(b"one\n").digest()] * 2
    Path("b.en.gz").write_bytes(Path("a.en.gz").read_bytes()[:-6])
    with pytest.raises(DataError, match=r"^b\.en\.gz: cannot be read"):
        file_hash(Path("b.en.gz"))


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^absent: no such file$"):
        file_hash(Path("absent"))
    with pytest.raises(DataError, match="cannot be read"):
        file_hash(tmp_path)


def test_hashes_that_cannot_be_cached_are_right(tmp_path: Path) -> None:
    """As on a read-only disk: here, a file is in the folder's place."""
    Path("runs").touch()
    Path("a").write_text("text")
    assert file_hash(Path("a")) == hashlib.sha256(b"text").digest()
