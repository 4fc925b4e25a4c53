"""The encoded corpus on disk: the same ids as from the lines, encoded once, and again when necessary."""

import dataclasses
import gzip
import pickle
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import unread_tokenizer

import nmt.batches.dataset
from nmt.batches.dataset import CACHE, EncodedCorpus, EncodedSide, encode_corpus
from nmt.cleaning.normalize import normalize
from nmt.cleaning.selection import select
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.config.inference import TokenizerConfig
from nmt.errors import DataError
from nmt.tokenizers.building import ensure_tokenizers
from nmt.tokenizers.tokenizer import Tokenizers
from nmt.tokenizers.vocabulary import OWN_SPECIAL_IDS, SpecialIds

WriteLines = Callable[[str, list[str]], Path]


class BrokenOffError(Exception):
    """Interrupts an encoding."""


@dataclasses.dataclass
class Numbers:
    """A tokenizer of lines that hold their ids: "5 70000"."""

    vocab_size: int = 100
    special: SpecialIds = OWN_SPECIAL_IDS
    stops_after: int | None = None

    def normalize(self, line: str) -> str:
        return normalize(line)

    def encode(self, line: str) -> list[int]:
        if self.stops_after is not None:
            if not self.stops_after:
                raise BrokenOffError
            self.stops_after -= 1
        return [int(number) for number in line.split()]

    def encode_lines(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [self.encode(line) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return list(map(str, ids))

    def save(self, stem: Path) -> Path:
        raise NotImplementedError


NEVER = Tokenizers(Numbers(stops_after=0), Numbers(stops_after=0))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """The folder of the tokenizers that `Numbers` replaces."""
    return unread_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def numbers(write_lines: WriteLines) -> CorpusFiles:
    """Three pairs of ids."""
    return CorpusFiles(src=write_lines("n.src", ["4 5", "6", "7"]), tgt=write_lines("n.tgt", ["8", "9 10 11", "12"]))


def rows(corpus: EncodedCorpus) -> list[tuple[list[int], list[int]]]:
    return [(corpus[index][0].tolist(), corpus[index][1].tolist()) for index in range(len(corpus))]


def random_corpus(write_lines: WriteLines, name: str, count: int, seed: int) -> CorpusFiles:
    """Lines of 0 to 12 words on either side, some with characters that only bytes can spell."""
    chance = random.Random(seed)
    words = ["the", "Hund", "größer", "学习", "on", "e\u0301te", "a\u2028b", "playing", "house", "."]

    def lines() -> list[str]:
        return [" ".join(chance.choices(words, k=chance.randint(0, 12))) for _ in range(count)]

    return CorpusFiles(src=write_lines(f"{name}.en", lines()), tgt=write_lines(f"{name}.de", lines()))


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (TokenizerConfig(type="bpe", vocab_size=300), 10),
        (TokenizerConfig(type="unigram", vocab_size=290, joint=False), 10),
        (TokenizerConfig(type="char", joint=False), 40),
        (TokenizerConfig(type="word", vocab_size=9), 10),
    ],
    ids=["bpe", "unigram", "char", "word"],
)
def test_the_encoded_corpus_is_each_line_encoded(
    write_lines: WriteLines, tmp_path: Path, config: TokenizerConfig, limit: int
) -> None:
    corpora = [random_corpus(write_lines, "a", 300, seed=1), random_corpus(write_lines, "b", 50, seed=2)]
    folder = tmp_path / "tokenizer"
    tokenizers = ensure_tokenizers(corpora, config, folder)

    expected = []
    empty = too_long = 0
    for files in corpora:
        src_lines = files.src.read_bytes().decode().split("\n")[:-1]
        tgt_lines = files.tgt.read_bytes().decode().split("\n")[:-1]
        for src, tgt in zip(src_lines, tgt_lines, strict=True):
            pair = (tokenizers.src.encode(normalize(src)), tokenizers.tgt.encode(normalize(tgt)))
            if not pair[0] or not pair[1]:
                empty += 1
            elif len(pair[0]) > limit or len(pair[1]) > limit:
                too_long += 1
            else:
                expected.append(pair)
    assert empty > 10
    assert too_long > 10
    assert len(expected) > 10

    corpus = encode_corpus(corpora, tokenizers, folder, limit)
    assert rows(corpus) == expected
    assert corpus.src.lengths.tolist() == [len(src) for src, _ in expected]
    assert corpus.tgt.lengths.tolist() == [len(tgt) for _, tgt in expected]
    counts = corpus.counts
    assert counts.as_dict() == {"read": 350, "empty": empty, "too_long": too_long}
    assert counts.kept == len(expected)


