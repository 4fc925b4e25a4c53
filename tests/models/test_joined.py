"""Joined sentences: attention and whole models, beside one sentence at a time and beside padded batches."""

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from conftest import VOCAB_SIZE, batch_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.batches.joining import JoinedShape
from nmt.config.inference import TransformerConfig
from nmt.models.attention import attention_weights
from nmt.models.joined import Spans, _attend_in_blocks, attend_joined, can_join
from nmt.models.source import Source
from nmt.models.transformer import Transformer

Pairs = list[tuple[list[int], list[int]]]
PAIRS = st.lists(
    st.tuples(*(st.lists(st.integers(4, VOCAB_SIZE - 1), min_size=1, max_size=9) for _ in range(2))), min_size=1
)
LAYOUTS = [
    {},
    {"norm": "pre", "positions": "learned"},
    {"layout": "marian"},
    {"layout": "marianmt"},
    {"share_layers": True, "activation": "swiglu"},
]


def model_of(**settings: Any) -> Transformer:
    """A small model in float64, without dropout."""
    torch.manual_seed(3)
    config = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 16, "num_heads": 2, "d_ff": 32,
              "dropout": 0.0, "max_positions": 32, **settings}  # fmt: skip
    return Transformer(TransformerConfig.model_validate(config), VOCAB_SIZE, VOCAB_SIZE).double()


