"""All that training and decoding may know of a model.

Shapes: B batch (sentences), K beams (1 in greedy search), S source length, T target length, V vocabulary.
"""

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor, nn


class DecoderState(Protocol):
    """What a model remembers between the steps of a search: B sentences with K hypotheses each."""

    def select_beams(self, beams: Tensor) -> None:
        """Hypothesis k of sentence b goes on from what was hypothesis `beams[b, k]` of it; `beams` is (B, K)."""

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep only these sentences, in this order; `sentences` is (B',) int64, B' <= B."""


class Seq2SeqModel(nn.Module, ABC):
    """A model of P(target | source) over ids."""

    @abstractmethod
    def forward(self, src_ids: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Logits of every next token, all prefixes at once (training, scoring).

        (B, S) int64, (B, S) bool with True = may attend, (B, T) int64 -> (B, T, V).
        Targets are padded on the right; what stands at padded positions of the result is undefined.
        """

    @abstractmethod
    def start(self, src_ids: Tensor, src_mask: Tensor, beam_size: int, max_length: int) -> DecoderState:
        """Read the sources and be ready for at most `max_length` steps of K = `beam_size` hypotheses each."""

    @abstractmethod
    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed each hypothesis its latest token: (B, K) int64 -> logits of the next one, (B, K, V).

        Changes `state`. The logits equal those of `forward` on the whole prefix.
        """

    @abstractmethod
    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters by part; shared ones are counted once."""
