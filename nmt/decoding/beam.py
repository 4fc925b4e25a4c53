"""Beam search for a whole batch at once.

Shapes: B sentences still being translated, K beams, C = 2K candidates, L longest output, V vocabulary.
"""

import dataclasses

import torch
from torch import Tensor

from nmt.data.vocabulary import BOS_ID, EOS_ID
from nmt.decoding.constraints import forbid
from nmt.decoding.hypothesis import Hypothesis
from nmt.models.interface import Seq2SeqModel


@dataclasses.dataclass
class _Beams:
    """K unfinished and the K best finished hypotheses of each sentence in the batch."""

    sentences: Tensor
    """(B,) which sentence each row is"""
    max_lengths: Tensor
    """(B,)"""
    tokens: Tensor
    """(B, K, L) without `<s>`; the first `length` of them count"""
    log_probs: Tensor
    """(B, K), -inf where there is no hypothesis"""
    ended: Tensor
    """(B,) how many hypotheses have finished"""
    ended_tokens: Tensor
    """(B, K, L)"""
    ended_lengths: Tensor
    """(B, K)"""
    ended_log_probs: Tensor
    """(B, K)"""
    ended_scores: Tensor
    """(B, K), falling; -inf where there is none"""

    @classmethod
    def start(cls, max_lengths: Tensor, beam_size: int) -> "_Beams":
        size = (len(max_lengths), beam_size)
        device = max_lengths.device
        nothing = torch.full(size, -torch.inf, device=device)
        log_probs = nothing.clone()
        log_probs[:, 0] = 0.0  # all prefixes are the same at first; one of them stands for all
        tokens = torch.full((*size, int(max_lengths.max())), EOS_ID, device=device)
        return cls(
            sentences=torch.arange(size[0], device=device),
            max_lengths=max_lengths,
            tokens=tokens,
            log_probs=log_probs,
            ended=torch.zeros(size[0], dtype=torch.int64, device=device),
            ended_tokens=tokens,
            ended_lengths=torch.zeros(size, dtype=torch.int64, device=device),
            ended_log_probs=nothing,
            ended_scores=nothing,
        )

    def select(self, rows: Tensor) -> "_Beams":
        """Only these rows of every tensor."""
        return _Beams(**{name: value[rows] for name, value in vars(self).items()})

    def hypotheses(self, row: int) -> list[Hypothesis]:
        """The finished hypotheses of a row, best first."""
        return [
            Hypothesis(tuple(tokens[:length]), log_prob, score)
            for tokens, length, log_prob, score in zip(
                self.ended_tokens[row].tolist(),
                self.ended_lengths[row].tolist(),
                self.ended_log_probs[row].tolist(),
                self.ended_scores[row].tolist(),
                strict=True,
            )
            if score > -torch.inf
        ]


def beam_search(
    model: Seq2SeqModel,
    src_ids: Tensor,
    src_mask: Tensor,
    max_lengths: Tensor,
    beam_size: int,
    length_penalty: float = 1.0,
    min_length: int = 1,
) -> list[list[Hypothesis]]:
    """Translate a batch; at most K hypotheses a sentence, best first, sentences in their order.

    (B, S) int64, (B, S) bool, (B,) int64 most tokens of each output.

    At each step the 2K best one-token extensions of a sentence's K prefixes are its candidates: each
    prefix can end in one way, so at least K of the 2K go on. Of the K best candidates those that end are
    finished; the K best that do not end are the next prefixes. A sentence stops, and leaves the batch, once K of
    its hypotheses are finished, or at its longest output, where the K best candidates are finished as they are.
    """
    state = model.start(src_ids, src_mask, beam_size, int(max_lengths.max()))
    beams = _Beams.start(max_lengths, beam_size)
    latest = torch.full((len(src_ids), beam_size), BOS_ID, device=src_ids.device)  # (B, K)
    found: dict[int, list[Hypothesis]] = {}
    length = 0
    while len(latest):
        log_probs = model.step(latest, state).float().log_softmax(dim=-1)  # (B, K, V)
        forbid(log_probs, length, min_length)
        chosen = _advance(beams, log_probs, length, length_penalty)  # (B, K) which prefix each goes on from
        length += 1
        done = (beams.ended >= beam_size) | (length >= beams.max_lengths)
        state.select_beams(chosen)
        if done.any():
            for row in done.nonzero()[:, 0].tolist():
                found[int(beams.sentences[row])] = beams.hypotheses(row)
            going = (~done).nonzero()[:, 0]
            state.select_sentences(going)
            beams = beams.select(going)
        latest = beams.tokens[:, :, length - 1]
    return [found[index] for index in range(len(src_ids))]


def _advance(beams: _Beams, log_probs: Tensor, length: int, length_penalty: float) -> Tensor:
    """Extend every prefix of `length` tokens by one; returns (B, K), the prefix that each new one extends."""
    batch, beam_size, vocab_size = log_probs.shape
    totals = (beams.log_probs[:, :, None] + log_probs).flatten(1)  # (B, K * V)
    candidates, places = totals.topk(2 * beam_size, dim=1)  # (B, C), best first
    origins, next_tokens = places // vocab_size, places % vocab_size  # (B, C)
    is_end = next_tokens == EOS_ID

    # Finish: among the K best, those that end, and at the longest output all of them.
    top = slice(None, beam_size)
    is_last = (length + 1 >= beams.max_lengths)[:, None]
    finishes = (is_end | is_last)[:, top] & (candidates[:, top] > -torch.inf)  # (B, K)
    lengths = length + (~is_end[:, top]).long()  # </s> does not count
    scores = candidates[:, top] / lengths.clamp(min=1) ** length_penalty
    scores = scores.masked_fill(~finishes, -torch.inf)
    tokens = _extended(beams.tokens, origins[:, top], next_tokens[:, top], length)  # (B, K, L)
    beams.ended = beams.ended + finishes.sum(dim=1)
    all_scores = torch.cat([beams.ended_scores, scores], dim=1)  # (B, 2K)
    beams.ended_scores, kept = all_scores.topk(beam_size, dim=1)  # (B, K)
    beams.ended_lengths = torch.cat([beams.ended_lengths, lengths], dim=1).gather(1, kept)
    beams.ended_log_probs = torch.cat([beams.ended_log_probs, candidates[:, top]], dim=1).gather(1, kept)
    rows = torch.arange(batch, device=kept.device)[:, None]
    beams.ended_tokens = torch.cat([beams.ended_tokens, tokens], dim=1)[rows, kept]  # (B, K, L)

    # Go on: the K best that do not end. Sorting False before True, stably, keeps the order among them.
    going = is_end.to(torch.uint8).argsort(dim=1, stable=True)[:, top]  # (B, K) into the candidates
    beams.log_probs = candidates.gather(1, going)
    chosen = origins.gather(1, going)
    beams.tokens = _extended(beams.tokens, chosen, next_tokens.gather(1, going), length)
    return chosen


def _extended(tokens: Tensor, origins: Tensor, next_tokens: Tensor, length: int) -> Tensor:
    """Prefixes (B, K, L) picked by `origins` (B, K), with `next_tokens` (B, K) at position `length`."""
    rows = torch.arange(len(tokens), device=tokens.device)[:, None]
    extended = tokens[rows, origins]  # (B, K, L)
    extended[:, :, length] = next_tokens
    return extended
