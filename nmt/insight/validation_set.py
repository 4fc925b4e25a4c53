"""The validation set, translated once by a run's model: its scores, and sentences worth a look.

Shapes: T target pieces, S source pieces.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.config.corpus import CorpusFiles
from nmt.config.evaluation import Metric
from nmt.config.inference import DecodingConfig
from nmt.config.source import SourceConfig
from nmt.config.training import Config
from nmt.data.corpus import read_pairs
from nmt.data.lines import read_lines
from nmt.data.tokenizer import Tokenizers
from nmt.data.vectors import count_pairs, open_vectors, source_names
from nmt.decoding.source_text import Item, SourceText
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import Translator
from nmt.evaluation.buckets import Bucket, SentenceStatistics, SourceLengths, scores_by
from nmt.evaluation.evaluate import TestSet, evaluate
from nmt.evaluation.metrics import Score, configured_metrics, make_metrics
from nmt.evaluation.significance import Interval, confidence_intervals
from nmt.insight.attention import Picture

MAX_LINES = 2000
"""Of a longer validation set, this many lines at even distances are translated, so that time and memory are bounded."""
EXAMPLES = 4
"""Number of examples of each kind."""


class ReportedScore(NamedTuple):
    """A metric's score on a set of lines."""

    score: Score
    interval: Interval | None
    """95% confidence interval; None if the references are not known, or too many."""


class Example(NamedTuple):
    """A line of the validation set and its translation."""

    line: int
    """Its number in the file, from 1."""
    src: str
    """The line, or what the vectors or the image are called."""
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
    """(T, S): cross-attention, the mean over layers and heads; the rest of a row's 1 goes to the source's `</s>`. Of
    no rows where `ValidationResult.no_attention` says why."""


class ValidationResult(NamedTuple):
    """The translations of the validation set, in figures and examples."""

    num_lines: int
    """Of the files."""
    num_translated: int
    scores: dict[Metric, ReportedScore]
    decoding: DecodingConfig
    length_unit: str
    """What a source's length counts: words, characters, vectors or patches."""
    lengths: tuple[Bucket, ...]
    """BLEU by the source's length; no empty buckets."""
    no_lengths: str
    """Why there are none; empty if there are."""
    examples: dict[str, tuple[Example, ...]]
    """By kind: `typical`, `best`, `worst`, as `choose_examples` finds them."""
    no_attention: str
    """Why the examples have no attention; empty if they have."""


def translate_validation_set(config: Config, tokenizers: Tokenizers, engine: TorchEngine) -> ValidationResult:
    """Translate the validation set as the validations of a training do, and score it.

    Raises `DataError` if it cannot be read.
    """
    data, source, evaluation = config.data, config.source, config.evaluation
    num_lines, numbers, test_set = _read(data.validation, source)
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
    scores = chrf.sentence_scores()
    chosen = choose_examples(scores, [len(item) for item in test_set.src])
    indices = [index for of_kind in chosen.values() for index in of_kind]
    shown = _shown_sources([test_set.src[index] for index in indices], [numbers[index] for index in indices], config)
    no_attention = _why_no_attention(config)
    attentions = [_NO_ATTENTION] * len(indices)
    if not no_attention:
        attentions = _attentions([one.text for one in shown], config, tokenizers, engine, decoding)
    examples = {
        index: Example(
            numbers[index], one.text, one.picture, test_set.references[0][index], result.hypotheses[index],
            scores[index], attention.src_tokens, attention.tgt_tokens, attention.weights,
        )
        for index, one, attention in zip(indices, shown, attentions, strict=True)
    }  # fmt: skip
    return ValidationResult(
        num_lines=num_lines,
        num_translated=len(numbers),
        scores={name: ReportedScore(one, intervals[name]) for name, one in result.scores.items()},
        decoding=decoding,
        length_unit=lengths.unit,
        lengths=()
        if lengths.why_left_out
        else tuple(one for one in scores_by(lengths.values, lengths.edges, bleu) if one.count),
        no_lengths=lengths.why_left_out,
        examples={kind: tuple(examples[index] for index in of_kind) for kind, of_kind in chosen.items()},
        no_attention=no_attention,
    )


def _read(files: CorpusFiles, source: SourceConfig) -> tuple[int, list[int], TestSet]:
    """The number of lines, and the chosen ones with their numbers, from 1."""
    total = count_pairs([files], source)
    count = min(total, MAX_LINES)
    chosen = bytes((line + 1) * count // total - line * count // total for line in range(total))  # `count` ones
    numbers = [line + 1 for line in range(total) if chosen[line]]
    if source.type == "text":
        pairs = list(read_pairs(files, chosen))
        return total, numbers, TestSet([src for src, _ in pairs], [[tgt for _, tgt in pairs]])
    vectors = open_vectors(files.src_file, source)
    sources: list[Item] = [one for number in numbers for one in vectors.read(number - 1, number)]
    return total, numbers, TestSet(sources, [list(itertools.compress(read_lines(files.tgt_file), chosen))])


class _ShownSource(NamedTuple):
    """`Example.src` and `Example.picture`."""

    text: str
    picture: str = ""


def _shown_sources(items: Sequence[Item], numbers: Sequence[int], config: Config) -> list[_ShownSource]:
    """How the sources in these lines of the validation set are shown."""
    source = config.source
    names = [] if source.type == "text" else source_names(config.data.validation.src_file, source)
    shown = []
    for item, number in zip(items, numbers, strict=True):
        if isinstance(item, str):
            shown.append(_ShownSource(item))
        else:
            picture = Picture.of(item).to_uri() if source.type == "images" else ""
            shown.append(_ShownSource(names[number - 1], picture))
    return shown


def _why_no_attention(config: Config) -> str:
    """Why examples are shown without attention; empty if they have it."""
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
    """The indices of the best, the worst, and the most typical sentences, those around the median; each at most once.

    Of equal scores, the longer sentences count as better among the best and as worse among the worst, since they show
    more.

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


class _Attention(NamedTuple):
    """`Example.src_tokens`, `tgt_tokens` and `attention`."""

    src_tokens: tuple[str, ...]
    tgt_tokens: tuple[str, ...]
    weights: NDArray[np.float32]


_NO_ATTENTION = _Attention((), (), np.zeros((0, 0), dtype=np.float32))


def _attentions(
    lines: Sequence[str], config: Config, tokenizers: Tokenizers, engine: TorchEngine, decoding: DecodingConfig
) -> list[_Attention]:
    """The attention of each line's translation; none for an empty line."""
    lower_capitals, src_lang = config.decoding.lower_capitals, config.data.src_lang
    source_text = SourceText(tokenizers.src, config.data.max_length, lower_capitals, src_lang)
    sources = [source_text.encode(line, "the validation set") for line in lines]
    found = [index for index, ids in enumerate(sources) if ids]
    shown = [_NO_ATTENTION] * len(lines)
    if found:
        inputs = [sources[index] for index in found]
        outputs = [hypotheses[0].tokens for hypotheses in engine.search(inputs, decoding)]
        for index, src, tgt, weights in zip(found, inputs, outputs, engine.attention(inputs, outputs), strict=True):
            shown[index] = _Attention(tuple(tokenizers.src.pieces(src)), tuple(tokenizers.tgt.pieces(tgt)), weights)
    return shown