def shape_for(pairs: Pairs, extra: int = 0) -> JoinedShape:
    """A shape with room for these pairs and for `extra` positions more on each side."""
    lengths = [sum(len(pair[side]) + 1 for pair in pairs) for side in (0, 1)]
    longest = 1 + max(len(ids) for pair in pairs for ids in pair)
    spare = -(-(max(lengths) + extra) // longest) + 1
    return JoinedShape((lengths[0] + extra + spare, lengths[1] + extra + spare), len(pairs) + 2, longest)


def starts_of(lengths: list[int], total: int) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths), total, total], dtype=torch.int32)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_within_each_sentence_is_that_of_one_sentence_alone(rows: int, is_causal: bool) -> None:
    of_queries = starts_of([3, 1, 5], 10)
    of_keys = of_queries if is_causal else starts_of([2, 6, 1], 11)
    query, key, value = (torch.randn(rows, 2, int(n), 4, dtype=torch.float64) for n in (10, of_keys[-1], of_keys[-1]))
    states = [torch.empty(rows, part.shape[2], 8) for part in (query, key)]
    spans = Spans.of(states[0], of_queries, states[1], of_keys, 6)
    found = attend_joined(query, key, value, spans, is_causal)
    assert found.shape == query.shape
    for sentence in range(4):
        here, there = (slice(starts[sentence], starts[sentence + 1]) for starts in (of_queries, of_keys))
        size = int(of_queries[sentence + 1] - of_queries[sentence])
        mask = torch.ones(size, size, dtype=torch.bool).tril() if is_causal else None
        expected = attention_weights(query[:, :, here], key[:, :, there], mask) @ value[:, :, there]
        torch.testing.assert_close(found[:, :, here], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("settings", LAYOUTS, ids=str)
@given(pairs=PAIRS, extra=st.integers(0, 12))
def test_joined_states_and_gradients_are_those_of_a_padded_batch(
    settings: dict[str, Any], pairs: Pairs, extra: int
) -> None:
    model = model_of(**settings)
    results = []
    for shape in (None, shape_for(pairs, extra)):
        batch = batch_of(pairs, shape=shape)
        states = model.states(batch.source, batch.tgt_in).flatten(0, 1)[batch.tgt_positions]  # (N, D)
        weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        gradients = torch.autograd.grad((states * weights).sum(), [*model.parameters()], allow_unused=True)
        results.append([states, *(gradient for gradient in gradients if gradient is not None)])
    for padded, joined in zip(*results, strict=True):
        torch.testing.assert_close(joined, padded, rtol=1e-9, atol=1e-11)


def test_fillers_sentences_change_nothing() -> None:
    model = model_of().float()
    batch = batch_of([([5, 6, 7], [8, 9]), ([4], [10, 4, 5])], shape=JoinedShape((16, 17), 4, 4))
    results = []
    for fillers in (2, 9):
        values, tgt_in = batch.source.values.clone(), batch.tgt_in.clone()
        values[0, 6:], tgt_in[0, batch.num_tgt_tokens :] = fillers, fillers
        states = model.states(Source(values, *batch.source[1:]), tgt_in)[0, : batch.num_tgt_tokens]
        gradients = torch.autograd.grad(states.roll(1, -1).mul(states).sum(), [*model.parameters()], allow_unused=True)
        results.append([states, *(gradient for gradient in gradients if gradient is not None)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_a_cpu_can_join_and_a_device_without_the_kernel_cannot() -> None:
    assert can_join(torch.device("cpu"), torch.float32, 8)
    assert not can_join(torch.device("mps"), torch.float32, 8)


@pytest.mark.filterwarnings("ignore")  # torch's compiler has some about itself
def test_compiled_layers_are_two_graphs_without_a_break_with_the_kernel_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the meta device, which takes the path of a GPU but knows no autocast; twelve layers, forward and backward."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    batch = batch_of([([5, 6, 7], [8, 9])] * 5, shape=JoinedShape((64, 128), 8, 4))
    model = model_of(num_encoder_layers=6, num_decoder_layers=6, dropout=0.1).float()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model.compile_layers(counter, dynamic=False)
    model.to("meta").train()
    states = model.states(batch.source.to(torch.device("meta")), batch.tgt_in.to("meta"))
    assert states.shape == (1, 128, 16)
    states.sum().backward()
    assert counter.frame_count == 2
    assert not torch._dynamo.utils.counters["graph_break"]
    assert model.decoder[0].cross_attention.key.weight.grad is not None


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_kernel_of_a_gpu_takes_these_arguments(is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device: the operations are internal to torch and may change."""
    given = []
    operation = torch.ops.aten._efficient_attention_forward

    def seen(*arguments: Any) -> Any:
        names = [argument.name for argument in operation.default._schema.arguments]
        given.append(dict(zip(names, arguments, strict=False)))
        return operation(*arguments)

    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", seen)
    query, key, value = (torch.randn(40, 2, 8, device="meta", requires_grad=True) for _ in range(3))
    starts = torch.zeros(5, dtype=torch.int32, device="meta")
    heads = _attend_in_blocks(query, key, value, Spans(starts, starts.clone(), 9), is_causal)
    (arguments,) = given
    assert arguments["custom_mask_type"] == int(is_causal)  # 1: causal from the top left
    assert (arguments["max_seqlen_q"], arguments["max_seqlen_k"], arguments["dropout_p"]) == (9, 9, 0.0)
    assert arguments["cu_seqlens_q"] is starts
    assert heads.shape == query.shape
    heads.sum().backward()
    assert [part.grad.shape for part in (query, key, value) if part.grad is not None] == [(40, 2, 8)] * 3


def test_the_random_draws_of_dropout_do_not_reach_across_sentences() -> None:
    """With dropout, a sentence's states depend on no other sentence's ids."""
    model = model_of(dropout=0.3).float().train()
    one = batch_of([([5, 6, 7], [8, 9]), ([4, 6], [10, 4, 5])], shape=JoinedShape((16, 16), 4, 4))
    other = batch_of([([5, 6, 7], [8, 9]), ([9, 9], [7, 7, 7])], shape=JoinedShape((16, 16), 4, 4))
    found = []
    for batch in (one, other):
        torch.manual_seed(1)
        found.append(model.states(batch.source, batch.tgt_in)[0])
    assert torch.equal(found[0][:3], found[1][:3])
    assert not np.allclose(found[0][3:7].detach(), found[1][3:7].detach())
