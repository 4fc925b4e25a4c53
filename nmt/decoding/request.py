"""A request: what one call of a translator is to return beyond the best translations."""

import dataclasses

from nmt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How translations are drawn at random. Raises `ConfigError` for a value that defines no distribution.

    The model's probabilities are raised to the power 1 / `temperature`. Of the result, the `top_k` most probable tokens
    remain, and of these the fewest whose probabilities sum to at least `top_p` (Holtzman et al. 2020,
    arXiv:1904.09751).
    """

    temperature: float = 1.0
    """Near 0: almost always the most probable token; 1: the model's own distribution."""
    top_k: int = 0
    """0: no such limit"""
    top_p: float = 1.0
    seed: int = 1
    """A draw depends on the seed, the source's ids, and its number among the draws for this source. So neither batches
    nor the order of lines change it, and the same line gives the same samples wherever it occurs."""
    count: int = 1
    """Number of draws for each source."""
    by_risk: bool = False
    """Order the draws by their mean chrF against all of them (`nmt.decoding.mbr`), not as they were drawn."""

    def __post_init__(self) -> None:
        wrong = (
            f"--temperature {self.temperature:g}: must be more than 0; 0 would be greedy search: --beam-size 1"
            if not 0 < self.temperature < float("inf")
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
    """What one call of a translator is to return for each source, besides its translation."""

    n_best: int | None = None
    """Maximum number of hypotheses, best first; None: all that were found."""
    num_scored: int = 0
    """For this number of the hypotheses, best first, also their pieces and the log-probability of each."""
    sampling: Sampling | None = None
    """None: the best translations are searched for."""
    by_sentence: bool = False
    """Each sentence of a line is translated by itself, and white space is kept; a line may hold line ends then."""
    alignment: bool = False
    """Also the word alignment."""
    scores: bool = True
    """False: scores may be 0; CTranslate2's greedy search on a CPU is faster without them."""


BEST = Request()
