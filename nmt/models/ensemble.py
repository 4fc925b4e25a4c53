"""Ensembles: several models as one, which predicts the mean of their probabilities at each step.

    P(next token | prefix, source) = (P_1 + ... + P_N) / N

Ensembles of translation models: Sutskever, Vinyals and Le 2014, "Sequence to Sequence Learning with Neural Networks".
The mean is arithmetic, as in fairseq's EnsembleModel: a token that one model finds impossible may still be chosen.

Shapes: N models, B batch (sentences), K beams, S source length, T target length, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nmt.models.interface import DecoderState, Layers, Seq2SeqModel
from nmt.models.source import Source


class EnsembleState:
    """The decoder state of every member."""

    def __init__(self, members: Sequence[DecoderState]) -> None:
        self.members = members

    def select_beams(self, beams: Tensor) -> None:
        """Apply `DecoderState.select_beams` to every member."""
        for member in self.members:
            member.select_beams(beams)

    def select_sentences(self, sentences: Tensor) -> None:
        """Apply `DecoderState.select_sentences` to every member."""
        for member in self.members:
            member.select_sentences(sentences)


class Ensemble(Seq2SeqModel[tuple[Any, ...], EnsembleState]):
    """Models of any architecture and size over the same ids; its logits are log-probabilities."""

    def __init__(self, members: Sequence[Seq2SeqModel[Any, Any]]) -> None:
        super().__init__()
        self.members = Layers(members)

    def encode(self, source: Source) -> tuple[Any, ...]:
        """The memory of each member."""
        return tuple(member.encode(source) for member in self.members)

    def forward(self, source: Source, tgt_in: Tensor) -> Tensor:
        """B sources, (B, T) -> log-probabilities (B, T, V)"""
        return _log_mean([member(source, tgt_in) for member in self.members])

    def start(self, memory: tuple[Any, ...], beam_size: int, max_length: int) -> EnsembleState:
        """Start each member from its own memory."""
        pairs = zip(self.members, memory, strict=True)
        return EnsembleState([member.start(member_memory, beam_size, max_length) for member, member_memory in pairs])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """(B, K) -> log-probabilities (B, K, V)"""
        pairs = zip(self.members, state.members, strict=True)
        return _log_mean([member.step(tokens, member_state) for member, member_state in pairs])

    def attention_weights(self, source: Source, tgt_in: Tensor) -> dict[str, Tensor]:
        """The members' attention weights; each name begins with the member's number: "0.decoder.1.cross"."""
        return {
            f"{number}.{name}": weights
            for number, member in enumerate(self.members)
            for name, weights in member.attention_weights(source, tgt_in).items()
        }

    def attention(self, source: Source, tgt_in: Tensor) -> Tensor:
        """The mean over the members: B sources, (B, T) -> (B, T, S)"""
        return torch.stack([member.attention(source, tgt_in) for member in self.members]).mean(dim=0)


def _log_mean(logits: Sequence[Tensor]) -> Tensor:
    """N logits (..., V) -> log of the mean of their softmax (..., V), computed with logsumexp."""
    log_probs = torch.stack([member_logits.float().log_softmax(dim=-1) for member_logits in logits])  # (N, ..., V)
    return log_probs.logsumexp(dim=0) - math.log(len(logits))
