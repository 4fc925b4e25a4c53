"""The gain of a fine-tuning and what it forgets: test sets of the new run and of its base model, before and after.

Their scores are written as those of `nmt eval`, by the same code, to evaluation/before/ and evaluation/after/.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sacrebleu.metrics.base import Metric as SacreMetric

from nmt.config.corpus import CorpusFiles
from nmt.config.evaluation import Metric
from nmt.config.source import SourceConfig
from nmt.config.training import Config
from nmt.corpora.lines import read_lines
from nmt.corpora.pairs import sides_of
from nmt.errors import DataError, RunError
from nmt.evaluation.evaluate import Evaluation, evaluate_runs
from nmt.evaluation.metrics import Score, configured_metrics, score
from nmt.evaluation.significance import paired_interval
from nmt.evaluation.stored import Evaluated
from nmt.runs.folder import RunFolder
from nmt.system.console import log
from nmt.system.files import read_json, write_json
from nmt.training.record import RecordedCorpus, RecordedOrigin, read_record, recorded_corpus


class Change(NamedTuple):
    """A score before and after, with a 95% interval of the change by a paired bootstrap."""

    metric: str
    before: float
    after: float
    change: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Forgetting:
    """The scores of one test set."""

    name: str
    lines: int
    before: dict[Metric, Score]
    """With the weights that the training started from."""
    after: dict[Metric, Score]
    """With the run's model."""
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


def score_before(config: Config, run: RunFolder, origin: RecordedOrigin) -> None:
    """Score the test sets with the weights that a training in `run` starts from."""
    if sets := origin.test_files:
        log.info(f"scoring {', '.join(sets)} with the weights of {origin.run}, which this training starts from")
        metrics = configured_metrics(config.evaluation, config.data.tgt_lang)
        list(_scored(config, metrics, RunFolder(Path(origin.run)), sets, run.evaluation / "before"))


def score_after(run: RunFolder) -> list[Forgetting]:
    """Score the same test sets with the run's model, unless they were already, and compare.

    A test set that is missing, or has changed, is reported. Empty for a run that started from random weights.
    """
    record = read_record(run)
    if record is None or record.init_from is None:
        return []
    config = run.config()
    done = {one.name for one in read_forgetting(run)}
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
        old = list(read_lines(run.evaluation / "before" / f"{name}.hyp"))
        intervals = {key: paired_interval(metric, old, result.hypotheses, result.references)
                     for key, metric in metrics.items()}  # fmt: skip
        path = run.evaluation / "before" / f"{name}.json"  # a resume may have changed evaluation.metrics
        scores = {key: dataclasses.asdict(one) for key, one in score(metrics, old, result.references).items()}
        write_json(path, {**read_json(path), "scores": scores})
        path = run.evaluation / "after" / f"{name}.json"
        write_json(path, {**read_json(path), "intervals": intervals})
    return read_forgetting(run)


def read_forgetting(run: RunFolder) -> list[Forgetting]:
    """The scores before and after, of the test sets that have both, and the latter for the run's present model."""
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


def table(found: Sequence[Forgetting]) -> list[list[str]]:
    """Rows of cells with a head, for a terminal."""
    rows = [["test set", "lines", "score", "before", "after", "change", "95% interval"]]
    for one in found:
        for row in one.rows:
            figures = [f"{row.before:.2f}", f"{row.after:.2f}", f"{row.change:+.2f}"]
            rows.append([one.name, f"{one.lines:,}", row.metric, *figures, f"{row.low:+.2f} to {row.high:+.2f}"])
    return rows


def _scored(
    config: Config, metrics: dict[Metric, SacreMetric], run: RunFolder, sets: Mapping[str, CorpusFiles], folder: Path
) -> Iterator[tuple[str, Evaluation]]:
    wanted = {name: (src, [tgt]) for name, (src, tgt) in ((name, sides_of(files)) for name, files in sets.items())}
    if wanted:  # by PyTorch, so that no quantization is compared with fp32
        yield from evaluate_runs([run], wanted, metrics, config.decoding, config.training.device, "torch", None, folder)


def _evaluated(run: RunFolder, when: str, name: str) -> Evaluated | None:
    """What was written about a test set; None if it was not, or the file is damaged."""
    with contextlib.suppress(RunError):
        return Evaluated.read(run.evaluation / when / f"{name}.json")
    return None


def _changed(corpus: RecordedCorpus, files: CorpusFiles, source: SourceConfig) -> str:
    """Why a test set cannot be scored again, or ''."""
    try:
        now = recorded_corpus(files, source)
    except DataError as error:
        return str(error)
    return "" if now == corpus else f"{corpus.src.path} or {corpus.tgt.path} has changed since"
