"""Joined sentences: one after the other in a row of N positions, instead of one a row with padding.

All batches of a training then have the same shape, so a GPU can capture its work once and repeat it. Only attention and
positions need to know where a sentence begins; all other parts of a Transformer treat each position alone.

Shapes: R rows (2 with R-Drop), N positions of a row, P sentences of a row, H heads, Q queries and S keys of a row,
D d_model, d = D/H.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class Joined(NamedTuple):
    """The positions at which the pairs of a row begin.

    Sentence p has the positions `starts[p]` to `starts[p + 1] - 1` of its side. The first starts at 0. The last
    sentences of a row may be empty: they start and end at N.
    """

    src_starts: Tensor
    """(P + 1,) int32"""
    tgt_starts: Tensor
    """(P + 1,) int32"""
    max_length: int
    """No sentence has more positions. A CUDA graph holds this number, so it is the same for all batches."""

    def to(self, device: torch.device) -> "Joined":
        """The starts on another device; the copy is asynchronous if the memory is pinned."""
        src_starts, tgt_starts = (tensor.to(device, non_blocking=True) for tensor in self[:2])
        return Joined(src_starts, tgt_starts, self.max_length)


class Spans(NamedTuple):
    """In place of a mask: sentence p of the queries may attend to sentence p of the keys, over all rows."""

    queries: Tensor
    """(R * P + 1,) int32, the starts of the rows' sentences, one row after the other"""
    keys: Tensor
    """(R * P + 1,) int32"""
    max_length: int

    @classmethod
    def of(cls, x: Tensor, x_starts: Tensor, memory: Tensor, memory_starts: Tensor, max_length: int) -> "Spans":
        """The spans of queries from `x`, (R, Q, D), and keys from `memory`, (R, S, D); R rows with the same starts.

        In self-attention, both starts are equal, but two tensors: torch's compiler refuses one that is given twice.
        """
        return cls(_starts_of_rows(x_starts, x), _starts_of_rows(memory_starts, memory), max_length)


def _starts_of_rows(starts: Tensor, states: Tensor) -> Tensor:
    """The starts in rows that follow one another: (P + 1,), (R, N, D) -> (R * P + 1,)"""
    rows, length = states.shape[:2]
    begins = length * torch.arange(rows, dtype=starts.dtype, device=starts.device)[:, None]  # (R, 1)
    return F.pad((begins + starts[1:]).flatten(), (1, 0))


def sentences_of(starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The sentence that each of N = `length` positions belongs to, and its position in the sentence, (N,) each.

    >>> sentences_of(torch.tensor([0, 2, 5, 5], dtype=torch.int32), 5)
    (tensor([0, 0, 1, 1, 1]), tensor([0, 1, 0, 1, 2]))
    """
    places = torch.arange(length, device=starts.device)
    sentences = torch.bucketize(places, starts.long(), right=True) - 1
    return sentences, places - starts[sentences]


def attend_joined(query: Tensor, key: Tensor, value: Tensor, spans: Spans, is_causal: bool) -> Tensor:
    """Scaled dot-product attention within each sentence: (R, H, Q, d), keys and values (R, H, S, d) -> (R, H, Q, d)."""
    queries, keys, values = (part.transpose(1, 2).flatten(0, 1) for part in (query, key, value))  # (R * N, H, d)
    attend = attend_padded if query.is_cpu else _attend_in_blocks
    heads = attend(queries, keys, values, spans, is_causal)  # (R * Q, H, d)
    return heads.view(query.shape[0], -1, *heads.shape[1:]).transpose(1, 2)


def attend_padded(query: Tensor, key: Tensor, value: Tensor, spans: Spans, is_causal: bool) -> Tensor:
    """The reference, for any device: pad the sentences, attend, and take the real positions, (R * Q, H, d)."""

    def padded(x: Tensor, starts: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        places = sentences_of(starts, len(x))
        rows = x.new_zeros(len(starts) - 1, spans.max_length, *x.shape[1:]).index_put(places, x)
        return rows.transpose(1, 2), places  # (R * P, H, max_length, d)

    queries, places = padded(query, spans.queries)
    keys, values = (padded(x, spans.keys)[0] for x in (key, value))
    # A causal mask hides the padding, too. Empty sentences may attend to a zero, so that they get no NaN.
    lengths = spans.keys.diff().clamp(min=1)
    mask = None if is_causal else torch.arange(spans.max_length, device=query.device) < lengths[:, None, None, None]
    heads = F.scaled_dot_product_attention(queries, keys, values, mask, is_causal=is_causal)
    return heads.transpose(1, 2)[places]


class _BlockAttention(torch.autograd.Function):
    """The memory-efficient kernel of torch's attention on GPUs, with starts instead of a mask.

    It computes blocks of 64 x 64 scores, which suits sentences better than the 128 x 128 of FlashAttention-2. Its
    backward pass is called directly: torch's own choice splits the keys of sentences of more than 128 positions, and
    must first set a workspace of hundreds of megabytes to zero. The operations are internal to torch, so `can_join`
    tests them first.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        of_queries: Tensor,
        of_keys: Tensor,
        max_length: int,
        mask: int,
    ) -> Tensor:
        """(R * Q, H, d), (R * S, H, d) twice, starts -> (R * Q, H, d); `mask` is 1 for a look-ahead mask, else 0"""
        parts = query[None], key[None], value[None]
        heads, lse, seed, offset, *_ = torch.ops.aten._efficient_attention_forward(
            *parts, None, of_queries, of_keys, max_length, max_length, 0.0, mask, True
        )
        ctx.save_for_backward(*parts, heads, of_queries, of_keys, lse, seed, offset)
        ctx.max_length, ctx.mask = max_length, mask
        result: Tensor = heads[0]
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_heads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, heads, of_queries, of_keys, lse, seed, offset = ctx.saved_tensors
        gradients = torch.ops.aten._efficient_attention_backward(
            d_heads[None].contiguous(), query, key, value, None, heads, of_queries, of_keys, ctx.max_length,
            ctx.max_length, lse, 0.0, seed, offset, ctx.mask, False, num_splits_key=1,
        )  # fmt: skip
        return *(gradient[0] for gradient in gradients[:3]), None, None, None, None


_block_attention: Callable[..., Tensor] = _BlockAttention.apply


def _attend_in_blocks(query: Tensor, key: Tensor, value: Tensor, spans: Spans, is_causal: bool) -> Tensor:
    return _block_attention(query, key, value, *spans, int(is_causal))


@functools.cache
def can_join(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """True if heads of this width can attend to joined sentences on this device: its kernel equals the reference."""
    if device.type != "cuda":
        return device.type == "cpu"
    first, second = torch.tensor([[0, 1, 150, 192, 192], [0, 70, 72, 192, 192]], dtype=torch.int32, device=device)
    generator = torch.Generator(device).manual_seed(1)
    drawn = torch.randn(4, 192, 2, width, generator=generator, device=device).to(dtype)
    query, key, value = (part.clone().requires_grad_() for part in drawn[:3])
    try:
        for spans, is_causal in ((Spans(first, second, 149), False), (Spans(first, first.clone(), 149), True)):
            results = []
            for attend in (_attend_in_blocks, attend_padded):
                heads = attend(query, key, value, spans, is_causal)
                results.append([heads, *torch.autograd.grad(heads, (query, key, value), drawn[3])])
            if not all((one - other).norm() < 0.02 * other.norm() for one, other in zip(*results, strict=True)):
                return False
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    return True
