"""The constraints of a search: forbidden and forced tokens, repeated n-grams, lengths.

Shapes: B sentences, K hypotheses each, L tokens so far, N size of an n-gram, P length of a forced prefix, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.config.inference import DecodingConfig
from nmt.decoding.hypothesis import forbidden_ids
from nmt.models.source import pad
from nmt.tokenizers.vocabulary import SpecialIds

_FREE = -1
"""In `forced`: any token may follow here."""


@dataclasses.dataclass(frozen=True)
class Constraints:
    """The constraints of one search, a row for each sentence in its batch.

    - `forbidden`: special ids (`forbidden_ids`), and forbidden words of a single piece.
    - `forbidden_sequences`: forbidden words of several pieces. The last piece may not follow the others, as with
      CTranslate2's `suppress_sequences`.
    - `min_length`: `</s>` is forbidden before this number of tokens.
    - `no_repeat_ngram_size` N above 0: no n-gram of N tokens occurs twice (Paulus et al. 2018, arXiv:1705.04304, with
      N = 3).
    - `max_lengths`: a translation of this number of tokens is finished without `</s>`.
    - `forced`: the tokens that each translation begins with, even if they are forbidden. Their log-probability is 0;
      they count in the length. CTranslate2's `target_prefix` is the same, except for an immediate end
      (nmt/decoding/ctranslate2_engine.py).

    Where no token is allowed, the translation ends.
    """

    special: SpecialIds
    """The target side's."""
    forbidden: Tensor
    """(F,) ids, at least one"""
    min_length: int
    no_repeat_ngram_size: int
    max_lengths: Tensor
    """(B,)"""
    forced: Tensor | None = None
    """(B, P), `_FREE` after the end of a shorter prefix"""
    forbidden_sequences: tuple[Tensor, ...] = ()
    """A tensor (F, N) for each number of pieces N of at least 2"""
    num_forced: int = 0
    """Length of the shortest forced prefix; up to it, a sentence has only one hypothesis."""

    @classmethod
    def of(
        cls,
        decoding: DecodingConfig,
        special: SpecialIds,
        src_lengths: Sequence[int],
        prefixes: Sequence[Sequence[int]] | None = None,
        device: torch.device | None = None,
        forbidden_sequences: Sequence[Sequence[int]] = (),
    ) -> "Constraints":
        """Make the constraints of `decoding` for sources of these lengths, which do not count `</s>`.

        `prefixes` are the forced ids of each sentence, empty where nothing is forced. `forbidden_sequences` are the
        ids of `decoding.forbidden_words`.
        """
        by_size: dict[int, list[Sequence[int]]] = {}
        for ids in forbidden_sequences:
            by_size.setdefault(len(ids), []).append(ids)
        forbidden = [*forbidden_ids(special), *(ids[0] for ids in by_size.pop(1, []))]
        max_lengths = [decoding.longest_output(length) for length in src_lengths]
        return cls(
            special=special,
            forbidden=torch.tensor(forbidden, device=device),
            min_length=decoding.min_length,
            no_repeat_ngram_size=decoding.no_repeat_ngram_size,
            max_lengths=torch.tensor(max_lengths, device=device),
            forced=None if prefixes is None or not any(prefixes) else pad(prefixes, _FREE).to(device),
            forbidden_sequences=tuple(torch.tensor(by_size[size], device=device) for size in sorted(by_size)),
            num_forced=min(map(len, prefixes)) if prefixes else 0,
        )

    def select(self, rows: Tensor) -> "Constraints":
        """Keep only these sentences."""
        forced = None if self.forced is None else self.forced[rows]
        return dataclasses.replace(self, max_lengths=self.max_lengths[rows], forced=forced)

    def allowed_log_probs(self, logits: Tensor, prefixes: Tensor) -> Tensor:
        """(B, K, V) logits after prefixes (B, K, L) without the start id -> (B, K, V) log-probabilities.

        Forbidden tokens are masked in the logits before the softmax, as in CTranslate2, so their probability is divided
        among the other tokens in proportion. `logits` are overwritten.
        """
        length, size, eos = prefixes.shape[-1], self.no_repeat_ngram_size, self.special.eos
        logits = logits.float()
        logits[..., self.forbidden] = -torch.inf
        for sequences in self.forbidden_sequences:  # (F, N)
            if (before := sequences.shape[1] - 1) <= length:
                tail = prefixes[..., None, length - before :]  # (B, K, 1, N - 1)
                would_end = (sequences[:, :-1] == tail).all(dim=-1)  # (B, K, F)
                logits.scatter_(-1, sequences[:, -1].where(would_end, self.forbidden[0]), -torch.inf)
        if 0 < size <= length:
            ngrams = prefixes.unfold(-1, size, 1)  # (B, K, L - N + 1, N)
            latest = prefixes[..., None, length - size + 1 :]  # (B, K, 1, N - 1)
            would_repeat = (ngrams[..., :-1] == latest).all(dim=-1)  # (B, K, L - N + 1)
            logits.scatter_(-1, ngrams[..., -1].where(would_repeat, self.forbidden[0]), -torch.inf)
        if length < self.min_length:
            logits[..., eos] = -torch.inf
            none_allowed = logits.amax(dim=-1) == -torch.inf  # (B, K)
            logits[..., eos].masked_fill_(none_allowed, 0.0)
        if self.forced is not None and length < self.forced.shape[1]:
            forced = self.forced[:, length]  # (B,)
            rows = (forced != _FREE).nonzero()[:, 0]
            logits[rows] = -torch.inf
            logits[rows, :, forced[rows]] = 0.0
        return logits.log_softmax(dim=-1)
