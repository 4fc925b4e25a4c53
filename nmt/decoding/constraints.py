"""What a search may not emit, and how long its output may be.

Shapes: B sentences, K hypotheses each, L tokens so far, N of an n-gram, V vocabulary.
"""

import torch
from torch import Tensor

from nmt.config.inference import DecodingConfig
from nmt.data.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID


def allowed_log_probs(logits: Tensor, prefixes: Tensor, min_length: int, no_repeat_ngram_size: int) -> Tensor:
    """Log-probabilities of what may follow each prefix: (..., V) and (..., L) without `<s>` -> (..., V).

    What may not follow is taken out of the logits before the softmax, as CTranslate2 does it: the other tokens share
    its probability in proportion to their own. `logits` are overwritten.

    `<pad>` and `<s>` belong in no translation, `<unk>` would be of no use to its reader, and `</s>` must wait for
    `min_length` tokens. With `no_repeat_ngram_size` N above 0, the last N tokens may not become what N tokens in a row
    of the prefix are already (Paulus et al. 2018, arXiv:1705.04304, with N = 3). Where all of that together leaves
    nothing, the translation ends.
    """
    length = prefixes.shape[-1]
    logits = logits.float()
    logits[..., [PAD_ID, BOS_ID, UNK_ID]] = -torch.inf
    if 0 < no_repeat_ngram_size <= length:
        ngrams = prefixes.unfold(-1, no_repeat_ngram_size, 1)  # (..., L - N + 1, N)
        latest = prefixes[..., None, length - no_repeat_ngram_size + 1 :]  # (..., 1, N - 1)
        would_repeat = (ngrams[..., :-1] == latest).all(dim=-1)  # (..., L - N + 1)
        logits.scatter_(-1, ngrams[..., -1].where(would_repeat, PAD_ID), -torch.inf)
    if length < min_length:
        logits[..., EOS_ID] = -torch.inf
        nothing_is_left = logits.amax(dim=-1) == -torch.inf  # (...)
        logits[..., EOS_ID].masked_fill_(nothing_is_left, 0.0)
    return logits.log_softmax(dim=-1)


def longest_outputs(src_lengths: Tensor, config: DecodingConfig) -> Tensor:
    """Most tokens of each translation, from its own source's length alone: (B,) -> (B,) int64."""
    return torch.tensor([config.longest_output(length) for length in src_lengths.tolist()])
