"""Choosing the model of an adaptation: scores the candidates on both validation sets, and writes the best.

The candidates are the weights between the base's and those that the training remembered (`nmt.training.guarding`).
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from sacrebleu.metrics.base import Metric as SacreMetric
from torch import Tensor

from nmt.adaptation.frontier import METRICS, AdaptMetric, Drop, Frontier, Point, choose, fresh_frontier, frontier_file
from nmt.atomic import replacing, write_json
from nmt.checkpoint import check_checkpoint, checkpoint_steps, interpolated_weights, write_weights
from nmt.config.guard import GuardConfig
from nmt.config.training import Config
from nmt.ctranslate2.exports import ModelFile
from nmt.data.tokenizer import load_tokenizers
from nmt.decoding.scoring import Scorer
from nmt.decoding.source_text import encoder_of
from nmt.decoding.torch_engine import TorchEngine, load_model
from nmt.decoding.translator import Translator
from nmt.device import choose_device
from nmt.errors import RunError
from nmt.evaluation.evaluate import TestSet, corpus_test_set, evaluate
from nmt.evaluation.metrics import make_metrics
from nmt.evaluation.significance import Difference, Statistics, corpus_score, line_statistics, paired_difference
from nmt.history import HIGHER_IS_BETTER
from nmt.runs import RunFolder
from nmt.training.averaging import exchanged
from nmt.training.guarding import Weights, weights_file_name

LineFigures = Mapping[AdaptMetric, Statistics]
"""Of each metric, what it counts in each line; the loss: the sum of a line's losses in nats, and its tokens."""


class Measuring:
    """Translates and scores test sets with any weights of one model."""

    def __init__(self, run: RunFolder, config: Config) -> None:
        self._config = config
        self._tokenizers = load_tokenizers(run.tokenizer)
        self._model = load_model(run, self._tokenizers).to(choose_device(config.training.device)).eval()
        self._engine = TorchEngine(self._model, self._tokenizers)
        self._metrics = make_metrics(["bleu", "chrf"], config.data.tgt_lang, config.evaluation.bleu_tokenizer)

    def measure(self, weights: Mapping[str, Tensor], test_set: TestSet) -> dict[AdaptMetric, Statistics]:
        """Of each metric, the figures of each line; translated with the run's own search settings, as it will be used.

        Greedy search, as in the validations of a training, may see another difference between two models.
        """
        with exchanged(self._model, weights):
            hypotheses = evaluate(self._translator(), test_set, {}).hypotheses
            return {**self.of_hypotheses(hypotheses, test_set), "loss": self._losses(test_set)}

    def losses(self, weights: Mapping[str, Tensor], test_set: TestSet) -> Statistics:
        """The loss alone."""
        with exchanged(self._model, weights):
            return self._losses(test_set)

    def of_hypotheses(self, hypotheses: list[str], test_set: TestSet) -> dict[AdaptMetric, Statistics]:
        """The figures of translations that exist."""
        found: dict[AdaptMetric, Statistics] = {}
        for metric, sacre in self._named():
            found[metric] = line_statistics(sacre, hypotheses, test_set.references)
        return found

    def value(self, metric: AdaptMetric, figures: Statistics) -> float:
        """The score of a test set whose lines have these figures."""
        return self.scorer(metric)(figures.sum(0))

    def scorer(self, metric: AdaptMetric) -> Callable[[Statistics], float]:
        """What computes a metric from sums of figures."""
        if metric == "loss":
            return lambda sums: float(sums[0] / max(1.0, sums[1]))
        return partial(corpus_score, dict(self._named())[metric])

    def _named(self) -> Iterator[tuple[AdaptMetric, SacreMetric]]:
        yield "bleu", self._metrics["bleu"]
        yield "chrf", self._metrics["chrf"]

    def _translator(self) -> Translator:
        data, decoding = self._config.data, self._config.decoding
        languages = (data.src_lang, data.tgt_lang)
        return Translator(self._tokenizers, self._engine, decoding, data.max_length, languages=languages)

    def _losses(self, test_set: TestSet) -> Statistics:
        """(lines, 2): the sum of the losses of a line's tokens in nats, and their number."""
        encoder = encoder_of(self._tokenizers.src, [self._config])
        longest = self._config.model.max_positions - 1
        scorer = Scorer(self._tokenizers, self._engine, encoder, longest, self._config.decoding.batch_tokens)
        pairs = scorer.stream(zip(test_set.src, test_set.references[0], strict=True))
        return np.array([[-sum(pair.log_probs), len(pair.tokens)] for pair in pairs], dtype=np.float64)


