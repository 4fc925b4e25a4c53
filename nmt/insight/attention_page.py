"""The page of one translation: what the model reads, how it chose, and what if it had chosen otherwise."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from nmt.insight.explanation import Explanation
from nmt.insight.pages import packed, render
from nmt.system.files import write_text


def write_page(explanation: Explanation, path: Path) -> None:
    """Write one HTML file that holds all of `explanation` and requests nothing."""
    write_text(path, page_of(explanation.to_json()))


def page_of(data: dict[str, Any]) -> str:
    """The page of `Explanation.to_json()`: the same JSON, and its arrays apart from it as uint8, one after the other.

    The weights are rounded to 1/255, which is at most 0.002 off, so that they take a byte each. Both are packed: at 60
    pieces, what might have been is over 100 kB of JSON that says much the same 120 times.
    """
    arrays = {**data["attention"], "gradients": data["gradients"]}
    weights = {name: np.rint(255 * np.asarray(values, np.float64)).astype(np.uint8) for name, values in arrays.items()}
    page = {name: value for name, value in data.items() if name not in ("attention", "gradients")}
    page["shapes"] = {name: array.shape for name, array in weights.items()}
    return render(
        "attention.html",
        title=f"Attention: {data['src']}",
        page=page,
        languages=" → ".join(filter(None, (data["src_lang"], data["tgt_lang"]))),
        explanation=packed(json.dumps(page, ensure_ascii=False).encode()),
        weights=packed(b"".join(array.tobytes() for array in weights.values())),
    )
