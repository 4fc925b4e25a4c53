"""Attention against the paper's equations in numpy, against torch's own layer, and by hand.

Shapes: B batch, H heads, Q queries, S keys, D d_model, d = D/H.
"""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmt.models.attention import (
    KeyValueCache,
    Moves,
    MultiHeadAttention,
    _without_cudnn,
    attention_bias,
    attention_weights,
)
from nmt.models.source import for_heads, look_ahead_mask

B, H, Q, S, D = 3, 4, 5, 7, 24
HEAD_DIM = D // H

Array = NDArray[np.float64]


def array(tensor: Tensor) -> Array:
    return tensor.detach().double().numpy()


def tensor(values: Array) -> Tensor:
    return torch.from_numpy(values).float()


def make_attention() -> MultiHeadAttention:
    """With nonzero biases, so that a missing one is noticed."""
    attention = MultiHeadAttention(D, H)
    for bias in (attention.query.bias, attention.key.bias, attention.value.bias, attention.output.bias):
        nn.init.normal_(bias)
    return attention.eval()


def masks() -> dict[str, Tensor | None]:
    """Each broadcasts to (B, H, Q, S) and leaves every query something to attend to."""
    padding = torch.arange(S) < torch.tensor([[S], [4], [1]])  # (B, S)
    scattered = torch.rand(B, H, Q, S, generator=torch.Generator().manual_seed(3)) < 0.4
    scattered[..., 2] = True
    return {"none": None, "padding": for_heads(padding), "look-ahead": look_ahead_mask(S)[:Q], "scattered": scattered}


def paper_attention(query: Array, key: Array, value: Array, allowed: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Equation (1) for one head and one query: (d,), (S, d), (S, d), (S,) -> (d,) and the weights (S,)."""
    weights = np.zeros(len(key))
    for index in range(len(key)):
        if allowed[index]:
            weights[index] = math.exp(sum(query * key[index]) / math.sqrt(len(query)))
    if weights.sum() > 0:
        weights /= weights.sum()
    gathered = np.zeros(len(query))
    for index in range(len(key)):
        gathered += weights[index] * value[index]
    return gathered, weights


def paper_multi_head(
    attention: MultiHeadAttention, x: Tensor, memory: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Section 3.2.2: Concat(head_1, ..., head_H) W^O, and the weights; (B, Q, D) and (B, H, Q, S)."""
    allowed = np.ones((len(x), H, x.shape[1], memory.shape[1]), dtype=bool)
    if mask is not None:
        allowed &= mask.numpy()

    def projected(linear: nn.Linear, values: Tensor) -> Array:
        result: Array = array(values) @ array(linear.weight).T + array(linear.bias)
        return result

    queries = projected(attention.query, x)  # (B, Q, D)
    keys, values = projected(attention.key, memory), projected(attention.value, memory)  # (B, S, D)
    heads, weights = np.zeros(queries.shape), np.zeros(allowed.shape)
    for batch, head, place in np.ndindex(allowed.shape[:3]):
        own = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)  # this head's columns of W^Q, W^K, W^V
        heads[batch, place, own], weights[batch, head, place] = paper_attention(
            queries[batch, place, own], keys[batch, :, own], values[batch, :, own], allowed[batch, head, place]
        )
    return tensor(heads @ array(attention.output.weight).T + array(attention.output.bias)), tensor(weights)


