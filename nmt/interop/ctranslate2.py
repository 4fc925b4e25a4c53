"""Export of a run's model for CTranslate2, verified, with a shortlist if wanted.

    RUN/model.safetensors -> Transformer -> TransformerSpec -> RUN/export/ctranslate2-int8/

CTranslate2's specification of a Transformer is filled part by part; `spec` and its fields are CTranslate2's names.

A shortlist has the target pieces with which each source piece may be translated. With it, CTranslate2 computes the
output's columns for the candidates of a batch alone, instead of the whole vocabulary (Mi et al. 2016, "Vocabulary
Manipulation for Neural Machine Translation"; Marian has them, too). It is a file of the export: a line for each source
piece, with its candidates after a tab. The line of the empty piece has the candidates of every batch. CTranslate2 adds
`</s>` and the pieces of a forced prefix.
"""

import dataclasses
import importlib
import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.batches.lexicon import MAX_PAIRS, links_of, model_1, sample
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import DecodingConfig
from nmt.config.reading import to_yaml
from nmt.corpora.pairs import count_pairs, empty_error, read_pairs
from nmt.decoding.ctranslate2_engine import import_ctranslate2
from nmt.decoding.translator import load
from nmt.errors import ConfigError
from nmt.interop.verification import ExportedRun, Prepared, describe, greedy_and_beam, prepare, verify
from nmt.models.attention import MultiHeadAttention
from nmt.models.transformer import FeedForward, Transformer
from nmt.runs.exports import QUANTIZATIONS
from nmt.runs.folder import RunFolder
from nmt.system.files import replacing, write_json, write_text
from nmt.tokenizers.tokenizer import Tokenizer, Tokenizers

SHORTLIST = "vmap.txt"
"""CTranslate2's name of the shortlist."""
CANDIDATES = 50
"""Maximum number of target pieces of a source piece, beside the piece itself (for names)."""
MIN_CHANCE = 0.001
"""Minimum probability of a candidate."""
FREQUENT = 100
"""Number of frequent target pieces that are candidates of every batch."""


def learn_shortlist(files: CorpusFiles, tokenizers: Tokenizers) -> str:
    """Learn a shortlist from translations, by IBM Model 1 of the pieces of a sample (`nmt.batches.lexicon`).

    The targets may be references or a model's own. Raises `DataError` as `read_pairs` does, and for empty files.
    """
    count = count_pairs([files])
    read = np.zeros(count, dtype=np.uint8)
    read[np.linspace(0, count - 1, min(count, MAX_PAIRS)).astype(np.int64)] = 1
    sides = (tokenizers.src, tokenizers.tgt)
    encoded = [
        [tokenizer.encode(tokenizer.normalize(line)) for tokenizer, line in zip(sides, pair, strict=True)]
        for pair in read_pairs(files, bytes(read))
    ]
    lengths = [np.array([len(pair[side]) for pair in encoded]) for side in (0, 1)]
    if not lengths[0] @ lengths[1]:
        raise empty_error(files)
    pairs = sample(lengths[0], lengths[1])
    src, tgt = (np.array([index for pair in pairs for index in encoded[pair][side]]) for side in (0, 1))
    src_places, tgt_places = links_of(lengths[0][pairs], lengths[1][pairs])
    size = tokenizers.tgt.vocab_size
    entries, of_links = np.unique(src[src_places] * size + tgt[tgt_places], return_inverse=True)
    given, generated = np.divmod(entries, size)
    chances, _ = model_1(of_links.astype(np.int32), given, tgt_places, tgt)
    ranked = np.lexsort((generated, -chances, given))
    by_piece = groupby(ranked[chances[ranked] >= MIN_CHANCE], key=given.__getitem__)
    likely = {int(piece): generated[[*of_piece][:CANDIDATES]].tolist() for piece, of_piece in by_piece}
    frequent = np.argsort(-np.bincount(tgt, minlength=size), kind="stable")[:FREQUENT].tolist()

    special = tokenizers.tgt.special
    src_pieces = _writable(tokenizers.src)
    tgt_pieces = {index: piece for index, piece in _writable(tokenizers.tgt).items() if index not in special}
    known = set(tgt_pieces.values())
    lines = [("", [tgt_pieces[index] for index in frequent if index in tgt_pieces])]
    for index, piece in src_pieces.items():
        candidates = [tgt_pieces[one] for one in likely.get(index, []) if one in tgt_pieces]
        lines.append((piece, [*dict.fromkeys([piece, *candidates] if piece in known else candidates)]))
    return "".join(f"{piece}\t{' '.join(candidates)}\n" for piece, candidates in lines if candidates)


