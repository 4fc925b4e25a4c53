"""Scaled dot-product attention, multi-head attention, and the key/value cache for decoding.

    head = softmax(Q K^T / sqrt(d)) V    output = W_O [head_1; ...; head_H]    (Vaswani et al. 2017, section 3.2)

Shapes: B batch, H heads, Q queries, S keys (source or earlier target positions), K beams, D d_model, d = D/H.
Masks are bool, True = may attend.
"""

import contextlib
import math
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nmt.models.joined import Spans, attend_joined
from nmt.models.source import look_ahead_mask

WeightsRecord: TypeAlias = list[Tensor] | None
"""A list to which each attention of a forward pass appends its weights; None: nothing is recorded."""


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(Q K^T / sqrt(d)), the weights in equation (1) of Vaswani et al. 2017, in basic operations.

    (B, H, Q, d), (B, H, S, d), mask broadcastable to (B, H, Q, S) -> (B, H, Q, S).
    The weights of a query sum to 1; a query that may attend to nothing gets zeros, not NaN. Half precision is
    converted to fp32 first, because bf16 rounds a score of 10 to a multiple of 1/16. The weights have the dtype of
    `query`.

    >>> q = k = torch.eye(2)[None, None]          # two positions, orthogonal
    >>> attention_weights(q, k, torch.ones(2, 2, dtype=torch.bool).tril())[0, 0, 0].tolist()
    [1.0, 0.0]
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        scores = query.to(wide) @ key.to(wide).transpose(-2, -1) / math.sqrt(query.shape[-1])  # (B, H, Q, S)
    if mask is not None:
        # A low finite number keeps a fully masked row free of NaN; multiplying by the mask then sets the row to 0.
        # The mask is converted to numbers because torch is slow with bool on a CPU.
        may_attend = mask.to(scores.dtype)
        scores = scores + (1 - may_attend) * (torch.finfo(scores.dtype).min / 2)
    exps = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()  # torch.softmax is slow on short rows
    weights = exps / exps.sum(dim=-1, keepdim=True)
    return (weights if mask is None else weights * may_attend).to(query.dtype)


def attention_bias(mask: Tensor, like: Tensor) -> Tensor:
    """The mask as an additive bias on the scores: 0 where it is True, elsewhere a low number in the dtype of `like`."""
    return (~mask).to(like.dtype) * (torch.finfo(like.dtype).min / 2)


def _without_cudnn(is_cuda: bool) -> contextlib.AbstractContextManager[None]:
    """Keep torch's attention on a GPU from using cuDNN, which makes a new plan for every shape."""
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(kernels) if is_cuda else contextlib.nullcontext()


class Moves(NamedTuple):
    """Rows kept and rows moved by a selection, the same for every cache."""

    kept: int
    """B', the number of rows selected"""
    places: Tensor
    """(M,) the places that get another row"""
    rows: Tensor
    """(M,) the row that each of them gets"""

    @classmethod
    def of(cls, selected: Tensor) -> "Moves":
        """(B',) with B' <= B: row i is replaced by row `selected[i]`."""
        places = (selected != torch.arange(len(selected), device=selected.device)).nonzero()[:, 0]
        return cls(len(selected), places, selected[places])


