"""The data types of a search: requests and encoded sources in, hypotheses, scored tokens and word alignments out."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from nmt.errors import ConfigError, TrainingError
from nmt.tokenizers.vocabulary import SpecialIds

if TYPE_CHECKING:
    from nmt.corpora.vectors import Vectors


EncodedSource: TypeAlias = "Sequence[int] | Vectors"
"""A source as an engine reads it: ids without `</s>`, or vectors (S, F)"""

MIN_TEMPERATURE = 1e-6  # less would divide a log-probability to infinity
DIVERGED = "the model's probabilities are not numbers (NaN): its training has diverged"


class Hypothesis(NamedTuple):
    """A decoded sequence with its score."""

    tokens: tuple[int, ...]
    """The ids, including a forced prefix, without the start id and `</s>`"""
    log_prob: float
    """Sum of the log-probabilities of the tokens, and of `</s>` if it was reached"""
    score: float
    """`log_prob / max(1, len(tokens)) ** length_penalty`; hypotheses are ranked by it."""

    @classmethod
    def scored(cls, tokens: tuple[int, ...], log_prob: float, length_penalty: float) -> "Hypothesis":
        """Compute the score, the same way for all searches and engines; `</s>` does not count in the length."""
        return cls(tokens, log_prob, log_prob / max(1, len(tokens)) ** length_penalty)


class ScoredTokens(NamedTuple):
    """The pieces of a translation with the model's own log-probabilities, as `Engine.score` gives them."""

    tokens: tuple[str, ...] = ()
    """The pieces, with `</s>` last, even if the translation was cut at its maximum length. Empty if it is too long for
    the model, and so has no score."""
    log_probs: tuple[float, ...] = ()
    """The log-probability of each token, given the source and the tokens before it"""

    @property
    def log_prob(self) -> float:
        """The sum over the tokens; NaN without tokens."""
        return math.fsum(self.log_probs) if self.tokens else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for programs."""
        return {"tokens": self.tokens, "log_probs": [round(log_prob, 6) for log_prob in self.log_probs]}


@dataclasses.dataclass(frozen=True)
class WordAlignment:
    """Links between the words of a source and of its translation; between characters, in languages without spaces."""

    links: tuple[tuple[int, int], ...] = ()
    """Pairs of source and target word numbers, from 0"""
    num_src_words: int = 0
    num_tgt_words: int = 0

    def __str__(self) -> str:
        """As in the files of Pharaoh, GIZA++'s symmetrisers and fast_align: "0-0 2-1", source first."""
        return " ".join(f"{src}-{tgt}" for src, tgt in self.links)

    def followed_by(self, part: "WordAlignment", one_src_word: bool, one_tgt_word: bool) -> "WordAlignment":
        """Return the alignment of two consecutive parts of a text.

        With `one_src_word`, the last source word of the first part and the first one of the other are one, as in
        `runs.👍`; so with `one_tgt_word`, if both parts have words.

        >>> parts = WordAlignment(((0, 0), (1, 1)), 2, 2), WordAlignment(((1, 0),), 2, 1)
        >>> str(parts[0].followed_by(parts[1], False, False)), str(parts[0].followed_by(parts[1], True, False))
        ('0-0 1-1 3-2', '0-0 1-1 2-2')
        """
        src = self.num_src_words - (one_src_word and self.num_src_words > 0 and part.num_src_words > 0)
        tgt = self.num_tgt_words - (one_tgt_word and self.num_tgt_words > 0 and part.num_tgt_words > 0)
        links = [*self.links, *((src + src_word, tgt + tgt_word) for src_word, tgt_word in part.links)]
        return WordAlignment(tuple(dict.fromkeys(links)), src + part.num_src_words, tgt + part.num_tgt_words)


NO_ALIGNMENT = WordAlignment()


def best_of(results: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
    """Return the first hypothesis of each source; `TrainingError` if there is none, or its score is NaN."""
    for hypotheses in results:
        if not hypotheses or math.isnan(hypotheses[0].score):
            raise TrainingError(DIVERGED)
    return [hypotheses[0] for hypotheses in results]


def forbidden_ids(special: SpecialIds) -> list[int]:
    """Return the ids that no hypothesis may contain: padding, the start id and tags, which are not text, and `<unk>`.

    `</s>` stays allowed even where it is the start id, because it ends a hypothesis.
    """
    return sorted({special.pad, special.start, special.unk, *special.tags} - {special.eos})


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The settings of sampling. Raises `ConfigError` for a value that defines no distribution.

    The model's probabilities are raised to the power 1 / `temperature`. Of the result, the `top_k` most probable tokens
    remain, and of these the fewest whose probabilities sum to at least `top_p` (Holtzman et al. 2020,
    arXiv:1904.09751).
    """

    temperature: float = 1.0
    """Near 0: almost always the most probable token; 1: the model's own distribution."""
    top_k: int = 0
    """0: no limit"""
    top_p: float = 1.0
    seed: int = 1
    """A draw depends on the seed, the source's ids, and its number among the draws for this source. So a line gives the
    same samples wherever it occurs, in any batch."""
    count: int = 1
    """Number of draws for each source."""
    by_risk: bool = False
    """True: the draws are ordered by their mean chrF against all of them (`nmt.decoding.mbr`)."""

    def __post_init__(self) -> None:
        wrong = (
            f"--temperature {self.temperature:g}: must be more than {MIN_TEMPERATURE:g}; 0 would be greedy search: "
            f"--beam-size 1"
            if not MIN_TEMPERATURE < self.temperature < float("inf")
            else f"--top-p {self.top_p:g}: must be more than 0 and at most 1"
            if not 0 < self.top_p <= 1
            else f"--top-k {self.top_k}: must be 1 or more"
            if self.top_k < 0
            else f"--seed {self.seed}: must be 0 or more, and less than 2 ** 64"
            if not 0 <= self.seed < 1 << 64
            else ""
        )
        if wrong:
            raise ConfigError(wrong)


@dataclasses.dataclass(frozen=True)
class Request:
    """The results requested from a call of a translator, for each source."""

    n_best: int | None = None
    """Maximum number of hypotheses, best first; None: no maximum."""
    num_scored: int = 0
    """The number of hypotheses, best first, whose pieces and their log-probabilities are returned, too."""
    sampling: Sampling | None = None
    """None: a search for the best translations."""
    by_sentence: bool = False
    """True: each sentence of a line is translated separately, and white space, line ends included, is kept."""
    alignment: bool = False
    """True: the word alignment is returned, too."""
    scores: bool = True
    """False: scores may be 0; CTranslate2's greedy search on a CPU is faster without them."""


BEST = Request()
