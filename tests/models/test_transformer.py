"""The Transformer against torch.nn.Transformer with the same weights, against formulas, and against itself.

Shapes: B batch, K beams, S source length, T target length, D d_model, V vocabulary.
"""

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.config.inference import LayoutName, PositionKind, TransformerConfig
from nmt.models.attention import MultiHeadAttention
from nmt.models.embeddings import PositionEmbeddings, sinusoidal_positions
from nmt.models.factory import build_model
from nmt.models.source import Source, look_ahead_mask, pad, source_of
from nmt.models.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual, Transformer
from nmt.tokenizers.vocabulary import BOS_ID, OWN_SPECIAL_IDS, PAD_ID

V = 11


def make_model(config: TransformerConfig, seed: int = 0, **changes: Any) -> Transformer:
    """Every parameter drawn at random, norms and biases too, so that a missing one is noticed."""
    torch.manual_seed(seed)
    model = Transformer(config.model_copy(update=changes), V, V).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm.weight" in name:
                parameter.uniform_(0.5, 1.5)
            elif parameter.dim() == 1:
                parameter.normal_(std=0.3)
            elif "table" in name:
                parameter.normal_()
    return model


def ragged(lengths: list[int], seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(4, V, size=length).tolist() for length in lengths]


def source(sentences: list[list[int]]) -> Source:
    """(B, S) ids and mask, the ids ending in </s>."""
    return source_of(sentences, OWN_SPECIAL_IDS)


