"""Recurrent models against numpy, nn.GRU and nn.LSTM, and against themselves: alone, step by step, in ensembles.

Shapes: B batch, K beams, S source length, T target length, E d_embedding, D d_model, V vocabulary.
"""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import COPY_TASK, Cli, assert_says, cpu_flags
from numpy.typing import NDArray
from test_search import V, assert_same, beam, naive_beam, random_sentences, source
from test_training import newest_weights, trained
from torch import Tensor, nn

import nmt.insight.report_output
from nmt.config.inference import RnnConfig, TransformerConfig
from nmt.config.reading import load_config, to_yaml
from nmt.errors import ConfigError, RunError
from nmt.models.ensemble import Ensemble
from nmt.models.factory import build_model, parameter_shapes
from nmt.models.interface import Seq2SeqModel
from nmt.models.rnn import Rnn, RnnMemory, SourceAttention
from nmt.models.source import Source, pad
from nmt.models.transformer import Transformer
from nmt.tokenizers.vocabulary import BOS_ID, PAD_ID

Array = NDArray[np.float64]
SHAPES: list[dict[str, Any]] = [
    {"cell": "gru", "attention": "additive"},
    {"cell": "lstm", "attention": "additive", "input_feeding": False, "num_decoder_layers": 2},
    {"cell": "lstm", "attention": "dot", "num_encoder_layers": 2, "num_decoder_layers": 2},
    {"cell": "gru", "attention": "dot", "input_feeding": False, "tie_embeddings": "none"},
    {"cell": "gru", "attention": "general", "num_encoder_layers": 2, "d_embedding": 8, "tie_embeddings": "decoder"},
    {"cell": "gru", "attention": "none", "num_decoder_layers": 2},
    {"cell": "lstm", "attention": "none"},
]
SOURCES = [[4, 5, 6, 7, 8], [9], [5, 5, 10]]
TARGETS = [[6, 7, 8], [4, 9, 10, 4, 5], [8]]


def named(shape: dict[str, Any]) -> str:
    return "-".join(map(str, shape.values()))


def make(seed: int = 0, **shape: Any) -> Rnn:
    """A random model whose logits, and whose attention, are far from even."""
    torch.manual_seed(seed)
    model = Rnn(RnnConfig(**{"d_embedding": 6, "d_model": 8, "dropout": 0.0} | shape), V, V).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(2.0) if parameter.ndim == 2 else parameter.normal_(std=0.3)
            if name == "source_attention.vector.weight":
                parameter.mul_(2)
    return model


def targets(sentences: list[list[int]]) -> Tensor:
    return pad(sentences, PAD_ID, first=[BOS_ID])


# --- An independent implementation, a sentence at a time -----------------------------------------------------


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    exps = np.exp(x - x.max())
    return exps / exps.sum()