def _writable(tokenizer: Tokenizer) -> dict[int, str]:
    """The pieces that fit on a line: those without spaces, tabs and line ends."""
    pieces = enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))
    return {index: piece for index, piece in pieces if piece and not set(piece) & set(" \t\r\n")}


_LOWEST_LOGIT = -1e4
"""Low enough for any model, and a number in every type, float16 included."""


def export_ctranslate2(
    run: RunFolder,
    quantization: str,
    src: Path | None = None,
    ref: Path | None = None,
    device: str = "auto",
    max_lines: int | None = None,
    shortlist: CorpusFiles | None = None,
) -> ExportedRun:
    """Write the run's model to RUN/export/ctranslate2-QUANTIZATION/, if CTranslate2 translates as PyTorch does.

    They are compared on at most `max_lines` lines of the run's validation set, or of `src` and `ref`. Raises
    `ExportError` if the translations differ too much; an earlier export is then kept. `shortlist` are translations
    from which a shortlist is learned.
    """
    prepared = prepare_ctranslate2(run, quantization, src, ref, device, max_lines)
    config, folder = prepared.config, run.exports / f"ctranslate2-{quantization}"

    def translate(lines: Sequence[str], decoding: DecodingConfig) -> list[str]:
        engine = load(temporary, device=device, decoding=decoding, engine="ctranslate2", own_process=True)
        return engine.translate(lines)

    with replacing(folder) as temporary:
        temporary.mkdir()
        write_text(temporary / "config.yaml", to_yaml(config))
        shutil.copytree(run.tokenizer, temporary / "tokenizer")
        write_model(prepared.model, prepared.tokenizers, quantization, temporary)
        if shortlist is not None:
            write_text(temporary / SHORTLIST, learn_shortlist(shortlist, prepared.tokenizers))
        usage = [
            f"nmt translate --model {folder} --input FILE",
            f'ctranslate2.Translator("{folder}") reads and writes the pieces of tokenizer/',
        ]
        unchecked = describe(run, folder, "ctranslate2", usage, (), quantization)
        write_json(temporary / "export.json", dataclasses.asdict(unchecked))  # by which `load` knows it
        is_exact, decodings = quantization == "float32" and shortlist is None, greedy_and_beam(config.decoding)
        again = remedy("ctranslate2", run, quantization)
        result = dataclasses.replace(
            unchecked, comparisons=verify(prepared, folder, decodings, translate, is_exact, again)
        )
        write_json(temporary / "export.json", dataclasses.asdict(result))
    return result


def remedy(format: str, run: RunFolder, quantization: str) -> str:
    """The end of a message about an export with too low a BLEU: the next better quantization, if there is one."""
    if quantization == "float32":
        return ""
    better = "int16" if quantization.startswith("int8") else "float32"
    return f"; try nmt export {format} --model {run.path} --quantization {better}"


def prepare_ctranslate2(
    run: RunFolder, quantization: str, src: Path | None, ref: Path | None, device: str, max_lines: int | None
) -> Prepared:
    """As `prepare`, for CTranslate2."""
    if quantization not in QUANTIZATIONS:
        raise ConfigError(f"--quantization {quantization}: should be one of {', '.join(QUANTIZATIONS)}")
    return prepare(run, "CTranslate2", import_ctranslate2, src, ref, device, max_lines)


