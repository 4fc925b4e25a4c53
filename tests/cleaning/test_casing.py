"""Case and punctuation in the scripts of the world."""

import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from nmt.cleaning.casing import is_in_capitals, lowercase, without_punctuation
from nmt.config.languages import has_case

NO_MARKS = {
    "हिन्दी भाषा।": "हिन्दी भाषा",
    "বাংলা ভাষা!": "বাংলা ভাষা",
    "น้ำใจ (ผู้ใหญ่ๆ) ฯลฯ": "น้ำใจ ผู้ใหญ่ๆ ฯลฯ",
    "ភាសាខ្មែរ។": "ភាសាខ្មែរ",
    "မြန်မာစာ။": "မြန်မာစာ",
    "བོད་སྐད་ཡིན།": "བོད་སྐད་ཡིན",  # the syllable separator is inside a word
    "می\u200cخواهم، کتاب\u200cها؟": "می\u200cخواهم کتاب\u200cها",
    "שָׁלוֹם, צה״ל.": "שָׁלוֹם צה״ל",
    "«Ça va?» l'été — n'est-ce pas...": "Ça va l'été  n'est-ce pas",
    "他说“你好”，然后（走）了。": "他说你好然后走了",
    "３．５キロ、または3.5キロ。": "３．５キロまたは3.5キロ",
    "그는 '안녕'이라고 했다.": "그는 안녕이라고 했다",
    "a--b, c...d _e_": "a--b c...d e",
    "go 👩\u200d🚀 now ☀\ufe0f!": "go  now ",
    "$5 + 50% = AT&T @ 12:30": "5  50  AT&T  12:30",
}


@pytest.mark.parametrize(("text", "plain"), NO_MARKS.items())
def test_punctuation_of_many_scripts(text: str, plain: str) -> None:
    assert without_punctuation(text) == plain


@given(st.text(st.sampled_from("aé\u0301हि .,-'·☀\u200d5")))
def test_punctuation_is_what_unicode_calls_so_at_the_edge_of_words(text: str) -> None:
    """Against a regular-expression engine that supports Unicode categories, which `re` does not."""
    run = r"(?>[\p{P}\p{S}][\p{P}\p{S}\p{M}\p{Cf}]*)"
    at_an_edge = rf"(?<![\p{{P}}\p{{S}}])(?:(?<=^|\s){run}|{run}(?=$|\s))"
    assert without_punctuation(text) == regex.sub(at_an_edge, "", text)


@given(st.text(max_size=30))
def test_nothing_else_is_lost(text: str) -> None:
    """Only punctuation, symbols, and marks that combine with them are removed: no letter, number or space."""
    kept = [c for c in without_punctuation(text) if unicodedata.category(c)[0] in "LNZ"]
    assert kept == [c for c in text if unicodedata.category(c)[0] in "LNZ"]


@pytest.mark.parametrize("text", ["हिन्दी", "你好", "ภาษาไทย", "العربية", "עברית", "ქართული", "ᎣᏏᏲ ᏩᏙ", "አማርኛ"])
def test_a_script_without_case_has_no_lowercase(text: str) -> None:
    assert lowercase(text) == lowercase(text, dotless_i=True) == text
    assert not is_in_capitals(f"{text} {text}")


def test_case_is_the_languages() -> None:
    assert lowercase("DİYARBAKIR I\u0307", dotless_i=True) == "diyarbakır i"
    assert lowercase("ΟΔΟΣ ΣΟΦΟΣ") == "οδος σοφος"
    assert lowercase("STRASSE ᎣᏏᏲ OK") == "strasse ᎣᏏᏲ ok"


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("NO PARKING!", True),
        ("NO Parking", False),
        ("STOP", False),
        ("NASA 2024", False),
        ("ВХОД ЗАПРЕЩЁН", True),
        ("我 在 IBM 工作", False),
        ("", False),
    ],
)
def test_a_line_in_capitals(line: str, is_one: bool) -> None:
    assert is_in_capitals(line) is is_one


WORDS = {
    "de": "haus", "vi": "đường", "ru": "дом", "sr": "кућа", "el": "σπίτι", "hy": "տուն", "ff-Adlm": "𞤨𞤵𞤤𞤢𞤪",
    "osa": "𐓘𐓻𐓘𐓻𐓟", "hi": "घर", "bn": "বাড়ি", "ta": "வீடு", "th": "บ้าน", "km": "ផ្ទះ", "my": "အိမ်", "he": "בית",
    "ar": "بيت", "ur": "گھر", "am": "ቤት", "ka": "სახლი", "ko": "집", "ja": "いえ", "zh": "房子", "yue": "屋企",
    "zh-Latn": "fangzi", "uz-Arab": "اوی",
}  # fmt: skip


@pytest.mark.parametrize(("language", "word"), WORDS.items())
def test_a_language_has_case_if_a_word_of_it_can_begin_with_a_capital(language: str, word: str) -> None:
    assert has_case(language) == (word[:1].title() != word[:1])
    assert has_case("")
