"""Sampling: each token is drawn at random from the model's distribution, until `</s>`.

Shapes: B draws still being made, V vocabulary, P length of the longest output.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.decoding.beam_search import Candidates, Prefixes, greedy_search
from nmt.decoding.constraints import Constraints
from nmt.decoding.hypothesis import EncodedSource, Hypothesis, Sampling
from nmt.models.interface import M, S, Seq2SeqModel
from nmt.models.source import Source


def sampled(
    model: Seq2SeqModel[M, S],
    source: Source,
    constraints: Constraints,
    length_penalty: float,
    sampling: Sampling,
    uniforms: NDArray[np.float64],
) -> list[Hypothesis]:
    """One draw for each row of the batch. `uniforms` are (B, P), a random number in [0, 1) for each token.

    The log-probabilities of a hypothesis are those of any search, before temperature, top-k and top-p.
    """

    def drawn(prefixes: Prefixes, logits: Tensor) -> Candidates:
        log_probs = prefixes.constraints.allowed_log_probs(logits, prefixes.tokens)[:, 0]  # (B, V)
        numbers = torch.as_tensor(uniforms[prefixes.sentences.cpu().numpy(), prefixes.tokens.shape[2]])  # (B,)
        tokens = drawn_tokens(log_probs, numbers, sampling)[:, None]  # (B, 1)
        return Candidates(prefixes.log_probs + log_probs.gather(1, tokens), torch.zeros_like(tokens), tokens)

    return [hypothesis for (hypothesis,) in greedy_search(model, source, constraints, length_penalty, drawn)]


def drawn_tokens(log_probs: Tensor, uniforms: Tensor, sampling: Sampling) -> Tensor:
    """(B, V) log-probabilities and (B,) numbers in [0, 1) -> (B,) tokens, by inverting the distribution function.

    One number decides a token, in the order of the ids, so that rounding, which differs between batches, changes a draw
    only where the number lies within rounding of the border between two tokens.
    """
    wide = torch.float32 if log_probs.device.type == "mps" else torch.float64  # which MPS lacks
    probabilities = truncated(log_probs, sampling).to(wide)
    borders = probabilities.cumsum(dim=1)  # (B, V)
    wanted = uniforms.to(device=borders.device, dtype=wide)[:, None] * borders[:, -1:]
    index = torch.searchsorted(borders, wanted, right=True)  # (B, 1), the first border above the number
    last = (probabilities > 0).to(torch.uint8).flip(1).argmax(dim=1, keepdim=True)  # from the end; for number = sum
    return index.minimum(log_probs.shape[1] - 1 - last)[:, 0]


def truncated(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """(B, V) probabilities after temperature, top-k and top-p, in this order; they sum to at most 1."""
    probabilities = (log_probs / sampling.temperature).softmax(dim=1)
    if 0 < sampling.top_k < probabilities.shape[1]:
        least = probabilities.topk(sampling.top_k, dim=1).values[:, -1:]  # (B, 1); ties with it remain
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    if sampling.top_p < 1:
        ordered, ids = probabilities.sort(dim=1, descending=True, stable=True)
        before = ordered.cumsum(dim=1) - ordered  # sum of the more probable tokens
        ordered = ordered.masked_fill(before >= sampling.top_p * ordered.sum(dim=1, keepdim=True), 0.0)
        probabilities = torch.zeros_like(probabilities).scatter(1, ids, ordered)
    return probabilities


def random_numbers(sources: Sequence[EncodedSource], sampling: Sampling, length: int) -> NDArray[np.float64]:
    """(B * count, P) numbers in [0, 1): the draws of the first source, then of the second, and so on."""
    rows = []
    for source in sources:
        content = np.ascontiguousarray(source)
        digest = hashlib.sha256(f"{content.dtype} {content.shape} ".encode() + content.tobytes()).digest()
        own = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
        rows += [
            np.random.default_rng([sampling.seed, number, *own]).random(length) for number in range(sampling.count)
        ]
    return np.stack(rows)
