"""An ensemble against the mean of its members' probabilities, computed separately, and against each member alone.

Shapes: N models, B batch, K beams, T target length, V vocabulary.
"""

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_search import (
    TableModel,
    V,
    assert_same,
    beam,
    greedy,
    lively_model,
    naive_beam,
    naive_greedy,
    random_sentences,
    random_table,
    source,
)

import nmt
from nmt.config.inference import DecodingConfig
from nmt.config.reading import load_config, to_yaml
from nmt.corpora.pairs import Side
from nmt.decoding.hypothesis import Hypothesis
from nmt.decoding.torch_engine import TorchEngine
from nmt.errors import ConfigError, RunError
from nmt.evaluation.evaluate import evaluate_runs
from nmt.evaluation.metrics import make_metrics
from nmt.models.ensemble import Ensemble
from nmt.models.factory import build_model
from nmt.models.interface import Seq2SeqModel
from nmt.models.source import Source, pad
from nmt.runs.folder import RunFolder
from nmt.runs.weights import load_weights, save_weights
from nmt.system.files import read_json, write_text
from nmt.tokenizers.tokenizer import (
    Tokenizer,
    Tokenizers,
    WordTokenizer,
    load_tokenizers,
    same_tokenizers,
    save_tokenizers,
)
from nmt.tokenizers.vocabulary import BOS_ID, EOS_ID, PAD_ID, SPECIAL_PIECES

A_, B_, C_ = 4, 5, 6


def unlike_models(seed: int) -> list[Seq2SeqModel[Any, Any]]:
    """Three models that differ in weights, width, depth, heads and the position of their norms."""
    return [
        lively_model(seed),
        lively_model(seed + 1, d_model=24, num_heads=3, num_encoder_layers=2),
        lively_model(seed + 2, d_model=8, d_ff=20, num_decoder_layers=3, positions="learned"),
    ]


# --- The mean --------------------------------------------------------------------------------------------


def test_the_probabilities_are_the_mean_of_the_members_probabilities() -> None:
    models = unlike_models(seed=0)
    sources = source(random_sentences(0, 5))
    tgt_in = pad(random_sentences(1, 5), PAD_ID, first=[BOS_ID])  # (B, T)
    with torch.no_grad():
        found = Ensemble(models)(sources, tgt_in)
        logits = [model(sources, tgt_in).double().numpy() for model in models]
    powers = [np.exp(of_one - of_one.max(axis=-1, keepdims=True)) for of_one in logits]
    probabilities = [of_one / of_one.sum(axis=-1, keepdims=True) for of_one in powers]
    assert np.abs(probabilities[0] - probabilities[1]).max() > 0.2  # otherwise the mean would be near each of them
    assert np.abs(probabilities[0] - probabilities[2]).max() > 0.2
    expected = sum(probabilities) / 3  # (B, T, V)
    np.testing.assert_allclose(found.numpy(), np.log(expected), rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.exp().sum(dim=-1).numpy(), 1.0, rtol=0, atol=1e-5)


def test_the_arithmetic_mean_by_hand() -> None:
    """(.9 + .01) / 2 = .455 beats (.1 + .2) / 2 = .15 and (0 + .79) / 2 = .395; by the geometric mean, b would win."""
    one = TableModel(lambda _, prefix: {EOS_ID: 1.0} if prefix else {A_: 0.9, B_: 0.1, C_: 0.0})
    other = TableModel(lambda _, prefix: {EOS_ID: 1.0} if prefix else {A_: 0.01, B_: 0.2, C_: 0.79})
    (found,) = beam(Ensemble([one, other]), [[9]], [5], beam_size=3)
    expected = [((A_,), math.log(0.455)), ((C_,), math.log(0.395)), ((B_,), math.log(0.15))]
    assert_same(found, [Hypothesis(tokens, log_prob, log_prob) for tokens, log_prob in expected])


