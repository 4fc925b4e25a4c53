"""Greedy search: the most probable next token, until `</s>`.

Shapes: B sentences still being translated, S source length, V vocabulary.
"""

import torch
from torch import Tensor

from nmt.data.vocabulary import BOS_ID, EOS_ID
from nmt.decoding.candidates import active_rows, best_candidates
from nmt.decoding.constraints import allowed_log_probs
from nmt.decoding.hypothesis import Hypothesis
from nmt.models.interface import M, S, Seq2SeqModel
from nmt.source import Source


def greedy_search(
    model: Seq2SeqModel[M, S],
    source: Source,
    max_lengths: Tensor,
    length_penalty: float = 1.0,
    min_length: int = 1,
    no_repeat_ngram_size: int = 0,
) -> list[Hypothesis]:
    """Translate a batch; one hypothesis a sentence, in its order.

    B sources, (B,) int64 most tokens of each output. Finished sentences leave the batch.
    """
    state = model.start(model.encode(source), beam_size=1, max_length=int(max_lengths.max()))
    found: dict[int, Hypothesis] = {}
    sentences = torch.arange(len(source.mask), device=source.mask.device)  # (B,) which sentence each row is
    tokens = torch.full_like(sentences, BOS_ID)[:, None]  # (B, length + 1), <s> first
    so_far = torch.zeros(len(sentences), 1, device=source.mask.device)  # (B, 1)
    while len(sentences):
        length = tokens.shape[1] - 1
        logits = model.step(tokens[:, -1:], state)  # (B, 1, V)
        log_probs = allowed_log_probs(logits, tokens[:, None, 1:], min_length, no_repeat_ngram_size)
        best = best_candidates(so_far, log_probs, 1)  # of (B, 1)
        so_far = best.log_probs
        tokens = torch.cat([tokens, best.tokens], dim=1)
        done = (best.tokens[:, 0] == EOS_ID) | (length + 1 >= max_lengths)
        if not done.any():
            continue
        for index, row, log_prob in zip(
            sentences[done].tolist(), tokens[done].tolist(), so_far[done, 0].tolist(), strict=True
        ):
            output = tuple(row[1:-1] if row[-1] == EOS_ID else row[1:])
            found[index] = Hypothesis(output, log_prob, log_prob / max(1, len(output)) ** length_penalty)
        staying = active_rows(done)
        state.select_sentences(staying)
        sentences, tokens, so_far, max_lengths = (
            sentences[staying],
            tokens[staying],
            so_far[staying],
            max_lengths[staying],
        )
    return [found[index] for index in range(len(source.mask))]
