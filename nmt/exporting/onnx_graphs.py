"""A Transformer as two ONNX graphs, the encoder and one step of the decoder, with the names of Hugging Face's Optimum.

    input_ids (B, S), attention_mask (B, S) -> last_hidden_state (B, S, D)
    input_ids (B, T), past_key_values.N.{decoder,encoder}.{key,value}, ... -> logits (B, T, V), present.N...

The past of the decoder is that of P earlier positions, 0 at first. The past of the encoder is empty at the first step,
where its keys and values are computed from `encoder_hidden_states`, and whole later. So one graph is for both, without
a branch: it computes the keys and values of the source positions that the past lacks.

Shapes: B batch, S source length, T new target positions, P past ones, H heads, d width of a head, D d_model,
V vocabulary.
"""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.models.attention import MultiHeadAttention
from nmt.models.transformer import Transformer

ENCODER, DECODER = "encoder_model.onnx", "decoder_model_merged.onnx"


def cache_names(num_layers: int) -> list[str]:
    """The names of a cache's parts, in order: `0.decoder.key`, `0.decoder.value`, `0.encoder.key`, ..."""
    return [
        f"{layer}.{side}.{part}"
        for layer in range(num_layers)
        for side in ("decoder", "encoder")
        for part in ("key", "value")
    ]


class EncoderGraph(nn.Module):
    """The encoder."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, S) ids with `</s>`, (B, S) int64, 0 for padding -> (B, S, D)"""
        model = self.model
        x = model.src_embedding(input_ids) * model.scale
        x = x + model.src_positions.table[: x.shape[1]]
        mask = (attention_mask != 0)[:, None, None, :]
        for layer in model.encoder:
            x = layer.self_residual(x, _attention_to_itself(layer.self_attention, mask))
            x = layer.feed_forward_residual(x, layer.feed_forward)
        states: Tensor = model.encoder_norm(x)
        return states


class DecoderGraph(nn.Module):
    """New positions of the decoder, after those in the cache."""

    def __init__(self, model: Transformer, zero_start: bool) -> None:
        super().__init__()
        self.model = model
        self.zero_start = zero_start

    def forward(
        self, encoder_attention_mask: Tensor, input_ids: Tensor, encoder_hidden_states: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """(B, S), (B, T), (B, S, D), cache (B, H, P, d) and (B, H, 0 or S, d) -> (B, T, V) and the new cache"""
        model = self.model
        positions = torch.arange(input_ids.shape[1]) + past[0].shape[2]  # (T,)
        x = model.tgt_embedding(input_ids) * model.scale  # (B, T, D)
        if self.zero_start:
            x = x * (positions != 0)[None, :, None]
        x = x + model.tgt_positions.table[positions]
        src_mask = (encoder_attention_mask != 0)[:, None, None, :]
        rest = encoder_hidden_states[:, past[2].shape[2] :]  # all of it, or nothing
        cache: list[Tensor] = []
        for layer, part in zip(model.decoder, zip(*[iter(past)] * 4, strict=True), strict=True):
            keys, values, src_keys, src_values = part
            x = layer.self_residual(x, _attention_with_past(layer.self_attention, keys, values, positions, cache))
            x = layer.cross_residual(
                x, _attention_to_source(layer.cross_attention, src_keys, src_values, rest, src_mask, cache)
            )
            x = layer.feed_forward_residual(x, layer.feed_forward)
        return model.output(model.decoder_norm(x)), *cache


def _attention_to_itself(attention: MultiHeadAttention, mask: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: _attend(attention, x, *attention.keys_values(x), mask)


def _attention_with_past(
    attention: MultiHeadAttention, keys: Tensor, values: Tensor, positions: Tensor, cache: list[Tensor]
) -> Callable[[Tensor], Tensor]:
    def attend(x: Tensor) -> Tensor:
        new_keys, new_values = attention.keys_values(x)
        all_keys, all_values = torch.cat([keys, new_keys], dim=2), torch.cat([values, new_values], dim=2)
        cache.extend((all_keys, all_values))
        mask = torch.arange(all_keys.shape[2])[None, :] <= positions[:, None]  # (T, P + T)
        return _attend(attention, x, all_keys, all_values, mask)

    return attend


def _attention_to_source(
    attention: MultiHeadAttention, keys: Tensor, values: Tensor, rest: Tensor, mask: Tensor, cache: list[Tensor]
) -> Callable[[Tensor], Tensor]:
    def attend(x: Tensor) -> Tensor:
        # Widths are given: with no positions, a view could not tell them.
        new_keys, new_values = (
            part(rest).unflatten(2, (attention.num_heads, keys.shape[3])).transpose(1, 2)
            for part in (attention.key, attention.value)
        )
        all_keys, all_values = torch.cat([keys, new_keys], dim=2), torch.cat([values, new_values], dim=2)
        cache.extend((all_keys, all_values))
        return _attend(attention, x, all_keys, all_values, mask)

    return attend


def _attend(attention: MultiHeadAttention, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """As `MultiHeadAttention.attend`, which chooses its kernel by the length: a graph has one for all."""
    heads = F.scaled_dot_product_attention(attention.queries(x), keys, values, mask)  # (B, H, T, d)
    merged: Tensor = attention.output(heads.transpose(1, 2).flatten(2))  # (B, T, D)
    return merged


def write_graphs(model: Transformer, zero_start: bool, folder: Path) -> None:
    """Write both graphs into a folder that exists; torch's exporter needs the packages onnx and onnxscript."""
    attention = next(iter(model.decoder)).self_attention
    heads, width = attention.num_heads, attention.query.out_features // attention.num_heads
    names = cache_names(len(model.decoder))
    # The lengths of the example all differ, and none is 0 or 1, which the exporter would take for constants.
    ids, mask, tgt = torch.zeros(2, 7, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64), torch.zeros(2, 3).long()
    past = [torch.zeros(2, heads, 5 if "decoder" in name else 4, width) for name in names]
    auto: Any = torch.export.Dim.AUTO
    rows = {0: auto, 1: auto}
    with torch.no_grad():
        encoder = EncoderGraph(model).eval()
        states = encoder(ids, mask)
        _write(
            encoder, (ids, mask), folder / ENCODER, ["input_ids", "attention_mask"], ["last_hidden_state"], (rows, rows)
        )
        _write(
            DecoderGraph(model, zero_start).eval(),
            (mask, tgt, states, past),
            folder / DECODER,
            ["encoder_attention_mask", "input_ids", "encoder_hidden_states", *(f"past_key_values.{n}" for n in names)],
            ["logits", *(f"present.{name}" for name in names)],
            (rows, rows, rows, [{0: auto, 2: auto}] * len(names)),
        )


def _write(
    graph: nn.Module,
    example: tuple[Any, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    dynamic: tuple[Any, ...],
) -> None:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # it says which packages it looked for, and has not found
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about itself
            program: Any = torch.onnx.export(
                graph, example, dynamo=True, verbose=False, input_names=inputs, output_names=outputs,
                dynamic_shapes=dynamic,
            )  # fmt: skip
            program.save(str(path))
    finally:
        logger.setLevel(level)