def choose_model(run: RunFolder, say: Callable[[str], None]) -> Frontier:
    """Choose the model of a finished training with a guard, and write it, unless that was done already.

    The base's weights are written to the byte. A kill leaves everything that is needed to choose again.
    """
    if (done := fresh_frontier(run)) is not None:
        return done
    with run.locked():
        config = run.config()
        candidates = list(candidates_of(run, config.guard))
        names = "two sets" if config.guard.validation else "the validation set"
        say(f"choosing among {len(candidates)} models, from the old weights to the new ones, on {names}")
        measuring = Measuring(run, config)
        points, figures = _measured(run, config, measuring, candidates, say)

        def standard_error(first: int, second: int) -> float:
            return paired_difference(figures[first], figures[second], measuring.scorer(gain_metric(config))).error

        number = choose(points, config.guard, standard_error)
        chosen = points[number]
        _write_model(run, chosen)
        files = {weights: run.adaptation / weights_file_name(weights) for weights in _remembered(run)}
        frontier = Frontier(
            max_drop=config.guard.max_drop or 0.0,
            drop_metric=config.guard.drop_metric,
            gain_metric=gain_metric(config),
            points=tuple(points),
            chosen=number,
            made_from={weights: ModelFile.of(path) for weights, path in files.items()},
            model=ModelFile.of(run.model_file),
        )
        write_json(Path(frontier_file(run)), frontier.model_dump(mode="json"))
    return frontier


def gain_metric(config: Config) -> AdaptMetric:
    """The metric of the new text: the one that chose the best weights in the training, or BLEU instead of TER."""
    best = config.training.best_metric
    return "bleu" if best == "ter" else best


def _remembered(run: RunFolder) -> list[Weights]:
    known: list[Weights] = ["base", "tuned", "kept", "last"]
    return [weights for weights in known if (run.adaptation / weights_file_name(weights)).is_file()]


def candidates_of(run: RunFolder, guard: GuardConfig) -> Iterator[tuple[Weights, int, float]]:
    """Weights, their step, and alpha; the base first. Weights that were remembered under two names are tried once."""
    steps, remembered = checkpoint_steps(run.checkpoints), _remembered(run)
    if not steps or "base" not in remembered:
        raise RunError(f"{run.path}: its adaptation has not begun, or its files were removed; start over with --fresh")
    progress = check_checkpoint(run.checkpoints / str(steps[-1]))
    yield "base", 0, 0.0
    seen = {0}
    of: dict[Weights, int] = {"tuned": progress.best_step, "kept": progress.kept_step, "last": progress.validated_step}
    for weights, step in of.items():
        if step not in seen and weights in remembered:
            yield from ((weights, step, alpha) for alpha in guard.tried)
        seen.add(step)


def _measured(
    run: RunFolder,
    config: Config,
    measuring: Measuring,
    candidates: list[tuple[Weights, int, float]],
    say: Callable[[str], None],
) -> tuple[list[Point], list[Statistics]]:
    """The points of the frontier, and of each the figures of the new text's lines."""
    guard, metric = config.guard, gain_metric(config)
    new_text = corpus_test_set(config.data.validation, config.source)
    general = None if guard.validation is None else corpus_test_set(guard.validation, config.source)
    points: list[Point] = []
    figures: list[Statistics] = []
    base: LineFigures = {}
    for weights, step, alpha in candidates:
        values = _weights_of(run, weights, alpha)
        new = measuring.measure(values, new_text)
        of_general = None if general is None else measuring.measure(values, general)
        base = base or of_general or {}
        scores = {name: measuring.value(name, new[name]) for name in METRICS}
        sign = 1 if HIGHER_IS_BETTER[metric] else -1
        point = Point(
            weights=weights,
            step=step,
            alpha=alpha,
            new=scores,
            general=None if of_general is None else {name: measuring.value(name, of_general[name]) for name in METRICS},
            gain=sign * (scores[metric] - points[0].new[metric]) if points else 0.0,
            drop=None if of_general is None else _drop(measuring, guard, base, of_general),
        )
        points.append(point)
        figures.append(new[metric])
        say(f"{point.name}: {_described(point, metric, guard)}")
    return points, figures


def _described(point: Point, metric: AdaptMetric, guard: GuardConfig) -> str:
    new, drop = f"new text {metric} {point.new[metric]:.3f}", guard.drop_metric
    return new if point.general is None else f"{new}, general text {drop} {point.general[drop]:.3f}"


def _drop(measuring: Measuring, guard: GuardConfig, base: LineFigures, point: LineFigures) -> Drop:
    """How much worse a model is than the base."""
    metric = guard.drop_metric
    change = paired_difference(base[metric], point[metric], measuring.scorer(metric))
    return as_drop(change, guard)


def as_drop(change: Difference, guard: GuardConfig) -> Drop:
    """A change of the guard's metric as a drop."""
    if HIGHER_IS_BETTER[guard.drop_metric]:
        return Drop(value=0.0 - change.value, low=0.0 - change.high, high=0.0 - change.low)
    return Drop(value=change.value, low=change.low, high=change.high)


def _weights_of(run: RunFolder, weights: Weights, alpha: float) -> dict[str, Tensor]:
    base = run.adaptation / weights_file_name("base")
    return interpolated_weights(base, run.adaptation / weights_file_name(weights), alpha)


def _write_model(run: RunFolder, point: Point) -> None:
    """Make a candidate the run's model; at alpha 0 and 1 the file is a copy."""
    if point.alpha in (0.0, 1.0):
        weights: Weights = "base" if point.alpha == 0.0 else point.weights
        with replacing(run.model_file) as temporary:
            shutil.copyfile(run.adaptation / weights_file_name(weights), temporary)
    else:
        write_weights(_weights_of(run, point.weights, point.alpha), run.model_file)
