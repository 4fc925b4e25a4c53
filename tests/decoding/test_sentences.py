"""Sentences and parts of a text: nothing is lost, and the ends are where a reader sees them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.decoding.sentences import Part, join_parts, split_sentences, split_to_fit

# Sentences of each language, as a reader splits them; joined by the white space that the language has.
TEXTS = {
    "en": [
        "Dr. Smith paid $3.50 at 5 p.m. in Washington, D.C. on Jan. 5.",
        'She asked: "Who is there?"',
        "Nobody, e.g. no dog, answered!",
        "Visit https://example.com/a.b?c=d.",
        "A. Jones left.",
    ],
    "de": [
        "Das ist z.B. ein Test.",
        "Am 3. Oktober kam Dr. Müller mit ca. 5 Leuten bzw. allein.",
        "„Wer ist da?“, rief er.",
        "Niemand!",
    ],
    "fr": ["J'ai vu M. Dupont hier.", "« Viens ! » dit-il.", "Est-ce vrai ?", "Oui."],
    "es": ["¿Qué hora es?", "¡Son las tres!", "El Sr. López llegó."],
    "it": ["Il dott. Rossi è qui.", "Che ora è?"],
    "cs": ["Přišel např. pan Novák.", "Kdo je tam?"],
    "ru": ["Он жил в г. Москве.", "А. С. Пушкин родился там.", "Это так!"],
    "hi": ["यह एक वाक्य है।", "यह दूसरा है।"],
    "ar": ["ما اسمك؟", "اسمي علي."],
    "zh": ["你好。", "今天天气很好！", "他说：“走吧。”", "我们去哪里？"],
    "ja": ["今日は晴れです。", "どこへ行きますか？"],
}
ANY_TEXT = st.text(st.sampled_from('ab .!?\n\t,"。，1M(é\u3000\u200d😀') | st.characters(codec="utf-8"), max_size=60)


@pytest.mark.parametrize("language", TEXTS)
def test_sentences_of_many_languages(language: str) -> None:
    sentences = TEXTS[language]
    space = "" if language in ("zh", "ja") else " "
    assert [part.text for part in split_sentences(space.join(sentences), language)] == sentences


def test_line_ends_and_blank_lines_end_sentences_and_are_kept() -> None:
    text = "  First line\r\nsecond, without end\n\n\n1. A list. 2. Its second item.\t\n"
    assert split_sentences(text, "en") == [
        Part("", "  "),
        Part("First line", "\r\n"),
        Part("second, without end", "\n\n\n"),
        Part("1. A list.", " "),
        Part("2. Its second item.", "\t\n"),
    ]


@pytest.mark.parametrize(
    "address", ["https://example.com/index.php?Title=Foo", "WWW.FOO.DE", "www.foo.de/A.B!C", "Ann.Bell@Example.COM"]
)
def test_nothing_within_an_address_ends_a_sentence(address: str) -> None:
    assert [part.text for part in split_sentences(address, "en")] == [address]
    text = f"See {address} now. And then?"
    assert [part.text for part in split_sentences(text, "en")] == [f"See {address} now.", "And then?"]
    assert len(split_sentences("Visit www.example.com.Then call.", "en")) == 2


@settings(max_examples=200)
@given(text=ANY_TEXT, language=st.sampled_from(["en", "de", "fr", "zh", "ar", "und"]))
def test_nothing_of_a_text_is_lost(text: str, language: str) -> None:
    parts = split_sentences(text, language)
    assert "".join(part.text + part.after for part in parts) == text
    assert all(part.text == part.text.strip() for part in parts)
    assert all(part.text for part in parts[1:])


@settings(max_examples=200)
@given(text=ANY_TEXT, longest=st.integers(1, 10))
def test_parts_that_fit_make_the_text_again(text: str, longest: int) -> None:
    whole = Part(text.strip(), " ")
    parts = split_to_fit(whole, lambda part: len(part) <= longest)  # also if a clause ends with the text
    assert "".join(part.text + part.after for part in parts) == f"{text.strip()} "
    assert all(len(part.text) <= longest for part in parts)


def test_a_long_sentence_is_split_at_the_end_of_the_clause_nearest_to_its_middle() -> None:
    parts = split_to_fit(
        Part("One, two dogs run over a wide green field, while a cat sleeps in 3,000 beds; nobody knows why"),
        lambda text: len(text.split()) <= 12,
    )
    assert [part.text for part in parts] == [
        "One, two dogs run over a wide green field,",
        "while a cat sleeps in 3,000 beds; nobody knows why",
    ]


def test_without_clauses_it_is_split_at_spaces_and_within_words_only_if_it_must() -> None:
    words = Part("aa bb cc dd eeeeeeee")
    assert [part.text for part in split_to_fit(words, lambda text: len(text) <= 5)] == [
        "aa",
        "bb cc",
        "dd",
        "eeee",
        "eeee",
    ]
    # A family of three emoji is one character of five code points.
    family = "👩\u200d👩\u200d👧"
    assert [part.text for part in split_to_fit(Part(f"x{family}yz"), lambda text: len(text) <= 6)] == [
        f"x{family}",
        "yz",
    ]


@pytest.mark.parametrize(
    ("src_lang", "tgt_lang", "separator", "expected"),
    [
        ("en", "de", " ", "A. B."),
        ("en", "de", "\n\n", "A.\n\nB."),
        ("en", "zh", " ", "A.B."),
        ("en", "zh", "  ", "A.  B."),
        ("zh", "en", "", "A. B."),
        ("zh", "en", "\n", "A.\nB."),
        ("zh", "ja", "", "A.B."),
        ("en", "th", " ", "A. B."),  # whose words alone have no spaces between them
        ("en", "lo", " ", "A. B."),
        ("th", "km", " ", "A. B."),
        ("th", "ja", " ", "A.B."),
        ("zh-Hant", "th", "", "A. B."),
        ("th", "en", "", "A. B."),
        ("th", "lo", "", "A.B."),  # a sentence that was split
        ("de", "en", "", "A.B."),  # a word that was split
    ],
)
def test_white_space_between_translations(src_lang: str, tgt_lang: str, separator: str, expected: str) -> None:
    parts = [Part("a", separator), Part("b")]
    assert join_parts(parts, ["A.", "B."], src_lang, tgt_lang) == expected


@pytest.mark.parametrize("text", ["字，", "ab,", "a,b"])
def test_two_or_three_characters_are_split(text: str) -> None:
    parts = split_to_fit(Part(text), lambda part: len(part) < 2)
    assert [part.text for part in parts] == list(text)
