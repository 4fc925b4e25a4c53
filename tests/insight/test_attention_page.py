"""The file of a page: what it holds, and its size. tests/insight/test_pages.py opens it."""

import base64
import gzip
import json
import re

import numpy as np
from made_up import made_up

from nmt.insight.attention import KINDS
from nmt.insight.attention_output import page_of


def test_a_page_holds_the_json_with_its_arrays_as_bytes() -> None:
    data = made_up(5, 2, 3)
    data["gradients"][0] = [0.001, 0.002, 0.4, 0.0, 1.0, 0.5]
    html = page_of(data)
    found = {name: re.search(f'id="{name}">([^<]*)<', html) for name in ("explanation", "weights")}
    unpacked = {name: gzip.decompress(base64.b64decode(match[1])) for name, match in found.items() if match}
    page = json.loads(unpacked["explanation"])
    shapes = page.pop("shapes")
    values = np.frombuffer(unpacked["weights"], dtype=np.uint8)
    assert page == {name: value for name, value in data.items() if name not in ("attention", "gradients")}
    start = 0
    for name, array in [*((kind, data["attention"][kind]) for kind in KINDS), ("gradients", data["gradients"])]:
        stored = values[start : start + int(np.prod(shapes[name]))].reshape(shapes[name])
        assert np.abs(stored / 255 - np.array(array)).max() <= 0.5 / 255 + 1e-9
        start += stored.size
    assert start == len(values)


def test_a_page_of_60_tokens_and_96_heads_is_below_1_mb() -> None:
    data = made_up(59, 6, 8)
    random = np.random.default_rng(0)
    for kind in KINDS:  # nothing compresses worse
        data["attention"][kind] = random.integers(256, size=(6, 8, 60, 60)) / 255
    assert len(page_of(data).encode()) < 1_000_000
