"""Training on joined batches, on a CPU: the same losses, gradients and updates as padded ones."""

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import VOCAB_SIZE, batch_of, refused
from safetensors.torch import load_file
from test_training import new_trainer, newest_weights, trained
from torch import Tensor

from nmt.batches.batches import Batch
from nmt.batches.joining import JoinedShape
from nmt.config.inference import TransformerConfig
from nmt.config.reading import load_config
from nmt.errors import ConfigError, RunError, TrainingError
from nmt.models.transformer import Transformer
from nmt.runs.folder import run_named
from nmt.training import launching
from nmt.training.feeding import resolve_joined
from nmt.training.graph import Trunk
from nmt.training.loss import Objective
from nmt.training.memory import try_batch
from nmt.training.start import train
from nmt.training.trainer import Trainer

PAIRS = [([5, 6, 7], [8, 9]), ([4], [10, 4, 5, 6]), ([9, 8, 7, 6, 5], [4])]
SHAPE = JoinedShape((24, 20), pairs=5, max_length=6)
JOINED = "training.joined=true"


def objective_of(r_drop: float = 0.0, dropout: float = 0.0) -> Objective:
    torch.manual_seed(1)
    config = TransformerConfig(
        num_encoder_layers=2, num_decoder_layers=2, d_model=16, num_heads=2, d_ff=32, dropout=dropout, max_positions=32
    )
    return Objective(Transformer(config, VOCAB_SIZE, VOCAB_SIZE), 0.1, r_drop)


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_both_losses_and_all_gradients_are_those_of_a_padded_batch(r_drop: float) -> None:
    results = []
    for shape in (None, SHAPE):
        objective = objective_of(r_drop).double()
        sums = objective(batch_of(PAIRS, shape=shape))
        sums.smoothed.backward()
        results.append([sums.smoothed.detach(), sums.cross_entropy, *(p.grad for p in objective.parameters())])
    for padded, joined in zip(*results, strict=True):
        torch.testing.assert_close(joined, padded, rtol=1e-5, atol=1e-6)  # the loss adds up in float32


def test_r_drop_draws_two_dropout_masks_for_joined_pairs_too() -> None:
    objective = objective_of(r_drop=5.0, dropout=0.3)
    batch = batch_of(PAIRS, shape=SHAPE)
    rows = objective.model.states(*objective._inputs(batch))
    assert rows.shape == (2, SHAPE.lengths[1], 16)
    assert not torch.equal(rows[0], rows[1])
    objective.eval()
    assert objective.model.states(*objective._inputs(batch)).shape == (1, SHAPE.lengths[1], 16)


class CountingTrunk(Trunk):
    """Counts its forward passes."""

    calls = 0

    def forward(self, *inputs: Any) -> Any:
        self.calls += 1
        return super().forward(*inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_trunk_that_a_gpu_captures_is_the_model(dtype: torch.dtype) -> None:
    """It is used in training, for joined batches alone."""
    objective = objective_of(dropout=0.3)
    batch = batch_of(PAIRS, shape=SHAPE)
    trunk = CountingTrunk(objective.model, SHAPE.max_length, dtype)
    found = []
    for is_captured in (True, False):
        objective.trunk = trunk if is_captured else None
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            found.append(objective(batch).smoothed)
    assert torch.equal(*found)
    assert trunk.calls == 1
    objective.trunk = trunk
    objective(batch_of(PAIRS))
    objective.eval()
    objective(batch)
    assert trunk.calls == 1


def test_a_joined_batch_that_is_too_large_is_made_smaller_by_batch_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = objective_of()

    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(objective.model, "states", fails)
    with refused(
        TrainingError, "the worst batch, joined pairs, 20 pieces, does not fit", "lower training.batch_tokens"
    ):
        try_batch(objective, batch_of(PAIRS, shape=SHAPE), torch.float32)


def test_a_captured_model_converts_its_weights_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast would keep the conversions of an earlier pass, which a graph would then lack."""
    objective, batch, caches = objective_of(), batch_of(PAIRS, shape=SHAPE), []
    states = objective.model.states

    def seen(*inputs: Any) -> Tensor:
        caches.append(torch.is_autocast_cache_enabled())
        return states(*inputs)

    monkeypatch.setattr(objective.model, "states", seen)
    for trunk in (Trunk(objective.model, SHAPE.max_length, torch.bfloat16), None):
        objective.trunk = trunk
        with torch.autocast("cpu", torch.bfloat16):
            objective(batch)
    assert caches == [False, True]


def capture(objective: Objective, monkeypatch: pytest.MonkeyPatch, make_graphed_callables: Any) -> Batch:
    """Capture a joined batch, by another function than torch's, which needs a GPU."""
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make_graphed_callables)
    batch = batch_of(PAIRS, shape=SHAPE)
    objective.capture(batch, torch.float32)
    return batch


