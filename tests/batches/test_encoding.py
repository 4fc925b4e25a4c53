"""Encoding in several processes: the same files as by one, the same messages, and no process left behind."""

import functools
import gzip
import io
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from conftest import assert_says
from hypothesis import given
from hypothesis import strategies as st

import nmt.batches.encoding
import nmt.corpora.pairs
import nmt.system.processes
from nmt.batches.dataset import CACHE, encode_corpus
from nmt.batches.encoding import Encoded, Job, _encoder, encode_block, encode_blocks
from nmt.cleaning.normalize import CleaningCounts, clean, normalize
from nmt.cleaning.selection import select
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.config.inference import TokenizerConfig
from nmt.corpora.lines import decode_lines
from nmt.corpora.pairs import Block, read_blocks, read_pairs
from nmt.errors import DataError, TrainingError
from nmt.system.processes import num_processes_for
from nmt.tokenizers.building import ensure_tokenizers
from nmt.tokenizers.tokenizer import Tokenizers, load_tokenizers

WriteLines = Callable[[str, list[str]], Path]
FILES = CorpusFiles(src=Path("s"), tgt=Path("t"))
JOB = Job(max_length=10, dtype="uint16")
WORDS = ["the", "Hund", "größer", "学习", "on", "e\u0301te", "a\u2028b", "playing", "house", ".", "\ufeff", "x\ry"]


@pytest.fixture(autouse=True)
def _small_blocks_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nmt.corpora.pairs, "BLOCK_PAIRS", 30)


@pytest.fixture
def corpora(tmp_path: Path) -> list[CorpusFiles]:
    """Two corpora, 1000 and 130 pairs, some of them empty, too long or double; marks, CRLF, gzip, no last line end."""
    return write_corpora(tmp_path)


def write_corpora(folder: Path) -> list[CorpusFiles]:
    chance = random.Random(3)
    files = []
    for name, count in (("a", 1000), ("b", 130)):
        for side in ("en", "de"):
            lines = [" ".join(chance.choices(WORDS, k=chance.choice([0, 1, 1, 2, 5, 9, 15]))) for _ in range(count)]
            data = ("\ufeff" + "\r\n".join(lines)).encode() if name == "a" else ("\n".join(lines) + "\n").encode()
            (folder / f"{name}.{side}.gz").write_bytes(gzip.compress(data))
        files.append(CorpusFiles(src=folder / f"{name}.en.gz", tgt=folder / f"{name}.de.gz"))
    return files


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a BPE of the corpora."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        ensure_tokenizers(write_corpora(folder), TokenizerConfig(vocab_size=320), folder / "tokenizer")
    return folder / "tokenizer"


@pytest.fixture
def tokenizers(trained: Path, tmp_path: Path) -> Tokenizers:
    """A BPE of the corpora, in `tokenizer/`."""
    return load_tokenizers(shutil.copytree(trained, tmp_path / "tokenizer"))


