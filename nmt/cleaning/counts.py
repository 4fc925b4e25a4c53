"""Counts of a corpus for its profile, as arrays over all pairs: rules violated, hashes, lengths, unusual characters.

Worker processes count a block each; `PairCounts.together` joins their results.
"""

import functools
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.cleaning.rules import length_of
from nmt.cleaning.scripts import is_out_of_script, scripts_of
from nmt.cleaning.selection import Judge, Violations
from nmt.cleaning.sentence_index import Hashes, comparable, normalized_pairs, sentence_hashes
from nmt.config.languages import is_without_spaces
from nmt.config.source import TEXT
from nmt.corpora.pairs import Block

RATIO_EDGES = (
    0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0
)  # fmt: skip
"""Lower limits of the length ratio's bins, except the first bin, which begins at 0."""

Counts = NDArray[np.int32]
CharacterCounts = dict[str, tuple[int, int]]
"""The number of occurrences of each character, and the index of the first pair with it."""


class PairCounts(NamedTuple):
    """Counts of P pairs: those of a block, or all."""

    violations: Violations
    """(P,)"""
    hashes: Hashes
    """(2, P) of the sources and of the targets; 0 for a line that is empty or undecodable."""
    characters: Counts
    """(2, P) length of each normalized line; -1 for one that is undecodable, whose text is counted nowhere else."""
    words: Counts
    """(2, P); 0 for a language without spaces."""
    ratios: NDArray[np.uint8]
    """The bin of `RATIO_EDGES` of each complete pair: the target's length divided by the source's."""
    unusual: tuple[CharacterCounts, CharacterCounts]
    """The unusual characters of each side."""

    @classmethod
    def together(cls, blocks: Sequence["PairCounts"]) -> "PairCounts":
        """Join the counts of all blocks."""
        unusual: tuple[CharacterCounts, CharacterCounts] = {}, {}
        begin = 0
        for block in blocks:
            for of_all, of_block in zip(unusual, block.unusual, strict=True):
                for character, (count, index) in of_block.items():
                    before, first = of_all.get(character, (0, begin + index))
                    of_all[character] = before + count, first
            begin += len(block.violations)
        columns = list(zip(*blocks, strict=True))[:-1]
        violations, hashes, characters, words, ratios = (np.concatenate(parts, axis=-1) for parts in columns)
        return cls(violations, hashes, characters, words, ratios, unusual)


def count_block(judge: Judge, block: Block) -> PairCounts:
    """Count the pairs of a block."""
    pairs = normalized_pairs(block, TEXT, strict=False)
    src, tgt = sides = [comparable(lines) for lines in zip(*pairs, strict=True)]
    ratios = [
        length_of(tgt_line) / max(1, length_of(src_line))
        for src_line, tgt_line in zip(src, tgt, strict=True) if src_line and tgt_line
    ]  # fmt: skip
    return PairCounts(
        violations=judge.violations(pairs),
        hashes=sentence_hashes(zip(src, tgt, strict=True)),
        characters=np.array([[-1 if line is None else len(line) for line in side] for side in sides], np.int32),
        words=np.array(list(map(_num_words, sides, judge.languages)), np.int32),
        ratios=np.searchsorted(RATIO_EDGES, ratios, side="right").astype(np.uint8),
        unusual=(_unusual(src, judge.languages[0]), _unusual(tgt, judge.languages[1])),
    )


def _num_words(lines: Sequence[str | None], language: str) -> list[int]:
    if is_without_spaces(language):
        return [0] * len(lines)
    return [len((line or "").split()) for line in lines]


def _unusual(lines: Sequence[str | None], language: str) -> CharacterCounts:
    """Count the characters that are unusual in the language."""
    text, scripts = "".join(line or "" for line in lines), scripts_of(language)
    return {
        character: (text.count(character), next(index for index, line in enumerate(lines) if character in (line or "")))
        for character in set(text)
        if _is_unusual(character, scripts)
    }


@functools.cache
def _is_unusual(character: str, scripts: frozenset[str]) -> bool:
    """True for a character that text in these scripts hardly has.

    That is a letter of another script, a control character, one for private use or without a meaning in Unicode, and
    U+FFFD, which a program writes where it cannot decode.
    """
    is_meaningless = unicodedata.category(character) in ("Cc", "Co", "Cn") or character == "\ufffd"
    return is_meaningless or is_out_of_script(character, scripts)
