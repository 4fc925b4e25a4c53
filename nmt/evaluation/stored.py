"""Evaluations stored in a run folder.

A run's own evaluations are of its configured test sets, by its present model with the configured search and scoring:
evaluation/NAME.hyp and NAME.json. The names of others end in a hash of texts, models, engine, search and scoring.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from nmt.config.inference import DecodingConfig
from nmt.config.training import Metric
from nmt.corpora.hashes import side_key
from nmt.corpora.lines import read_lines
from nmt.corpora.pairs import Side, sides_of
from nmt.decoding.hypothesis import Sampling
from nmt.errors import DataError, RunError
from nmt.evaluation.metrics import Score, bleu_tokenizer, metric_names
from nmt.runs.exports import ModelFile
from nmt.runs.folder import Recorded, RunFolder
from nmt.system.console import warn_once
from nmt.system.files import file_sha256, write_json, write_text


class Evaluated(Recorded):
    """Evaluation of a test set."""

    test_set: str
    """Its name in the configuration, or its file's name."""
    models: tuple[str, ...]
    weights: Annotated[tuple[ModelFile, ...], Field(min_length=1)]
    engine: str
    requested_engine: str = "auto"
    decoding: DecodingConfig
    sampling: Sampling | None = None
    src_sha256: str
    references_sha256: tuple[str, ...]
    lines: int
    scores: dict[Metric, Score]
    intervals: dict[Metric, tuple[float, float]] = Field({})
    """Of the changes by a fine-tuning, in evaluation/after/ only."""


class AveragedRun(Recorded):
    """Content of average.json: an averaged run and its scores."""

    average: str
    """Folder of the new run."""
    runs: list[str]
    """Folders of the original runs."""
    steps: list[int]
    """Steps of the averaged checkpoints of a single run; empty if the models of several runs were averaged."""
    run_scores: list[dict[Metric, Score]]
    """Scores of the original models on the validation set of the first run, in the order of `runs`."""
    average_scores: dict[Metric, Score]


class Stored(NamedTuple):
    """Evaluation in a run folder."""

    name: str
    """The stem of its files: the test set's name for the run's own."""
    hypotheses: Path
    content: Evaluated
    deviation: str
    """The differences from the run's own evaluation, in words; '' for none."""


class _Configured:
    """Configuration of a run's own evaluations."""

    def __init__(self, run: RunFolder, with_text: bool = True) -> None:
        self.weights, self.inference, self.settings = run.weights_file, run.inference_config(), run.evaluation_config()
        self.test = run.config().data.test if run.has_training_config() else None
        self.with_text = with_text
        self.file_sha256, self.side_key = functools.cache(file_sha256), functools.cache(side_key)

    def has_text_of(self, evaluated: Evaluated) -> bool | None:
        """True if the configured test set with its name has the same text; None if that cannot be compared."""
        if self.test is None:
            return None
        if evaluated.test_set not in self.test:
            return False
        # Vectors and images can be large, and devices need not end, so neither is read.
        first = 0 if self.inference.source.type == "text" else 1
        sides = sides_of(self.test[evaluated.test_set])[first:]
        if not (self.with_text and all(side.path.is_file() for side in sides)):
            return None
        try:
            return list(map(self.side_key, sides)) == [evaluated.src_sha256, *evaluated.references_sha256][first:]
        except DataError:
            return None

    def deviations(self, evaluated: Evaluated) -> list[str]:
        """List the differences from the run's own evaluation, except the text."""
        engine = [] if evaluated.requested_engine == "auto" else [f"engine {evaluated.engine}"]
        return [*self.search_deviations(evaluated), *engine, *self.scoring_deviations(evaluated)]

    def search_deviations(self, evaluated: Evaluated) -> list[str]:
        """List the differences from the present model and the configured search."""
        wanted, used = (decoding.model_dump(mode="json") for decoding in (self.inference.decoding, evaluated.decoding))
        deviations = [f"{key} {used[key]}" for key in used if used[key] != wanted[key] and key != "batch_tokens"]
        if evaluated.sampling:
            deviations.append("drawn at random (--sample or --mbr)")
        if len(evaluated.weights) > 1:
            deviations.append(f"an ensemble with {', '.join(evaluated.models[1:])}")
        elif not (self.weights.is_file() and evaluated.weights[0].is_still(self.weights, self.file_sha256)):
            deviations.append("an earlier model")
        return deviations

    def scoring_deviations(self, evaluated: Evaluated) -> Iterator[str]:
        """Yield the differences from the configured metrics."""
        language = self.inference.data.tgt_lang
        signatures = "".join(score.signature for metric, score in evaluated.scores.items() if metric != "ter")
        if evaluated.scores.keys() != set(metric_names(self.settings, language)):
            yield f"metrics {', '.join(evaluated.scores)}"
        tokenizer = f"|tok:{bleu_tokenizer(language, self.settings.bleu_tokenizer)}"
        if "|tok:" in signatures and tokenizer not in signatures:
            yield "another BLEU tokenizer"
        if "|case:lc" in signatures:  # TER, which always ignores case, is not among them
            yield "case ignored"


