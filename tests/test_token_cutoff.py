"""Token cutoff: whole positions of what the encoder and the decoder read are zeroed, the others stay as they are."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import batch_of
from torch import Tensor

from nmt.config.inference import RnnConfig, TransformerConfig
from nmt.config.source import VectorSource
from nmt.models.dropout import TokenCutoff
from nmt.models.factory import build_model
from nmt.models.interface import TrainableModel
from nmt.models.positions import sinusoidal_positions
from nmt.source import Source
from nmt.training.loss import Objective

V = 20
TRANSFORMER = TransformerConfig(
    d_model=8, num_heads=2, d_ff=16, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0, token_cutoff=0.3
)
RNN = RnnConfig(d_model=8, d_embedding=8, dropout=0.0, token_cutoff=0.3, input_feeding=True)
BATCH = batch_of([([5, 9, 6, 7, 8], [6, 4, 10]), ([7, 11, 12], [8, 9, 9, 9])] * 50)


def read_by(model: TrainableModel[Any, Any], run: Any) -> list[Tensor]:
    """What the encoder's layers and the decoder's read when `run()` calls the model: the outputs of the cutoff."""
    seen: list[Tensor] = []
    handle = next(one for one in model.modules() if isinstance(one, TokenCutoff)).register_forward_hook(
        lambda _module, _inputs, output: seen.append(output.detach())
    )
    run()
    handle.remove()
    return seen


def embedded(model: TrainableModel[Any, Any], ids: Tensor) -> Tensor:
    """The scaled embeddings, and in a Transformer the positions, by torch's own functions."""
    vectors = F.embedding(ids, model.get_parameter("src_embedding.weight")) * math.sqrt(8)
    is_transformer = any(name.startswith("src_positions") for name, _ in model.named_modules())
    return vectors + sinusoidal_positions(ids.shape[1], 8) if is_transformer else vectors


def test_it_zeroes_its_share_of_the_positions_and_nothing_else() -> None:
    x = torch.randn(200, 500, 4).add_(10).requires_grad_()
    output = TokenCutoff(0.3)(x)
    zeroed = (output == 0).all(dim=2)
    share = zeroed.float().mean().item()
    assert abs(share - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 100_000)
    assert torch.equal(output[~zeroed], x[~zeroed]), "neither changed in part nor scaled up"
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert torch.equal(gradient, (~zeroed).float()[..., None].expand_as(x))
    neighbours = np.corrcoef(zeroed[:, 1:].flatten(), zeroed[:, :-1].flatten())[0, 1]
    assert abs(neighbours) < 0.02


def test_it_does_nothing_outside_training_and_draws_nothing_at_zero() -> None:
    x, state = torch.randn(3, 4, 2), torch.get_rng_state()
    assert TokenCutoff(0.5).eval()(x) is x
    assert TokenCutoff(0.0)(x) is x
    assert torch.equal(torch.get_rng_state(), state), "old runs resume with the draws that they had"


def test_half_precision_keeps_its_type() -> None:
    assert TokenCutoff(0.5)(torch.ones(5, 5, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("config", [TRANSFORMER, RNN], ids=["transformer", "rnn"])
def test_a_model_reads_embeddings_of_which_whole_positions_are_zero(config: TransformerConfig | RnnConfig) -> None:
    model = build_model(config, V, V)
    sides = (BATCH.source.values, BATCH.tgt_in)
    seen = read_by(model, lambda: model(BATCH.source, BATCH.tgt_in))
    assert len(seen) == 2
    for read, ids in zip(seen, sides, strict=True):
        zeroed = (read == 0).all(dim=2)
        assert 0.2 < zeroed.float().mean() < 0.4
        torch.testing.assert_close(read, embedded(model, ids) * (~zeroed)[..., None])
    model.eval()
    for read, ids in zip(read_by(model, lambda: model(BATCH.source, BATCH.tgt_in)), sides, strict=True):
        torch.testing.assert_close(read, embedded(model, ids))


def test_the_two_passes_of_r_drop_lose_different_positions_and_the_seed_decides_which() -> None:
    model = build_model(TRANSFORMER, V, V)
    objective = Objective(model, 0.1, r_drop=5.0)

    def zeroed(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return (read_by(model, lambda: objective(BATCH))[0] == 0).all(dim=2)

    first, second = zeroed(1).chunk(2)
    assert first.shape == BATCH.source.values.shape
    both = (first & second).float().mean().item()
    assert both == pytest.approx(0.3**2, abs=0.04), "independent"
    assert torch.equal(zeroed(1), torch.cat([first, second]))
    assert not torch.equal(zeroed(2), torch.cat([first, second]))


def test_vectors_lose_positions_too() -> None:
    """What they have in the embedding's place, so that the key means the same for every source."""
    model = build_model(TRANSFORMER, V, V, VectorSource(type="vectors", features=3))
    source = Source(torch.randn(100, 5, 3), torch.ones(100, 5, dtype=torch.bool))
    ids = torch.full((100, 4), 5)
    encoder, decoder = read_by(model, lambda: model(source, ids))
    for read in (encoder, decoder):
        assert 0.2 < (read == 0).all(dim=2).float().mean() < 0.4
