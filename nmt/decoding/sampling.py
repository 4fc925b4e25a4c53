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


def sample_batch(
    model: Seq2SeqModel[M, S],
    source: Source,
    constraints: Constraints,
    length_penalty: float,
    sampling: Sampling,
    uniforms: NDArray[np.float64],
) -> list[Hypothesis]:
    """Draw a hypothesis for each row of the batch. `uniforms` (B, P) has a random number in [0, 1) for each token.

    The log-probabilities of a hypothesis are the model's, as in every search: before temperature, top-k and top-p.
    """

    def draw(prefixes: Prefixes, logits: Tensor) -> Candidates:
        log_probs = prefixes.constraints.allowed_log_probs(logits, prefixes.tokens)[:, 0]  # (B, V)
        numbers = torch.as_tensor(uniforms[prefixes.sentences.cpu().numpy(), prefixes.tokens.shape[2]])  # (B,)
        tokens = draw_tokens(log_probs, numbers, sampling)[:, None]  # (B, 1)
        return Candidates(prefixes.log_probs + log_probs.gather(1, tokens), torch.zeros_like(tokens), tokens)

    return [hypothesis for (hypothesis,) in greedy_search(model, source, constraints, length_penalty, draw)]


def draw_tokens(log_probs: Tensor, uniforms: Tensor, sampling: Sampling) -> Tensor:
    """(B, V) log-probabilities and (B,) numbers in [0, 1) -> (B,) tokens, by inverting the cumulative distribution.

    A token is decided by a single number, with tokens in the order of their ids. Rounding differs between batches, so
    it changes a draw only where the number lies within rounding of the border between two tokens.
    """
    wide = torch.float32 if log_probs.device.type == "mps" else torch.float64  # MPS has no float64
    probabilities = truncated_distribution(log_probs, sampling).to(wide)
    borders = probabilities.cumsum(dim=1)  # (B, V)
    targets = uniforms.to(device=borders.device, dtype=wide)[:, None] * borders[:, -1:]
    index = torch.searchsorted(borders, targets, right=True)  # (B, 1): the first border above the target
    last = (probabilities > 0).to(torch.uint8).flip(1).argmax(dim=1, keepdim=True)  # from the end
    # A target equal to the sum of all is above every border: take the last possible token.
    return index.minimum(log_probs.shape[1] - 1 - last)[:, 0]


def truncated_distribution(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """(B, V) probabilities after temperature, top-k and top-p, in this order; they sum to at most 1."""
    probabilities = (log_probs / sampling.temperature).softmax(dim=1)
    if 0 < sampling.top_k < probabilities.shape[1]:
        threshold = probabilities.topk(sampling.top_k, dim=1).values[:, -1:]  # (B, 1); ties are kept
        probabilities = probabilities.masked_fill(probabilities < threshold, 0.0)
    if sampling.top_p < 1:
        ordered, ids = probabilities.sort(dim=1, descending=True, stable=True)
        before = ordered.cumsum(dim=1) - ordered  # sums of the more probable tokens
        ordered = ordered.masked_fill(before >= sampling.top_p * ordered.sum(dim=1, keepdim=True), 0.0)
        probabilities = torch.zeros_like(probabilities).scatter(1, ids, ordered)
    return probabilities


def random_numbers(sources: Sequence[EncodedSource], sampling: Sampling, length: int) -> NDArray[np.float64]:
    """(B * count, P) numbers in [0, 1): the rows of the first source's draws, then of the second's, and so on.

    They depend on the seed, the content of the source and the number of the draw alone (`Sampling.seed`).
    """
    rows = []
    for source in sources:
        content = np.ascontiguousarray(source)
        digest = hashlib.sha256(f"{content.dtype} {content.shape} ".encode() + content.tobytes()).digest()
        source_seed = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
        rows += [
            np.random.default_rng([sampling.seed, number, *source_seed]).random(length)
            for number in range(sampling.count)
        ]
    return np.stack(rows)
