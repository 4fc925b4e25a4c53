"""Position embeddings, and the first layer of a source of vectors or images.

    vectors  ->  [two convolutions over time, stride 2]           -> Linear -> LayerNorm -> + positions
    patches  ->  [convolutions over the picture, stride 2 each]   -> Linear -> LayerNorm -> + positions

Without convolutions, a Transformer encoder over patches is that of ViT (Dosovitskiy et al. 2021, "An Image Is Worth
16x16 Words"), without its class token.

Shapes: B batch, T length, S source length, F features, D d_model, G patches in a row or column, P pixels in a row of a
patch.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.config.inference import PositionKind
from nmt.config.source import ImageSource, VectorSource
from nmt.models.dropout import Dropout
from nmt.models.source import Source


class PositionEmbeddings(nn.Module):
    """Vectors that are added to the states, one for each position: fixed sine waves, or learned.

    >>> PositionEmbeddings(d_model=4, max_positions=10)(torch.zeros(1, 2, 4))[0, 0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """

    table: Tensor
    """(max_positions, D)"""

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

    def initialise(self) -> None:
        """Draw the first values of learned vectors."""
        if self.kind == "learned":
            nn.init.normal_(self.table, std=0.02)

    def forward(self, x: Tensor, position: int | Tensor | None = None) -> Tensor:
        """(B, T, D) at positions 0 to T - 1, all at one `position`, or each at its own, (T,) -> (B, T, D)"""
        return x + (self.table[: x.shape[1]] if position is None else self.table[position])

    def extended(self, length: int) -> Tensor:
        """The table with at least `length` rows if its vectors are computed; learned ones cannot be extended."""
        if self.kind == "learned" or len(self.table) >= length:
            return self.table
        return sinusoidal_positions(length, self.table.shape[1], self.kind)


def sinusoidal_positions(length: int, d_model: int, kind: PositionKind = "sinusoidal") -> Tensor:
    """(length, D): PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same angle (section 3.5).

    Each pair (2i, 2i+1) rotates by a fixed angle per position, so PE(pos + k) is a rotation of PE(pos)
    that depends only on k.

    `sin_then_cos` has the same numbers in another order: all sines, then all cosines, as Hugging Face and CTranslate2
    have them. `marian` has this order, too, but divides by D/2 - 1 in the exponent: 10000^(i/(D/2-1)), so that the
    slowest wave is 10000 times as long as the fastest (Marian's AddPositionalEmbeddings). `sinusoidal_2d` is for G * G
    patches, row by row: the first D/2 numbers encode a patch's row, the others its column.
    """
    if kind == "sinusoidal_2d":
        grid = math.isqrt(length)
        line = sinusoidal_positions(grid, d_model // 2)  # (G, D/2)
        rows, columns = line[:, None].expand(-1, grid, -1), line[None].expand(grid, -1, -1)  # (G, G, D/2)
        return torch.cat([rows, columns], dim=2).flatten(0, 1)  # (G * G, D)
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


class VectorLayer(nn.Module):
    """The first layer of a source of vectors, in place of an embedding.

    Vectors have no `</s>`. The states have about unit variance, like scaled embeddings.
    """

    def __init__(self, source: VectorSource | ImageSource, d_model: int, max_positions: int, dropout: float) -> None:
        super().__init__()
        self.stem: TimeStem | PatchStem | None = None
        width = source.width
        if source.convolution:
            width = d_model
            self.stem = PatchStem(source, d_model) if source.type == "images" else TimeStem(source.features, d_model)
        self.linear = nn.Linear(width, d_model)
        self.norm = nn.LayerNorm(d_model)
        length = source.grid**2 if source.type == "images" else max_positions
        self.positions = PositionEmbeddings(d_model, length, source.positions)
        self.dropout = Dropout(dropout)

    def forward(self, source: Source) -> Source:
        """(B, S, F) -> (B, S', D) and its mask; S' is S, or S / 4 rounded up after convolutions over time."""
        values, mask = source.values.to(self.norm.weight.dtype), source.mask
        if self.stem is not None:
            values, mask = self.stem(values, mask)
        return Source(self.dropout(self.positions(self.norm(self.linear(values)))), mask)


class TimeStem(nn.Module):
    """Two convolutions over time with width 3 and stride 2, each with GELU, as in speech recognition.

    Padding is set to zero before each, so that it changes no state.
    """

    def __init__(self, features: int, d_model: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(features, d_model, 3, stride=2, padding=1)
        self.second = nn.Conv1d(d_model, d_model, 3, stride=2, padding=1)

    def forward(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, F), (B, S) -> (B, S', D), (B, S'), with S' = S / 4 rounded up"""
        for convolution in (self.first, self.second):
            values = values * mask[:, :, None]
            values = F.gelu(convolution(values.transpose(1, 2))).transpose(1, 2)
            mask = mask[:, ::2]  # a state is real if the vector in its middle is
        return values, mask


class PatchStem(nn.Module):
    """The patches of an image, reassembled and reduced by log2(P) convolutions with width 3 and stride 2.

    Each state, one a patch, also sees the neighbouring patches (Xiao et al. 2021, "Early Convolutions Help Transformers
    See Better"). All convolutions but the last are followed by GELU.
    """

    def __init__(self, source: ImageSource, d_model: int) -> None:
        super().__init__()
        self.grid, self.patch_size = source.grid, source.patch_size
        steps = source.patch_size.bit_length() - 1
        widths = [3, *(max(1, d_model >> (steps - step)) for step in range(1, steps + 1))]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1) for before, after in itertools.pairwise(widths)
        )

    def forward(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, G * G, P * P * 3), (B, G * G) -> (B, G * G, D), (B, G * G)"""
        batch, grid, size = len(values), self.grid, self.patch_size
        tiles = values.view(batch, grid, grid, size, size, 3)
        image = tiles.permute(0, 5, 1, 3, 2, 4).reshape(batch, 3, grid * size, grid * size)
        for number, convolution in enumerate(self.convolutions):
            image = convolution(F.gelu(image) if number else image)  # (B, width, half the size, half the size)
        return image.flatten(2).transpose(1, 2), mask
