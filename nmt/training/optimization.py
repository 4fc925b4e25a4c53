"""The optimizer, the learning-rate schedule, gradient clipping, and parameters that are not trained."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nmt.config.section import ModelPart
from nmt.config.training import TrainingConfig
from nmt.errors import ConfigError
from nmt.models.interface import TrainableModel

# Devices on which fused AdamW skips an update if `found_inf` is set. On MPS, torch releases before the summer of 2026
# apply the update anyway; other devices are untested.
SUPPORT_FOUND_INF = ("cpu", "cuda")


class AdamW(torch.optim.AdamW):
    """torch's AdamW, with the attribute that makes a fused optimizer skip an update, as GradScaler sets it."""

    found_inf: Tensor | None = None
    """(); if 1.0, `step` changes nothing."""


def freeze(model: TrainableModel[Any, Any], parts: Sequence[ModelPart]) -> None:
    """Freeze the parameters of parts of the model (`training.freeze`), before the optimizer is made.

    A parameter that several parts share is frozen by the name of any. Raises `ConfigError` for a part without
    parameters, and if nothing is left to train.
    """
    # With all names of shared parameters.
    named = [(model.part_of(name), parameter) for name, parameter in model.named_parameters(remove_duplicate=False)]
    known = {part for part, _ in named}
    for part in parts:
        if part not in known:
            raise ConfigError(f"training.freeze: {part}: this model has no such parameters; leave it out")
    for part, parameter in named:
        if part in parts:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"training.freeze: {', '.join(parts)}: nothing is left to train; leave one of them out")


def make_optimizer(model: nn.Module, config: TrainingConfig) -> AdamW:
    """AdamW (Loshchilov and Hutter 2019) for unfrozen parameters; weight decay on matrices, not on biases and norms."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(parameter.device.type in SUPPORT_FOUND_INF for parameter in parameters)
    # None, not False: torch then uses its `foreach` implementation where the device has one.
    # The betas are those of Vaswani et al. 2017, section 5.3.
    return AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98), eps=1e-9, fused=fused or None)


def learning_rate(step: int, config: TrainingConfig, start: int = 0) -> float:
    """The learning rate of update number `step`, counted from 1.

    It rises linearly to the peak, `learning_rate`, at `warmup_steps`. `inverse_sqrt` then falls as
    peak * sqrt(warmup_steps / step) (Vaswani et al. 2017, equation 3, with a peak of d_model^-0.5 * warmup_steps^-0.5);
    `cosine` and `linear` fall to `min_learning_rate` at `max_steps`; `constant` stays at the peak. The schedule begins
    after update `start`, which is 0 unless the schedule was restarted.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    step -= start
    if step < warmup:
        return peak * step / warmup
    if config.schedule == "constant":
        return peak
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(1, warmup) / step)
    assert config.max_steps is not None, "checked by TrainingConfig"
    done = min(1.0, (step - warmup) / (config.max_steps - start - warmup))
    left = (1 + math.cos(math.pi * done)) / 2 if config.schedule == "cosine" else 1 - done
    return config.min_learning_rate + (peak - config.min_learning_rate) * left


def clip_and_step(
    optimizer: AdamW, scaler: torch.amp.GradScaler, clip_norm: float | None, rate: float, keep_gradients: bool = False
) -> Tensor:
    """Clip the gradients and update the parameters; returns the global norm before clipping, ().

    The gradients are freed at the end, or, with `keep_gradients`, set to zero, as a CUDA graph needs them.

    fp16 gradients are unscaled first, so that their true norm is clipped. The update is skipped if the norm is not
    finite; a fused optimizer checks this on the device, without synchronising, otherwise the host reads the norm.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    if scaler.is_enabled():
        scaler.unscale_(optimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = nn.utils.clip_grad_norm_(parameters, math.inf if clip_norm is None else clip_norm)
    if scaler.is_enabled():
        scaler.step(optimizer)
        scaler.update()
    elif optimizer.defaults["fused"]:
        optimizer.found_inf = (~norm.isfinite()).float()
        optimizer.step()
    elif norm.isfinite():
        optimizer.step()
    optimizer.zero_grad(set_to_none=not keep_gradients)
    return norm


def clear_rows(rows: Sequence[tuple[Tensor, int]]) -> None:
    """Set rows of matrices, such as the embedding of padding, to zero; entries of a bias keep their values."""
    with torch.no_grad():
        for parameter, row in rows:
            if parameter.ndim > 1:
                parameter[row] = 0.0


def keep_rows(rows: Sequence[tuple[Tensor, int]]) -> None:
    """Give rows of parameters no gradient; after the backward passes, and before the gradients are clipped."""
    for parameter, row in rows:
        if parameter.grad is not None:
            parameter.grad[row] = 0.0
