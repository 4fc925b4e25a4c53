"""Rules about a single pair, compared with Unicode's scripts, with Python's codecs, and with sentences written out."""

import contextlib
import pickle
import random
import unicodedata

import pytest
import regex

from nmt.cleaning.rules import PAIR_RULES, PairRules, typical_ratio
from nmt.cleaning.scripts import is_out_of_script, scripts_of
from nmt.config.data import CleaningConfig

SENTENCES = """
„Ärger über die Größe der Äpfel“ – 20 °C…
L’été dernier, « où es-tu allé » ? Ça coûte 5 €…
¿Dónde está el niño? ¡Aquí!
São João não está à mesa; IRMÃ» MANHÃ“
Zażółć gęślą jaźń
Příliš žluţoučký kůň
Съешь ещё этих мягких французских булок
Γειά σου Κόσμε
שלום עולם
مرحبا بالعالم
नमस्ते दुनिया
你好，世界
こんにちは世界
안녕하세요
Tiếng Việt: Ã, Â, đường
Das ist das MENÜ“
CAFÉ™ und RÉSUMÉ…
😀 a dog 😀
""".strip().split("\n")


def violated(src: str, tgt: str, languages: tuple[str, str] = ("en", "de"), **rules: object) -> list[str]:
    return PairRules(CleaningConfig.model_validate(rules), *languages).violated(src, tgt)


def is_badly_encoded(line: str) -> bool:
    return violated("good", line, encoding=True) == ["encoding"]


def numbers_differ(src: str, tgt: str) -> bool:
    return violated(src, tgt, numbers=True) == ["numbers"]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_text_read_in_a_wrong_encoding_is_found_and_right_text_is_not(sentence: str) -> None:
    assert not is_badly_encoded(sentence)
    data = sentence.encode()
    wrong = [data.decode("latin-1"), data.replace(data[-1:], b"\xff").decode("utf-8", "surrogateescape")]
    with contextlib.suppress(UnicodeDecodeError):  # windows-1252 has no characters for five bytes
        wrong.append(data.decode("cp1252"))
    if "\u0400" <= sentence[0] <= "\u04ff":
        wrong.append(data.decode("cp1251"))
    assert [is_badly_encoded(line) for line in wrong] == [True] * len(wrong)


@pytest.mark.parametrize("line", ["MÃ¼nchen", "It doesnâ€™t", "MÃ¼nchen and 北京", "20 Â°C in „Kiel“", "a\ufffdb"])
def test_one_wrong_character_is_enough(line: str) -> None:
    assert violated(line, "gut", encoding=True) == violated("good", line, encoding=True) == ["encoding"]


SCRIPTS = {
    "Hani": "zh", "Hira": "ja", "Hang": "ko", "Latn": "en", "Cyrl": "ru", "Grek": "el", "Arab": "ar", "Hebr": "he",
    "Armn": "hy", "Geor": "ka", "Ethi": "am", "Deva": "hi", "Beng": "bn", "Guru": "pa-Guru", "Gujr": "gu", "Orya": "or",
    "Taml": "ta", "Telu": "te", "Knda": "kn", "Mlym": "ml", "Sinh": "si", "Thaa": "dv", "Tibt": "bo", "Thai": "th",
    "Laoo": "lo", "Khmr": "km", "Mymr": "my",
}  # fmt: skip


def test_letters_are_in_the_scripts_that_unicode_says() -> None:
    numbers = (*range(0x3400), *range(0x3400, 0x20000, 40))
    letters = "".join(one for one in map(chr, numbers) if unicodedata.category(one) in ("Lu", "Ll", "Lo"))
    of_script = {
        script: set(regex.findall(rf"\p{{Script={script}}}", letters)) for script in (*SCRIPTS, "Kana", "Bopo")
    }
    groups = {"zh": "Hani Bopo", "ja": "Hani Hira Kana", "ko": "Hang Hani"}
    checked = set().union(*of_script.values())
    for script, language in SCRIPTS.items():
        own = set().union(*(of_script[one] for one in groups.get(language, script).split()))
        wrong = {one for one in checked if is_out_of_script(one, scripts_of(language)) != (one not in own)}
        assert wrong <= set("ªºℲⅎↃↄ\u212a\u212b\u2126"), language  # signs whose names do not begin with a script


