"""A GPU: its results beside those of the CPU, and the command line. Skipped where there is none."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SOLVED, VOCAB_SIZE, Cli, batch_of
from torch import Tensor

from nmt.batches.joining import JoinedShape
from nmt.config.inference import RnnConfig, TransformerConfig
from nmt.models.dropout import Dropout
from nmt.models.factory import build_model
from nmt.models.joined import can_join
from nmt.training.loss import Objective, cross_entropy_sums, plain_sums

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
    pytest.mark.filterwarnings("ignore"),  # torch's compiler has some about itself
]

MODELS = {
    "transformer": TransformerConfig(
        num_encoder_layers=2, num_decoder_layers=2, d_model=32, num_heads=2, d_ff=64, dropout=0.0, max_positions=64
    ),
    "rnn": RnnConfig(architecture="rnn", d_embedding=16, d_model=32, dropout=0.0),
}
PAIRS = [([7, 8, 9, 4, 5], [5, 6, 7]), ([4, 5, 6], [7, 8, 9, 10, 4, 5]), ([10, 9], [8])]


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's default for recurrent layers


def gradients_on(device: str, kind: str, r_drop: float, compiled: bool = False) -> list[Tensor]:
    """The two losses of a batch, and all gradients."""
    torch.manual_seed(1)
    model = build_model(MODELS[kind], VOCAB_SIZE, VOCAB_SIZE).to(device)
    objective = Objective(model, 0.1, r_drop)
    if compiled:
        objective.fuse()
    sums = objective(batch_of(PAIRS).to(torch.device(device)))
    sums.smoothed.backward()
    return [sums.smoothed.detach(), sums.cross_entropy, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize(("kind", "compiled"), [("transformer", False), ("transformer", True), ("rnn", False)])
@pytest.mark.parametrize("r_drop", [0.0, 3.0])
def test_losses_and_gradients_are_those_of_the_cpu(kind: str, compiled: bool, r_drop: float) -> None:
    on_cpu = gradients_on("cpu", kind, r_drop)
    on_gpu = gradients_on("cuda", kind, r_drop, compiled)
    for expected, found in zip(on_cpu, on_gpu, strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", [None, "inductor"])
@pytest.mark.parametrize("r_drop", [0.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_is_that_in_float64(dtype: torch.dtype, r_drop: float, backend: str | None) -> None:
    torch.manual_seed(1)
    states = torch.randn(600, 64, device="cuda").to(dtype).float()
    weight = (torch.randn(5000, 64, device="cuda") / 4).to(dtype).float()
    targets = torch.randint(5000, (300 if r_drop else 600,), device="cuda")
    expected = [tensor.double().requires_grad_() for tensor in (states, weight)]
    exact = plain_sums(*expected, targets, 0.1, r_drop).smoothed
    found = [tensor.clone().requires_grad_() for tensor in (states, weight)]
    scale = torch.tensor(64.0, device="cuda") if dtype == torch.float16 else None
    with torch.autocast("cuda", dtype):
        rounded = cross_entropy_sums(*found, targets, 0.1, r_drop, scale, backend=backend).smoothed
    assert rounded.item() == pytest.approx(exact.item(), rel=1e-3)
    for ours, gradient in zip(torch.autograd.grad(rounded, found), torch.autograd.grad(exact, expected), strict=True):
        assert (ours - gradient).norm() / gradient.norm() < 1e-2


SHAPE = JoinedShape((64, 48), pairs=8, max_length=8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [16, 64])
def test_this_gpu_attends_to_joined_sentences(dtype: torch.dtype, width: int) -> None:
    assert can_join(torch.device("cuda"), dtype, width)


def recorded_updates(is_captured: bool, compiled: bool, r_drop: float) -> list[Tensor]:
    """The losses and the sum of the gradients of two joined batches, with dropout, in bf16."""
    torch.manual_seed(1)
    config = MODELS["transformer"].model_copy(update={"dropout": 0.3})
    objective = Objective(build_model(config, VOCAB_SIZE, VOCAB_SIZE).to("cuda"), 0.1, r_drop)
    if compiled:
        objective.fuse(dynamic=False)
    batches = [batch_of(pairs, shape=SHAPE).to(torch.device("cuda")) for pairs in (PAIRS, PAIRS[:2])]
    if is_captured:
        objective.capture(batches[1], torch.bfloat16)
        assert objective.trunk is not None
    losses = []
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        with torch.autocast("cuda", torch.bfloat16):
            sums = objective(batch)
        sums.smoothed.backward()
        losses.append(sums.smoothed.detach())
    return [*losses, *(parameter.grad for parameter in objective.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize("r_drop", [0.0, 3.0])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_recorded_graph_computes_what_the_model_does(compiled: bool, r_drop: float) -> None:
    expected, found = (recorded_updates(is_captured, compiled, r_drop) for is_captured in (False, True))
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if number < 2:
            assert torch.equal(one, other)  # the same draws of dropout
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


def test_dropout_zeroes_its_share() -> None:
    x = torch.ones(64, 100, 64, device="cuda")
    dropped = Dropout(0.2)(x)
    assert abs(float((dropped == 0).float().mean()) - 0.2) < 0.01
    assert set(dropped.unique().tolist()) == {0.0, 1.25}


def run_of(cli: Cli, name: str, *settings: str) -> list[dict[str, Any]]:
    """Train the copy task on the GPU; the records of its metrics."""
    code, _, err = cli("train", "copy.yaml", "--name", name, "--set", "training.device=cuda", *settings)
    assert code == 0, err
    return [json.loads(line) for line in Path("runs", name, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("settings", [["precision=fp32"], ["precision=bf16"], ["precision=fp16"],
                                      ["precision=bf16", "compile=true", "r_drop=1"]])  # fmt: skip
def test_the_copy_task_is_learned(settings: list[str], copy_task: Path, cli: Cli) -> None:
    run_of(cli, "copy", *SOLVED, *(f"--set=training.{setting}" for setting in settings))
    code, out, err = cli("eval", "--model", "copy", "--json")
    assert code == 0, err
    assert json.loads(out)["scores"]["bleu"]["value"] > 90


@pytest.mark.parametrize("joined", ["true", "false"])
def test_a_resumed_training_goes_on(copy_task: Path, cli: Cli, joined: str) -> None:
    setting = ["--set", f"training.joined={joined}"]
    whole = run_of(cli, "whole", "--set", "training.max_steps=12", *setting)
    run_of(cli, "parts", "--set", "training.max_steps=6", *setting)
    parts = run_of(cli, "parts", "--set", "training.max_steps=12", *setting)
    losses = [[record["loss"] for record in records if record["kind"] == "train"] for records in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("options", [["--beam-size", "1"], ["--beam-size", "4"]])
def test_translations_are_those_of_the_cpu(options: list[str], in_solved: Path, cli: Cli) -> None:
    found = [cli("translate", "--input", "test.en", "--device", device, *options) for device in ("cpu", "cuda")]
    assert found[0][0] == found[1][0] == 0, found
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_translates_too(precision: str, in_solved: Path, cli: Cli) -> None:
    code, out, err = cli("translate", "--device", "cuda", "--precision", precision, "1 2 3 4")
    assert (code, out) == (0, "1 2 3 4\n"), err


def test_scores_are_those_of_the_cpu(in_solved: Path, cli: Cli) -> None:
    on_cpu, on_gpu = (cli("score", "test.en", "test.de", "--device", device) for device in ("cpu", "cuda"))
    assert on_cpu[0] == on_gpu[0] == 0, (on_cpu, on_gpu)
    assert [*map(float, on_gpu[1].split())] == pytest.approx([*map(float, on_cpu[1].split())], abs=1e-3)
