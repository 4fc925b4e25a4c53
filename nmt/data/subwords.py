"""Cutting words into pieces at random, so that a model sees more than one way to write a word.

SentencePiece samples too, but (version 0.2.3) it salts its generator in every process: the same seed gives other pieces
after a restart, and no training could be resumed exactly.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Literal

from nmt.data.tokenizer import SentencePieceTokenizer

WORDS_REMEMBERED = 1 << 14  # in scripts without spaces a word is a sentence, and none comes twice

Draw = Callable[[], float]
"""Evenly distributed numbers from 0 to 1, 1 left out."""


class SubwordSampler:
    """Draws the pieces of words again; words that hold bytes or `<unk>` keep theirs."""

    def __init__(self, tokenizer: SentencePieceTokenizer, kind: Literal["bpe", "unigram"], alpha: float) -> None:
        self._made_from = (tokenizer, kind, alpha)
        self._pieces, self._scores = tokenizer.normal_pieces()
        self._ids = {piece: index for index, piece in enumerate(self._pieces) if piece is not None}
        self._cut = self._drop_merges if kind == "bpe" else self._draw_path
        self._alpha = alpha
        self._longest = max(map(len, self._scores))
        self._ways_of = functools.lru_cache(WORDS_REMEMBERED)(self._ways)

    def __reduce__(self) -> tuple[type["SubwordSampler"], tuple[SentencePieceTokenizer, str, float]]:
        """Another process makes its own: what is remembered of words cannot be pickled, and need not."""
        return SubwordSampler, self._made_from

    def __call__(self, ids: Sequence[int], random: Random) -> list[int]:
        """Other ids for the same text, as likely as `augmentation.subword_sampling` says."""
        sampled: list[int] = []
        for word in self._words(ids):
            pieces = [self._pieces[index] for index in word]
            if None in pieces:
                sampled.extend(word)
            else:
                text = "".join(piece for piece in pieces if piece is not None)
                sampled.extend(self._ids[piece] for piece in self._cut(text, random.random))
        return sampled

    def _words(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """The ids of one word after the other; a word begins with a space, which no piece holds elsewhere."""
        starts = [place for place, index in enumerate(ids) if (self._pieces[index] or "").startswith("▁")]
        yield from (ids[begin:end] for begin, end in itertools.pairwise(sorted({0, *starts, len(ids)})))

    def _drop_merges(self, word: str, draw: Draw) -> list[str]:
        """BPE-dropout (Provilkov et al. 2020, algorithm 1): each time, every merge that is possible is left out with
        probability alpha, and the best of the others is made; when none is left, the word is cut.

        A draw is made only for a merge that would be the best so far: for the others it would change nothing.
        """
        pieces = list(word)
        while True:
            best, place = -math.inf, -1
            for index in range(len(pieces) - 1):
                score = self._scores.get(pieces[index] + pieces[index + 1])
                if score is not None and score > best and draw() >= self._alpha:
                    best, place = score, index
            if place < 0:
                return pieces
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]

    def _draw_path(self, word: str, draw: Draw) -> list[str]:
        """Kudo 2018, section 3.2: a way to cut the word, with a chance in proportion to its probability ** alpha.

        Forward filtering, backward sampling: from the word's end, by the sums over all ways to reach each place.
        """
        ways = self._ways_of(word)
        pieces, end = [], len(word)
        while end:
            left = draw() * ways[end][-1][1]
            begin = next(begin for begin, total in ways[end] if left < total)
            pieces.append(word[begin:end])
            end = begin
        return pieces[::-1]

    def _ways(self, word: str) -> list[list[tuple[int, float]]]:
        """For each place, where its last piece may begin, and the running sum of the weights of the ways there.

        The weights of one place are relative to its largest. Their logarithms are what is added up along a word: those
        of a long one are beyond the range of a float.
        """
        ways: list[list[tuple[int, float]]] = [[]]
        log_sums = [0.0]
        for end in range(1, len(word) + 1):
            log_weights = {
                begin: log_sums[begin] + self._alpha * self._scores[word[begin:end]]
                for begin in range(max(0, end - self._longest), end)
                if word[begin:end] in self._scores and log_sums[begin] > -math.inf
            }
            largest = max(log_weights.values(), default=-math.inf)
            weights = (math.exp(log_weight - largest) for log_weight in log_weights.values())
            ways.append(list(zip(log_weights, itertools.accumulate(weights), strict=True)))
            log_sums.append(largest + math.log(ways[end][-1][1]) if log_weights else -math.inf)
        return ways
