"""Rules of `data.cleaning` about a single pair: what each drops, and what it keeps."""

import pickle
import statistics
import subprocess
import sys
import unicodedata

import pytest

from nmt.cleaning.normalize import normalize
from nmt.cleaning.rules import (
    PAIR_RULES,
    PairRules,
    have_different_numbers,
    is_wrongly_decoded,
    length_of,
    typical_ratio,
)
from nmt.cleaning.scripts import _may_be_outside, is_out_of_script, scripts_of, share_in_script
from nmt.config.data import CleaningConfig
from nmt.errors import ConfigError

SENTENCES = [
    "Die Straße nach München ist größer als früher.", "L’été, où êtes-vous allés ? À Besançon…",
    "El niño pequeño comió una piña en el jardín.", "A ação não é só do irmão, são três maçãs.",
    "Zażółć gęślą jaźń, proszę bardzo.", "Příliš žluťoučký kůň úpěl ďábelské ódy.", "Çocuğun adı Işık değil, Gül’dür.",
    "Árvíztűrő tükörfúrógép.", "Съешь ещё этих мягких французских булок.", "Щастя — це коли тебе розуміють.",
    "Η γρήγορη αλεπού πηδάει πάνω από τον σκύλο.", "שלום לכולם, מה שלומכם היום?", "مرحبا بالعالم، كيف حالك اليوم؟",
    "नमस्ते दुनिया, आप कैसे हैं?", "สวัสดีชาวโลก", "今天天气很好，我们去公园吧。", "日本語の文章です。カタカナもある。",
    "안녕하세요 여러분, 반갑습니다.", "“Don’t go,” she said – “it’s 20 € and 5 °C”.", "Une façon d’être naïf à Noël",
    "ĀĒĪ: Latviešu valodā ir garumzīmes.", "Ísland er fögur þjóð með ævintýri.", "Tôi yêu tiếng Việt và phở bò.",
    "Smörgåsbord på svenska är gott.", "Køb æblegrød på øen.", "A party 🎉 for everyone 😀", "Ωραία! 100 % ½ × 3 ²",
    "ЁЖИК В ТУМАНЕ, ШКОЛА №5", "VÝŠKA, NÍŽE, PŘÍŠTÍ, ČÁST",
    "ŁÓDŹ JEST DUŻA", "ÜBER MENÜ… ÄÖÜ “Ä”", "RĂŞINĂ ŞI CUNOAŞTE",
    "«CAFÉ» et « THÉ »", "MANHÃ” MAÇÃ… IRMÃ»", "BÁNH CUỐN HÀ NỘI",
    "5 Å–10 Å, die Länge in Å", "РІК СІЛЬ РІВНЕ", "ÑANDÚ® ÑU",
    "É…", "È® et É™",
    "ÂGE D’OR, ÎLE, CHÂTEAU", "São Paulo: NÃO SÃO. À”", "ÍŠ ÝŠ ÁŽ", "Ð and ð are letters of Icelandic: SÍÐAN",
]  # fmt: skip


def encoded_twice(line: str, code_page: str) -> str:
    """UTF-8 read in a code page; bytes without a character become the control characters of Latin-1, as in browsers."""
    read = (bytes([byte]).decode(code_page, errors="ignore") or chr(byte) for byte in line.encode())
    return "".join(read)


@pytest.mark.parametrize("line", SENTENCES)
def test_lines_of_many_languages_are_not_encoded_twice(line: str) -> None:
    assert not is_wrongly_decoded(line)
    assert not any(map(is_wrongly_decoded, line.split()))


ACCENTED = [line for line in SENTENCES if any(character > "\u00bf" and character.islower() for character in line)]


@pytest.mark.parametrize("code_page", ["cp1252", "latin-1"])
@pytest.mark.parametrize("line", ACCENTED)
def test_what_python_encodes_twice_is_found(line: str, code_page: str) -> None:
    assert is_wrongly_decoded(encoded_twice(line, code_page))


