"""Reading parallel text: what ends a line, what is refused, and which pairs are dropped."""

import gzip
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conftest import assert_says, refused, unread_tokenizer

from nmt.batches.dataset import encode_corpus
from nmt.cleaning.normalize import normalize
from nmt.config.corpus import CorpusFiles
from nmt.corpora.hashes import file_hash
from nmt.corpora.lines import read_lines
from nmt.corpora.pairs import count_pairs, read_pairs
from nmt.errors import DataError
from nmt.tokenizers.tokenizer import Tokenizers
from nmt.tokenizers.vocabulary import OWN_SPECIAL_IDS

DAMAGED = bytearray(gzip.compress(b"hello world\n" * 1000))
DAMAGED[20] ^= 0xFF
DAMAGED[25] ^= 0x55
WriteLines = Callable[[str, list[str]], Path]

# The characters besides "\n" at which `str.splitlines` splits.
NOT_LINE_ENDS = ["\x0b", "\x0c", "\r", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


def lines_of(path: Path, content: bytes) -> list[str]:
    path.write_bytes(content)
    return list(read_lines(path))


@pytest.mark.parametrize("character", NOT_LINE_ENDS, ids=lambda character: f"U+{ord(character):04X}")
def test_a_character_that_is_not_a_newline_does_not_end_a_line(tmp_path: Path, character: str) -> None:
    lines = [f"one{character}two", "", f"{character}three", "four"]
    assert lines_of(tmp_path / "a.en", "\n".join(lines).encode() + b"\n") == lines


def test_a_carriage_return_inside_a_line_does_not_end_it(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "a.en", b"one\rtwo\r\nthree\n") == ["one\rtwo", "three"]


def test_one_carriage_return_before_the_newline_belongs_to_the_line_end(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "a.en", b"one\r\n\r\ntwo\r\r\nthree\r") == ["one", "", "two\r", "three"]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"one", ["one"]),
        (b"one\n", ["one"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\n\n", ["one", ""]),
        (b" one \t\n", [" one \t"]),
    ],
)
def test_a_final_newline_may_be_missing_and_white_space_stays(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    assert lines_of(tmp_path / "a.en", content) == lines


def test_a_byte_order_mark_is_dropped_at_the_start_and_nowhere_else(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    assert lines_of(tmp_path / "a.en", mark + b"one\n" + mark + b"two\n") == ["one", "\ufefftwo"]
    assert lines_of(tmp_path / "b.en", mark + mark + b"one\n") == ["\ufeffone"]


def test_random_text_comes_back_line_by_line(tmp_path: Path) -> None:
    chance = random.Random(5)
    alphabet = [*NOT_LINE_ENDS, *"abc 学习 é😀", "\u200b", "\xa0"]
    lines = ["".join(chance.choices(alphabet, k=chance.randrange(8))) + "." for _ in range(500)]
    content = "".join(f"{line}\n" for line in lines).encode()
    assert lines_of(tmp_path / "a.en", content) == lines
    assert lines_of(tmp_path / "b.en", content.replace(b"\n", b"\r\n")) == lines


def test_a_gz_file_is_decompressed(tmp_path: Path) -> None:
    content = "\ufeffeins\rzwei\r\ndr\u00fc\u2028ben\n\nohne Ende".encode()
    plain = lines_of(tmp_path / "a.de", content)
    assert plain == ["eins\rzwei", "dr\u00fc\u2028ben", "", "ohne Ende"]
    assert lines_of(tmp_path / "a.de.gz", gzip.compress(content)) == plain


@pytest.mark.parametrize(
    "content",
    [b"not gzip\n", gzip.compress(b"cut short\n" * 1000)[:-12], bytes(DAMAGED)],
    ids=["not gzip", "cut short", "damaged"],
)
def test_a_gz_file_that_is_damaged_is_named(tmp_path: Path, content: bytes) -> None:
    with refused(DataError, f"{tmp_path}/a.en.gz: cannot be read"):
        lines_of(tmp_path / "a.en.gz", content)


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"ok\nK\xf6ln\nok\n", 2), (b"\xff\xfeo\x00k\x00", 1), (b"a\nb\n\xe4\xbd", 3), (b"a\n\xed\xa0\x80\n", 2)],
    ids=["latin-1", "utf-16", "cut inside a character", "surrogate"],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_text_that_is_not_utf8_is_named_with_its_line(
    tmp_path: Path, content: bytes, line: int, compressed: bool
) -> None:
    path = tmp_path / ("a.en.gz" if compressed else "a.en")
    with refused(DataError, f"{path}:{line}: not UTF-8"):
        lines_of(path, gzip.compress(content) if compressed else content)


