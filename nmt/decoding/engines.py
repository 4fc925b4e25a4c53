"""Engines, and the choice between them: PyTorch, or CTranslate2 for a run that was exported for it."""

import importlib.util
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nmt.config.inference import DecodingConfig
from nmt.decoding.ctranslate2_engine import import_ctranslate2, load_ctranslate2_engine
from nmt.decoding.hypothesis import EncodedSource, Hypothesis, Sampling
from nmt.errors import ConfigError, RunError
from nmt.runs.exports import Export, export_again, exports_of
from nmt.runs.folder import RunFolder
from nmt.system.console import log
from nmt.tokenizers.tokenizer import Tokenizers, load_tokenizers, same_tokenizers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENGINES = ("auto", "torch", "ctranslate2")


class Engine(Protocol):
    """A model and its searches: ids in, hypotheses out. Threads may call it concurrently, with different settings."""

    @property
    def name(self) -> str:
        """Name of the engine, recorded with results."""

    @property
    def batches_at_once(self) -> int:
        """Number of batches to pass to one call of `search`, so that all cores are used."""

    def search(
        self,
        sources: Sequence[EncodedSource],
        decoding: DecodingConfig,
        prefixes: Sequence[Sequence[int]] | None = None,
        scores: bool = True,
    ) -> Iterable[list[Hypothesis]]:
        """Yield the hypotheses of each source (ids without `</s>`, or vectors), best first; sources in their order.

        Sources should come longest first, the order in which they are searched. With `prefixes`, the hypotheses of a
        source begin with its prefix, which may be empty (`Constraints.forced`). Without `scores`, log-probabilities may
        be 0.
        """

    def score(self, sources: Sequence[EncodedSource], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each target id, and of `</s>` after them: T + 1 numbers for each pair.

        They are the model's own, without the constraints of a search, so forbidden ids have one, too. Sources are as in
        `search`. Targets are ids without `</s>`, and may be empty.
        """

    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> "list[NDArray[np.float32]]":
        """Return the attention of each target id to each source id, without `</s>`: (T, S) for each pair."""


@runtime_checkable
class Sampler(Protocol):
    """An engine that can sample translations, as PyTorch's does."""

    def sample(
        self,
        sources: Sequence[EncodedSource],
        decoding: DecodingConfig,
        sampling: Sampling,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """Draw `sampling.count` hypotheses of each source, in the order of the draws, duplicates included."""


def shared_tokenizers(runs: Sequence[RunFolder], tgt_tag: str | None = None) -> Tokenizers:
    """Load the tokenizers of a run, or those that the runs of an ensemble share.

    `tgt_tag` replaces their target tag, as in `load_tokenizers`. Raises `RunError` if vocabularies or the kinds of
    sources differ.
    """
    for run in runs[1:]:
        first, other = (each.inference_config().source.description() for each in (runs[0], run))
        if first != other:
            raise RunError(
                f"{runs[0].path} and {run.path} read different sources ({first} and {other}); models that are combined "
                "must read the same"
            )
        if not same_tokenizers(run.tokenizer, runs[0].tokenizer):
            raise RunError(
                f"{runs[0].path} and {run.path} have different vocabularies; models that are combined must share "
                "one: train them on the same text with the same tokenizer settings"
            )
    return load_tokenizers(runs[0].tokenizer, tgt_tag)


def load_engine(
    runs: Sequence[RunFolder],
    tokenizers: Tokenizers,
    device: str,
    engine: str = "auto",
    precision: str | None = None,
    configured_precision: str = "fp32",
    own_process: bool = False,
) -> Engine:
    """Load the engine for a run, an export, or an ensemble of several runs.

    `torch` and `ctranslate2` select that engine; an `NmtError` says why it cannot be used. `auto` selects CTranslate2
    for an export, and on a CPU for a run with a fresh export if CTranslate2 supports all that is requested. Otherwise
    it selects PyTorch, also, with a warning, for a run whose export cannot be loaded.

    Precisions apply to PyTorch alone, since an export has its own. A requested `precision` therefore selects PyTorch;
    where an export is used, the log says that `configured_precision` is ignored. `own_process` is that of
    `nmt.load`.
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine {engine!r}: should be one of {', '.join(ENGINES)}")
    export = None
    try:
        if export := _export(runs, device, engine, precision):
            loaded = load_ctranslate2_engine(export, tokenizers, device)
            if configured_precision != "fp32":
                message = "%s: decoding.precision: %s applies to PyTorch and is ignored; the export has its own: %s"
                log.info(message, export.path, configured_precision, loaded.name)
            return loaded
    except RunError as error:  # damaged, or more than the memory holds
        if engine != "auto" or any(run.is_export() for run in runs):
            raise
        again = export_again(runs[0], export.path.name.removeprefix("ctranslate2-")) if export else ""
        log.warning("%s; translated with PyTorch%s", error, again and f"; if it is damaged, {again}")
    from nmt.decoding.torch_engine import load_torch_engine  # imports torch
    from nmt.system import devices

    engine_of_torch = load_torch_engine(runs, tokenizers, device, precision or configured_precision)
    if own_process:
        devices.configure_process()
    return engine_of_torch


def _export(runs: Sequence[RunFolder], device: str, engine: str, precision: str | None) -> RunFolder | None:
    """Choose the export for CTranslate2; None for PyTorch."""
    only_torch = "an ensemble" if len(runs) > 1 else f"--precision {precision}" if precision else ""
    for run in runs:
        if run.is_export() and (only_torch or engine == "torch"):
            what = only_torch or "PyTorch"
            raise RunError(f"{run.path}: an export, for CTranslate2; {what} needs the run that it was made from")
    if runs[0].is_export():
        return runs[0]
    if engine == "torch" or (engine == "auto" and not any(exports_of(run) for run in runs)):
        return None
    names = ", ".join(str(run.path) for run in runs)
    if engine == "ctranslate2" and only_torch:
        raise ConfigError(
            f"{only_torch} needs --engine torch; an export is one model, with the precision that it was made with: "
            "nmt export ctranslate2 --quantization TYPE"
        )
    if engine == "auto" and (reason := _reason_for_torch(only_torch, device)):
        log.info("%s: translated with PyTorch, not CTranslate2: %s", names, reason)
        return None
    if fresh := _fresh_export(runs[0]):
        if engine == "auto":
            log.info("%s: translated with CTranslate2, %s (--engine torch: with PyTorch)", names, fresh.quantization)
        return fresh.folder
    if engine == "ctranslate2":
        raise RunError(f"{names}: no fresh export for CTranslate2; make one: nmt export ctranslate2")
    log.info("%s: translated with PyTorch", names)
    return None


def _reason_for_torch(only_torch: str, device: str) -> str:
    """The reason for which `auto` cannot choose CTranslate2, or ''."""
    if only_torch:
        return f"{only_torch} needs it"
    if importlib.util.find_spec("ctranslate2") is None:
        return "it is not installed (pip install ctranslate2)"
    if device != "cpu" and (device != "auto" or import_ctranslate2().get_cuda_device_count()):
        return "on a GPU it is used only with --engine ctranslate2"
    return ""


def _fresh_export(run: RunFolder) -> Export | None:
    """The fastest export of the run's current model; logs a warning for each faster one that is stale."""
    for export in exports_of(run):
        if export.model.is_still(run.model_file):
            return export
        message = "%s is stale and not used: the run's model has changed since; %s"
        log.warning(message, export.folder.path, export_again(run, export.quantization))
    return None
