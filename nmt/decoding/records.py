"""A translation as a JSON object, for programs."""

import json
from typing import Any

from nmt.decoding.hypothesis import ScoredTokens
from nmt.decoding.translator import Translation


def as_json(translation: Translation, n_best: int = 0, alignment: bool = False) -> str:
    """One line of JSON: text, score, tokens and log_probs; with `alignment` the word alignment, and with `n_best` a
    list of as many hypotheses, each with these four. The score of an empty line is null.

    >>> as_json(Translation("Hallo", 1, score=-0.5, scored=(ScoredTokens(("▁Hallo", "</s>"), (-0.25, -0.25)),)))
    '{"text": "Hallo", "score": -0.5, "tokens": ["▁Hallo", "</s>"], "log_probs": [-0.25, -0.25]}'
    """
    is_empty = not translation.scored
    first = ScoredTokens((), ()) if is_empty else translation.scored[0]
    content = _hypothesis(translation.text, None if is_empty else translation.score, first)
    if alignment:
        content["alignment"] = str(translation.alignment)
    if n_best:
        content["n_best"] = [
            _hypothesis(text, score, scored)
            for (text, score), scored in zip(translation.n_best[:n_best], translation.scored, strict=True)
        ]
    return json.dumps(content, ensure_ascii=False)


def _hypothesis(text: str, score: float | None, scored: ScoredTokens) -> dict[str, Any]:
    rounded = [round(one, 6) for one in scored.log_probs]
    return {
        "text": text,
        "score": None if score is None else round(score, 6),
        "tokens": list(scored.tokens),
        "log_probs": rounded,
    }
