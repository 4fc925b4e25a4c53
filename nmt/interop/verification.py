"""Verification of an export: its translations against those of its run, and the description in export.json.

The run's validation set, or other text, is translated with PyTorch in fp32 and with the export, by greedy search and by
beam search. The exporter gives the search with its format: a function from sources and search settings to translations.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nmt.config.inference import DecodingConfig, InferenceConfig
from nmt.decoding.torch_engine import load_model
from nmt.decoding.translator import load
from nmt.errors import ConfigError, DataError, ExportError, RunError
from nmt.evaluation.evaluate import TestSet, choose_test_sets, corpus_test_set, evaluate, read_test_set
from nmt.evaluation.metrics import Score, make_metrics, score
from nmt.interop.importing import ImportedRun
from nmt.models.transformer import Transformer
from nmt.runs.exports import ModelFile
from nmt.runs.folder import RunFolder, find_run
from nmt.system.devices import choose_device
from nmt.tokenizers.tokenizer import Tokenizers, load_tokenizers
from nmt.training.record import read_record

SAME_LINES = 0.995
"""Minimum share of equal lines, for an export that changes no weight."""
BLEU_DIFFERENCE = 0.3
"""Maximum loss of BLEU; for an export that changes no weight, the maximum change."""

PLAIN_SEARCH: dict[str, object] = {
    "max_length_ratio": 1000.0, "no_repeat_ngram_size": 0, "forbidden_words": (), "lower_capitals": False, "copied": (),
}  # fmt: skip
"""Changes of `decoding` that switch off what other programs do not have, so that translations can be compared."""

Translate = Callable[[Sequence[str], DecodingConfig], list[str]]
"""Translation of lines with an export; `beam_size` 1 is greedy search."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """Comparison of an export's translations of a test set with PyTorch's."""

    beam_size: int
    lines: int
    same_lines: int
    torch_score: Score
    export_score: Score

    def is_good(self, is_exact: bool) -> bool:
        """True if the export may be kept; with `is_exact`, lines must be the same, else BLEU may also rise."""
        lost = self.torch_score.value - self.export_score.value
        if is_exact:
            return self.same_lines >= SAME_LINES * self.lines and abs(lost) <= BLEU_DIFFERENCE
        return lost <= BLEU_DIFFERENCE

    def __str__(self) -> str:
        return (
            f"beam {self.beam_size}: {self.same_lines:,} of {self.lines:,} lines are the same, BLEU "
            f"{self.export_score.value:.2f} instead of {self.torch_score.value:.2f}"
        )


class Prepared(NamedTuple):
    """A run's Transformer to export, and the text on which the export is compared."""

    run: RunFolder
    config: InferenceConfig
    tokenizers: Tokenizers
    model: Transformer
    text: TestSet
    device: str
    """The device on which PyTorch translates it."""
    is_training_text: bool
    """True if the text is training text."""


def prepare(
    run: RunFolder,
    program: str,
    require: Callable[[], object],
    src: Path | None = None,
    ref: Path | None = None,
    device: str = "auto",
    max_lines: int | None = None,
) -> Prepared:
    """Load everything that an export to a `program`'s format needs, before anything is written.

    `require` imports that program's package. Raises an `NmtError` for a model that the format cannot express, and for
    a missing package or text.
    """
    if run.is_export():
        raise RunError(f"{run.path}: is an export; name the run that it was made from")
    config = run.inference_config()
    if config.source.type != "text":
        raise ConfigError(f"{run.path}: {program} has no models that read {config.source.type}; PyTorch translates it")
    if config.model.architecture != "transformer":
        raise RunError(
            f"{run.path}: {program} has no models with model.architecture: {config.model.architecture}; PyTorch "
            f"translates with them (nmt translate --engine torch)"
        )
    text = verification_text(run, src, ref, max_lines)
    require()
    choose_device(device)
    tokenizers = load_tokenizers(run.tokenizer)
    model = load_model(run, tokenizers)
    assert isinstance(model, Transformer)
    is_training_text = not (src or ref) and run.config().data.validates_on_training_text
    return Prepared(run, config, tokenizers, model, text, device, is_training_text)


def verification_text(run: RunFolder, src: Path | None, ref: Path | None, max_lines: int | None = None) -> TestSet:
    """Read the text of `src` and `ref` (or of `src` alone, a file with both sides), or the run's validation set.

    With `max_lines`, at most that many lines, evenly spread.
    """
    try:
        if src or ref:
            ((sources, references),) = choose_test_sets(run, src, () if ref is None else (ref,)).values()
            text = read_test_set(sources, references)
        else:
            text = corpus_test_set(run.config("give --src and --ref").data.validation)
    except DataError as error:
        raise DataError(
            f"{error}; an export is compared on the run's validation set, or on other text: --src FILE --ref FILE"
        ) from None
    return text if max_lines is None else text.spread(max_lines)[0]


