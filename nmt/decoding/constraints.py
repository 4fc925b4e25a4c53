"""What a search may not emit, and how long its outputs may be.

Shapes: B sentences, K hypotheses each, L tokens so far, N of an n-gram, P length of a forced prefix, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.config.inference import DecodingConfig
from nmt.data.vocabulary import SpecialIds
from nmt.decoding.hypothesis import forbidden_ids

_FREE = -1
"""In `forced`: any token may stand here."""


@dataclasses.dataclass(frozen=True)
class Constraints:
    """The constraints of one search, a row for each sentence in its batch.

    - `forbidden`: see `forbidden_ids`.
    - `min_length`: `</s>` must wait for that many tokens.
    - `no_repeat_ngram_size` N above 0: the last N tokens may not become what N tokens in a row of the prefix are
      already (Paulus et al. 2018, arXiv:1705.04304, with N = 3).
    - `max_lengths`: a translation of that many tokens is finished as it is.
    - `forced`: the tokens that each translation begins with, whatever else is forbidden. The model has no choice, so
      their log-probability is 0; in the length they count as all tokens do. CTranslate2's `target_prefix` is the
      same, but for an immediate end: see nmt/ctranslate2/engine.py.

    Where all of that together leaves nothing, the translation ends.
    """

    special: SpecialIds
    """Of the target side."""
    forbidden: Tensor
    """(F,) ids, at least one"""
    min_length: int
    no_repeat_ngram_size: int
    max_lengths: Tensor
    """(B,)"""
    forced: Tensor | None = None
    """(B, P), `_FREE` where a shorter prefix is over"""

    @classmethod
    def of(
        cls,
        decoding: DecodingConfig,
        special: SpecialIds,
        src_lengths: Sequence[int],
        prefixes: Sequence[Sequence[int]] | None = None,
        device: torch.device | None = None,
    ) -> "Constraints":
        """The constraints of the settings; the length of an output is limited by that of its source, without `</s>`.

        `prefixes` are ids, none where nothing is forced.
        """
        max_lengths = [decoding.longest_output(length) for length in src_lengths]
        return cls(
            special=special,
            forbidden=torch.tensor(forbidden_ids(special), device=device),
            min_length=decoding.min_length,
            no_repeat_ngram_size=decoding.no_repeat_ngram_size,
            max_lengths=torch.tensor(max_lengths, device=device),
            forced=None if prefixes is None or not any(prefixes) else _padded(prefixes).to(device),
        )

    def select(self, rows: Tensor) -> "Constraints":
        """Those of these sentences alone."""
        forced = None if self.forced is None else self.forced[rows]
        return dataclasses.replace(self, max_lengths=self.max_lengths[rows], forced=forced)

    def allowed_log_probs(self, logits: Tensor, prefixes: Tensor) -> Tensor:
        """Log-probabilities of what may follow each prefix: (B, K, V) and (B, K, L) without start id -> (B, K, V).

        What may not follow is taken out of the logits before the softmax, as CTranslate2 does it: the other tokens
        share its probability in proportion to their own. `logits` are overwritten.
        """
        length, size, eos = prefixes.shape[-1], self.no_repeat_ngram_size, self.special.eos
        logits = logits.float()
        logits[..., self.forbidden] = -torch.inf
        if 0 < size <= length:
            ngrams = prefixes.unfold(-1, size, 1)  # (B, K, L - N + 1, N)
            latest = prefixes[..., None, length - size + 1 :]  # (B, K, 1, N - 1)
            would_repeat = (ngrams[..., :-1] == latest).all(dim=-1)  # (B, K, L - N + 1)
            logits.scatter_(-1, ngrams[..., -1].where(would_repeat, self.forbidden[0]), -torch.inf)
        if length < self.min_length:
            logits[..., eos] = -torch.inf
            nothing_is_left = logits.amax(dim=-1) == -torch.inf  # (B, K)
            logits[..., eos].masked_fill_(nothing_is_left, 0.0)
        if self.forced is not None and length < self.forced.shape[1]:
            wanted = self.forced[:, length]  # (B,)
            rows = (wanted != _FREE).nonzero()[:, 0]
            logits[rows] = -torch.inf
            logits[rows, :, wanted[rows]] = 0.0
        return logits.log_softmax(dim=-1)


def _padded(prefixes: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, prefixes))
    return torch.tensor([[*prefix, *[_FREE] * (longest - len(prefix))] for prefix in prefixes])
