"""Validation set of a report: translated once by the run's model, with scores and example sentences.

Shapes: T target pieces, S source pieces.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nmt.config.inference import DecodingConfig
from nmt.config.training import Config, Metric
from nmt.corpora.vectors import source_names
from nmt.decoding.source_text import SourceEncoder
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import Translator
from nmt.evaluation.buckets import Bucket, SentenceStatistics, SourceLengths, scores_by
from nmt.evaluation.evaluate import corpus_test_set, evaluate
from nmt.evaluation.metrics import Score, configured_metrics, make_metrics
from nmt.evaluation.significance import Interval, confidence_intervals
from nmt.insight.attention import Picture
from nmt.tokenizers.tokenizer import Tokenizers

MAX_LINES = 2000
"""Limit of translated lines; of a longer set, lines at even distances, so that time and memory are bounded."""
EXAMPLES = 4
"""Number of examples of each kind."""


class ReportedScore(NamedTuple):
    """A metric's score on a set of lines."""

    score: Score
    interval: Interval | None
    """95% confidence interval; None if the references are unknown or too many."""


class ReportedExample(NamedTuple):
    """A line of the validation set and its translation."""

    line: int
    """Its number in the file, from 1."""
    src: str
    """The line, or the name of the vectors or the image."""
    picture: str
    """The image as a `data:` address; empty for text and vectors."""
    reference: str
    hypothesis: str
    score: float
    """Sentence chrF."""
    src_tokens: tuple[str, ...]
    """S pieces."""
    tgt_tokens: tuple[str, ...]
    """T pieces."""
    attention: NDArray[np.float32]
    """(T, S): cross-attention, the mean over layers and heads; the rest of a row's sum of 1 is on the source's `</s>`.
    Without rows if the model or its sources have none (`ValidationResult.no_attention`), and for a line that was
    translated in parts or copied."""


class ValidationResult(NamedTuple):
    """The translations of the validation set, in figures and examples."""

    num_lines: int
    """Number of lines in the files."""
    num_translated: int
    scores: dict[Metric, ReportedScore]
    decoding: DecodingConfig
    length_unit: str
    """Unit of source lengths: words, characters, vectors or patches."""
    lengths: tuple[Bucket, ...]
    """BLEU by the source's length; no empty buckets."""
    no_lengths: str
    """The reason why there are no buckets; empty if there are."""
    examples: dict[str, tuple[ReportedExample, ...]]
    """By kind: `typical`, `best`, `worst` (`choose_examples`)."""
    no_attention: str
    """The reason why the examples have no attention; empty if they have."""


def translate_validation_set(config: Config, tokenizers: Tokenizers, engine: TorchEngine) -> ValidationResult:
    """Translate the validation set as the validations of a training do, and score it.

    Raises `DataError` if it cannot be read.
    """
    data, source, evaluation = config.data, config.source, config.evaluation
    whole = corpus_test_set(data.validation, source)
    test_set, numbers = whole.spread(MAX_LINES)
    decoding = config.decoding.model_copy(update={"beam_size": evaluation.validation_beam_size})
    translator = Translator(
        tokenizers, engine, decoding, data.max_length, languages=(data.src_lang, data.tgt_lang), source=source
    )
    metrics = configured_metrics(evaluation, data.tgt_lang)
    result = evaluate(translator, test_set, metrics)
    intervals = confidence_intervals(metrics, result.hypotheses, test_set.references)
    both = make_metrics(("bleu", "chrf"), data.tgt_lang, evaluation.bleu_tokenizer)
    bleu, chrf = (SentenceStatistics(both[name], result.hypotheses, test_set.references) for name in both)
    lengths = SourceLengths.of(test_set.src, source, data.src_lang)
    buckets = () if lengths.why_left_out else scores_by(lengths.values, lengths.edges, bleu)
    scores = chrf.sentence_scores()
    names = whole.src_lines() if source.type == "text" else source_names(data.validation.src_file, source)
    no_attention, encoder = _why_no_attention(config), translator.source_encoder

    def example(index: int) -> ReportedExample:
        name, item = names[numbers[index]], test_set.src[index]
        picture = "" if isinstance(item, str) or source.type != "images" else Picture.of(item).to_uri()
        attention = _NO_ATTENTION if no_attention else _attention(name, encoder, tokenizers, engine, decoding)
        return ReportedExample(
            numbers[index] + 1, name, picture, test_set.references[0][index],
            result.hypotheses[index], scores[index], *attention,
        )  # fmt: skip

    chosen = choose_examples(scores, [len(item) for item in test_set.src])
    return ValidationResult(
        num_lines=len(whole.src),
        num_translated=len(numbers),
        scores={name: ReportedScore(one, intervals[name]) for name, one in result.scores.items()},
        decoding=decoding,
        length_unit=lengths.unit,
        lengths=tuple(bucket for bucket in buckets if bucket.count),
        no_lengths=lengths.why_left_out,
        examples={kind: tuple(map(example, indices)) for kind, indices in chosen.items()},
        no_attention=no_attention,
    )


def _why_no_attention(config: Config) -> str:
    """The reason why examples are shown without attention; empty if they have it."""
    if not config.model.has_attention:
        return "The model has no attention (model.attention: none), so none is shown."
    match config.source.type:
        case "text":
            return ""
        case "images":
            return "Attention is not shown here: nmt attention IMAGE lays it over the picture, word by word."
        case "vectors":
            return "Attention is not shown: vectors have no names."


def choose_examples(scores: Sequence[float], lengths: Sequence[int]) -> dict[str, list[int]]:
    """Choose the indices of the best, the worst and the most typical sentences (around the median), each at most once.

    Among equal scores, longer sentences come first: they show more.

    >>> choose_examples([50, 0, 100, 40, 60, 100, 0], [5, 5, 5, 5, 5, 9, 9])
    {'typical': [3, 0], 'best': [5, 2], 'worst': [6, 1]}
    """
    count = min(EXAMPLES, len(scores) // 3) or 1
    best = sorted(range(len(scores)), key=lambda index: (-scores[index], -lengths[index]))[:count]
    worst = [index for index in sorted(range(len(scores)), key=lambda index: (scores[index], -lengths[index]))
             if index not in best][:count]  # fmt: skip
    rest = sorted(set(range(len(scores))) - {*best, *worst}, key=lambda index: scores[index])
    start = max(0, (len(rest) - count) // 2)
    return {"typical": rest[start : start + count], "best": best, "worst": worst}


_Attention: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], NDArray[np.float32]]
_NO_ATTENTION: _Attention = ((), (), np.zeros((0, 0), dtype=np.float32))


def _attention(
    line: str, encoder: SourceEncoder, tokenizers: Tokenizers, engine: TorchEngine, decoding: DecodingConfig
) -> _Attention:
    """The pieces of a line and of its translation, and the attention between them; none unless it is one part."""
    ((_, encoded),) = encoder.in_parts([(1, line)], by_sentence=False)
    if len(encoded) != 1 or not len(encoded[0]):
        return _NO_ATTENTION
    tokens = engine.search(encoded, decoding)[0][0].tokens
    (weights,) = engine.attention(encoded, [tokens])
    return tuple(tokenizers.src.pieces([*map(int, encoded[0])])), tuple(tokenizers.tgt.pieces(tokens)), weights