def test_forbidden_tokens_leave_the_mean_by_hand() -> None:
    """</s> must wait for one token. Mean: a .45, b .1, </s> .45; without </s>: a 9/11, b 2/11. Then </s> is certain.

    Were </s> taken from each model first, a would have (8/9 + 1/2) / 2 = 25/36.
    """
    one = TableModel(lambda _, prefix: {EOS_ID: 1.0} if prefix else {A_: 0.8, B_: 0.1, EOS_ID: 0.1})
    other = TableModel(lambda _, prefix: {EOS_ID: 1.0} if prefix else {A_: 0.1, B_: 0.1, EOS_ID: 0.8})
    expected = [((A_,), math.log(9 / 11)), ((B_,), math.log(2 / 11))]
    hypotheses = [Hypothesis(tokens, log_prob, log_prob) for tokens, log_prob in expected]
    (found,) = beam(Ensemble([one, other]), [[9]], [5], beam_size=2, min_length=1)
    assert_same(found, hypotheses)
    assert_same(greedy(Ensemble([one, other]), [[9]], [5], min_length=1), hypotheses[:1])


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_an_ensemble_of_a_model_with_itself_is_the_model(copies: int) -> None:
    for seed in range(4):
        model, sentences, max_lengths = lively_model(seed), random_sentences(seed, 8), [1, 5, 9, 2, 7, 12, 12, 12]
        ensemble = Ensemble([model] * copies)
        inputs = (source(sentences), pad(random_sentences(seed + 50, 8), PAD_ID, first=[BOS_ID]))
        with torch.no_grad():
            torch.testing.assert_close(ensemble(*inputs), model(*inputs).log_softmax(dim=-1), rtol=0, atol=1e-5)
        assert_same(greedy(ensemble, sentences, max_lengths), greedy(model, sentences, max_lengths))
        pairs = zip(beam(ensemble, sentences, max_lengths, 4), beam(model, sentences, max_lengths, 4), strict=True)
        for found, expected in pairs:
            assert_same(found, expected)


# --- Searching -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_step_gives_the_log_probabilities_of_forward_on_the_whole_prefix(beam_size: int) -> None:
    """Between steps, one hypothesis becomes several, they are permuted, repeated and dropped, and sentences finish."""
    ensemble = Ensemble(unlike_models(seed=3))
    random = torch.Generator().manual_seed(beam_size)
    sources = source(random_sentences(2, 5))
    prefixes = torch.full((5, 1, 1), BOS_ID)  # (B, K, length)
    with torch.no_grad():
        state = ensemble.start(ensemble.encode(sources), beam_size, max_length=8)
        for step in range(8):
            found = ensemble.step(prefixes[:, :, -1], state)  # (B, K, V)
            for place in range(prefixes.shape[1]):
                whole = ensemble(sources, prefixes[:, place])  # (B, length, V)
                torch.testing.assert_close(found[:, place], whole[:, -1], rtol=1e-4, atol=1e-5)
            beams = torch.randint(0, prefixes.shape[1], (len(prefixes), beam_size), generator=random)  # (B, K)
            state.select_beams(beams)
            prefixes = prefixes[torch.arange(len(prefixes))[:, None], beams]
            if step in (2, 5):  # one finishes and the others are permuted
                going = torch.randperm(len(prefixes), generator=random)[:-1]
                state.select_sentences(going)
                prefixes, sources = prefixes[going], Source(*(part[going] for part in sources[:2]))
            latest = torch.randint(2, V, prefixes.shape[:2], generator=random)
            prefixes = torch.cat([prefixes, latest[:, :, None]], dim=-1)
    assert len(prefixes) == 3


@pytest.mark.parametrize("beam_size", [2, 5])
@pytest.mark.parametrize("seed", range(6))
def test_beam_search_agrees_with_a_search_with_loops(seed: int, beam_size: int) -> None:
    ensemble = Ensemble(unlike_models(seed))
    sentences = random_sentences(seed, 4)
    max_lengths = np.random.default_rng(seed).integers(4, 11, size=4).tolist()
    found = beam(ensemble, sentences, max_lengths, beam_size, length_penalty=0.7)
    for sentence, longest, hypotheses in zip(sentences, max_lengths, found, strict=True):
        assert_same(hypotheses, naive_beam(ensemble, sentence, longest, beam_size, 0.7, min_length=1))


