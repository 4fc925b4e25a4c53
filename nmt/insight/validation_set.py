"""The validation set, translated once by a run's model: its scores, and sentences worth a look.

Shapes: T target pieces, S source pieces.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.config.inference import DecodingConfig
from nmt.config.training import Config, CorpusFiles, Metric
from nmt.data.corpus import count_pairs, read_pairs
from nmt.data.tokenizer import Tokenizers
from nmt.decoding.source_text import SourceText
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import Translator
from nmt.evaluation.buckets import SOURCE_LENGTHS, BucketScore, SentenceStatistics, scores_by, source_lengths
from nmt.evaluation.evaluate import TestSet, evaluate
from nmt.evaluation.metrics import Score, make_metrics
from nmt.evaluation.significance import Interval, confidence_intervals

MAX_LINES = 2000
"""Of a longer validation set, this many lines at even distances are translated, so that time and memory are bounded."""
EXAMPLES = 4
"""Number of examples of each kind."""


@dataclasses.dataclass(frozen=True)
class ReportedScore:
    """A metric's score on a set of lines."""

    score: Score
    interval: Interval | None
    """95% confidence interval; None if the references are not known, or too many."""


@dataclasses.dataclass(frozen=True)
class Example:
    """A line of the validation set and its translation."""

    line: int
    """Its number in the file, from 1."""
    src: str
    reference: str
    hypothesis: str
    score: float
    """Sentence chrF."""
    src_tokens: tuple[str, ...]
    """S pieces."""
    tgt_tokens: tuple[str, ...]
    """T pieces."""
    attention: NDArray[np.float32]
    """(T, S): cross-attention, the mean over layers and heads; the rest of a row's 1 goes to the source's `</s>`."""


@dataclasses.dataclass(frozen=True)
class ValidationResult:
    """The translations of the validation set, in figures and examples."""

    num_lines: int
    """Of the files."""
    num_translated: int
    scores: dict[Metric, ReportedScore]
    decoding: DecodingConfig
    lengths: tuple[BucketScore, ...]
    """BLEU by the source's length in words, or in characters if the language has no spaces; no empty buckets."""
    examples: dict[str, tuple[Example, ...]]
    """By kind: `typical`, `best`, `worst`, as `choose_examples` finds them."""


def translate_validation_set(config: Config, tokenizers: Tokenizers, engine: TorchEngine) -> ValidationResult:
    """Translate the validation set as the validations of a training do, and score it.

    Raises `DataError` if it cannot be read.
    """
    data, evaluation = config.data, config.evaluation
    num_lines, numbers, test_set = _read(data.validation)
    lines = test_set.src_lines()
    decoding = config.decoding.model_copy(update={"beam_size": evaluation.validation_beam_size})
    translator = Translator(tokenizers, engine, decoding, data.max_length, languages=(data.src_lang, data.tgt_lang))
    metrics = make_metrics(evaluation.metrics, data.tgt_lang, evaluation.bleu_tokenizer)
    result = evaluate(translator, test_set, metrics)
    intervals = confidence_intervals(metrics, result.hypotheses, test_set.references)
    both = make_metrics(("bleu", "chrf"), data.tgt_lang, evaluation.bleu_tokenizer)
    bleu, chrf = (SentenceStatistics(both[name], result.hypotheses, test_set.references) for name in both)
    lengths = scores_by(source_lengths(lines, data.src_lang), SOURCE_LENGTHS, bleu)
    scores = chrf.sentence_scores()
    chosen = choose_examples(scores, [len(line) for line in lines])
    indices = [index for of_kind in chosen.values() for index in of_kind]
    source_text = SourceText.of(tokenizers.src, [config])
    attentions = _attentions([lines[index] for index in indices], source_text, tokenizers, engine, decoding)
    examples = {
        index: Example(
            numbers[index], lines[index], test_set.references[0][index], result.hypotheses[index],
            scores[index], *attention,
        )
        for index, attention in zip(indices, attentions, strict=True)
    }  # fmt: skip
    return ValidationResult(
        num_lines=num_lines,
        num_translated=len(numbers),
        scores={name: ReportedScore(one, intervals[name]) for name, one in result.scores.items()},
        decoding=decoding,
        lengths=tuple(one for one in lengths if one.lines),
        examples={kind: tuple(examples[index] for index in of_kind) for kind, of_kind in chosen.items()},
    )


def _read(files: CorpusFiles) -> tuple[int, list[int], TestSet]:
    """The number of lines, and the chosen ones with their numbers, from 1."""
    total = count_pairs([files])
    count = min(total, MAX_LINES)
    chosen = bytes((line + 1) * count // total - line * count // total for line in range(total))  # `count` ones
    pairs = list(read_pairs(files, chosen))
    numbers = [line + 1 for line in range(total) if chosen[line]]
    return total, numbers, TestSet([src for src, _ in pairs], [[tgt for _, tgt in pairs]])


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


def _attentions(
    lines: Sequence[str], source_text: SourceText, tokenizers: Tokenizers, engine: TorchEngine, decoding: DecodingConfig
) -> list[tuple[tuple[str, ...], tuple[str, ...], NDArray[np.float32]]]:
    """Source pieces, target pieces, and attention (T, S) of each line's translation; empty for an empty line."""
    sources = [source_text.encode(line, "the validation set") for line in lines]
    found = [index for index, ids in enumerate(sources) if ids]
    empty = np.zeros((0, 0), dtype=np.float32)
    shown: list[tuple[tuple[str, ...], tuple[str, ...], NDArray[np.float32]]] = [((), (), empty)] * len(lines)
    if found:
        inputs = [sources[index] for index in found]
        outputs = [hypotheses[0].tokens for hypotheses in engine.search(inputs, decoding)]
        for index, src, tgt, weights in zip(found, inputs, outputs, engine.attention(inputs, outputs), strict=True):
            shown[index] = tuple(tokenizers.src.pieces(src)), tuple(tokenizers.tgt.pieces(tgt)), weights
    return shown
