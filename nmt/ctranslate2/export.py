"""Export of a run's model for CTranslate2, and the check that it translates as before.

    RUN/model.safetensors -> Transformer -> TransformerSpec -> RUN/export/ctranslate2-int8/

CTranslate2's specification of a Transformer is filled part by part; `spec` and its fields are CTranslate2's names.
"""

import dataclasses
import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from nmt.atomic import replacing, write_json, write_text
from nmt.config.file import to_yaml
from nmt.config.inference import InferenceConfig, TransformerConfig
from nmt.ctranslate2.engine import import_ctranslate2
from nmt.ctranslate2.exports import QUANTIZATIONS, ModelFile
from nmt.data.corpus import Side, sides_of
from nmt.data.tokenizer import Tokenizers, load_tokenizers
from nmt.decoding.torch_engine import load_model
from nmt.decoding.translator import load
from nmt.device import choose_device
from nmt.errors import ConfigError, DataError, ExportError, RunError
from nmt.evaluation.evaluate import TestSet, evaluate, read_test_set
from nmt.evaluation.metrics import Score, make_metrics
from nmt.models.attention import MultiHeadAttention
from nmt.models.transformer import FeedForward, Transformer
from nmt.runs import RunFolder

SAME_LINES = 0.995
"""With float32, the minimum share of lines that must be the same."""
BLEU_DIFFERENCE = 0.3
"""With any quantization, the maximum change of BLEU."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Comparison of an export's translations of a test set with PyTorch's."""

    beam_size: int
    lines: int
    same_lines: int
    torch_score: Score
    export_score: Score

    def is_good(self, quantization: str) -> bool:
        """Whether the export, with this quantization, is kept."""
        if quantization == "float32" and self.same_lines < SAME_LINES * self.lines:
            return False
        return abs(self.export_score.value - self.torch_score.value) <= BLEU_DIFFERENCE


@dataclasses.dataclass(frozen=True)
class ExportedRun:
    """A written export and its comparisons; its export.json also holds the model's hash."""

    run: str
    folder: str
    quantization: str
    comparisons: list[Comparison]


def export_ctranslate2(
    run: RunFolder, quantization: str, src: Path | None = None, ref: Path | None = None, device: str = "auto"
) -> ExportedRun:
    """Write the run's model to RUN/export/ctranslate2-QUANTIZATION/, if CTranslate2 translates as PyTorch does.

    They are compared on the run's validation set, or on `src` and `ref`. Raises `ExportError` if the translations
    differ by more than is allowed; an earlier export is kept then.
    """
    if quantization not in QUANTIZATIONS:
        raise ConfigError(f"--quantization {quantization}: should be one of {', '.join(QUANTIZATIONS)}")
    if run.is_export():
        raise RunError(f"{run.path}: is an export; name the run that it was made from")
    config = run.inference_config()
    if config.source.type != "text":
        raise ConfigError(
            f"{run.path}: CTranslate2 has no models that read {config.source.type}; PyTorch translates it"
        )
    if config.model.architecture != "transformer":
        raise RunError(
            f"{run.path}: CTranslate2 has no models with model.architecture: {config.model.architecture}; "
            f"translate with PyTorch (nmt translate --engine torch)"
        )
    test_set = _test_set(run, src, ref)
    import_ctranslate2()
    choose_device(device)  # before anything is written
    tokenizers = load_tokenizers(run.tokenizer)
    model = load_model(run, tokenizers)
    assert isinstance(model, Transformer)
    model_file = ModelFile.of(run.model_file)
    folder = run.exports / f"ctranslate2-{quantization}"
    with replacing(folder) as temporary:
        temporary.mkdir()
        write_text(temporary / "config.yaml", to_yaml(config))
        shutil.copytree(run.tokenizer, temporary / "tokenizer")
        write_model(model, config.model, tokenizers, quantization, temporary)
        description = {"quantization": quantization, "model": dataclasses.asdict(model_file), "has_alignments": True}
        write_json(temporary / "export.json", description)
        comparisons = _compare(run, RunFolder(temporary), config, test_set, device)
        bad = [comparison for comparison in comparisons if not comparison.is_good(quantization)]
        if bad:
            end = "" if quantization == "float32" else "; float32 changes no weight"
            raise ExportError(f"{folder}: not kept; it translates differently from {run.path}: {_listed(bad)}{end}")
        result = ExportedRun(str(run.path), str(folder), quantization, comparisons)
        write_json(temporary / "export.json", {**description, **dataclasses.asdict(result)})
    return result


def _test_set(run: RunFolder, src: Path | None, ref: Path | None) -> TestSet:
    """The text of `src` and `ref`, or the run's validation set."""
    if bool(src) != bool(ref):
        raise ConfigError("--src and --ref go together; with neither, the run's validation set is translated")
    if src is None or ref is None:
        sides = sides_of(run.config("give --src and --ref").data.validation)
    else:
        sides = Side(src), Side(ref)
    try:
        return read_test_set(sides[0], [sides[1]])
    except DataError as error:
        raise DataError(
            f"{error}; an export is compared on the run's validation set, or on other text: --src FILE --ref FILE"
        ) from None


