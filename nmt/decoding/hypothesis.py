"""What a search gives back."""

import dataclasses

from nmt.data.vocabulary import SpecialIds


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One decoded sequence."""

    tokens: tuple[int, ...]
    """Its ids, those of a forced prefix included, without the start id and `</s>`."""
    log_prob: float
    """Sum of the log-probabilities of its tokens, that of `</s>` included where it was reached."""
    score: float
    """`log_prob / max(1, len(tokens)) ** length_penalty`: what hypotheses are ranked by."""
    token_log_probs: tuple[float, ...] | None = None
    """Of each token, and of `</s>` where it was reached; their sum is `log_prob`, up to rounding. None from
    CTranslate2, whose searches give the sum alone: it could score the tokens once more, but without the constraints."""

    @classmethod
    def scored(
        cls,
        tokens: tuple[int, ...],
        log_prob: float,
        length_penalty: float,
        token_log_probs: tuple[float, ...] | None = None,
    ) -> "Hypothesis":
        """With the score that all searches and engines rank by; `</s>` does not count in the length."""
        return cls(tokens, log_prob, log_prob / max(1, len(tokens)) ** length_penalty, token_log_probs)


def forbidden_ids(special: SpecialIds) -> list[int]:
    """What no hypothesis holds: padding and the start id are no text, and `<unk>` would be of no use to its reader.

    `</s>` is what some decoders start with; it ends a hypothesis all the same.
    """
    return sorted({special.pad, special.start, special.unk} - {special.eos})