@pytest.mark.parametrize("seed", range(4))
def test_greedy_agrees_with_a_search_with_loops(seed: int) -> None:
    ensemble = Ensemble(unlike_models(seed))
    sentences, max_lengths = random_sentences(seed, 6), [1, 5, 9, 2, 7, 12]
    expected = [
        naive_greedy(ensemble, sentence, longest, 1.0, min_length=1)
        for sentence, longest in zip(sentences, max_lengths, strict=True)
    ]
    assert_same(greedy(ensemble, sentences, max_lengths), expected)


@pytest.mark.parametrize("seed", range(3))
def test_members_may_be_of_different_kinds(seed: int) -> None:
    """A Transformer, a table of probabilities, and an ensemble of two more."""
    table = TableModel(random_table(seed, range(4, V)))
    ensemble = Ensemble([lively_model(seed), table, Ensemble(unlike_models(seed)[1:])])
    (found,) = beam(ensemble, [[9, 5, 6]], [6], beam_size=3)
    assert_same(found, naive_beam(ensemble, [9, 5, 6], 6, 3, alpha=1.0, min_length=1))


def test_members_are_put_in_evaluation_mode_and_moved_with_the_ensemble() -> None:
    members = [lively_model(0, dropout=0.5), lively_model(1, dropout=0.5)]
    ensemble = Ensemble(members).train()
    assert all(member.training for member in members)
    ensemble.eval()
    assert not any(module.training for member in members for module in member.modules())
    ensemble.to(torch.float64)
    assert {parameter.dtype for member in members for parameter in member.parameters()} == {torch.float64}


# --- Runs ------------------------------------------------------------------------------------------------

DIGITS = "0123456789"
MakeRun = Callable[..., RunFolder]


def word_tokenizer(words: Sequence[str]) -> Tokenizer:
    return WordTokenizer([*SPECIAL_PIECES, *words])


@pytest.fixture
def make_run(copy_task: Path) -> MakeRun:
    """`make_run("a", "model.d_model=8")` writes the run runs/a of the copy task, with random weights."""

    def make(name: str, *overrides: str, src_words: str = DIGITS, tgt_words: str = DIGITS) -> RunFolder:
        run = RunFolder(Path("runs", name))
        write_text(run.config_file, to_yaml(load_config(copy_task, ("model.tie_embeddings=none", *overrides))))
        save_tokenizers(Tokenizers(word_tokenizer(src_words), word_tokenizer(tgt_words)), run.tokenizer, name)
        model = build_model(run.config().model, 4 + len(src_words), 4 + len(tgt_words))
        with torch.no_grad():
            model.output.weight.mul_(2.0)  # otherwise every translation is one repeated piece
        save_weights(model, run.model_file)
        return run

    return make


LINES = ["3 1 4 1 5", "", "9", "2 6 5 3 5 8 9 7 9", "0 0 7"]


