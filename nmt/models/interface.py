"""All that decoding and training may know of a model: the searches Seq2SeqModel, training TrainableModel.

Shapes: B batch (sentences), K beams (1 in greedy search), S source length, T target length, H heads, D width,
V vocabulary.
"""

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from nmt.source import Source


class DecoderState(Protocol):
    """What a model remembers between the steps of a search: B sentences with K hypotheses each, 1 at first."""

    def select_beams(self, beams: Tensor) -> None:
        """Hypothesis k of sentence b extends what was hypothesis `beams[b, k]` of it.

        `beams` is (B, K): from now on there are K of each sentence.
        """

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep only these sentences, in this order; `sentences` is (B',) int64, B' <= B."""


M = TypeVar("M")
"""What a model makes of the sources, its memory."""
S = TypeVar("S", bound=DecoderState)


class Seq2SeqModel(nn.Module, ABC, Generic[M, S]):
    """A model of P(target | source) over target ids."""

    @abstractmethod
    def encode(self, source: Source) -> M:
        """Read the sources."""

    @abstractmethod
    def forward(self, source: Source, tgt_in: Tensor) -> Tensor:
        """Logits of every next token, for all prefixes at once: B sources, (B, T) int64 -> (B, T, V).

        Targets are padded on the right; what stands at padded positions of the result is undefined.
        """

    @abstractmethod
    def start(self, memory: M, beam_size: int, max_length: int) -> S:
        """Be ready for at most `max_length` steps of at most `beam_size` hypotheses of each source in `memory`."""

    @abstractmethod
    def step(self, tokens: Tensor, state: S) -> Tensor:
        """Feed each hypothesis its latest token: (B, K) int64 -> logits of the next one, (B, K, V).

        Changes `state`. The logits equal those of `forward` on the whole prefix; they are the caller's to overwrite.
        At the first step all prefixes are the same, the start id, and K is 1.
        """

    @abstractmethod
    def attention_weights(self, source: Source, tgt_in: Tensor) -> dict[str, Tensor]:
        """What every layer and head attends to, by name; `forward`'s arguments.

        "encoder.0.self" is (B, H, S, S), "decoder.0.self" (B, H, T, T) and "decoder.0.cross" (B, H, T, S), for layers
        that have them. Rows sum to 1 over the positions that may be attended to.
        """

    def attention(self, source: Source, tgt_in: Tensor) -> Tensor:
        """How much each target position looks at each source position: `forward`'s arguments -> (B, T, S).

        The mean of all layers' and heads' cross-attention: no single layer is more often right about which word comes
        from which (scripts/README.md).
        """
        weights = self.attention_weights(source, tgt_in)
        cross = [of_layer.mean(dim=1) for name, of_layer in weights.items() if name.endswith(".cross")]  # (B, T, S)
        return torch.stack(cross).mean(dim=0)


class TrainableModel(Seq2SeqModel[M, S]):
    """A model whose logits are one linear map, so that the loss can make them, and their gradient, in chunks."""

    output: nn.Linear
    """(..., D) -> logits (..., V), with or without a bias."""

    @abstractmethod
    def states(self, source: Source, tgt_in: Tensor) -> Tensor:
        """What `output` makes logits of: `forward`'s arguments -> (B, T, D)."""

    def forward(self, source: Source, tgt_in: Tensor) -> Tensor:
        """B sources, (B, T) -> logits (B, T, V)"""
        logits: Tensor = self.output(self.states(source, tgt_in))
        return logits

    @abstractmethod
    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters by part; shared ones are counted once."""
