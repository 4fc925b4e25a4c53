"""What commands print on standard output: lines for people, or JSON for programs."""

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nmt.config import TokenizerConfig
from nmt.runs import RunFolder

if TYPE_CHECKING:  # a command imports what it needs
    from nmt.data.statistics import SideReport
    from nmt.evaluation.averaged_run import AveragedRun
    from nmt.evaluation.evaluate import Evaluation
    from nmt.export.ctranslate2 import ExportedRun


def print_vocabulary(
    tokenizer: TokenizerConfig, run: RunFolder, report: Mapping[str, "SideReport"], as_json: bool
) -> None:
    """How a vocabulary fits the validation set."""
    if as_json:
        print(json.dumps({side: dataclasses.asdict(of_side) for side, of_side in report.items()}))
        return
    print(f"{tokenizer.type}{', joint' if tokenizer.joint else ''}, in {run.tokenizer}")
    for side, of_side in report.items():
        print(
            f"{side} ({of_side.language}): {of_side.vocab_size:,} pieces; on the validation set "
            f"{of_side.pieces_per_word:.2f} pieces a word, {of_side.characters_per_piece:.2f} characters a piece, "
            f"{of_side.unknown_share:.2%} <unk>, {of_side.byte_share:.2%} bytes\n"
            f"  its first line: {' '.join(of_side.first_line)}"
        )


def print_evaluation(name: str, evaluation: "Evaluation", as_json: bool) -> None:
    """What came of scoring one test set."""
    if as_json:
        scores: dict[str, Any] = {metric: dataclasses.asdict(of) for metric, of in evaluation.scores.items()}
        print(json.dumps({"test_set": name, "lines": len(evaluation.hypotheses), "scores": scores,
                          "hypotheses": evaluation.file and str(evaluation.file)}))  # fmt: skip
        return
    print(name)
    for score in evaluation.scores.values():
        print(f"  {score.name:6} {score.value:6.2f}  {score.signature}")
    if evaluation.file:
        rate = len(evaluation.hypotheses) / evaluation.seconds
        print(f"  {len(evaluation.hypotheses):,} lines in {evaluation.seconds:.1f} s ({rate:.0f} a second): "
              f"{evaluation.file}")  # fmt: skip


def print_average(result: "AveragedRun", as_json: bool) -> None:
    """A run and its average, side by side."""
    if as_json:
        print(json.dumps(dataclasses.asdict(result)))
        return
    print(f"{result.average}: the mean of {len(result.steps)} checkpoints of {result.run}, steps "
          f"{', '.join(map(str, result.steps))}")  # fmt: skip
    print("validation set: the run's model, and the average")
    for metric, score in result.run_scores.items():
        print(f"  {score.name:6} {score.value:6.2f} {result.average_scores[metric].value:6.2f}  {score.signature}")


def print_export(result: "ExportedRun", as_json: bool) -> None:
    """How an export compared."""
    if as_json:
        print(json.dumps(dataclasses.asdict(result)))
        return
    print(f"{result.folder}: {result.comparisons[0].lines:,} lines, translated with PyTorch and with CTranslate2")
    for one in result.comparisons:
        search = f"beam {one.beam_size}" if one.beam_size > 1 else "greedy"
        share = one.same_lines / one.lines
        print(f"  {search:7} {share:6.1%} the same, BLEU {one.torch_score.value:.2f} and {one.export_score.value:.2f}")
    print(f"  {result.comparisons[0].torch_score.signature}")
