"""Linear maps packed for decoding: the same products, also where torch cannot pack them."""

from pathlib import Path

import pytest
import torch
from conftest import VOCAB_SIZE, Cli, assert_says
from torch import nn

import nmt.models.packed
from nmt.config.inference import RnnConfig
from nmt.decoding.torch_engine import load_torch_engine
from nmt.models.packed import PackedLinear, can_pack, pack_linear_maps
from nmt.models.rnn import Rnn
from nmt.models.source import Source
from nmt.models.transformer import Transformer
from nmt.runs.folder import RunFolder
from nmt.tokenizers.tokenizer import load_tokenizers


@pytest.mark.parametrize("rows", [1, 5, 64, 333])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_map_is_the_product_in_double_precision(rows: int, bias: bool) -> None:
    linear = nn.Linear(24, 7, bias=bias)
    x = torch.randn(rows, 3, 24)
    expected = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    with torch.no_grad():
        torch.testing.assert_close(PackedLinear(linear.weight, linear.bias)(x).double(), expected, atol=1e-5, rtol=1e-5)


def test_a_packed_model_decodes_the_same(small_model: Transformer) -> None:
    """Packing cannot be skipped unnoticed: the pinned version of torch supports it."""
    assert can_pack()
    with torch.no_grad():
        for name, parameter in small_model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()  # they begin as zeros
    src_ids, src_mask = torch.tensor([[5, 6, 7]]), torch.ones(1, 3, dtype=torch.bool)
    tgt_in = torch.tensor([[1, 8, 9, 4]])
    with torch.no_grad():
        expected = small_model(Source(src_ids, src_mask), tgt_in)
        pack_linear_maps(small_model)
        found = small_model(Source(src_ids, src_mask), tgt_in)
    assert not any(isinstance(module, nn.Linear) for module in small_model.modules())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("cell", "attention"), [("gru", "additive"), ("lstm", "general"), ("gru", "none")])
def test_every_product_of_a_recurrent_step_is_packed(
    cell: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps of five hypotheses have the logits that the unpacked model gives for whole prefixes."""
    config = RnnConfig(cell=cell, attention=attention, d_embedding=12, d_model=16, num_decoder_layers=2)
    model = Rnn(config, VOCAB_SIZE, VOCAB_SIZE).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
        source = Source(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[True, True, True], [True, True, False]]))
        prefixes = torch.randint(4, VOCAB_SIZE, (2, 5, 3))
        prefixes[:, :, 0] = 1
        expected = [model(source, prefixes[:, beam]) for beam in range(5)]  # (B, T, V) each
        pack_linear_maps(model)
        memory = model.encode(source)

        def refused(*arguments: object, **options: object) -> None:
            raise AssertionError("a product that is not packed")

        monkeypatch.setattr(torch.nn.functional, "linear", refused)
        state = model.start(memory, 5, 3)
        for step in range(3):
            found = model.step(prefixes[:, : 5 if step else 1, step], state)  # (B, K, V)
            for beam in range(found.shape[1]):
                torch.testing.assert_close(found[:, beam], expected[beam][:, step], atol=1e-5, rtol=1e-4)
            if not step:
                state.select_beams(torch.zeros(2, 5, dtype=torch.int64))


def test_a_model_in_bf16_is_not_packed(small_model: Transformer) -> None:
    small_model.bfloat16()
    pack_linear_maps(small_model)
    assert not any(isinstance(module, PackedLinear) for module in small_model.modules())


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, None])
def test_without_the_operations_linear_maps_stay(
    small_model: Transformer, monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    def forward(self: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        if error:
            raise error("no such operation")
        return x.new_zeros(2, 3)  # the operations may have changed their meaning

    monkeypatch.setattr(PackedLinear, "forward", forward)
    monkeypatch.setattr(nmt.models.packed, "can_pack", can_pack.__wrapped__)
    pack_linear_maps(small_model)
    assert not any(isinstance(module, PackedLinear) for module in small_model.modules())


def test_a_run_is_loaded_packed_on_a_cpu(in_solved: Path) -> None:
    run = RunFolder(Path("runs/copy"))
    engine = load_torch_engine([run], load_tokenizers(run.tokenizer), "cpu")
    assert any(isinstance(module, PackedLinear) for module in engine._model.modules())


def test_half_precision_translates_nearly_the_same(in_solved: Path, cli: Cli) -> None:
    code, out, _ = cli("translate", "--precision", "bf16", "--input", "test.en")
    assert code == 0
    _, straight, _ = cli("translate", "--input", "test.en")
    same = [one == other for one, other in zip(out.splitlines(), straight.splitlines(), strict=True)]
    assert sum(same) > 0.9 * len(same)
    run = RunFolder(Path("runs/copy"))
    engine = load_torch_engine([run], load_tokenizers(run.tokenizer), "cpu", "bf16")
    assert {value.dtype for value in engine._model.state_dict().values()} == {torch.bfloat16}
    code, _, err = cli("translate", "--precision", "fp16", "--device", "cpu", "1 2 3")
    assert code == 2
    assert_says(err, "nmt: decoding.precision: fp16 is for GPUs")
