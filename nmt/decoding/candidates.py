"""The parts that greedy and beam search share: prefixes, their best extensions, and finished hypotheses.

Shapes: B sentences in the batch, K prefixes of each, C candidates, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.decoding.constraints import Constraints
from nmt.decoding.hypothesis import Hypothesis


class Candidates(NamedTuple):
    """The best extensions of each sentence's prefixes by one token: (B, C), best first."""

    log_probs: Tensor
    origins: Tensor
    """the index, among the K prefixes, of the one that each extends"""
    tokens: Tensor


def best_candidates(so_far: Tensor, log_probs: Tensor, count: int) -> Candidates:
    """The C = `count` best sums of (B, K) `so_far` and (B, K, V) `log_probs`; fewer where K * V is less.

    The vocabulary is viewed as a table of R rows and N columns. The C best entries are in the C columns with the
    largest maxima, so only these are searched: on a CPU, `topk` over all K * V takes several times as long.
    """
    batch, beam_size, vocab_size = log_probs.shape
    rows = max(rows for rows in range(1, math.isqrt(vocab_size) + 1) if vocab_size % rows == 0)
    table = log_probs.view(batch, beam_size, rows, -1)  # (B, K, R, N)
    num_columns = table.shape[3]
    best = (table.amax(dim=2) + so_far[:, :, None]).flatten(1)  # (B, K * N)
    columns = best.topk(min(count, best.shape[1]), dim=1, sorted=False).indices  # (B, C)
    beams, columns = columns // num_columns, columns % num_columns  # (B, C)
    sentences = torch.arange(batch, device=columns.device)[:, None]
    inside = table[sentences, beams, :, columns] + so_far.gather(1, beams)[:, :, None]  # (B, C, R)
    inside = inside.flatten(1)  # (B, C * R)
    totals, places = inside.topk(min(count, inside.shape[1]), dim=1)  # (B, C)
    chosen, row = places // rows, places % rows  # (B, C)
    return Candidates(totals, beams.gather(1, chosen), row * num_columns + columns.gather(1, chosen))


@dataclasses.dataclass
class Prefixes:
    """The unfinished hypotheses of each sentence in the batch: K of them, fewer at first."""

    constraints: Constraints
    """a row for each of the same B sentences"""
    sentences: Tensor
    """(B,) the index of each row's sentence in the batch at the start"""
    tokens: Tensor
    """(B, K, length) without the start id"""
    log_probs: Tensor
    """(B, K) sums over the tokens; -inf where there is no hypothesis"""

    @classmethod
    def start(cls, constraints: Constraints) -> "Prefixes":
        """One empty prefix of each sentence: K is 1."""
        max_lengths = constraints.max_lengths
        sentences = torch.arange(len(max_lengths), device=max_lengths.device)
        tokens = sentences.new_empty(len(sentences), 1, 0)
        return cls(constraints, sentences, tokens, torch.zeros(len(sentences), 1, device=max_lengths.device))

    def select(self, rows: Tensor) -> "Prefixes":
        """Only these rows."""
        return Prefixes(self.constraints.select(rows), self.sentences[rows], self.tokens[rows], self.log_probs[rows])

    def best_candidates(self, logits: Tensor, count: int = 1) -> Candidates:
        """The C = `count` best allowed extensions, by (B, K, V) logits, which are overwritten."""
        log_probs = self.constraints.allowed_log_probs(logits, self.tokens)
        return best_candidates(self.log_probs, log_probs, count)

    def ends(self, candidates: Candidates) -> Tensor:
        """(B, C) bool: the candidates with `</s>`, and all candidates of a sentence at its maximum length."""
        is_longest = self.tokens.shape[2] + 1 >= self.constraints.max_lengths  # (B,)
        return (candidates.tokens == self.constraints.special.eos) | is_longest[:, None]

    def extend(self, origins: Tensor | None, tokens: Tensor, log_probs: Tensor) -> None:
        """Replace prefix k by prefix `origins[b, k]` (None: itself) and one token; (B, K), `log_probs` of the whole."""
        before = self.tokens
        if origins is not None:
            before = before.gather(1, origins[:, :, None].expand(-1, -1, before.shape[2]))
        self.tokens, self.log_probs = torch.cat([before, tokens[:, :, None]], dim=2), log_probs

    def finish(
        self, candidates: Candidates, finished: Tensor, length_penalty: float, found: Sequence[list[Hypothesis]]
    ) -> bool:
        """Add the `finished` candidates, (B, C) bool, to `found` at their sentences; returns whether there are any."""
        rows, places = finished.nonzero(as_tuple=True)  # (F,), (F,)
        if not len(rows):
            return False
        origins = candidates.origins[rows, places]  # (F,)
        tokens = torch.cat([self.tokens[rows, origins], candidates.tokens[rows, places, None]], dim=1)
        columns = (self.sentences[rows], tokens, candidates.log_probs[rows, places])
        for sentence, ids, log_prob in zip(*(column.tolist() for column in columns), strict=True):
            output = tuple(ids[:-1] if ids[-1] == self.constraints.special.eos else ids)
            found[sentence].append(Hypothesis.scored(output, log_prob, length_penalty))
        return True


def active_rows(stopped: Tensor) -> Tensor:
    """(B,) bool -> (B',), the rows to keep: the last ones replace those that stopped, the others keep their places."""
    rows = torch.arange(len(stopped), device=stopped.device)
    active = rows[~stopped]
    kept = rows[: len(active)].clone()
    kept[stopped[: len(active)]] = active[active >= len(active)]
    return kept
