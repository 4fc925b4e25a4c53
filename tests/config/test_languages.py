"""Text of many languages round-trips, to the character."""

import unicodedata
from pathlib import Path

import pytest

from nmt.batches.encoding import Job, encode_block
from nmt.cleaning.normalize import normalize
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TokenizerConfig
from nmt.corpora.lines import read_lines
from nmt.corpora.pairs import Block
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizers
from nmt.tokenizers.vocabulary import UNK_ID

TINY = Path(__file__).parents[2] / "data" / "tiny"
SIZES = {"bpe": 1500, "unigram": 1500, "char": 2000}

# Each is in NFC, so that normalization does not change it.
TEXTS = {
    "Thai": "น้ำใจ ผู้ใหญ่ ก็ ฤๅษี ๑๒๓",
    "Lao": "ສະບາຍດີ ເຈົ້າ",
    "Arabic with vowel signs": "بِسْمِ ٱللَّهِ ﴿١﴾ لا",
    "Persian with a zero-width non-joiner": "می\u200cخواهم کتاب‌ها",
    "Hebrew with points": unicodedata.normalize("NFC", "שָׁלוֹם עֲלֵיכֶם ״צה״ל״"),
    "Devanagari": unicodedata.normalize("NFC", "क्षत्रिय हिन्दी क़लम क्\u200dष"),
    "Tamil": "தமிழ் கொ ஸ்ரீ",
    "Khmer": "ភាសាខ្មែរ ស្ត្រី",
    "Tibetan": "བོད་སྐད་ཡིན།",
    "Hangul": "안녕하세요 한국어 뷁",
    "Old Hangul, of letters that have no syllable": "\u1112\u119e\u11ab \u1100\u119e",
    "Vietnamese": "Tiếng Việt: ữ ỗ ặ, đường phố",
    "Chinese, rare": "𠮷野家 𪚥 㐂 邉󠄀",
    "Japanese": "ｶﾞギュウ　々〆ヶ ゛",
    "Greek and Coptic": "Ἀθῆναι ᾧ ϣⲁ",
    "Amharic": "አማርኛ ፩፪",
    "Ge'ez, Cherokee, Inuktitut": "ሀለሐ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ",
    "Gothic, Cuneiform": "𐌲𐌿𐍄𐌹𐍃𐌺 𒀀𒀭",
    "emoji": "👨‍👩‍👧‍👦 👩🏽‍🚀 🏴󠁧󠁢󠁳󠁣󠁴󠁿 🇩🇪🇨🇳 1️⃣ ❤️ ☺︎",
    "line and paragraph separators": "a\u2028b\u2029c\u0085d\x0be\x0cf\rg\x1ch",
    "white space inside": "a\u00a0! b\u3000c\u202fd\u2009e\tf",
    "zero-width": "a\u200bb\u200dc\u2060d\ufeffe\u00adf\u200e\u200f\u202eg\u202c",
    "NUL and controls": "a\x00b\x01c\x7fd\x9fe",
    "private, unassigned, last": "\ue000 \u0378 \U0010ffff \ufffd \ufffe",
    "names of special pieces": "<s> </s> <pad> <unk> <0x41> [UNK] ⁇",
    "many accents": unicodedata.normalize("NFC", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘"),
}

# Every 331st assigned character (some hundreds, of all scripts), without surrogates and private ones.
SAMPLE = [chr(code) for code in range(1, 0x110000, 331) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]


@pytest.fixture(scope="module", params=sorted(SIZES))
def tokenizer(request: pytest.FixtureRequest) -> SentencePieceTokenizer:
    """A tokenizer of English and Chinese sentences."""
    lines = [line for name in ("train.en", "train.zh") for line in read_lines(TINY / name)]
    return SentencePieceTokenizer.train(lines, TokenizerConfig(type=request.param, vocab_size=SIZES[request.param]))


@pytest.mark.parametrize("language", TEXTS)
def test_text_of_any_language_round_trips(tokenizer: SentencePieceTokenizer, language: str) -> None:
    text = TEXTS[language]
    assert normalize(text) == text
    encoded = text.encode()
    tokenizers = Tokenizers(tokenizer, tokenizer)
    if "\x00" in text:  # the reader refuses it
        ids = tokenizer.encode(text)
    else:
        files = CorpusFiles(src=Path("s"), tgt=Path("t"))
        block = Block("s", "t", 2, encoded + b"\n", encoded + b"\r\n", files)
        done = encode_block(block, tokenizers, Job(999, "int32"))
        ids = done.src_ids.tolist()
        assert done.tgt_ids.tolist() == ids == tokenizer.encode(text)
    assert UNK_ID not in ids
    assert tokenizer.decode(ids).encode() == encoded


def test_hundreds_of_characters_of_all_scripts_come_back(tokenizer: SentencePieceTokenizer) -> None:
    assert len(SAMPLE) > 400
    assert len({unicodedata.name(char, "?").split()[0] for char in SAMPLE}) > 60
    for char in SAMPLE:
        for text in (char, f"the {char} dog{char}{char}", f" {char} "):
            ids = tokenizer.encode(text)
            assert UNK_ID not in ids
            assert tokenizer.decode(ids) == text
    every = "".join(SAMPLE)
    assert tokenizer.decode(tokenizer.encode(every)) == every


@pytest.mark.parametrize("text", ["Tiếng Việt", "한국어", "é ñ ü Å", "が ぎ", "שׁ", "क़"])
def test_one_text_typed_in_several_ways_is_one_to_the_model(tokenizer: SentencePieceTokenizer, text: str) -> None:
    ways = {text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))}
    assert len({normalize(way) for way in ways}) == 1
    if text == "한국어":
        assert len(unicodedata.normalize("NFD", text)) == 8  # its letters, one by one
        assert normalize(unicodedata.normalize("NFD", text)) == text
    assert all(tokenizer.decode(tokenizer.encode(way)) == way for way in ways)  # distinguished by a tokenizer


@pytest.mark.parametrize(
    "text", ["", " ", "   ", "\t", "\u3000", "\u2028", "\u0085", "\xa0\u2003", "\u2581", " \u2581 "]
)
def test_a_line_of_white_space_alone_is_empty(tokenizer: SentencePieceTokenizer, text: str) -> None:
    assert normalize(text) == ""
    assert tokenizer.encode(normalize(text)) == []


@pytest.mark.parametrize("text", ["\u200b", "\ufeff", "\u00ad", "\u2060"])
def test_a_line_that_only_looks_empty_is_not(tokenizer: SentencePieceTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(normalize(text))) == text


def test_sentencepieces_own_mark_is_a_space(tokenizer: SentencePieceTokenizer) -> None:
    assert normalize("\u2581the\u2581\u2581dog \u2581") == "the dog"
    assert tokenizer.decode(tokenizer.encode("the\u2581dog")) == "the dog"
