"""What an adaptation did to text that chose nothing: test sets of the new text and general ones, before and after.

Their translations are those of `nmt.training.forgetting`, with the run's own search settings.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from nmt.adaptation.choosing import Measuring
from nmt.adaptation.frontier import METRICS, NAMES, AdaptMetric
from nmt.atomic import read_json, write_json
from nmt.checkpoint import interpolated_weights
from nmt.ctranslate2.exports import ModelFile
from nmt.data.lines import read_lines
from nmt.errors import RunError
from nmt.evaluation.evaluate import corpus_test_set
from nmt.evaluation.significance import paired_difference
from nmt.runs import RunFolder
from nmt.training.forgetting import read_forgetting
from nmt.training.guarding import weights_file_name
from nmt.training.record import read_record

_FILE = "tests.json"


class _Recorded(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True, allow_inf_nan=False)


class Change(_Recorded):
    """A score before and after, with a 95% interval of the change by a paired bootstrap."""

    before: float
    after: float
    change: float
    low: float
    high: float


class TestChange(_Recorded):
    """The scores of a test set."""

    __test__ = False  # pytest: not a test

    name: str
    is_new: bool
    """Whether it is of the new text; otherwise of general text."""
    lines: int
    scores: dict[AdaptMetric, Change]


class _Written(_Recorded):
    model: ModelFile
    tests: tuple[TestChange, ...]


def compare_tests(run: RunFolder, say: Callable[[str], None]) -> tuple[TestChange, ...]:
    """Compare the scores before and after, of all test sets that were translated with both models, and write them."""
    if (done := read_tests(run)) is not None:
        return done
    record, config = read_record(run), run.config()
    assert record is not None and record.init_from is not None, "a guard needs init_from"
    files = record.init_from.test_files
    names = [one.name for one in read_forgetting(run) if one.name in files]
    say(f"comparing {', '.join(names)}, which chose nothing" if names else "there is no test set to compare")
    measuring = Measuring(run, config)
    base = run.adaptation / weights_file_name("base")
    models = [interpolated_weights(base, run.model_file, alpha) for alpha in (0.0, 1.0)]
    found = []
    for name in names:
        test_set = corpus_test_set(files[name], config.source)
        sides = []
        for when, weights in zip(("before", "after"), models, strict=True):
            hypotheses = list(read_lines(run.evaluation / when / f"{name}.hyp"))
            sides.append({**measuring.of_hypotheses(hypotheses, test_set), "loss": measuring.losses(weights, test_set)})
        scores = {}
        for metric in METRICS:
            before, after = (side[metric] for side in sides)
            change = paired_difference(before, after, measuring.scorer(metric))
            values = measuring.value(metric, before), measuring.value(metric, after)
            scores[metric] = Change(
                before=values[0], after=values[1], change=change.value, low=change.low, high=change.high
            )
        found.append(TestChange(name=name, is_new=name in config.data.test, lines=len(test_set.src), scores=scores))
    found.sort(key=lambda one: not one.is_new)
    written = _Written(model=ModelFile.of(run.model_file), tests=tuple(found))
    write_json(_path(run), written.model_dump(mode="json"))
    return written.tests


def read_tests(run: RunFolder) -> tuple[TestChange, ...] | None:
    """What `compare_tests` wrote for the run's present model; None if it did not, or for another model."""
    if not _path(run).is_file() or not run.model_file.is_file():
        return None
    try:
        written = _Written.model_validate(read_json(_path(run)))
    except (RunError, ValidationError):
        return None
    return written.tests if written.model.is_still(run.model_file) else None


def _path(run: RunFolder) -> Path:
    return run.adaptation / _FILE


def table(tests: Sequence[TestChange], metrics: Sequence[AdaptMetric]) -> list[list[str]]:
    """The test sets as rows of cells, with a head: a row for each metric."""
    rows = [["test", "", "lines", "score", "before", "after", "change", "95% interval"]]
    for one in tests:
        rows += _rows(one, metrics)
    return rows


def _rows(test: TestChange, metrics: Sequence[AdaptMetric]) -> Iterator[list[str]]:
    for metric in metrics:
        score, digits = test.scores[metric], 3 if metric == "loss" else 2
        yield [
            test.name,
            "new text" if test.is_new else "general",
            f"{test.lines:,}",
            NAMES[metric],
            f"{score.before:.{digits}f}",
            f"{score.after:.{digits}f}",
            f"{score.change:+.{digits}f}",
            f"{score.low:+.{digits}f} to {score.high:+.{digits}f}",
        ]
