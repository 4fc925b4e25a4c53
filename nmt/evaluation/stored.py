"""Evaluations stored in a run folder, and which of them are its own: as configured, by its present model.

The run's own are evaluation/NAME.hyp and NAME.json for each test set of its configuration. The names of all others also
have the ensemble's other models, and a hash of texts, search and scoring where these are not the configured ones.
"""

import contextlib
import hashlib
import json
import re
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
from nmt.errors import DataError, RunError
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


class Stored(NamedTuple):
    """An evaluation in a run folder."""

    name: str
    """The test set's name, or that of the file where several of the run's own evaluations have this name."""
    hypotheses: Path
    content: Evaluated
    deviation: str
    """What makes it another than the run's own, in words; empty if nothing does."""


class _Configured:
    """A run's configuration, as far as it decides which evaluations are the run's own."""

    def __init__(self, run: RunFolder, with_text: bool = True) -> None:
        self.weights = weights_file(run)
        self.inference = run.inference_config()
        self.settings = run.evaluation_config()
        self.test = run.config().data.test if run.has_training_config() else {}
        self.with_text = with_text

    def has_text_of(self, one: Evaluated) -> bool | None:
        """Whether its test set has the text of the configured one with this name; None if that cannot be said."""
        if one.test_set not in self.test or not self.with_text:
            return None
        src, tgt = sides_of(self.test[one.test_set])
        try:  # vectors and images, which can be large, are not read
            is_same = self.inference.source.type != "text" or side_key(src).hex() == one.src_sha256
            return is_same and (side_key(tgt).hex(),) == one.references_sha256
        except DataError:
            return None

    def other_translations(self, one: Evaluated) -> list[str]:
        """What makes its translations others than those of the present model by the configured search."""
        wanted, used = (decoding.model_dump(mode="json") for decoding in (self.inference.decoding, one.decoding))
        found = [f"{key} {used[key]}" for key in used if used[key] != wanted[key] and key != "batch_tokens"]
        if one.sampling:
            found.append("drawn at random (--sample or --mbr)")
        if len(one.weights) > 1:
            found.append(f"an ensemble of {len(one.weights)} models")
        elif not (self.weights.is_file() and one.weights[0].is_still(self.weights)):
            found.append("the model has changed since; run nmt eval again")
        return found

    def other_scoring(self, one: Evaluated) -> list[str]:
        """What makes its scores others than those of the configured metrics."""
        found = []
        if one.scores.keys() != set(metric_names(self.settings, self.inference.data.tgt_lang)):
            found.append(f"metrics {', '.join(one.scores)}")
        tokenizer = f"|tok:{bleu_tokenizer(self.inference.data.tgt_lang, self.settings.bleu_tokenizer)}"
        if "bleu" in one.scores and tokenizer not in one.scores["bleu"].signature:
            found.append("another tokenizer of BLEU")
        # TER always ignores case.
        if any("|case:lc" in score.signature for metric, score in one.scores.items() if metric != "ter"):
            found.append("case ignored")
        return found


def stored_evaluations(run: RunFolder, with_text: bool = True) -> list[Stored]:
    """The run's evaluations, those of the configuration's test sets first; `RunError` if one is damaged.

    Without their text, which is outside of the run's folder, test sets of one name count as the same.
    """
    if not (paths := sorted(run.evaluation.glob("*.json"))):
        return []
    configured, found = _Configured(run, with_text), []
    order = list(configured.test)
    for path in paths:
        one = Evaluated.read(path, "run nmt eval again, or remove the file")
        reasons = [*configured.other_translations(one), *configured.other_scoring(one)]
        has_text = configured.has_text_of(one)
        if has_text is False:
            reasons.append(f"not the text of data.test.{one.test_set}")
        elif has_text and path.stem != one.test_set and not reasons:
            reasons.append("the configuration has changed since; run nmt eval again")
        found.append(Stored(one.test_set, path.with_suffix(".hyp"), one, ", ".join(reasons)))
    alike = Counter(one.name for one in found if not one.deviation)
    found = [one if one.deviation or alike[one.name] < 2 else one._replace(name=one.hypotheses.stem) for one in found]
    return sorted(found, key=lambda one: order.index(one.name) if one.name in order else len(order))


def stored_hypotheses(run: RunFolder, src: Side, engine: str = "auto") -> list[str] | None:
    """The translations of a text by the present model and the configured search, if an evaluation stored them.

    An engine other than `auto` is to be the one that made them.
    """
    configured = _Configured(run)
    key = side_key(src, configured.inference.source).hex()
    for path in sorted(run.evaluation.glob("*.json")):
        with contextlib.suppress(RunError, OSError):  # damaged
            one = Evaluated.read(path)
            if one.src_sha256 != key or configured.other_translations(one):
                continue
            hypotheses = list(read_lines(path.with_suffix(".hyp")))
            if len(hypotheses) == one.lines and engine in ("auto", one.engine.partition(",")[0]):
                return hypotheses
    return None


def store(run: RunFolder, one: Evaluated, hypotheses: Sequence[str], folder: Path | None = None) -> Path:
    """Write an evaluation and its hypotheses, whose path is returned; in another `folder`, by the test set's name."""
    name, configured = one.test_set, _Configured(run)
    if folder is None:
        name += _ensemble_suffix(one.models[1:])
        alone = one.model_copy(update={"weights": one.weights[:1]})
        reasons = [*configured.other_translations(alone), *configured.other_scoring(one)]
        if reasons or not configured.has_text_of(one):
            signatures = [score.signature for score in one.scores.values()]
            content = one.model_dump(mode="json", include={"src_sha256", "references_sha256", "decoding", "sampling"})
            name += f".{hashlib.sha256(json.dumps([content, signatures]).encode()).hexdigest()[:8]}"
    path = (folder or run.evaluation) / f"{name}.hyp"
    write_text(path, "".join(f"{line}\n" for line in hypotheses))
    write_json(path.with_suffix(".json"), one.model_dump(mode="json"))
    return path


def _ensemble_suffix(others: Sequence[str]) -> str:
    """The suffix of an ensemble's files, in the folder of its first run: `.ensemble-B+C` for A, B and C."""
    text = "+".join(re.sub(r"[^\w.-]", "_", RunFolder(Path(other)).name) for other in others)
    if len(text.encode()) > 100:  # a file's name has at most 255 bytes
        text = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f".ensemble-{text}" if text else ""


def weights_file(run: RunFolder) -> Path:
    """The file that identifies a run's weights."""
    return run.export_file if run.is_export() else run.model_file