def _compare(
    run: RunFolder, export: RunFolder, config: InferenceConfig, test_set: TestSet, device: str
) -> list[Comparison]:
    """Compare with PyTorch in fp32: greedy search, and beam search with the run's beam size, or 5 if that is 1."""
    metrics = make_metrics(("bleu",), config.data.tgt_lang, run.evaluation_config().bleu_tokenizer)
    comparisons = []
    for beam_size in (1, config.decoding.beam_size if config.decoding.beam_size > 1 else 5):
        decoding = config.decoding.model_copy(update={"beam_size": beam_size, "precision": "fp32"})
        ours, theirs = (
            evaluate(
                load(folder.path, device=device, decoding=decoding, engine=engine, own_process=True), test_set, metrics
            )
            for folder, engine in ((run, "torch"), (export, "ctranslate2"))
        )
        same = sum(one == other for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True))
        comparisons.append(
            Comparison(beam_size, len(ours.hypotheses), same, ours.scores["bleu"], theirs.scores["bleu"])
        )
    return comparisons


def _listed(comparisons: Sequence[Comparison]) -> str:
    return "; ".join(
        f"beam {one.beam_size}: {one.same_lines:,} of {one.lines:,} lines are the same, BLEU "
        f"{one.export_score.value:.2f} instead of {one.torch_score.value:.2f}"
        for one in comparisons
    )


def write_model(
    model: Transformer, config: TransformerConfig, tokenizers: Tokenizers, quantization: str, folder: Path
) -> None:
    """Write the model and its vocabularies into a folder that exists, as `ctranslate2.Translator` reads them.

    The vocabularies are the tokenizers' pieces. They are unique, in word lists as in SentencePiece models.
    """
    spec = _transformer(model, config)
    for tokenizer, register in (
        (tokenizers.src, spec.register_source_vocabulary),
        (tokenizers.tgt, spec.register_target_vocabulary),
    ):
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        assert len(set(pieces)) == len(pieces)
        register(pieces)
    special = tokenizers.tgt.special
    start, eos, unk = tokenizers.tgt.pieces([special.start, special.eos, special.unk])
    assert tokenizers.src.pieces([tokenizers.src.special.eos]) == [eos]  # CTranslate2 has one </s> for both sides
    spec.config.bos_token = spec.config.decoder_start_token = start
    spec.config.eos_token, spec.config.unk_token = eos, unk
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


def _transformer(model: Transformer, config: TransformerConfig) -> Any:
    """A `ctranslate2.specs.TransformerSpec` with the model's parameters."""
    specs = importlib.import_module("ctranslate2.specs")
    swish = specs.Activation.SWISH
    activations = {"relu": specs.Activation.RELU, "gelu": specs.Activation.GELU, "swish": swish, "swiglu": swish}
    spec = specs.TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=activations[config.activation],
        ffn_glu=config.activation == "swiglu",
        alignment_layer=model.alignment_layer,
        alignment_heads=0,  # the mean of all
    )
    for part, embedding, positions, last_norm in (
        (spec.encoder, model.src_embedding, model.src_positions, model.encoder_norm),
        (spec.decoder, model.tgt_embedding, model.tgt_positions, model.decoder_norm),
    ):
        embeddings = part.embeddings[0] if part is spec.encoder else part.embeddings
        embeddings.weight = _array(embedding.weight)
        part.scale_embeddings = config.scale_embeddings  # by the root of d_model, before the positions are added
        part.position_encodings.encodings = _array(positions.table)  # CTranslate2's own sinusoids differ
        if isinstance(last_norm, nn.LayerNorm):
            _norm(part.layer_norm, last_norm)
    spec.decoder.start_from_zero_embedding = config.zero_start
    spec.decoder.projection.weight = _array(model.output.weight)
    if config.output_bias:
        spec.decoder.projection.bias = _array(model.output.bias)
    for encoder_spec, encoder_layer in zip(spec.encoder.layer, model.encoder, strict=True):
        _self_attention(encoder_spec.self_attention, encoder_layer.self_attention, encoder_layer.self_residual.norm)
        _feed_forward(encoder_spec.ffn, encoder_layer.feed_forward, encoder_layer.feed_forward_residual.norm)
    for decoder_spec, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        _self_attention(decoder_spec.self_attention, layer.self_attention, layer.self_residual.norm)
        _cross_attention(decoder_spec.attention, layer.cross_attention, layer.cross_residual.norm)
        _feed_forward(decoder_spec.ffn, layer.feed_forward, layer.feed_forward_residual.norm)
    return spec


def _self_attention(spec: Any, attention: MultiHeadAttention, norm: nn.LayerNorm) -> None:
    _norm(spec.layer_norm, norm)
    _linear(spec.linear[0], attention.query, attention.key, attention.value)
    _linear(spec.linear[1], attention.output)


def _cross_attention(spec: Any, attention: MultiHeadAttention, norm: nn.LayerNorm) -> None:
    _norm(spec.layer_norm, norm)
    _linear(spec.linear[0], attention.query)
    _linear(spec.linear[1], attention.key, attention.value)
    _linear(spec.linear[2], attention.output)


def _feed_forward(spec: Any, feed_forward: FeedForward, norm: nn.LayerNorm) -> None:
    _norm(spec.layer_norm, norm)
    if feed_forward.gate is None:
        _linear(spec.linear_0, feed_forward.inner)
    else:
        _linear(spec.linear_0, feed_forward.gate)
        _linear(spec.linear_0_noact, feed_forward.inner)
    _linear(spec.linear_1, feed_forward.outer)


def _norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _linear(spec: Any, *linears: nn.Linear) -> None:
    """Set a linear map, or the concatenation of several with the same input."""
    spec.weight = np.concatenate([_array(linear.weight) for linear in linears])
    spec.bias = np.concatenate([_array(linear.bias) for linear in linears])


def _array(parameter: Tensor) -> Any:
    """A copy: CTranslate2 quantizes in place."""
    return parameter.detach().numpy().copy()
