"""The loss against torch's own cross-entropy, by value and gradient, and against a hand computation."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.config import ModelConfig
from nmt.data.batches import collate
from nmt.models.factory import build_model
from nmt.training import loss
from nmt.training.loss import Objective, cross_entropy_sums

N, D, V = 37, 6, 11


def made_up(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """States, output weight and targets; the logits are spread over some tens, as untrained ones may be."""
    torch.manual_seed(3)
    states = (5 * torch.randn(N, D)).to(dtype).requires_grad_()
    weight = torch.randn(V, D).to(dtype).requires_grad_()
    return states, weight, torch.randint(0, V, (N,))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("chunk", [1, 8, 37, 256])
def test_values_and_gradients_are_torchs(label_smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "MIN_CHUNK", chunk)
    monkeypatch.setattr(loss, "CHUNK_LOGITS_ON_CPU", chunk * V)
    states, weight, targets = made_up()
    sums = cross_entropy_sums(states, weight, targets, label_smoothing)
    logits = states @ weight.T
    expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing)
    torch.testing.assert_close(sums.smoothed, expected)
    torch.testing.assert_close(sums.cross_entropy, F.cross_entropy(logits, targets, reduction="sum").detach())
    # An upstream gradient that is not 1, as when the sum is divided by the tokens of an update.
    of_ours = torch.autograd.grad(sums.smoothed / 7, (states, weight))
    of_torch = torch.autograd.grad(expected / 7, (states, weight))
    torch.testing.assert_close(of_ours, of_torch)
    assert not sums.cross_entropy.requires_grad


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    states, weight, targets = (part.double() if part.is_floating_point() else part for part in made_up())

    def smoothed(states: Tensor, weight: Tensor) -> Tensor:
        return cross_entropy_sums(states, weight, targets, 0.1).smoothed.double()

    # The sums are made in fp32 whatever the input, hence the coarse steps.
    inputs = (states.detach().requires_grad_(), weight.detach().requires_grad_())
    assert torch.autograd.gradcheck(smoothed, inputs, eps=1e-2, atol=1e-1, rtol=1e-2)


def test_logits_far_apart_give_neither_nan_nor_infinity() -> None:
    states = torch.tensor([[400.0], [-400.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    sums = cross_entropy_sums(states, weight, torch.tensor([1, 1]), 0.1)
    # Position 0 says word 0 with certainty and is wrong: lse - z_1 = 800; position 1 is right. Uniform part: 400 each.
    assert sums.cross_entropy.item() == 800
    assert sums.smoothed.item() == pytest.approx(0.9 * 800 + 0.1 * 2 * 400)
    for gradient in torch.autograd.grad(sums.smoothed, (states, weight)):
        assert gradient.isfinite().all()


def test_the_loss_of_a_known_distribution_by_hand() -> None:
    # p = (1/2, 1/4, 1/4) and target 1: -ln(1/4) = 1.3863; uniform part (ln 2 + 2 ln 4) / 3 = 1.1552
    weight = torch.log(torch.tensor([[0.5], [0.25], [0.25]]))
    sums = cross_entropy_sums(torch.ones(1, 1), weight, torch.tensor([1]), 0.1)
    assert sums.cross_entropy.item() == pytest.approx(math.log(4))
    assert sums.smoothed.item() == pytest.approx(0.9 * math.log(4) + 0.1 * (math.log(2) + 2 * math.log(4)) / 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near(dtype: torch.dtype) -> None:
    states, weight, targets = made_up()
    expected = cross_entropy_sums(states, weight, targets, 0.1)
    with torch.autocast("cpu", dtype):
        halved = cross_entropy_sums(states, weight, targets, 0.1)
    assert halved.smoothed.dtype == torch.float32
    torch.testing.assert_close(halved.smoothed, expected.smoothed, rtol=2e-2, atol=0)
    of_half = torch.autograd.grad(halved.smoothed, (states, weight))
    of_full = torch.autograd.grad(expected.smoothed, (states, weight))
    for half, full in zip(of_half, of_full, strict=True):
        assert half.dtype == torch.float32
        assert (half - full).norm() < 0.03 * full.norm()


def test_only_real_positions_count() -> None:
    """The objective of a ragged batch is torch's cross-entropy of the model's logits with padding ignored."""
    model = build_model(ModelConfig(d_model=8, num_heads=2, d_ff=16, dropout=0.0), 20, 20)
    batch = collate([([5, 6, 7], [8, 9]), ([5], [6, 7, 8, 9, 10]), ([11, 12], [4])])
    sums = Objective(model, 0.1)(batch)
    logits = model(batch.src_ids, batch.src_mask, batch.tgt_in)
    expected = F.cross_entropy(
        logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=0, reduction="sum", label_smoothing=0.1
    )
    torch.testing.assert_close(sums.smoothed, expected)
    parameters = list(model.parameters())
    of_ours = torch.autograd.grad(sums.smoothed, parameters)
    torch.testing.assert_close(of_ours, torch.autograd.grad(expected, parameters), rtol=1e-4, atol=1e-5)


def r_drop_written_out(z: Tensor, y: Tensor, targets: Tensor, smoothing: float, alpha: float) -> Tensor:
    """Equation 4 of Liang et al. 2021, halved, from the logits of two passes, with torch's own losses."""
    cross_entropies = [F.cross_entropy(x, targets, reduction="sum", label_smoothing=smoothing) for x in (z, y)]
    p, q = z.log_softmax(1), y.log_softmax(1)
    divergence = F.kl_div(q, p, reduction="sum", log_target=True) + F.kl_div(p, q, reduction="sum", log_target=True)
    return (cross_entropies[0] + cross_entropies[1] + alpha * divergence / 2) / 2