class KeyValueCache:
    """The keys and values of past positions: the filled places of buffers (B, H, capacity, d), allocated once.

    A step writes only its new places and copies no earlier ones.
    """

    def __init__(self, memory: Tensor, num_heads: int, capacity: int) -> None:
        """Take the number of rows, the width, the dtype and the device from `memory`, (B, S, D)."""
        batch, _, d_model = memory.shape
        self._keys = memory.new_empty(batch, num_heads, capacity, d_model // num_heads)
        self._values = torch.empty_like(self._keys)
        self._length = 0

    def append(self, key: Tensor, value: Tensor) -> None:
        """Add n places: key and value, (B, H, n, d) each."""
        start, self._length = self._length, self._length + key.shape[2]
        self._keys[:, :, start : self._length] = key
        self._values[:, :, start : self._length] = value

    def all(self) -> tuple[Tensor, Tensor]:
        """All keys and values so far, (B, H, length, d) each."""
        return self._keys[:, :, : self._length], self._values[:, :, : self._length]

    def select(self, moves: Moves) -> None:
        """Keep the selected rows. Only rows that move are copied."""
        for store in (self._keys, self._values):
            store[moves.places, :, : self._length] = store[moves.rows, :, : self._length]
        self._keys, self._values = self._keys[: moves.kept], self._values[: moves.kept]


class MultiHeadAttention(nn.Module):
    """`num_heads` parallel attention heads, each on its own projection of width d_model / num_heads.

    >>> attention = MultiHeadAttention(d_model=8, num_heads=2)
    >>> x = torch.randn(1, 5, 8)
    >>> attention(x, x, recorded=(weights := [])).shape
    torch.Size([1, 5, 8])
    >>> weights[0].shape
    torch.Size([1, 2, 5, 5])
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"d_model ({d_model}) must be divisible by num_heads ({num_heads})")
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | Spans | None = None,
        is_causal: bool = False,
        recorded: WeightsRecord = None,
    ) -> Tensor:
        """Each position of `x` attends to `memory` (which is `x` itself in self-attention).

        (B, Q, D), (B, S, D), mask broadcastable to (B, H, Q, S), or spans of joined sentences -> (B, Q, D).
        `is_causal` applies a look-ahead mask and lets torch choose its fastest kernel; `mask` must then be None, or
        spans. The attention weights, (B, H, Q, S), are appended to `recorded`; not those of joined sentences.
        """
        query, (key, value) = self.queries(x), self.keys_values(memory)
        if recorded is not None and not isinstance(mask, Spans):
            causal_mask = look_ahead_mask(x.shape[1], x.device) if is_causal else mask
            recorded.append(attention_weights(query, key, causal_mask))
        return self.attend(query, key, value, mask, is_causal)

    def queries(self, x: Tensor) -> Tensor:
        """(B, Q, D) -> (B, H, Q, d)"""
        return self._split(self.query(x))

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) -> keys and values, (B, H, S, d) each"""
        return self._split(self.key(memory)), self._split(self.value(memory))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | Spans | None = None, is_causal: bool = False
    ) -> Tensor:
        """(B, H, Q, d), keys and values (B, H, S, d) -> (B, Q, D)"""
        # fp32 on a CPU, where the backward pass of torch's kernel takes 3 to 8 times as long in bf16.
        wide = torch.promote_types(query.dtype, torch.float32) if query.is_cpu else query.dtype
        parts = query.to(wide), key.to(wide), value.to(wide)
        with torch.autocast(query.device.type, enabled=False), _without_cudnn(query.is_cuda):
            if isinstance(mask, Spans):
                heads = attend_joined(*parts, mask, is_causal)
            else:
                heads = F.scaled_dot_product_attention(*parts, mask, is_causal=is_causal)  # (B, H, Q, d)
        return self._merge(heads.to(query.dtype))

    def attend_cached(self, x: Tensor, cache: KeyValueCache, bias: Tensor) -> Tensor:
        """`forward` for a decoding step, in as few operations as possible: (B, K, D) -> (B, K, D).

        `bias` is an `attention_bias`, broadcastable to (B, H, K, length of the cache).
        """
        keys, values = cache.all()
        query = self.queries(x)  # (B, H, K, d)
        scores = query @ keys.transpose(-2, -1)  # (B, H, K, length)
        weights = torch.add(bias, scores, alpha=query.shape[-1] ** -0.5).softmax(dim=-1)
        return self._merge(weights @ values)

    def forward_written_out(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The reference for `forward`, as in the paper: output (B, Q, D) and attention weights (B, H, Q, S)."""
        key, value = self.keys_values(memory)
        weights = attention_weights(self.queries(x), key, mask)
        return self._merge(weights @ value), weights

    def _split(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, self.num_heads, -1).transpose(1, 2)  # (B, H, length, d)

    def _merge(self, heads: Tensor) -> Tensor:
        merged: Tensor = self.output(heads.transpose(1, 2).flatten(2))  # (B, Q, H * d) -> (B, Q, D)
        return merged
