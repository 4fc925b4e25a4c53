"""Exports: CTranslate2 agrees with our own model and search, or the export is refused; the choice of the engine; and an
export's folder without its run and without torch.

Shapes: B batch, K beams, T target length, V vocabulary.
"""

import hashlib
import importlib.metadata
import json
import logging
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import torch
import yaml
from conftest import RUN_CONFIG, Cli, assert_says
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from safetensors.torch import load_file
from test_translator import assert_threads_find_what_one_finds, different_calls

import nmt.decoding.engines
import nmt.interop.ctranslate2
import nmt.interop.verification
from nmt.config.inference import DecodingConfig, TransformerConfig
from nmt.decoding.ctranslate2_engine import CTranslate2Engine, _allowed_length, _reached_limit, load_ctranslate2_engine
from nmt.decoding.hypothesis import Hypothesis, Request, Sampling
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import load
from nmt.errors import ConfigError, DataError, ExportError, MissingExtraError, RunError
from nmt.evaluation.metrics import Score
from nmt.interop.ctranslate2 import export_ctranslate2, write_model
from nmt.interop.verification import Verification, verification_text
from nmt.models.source import pad, source_of
from nmt.models.transformer import Transformer
from nmt.runs.folder import RunFolder
from nmt.runs.weights import save_weights, write_weights
from nmt.system.files import read_json
from nmt.tokenizers.tokenizer import Tokenizers, WordTokenizer, save_tokenizers
from nmt.tokenizers.vocabulary import BOS_ID, EOS_ID, OWN_SPECIAL_IDS, PAD_ID, SPECIAL_PIECES, UNK_ID

SRC_WORDS = ["<0x0A>", "▁", '"', "\\", "\x00", "ß", "\u200b", "｟a｠", "a￨b", "0"]
TGT_WORDS = ["a", "b", "\x7f", "<0x41>", "▁<s>", "\ufeff", "x"]


def words(extra: Sequence[str]) -> WordTokenizer:
    return WordTokenizer([*SPECIAL_PIECES, *extra])


JOINT = Tokenizers(tokenizer := words(SRC_WORDS), tokenizer)
APART = Tokenizers(words(SRC_WORDS), words(TGT_WORDS))


def random_model(config: TransformerConfig, tokenizers: Tokenizers, seed: int = 0) -> Transformer:
    """No parameter has its initial value: biases are not zero, and norms not one."""
    torch.manual_seed(seed)
    model = Transformer(config, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.25 * torch.randn_like(parameter)
    return model


SMALL = {
    "num_encoder_layers": 2,
    "num_decoder_layers": 1,
    "d_model": 16,
    "num_heads": 2,
    "d_ff": 24,
    "max_positions": 64,
}
ARCHITECTURES = [
    (TransformerConfig(**SMALL), JOINT),
    (TransformerConfig(**SMALL, norm="post"), JOINT),
    (TransformerConfig(**SMALL, activation="gelu", tie_embeddings="decoder", positions="learned"), APART),
    (TransformerConfig(**SMALL, activation="swiglu", tie_embeddings="none", norm="post"), APART),
    (
        TransformerConfig(**{**SMALL, "num_heads": 4}, activation="swiglu", positions="learned", tie_embeddings="none"),
        JOINT,
    ),
    (TransformerConfig(**SMALL, layout="marianmt-own-start"), JOINT),
    (TransformerConfig(**SMALL, norm="post", activation="swish", layout="marian"), JOINT),
    (TransformerConfig(**SMALL, layout="marianmt-unscaled"), JOINT),
    (TransformerConfig(**{**SMALL, "num_decoder_layers": 2}, share_layers=True), JOINT),
]  # fmt: skip


def engine_for(model: Transformer, tokenizers: Tokenizers, folder: Path) -> CTranslate2Engine:
    write_model(model, tokenizers, "float32", folder)
    return load_ctranslate2_engine(RunFolder(folder), tokenizers, "cpu")


def random_sources(count: int, vocab_size: int, longest: int = 20) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(4, vocab_size, size=random.integers(1, longest + 1)).tolist() for _ in range(count)]


def test_alignments_have_the_attention_of_the_same_layer(tmp_path: Path) -> None:
    """Also of targets without pieces, and of targets that a search would never find."""
    config = TransformerConfig(**{**SMALL, "num_decoder_layers": 3})
    model = random_model(config, JOINT)
    sources = random_sources(9, JOINT.src.vocab_size)
    targets = [[], *random_sources(7, JOINT.tgt.vocab_size), []]
    found = engine_for(model, JOINT, tmp_path).attention(sources, targets)
    for weights, src, tgt in zip(found, sources, targets, strict=True):
        assert weights.shape == (len(tgt), len(src))
        with torch.no_grad():
            layers = model.attention_weights(source_of([src], OWN_SPECIAL_IDS), torch.tensor([[BOS_ID, *tgt]]))
        expected = layers["decoder.1.cross"][0].mean(dim=0)[: len(tgt), : len(src)]  # the second of three
        np.testing.assert_allclose(weights, expected.numpy(), atol=1e-5)