@pytest.mark.parametrize("name", ["absent.en", "absent.en.gz"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with refused(DataError, f"{tmp_path / name}: no such file"):
        list(read_lines(tmp_path / name))
    with refused(DataError, f"{tmp_path / name}: "):
        file_hash(tmp_path / name)


def test_a_folder_is_not_a_text(tmp_path: Path) -> None:
    with refused(DataError, f"{tmp_path}: cannot be read"):
        list(read_lines(tmp_path))


def test_pairs_are_lines_of_equal_number(write_lines: WriteLines) -> None:
    files = CorpusFiles(
        src=write_lines("a.en", ["a\u2028b", "", "c\x85"]), tgt=write_lines("a.de", ["x", "y\x0by", ""])
    )
    assert list(read_pairs(files)) == [("a\u2028b", "x"), ("", "y\x0by"), ("c\x85", "")]


@pytest.mark.parametrize(("src_count", "tgt_count"), [(3, 2), (2, 3), (1, 1200), (1201, 1200), (0, 4), (4, 0)])
def test_sides_that_differ_in_length_are_refused_with_both_counts(
    write_lines: WriteLines, src_count: int, tgt_count: int
) -> None:
    files = CorpusFiles(src=write_lines("a.en", ["s"] * src_count), tgt=write_lines("a.de", ["t"] * tgt_count))
    for read in (lambda: list(read_pairs(files)), lambda: count_pairs([files])):
        with pytest.raises(DataError) as caught:
            read()
        assert f"{files.src} has {src_count:,} lines" in str(caught.value)
        assert f"{files.tgt} has {tgt_count:,};" in str(caught.value)


def test_the_pairs_of_all_corpora_are_counted(write_lines: WriteLines) -> None:
    first = CorpusFiles(src=write_lines("a.en", ["a", ""]), tgt=write_lines("a.de", ["", "x"]))
    second = CorpusFiles(src=write_lines("b.en", ["a"] * 40), tgt=write_lines("b.de", ["x"] * 40))
    assert count_pairs([first]) == 2
    assert count_pairs([first, second]) == 42


def test_a_corpus_without_lines_is_refused_though_another_has_some(write_lines: WriteLines) -> None:
    full = CorpusFiles(src=write_lines("a.en", ["a"]), tgt=write_lines("a.de", ["x"]))
    empty = CorpusFiles(src=write_lines("b.en", []), tgt=write_lines("b.de", []))
    with refused(DataError, f"{empty.src} and {empty.tgt}", "empty"):
        count_pairs([full, empty])


class _Letters:
    """A tokenizer whose pieces are the letters of a line, so that the count of pieces is obvious."""

    vocab_size = 300
    special = OWN_SPECIAL_IDS

    def normalize(self, line: str) -> str:
        return normalize(line)

    def encode(self, line: str) -> list[int]:
        return [ord(letter) for letter in line.replace(" ", "")]

    def encode_lines(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [self.encode(line) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [chr(index) for index in ids]

    def save(self, stem: Path) -> Path:
        raise NotImplementedError


def test_empty_and_over_long_pairs_are_dropped_and_counted(
    write_lines: WriteLines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unread_tokenizer(tmp_path / "tokenizer")
    pairs = [
        ("abcd", "x"),  # kept: exactly max_length
        ("abcde", "x"),  # too long
        ("a", "vwxyz"),  # too long on the other side
        ("", "x"),  # empty
        ("a", "   "),  # empty after white space
        ("", "vwxyz"),  # empty and too long: counted once
        ("", ""),
        ("b c", "uvwx"),  # kept
        ("abcde", "vwxyz"),  # too long on both: counted once
    ]
    src = write_lines("a.en", [src for src, _ in pairs])
    tgt = write_lines("a.de", [tgt for _, tgt in pairs])
    letters = _Letters()
    corpus = encode_corpus(
        [CorpusFiles(src=src, tgt=tgt)], Tokenizers(letters, letters), tmp_path / "tokenizer", max_length=4
    )
    kept = [tuple(letters.decode(side.tolist()) for side in corpus[index]) for index in range(len(corpus))]
    assert kept == [("abcd", "x"), ("bc", "uvwx")]
    counts = corpus.counts
    assert (counts.as_dict(), counts.kept) == ({"read": 9, "empty": 4, "too_long": 3}, 2)
    assert_says(str(counts), "2 pairs", "empty 4", "too long 3")
