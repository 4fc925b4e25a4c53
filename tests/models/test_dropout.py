"""Dropout's rate, scale, independence and determinism, against the binomial distribution."""

import math

import pytest
import torch
from conftest import VOCAB_SIZE, batch_of
from torch import nn

from nmt.config.inference import TransformerConfig
from nmt.models.dropout import Dropout
from nmt.models.transformer import Transformer
from nmt.training.loss import Objective


@pytest.mark.parametrize("p", [0.05, 0.1, 0.3, 0.5, 0.9])
def test_rate_and_scale(p: float) -> None:
    torch.manual_seed(1)
    size = 1_000_000
    output = Dropout(p)(torch.ones(1000, 1000))
    kept = output != 0
    deviation = math.sqrt(p * (1 - p) / size)
    assert abs(kept.float().mean().item() - (1 - p)) < 4 * deviation
    realised = round(p * 2**16) / 2**16
    assert output[kept].unique().tolist() == [pytest.approx(1 / (1 - realised), rel=1e-6)]
    assert output.double().mean().item() == pytest.approx(1, abs=4 * deviation / (1 - p))


def test_neighbours_are_independent() -> None:
    """The four elements that share a random word, and elements of adjacent words, drop out independently."""
    torch.manual_seed(2)
    dropped = (Dropout(0.5)(torch.ones(250_000, 4)) == 0).double() - 0.5
    correlation = (dropped.T @ dropped) / len(dropped) * 4  # (4, 4)
    assert (correlation - torch.eye(4)).abs().max() < 0.02
    flat = dropped.flatten()
    for lag in (1, 2, 3, 4, 5, 8):
        assert abs((flat[lag:] * flat[:-lag]).mean().item() * 4) < 0.01


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1023])
def test_any_size(size: int) -> None:
    torch.manual_seed(size)
    outputs = torch.stack([Dropout(0.5)(torch.ones(size)) for _ in range(200)])
    assert outputs.shape == (200, size)
    assert set(outputs.unique().tolist()) == {0.0, 2.0}
    assert (outputs.mean(0) > 0.5).all(), "every element is kept now and then"
    assert (outputs.mean(0) < 1.5).all(), "and dropped now and then"


def test_the_gradient_drops_what_the_output_dropped() -> None:
    x = torch.randn(7, 9, requires_grad=True)
    output = Dropout(0.3)(x)
    (gradient,) = torch.autograd.grad(output, x, torch.full_like(x, 2.0))
    torch.testing.assert_close(gradient * x, 2 * output)


def test_the_seed_decides() -> None:
    x = torch.ones(4, 100)
    dropout = Dropout(0.5)

    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        dropout(x)
        return dropout(x)

    assert torch.equal(draw(5), draw(5))
    assert not torch.equal(draw(5), draw(6))
    state = torch.get_rng_state()
    first = dropout(x)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(dropout(x), first)


def test_it_does_nothing_outside_training_and_at_zero() -> None:
    x = torch.randn(3, 4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_half_precision_keeps_its_type() -> None:
    output = Dropout(0.5)(torch.ones(50, 50, dtype=torch.bfloat16))
    assert output.dtype == torch.bfloat16
    assert set(output.unique().tolist()) == {0.0, 2.0}


def test_it_is_placed_where_torchs_would_be() -> None:
    assert repr(Dropout(0.25)) == "Dropout(p=0.25)"
    assert isinstance(nn.Sequential(Dropout(0.1))[0], nn.Module)


@pytest.mark.parametrize("p", [0.999995, math.nextafter(1.0, 0.0)])
def test_a_rate_next_to_1_drops_nearly_all_and_keeps_the_expectation(p: float) -> None:
    """It is rounded to 1 - 2^-16: of 2^22 elements about 64 are kept, each as 2^16."""
    dropout = Dropout(p).train()
    y = dropout(torch.ones(2**22))
    kept = y[y != 0]
    assert (kept == 2**16).all()
    assert 20 < len(kept) < 120


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler has some about itself
def test_in_compiled_layers_it_follows_the_seed(small_config: TransformerConfig) -> None:
    model = Transformer(small_config.model_copy(update={"dropout": 0.2}), VOCAB_SIZE, VOCAB_SIZE)
    compiled = Objective(model, 0.1)
    compiled.fuse(backend="aot_eager")

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        smoothed = compiled(batch_of([([5, 6, 7], [8, 9]), ([4], [6, 7, 8])])).smoothed
        smoothed.backward()
        return smoothed.item()

    assert loss(4) == loss(4) != loss(5)