def test_an_encoded_corpus_is_opened_again(numbers: CorpusFiles, tokenizer_folder: Path) -> None:
    first = encode_corpus([numbers], Tokenizers(Numbers(), Numbers()), tokenizer_folder, 10)
    for path in (numbers.src, numbers.tgt):
        path.touch()  # newer, and the same text
    (CACHE / first.key / ".DS_Store").touch()  # as macOS leaves it; an empty file cannot be mapped
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(nmt.batches.dataset, "count_pairs", None)  # nor are the lines counted again
        second = encode_corpus([numbers], NEVER, tokenizer_folder, 10)
    assert rows(second) == rows(first) == [([4, 5], [8]), ([6], [9, 10, 11]), ([7], [12])]
    assert second.key == first.key
    assert second.counts == first.counts
    assert set(first.made_from) == {"encoding", "selection", "tokenizer", "0", "1"}  # names that checkpoints keep


def test_a_change_of_text_length_or_tokenizer_encodes_it_again(numbers: CorpusFiles, tokenizer_folder: Path) -> None:
    both = Tokenizers(Numbers(), Numbers())

    def key() -> str:
        return encode_corpus([numbers], both, tokenizer_folder, 10).key

    keys = [key()]
    numbers.src.write_text("4 5\n6\n8\n")
    keys.append(key())
    numbers.tgt.write_text("8\n9 10 11\n13\n")
    keys.append(key())
    (tokenizer_folder / "joint.words").write_text("b\n")
    keys.append(key())
    shorter = encode_corpus([numbers], both, tokenizer_folder, 2)
    keys.append(shorter.key)
    assert rows(shorter) == [([4, 5], [8]), ([8], [13])]
    assert shorter.counts.dropped == {"too_long": 1}
    swapped = CorpusFiles(src=numbers.tgt, tgt=numbers.src)
    other_way = encode_corpus([swapped], both, tokenizer_folder, 10)
    keys.append(other_way.key)
    assert rows(other_way) == [([8], [4, 5]), ([9, 10, 11], [6]), ([13], [8])]
    twice = encode_corpus([numbers, numbers], both, tokenizer_folder, 10)
    keys.append(twice.key)
    assert len(twice) == 6
    assert twice.sizes == (3, 3)
    selection = select([numbers, numbers], CleaningConfig(duplicates="pair"), ("en", "de"))
    once = encode_corpus([numbers, numbers], both, tokenizer_folder, 10, selection)
    keys.append(once.key)
    assert rows(once) == rows(twice)[:3]
    assert once.sizes == (3, 0)
    assert len(set(keys)) == len(keys)


def test_what_changes_no_pair_does_not_encode_it_again(
    numbers: CorpusFiles, tokenizer_folder: Path, write_lines: WriteLines
) -> None:
    both, rules = Tokenizers(Numbers(), Numbers()), CleaningConfig(duplicates="pair", overlap=True)
    absent = CorpusFiles(src=write_lines("absent.en", ["9 9"]), tgt=write_lines("absent.de", ["9"]))

    def key(files: CorpusFiles = numbers, cleaning: CleaningConfig = rules, *excluded: CorpusFiles) -> str:
        selection = select([files], cleaning, ("en", "de"), excluded)
        return encode_corpus([files], both, tokenizer_folder, 10, selection).key

    first = key()
    (tokenizer_folder / ".DS_Store").write_text("a desktop's notes")
    compressed = numbers.src.with_name("n.src.gz")
    compressed.write_bytes(gzip.compress(numbers.src.read_bytes()))
    assert {key(), key(CorpusFiles(src=compressed, tgt=numbers.tgt)), key(numbers, rules, absent),
            key(numbers, CleaningConfig())} == {first}  # fmt: skip
    present = CorpusFiles(src=write_lines("present.en", ["6"]), tgt=write_lines("present.de", ["9"]))
    assert key(numbers, rules, present) != first


def test_the_settings_of_a_real_tokenizer_affect_the_encoding(write_lines: WriteLines, tmp_path: Path) -> None:
    files = random_corpus(write_lines, "a", 100, seed=4)
    folder = tmp_path / "tokenizer"
    keys = []
    for size in (8, 9):
        tokenizers = ensure_tokenizers([files], TokenizerConfig(type="word", vocab_size=size), folder)
        corpus = encode_corpus([files], tokenizers, folder, 20)
        assert max(max(src) for src, _ in rows(corpus)) == size - 1
        keys.append(corpus.key)
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("src_size", "tgt_size", "dtype"),
    [(2**16, 2**16, "uint16"), (2**16 + 1, 100, "int32"), (100, 2**16 + 1, "int32"), (5, 5, "uint16")],
)
def test_ids_take_two_bytes_while_they_fit(
    write_lines: WriteLines, tokenizer_folder: Path, src_size: int, tgt_size: int, dtype: str
) -> None:
    files = CorpusFiles(
        src=write_lines("n.src", [f"4 {src_size - 1}"]), tgt=write_lines("n.tgt", [f"{tgt_size - 1} 4 4"])
    )
    tokenizers = Tokenizers(Numbers(src_size), Numbers(tgt_size))
    corpus = encode_corpus([files], tokenizers, tokenizer_folder, 10)
    assert rows(corpus) == [([4, src_size - 1], [tgt_size - 1, 4, 4])]
    assert {side.dtype.name for side in corpus[0]} == {dtype}
    assert (CACHE / corpus.key / "src.ids").stat().st_size == 2 * np.dtype(dtype).itemsize


