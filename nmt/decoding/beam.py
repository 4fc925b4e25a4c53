"""Beam search for a whole batch at once.

Shapes: B sentences in the batch, K beams, C = 2K candidates, V vocabulary.
"""

import dataclasses
import math

import torch
from torch import Tensor

from nmt.data.vocabulary import BOS_ID, EOS_ID
from nmt.decoding.constraints import forbid
from nmt.decoding.hypothesis import Hypothesis
from nmt.models.interface import Seq2SeqModel

# Sentences that have stopped leave once they are this share of the batch: what stays must be copied.
LEAVING_SHARE = 1 / 8


@dataclasses.dataclass
class _Prefixes:
    """The K unfinished hypotheses of each sentence in the batch."""

    sentences: Tensor
    """(B,) which sentence each row is"""
    max_lengths: Tensor
    """(B,)"""
    finished: Tensor
    """(B,) how many of its hypotheses have finished"""
    tokens: Tensor
    """(B, K, length) without `<s>`"""
    log_probs: Tensor
    """(B, K), -inf where there is no hypothesis"""

    @classmethod
    def start(cls, max_lengths: Tensor, beam_size: int) -> "_Prefixes":
        sentences = torch.arange(len(max_lengths), device=max_lengths.device)
        tokens = sentences.new_empty(len(sentences), beam_size, 0)
        log_probs = torch.full((len(sentences), beam_size), -torch.inf, device=max_lengths.device)
        log_probs[:, 0] = 0.0  # all prefixes are the same at first; one of them stands for all
        return cls(sentences, max_lengths, torch.zeros_like(sentences), tokens, log_probs)

    def select(self, rows: Tensor) -> "_Prefixes":
        """Only these rows of every tensor."""
        return _Prefixes(**{name: value[rows] for name, value in vars(self).items()})


@dataclasses.dataclass(frozen=True)
class _Candidates:
    """The best extensions of each sentence's prefixes by one token: (B, C), best first."""

    log_probs: Tensor
    origins: Tensor
    """which of the K prefixes each extends"""
    tokens: Tensor


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
    finished; the K best that do not end are the next prefixes. A sentence stops once K of its hypotheses are
    finished, or at its longest output, where the K best candidates are finished as they are.
    """
    longest = int(max_lengths.max())
    state = model.start(src_ids, src_mask, beam_size, longest)
    prefixes = _Prefixes.start(max_lengths, beam_size)
    latest = torch.full((len(src_ids), beam_size), BOS_ID, device=src_ids.device)  # (B, K)
    found: list[list[Hypothesis]] = [[] for _ in src_ids]
    for length in range(longest):
        log_probs = model.step(latest, state).float().log_softmax(dim=-1)  # (B, K, V)
        forbid(log_probs, length, min_length)
        candidates = _best_candidates(prefixes.log_probs, log_probs)
        some_finish = _finish(prefixes, candidates, found, length_penalty)
        origins, latest = _go_on(prefixes, candidates)  # (B, K), (B, K)
        state.select_beams(origins)
        if not some_finish:
            continue
        stopped = (prefixes.finished >= beam_size) | (length + 1 >= prefixes.max_lengths)  # (B,)
        prefixes.log_probs = prefixes.log_probs.masked_fill(stopped[:, None], -torch.inf)
        if int(stopped.sum()) >= len(stopped) * LEAVING_SHARE:
            going = _those_that_stay(stopped)
            if not len(going):
                break
            state.select_sentences(going)
            prefixes, latest = prefixes.select(going), latest[going]
    return [sorted(of_one, key=lambda hypothesis: -hypothesis.score)[:beam_size] for of_one in found]


def _best_candidates(so_far: Tensor, log_probs: Tensor) -> _Candidates:
    """(B, K) of the prefixes, (B, K, V) of each next token.

    The tokens of a prefix are taken as a table of R rows and N columns. The C best of all stand in the C columns whose
    best are best, so only these are sorted: on a CPU, `topk` over all K * V takes several times as long.
    """
    batch, beam_size, vocab_size = log_probs.shape
    rows = max(rows for rows in range(1, math.isqrt(vocab_size) + 1) if vocab_size % rows == 0)
    table = log_probs.view(batch, beam_size, rows, -1)  # (B, K, R, N)
    num_columns = table.shape[3]
    best = (table.amax(dim=2) + so_far[:, :, None]).flatten(1)  # (B, K * N)
    columns = best.topk(min(2 * beam_size, best.shape[1]), dim=1, sorted=False).indices  # (B, C)
    beams, columns = columns // num_columns, columns % num_columns  # (B, C)
    sentences = torch.arange(batch, device=columns.device)[:, None]
    inside = table[sentences, beams, :, columns] + so_far.gather(1, beams)[:, :, None]  # (B, C, R)
    totals, places = inside.flatten(1).topk(2 * beam_size, dim=1)  # (B, C)
    chosen, row = places // rows, places % rows  # (B, C)
    return _Candidates(totals, beams.gather(1, chosen), row * num_columns + columns.gather(1, chosen))


def _finish(
    prefixes: _Prefixes, candidates: _Candidates, found: list[list[Hypothesis]], length_penalty: float
) -> bool:
    """Move to `found` what is finished of the K best candidates; tells whether anything is."""
    beam_size, length = prefixes.tokens.shape[1:]
    ends = (candidates.tokens == EOS_ID) | (length + 1 >= prefixes.max_lengths)[:, None]  # (B, C)
    finishes = (ends & (candidates.log_probs > -torch.inf))[:, :beam_size]  # (B, K)
    rows, places = finishes.nonzero(as_tuple=True)  # (F,), (F,)
    if not len(rows):
        return False
    prefixes.finished += finishes.sum(dim=1)
    before = prefixes.tokens[rows, candidates.origins[rows, places]]  # (F, length)
    tokens = torch.cat([before, candidates.tokens[rows, places, None]], dim=1)  # (F, length + 1)
    log_probs = candidates.log_probs[rows, places]  # (F,)
    for sentence, ids, log_prob in zip(
        prefixes.sentences[rows].tolist(), tokens.tolist(), log_probs.tolist(), strict=True
    ):
        output = tuple(ids[:-1] if ids[-1] == EOS_ID else ids)  # </s> does not count
        found[sentence].append(Hypothesis(output, log_prob, log_prob / max(1, len(output)) ** length_penalty))
    return True


def _go_on(prefixes: _Prefixes, candidates: _Candidates) -> tuple[Tensor, Tensor]:
    """Make the K best candidates that do not end the prefixes; returns which each extends, (B, K), and by what."""
    going = candidates.log_probs.masked_fill(candidates.tokens == EOS_ID, -torch.inf)  # (B, C)
    prefixes.log_probs, kept = going.topk(prefixes.tokens.shape[1], dim=1)  # (B, K)
    origins, latest = candidates.origins.gather(1, kept), candidates.tokens.gather(1, kept)
    before = prefixes.tokens.gather(1, origins[:, :, None].expand_as(prefixes.tokens))
    prefixes.tokens = torch.cat([before, latest[:, :, None]], dim=2)
    return origins, latest


def _those_that_stay(stopped: Tensor) -> Tensor:
    """(B,) bool -> (B',), the rows to keep: the last take the places of those that leave, and none else moves."""
    kept = int((~stopped).sum())
    rows = torch.arange(len(stopped), device=stopped.device)
    staying = rows[:kept].clone()
    staying[stopped[:kept]] = rows[kept:][~stopped[kept:]]
    return staying