@pytest.mark.parametrize("name", ["none", "padding", "look-ahead", "scattered"])
def test_fused_attention_and_the_formula_written_out_are_the_papers_equation(name: str) -> None:
    attention, mask = make_attention(), masks()[name]
    x, memory = torch.randn(B, Q, D), torch.randn(B, S, D)
    expected, expected_weights = paper_multi_head(attention, x, memory, mask)
    written_out, weights = attention.forward_written_out(x, memory, mask)
    recorded: list[torch.Tensor] = []
    torch.testing.assert_close(attention(x, memory, mask, recorded=recorded), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(written_out, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(recorded, [expected_weights], rtol=1e-4, atol=1e-5)


def test_is_causal_equals_the_look_ahead_mask() -> None:
    attention, x = make_attention(), torch.randn(B, S, D)
    expected, _ = paper_multi_head(attention, x, x, look_ahead_mask(S))
    torch.testing.assert_close(attention(x, x, is_causal=True), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(attention(x, x, look_ahead_mask(S)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
def test_gradients_are_those_of_the_formula_written_out(mask: str) -> None:
    module = MultiHeadAttention(8, 2)
    x = torch.randn(3, 6, 8, requires_grad=True)
    padding = for_heads(torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).bool())
    allowed = {"none": None, "padding": padding, "causal": look_ahead_mask(6)}[mask]

    def gradients(output: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output.square().sum(), [x, *module.parameters()])

    fused = module(x, x, None, is_causal=True) if mask == "causal" else module(x, x, allowed)
    written_out, _ = module.forward_written_out(x, x, allowed)
    for one, other in zip(gradients(fused), gradients(written_out), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_half_precision_on_a_cpu_is_computed_in_fp32() -> None:
    """Values that bf16 holds exactly: what comes out is the formula in fp64, rounded to bf16 once."""
    query, key, value = (torch.randn(2, 2, 40, 8).bfloat16() for _ in range(3))
    module = MultiHeadAttention(16, 2).bfloat16()
    with torch.no_grad():
        module.output.weight.copy_(torch.eye(16))
        nn.init.zeros_(module.output.bias)
    scores = query.double() @ key.double().transpose(-2, -1) / math.sqrt(8)
    expected = (scores.softmax(-1) @ value.double()).transpose(1, 2).flatten(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        heads = module.attend(query, key, value)
    assert heads.dtype == torch.bfloat16
    assert ((heads.double() - expected).abs() <= expected.abs() * 2**-8 + 1e-6).all()


@pytest.mark.parametrize("name", ["none", "padding", "look-ahead", "scattered"])
def test_weights_sum_to_one_over_the_allowed_positions_and_are_zero_elsewhere(name: str) -> None:
    mask = masks()[name]
    weights = attention_weights(5 * torch.randn(B, H, Q, HEAD_DIM), torch.randn(B, H, S, HEAD_DIM), mask)
    allowed = torch.ones(B, H, Q, S, dtype=torch.bool) if mask is None else mask.expand(B, H, Q, S)
    assert weights.shape == (B, H, Q, S)
    assert (weights[allowed] > 0).all()
    assert (weights[~allowed] == 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(B, H, Q))


def test_weights_by_hand() -> None:
    """d = 4, so the scores are halved: q1 k = (2 ln 3, 0) / 2 -> 3 : 1; q2 k = (0, 2 ln 4) / 2 -> 1 : 4."""
    query = torch.tensor([[2 * math.log(3), 0.0, 0.0, 0.0], [0.0, 2 * math.log(4), 0.0, 0.0]])[
        None, None
    ]  # (1, 1, 2, 4)
    key = torch.tensor([[1.0, 0.0, 5.0, 0.0], [0.0, 1.0, 0.0, 5.0]])[None, None]  # (1, 1, 2, 4)
    torch.testing.assert_close(attention_weights(query, key)[0, 0], torch.tensor([[0.75, 0.25], [0.2, 0.8]]))
    causal = attention_weights(query, key, look_ahead_mask(2))[0, 0]
    torch.testing.assert_close(causal, torch.tensor([[1.0, 0.0], [0.2, 0.8]]))
    only_second = attention_weights(query, key, torch.tensor([False, True]))[0, 0]
    torch.testing.assert_close(only_second, torch.tensor([[0.0, 1.0], [0.0, 1.0]]))


@pytest.mark.parametrize("training", [False, True])
def test_a_fully_masked_row_gives_no_nan(training: bool) -> None:
    attention = make_attention().train(training)
    x, memory = torch.randn(B, Q, D, requires_grad=True), torch.randn(B, S, D)
    mask = torch.ones(B, 1, Q, S, dtype=torch.bool)
    mask[0] = False  # a sentence with every position masked
    mask[1, :, 2] = False  # one query of another
    expected, _ = paper_multi_head(attention, x, memory, mask)
    fused = attention(x, memory, mask)
    written_out, weights = attention.forward_written_out(x, memory, mask)
    torch.testing.assert_close(fused, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(written_out, expected, rtol=1e-4, atol=1e-5)
    assert (weights[0] == 0).all()
    assert (weights[1, :, 2] == 0).all()
    # Nothing is attended to, so only the output's bias is left; the neighbours do attend.
    torch.testing.assert_close(fused[1, 2], attention.output.bias)
    torch.testing.assert_close(weights[1, :, 1].sum(dim=-1), torch.ones(H))
    for result in (fused, written_out):
        (gradient,) = torch.autograd.grad(result.square().sum(), x)
        assert gradient.isfinite().all()


def test_masked_values_have_no_influence_at_any_size() -> None:
    attention = make_attention()
    x, memory = torch.randn(B, Q, D), torch.randn(B, S, D)
    mask = for_heads(torch.arange(S) < torch.tensor([[S], [4], [1]]))  # (B, 1, 1, S)
    louder = torch.where(mask[:, 0, 0, :, None], memory, torch.full_like(memory, 1e4))
    torch.testing.assert_close(attention(x, louder, mask), attention(x, memory, mask))
    torch.testing.assert_close(
        attention.forward_written_out(x, louder, mask)[0], attention.forward_written_out(x, memory, mask)[0]
    )


def test_self_attention_without_positions_permutes_with_its_input() -> None:
    attention, x = make_attention(), torch.randn(B, S, D)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    torch.testing.assert_close(attention(x[:, order], x[:, order]), attention(x, x)[:, order])
    torch.testing.assert_close(
        attention.forward_written_out(x[:, order], x[:, order])[1],
        attention.forward_written_out(x, x)[1][:, :, order][..., order],
    )


def test_the_order_of_the_memory_is_irrelevant() -> None:
    attention, x, memory = make_attention(), torch.randn(B, Q, D), torch.randn(B, S, D)
    torch.testing.assert_close(attention(x, memory.flip(1)), attention(x, memory))


@pytest.mark.parametrize("seed", range(3))
def test_multi_head_attention_equals_torchs_with_the_same_weights(seed: int) -> None:
    torch.manual_seed(seed)
    attention = make_attention()
    theirs = nn.MultiheadAttention(D, H, batch_first=True).eval()
    with torch.no_grad():
        linears = (attention.query, attention.key, attention.value)
        theirs.in_proj_weight.copy_(torch.cat([linear.weight for linear in linears]))  # (3 D, D)
        theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in linears]))  # (3 D,)
        theirs.out_proj.weight.copy_(attention.output.weight)
        theirs.out_proj.bias.copy_(attention.output.bias)
    x, memory = torch.randn(B, Q, D), torch.randn(B, S, D)
    may_attend = torch.arange(S) < torch.tensor([[S], [4], [1]])  # (B, S)
    # In torch's key_padding_mask and attn_mask, True means "may not".
    expected, expected_weights = theirs(x, memory, memory, key_padding_mask=~may_attend, average_attn_weights=False)
    recorded: list[torch.Tensor] = []
    found = attention(x, memory, for_heads(may_attend), recorded=recorded)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(recorded, [expected_weights])
    expected_causal, _ = theirs(x, x, x, attn_mask=~look_ahead_mask(Q))
    torch.testing.assert_close(attention(x, x, is_causal=True), expected_causal, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("places", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_cache_holds_the_slices_of_a_plain_tensor(seed: int, places: int) -> None:
    random = torch.Generator().manual_seed(seed)
    rows, steps = 6, 8
    cache = KeyValueCache(torch.zeros(rows, 1, D), H, steps * places)
    keys = values = torch.empty(rows, H, 0, HEAD_DIM)
    for _ in range(steps):
        key = torch.randn(rows, H, places, HEAD_DIM, generator=random)
        value = torch.randn(rows, H, places, HEAD_DIM, generator=random)
        keys, values = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)  # (rows, H, length, d)
        cache.append(key, value)
        cached_keys, cached_values = cache.all()
        assert torch.equal(cached_keys, keys)
        assert torch.equal(cached_values, values)
        # Rows are repeated, swapped and dropped, and some sentences finish.
        left = rows - int(torch.randint(0, 2, (), generator=random)) if rows > 2 else rows
        chosen = torch.randint(0, rows, (left,), generator=random)
        cache.select(Moves.of(chosen))
        keys, values, rows = keys[chosen], values[chosen], left


def test_selecting_rows_of_the_cache_reads_all_before_it_writes_any() -> None:
    cache = KeyValueCache(torch.zeros(3, 1, 1), num_heads=1, capacity=2)
    cache.append(torch.tensor([10.0, 20.0, 30.0]).view(3, 1, 1, 1), torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1))
    cache.select(Moves.of(torch.tensor([2, 0, 1])))
    keys, values = cache.all()
    assert keys.flatten().tolist() == [30.0, 10.0, 20.0]
    assert values.flatten().tolist() == [3.0, 1.0, 2.0]


def test_cached_keys_and_values_attend_as_the_whole_prefix_does() -> None:
    attention, x = make_attention(), torch.randn(B, S, D)
    expected, _ = paper_multi_head(attention, x, x, look_ahead_mask(S))
    cache = KeyValueCache(x, H, S)
    for place in range(S):
        now = x[:, place : place + 1]  # (B, 1, D)
        cache.append(*attention.keys_values(now))
        attended = attention.attend_cached(now, cache, torch.zeros(()))  # (B, 1, D)
        torch.testing.assert_close(attended[:, 0], expected[:, place], rtol=1e-4, atol=1e-5)


def test_a_bias_equals_a_mask() -> None:
    attention, x, memory = make_attention(), torch.randn(B, Q, D), torch.randn(B, S, D)
    cache = KeyValueCache(memory, H, S)
    cache.append(*attention.keys_values(memory))
    for mask in masks().values():
        allowed = torch.ones(S, dtype=torch.bool) if mask is None else mask
        expected, _ = paper_multi_head(attention, x, memory, allowed)
        attended = attention.attend_cached(x, cache, attention_bias(allowed, x))
        torch.testing.assert_close(attended, expected, rtol=1e-4, atol=1e-5)
    assert attention_bias(torch.tensor([True, False]), x.bfloat16()).tolist() == [
        0.0,
        torch.finfo(torch.bfloat16).min / 2,
    ]


@pytest.mark.parametrize("d_model", [6, 10])
def test_heads_that_do_not_divide_the_width_are_refused(d_model: int) -> None:
    with pytest.raises(ValueError, match=rf"d_model \({d_model}\).*num_heads \(4\)"):
        MultiHeadAttention(d_model, 4)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_weights_in_half_precision_are_rounded_once(is_masked: bool, autocast: bool) -> None:
    """Products, scores and softmax are in fp32; the only error is bf16's rounding of the weights, at most 2^-9."""
    torch.manual_seed(0)
    query, key = (3 * torch.randn(8, 4, 20, 48, dtype=torch.bfloat16) for _ in "qk")
    mask = look_ahead_mask(20) if is_masked else None
    scores = query.double() @ key.double().transpose(-2, -1) / math.sqrt(48)
    expected = (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        weights = attention_weights(query, key, mask)
    assert weights.dtype == torch.bfloat16
    assert (weights.double() - expected).abs().max() <= 2**-9 + 1e-5


def test_on_a_gpu_attention_needs_no_plan_for_each_shape() -> None:
    assert torch.backends.cuda.cudnn_sdp_enabled()
    with _without_cudnn(is_cuda=True):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    with _without_cudnn(is_cuda=False):
        assert torch.backends.cuda.cudnn_sdp_enabled()
