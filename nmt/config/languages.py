"""Language codes (ISO 639, or BCP 47 with a script or a region), and the scripts of languages."""

import contextlib
import functools
from pathlib import Path

from nmt.config.formats import without_compression
from nmt.errors import ConfigError

# ISO 639-1 only: by ISO 639-3, `train.txt` would name a language, too. The list also saves importing langcodes, which
# takes 20 ms. It lacks Kanuri's kr: most people who write it mean Korean.
_ISO_639_1 = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id
ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko ks ku kv kw ky la lb lg li ln lo lt lu
lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu
rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr
ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
LANGUAGE_CODES = frozenset(_ISO_639_1.split())
_COUNTRIES = {"cn": "zh", "jp": "ja", "kr": "ko, or kau (Kanuri)"}

# ISO 15924: Han, Japanese, Thai, Lao, Khmer, Burmese, Tibetan, Lanna, New Tai Lue, Tai Le, Tai Viet, Javanese, Balinese
_WITHOUT_SPACES = "Hani Hans Hant Jpan Thai Laoo Khmr Mymr Tibt Lana Talu Tale Tavt Java Bali"
_SCRIPTS_WITHOUT_SPACES = frozenset(_WITHOUT_SPACES.split())

# Scripts whose texts have capital and small letters; Cherokee and Georgian texts do not.
_WITH_CASE = "Latn Latf Latg Cyrl Cyrs Grek Copt Armn Glag Adlm Osge Dsrt Hung Wara Medf Vith"
_SCRIPTS_WITH_CASE = frozenset(_WITH_CASE.split())

# Languages whose texts are mostly in another script than CLDR says, which is historic or rare.
_IN_LATIN = "ctd grt lad mww non sga swb wni zdj"
_CORRECTED = {"grc": "Grek", "ryu": "Jpan", **dict.fromkeys(_IN_LATIN.split(), "Latn")}

_NO_CODE = "not a language code such as en, hsb, zh-Hant or pt-BR (ISO 639 or BCP 47)"


def check_language(code: str) -> str:
    """The code in standard case: `en`, `hsb`, `zh-Hant`, `pt-BR`.

    Raises `ValueError` if it is not BCP 47: an ISO 639 language in two or three letters, optionally followed by a
    script, a region and other subtags.
    """
    if code in LANGUAGE_CODES:
        return code
    import langcodes

    try:
        language = langcodes.Language.get(code, normalize=False)
    except ValueError:  # LanguageTagError
        raise ValueError(f"{code!r} is {_NO_CODE}") from None
    primary, *subtags = language.to_tag().split("-")
    if primary in _COUNTRIES:
        raise ValueError(f"{code!r} is named after a country; did you mean {_COUNTRIES[primary]}?")
    # The library may lack recent ISO 639-3 codes, so for three letters only the form is checked.
    known = "en" if len(primary) == 3 else primary
    if len(primary) not in (2, 3) or not langcodes.tag_is_valid("-".join([known, *subtags])):
        raise ValueError(f"{code!r} is {_NO_CODE}")
    return language.to_tag()


def checked_language(option: str, code: str | None) -> str:
    """The code that an option gives in standard case, or "" for none; `ConfigError` if it is no language code."""
    if not code:
        return ""
    try:
        return check_language(code)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def language_suffix(path: Path) -> str:
    """The language code at the end of a file's name (`train.en`, `train.zh-Hant.gz`), or ''.

    Three letters do not count as a language: `.txt` and `.src` are ISO 639-3 codes, too.
    """
    suffix = without_compression(path).suffix.lstrip(".")
    language, _, subtags = suffix.partition("-")
    if language not in LANGUAGE_CODES:
        return ""
    if subtags[:1].isupper():  # a script or a region in standard case
        with contextlib.suppress(ValueError):
            return suffix if check_language(suffix) == suffix else ""
    return "" if subtags else suffix


def file_endings(src: str, tgt: str) -> tuple[str, str]:
    """The ends of the names of a corpus's two files; for one language on both sides, `src.en` and `tgt.en`."""
    return (src, tgt) if src != tgt else (f"src.{src}", f"tgt.{tgt}")


def base_language(code: str) -> str:
    """The language without script or region, in two letters if possible: `zh` for `zh-Hant`, `cmn` and `zho`."""
    if not code or code in LANGUAGE_CODES:
        return code
    return _standardised(code)[0]


def script_of(code: str) -> str:
    """The script of a language as an ISO 15924 code: the one in the language code, or else the most likely one; or ''.

    >>> script_of("th"), script_of("yue"), script_of("zh-Latn"), script_of("qaa")
    ('Thai', 'Hant', 'Latn', '')
    """
    return _standardised(code)[1] if code else ""


def is_without_spaces(code: str) -> bool:
    """True if the language is written without spaces between words."""
    return script_of(code) in _SCRIPTS_WITHOUT_SPACES


def joins_sentences(code: str) -> bool:
    """True if the language is written without spaces between sentences, too, as in Han and kana."""
    return script_of(code) in ("Hani", "Hans", "Hant", "Jpan")


def has_case(code: str) -> bool:
    """True if the language is written with capital and small letters, or its script is unknown.

    >>> has_case("el"), has_case("sr-Latn"), has_case("hi"), has_case("ka")
    (True, True, False, False)
    """
    script = script_of(code)
    return not script or script in _SCRIPTS_WITH_CASE


@functools.cache
def _standardised(code: str) -> tuple[str, str]:
    import langcodes
    from langcodes.data_dicts import LIKELY_SUBTAGS

    language = langcodes.Language.get(langcodes.standardize_tag(code, macro=True))
    base = language.language or ""
    likely = language.maximize().script if base in LIKELY_SUBTAGS else ""  # Latn for all others
    return base, language.script or _CORRECTED.get(base) or likely or ""