def test_all_languages_of_the_list_have_scripts() -> None:
    from nmt.config.languages import LANGUAGE_CODES

    assert {code for code in LANGUAGE_CODES if not scripts_of(code)} <= {"ae", "ie", "ii", "pi"}  # uncertain
    assert scripts_of("sr") == {"Cyrl", "Latn"}
    assert scripts_of("sr-Latn") == {"Latn"}
    assert scripts_of("zh-Hant") == {"Hani", "Bopo"}


@pytest.mark.parametrize(
    ("src", "tgt", "languages", "is_out"),
    [
        ("A dog", "Ein Hund", "en de", False), ("A dog", "Собака бежит", "en de", True),
        ("A dog", "Собака бежит", "en ru", False), ("A dog", "A dog", "en ru", True),
        ("Install LibreOffice now", "安装 LibreOffice 软件", "en zh", False), ("A dog", "Yi zhi gou", "en zh", True),
        ("A dog", "Yi zhi gou", "en zh-Latn", False), ("カタカナ", "かな漢字", "ja ja", False),
        ("hello", "こんにちは世界", "en zh", True), ("hello", "한국어 漢字", "en ko", False),
        ("A dog", "Pas trči", "en sr", False), ("A dog", "Пас трчи", "en sr", False),
        ("A dog", "Пас трчи", "en hr", True),
        ("2σ: 12 µm", "2σ: 12 µm", "en de", False), ("1914–18", "1914–18", "en ru", False),
        ("The word мир means peace", "Das Wort мир heißt Frieden", "en de", False),
        ("It is 東京 and 大阪 and 京都", "東京", "en ja", False), ("شاي", "چای", "ar fa", False),
    ],
)  # fmt: skip
def test_lines_in_another_script(src: str, tgt: str, languages: str, is_out: bool) -> None:
    one, other = languages.split()
    assert violated(src, tgt, (one, other), script=0.5) == ["script"] * is_out
    assert violated(tgt, src, (other, one), script=0.5) == ["script"] * is_out


def test_the_share_of_the_script_rule_is_the_least_that_is_kept() -> None:
    pair = ("a word", "abcd собак")  # 4 of 9 letters
    assert not violated(*pair, script=4 / 9)
    assert violated(*pair, script=4 / 9 + 0.01) == ["script"]


@pytest.mark.parametrize(
    ("src", "tgt", "differ"),
    [
        ("1,000.5 km", "1.000,5 km", False), ("1,000", "1 000", False), ("1,000", "1\u202f000", False),
        ("10,000,000", "10'000'000", False), ("3.14", "3,14", False), ("in 1914", "im Jahr 1941", True),
        ("two dogs", "2 Hunde", False), ("3 dogs", "5 Hunde", True), ("2020 was bad", "Das Jahr war schlecht", True),
        ("12/31/2020", "31.12.2020", False), ("01/02/2020", "2. 1. 2020", False), ("1, 2 and 3", "1,2,3", False),
        ("12 and ٣٤٥", "١٢ و 345", False), ("１２３", "123", False), ("५०० rupees", "500 Rupien", False),
        ("5 million", "5.000.000", False), ("500万", "5 million", False), ("1.2亿", "120 million", False),
        ("at 5:30 pm", "um 17:30 Uhr", False), ("at 5:30 pm in 1999", "um 17:30 Uhr im Jahr 1998", True),
        ("%1 of %2", "%2 von %1", False), ("Excel&#8482;", "Excel™", False), ("UTF-8", "UTF-16", True),
        ("007", "7", False), ("no number", "keine Zahl", False), ("3 of 30", "3 von 31", True), ("½", "½", False),
        ("x² + 1", "x² + 1", False),
    ],
)  # fmt: skip
def test_numbers(src: str, tgt: str, differ: bool) -> None:
    assert numbers_differ(src, tgt) == numbers_differ(tgt, src) == differ


