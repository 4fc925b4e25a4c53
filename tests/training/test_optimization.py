"""The optimizer: AdamW against its formula, schedules against hand-computed rates, clipping."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from nmt.config.training import TrainingConfig
from nmt.training import optimization
from nmt.training.optimization import clip_and_step, learning_rate, make_optimizer

DISABLED = torch.amp.GradScaler("cpu", enabled=False)


def rates(schedule: str, steps: list[int], start: int = 0, **more: float) -> list[float]:
    config = TrainingConfig.model_validate(
        {"max_steps": 1000, "learning_rate": 0.01, "warmup_steps": 100, "schedule": schedule, **more}
    )
    return [learning_rate(step, config, start) for step in steps]


def test_schedules_agree_with_hand_computed_rates() -> None:
    steps = [1, 50, 100, 400, 550, 1000]
    warmup = [0.0001, 0.005, 0.01]
    assert rates("constant", steps) == pytest.approx([*warmup, 0.01, 0.01, 0.01])
    assert rates("inverse_sqrt", steps) == pytest.approx([*warmup, 0.005, 0.01 * math.sqrt(100 / 550), 0.01 / 10**0.5])
    assert rates("linear", steps) == pytest.approx([*warmup, 0.01 * 2 / 3, 0.005, 0.0])
    assert rates("cosine", steps) == pytest.approx([*warmup, 0.0075, 0.005, 0.0])
    assert rates("linear", [550, 1000], min_learning_rate=0.002) == pytest.approx([0.006, 0.002])
    assert rates("inverse_sqrt", [1, 4], warmup_steps=0) == pytest.approx([0.01, 0.005])


def test_a_restarted_schedule_is_one_of_the_updates_that_were_added() -> None:
    steps = [1001, 1050, 1100, 1325, 1550, 2000]
    start = {"max_steps": 2000, "start": 1000}
    warmup = [0.0001, 0.005, 0.01]
    assert rates("linear", steps, **start) == pytest.approx([*warmup, 0.0075, 0.005, 0.0])
    quarter = 0.01 * (1 + math.sqrt(0.5)) / 2
    assert rates("cosine", steps, **start) == pytest.approx([*warmup, quarter, 0.005, 0.0])
    # As if its updates were counted from 1, to the bit.
    assert rates("cosine", list(range(1001, 2001)), **start) == rates("cosine", list(range(1, 1001)))


def test_inverse_sqrt_is_the_papers_formula() -> None:
    # d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), equation (3), whose peak is (d_model * warmup)^-0.5
    config = TrainingConfig(max_steps=1, learning_rate=(512 * 4000) ** -0.5, warmup_steps=4000)
    for step in (1, 10, 3999, 4000, 4001, 100000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert learning_rate(step, config) == pytest.approx(paper)


def test_adamw_and_clipping_follow_their_formulas() -> None:
    config = TrainingConfig(max_steps=1, clip_norm=0.5, weight_decay=0.1)
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, config)
    expected = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
    first = {name: np.zeros_like(value) for name, value in expected.items()}
    second = {name: np.zeros_like(value) for name, value in expected.items()}
    random = np.random.default_rng(0)
    for step in (1, 2, 3):
        gradients = {name: random.normal(size=value.shape) for name, value in expected.items()}
        for name, p in model.named_parameters():
            p.grad = torch.from_numpy(gradients[name]).float()
        norm = clip_and_step(optimizer, DISABLED, config.clip_norm, rate=0.01)
        true_norm = math.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        assert norm.item() == pytest.approx(true_norm, rel=1e-5)
        for name, value in expected.items():
            gradient = gradients[name] * min(1.0, 0.5 / true_norm)
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.98 * second[name] + 0.02 * gradient**2
            value *= 1 - 0.01 * (0.1 if name == "weight" else 0.0)  # biases do not decay
            value -= 0.01 * (first[name] / (1 - 0.9**step)) / (np.sqrt(second[name] / (1 - 0.98**step)) + 1e-9)
            np.testing.assert_allclose(model.get_parameter(name).detach().numpy(), value, rtol=1e-4, atol=1e-6)


def test_a_not_finite_gradient_changes_nothing_and_the_next_one_does() -> None:
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, TrainingConfig(max_steps=1))
    for gradient in (1.0, math.nan, math.inf):
        for p in model.parameters():
            p.grad = torch.full_like(p, gradient)
        before = [p.detach().clone() for p in model.parameters()]
        clip_and_step(optimizer, DISABLED, 1.0, rate=0.1)
        changed = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
        assert changed == [math.isfinite(gradient)] * 2
    steps = {float(state["step"]) for state in optimizer.state.values()}
    assert steps == {1.0}


def with_found_inf(on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the path of a device whose fused AdamW respects `found_inf`, or of one whose AdamW does not."""
    monkeypatch.setattr(optimization, "SUPPORT_FOUND_INF", ("cpu",) if on else ())


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_a_skipped_update_leaves_weights_moments_and_steps_as_they_are(
    fused: bool, scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_found_inf(fused, monkeypatch)
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, TrainingConfig(max_steps=1, weight_decay=0.1))
    assert bool(optimizer.defaults["fused"]) == fused
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scaled)

    def everything() -> list[torch.Tensor]:
        states = [state[key] for state in optimizer.state.values() for key in ("step", "exp_avg", "exp_avg_sq")]
        return [value.detach().clone() for value in (*model.parameters(), *states)]

    for gradient in (1.0, math.nan, math.inf, -math.inf):
        before = everything()
        scaler.scale(torch.zeros(()))  # as for every loss before its backward pass
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        model.weight.grad[1, 2] = gradient  # type: ignore[index]
        clip_and_step(optimizer, scaler, 1.0, rate=0.1)
        if math.isfinite(gradient):
            assert {value.item() for value in everything()[2::3]} == {1.0}
        else:
            assert len(before) == 8
            assert all(torch.equal(old, new) for old, new in zip(before, everything(), strict=True))


def test_on_mps_nothing_relies_on_found_inf_and_updates_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some supported releases of torch ignore it there (fixed in June 2026)."""
    assert "mps" not in optimization.SUPPORT_FOUND_INF
    weights = []
    for fused in (True, False):
        with_found_inf(fused, monkeypatch)
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = make_optimizer(model, TrainingConfig(max_steps=1, weight_decay=0.1))
        for _ in range(3):
            torch.autograd.backward(model(torch.ones(1, 3)).square().sum())
            clip_and_step(optimizer, DISABLED, 1.0, rate=0.1)
        weights.append(model.weight.detach())
    torch.testing.assert_close(weights[0], weights[1])


def test_scaled_gradients_are_unscaled_before_they_are_clipped() -> None:
    weights = {}
    for enabled in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = make_optimizer(model, TrainingConfig(max_steps=1))
        scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, enabled=enabled)
        loss = model(torch.ones(2, 4)).square().sum()
        torch.autograd.backward(scaler.scale(loss))
        norm = clip_and_step(optimizer, scaler, 0.01, rate=0.1)
        weights[enabled] = (model.weight.detach().clone(), norm)
    torch.testing.assert_close(weights[True], weights[False])
