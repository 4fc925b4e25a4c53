"""Text to ids and back, for every kind of tokenizer, and how its vocabulary is built and kept."""

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.cleaning.normalize import normalize
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TokenizerConfig
from nmt.errors import RunError, VocabularyError
from nmt.tokenizers.building import ensure_tokenizers, train_tokenizers
from nmt.tokenizers.statistics import side_report
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer, WordTokenizer, load_tokenizers, save_tokenizers
from nmt.tokenizers.vocabulary import BOS_ID, EOS_ID, PAD_ID, SPECIAL_PIECES, UNK_ID

Kind = Literal["bpe", "unigram", "char", "word"]
KINDS: tuple[Kind, ...] = ("bpe", "unigram", "char", "word")
SUBWORD: tuple[Kind, ...] = ("bpe", "unigram", "char")
WriteLines = Callable[[str, list[str]], Path]

EN = ("the", "a", "small", "big", "red", "dog", "cat", "house", "sees", "likes", "and", "children", "playing", "it's")
DE = ("der", "die", "ein", "kleine", "große", "rote", "Hund", "Katze", "Häuser", "sieht", "mögen", "und", "über", "süß")
SPELLED = ["</s>", "<pad>", "<s>", "<unk>", "a </s> b", "x<pad>y", "</s></s>", "<s>der</s>", "<0x41>", "▁</s>"]


def sentences(words: tuple[str, ...], seed: int, count: int = 200) -> list[str]:
    """Sentences of random words, each with a longer word composed of two."""
    chance = random.Random(seed)
    return [
        " ".join([*chance.choices(words, k=chance.randint(1, 9)), chance.choice(words) + chance.choice(words)])
        for _ in range(count)
    ]


EN_LINES, DE_LINES = sentences(EN, 1), sentences(DE, 2)


@pytest.fixture
def corpus(write_lines: WriteLines) -> CorpusFiles:
    """200 sentence pairs of few words."""
    return CorpusFiles(src=write_lines("train.en", EN_LINES), tgt=write_lines("train.de", DE_LINES))


def settings_for(kind: Kind, joint: bool = True, byte_fallback: bool = True) -> TokenizerConfig:
    """A size that the corpus allows; `char` and `word` use the available size."""
    size = (70 if joint else 45) + 256 * byte_fallback if kind in ("bpe", "unigram") else 1000
    return TokenizerConfig(type=kind, vocab_size=size, joint=joint, byte_fallback=byte_fallback)


def trained(kind: Kind, lines: list[str], byte_fallback: bool = True) -> Tokenizer:
    config = settings_for(kind, byte_fallback=byte_fallback)
    return WordTokenizer.train(lines, config) if kind == "word" else SentencePieceTokenizer.train(lines, config)


BOTH_LINES = EN_LINES + DE_LINES
WITH_BYTES = {kind: trained(kind, BOTH_LINES) for kind in KINDS}
WITHOUT_BYTES = {kind: trained(kind, BOTH_LINES, byte_fallback=False) for kind in SUBWORD}


# ------------------------------------------------------------------------------------------------- the ids


@pytest.mark.parametrize("kind", KINDS)
def test_the_special_pieces_have_the_first_four_ids(kind: Kind) -> None:
    assert (PAD_ID, BOS_ID, EOS_ID, UNK_ID) == (0, 1, 2, 3)
    assert WITH_BYTES[kind].pieces(range(4)) == ["<pad>", "<s>", "</s>", "<unk>"]
    pieces = WITH_BYTES[kind].pieces(range(WITH_BYTES[kind].vocab_size))
    assert len(set(pieces)) == len(pieces)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("joint", [True, False])
