"""What follows a training: the comparison with its base model, and the exports of `export.after_training`."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from nmt.config.training import Config, ExportFormat
from nmt.errors import NmtError
from nmt.interop.argos import export_argos
from nmt.interop.ctranslate2 import export_ctranslate2
from nmt.interop.huggingface import export_huggingface
from nmt.interop.onnx import export_onnx
from nmt.interop.verification import ExportedRun
from nmt.runs.folder import RunFolder
from nmt.system.console import log
from nmt.training.fine_tuning import Forgetting, score_after

MAX_LINES = 300
"""Of the validation set, on which each export is compared: a training's end should not take minutes."""


def finish(config: Config, run: RunFolder, trained: bool) -> list[Forgetting]:
    """Score the test sets of a fine-tuning again, and make the exports; return the scores before and after.

    A failure is a warning: the training has succeeded.
    """
    changes = []
    if config.training.init_from is not None:
        try:
            changes = score_after(run)
        except NmtError as error:
            log.warning(f"the scores before and after are not compared: {error}; to try again: the same command")
    if trained:
        export_after_training(run, config)
    return changes


def export_after_training(run: RunFolder, config: Config) -> None:
    """Make the exports that a configuration wants; a failed one is a warning."""
    device = "cpu" if config.training.device == "cpu" else "auto"  # CTranslate2 knows no mps
    export: Mapping[ExportFormat, Callable[..., ExportedRun]] = {
        "argos": export_argos, "huggingface": export_huggingface, "onnx": export_onnx,
        # What `nmt translate` prints is then what the run's scores were.
        "ctranslate2": partial(export_ctranslate2, quantization="float32"),
    }  # fmt: skip
    for format in config.export.after_training:
        began = time.perf_counter()
        try:
            folder = export[format](run, device=device, max_lines=MAX_LINES).folder
        except NmtError as error:
            log.warning(f"no export to {format} was made: {error}")
        except Exception as error:  # also a bug: `nmt export` shows it with its traceback
            what = str(error) or type(error).__name__
            again = f"nmt export {format}{' --quantization float32' if format == 'ctranslate2' else ''}"
            log.warning(f"no export to {format} was made: {what}; to try again: {again} --model {run.path}")
        else:
            log.info(f"export: {folder} ({time.perf_counter() - began:.1f} s)")
