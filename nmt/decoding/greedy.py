"""Greedy search: the most probable next token, until `</s>`.

Beam search with one beam finds the same. A step of this loop does less, which saves about 7% for one sentence.

Shapes: B sentences still being translated, S source length, V vocabulary.
"""

import torch

from nmt.decoding.candidates import Prefixes, active_rows
from nmt.decoding.constraints import Constraints
from nmt.decoding.hypothesis import Hypothesis
from nmt.models.interface import M, S, Seq2SeqModel
from nmt.source import Source


def greedy_search(
    model: Seq2SeqModel[M, S], source: Source, constraints: Constraints, length_penalty: float
) -> list[list[Hypothesis]]:
    """Translate a batch; one hypothesis a sentence, in its order. Finished sentences leave the batch."""
    state = model.start(model.encode(source), 1, int(constraints.max_lengths.max()))
    prefixes = Prefixes.start(constraints)
    latest = torch.full_like(prefixes.sentences, constraints.special.start)[:, None]  # (B, 1)
    found: list[list[Hypothesis]] = [[] for _ in latest]
    while len(latest):
        best = prefixes.best_candidates(model.step(latest, state), 1)  # of (B, 1)
        ends = prefixes.ends(best)
        some_finish = prefixes.finish(best, ends, length_penalty, found)
        prefixes.extend(None, best.tokens, best.log_probs)
        latest = best.tokens
        if some_finish:
            staying = active_rows(ends[:, 0])
            state.select_sentences(staying)
            prefixes, latest = prefixes.select(staying), latest[staying]
    return found