def test_r_drop_by_hand() -> None:
    # p = (1/2, 1/2) and q = (1/4, 3/4), target 0: CE = ln 2 and ln 4; KL(p||q) = ln(2/sqrt 3) = 0.143841,
    # KL(q||p) = ln 2 + ln(1/4) / 4 + 3/4 ln(3/4) = 0.130812; (0.693147 + 1.386294) / 2 + 5/4 (0.143841 + 0.130812)
    weight = torch.eye(2)
    states = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    sums = cross_entropy_sums(states, weight, torch.tensor([0]), 0.0, r_drop=5.0)
    assert sums.smoothed.item() == pytest.approx(1.039721 + 0.343316, abs=1e-5)
    assert sums.cross_entropy.item() == pytest.approx(1.039721, abs=1e-5)


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_r_drop_is_the_formula_and_so_is_its_gradient(
    chunk: int, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "MIN_CHUNK", chunk)
    monkeypatch.setattr(loss, "CHUNK_LOGITS_ON_CPU", chunk)
    torch.manual_seed(0)
    states, weight = torch.randn(2 * 20, 6, requires_grad=True), torch.randn(11, 6, requires_grad=True)
    targets = torch.randint(11, (20,))
    sums = cross_entropy_sums(states, weight, targets, 0.1, alpha)
    logits = states @ weight.t()
    expected = r_drop_written_out(logits[:20], logits[20:], targets, 0.1, alpha)
    torch.testing.assert_close(sums.smoothed, expected)
    ours = torch.autograd.grad(3 * sums.smoothed, (states, weight))
    torch.testing.assert_close(ours, torch.autograd.grad(3 * expected, (states, weight)), rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        halved = cross_entropy_sums(states, weight, targets, 0.1, alpha)
    torch.testing.assert_close(halved.smoothed, expected, rtol=3e-2, atol=0)


def test_r_drop_passes_a_batch_twice_and_only_in_training() -> None:
    """Without dropout the passes agree, and the loss is that of one; with it they do not."""
    batch = collate([([5, 6, 7], [8, 9]), ([5], [6, 7, 8, 9, 10])])
    for dropout in (0.0, 0.5):
        model = build_model(ModelConfig(d_model=8, num_heads=2, d_ff=16, dropout=dropout), 20, 20)
        plain, twice = Objective(model, 0.1), Objective(model, 0.1, r_drop=5.0)
        model.eval()
        torch.testing.assert_close(twice(batch).smoothed, plain(batch).smoothed)
        without = plain(batch).smoothed
        model.train()
        difference = (twice(batch).smoothed - without).item()
        assert difference == pytest.approx(0, abs=1e-4) if dropout == 0 else difference > 0.1


@pytest.mark.slow
def test_compiled_states_are_the_same_for_every_shape_and_compiled_few_times() -> None:
    """What `training.compile` compiles, by a back end that runs the graph as it is."""
    config = ModelConfig(d_model=8, num_heads=2, d_ff=16, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0)
    model = build_model(config, 20, 20)
    plain, compiled = Objective(model, 0.1), Objective(model, 0.1)
    compiled.compile_states(backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    for rows, src, tgt in ((4, 5, 3), (6, 5, 7), (3, 9, 4), (5, 2, 6), (8, 12, 11), (7, 3, 3), (2, 8, 10)):
        batch = collate([([5] * src, [6] * tgt), *[([7] * (src - 1), [8] * (tgt - 1))] * (rows - 1)])
        results = []
        for objective in (plain, compiled):
            sums = objective(batch)
            results.append((sums.smoothed, *torch.autograd.grad(sums.smoothed, list(model.parameters()))))
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3
