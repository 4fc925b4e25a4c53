"""Position embeddings: fixed sine waves, in one or two dimensions and in three layouts, or learned vectors.

Shapes: B batch, T length, D d_model, G rows and columns of a grid.
"""

import torch
from torch import Tensor, nn

from nmt.config.layouts import PositionKind


def sinusoidal_positions(length: int, d_model: int, kind: PositionKind = "sinusoidal") -> Tensor:
    """(length, D): PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same angle (section 3.5).

    Each pair (2i, 2i+1) rotates by a fixed angle per position, so PE(pos + k) is a rotation of PE(pos)
    that depends only on k.

    `halves` has the same numbers in another order: all sines, then all cosines, as Hugging Face and CTranslate2 have
    them. `marian` has this order, too, but divides by D/2 - 1 in the exponent: 10000^(i/(D/2-1)), so that the slowest
    wave is 10000 times as long as the fastest (Marian's AddPositionalEmbeddings).
    """
    positions = torch.arange(length, dtype=torch.float64)[:, None]
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model  # (D/2,): 2i / D
    if kind == "marian":
        exponents = torch.arange(d_model // 2, dtype=torch.float64) / (d_model // 2 - 1)
    frequencies = 10000.0**-exponents  # (D/2,)
    angles = positions * frequencies  # (length, D/2)
    waves = [angles.sin(), angles.cos()]
    if kind != "sinusoidal":
        return torch.cat(waves, dim=1).float()  # (length, D)
    return torch.stack(waves, dim=-1).flatten(1).float()  # (length, D)


def sinusoidal_positions_2d(grid: int, d_model: int) -> Tensor:
    """(G * G, D), row by row: the first D/2 numbers are `sinusoidal_positions` of the row, the others of the column."""
    one = sinusoidal_positions(grid, d_model // 2)  # (G, D/2)
    rows, columns = one[:, None].expand(-1, grid, -1), one[None].expand(grid, -1, -1)  # (G, G, D/2)
    return torch.cat([rows, columns], dim=2).flatten(0, 1)  # (G * G, D)


class PositionalEncoding(nn.Module):
    """Adds a sinusoidal or learned vector to the state at each position.

    >>> PositionalEncoding(d_model=4, max_positions=10)(torch.zeros(1, 2, 4))[0, 0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """

    table: Tensor

    def __init__(self, d_model: int, max_positions: int, kind: PositionKind = "sinusoidal") -> None:
        super().__init__()
        self.kind = kind
        if kind == "learned":
            self.table = nn.Parameter(torch.zeros(max_positions, d_model))
        else:
            table = torch.empty(max_positions, d_model)
            if not table.is_meta:  # on the meta device, torch would import its compiler to fill it, for seconds
                table = sinusoidal_positions(max_positions, d_model, kind)
            self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        return x + self.table[: x.shape[1]]