def test_every_accented_word_is_found_in_the_code_pages_of_the_west() -> None:
    words = [
        word
        for line in ACCENTED
        for word in line.split()
        if len(word) > 1 and any("à" <= letter <= "ſ" for letter in word)
    ]
    assert len(words) > 60
    for code_page in ("cp1252", "latin-1"):
        assert [word for word in words if not is_wrongly_decoded(encoded_twice(word, code_page))] == []


@pytest.mark.parametrize(
    ("line", "code_page"),
    [
        ("Zażółć gęślą jaźń, proszę bardzo.", "cp1250"), ("Příliš žluťoučký kůň", "cp1250"), ("Die Straße", "cp1250"),
        ("Съешь ещё этих мягких булок", "cp1251"), ("Привет", "cp1251"), ("Щастя — це коли тебе розуміють", "cp1251"),
    ],
)  # fmt: skip
def test_other_code_pages(line: str, code_page: str) -> None:
    assert is_wrongly_decoded(encoded_twice(line, code_page))


def test_bytes_that_are_not_utf8_and_lost_characters() -> None:
    assert is_wrongly_decoded("München".encode("latin-1").decode("utf-8", errors="surrogateescape"))
    assert is_wrongly_decoded("M�nchen")
    assert is_wrongly_decoded("ï»¿A byte order mark")
    assert is_wrongly_decoded("ï¿½")


@pytest.mark.parametrize(
    ("src", "tgt", "rules"),
    [
        # identical
        ("Hello there", "Hello there", "identical"),
        ("  Hello   there", "Hello there ", "identical"),
        ("Cafe\u0301 noir", "Café noir", "identical"),
        ("Hello", "hello", ""),
        ("10:30", "10:30", ""),
        ("***", "***", ""),
        # html
        ("a <b>bold</b> man", "ein Mann", "html"),
        ("a man", "ein Mann<br/>", "html"),
        ("a man", "ein Mann<BR>", "html"),
        ("Tom &amp; Jerry", "Tom und Jerry", "html"),
        ("90&#176; and &#xB0;", "90 Grad", "html"),
        ("<a href='x'>here</a>", "hier", "html"),
        ("<emphasis>here</emphasis> it is", "hier ist es", "html"),
        ("see <item type='literal'> there", "siehe dort hin", "html"),
        ("<!-- no --> yes it is", "ja das ist es", "html"),
        ("if a < b and c > d", "wenn a < b und c > d", ""),
        ("open <file> or <address>", "öffne <Datei> oder <Adresse>", ""),
        ("The file '<PATH>' is there", "Die Datei '<PATH>' ist da", ""),
        ("AT&T; R&D; &File;", "AT&T, R&D; &Datei;", ""),
        ("I <3 you <-> me", "Ich <3 dich <-> mich", ""),
        ("x &lt; y", "x < y", "html"),
        # script, from English to German
        ("Он ушёл домой", "Er ging nach Hause", "script"),
        ("He went home.", "Он ушёл домой.", "script"),
        ("Hello to you", "你好吗", "script"),
        ("Δ is a letter", "Δ ist ein Buchstabe", ""),
        ("δ =", "δ gleich", ""),
        ("5 µm, 3 Ω", "5 µm, 3 Ω", "identical"),
        ("Greek (Ελληνικά)", "Griechisch (Ελληνικά)", ""),
        ("Москва is the capital", "Moskau ist die Hauptstadt", ""),
        ("12 + 34 = 46", "12 + 34 = 46.", ""),
        # length_ratio
        ("Young girls weave corn stalks into elaborate designs.", "@@", "length_ratio"),
        ("ETA", "Verbleibende Zeit", ""),
        ("OK", "In Ordnung", ""),
        ("No.", "Das ist etwas, was ich so noch niemals gehört habe.", "length_ratio"),
    ],
)
def test_pairs_from_english_to_german(src: str, tgt: str, rules: str) -> None:
    judge = PairRules(CleaningConfig(length_ratio=4, identical=True, script=0.5, encoding=True, html=True), "en", "de")
    assert judge.violated(normalize(src), normalize(tgt)) == rules.split()


