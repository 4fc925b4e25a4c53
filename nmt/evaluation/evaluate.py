"""Translate test sets and score them, also in the validations of a training."""

import dataclasses
import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sacrebleu.metrics.base import Metric as SacreMetric

from nmt.atomic import read_json, write_json, write_text
from nmt.config.corpus import CorpusFiles
from nmt.config.evaluation import BleuTokenizer, EvaluationConfig, Metric
from nmt.config.inference import DecodingConfig
from nmt.config.source import TEXT, SourceConfig
from nmt.ctranslate2.exports import ModelFile
from nmt.data.corpus import Side, sides_of
from nmt.data.hashes import side_key
from nmt.data.lines import read_lines
from nmt.decoding.request import Request, Sampling
from nmt.decoding.source_text import Item
from nmt.decoding.translator import Translator, load
from nmt.distributed import ALONE, Ranks
from nmt.errors import ConfigError, DataError, RunError
from nmt.evaluation.metrics import Score, make_metrics, score
from nmt.languages import check_language, language_suffix
from nmt.runs import RunFolder
from nmt.suffixes import PAIRS_FORMATS, pairs_format


@dataclasses.dataclass(frozen=True)
class TestSet:
    """Sources with one or several reference translations each."""

    __test__ = False  # pytest: not a test

    src: list[Item]
    references: list[list[str]]

    def src_lines(self) -> list[str]:
        """The sources, which are to be lines of text."""
        lines = [item for item in self.src if isinstance(item, str)]
        assert len(lines) == len(self.src), "checked by the callers"
        return lines


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The translations of a test set and their scores."""

    hypotheses: list[str]
    references: list[list[str]]
    scores: dict[Metric, Score]
    src: Sequence[Item] = ()
    """The sources; none where a file was scored."""
    seconds: float = 0.0
    """Time taken to translate."""
    file: Path | None = None
    """The file that the hypotheses were written to."""


def read_test_set(src: Side, references: Sequence[Side], source: SourceConfig = TEXT) -> TestSet:
    """Read a test set; `DataError` if it is empty or its files differ in length."""
    sources: list[Item] = [*read_sources(src, source)]
    if not sources:
        raise DataError(f"{src} is empty")
    return TestSet(sources, [_read_reference(side, src, len(sources), source) for side in references])


def corpus_test_set(files: CorpusFiles, source: SourceConfig = TEXT) -> TestSet:
    """`read_test_set` for a corpus, whose targets are the references."""
    src, tgt = sides_of(files)
    return read_test_set(src, [tgt], source)


def read_sources(src: Side, source: SourceConfig) -> Iterable[Item]:
    """The lines, vectors or images of a side; `DataError` if one cannot be read."""
    if source.type == "text":
        return src.lines()
    from nmt.data.vectors import open_vectors

    return open_vectors(src.path, source).read()


def _read_reference(side: Side, other: Side, count: int, source: SourceConfig) -> list[str]:
    lines = list(side.lines())
    if len(lines) != count:
        what = "line" if source.type == "text" else "source"
        raise DataError(f"{other} has {count:,} {what}s, {side} has {len(lines):,}; every {what} needs its reference")
    return lines


def evaluate(
    translator: Translator, test_set: TestSet, metrics: dict[Metric, SacreMetric], ranks: Ranks = ALONE
) -> Evaluation:
    """Translate the sources, shared among the processes, and score the result."""
    start = time.perf_counter()
    numbers = list(range(1, len(test_set.src) + 1))
    hypotheses = ranks.gather(translator.translate(ranks.share(test_set.src), ranks.share(numbers)))
    seconds = time.perf_counter() - start
    return Evaluation(
        hypotheses, test_set.references, score(metrics, hypotheses, test_set.references), test_set.src, seconds
    )


def evaluate_file(hypotheses: Path, references: Sequence[Side], metrics: dict[Metric, SacreMetric]) -> Evaluation:
    """Score the translations in a file."""
    test_set = read_test_set(Side(hypotheses), references)
    hypotheses_read = test_set.src_lines()
    return Evaluation(hypotheses_read, test_set.references, score(metrics, hypotheses_read, test_set.references))


def evaluate_runs(
    runs: Sequence[RunFolder],
    test_sets: Mapping[str, tuple[Side, Sequence[Side]]],
    metrics: dict[Metric, SacreMetric],
    decoding: DecodingConfig,
    device: str,
    engine: str = "auto",
    precision: str | None = None,
    folder: Path | None = None,
    sampling: Sampling | None = None,
) -> Iterator[tuple[str, Evaluation]]:
    """Translate and score `name: (sources, references)`, after reading all of them; with `sampling`, draw instead.

    Hypotheses and scores are written to evaluation/NAME.hyp and NAME.json in the run, or to another `folder`; those of
    an ensemble to NAME.ensemble-OTHERS.hyp and .json, in its first run.
    """
    source = runs[0].inference_config().source
    read = {name: read_test_set(src, references, source) for name, (src, references) in test_sets.items()}
    models = [str(run.path) for run in runs]
    translator = load(
        models, device=device, decoding=decoding, engine=engine, precision=precision, own_process=True,
        request=Request(n_best=1, sampling=sampling),
    )  # fmt: skip
    suffix = _ensemble_suffix(runs)
    weights = [dataclasses.asdict(ModelFile.of(_weights_file(run))) for run in runs]
    for name, test_set in read.items():
        result = evaluate(translator, test_set, metrics)
        path = (folder or runs[0].evaluation) / f"{name}{suffix}.hyp"
        write_text(path, "".join(f"{line}\n" for line in result.hypotheses))
        scores = {metric: dataclasses.asdict(one) for metric, one in result.scores.items()}
        description = {
            "models": models,
            "engine": translator.engine_name,
            "decoding": decoding.model_dump(),
            "sampling": dataclasses.asdict(sampling) if sampling else None,
        }
        made_from = {"weights": weights, "src_sha256": side_key(test_sets[name][0], source).hex()}
        write_json(path.with_suffix(".json"), {**description, **made_from, "scores": scores})
        yield name, dataclasses.replace(result, file=path)


def stored_hypotheses(run: RunFolder, name: str, src: Side) -> list[str] | None:
    """What `evaluate_runs` wrote for a test set, or None if it was made from other weights, sources or search settings.

    The settings are to be those of the run's configuration, so that runs are compared as configured.
    """
    path = run.evaluation / f"{name}.hyp"
    if not (path.is_file() and path.with_suffix(".json").is_file()):
        return None
    config = run.inference_config()
    wanted = config.decoding.model_dump(mode="json")
    try:
        made_from = read_json(path.with_suffix(".json"))
        (weights,) = made_from["weights"]
        is_fresh = (
            made_from.get("sampling") is None
            and ModelFile(**weights).is_still(_weights_file(run))
            and made_from["src_sha256"] == side_key(src, config.source).hex()
            and made_from["decoding"] | {"batch_tokens": wanted["batch_tokens"]} == wanted
        )
    except (RunError, KeyError, TypeError, ValueError):  # damaged
        return None
    hypotheses = list(read_lines(path))
    return hypotheses if is_fresh and len(hypotheses) == _count_sources(src, config.source) else None


def _count_sources(src: Side, source: SourceConfig) -> int:
    """The number of sources, which are not read if they are vectors or images."""
    if source.type == "text":
        return sum(1 for _ in src.lines())
    from nmt.data.vectors import open_vectors

    return len(open_vectors(src.path, source))


def _weights_file(run: RunFolder) -> Path:
    """The file that identifies a run's weights."""
    return run.export_file if run.is_export() else run.model_file


