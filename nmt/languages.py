"""The codes by which languages are named."""

import re
from pathlib import Path

# ISO 639-1, so that `train.en` names its language and `train.txt` does not.
_ISO_639_1 = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id
ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu
lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu
rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr
ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
LANGUAGE_CODES = frozenset(_ISO_639_1.split())


def check_language(code: str) -> str:
    """The code itself; `ValueError` if it is not ISO 639: two letters that exist, or three for other languages."""
    for two, others in {"zh": ("zho", "chi", "cmn", "cn"), "ja": ("jpn", "jp"), "ko": ("kor", "kr")}.items():
        if code.lower().split("-")[0] in others:
            raise ValueError(f"{code!r} is not what BLEU's tokenizer is chosen by; did you mean {two}?")
    if code not in LANGUAGE_CODES and not re.fullmatch(r"[a-z]{3}", code):
        raise ValueError(f"{code!r} is not a language code of ISO 639, such as en, de or zh")
    return code


def language_suffix(path: Path) -> str:
    """The language code at the end of a file's name (`train.en`, `train.en.gz`), or ''."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lstrip(".")
    return suffix if suffix in LANGUAGE_CODES else ""