def paper_positions(length: int, d_model: int) -> Tensor:
    """Section 3.5, an entry at a time."""
    table = np.zeros((length, d_model))
    for pos in range(length):
        for i in range(d_model // 2):
            table[pos, 2 * i] = math.sin(pos / 10000 ** (2 * i / d_model))
            table[pos, 2 * i + 1] = math.cos(pos / 10000 ** (2 * i / d_model))
    return torch.from_numpy(table).float()


# --- Equal to torch's own --------------------------------------------------------------------------------


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    linears = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([linear.weight for linear in linears]))  # (3 D, D)
    theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in linears]))  # (3 D,)
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def torchs_transformer(model: Transformer, config: TransformerConfig) -> nn.Transformer:
    """torch.nn.Transformer with the model's weights; like ours, it ends in norms only if they come first."""
    pre_norm = config.norm == "pre"
    shape: dict[str, Any] = {
        "d_model": config.d_model,
        "nhead": config.num_heads,
        "dim_feedforward": config.d_ff,
        "dropout": 0.0,
        "activation": config.activation,
        "batch_first": True,
        "norm_first": pre_norm,
    }
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**shape),
        config.num_encoder_layers,
        nn.LayerNorm(config.d_model) if pre_norm else None,
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(**shape),
        config.num_decoder_layers,
        nn.LayerNorm(config.d_model) if pre_norm else None,
    )
    whole = nn.Transformer(
        config.d_model, config.num_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    )
    with torch.no_grad():
        for ours, theirs in zip(model.encoder, encoder.layers, strict=True):
            copy_attention(ours.self_attention, theirs.self_attn)
            theirs.norm1.load_state_dict(ours.self_residual.norm.state_dict())
            theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
            theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
            theirs.norm2.load_state_dict(ours.feed_forward_residual.norm.state_dict())
        for ours, theirs in zip(model.decoder, decoder.layers, strict=True):
            copy_attention(ours.self_attention, theirs.self_attn)
            theirs.norm1.load_state_dict(ours.self_residual.norm.state_dict())
            copy_attention(ours.cross_attention, theirs.multihead_attn)
            theirs.norm2.load_state_dict(ours.cross_residual.norm.state_dict())
            theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
            theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
            theirs.norm3.load_state_dict(ours.feed_forward_residual.norm.state_dict())
        if pre_norm:
            encoder.norm.load_state_dict(model.encoder_norm.state_dict())
            decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    return whole.eval()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_states_and_logits_equal_torchs_transformer(
    small_config: TransformerConfig, norm: str, activation: str, seed: int
) -> None:
    config = small_config.model_copy(update={"norm": norm, "activation": activation, "tie_embeddings": "none"})
    model = make_model(config, seed)
    theirs = torchs_transformer(model, config)
    src_ids, src_mask = source(ragged([9, 1, 4, 6], seed))[:2]
    tgt_in = pad(ragged([3, 8, 1, 5], seed + 100), PAD_ID, first=[BOS_ID])
    tgt_mask = tgt_in != PAD_ID

    def embedded(ids: Tensor, embedding: nn.Embedding) -> Tensor:
        return embedding.weight[ids] * math.sqrt(config.d_model) + paper_positions(ids.shape[1], config.d_model)

    # In torch's masks, True means "may not".
    expected_memory = theirs.encoder(embedded(src_ids, model.src_embedding), src_key_padding_mask=~src_mask)
    expected_states = theirs(
        embedded(src_ids, model.src_embedding),
        embedded(tgt_in, model.tgt_embedding),
        tgt_mask=~look_ahead_mask(tgt_in.shape[1]),
        src_key_padding_mask=~src_mask,
        tgt_key_padding_mask=~tgt_mask,
        memory_key_padding_mask=~src_mask,
    )
    states = model.states(Source(src_ids, src_mask), tgt_in)
    logits = model(Source(src_ids, src_mask), tgt_in)
    memory = model.encode(Source(src_ids, src_mask)).states
    torch.testing.assert_close(memory[src_mask], expected_memory[src_mask], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states[tgt_mask], expected_states[tgt_mask], rtol=1e-4, atol=1e-5)
    expected_logits = expected_states[tgt_mask] @ model.output.weight.T
    torch.testing.assert_close(logits[tgt_mask], expected_logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    ("layout", "epsilon", "scale", "first"),
    [("nmt", 1e-5, 4, 1), ("marianmt", 1e-5, 4, 0), ("marianmt-own-start", 1e-5, 4, 1),
     ("marianmt-unscaled", 1e-5, 1, 1), ("marian", 1e-6, 4, 0)],
)  # fmt: skip
def test_layouts_of_imported_models_against_torchs_transformer(
    small_config: TransformerConfig, norm: str, layout: LayoutName, epsilon: float, scale: int, first: int
) -> None:
    """All sines before all cosines, embeddings that are not scaled, a start from zero, another epsilon, and a bias."""
    config = small_config.model_copy(update={"norm": norm, "tie_embeddings": "none", "layout": layout})
    model = make_model(config)
    theirs = torchs_transformer(model, config)
    assert {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)} == {epsilon}
    waves = paper_positions(12, config.d_model)
    if layout.startswith("marianmt"):
        waves = waves[:, [*range(0, 16, 2), *range(1, 16, 2)]]
    if layout == "marian":  # 10000 ** (i / 7) for i from 0 to 7
        angles = torch.arange(12.0)[:, None] / 10000 ** (torch.arange(8.0) / 7)
        waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    src_ids, tgt_in = torch.tensor([[4, 5, 6, 2]]), torch.tensor([[BOS_ID, 7, 8]])
    embedded = scale * model.tgt_embedding.weight[tgt_in] * torch.tensor([first, 1, 1])[:, None] + waves[:3]
    expected = theirs(scale * model.src_embedding.weight[src_ids] + waves[:4], embedded, tgt_mask=~look_ahead_mask(3))
    states = model.states(Source(src_ids, torch.ones(1, 4, dtype=torch.bool)), tgt_in)
    torch.testing.assert_close(states, expected, rtol=1e-4, atol=1e-5)
    assert (model.output.bias is not None) == (layout != "nmt")


