"""`nmt eval`."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from nmt.cli import options
from nmt.config.training import BleuTokenizer, EvaluationConfig, Metric
from nmt.errors import ConfigError
from nmt.languages import language_suffix
from nmt.runs import open_runs

if TYPE_CHECKING:  # imported when the command runs
    from sacrebleu.metrics.base import Metric as SacreMetric

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
    metric: Annotated[
        list[str] | None, typer.Option(help="bleu, chrf, chrf++ or ter; may be repeated. Default: the run's.")
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Ignore upper and lower case in BLEU and chrF.")
    ] = False,
    confidence: Annotated[bool, typer.Option("--confidence", help="Also 95% intervals, by the bootstrap.")] = False,
    test_set: Annotated[
        str | None, typer.Option(metavar="NAME", help="A public test set by sacreBLEU's name: wmt14/full.")
    ] = None,
    language_pair: Annotated[
        str | None, typer.Option(metavar="SRC-TGT", help="Of --test-set: en-de. Default: the run's languages.")
    ] = None,
    comet: Annotated[bool, typer.Option("--comet", help="Also COMET, by your own comet-score.")] = False,
    comet_model: Annotated[str | None, typer.Option(help="COMET's model; default: comet-score's.")] = None,
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
    if (language_pair and not test_set) or (comet_model and not comet):
        first, second = ("--comet-model", "--comet") if comet_model and not comet else ("--language-pair", "--test-set")
        raise ConfigError(f"{first} is for {second}; add it")
    names = [_metric(name) for name in metric or ()]
    if test_set and (src or ref):
        raise ConfigError("--test-set names sources and references; leave out --src and --ref")
    if hyp is not None:
        if not (ref or test_set) or (src and not comet) or models:
            raise ConfigError("--hyp FILE is scored against --ref FILE, without --src (but for --comet) and --model")
        if given := [option for option, value in search_options.items() if value is not None]:
            raise ConfigError(f"--hyp FILE is scored, and nothing is translated: leave out {', '.join(given)}")
        if comet and not (src or test_set):
            raise ConfigError("--comet reads the sources, too: add --src FILE")
    elif bool(src) != bool(ref):
        raise ConfigError("--src and --ref go together; with neither, the run's test sets are scored")
    from nmt.data.corpus import Side
    from nmt.evaluation.comet import check_comet
    from nmt.evaluation.evaluate import choose_metrics, choose_test_sets, evaluate_file, evaluate_runs, read_test_set
    from nmt.evaluation.public_sets import file_name, public_test_set

    if comet:
        check_comet()
    shown = _Shown(as_json, confidence, comet, comet_model)
    if hyp is not None:
        if test_set and not language_pair:
            raise ConfigError("--test-set with --hyp needs --language-pair, for example en-de")
        if test_set and language_pair:
            src, references = public_test_set(test_set, language_pair)
            ref = list(references)
        assert ref
        known = language_pair.partition("-")[2] if language_pair else language_suffix(ref[0])
        metrics = choose_metrics(EvaluationConfig(), known, tgt_lang, bleu_tokenizer, names, lowercase)
        result = evaluate_file(hyp, ref, metrics)
        if comet and src:
            result = dataclasses.replace(result, src=read_test_set(Side(src), [Side(hyp)]).src)
        shown.print(hyp.name, result, metrics)
        return
    runs = open_runs(models)
    config = runs[0].inference_config()
    if comet and config.source.type != "text":
        raise ConfigError(f"{runs[0].path}: --comet reads text, and the sources of this model are {config.source.type}")
    if test_set:
        pair = language_pair or f"{config.data.src_lang}-{config.data.tgt_lang}"
        public_src, public_refs = public_test_set(test_set, pair)
        (sides,) = choose_test_sets(runs[0], public_src, list(public_refs)).values()
        test_sets = {file_name(test_set, pair): sides}
    else:
        test_sets = choose_test_sets(runs[0], src, ref)
    settings = runs[0].evaluation_config()
    metrics = choose_metrics(settings, config.data.tgt_lang, tgt_lang, bleu_tokenizer, names, lowercase)
    decoding = options.search_settings(config.decoding, beam_size, length_penalty, precision)
    for name, evaluation in evaluate_runs(
        runs, test_sets, metrics, decoding, device or "auto", engine or "auto", precision
    ):
        shown.print(name, evaluation, metrics)


def _metric(name: str) -> Metric:
    known: tuple[Metric, ...] = get_args(Metric)
    for metric in known:
        if metric == name:
            return metric
    raise ConfigError(f"--metric {name}: should be one of {', '.join(known)}")


@dataclasses.dataclass(frozen=True)
class _Shown:
    """What is printed of each test set."""

    as_json: bool
    confidence: bool
    comet: bool
    comet_model: str | None

    def print(self, name: str, evaluation: "Evaluation", metrics: "dict[Metric, SacreMetric]") -> None:
        """Print the scores; intervals and COMET are computed here."""
        from nmt.evaluation.comet import comet_score
        from nmt.evaluation.significance import confidence_intervals

        hypotheses, references = evaluation.hypotheses, evaluation.references
        intervals = confidence_intervals(metrics, hypotheses, references) if self.confidence else {}
        comet = None
        if self.comet:
            sources = [line for line in evaluation.src if isinstance(line, str)]
            comet = comet_score(sources, hypotheses, references, self.comet_model)
        if self.as_json:
            scores: dict[str, Any] = {metric: dataclasses.asdict(one) for metric, one in evaluation.scores.items()}
            for metric, interval in intervals.items():
                scores[metric]["confidence"] = dataclasses.asdict(interval)
            content = {"test_set": name, "lines": len(hypotheses), "scores": scores}
            content |= {} if comet is None else {"comet": {"value": comet, "model": self.comet_model}}
            print(json.dumps({**content, "hypotheses": evaluation.file and str(evaluation.file)}))
            return
        print(name)
        for metric, score in evaluation.scores.items():
            value = f"{score.value:6.2f}"
            if metric in intervals:  # as sacreBLEU's command: the mean of the resampled test sets, and half the width
                value += f"  (mean {intervals[metric].mean:.2f} ± {intervals[metric].half_width:.2f})"
            print(f"  {score.name:6} {value}  {score.signature}")
        if comet is not None:
            print(f"  COMET  {comet:6.4f}  comet-score, model {self.comet_model or 'by default'}")
        if evaluation.file:
            rate = len(hypotheses) / evaluation.seconds
            print(f"  {len(hypotheses):,} lines in {evaluation.seconds:.1f} s ({rate:.0f} a second): {evaluation.file}")
