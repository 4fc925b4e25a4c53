"""What a search may not emit, and how long its output may be.

Shapes: B sentences, K hypotheses each, L tokens so far, N of an n-gram, V vocabulary.
"""

import torch
from torch import Tensor

from nmt.config import DecodingConfig
from nmt.data.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID


def forbid(log_probs: Tensor, prefixes: Tensor, min_length: int, no_repeat_ngram_size: int) -> None:
    """Make impossible, in place, what may not follow each prefix; (..., V), (..., L) without `<s>`.

    `<pad>` and `<s>` stand in no translation, `<unk>` would be of no use to its reader, and `</s>`
    must wait for `min_length` tokens. With `no_repeat_ngram_size` N above 0, the last N tokens may not become
    what N tokens in a row of the prefix are already (Paulus et al. 2018, arXiv:1705.04304, with N = 3).
    """
    length = prefixes.shape[-1]
    log_probs[..., [PAD_ID, BOS_ID, UNK_ID]] = -torch.inf
    if length < min_length:
        log_probs[..., EOS_ID] = -torch.inf
    if 0 < no_repeat_ngram_size <= length:
        ngrams = prefixes.unfold(-1, no_repeat_ngram_size, 1)  # (..., L - N + 1, N)
        latest = prefixes[..., None, length - no_repeat_ngram_size + 1 :]  # (..., 1, N - 1)
        would_repeat = (ngrams[..., :-1] == latest).all(dim=-1)  # (..., L - N + 1)
        log_probs.scatter_(-1, ngrams[..., -1].where(would_repeat, PAD_ID), -torch.inf)


def longest_outputs(src_lengths: Tensor, config: DecodingConfig) -> Tensor:
    """Most tokens of each translation, from its own source's length alone: (B,) -> (B,) int64."""
    return torch.tensor([config.longest_output(length) for length in src_lengths.tolist()])
