"""Imitated int8 against whole numbers in numpy and against CTranslate2; training for it; what is offered after a loss.

Shapes: B batch, T target length, V vocabulary.
"""

import copy
import json
import re
import shlex
import shutil
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import torch
import yaml
from conftest import Cli, batch_of, has_exact_int8
from made_runs import made_run
from safetensors.torch import load_file
from test_export import ARCHITECTURES, random_model, random_sources
from torch import Tensor

from nmt.checkpoint import weights_of, write_weights
from nmt.config.file import load_config
from nmt.config.inference import TransformerConfig
from nmt.config.training import TrainingConfig
from nmt.ctranslate2.export import remedy, write_model
from nmt.data.tokenizer import Tokenizers, load_tokenizers
from nmt.decoding.torch_engine import TorchEngine, load_model
from nmt.errors import ConfigError
from nmt.inheritance import fine_tuning_overrides
from nmt.models.factory import build_model
from nmt.models.quantization import Embedding, Linear, fake_int8, quantize
from nmt.models.transformer import Transformer
from nmt.runs import RunFolder
from nmt.training.averaging import exchanged
from nmt.training.loss import Objective

SMALL = TransformerConfig(d_model=8, num_heads=2, d_ff=16, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0)


def whole_numbers(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row as int8, and its scale."""
    scale = 127 / np.abs(x).max(axis=-1, keepdims=True)
    return np.rint(x * scale).astype(np.int8), scale


def test_a_linear_map_is_the_product_of_whole_numbers() -> None:
    linear = Linear(64, 9)
    x = torch.randn(5, 7, 64) * torch.logspace(-3, 3, 7)[:, None]
    plain = linear(x)
    quantize(linear)
    (q_x, s_x), (q_w, s_w) = whole_numbers(x.numpy()), whole_numbers(linear.weight.detach().numpy())
    products = q_x.astype(np.int32) @ q_w.astype(np.int32).T
    expected = products / (s_x * s_w[:, 0]) + linear.bias.detach().numpy()
    np.testing.assert_allclose(linear(x).detach().numpy(), expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(linear(x), plain, rtol=1e-3, atol=1e-3)


def test_embeddings_are_rows_of_whole_numbers_and_a_row_of_zeros_stays_one() -> None:
    embedding = Embedding(6, 16)
    with torch.no_grad():
        embedding.weight[2] = 0.0
        embedding.weight[3] *= 1e-20
    quantize(embedding)
    ids = torch.tensor([[0, 2], [5, 3]])
    rows = embedding(ids).detach()
    assert torch.equal(rows[0, 1], torch.zeros(16))
    for row, i in ((rows[0, 0], 0), (rows[1, 0], 5), (rows[1, 1], 3)):
        q, s = whole_numbers(embedding.weight[i].detach().numpy())
        torch.testing.assert_close(row, torch.from_numpy(q / s), rtol=1e-5, atol=0)


def test_the_gradient_goes_straight_through() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    above = torch.randn(4, 8)
    (gradient,) = torch.autograd.grad(fake_int8(x), x, above)
    assert torch.equal(gradient, above)
    linear = Linear(8, 3)
    quantize(linear)
    of_x, of_weight = torch.autograd.grad(linear(x).sum(), (x, linear.weight))
    torch.testing.assert_close(of_x, fake_int8(linear.weight).sum(0).expand(4, 8))
    torch.testing.assert_close(of_weight, fake_int8(x).sum(0).expand(3, 8))
    half = x.detach().bfloat16().requires_grad_()
    (gradient,) = torch.autograd.grad(fake_int8(half).sum(), half)
    assert gradient.dtype == torch.bfloat16


def log_probs(model: Transformer, tokenizers: Tokenizers, src: list[list[int]], tgt: list[list[int]]) -> np.ndarray:
    return np.concatenate([np.array(row) for row in TorchEngine(model, tokenizers).score(src, tgt)])


@has_exact_int8
@pytest.mark.parametrize(("config", "tokenizers"), ARCHITECTURES)
def test_log_probabilities_are_those_of_ctranslate2_in_int8(
    config: TransformerConfig, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    """To 1e-5 at nine positions of ten. Elsewhere a number that is almost halfway is rounded to the other side."""
    model = random_model(config, tokenizers)
    src, tgt = (random_sources(100, side.vocab_size) for side in (tokenizers.src, tokenizers.tgt))
    write_model(model, config, tokenizers, "int8", tmp_path)
    translator = ctranslate2.Translator(str(tmp_path), compute_type="int8", intra_threads=1)
    scores = translator.score_batch(
        [tokenizers.src.pieces(ids) for ids in src], [tokenizers.tgt.pieces(ids) for ids in tgt]
    )
    expected = np.concatenate([np.array(one.log_probs) for one in scores])
    exact = np.abs(log_probs(model, tokenizers, src, tgt) - expected)
    quantize(model)
    imitated = np.abs(log_probs(model, tokenizers, src, tgt) - expected)
    assert np.percentile(imitated, 90) < 1e-5
    assert imitated.mean() < exact.mean() / 50
    assert np.median(exact) > 0.01


def test_the_loss_takes_the_rounded_states_and_output_and_no_parameter_changes() -> None:
    torch.manual_seed(1)
    model = build_model(SMALL, 20, 20)
    before = copy.deepcopy(weights_of(model))
    batch = batch_of([([5, 6, 7], [8, 9]), ([9], [5, 6, 11])])
    exact = Objective(model, 0.0)(batch).smoothed
    quantize(model)
    sums = Objective(model, 0.0)(batch)
    rows = model.states(batch.source, batch.tgt_in).flatten(0, 1)[batch.tgt_positions]
    logits = fake_int8(rows) @ fake_int8(model.output.weight).t()
    expected = torch.nn.functional.cross_entropy(logits, batch.tgt_out.flatten()[batch.tgt_positions], reduction="sum")
    torch.testing.assert_close(sums.smoothed, expected)
    torch.testing.assert_close(model(batch.source, batch.tgt_in).flatten(0, 1)[batch.tgt_positions], logits)
    assert abs(sums.smoothed.item() - exact.item()) > 1e-3
    ours = torch.autograd.grad(sums.smoothed, list(model.parameters()))
    torchs = torch.autograd.grad(expected, list(model.parameters()))
    torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(before.values(), weights_of(model).values(), strict=True))


def test_averaged_weights_are_rounded_too() -> None:
    linear = Linear(8, 3)
    quantize(linear)
    x, other = torch.randn(2, 8), torch.randn(3, 8)
    with exchanged(linear, {"weight": other, "bias": torch.zeros(3)}):
        torch.testing.assert_close(linear(x), fake_int8(x) @ fake_int8(other).t())


def test_half_precision_trains_as_well() -> None:
    model = build_model(SMALL, 20, 20)
    quantize(model)
    batch = batch_of([([5, 6, 7], [8, 9]), ([9], [5, 6, 11])])

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            sums = Objective(model, 0.1)(batch)
        return list(torch.autograd.grad(sums.smoothed, list(model.parameters())))

    for full, half in zip(gradients(torch.float32), gradients(torch.bfloat16), strict=True):
        assert (half - full).norm() <= 0.1 * full.norm() + 1e-3


def test_it_is_refused_where_no_int8_export_exists(copy_task: Path) -> None:
    assert load_config(copy_task).training.quantization is None
    assert load_config(copy_task, ["training.quantization=int8"]).training.quantization == "int8"
    text = copy_task.read_text(encoding="utf-8")
    rnn = re.sub("(?m)^model:.*$", "model: {architecture: rnn, max_positions: 64}", text)
    for changed, reason in (
        (rnn, r"model\.architecture is rnn"),
        (text + "source: {type: vectors, features: 3}\n", r"source\.type is vectors"),
    ):
        copy_task.write_text(changed, encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"training\.quantization: int8 is for Transformers.*{reason}"):
            load_config(copy_task, ["training.quantization=int8"])


def test_a_training_validates_the_rounded_model_and_saves_the_exact_one(copy_task: Path, cli: Cli) -> None:
    code, _, err = cli("train", str(copy_task), "--set", "training.max_steps=6", "--set", "training.quantization=int8")
    assert code == 0, err
    run = RunFolder(Path("runs/copy"))
    tokenizers = load_tokenizers(run.tokenizer)
    model = load_model(run, tokenizers).eval()
    lines = Path("val.en").read_text(encoding="utf-8").splitlines()  # the targets are the same
    ids = [tokenizers.src.encode(line) for line in lines]
    validated = json.loads(run.metrics_file.read_text(encoding="utf-8").splitlines()[-1])["loss"]

    def loss() -> float:
        scores = TorchEngine(model, tokenizers).score(ids, ids)
        return -sum(map(sum, scores)) / sum(map(len, scores))

    assert abs(loss() - validated) > 1e-4, "a weight on one of 255 levels would lose nothing"
    quantize(model)
    assert loss() == pytest.approx(validated, abs=2e-5)


def test_a_run_is_offered_what_it_can_do(tmp_path: Path) -> None:
    run = made_run(tmp_path, {})
    assert remedy(run, "float32") == ""
    assert remedy(run, "float16") == "; float32 changes no weight"
    first, train, export = remedy(run, "int8_float32").splitlines()
    assert first == "; float32 changes no weight; or fine-tune it for int8, and export that:"
    assert train.startswith(
        f"  nmt train {run.config_file} --init-from {run.path} --name made-int8 --set training.quantization=int8 "
    )
    assert export == "  nmt export ctranslate2 --model runs/made-int8"
    keys = [word.removeprefix("training.") for word in shlex.split(train) if word.startswith("training.")]
    assert {"schedule=constant", "learning_rate=0.0003", "max_steps=1000"} < set(keys)
    settings = yaml.safe_load(run.config_file.read_text(encoding="utf-8"))
    settings["training"]["quantization"] = "int8"
    run.config_file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert remedy(run, "int8") == "; float32 changes no weight", "it has been trained for it"
    for section in ("training", "evaluation", "export"):
        settings.pop(section)
    settings["data"] = {"src_lang": "en", "tgt_lang": "de", "max_length": 60}
    run.config_file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert f"  nmt train FILE --init-from {run.path} --name made-int8 --set training.quantization=int8\n" in remedy(
        run, "int8"
    )


def test_the_offered_keys_make_a_fine_tuning_of_any_training() -> None:
    old = TrainingConfig(
        max_epochs=3, schedule="cosine", max_steps=100, warmup_steps=10, min_learning_rate=1e-3, restart_schedule=True,
        schedule_start=5, learning_rate=2e-3, init_from="other", freeze=("encoder",),
    )  # fmt: skip
    new = TrainingConfig.model_validate(old.model_dump() | fine_tuning_overrides(old))
    assert (new.learning_rate, new.schedule, new.max_steps, new.max_epochs) == (3e-4, "constant", 1000, None)
    assert (new.warmup_steps, new.patience, new.freeze) == (50, 5, ())
    assert fine_tuning_overrides(new) == {}


def with_outliers(run: RunFolder, factor: float) -> None:
    """Make one number of each vector that the layers read `factor` times as large, and its weights smaller.

    The model is the same function. In int8 the others keep few of their 255 levels, since a vector has one scale.
    """
    weights = load_file(run.model_file)
    with torch.no_grad():
        for name in list(weights):
            if not name.endswith("_residual.norm.weight"):
                continue
            layer, part = name.removesuffix(".norm.weight").rsplit(".", 1)
            readers = {
                "self_residual": ("self_attention.query", "self_attention.key", "self_attention.value"),
                "cross_residual": ("cross_attention.query",),
                "feed_forward_residual": ("feed_forward.inner",),
            }[part]
            weights[name][3] *= factor
            weights[name.replace("weight", "bias")][3] *= factor
            for reader in readers:
                weights[f"{layer}.{reader}.weight"][:, 3] /= factor
    write_weights(weights, run.model_file)


@has_exact_int8
@pytest.mark.slow
def test_a_model_that_int8_hurts_is_offered_a_training_and_passes_after_it(
    solved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    shutil.copytree(solved, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    run = RunFolder(Path("runs/copy"))
    with_outliers(run, 100.0)
    code, _, message = cli("export", "ctranslate2", "--model", "copy")
    assert code == 3
    assert re.search(r"not kept; .* BLEU [\d.]+ instead of [\d.]+", message)
    train, export = (shlex.split(line) for line in message.splitlines() if line.startswith("  nmt "))
    code, _, messages = cli(*train[1:], "--set", "training.max_steps=150")
    assert code == 0, messages
    found = RunFolder(Path("runs/copy-int8")).config().training
    assert (found.quantization, found.schedule, found.learning_rate) == ("int8", "constant", 3e-4)
    code, out, messages = cli(*export[1:])
    assert code == 0, messages
    assert "runs/copy-int8/export/ctranslate2-int8" in out