def verify(
    prepared: Prepared,
    folder: Path,
    decodings: Sequence[DecodingConfig],
    translate: Translate,
    is_exact: bool | None,
    remedy: str = "",
) -> list[Verification]:
    """Compare the export in `folder` with PyTorch in fp32, once with each of the search settings.

    Raises `ExportError` if the translations differ too much (`Verification.is_good`); with `is_exact` None, any
    difference is allowed. White space at the ends of a line does not count: transformers removes it.
    """
    run, text = prepared.run, prepared.text
    metrics = make_metrics(("bleu",), prepared.config.data.tgt_lang, run.evaluation_config().bleu_tokenizer)
    verifications = []
    for settings in decodings:
        decoding = settings.model_copy(update={"precision": "fp32"})
        engine = load(run.path, device=prepared.device, decoding=decoding, engine="torch", own_process=True)
        ours, theirs = evaluate(engine, text, metrics), translate(text.src_lines(), decoding)
        same = sum(one.strip() == other.strip() for one, other in zip(ours.hypotheses, theirs, strict=True))
        export_score = score(metrics, theirs, text.references)["bleu"]
        verifications.append(Verification(decoding.beam_size, len(theirs), same, ours.scores["bleu"], export_score))
    if is_exact is not None and (bad := [str(one) for one in verifications if not one.is_good(is_exact)]):
        raise ExportError(f"{folder}: not kept; it translates differently from {run.path}: {'; '.join(bad)}{remedy}")
    return verifications


def greedy_and_beam(decoding: DecodingConfig) -> tuple[DecodingConfig, DecodingConfig]:
    """The settings with greedy search, and with beam search (of size 5 if theirs is 1)."""
    beam_size = decoding.beam_size if decoding.beam_size > 1 else 5
    return decoding.model_copy(update={"beam_size": 1}), decoding.model_copy(update={"beam_size": beam_size})


UNKNOWN_LICENSE = "unknown"
"""Hugging Face's word for a missing licence; nobody may use such a model without asking."""


@dataclasses.dataclass(frozen=True)
class Base:
    """The model that a run was imported from, or that its training started from."""

    name: str
    sha256: Mapping[str, str]
    """Hashes of its files, by name."""
    license: str = UNKNOWN_LICENSE
    hub_name: str | None = None
    """The name on the hub of the model that it, or a run before it, was imported from."""


@dataclasses.dataclass(frozen=True)
class ExportedRun:
    """An export: the content of its export.json."""

    run: str
    folder: str
    format: str
    model: ModelFile
    """The weights from which it was made."""
    base: Base | None
    license: str
    usage: Sequence[str]
    """Commands or code that use the export, one per line."""
    comparisons: Sequence[Verification]
    quantization: str | None
    """The type of the weights, for exports to CTranslate2's format."""
    notes: Sequence[str]
    """Parts of the model that the format cannot express, with their cost."""


def describe(
    run: RunFolder,
    folder: Path,
    format: str,
    usage: Sequence[str],
    comparisons: Sequence[Verification],
    quantization: str | None = None,
    notes: Sequence[str] = (),
    license: str | None = None,
) -> ExportedRun:
    """Describe an export in `folder`; without a given licence, it has that of its base."""
    base = base_of(run)
    license = license or (base.license if base else UNKNOWN_LICENSE)
    made_from = ModelFile.of(run.model_file)
    return ExportedRun(
        str(run.path), str(folder), format, made_from, base, license, usage, comparisons, quantization, notes
    )


def base_of(run: RunFolder) -> Base | None:
    """The model from which a run was imported, or from which its training started; None for random weights."""
    file = run.path / "imported.json"
    if file.is_file():
        imported = ImportedRun.read(file, "import the model again")
        hub_name = imported.name if imported.revision else None
        return Base(imported.name, imported.files, imported.license or UNKNOWN_LICENSE, hub_name)
    record = read_record(run)
    if record is None or record.init_from is None:
        return None
    origin = record.init_from
    base = Base(origin.run, {Path(origin.model.path).name: origin.model.sha256})
    with contextlib.suppress(RunError):  # it may be gone, and its licence with it
        if (earlier := base_of(find_run(origin.run))) is not None:
            return dataclasses.replace(base, license=earlier.license, hub_name=earlier.hub_name)
    return base
