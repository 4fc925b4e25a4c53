"""The page of one translation: what the model reads, how it chose, and what if it had chosen otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.atomic import write_text
from nmt.insight.attention import KINDS
from nmt.insight.explanation import Explanation
from nmt.insight.pages import packed, render


def write_page(explanation: Explanation, path: Path) -> None:
    """Write `attention_page` to a file."""
    write_text(path, attention_page(explanation))


def attention_page(explanation: Explanation) -> str:
    """One HTML file that holds all of `explanation` and requests nothing.

    The weights are rounded to 1/255, which is at most 0.002 off, so that they take a byte each before they are packed.
    """
    return page_of(explanation.to_json())


def page_of(data: dict[str, Any]) -> str:
    """The page of `Explanation.to_json()`: the same data, except that its arrays are packed as uint8."""
    arrays = {**{kind: data["attention"][kind] for kind in KINDS}, "gradients": data["gradients"]}
    weights = {name: as_bytes(array) for name, array in arrays.items()}
    page = {name: value for name, value in data.items() if name not in ("attention", "gradients")}
    page["shapes"] = {name: array.shape for name, array in weights.items()}
    page["packed"] = packed(b"".join(array.tobytes() for array in weights.values()))
    languages = " → ".join(filter(None, (data["src_lang"], data["tgt_lang"])))
    return render("attention.html", title=f"Attention: {data['src']}", page=page, languages=languages)


def as_bytes(weights: object) -> NDArray[np.uint8]:
    """Weights from 0 to 1 as round(255 w), in the same shape."""
    return np.rint(255 * np.asarray(weights, dtype=np.float64)).astype(np.uint8)
