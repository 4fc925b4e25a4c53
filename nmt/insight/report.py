"""Report of a run: everything that its page and its model card show."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nmt.config.training import Config, Metric
from nmt.config.values import changed_settings
from nmt.corpora.lines import read_lines
from nmt.corpora.pairs import sides_of
from nmt.decoding.torch_engine import TorchEngine, load_model
from nmt.errors import DataError, RunError
from nmt.evaluation.metrics import configured_metrics
from nmt.evaluation.significance import Interval, confidence_intervals
from nmt.evaluation.stored import AveragedRun, Stored, stored_evaluations
from nmt.insight.progress import MEANING, read_status
from nmt.insight.systems import Trainings
from nmt.insight.validation_set import ReportedScore, ValidationResult, translate_validation_set
from nmt.runs.exports import ModelFile
from nmt.runs.folder import RunFolder
from nmt.runs.history import History, Validation
from nmt.system.devices import choose_device
from nmt.tokenizers.tokenizer import load_tokenizers
from nmt.training.fine_tuning import Forgetting, read_forgetting
from nmt.training.record import TrainingRecord, read_record, recorded_corpus

MAX_RESAMPLED_LINES = 5000
"""Limit for confidence intervals, since TER is recomputed for each line."""


class ScoredSet(NamedTuple):
    """Evaluation of a test set, stored in the run folder."""

    stored: Stored
    scores: dict[Metric, ReportedScore]


class Report(NamedTuple):
    """Figures and examples of a run."""

    name: str
    config: Config
    trainings: Trainings
    """Of the run and, if given, of the run whose curves are drawn beside its own."""
    record: TrainingRecord | None
    """What the training recorded about itself; None for an imported or averaged run."""
    chosen: Validation | None
    """The validation that chose the model, or else the last."""
    parameters: dict[str, int]
    """Number for each part of the model; shared parameters count once."""
    model: ModelFile
    validation: ValidationResult | None
    tests: tuple[ScoredSet, ...]
    forgotten: tuple[Forgetting, ...]
    """Scores before and after a fine-tuning (`training.init_from`)."""
    settings: tuple[tuple[str, str, str], ...]
    """The settings that differ from their defaults (`changed_settings`)."""
    averaged: str
    """The weights whose mean the model is, in words (`nmt average`, `nmt adapt` without general text), or empty."""
    notes: tuple[str, ...]
    """Missing or doubtful parts of the report, with the reason."""

    @property
    def history(self) -> History:
        """The history of the run."""
        return self.trainings.histories[0]


def gather(run: RunFolder, device: str = "auto", with_data: bool = False, overlaid: RunFolder | None = None) -> Report:
    """Read the run folder; `with_data` also the files that it names, and translate the validation set on the device.

    Raises `RunError` for an export, for a run that is damaged, and for an overlaid run that has no history.
    """
    config = run.config("make the report of the run that it was made from")
    record = read_record(run)
    runs = [run] if overlaid is None else [run, overlaid]
    are_alike = overlaid is not None and overlaid.name == run.name
    trainings = Trainings.of(runs, [str(one.path) if are_alike else one.name for one in runs])
    empty = [one.path for one, history in zip(runs, trainings.histories, strict=True) if not history.step]
    if overlaid is not None and empty:
        raise RunError(f"--overlay: {empty[0]} has no metrics.jsonl with curves; name runs trained here")
    tokenizers = load_tokenizers(run.tokenizer)
    model = load_model(run, tokenizers)
    engine = TorchEngine(model.to(choose_device(device)).eval(), tokenizers)
    notes: list[str] = []
    validation = None
    try:
        if not with_data:  # a run from another source could name any file here
            raise DataError("nmt report --with-data reads the files that the run's configuration names")
        validation = translate_validation_set(config, tokenizers, engine)
        now = recorded_corpus(config.data.validation, config.source)
        if record and [one.sha256 for one in now.files] != [one.sha256 for one in record.validation.files]:
            names = ", ".join(one.path for one in now.files)
            notes.append(f"The validation set has changed since the training: {names}.")
    except DataError as error:
        notes.append(f"The validation set was not translated: {error}.")
    averaged = _averaged(run)
    if run.fine_tuned_file.is_file():
        averaged = f"the weights of {config.training.init_from} and those of this training ({run.fine_tuned_file.name})"
        notes.append(f"The model is the mean of {averaged}, whose validations are below.")
    state = read_status(run, with_data).state
    if state in ("preparing", "training", "interrupted", "diverged"):
        notes.insert(0, f"This training is not finished. It {MEANING[state].removeprefix('its training ')}.")
    return Report(
        name=run.name,
        config=config,
        trainings=trainings,
        record=record,
        chosen=None if averaged else trainings.histories[0].best(config.training.best_metric),
        parameters=model.parameter_counts(),
        model=ModelFile.of(run.model_file),
        validation=validation,
        tests=tuple(_test_scores(run, config, with_data)),
        forgotten=tuple(read_forgetting(run)),
        settings=tuple(changed_settings(config)),
        averaged=averaged,
        notes=tuple(notes),
    )


def _test_scores(run: RunFolder, config: Config, with_data: bool) -> Iterator[ScoredSet]:
    """Stored evaluations of the run; those as configured have confidence intervals if the texts are there."""
    metrics = configured_metrics(config.evaluation, config.data.tgt_lang)
    for one in stored_evaluations(run, with_data):
        intervals: dict[Metric, Interval] = {}
        files = config.data.test.get(one.name) if with_data and not one.deviation else None
        if files and one.content.lines <= MAX_RESAMPLED_LINES:
            with contextlib.suppress(DataError):  # the texts may be gone
                hypotheses, references = list(read_lines(one.hypotheses)), list(sides_of(files)[1].lines())
                if len(references) == len(hypotheses):
                    intervals = confidence_intervals(metrics, hypotheses, [references])
        scores = {name: ReportedScore(score, intervals.get(name)) for name, score in one.content.scores.items()}
        yield ScoredSet(one, scores)


def _averaged(run: RunFolder) -> str:
    """The checkpoints or runs whose mean the model is, by average.json; '' without one."""
    if not run.average_file.is_file():
        return ""
    average = AveragedRun.read(run.average_file, "average it again")
    if average.steps:
        return f"the checkpoints of another run at the steps {', '.join(f'{step:,}' for step in average.steps)}"
    return f"the models of the runs {', '.join(Path(run).name for run in average.runs)}"
