"""The steps after a training: the comparison with its base model, the exports, and the report.

The training has succeeded, so a step that fails is a warning, which names the command that repeats it.
"""

import time

from nmt.config.training import Config, ExportFormat
from nmt.errors import NmtError
from nmt.runs.folder import RunFolder
from nmt.system.console import RESULT, log
from nmt.training.fine_tuning import Forgetting, score_after

MAX_LINES = 300
"""Lines of the validation set to verify an export with: the end of a training should not take minutes."""


def finish(config: Config, run: RunFolder, trained: bool) -> list[Forgetting]:
    """Score the test sets of a fine-tuning again, and return their scores before and after.

    If something was `trained`, also make the exports and the report that the configuration asks for.
    """
    changes = []
    if config.training.init_from is not None:
        try:
            changes = score_after(run)
        except NmtError as error:
            log.warning(f"the scores before and after are not compared: {error}; to try again: the same command")
    if trained:
        export_after_training(config, run)
        if config.evaluation.report:
            _report(config, run)
    return changes


def export_after_training(config: Config, run: RunFolder) -> None:
    """Make the exports of `export.after_training`."""
    device = "cpu" if config.training.device == "cpu" else "auto"  # CTranslate2 has no mps
    for format in config.export.after_training:
        began = time.perf_counter()
        try:
            folder = _exported(format, run, device)
        except NmtError as error:
            log.warning(f"no export to {format} was made: {error}")
        except Exception as error:  # also a bug: `nmt export` shows it with its traceback
            what = str(error) or type(error).__name__
            again = f"nmt export {format}{' --quantization float32' if format == 'ctranslate2' else ''}"
            log.warning(f"no export to {format} was made: {what}; to try again: {again} --model {run.path}")
        else:
            log.info(f"export: {folder} ({time.perf_counter() - began:.1f} s)", extra={**RESULT, "link": folder})


def _exported(format: ExportFormat, run: RunFolder, device: str) -> str:
    """Make an export and return its folder; only its own exporter is imported."""
    match format:
        case "ctranslate2":  # unquantized, so that `nmt translate` prints what the run's scores were computed from
            from nmt.interop.ctranslate2 import export_ctranslate2

            return export_ctranslate2(run, "float32", device=device, max_lines=MAX_LINES).folder
        case "argos":
            from nmt.interop.argos import export_argos

            return export_argos(run, device=device, max_lines=MAX_LINES).folder
        case "huggingface":
            from nmt.interop.huggingface import export_huggingface

            return export_huggingface(run, device=device, max_lines=MAX_LINES).folder
        case "onnx":
            from nmt.interop.onnx import export_onnx

            return export_onnx(run, device=device, max_lines=MAX_LINES).folder


def _report(config: Config, run: RunFolder) -> None:
    began = time.perf_counter()
    try:
        from nmt.insight.report_output import write_report

        page = write_report(run, config.training.device, with_data=True)
    except Exception as error:  # also a bug: `nmt report` shows it with its traceback
        again = f"nmt report --with-data --model {run.path}"
        log.warning(f"no report was made: {str(error) or type(error).__name__}; to try again: {again}")
    else:
        log.info(f"report: {page} ({time.perf_counter() - began:.1f} s)", extra={**RESULT, "link": page})
