"""A report as files: page, pictures, and model card."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from nmt.config.training import Config, Metric
from nmt.corpora.pairs import name_of
from nmt.evaluation.metrics import bleu_tokenizer
from nmt.insight.drawing import Chart, Curve, bars, curves
from nmt.insight.pages import render
from nmt.insight.report import Report, gather
from nmt.insight.systems import Trainings
from nmt.insight.validation_set import ReportedScore
from nmt.interop.model_card import CardFacts, CardScores, check_card_options, model_card
from nmt.interop.verification import UNKNOWN_LICENSE
from nmt.runs.folder import RunFolder
from nmt.runs.history import Example, History, TrainInterval, ValidationMetric, duration
from nmt.system.files import replacing, write_bytes, write_text
from nmt.training.record import TrainingRecord

_METRICS: dict[ValidationMetric, str] = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "loss": "loss"}
_CHARTS = ("loss", "validation", "learning_rate", "gradient_norm", "speed", "length")


def write_report(
    run: RunFolder,
    device: str = "auto",
    license: str | None = None,
    datasets: Sequence[str] = (),
    with_data: bool = False,
    overlaid: RunFolder | None = None,
) -> Path:
    """Write the run's report/ and return the path of its page; other files in it are kept.

    The charts of the page also show the curves of the overlaid run; the model card and its pictures do not.

    Raises `RunError` as `gather` does, and `ConfigError` for an impossible licence or data set.
    """
    check_card_options(license, datasets)
    report = gather(run, device, with_data, overlaid)
    charts = list(_charts(report))
    page = _page(run, report, charts)
    if overlaid is not None:
        charts = list(_charts(report._replace(trainings=Trainings.of([run], [run.name]))))
    write_text(run.report / "README.md", model_card(_card(report, charts, license or UNKNOWN_LICENSE, datasets)))
    for name in _CHARTS:
        (run.report / f"{name}.png").unlink(missing_ok=True)
    for chart in charts:
        with replacing(run.report / f"{chart.name}.png") as picture:
            write_bytes(picture, chart.png)
    write_text(run.report_page, page)
    return run.report_page


def _charts(report: Report) -> Iterator[Chart]:
    """Draw the charts for which there are figures."""
    runs = list(zip(report.trainings.names, report.trainings.histories, strict=True))

    def curves_of(label: str, points: Callable[[History], list[tuple[float, float]]]) -> list[Curve]:
        """The curve of each run that has one, with the run's name if there are two runs."""
        drawn = [Curve(f"{name}: {label}" if len(runs) > 1 else label, points(history)) for name, history in runs]
        return [line for line in drawn if line.points]

    def of_training(label: str, value: Callable[[TrainInterval], float | None]) -> list[Curve]:
        return curves_of(label, lambda run: [(one.step, y) for one in run.intervals if (y := value(one)) is not None])

    def of_validation(metric: ValidationMetric, label: str) -> list[Curve]:
        return curves_of(
            label, lambda run: [(one.step, one.values[metric]) for one in run.validations if metric in one.values]
        )

    losses = [*of_training("training", lambda one: one.loss), *of_validation("loss", "validation")]
    scores = [*of_validation("bleu", "BLEU"), *of_validation("chrf", "chrF")]
    scored = "training text" if report.config.data.validates_on_training_text else "validation set"
    mark = (report.chosen.step, "chosen checkpoint") if report.chosen else None
    rates = of_training("Learning rate", lambda one: one.learning_rate)
    norms = of_training("Gradient norm, before clipping", lambda one: one.grad_norm)
    speeds = of_training("Target tokens a second", lambda one: one.tgt_tokens_per_second)
    for name, title, y_label, lines, marked, highest in (
        ("loss", "Loss", "loss (lower is better)", losses, mark, None),
        ("validation", f"Scores of the {scored}", "score", scores, mark, 100),
        ("learning_rate", "Learning rate", "", rates, None, None),
        ("gradient_norm", "Gradient norm, before clipping", "", norms, None, None),
        ("speed", "Target tokens a second", "", speeds, None, None),
    ):
        if lines:
            yield curves(name, title, y_label, lines, marked, highest, len(runs))
    if report.validation is not None and report.validation.lengths:
        values = [
            (one.label, one.score or 0.0, f"{one.score or 0:.1f}\n{one.count:,} line{'s' * (one.count != 1)}")
            for one in report.validation.lengths
        ]
        yield bars("length", "BLEU by source length", "BLEU", values)


def _page(run: RunFolder, report: Report, charts: Sequence[Chart]) -> str:
    history, record, data = report.history, report.record, report.config.data
    return render(
        "report.html",
        f"{report.name}: report",
        report=report,
        charts={chart.name: chart for chart in charts},
        parameters=sum(report.parameters.values()),
        headline=[(name, scores[min(scores, key=get_args(Metric).index)]) for name, _, scores in _scored_sets(report)],
        direction=_direction(report.config),
        tokenizer=bleu_tokenizer(data.tgt_lang, report.config.evaluation.bleu_tokenizer),
        files=() if record is None else tuple(_files(record)),
        model=shlex.quote(run.path.as_posix()),
        again=shlex.join(["nmt", "train", run.config_file.as_posix(), "--name", f"{report.name}-again"]),
        progression=tuple(_progression(history)),
        is_adapted=run.fine_tuned_file.is_file(),
        validation_name=_validation_name(report.config),
        training_files=[*map(name_of, data.train)],
    )


def _progression(history: History) -> Iterator[tuple[int, Example]]:
    """Yield the updates from which on the example was translated in another way; the last text's, if it changed."""
    before = None
    for one in history.validations:
        if one.example is not None and one.key == history.validations[-1].key and one.example != before:
            before = one.example
            yield one.step, one.example


