"""Scores of translations by sacreBLEU, on plain text, with its signatures."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.utils import SACREBLEU_DIR

from nmt.config.evaluation import BleuTokenizer, EvaluationConfig, Metric
from nmt.config.languages import base_language, is_without_spaces, script_of
from nmt.errors import ConfigError, MissingExtraError, how_to_install

_OWN_TOKENIZER = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
_DOWNLOADED = ("spm", "flores101", "flores200", "spBLEU-1K")
_HAN_OR_KANA = ("Hani", "Hans", "Hant", "Jpan")


@dataclasses.dataclass(frozen=True)
class Score:
    """One metric of one set of translations."""

    name: str
    """sacreBLEU's name: BLEU, chrF2, chrF2++, TER."""
    value: float
    """0 to 100; TER, where less is better, may exceed 100."""
    signature: str
    """Two scores are comparable only if their signatures are equal."""


def make_metrics(
    names: Sequence[Metric], tgt_lang: str, tokenizer: BleuTokenizer = "auto", lowercase: bool = False
) -> dict[Metric, SacreMetric]:
    """sacreBLEU's metrics for a target language, which determines the tokenization.

    With `lowercase`, BLEU and chrF ignore case; TER always does, as sacreBLEU's. TER splits languages written with
    Chinese characters or kana into characters, and all others at spaces. Raises `MissingExtraError` if the language's
    package is not installed, `ConfigError` if a tokenizer's model cannot be downloaded.
    """
    return {name: _make(name, tgt_lang, tokenizer, lowercase) for name in names}


def metric_names(settings: EvaluationConfig, tgt_lang: str) -> tuple[Metric, ...]:
    """The configured metrics, or those of a language by default."""
    has_words = not is_without_spaces(tgt_lang) or script_of(tgt_lang) in _HAN_OR_KANA
    return settings.metrics or (("bleu", "chrf", "ter") if has_words else ("bleu", "chrf"))


def configured_metrics(settings: EvaluationConfig, tgt_lang: str, lowercase: bool = False) -> dict[Metric, SacreMetric]:
    """`make_metrics` of a configuration."""
    return make_metrics(metric_names(settings, tgt_lang), tgt_lang, settings.bleu_tokenizer, lowercase)


def bleu_tokenizer(tgt_lang: str, tokenizer: BleuTokenizer = "auto") -> str:
    """sacreBLEU's name for the tokenizer that BLEU uses for a language.

    >>> [bleu_tokenizer(language) for language in ("de", "zh-Hant", "jpn", "th", "yue", "zh-Latn")]
    ['13a', 'zh', 'ja-mecab', 'char', 'char', '13a']
    """
    if tokenizer != "auto":
        return tokenizer
    if script_of(tgt_lang) != "Latn" and (own := _OWN_TOKENIZER.get(base_language(tgt_lang))):
        return own
    return "char" if is_without_spaces(tgt_lang) else "13a"


def _make(name: Metric, tgt_lang: str, tokenizer: BleuTokenizer, lowercase: bool) -> SacreMetric:
    if name == "chrf":
        return CHRF(lowercase=lowercase)
    if name == "chrf++":
        return CHRF(word_order=2, lowercase=lowercase)
    if name == "ter":
        by_character = script_of(tgt_lang) in _HAN_OR_KANA
        return TER(normalized=by_character, asian_support=by_character)
    chosen = bleu_tokenizer(tgt_lang, tokenizer)
    try:
        return BLEU(tokenize=chosen, lowercase=lowercase)
    except (RuntimeError, ImportError, OSError) as error:
        if chosen in _DOWNLOADED:
            raise ConfigError(
                f"BLEU's tokenizer {chosen} needs a model that sacreBLEU downloads once into "
                f"{Path(SACREBLEU_DIR, 'models')}, which failed ({error}); try again with a connection, copy the file "
                f"from another machine, or use `char`"
            ) from None
        extra = chosen.split("-")[0]
        raise MissingExtraError(
            f"BLEU for {tgt_lang!r} needs a package that is not installed: {how_to_install(extra)}"
        ) from None


def score(
    metrics: dict[Metric, SacreMetric], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[Metric, Score]:
    """Corpus scores of `hypotheses` against one or several lists of references, each of the same length."""
    scores = {}
    for name, metric in metrics.items():
        result = metric.corpus_score(hypotheses, references)
        scores[name] = Score(result.name, result.score, str(metric.get_signature()))
    return scores