def test_a_number_may_be_written_in_any_style_and_a_changed_digit_is_found() -> None:
    draws = random.Random(1)
    digits = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９"]
    for _ in range(500):
        number = draws.randrange(1000, 10**9)
        english, other = f"{number:,}.{number % 7}5", f"{number:,}.{number % 7}5"
        other = other.replace(",", "_").replace(".", ",").replace("_", draws.choice([".", "", "'", "\u00a0", "٬"]))
        other = other.translate(str.maketrans(digits[0], draws.choice(digits)))
        assert not numbers_differ(f"it is {english} m", f"es sind {other} m"), (english, other)
        changed = f"{number + draws.randrange(1, 10)}"
        assert numbers_differ(f"it is {number}", f"es sind {changed}")


@pytest.mark.parametrize(
    ("line", "is_html"),
    [
        ("a <b>dog</b>", True), ("a<br/>b", True), ("<BR>", True), ("AT&amp;T", True), ("a&nbsp;b", True),
        ("&#8482;", True), ("&#x2122;", True), ('<a href="x">', True), ("<emph>x</emph>", True), ("<!-- x -->", True),
        ("a < b and c > d", False), ("AT&T;", False), ("&File", False), ("press <Enter>", False), ("<unknown>", False),
        ("R&D; see <name>", False), ("I <3 you", False), ("x<y", False), ("Tom & Jerry;", False),
    ],
)  # fmt: skip
def test_html(line: str, is_html: bool) -> None:
    assert violated(line, "gut", html=True) == violated("good", line, html=True) == ["html"] * is_html


def test_identical_sides() -> None:
    assert violated("The same text.", "The same text.", identical=True) == ["identical"]
    assert not violated("The same text.", "the same text.", identical=True)
    assert not violated("10:30", "10:30", identical=True)


def test_lengths_are_compared_after_dividing_by_the_typical_ratio() -> None:
    rules = CleaningConfig(length_ratio=3)
    long, short = "a" * 100, "b" * 29  # 3 * 29 + 10 characters
    for ratio in (1.0, 0.5, 2.0):
        of_ratio = PairRules(rules, "en", "zh", ratio)
        assert of_ratio.violated(long, "b" * int(29 * ratio)) == ["length_ratio"]
        assert of_ratio.violated(long, "b" * round(34 * ratio)) == []
    assert PairRules(rules, "en", "de").violated(short, long) == ["length_ratio"]
    assert PairRules(rules, "en", "de").violated("OK", "Einverstanden") == []
    assert typical_ratio([("aaaa", "bb"), ("a a", "b"), ("a", "bbbbbbbb"), ("", "b"), ("a", " ")]) == 0.5
    assert typical_ratio([]) == 1.0


def test_all_rules_that_are_violated_are_named_in_order() -> None:
    cleaning = CleaningConfig(
        length_ratio=2, identical=True, script=0.5, encoding=True, html=True, numbers=True,
    )  # fmt: skip
    rules = pickle.loads(pickle.dumps(PairRules(cleaning, "en", "de")))
    assert rules.violated("<b>MÃ¼ 2023</b>", "Собака бежит по снегу и лает на весь мир без остановки") == [
        "encoding", "html", "script", "numbers", "length_ratio",
    ]  # fmt: skip
    assert rules.violated("собака", "собака") == ["identical", "script"]
    assert rules.violated("A dog", "Ein Hund") == []
    assert PairRules(CleaningConfig(), "en", "de").violated("собака", "собака") == []
    assert set(PAIR_RULES) <= set(CleaningConfig.model_fields)