def cell_step(w: dict[str, Array], prefix: str, x: Array, state: list[Array], feed: Array | float = 0.0) -> list[Array]:
    """One step, from Cho et al. 2014 and Hochreiter and Schmidhuber 1997, gate by gate; `feed` is added to W x."""
    d = len(state[0])
    wx = w[f"{prefix}.weight_ih_l0"] @ x + w[f"{prefix}.bias_ih_l0"] + feed
    uh = w[f"{prefix}.weight_hh_l0"] @ state[0] + w[f"{prefix}.bias_hh_l0"]
    gates = [(wx[n * d : (n + 1) * d], uh[n * d : (n + 1) * d]) for n in range(len(wx) // d)]
    if len(gates) == 3:
        r, z = (sigmoid(a + b) for a, b in gates[:2])
        n = np.tanh(gates[2][0] + r * gates[2][1])
        return [(1 - z) * n + z * state[0]]
    i, f, g, o = (a + b for a, b in gates)
    c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


def numpy_encoder(w: dict[str, Array], config: RnnConfig, ids: list[int]) -> tuple[Array, Array]:
    """The states of a source and the last states of both directions: (S, D), (D,)"""
    xs = [w["src_embedding.weight"][number] * config.d_embedding**0.5 for number in ids]
    for layer in range(config.num_encoder_layers):
        outputs = []
        for direction, order in (("rightward", 1), ("leftward", -1)):
            state = [np.zeros(config.d_model // 2)] * (2 if config.cell == "lstm" else 1)
            states = []
            for x in xs[::order]:
                state = cell_step(w, f"encoder.{layer}.{direction}.kernel", x, state)
                states.append(state[0])
            last = states[-1]
            outputs.append((states[::order], last))
        xs = [np.concatenate(both) for both in zip(outputs[0][0], outputs[1][0], strict=True)]
    return np.array(xs), np.concatenate([outputs[0][1], outputs[1][1]])


def numpy_attention(w: dict[str, Array], config: RnnConfig, s: Array, memory: Array) -> tuple[Array, Array]:
    """The context and the weights of one decoder state: (D,), (S,)"""
    part = "source_attention"
    if config.attention == "additive":
        u = memory @ w[f"{part}.key.weight"].T + w[f"{part}.key.bias"]
        energies = np.tanh(w[f"{part}.query.weight"] @ s + u) @ w[f"{part}.vector.weight"][0]
    elif config.attention == "general":
        energies = memory @ (w[f"{part}.key.weight"].T @ s)
    else:
        energies = memory @ s
    weights = softmax(energies)
    return weights @ memory, weights


def numpy_logits(model: Rnn, config: RnnConfig, src: list[int], tgt_in: list[int]) -> tuple[Array, Array]:
    """Logits and attention weights of one pair: (T, V), (T, S)"""
    w = {name: value.double().numpy() for name, value in model.state_dict().items()}
    table = w["tgt_embedding.weight"]
    memory, last = numpy_encoder(w, config, src)
    bridge = np.tanh(w["bridge.weight"] @ last + w["bridge.bias"])
    parts = 2 if config.cell == "lstm" else 1
    pieces = np.split(bridge, config.num_decoder_layers * parts)
    states = [pieces[layer * parts : (layer + 1) * parts] for layer in range(config.num_decoder_layers)]
    fed, rows, weights = np.zeros(config.d_model), [], []
    for number in tgt_in:
        x = table[number] * config.d_embedding**0.5
        for layer in range(config.num_decoder_layers):
            feed = w["feed.weight"] @ fed if config.input_feeding and layer == 0 else 0.0
            states[layer] = cell_step(w, f"decoder.{layer}.kernel", x, states[layer], feed)
            x = states[layer][0]
        if config.attention != "none":
            context, of_step = numpy_attention(w, config, x, memory)
            x = fed = np.tanh(w["combine.weight"] @ np.concatenate([x, context]) + w["combine.bias"])
            weights.append(of_step)
        if config.d_embedding != config.d_model:
            x = w["readout.weight"] @ x
        rows.append(w["output.weight"] @ x + w.get("output.bias", 0.0))
    return np.array(rows), np.array(weights)


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_a_padded_batch_has_the_logits_and_weights_of_numpy(shape: dict[str, Any]) -> None:
    model, config = make(**shape), RnnConfig(**{"d_embedding": 6, "d_model": 8} | shape)
    batch, tgt_in = source(SOURCES), targets(TARGETS)
    logits, weights = model(batch, tgt_in), model.attention_weights(batch, tgt_in)
    assert list(weights) == ([] if config.attention == "none" else ["decoder.0.cross"])
    for row, (src, tgt) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        expected, of_source = numpy_logits(model, config, [*src, 2], [BOS_ID, *tgt])
        np.testing.assert_allclose(logits[row, : len(tgt) + 1].detach(), expected, rtol=1e-5, atol=1e-5)
        for found in weights.values():
            assert found.shape == (3, 1, 6, 6)
            np.testing.assert_allclose(found[row, 0, : len(tgt) + 1, : len(src) + 1].detach(), of_source, atol=1e-6)
            assert (found[row, 0, :, len(src) + 1 :] == 0).all()
            assert len(src) < 5 or of_source.max() > 1.2 * of_source.min(), "an even attention shows little"


@pytest.mark.parametrize("score", ["additive", "dot", "general"])
def test_one_step_of_each_attention_is_numpys(score: str) -> None:
    config = RnnConfig(attention=score, d_model=32, d_embedding=32)
    attention = SourceAttention(score, 32)
    w = {f"source_attention.{name}": value.double().numpy() for name, value in attention.state_dict().items()}
    s, memory = torch.randn(1, 1, 32).tanh(), torch.randn(1, 7, 32).tanh()
    query = s if attention.query is None else attention.query(s)
    context, weights = attention(query, attention.keys(memory), memory, torch.zeros(1, 1, 7))
    expected = numpy_attention(w, config, s[0, 0].double().numpy(), memory[0].double().numpy())
    np.testing.assert_allclose(context[0, 0].detach(), expected[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(weights[0, 0].detach(), expected[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("cell", "layers"), [("gru", 1), ("lstm", 1), ("gru", 3), ("lstm", 2)])
def test_the_encoder_is_torchs_on_unpadded_sentences(cell: str, layers: int) -> None:
    model = make(cell=cell, num_encoder_layers=layers)
    theirs = (nn.GRU if cell == "gru" else nn.LSTM)(6, 4, layers, batch_first=True, bidirectional=True)
    values = {
        f"{name}{layer}{suffix}": getattr(direction.kernel, f"{name}0")
        for layer, one in enumerate(model.encoder)
        for direction, suffix in ((one.rightward, ""), (one.leftward, "_reverse"))
        for name in ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")
    }
    theirs.load_state_dict(values)
    batch = source([[4, 5, 6, 7], [8, 9, 10, 4]])
    states, last = theirs(model.src_embedding(batch.values) * model.scale)
    memory = model.encode(batch)
    torch.testing.assert_close(memory.states, states, rtol=0, atol=1e-6)
    hidden = last if cell == "gru" else last[0]  # (2 * layers, B, D/2)
    torch.testing.assert_close(memory.last, torch.cat([hidden[-2], hidden[-1]], dim=-1), rtol=0, atol=1e-6)


# --- What padding, and a model without attention, cannot see ---------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_ids_at_padded_positions_are_irrelevant(shape: dict[str, Any]) -> None:
    model, tgt_in = make(**shape), targets(TARGETS)
    ids, mask = source(SOURCES)[:2]
    torch.testing.assert_close(model(Source(ids.where(mask, 7), mask), tgt_in), model(Source(ids, mask), tgt_in))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("attention", ["none", "dot"])
def test_without_attention_the_source_is_seen_through_one_vector(cell: str, attention: str) -> None:
    """Two sources that have the same last states give the same logits, unless the decoder attends to the others."""
    model, tgt_in = make(cell=cell, attention=attention), targets(TARGETS)

    def logits(memory: RnnMemory) -> Tensor:
        model.encode = lambda _: memory  # type: ignore[method-assign]
        return model(source(SOURCES), tgt_in)

    memory = model.encode(source(SOURCES))
    other = RnnMemory(torch.randn_like(memory.states), memory.mask.flip(0), memory.last)
    assert torch.equal(logits(memory), logits(other)) == (attention == "none")
    assert not torch.equal(logits(memory), logits(memory._replace(last=memory.last + 0.1)))


# --- One step at a time, and searches --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_a_step_gives_the_logits_of_forward_on_the_whole_prefix(shape: dict[str, Any]) -> None:
    """Between steps, one hypothesis becomes several, they are permuted, repeated and dropped, and sentences finish."""
    model, random = make(**shape), torch.Generator().manual_seed(1)
    batch = source([*SOURCES, [4, 4, 4]])
    state = model.start(model.encode(batch), 3, max_length=7)
    prefixes = torch.empty(4, 1, 0, dtype=torch.int64)  # (B, K, length)
    for step in range(7):
        latest = torch.randint(2, V, prefixes.shape[:2], generator=random) if step else torch.full((4, 1), BOS_ID)
        prefixes = torch.cat([prefixes, latest[:, :, None]], dim=-1)
        logits = model.step(latest, state)
        assert logits.shape == (*prefixes.shape[:2], V)
        for number in range(prefixes.shape[1]):
            torch.testing.assert_close(
                logits[:, number], model(batch, prefixes[:, number])[:, -1], rtol=1e-4, atol=1e-5
            )
        beams = torch.randint(0, prefixes.shape[1], (len(prefixes), 3), generator=random)
        state.select_beams(beams)
        prefixes = torch.stack([row[chosen] for row, chosen in zip(prefixes, beams, strict=True)])
        if step in (2, 4):
            kept = torch.randperm(len(prefixes), generator=random)[:-1]
            state.select_sentences(kept)
            prefixes, batch = prefixes[kept], Source(batch.values[kept], batch.mask[kept])


def mixed_ensemble() -> Ensemble:
    torch.manual_seed(3)
    transformer = Transformer(TransformerConfig(d_model=16, num_heads=2, d_ff=32, tie_embeddings="none"), V, V)
    return Ensemble([make(seed=1), transformer.eval(), make(seed=2, attention="none", cell="lstm")]).eval()


@pytest.mark.parametrize(
    "model", [lambda: make(seed=4), lambda: make(attention="none"), mixed_ensemble], ids=["rnn", "none", "ensemble"]
)
def test_beam_search_is_the_one_with_loops(model: Callable[[], Seq2SeqModel[Any, Any]]) -> None:
    searched, sentences = model(), random_sentences(5, 4)
    found = beam(searched, sentences, [9] * 4, 4, length_penalty=0.8)
    for hypotheses, sentence in zip(found, sentences, strict=True):
        assert_same(hypotheses, naive_beam(searched, sentence, 9, 4, 0.8, min_length=1))


# --- Gradients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_every_gradient_is_the_slope_of_the_loss(shape: dict[str, Any]) -> None:
    """Central differences along a random direction of each parameter, in fp64."""
    model = make(**shape).double()
    batch, tgt_in = source(SOURCES), targets(TARGETS)
    weights = torch.randn(3, 6, V, dtype=torch.float64)
    (model(batch, tgt_in) * weights).sum().backward()
    for name, parameter in model.named_parameters():
        direction, size = torch.randn_like(parameter), 1e-6
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * size * direction
                values.append((model(batch, tgt_in) * weights).sum().item())
                parameter -= sign * size * direction
        assert parameter.grad is not None, name
        slope = (parameter.grad * direction).sum().item()
        assert slope == pytest.approx((values[0] - values[1]) / (2 * size), rel=1e-5, abs=1e-6), name


def test_embedded_sources_are_accepted_and_have_gradients() -> None:
    model, batch, tgt_in = make(), source(SOURCES), targets(TARGETS)
    embedded = Source(model.embed_sources(batch).values.detach().requires_grad_(), batch.mask)
    torch.testing.assert_close(model(embedded, tgt_in), model(batch, tgt_in))
    model(embedded, tgt_in)[0].sum().backward()
    assert embedded.values.grad is not None
    assert embedded.values.grad[0].abs().sum(dim=-1).gt(0).all()


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_bf16_is_close_to_fp32_and_reaches_every_parameter(shape: dict[str, Any]) -> None:
    if shape["cell"] == "lstm" and "avx2" in cpu_flags() and "avx512f" not in cpu_flags():
        pytest.skip("torch trains no LSTM in bf16 on a CPU without instructions for it")
    model, batch, tgt_in = make(**shape, d_model=32), source(SOURCES), targets(TARGETS)
    expected = model(batch, tgt_in)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(batch, tgt_in)
    found.float().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert (found.float() - expected).abs().max() < 0.1 * expected.abs().max()
    model.bfloat16()
    with torch.no_grad():
        assert (model(batch, tgt_in).float() - expected).abs().max() < 0.1 * expected.abs().max()
        state = model.start(model.encode(batch), 1, 2)
        assert model.step(torch.full((3, 1), BOS_ID), state).dtype == torch.bfloat16


def test_dropout_is_active_in_training_mode_alone() -> None:
    for feeding in (True, False):
        model, batch, tgt_in = make(dropout=0.5, input_feeding=feeding), source(SOURCES), targets(TARGETS)
        assert torch.equal(model(batch, tgt_in), model(batch, tgt_in))
        model.train()
        assert not torch.equal(model(batch, tgt_in), model(batch, tgt_in))


def test_parameters_are_counted_once_and_built_without_memory() -> None:
    for shape, tie in itertools.product(SHAPES, ("all", "decoder", "none")):
        config = RnnConfig(**shape | {"tie_embeddings": tie, "d_embedding": 6, "d_model": 8})
        model = build_model(config, V, V)
        assert sum(model.parameter_counts().values()) == sum(parameter.numel() for parameter in model.parameters())
        assert model.parameter_counts()["embeddings"] >= {"all": 1, "decoder": 2, "none": 3}[tie] * 6 * V
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        assert parameter_shapes(config, V, V) == shapes


# --- Configurations and commands -----------------------------------------------------------------------------------

RNN = "attention: additive, d_embedding: 32, d_model: 48"
NONE = "attention: none, d_embedding: 8, d_model: 8, cell: lstm"


def rnn_task(copy_task: Path, model: str) -> Path:
    """The copy task with a recurrent model."""
    text = re.sub("(?m)^model:.*$", f"model: {{architecture: rnn, max_positions: 64, {model}}}", COPY_TASK)
    copy_task.write_text(text, encoding="utf-8")
    return copy_task


def test_feeding_needs_attention_and_is_on_by_default_with_it(copy_task: Path) -> None:
    def settings(text: str) -> RnnConfig:
        config = load_config(rnn_task(copy_task, text))
        again = copy_task.parent / "again.yaml"
        again.write_text(to_yaml(config))
        assert load_config(again).model == config.model
        assert isinstance(config.model, RnnConfig)
        return config.model

    assert settings("attention: dot").input_feeding
    assert not settings("attention: none").input_feeding
    assert not settings("attention: dot, input_feeding: false").input_feeding
    with pytest.raises(ConfigError, match=r"training\.compile: true is for Transformers"):
        load_config(copy_task, ["training.compile=true"])


@pytest.mark.parametrize("model", [RNN, pytest.param(NONE, marks=pytest.mark.slow)], ids=["additive", "none"])
def test_a_resumed_run_equals_a_straight_one_to_the_bit(copy_task: Path, model: str) -> None:
    config = rnn_task(copy_task, model)
    straight = trained(config, "straight", "training.r_drop=1")
    trained(config, "resumed", "training.r_drop=1", "training.max_steps=6")
    assert newest_weights(trained(config, "resumed", "training.r_drop=1")) == newest_weights(straight)


def test_what_needs_attention_or_a_transformer_is_refused_in_one_message(
    copy_task: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(rnn_task(copy_task, NONE), "none", "training.max_steps=2", "training.validate_every=2")
    monkeypatch.setattr(nmt.insight.report_output, "_charts", lambda report: iter(()))  # they take a second
    code, out, _ = cli("report", "--with-data", "--model", "runs/none")  # which needs none, and says that it shows none
    assert (code, out) == (0, "runs/none/report/index.html\n")
    page = Path(out.strip()).read_text(encoding="utf-8")
    assert "The model has no attention (model.attention: none), so none is shown." in page
    assert (page.count("<article"), page.count('<table class="map">')) == (12, 0)
    code, out, _ = cli("translate", "--model", "runs/none", "1 2 3")
    assert (code, bool(out)) == (0, True)
    for command, message in (
        (["translate", "--input", "val.en", "--output", "o.de", "--alignments", "a"], "the model has no attention"),
        (["attention", "1 2", "--output", "page.json"], "runs/none: has no attention"),
        (["attention", "1 2", "--output", "page.html"], "runs/none: has no attention"),
        (["attention", "1 2", "--output", "picture.png"], "runs/none: has no attention"),
        (["export", "ctranslate2"], "CTranslate2 has no models with model.architecture: rnn"),
    ):
        code, out, err = cli(*command, "--model", "runs/none")
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert message in err
    with pytest.raises(RunError, match="the model has no attention"):
        mixed_ensemble().attention(source(SOURCES), targets(TARGETS))
    run.config_file.write_text(
        re.sub("(?s)model:.*?max_positions", "model:\n  max_positions", run.config_file.read_text())
    )
    code, out, err = cli("translate", "--model", "runs/none", "1 2 3")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "model.safetensors: not the weights of this model: " in err
    assert "was the model section of its configuration changed?" in err


def test_what_one_attention_shows(copy_task: Path, cli: Cli) -> None:
    """Alignments of an ensemble with a Transformer, and the maps of a model with neither self-attention."""
    trained(copy_task, "transformer", "training.max_steps=2", "training.validate_every=2")
    trained(rnn_task(copy_task, RNN), "rnn", "training.max_steps=2", "training.validate_every=2")
    models = ["--model", "runs/rnn", "--model", "runs/transformer"]
    code, _, err = cli("translate", *models, "--input", "val.en", "--output", "o.de", "--alignments", "a")
    assert code == 0, err
    assert len(Path("a").read_text().splitlines()) == 50
    code, _, err = cli("attention", "1 2 3", "--model", "runs/rnn", "--output", "maps.json")
    assert code == 0, err
    maps = json.loads(Path("maps.json").read_text())
    assert maps["attention"]["encoder"] == maps["attention"]["decoder"] == []
    cross = np.array(maps["attention"]["cross"])
    assert cross.shape == (1, 1, len(maps["out_tokens"]), 4)
    np.testing.assert_allclose(cross.sum(axis=-1), 1, atol=1e-3)
    code, _, err = cli("attention", "1 2 3", "--model", "runs/rnn", "--output", "maps.svg")
    assert code == 0, err
    code, out, err = cli("attention", "1 2 3", "--model", "runs/rnn", "--output", "maps.svg", "--kind", "encoder")
    assert (code, out) == (2, "")
    assert_says(err, "nmt: the model has no encoder self-attention")
    code, _, err = cli("attention", "1 2 3", "--model", "runs/rnn", "--output", "maps.html")
    assert code == 0, err
    page = Path("maps.html").read_text()
    assert 'data-kind="cross"' in page
    assert 'data-kind="encoder"' not in page


def test_an_lstm_that_torch_cannot_train_in_bf16_is_refused(
    copy_task: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("could not create a primitive descriptor")

    monkeypatch.setattr(torch.nn.LSTM, "forward", fail)
    file = rnn_task(copy_task, RNN)
    for cell, code in (("lstm", 2), ("gru", 0)):
        settings = ["--set", "training.precision=bf16", "--set", f"model.cell={cell}", "--dry-run"]
        found, _, err = cli("train", str(file), *settings, "--name", cell)
        assert found == code, err
        assert ("bf16: torch cannot train an LSTM in bf16 on this CPU" in err) == (cell == "lstm")