@pytest.mark.parametrize("activation", ["relu", "gelu", "swish", "swiglu"])
def test_the_feed_forward_network_is_its_formula(activation: str) -> None:
    network = FeedForward(d_model=6, d_ff=10, activation=activation).eval()
    x = torch.randn(2, 3, 6)

    def linear(layer: nn.Linear, values: Any) -> Any:
        return values @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()

    values = x.double().numpy()
    inner = linear(network.inner, values)
    if activation == "relu":
        activated = inner * (inner > 0)
    elif activation == "gelu":  # x times the normal distribution's share below x
        activated = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
    elif activation == "swish":
        activated = inner / (1 + np.exp(-inner))
    else:
        assert network.gate is not None
        gate = linear(network.gate, values)
        activated = gate / (1 + np.exp(-gate)) * inner
    expected = torch.from_numpy(linear(network.outer, activated)).float()
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_the_residual_adds_to_its_input(pre_norm: bool) -> None:
    residual = Residual(TransformerConfig(d_model=8, norm="pre" if pre_norm else "post", dropout=0.0))
    with torch.no_grad():
        residual.norm.weight.uniform_(0.5, 1.5)
        residual.norm.bias.normal_()
    x = torch.randn(2, 3, 8)

    def norm(y: Tensor) -> Tensor:
        centred = y - y.mean(dim=-1, keepdim=True)
        deviation = (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
        return centred / deviation * residual.norm.weight + residual.norm.bias

    expected = x + norm(x) ** 3 if pre_norm else norm(x + x**3)
    torch.testing.assert_close(residual(x, lambda y: y**3), expected)


# --- Positions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [2, 16, 50])
def test_sinusoidal_positions_are_the_papers_formula(d_model: int) -> None:
    torch.testing.assert_close(sinusoidal_positions(300, d_model), paper_positions(300, d_model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["sin_then_cos", "marian"])
def test_the_other_sine_waves_are_their_formulas(kind: PositionKind) -> None:
    """marian: src/tensors/cpu/tensor_operators.cpp of marian-dev; sin_then_cos: CTranslate2, transformers' Marian."""
    length, d_model = 70, 12
    expected = np.zeros((length, d_model))
    for pos in range(length):
        for i in range(6):
            wave = math.exp(i * -math.log(10000) / 5) if kind == "marian" else 1 / 10000 ** (2 * i / 12)
            expected[pos, i], expected[pos, 6 + i] = math.sin(pos * wave), math.cos(pos * wave)
    found = sinusoidal_positions(length, d_model, kind)
    torch.testing.assert_close(found, torch.from_numpy(expected).float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 7, 64])
def test_moving_by_k_positions_is_one_fixed_rotation(k: int) -> None:
    d_model, length = 16, 128
    table = sinusoidal_positions(length + k, d_model)
    rotation = torch.zeros(d_model, d_model)
    for i in range(0, d_model, 2):  # sin(a + b) = sin a cos b + cos a sin b, cos(a + b) = cos a cos b - sin a sin b
        angle = k / 10000 ** (i / d_model)
        rotation[i, i], rotation[i, i + 1] = math.cos(angle), math.sin(angle)
        rotation[i + 1, i], rotation[i + 1, i + 1] = -math.sin(angle), math.cos(angle)
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(d_model))
    torch.testing.assert_close(table[:length] @ rotation.T, table[k:], rtol=0, atol=2e-5)


@pytest.mark.parametrize("learned", [True, False])
def test_positions_are_added_from_the_first_on(learned: bool) -> None:
    encoding = PositionEmbeddings(d_model=6, max_positions=12, kind="learned" if learned else "sinusoidal")
    if learned:
        nn.init.normal_(encoding.table)
    x = torch.randn(2, 4, 6)
    table = encoding.table if learned else paper_positions(12, 6)
    expected = torch.stack([x[:, place] + table[place] for place in range(4)], dim=1)  # (2, 4, 6)
    torch.testing.assert_close(encoding(x), expected)
    assert isinstance(encoding.table, nn.Parameter) == learned


def test_changing_a_learned_position_changes_that_position_alone() -> None:
    encoding = PositionEmbeddings(d_model=6, max_positions=12, kind="learned")
    x = torch.randn(2, 5, 6)
    before = encoding(x).detach()
    with torch.no_grad():
        encoding.table[3] += 1.0
    changed = (encoding(x) != before).all(dim=-1)  # (2, 5)
    assert changed.tolist() == [[False, False, False, True, False]] * 2


def test_learned_positions_of_both_sides_reach_the_logits(small_config: TransformerConfig) -> None:
    model = make_model(small_config, positions="learned")
    src_ids, src_mask = source(ragged([5]))[:2]
    tgt_in = pad(ragged([4], seed=1), PAD_ID, first=[BOS_ID])
    memory, logits = model.encode(Source(src_ids, src_mask)).states, model(Source(src_ids, src_mask), tgt_in)

    def nudged(side: str, position: int) -> Transformer:
        other = copy.deepcopy(model)
        with torch.no_grad():
            getattr(other, side).table[position, 0] += 1.0
        return other

    assert (nudged("src_positions", 2).encode(Source(src_ids, src_mask)).states - memory).abs().max() > 1e-3
    assert torch.equal(nudged("tgt_positions", 2).encode(Source(src_ids, src_mask)).states, memory)
    moved = (nudged("tgt_positions", 2)(Source(src_ids, src_mask), tgt_in) - logits).abs().amax(dim=-1)[0]  # (5,)
    assert (moved[:2] < 1e-6).all()
    assert (moved[2:] > 1e-4).all()
    for side, beyond in (("src_positions", 6), ("tgt_positions", 5)):
        assert torch.equal(nudged(side, beyond)(Source(src_ids, src_mask), tgt_in), logits)