def children() -> set[int]:
    """The child processes that are still running."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(path.parent.name))
    return found


# ------------------------------------------------------------------------------------------------- blocks


def test_blocks_are_the_files_cut_after_lines(corpora: list[CorpusFiles]) -> None:
    for files in corpora:
        blocks = list(read_blocks(files))
        assert b"".join(block.src for block in blocks) == gzip.decompress(files.src.read_bytes())
        assert b"".join(block.tgt for block in blocks) == gzip.decompress(files.tgt.read_bytes())
        pairs = []
        for block in blocks:
            assert block.first == len(pairs) + 1
            src, tgt = block.lines()
            assert len(src) <= 30
            pairs += list(zip(src, tgt, strict=True))
        assert pairs == list(read_pairs(files))


def test_a_block_of_long_lines_is_one_pair(write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.corpora.pairs, "BLOCK_BYTES", 1000)
    files = CorpusFiles(src=write_lines("l.en", ["a" * 400] * 7), tgt=write_lines("l.de", ["b" * 800] * 7))
    assert [len(block.lines()[0]) for block in read_blocks(files)] == [1] * 7
    short = CorpusFiles(src=write_lines("s.en", ["a" * 99] * 7), tgt=write_lines("s.de", ["b" * 99] * 7))
    assert [len(block.lines()[0]) for block in read_blocks(short)] == [5, 2]


@given(
    lines=st.lists(st.binary(max_size=6) | st.sampled_from([b"\xef\xbb\xbf", b"\r", b"a\r", "é\u2028".encode()])),
    first=st.sampled_from([1, 7]),
)
def test_a_block_is_decoded_as_its_lines_are(lines: list[bytes], first: int) -> None:
    data = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines or [b""])
    block = Block("s", "t", first, data, data, FILES)
    try:
        expected = list(decode_lines(io.BytesIO(data), "s", first))
    except DataError as error:
        with pytest.raises(DataError) as caught:
            block.lines()
        assert str(caught.value) == str(error)
    else:
        assert block.lines() == (expected, expected)


# ----------------------------------------------------------------------------- in order, and as by one process


def contents(key: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (CACHE / key).iterdir()}


@pytest.mark.parametrize("duplicates", [None, "pair"])
def test_any_number_of_processes_writes_the_same_files(
    corpora: list[CorpusFiles], tokenizers: Tokenizers, tmp_path: Path, duplicates: Literal["pair"] | None
) -> None:
    selection = select(corpora, CleaningConfig(duplicates=duplicates), ("en", "de"))
    found, before = [], children()
    for number in (0, 1, 3):
        corpus = encode_corpus(corpora, tokenizers, tmp_path / "tokenizer", 12, selection, num_processes=number)
        found.append(contents(corpus.key))
        (CACHE / corpus.key).rename(tmp_path / f"by{number}")
        assert ("duplicates" in corpus.counts.dropped) == (duplicates is not None)
    assert found[1:] == found[:1] * 2
    assert sum(map(len, found[0].values())) > 10_000
    assert children() == before


def test_duplicates_agree_with_a_set(corpora: list[CorpusFiles], tokenizers: Tokenizers, tmp_path: Path) -> None:
    seen, expected, sizes, duplicates = set(), [], [], 0
    for files in corpora:
        before = len(expected)
        for src, tgt in read_pairs(files):
            ids = tokenizers.src.encode(normalize(src)), tokenizers.tgt.encode(normalize(tgt))
            pair = normalize(src), normalize(tgt)
            if not all(pair):
                continue
            if pair in seen:
                duplicates += 1
            elif max(map(len, ids)) <= 12:
                expected.append(ids)
            seen.add(pair)
        sizes.append(len(expected) - before)
    assert duplicates > 10
    selection = select(corpora, CleaningConfig(duplicates="pair"), ("en", "de"))
    corpus = encode_corpus(corpora, tokenizers, tmp_path / "tokenizer", 12, selection, num_processes=2)
    assert [(src.tolist(), tgt.tolist()) for src, tgt in map(corpus.__getitem__, range(len(corpus)))] == expected
    assert corpus.counts.dropped["duplicates"] == duplicates
    assert corpus.counts.kept == len(corpus) == len(expected)
    assert list(corpus.sizes) == sizes


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("duplicates", [None, "pair"])
def test_the_lines_of_pairs_agree_with_a_loop_over_the_text(
    corpora: list[CorpusFiles], tokenizers: Tokenizers, tmp_path: Path, number: int, duplicates: Literal["pair"] | None
) -> None:
    seen, places = set(), []
    for index, files in enumerate(corpora):
        for line, (src, tgt) in enumerate(read_pairs(files), start=1):
            sizes = [len(tokenizers.src.encode(normalize(side))) for side in (src, tgt)]
            pair = normalize(src), normalize(tgt)
            if min(sizes) > 0 and max(sizes) <= 12 and not (duplicates and pair in seen):
                places.append((index, line))
            seen.add(pair)
    selection = select(corpora, CleaningConfig(duplicates=duplicates), ("en", "de"))
    corpus = encode_corpus(corpora, tokenizers, tmp_path / "tokenizer", 12, selection, num_processes=number)
    assert len(corpus) == len(places) < 1000
    assert [corpus.line_numbers(np.array([pair])) for pair in range(len(corpus))] == [
        {index: [line]} for index, line in places
    ]
    some = np.random.default_rng(0).choice(len(corpus), 90)  # a pair that is weighted up occurs twice in a batch
    assert len(set(some.tolist())) < 90
    expected = {index: sorted({places[pair][1] for pair in some if places[pair][0] == index}) for index in (0, 1)}
    assert corpus.line_numbers(some) == expected
    assert corpus.line_numbers(np.array([0, 1])).keys() == {0}


def test_invisible_characters_are_normalized_while_encoding(tokenizers: Tokenizers) -> None:
    typed = ["the  Hund", " größer\t", "gro\u0308\u00dfer", "\u3000", "\u2581on", "the Hund\r"]
    meant = ["the Hund", "größer", "gr\u00f6\u00dfer", "", "on", "the Hund"]
    both = []
    for lines in (typed, meant):
        text = "".join(f"{line}\n" for line in lines).encode()
        both.append(encode_block(Block("s", "t", 1, text, text, FILES), tokenizers, JOB))
    assert both[0].src_ids.tolist() == both[1].src_ids.tolist()
    assert both[0].tgt_lengths.tolist() == both[1].tgt_lengths.tolist()
    assert both[0].counts == both[1].counts == CleaningCounts(6, {"empty": 1})


def test_lines_are_encoded_apart_though_pieces_could_join_them(tokenizers: Tokenizers) -> None:
    block = Block("s", "t", 5, b"the Hund\non\n\n", "größer\nthe\n.\n".encode(), FILES)
    encoded = encode_block(block, tokenizers, JOB)
    src, tgt = (["the Hund", "on"], ["größer", "the"])
    assert encoded.src_ids.tolist() == [index for line in src for index in tokenizers.src.encode(line)]
    assert encoded.tgt_ids.tolist() == [index for line in tgt for index in tokenizers.tgt.encode(line)]
    assert encoded.src_lengths.tolist() == [len(tokenizers.src.encode(line)) for line in src]
    assert encoded.counts == CleaningCounts(3, {"empty": 1})


def test_a_line_that_is_far_too_long_is_counted_without_being_encoded(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    encode_lines = tokenizers.src.encode_lines
    monkeypatch.setattr(
        tokenizers.src, "encode_lines", lambda lines, threads: seen.extend(lines) or encode_lines(lines)
    )
    long = "the " * (1 << 14) + "é"
    blank = " " * (1 << 17)
    lines = [long, "the", blank, "the", long[:-1]]
    block = Block("s", "t", 1, "".join(f"{line}\n" for line in lines).encode(), b"on\n" * 5, FILES)
    encoded = encode_block(block, tokenizers, JOB)
    assert encoded.counts == CleaningCounts(5, {"empty": 1, "too_long": 2})
    assert seen == ["", "the", "", "the", long[:-2]] + ["on"] * 5  # 64 KB is encoded


def test_the_rules_of_cleaning_count_each_pair_once() -> None:
    keep, counts = clean(np.array([3, 0, 4, 9, 0, 1]), np.array([1, 2, 5, 0, 0, 4]), 4)
    assert keep.tolist() == [True, False, False, False, False, True]
    assert counts == CleaningCounts(6, {"empty": 3, "too_long": 1})
    assert_says(str(counts), "2 pairs", "empty 3", "too long 1")
    total = counts + CleaningCounts(1004, {"too_long": 1000})
    assert_says(str(total), "6 pairs", "empty 3", "too long 1,001")
    assert str(CleaningCounts(1009, {"duplicates": 1003}).then(counts)) == (
        "2 pairs (dropped: duplicates 1,003, empty 3, too long 1)"
    )


def test_small_corpora_are_encoded_by_one_process_and_large_ones_by_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.system.processes, "available_cores", lambda: 64)
    assert num_processes_for(19_999) == 0
    assert num_processes_for(20_000) == nmt.system.processes.MAX_PROCESSES
    monkeypatch.setattr(nmt.system.processes, "available_cores", lambda: 3)
    assert num_processes_for(10_000_000) == 3


def test_the_amount_of_queued_text_is_limited(
    tokenizers: Tokenizers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nmt.corpora.pairs, "MAX_PENDING_BYTES", 1000)
    drawn = 0

    def blocks() -> Iterator[Block]:
        nonlocal drawn
        for number in range(1, 9):
            drawn = number
            yield Block("s", "t", 1, b"the " * 150 + b"\n", b"on\n", FILES)

    for done, _ in enumerate(encode_blocks(blocks(), tokenizers, tmp_path / "tokenizer", JOB, 2), start=1):
        assert drawn <= done + 1  # that one, and the next one, read ahead
    assert done == 8


# ------------------------------------------------------------------------------------------------ what fails


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(("side", "line"), [("en", 1), ("de", 1), ("en", 771), ("de", 998)])
def test_a_line_that_is_not_utf8_is_named_from_whatever_process(
    corpora: list[CorpusFiles], tokenizers: Tokenizers, tmp_path: Path, number: int, side: str, line: int
) -> None:
    path, before = tmp_path / f"a.{side}.gz", children()
    lines = gzip.decompress(path.read_bytes()).split(b"\n")
    lines[line - 1] = b"K\xf6ln"
    path.write_bytes(gzip.compress(b"\n".join(lines)))
    with pytest.raises(DataError) as caught:
        encode_corpus(corpora, tokenizers, tmp_path / "tokenizer", 12, num_processes=number)
    assert str(caught.value) == f"{path}:{line}: not UTF-8 (invalid start byte); convert the text"
    assert [path for path in CACHE.iterdir() if path.suffix != ".lock"] == []
    assert children() == before


def test_sides_that_differ_are_refused_before_a_process_is_started(
    write_lines: WriteLines, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    files = CorpusFiles(src=write_lines("d.en", ["the"] * 100), tgt=write_lines("d.de", ["on"] * 99))
    with pytest.raises(DataError, match=r"d\.en has 100 lines, .*d\.de has 99;"):
        encode_corpus([files], tokenizers, tmp_path / "tokenizer", 12, num_processes=2)
    with pytest.raises(DataError, match=r"d\.en has 100 lines, .*d\.de has 99;"):
        list(read_blocks(files))


@pytest.mark.parametrize("number", [1, 3])
def test_a_process_that_is_killed_gives_a_plain_message_and_leaves_no_other(
    tokenizers: Tokenizers, tmp_path: Path, number: int
) -> None:
    before = children()

    def blocks() -> Iterator[Block]:
        for index in range(10_000):
            if index == 9:
                for child in sorted(children() - before)[:number]:
                    os.kill(child, signal.SIGKILL)
            yield Block("corpus.en", "corpus.de", 1, b"the\n" * 100, b"on\n" * 100, FILES)

    with pytest.raises(TrainingError) as caught:
        list(encode_blocks(blocks(), tokenizers, tmp_path / "tokenizer", JOB, 3))
    assert str(caught.value).startswith("a process that encoded corpus.en was ended by SIGKILL; if memory ran out")
    assert children() == before


def test_a_consumer_that_stops_leaves_no_process(tokenizers: Tokenizers, tmp_path: Path) -> None:
    before = children()
    block = Block("s", "t", 1, b"the\n" * 500, b"on\n" * 500, FILES)
    encoded: Iterator[Encoded] = encode_blocks([block] * 100, tokenizers, tmp_path / "tokenizer", JOB, 2)
    next(encoded)
    assert len(children() - before) == 2
    encoded.close()  # type: ignore[attr-defined]
    assert children() == before


ENDLESS = """
import itertools, sys
import nmt.batches.dataset as dataset
dataset.num_processes_for = lambda pairs: 2
chosen_blocks = dataset.chosen_blocks
dataset.chosen_blocks = lambda *given: itertools.cycle(list(chosen_blocks(*given)))
from nmt.cli.main import main
sys.argv = ["nmt", "train", "copy.yaml"]
main()
"""


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGKILL))],
)
def test_a_training_that_is_stopped_while_it_encodes_leaves_no_process_and_no_traceback(
    copy_task: Path, number: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    workers: list[str] = []
    for _ in range(1500):
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        if len(found) == 2 and any(copy_task.parent.glob("runs/cache/.*/*/src.ids")):
            workers = found
            break
        time.sleep(0.02)
    time.sleep(0.3)
    os.killpg(process.pid, number)  # as a terminal does on Ctrl-C
    _, stderr = process.communicate(timeout=30)
    assert workers, stderr
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), stderr
    assert "Traceback" not in stderr
    deadline = time.monotonic() + 10
    while any(Path("/proc", worker).exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path("/proc", worker).exists() for worker in workers)
    if number != signal.SIGKILL:
        assert not list(Path("runs/cache").glob("*/*.ids"))


def test_a_worker_does_not_load_torch(tokenizers: Tokenizers, tmp_path: Path) -> None:
    prepare = functools.partial(_encoder, tmp_path / "tokenizer", JOB, 1)
    program = (
        "import sys; from nmt.system.processes import serve; serve(); "
        "assert 'sentencepiece' in sys.modules; sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(pickle.dumps(prepare)) + pickle.dumps(Block("s", "t", 1, b"the\n", b"on\n", FILES)),
        capture_output=True,
    )
    assert result.returncode == 0, result.stderr
    loaded = load_tokenizers(tmp_path / "tokenizer")
    assert pickle.loads(result.stdout).src_ids.tolist() == loaded.src.encode("the")


def test_a_line_that_a_tokenizer_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a Marian model does with a target tag that it lacks."""
    monkeypatch.chdir(tmp_path)
    for side, lines in (("en", ["a", "b", ">>xx<< c"]), ("de", ["d", "e", "f"])):
        Path(f"t.{side}").write_text("".join(f"{line}\n" for line in lines))
    files = CorpusFiles(src=Path("t.en"), tgt=Path("t.de"))
    tokenizers = ensure_tokenizers([files], TokenizerConfig(type="word"), Path("tokenizer"))

    def encode_lines(lines: list[str], threads: int = 1) -> list[list[int]]:
        if any(line.startswith(">>") for line in lines):
            raise DataError("a line begins with >>xx<<, which is no target tag of this model")
        return [[4] for _ in lines]

    monkeypatch.setattr(tokenizers.src, "encode_lines", encode_lines)
    (block,) = read_blocks(files)
    with pytest.raises(DataError, match=r"^t\.en:3: a line begins with >>xx<<"):
        encode_block(block, tokenizers, Job(10, "uint16"))
