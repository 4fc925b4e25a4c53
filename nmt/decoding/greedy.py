"""Greedy search: the most probable next token, until `</s>`.

Shapes: B sentences still being translated, S source length, V vocabulary.
"""

import torch
from torch import Tensor

from nmt.data.vocabulary import BOS_ID, EOS_ID
from nmt.decoding.constraints import forbid
from nmt.decoding.hypothesis import Hypothesis
from nmt.models.interface import Seq2SeqModel


def greedy_search(
    model: Seq2SeqModel,
    src_ids: Tensor,
    src_mask: Tensor,
    max_lengths: Tensor,
    length_penalty: float = 1.0,
    min_length: int = 1,
) -> list[Hypothesis]:
    """Translate a batch; one hypothesis a sentence, in its order.

    (B, S) int64, (B, S) bool, (B,) int64 most tokens of each output. Finished sentences leave the batch.
    """
    state = model.start(src_ids, src_mask, beam_size=1, max_length=int(max_lengths.max()))
    found: dict[int, Hypothesis] = {}
    sentences = torch.arange(len(src_ids), device=src_ids.device)  # (B,) which sentence each row is
    tokens = torch.full_like(sentences, BOS_ID)[:, None]  # (B, length + 1), <s> first
    log_probs = torch.zeros(len(sentences), device=src_ids.device)  # (B,)
    while len(sentences):
        length = tokens.shape[1] - 1
        next_log_probs = model.step(tokens[:, -1:], state)[:, 0].float().log_softmax(dim=-1)  # (B, V)
        forbid(next_log_probs, length, min_length)
        added, best = next_log_probs.max(dim=-1)  # (B,), (B,)
        log_probs = log_probs + added
        tokens = torch.cat([tokens, best[:, None]], dim=1)
        done = (best == EOS_ID) | (length + 1 >= max_lengths)
        if not done.any():
            continue
        for index, row, log_prob in zip(
            sentences[done].tolist(), tokens[done].tolist(), log_probs[done].tolist(), strict=True
        ):
            output = tuple(row[1:-1] if row[-1] == EOS_ID else row[1:])
            found[index] = Hypothesis(output, log_prob, log_prob / max(1, len(output)) ** length_penalty)
        going = (~done).nonzero()[:, 0]
        state.select_sentences(going)
        sentences, tokens, log_probs, max_lengths = (
            sentences[going],
            tokens[going],
            log_probs[going],
            max_lengths[going],
        )
    return [found[index] for index in range(len(src_ids))]