def test_the_ids_are_a_memory_map_that_cannot_be_written(numbers: CorpusFiles, tokenizer_folder: Path) -> None:
    corpus = encode_corpus([numbers], Tokenizers(Numbers(), Numbers()), tokenizer_folder, 10)
    for side in corpus[1]:
        assert isinstance(side, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            side[0] = 3


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="asks Linux what is mapped")
def test_a_corpus_that_is_deleted_while_it_is_open_is_written_again(
    numbers: CorpusFiles, tokenizer_folder: Path
) -> None:
    """Each epoch's workers open its files."""
    corpus = encode_corpus([numbers], Tokenizers(Numbers(), Numbers()), tokenizer_folder, 10)
    expected, before = rows(corpus), {path.name: path.read_bytes() for path in (CACHE / corpus.key).iterdir()}
    shutil.rmtree(CACHE)
    assert corpus.line_numbers(np.array([2, 0])) == {0: [1, 3]}
    of_worker = pickle.loads(pickle.dumps(corpus))
    assert rows(of_worker) == rows(corpus) == expected
    assert {path.name: path.read_bytes() for path in (CACHE / corpus.key).iterdir()} == before


def test_pages_that_were_read_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, length = 40_000, 50
    np.zeros(count * length, dtype=np.uint16).tofile(tmp_path / "src.ids")
    np.full(count, length, dtype=np.int32).tofile(tmp_path / "src.lengths")
    np.arange(0, count * length, length, dtype=np.uint32).tofile(tmp_path / "src.starts")

    def mapped_kilobytes() -> int:
        after_name = Path("/proc/self/smaps").read_text().partition(str(tmp_path / "src.ids"))[2]
        return int(after_name.partition("\nRss:")[2].split()[0])

    side = EncodedSide(tmp_path, "src", "uint16", "uint32", OWN_SPECIAL_IDS)
    order = np.random.default_rng(0).permutation(count)
    monkeypatch.setattr(nmt.batches.dataset, "_PAIRS_MAPPED", 10**9)
    ids, lengths = side.gather(order)
    assert (len(ids), set(lengths.tolist())) == (count * length, {length})
    assert mapped_kilobytes() > 3000
    monkeypatch.setattr(nmt.batches.dataset, "_PAIRS_MAPPED", 1000)
    side.gather(order[:1001])
    assert mapped_kilobytes() == 0


def test_places_beyond_four_billion_take_eight_bytes(tmp_path: Path) -> None:
    lengths = np.array([3, 1 << 30, 1 << 30, 5, (1 << 31) - 1, 7], dtype=np.int32)
    for last, dtype in ((4, "uint32"), (6, "int64")):
        for side in ("src", "tgt"):
            lengths[:last].tofile(tmp_path / f"{side}.lengths")
        assert nmt.batches.dataset._write_starts(tmp_path) == dtype
        starts = np.fromfile(tmp_path / "tgt.starts", dtype=dtype).tolist()
        assert starts == [0, *np.cumsum(lengths[: last - 1], dtype=np.int64).tolist()]


def test_a_corpus_without_usable_pairs_is_refused_with_the_reasons(
    write_lines: WriteLines, tokenizer_folder: Path
) -> None:
    files = CorpusFiles(
        src=write_lines("n.src", ["4 5 6", "", "4", ""]), tgt=write_lines("n.tgt", ["4", "4", "4 5 6", ""])
    )
    with pytest.raises(DataError) as caught:
        encode_corpus([files], Tokenizers(Numbers(), Numbers()), tokenizer_folder, 2)
    message = str(caught.value)
    assert f"{files.src}: no pair is left of 4: 2 have an empty side, 2 are longer than" in message
    assert "data.max_length (2)" in message
    assert [path for path in CACHE.iterdir() if path.suffix != ".lock"] == []


def test_interrupted_encoding_leaves_nothing_and_can_be_repeated(numbers: CorpusFiles, tokenizer_folder: Path) -> None:
    with pytest.raises(BrokenOffError):
        encode_corpus([numbers], Tokenizers(Numbers(stops_after=2), Numbers()), tokenizer_folder, 10)
    assert [path for path in CACHE.iterdir() if path.suffix != ".lock"] == []
    assert len(encode_corpus([numbers], Tokenizers(Numbers(), Numbers()), tokenizer_folder, 10)) == 3


def test_sides_that_differ_in_length_are_refused_and_leave_nothing(
    write_lines: WriteLines, tokenizer_folder: Path
) -> None:
    files = CorpusFiles(src=write_lines("n.src", ["4", "5", "6"]), tgt=write_lines("n.tgt", ["4", "5"]))
    with pytest.raises(DataError, match=r"has 3 lines, .* has 2;"):
        encode_corpus([files], Tokenizers(Numbers(), Numbers()), tokenizer_folder, 10)
    assert list(CACHE.glob("*")) == []