def _readable(run: RunFolder) -> Iterator[tuple[Path, Evaluated]]:
    """Yield the evaluations in the run's folder, with a warning about each damaged file."""
    for path in sorted(run.evaluation.glob("*.json")):
        try:
            yield path, Evaluated.read(path)
        except RunError as error:
            warn_once(str(error))


def stored_evaluations(run: RunFolder, with_text: bool = True) -> list[Stored]:
    """The run's evaluations, those of the configured test sets first; damaged ones are skipped with a warning.

    Not `with_text`, which is outside the run folder, test sets of the same name count as the same.
    """
    if not (readable := list(_readable(run))):
        return []
    configured, stored = _Configured(run, with_text), []
    order = {name: number for number, name in enumerate(configured.test or ())}
    for path, evaluated in sorted(readable, key=lambda item: order.get(item[0].stem, len(order))):
        deviations = configured.deviations(evaluated)
        if configured.has_text_of(evaluated) is False:
            deviations.append("not a text of data.test")
        elif not deviations and configured.test and path.stem != evaluated.test_set:
            deviations.append("an earlier configuration")
        advice = "; run nmt eval again" if deviations and path.stem in order else ""
        stored.append(Stored(path.stem, path.with_suffix(".hyp"), evaluated, ", ".join(deviations) + advice))
    return stored


def stored_hypotheses(run: RunFolder, src: Side, engine: str = "auto") -> list[str] | None:
    """The stored translations of a text by the present model and the configured search; None without any.

    `engine`, unless it is `auto`, must have made them.
    """
    key, configured = side_key(src, run.inference_config().source), _Configured(run)
    for path, evaluated in _readable(run):
        has_engine = engine in (evaluated.requested_engine, evaluated.engine.partition(",")[0])
        if has_engine and evaluated.src_sha256 == key and not configured.search_deviations(evaluated):
            hypotheses_file = path.with_suffix(".hyp")
            hypotheses = list(read_lines(hypotheses_file)) if hypotheses_file.is_file() else []
            if len(hypotheses) == evaluated.lines:
                return hypotheses
    return None


def store(run: RunFolder, evaluated: Evaluated, hypotheses: Sequence[str], folder: Path | None = None) -> Path:
    """Write an evaluation and its hypotheses; return the path of the hypotheses.

    In another `folder`, the files have the test set's name.
    """
    name, configured = evaluated.test_set, _Configured(run)
    if not folder and (configured.deviations(evaluated) or not configured.has_text_of(evaluated)):
        hashed = {"src_sha256", "references_sha256", "requested_engine", "decoding", "sampling"}
        content = evaluated.model_dump(mode="json", include=hashed)
        key = [content, evaluated.models[1:], [score.signature for score in evaluated.scores.values()]]
        name += f".{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:8]}"
    path = (folder or run.evaluation) / f"{name}.hyp"
    write_text(path, "".join(f"{line}\n" for line in hypotheses))
    write_json(path.with_suffix(".json"), evaluated.model_dump(mode="json"))
    return path
