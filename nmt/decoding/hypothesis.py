"""What a search gives back."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One decoded sequence."""

    tokens: tuple[int, ...]
    """Its ids, without `<s>` and `</s>`."""
    log_prob: float
    """Sum of the log-probabilities of its tokens, that of `</s>` included where it was reached."""
    score: float
    """`log_prob / max(1, len(tokens)) ** length_penalty`: what hypotheses are ranked by."""