def test_the_encoder_without_positions_permutes_with_its_input(small_config: TransformerConfig) -> None:
    model = make_model(small_config)
    sentence = torch.tensor([[4, 5, 6, 7, 8, 9]])
    order = torch.tensor([2, 5, 0, 3, 1, 4])

    def encoded(ids: Tensor) -> Tensor:
        return model.encode(Source(ids, torch.ones(1, 6, dtype=torch.bool))).states

    with_positions = encoded(sentence[:, order]) - encoded(sentence)[:, order]
    assert with_positions.abs().max() > 0.1
    model.src_positions.table.zero_()
    torch.testing.assert_close(encoded(sentence[:, order]), encoded(sentence)[:, order], rtol=1e-4, atol=1e-5)


# --- Masks -----------------------------------------------------------------------------------------------

SHAPES: list[dict[str, Any]] = [
    {"norm": "pre", "positions": "sinusoidal"},
    {"norm": "pre", "positions": "learned", "activation": "swiglu"},
    {"norm": "post", "positions": "sinusoidal", "activation": "gelu"},
    {"norm": "post", "positions": "learned"},
    {"norm": "post", "activation": "swish", "layout": "marian"},
    {"norm": "post", "layout": "marianmt-unscaled"},
    {"norm": "pre", "share_layers": True},
]


