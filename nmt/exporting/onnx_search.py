"""Exported ONNX graphs as a model that our searches accept, to check an export.

Shapes: as in models/interface.py; a row is one hypothesis of one sentence, so a cache has B * K of them.
"""

import importlib
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmt.errors import MissingExtraError, how_to_install
from nmt.exporting.onnx_graphs import DECODER, ENCODER, cache_names
from nmt.models.interface import Seq2SeqModel
from nmt.source import Source

Array = NDArray[Any]


class OnnxMemory(NamedTuple):
    """The encoder's output for B sources."""

    states: Array
    """(B, S, D)"""
    mask: Array
    """(B, S) int64"""


class OnnxState:
    """The caches of B sentences with K hypotheses each."""

    def __init__(self, memory: OnnxMemory, cache: dict[str, Array]) -> None:
        self.memory = memory  # of B * K rows
        self.cache = cache
        self.beams = 1

    def select_beams(self, beams: Tensor) -> None:
        """(B, K): replace hypothesis k of sentence b by hypothesis `beams[b, k]`."""
        sentences = torch.arange(len(beams))[:, None]
        self._select((sentences * self.beams + beams).flatten().numpy())
        self.beams = beams.shape[1]

    def select_sentences(self, sentences: Tensor) -> None:
        """(B',): keep only these sentences, in this order."""
        self._select((sentences[:, None] * self.beams + torch.arange(self.beams)).flatten().numpy())

    def _select(self, rows: Array) -> None:
        self.memory = OnnxMemory(self.memory.states[rows], self.memory.mask[rows])
        self.cache = {name: value[rows] for name, value in self.cache.items()}


class OnnxModel(Seq2SeqModel[OnnxMemory, OnnxState]):
    """The two graphs in a folder, run by onnxruntime on the CPU; it translates, and gives no attention weights."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(1))  # says on which device searches work
        try:
            runtime: Any = importlib.import_module("onnxruntime")
        except ModuleNotFoundError:
            raise MissingExtraError(f"onnxruntime is not installed: {how_to_install('onnx')}") from None
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        providers = ["CPUExecutionProvider"]
        self._encoder = runtime.InferenceSession(str(folder / ENCODER), options, providers=providers)
        self._decoder = runtime.InferenceSession(str(folder / DECODER), options, providers=providers)
        past = {one.name: one.shape for one in self._decoder.get_inputs() if one.name.startswith("past_key_values.")}
        self._names = cache_names(len(past) // 4)
        _, self._heads, _, self._width = past["past_key_values.0.decoder.key"]

    def encode(self, source: Source) -> OnnxMemory:
        mask = source.mask.numpy().astype(np.int64)
        (states,) = self._encoder.run(None, {"input_ids": source.values.numpy(), "attention_mask": mask})
        return OnnxMemory(states, mask)

    def start(self, memory: OnnxMemory, beam_size: int, max_length: int) -> OnnxState:
        empty = np.zeros((len(memory.states), self._heads, 0, self._width), np.float32)
        return OnnxState(memory, dict.fromkeys(self._names, empty))

    def step(self, tokens: Tensor, state: OnnxState) -> Tensor:
        """(B, K) -> logits (B, K, V)"""
        given = {
            "encoder_attention_mask": state.memory.mask,
            "encoder_hidden_states": state.memory.states,
            "input_ids": tokens.reshape(-1, 1).numpy(),
        }
        logits, *cache = self._decoder.run(None, given | {f"past_key_values.{n}": v for n, v in state.cache.items()})
        state.cache = dict(zip(self._names, cache, strict=True))
        rows: Array = logits[:, -1]  # (B * K, V)
        return torch.from_numpy(rows.reshape(*tokens.shape, -1))

    def forward(self, source: Source, tgt_in: Tensor) -> Tensor:
        """Logits of all positions at once: B sources, (B, T) -> (B, T, V)"""
        memory = self.encode(source)
        cache = self.start(memory, 1, 0).cache
        given = {
            "encoder_attention_mask": memory.mask,
            "encoder_hidden_states": memory.states,
            "input_ids": tgt_in.numpy(),
        }
        logits: Array = self._decoder.run(["logits"], given | {f"past_key_values.{n}": v for n, v in cache.items()})[0]
        return torch.from_numpy(logits)

    def attention_weights(self, source: Source, tgt_in: Tensor) -> NoReturn:
        raise NotImplementedError("the graphs give logits alone")

    def attention(self, source: Source, tgt_in: Tensor) -> NoReturn:
        raise NotImplementedError("the graphs give logits alone")
