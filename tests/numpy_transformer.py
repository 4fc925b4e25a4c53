"""The paper's Transformer with numpy alone, for one pair of sentences: an independent truth for weights on pages.

Pre-norm, sinusoidal positions, ReLU, matrices shared where the file has one of them.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float64]


class NumpyTransformer:
    """After a call of `log_probs`, `attention` has the weights of each kind: a list of layers, (H, rows, columns)."""

    def __init__(self, weights: Path, num_heads: int) -> None:
        self._weights = {name: array.astype(np.float64) for name, array in load_file(weights).items()}
        self._num_heads = num_heads
        self.attention: dict[str, list[Array]] = {"encoder": [], "decoder": [], "cross": []}

    def log_probs(self, src_ids: list[int], tgt_in: list[int]) -> Array:
        """(S,), (T,) -> (T, V)"""
        self.attention = {kind: [] for kind in self.attention}
        src_table = self._weights["src_embedding.weight"]
        tgt_table = self._weights.get("tgt_embedding.weight", src_table)
        memory = self._embed(src_table, src_ids)
        for number in range(self._num_layers("encoder")):
            layer = f"encoder.{number}"
            y = self._norm(memory, f"{layer}.self_residual.norm")
            memory = memory + self._attend(f"{layer}.self_attention", y, y, "encoder")
            memory = memory + self._feed_forward(memory, layer)
        memory = self._norm(memory, "encoder_norm")
        x = self._embed(tgt_table, tgt_in)
        for number in range(self._num_layers("decoder")):
            layer = f"decoder.{number}"
            y = self._norm(x, f"{layer}.self_residual.norm")
            x = x + self._attend(f"{layer}.self_attention", y, y, "decoder")
            x = x + self._attend(
                f"{layer}.cross_attention", self._norm(x, f"{layer}.cross_residual.norm"), memory, "cross"
            )
            x = x + self._feed_forward(x, layer)
        logits = self._norm(x, "decoder_norm") @ self._weights.get("output.weight", tgt_table).T
        logits = logits + self._weights.get("output.bias", 0.0)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def _num_layers(self, side: str) -> int:
        return len({name.split(".")[1] for name in self._weights if name.startswith(f"{side}.")})

    def _embed(self, table: Array, ids: list[int]) -> Array:
        width = table.shape[1]
        angles = np.arange(len(ids))[:, None] / 10000 ** (np.arange(0, width, 2) / width)
        positions = np.empty((len(ids), width))
        positions[:, 0::2], positions[:, 1::2] = np.sin(angles), np.cos(angles)
        return table[ids] * np.sqrt(width) + positions

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]

    def _feed_forward(self, x: Array, layer: str) -> Array:
        inner = self._linear(self._norm(x, f"{layer}.feed_forward_residual.norm"), f"{layer}.feed_forward.inner")
        return self._linear(np.maximum(inner, 0), f"{layer}.feed_forward.outer")

    def _attend(self, name: str, x: Array, memory: Array, kind: str) -> Array:
        def heads(y: Array, part: str) -> Array:
            split = self._linear(y, f"{name}.{part}").reshape(len(y), self._num_heads, -1)
            return split.transpose(1, 0, 2)  # (H, positions, d)

        query, key, value = heads(x, "query"), heads(memory, "key"), heads(memory, "value")
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[2])  # (H, rows, columns)
        if kind == "decoder":
            scores[:, np.triu(np.ones(scores.shape[1:], dtype=bool), k=1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        self.attention[kind].append(weights)
        return self._linear((weights @ value).transpose(1, 0, 2).reshape(len(x), -1), f"{name}.output")
