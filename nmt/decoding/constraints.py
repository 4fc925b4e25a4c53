"""What a search may not emit, and how long its output may be.

Shapes: B sentences, K hypotheses each, V vocabulary.
"""

import torch
from torch import Tensor

from nmt.config import DecodingConfig
from nmt.data.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID


def forbid(log_probs: Tensor, length: int, min_length: int) -> None:
    """Make impossible, in place, what may not follow a prefix of `length` tokens; (..., V).

    `<pad>` and `<s>` stand in no translation, `<unk>` would be of no use to its reader, and `</s>`
    must wait for `min_length` tokens.
    """
    log_probs[..., [PAD_ID, BOS_ID, UNK_ID]] = -torch.inf
    if length < min_length:
        log_probs[..., EOS_ID] = -torch.inf


def longest_outputs(src_lengths: Tensor, config: DecodingConfig) -> Tensor:
    """Most tokens of each translation, from its own source's length alone: (B,) -> (B,) int64."""
    return torch.tensor([config.longest_output(length) for length in src_lengths.tolist()])
