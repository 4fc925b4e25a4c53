"""Sums of label-smoothed cross-entropy; the logits of a whole batch are never in memory at once.

Shapes: N real target positions, D width of the states, V vocabulary, C positions in one chunk.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nmt.batches.batches import Batch
from nmt.models.interface import Backend, TrainableModel
from nmt.models.source import Source
from nmt.training.graph import Trunk, captured

# Logits in one chunk. On a CPU a chunk should fit into the cache, but matrix products over fewer than a few hundred
# positions are slow; a GPU is fastest with few large products.
CHUNK_LOGITS_ON_CPU = 2**22
CHUNK_LOGITS_ON_GPU = 2**28
MIN_CHUNK = 256


class LossSums(NamedTuple):
    """Sums over the real target positions of a batch, to be divided by the number of positions in the whole update."""

    smoothed: Tensor
    """The training loss; (), nats."""
    cross_entropy: Tensor
    """Without smoothing, comparable between settings; e^mean is the perplexity; (), nats."""


def cross_entropy_sums(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    label_smoothing: float,
    r_drop: float = 0.0,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    backend: Backend | None = None,
) -> LossSums:
    """Cross-entropy of softmax(weight @ state + bias) with the distribution (1 - e) * one-hot + e / V.

    (N, D), (V, D), (N,) int64, and (V,) if there is a bias -> two sums. Label smoothing is Szegedy et al. 2016,
    section 7. Under autocast the matrix products use its dtype and the softmax fp32. If `r_drop`, R-Drop's alpha, is
    positive, the states come from two passes, (2N, D), and the divergence between the passes is part of the loss.

    The gradients are computed here, before the backward pass, in the dtype of the products. Small ones would underflow
    in fp16, so they are stored multiplied by `scale`, (), the factor of the loss in the backward pass. The results
    do not depend on it. With a `backend` of torch.compile, the operations between the products are fused.
    """
    device = states.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        states, weight = states.to(dtype), weight.to(dtype)
    learned = [states, weight] if bias is None else [states, weight, bias]
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in learned)
    with torch.autocast(device, enabled=False):
        return LossSums(*_fused_sums(states, weight, bias, targets, label_smoothing, r_drop, wanted, scale, backend))


def chunk_rows(num_logits: int, device: torch.device) -> int:
    """The maximum number of positions in a chunk, with `num_logits` a position, over all passes."""
    return max(MIN_CHUNK, (CHUNK_LOGITS_ON_CPU if device.type == "cpu" else CHUNK_LOGITS_ON_GPU) // num_logits)


def logits_bytes(num_positions: int, vocab_size: int, device: torch.device) -> int:
    """Bytes of the fp32 logits in memory at once, for N positions."""
    return 4 * vocab_size * min(num_positions, chunk_rows(vocab_size, device))


def plain_sums(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    label_smoothing: float,
    r_drop: float = 0.0,
    bias: Tensor | None = None,
) -> LossSums:
    """The sums of `cross_entropy_sums` as formulas that autograd differentiates, in about twice the time.

    With p = log softmax(W h + b) of a position, target t, and for R-Drop q of the second pass, the loss is a sum of:

        CE(p) = -(1 - e) p_t - e mean(p)
        (CE(p) + CE(q)) / 2 + alpha / 4 sum((exp(p) - exp(q)) (p - q))          the sum is KL(p || q) + KL(q || p)
    """
    passes = 2 if r_drop else 1
    rows = states.reshape(passes, -1, states.shape[1])  # (passes, N, D)
    size = chunk_rows(passes * len(weight), states.device)
    chunks = zip(torch.split(rows, size, 1), torch.split(targets, size), strict=True)
    settings = weight, bias, label_smoothing, r_drop
    parts = [checkpoint(_plain_chunk, *chunk, *settings, use_reentrant=False) for chunk in chunks]
    return LossSums(*(torch.stack(sums).sum() for sums in zip(*parts, strict=True)))


def _plain_chunk(
    rows: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None, e: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """The two sums of (passes, C, D) states; their logits are computed again in the backward pass."""
    log_p = F.linear(rows, weight, bias).log_softmax(-1, dtype=weight.dtype)  # (passes, C, V)
    cross_entropy = -log_p.gather(-1, targets.expand(len(rows), -1)[..., None]).sum() / len(rows)
    smoothed = (1 - e) * cross_entropy - e * log_p.mean(-1).sum() / len(rows)
    if alpha:
        p, q = log_p
        smoothed = smoothed + alpha / 4 * ((p.exp() - q.exp()) * (p - q)).sum()
    return smoothed, cross_entropy.detach()


class _FusedSums(torch.autograd.Function):
    """The loss and its gradients, computed together, a chunk of positions at a time.

    The loss at a position with state h, logits z = W h + b and target t, with lse = log(sum(exp(z))):

        (1 - e) (lse - z_t) + e (lse - mean(z))         mean(z) = (h . rowsum + sum(b)) / V, with rowsum = sum_v W_v

    Its gradients, with p = softmax(z) = exp(z - max) / s:

        dh = W^T (p - (1 - e) one-hot(t)) - e/V rowsum
        dW = (p - (1 - e) one-hot(t)) h^T - e/V (1 h^T)
        db = p - (1 - e) one-hot(t) - e/V 1

    The (C, V) logits need only max, exp and sum, in place: the subtraction changes one number a row, the much smaller
    dh and h are divided by s, and the terms uniform over V use row sums. Some s and h / s overflow or underflow in
    fp16: with a scale, the (C, V) gradients are divided by s and scaled before they are converted to fp16.

    With R-Drop, p and q are the distributions of two passes over the same positions, and CE is the loss above:

        (CE(p) + CE(q)) / 2 + alpha / 4 (KL(p || q) + KL(q || p))

    This is half of equation 4 in Liang et al. 2021, so that it stays comparable with the loss of a single pass.
    Gradients with respect to the logits z of p = softmax(z), with d = log p - log q:

        dKL(p || q) / dz = p (d - KL(p || q))          dKL(q || p) / dz = p - q
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        label_smoothing: float,
        alpha: float,
        wanted: bool,
        scale: Tensor | None,
        backend: Backend | None,
    ) -> tuple[Tensor, Tensor]:
        passes = 2 if alpha else 1
        of_chunk = _compiled(_two_passes if alpha else _one_pass, backend)
        share = 1.0 - label_smoothing  # additional probability of the target
        uniform = label_smoothing / len(weight)  # probability of every word
        size = chunk_rows(passes * len(weight), states.device)
        sums = states.new_zeros(3, dtype=torch.float32)  # of lse, of the targets' logits, of the divergences
        d_states = torch.empty_like(states)  # (passes * N, D)
        d_weight = torch.zeros_like(weight, dtype=torch.float32)  # (V, D)
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)  # (V,)
        buffers = [weight.new_empty(min(size, len(targets)), len(weight)) for _ in range(passes)]  # (C, V) each
        for start in range(0, len(targets), size):
            chunk = slice(start, start + size)
            ids = targets[chunk, None]  # (C, 1)
            parts = [part[chunk] for part in states.chunk(passes)]  # (C, D) each
            logits = [torch.mm(rows, weight.t(), out=out[: len(ids)]) for rows, out in zip(parts, buffers, strict=True)]
            gradients, total, of_sums = of_chunk(*logits, bias, ids, share, alpha, scale)
            sums += of_sums
            if wanted:
                d_parts = (part[chunk] for part in d_states.chunk(passes))
                for rows, d_rows, (d_logits, of_target) in zip(parts, d_parts, gradients, strict=True):
                    d_logits.scatter_(1, ids, of_target)
                    _add_gradients(d_logits, total, weight, rows, d_rows, d_weight, d_bias)
        row_sum, state_sum = weight.sum(0, dtype=torch.float32), states.sum(0, dtype=torch.float32)  # (D,), (D,)
        if wanted:
            shift = uniform / passes if scale is None else uniform / passes * scale
            d_states -= shift * row_sum
            d_weight -= shift * state_sum
            if d_bias is not None:
                d_bias -= shift * len(states)
            ctx.save_for_backward(d_states, d_weight.to(weight.dtype), d_bias)  # already multiplied by `scale`
            ctx.scale = scale
        lse, of_targets, divergence = sums
        logits_sum = row_sum @ state_sum if bias is None else row_sum @ state_sum + len(states) * bias.sum()
        smoothed = (lse - share * of_targets - uniform * logits_sum) / passes + alpha / 4 * divergence
        cross_entropy = (lse - of_targets) / passes
        ctx.mark_non_differentiable(cross_entropy)
        return smoothed, cross_entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_smoothed: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        factor = d_smoothed if ctx.scale is None else d_smoothed / ctx.scale
        gradients = (None if gradient is None else gradient * factor for gradient in ctx.saved_tensors)
        return *gradients, None, None, None, None, None, None


_fused_sums: Callable[..., tuple[Tensor, Tensor]] = _FusedSums.apply


def _add_gradients(
    d_logits: Tensor,
    total: Tensor | None,
    weight: Tensor,
    rows: Tensor,
    d_rows: Tensor,
    d_weight: Tensor,
    d_bias: Tensor | None,
) -> None:
    """Write the gradients of rows, and add those of weight and bias, from (C, V) ones of logits, times any `total`."""
    if total is None:
        if d_bias is not None:
            d_bias += d_logits.sum(0, dtype=torch.float32)
        torch.mm(d_logits, weight, out=d_rows)
        d_weight += torch.mm(d_logits.t(), rows)
        return
    if d_bias is not None:
        d_bias += torch.mv(d_logits.t(), (1 / total[:, 0]).to(d_logits.dtype))
    torch.mm(d_logits, weight, out=d_rows).div_(total)
    scaled = (rows / total).to(rows.dtype)  # (C, D)
    if d_weight.dtype == weight.dtype:
        d_weight.addmm_(d_logits.t(), scaled)
    else:  # half-precision products, summed over the chunks in fp32
        d_weight += torch.mm(d_logits.t(), scaled)


# For each pass, the gradients without the one-hot term, (C, V), and those of the targets with it, (C, 1), both times
# `total`, (C, 1), if that is not None; and the sums of lse, targets' logits and divergences, (3,).
_OfChunk = tuple[list[tuple[Tensor, Tensor]], Tensor | None, Tensor]


def _one_pass(
    logits: Tensor, bias: Tensor | None, ids: Tensor, share: float, alpha: float, scale: Tensor | None
) -> _OfChunk:
    """exp(z - max) of (C, V) logits, which may be overwritten, in their dtype, and exp(z_t - max) - share * s.

    These are s times the gradients; with a scale, they are divided by s and scaled.
    """
    wide = logits.float()
    if bias is not None:
        wide += bias
    target = wide.gather(1, ids).sum()
    highest = wide.amax(1, keepdim=True)  # (C, 1)
    exps = wide.sub_(highest).exp_()  # (C, V)
    total = exps.sum(1, keepdim=True)  # (C, 1)
    of_target = exps.gather(1, ids) - share * total  # (C, 1)
    sums = torch.stack([(highest + total.log()).sum(), target, torch.zeros_like(target)])
    if scale is not None:
        factor = scale / total
        exps, of_target = exps.mul_(factor), of_target * factor
    gradients = [(exps.to(logits.dtype), of_target.to(logits.dtype))]
    return gradients, None if scale is not None else total, sums


def _two_passes(
    of_first: Tensor,
    of_second: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    share: float,
    alpha: float,
    scale: Tensor | None,
) -> _OfChunk:
    """The gradients of R-Drop's loss from the (C, V) logits of two passes, which may be overwritten, in their dtype."""
    z, y = of_first.float(), of_second.float()  # (C, V)
    if bias is not None:
        z += bias
        y += bias
    p, lse_p = _softmax(z)
    q, lse_q = _softmax(y)
    target = z.gather(1, ids).sum() + y.gather(1, ids).sum()
    d = z.sub_(y)  # (C, V), log p - log q + lse_p - lse_q
    kl_pq = (p * d).sum(1, keepdim=True) + (lse_q - lse_p)  # (C, 1); torch.einsum is slow here
    kl_qp = (q * d).sum(1, keepdim=True).neg_() + (lse_p - lse_q)
    # p / 2 + a (p (log p - log q - KL(p || q)) + p - q) for z, and with p and q exchanged for y.
    a = alpha / 4
    constant = 0.5 + a
    d_z = torch.add(constant - a * (kl_pq + lse_p - lse_q), d, alpha=a).mul_(p).sub_(q, alpha=a)
    d_y = torch.add(constant - a * (kl_qp + lse_q - lse_p), d, alpha=-a, out=d).mul_(q).sub_(p, alpha=a)
    gradients = []
    for d_logits in (d_z, d_y):
        of_target = d_logits.gather(1, ids) - share / 2
        if scale is not None:
            d_logits, of_target = d_logits.mul_(scale), of_target * scale
        gradients.append((d_logits.to(of_first.dtype), of_target.to(of_first.dtype)))
    return gradients, None, torch.stack([(lse_p + lse_q).sum(), target, (kl_pq + kl_qp).sum()])


def _softmax(z: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of (C, V) logits, and their log-sum-exp, (C, 1)."""
    highest = z.amax(1, keepdim=True)
    exps = (z - highest).exp_()
    total = exps.sum(1, keepdim=True)
    return exps.div_(total), highest + total.log()


@functools.cache
def _compiled(function: Callable[..., Any], backend: Backend | None) -> Callable[..., Any]:
    """The function, compiled for chunks of any shape if there is a backend."""
    return function if backend is None else torch.compile(function, dynamic=True, backend=backend)


class Objective(nn.Module):
    """The training loss as a module, so that a wrapper for data parallelism sees a single forward pass."""

    def __init__(self, model: TrainableModel[Any, Any], label_smoothing: float, r_drop: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.r_drop = r_drop
        self.backend: Backend | None = None
        self.trunk: Trunk | None = None

    def fuse(self, backend: Backend = "inductor", dynamic: bool = True) -> None:
        """Compile the model's layers, for batches of any shape if `dynamic`, and the loss, for any shape."""
        self.model.compile_layers(backend, dynamic)
        self.backend = backend

    def capture(self, batch: Batch, dtype: torch.dtype) -> None:
        """Capture a CUDA graph of the model for joined batches like this one, in training mode and on a GPU."""
        self.trunk = captured(self.model, *self._inputs(batch), dtype)

    def _inputs(self, batch: Batch) -> tuple[Source, Tensor]:
        """The arguments of the model's `states`: sources and targets, twice with R-Drop in training mode."""
        passes = self._passes
        return batch.source.repeat(passes), batch.tgt_in.repeat(passes, 1)

    @property
    def _passes(self) -> int:
        return 2 if self.r_drop and self.model.training else 1

    def forward(self, batch: Batch, scale: Tensor | None = None) -> LossSums:
        """The sums over a batch on the model's device, with R-Drop only in training mode.

        `scale` as in `cross_entropy_sums`.
        """
        passes, (source, tgt_in), joined = self._passes, self._inputs(batch), batch.source.joined
        if self.trunk is not None and joined is not None and self.model.training:
            states = self.trunk(source.values, tgt_in, joined.src_starts, joined.tgt_starts)
        else:
            states = self.model.states(source, tgt_in)  # (passes * B, T, D)
        rows = states.reshape(passes, -1, states.shape[-1])  # (passes, B * T, D)
        # Of joined pairs, a slice, whose gradient is cheaper.
        rows = rows[:, batch.tgt_positions] if joined is None else rows[:, : batch.num_tgt_tokens]  # (passes, N, D)
        return cross_entropy_sums(
            rows.flatten(0, 1),  # (passes * N, D)
            self.model.output.weight,
            batch.tgt_out.flatten()[batch.tgt_positions],
            self.label_smoothing,
            self.r_drop if passes == 2 else 0.0,
            scale,
            self.model.output.bias,
            self.backend,
        )
