"""Evaluations stored in a run folder, and which of them are its own: as configured, by its present model.

The run's own are evaluation/NAME.hyp and NAME.json for each test set of its configuration. The names of all others have
a hash of texts, models, engine, search and scoring.
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
from nmt.system.console import log
from nmt.system.files import file_sha256, write_json, write_text


class Evaluated(Recorded):
    """An evaluation of one test set."""

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
    """Of the changes: only in evaluation/after/."""


class AveragedRun(Recorded):
    """The content of average.json: an averaged run and its scores."""

    average: str
    """Folder of the new run."""
    runs: list[str]
    """Folders of the original runs."""
    steps: list[int]
    """Steps of the averaged checkpoints of the one original run; empty if the models of several were averaged."""
    run_scores: list[dict[Metric, Score]]
    """Scores of the original models on the validation set of the first, in the order of `runs`."""
    average_scores: dict[Metric, Score]


class Stored(NamedTuple):
    """An evaluation in a run folder."""

    name: str
    """The file's: of the run's own, the test set's name."""
    hypotheses: Path
    content: Evaluated
    deviation: str
    """What makes it another than the run's own, in words; empty if nothing does."""


class _Configured:
    """A run's configuration, as far as it decides which evaluations are the run's own."""

    def __init__(self, run: RunFolder, with_text: bool = True) -> None:
        self.weights, self.inference, self.settings = run.weights_file, run.inference_config(), run.evaluation_config()
        self.test = run.config().data.test if run.has_training_config() else None
        self.with_text = with_text
        self.file_sha256, self.side_key = functools.cache(file_sha256), functools.cache(side_key)

    def has_text_of(self, one: Evaluated) -> bool | None:
        """Whether its test set has the text of the configured one with this name; None if that cannot be said."""
        if self.test is None:
            return None
        if one.test_set not in self.test:
            return False
        # Vectors and images are not read, which can be large, nor devices, which need not end.
        first = 0 if self.inference.source.type == "text" else 1
        read = sides_of(self.test[one.test_set])[first:]
        if not (self.with_text and all(side.path.is_file() for side in read)):
            return None
        try:
            return [self.side_key(side) for side in read] == [one.src_sha256, *one.references_sha256][first:]
        except DataError:
            return None

    def deviations(self, one: Evaluated) -> list[str]:
        """What makes it another than the run's own, but for the text."""
        engine = [] if one.requested_engine == "auto" else [f"engine {one.engine}"]
        return [*self.other_search(one), *engine, *self.other_scoring(one)]

    def other_search(self, one: Evaluated) -> list[str]:
        """What makes its translations others than those of the present model by the configured search."""
        wanted, used = (decoding.model_dump(mode="json") for decoding in (self.inference.decoding, one.decoding))
        found = [f"{key} {used[key]}" for key in used if used[key] != wanted[key] and key != "batch_tokens"]
        if one.sampling:
            found.append("drawn at random (--sample or --mbr)")
        if len(one.weights) > 1:
            found.append(f"an ensemble with {', '.join(one.models[1:])}")
        elif not (self.weights.is_file() and one.weights[0].is_still(self.weights, self.file_sha256)):
            found.append("an earlier model")
        return found

    def other_scoring(self, one: Evaluated) -> Iterator[str]:
        """What makes its scores others than those of the configured metrics."""
        language = self.inference.data.tgt_lang
        signatures = "".join(score.signature for metric, score in one.scores.items() if metric != "ter")
        if one.scores.keys() != set(metric_names(self.settings, language)):
            yield f"metrics {', '.join(one.scores)}"
        tokenizer = f"|tok:{bleu_tokenizer(language, self.settings.bleu_tokenizer)}"
        if "|tok:" in signatures and tokenizer not in signatures:
            yield "another tokenizer of BLEU"
        if "|case:lc" in signatures:  # as TER always does
            yield "case ignored"


def _readable(run: RunFolder) -> Iterator[tuple[Path, Evaluated]]:
    """The evaluations in the run's folder, with a warning about each file that is damaged."""
    for path in sorted(run.evaluation.glob("*.json")):
        try:
            yield path, Evaluated.read(path)
        except RunError as error:
            _warn_once(str(error))


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)


def stored_evaluations(run: RunFolder, with_text: bool = True) -> list[Stored]:
    """The run's evaluations, those of the configuration's test sets first; a damaged one is left out, with a warning.

    Without their text, which is outside of the run's folder, test sets of one name count as the same.
    """
    if not (readable := list(_readable(run))):
        return []
    configured, found = _Configured(run, with_text), []
    order = {name: number for number, name in enumerate(configured.test or ())}
    for path, one in sorted(readable, key=lambda each: order.get(each[0].stem, len(order))):
        reasons = configured.deviations(one)
        if configured.has_text_of(one) is False:
            reasons.append("not a text of data.test")
        elif not reasons and configured.test and path.stem != one.test_set:
            reasons.append("an earlier configuration")
        advice = "; run nmt eval again" if reasons and path.stem in order else ""
        found.append(Stored(path.stem, path.with_suffix(".hyp"), one, ", ".join(reasons) + advice))
    return found


def stored_hypotheses(run: RunFolder, src: Side, engine: str = "auto") -> list[str] | None:
    """The translations of a text by the present model and the configured search, if an evaluation stored them.

    An engine other than `auto` is to be the one that made them.
    """
    key, configured = side_key(src, run.inference_config().source), _Configured(run)
    for path, one in _readable(run):
        has_engine = engine in (one.requested_engine, one.engine.partition(",")[0])
        if has_engine and one.src_sha256 == key and not configured.other_search(one):
            hypotheses_file = path.with_suffix(".hyp")
            hypotheses = list(read_lines(hypotheses_file)) if hypotheses_file.is_file() else []
            if len(hypotheses) == one.lines:
                return hypotheses
    return None


def store(run: RunFolder, one: Evaluated, hypotheses: Sequence[str], folder: Path | None = None) -> Path:
    """Write an evaluation and its hypotheses, whose path is returned; in another `folder`, by the test set's name."""
    name, configured = one.test_set, _Configured(run)
    if not folder and (configured.deviations(one) or not configured.has_text_of(one)):
        hashed = {"src_sha256", "references_sha256", "requested_engine", "decoding", "sampling"}
        content = one.model_dump(mode="json", include=hashed)
        key = [content, one.models[1:], [score.signature for score in one.scores.values()]]
        name += f".{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:8]}"
    path = (folder or run.evaluation) / f"{name}.hyp"
    write_text(path, "".join(f"{line}\n" for line in hypotheses))
    write_json(path.with_suffix(".json"), one.model_dump(mode="json"))
    return path