def test_saved_and_loaded_tokenizers_give_the_same_ids(
    corpus: CorpusFiles, tmp_path: Path, kind: Kind, joint: bool
) -> None:
    made = train_tokenizers([corpus], settings_for(kind, joint))
    save_tokenizers(made, tmp_path / "run" / "tokenizer", "origin")
    loaded = load_tokenizers(tmp_path / "run" / "tokenizer")
    assert made.joint is loaded.joint is joint
    unseen = ["Äquator 😀", "zebra", "", "the HUND"]
    for before, after in ((made.src, loaded.src), (made.tgt, loaded.tgt)):
        lines = [*EN_LINES, *DE_LINES, *unseen]
        assert [after.encode(line) for line in lines] == [before.encode(line) for line in lines]
        assert after.vocab_size == before.vocab_size
        every = range(before.vocab_size)
        assert after.pieces(every) == before.pieces(every)


@pytest.mark.parametrize("kind", KINDS)
def test_separate_vocabularies_know_their_own_side(corpus: CorpusFiles, kind: Kind) -> None:
    made = train_tokenizers([corpus], settings_for(kind, joint=False, byte_fallback=False))
    assert not any(UNK_ID in made.src.encode(line) for line in EN_LINES)
    assert not any(UNK_ID in made.tgt.encode(line) for line in DE_LINES)
    assert UNK_ID in made.src.encode("süß")
    assert UNK_ID in made.tgt.encode("playing")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("joint", [True, False])
def test_a_subword_vocabulary_has_the_requested_size(corpus: CorpusFiles, kind: Kind, joint: bool) -> None:
    made = train_tokenizers([corpus], TokenizerConfig(type=kind, vocab_size=300, joint=joint))
    assert (made.src.vocab_size, made.tgt.vocab_size) == (300, 300)


def test_a_character_vocabulary_holds_the_characters_and_no_more() -> None:
    characters = set("".join(BOTH_LINES).replace(" ", "▁"))
    assert WITHOUT_BYTES["char"].vocab_size == 4 + len(characters)
    assert set(WITHOUT_BYTES["char"].pieces(range(4, 4 + len(characters)))) == characters
    assert WITH_BYTES["char"].vocab_size == 4 + 256 + len(characters)


@pytest.mark.parametrize("kind", KINDS)
def test_text_of_the_corpus_round_trips(kind: Kind) -> None:
    for line in BOTH_LINES:
        ids = WITH_BYTES[kind].encode(line)
        assert WITH_BYTES[kind].decode(ids) == line
        assert min(ids) > UNK_ID


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_without_characters_has_no_ids(kind: Kind) -> None:
    assert WITH_BYTES[kind].encode("") == []
    assert WITH_BYTES[kind].decode([]) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_are_skipped_in_decoding(kind: Kind) -> None:
    tokenizer = WITH_BYTES[kind]
    ids = tokenizer.encode("der kleine Hund")
    mixed = [BOS_ID, *(index for pair in ids for index in (UNK_ID, pair)), EOS_ID, PAD_ID, PAD_ID]
    assert tokenizer.decode(mixed) == "der kleine Hund"


@pytest.mark.parametrize("kind", SUBWORD)
@pytest.mark.parametrize(
    "line", ["😀", "学习 hund", "\x00", "a\x00b", "zażółć gęślą", "x\u2028y", "q\ty", "\ufffd", "日本語。", "\x7f\x01"]
)
def test_unseen_characters_round_trip_through_bytes(kind: Kind, line: str) -> None:
    ids = WITH_BYTES[kind].encode(line)
    assert min(ids) > UNK_ID
    assert WITH_BYTES[kind].decode(ids) == line


@pytest.mark.parametrize("kind", SUBWORD)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), min_size=1, max_size=30))
def test_any_text_round_trips_through_bytes(kind: Kind, text: str) -> None:
    ids = WITH_BYTES[kind].encode(text)
    assert min(ids) > UNK_ID
    assert WITH_BYTES[kind].decode(ids) == text