class NamedText(NamedTuple):
    """A test set that a command line names."""

    src: Side | None
    """None: only references were named."""
    references: tuple[Side, ...]
    languages: tuple[str, str]
    """'' where not known."""


def check_named(src: Path | None, references: Sequence[Path]) -> None:
    """`ConfigError` if --src and --ref name one side only, or one side twice."""
    for path in references if src is None else (src, *references):
        if references and pairs_format(path) in ("tmx", "zip"):
            raise ConfigError(f"{path} holds both sides of a test set; name it as --src, without --ref")
    if not references and (src is None or pairs_format(src) is None):
        formats = " ".join(f".{name}" for name in PAIRS_FORMATS)
        raise ConfigError(f"--src and --ref go together, unless --src is a file with both sides ({formats})")


def named_text(src: Path | None, references: Sequence[Path], languages: tuple[str, str] = ("", "")) -> NamedText:
    """The text of --src and --ref; without --ref, --src is a file with both sides, in any format of a corpus.

    `languages` are those of a model. Raises `ConfigError` if a side is missing or named twice.
    """
    check_named(src, references)
    if references:
        known = language_suffix(src) if src else "", language_suffix(references[0])
        either = languages[0] or known[0], languages[1] or known[1]
        return NamedText(Side(src) if src else None, tuple(map(Side, references)), either)
    assert src is not None
    from nmt.data.discovery import discover

    try:
        found = discover([src], src_lang=languages[0] or None, tgt_lang=languages[1] or None)
    except ConfigError:
        if all(languages):
            raise
        raise ConfigError(
            f"{src}: without a model it is not clear which side is the source; add --tgt-lang CODE, name its columns "
            f"or fields after their languages, or name two texts: --src FILE --ref FILE"
        ) from None
    (files,) = found.files
    one, other = sides_of(files)
    return NamedText(one, (other,), (found.src_lang, found.tgt_lang))


