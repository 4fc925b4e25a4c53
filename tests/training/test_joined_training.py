"""Training on joined batches, on a CPU: the same losses, gradients and updates as padded ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import VOCAB_SIZE, batch_of, refused
from test_training import newest_weights, records, trained

from nmt.batches.joining import JoinedShape
from nmt.config.inference import TransformerConfig
from nmt.config.reading import load_config
from nmt.errors import ConfigError, RunError
from nmt.models.transformer import Transformer
from nmt.runs.folder import run_named
from nmt.training.feeding import with_joined
from nmt.training.graph import Trunk
from nmt.training.loss import Objective
from nmt.training.start import train
from nmt.training.trainer import Trainer

PAIRS = [([5, 6, 7], [8, 9]), ([4], [10, 4, 5, 6]), ([9, 8, 7, 6, 5], [4])]
SHAPE = JoinedShape((24, 20), pairs=5, longest=6)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_trunk_that_a_gpu_records_is_the_model(dtype: torch.dtype) -> None:
    objective = objective_of(dropout=0.3)
    batch = batch_of(PAIRS, shape=SHAPE)
    joined = batch.source.joined
    assert joined is not None
    trunk = Trunk(objective.model, joined.longest, dtype)
    found = []
    for is_recorded in (True, False):
        objective.trunk = trunk if is_recorded else None
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            found.append(objective(batch).smoothed)
    assert torch.equal(*found)


def test_what_cannot_be_recorded_is_said_and_training_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore about it")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fails)
    objective = objective_of()
    objective.record(batch_of(PAIRS, shape=SHAPE), torch.float32)
    assert objective.trunk is None
    assert "operation not permitted when stream is capturing); training goes on without" in capsys.readouterr().err


def test_a_recording_that_computes_something_else_is_not_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(trunk: Trunk, *_: Any, **__: Any) -> None:
        states = trunk.forward
        monkeypatch.setattr(trunk, "forward", lambda *inputs: states(*inputs).roll(1, 1))

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", wrong)
    objective = objective_of()
    objective.record(batch_of(PAIRS, shape=SHAPE), torch.float32)
    assert objective.trunk is None
    assert "does not compute what the model does" in capsys.readouterr().err


def test_a_recorded_objective_keeps_its_gradients_and_adds_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph returns its own buffers as gradients; autograd may keep such a buffer instead of copying it."""
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda *_, **__: None)
    objective = objective_of()
    batch = batch_of(PAIRS, shape=SHAPE)
    objective.record(batch, torch.float32)
    assert objective.trunk is not None
    held = [parameter.grad for parameter in objective.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in held)
    objective(batch).smoothed.backward()
    assert all(parameter.grad is gradient for parameter, gradient in zip(objective.parameters(), held, strict=True))


def test_updates_on_joined_pairs_are_those_on_padded_ones(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pairs in the same batches, padded instead: the weights differ in their last bits alone."""
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
    losses = [[record["loss"] for record in records(run, "validation")] for run in (joined, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_resumed_training_equals_an_uninterrupted_one_to_the_bit(copy_task: Path) -> None:
    settings = [JOINED, "training.batches_per_update=2", "training.max_epochs=2"]
    whole = trained(copy_task, "whole", *settings)
    parts = trained(copy_task, "parts", *settings, "training.max_steps=5", "training.validate_every=5")
    trained(copy_task, "parts", *settings, "training.validate_every=5")
    assert whole.config().training.joined is True
    assert newest_weights(whole) == newest_weights(parts)


def test_a_resumed_run_keeps_its_kind_of_batches(copy_task: Path) -> None:
    run = trained(copy_task, "kept", JOINED, "training.max_steps=6")
    trained(copy_task, "kept", "training.max_steps=8")  # auto, which pads on a CPU
    assert run.config().training.joined is True
    with refused(RunError, str(run.path), "training.joined: True, not False"):
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
        with_joined(config, torch.device("cpu"), torch.float32)
    with refused(ConfigError, "training.joined: true does not work"):
        train(config, run_named("refused"))


def test_auto_joins_on_a_gpu_where_it_can(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for can in (True, False):
        monkeypatch.setattr("nmt.training.feeding.can_join", lambda *_, can=can: can)
        for device in ("cuda", "cpu", "mps"):
            config = with_joined(load_config(copy_task), torch.device(device), torch.bfloat16)
            found.append(config.training.joined)
    assert found == [True, False, False, False, False, False]
    monkeypatch.setattr("nmt.training.feeding.can_join", lambda *_: True)
    varied = load_config(copy_task, ["augmentation.typed_input=0.1"])
    assert with_joined(varied, torch.device("cuda"), torch.bfloat16).training.joined is False


def test_words_that_are_dropped_do_not_change_the_row(copy_task: Path) -> None:
    run = trained(copy_task, "dropped", JOINED, "augmentation.tgt_word_dropout=0.2", "training.max_steps=6")
    assert run.config().training.joined is True
