"""`nmt eval`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from nmt.cli import options
from nmt.config.formats import pairs_format
from nmt.config.training import EvaluationConfig, Metric
from nmt.errors import ConfigError
from nmt.runs.folder import RunFolder, open_runs
from nmt.system.console import joined, styled

if TYPE_CHECKING:  # imported when the command runs
    from sacrebleu.metrics.base import Metric as SacreMetric

    from nmt.corpora.pairs import Side
    from nmt.evaluation.evaluate import Evaluation, NamedText


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Texts:
    """The options that name a test set; None or empty means not given."""

    src: options.TestOption = None
    ref: options.ReferencesOption = None
    test_set: Annotated[str | None, Option(metavar="NAME", help="A test set of sacreBLEU, such as wmt14/full.")] = None
    language_pair: Annotated[
        str | None, Option(metavar="SRC-TGT", help="Languages of --test-set. Default: the run's.")
    ] = None

    @property
    def is_one_file(self) -> bool:
        """True if --src holds both sides."""
        return self.src is not None and not self.ref and pairs_format(self.src) is not None

    def named(self, languages: tuple[str, str]) -> "NamedText":
        """The sides of the named test set; `languages` are those known so far, or ''."""
        from nmt.evaluation.evaluate import named_text
        from nmt.evaluation.metrics import public_test_set

        if self.test_set and self.language_pair:
            of_set = self.language_pair.partition("-")
            return named_text(*public_test_set(self.test_set, self.language_pair), (of_set[0], of_set[2]))
        return named_text(self.src, self.ref or (), languages)

    def of_run(self, run: RunFolder) -> "dict[str, tuple[Side, Sequence[Side]]]":
        """The test sets that a run translates: `name: (sources, references)`."""
        from nmt.evaluation.evaluate import choose_test_sets
        from nmt.evaluation.metrics import public_test_set

        if not self.test_set:
            return choose_test_sets(run, self.src, self.ref or ())
        languages = run.inference_config().data
        pair = self.language_pair or f"{languages.src_lang}-{languages.tgt_lang}"
        (sides,) = choose_test_sets(run, *public_test_set(self.test_set, pair)).values()
        return {f"{self.test_set.replace('/', '_')}.{pair}": sides}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shown:
    """The options for the output, and its printing."""

    as_json: options.JsonOption = False
    confidence: Annotated[bool, Option("--confidence", help="Add 95% confidence intervals (bootstrap).")] = False
    comet: Annotated[bool, Option("--comet", help="Also compute COMET with the installed comet-score.")] = False
    comet_model: Annotated[str | None, Option(help="COMET model. Default: comet-score's.")] = None

    def check(self, *numbers: int) -> None:
        """Raise an error if COMET is wanted and cannot score so many references, before anything is translated."""
        from nmt.evaluation.metrics import check_comet

        if not self.comet:
            return
        check_comet()
        if several := [number for number in numbers if number != 1]:
            raise ConfigError(
                f"--comet: COMET reads one reference, and there are {several[0]}; leave out --comet, or give one"
            )

    def print(self, name: str, evaluation: "Evaluation", metrics: "dict[Metric, SacreMetric]") -> None:
        """Compute intervals and COMET, if wanted, and print all scores."""
        from nmt.evaluation.metrics import comet_score
        from nmt.evaluation.significance import confidence_intervals

        hypotheses, references = evaluation.hypotheses, evaluation.references
        intervals = confidence_intervals(metrics, hypotheses, references) if self.confidence else {}
        comet = None
        if self.comet:
            sources = [line for line in evaluation.src if isinstance(line, str)]
            comet = comet_score(sources, hypotheses, references[0], self.comet_model)
        lines = [styled(name, "bold")]
        content: dict[str, Any] = {"test_set": name, "lines": len(hypotheses), "scores": {}}
        for metric, score in evaluation.scores.items():
            value, content["scores"][metric] = f"{score.value:6.2f}", dataclasses.asdict(score)
            if interval := intervals.get(metric):
                value += f"  (95% {interval.low:.2f} to {interval.high:.2f})"
                content["scores"][metric]["confidence"] = interval
            signature = styled(score.signature, "dim")
            lines.append(joined("", [f"  {score.name:6} ", styled(value, "bold"), "  ", signature]))
        if comet is not None:
            content["comet"] = {"value": comet, "model": self.comet_model}
            lines.append(styled(f"  COMET  {comet:6.4f}  comet-score, model {self.comet_model or 'by default'}"))
        content["hypotheses"] = evaluation.file and str(evaluation.file)
        if seconds := evaluation.seconds:
            speed = f"{len(hypotheses):,} lines in {seconds:.1f} s ({len(hypotheses) / seconds:.0f} a second)"
            lines.append(styled(f"  {speed}: {evaluation.file or 'not stored'}"))
        options.show_result(self.as_json, content, lines, link=evaluation.file)


@options.grouped
def evaluate(
    models: options.ModelsOption = None,
    hyp: Annotated[Path | None, Option(metavar="FILE", help="Score these translations instead of a model.")] = None,
    *,
    text: _Texts,
    scoring: options.ScoringOptions,
    shown: _Shown,
    search: options.SearchOptions,
) -> None:
    """Score a model on its test sets or on other files, or score existing translations.

    Several models (--model, repeated) form an ensemble; the test sets are those of the first.
    """
    if shown.comet_model and not shown.comet:
        raise ConfigError("--comet-model is for --comet; add it")
    if text.language_pair and not text.test_set:
        raise ConfigError("--language-pair is for --test-set; add it")
    if text.test_set and (text.src or text.ref):
        raise ConfigError("--test-set names sources and references; leave out --src and --ref")
    if hyp is not None:
        if given := search.given():
            options_given = ", ".join(map(options.spelled, given))
            raise ConfigError(f"--hyp FILE is scored, and nothing is translated: leave out {options_given}")
        _score_file(hyp, text, bool(models), scoring, shown)
        return
    from nmt.evaluation.evaluate import evaluate_runs

    sampling = search.sampling()
    runs = open_runs(models)
    config = runs[0].inference_config()
    if shown.comet and config.source.type != "text":
        raise ConfigError(f"{runs[0].path}: --comet reads text, and the sources of this model are {config.source.type}")
    test_sets = text.of_run(runs[0])
    shown.check(*(len(references) for _, references in test_sets.values()))
    metrics = scoring.metrics(runs[0].evaluation_config(), config.data.tgt_lang)
    decoding = search.settings(config.decoding)
    for name, evaluation in evaluate_runs(
        runs, test_sets, metrics, decoding, search.device or "auto", search.engine_to_load(), search.precision,
        sampling=sampling,
    ):  # fmt: skip
        shown.print(name, evaluation, metrics)


def _score_file(hyp: Path, text: "_Texts", has_models: bool, scoring: options.ScoringOptions, shown: "_Shown") -> None:
    """Score a file of translations."""
    from nmt.corpora.pairs import Side
    from nmt.evaluation.evaluate import evaluate_file, read_test_set

    if not (text.ref or text.test_set or text.is_one_file) or has_models:
        raise ConfigError("--hyp FILE is scored against --ref FILE; give that, and leave out --model")
    if text.src and not (shown.comet or text.is_one_file):
        raise ConfigError("--hyp FILE needs no --src, except for --comet or a file with both sides; leave it out")
    if shown.comet and not (text.src or text.test_set):
        raise ConfigError("--comet also reads the sources: add --src FILE")
    if text.test_set and not text.language_pair:
        raise ConfigError("--test-set with --hyp needs --language-pair, for example en-de")
    named = text.named(("", scoring.tgt_lang or ""))
    shown.check(len(named.references))
    metrics = scoring.metrics(EvaluationConfig(), named.languages[1])
    result = evaluate_file(hyp, named.references, metrics)
    if shown.comet and named.src:
        result = dataclasses.replace(result, src=read_test_set(named.src, [Side(hyp)]).src)
    shown.print(hyp.name, result, metrics)
