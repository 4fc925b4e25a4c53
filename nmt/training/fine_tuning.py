"""A training that starts from a base model (`training.init_from`): its weights, and what it gains and forgets.

The test sets of the new run and of the base run are translated before and after the training. Their scores are written
to evaluation/before/ and evaluation/after/, by the code of `nmt eval`.
"""

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.text import Text
from sacrebleu.metrics.base import Metric as SacreMetric
from torch import Tensor, nn

from nmt.config.corpus import CorpusFiles
from nmt.config.source import SourceConfig
from nmt.config.training import Config, Metric
from nmt.corpora.lines import read_lines
from nmt.corpora.pairs import sides_of
from nmt.errors import DataError, RunError
from nmt.evaluation.evaluate import Evaluation, corpus_test_set, evaluate_runs
from nmt.evaluation.metrics import Score, configured_metrics, score
from nmt.evaluation.significance import paired_interval
from nmt.evaluation.stored import Evaluated
from nmt.runs.base import base_run
from nmt.runs.folder import RunFolder
from nmt.runs.history import HIGHER_IS_BETTER
from nmt.runs.weights import copy_weights, read_weights, weights_of
from nmt.system.console import aligned, log, styled
from nmt.system.files import file_sha256, read_json, write_json
from nmt.training.record import RecordedBase, RecordedCorpus, RecordedFile, read_record, recorded_corpus

_LAYER = re.compile(r"(encoder|decoder)\.(\d+)\.(.+)")


def find_base(config: Config) -> RecordedBase | None:
    """The base model of a new training; None if it starts from random weights.

    A test set of the base run that cannot be read is a warning. Raises `DataError` if a corpus to replay is missing or
    not the one that the base model was trained on.
    """
    if config.training.init_from is None:
        return None
    run = base_run(config.training.init_from)
    _check_replayed(config, run)
    model = RecordedFile(path=str(run.model_file), sha256=file_sha256(run.model_file))
    files = _test_sets(config, run)
    test = {name: recorded_corpus(corpus, config.source) for name, corpus in files.items()}
    return RecordedBase(run=str(run.path), model=model, test=test, test_files=files)


def _check_replayed(config: Config, base: RunFolder) -> None:
    """`DataError` if a corpus of `data.replay` is missing, or has other text than when the base model was trained."""
    replayed = [files for files in config.data.train if files.replayed]
    record = read_record(base) if replayed else None
    known = {corpus.src.path: corpus for corpus in (record.train if record else ())}
    for files in replayed:
        remedy = "restore it, or leave data.replay out and add text of that kind to data.train with a weight"
        try:
            now = recorded_corpus(files, config.source)
        except DataError as error:
            raise DataError(f"data.replay: a corpus to replay cannot be read: {error}; {remedy}") from None
        then = known.get(str(files.src_file))
        if then is not None and now != then:
            names = " and ".join(dict.fromkeys((str(files.src_file), str(files.tgt_file))))
            raise DataError(f"data.replay: {names} have changed since {base.path} was trained on them; {remedy}")


def _test_sets(config: Config, base: RunFolder) -> dict[str, CorpusFiles]:
    """The readable test sets of the new run and the base run; of two with the same name, that of the base run."""
    readable: dict[str, CorpusFiles] = {}
    tests = config.data.test
    for name, files in {**tests, **own_test_sets(base)}.items():
        here = tests.get(name, files)
        if [files.src_file.resolve(), files.tgt_file.resolve()] != [here.src_file.resolve(), here.tgt_file.resolve()]:
            log.warning(
                f"{name} is a test set of {base.path}, too, and that one is scored; rename this run's in data.test"
            )
        try:
            corpus_test_set(files, config.source)
            readable[name] = files
        except DataError as error:
            log.warning(f"{name} is not scored before and after: {error}")
    return readable


def own_test_sets(run: RunFolder) -> dict[str, CorpusFiles]:
    """The test sets of a run, or else its validation set; none of an imported model."""
    if not run.has_training_config():
        return {}
    data = run.config().data
    if data.test or data.validation.holdout == 0:  # the validation set is the training pairs
        return dict(data.test)
    return {"validation": data.validation}


def load_base_weights(model: nn.Module, file: Path) -> None:
    """Read the weights of the base model; a Transformer with fewer layers keeps some of the base model's.

    Shleifer and Rush 2020 (arXiv:2010.13002) shrink models so, and train them on their teachers' translations. Raises
    `RunError` if the weights do not fit.
    """
    weights, stored = weights_of(model), read_weights(file)
    counts, of = _num_layers(weights), _num_layers(stored)
    kept = {part: kept_layers(counts[part], of[part]) for part in ("encoder", "decoder") if counts[part] < of[part]}
    copy_weights(_with_layers(stored, kept), weights, file)
    for part, layers in kept.items():
        numbers = ", ".join(str(layer + 1) for layer in layers)
        log.info(f"{part:11} layers kept of {of[part]}: {numbers or 'none'}")


def kept_layers(count: int, of: int) -> list[int]:
    """The layers, from 0, that a model of `count` layers keeps: the first, the last, and others evenly between."""
    return [round(number * (of - 1) / max(count - 1, 1)) for number in range(count)]