def named_for(run: RunFolder, src: Path | None, references: Sequence[Path]) -> NamedText | None:
    """`named_text` for a run to translate; None if nothing is named."""
    if not (src or references):
        return None
    config = run.inference_config()
    if src and not references and pairs_format(src) and config.source.type != "text":
        raise ConfigError(f"{src}: holds text, and the sources of {run.path} are {config.source.type}; add --ref FILE")
    named = named_text(src, references, (config.data.src_lang, config.data.tgt_lang))
    if named.src is None:
        raise ConfigError("--ref FILE needs what is to be translated: add --src FILE")
    return named


def choose_test_sets(run: RunFolder, named: NamedText | None) -> dict[str, tuple[Side, Sequence[Side]]]:
    """The test set that was named, or else those of the run: `name: (sources, references)`.

    Raises `ConfigError` if there are none, `RunError` if the run has no training configuration.
    """
    if named is not None and named.src is not None:
        return {named.src.path.name: (named.src, named.references)}
    test = run.config("give --src and --ref").data.test
    if not test:
        raise ConfigError(f"{run.config_file}: data.test names no test set; add one, or give --src and --ref")
    return {name: (src, [tgt]) for name, (src, tgt) in zip(test, map(sides_of, test.values()), strict=True)}


def choose_metrics(
    settings: EvaluationConfig,
    known_language: str,
    tgt_lang: str | None,
    tokenizer: BleuTokenizer | None,
    names: Sequence[Metric] | None = None,
    lowercase: bool = False,
) -> dict[Metric, SacreMetric]:
    """The metrics of `settings`, or those named.

    `tgt_lang` replaces the known language, and `tokenizer` the one for BLEU. `lowercase`: see `make_metrics`.
    """
    language = reference_language(tgt_lang, known_language)
    return make_metrics(names or settings.metrics, language, tokenizer or settings.bleu_tokenizer, lowercase)


def _ensemble_suffix(runs: Sequence[RunFolder]) -> str:
    """The suffix of an ensemble's files, in the folder of its first run: `.ensemble-B+C` for A, B and C."""
    others = "+".join(re.sub(r"[^\w.-]", "_", run.name) for run in runs[1:])
    if len(others.encode()) > 100:  # a file's name has at most 255 bytes
        others = hashlib.sha256(others.encode()).hexdigest()[:16]
    return f".ensemble-{others}" if others else ""


def reference_language(given: str | None, otherwise: str) -> str:
    """The language of the references: the given one, or else the known one.

    Raises `ConfigError` if neither is known, or the given one is not a language code.
    """
    if not (given or otherwise):
        raise ConfigError("the language of the references is not known; add --tgt-lang, for example --tgt-lang de")
    try:
        return check_language(given or otherwise)
    except ValueError as error:
        raise ConfigError(f"--tgt-lang: {error}") from None
