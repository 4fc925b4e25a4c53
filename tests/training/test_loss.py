"""The loss against its plain version, that against torch's own cross-entropy, and both against hand computations."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import batch_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nmt.config.inference import LayoutName, TransformerConfig
from nmt.models.factory import build_model
from nmt.models.source import Source
from nmt.models.transformer import Transformer
from nmt.training import loss
from nmt.training.loss import Objective, chunk_rows, cross_entropy_sums, logits_bytes, plain_sums

N, D, V = 37, 6, 11


def made_up(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """States, output weight and targets; the logits have a range of some tens, as before training."""
    torch.manual_seed(3)
    states = (5 * torch.randn(N, D)).to(dtype).requires_grad_()
    weight = torch.randn(V, D).to(dtype).requires_grad_()
    return states, weight, torch.randint(0, V, (N,))


def made_up_bias(has_bias: bool) -> list[Tensor]:
    """An output bias as large as the logits, or None."""
    return [(10 * torch.randn(V)).requires_grad_()] if has_bias else []


def written_out(logits: Tensor, targets: Tensor, label_smoothing: float, r_drop: float) -> Tensor:
    """The loss by torch's own losses; R-Drop as equation 4 of Liang et al. 2021, halved."""
    passes = logits.chunk(2 if r_drop else 1)
    losses = [F.cross_entropy(one, targets, reduction="sum", label_smoothing=label_smoothing) for one in passes]
    p, q = passes[0].log_softmax(1), passes[-1].log_softmax(1)
    divergence = F.kl_div(q, p, reduction="sum", log_target=True) + F.kl_div(p, q, reduction="sum", log_target=True)
    return (torch.stack(losses).sum() + r_drop * divergence / 2) / len(passes)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("r_drop", [0.0, 5.0])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.4])
def test_values_and_gradients_of_the_plain_loss_are_torchs(
    label_smoothing: float, r_drop: float, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "MIN_CHUNK", 8)
    monkeypatch.setattr(loss, "CHUNK_LOGITS_ON_CPU", 1)
    states, weight, targets = made_up()
    states, targets = states[:36], targets[: 18 if r_drop else 36]
    learned = (states, weight, *made_up_bias(has_bias))
    sums = plain_sums(states, weight, targets, label_smoothing, r_drop, *learned[2:])
    logits = F.linear(*learned)
    expected = written_out(logits, targets, label_smoothing, r_drop)
    torch.testing.assert_close(sums.smoothed, expected)
    passes = len(states) // len(targets)
    cross_entropy = F.cross_entropy(logits, targets.repeat(passes), reduction="sum") / passes
    torch.testing.assert_close(sums.cross_entropy, cross_entropy.detach())
    torch.testing.assert_close(
        torch.autograd.grad(sums.smoothed, learned), torch.autograd.grad(expected, learned), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("label_smoothing, r_drop", [(0.0, 0.0), (0.1, 0.0), (0.4, 0.0), (0.1, 0.5), (0.1, 5.0)])
@pytest.mark.parametrize("chunk", [1, 8, 37, 256])
def test_values_and_gradients_are_those_of_the_plain_loss(
    chunk: int, label_smoothing: float, r_drop: float, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "MIN_CHUNK", chunk)
    monkeypatch.setattr(loss, "CHUNK_LOGITS_ON_CPU", chunk * V)
    states, weight, targets = made_up()
    if r_drop:
        states, targets = states[:36] / 5, targets[:18]
    learned = (states, weight, *made_up_bias(has_bias))
    bias = learned[2] if has_bias else None
    sums = cross_entropy_sums(states, weight, targets, label_smoothing, r_drop, bias=bias)
    expected = plain_sums(states, weight, targets, label_smoothing, r_drop, bias)
    torch.testing.assert_close(sums, expected)
    # An upstream gradient that is not 1, as when the sum is divided by the tokens of an update.
    ours = torch.autograd.grad(sums.smoothed / 7, learned)
    of_plain = torch.autograd.grad(expected.smoothed / 7, learned)
    torch.testing.assert_close(ours, of_plain, rtol=1e-4, atol=2e-5)
    assert not sums.cross_entropy.requires_grad


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    states, weight, targets = (part.double() if part.is_floating_point() else part for part in made_up())

    def smoothed(states: Tensor, weight: Tensor) -> Tensor:
        return cross_entropy_sums(states, weight, targets, 0.1).smoothed.double()

    # The sums are in fp32 for every input type, hence the coarse steps.
    inputs = (states.detach().requires_grad_(), weight.detach().requires_grad_())
    assert torch.autograd.gradcheck(smoothed, inputs, eps=1e-2, atol=1e-1, rtol=1e-2)


def test_logits_far_apart_give_neither_nan_nor_infinity() -> None:
    states = torch.tensor([[400.0], [-400.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    sums = cross_entropy_sums(states, weight, torch.tensor([1, 1]), 0.1)
    # Position 0 predicts word 0, p = 1, and is wrong: lse - z_1 = 800; position 1 is right. Uniform part: 400 each.
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


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("r_drop", [0.0, 5.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near(dtype: torch.dtype, r_drop: float, has_bias: bool) -> None:
    states, weight, targets = made_up()
    if r_drop:
        states, targets = states[:36] / 5, targets[:18]
    learned = (states, weight, *made_up_bias(has_bias))
    bias = learned[2] if has_bias else None
    expected = plain_sums(states, weight, targets, 0.1, r_drop, bias)
    with torch.autocast("cpu", dtype):
        halved = cross_entropy_sums(states, weight, targets, 0.1, r_drop, bias=bias)
    assert halved.smoothed.dtype == torch.float32
    torch.testing.assert_close(halved.smoothed, expected.smoothed, rtol=2e-2, atol=0)
    of_half = torch.autograd.grad(halved.smoothed, learned)
    of_full = torch.autograd.grad(expected.smoothed, learned)
    for half, full in zip(of_half, of_full, strict=True):
        assert half.dtype == torch.float32
        assert (half - full).norm() < 0.03 * full.norm()


@pytest.mark.parametrize("layout", ["nmt", "marianmt-own-start"])
def test_only_real_positions_count(layout: LayoutName) -> None:
    """The objective of a ragged batch is torch's cross-entropy of the model's logits with padding ignored."""
    model = build_model(TransformerConfig(d_model=8, num_heads=2, d_ff=16, dropout=0.0, layout=layout), 20, 20)
    if layout != "nmt":  # then there is a bias
        nn.init.normal_(model.output.bias)  # it begins as zeros
    batch = batch_of([([5, 6, 7], [8, 9]), ([5], [6, 7, 8, 9, 10]), ([11, 12], [4])])
    sums = Objective(model, 0.1)(batch)
    logits = model(batch.source, batch.tgt_in)
    expected = F.cross_entropy(
        logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=0, reduction="sum", label_smoothing=0.1
    )
    torch.testing.assert_close(sums.smoothed, expected)
    parameters = list(model.parameters())
    of_ours = torch.autograd.grad(sums.smoothed, parameters)
    torch.testing.assert_close(of_ours, torch.autograd.grad(expected, parameters), rtol=1e-4, atol=1e-5)


def test_r_drop_by_hand() -> None:
    # p = (1/2, 1/2) and q = (1/4, 3/4), target 0: CE = ln 2 and ln 4; KL(p||q) = ln(2/sqrt 3) = 0.143841,
    # KL(q||p) = ln 2 + ln(1/4) / 4 + 3/4 ln(3/4) = 0.130812; (0.693147 + 1.386294) / 2 + 5/4 (0.143841 + 0.130812)
    weight = torch.eye(2)
    states = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    sums = cross_entropy_sums(states, weight, torch.tensor([0]), 0.0, r_drop=5.0)
    assert sums.smoothed.item() == pytest.approx(1.039721 + 0.343316, abs=1e-5)
    assert sums.cross_entropy.item() == pytest.approx(1.039721, abs=1e-5)


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_gradients_that_fp16_would_lose_survive_with_a_scale(r_drop: float) -> None:
    """Almost certain predictions: the probability of every other word is 1.5e-8, a zero in fp16.

    The words are the 512 orthogonal rows of a Hadamard matrix, so that every logit is exact: 18, 18.5 or 0.
    """
    weight = torch.ones(1, 1)
    for _ in range(9):
        weight = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), weight)
    targets = torch.tensor([3, 77, 300])
    states = torch.cat([weight[targets] * (18 / 512), weight[targets] * (18.5 / 512)][: 2 if r_drop else 1])
    doubles = [part.double().requires_grad_() for part in (states, weight)]
    exact = plain_sums(doubles[0], doubles[1], targets, 0.0, r_drop).smoothed
    true_states, true_weight = torch.autograd.grad(exact, doubles)
    others = torch.tensor([word for word in range(512) if word not in targets])
    assert 0 < true_weight[others].abs().max() < 3e-8, "half of what is the least number of fp16"

    def gradients(scale: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs = [part.clone().requires_grad_() for part in (states, weight)]
        factor = torch.ones(()) if scale is None else scale
        with torch.autocast("cpu", torch.float16):
            sums = cross_entropy_sums(inputs[0], inputs[1], targets, 0.0, r_drop, scale)
        of_states, of_weight = torch.autograd.grad(sums.smoothed * factor, inputs)
        return of_states.double() / factor, of_weight.double() / factor

    def error(found: Tensor, true: Tensor) -> float:
        return ((found - true).norm() / true.norm()).item()

    assert error(gradients(None)[1][others], true_weight[others]) == 1.0
    of_states, of_weight = gradients(torch.tensor(2.0**20))
    assert error(of_weight[others], true_weight[others]) < 0.02
    if not r_drop:  # where fp32, which represents 1 - p to 1%, is not precise enough
        assert error(of_states, true_states) < 0.05


@pytest.mark.parametrize("chunk", [4, 256])
@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_the_scale_changes_no_value(r_drop: float, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any upstream gradient, the scale of the stored gradients is removed again."""
    monkeypatch.setattr(loss, "MIN_CHUNK", chunk)
    monkeypatch.setattr(loss, "CHUNK_LOGITS_ON_CPU", chunk * V)
    states, weight, targets = made_up()
    (bias,) = made_up_bias(has_bias=True)
    targets = targets[:18]
    found = []
    for scale in (None, torch.tensor(8.0), torch.tensor(0.5)):
        rows = states[:36] if r_drop else states[:18]
        with torch.autocast("cpu", torch.float16):
            sums = cross_entropy_sums(rows, weight, targets, 0.1, r_drop, scale, bias)
        found.append((sums.smoothed, *torch.autograd.grad(3 * sums.smoothed, (states, weight, bias))))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-2, atol=1e-2)


def test_a_vocabulary_that_fp16_cannot_count_overflows_nothing() -> None:
    """The softmax's denominator of 70,000 equally likely words overflows in fp16."""
    states, weight = torch.zeros(2, 2, requires_grad=True), torch.zeros(70_000, 2, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        sums = cross_entropy_sums(states, weight, torch.tensor([3, 5]), 0.0, scale=torch.tensor(2.0))
    gradients = torch.autograd.grad(2 * sums.smoothed, (states, weight))
    assert all(gradient.isfinite().all() for gradient in gradients)


class Operations(TorchDispatchMode):
    """Records the matrix products and scattered sums, and the bytes of their largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[str] = []
        self.most_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_, torch.ops.aten.scatter_):
            self.products.append(str(func.overloadpacket))
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.most_bytes = max(self.most_bytes, result.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("scale", [None, torch.tensor(8.0)])
@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_without_gradients_only_the_logits_are_computed(r_drop: float, scale: Tensor | None) -> None:
    states, weight, targets = made_up()
    targets = targets[: 18 if r_drop else 36]
    only_logits = ["aten.mm"] * (2 if r_drop else 1)
    with torch.no_grad(), Operations() as without:
        cross_entropy_sums(states[:36], weight, targets, 0.1, r_drop, scale)
    assert without.products == only_logits
    with Operations() as of_constants:
        cross_entropy_sums(states[:36].detach(), weight.detach(), targets, 0.1, r_drop, scale)
    assert of_constants.products == only_logits
    with Operations() as wanted:
        cross_entropy_sums(states[:36], weight, targets, 0.1, r_drop, scale)
    assert len(wanted.products) >= 4


def test_either_side_can_be_frozen() -> None:
    states, weight, targets = made_up()
    of_states, of_weight = torch.autograd.grad(cross_entropy_sums(states, weight, targets, 0.1)[0], (states, weight))
    with_frozen_weight = cross_entropy_sums(states, weight.detach(), targets, 0.1).smoothed
    torch.testing.assert_close(torch.autograd.grad(with_frozen_weight, states), (of_states,))
    with_frozen_states = cross_entropy_sums(states.detach(), weight, targets, 0.1).smoothed
    torch.testing.assert_close(torch.autograd.grad(with_frozen_states, weight), (of_weight,))


def test_the_chunk_follows_from_the_device_and_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "MIN_CHUNK", 4)
    monkeypatch.setattr(loss, "CHUNK_LOGITS_ON_CPU", 80)
    monkeypatch.setattr(loss, "CHUNK_LOGITS_ON_GPU", 800)
    rows = {(kind, size): chunk_rows(size, torch.device(kind)) for kind in ("cpu", "cuda") for size in (10, 100)}
    assert rows == {("cpu", 10): 8, ("cpu", 100): 4, ("cuda", 10): 80, ("cuda", 100): 8}


@pytest.mark.parametrize("positions", [3, 100])
def test_no_more_logits_are_held_together_than_are_counted(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-Drop's two passes share the memory of one: half of its positions each."""
    monkeypatch.setattr(loss, "MIN_CHUNK", 4)
    monkeypatch.setattr(loss, "CHUNK_LOGITS_ON_CPU", 16 * 1000)
    states, weight = torch.zeros(2 * positions, 1), torch.zeros(1000, 1)
    counted = logits_bytes(positions, len(weight), torch.device("cpu"))
    with Operations() as plain:
        cross_entropy_sums(states[:positions], weight, torch.zeros(positions, dtype=torch.int64), 0.1)
    assert plain.most_bytes == counted
    with Operations() as r_drop:
        cross_entropy_sums(states, weight, torch.zeros(positions, dtype=torch.int64), 0.1, r_drop=5.0)
    assert r_drop.most_bytes == (counted if positions == 3 else counted // 2)


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_in_half_precision_the_sums_over_many_chunks_are_made_in_fp32(
    r_drop: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one-hot states every logit is a weight, exact; bf16 would stop adding 1 at 256."""
    monkeypatch.setattr(loss, "MIN_CHUNK", 8)
    monkeypatch.setattr(loss, "CHUNK_LOGITS_ON_CPU", 8)
    torch.manual_seed(1)
    weight = torch.randn(V, D).bfloat16().float().requires_grad_()
    states, targets = torch.eye(D)[torch.randint(D, (4000,))], torch.randint(3, (2000 if r_drop else 4000,))
    expected = plain_sums(states, weight, targets, 0.1, r_drop).smoothed
    with torch.autocast("cpu", torch.bfloat16):
        sums = cross_entropy_sums(states, weight, targets, 0.1, r_drop)
    torch.testing.assert_close(sums.smoothed, expected, rtol=1e-5, atol=0)
    (ours,), (of_torch,) = torch.autograd.grad(sums.smoothed, weight), torch.autograd.grad(expected, weight)
    assert (ours - of_torch).norm() < 0.01 * of_torch.norm()


def test_r_drop_passes_a_batch_twice_and_only_in_training() -> None:
    """Without dropout the passes agree, and the loss is that of one pass; with dropout they differ."""
    batch = batch_of([([5, 6, 7], [8, 9]), ([5], [6, 7, 8, 9, 10])])
    rows = []

    class Counted(Transformer):
        def states(self, source: Source, tgt_in: Tensor) -> Tensor:
            rows.append(len(tgt_in))
            return super().states(source, tgt_in)

    for dropout in (0.0, 0.5):
        model = Counted(TransformerConfig(d_model=8, num_heads=2, d_ff=16, dropout=dropout), 20, 20)
        plain, twice = Objective(model, 0.1), Objective(model, 0.1, r_drop=5.0)
        model.eval()
        torch.testing.assert_close(twice(batch).smoothed, plain(batch).smoothed)
        without = plain(batch).smoothed
        model.train()
        plain(batch)
        difference = (twice(batch).smoothed - without).item()
        assert difference == pytest.approx(0, abs=1e-4) if dropout == 0 else difference > 0.1
    assert rows == [2, 2, 2, 2, 4] * 2


@pytest.mark.parametrize("r_drop", [0.0, 3.0])
@pytest.mark.filterwarnings("ignore")  # torch's compiler has some about itself
def test_layers_and_loss_are_compiled_once_for_all_shapes(r_drop: float, small_model: Transformer) -> None:
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def gradients(objective: Objective, rows: int, src: int, tgt: int) -> list[Tensor | None]:
        sums = objective(batch_of([([5] * src, [6] * tgt), *[([7] * (src - 1), [8] * (tgt - 1))] * (rows - 1)]))
        sums.smoothed.backward()
        found = [sums.smoothed.detach(), sums.cross_entropy, *(one.grad for one in small_model.parameters())]
        small_model.zero_grad()
        return found

    small_model.train()  # without dropout
    # In the first, all lengths differ: torch would take two that are the same for one.
    shapes = [(3, 9, 4), (4, 5, 3), (6, 5, 7), (5, 2, 6), (8, 12, 11), (7, 3, 3), (2, 8, 10)]
    eager = [gradients(Objective(small_model, 0.1, r_drop), *shape) for shape in shapes]
    objective = Objective(small_model, 0.1, r_drop)
    objective.fuse(backend)
    compiled = [gradients(objective, *shape) for shape in shapes]
    torch.testing.assert_close(compiled, eager)
    assert len(graphs) == 3  # an encoder layer, a decoder layer, the loss