@pytest.mark.parametrize("language", ["en", "ja", "sr"])
def test_the_first_search_of_the_script_rule_leaves_out_no_character(language: str) -> None:
    scripts = scripts_of(language)
    letters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    found = [letter for letter in letters if _may_be_outside(scripts).search(letter)]
    assert found == [letter for letter in letters if is_out_of_script(letter, scripts)]
    assert _may_be_outside(scripts).search("\U0001f600")  # what is beyond is left to the slower search


def test_length_without_white_space_is_that_of_split() -> None:
    for space in map(chr, range(0x110000)):
        if space.isspace():
            assert length_of(f"a {space}b{space}") == 2
    assert length_of("a\u200bb\u180ec") == 5


@pytest.mark.parametrize(
    ("language", "line", "is_kept"),
    [
        ("zh", "我在 Microsoft 工作。", True), ("zh", "IBM 公司", True), ("zh", "Please press the button 确定", False),
        ("zh", "This is not Chinese.", False), ("zh", "これはペンです", False), ("zh-Hant", "臺灣的天氣很好", True),
        ("zh-Latn", "wo shi xuesheng", True), ("zh-Latn", "我是学生", False), ("zh", "123 456!", True),
        ("ja", "これはペンです。", True), ("ja", "東京タワー", True), ("ja", "ﾊﾝｶｸ ｶﾅ", True),
        ("ja", "안녕하세요", False),
        ("ja", "This is a pen", False), ("ja", "コンピューター", True), ("ko", "나는 Samsung 에서 일한다", True),
        ("ko", "大韓民國", True), ("ko", "これはペンです", False), ("sr", "Добар дан", True), ("sr", "Dobar dan", True),
        ("sr-Latn", "Добар дан", False), ("sr-Cyrl", "Dobar dan", False), ("ru", "Привет, мир", True),
        ("ru", "Hello, world", False), ("ru", "Сервер Apache 2", True), ("uk", "Це ґанок", True),
        ("el", "Καλημέρα", True), ("el", "Kalimera", False), ("ar", "مرحبا بالعالم", True), ("ar", "Hello", False),
        ("fa", "سلام دنیا", True), ("ur", "ہیلو دنیا", True), ("he", "שלום עולם", True), ("he", "مرحبا", False),
        ("yi", "שלום", True), ("hi", "नमस्ते दुनिया", True), ("hi", "হ্যালো বিশ্ব", False), ("mr", "नमस्कार जग", True),
        ("bn", "হ্যালো বিশ্ব", True), ("as", "নমস্কাৰ", True), ("ta", "வணக்கம்", True), ("te", "నమస్కారం", True),
        ("kn", "ನಮಸ್ಕಾರ", True), ("ml", "നമസ്കാരം", True), ("gu", "નમસ્તે", True), ("pa", "ਸਤਿ ਸ੍ਰੀ ਅਕਾਲ", True),
        ("or", "ନମସ୍କାର", True), ("si", "ආයුබෝවන්", True), ("th", "สวัสดีครับ", True), ("th", "ສະບາຍດີ", False),
        ("lo", "ສະບາຍດີ", True), ("km", "សួស្តី", True), ("my", "မင်္ဂလာပါ", True), ("bo", "བཀྲ་ཤིས་", True),
        ("ka", "გამარჯობა", True), ("hy", "Բարեւ", True), ("am", "ሰላም ልዑል", True), ("vi", "Tiếng Việt", True),
        ("tr", "Işık İstanbul", True), ("mn", "Сайн байна уу", True), ("kk", "Сәлем әлем", True),
        ("kk", "Sálem álem", True), ("uz", "Салом дунё", True), ("pl", "Zażółć gęślą", True),
        ("chr", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", True),
        ("iu", "ᐃᓄᒃᑎᑐᑦ", True), ("dv", "ދިވެހި", True), ("en", "Привет", False), ("de", "Ｆｕｌｌ ｗｉｄｔｈ", True),
        ("bg", "Zdravej, svyat", False), ("", "любой 文字 text", True),
    ],
)  # fmt: skip
def test_scripts_of_many_languages(language: str, line: str, is_kept: bool) -> None:
    rules = PairRules(CleaningConfig(script=0.5), language, "en")
    assert (rules.violated(line, "Something.") == []) == is_kept
    assert (PairRules(CleaningConfig(script=0.5), "en", language).violated("Something.", line) == []) == is_kept


# The languages of FLORES-200, each with the scripts in which its sentences are; without Arabic in Latin letters.
FLORES = """
ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn als_Latn amh_Ethi apc_Arab arb_Arab ars_Arab
ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn
ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab
crh_Latn cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn ewe_Latn
fao_Latn fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gaz_Latn gla_Latn gle_Latn glg_Latn grn_Latn guj_Gujr
hat_Latn hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn
jav_Latn jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor kaz_Cyrl kbp_Latn kea_Latn khk_Cyrl
khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kmr_Latn knc_Arab knc_Latn kon_Latn kor_Hang lao_Laoo lij_Latn lim_Latn
lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn luo_Latn lus_Latn lvs_Latn mag_Deva mai_Deva mal_Mlym
mar_Deva min_Arab min_Latn mkd_Cyrl mlt_Latn mni_Beng mos_Latn mri_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva
nso_Latn nus_Latn nya_Latn oci_Latn ory_Orya pag_Latn pan_Guru pap_Latn pbt_Arab pes_Arab plt_Latn pol_Latn por_Latn
prs_Arab quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Olck scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn
smo_Latn sna_Latn snd_Arab som_Latn sot_Latn spa_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn
tam_Taml taq_Latn taq_Tfng tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi tpi_Latn tsn_Latn tso_Latn tuk_Latn
tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn
xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans zho_Hant zsm_Latn zul_Latn
"""


def test_the_scripts_of_the_texts_of_200_languages_are_not_left_out() -> None:
    refused = []
    for code in FLORES.split():
        language, script = code.split("_")
        of_language, of_script = scripts_of(language), scripts_of(f"{language}-{script}")
        assert of_script, code
        if of_language and not of_script <= of_language:
            refused.append(code)
    assert refused == []


# From the Universal Declaration of Human Rights, article 1, and other well-known texts.
@pytest.mark.parametrize(
    ("languages", "line"),
    [
        ("sr srp sh hbs cnr bs bos hr hrv", "Sva ljudska bića rađaju se slobodna i jednaka u dostojanstvu i pravima."),
        ("sr srp sh hbs cnr bs bos mk mkd", "Сва људска бића рађају се слободна и једнака у достојанству и правима."),
        ("uz uzb uzn", "Barcha odamlar erkin, qadr-qimmat va huquqlarda teng boʻlib tugʻiladilar."),
        ("uz uzb uzn", "Барча одамлар эркин, қадр-қиммат ва ҳуқуқларда тенг бўлиб туғиладилар."),
        ("kk kaz", "Барлық адамдар тумысынан азат және қадір-қасиеті мен құқықтары тең."),
        ("kk kaz", "Barlyq adamdar tumysynan azat jäne qadır-qasietı men quqyqtary teñ."),
        ("az aze azj tr", "Bütün insanlar ləyaqət və hüquqlarına görə azad və bərabər doğulurlar."),
        ("az aze azb fa", "بوتون اینسانلار حیثیت و حاقلار باخیمیندان دنك و اركین دوغولارلار."),
        ("grc el", "Ἐν ἀρχῇ ἦν ὁ λόγος, καὶ ὁ λόγος ἦν πρὸς τὸν θεόν."),
        ("non is", "Deyr fé, deyja frændr, deyr sjalfr it sama."),
        ("mww", "Txhua tus neeg yug los muaj kev ywj pheej thiab sib npaug zos."),
        ("rif tzm kab", "Imdanen, akken ma llan ttlalen d ilelliyen msawan di lḥweṛma d yizerfan."),
        ("mon mn khk", "Хүн бүр төрж мэндлэхэд эрх чөлөөтэй, адилхан нэр төртэй байдаг."),
        ("qaa azb uzs", "любой text ಕನ್ನಡ"),
    ],
)  # fmt: skip
def test_real_lines_are_in_the_scripts_of_their_languages_by_any_code(languages: str, line: str) -> None:
    for language in languages.split():
        rules = PairRules(CleaningConfig(script=0.5), language, "en")
        assert rules.violated(normalize(line), "Something.") == [], language


def test_vowel_signs_count_as_the_letters_that_they_are() -> None:
    line = normalize("विंडोज के लिए नवीनतम Microsoft Office स्थापित करें")
    letters = [char for char in line if unicodedata.category(char)[0] in "LM"]
    inside = sum(unicodedata.name(char).startswith("DEVANAGARI") for char in letters)
    assert share_in_script(line, scripts_of("hi")) == inside / len(letters) > 0.6
    assert share_in_script(f"Office {line}", scripts_of("en")) == pytest.approx(1 - inside / (len(letters) + 6))
    kept = PairRules(CleaningConfig(script=0.5), "hi", "en")
    assert kept.violated("Google Drive पर फ़ोटो सहेजें", "Save photos") == []


NAMES = {
    "Latn": "LATIN", "Cyrl": "CYRILLIC", "Grek": "GREEK", "Arab": "ARABIC", "Hebr": "HEBREW", "Thai": "THAI",
    "Deva": "DEVANAGARI", "Hang": "HANGUL", "Geor": "GEORGIAN", "Armn": "ARMENIAN", "Taml": "TAMIL", "Hani": "CJK",
}  # fmt: skip


@pytest.mark.parametrize("script", NAMES)
def test_the_script_of_a_letter_is_in_its_name(script: str) -> None:
    """Compared with Unicode's names of the letters of living languages (below U+A000, and Hangul)."""
    letters = [chr(code) for code in [*range(0x1E00, 0x2000), *range(0x1E00), *range(0x4E00, 0x9FFF, 97)]]
    for letter in [*letters, *map(chr, range(0xAC00, 0xD7A3, 101))]:
        name = unicodedata.name(letter, "")
        if unicodedata.category(letter) in ("Lu", "Ll", "Lo") and name.split()[0] in NAMES.values():
            assert is_out_of_script(letter, frozenset([script])) == (name.split()[0] != NAMES[script]), name


def test_scripts() -> None:
    assert scripts_of("") == frozenset()
    assert scripts_of("zh") == {"Hani", "Bopo"}
    assert scripts_of("ko") == {"Hang", "Hani"}
    assert not is_out_of_script("я", frozenset())
    assert not any(is_out_of_script(sign, frozenset(["Latn"])) for sign in "1,µ ー€ ̈")


@pytest.mark.parametrize(
    ("src", "tgt", "differ"),
    [
        ("in 1914", "im Jahr 1941", True), ("1,000 men", "1.000 Männer", False), ("1,000 men", "1 000 hommes", False),
        ("1,000 men", "1\u202f000 hommes", False), ("1'000'000 men", "1,000,000", False), ("1000", "١٠٠٠", False),
        ("1,000", "١٬٠٠٠", False), ("3.5 kg", "3,5 kg", False), ("3.5 kg", "3,6 kg", True),
        ("page 25", "２５ページ", False),
        ("2024", "२०२४", False), ("two dogs", "2 Hunde", False), ("12 men", "zwölf Männer", False),
        ("13 men", "dreizehn Männer", True), ("3 men", "4 Männer", True), ("1/1/1904", "01.01.1904", False),
        ("12/24/2004", "24.12.2004", False), ("$2.00", "2 Dollar", False), ("100 people", "viele Leute", True),
        ("2.5 million people", "2.500.000 Menschen", False), ("20,000 yuan", "2万元", False), ("20k", "20.000", False),
        ("at 3 pm", "um 15 Uhr", False), ("at 3:30 p.m.", "um 15:30 Uhr", False), ("at 3 o'clock", "um 15 Uhr", True),
        ("no numbers", "keine Zahlen", False), ("007", "7", False), ("H2O and CO2", "H2O und CO2", False),
        ("x&#8482; 2003", "x™ 2003", False), ("1234-5678", "12345678", False), ("10", "100", True),
        ("24,975 Hz", "24,976 Hz", True), ("in 2004 500 men", "im Jahr 2004 500 Männer", False),
        ("9" * 5000, "9" * 5000, False), ("9" * 5000, "8" * 5000, True), ("²/₃", "x", False),
    ],
)  # fmt: skip
def test_numbers(src: str, tgt: str, differ: bool) -> None:
    assert have_different_numbers(src, tgt) == differ
    assert have_different_numbers(tgt, src) == differ
    assert PairRules(CleaningConfig(numbers=True), "en", "de").violated(src, tgt) == ["numbers"] * differ


def test_lengths_are_divided_by_what_is_usual() -> None:
    assert length_of(" two words\u3000here ") == 12
    pairs = [("a" * 10, "字" * 3), ("a" * 20, "字" * 6), ("a", "字" * 5), ("", "字")]
    assert typical_ratio(pairs) == statistics.median([0.3, 0.3, 5.0])
    assert typical_ratio([]) == 1.0
    ratio = CleaningConfig(length_ratio=2)
    for src, tgt in (("a" * 100, "字" * 30), ("a" * 100, "字" * 62), ("a" * 100, "字" * 14)):
        assert PairRules(ratio, "en", "zh", 0.3).violated(src, tgt) == []
        assert PairRules(ratio, "zh", "en", 1 / 0.3).violated(tgt, src) == []
    for src, tgt in (("a" * 100, "字" * 64), ("a" * 100, "字" * 13)):
        assert PairRules(ratio, "en", "zh", 0.3).violated(src, tgt) == ["length_ratio"]
        assert PairRules(ratio, "zh", "en", 1 / 0.3).violated(tgt, src) == ["length_ratio"]


LONG = {
    "en": "A man in a blue shirt is standing on a ladder cleaning a window.",
    "de": "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "fr": "Un homme en chemise bleue se tient sur une échelle pour nettoyer une fenêtre.",
    "zh": "一个穿蓝色衬衫的男人站在梯子上擦窗户，旁边还有两个孩子在玩耍。",
    "sr": "Čovek u plavoj košulji stoji na merdevinama i pere prozor na kući.",
}


@pytest.mark.parametrize("language", LONG)
def test_a_line_in_another_language(language: str) -> None:
    pytest.importorskip("py3langid")
    rules = PairRules(CleaningConfig(language=True), "en", language)
    for other, line in LONG.items():
        assert rules.violated(LONG["en"], line) == ["language"] * (other != language)
    assert rules.violated("Open the file now!", "OK, go on with it") == []  # too short to be judged


def test_a_language_that_is_not_known_to_the_library() -> None:
    pytest.importorskip("py3langid")
    with pytest.raises(ConfigError, match="py3langid does not know hsb"):
        PairRules(CleaningConfig(language=True), "en", "hsb")


def test_without_the_library_the_message_says_what_to_install() -> None:
    program = """
import sys
sys.modules["py3langid"] = None
from nmt.config.data import CleaningConfig
from nmt.cleaning.rules import PairRules
PairRules(CleaningConfig(language=True), "en", "de")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "data.cleaning.language needs py3langid: in your clone of nmt, scripts/install langid" in done.stderr


def test_all_rules_that_a_pair_violates_are_named_in_order() -> None:
    everything = CleaningConfig(length_ratio=1.5, identical=True, script=0.5, encoding=True, html=True, numbers=True)
    rules = pickle.loads(pickle.dumps(PairRules(everything, "en", "de")))
    assert rules.violated("<b>Ð¿Ñ€Ð¸ 100</b> и только это предложение", "нет") == [
        "encoding", "html", "script", "numbers", "length_ratio",
    ]  # fmt: skip
    assert PairRules(CleaningConfig(), "en", "de").violated("<b>", "<b>") == []
    assert set(PAIR_RULES) < set(CleaningConfig.model_fields)
