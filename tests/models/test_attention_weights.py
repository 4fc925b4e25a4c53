"""Every layer's and head's attention weights, against those of torch.nn.Transformer with the same parameters."""

from typing import Any

import pytest
import torch
from test_transformer import SHAPES, make_model, named, ragged, source, torchs_transformer
from torch import Tensor, nn

from nmt.config.inference import TransformerConfig
from nmt.models.ensemble import Ensemble
from nmt.models.source import pad
from nmt.models.transformer import Transformer
from nmt.tokenizers.vocabulary import BOS_ID, PAD_ID

SOURCES, TARGETS = ragged([9, 2, 6]), ragged([4, 7, 5], seed=1)


def targets(sentences: list[list[int]]) -> Tensor:
    return pad(sentences, PAD_ID, first=[BOS_ID])


def names(config: TransformerConfig) -> list[str]:
    encoder = [f"encoder.{number}.self" for number in range(config.num_encoder_layers)]
    decoder = [f"decoder.{number}.{kind}" for number in range(config.num_decoder_layers) for kind in ("self", "cross")]
    return encoder + decoder


def torchs_weights(model: Transformer, config: TransformerConfig) -> list[Tensor]:
    """The attention weights of torch.nn.Transformer for SOURCES and TARGETS, in the order of computation."""
    theirs = torchs_transformer(model, config)
    found: list[Tensor] = []

    def ask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "need_weights": True, "average_attn_weights": False}

    for module in theirs.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.register_forward_pre_hook(ask, with_kwargs=True)
            module.register_forward_hook(lambda module, args, result: found.append(result[1]))
    (src_ids, src_mask), tgt_in = source(SOURCES)[:2], targets(TARGETS)
    theirs(
        model.src_positions(model.src_embedding(src_ids) * model.scale),
        model.tgt_positions(model.tgt_embedding(tgt_in) * model.scale),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(tgt_in.shape[1]).isinf(),  # True means "may not"
        src_key_padding_mask=~src_mask,
        memory_key_padding_mask=~src_mask,
    )
    return found


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("num_encoder_layers", "num_decoder_layers"), [(2, 2), (6, 3)])
def test_the_weights_are_torchs(
    small_config: TransformerConfig, norm: str, num_encoder_layers: int, num_decoder_layers: int
) -> None:
    depth = {"num_encoder_layers": num_encoder_layers, "num_decoder_layers": num_decoder_layers}
    config = small_config.model_copy(update={"norm": norm, **depth})
    model = make_model(config, seed=2)
    weights = model.attention_weights(source(SOURCES), targets(TARGETS))
    assert list(weights) == names(config)
    expected = torchs_weights(model, config)
    for (name, found), theirs in zip(weights.items(), expected, strict=True):
        queries = 10 if name.startswith("encoder") else 8  # with </s> or <s>
        assert found.shape == (3, config.num_heads, queries, 10 if "decoder" not in name or "cross" in name else 8)
        torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    parts = torch.stack([of_layer[0, :, :8, :2].flatten() for of_layer in expected])
    assert (parts[:, None] - parts).abs().amax(dim=-1).fill_diagonal_(1).min() > 1e-3, "two layers are alike"


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_rows_sum_to_1_and_nothing_is_attended_to_that_may_not_be(
    small_config: TransformerConfig, shape: dict[str, str]
) -> None:
    weights = make_model(small_config, **shape).attention_weights(source(SOURCES), targets(TARGETS))
    for name, found in weights.items():
        torch.testing.assert_close(found.sum(dim=-1), torch.ones(found.shape[:-1]), rtol=0, atol=1e-5)
        if name.startswith("decoder") and name.endswith("self"):
            assert (found.triu(1) == 0).all()
        else:
            assert (found.movedim(-1, 1)[~source(SOURCES).mask] == 0).all()


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_a_padded_pair_has_the_weights_that_it_has_alone(
    small_config: TransformerConfig, shape: dict[str, str]
) -> None:
    model = make_model(small_config, **shape)
    together = model.attention_weights(source(SOURCES), targets(TARGETS))
    for row, (src, tgt) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        for name, alone in model.attention_weights(source([src]), targets([tgt])).items():
            _, queries, keys = alone[0].shape
            torch.testing.assert_close(together[name][row, :, :queries, :keys], alone[0], rtol=1e-4, atol=1e-5)


def test_attention_is_the_mean_over_the_heads_of_one_cross_attention(small_config: TransformerConfig) -> None:
    model = make_model(small_config)
    weights = model.attention_weights(source(SOURCES), targets(TARGETS))
    found = model.attention(source(SOURCES), targets(TARGETS))  # (B, T, S)
    expected = (weights["decoder.1.cross"][:, 0] + weights["decoder.1.cross"][:, 1]) / 2
    torch.testing.assert_close(found, expected)


def test_an_ensembles_weights_are_its_members_by_number(small_config: TransformerConfig) -> None:
    """Its attention is the mean of its members': a deep member has the same weight as a shallow one."""
    members = [make_model(small_config), make_model(small_config.model_copy(update={"num_decoder_layers": 3}), seed=1)]
    ensemble, batch = Ensemble(members), (source(SOURCES), targets(TARGETS))
    expected = {
        f"{number}.{name}": of_one
        for number, member in enumerate(members)
        for name, of_one in member.attention_weights(*batch).items()
    }
    torch.testing.assert_close(ensemble.attention_weights(*batch), expected, rtol=0, atol=0)
    assert "1.decoder.2.cross" in expected
    mean = (members[0].attention(*batch) + members[1].attention(*batch)) / 2
    torch.testing.assert_close(ensemble.attention(*batch), mean)