def named(shape: dict[str, Any]) -> str:
    return "-".join(map(str, shape.values()))


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_a_sentence_alone_has_the_logits_it_has_among_longer_ones(
    small_config: TransformerConfig, shape: dict[str, Any]
) -> None:
    model = make_model(small_config, **shape)
    sources, targets = ragged([2, 9, 5, 13]), ragged([7, 3, 1, 11], seed=1)
    src_ids, src_mask = source(sources)[:2]
    together = model(Source(src_ids, src_mask), pad(targets, PAD_ID, first=[BOS_ID]))
    memory = model.encode(Source(src_ids, src_mask)).states
    for row, (src, tgt) in enumerate(zip(sources, targets, strict=True)):
        alone = model(source([src]), pad([tgt], PAD_ID, first=[BOS_ID]))
        assert alone.shape == (1, len(tgt) + 1, V)
        torch.testing.assert_close(together[row, : len(tgt) + 1], alone[0], rtol=1e-4, atol=1e-5)
        memory_alone = model.encode(source([src])).states[0]
        torch.testing.assert_close(memory[row, : len(src) + 1], memory_alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_a_later_target_token_never_changes_earlier_logits(
    small_config: TransformerConfig, shape: dict[str, Any]
) -> None:
    model = make_model(small_config, **shape)
    src_ids, src_mask = source(ragged([6, 3]))[:2]
    tgt_in = pad(ragged([7, 7], seed=1), PAD_ID, first=[BOS_ID])
    logits = model(Source(src_ids, src_mask), tgt_in)
    for place in range(1, 8):
        other = tgt_in.clone()
        other[:, place] = torch.where(other[:, place] == 4, 5, 4)
        moved = (model(Source(src_ids, src_mask), other) - logits).abs().amax(dim=-1)  # (B, T)
        assert (moved[:, :place] < 1e-6).all()
        assert (moved[:, place:] > 1e-6).all()


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_ids_at_padded_source_positions_are_irrelevant(small_config: TransformerConfig, shape: dict[str, Any]) -> None:
    model = make_model(small_config, **shape)
    src_ids, src_mask = source(ragged([8, 2, 5]))[:2]
    tgt_in = pad(ragged([4, 4, 4], seed=1), PAD_ID, first=[BOS_ID])
    logits = model(Source(src_ids, src_mask), tgt_in)
    scribbled = torch.where(src_mask, src_ids, torch.randint(1, V, src_ids.shape))
    assert not torch.equal(scribbled, src_ids)
    torch.testing.assert_close(model(Source(scribbled, src_mask), tgt_in), logits, rtol=1e-5, atol=1e-6)
    # The mask is the reason: unmasked positions do matter.
    assert (model(Source(scribbled, torch.ones_like(src_mask)), tgt_in) - logits)[1:].abs().max() > 1e-3


def test_every_source_token_reaches_every_logit(small_config: TransformerConfig) -> None:
    model = make_model(small_config)
    src_ids, src_mask = source(ragged([6]))[:2]
    tgt_in = pad(ragged([5], seed=1), PAD_ID, first=[BOS_ID])
    logits = model(Source(src_ids, src_mask), tgt_in)
    for place in range(7):
        other = src_ids.clone()
        other[:, place] = 4 if int(other[0, place]) != 4 else 5
        assert ((model(Source(other, src_mask), tgt_in) - logits).abs().amax(dim=-1) > 1e-6).all()


# --- One step at a time ----------------------------------------------------------------------------------


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_a_step_gives_the_logits_of_forward_on_the_whole_prefix(
    small_config: TransformerConfig, shape: dict[str, Any], beam_size: int
) -> None:
    """Between steps, one hypothesis becomes several, they are permuted, repeated and dropped, and sentences finish."""
    model = make_model(small_config, **shape)
    sources = ragged([4, 12, 1, 7, 3])
    steps = 10
    random = torch.Generator().manual_seed(beam_size)
    src_ids, src_mask = source(sources)[:2]
    state = model.start(model.encode(Source(src_ids, src_mask)), beam_size, max_length=steps)
    prefixes = torch.empty(len(sources), 1, 0, dtype=torch.int64)  # (B, K, length)
    for step in range(steps):
        if step == 0:
            latest = torch.full((len(sources), 1), BOS_ID)  # (B, K)
        else:
            latest = torch.randint(2, V, prefixes.shape[:2], generator=random)
        prefixes = torch.cat([prefixes, latest[:, :, None]], dim=-1)
        logits = model.step(latest, state)  # (B, K, V)
        assert logits.shape == (*prefixes.shape[:2], V)
        for beam in range(prefixes.shape[1]):
            whole = model(Source(src_ids, src_mask), prefixes[:, beam])  # (B, length, V)
            torch.testing.assert_close(logits[:, beam], whole[:, -1], rtol=1e-4, atol=1e-5)
        beams = torch.randint(0, prefixes.shape[1], (len(prefixes), beam_size), generator=random)  # (B, K)
        state.select_beams(beams)
        prefixes = torch.stack([row[chosen] for row, chosen in zip(prefixes, beams, strict=True)])  # (B, K, length)
        if step in (2, 3, 6):  # one finishes and the others are permuted
            going = torch.randperm(len(prefixes), generator=random)[:-1]
            state.select_sentences(going)
            prefixes, src_ids, src_mask = prefixes[going], src_ids[going], src_mask[going]
    assert len(prefixes) == 2


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_padding_changes_no_step(small_config: TransformerConfig, shape: dict[str, Any]) -> None:
    model = make_model(small_config, **shape)
    sources = ragged([3, 11])
    tokens = ragged([6, 6], seed=5)
    together = model.start(model.encode(source(sources)), beam_size=1, max_length=6)
    alone = model.start(model.encode(source(sources[:1])), beam_size=1, max_length=6)
    for pair in zip(*tokens, strict=True):
        expected = model.step(torch.tensor([[pair[0]]]), alone)
        torch.testing.assert_close(
            model.step(torch.tensor(pair)[:, None], together)[:1], expected, rtol=1e-4, atol=1e-5
        )


def test_the_hypotheses_of_a_sentence_share_its_memory(small_model: Transformer) -> None:
    state = small_model.start(small_model.encode(source(ragged([5, 3]))), beam_size=4, max_length=3)
    for layer in state.layers:
        for of_source in layer.memory.all():
            assert of_source.shape == (2, 2, 6, 8)  # (B, H, S, d), not (B * K, ...)


# --- Parameters ------------------------------------------------------------------------------------------


def test_tied_matrices_are_one_parameter_and_others_are_not(small_config: TransformerConfig) -> None:
    everything = make_model(small_config, tie_embeddings="all")
    assert everything.src_embedding.weight is everything.tgt_embedding.weight
    assert everything.output.weight is everything.tgt_embedding.weight
    decoder = make_model(small_config, tie_embeddings="decoder")
    assert decoder.src_embedding.weight is not decoder.tgt_embedding.weight
    assert decoder.output.weight is decoder.tgt_embedding.weight
    nothing = make_model(small_config, tie_embeddings="none")
    matrices = (nothing.src_embedding.weight, nothing.tgt_embedding.weight, nothing.output.weight)
    assert len({matrix.data_ptr() for matrix in matrices}) == 3
    for one, other in itertools.combinations(matrices, 2):
        assert not torch.equal(one, other)


def test_vocabularies_of_two_sizes_cannot_be_one(small_config: TransformerConfig) -> None:
    with pytest.raises(ValueError, match="tie_embeddings: all"):
        Transformer(small_config, 11, 12)


@pytest.mark.parametrize("tie", ["decoder", "none"])
def test_each_side_has_its_own_vocabulary_size(small_config: TransformerConfig, tie: str) -> None:
    model = build_model(small_config.model_copy(update={"tie_embeddings": tie}), 7, 13)
    logits = model(Source(torch.tensor([[6, 2]]), torch.ones(1, 2, dtype=torch.bool)), torch.tensor([[1, 12, 11]]))
    assert logits.shape == (1, 3, 13)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("tie", "matrices"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_parameter_counts_are_those_counted_by_hand(
    small_config: TransformerConfig, tie: str, matrices: int, norm: str, activation: str, positions: str
) -> None:
    model = make_model(small_config, tie_embeddings=tie, norm=norm, activation=activation, positions=positions)
    width, inner = 16, 32
    attention = 4 * (width * width + width)
    feed_forward = (2 if activation == "swiglu" else 1) * (width * inner + inner) + inner * width + width
    norm_size = 2 * width
    last_norm = norm_size if norm == "pre" else 0
    assert model.parameter_counts() == {
        "embeddings": matrices * V * width + (2 * 64 * width if positions == "learned" else 0),
        "encoder": 2 * (attention + feed_forward + 2 * norm_size) + last_norm,
        "decoder": 2 * (2 * attention + feed_forward + 3 * norm_size) + last_norm,
    }
    unique = {parameter.data_ptr(): parameter.numel() for parameter in model.parameters()}
    assert sum(model.parameter_counts().values()) == sum(unique.values())


def test_shared_layers_are_one_layer_in_turn(small_config: TransformerConfig) -> None:
    """As two layers with the same weights each; the parameters are those of one."""
    one, two = make_model(small_config, share_layers=True), make_model(small_config, seed=1)
    weights = one.state_dict()
    two.load_state_dict({name: weights[name.replace("coder.1.", "coder.0.")] for name in two.state_dict()})
    src, tgt_in = source(ragged([5, 8])), pad(ragged([6, 4], seed=1), PAD_ID, first=[BOS_ID])
    assert torch.equal(one(src, tgt_in), two(src, tgt_in))
    attention, feed_forward, norm_size = 4 * (16 * 16 + 16), 16 * 32 + 32 + 32 * 16 + 16, 2 * 16
    counts = one.parameter_counts()
    assert counts["encoder"] == attention + feed_forward + 2 * norm_size + norm_size
    assert counts["decoder"] == 2 * attention + feed_forward + 3 * norm_size + norm_size


def test_embeddings_are_scaled_by_the_root_of_the_width(small_config: TransformerConfig) -> None:
    model = make_model(small_config, tie_embeddings="none")  # D = 16, so the factor is 4
    seen: list[Tensor] = []
    for layer in (model.encoder[0], model.decoder[0]):
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(Source(torch.tensor([[5, 6, 2]]), torch.ones(1, 3, dtype=torch.bool)), torch.tensor([[1, 7]]))
    src, tgt = seen
    places = paper_positions(3, 16)
    torch.testing.assert_close(src[0], 4 * model.src_embedding.weight[[5, 6, 2]] + places)
    torch.testing.assert_close(tgt[0], 4 * model.tgt_embedding.weight[[1, 7]] + places[:2])


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_parameters_start_with_the_documented_statistics(tie: str) -> None:
    config = TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=64, d_ff=256, activation="swiglu", positions="learned",
        tie_embeddings=tie,
    )  # fmt: skip
    size = 3000
    model = Transformer(config, size, size)
    embeddings = [model.src_embedding, model.tgt_embedding]
    for embedding in embeddings:  # D^-1/2 = 1/8
        assert embedding.weight.std().item() == pytest.approx(1 / 8, rel=0.01)
        assert embedding.weight.mean().item() == pytest.approx(0, abs=0.002)
        assert embedding.weight.abs().max() > 3.5 / 8  # normal, not uniform, where the largest would be 1.7 / 8
    for positions in (model.src_positions, model.tgt_positions):
        assert positions.table.std().item() == pytest.approx(0.02, rel=0.03)
    assert not torch.equal(model.src_positions.table, model.tgt_positions.table)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == 4 + 3 + 8 + 3 + 1
    for linear in linears:
        if linear.bias is not None:
            assert (linear.bias == 0).all()
        if linear is model.output and tie != "none":
            assert linear.weight is model.tgt_embedding.weight
            continue
        bound = math.sqrt(6 / (linear.in_features + linear.out_features))
        assert 0.98 * bound < linear.weight.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def test_logits_start_near_unit_variance_when_tied() -> None:
    config = TransformerConfig(num_encoder_layers=2, num_decoder_layers=2, d_model=128, d_ff=256)
    model = Transformer(config, 500, 500).eval()
    src_ids = torch.randint(4, 500, (4, 20))
    logits = model(Source(src_ids, torch.ones_like(src_ids, dtype=torch.bool)), torch.randint(4, 500, (4, 20)))
    assert 0.8 < logits.std().item() < 1.25


@pytest.mark.parametrize("tie", ["all", "none"])
@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_the_gradient_reaches_every_parameter(small_config: TransformerConfig, shape: dict[str, Any], tie: str) -> None:
    model = make_model(small_config, tie_embeddings=tie, **shape).train()
    tgt_in = pad(ragged([4, 6], seed=1), PAD_ID, first=[BOS_ID])
    logits = model(source(ragged([7, 3])), tgt_in)
    F.cross_entropy(logits.flatten(0, 1), tgt_in.roll(-1, dims=1).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if name.endswith("key.bias"):  # it adds a constant to all scores of a query, which softmax cancels
            assert parameter.grad.abs().max() < 1e-6, name
        else:
            assert parameter.grad.abs().max() > 1e-6, name


# --- Dropout ---------------------------------------------------------------------------------------------


def test_dropout_is_active_in_training_mode_alone(small_config: TransformerConfig) -> None:
    plain = make_model(small_config)
    model = make_model(small_config, dropout=0.3)
    model.load_state_dict(plain.state_dict())
    batch = (source(ragged([7, 3])), pad(ragged([4, 6], seed=1), PAD_ID, first=[BOS_ID]))
    assert torch.equal(model.eval()(*batch), plain(*batch))
    model.train()
    assert (model(*batch) - model(*batch)).abs().max() > 0.1
    assert torch.equal(plain.train()(*batch), plain.eval()(*batch))  # no rate, no dropout


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_dropout_is_in_the_residuals_alone(small_config: TransformerConfig, side: str) -> None:
    config = small_config.model_copy(update={"dropout": 0.5})
    layer = (EncoderLayer(config) if side == "encoder" else DecoderLayer(config)).train()
    x = torch.randn(2, 6, 16)
    attentions = [layer.self_attention] + ([layer.cross_attention] if isinstance(layer, DecoderLayer) else [])
    residuals = [layer.self_residual, layer.feed_forward_residual]
    residuals += [layer.cross_residual] if isinstance(layer, DecoderLayer) else []
    for attention in attentions:
        assert torch.equal(attention(x, x), attention(x, x))
    assert torch.equal(layer.feed_forward(x), layer.feed_forward(x))
    for residual in residuals:
        assert not torch.equal(residual(x, torch.tanh), residual(x, torch.tanh))


def test_residual_dropout_affects_the_sublayers_output_and_not_the_residual() -> None:
    residual = Residual(TransformerConfig(d_model=64, dropout=0.25)).train()
    x = torch.randn(20, 10, 64)
    added = residual(x, torch.ones_like) - x
    dropped = added.abs() < 1e-6
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(added[~dropped], torch.full_like(added[~dropped], 4 / 3))


def test_embedding_dropout_affects_both_sides(small_config: TransformerConfig) -> None:
    model = make_model(small_config, dropout=0.25).train()
    seen: list[Tensor] = []
    for layer in (model.encoder[0], model.decoder[0]):
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    ids = torch.randint(4, V, (8, 30))
    model(Source(ids, torch.ones_like(ids, dtype=torch.bool)), ids)
    whole = 4 * model.src_embedding.weight[ids] + paper_positions(30, 16)  # (8, 30, 16), both sides' as they are tied
    for states in seen:
        dropped = states == 0
        assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.03)
        torch.testing.assert_close(states[~dropped], whole[~dropped] / 0.75, rtol=1e-4, atol=1e-5)
