"""Test sets and their evaluation: translation and scores, also in the validations of a training."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sacrebleu.metrics.base import Metric as SacreMetric

from nmt.config.corpus import CorpusFiles
from nmt.config.formats import PAIRS_FORMATS, pairs_format
from nmt.config.inference import DecodingConfig
from nmt.config.languages import checked_language, language_suffix
from nmt.config.source import TEXT, SourceConfig
from nmt.config.training import Metric
from nmt.corpora.hashes import lines_key, side_key
from nmt.corpora.pairs import Side, sides_of
from nmt.decoding.hypothesis import BEST, Request, Sampling
from nmt.decoding.source_text import Item
from nmt.decoding.translator import Translator, load
from nmt.errors import ConfigError, DataError
from nmt.evaluation.metrics import Score, score
from nmt.evaluation.stored import Evaluated, store
from nmt.runs.exports import ModelFile
from nmt.runs.folder import RunFolder
from nmt.system.console import log
from nmt.system.distributed import ALONE, Ranks


@dataclasses.dataclass(frozen=True)
class TestSet:
    """Sources with lists of reference translations, each with a line for every source."""

    __test__ = False  # pytest: not a test

    src: list[Item]
    references: list[list[str]]

    def src_lines(self) -> list[str]:
        """Return the sources, which must be lines of text."""
        lines = [item for item in self.src if isinstance(item, str)]
        assert len(lines) == len(self.src), "checked by the callers"
        return lines

    @property
    def middle(self) -> int:
        """The number of a source of median length, from 0."""
        return sorted(range(len(self.src)), key=lambda number: (len(self.src[number]), number))[len(self.src) // 2]

    def spread(self, limit: int) -> "tuple[TestSet, list[int]]":
        """Return at most `limit` of its sources, evenly spread, with their references; and their numbers, from 0."""
        count = len(self.src)
        if count <= limit:
            return self, list(range(count))
        chosen = [index * count // limit for index in range(limit)]
        references = [[lines[index] for index in chosen] for lines in self.references]
        return TestSet([self.src[index] for index in chosen], references), chosen


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Translations of a test set and their scores."""

    hypotheses: list[str]
    references: list[list[str]]
    scores: dict[Metric, Score]
    src: Sequence[Item] = ()
    """The sources; empty if a file was scored."""
    seconds: float = 0.0
    """Time taken to translate."""
    file: Path | None = None
    """The file with the hypotheses; None if they were not written."""


def read_test_set(src: Side, references: Sequence[Side], source: SourceConfig = TEXT) -> TestSet:
    """Read a test set; `DataError` if it is empty or its files differ in length."""
    if source.type == "text":
        sources: list[Item] = [*src.lines()]
    else:
        from nmt.corpora.vectors import open_vectors

        sources = [*open_vectors(src.path, source).read()]
    if not sources:
        raise DataError(f"{src} is empty")
    read = [
        [*map(str, sources)]  # a reference that stands for the source, and may be a pipe, which is read only once
        if side is src
        else _read_reference(side, src, len(sources), source)
        for side in references
    ]
    return TestSet(sources, read)


def corpus_test_set(files: CorpusFiles, source: SourceConfig = TEXT) -> TestSet:
    """Read a corpus as a test set whose references are its targets."""
    src, tgt = sides_of(files)
    return read_test_set(src, [tgt], source)


def _read_reference(side: Side, other: Side, count: int, source: SourceConfig) -> list[str]:
    lines = list(side.lines())
    if len(lines) != count:
        unit = "line" if source.type == "text" else "source"
        raise DataError(f"{other} has {count:,} {unit}s, {side} has {len(lines):,}; every {unit} needs its reference")
    return lines


def evaluate(
    translator: Translator,
    test_set: TestSet,
    metrics: dict[Metric, SacreMetric],
    ranks: Ranks = ALONE,
    request: Request = BEST,
) -> Evaluation:
    """Translate the sources, shared among the processes, and score the translations."""
    start = time.perf_counter()
    numbers = list(range(1, len(test_set.src) + 1))
    hypotheses = ranks.gather(translator.translate(ranks.share(test_set.src), ranks.share(numbers), request))
    seconds = time.perf_counter() - start
    scores = score(metrics, hypotheses, test_set.references)
    return Evaluation(hypotheses, test_set.references, scores, test_set.src, seconds)