def _files(record: TrainingRecord) -> Iterator[tuple[str, str, int | None, str]]:
    """Yield set, path, number of pairs kept and hash of each file of the training."""
    corpora = [
        *(("training", corpus, size) for corpus, size in zip(record.train, record.corpus_sizes, strict=False)),
        ("validation", record.validation, record.validation_pairs),
        *((name, corpus, None) for name, corpus in record.test.items()),
    ]
    files = [(name, file, size) for name, corpus, size in corpora for file in corpus.files]
    if record.init_from is not None:
        files.append(("base model", record.init_from.model, None))
    for name, file, size in files:
        path = Path(file.path)
        inside = path.relative_to(record.folder) if path.is_relative_to(record.folder) else path
        yield name, inside.as_posix(), size, file.sha256


def _scored_sets(report: Report) -> Iterator[tuple[str, Literal["test", "validation"], dict[Metric, ReportedScore]]]:
    """Yield name, split and scores of each set: first the test sets that were evaluated as configured."""
    for one in report.tests:
        if not one.stored.deviation:
            yield one.stored.name, "test", one.scores
    if report.validation is not None:
        yield _validation_name(report.config), "validation", report.validation.scores


def _card(report: Report, charts: Sequence[Chart], license: str, datasets: Sequence[str]) -> CardFacts:
    config = report.config
    data = config.data
    scores = [
        CardScores(name, split, {metric: one.score for metric, one in reported.items()})
        for name, split, reported in _scored_sets(report)
    ]
    total = sum(report.parameters.values())
    return CardFacts(
        name=report.name,
        source=config.source.type,
        src_lang=data.src_lang,
        tgt_lang=data.tgt_lang,
        scores=scores,
        description=(
            f"A {config.model.architecture} of {total:,} parameters that translates {_direction(config)}, trained with "
            "nmt."
        ),
        usage=_usage(report),
        training="\n".join(_training(report, charts)),
        limits=_limits(config),
        license=license,
        datasets=datasets,
        validates_on_training_text=data.validates_on_training_text,
    )


def _validation_name(config: Config) -> str:
    """The name of the validation set in tables."""
    return "training text" if config.data.validates_on_training_text else "validation"


def _direction(config: Config) -> str:
    """The direction of translation: `en to de`, `images to de`."""
    return f"{config.data.src_lang if config.source.type == 'text' else config.source.type} to {config.data.tgt_lang}"


def _limits(config: Config) -> str:
    size, alone = config.data.max_length, "each source on its own: no other"
    match config.source.type:
        case "text":
            alone, sources = "sentences on their own: nothing outside a line", "Text unlike its training data is"
            limit = f"A source longer than {size} pieces of its vocabulary is translated in parts."
        case "vectors":
            sources = "Vectors unlike its training data are"
            limit = f"A source longer than {size} vectors is cut, with a warning."
        case "images":
            sources = "Images unlike its training data are"
            limit = f"Every image is scaled to {config.source.image_size} x {config.source.image_size} pixels."
    return (
        f"- It translates in one direction, and {alone} is known to it.\n- {limit}\n"
        f"- {sources} translated worse than the scores say.\n"
        "- Names, numbers and rare words can be wrong. What its training data says about people, it may repeat."
    )


def _usage(report: Report) -> str:
    with_nmt = (
        f"With nmt installed, and `config.yaml`, `tokenizer/` and `model.safetensors` in a folder `{report.name}`"
    )
    translate = f"nmt translate --model ./{report.name}"
    match report.config.source.type:
        case "images":
            given = "a list of images, `images.txt`, the path of one in each line"
            return f"{with_nmt}; and {given}:\n\n```\n{translate} --input images.txt --output FILE\n```"
        case "vectors":
            given = f"sources (N, S, {report.config.source.width}) that `numpy.save` wrote, `sources.npy`"
            return f"{with_nmt}; and {given}:\n\n```\n{translate} --input sources.npy --output FILE\n```"
        case "text":
            return (
                f'{with_nmt}:\n\n```\n{translate} "..."\n{translate} --input FILE --output FILE\n```\n\n'
                f'```python\nimport nmt\nnmt.load("./{report.name}").translate(["..."])\n```'
            )


def _training(report: Report, charts: Sequence[Chart]) -> Iterator[str]:
    history, record, config = report.history, report.record, report.config
    if report.averaged:
        yield f"Its weights are the mean of {report.averaged}.\n"
    if record is not None:
        files = ", ".join(f"`{Path(side.path).name}`" for corpus in record.train for side in corpus.files)
        yield f"Trained on {record.counts}, from {files}."
        last = record.starts[-1]
        versions = ", ".join(f"{name} {version}" for name, version in last.versions.items())
        yield f"\nWith {versions}; on {last.machine}, {last.precision}, seed {config.training.seed}."
    if history.step:
        epochs = f" ({history.epoch:,} epochs)" if history.epoch else ""
        time = "" if history.seconds is None else f" in {duration(history.seconds)}"
        yield f"\n{history.step:,} updates{epochs}{time}."
    if report.chosen is not None:
        metric = config.training.best_metric
        why = f"with the best {_METRICS[metric]} on the validation set" if metric else "the last"
        is_average = config.training.ema_decay is not None
        what = "an average of the weights, taken at update" if is_average else "that of update"
        yield f"The model is {what} {report.chosen.step:,}, {why}."
    for chart in charts:
        if chart.name in ("loss", "validation"):
            yield f"\n![{chart.description}]({chart.name}.png)"