def write_model(
    model: Transformer,
    tokenizers: Tokenizers,
    quantization: str,
    folder: Path,
    never: Sequence[int] = (),
    min_positions: int = 0,
) -> None:
    """Write the model and its vocabularies into an existing folder, for `ctranslate2.Translator`.

    The vocabularies are the tokenizers' pieces, which are unique. `never` are target ids that no search may choose, for
    programs that forbid none: their logits are lowered. `min_positions` is for programs that do not know the model's
    limit: sine waves are continued to that many positions.
    """
    spec = _transformer(model, min_positions)
    if never:
        bias = (
            np.zeros(tokenizers.tgt.vocab_size, np.float32) if model.output.bias is None else _array(model.output.bias)
        )
        bias[[*never]] = _LOWEST_LOGIT
        spec.decoder.projection.bias = bias
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
    spec.config.layer_norm_epsilon = next(iter(model.decoder)).self_residual.norm.eps
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


def _transformer(model: Transformer, min_positions: int) -> Any:
    """A `ctranslate2.specs.TransformerSpec` with the model's parameters."""
    specs, first = importlib.import_module("ctranslate2.specs"), next(iter(model.decoder))
    activations: dict[Any, str] = {torch.relu_: "RELU", F.gelu: "GELU", F.silu: "SWISH"}
    spec = specs.TransformerSpec.from_config(
        (len(model.encoder), len(model.decoder)),
        first.self_attention.num_heads,
        pre_norm=first.self_residual.pre_norm,
        activation=specs.Activation[activations[first.feed_forward.activation]],
        ffn_glu=first.feed_forward.gate is not None,
        alignment_layer=model.alignment_layer,
        alignment_heads=0,  # the mean of all
    )
    for part, embedding, positions, last_norm in (
        (spec.encoder, model.src_embedding, model.src_positions, model.encoder_norm),
        (spec.decoder, model.tgt_embedding, model.tgt_positions, model.decoder_norm),
    ):
        embeddings = part.embeddings[0] if part is spec.encoder else part.embeddings
        embeddings.weight = _array(embedding.weight)
        part.scale_embeddings = model.scale != 1  # before the positions are added
        part.position_encodings.encodings = _array(positions.extended(min_positions))  # its own sine waves differ
        if isinstance(last_norm, nn.LayerNorm):
            _norm(part.layer_norm, last_norm)
    spec.decoder.start_from_zero_embedding = model.zero_bos_embedding
    spec.decoder.projection.weight = _array(model.output.weight)
    if model.output.bias is not None:
        spec.decoder.projection.bias = _array(model.output.bias)
    for encoder_spec, encoder_layer in zip(spec.encoder.layer, model.encoder, strict=True):
        _attention(encoder_spec.self_attention, encoder_layer.self_attention, encoder_layer.self_residual.norm)
        _feed_forward(encoder_spec.ffn, encoder_layer.feed_forward, encoder_layer.feed_forward_residual.norm)
    for decoder_spec, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        _attention(decoder_spec.self_attention, layer.self_attention, layer.self_residual.norm)
        _attention(decoder_spec.attention, layer.cross_attention, layer.cross_residual.norm)
        _feed_forward(decoder_spec.ffn, layer.feed_forward, layer.feed_forward_residual.norm)
    return spec


def _attention(spec: Any, attention: MultiHeadAttention, norm: nn.LayerNorm) -> None:
    """Set self-attention, which has one map for all of its inputs, or cross-attention, which has two."""
    _norm(spec.layer_norm, norm)
    if len(spec.linear) == 2:
        _linear(spec.linear[0], attention.query, attention.key, attention.value)
    else:
        _linear(spec.linear[0], attention.query)
        _linear(spec.linear[1], attention.key, attention.value)
    _linear(spec.linear[-1], attention.output)


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
