"""Attention of a recurrent decoder to the source: one query for each decoder state, no heads.

Shapes: B batch, T queries, S source length, D width of the states.
"""

from typing import Literal

import torch
from torch import Tensor, nn

Score = Literal["additive", "dot", "general"]


class SourceAttention(nn.Module):
    """Weights a = softmax over the source of e(s, h), and the context c = sum of a h.

        additive    e = v . tanh(W s + U h + b)     Bahdanau et al. 2015, appendix A.1.2
        dot         e = s . h                       Luong et al. 2015, section 3.1
        general     e = s . W h                     the same

    U h + b or W h are the keys: they are computed once for each source.
    """

    def __init__(self, score: Score, d_model: int) -> None:
        super().__init__()
        self.score = score
        self.query = nn.Linear(d_model, d_model, bias=False) if score == "additive" else None
        if score == "additive":
            self.vector = nn.Linear(d_model, 1, bias=False)
        if score != "dot":
            self.key = nn.Linear(d_model, d_model, bias=score == "additive")

    def keys(self, memory: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)"""
        return memory if self.score == "dot" else self.key(memory)

    def forward(self, query: Tensor, keys: Tensor, memory: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, T, D), keys and memory (B, S, D), bias (B, 1, S) -> contexts (B, T, D), weights (B, T, S)

        A query is s, or W s of the additive score. `bias` is 0 where a position may be attended to and a low number
        elsewhere.
        """
        if self.score == "additive":
            scores = self.vector((query[:, :, None] + keys[:, None]).tanh_())[..., 0]  # from (B, T, S, D)
        else:
            scores = query.to(keys.dtype) @ keys.transpose(1, 2)  # (B, T, S)
        weights = torch.softmax(scores + bias, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        return weights.to(memory.dtype) @ memory, weights
