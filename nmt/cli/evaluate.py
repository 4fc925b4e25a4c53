"""`nmt eval`."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt.cli import options
from nmt.config.training import BleuTokenizer, EvaluationConfig
from nmt.errors import ConfigError
from nmt.languages import language_suffix
from nmt.runs import open_runs

if TYPE_CHECKING:  # imported when the command runs
    from nmt.evaluation.evaluate import Evaluation


def evaluate(
    models: options.ModelsOption = None,
    src: Annotated[Path | None, typer.Option(metavar="FILE", help="Sources; default: the run's test sets.")] = None,
    ref: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="References; may be repeated.")] = None,
    hyp: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score these translations; nothing is translated.")
    ] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="The references' language, if it is not known.")] = None,
    bleu_tokenizer: Annotated[
        BleuTokenizer | None, typer.Option(help="BLEU's tokenizer; auto: by language. Default: the run's, or auto.")
    ] = None,
    beam_size: options.BeamOption = None,
    length_penalty: options.PenaltyOption = None,
    precision: options.PrecisionOption = None,
    device: options.DeviceOption = None,
    engine: options.EngineOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Score a model on its test sets or on other files, or score existing translations.

    With several models, each --model RUN, their probabilities are averaged; the test sets are those of the first.
    """
    search_options = {
        "--beam-size": beam_size,
        "--length-penalty": length_penalty,
        "--precision": precision,
        "--device": device,
        "--engine": engine,
    }
    if hyp is not None:
        if not ref or src or models:
            raise ConfigError("--hyp FILE is scored against --ref FILE, without --src and --model")
        if given := [option for option, value in search_options.items() if value is not None]:
            raise ConfigError(f"--hyp FILE is scored, and nothing is translated: leave out {', '.join(given)}")
    elif bool(src) != bool(ref):
        raise ConfigError("--src and --ref go together; with neither, the run's test sets are scored")
    from nmt.evaluation.evaluate import choose_metrics, choose_test_sets, evaluate_file, evaluate_runs

    if hyp is not None and ref:
        metrics = choose_metrics(EvaluationConfig(), language_suffix(ref[0]), tgt_lang, bleu_tokenizer)
        _print(hyp.name, evaluate_file(hyp, ref, metrics), as_json)
        return
    runs = open_runs(models)
    test_sets = choose_test_sets(runs[0], src, ref)
    config = runs[0].inference_config()
    metrics = choose_metrics(runs[0].evaluation_config(), config.data.tgt_lang, tgt_lang, bleu_tokenizer)
    decoding = options.search_settings(config.decoding, beam_size, length_penalty, precision)
    for name, evaluation in evaluate_runs(
        runs, test_sets, metrics, decoding, device or "auto", engine or "auto", precision
    ):
        _print(name, evaluation, as_json)


def _print(name: str, evaluation: "Evaluation", as_json: bool) -> None:
    if as_json:
        scores: dict[str, Any] = {metric: dataclasses.asdict(score) for metric, score in evaluation.scores.items()}
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