def test_what_cannot_be_captured_is_said_and_training_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore about it")

    objective = objective_of()
    capture(objective, monkeypatch, fails)
    assert objective.trunk is None
    assert "operation not permitted when stream is capturing); training continues without" in capsys.readouterr().err


def test_a_gpu_that_does_not_work_after_a_failed_capture_ends_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = objective_of()

    def broken(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(objective.model, "states", broken)
        raise RuntimeError("CUDA error: out of luck")

    with refused(TrainingError, "a CUDA graph could not be captured (CUDA error: out of luck); set training.joined"):
        capture(objective, monkeypatch, broken)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda states: states.roll(1, 1),
        lambda states: states * float("nan"),
        lambda states: 2 * states - states.detach(),  # the same states, twice their gradients
    ],
)
def test_a_graph_that_computes_something_else_is_not_used(
    wrong: Callable[[Tensor], Tensor], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(trunk: Trunk, *_: Any, **__: Any) -> None:
        states = trunk.forward
        monkeypatch.setattr(trunk, "forward", lambda *inputs: wrong(states(*inputs)))

    objective = objective_of()
    capture(objective, monkeypatch, make)
    assert objective.trunk is None
    assert "does not compute what the model does" in capsys.readouterr().err


def test_rounding_errors_do_not_keep_a_graph_from_being_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of a key's bias are rounding errors alone, and change with the order of sums."""

    def make(trunk: Trunk, *_: Any, **__: Any) -> None:
        states = trunk.forward
        monkeypatch.setattr(trunk, "forward", lambda *inputs: states(*inputs) * (1 + 1e-6))

    objective = objective_of()
    capture(objective, monkeypatch, make)
    assert objective.trunk is not None
    assert "the model is captured as a CUDA graph" in capsys.readouterr().err


def test_updates_keep_the_gradients_of_a_captured_model(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph returns its own buffers as gradients; autograd may keep such a buffer instead of copying it."""
    trainer = new_trainer(load_config(copy_task, [JOINED]), "kept")
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda *_, **__: None)
    trainer.model.train()
    trainer.objective.capture(trainer.feed.example(), torch.float32)
    held = [parameter.grad for parameter in trainer.model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in held)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    for share, num_tokens in itertools.islice(trainer.updates(), 2):
        trainer.update(share, num_tokens)
        gradients = [parameter.grad for parameter in trainer.model.parameters()]
        assert all(one is other for one, other in zip(gradients, held, strict=True))
        assert not any(gradient.any() for gradient in held if gradient is not None)
    assert not all(torch.equal(*pair) for pair in zip(before, trainer.model.parameters(), strict=True))


def test_a_training_captures_its_model_before_the_first_batch_is_loaded(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    updates = Trainer.updates
    monkeypatch.setattr(Trainer, "captures", True)
    monkeypatch.setattr(Objective, "capture", lambda self, batch, dtype: order.append(batch.source.joined is not None))
    monkeypatch.setattr(Trainer, "updates", lambda self: order.append("updates") or updates(self))
    trained(copy_task, "captured", JOINED, "training.max_steps=2")
    assert order == [True, "updates"]


def test_layers_are_compiled_for_one_shape_and_validations_are_not(
    copy_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, stances = [], []
    monkeypatch.setattr(Objective, "fuse", lambda self, dynamic: compiled.append(dynamic))
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: stances.append(stance) or nullcontext())
    for joined in ("true", "false"):
        trained(copy_task, joined, f"training.joined={joined}", "training.compile=true", "training.max_steps=6")
    assert compiled == [False, True]
    assert stances == ["force_eager"] * 2  # the rehearsal's and the validation


def test_a_mixture_is_planned_with_the_pairs_of_the_epoch(copy_task: Path) -> None:
    copy_task.write_text(copy_task.read_text().replace("train: {", "train: {weight: 2, "))
    trainer = new_trainer(load_config(copy_task, [JOINED]), "mixed")
    counts = np.bincount(np.concatenate(trainer.feed.plan(0)))
    assert set(counts.tolist()) == {2}


def test_updates_on_joined_pairs_are_those_on_padded_ones(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pairs in the same batches, padded instead: the weights differ in their last bits alone.

    A key's bias has no effect: its gradient is a rounding error, which Adam amplifies.
    """
    settings = ["model.dropout=0", "training.max_steps=4", "training.validate_every=4", JOINED]
    joined = trained(copy_task, "joined", *settings)
    steps = []
    update = Trainer.update

    def padded(self: Trainer, share: Any, num_tokens: int) -> None:
        steps.append(num_tokens)
        corpus = self.prepared.corpus
        batches = [batch_of([corpus[pair] for pair in pairs]) for pairs in share.pairs]
        assert all(batch.source.joined is None for batch in batches)
        assert sum(batch.num_tgt_tokens for batch in batches) == num_tokens
        update(self, share._replace(batches=batches), num_tokens)

    monkeypatch.setattr(Trainer, "update", padded)
    other = trained(copy_task, "padded", *settings)
    assert len(steps) == 4
    weights = [load_file(run.checkpoints / "4" / "model.safetensors") for run in (joined, other)]
    for name, weight in weights[0].items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(weight, weights[1][name], rtol=1e-5, atol=1e-6)


def test_a_resumed_training_equals_an_uninterrupted_one_to_the_bit(copy_task: Path) -> None:
    settings = [JOINED, "training.batches_per_update=2", "training.max_epochs=2"]
    whole = trained(copy_task, "whole", *settings)
    parts = trained(copy_task, "parts", *settings, "training.max_steps=5", "training.validate_every=5")
    trained(copy_task, "parts", *settings, "training.validate_every=5")
    assert whole.config().training.joined is True
    assert newest_weights(whole) == newest_weights(parts)


def test_joined_batches_are_not_divided_between_processes(copy_task: Path) -> None:
    """A run that was started with one process resumes with one, however many cores there are."""
    settings = load_config(copy_task, [JOINED, "training.batch_tokens=8000"]).training
    assert not launching._parts(settings, 2)
    with refused(ConfigError, "training.batches_per_update", "its pairs are joined"):
        launching.shared(settings, 2)
    assert launching._parts(settings.model_copy(update={"batches_per_update": 4}), 2) == 1
    assert launching._parts(settings.model_copy(update={"joined": False}), 2) == 2


def test_a_resumed_run_keeps_its_kind_of_batches(copy_task: Path) -> None:
    run = trained(copy_task, "kept", JOINED, "training.max_steps=6")
    trained(copy_task, "kept", "training.max_steps=8")  # auto, which pads on a CPU
    assert run.config().training.joined is True
    with refused(RunError, str(run.path), "training.joined: true, not false"):
        trained(copy_task, "kept", "training.joined=false", "training.max_steps=12")
    assert trained(copy_task, "padded", "training.max_steps=6").config().training.joined is False


def test_the_summary_says_that_pairs_are_joined(copy_task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(copy_task, "said", JOINED, "training.max_steps=6")
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("batches"))
    assert "the pairs of a batch are joined in one row" in line
    share = float(line.split("%")[0].split()[-1])
    assert 80 < share < 100


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("model.architecture=rnn", "with model.architecture: rnn"),
        ("augmentation.typed_input=0.1", "with augmentation that changes the lengths of sentences"),
        ("augmentation.fragments=0.1", "with augmentation that changes the lengths of sentences"),
        (
            "training.batch_parts=2",
            "with batches divided between processes (make training.batches_per_update a multiple",
        ),
    ],
)
def test_what_does_not_join_says_why(setting: str, reason: str, copy_task: Path) -> None:
    text = copy_task.read_text()
    if "rnn" in setting:
        text = text.replace("{d_model: 32, num_heads: 4, d_ff: 64, num_encoder_layers: 1, num_decoder_layers: 1, "
                            "max_positions: 64}", "{architecture: rnn}")  # fmt: skip
    copy_task.write_text(text)
    config = load_config(copy_task, [JOINED, setting])
    with refused(ConfigError, "training.joined: true does not work", reason):
        resolve_joined(config, torch.device("cpu"), torch.float32)
    with refused(ConfigError, "training.joined: true does not work"):
        train(config, run_named("refused"))


def test_auto_joins_on_a_gpu_where_it_can(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for can in (True, False):
        monkeypatch.setattr("nmt.training.feeding.can_join", lambda *_, can=can: can)
        for device in ("cuda", "cpu", "mps"):
            config = resolve_joined(load_config(copy_task), torch.device(device), torch.bfloat16)
            found.append(config.training.joined)
    assert found == [True, False, False, False, False, False]
    monkeypatch.setattr("nmt.training.feeding.can_join", lambda *_: True)
    varied = load_config(copy_task, ["augmentation.typed_input=0.1"])
    assert resolve_joined(varied, torch.device("cuda"), torch.bfloat16).training.joined is False


def test_words_that_are_dropped_do_not_change_the_row(copy_task: Path) -> None:
    run = trained(copy_task, "dropped", JOINED, "augmentation.tgt_word_dropout=0.2", "training.max_steps=6")
    assert run.config().training.joined is True