def evaluate_file(hypotheses: Path, references: Sequence[Side], metrics: dict[Metric, SacreMetric]) -> Evaluation:
    """Score the translations in a file."""
    test_set = read_test_set(Side(hypotheses), references)
    lines = test_set.src_lines()
    return Evaluation(lines, test_set.references, score(metrics, lines, test_set.references))


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
    """Translate and score test sets, `name: (sources, references)`, all read first; with `sampling`, draw translations.

    Hypotheses and scores are stored in evaluation/ of the first run, or as NAME.hyp and NAME.json in another `folder`.
    """
    source = runs[0].inference_config().source
    loaded = {name: read_test_set(src, references, source) for name, (src, references) in test_sets.items()}
    models = tuple(str(run.path) for run in runs)
    translator = load(models, device=device, decoding=decoding, engine=engine, precision=precision, own_process=True)
    weights = tuple(ModelFile.of(run.weights_file) for run in runs)
    for name, test_set in loaded.items():
        result = evaluate(translator, test_set, metrics, request=Request(sampling=sampling))
        # By the lines in memory: a pipe cannot be reread.
        src_key = lines_key(test_set.src_lines()) if source.type == "text" else side_key(test_sets[name][0], source)
        evaluated = Evaluated(
            test_set=name, models=models, weights=weights, engine=translator.engine_name, requested_engine=engine,
            decoding=decoding, sampling=sampling, src_sha256=src_key, lines=len(result.hypotheses),
            references_sha256=tuple(map(lines_key, test_set.references)), scores=result.scores,
        )  # fmt: skip
        try:
            path = store(runs[0], evaluated, result.hypotheses, folder)
        except OSError as error:
            if folder is not None:
                raise
            log.warning("%s: cannot be written, so the scores are not stored: %s", runs[0].evaluation, error.strerror)
            path = None
        yield name, dataclasses.replace(result, file=path)


class NamedText(NamedTuple):
    """Test set of a command line."""

    src: Side | None
    """None: only references were named."""
    references: tuple[Side, ...]
    languages: tuple[str, str]
    """'' for an unknown one."""


def named_text(src: Path | None, references: Sequence[Path], languages: tuple[str, str] = ("", "")) -> NamedText:
    """The test set of --src and --ref; without --ref, --src is a file with both sides, in any format of a corpus.

    `languages` are those of a model. Raises `ConfigError` if a side is missing or named twice.
    """
    for path in references if src is None else (src, *references):
        if references and pairs_format(path) in ("tmx", "zip"):
            raise ConfigError(f"{path} holds both sides of a test set; name it as --src, without --ref")
    if references:
        src_lang = languages[0] or (language_suffix(src) if src else "")
        tgt_lang = languages[1] or language_suffix(references[0])
        return NamedText(Side(src) if src else None, tuple(map(Side, references)), (src_lang, tgt_lang))
    if src is None or pairs_format(src) is None:
        formats = " ".join(f".{name}" for name in PAIRS_FORMATS)
        raise ConfigError(f"--src and --ref go together, unless --src is a file with both sides ({formats})")
    from nmt.corpora.discovery import discover

    try:
        corpora = discover([src], src_lang=languages[0] or None, tgt_lang=languages[1] or None)
    except ConfigError:
        if all(languages):
            raise
        raise ConfigError(
            f"{src}: without a model it is not clear which side is the source; "
            f"{'' if languages[1] else 'add --tgt-lang CODE, '}name its columns or fields after their languages, or "
            f"name two texts: --src FILE --ref FILE"
        ) from None
    source, target = sides_of(corpora.files[0])
    return NamedText(source, (target,), (corpora.src_lang, corpora.tgt_lang))


def choose_test_sets(
    run: RunFolder, src: Path | None = None, references: Sequence[Path] = ()
) -> dict[str, tuple[Side, Sequence[Side]]]:
    """The named test set, or else those of the run: `name: (sources, references)`.

    Raises `ConfigError` if there is none, `RunError` if the run has no training configuration.
    """
    if src or references:
        config = run.inference_config()
        if src and not references and pairs_format(src) and config.source.type != "text":
            raise ConfigError(
                f"{src}: holds text, and the sources of {run.path} are {config.source.type}; add --ref FILE"
            )
        named = named_text(src, references, (config.data.src_lang, config.data.tgt_lang))
        if named.src is None:
            raise ConfigError("--ref FILE needs the text to translate; add --src FILE")
        return {named.src.path.name: (named.src, named.references)}
    test = run.config("give --src and --ref").data.test
    if not test:
        raise ConfigError(f"{run.config_file}: data.test names no test set; add one, or give --src and --ref")
    return {name: (sides[0], sides[1:]) for name, sides in zip(test, map(sides_of, test.values()), strict=True)}


def reference_language(given: str | None, known: str) -> str:
    """The language of the references: the given one, or else the `known` one.

    Raises `ConfigError` without either, or if the given one is not a language code.
    """
    if not (given or known):
        raise ConfigError("the language of the references is not known; add --tgt-lang, for example --tgt-lang de")
    return checked_language("--tgt-lang", given or known)