def _with_layers(weights: Mapping[str, Tensor], kept: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """The weights without the layers of `encoder` or `decoder` that are not `kept`; the others are renumbered."""
    result = {}
    for name, value in weights.items():
        if (match := _LAYER.fullmatch(name)) and match[1] in kept:
            part, layer, rest = match[1], int(match[2]), match[3]
            if layer in kept[part]:
                result[f"{part}.{kept[part].index(layer)}.{rest}"] = value
        else:
            result[name] = value
    return result


def _num_layers(names: Iterable[str]) -> Counter[str]:
    matches = [_LAYER.fullmatch(name) for name in names]
    layers = {match.group(1, 2) for match in matches if match}
    return Counter(part for part, _ in layers)


class Change(NamedTuple):
    """A score before and after a fine-tuning, with the 95% interval of the change by a paired bootstrap."""

    metric: str
    before: float
    after: float
    change: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Forgetting:
    """The scores of a test set before and after a fine-tuning: what was gained or forgotten."""

    name: str
    lines: int
    before: dict[Metric, Score]
    """Of the base model."""
    after: dict[Metric, Score]
    """Of the run's model."""
    intervals: dict[Metric, tuple[float, float]]
    """Of the change."""

    @property
    def rows(self) -> Iterator[Change]:
        """The change of each metric."""
        yield from map(self.change, self.before)

    def change(self, metric: Metric) -> Change:
        """The change of a metric."""
        before, after = self.before[metric], self.after[metric]
        change = after.value - before.value
        return Change(before.name, before.value, after.value, change, *self.intervals[metric])


def score_before(config: Config, run: RunFolder, base: RecordedBase) -> None:
    """Score the test sets with the base model of a training in `run`."""
    if sets := base.test_files:
        log.info(f"scoring {', '.join(sets)} with the base model {base.run}")
        metrics = configured_metrics(config.evaluation, config.data.tgt_lang)
        list(_scored(config, metrics, RunFolder(Path(base.run)), sets, run.evaluation / "before"))


def score_after(run: RunFolder) -> list[Forgetting]:
    """Score the same test sets with the run's model, unless they were already, and compare.

    A missing or changed test set is reported, not raised. Empty for a run that started from random weights.
    """
    record = read_record(run)
    if record is None or record.init_from is None:
        return []
    config = run.config()
    done = {result.name for result in read_forgetting(run)}
    sets = {}
    for name, corpus in record.init_from.test.items():
        if name in done or _evaluated(run, "before", name) is None:
            continue
        files = record.init_from.test_files[name]
        if reason := _changed(corpus, files, config.source):
            log.warning(f"{name} is not scored again: {reason}")
        else:
            sets[name] = files
    if sets:
        log.info(f"scoring {', '.join(sets)} with the model of {run.path}, to compare")
    metrics = configured_metrics(config.evaluation, config.data.tgt_lang)
    for name, result in _scored(config, metrics, run, sets, run.evaluation / "after"):
        before = list(read_lines(run.evaluation / "before" / f"{name}.hyp"))
        intervals = {key: paired_interval(metric, before, result.hypotheses, result.references)
                     for key, metric in metrics.items()}  # fmt: skip
        path = run.evaluation / "before" / f"{name}.json"  # a resume may have changed evaluation.metrics
        scores = {key: dataclasses.asdict(value) for key, value in score(metrics, before, result.references).items()}
        write_json(path, {**read_json(path), "scores": scores})
        path = run.evaluation / "after" / f"{name}.json"
        write_json(path, {**read_json(path), "intervals": intervals})
    return read_forgetting(run)


def read_forgetting(run: RunFolder) -> list[Forgetting]:
    """The test sets with scores before and after, if the latter are those of the run's present model."""
    names = sorted(path.stem for path in (run.evaluation / "before").glob("*.json"))
    pairs = [(name, _evaluated(run, "before", name), _evaluated(run, "after", name)) for name in names]
    return [
        Forgetting(name, after.lines, before.scores, after.scores, after.intervals)
        for name, before, after in pairs
        if before
        and after
        and before.scores.keys() == after.scores.keys() == after.intervals.keys()
        and after.weights[0].is_still(run.model_file)
    ]


def table(results: Sequence[Forgetting]) -> Text:
    """A table for a terminal; changes beyond chance are green or red there."""
    rows: list[list[str | Text]] = [["test set", "lines", "score", "before", "after", "change", "95% interval"]]
    for result in results:
        for metric, row in zip(result.before, result.rows, strict=True):
            color = "green" if (row.change > 0) == HIGHER_IS_BETTER[metric] else "red"
            change = styled(f"{row.change:+.2f}", color if row.low > 0 or row.high < 0 else "")
            figures = f"{row.before:.2f}", f"{row.after:.2f}", change, f"{row.low:+.2f} to {row.high:+.2f}"
            rows.append([result.name, f"{result.lines:,}", row.metric, *figures])
    return aligned(rows, left=(0, 2), has_head=True)


def _scored(
    config: Config, metrics: dict[Metric, SacreMetric], run: RunFolder, sets: Mapping[str, CorpusFiles], folder: Path
) -> Iterator[tuple[str, Evaluation]]:
    wanted = {name: (src, [tgt]) for name, (src, tgt) in ((name, sides_of(files)) for name, files in sets.items())}
    if wanted:  # by PyTorch, so that no quantization is compared with fp32
        yield from evaluate_runs([run], wanted, metrics, config.decoding, config.training.device, "torch", None, folder)


def _evaluated(run: RunFolder, when: str, name: str) -> Evaluated | None:
    """The stored evaluation of a test set; None if there is none, or it is damaged."""
    with contextlib.suppress(RunError):
        return Evaluated.read(run.evaluation / when / f"{name}.json")
    return None


def _changed(corpus: RecordedCorpus, files: CorpusFiles, source: SourceConfig) -> str:
    """The reason why a test set cannot be scored again, or ''."""
    try:
        now = recorded_corpus(files, source)
    except DataError as error:
        return str(error)
    return "" if now == corpus else f"{corpus.src.path} or {corpus.tgt.path} has changed since"
