"""The check that an exported model translates as its run does.

The run's validation set, or other text, is translated with PyTorch in fp32 and with the export, by greedy search and by
beam search. How an export is searched is the exporter's: a function from sources and search settings to translations.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from nmt.config.inference import DecodingConfig, InferenceConfig
from nmt.decoding.translator import load
from nmt.errors import DataError, ExportError
from nmt.evaluation.evaluate import TestSet, corpus_test_set, evaluate, named_for, read_test_set
from nmt.evaluation.metrics import Score, make_metrics, score
from nmt.runs import RunFolder

SAME_LINES = 0.995
"""For an export that changes no weight, the minimum share of lines that must be the same."""
BLEU_DIFFERENCE = 0.3
"""The maximum loss of BLEU; for an export that changes no weight, the maximum change."""

Translate = Callable[[Sequence[str], DecodingConfig], list[str]]
"""The translations of lines with an export; `beam_size` 1 is greedy search."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """Verification of an export's translations of a test set with PyTorch's."""

    beam_size: int
    lines: int
    same_lines: int
    torch_score: Score
    export_score: Score

    def is_good(self, is_exact: bool) -> bool:
        """Whether the export is kept; `is_exact` is one whose lines are to be the same. Others may gain BLEU."""
        lost = self.torch_score.value - self.export_score.value
        if is_exact:
            return self.same_lines >= SAME_LINES * self.lines and abs(lost) <= BLEU_DIFFERENCE
        return lost <= BLEU_DIFFERENCE

    def __str__(self) -> str:
        return (
            f"beam {self.beam_size}: {self.same_lines:,} of {self.lines:,} lines are the same, BLEU "
            f"{self.export_score.value:.2f} instead of {self.torch_score.value:.2f}"
        )


class ProofText(NamedTuple):
    """What an export is compared on, and where it is translated."""

    test_set: TestSet
    device: str

    @property
    def lines(self) -> list[str]:
        """The sources."""
        return self.test_set.src_lines()


def proof_text(
    run: RunFolder, src: Path | None, ref: Path | None, device: str = "auto", max_lines: int | None = None
) -> ProofText:
    """The text of `src` and `ref` (or of `src` alone, a file with both sides), or the run's validation set.

    With `max_lines`, at most so many, evenly spread.
    """
    named = named_for(run, src, () if ref is None else (ref,))
    try:
        if named is None or named.src is None:
            test_set = corpus_test_set(run.config("give --src and --ref").data.validation)
        else:
            test_set = read_test_set(named.src, named.references)
    except DataError as error:
        raise DataError(
            f"{error}; an export is compared on the run's validation set, or on other text: --src FILE --ref FILE"
        ) from None
    count = len(test_set.src)
    if max_lines is None or count <= max_lines:
        return ProofText(test_set, device)
    chosen = [index * count // max_lines for index in range(max_lines)]
    references = [[lines[index] for index in chosen] for lines in test_set.references]
    return ProofText(TestSet([test_set.src[index] for index in chosen], references), device)


def compare(
    run: RunFolder, config: InferenceConfig, text: ProofText, decodings: Sequence[DecodingConfig], translate: Translate
) -> list[Verification]:
    """Compare an export with PyTorch in fp32, once with each of the search settings.

    White space at the ends of a line does not count: transformers removes it.
    """
    metrics = make_metrics(("bleu",), config.data.tgt_lang, run.evaluation_config().bleu_tokenizer)
    comparisons = []
    for settings in decodings:
        decoding = settings.model_copy(update={"precision": "fp32"})
        ours = evaluate(
            load(run.path, device=text.device, decoding=decoding, engine="torch", own_process=True),
            text.test_set,
            metrics,
        )
        theirs = translate(text.lines, decoding)
        same = sum(one.strip() == other.strip() for one, other in zip(ours.hypotheses, theirs, strict=True))
        export_score = score(metrics, theirs, text.test_set.references)["bleu"]
        comparisons.append(Verification(decoding.beam_size, len(theirs), same, ours.scores["bleu"], export_score))
    return comparisons


def greedy_and_beam(decoding: DecodingConfig) -> tuple[DecodingConfig, DecodingConfig]:
    """The settings with greedy search, and with their beam size, or 5 if that is 1."""
    beam_size = decoding.beam_size if decoding.beam_size > 1 else 5
    return decoding.model_copy(update={"beam_size": 1}), decoding.model_copy(update={"beam_size": beam_size})


def check(comparisons: Sequence[Verification], folder: Path, run: RunFolder, is_exact: bool, remedy: str = "") -> None:
    """`ExportError` if one of the comparisons is not good enough for the export to be kept."""
    bad = [comparison for comparison in comparisons if not comparison.is_good(is_exact)]
    if bad:
        listed = "; ".join(map(str, bad))
        raise ExportError(f"{folder}: not kept; it translates differently from {run.path}: {listed}{remedy}")
