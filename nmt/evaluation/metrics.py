"""Scores of translations, all of them sacreBLEU's, on plain text, with its signatures."""

import dataclasses
import math
from collections.abc import Sequence

from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmt.config import Metric
from nmt.errors import MissingExtraError

HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "ter": False, "loss": False}


def is_better(metric: str, value: float, best: float | None) -> bool:
    """Whether `value` is the best so far; a number is better than NaN, which a diverging loss can be."""
    if best is None or math.isnan(best):
        return True
    return value > best if HIGHER_IS_BETTER[metric] else value < best


@dataclasses.dataclass(frozen=True)
class Score:
    """One metric of one set of translations."""

    name: str
    """As sacreBLEU calls it: BLEU, chrF2, TER."""
    value: float
    """0 to 100; TER, the only one where less is better, may exceed that."""
    signature: str
    """What must be equal for two scores to be comparable."""


def make_metrics(names: Sequence[Metric], tgt_lang: str) -> dict[Metric, SacreMetric]:
    """sacreBLEU's metrics for a target language, which decides how text is cut into words.

    BLEU uses `zh`, `ja-mecab`, `ko-mecab` or `13a`; TER cuts Chinese and Japanese into characters. Raises
    `MissingExtraError` if the language's package is not installed.
    """
    return {name: _make(name, tgt_lang) for name in names}


def _make(name: Metric, tgt_lang: str) -> SacreMetric:
    if name == "chrf":
        return CHRF()
    if name == "ter":
        by_character = tgt_lang in ("zh", "ja")
        return TER(normalized=by_character, asian_support=by_character)
    try:
        return BLEU(trg_lang=tgt_lang)
    except (RuntimeError, ImportError):
        raise MissingExtraError(
            f"BLEU for {tgt_lang!r} needs a package that is not installed: pip install 'nmt[{tgt_lang}]'"
        ) from None


def score(
    metrics: dict[Metric, SacreMetric], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[Metric, Score]:
    """Corpus scores of `hypotheses` against one or several sets of references, each as long as they are."""
    scores = {}
    for name, metric in metrics.items():
        result = metric.corpus_score(hypotheses, references)
        scores[name] = Score(result.name, result.score, str(metric.get_signature()))
    return scores
