"""`nmt export`."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from nmt.cli.options import DeviceOption, JsonOption, RunOption, grouped, show_result
from nmt.config.corpus import CorpusFiles
from nmt.runs.folder import open_run
from nmt.system.console import styled

if TYPE_CHECKING:  # imported when the command runs
    from rich.text import Text

    from nmt.interop.verification import ExportedRun


QuantizationOption = Annotated[str, Option(metavar="TYPE", help="Format of the weights: float32, int8, float16, ...")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
    """The options that all exports share."""

    model: RunOption = None
    src: Annotated[Path | None, Option(metavar="FILE", help="Text to verify with. Default: the validation set.")] = None
    ref: Annotated[Path | None, Option(metavar="FILE", help="References of --src.")] = None
    device: DeviceOption = None
    as_json: JsonOption = False

    def run(self, export: Callable[..., "ExportedRun"], **more: object) -> None:
        """Export the run, and print the verification."""
        result = export(open_run(self.model), src=self.src, ref=self.ref, device=self.device or "auto", **more)
        show_result(self.as_json, result, _lines(result), link=result.folder)


def _lines(result: "ExportedRun") -> "Iterator[str | Text]":
    first = result.comparisons[0]
    yield f"{result.folder}: {first.lines:,} lines, translated with PyTorch and with the export"
    for one in result.comparisons:
        search = f"beam {one.beam_size}" if one.beam_size > 1 else "greedy"
        scores = f"BLEU {one.torch_score.value:.2f} and {one.export_score.value:.2f}"
        yield f"  {search:7} {one.same_lines / one.lines:6.1%} the same, {scores}"
    yield styled(f"  {first.torch_score.signature}", "dim")
    yield from result.notes
    yield styled("to use it:", "bold")
    yield from (f"  {line}" for line in result.usage)


@grouped
def export_ctranslate2(
    quantization: QuantizationOption = "int8",
    shortlist: Annotated[
        tuple[Path, Path] | None, Option(metavar="SRC TGT", help="Text to build a shortlist from.")
    ] = None,
    *,
    options: _Options,
) -> None:
    """Export a run's model to CTranslate2, and verify its translations against PyTorch.

    The folder of the export can be copied to another machine, and translates there without PyTorch.
    """
    from nmt.interop.ctranslate2 import export_ctranslate2 as export

    files = None if shortlist is None else CorpusFiles(src=shortlist[0], tgt=shortlist[1])
    options.run(export, quantization=quantization, shortlist=files)


@grouped
def export_argos(quantization: QuantizationOption = "int8", *, options: _Options) -> None:
    """Export a run's model as a package for Argos Translate and LibreTranslate, and verify its translations.

    The verification uses the search of Argos Translate, and compares with PyTorch.
    """
    from nmt.interop.argos import export_argos as export

    options.run(export, quantization=quantization)


@grouped
def export_huggingface(
    license: Annotated[
        str | None, Option(metavar="ID", help="Licence for the model card. Default: the base model's.")
    ] = None,
    *,
    options: _Options,
) -> None:
    """Export a run's model as a Hugging Face MarianMT model, and verify its translations with transformers.

    For models with model.preset: marian, and imported ones.
    """
    from nmt.interop.huggingface import export_huggingface as export

    options.run(export, license=license)


@grouped
def export_onnx(*, options: _Options) -> None:
    """Export a run's model to ONNX, and verify its translations with onnxruntime.

    There are two graphs: the encoder, and the decoder with its cache.
    """
    from nmt.interop.onnx import export_onnx as export

    options.run(export)
