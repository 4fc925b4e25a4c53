"""Several models as one: at each step the mean of their probabilities.

    P(next token | prefix, source) = (P_1 + ... + P_N) / N

Ensembles of translation models: Sutskever, Vinyals and Le 2014, "Sequence to Sequence Learning with Neural Networks".
The mean is the arithmetic one, as in fairseq's EnsembleModel: what one model finds impossible may still be chosen.

Shapes: N models, B batch (sentences), K beams, S source length, T target length, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nmt.models.interface import DecoderState, Seq2SeqModel
from nmt.source import Source


class EnsembleState:
    """What each of the models remembers."""

    def __init__(self, members: Sequence[DecoderState]) -> None:
        self.members = members

    def select_beams(self, beams: Tensor) -> None:
        """(B, K): hypothesis k of sentence b extends hypothesis `beams[b, k]`, in every model."""
        for member in self.members:
            member.select_beams(beams)

    def select_sentences(self, sentences: Tensor) -> None:
        """(B',): keep these sentences, in every model."""
        for member in self.members:
            member.select_sentences(sentences)


class Ensemble(Seq2SeqModel[tuple[Any, ...], EnsembleState]):
    """Models of any kind and size over the same ids.

    Its logits are log-probabilities: the softmax of these is the probabilities themselves.
    """

    def __init__(self, members: Sequence[Seq2SeqModel[Any, Any]]) -> None:
        super().__init__()
        self.members = tuple(members)
        self._modules_of_members = nn.ModuleList(members)  # moves them to a device and into a mode with the ensemble

    def encode(self, source: Source) -> tuple[Any, ...]:
        """The memory of each member."""
        return tuple(member.encode(source) for member in self.members)

    def forward(self, source: Source, tgt_in: Tensor) -> Tensor:
        """B sources, (B, T) -> log-probabilities (B, T, V)"""
        return _log_mean([member(source, tgt_in) for member in self.members])

    def start(self, memory: tuple[Any, ...], beam_size: int, max_length: int) -> EnsembleState:
        """Every member starts from its own memory."""
        pairs = zip(self.members, memory, strict=True)
        return EnsembleState([member.start(of_member, beam_size, max_length) for member, of_member in pairs])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """(B, K) -> log-probabilities (B, K, V)"""
        pairs = zip(self.members, state.members, strict=True)
        return _log_mean([member.step(tokens, of_member) for member, of_member in pairs])

    def attention_weights(self, source: Source, tgt_in: Tensor) -> dict[str, Tensor]:
        """The members' weights, each name after its member's number: "0.decoder.1.cross"."""
        return {
            f"{number}.{name}": weights
            for number, member in enumerate(self.members)
            for name, weights in member.attention_weights(source, tgt_in).items()
        }

    def attention(self, source: Source, tgt_in: Tensor) -> Tensor:
        """The mean of the members', however many layers each has: B sources, (B, T) -> (B, T, S)"""
        return torch.stack([member.attention(source, tgt_in) for member in self.members]).mean(dim=0)


def _log_mean(logits: Sequence[Tensor]) -> Tensor:
    """N logits (..., V) -> log of the mean of their softmax (..., V), without leaving the logarithms."""
    log_probs = torch.stack([of_one.float().log_softmax(dim=-1) for of_one in logits])  # (N, ..., V)
    return log_probs.logsumexp(dim=0) - math.log(len(logits))
