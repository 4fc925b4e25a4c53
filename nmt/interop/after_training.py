"""The exports that follow a training: `export.after_training`."""

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

MAX_LINES = 300
"""Of the validation set, on which each export is compared: a training's end should not take minutes."""


def export_after_training(run: RunFolder, config: Config) -> None:
    """Make the exports that a configuration wants; the training has succeeded, so a failure is a line."""
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
