"""What a run forgets of the run that it started from: scores of that run's test sets before and after the training.

They are written as those of `nmt eval`, by the same code, to evaluation/before/ and evaluation/after/.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from nmt.atomic import read_json
from nmt.config.corpus import CorpusFiles
from nmt.config.evaluation import Metric
from nmt.config.source import SourceConfig
from nmt.config.training import Config
from nmt.ctranslate2.exports import ModelFile
from nmt.data.corpus import sides_of
from nmt.errors import DataError, RunError
from nmt.evaluation.evaluate import evaluate_runs
from nmt.evaluation.metrics import Score, make_metrics
from nmt.runs import RunFolder
from nmt.training.origin import Origin
from nmt.training.record import RecordedCorpus, read_record, recorded_corpus


@dataclasses.dataclass(frozen=True)
class Change:
    """One score, before and after."""

    metric: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """After minus before."""
        return self.after - self.before


@dataclasses.dataclass(frozen=True)
class Forgetting:
    """The scores of one test set of the old run."""

    name: str
    before: dict[Metric, Score]
    """With the weights that the training started from."""
    after: dict[Metric, Score]
    """With the run's model."""

    @property
    def rows(self) -> Iterator["Change"]:
        """The change of each metric."""
        for metric, before in self.before.items():
            yield Change(before.name, before.value, self.after[metric].value)


class _Evaluated(BaseModel):
    """What this module reads of a file that `evaluate_runs` wrote."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    scores: dict[Metric, Score]
    weights: tuple[ModelFile]


def score_before(config: Config, run: RunFolder, origin: Origin, say: Callable[[str], None]) -> None:
    """Score the test sets of the run that a training in `run` starts from, with its weights."""
    sets = origin.recorded.test_files
    if sets:
        say(f"scoring {', '.join(sets)} of {origin.run.path} with the weights that this training starts from")
        _score(config, origin.run, sets, run.evaluation / "before")


def score_after(run: RunFolder, say: Callable[[str], None]) -> list[Forgetting]:
    """Score the same test sets with the run's model, unless they were already, and compare.

    A test set that is missing, or has changed, is a line. Empty for a run that started from random weights.
    """
    record = read_record(run)
    if record is None or record.init_from is None:
        return []
    config = run.config()
    sets = {}
    for name, corpus in record.init_from.test.items():
        if _evaluated(run, "before", name) is None:
            continue
        after = _evaluated(run, "after", name)
        if after is not None and after.weights[0].is_still(run.model_file):
            continue
        files = record.init_from.test_files[name]
        if reason := _changed(corpus, files, config.source):
            say(f"what was forgotten of {record.init_from.run}'s {name} is not scored: {reason}")
        else:
            sets[name] = files
    if sets:
        say(f"scoring {', '.join(sets)} of {record.init_from.run}, to see what was forgotten")
        _score(config, run, sets, run.evaluation / "after")
    return read_forgetting(run)


def read_forgetting(run: RunFolder) -> list[Forgetting]:
    """The scores before and after, of the test sets that have both, and the latter for the run's present model."""
    found = []
    for path in sorted((run.evaluation / "before").glob("*.json")):
        before, after = _evaluated(run, "before", path.stem), _evaluated(run, "after", path.stem)
        if (
            before
            and after
            and before.scores.keys() == after.scores.keys()
            and after.weights[0].is_still(run.model_file)
        ):
            found.append(Forgetting(path.stem, before.scores, after.scores))
    return found


def table(forgotten: Sequence[Forgetting]) -> Iterator[str]:
    """Lines of a table for a terminal."""
    if not forgotten:
        return
    width = max(len(one.name) for one in forgotten)
    yield f"{'forgotten':{width}}  {'':6} {'before':>6} {'after':>6} {'change':>6}"
    for one in forgotten:
        for row in one.rows:
            yield f"{one.name:{width}}  {row.metric:6} {row.before:6.2f} {row.after:6.2f} {row.change:+6.2f}"


def _score(config: Config, run: RunFolder, sets: Mapping[str, CorpusFiles], folder: Path) -> None:
    metrics = make_metrics(config.evaluation.metrics, config.data.tgt_lang, config.evaluation.bleu_tokenizer)
    wanted = {name: (src, [tgt]) for name, (src, tgt) in ((name, sides_of(files)) for name, files in sets.items())}
    # PyTorch, so that no quantization is compared with fp32.
    for _ in evaluate_runs([run], wanted, metrics, config.decoding, config.training.device, "torch", None, folder):
        pass


def _evaluated(run: RunFolder, when: str, name: str) -> _Evaluated | None:
    """What was written about a test set; None if it was not, or the file is damaged."""
    path = run.evaluation / when / f"{name}.json"
    if not path.is_file():
        return None
    try:
        return _Evaluated.model_validate(read_json(path))
    except (RunError, ValidationError):
        return None


def _changed(corpus: RecordedCorpus, files: CorpusFiles, source: SourceConfig) -> str:
    """Why a test set cannot be scored again, or ''."""
    try:
        now = recorded_corpus(files, source)
    except DataError as error:
        return str(error)
    return "" if now == corpus else f"{corpus.src.path} or {corpus.tgt.path} has changed since"