# --- The model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "tokenizers"), ARCHITECTURES)
def test_the_log_probabilities_are_ours(config: TransformerConfig, tokenizers: Tokenizers, tmp_path: Path) -> None:
    model = random_model(config, tokenizers)
    write_model(model, tokenizers, "float32", tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["layer_norm_epsilon"] == (1e-6 if config.layout == "marian" else 1e-5)
    sources = random_sources(8, tokenizers.src.vocab_size)
    targets = random_sources(8, tokenizers.tgt.vocab_size)
    tgt_in, tgt_out = pad([[BOS_ID, *ids] for ids in targets], PAD_ID), pad(targets, PAD_ID, last=[EOS_ID])
    with torch.no_grad():
        log_probs = model(source_of(sources, OWN_SPECIAL_IDS), tgt_in).log_softmax(dim=-1)  # (B, T, V)
    expected = log_probs.gather(2, tgt_out[:, :, None])[:, :, 0]  # (B, T)
    scores = ctranslate2.Translator(str(tmp_path), intra_threads=1).score_batch(
        [tokenizers.src.pieces(ids) for ids in sources], [tokenizers.tgt.pieces(ids) for ids in targets]
    )
    for row, (ids, score) in enumerate(zip(targets, scores, strict=True)):
        assert score.log_probs == pytest.approx(expected[row, : len(ids) + 1].tolist(), abs=2e-5)


def test_layers_that_share_their_weights_are_in_the_file_once(tmp_path: Path) -> None:
    sizes = []
    for number in (1, 4):
        config = TransformerConfig(**{**SMALL, "num_encoder_layers": number, "d_model": 64}, share_layers=True)
        (folder := tmp_path / str(number)).mkdir()
        write_model(random_model(config, JOINT), JOINT, "int8", folder)
        sizes.append((folder / "model.bin").stat().st_size)
    one_layer = 4 * 64 * 64 + 2 * 64 * 24  # bytes; the three others are names alone
    assert 0 < sizes[1] - sizes[0] < one_layer / 2


@pytest.mark.parametrize(
    "decoding",
    [
        DecodingConfig(beam_size=1, max_length=30, max_length_ratio=0.7),
        DecodingConfig(beam_size=4, max_length=30, max_length_ratio=0.7),
        DecodingConfig(beam_size=3, length_penalty=0.0, max_length=20, min_length=3, max_length_ratio=0.01),
        DecodingConfig(beam_size=2, length_penalty=1.5, max_length=7, batch_tokens=30),
        DecodingConfig(beam_size=1, max_length=20, no_repeat_ngram_size=2, min_length=2),
        DecodingConfig(beam_size=4, max_length=20, no_repeat_ngram_size=1, min_length=2),
        DecodingConfig(beam_size=5, max_length=20, no_repeat_ngram_size=3, length_penalty=0.6),
    ],
)
@pytest.mark.parametrize(("config", "tokenizers"), ARCHITECTURES[1:4])
def test_the_searches_find_the_same(
    config: TransformerConfig, tokenizers: Tokenizers, decoding: DecodingConfig, tmp_path: Path
) -> None:
    """Sources of many lengths in one call, each with its own maximal length, which many outputs reach."""
    model = random_model(config, tokenizers, seed=3)
    sources = random_sources(60, tokenizers.src.vocab_size)
    found = [*engine_for(model, tokenizers, tmp_path).search(sources, decoding)]
    expected = TorchEngine(model, tokenizers).search(sources, decoding)
    lengths = [len(hypotheses[0].tokens) for hypotheses in expected]
    assert len(set(lengths)) > 2
    if not decoding.no_repeat_ngram_size:
        at_the_end = [length == decoding.longest_output(len(ids)) for length, ids in zip(lengths, sources, strict=True)]
        assert sum(at_the_end) >= 3
    else:
        unconstrained = decoding.model_copy(update={"no_repeat_ngram_size": 0})
        assert expected != TorchEngine(model, tokenizers).search(sources, unconstrained)
    for ours, theirs in zip(expected, found, strict=True):
        assert len(theirs) == len(ours)
        assert theirs[0].score == pytest.approx(ours[0].score, abs=1e-4)
        assert theirs[0].log_prob == pytest.approx(ours[0].log_prob, abs=1e-3)
        assert theirs[0].tokens == ours[0].tokens
        assert [one.score for one in theirs] == sorted((one.score for one in theirs), reverse=True)
        log_probs = {one.tokens: one.log_prob for one in ours}
        for one in theirs[1:]:  # where more than K finished, some differ from ours
            assert one.log_prob == pytest.approx(log_probs.get(one.tokens, one.log_prob), abs=1e-3)


@pytest.mark.parametrize("no_repeat", [0, 2])
@pytest.mark.parametrize("min_length", [0, 4])
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize(("config", "tokenizers"), ARCHITECTURES[1:3])
def test_a_forced_prefix_is_the_same_to_both(
    config: TransformerConfig, tokenizers: Tokenizers, beam_size: int, min_length: int, no_repeat: int, tmp_path: Path
) -> None:
    """No prefix, short ones, ones longer than the maximal length; some with repetitions and `<unk>`."""
    model = random_model(config, tokenizers, seed=3)
    sources = random_sources(60, tokenizers.src.vocab_size)
    random = np.random.default_rng(1)
    prefixes = [
        random.integers(UNK_ID, tokenizers.tgt.vocab_size, size=random.integers(0, 14)).tolist() for _ in sources
    ]
    decoding = DecodingConfig(
        beam_size=beam_size,
        max_length=14,
        max_length_ratio=0.3,
        min_length=min_length,
        no_repeat_ngram_size=no_repeat,
        length_penalty=0.7,
    )
    expected = TorchEngine(model, tokenizers).search(sources, decoding, prefixes)
    found = [*engine_for(model, tokenizers, tmp_path).search(sources, decoding, prefixes)]
    free = TorchEngine(model, tokenizers).search(sources, decoding)
    cut = missed = 0
    for ours, theirs, prefix, unforced, ids in zip(expected, found, prefixes, free, sources, strict=True):
        longest = decoding.longest_output(len(ids))
        if prefix and tuple(prefix) in {one.tokens for one in ours} - {one.tokens for one in theirs}:
            missed += 1  # `</s>` at once, which CTranslate2's beams find only if nothing is more probable
        else:
            assert theirs[0].tokens == ours[0].tokens
            assert theirs[0].score == pytest.approx(ours[0].score, abs=1e-4)
            assert theirs[0].log_prob == pytest.approx(ours[0].log_prob, abs=1e-3)
        cut += len(prefix) > longest
        assert all(one.tokens[: len(prefix)] == tuple(prefix[:longest]) for one in [*ours, *theirs])
        if not prefix:
            assert [one.tokens for one in ours] == [one.tokens for one in unforced]
    assert cut > 2
    assert missed < len(sources) / 2 if beam_size > 1 else missed == 0


def test_threads_may_search_with_one_engine_at_once(tmp_path: Path) -> None:
    config, tokenizers = ARCHITECTURES[1]
    engine = engine_for(random_model(config, tokenizers, seed=3), tokenizers, tmp_path)
    assert_threads_find_what_one_finds(
        lambda *call: [*engine.search(*call)], different_calls(tokenizers.src.vocab_size)
    )


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_search_without_allowed_tokens_ends(beam_size: int, tmp_path: Path) -> None:
    """Two words, no repetition, and a minimal length of five."""
    config, tokenizers = TransformerConfig(**SMALL), Tokenizers(tokenizer := words(["a", "b"]), tokenizer)
    model = random_model(config, tokenizers)
    engine = engine_for(model, tokenizers, tmp_path)
    decoding = DecodingConfig(beam_size=beam_size, max_length=9, min_length=5, no_repeat_ngram_size=1)
    for searching in (engine, TorchEngine(model, tokenizers)):
        for best, *_ in searching.search([[4], [4, 5, 4]], decoding):
            assert sorted(best.tokens) == [4, 5]
            assert math.isfinite(best.score)


def test_rules_for_a_hypothesis() -> None:
    never = {index: [(index,)] for index in (PAD_ID, BOS_ID, UNK_ID)}
    assert _allowed_length((4, 5, 4, 5), never, 0) == 4
    assert _allowed_length((4, 5, 4, 5), never, 1) == 2
    assert _allowed_length((4, 5, 4, 5), never, 2) == 3
    assert _allowed_length((4, 5, 4, 5), never, 3) == 4
    assert _allowed_length((4, 4), never, 3) == 2
    assert _allowed_length((4, 4, UNK_ID, 5, 4), never, 1, num_forced=3) == 4  # a forced prefix may hold any ids
    assert _allowed_length((4, 5, 6, 5, 6), {**never, 6: [(5, 6)]}, 0) == 2
    assert _allowed_length((4, 5, 6, 5, 6), {**never, 6: [(5, 6)]}, 0, num_forced=3) == 4
    assert [_allowed_length((4, index, 4), never, 3) for index in (PAD_ID, BOS_ID, EOS_ID, UNK_ID)] == [1, 1, 3, 1]


def test_forbidden_tokens_are_not_emitted_even_if_little_else_is_left(tmp_path: Path) -> None:
    config, tokenizers = TransformerConfig(**SMALL), Tokenizers(tokenizer := words(["a"]), tokenizer)
    engine = engine_for(random_model(config, tokenizers), tokenizers, tmp_path)
    found = [*engine.search([[4], [4, 4]], DecodingConfig(beam_size=5, max_length=3, min_length=3))]
    assert [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in found] == [[(4, 4, 4)]] * 2


def test_a_diverged_model_is_an_error(tmp_path: Path) -> None:
    """When it is loaded: a greedy search without scores would not show it."""
    config, tokenizers = ARCHITECTURES[0]
    model = random_model(config, tokenizers)
    with torch.no_grad():
        model.decoder_norm.bias[0] = torch.nan
    with pytest.raises(RunError, match="NaN"):
        engine_for(model, tokenizers, tmp_path)


def test_a_search_that_was_stopped_shows_it() -> None:
    """K = 2, at most 5 tokens."""
    short, long, full = (Hypothesis((4,) * length, -1.0, -1.0) for length in (3, 4, 5))
    assert not _reached_limit([short, short], 5, 2)
    assert _reached_limit([short, long], 5, 2)
    assert _reached_limit([full, short], 5, 2)
    assert _reached_limit([short], 5, 2)


# --- A run and its exports -------------------------------------------------------------------------------


LINES = 12


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """runs/copy in an empty current folder: a random model over digits, with a validation set of 12 lines."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    lines = [" ".join(random.choice(list("0123456789"), size=random.integers(1, 9))) for _ in range(LINES)]
    for name in ("val.en", "val.de"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    config = RUN_CONFIG.replace(" val.", f" {tmp_path}/val.").replace("max_length: 30", "min_length: 0, max_length: 9")
    folder = RunFolder(tmp_path / "runs" / "copy")
    folder.path.mkdir(parents=True)
    folder.config_file.write_text(config.replace("model: {", "model: {tie_embeddings: none, "), encoding="utf-8")
    digits = words("0123456789")
    save_tokenizers(Tokenizers(digits, digits), folder.tokenizer, "")
    model = random_model(folder.config().model, Tokenizers(digits, digits))
    with torch.no_grad():  # forbidden tokens have almost no probability, as in a trained model
        model.decoder_norm.weight[0], model.decoder_norm.bias[0] = 0.0, 10.0
        model.output.weight[:, 0] = 0.0
        model.output.weight[[PAD_ID, BOS_ID, UNK_ID], 0] = -3.0
    save_weights(model, folder.model_file)
    return folder


def test_a_file_with_both_sides_is_the_text_to_compare_on(run: RunFolder) -> None:
    src, ref = (Path(name).read_text().splitlines() for name in ("val.en", "val.de"))
    ref = ref[::-1]
    Path("other.de").write_text("".join(f"{line}\n" for line in ref))
    Path("both.csv").write_text("de,en\n" + "".join(f"{tgt},{one}\n" for one, tgt in zip(src, ref, strict=True)))
    both = verification_text(run, Path("both.csv"), None)
    assert both == verification_text(run, Path("val.en"), Path("other.de"))
    assert (both.src, both.references) == (src, [ref])


def other_weights(run: RunFolder) -> None:
    """Of the same size in bytes."""
    size = run.model_file.stat().st_size
    write_weights({name: value + 0.1 for name, value in load_file(run.model_file).items()}, run.model_file)
    assert run.model_file.stat().st_size == size


def test_an_export_is_a_folder_with_all_that_it_needs(run: RunFolder) -> None:
    result = export_ctranslate2(run, "float32", device="cpu")
    folder = run.exports / "ctranslate2-float32"
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.yaml", "tokenizer", "model.bin", "config.json", "shared_vocabulary.json", "export.json"}
    assert result.folder == str(folder)
    assert [comparison.beam_size for comparison in result.comparisons] == [1, 3]
    assert all(comparison.same_lines == comparison.lines == LINES for comparison in result.comparisons)
    description = read_json(folder / "export.json")
    assert description["model"]["sha256"] == hashlib.sha256(run.model_file.read_bytes()).hexdigest()
    assert description["quantization"] == "float32"
    assert len(description["comparisons"]) == 2


def test_an_export_holds_the_sections_for_inference_and_needs_no_corpora(
    run: RunFolder, tmp_path: Path, cli: Cli
) -> None:
    """The export is moved to an empty folder, and its run and all text are removed."""
    lines = ["3 1 4 1 5", "9 2"]
    ours = load(run.path, engine="torch").translate(lines)
    export_ctranslate2(run, "float32", device="cpu")
    whole = run.config()
    folder = (run.exports / "ctranslate2-float32").rename(tmp_path / "moved")
    shutil.rmtree(run.path)
    for path in tmp_path.glob("val.*"):
        path.unlink()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert list(config) == ["data", "source", "tokenizer", "model", "decoding"]
    assert config["data"] == {"src_lang": "en", "tgt_lang": "de", "max_length": 20}
    read = RunFolder(folder).inference_config()
    assert (read.tokenizer, read.model, read.decoding) == (whole.tokenizer, whole.model, whole.decoding)
    program = f"import nmt; print('\\n'.join(nmt.load({str(folder)!r}).translate({lines!r})))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert result.stdout.splitlines() == ours
    src, ref = tmp_path / "in.en", tmp_path / "in.de"
    src.write_text("".join(f"{line}\n" for line in lines))
    ref.write_text("".join(f"{line}\n" for line in ours))
    code, out, _ = cli("eval", "--model", str(folder), "--src", str(src), "--ref", str(ref), "--json")
    scores = json.loads(out)["scores"]
    assert (code, list(scores), scores["chrf"]["value"]) == (0, ["bleu", "chrf", "ter"], 100)
    for command, remedy in ((("eval",), "give --src and --ref"), (("average",), "name a run that was trained here")):
        code, out, err = cli(*command, "--model", str(folder))
        assert (code, out) == (2, "")
        assert_says(err, f"nmt: {folder}: holds no training configuration", remedy)


def test_an_export_made_before_exports_left_out_the_training_configuration_is_read(run: RunFolder, cli: Cli) -> None:
    """Such an export holds the run's whole config.yaml, and its test sets were scored."""
    export_ctranslate2(run, "float32", device="cpu")
    folder = RunFolder(run.exports / "ctranslate2-float32")
    lines = ["3 1 4 1 5", "9 2"]
    expected = load(folder.path).translate(lines)
    shutil.copyfile(run.config_file, folder.config_file)
    for name in ("en", "de"):
        (run.path.parents[1] / f"test.{name}").write_text("1 2 3\n")
    folder.config_file.write_text(folder.config_file.read_text().replace(" test.", f" {run.path.parents[1]}/test."))
    assert load(folder.path).translate(lines) == expected
    code, out, _ = cli("eval", "--model", str(folder.path), "--json")
    assert (code, json.loads(out)["test_set"]) == (0, "test")


def test_an_export_translates_as_its_run_does(run: RunFolder) -> None:
    export_ctranslate2(run, "float32", device="cpu")
    lines = ["3 1 4 1 5", "", "9 2", "x 6", "5 3 5 8 9 7 9 3 2 3 8 4 6 2 6 4 3"]
    ours = load(run.path, engine="torch")
    theirs = load(run.exports / "ctranslate2-float32")
    assert (ours.engine_name, theirs.engine_name) == ("torch", "ctranslate2, float32")
    assert theirs.translate(lines) == ours.translate(lines)


@pytest.mark.parametrize(("quantization", "better"), [("int8", ["int16"]), ("int16", ["float32"]), ("float32", [])])
def test_an_export_that_translates_differently_is_refused_and_an_earlier_one_kept(
    run: RunFolder, quantization: str, better: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the norms negated, and a limit for BLEU low enough for a random model."""
    monkeypatch.setattr(nmt.interop.verification, "BLEU_DIFFERENCE", 0.01)
    folder = run.exports / f"ctranslate2-{quantization}"
    (folder / "kept").mkdir(parents=True)
    monkeypatch.setattr(nmt.interop.ctranslate2, "_norm", lambda spec, norm: broken_norm(spec, norm))

    def broken_norm(spec: object, norm: torch.nn.LayerNorm) -> None:
        spec.gamma, spec.beta = (-value.detach().numpy() for value in (norm.weight, norm.bias))

    with pytest.raises(ExportError, match=r"not kept.*beam 1: \d+ of 12 lines are the same, BLEU") as caught:
        export_ctranslate2(run, quantization, device="cpu")
    assert caught.value.exit_code == 3
    command = rf"nmt export ctranslate2 --model {run.path} --quantization (\w+)$"
    assert re.findall(command, str(caught.value)) == better
    assert [path.name for path in run.exports.iterdir()] == [folder.name]
    assert [path.name for path in folder.iterdir()] == ["kept"]


def score_of(value: float) -> Score:
    return Score("BLEU", value, "")


@pytest.mark.parametrize(
    ("quantization", "same", "bleu", "good"),
    [
        ("float32", 995, 30.0, True),
        ("float32", 994, 30.0, False),
        ("float32", 1000, 30.31, False),
        ("int8", 500, 29.71, True),
        ("int8", 999, 29.69, False),
        ("int8", 500, 31.0, True),
    ],
)
def test_limits_of_a_good_export(quantization: str, same: int, bleu: float, good: bool) -> None:
    assert Verification(5, 1000, same, score_of(30.0), score_of(bleu)).is_good(quantization == "float32") is good


def test_an_export_needs_text_to_be_compared_on(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "val.de").unlink()
    with pytest.raises(DataError, match=r"val\.de: no such file; .* --src FILE --ref FILE"):
        export_ctranslate2(run, "float32", device="cpu")
    src = tmp_path / "val.en"
    assert export_ctranslate2(run, "float32", src, src, "cpu").comparisons[0].lines == LINES


def test_an_export_with_a_shortlist_translates_with_its_pieces(
    run: RunFolder, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here each digit is its own translation and has no other; a random model writes any digits."""
    monkeypatch.setattr(nmt.interop.ctranslate2, "FREQUENT", 0)
    command = ["export", "ctranslate2", "--model", "copy", "--quantization", "float32", "--shortlist"]
    code, _, err = cli(*command, "val.en", "nowhere.de")
    assert (code, "nowhere.de: no such file" in err) == (2, True)
    assert not [*run.exports.iterdir()]
    Path("digits").write_text("".join(f"{digit}\n" for digit in "0123456789"), encoding="utf-8")
    Path("few").write_text("7 7\n3\n", encoding="utf-8")
    code, out, err = cli(*command, "digits", "digits", "--src", "few", "--ref", "few")
    assert (code, err) == (0, "")
    assert " 0.0% the same" in out  # a float32 export without a shortlist would not be kept
    folder = run.exports / "ctranslate2-float32"
    assert (folder / "vmap.txt").read_text(encoding="utf-8") == "".join(f"{digit}\t{digit}\n" for digit in "0123456789")
    for engine, only in (("ctranslate2", True), ("torch", False)):
        translated = load(run.path, device="cpu", engine=engine).translate(["7 7", "3"])
        assert ({*"".join(translated)} <= {"7", "3", " "}) is only


def test_mistakes_are_named(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"--quantization int4: should be one of int8, "):
        export_ctranslate2(run, "int4")
    with pytest.raises(ConfigError, match="engine 'onnx': should be one of auto, torch, ctranslate2"):
        load(run.path, engine="onnx")
    with pytest.raises(RunError, match=r"no fresh export for CTranslate2; make one: nmt export ctranslate2"):
        load(run.path, engine="ctranslate2")
    export_ctranslate2(run, "float32", device="cpu")
    export = RunFolder(run.exports / "ctranslate2-float32")
    with pytest.raises(RunError, match="is an export; name the run that it was made from"):
        export_ctranslate2(export, "float32")
    with pytest.raises(RunError, match="an export, for CTranslate2; PyTorch needs"):
        load(export.path, engine="torch")
    with pytest.raises(RunError, match="an export, for CTranslate2; an ensemble"):
        load([run.path, export.path])
    with pytest.raises(RunError, match="for CTranslate2; --precision bf16"):
        load(export.path, precision="bf16")
    with pytest.raises(ConfigError, match=r"--precision bf16 needs --engine torch; .*--quantization TYPE"):
        load(run.path, engine="ctranslate2", precision="bf16")
    with pytest.raises(ConfigError, match="an ensemble needs --engine torch"):
        load([run.path, run.path], engine="ctranslate2")
    with pytest.raises(ConfigError, match="device 'mps': CTranslate2 accepts auto, cpu, cuda and cuda:N"):
        load(export.path, device="mps")
    with pytest.raises(ConfigError, match="device cuda:99: this machine has no such GPU"):
        load(export.path, device="cuda:99")
    (export.path / "model.bin").write_bytes(b"no model")
    with pytest.raises(RunError, match=r"ctranslate2-float32: CTranslate2 cannot load it: "):
        load(export.path)
    export.export_file.write_text("{}", encoding="utf-8")
    with pytest.raises(RunError, match=r"export\.json: model: .*; export it again: .*--quantization float32"):
        load(run.path, engine="ctranslate2")


# --- Which engine ----------------------------------------------------------------------------------------


def test_the_fastest_fresh_export_is_used_on_a_cpu_and_a_line_says_so(
    run: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="nmt"):
        assert load(run.path, device="cpu").engine_name == "torch"
        assert not caplog.messages  # there was no choice
        for quantization in ("float32", "int8"):
            export_ctranslate2(run, quantization, device="cpu")
        caplog.clear()
        assert load(run.path, device="cpu").engine_name.startswith("ctranslate2, int8")
        assert load(run.path, device="cpu", engine="torch").engine_name == "torch"
    (message,) = caplog.messages
    assert str(run.path) in message
    assert "CTranslate2, int8" in message


def test_a_stale_export_is_named_and_not_used(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    export_ctranslate2(run, "float32", device="cpu")
    export = run.exports / "ctranslate2-float32"
    os.utime(run.model_file)  # a copy has another modification time, and is hashed
    assert load(run.path, device="cpu").engine_name == "ctranslate2, float32"
    other_weights(run)
    assert load(run.path, device="cpu").engine_name == "torch"
    assert any(message.startswith(f"{export} is stale") for message in caplog.messages)
    with pytest.raises(RunError, match="no fresh export"):
        load(run.path, engine="ctranslate2")
    assert load(export, device="cpu").engine_name == "ctranslate2, float32"  # requested by its name
    result = export_ctranslate2(run, "float32", device="cpu")
    assert result.comparisons[0].same_lines == LINES
    assert load(run.path, device="cpu").engine_name == "ctranslate2, float32"


@pytest.mark.parametrize("file", ["model.bin", "export.json", "shared_vocabulary.json", ""])
def test_a_damaged_export_is_named_and_pytorch_translates(
    run: RunFolder, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    expected = load(run.path, device="cpu").translate(["1 2"])
    export_ctranslate2(run, "float32", device="cpu")
    export = run.exports / "ctranslate2-float32"
    if file:
        (export / file).write_bytes((export / file).read_bytes()[:40])
    else:
        model = export / "model.bin"
        model.write_bytes(model.read_bytes().replace(b"encoder/embeddings_0", b"encoder/embeddings_1"))
    translator = load(run.path, device="cpu")
    assert (translator.engine_name, translator.translate(["1 2"])) == ("torch", expected)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert_says(warning, str(export), "translated with PyTorch", f"--model {run.path} --quantization float32")
    assert ("if it is damaged" in warning) == (file != "export.json")  # memory may be lacking
    with pytest.raises(RunError, match=str(export)):
        load(run.path, engine="ctranslate2")


def test_unsupported_searches_fall_back_to_torch_and_a_line_says_why(
    run: RunFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_ctranslate2(run, "float32", device="cpu")
    taken: list[str] = []
    precisions: list[str] = []

    def load_torch_engine(
        runs: Sequence[RunFolder], tokenizers: Tokenizers, device: str, precision: str
    ) -> TorchEngine:
        taken.append(device)
        precisions.append(precision)
        return TorchEngine(random_model(run.config().model, tokenizers), tokenizers)

    monkeypatch.setattr("nmt.decoding.torch_engine.load_torch_engine", load_torch_engine)

    def reason(models: list[Path], device: str, precision: str | None = None) -> str:
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="nmt"):
            load(models, device=device, precision=precision)
        assert precisions.pop() == (precision or "fp32")
        assert taken.pop() == device
        (message,) = caplog.messages
        start = f"{', '.join(map(str, models))}: translated with PyTorch, not CTranslate2: "
        assert message.startswith(start)
        return message.removeprefix(start)

    assert "an ensemble" in reason([run.path, run.path], "cpu")
    with pytest.raises(ConfigError, match="cannot seed its samples"):
        load(run.exports / "ctranslate2-float32").translate(["1"], request=Request(sampling=Sampling()))
    for precision in ("bf16", "fp32"):  # int8 is neither
        assert f"--precision {precision}" in reason([run.path], "cpu", precision=precision)
    assert reason([run.path], "cuda").startswith("on a GPU")
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 1)
    assert reason([run.path], "auto").startswith("on a GPU")
    monkeypatch.setattr(nmt.decoding.engines.importlib.util, "find_spec", lambda name: None)
    assert reason([run.path], "cpu") == "it is not installed (pip install ctranslate2)"


def test_an_ignored_precision_of_the_configuration_is_reported(
    run: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    text = run.config_file.read_text(encoding="utf-8")
    assert "decoding: {" in text
    run.config_file.write_text(text.replace("decoding: {", "decoding: {precision: bf16, "), encoding="utf-8")
    result = export_ctranslate2(run, "float32", device="cpu")  # compared with PyTorch in fp32
    assert all(comparison.same_lines == LINES for comparison in result.comparisons)
    export = run.exports / "ctranslate2-float32"
    for model, engine in ((run.path, "auto"), (run.path, "ctranslate2"), (export, "auto")):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="nmt"):
            assert load(model, device="cpu", engine=engine).engine_name == "ctranslate2, float32"
        assert_says(caplog.messages[-1], f"{export}: decoding.precision: bf16 ", "ctranslate2, float32")
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="nmt"):
        assert load(run.path, device="cpu", engine="torch").engine_name == "torch"
    assert not caplog.messages


@pytest.mark.parametrize("command", ["translate", "devices", "eval"])
def test_a_requested_precision_is_never_ignored(run: RunFolder, command: str, cli: Cli) -> None:
    export_ctranslate2(run, "float32", device="cpu")
    arguments = {
        "translate": ["translate", "--input", "val.en", "--device", "cpu"],
        "devices": ["translate", "--input", "val.en", "--devices", "cpu"],
        "eval": ["eval", "--src", "val.en", "--ref", "val.de", "--device", "cpu"],
    }[command]
    export = run.exports / "ctranslate2-float32"
    for options, message in (
        (["--model", str(run.path), "--engine", "ctranslate2"], "--precision bf16 needs --engine torch"),
        (["--model", str(export)], "--precision bf16 needs the run that it was made from"),
    ):
        code, out, err = cli(*arguments, *options, "--precision", "bf16")
        assert (code, out) == (2, "")
        assert message in err


def test_a_missing_package_is_one_plain_line(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(MissingExtraError, match="CTranslate2 is not installed"):
        export_ctranslate2(run, "float32")


# --- The folder alone ------------------------------------------------------------------------------------

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # an import of it fails
from nmt.cli.main import main
try:
    main()
finally:
    slow = {"numpy", "sacrebleu", "tqdm", "nmt.models.transformer"} & set(sys.modules)
    print("imported:", *sorted(slow), file=sys.stderr)
"""


def test_a_folder_alone_translates_without_torch(run: RunFolder, tmp_path: Path) -> None:
    export_ctranslate2(run, "float32", device="cpu")
    alone = tmp_path / "elsewhere" / "model"
    shutil.copytree(run.exports / "ctranslate2-float32", alone)
    lines = (tmp_path / "val.en").read_text(encoding="utf-8").splitlines()
    expected = load(run.path, engine="torch").translate(lines)
    (tmp_path / "val.en").rename(alone.parent / "src.en")
    (tmp_path / "val.de").unlink()
    shutil.rmtree(run.path)

    def nmt_without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
        return subprocess.run(command, cwd=alone.parent, capture_output=True, text=True)

    done = nmt_without_torch("translate", "--model", "model", "--input", "src.en")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"12 lines, .*tokens/s\nimported:\n", done.stderr)
    assert done.stdout.splitlines() == expected
    done = nmt_without_torch("eval", "--model", "model", "--src", "src.en", "--ref", "src.en", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["lines"] == len(lines)
    (stored,) = (alone / "evaluation").glob("src.en.*.json")
    record = json.loads(stored.read_text(encoding="utf-8"))
    assert record["engine"] == "ctranslate2, float32"
    done = nmt_without_torch("translate", "--model", "model", "--engine", "torch", "1 2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "PyTorch needs the run that it was made from" in done.stderr
    (alone / "export.json").unlink()
    (alone / "model.safetensors").touch()
    done = nmt_without_torch("translate", "--model", "model", "1 2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nmt: torch is needed for this and not installed: pip install torch\n" in done.stderr


ONLY_DOCUMENTED = """
import sys
hidden = set(sys.argv.pop(1).split(","))

class Refuser:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuser())
from nmt.cli.main import main
main()
"""


def _modules_without(*names: str) -> set[str]:
    """What could not be imported if only nmt, these packages, and all that they need were installed."""
    waiting, packages = list(names), set[str]()
    while waiting:
        package = canonicalize_name(waiting.pop())
        if package not in packages:
            packages.add(package)
            needed = map(Requirement, importlib.metadata.requires(package) or ())
            waiting += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    modules = importlib.metadata.packages_distributions().items()
    return {module for module, owners in modules if packages.isdisjoint(map(canonicalize_name, owners))} - {"nmt"}


@pytest.mark.slow
def test_the_documented_install_without_torch_is_enough(run: RunFolder, tmp_path: Path) -> None:
    """Of the packages that docs/exporting.md names for another machine, and nothing else."""
    page = (Path(__file__).parents[2] / "docs" / "exporting.md").read_text(encoding="utf-8")
    (to_translate,) = re.findall(r"^pip install (ctranslate2 .*\w)$", page, re.MULTILINE)
    (to_evaluate,) = re.findall(r"^pip install (.*\w) +# also for nmt eval", page, re.MULTILINE)
    export_ctranslate2(run, "float32", device="cpu")
    (tmp_path / "a.txt").write_text("1 2\n")
    model = ["--model", str(run.exports / "ctranslate2-float32")]
    evaluation = ["eval", *model, "--src", "a.txt", "--ref", "a.txt"]
    for packages, arguments in (
        (to_translate, ["translate", *model, "1 2. 3 4."]),
        (to_translate, ["translate", *model, "--input", "a.txt"]),
        (f"{to_translate} {to_evaluate}", evaluation),
    ):
        hidden = _modules_without(*packages.split())
        assert hidden > {"torch", "matplotlib", "pytest"}
        command = [sys.executable, "-c", ONLY_DOCUMENTED, ",".join(hidden), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout
