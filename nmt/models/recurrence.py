"""Recurrent layers: GRU and LSTM, with torch's kernels for whole sequences and single steps written out.

Shapes: B batch, K beams, S length, F input width, D width of the states, G gates (3 in a GRU, 4 in an LSTM).
"""

import contextlib
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Cell = Literal["gru", "lstm"]
States = tuple[Tensor, ...]
"""The state of a layer: (h,) in a GRU, (h, c) in an LSTM, each (..., D)."""
NUM_GATES = {"gru": 3, "lstm": 4}
NUM_STATES = {"gru": 1, "lstm": 2}


class Recurrence(nn.Module):
    """One layer in one direction: an `nn.GRU` or `nn.LSTM` for sequences, and its single step.

    GRU (Cho et al. 2014), with the reset gate applied after the product, as torch, cuDNN and oneDNN have it:

        r = sigmoid(W_r x + U_r h)      z = sigmoid(W_z x + U_z h)      n = tanh(W_n x + r * (U_n h))
        h' = (1 - z) * n + z * h

    LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000):

        i, f, o = sigmoid(W x + U h) each      g = tanh(W_g x + U_g h)
        c' = f * c + i * g                     h' = o * tanh(c')

    Each product has a bias. Initialisation: for each gate, W is Xavier-uniform and U orthogonal (as in Bahdanau et al.
    2015). Biases are zero, but 1 in the forget gate, so that an LSTM remembers at first (Jozefowicz et al. 2015).
    """

    def __init__(self, cell: Cell, d_input: int, d_model: int) -> None:
        super().__init__()
        self.cell = cell
        self.kernel = (nn.GRU if cell == "gru" else nn.LSTM)(d_input, d_model, batch_first=True)
        for name, parameter in self.kernel.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
                continue
            for gate in parameter.data.chunk(NUM_GATES[cell]):  # (D, F) or (D, D)
                if name.startswith("weight_ih"):
                    nn.init.xavier_uniform_(gate)
                elif not gate.is_meta:  # on the meta device, torch would import its compiler for it, for seconds
                    nn.init.orthogonal_(gate)
        self.packed_maps: tuple[nn.Module, nn.Module] | None = None  # W and U of a step, once they are packed
        if cell == "lstm":
            self.input_map[1].data[d_model : 2 * d_model] = 1

    @property
    def input_map(self) -> tuple[Tensor, Tensor]:
        """W (G D, F) and its bias (G D,)."""
        weight, _, bias, _ = self.kernel.all_weights[0]
        return weight, bias

    @property
    def recurrent_map(self) -> tuple[Tensor, Tensor]:
        """U (G D, D) and its bias (G D,)."""
        _, weight, _, bias = self.kernel.all_weights[0]
        return weight, bias

    def forward(self, x: Tensor, first: States | None = None) -> Tensor:
        """All steps at once, from zeros or from `first`, (B, D) each: (B, S, F) -> h after each step, (B, S, D)."""
        start = None
        if first is not None:
            parts = [part[None].to(x.dtype).contiguous() for part in first]  # (1, B, D) each
            start = parts[0] if self.cell == "gru" else tuple(parts)
        # cuDNN computes gradients only in training mode.
        without_cudnn = x.is_cuda and torch.is_grad_enabled() and not self.training
        with torch.backends.cudnn.flags(enabled=False) if without_cudnn else contextlib.nullcontext():
            states: Tensor = self.kernel(x, start)[0]
        return states

    def products(self, x: Tensor) -> Tensor:
        """W x and its bias: (..., F) -> (..., G D)"""
        return F.linear(x, *self.input_map) if self.packed_maps is None else self.packed_maps[0](x)

    def step(self, products: Tensor, states: States) -> States:
        """The states after one more input x, given its `products`: (B, K, G D), states (B, K, D) -> (B, K, D)"""
        h = states[0]
        recurrent = F.linear(h, *self.recurrent_map) if self.packed_maps is None else self.packed_maps[1](h)
        return _gru(products, recurrent, *states) if self.cell == "gru" else _lstm(products, recurrent, *states)


def _gru(products: Tensor, recurrent: Tensor, h: Tensor) -> States:
    """W x and U h, (..., 3 D) each, h (..., D) -> h' (..., D)"""
    width = h.shape[-1]
    (gates, n_input), (gates_h, n_h) = (torch.split(part, [2 * width, width], dim=-1) for part in (products, recurrent))
    r, z = torch.sigmoid(gates + gates_h).chunk(2, dim=-1)
    n = torch.tanh(torch.addcmul(n_input, r, n_h))
    return (n + z * (h - n),)


def _lstm(products: Tensor, recurrent: Tensor, h: Tensor, c: Tensor) -> States:
    """W x and U h, (..., 4 D) each, c (..., D) -> h' and c' (..., D)"""
    i, f, g, o = (products + recurrent).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class Bidirectional(nn.Module):
    """A layer that reads its input in both directions, with states of width D/2 in each.

    Sources are padded on the right, and each is reversed within its own length. So padding follows the real positions
    in both directions, and no state of a real position depends on it.
    """

    def __init__(self, cell: Cell, d_input: int, d_model: int) -> None:
        super().__init__()
        self.rightward = Recurrence(cell, d_input, d_model // 2)
        self.leftward = Recurrence(cell, d_input, d_model // 2)

    def forward(self, x: Tensor, reversal: Tensor) -> Tensor:
        """(B, S, F), `reversal_within` the lengths -> (B, S, D), at padded positions undefined"""
        leftward = reordered(self.leftward(reordered(x, reversal)), reversal)
        return torch.cat([self.rightward(x), leftward], dim=-1)


def reversal_within(mask: Tensor) -> Tensor:
    """The order of a flattened batch in which each row's real positions are reversed: (B, S) bool -> (B * S,) int64.

    >>> reversal_within(torch.tensor([[True, True, True], [True, True, False]])).tolist()
    [2, 1, 0, 4, 3, 5]
    """
    rows, length = mask.shape
    positions = torch.arange(length, device=mask.device)
    reverse = mask.sum(dim=1, keepdim=True) - 1 - positions  # (B, S), negative at padding
    starts = torch.arange(0, rows * length, length, device=mask.device)[:, None]
    return (starts + torch.where(mask, reverse, positions)).flatten()


def reordered(x: Tensor, order: Tensor) -> Tensor:
    """The positions of a batch in another order: (B, S, F), (B * S,) -> (B, S, F)"""
    return x.flatten(0, 1).index_select(0, order).view_as(x)
