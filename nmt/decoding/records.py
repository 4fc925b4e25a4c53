"""A translation as a JSON object, for programs."""

import json
from typing import Any

from nmt.decoding.hypothesis import ScoredTokens
from nmt.decoding.translator import Translation


def as_json(translation: Translation, n_best: int = 0, alignment: bool = False, tokens: bool = False) -> str:
    """One line of JSON: text and score; with `alignment` the word alignment, and with `n_best` a list of as many
    hypotheses. With `tokens`, each text has its tokens and log_probs, too. The score of an empty line is null; status
    has an entry for each part of the line.

    >>> as_json(Translation("Hallo", 1, n_best=(("Hallo", -0.5),)))
    '{"text": "Hallo", "score": -0.5, "status": ["translated"]}'
    """
    wanted = translation.n_best[: max(n_best, 1)]
    scored = translation.scored if tokens else [None] * len(wanted)
    hypotheses = [_hypothesis(text, score, of_one) for (text, score), of_one in zip(wanted, scored, strict=True)]
    if hypotheses:
        content = dict(hypotheses[0])
    else:
        content = _hypothesis(translation.text, None, ScoredTokens((), ()) if tokens else None)
    content["status"] = translation.status
    if alignment:
        content["alignment"] = str(translation.alignment)
    if n_best:
        content["n_best"] = hypotheses
    return json.dumps(content, ensure_ascii=False)


def _hypothesis(text: str, score: float | None, scored: ScoredTokens | None) -> dict[str, Any]:
    found: dict[str, Any] = {"text": text, "score": None if score is None else round(score, 6)}
    if scored:
        found["tokens"] = list(scored.tokens)
        found["log_probs"] = [round(one, 6) for one in scored.log_probs]
    return found
