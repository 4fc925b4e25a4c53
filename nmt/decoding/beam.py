"""Beam search for a whole batch at once.

Shapes: B sentences in the batch, K beams, C = 2K candidates, V vocabulary.
"""

import dataclasses

import torch
from torch import Tensor

from nmt.data.vocabulary import BOS_ID, EOS_ID
from nmt.decoding.candidates import Candidates, active_rows, best_candidates
from nmt.decoding.constraints import allowed_log_probs
from nmt.decoding.hypothesis import Hypothesis
from nmt.models.interface import M, S, Seq2SeqModel
from nmt.source import Source


@dataclasses.dataclass
class _Prefixes:
    """The unfinished hypotheses of each sentence in the batch: K of them, fewer at first."""

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
    def start(cls, max_lengths: Tensor) -> "_Prefixes":
        """One empty prefix of each sentence: K is 1."""
        sentences = torch.arange(len(max_lengths), device=max_lengths.device)
        return cls(
            sentences=sentences,
            max_lengths=max_lengths,
            finished=torch.zeros_like(sentences),
            tokens=sentences.new_empty(len(sentences), 1, 0),
            log_probs=torch.zeros(len(sentences), 1, device=max_lengths.device),
        )

    def select(self, rows: Tensor) -> "_Prefixes":
        """Only these rows of every tensor."""
        return _Prefixes(**{name: value[rows] for name, value in vars(self).items()})


def beam_search(
    model: Seq2SeqModel[M, S],
    source: Source,
    max_lengths: Tensor,
    beam_size: int,
    length_penalty: float = 1.0,
    min_length: int = 1,
    no_repeat_ngram_size: int = 0,
) -> list[list[Hypothesis]]:
    """Translate a batch; at most K hypotheses a sentence, best first, sentences in their order.

    B sources, (B,) int64 most tokens of each output.

    At each step the 2K best one-token extensions of a sentence's K prefixes are its candidates: each
    prefix can end in one way, so at least K of the 2K go on. Of the K best candidates those that end are
    finished; the K best that do not end are the next prefixes. A sentence stops once K of its hypotheses are
    finished, or at its longest output, where the K best candidates are finished as they are.
    """
    longest = int(max_lengths.max())
    state = model.start(model.encode(source), beam_size, longest)
    prefixes = _Prefixes.start(max_lengths)
    latest = torch.full_like(prefixes.sentences, BOS_ID)[:, None]  # (B, K)
    found: list[list[Hypothesis]] = [[] for _ in max_lengths]
    for length in range(longest):
        logits = model.step(latest, state)  # (B, K, V)
        log_probs = allowed_log_probs(logits, prefixes.tokens, min_length, no_repeat_ngram_size)
        candidates = best_candidates(prefixes.log_probs, log_probs, 2 * beam_size)
        some_finish = _finish(prefixes, candidates, beam_size, found, length_penalty)
        origins, latest = _advance(prefixes, candidates, beam_size)  # (B, K), (B, K)
        state.select_beams(origins)
        if not some_finish:
            continue
        stopped = (prefixes.finished >= beam_size) | (length + 1 >= prefixes.max_lengths)  # (B,)
        staying = active_rows(stopped)
        if not len(staying):
            break
        state.select_sentences(staying)
        prefixes, latest = prefixes.select(staying), latest[staying]
    return [sorted(of_one, key=lambda hypothesis: -hypothesis.score)[:beam_size] for of_one in found]


def _finish(
    prefixes: _Prefixes,
    candidates: Candidates,
    beam_size: int,
    found: list[list[Hypothesis]],
    length_penalty: float,
) -> bool:
    """Add to `found` what is finished of the K best candidates; tells whether anything is."""
    length = prefixes.tokens.shape[2]
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


def _advance(prefixes: _Prefixes, candidates: Candidates, beam_size: int) -> tuple[Tensor, Tensor]:
    """Make the K best candidates that do not end the prefixes; returns which each extends, (B, K), and by what."""
    going = candidates.log_probs.masked_fill(candidates.tokens == EOS_ID, -torch.inf)  # (B, C)
    prefixes.log_probs, kept = going.topk(min(beam_size, going.shape[1]), dim=1)  # (B, K)
    origins, latest = candidates.origins.gather(1, kept), candidates.tokens.gather(1, kept)
    before = prefixes.tokens.gather(1, origins[:, :, None].expand(-1, -1, prefixes.tokens.shape[2]))
    prefixes.tokens = torch.cat([before, latest[:, :, None]], dim=2)
    return origins, latest
