"""The interfaces of a model: searches use only Seq2SeqModel, training only TrainableModel.

Shapes: B batch (sentences), K beams (1 in greedy search), S source length, T target length, H heads, D width,
V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn

from nmt.config.section import ModelPart
from nmt.source import Source


class DecoderState(Protocol):
    """A model's state between the steps of a search: B sentences with K hypotheses each, 1 at first."""

    def select_beams(self, beams: Tensor) -> None:
        """Replace hypothesis k of sentence b by hypothesis `beams[b, k]`; `beams`, (B, K), sets the new K."""

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep only these sentences, in this order; `sentences` is (B',) int64, B' <= B."""


M = TypeVar("M")
"""The type of a model's memory, the encoded sources."""
S = TypeVar("S", bound=DecoderState)
Backend = str | Callable[..., Any]
"""Of torch.compile: "inductor", or a function that compiles a graph."""


class Seq2SeqModel(nn.Module, ABC, Generic[M, S]):
    """A model of P(target | source) over target ids."""

    @abstractmethod
    def encode(self, source: Source) -> M:
        """Encode the sources."""

    @abstractmethod
    def forward(self, source: Source, tgt_in: Tensor) -> Tensor:
        """Logits of the next token after every prefix: B sources, (B, T) int64 -> (B, T, V).

        Targets are padded on the right; the logits at padded positions are undefined.
        """

    @abstractmethod
    def start(self, memory: M, beam_size: int, max_length: int) -> S:
        """The state before the first of at most `max_length` steps, with at most `beam_size` hypotheses a source."""

    @abstractmethod
    def step(self, tokens: Tensor, state: S) -> Tensor:
        """Feed each hypothesis its latest token: (B, K) int64 -> logits of the next one, (B, K, V).

        Changes `state`. The logits equal those of `forward` on the whole prefix; the caller may overwrite them.
        At the first step every prefix is the start id alone, and K is 1.
        """

    @abstractmethod
    def attention_weights(self, source: Source, tgt_in: Tensor) -> dict[str, Tensor]:
        """The attention weights of every layer and head, by name; the arguments are those of `forward`.

        "encoder.0.self" is (B, H, S, S), "decoder.0.self" (B, H, T, T) and "decoder.0.cross" (B, H, T, S), where a
        layer has them. Rows sum to 1 over the positions that may be attended to.
        """

    @abstractmethod
    def attention(self, source: Source, tgt_in: Tensor) -> Tensor:
        """The cross-attention that aligns words: the arguments of `forward` -> (B, T, S)."""


class TrainableModel(Seq2SeqModel[M, S]):
    """A model whose last operation is a linear map, so that the loss computes logits and their gradients in chunks."""

    output: nn.Linear
    """(..., D) -> logits (..., V), with or without a bias."""

    @abstractmethod
    def embed_sources(self, source: Source) -> Source:
        """The same sources as vectors, which `encode` and all that has its arguments accept: (B, S) -> (B, S, D).

        What follows, such as positions, is added when they are encoded. A gradient with respect to them says what the
        model makes of each source position.
        """

    @abstractmethod
    def states(self, source: Source, tgt_in: Tensor) -> Tensor:
        """The decoder's states, the input of `output`: the arguments of `forward` -> (B, T, D)."""

    def forward(self, source: Source, tgt_in: Tensor) -> Tensor:
        """B sources, (B, T) -> logits (B, T, V)"""
        logits: Tensor = self.output(self.states(source, tgt_in))
        return logits

    def compile_layers(self, backend: Backend) -> None:
        """Compile the layers with a backend of torch.compile, for batches of any shape; none by default."""

    def padding_rows(self, src_pad: int, tgt_pad: int) -> list[tuple[Tensor, int]]:
        """The rows of embeddings and output, with its bias, that belong to `<pad>` and may not be trained; mostly none.

        In a new model the rows of matrices are then set to zero.
        """
        return []

    @abstractmethod
    def part_of(self, name: str) -> ModelPart:
        """The part of the model that a parameter is in, by its name; a shared one has several names, and parts."""

    def parameter_counts(self) -> dict[str, int]:
        """The number of parameters in embeddings (with the output), encoder and decoder; shared ones count once."""
        counts = {"embeddings": 0, "encoder": 0, "decoder": 0}
        for name, parameter in self.named_parameters():  # names shared parameters once
            part = self.part_of(name)
            counts["embeddings" if part == "output" else part] += parameter.numel()
        return counts
