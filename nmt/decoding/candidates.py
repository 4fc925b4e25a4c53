"""What a search chooses from: the best extensions of its prefixes, and the sentences that go on.

Shapes: B sentences in the batch, K prefixes of each, C candidates, V vocabulary.
"""

import dataclasses
import math

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The best extensions of each sentence's prefixes by one token: (B, C), best first."""

    log_probs: Tensor
    origins: Tensor
    """which of the K prefixes each extends"""
    tokens: Tensor


def best_candidates(so_far: Tensor, log_probs: Tensor, count: int) -> Candidates:
    """The C = `count` best of (B, K) so far plus (B, K, V) of each next token; fewer where K * V is less.

    The tokens of a prefix are taken as a table of R rows and N columns. The C best of all stand in the C columns whose
    best are best, so only these are sorted: on a CPU, `topk` over all K * V takes several times as long.
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


def active_rows(stopped: Tensor) -> Tensor:
    """(B,) bool -> (B',), the rows to keep: the last ones take the places of those that leave, and no other moves."""
    rows = torch.arange(len(stopped), device=stopped.device)
    going = rows[~stopped]
    kept = rows[: len(going)].clone()
    kept[stopped[: len(going)]] = going[going >= len(going)]
    return kept
