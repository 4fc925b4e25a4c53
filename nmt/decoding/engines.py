"""Which engine translates: PyTorch, or CTranslate2 where a run was exported for it."""

import importlib.util
import logging
from collections.abc import Sequence
from typing import Protocol

from nmt.config.inference import DecodingConfig
from nmt.ctranslate2.engine import import_ctranslate2, load_ctranslate2_engine
from nmt.ctranslate2.exports import Export, exports_of
from nmt.data.tokenizer import Tokenizers
from nmt.decoding.hypothesis import Hypothesis
from nmt.errors import ConfigError, RunError, how_to_install
from nmt.runs import RunFolder

log = logging.getLogger("nmt")

ENGINES = ("auto", "torch", "ctranslate2")


class Engine(Protocol):
    """Whatever searches: ids in, hypotheses out. Several threads may call it at once, each with its own settings."""

    @property
    def name(self) -> str:
        """What it is, for a record of results."""

    @property
    def batches_at_once(self) -> int:
        """How many batches a search had best be given together, so that no core waits."""

    def search(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """Hypotheses of each source (ids without `</s>`), best first.

        With `prefixes`, those of a source begin with its prefix, which may be empty; see `Constraints.forced`.
        """


def load_engine(
    runs: Sequence[RunFolder],
    tokenizers: Tokenizers,
    device: str,
    engine: str = "auto",
    alignments: bool = False,
    precision: str | None = None,
    usual_precision: str = "fp32",
) -> Engine:
    """The engine for a run, for an export, or for several runs as an ensemble.

    `torch` and `ctranslate2` are taken at their word, or `RunError` says what is missing. `auto` is CTranslate2 for an
    export, and for a run on a CPU with a fresh export, if CTranslate2 can do what is asked for; otherwise PyTorch.
    A precision is PyTorch's, since an export has its own: `precision`, which is asked for, is never CTranslate2's to
    ignore; that `usual_precision`, the configuration's, does not count for an export is said in a line.
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine {engine!r}: should be one of {', '.join(ENGINES)}")
    export = _export(runs, device, engine, alignments, precision)
    if export is not None:
        loaded = load_ctranslate2_engine(export, tokenizers, device)
        if usual_precision != "fp32":
            message = "%s: decoding.precision: %s is PyTorch's, and is not used; the export computes as it was made: %s"
            log.info(message, export.path, usual_precision, loaded.name)
        return loaded
    from nmt.decoding.torch_engine import load_torch_engine  # torch is loaded when it is first needed

    return load_torch_engine(runs, tokenizers, device, precision or usual_precision)


def _export(
    runs: Sequence[RunFolder], device: str, engine: str, alignments: bool, precision: str | None
) -> RunFolder | None:
    """The folder for CTranslate2, or None: PyTorch."""
    for run in runs:
        if run.is_export() and (engine == "torch" or alignments or precision or len(runs) > 1):
            what = "an ensemble" if len(runs) > 1 else "an alignment" if alignments else "PyTorch"
            what = f"--precision {precision}" if precision and what == "PyTorch" else what
            raise RunError(f"{run.path}: an export, for CTranslate2; {what} needs the run that it was made from")
    if runs[0].is_export():
        return runs[0]
    if engine == "ctranslate2":
        return _wanted_export(runs, alignments, precision)
    if engine == "torch" or not any(exports_of(run) for run in runs):
        return None
    named = ", ".join(str(run.path) for run in runs)
    if reason := _reason_for_torch(runs, device, alignments, precision):
        log.info("%s: translated with PyTorch, not CTranslate2: %s", named, reason)
        return None
    if fresh := _fresh_exports(runs[0]):
        log.info("%s: translated with CTranslate2, %s (--engine torch: with PyTorch)", named, fresh[0].quantization)
        return fresh[0].folder
    log.info("%s: translated with PyTorch", named)
    return None


def _wanted_export(runs: Sequence[RunFolder], alignments: bool, precision: str | None) -> RunFolder:
    if len(runs) > 1:
        raise ConfigError("CTranslate2 translates with one model; ensembles need --engine torch")
    if alignments:
        raise ConfigError("CTranslate2 gives no alignments; they need --engine torch")
    if precision:
        raise ConfigError(
            f"--precision {precision} is PyTorch's, and needs --engine torch; CTranslate2 computes as the export was "
            "made: nmt export ctranslate2 --quantization TYPE"
        )
    fresh = _fresh_exports(runs[0])
    if not fresh:
        raise RunError(f"{runs[0].path}: no fresh export for CTranslate2; make one: nmt export ctranslate2")
    return fresh[0].folder


def _reason_for_torch(runs: Sequence[RunFolder], device: str, alignments: bool, precision: str | None) -> str:
    """Why CTranslate2 is not for this, or ''."""
    if len(runs) > 1:
        return "that has no ensembles"
    if alignments:
        return "that has no alignments"
    if precision:
        return f"that computes as an export was made, and --precision {precision} was asked for"
    if importlib.util.find_spec("ctranslate2") is None:
        return f"that is not installed ({how_to_install('ct2')})"
    if device != "cpu" and (device != "auto" or import_ctranslate2().get_cuda_device_count()):
        return "on a GPU it is taken if it is asked for (--engine ctranslate2)"
    return ""


def _fresh_exports(run: RunFolder) -> list[Export]:
    """Those that were made of the run's model as it is now; a line of the log names each of the others."""
    fresh = []
    for export in exports_of(run):
        if export.model.is_still(run.model_file):
            fresh.append(export)
        else:
            log.warning(
                "%s is stale, and left alone: it was not made of the model that the run has now; make it again: "
                "nmt export ctranslate2 --model %s --quantization %s",
                export.folder.path,
                run.path,
                export.quantization,
            )
    return fresh
