"""Beam search and greedy search for a whole batch at once.

Shapes: B sentences in the batch, K beams, C = 2K candidates, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from nmt.decoding.candidates import Candidates, Prefixes, active_rows
from nmt.decoding.constraints import Constraints
from nmt.decoding.hypothesis import Hypothesis
from nmt.decoding.trace import TracedStep
from nmt.models.interface import M, S, Seq2SeqModel
from nmt.models.source import Source


def beam_search(
    model: Seq2SeqModel[M, S],
    source: Source,
    constraints: Constraints,
    beam_size: int,
    length_penalty: float,
    trace: list[TracedStep] | None = None,
) -> list[list[Hypothesis]]:
    """Translate a batch; at most K hypotheses a sentence, best first, sentences in their order.

    The candidates of a step are the 2K best one-token extensions of a sentence's K prefixes. A prefix can end in one
    way, so at least K candidates do not end. Of the K best candidates, those that end are finished; the K best that do
    not end are the next prefixes. A sentence stops once it has K finished hypotheses, or at its maximum length, where
    the K best candidates are finished without `</s>`. The steps for a single sentence are added to `trace`.
    """
    assert trace is None or len(source.mask) == 1
    max_length = int(constraints.max_lengths.max())
    state = model.start(model.encode(source), beam_size, max_length)
    prefixes = Prefixes.start(constraints)
    latest = torch.full_like(prefixes.sentences, constraints.special.start)[:, None]  # (B, K)
    num_finished = torch.zeros_like(prefixes.sentences)  # (B,) hypotheses of each sentence
    found: list[list[Hypothesis]] = [[] for _ in latest]
    for length in range(max_length):
        candidates = prefixes.best_candidates(model.step(latest, state), 2 * beam_size)
        finished = (prefixes.ends(candidates) & (candidates.log_probs > -torch.inf))[:, :beam_size]  # (B, K)
        some_finish = prefixes.finish(candidates, finished, length_penalty, found)
        width = 1 if length < constraints.num_forced else beam_size
        origins, latest, kept = _advance(prefixes, candidates, width)  # (B, K) each
        if trace is not None:
            trace.append(TracedStep(candidates, finished, kept))
        state.select_beams(origins)
        if not some_finish:
            continue
        num_finished += finished.sum(dim=1)
        stopped = (num_finished >= beam_size) | (length + 1 >= prefixes.constraints.max_lengths)  # (B,)
        staying = active_rows(stopped)
        if not len(staying):
            break
        state.select_sentences(staying)
        prefixes, latest, num_finished = prefixes.select(staying), latest[staying], num_finished[staying]
    return [sorted(hypotheses, key=lambda one: -one.score)[:beam_size] for hypotheses in found]


def _advance(prefixes: Prefixes, candidates: Candidates, beam_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Replace the prefixes by the K best candidates that do not end; their origins, tokens and places, (B, K) each."""
    continuing = candidates.log_probs.masked_fill(candidates.tokens == prefixes.constraints.special.eos, -torch.inf)
    log_probs, kept = continuing.topk(min(beam_size, continuing.shape[1]), dim=1)  # (B, K)
    origins, latest = candidates.origins.gather(1, kept), candidates.tokens.gather(1, kept)
    prefixes.extend(origins, latest, log_probs)
    return origins, latest, kept


def greedy_search(
    model: Seq2SeqModel[M, S],
    source: Source,
    constraints: Constraints,
    length_penalty: float,
    next_of: Callable[[Prefixes, Tensor], Candidates] = Prefixes.best_candidates,
) -> list[list[Hypothesis]]:
    """Translate a batch; one hypothesis a sentence, in its order. Finished sentences leave the batch.

    The next token is the most probable one, or that of `next_of`, which gets logits (B, 1, V). Beam search with one
    beam finds the same. A step of this loop does less, which saves about 7% for one sentence.
    """
    state = model.start(model.encode(source), 1, int(constraints.max_lengths.max()))
    prefixes = Prefixes.start(constraints)
    latest = torch.full_like(prefixes.sentences, constraints.special.start)[:, None]  # (B, 1)
    found: list[list[Hypothesis]] = [[] for _ in latest]
    while len(latest):
        following = next_of(prefixes, model.step(latest, state))  # (B, 1)
        ends = prefixes.ends(following)
        some_finish = prefixes.finish(following, ends, length_penalty, found)
        prefixes.extend(None, following.tokens, following.log_probs)
        latest = following.tokens
        if some_finish:
            staying = active_rows(ends[:, 0])
            state.select_sentences(staying)
            prefixes, latest = prefixes.select(staying), latest[staying]
    return found
