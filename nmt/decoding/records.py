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
    hypotheses: list[dict[str, Any]] = []
    for rank, (text, score) in enumerate(translation.n_best[: max(n_best, 1)] or [(translation.text, None)]):
        hypotheses.append({"text": text, "score": None if score is None else round(score, 6)})
        if tokens:
            hypotheses[-1] |= (translation.scored[rank] if translation.scored else ScoredTokens()).to_json()
    content = hypotheses[0] | {"status": translation.status}
    if alignment:
        content["alignment"] = str(translation.alignment)
    if n_best:
        content["n_best"] = hypotheses if translation.n_best else []
    return json.dumps(content, ensure_ascii=False)
