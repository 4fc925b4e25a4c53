"""Subword sampling: random segmentations of words, so that a model sees several for each word.

SentencePiece (version 0.2.3) samples, too, but salts its generator in every process: the same seed gives other pieces
after a restart, so that no training could be resumed exactly.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from random import Random

from nmt.tokenizers.tokenizer import SentencePieceTokenizer

MAX_CACHED_WORDS = 1 << 14  # in scripts without spaces a word is a whole sentence, and hardly any occurs twice

Draw = Callable[[], float]
"""A function that returns random numbers, uniform in [0, 1)."""


class SubwordSampler:
    """Sampler of new segmentations of words; words with bytes or `<unk>` stay as they are."""

    def __init__(self, tokenizer: SentencePieceTokenizer, kind: str, alpha: float) -> None:
        """`kind` is the tokenizer's type, `bpe` or `unigram`."""
        self._made_from = (tokenizer, kind, alpha)
        self._pieces, self._scores = tokenizer.normal_pieces()
        self._ids = {piece: index for index, piece in enumerate(self._pieces) if piece is not None}
        self._segment = self._drop_merges if kind == "bpe" else self._sample_path
        self._alpha = alpha
        self._longest = max(map(len, self._scores))
        self._cached_lattice = functools.lru_cache(MAX_CACHED_WORDS)(self._lattice)

    def __reduce__(self) -> tuple[type["SubwordSampler"], tuple[SentencePieceTokenizer, str, float]]:
        """Pickle the arguments alone: the cache cannot be pickled, and another process needs none of it."""
        return SubwordSampler, self._made_from

    def __call__(self, ids: Sequence[int], random: Random) -> list[int]:
        """Sample a segmentation of the same text, as ids."""
        sampled: list[int] = []
        # A word begins with a space, and no piece has a space elsewhere.
        starts = [place for place, index in enumerate(ids) if (self._pieces[index] or "").startswith("▁")]
        for begin, end in itertools.pairwise(sorted({0, *starts, len(ids)})):
            word = ids[begin:end]
            pieces = [self._pieces[index] for index in word]
            if None in pieces:
                sampled.extend(word)
            else:
                text = "".join(piece for piece in pieces if piece is not None)
                sampled.extend(self._ids[piece] for piece in self._segment(text, random.random))
        return sampled

    def _drop_merges(self, word: str, draw: Draw) -> list[str]:
        """BPE-dropout (Provilkov et al. 2020, algorithm 1): in each step, drop every possible merge with probability
        alpha, and apply the best of the others, until none is left.

        Only a merge that would be the best so far draws a random number; for the others it makes no difference.
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

    def _sample_path(self, word: str, draw: Draw) -> list[str]:
        """Kudo 2018, section 3.2: sample a segmentation of the word in proportion to its probability ** alpha.

        Forward filtering, backward sampling: from the word's end, by the sums over all segmentations of each prefix.
        """
        lattice = self._cached_lattice(word)
        pieces, end = [], len(word)
        while end:
            drawn = draw() * lattice[end][-1][1]
            begin = next(begin for begin, total in lattice[end] if drawn < total)
            pieces.append(word[begin:end])
            end = begin
        return pieces[::-1]

    def _lattice(self, word: str) -> list[list[tuple[int, float]]]:
        """For each prefix, the possible starts of its last piece, each with the cumulative weight of the segmentations.

        The weights of a prefix are relative to the largest. Along a word their logarithms are added: the weights of a
        long word would exceed the range of a float.
        """
        lattice: list[list[tuple[int, float]]] = [[]]
        log_sums = [0.0]
        for end in range(1, len(word) + 1):
            log_weights = {
                begin: log_sums[begin] + self._alpha * self._scores[word[begin:end]]
                for begin in range(max(0, end - self._longest), end)
                if word[begin:end] in self._scores and log_sums[begin] > -math.inf
            }
            largest = max(log_weights.values(), default=-math.inf)
            weights = (math.exp(log_weight - largest) for log_weight in log_weights.values())
            lattice.append(list(zip(log_weights, itertools.accumulate(weights), strict=True)))
            log_sums.append(largest + math.log(lattice[end][-1][1]) if log_weights else -math.inf)
        return lattice