@pytest.mark.parametrize("kind", SUBWORD)
def test_an_unseen_character_is_unknown_without_bytes(kind: Kind) -> None:
    tokenizer = WITHOUT_BYTES[kind]
    for line in ("😀", "\x00", "学", "der 😀 Hund"):
        ids = tokenizer.encode(line)
        assert ids.count(UNK_ID) == 1
    assert tokenizer.decode(tokenizer.encode("der😀 Hund")) == "der Hund"


def test_an_unseen_word_is_unknown() -> None:
    ids = WITH_BYTES["word"].encode("der Zebra Hund")
    assert [index == UNK_ID for index in ids] == [False, True, False]
    assert WITH_BYTES["word"].decode(ids) == "der Hund"


@pytest.mark.parametrize("kind", SUBWORD)
def test_a_special_piece_that_is_spelled_out_in_a_text_is_plain_text(kind: Kind) -> None:
    seen_in_training = SentencePieceTokenizer.train(
        [*BOTH_LINES, *(f"{line} {spelled}" for line, spelled in zip(EN_LINES, SPELLED * 20, strict=True))],
        settings_for(kind).model_copy(update={"vocab_size": 340}),
    )
    for tokenizer in (WITH_BYTES[kind], seen_in_training):
        for line in SPELLED:
            ids = tokenizer.encode(line)
            assert min(ids) > UNK_ID, line
            assert tokenizer.decode(ids) == line.replace("▁", " ")


