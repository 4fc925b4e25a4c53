"""Export of a run's model as ONNX graphs: RUN/export/onnx/{encoder_model,decoder_model_merged}.onnx and tokenizer/."""

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path

from nmt.atomic import replacing
from nmt.config.inference import DecodingConfig
from nmt.data.tokenizer import load_tokenizers
from nmt.decoding.torch_engine import TorchEngine, load_model
from nmt.decoding.translator import Translator
from nmt.device import choose_device
from nmt.errors import MissingExtraError, RunError, how_to_install
from nmt.exporting.description import ExportedRun, describe, exportable, text_config_error, write_description
from nmt.exporting.onnx_graphs import write_graphs
from nmt.exporting.onnx_search import OnnxModel
from nmt.exporting.proof import check, compare, greedy_and_beam, proof_text
from nmt.models.transformer import Transformer
from nmt.runs import RunFolder

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def export_onnx(
    run: RunFolder, src: Path | None = None, ref: Path | None = None, device: str = "auto", max_lines: int | None = None
) -> ExportedRun:
    """Write the run's model to RUN/export/onnx/, if onnxruntime gives the same translations as PyTorch.

    They are compared on the text of `export_ctranslate2`, searched as nmt does. Raises `RunError` for a model that is
    no Transformer, and `ExportError` if the translations differ by more than is allowed.
    """
    config = exportable(run).inference_config()
    if config.source.type != "text":
        raise text_config_error(run, config.source.type, "nmt export onnx")
    if config.model.architecture != "transformer":
        raise RunError(
            f"{run.path}: nmt exports Transformers to ONNX, and model.architecture is {config.model.architecture}"
        )
    text = proof_text(run, src, ref, device, max_lines)
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"{package} is not installed: {how_to_install('onnx')}")
    choose_device(device)
    tokenizers = load_tokenizers(run.tokenizer)
    model = load_model(run, tokenizers)
    assert isinstance(model, Transformer)
    folder = run.exports / "onnx"

    def translate(lines: Sequence[str], decoding: DecodingConfig) -> list[str]:
        engine = TorchEngine(OnnxModel(temporary).eval(), tokenizers)
        languages = (config.data.src_lang, config.data.tgt_lang)
        return Translator(tokenizers, engine, decoding, config.data.max_length, None, languages).translate(lines)

    with replacing(folder) as temporary:
        temporary.mkdir()
        write_graphs(model, config.model.zero_start, temporary)
        shutil.copytree(run.tokenizer, temporary / "tokenizer")
        comparisons = compare(run, config, text, greedy_and_beam(config.decoding), translate)
        check(comparisons, folder, run, is_exact=True)
        special = tokenizers.tgt.special
        usage = (
            "onnxruntime.InferenceSession runs encoder_model.onnx, and then decoder_model_merged.onnx once a piece",
            f"ids are those of tokenizer/; sources end with {tokenizers.src.special.eos}, targets start with "
            f"{special.start} and end with {special.eos}; docs/exporting.md",
        )
        result = ExportedRun(str(run.path), str(folder), "onnx", comparisons, usage)
        write_description(temporary / "export.json", describe(run, "onnx"), result)
    return result
