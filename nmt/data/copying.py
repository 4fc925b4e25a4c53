"""Texts that every language writes alike, inserted at the same place of both sides, so that a model learns to copy.

A translator meets emoji, numbers, URLs and e-mail addresses that its corpus never had. The texts here are made up at
random: what a model can learn from them is to copy the pieces, not the texts.
"""

import unicodedata
from random import Random

import numpy as np
from numpy.typing import NDArray

from nmt.tokenizers.tokenizer import Tokenizer, Tokenizers

_EMOJI = [*range(0x1F300, 0x1F321), *range(0x1F330, 0x1F394), *range(0x1F3A0, 0x1F3CB), *range(0x1F400, 0x1F4FE),
          *range(0x1F600, 0x1F650), *range(0x1F680, 0x1F6C6), *range(0x1F910, 0x1F93B)]  # fmt: skip
_OTHER_EMOJI = ["❤️", "☀️", "⭐", "✅", "⚽", "☕", "⚡", "✨"]  # of three bytes, some with a mark after it
_LETTERS = ["aeiou", "bcdfghjklmnprstvwz"]
_DOMAINS = ("com", "com", "org", "net", "de", "io", "info", "co.uk")

Row = NDArray[np.integer]


def made_up_text(random: Random) -> str:
    """An emoji or several, a number, a URL or an e-mail address, each kind as often as the others; in lowercase."""
    return random.choice((_emoji, _number, _url, _address))(random)


def _emoji(random: Random) -> str:
    def one() -> str:
        return random.choice(_OTHER_EMOJI) if random.random() < 0.1 else chr(random.choice(_EMOJI))

    return "".join(one() for _ in range(random.choice((1, 1, 1, 2, 3))))


def _number(random: Random) -> str:
    """Digits, a time, or digits in groups as in a date or a version; no sign that languages write differently."""

    def digits(longest: int) -> str:
        return str(random.randrange(10 ** random.randint(1, longest)))

    kind = random.random()
    if kind < 0.7:
        return digits(8)
    if kind < 0.8:
        return f"{random.randrange(24)}:{random.randrange(60):02}"
    return random.choice("-./").join(digits(4) for _ in range(random.choice((2, 3))))


def _word(random: Random) -> str:
    """Pronounceable, or any letters; sometimes with digits."""
    if random.random() < 0.3:
        return "".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(random.randint(2, 6)))
    start = random.randrange(2)
    word = "".join(random.choice(_LETTERS[(start + place) % 2]) for place in range(random.randint(3, 9)))
    return word + str(random.randrange(100)) if random.random() < 0.1 else word


def _host(random: Random) -> str:
    return f"{_word(random)}.{random.choice(_DOMAINS)}"


def _url(random: Random) -> str:
    url = random.choice(("https://", "https://", "http://", "https://www.", "www.")) + _host(random)
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        url += f"/{_word(random) if random.random() < 0.8 else random.randrange(10000)}"
    ending = random.random()
    return url + (f"?{_word(random)}={_word(random)}" if ending < 0.1 else ".html" if ending < 0.2 else "")


def _address(random: Random) -> str:
    name = _word(random) + (random.choice("._-") + _word(random) if random.random() < 0.5 else "")
    return f"{name}@{_host(random)}"


class Copies:
    """Inserts texts into pairs that are given as ids."""

    def __init__(self, tokenizers: Tokenizers, share: float) -> None:
        self._share = share
        self._tokenizers = (tokenizers.src, tokenizers.tgt)
        self._punctuation = [_punctuation(tokenizer) for tokenizer in self._tokenizers]

    def insert(
        self, pairs: list[tuple[Row, Row]], cuts: list[tuple[int, int]], limits: tuple[int, int], random: Random
    ) -> list[bool]:
        """Insert a text into a share of the pairs, in place; whether each pair has one now.

        It is placed before both sides, after both, before the punctuation that ends both, or at the pair's cut: the
        numbers of ids of the two sides' first sentences, or (0, 0). A pair that would have a side of more ids than its
        limit stays as it is.
        """
        return [
            random.random() < self._share and self._insert(pairs, index, cut, limits, random)
            for index, cut in enumerate(cuts)
        ]

    def _insert(
        self, pairs: list[tuple[Row, Row]], index: int, cut: tuple[int, int], limits: tuple[int, int], random: Random
    ) -> bool:
        pair = pairs[index]
        ends = (len(pair[0]), len(pair[1]))
        places = {(0, 0), cut, ends}
        if all(int(row[-1]) in of_side for row, of_side in zip(pair, self._punctuation, strict=True)):
            places.add((ends[0] - 1, ends[1] - 1))
        chosen, text = random.choice(sorted(places)), made_up_text(random)
        # A text's first piece includes the space before it, as everywhere in a line.
        inserted = [tokenizer.encode(text) for tokenizer in self._tokenizers]
        if any(end + len(ids) > limit for end, ids, limit in zip(ends, inserted, limits, strict=True)):
            return False
        src, tgt = (
            np.concatenate([row[:place], np.array(ids, dtype=row.dtype), row[place:]])
            for row, place, ids in zip(pair, chosen, inserted, strict=True)
        )
        pairs[index] = src, tgt
        return True


def _punctuation(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of pieces that are punctuation without a space before it."""
    ids = range(tokenizer.vocab_size)
    return frozenset(
        index
        for index, piece in zip(ids, tokenizer.pieces(ids), strict=True)
        if all(unicodedata.category(character).startswith("P") for character in piece)
    )