def test_a_special_piece_that_is_spelled_out_is_an_unknown_word() -> None:
    seen_in_training = WordTokenizer.train(["</s> <pad> der <s> <unk>", "</s> der"], settings_for("word"))
    assert seen_in_training.vocab_size == 5
    for tokenizer in (WITH_BYTES["word"], seen_in_training):
        assert tokenizer.encode("</s> <pad> der <s> <unk>")[:2] == [UNK_ID, UNK_ID]
        assert [index == UNK_ID for index in tokenizer.encode("</s> <pad> der <s> <unk>")] == [
            True,
            True,
            False,
            True,
            True,
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_accents_in_nfc_and_nfd_are_equal(kind: Kind) -> None:
    line = "Häuser über süß"
    decomposed = unicodedata.normalize("NFD", line)
    assert len(decomposed) > len(line)
    assert normalize(decomposed) == line
    learnt = trained(kind, [unicodedata.normalize("NFD", line) for line in BOTH_LINES])
    assert [learnt.encode(line) for line in DE_LINES] == [WITH_BYTES[kind].encode(line) for line in DE_LINES]


# ---------------------------------------------------------------------------------------- vocabulary sizes


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_a_vocabulary_that_is_too_large_is_refused_with_the_largest_size(
    corpus: CorpusFiles, kind: Kind, byte_fallback: bool
) -> None:
    config = TokenizerConfig(type=kind, vocab_size=20_000, byte_fallback=byte_fallback)
    with pytest.raises(VocabularyError) as caught:
        train_tokenizers([corpus], config)
    message = str(caught.value)
    assert message.startswith("tokenizer.vocab_size (20,000) is larger than the training corpus allows")
    (written,) = re.findall(r"[\d,]+", message.partition(")")[2])
    largest = int(written.replace(",", ""))
    made = train_tokenizers([corpus], config.model_copy(update={"vocab_size": largest}))
    assert made.src.vocab_size == largest
    with pytest.raises(VocabularyError):
        train_tokenizers([corpus], config.model_copy(update={"vocab_size": largest + 1}))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_a_vocabulary_that_is_too_small_is_refused_with_the_smallest_size(
    corpus: CorpusFiles, kind: Kind, byte_fallback: bool
) -> None:
    smallest = 4 + 256 * byte_fallback + len(set("".join(BOTH_LINES).replace(" ", "▁")))
    for size in (5, smallest - 1):
        config = TokenizerConfig(type=kind, vocab_size=size, byte_fallback=byte_fallback)
        with pytest.raises(VocabularyError) as caught:
            train_tokenizers([corpus], config)
        assert str(caught.value).startswith(f"tokenizer.vocab_size ({size}) is too small")
        assert f"{smallest:,}" in str(caught.value)
    made = train_tokenizers([corpus], config.model_copy(update={"vocab_size": smallest}))
    assert made.src.vocab_size == smallest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lines", [[], [""], ["", "  "]])
def test_a_corpus_without_text_gives_no_vocabulary(write_lines: WriteLines, kind: Kind, lines: list[str]) -> None:
    empty = CorpusFiles(src=write_lines("e.en", lines), tgt=write_lines("e.de", lines))
    with pytest.raises(VocabularyError):
        train_tokenizers([empty], settings_for(kind))


def test_a_word_vocabulary_is_ordered_by_frequency_then_code_point() -> None:
    chance = random.Random(3)
    words = ["".join(chance.choices("abäßzAZ学é.", k=chance.randint(1, 3))) for _ in range(4000)]
    lines = [" ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
    counts = Counter(words)
    expected = sorted(sorted(counts), key=counts.__getitem__, reverse=True)  # sorting is stable
    assert len(set(counts.values())) < len(counts)  # there are ties
    tokenizer = WordTokenizer.train(lines, TokenizerConfig(type="word", vocab_size=5000))
    assert tokenizer.pieces(range(4, tokenizer.vocab_size)) == expected
    cut = WordTokenizer.train(lines, TokenizerConfig(type="word", vocab_size=50))
    assert cut.pieces(range(50)) == [*SPECIAL_PIECES, *expected[:46]]
    assert cut.vocab_size == 50


def test_words_below_the_minimum_frequency_are_unknown() -> None:
    lines = ["a a a b b c", "b d", "a d"]  # a 4, b 3, d 2, c 1
    for least, known in ((1, "abdc"), (2, "abd"), (3, "ab"), (4, "a")):
        tokenizer = WordTokenizer.train(lines, TokenizerConfig(type="word", vocab_size=99, min_frequency=least))
        assert tokenizer.pieces(range(4, tokenizer.vocab_size)) == list(known)
        assert tokenizer.encode("c")[0] == (UNK_ID if least > 1 else 7)
    with pytest.raises(VocabularyError, match=r"occurs 5 times; lower tokenizer\.min_frequency"):
        WordTokenizer.train(lines, TokenizerConfig(type="word", vocab_size=99, min_frequency=5))


def test_a_vocabulary_begins_with_the_special_pieces_and_names_each_word_once() -> None:
    assert WordTokenizer([*SPECIAL_PIECES, "a", "b"]).encode("b x a <s>") == [5, 3, 4, 3]
    for words in ([*SPECIAL_PIECES, "a", "a"], ["a", *SPECIAL_PIECES], ["<s>", "<pad>", "</s>", "<unk>", "a"], []):
        with pytest.raises(ValueError, match="special pieces"):
            WordTokenizer(words)


@pytest.mark.parametrize(("name", "content"), [("joint.model", b"no model"), ("joint.words", b"a\nb\n")])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_text(f'{{"src": "{name}", "tgt": "{name}", "made_from": ""}}')
    with pytest.raises(RunError, match=re.escape(f"{tmp_path / name}: cannot be read as a ")):
        load_tokenizers(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunError, match=re.escape(f"{tmp_path / name}: cannot be read as a ")):
        load_tokenizers(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"src": "a.model"}')
    with pytest.raises(RunError, match=r"tokenizer\.json: tgt: Field required"):
        load_tokenizers(tmp_path)


# ------------------------------------------------------------------------------------ built once, and again


def state_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_are_not_built_again_when_nothing_changed(corpus: CorpusFiles, tmp_path: Path, kind: Kind) -> None:
    folder = tmp_path / "run" / "tokenizer"
    first = ensure_tokenizers([corpus], settings_for(kind), folder)
    before = state_of(folder)
    second = ensure_tokenizers([corpus], settings_for(kind), folder)
    assert state_of(folder) == before
    assert [second.src.encode(line) for line in EN_LINES] == [first.src.encode(line) for line in EN_LINES]


@pytest.mark.parametrize("joint", [True, False])
def test_tokenizers_are_built_again_when_the_text_or_a_setting_changed(
    corpus: CorpusFiles, tmp_path: Path, joint: bool
) -> None:
    folder = tmp_path / "tokenizer"
    config = TokenizerConfig(type="word", joint=joint)
    assert UNK_ID in ensure_tokenizers([corpus], config, folder).tgt.encode("Zebra")
    lines = corpus.tgt.read_text(encoding="utf-8").split("\n")
    corpus.tgt.write_text("\n".join(["Zebra", *lines[1:]]), encoding="utf-8")
    tokenizers = ensure_tokenizers([corpus], config, folder)
    assert UNK_ID not in tokenizers.tgt.encode("Zebra")

    smaller = ensure_tokenizers([corpus], config.model_copy(update={"vocab_size": 9}), folder)
    assert smaller.tgt.vocab_size == 9
    other = ensure_tokenizers([corpus], config.model_copy(update={"joint": not joint}), folder)
    assert other.joint is not joint
    names = {path.name for path in folder.iterdir()}  # no file of the former ones is left
    assert names == {"tokenizer.json"} | ({"src.words", "tgt.words"} if joint else {"joint.words"})


def test_a_second_corpus_is_part_of_the_vocabulary(
    corpus: CorpusFiles, write_lines: WriteLines, tmp_path: Path
) -> None:
    config = TokenizerConfig(type="word")
    more = CorpusFiles(src=write_lines("b.en", ["zebra"]), tgt=write_lines("b.de", ["Zebra"]))
    assert UNK_ID in ensure_tokenizers([corpus], config, tmp_path / "t").src.encode("zebra")
    assert UNK_ID not in ensure_tokenizers([corpus, more], config, tmp_path / "t").src.encode("zebra")


# --------------------------------------------------------------------------------------------------- samples


def numbered(write_lines: WriteLines, name: str, count: int) -> CorpusFiles:
    """Pairs of words that occur nowhere else: `a7 x` and `A7 x`."""
    return CorpusFiles(
        src=write_lines(f"{name}.en", [f"{name}{number}" for number in range(count)]),
        tgt=write_lines(f"{name}.de", [f"{name.upper()}{number}" for number in range(count)]),
    )


def words_of(tokenizer: Tokenizer) -> set[str]:
    return set(tokenizer.pieces(range(4, tokenizer.vocab_size)))


@pytest.mark.parametrize("joint", [True, False])
def test_a_large_corpus_is_sampled_to_the_requested_pairs(write_lines: WriteLines, joint: bool) -> None:
    corpora = [numbered(write_lines, "a", 600), numbered(write_lines, "b", 300)]
    config = TokenizerConfig(type="word", vocab_size=9000, joint=joint, max_train_pairs=300)
    made = train_tokenizers(corpora, config)
    words = words_of(made.src) if joint else words_of(made.src) | words_of(made.tgt)
    sources = {word for word in words if word.islower()}
    assert words == sources | {word.upper() for word in sources}  # pairs, not lines
    assert len(sources) == 300
    of_first = {int(word[1:]) for word in sources if word[0] == "a"}
    assert 160 < len(of_first) < 240  # 200, with a deviation of 6.7
    assert 60 < len({number for number in of_first if number < 300}) < 140
    again = train_tokenizers(corpora, config)
    assert (words_of(again.src), words_of(again.tgt)) == (words_of(made.src), words_of(made.tgt))


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_corpus_is_used_whole(corpus: CorpusFiles, kind: Kind) -> None:
    exactly = settings_for(kind).model_copy(update={"max_train_pairs": 200})
    made, whole = (
        train_tokenizers([corpus], exactly),
        trained(kind, [x for p in zip(EN_LINES, DE_LINES, strict=True) for x in p]),
    )
    every = range(whole.vocab_size)
    assert made.src.pieces(every) == whole.pieces(every)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_lines_are_encoded_together_as_one_by_one(kind: Kind, threads: int) -> None:
    lines = [*EN_LINES, *DE_LINES, *SPELLED, "", "  ", "e\u0301te\u0301 \u1100\u1161", "x\u2028y", "学习 😀"]
    tokenizer = WITH_BYTES[kind]
    assert tokenizer.encode_lines(lines, threads) == [tokenizer.encode(line) for line in lines]
    assert tokenizer.encode_lines([]) == []


# ----------------------------------------------------------------------------------------------- statistics


def test_the_report_of_a_side_agrees_with_a_count_by_hand() -> None:
    words = WordTokenizer.train(["aa bb aa", "ccc"], TokenizerConfig(type="word", vocab_size=99))
    report = side_report(["aa  bb x", "", "ccc yyyy", "aa"], words, "en")
    # 6 words and pieces, two of them unknown; 2 + 2 + 1, 3 + 4 and 2 characters
    assert (report.language, report.vocab_size) == ("en", 7)
    assert report.pieces_per_word == 1.0
    assert report.characters_per_piece == pytest.approx(14 / 6)
    assert report.unknown_share == pytest.approx(2 / 6)


def test_the_report_counts_the_pieces_of_characters_by_hand() -> None:
    characters = SentencePieceTokenizer.train(["ab ba"] * 5, settings_for("char", byte_fallback=False))
    report = side_report(["ab b", "x"], characters, "de")
    # pieces: ▁ a b ▁ b, then ▁ <unk>
    assert report.vocab_size == 4 + 3
    assert report.pieces_per_word == pytest.approx(7 / 3)
    assert report.characters_per_piece == pytest.approx(4 / 7)
    assert report.unknown_share == pytest.approx(1 / 7)


def test_the_report_of_no_text_is_zeros() -> None:
    report = side_report(["", "  "], WITH_BYTES["bpe"], "en")
    assert (report.pieces_per_word, report.characters_per_piece, report.unknown_share) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_a_corpus_of_blanks_holds_no_text(kind: str) -> None:
    with pytest.raises(VocabularyError, match="holds no text"):
        SentencePieceTokenizer.train(["   ", ""], TokenizerConfig(type=kind, vocab_size=300))


def test_a_character_vocabulary_that_is_too_small_says_so() -> None:
    with pytest.raises(VocabularyError, match=r"tokenizer\.vocab_size \(100\) is too small"):
        SentencePieceTokenizer.train(["abc"] * 9, TokenizerConfig(type="char", vocab_size=100))


@pytest.mark.parametrize("kind", SUBWORD)
def test_a_line_that_is_too_long_to_train_on_is_no_part_of_the_vocabulary(kind: Kind) -> None:
    draws = random.Random(1)
    lines = [" ".join("".join(draws.choices("abcdefghij", k=5)) for _ in range(9)) for _ in range(300)]
    config = TokenizerConfig(type=kind, vocab_size=400)
    without, vocabulary = (
        SentencePieceTokenizer.train(text, config)
        for text in (lines, [*lines[:99], "".join(draws.choices("abcdefghij", k=900_000)), *lines[99:]])
    )
    assert vocabulary.normal_pieces() == without.normal_pieces()


def test_a_long_line_is_part_of_the_vocabulary() -> None:
    tokenizer = SentencePieceTokenizer.train(["wort " * 1000, "abc"], TokenizerConfig(type="char", byte_fallback=False))
    assert 3 not in tokenizer.encode("wort")


def test_a_damaged_description_of_tokenizers_is_rebuilt(
    tmp_path: Path, write_lines: Callable[[str, list[str]], Path]
) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("[]")
    files = CorpusFiles(src=write_lines("a.en", ["a"]), tgt=write_lines("a.de", ["b"]))
    assert ensure_tokenizers([files], TokenizerConfig(type="word"), folder).src.vocab_size == 6