def test_runs_translate_as_the_ensemble_of_their_models(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", "model.d_model=16", "model.num_decoder_layers=2"), make_run("c")]
    models: list[Seq2SeqModel[Any, Any]] = []
    for run in runs:
        model = build_model(run.config().model, 14, 14)
        load_weights(model, run.model_file)
        models.append(model)
    sources = [[4 + int(digit) for digit in line.split()] for line in LINES if line]
    engine = TorchEngine(Ensemble(models).eval(), load_tokenizers(runs[0].tokenizer))
    found = engine.search(sources, runs[0].config().decoding)
    expected = [" ".join(DIGITS[index - 4] for index in hypotheses[0].tokens) for hypotheses in found]
    translations = nmt.load(["runs/a", Path("runs/b"), "c"]).translate(LINES)
    assert [line for line in translations if line] == expected
    assert translations[1] == ""
    for run in runs:
        assert nmt.load(run.path).translate(LINES) != translations
    assert nmt.load(["a", "a"]).translate(LINES) == nmt.load("a").translate(LINES) == nmt.load(["a"]).translate(LINES)


def test_the_search_settings_are_the_first_runs(make_run: MakeRun) -> None:
    make_run("a", "decoding.max_length=3", "decoding.min_length=3")
    make_run("b", "decoding.max_length=5", "decoding.min_length=5")
    assert {len(line.split()) for line in nmt.load(["a", "b"]).translate(LINES)} == {0, 3}
    assert {len(line.split()) for line in nmt.load(["b", "a"]).translate(LINES)} == {0, 5}
    decoding = DecodingConfig(max_length=4, min_length=4)
    assert {len(line.split()) for line in nmt.load(["a", "b"], decoding=decoding).translate(LINES)} == {0, 4}


def test_a_source_is_split_at_the_least_of_their_lengths(make_run: MakeRun, caplog: pytest.LogCaptureFixture) -> None:
    for name, max_length in (("a", 20), ("b", 7), ("c", 9)):
        make_run(name, f"data.max_length={max_length}")
    with caplog.at_level(logging.WARNING, logger="nmt"):
        nmt.load(["a", "b", "c"]).translate(LINES)
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["line 4: more than 7 pieces"]


def test_every_model_must_hold_the_longest_output(make_run: MakeRun) -> None:
    make_run("long")
    make_run("short", "model.max_positions=24", "decoding.max_length=20")
    message = r"^runs/short: decoding\.max_length \(30\) must be less than the model's max_positions \(24\)$"
    with pytest.raises(ConfigError, match=message):
        nmt.load(["long", "short"])
    nmt.load(["short", "long"])


@pytest.mark.parametrize("side", ["src_words", "tgt_words"])
def test_models_with_unlike_vocabularies_are_refused(make_run: MakeRun, side: str) -> None:
    """The same size, and the same words in another order, on either side alone."""
    make_run("a")
    make_run("b")
    make_run("c", **{side: DIGITS[::-1]})
    nmt.load(["a", "b"])
    with pytest.raises(RunError, match=r"^runs/a and runs/c have different vocabularies; "):
        nmt.load(["a", "b", "c"])


def test_a_joint_vocabulary_is_the_same_as_itself_written_twice(make_run: MakeRun) -> None:
    joint = word_tokenizer(DIGITS)
    a, b = make_run("a"), make_run("b", src_words="ab")
    save_tokenizers(Tokenizers(joint, joint), Path("joint"), "other text")
    assert same_tokenizers(a.tokenizer, Path("joint"))
    assert not same_tokenizers(b.tokenizer, Path("joint"))
    Path("joint/joint.words").unlink()
    with pytest.raises(RunError, match=r"joint/joint\.words: cannot be read: No such file"):
        same_tokenizers(a.tokenizer, Path("joint"))


def test_no_run_is_not_the_newest(make_run: MakeRun) -> None:
    make_run("a").remember_as_latest()
    assert nmt.load().translate([""]) == [""]
    with pytest.raises(RunError, match="the list of models is empty"):
        nmt.load([])


# --- nmt eval --------------------------------------------------------------------------------------------


def evaluated(runs: Sequence[RunFolder]) -> Path:
    """The file with the hypotheses for the copy task's test set."""
    test_sets = {"test": (Side(Path("test.en")), [Side(Path("test.de"))])}
    metrics = make_metrics(("bleu", "chrf", "ter"), "de")
    ((_, evaluation),) = evaluate_runs(runs, test_sets, metrics, runs[0].config().decoding, "cpu")
    assert evaluation.file is not None
    assert evaluation.file.read_text().splitlines() == evaluation.hypotheses
    return evaluation.file


def test_the_files_of_an_ensemble_are_in_its_first_models_folder(make_run: MakeRun) -> None:
    a, b, c = make_run("a"), make_run("b"), make_run("c d")
    alone, two, three = evaluated([a]), evaluated([a, b]), evaluated([a, b, c])
    assert alone == a.evaluation / "test.hyp"
    assert len({alone, two, three}) == 3
    assert alone.read_text() != two.read_text() != three.read_text()
    for file, models in [(alone, ["runs/a"]), (two, ["runs/a", "runs/b"]), (three, ["runs/a", "runs/b", "runs/c d"])]:
        assert read_json(file.with_suffix(".json"))["models"] == models
    assert {path.stem for path in a.evaluation.iterdir()} == {alone.stem, two.stem, three.stem}
