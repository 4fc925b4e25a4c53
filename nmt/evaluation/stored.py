"""Evaluations stored in a run folder, and which of them are its own: as configured, by its present model.

The run's own are evaluation/NAME.hyp and NAME.json for each test set of its configuration. The names of all others have
a hash of texts, models, search and scoring.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from nmt.atomic import write_json, write_text
from nmt.config.evaluation import Metric
from nmt.config.inference import DecodingConfig
from nmt.ctranslate2.exports import ModelFile
from nmt.data.corpus import Side, sides_of
from nmt.data.hashes import side_key
from nmt.data.lines import read_lines
from nmt.decoding.request import Sampling
from nmt.errors import DataError
from nmt.evaluation.metrics import Score, bleu_tokenizer, metric_names
from nmt.runs import Recorded, RunFolder


class Evaluated(Recorded):
    """An evaluation of one test set."""

    test_set: str
    """Its name in the configuration, or its file's name."""
    models: tuple[str, ...]
    weights: Annotated[tuple[ModelFile, ...], Field(min_length=1)]
    engine: str
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
    """The test set's name, or that of the file where several of the run's own evaluations have this name."""
    hypotheses: Path
    content: Evaluated
    is_as_searched: bool
    """Whether these are the translations of the run's present model by the configured search."""
    deviation: str
    """What makes it another than the run's own, in words; empty if nothing does."""


class _Configured:
    """A run's configuration, as far as it decides which evaluations are the run's own."""

    def __init__(self, run: RunFolder, with_text: bool = True) -> None:
        self.weights, self.inference, self.settings = weights_file(run), run.inference_config(), run.evaluation_config()
        self.test = run.config().data.test if run.has_training_config() else {}
        self.with_text = with_text

    def has_text_of(self, one: Evaluated) -> bool | None:
        """Whether its test set has the text of the configured one with this name; None if that cannot be said."""
        if one.test_set not in self.test or not self.with_text:
            return None
        # Vectors and images are not read, which can be large, nor devices, which need not end.
        is_text = self.inference.source.type == "text"
        read = sides_of(self.test[one.test_set])[0 if is_text else 1 :]
        try:
            keys = [side_key(side).hex() for side in read if side.path.is_file()]
        except DataError:
            return None
        known = [one.src_sha256, *one.references_sha256][0 if is_text else 1 :]
        return keys == known if len(keys) == len(read) else None

    def other_search(self, one: Evaluated) -> list[str]:
        """What makes its translations others than those of the present model by the configured search."""
        wanted, used = (decoding.model_dump(mode="json") for decoding in (self.inference.decoding, one.decoding))
        found = [f"{key} {used[key]}" for key in used if used[key] != wanted[key] and key != "batch_tokens"]
        if one.sampling:
            found.append("drawn at random (--sample or --mbr)")
        if len(one.weights) > 1:
            found.append(f"an ensemble with {', '.join(one.models[1:])}")
        elif not (self.weights.is_file() and one.weights[0].is_still(self.weights)):
            found.append("the model has changed since; run nmt eval again")
        return found

    def other_scoring(self, one: Evaluated) -> list[str]:
        """What makes its scores others than those of the configured metrics."""
        language = self.inference.data.tgt_lang
        signatures = "".join(score.signature for metric, score in one.scores.items() if metric != "ter")
        tokenizer = f"|tok:{bleu_tokenizer(language, self.settings.bleu_tokenizer)}"
        found = {
            f"metrics {', '.join(one.scores)}": one.scores.keys() != set(metric_names(self.settings, language)),
            "another tokenizer of BLEU": "|tok:" in signatures and tokenizer not in signatures,
            "case ignored": "|case:lc" in signatures,  # as TER always does
        }
        return [reason for reason, holds in found.items() if holds]


def stored_evaluations(run: RunFolder, with_text: bool = True) -> list[Stored]:
    """The run's evaluations, those of the configuration's test sets first; `RunError` if one is damaged.

    Without their text, which is outside of the run's folder, test sets of one name count as the same.
    """
    if not any(run.evaluation.glob("*.json")):
        return []
    configured, found = _Configured(run, with_text), []
    order = {name: number for number, name in enumerate(configured.test)}
    for path in sorted(run.evaluation.glob("*.json"), key=lambda path: (order.get(path.stem, len(order)), path.name)):
        one = Evaluated.read(path, "run nmt eval again, or remove the file")
        search, has_text = configured.other_search(one), configured.has_text_of(one)
        reasons = [*search, *configured.other_scoring(one)]
        if has_text is False:
            reasons.append(f"not the text of data.test.{one.test_set}")
        elif has_text and path.stem != one.test_set and not reasons:
            reasons.append("the configuration has changed since; run nmt eval again")
        found.append(Stored(one.test_set, path.with_suffix(".hyp"), one, not search, ", ".join(reasons)))
    alike = Counter(one.name for one in found if not one.deviation)
    return [
        one._replace(name=one.hypotheses.stem) if not one.deviation and alike[one.name] > 1 else one for one in found
    ]


def stored_hypotheses(run: RunFolder, src: Side, engine: str = "auto") -> list[str] | None:
    """The translations of a text by the present model and the configured search, if an evaluation stored them.

    An engine other than `auto` is to be the one that made them.
    """
    key = side_key(src, run.inference_config().source).hex()
    for _, path, one, is_as_searched, _ in stored_evaluations(run):
        if is_as_searched and one.src_sha256 == key and engine in ("auto", one.engine.partition(",")[0]):
            hypotheses = list(read_lines(path)) if path.is_file() else []
            if len(hypotheses) == one.lines:
                return hypotheses
    return None


def store(run: RunFolder, one: Evaluated, hypotheses: Sequence[str], folder: Path | None = None) -> Path:
    """Write an evaluation and its hypotheses, whose path is returned; in another `folder`, by the test set's name."""
    name, configured = one.test_set, _Configured(run)
    reasons = [] if folder else [*configured.other_search(one), *configured.other_scoring(one)]
    if reasons or not (folder or configured.has_text_of(one)):
        content = one.model_dump(mode="json", include={"src_sha256", "references_sha256", "decoding", "sampling"})
        key = [content, one.models[1:], [score.signature for score in one.scores.values()]]
        name += f".{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:8]}"
    path = (folder or run.evaluation) / f"{name}.hyp"
    write_text(path, "".join(f"{line}\n" for line in hypotheses))
    write_json(path.with_suffix(".json"), one.model_dump(mode="json"))
    return path


def weights_file(run: RunFolder) -> Path:
    """The file that identifies a run's weights."""
    return run.export_file if run.is_export() else run.model_file
