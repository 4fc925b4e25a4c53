"""Sources of vectors against numpy: reading, padding, the first layer, and the whole way through the command line."""

import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from conftest import assert_says, unread_tokenizer
from numpy.typing import NDArray
from safetensors.torch import load_file

import nmt
import nmt.insight.report_output
from nmt.batches.batches import plan_epoch
from nmt.batches.dataset import EncodedCorpus, encode_corpus
from nmt.cleaning.selection import select
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.config.inference import RnnConfig, TransformerConfig
from nmt.config.reading import load_config
from nmt.config.source import VectorSource
from nmt.corpora.vectors import open_vectors
from nmt.decoding.files import OutputFiles
from nmt.decoding.torch_engine import TorchEngine
from nmt.errors import ConfigError, DataError
from nmt.models.embeddings import VectorLayer
from nmt.models.rnn import Rnn
from nmt.models.source import Source, source_of
from nmt.models.transformer import Transformer
from nmt.tokenizers.tokenizer import Tokenizers, WordTokenizer
from nmt.tokenizers.vocabulary import OWN_SPECIAL_IDS, SPECIAL_PIECES
from tests.conftest import Cli

F = 3
Arrays = list[NDArray[Any]]
SOURCE = VectorSource(type="vectors", features=F)
WORDS = Tokenizers(*[WordTokenizer([*SPECIAL_PIECES, *"0123456789"])] * 2)


def sources(*lengths: int, seed: int = 0) -> Arrays:
    """Random sources of F features."""
    random = np.random.default_rng(seed)
    return [random.standard_normal((length, F)).astype(np.float32) for length in lengths]


def write_ragged(folder: Path, rows: Arrays, dtype: str = "float32") -> Path:
    folder.mkdir()
    np.save(folder / "values.npy", np.concatenate(rows).astype(dtype))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]).astype(np.int64))
    return folder


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Three targets."""
    path = tmp_path / "three.de"
    path.write_text("1 2\n3\n4 5 6\n", encoding="utf-8")
    return path


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    unread_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "words").write_text("0 to 9", encoding="utf-8")
    return tmp_path


def encoded(src: Path, tgt: Path, max_length: int = 10, duplicates: Literal["pair"] | None = None) -> EncodedCorpus:
    files = CorpusFiles(src=src, tgt=tgt)
    selection = select([files], CleaningConfig(duplicates=duplicates), ("en", "de"), source=SOURCE)
    return encode_corpus([files], WORDS, Path("tokenizer"), max_length, selection, source=SOURCE)


# --- Files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_corpus_holds_the_rows_of_the_array(in_folder: Path, lines: Path, dtype: str) -> None:
    array = np.stack(sources(4, 4, 4)).astype(dtype)
    np.save("features.npy", array)
    corpus = encoded(Path("features.npy"), lines)
    values, lengths = corpus.src.gather(np.array([2, 0]))
    assert values.dtype == dtype
    np.testing.assert_array_equal(values, np.concatenate([array[2], array[0]]))
    assert lengths.tolist() == [4, 4]
    np.testing.assert_array_equal(corpus.src[1], array[1])
    assert [corpus.tgt[n].tolist() for n in range(3)] == [[5, 6], [7], [8, 9, 10]]


def test_a_ragged_folder_and_an_array_are_the_same_corpus(in_folder: Path, lines: Path) -> None:
    rows = sources(4, 4, 4)
    np.save("features.npy", np.stack(rows))
    dense, ragged = encoded(Path("features.npy"), lines), encoded(write_ragged(Path("ragged"), rows), lines)
    pairs = np.array([1, 2, 0, 1])
    for one, other in zip(dense.src.gather(pairs), ragged.src.gather(pairs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_array_in_fortrans_order_is_read_without_a_copy_of_the_whole(in_folder: Path) -> None:
    array = np.asfortranarray(np.stack(sources(4, 4, 4)))
    np.save("features.npy", array)
    vectors = open_vectors(Path("features.npy"), SOURCE)
    rows = vectors.read(1, 3)
    np.testing.assert_array_equal(rows, array[1:3])
    assert not any(row.flags.owndata or row.flags.c_contiguous for row in rows)
    assert len(vectors) == len(vectors.read()) == 3


def test_empty_long_and_repeated_sources_are_dropped_and_counted(in_folder: Path) -> None:
    rows = sources(2, 0, 7, 3, 2)
    rows[4] = rows[0]
    Path("five.de").write_text("1\n2\n3\n4\n1\n", encoding="utf-8")
    corpus = encoded(write_ragged(Path("ragged"), rows), Path("five.de"), max_length=6, duplicates="pair")
    assert str(corpus.counts) == "2 pairs (dropped: duplicates 1, empty 1, too long 1)"
    np.testing.assert_array_equal(corpus.src.gather(np.array([0, 1]))[0], np.concatenate([rows[0], rows[3]]))
    assert corpus.line_numbers(np.array([0, 1])) == {0: [1, 4]}


def test_another_content_is_another_corpus(in_folder: Path, lines: Path) -> None:
    rows = sources(4, 4, 4)
    np.save("features.npy", np.stack(rows))
    first = encoded(Path("features.npy"), lines)
    rows[2][3, 1] += 1
    np.save("features.npy", np.stack(rows))
    second = encoded(Path("features.npy"), lines)
    assert first.key != second.key
    assert second.src[2][3, 1] == rows[2][3, 1]


class Dangerous:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("unpickled",)


def array_file(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros((3, 4, F), np.float32))
    return file.getvalue()


GOOD = array_file(np.zeros((3, 4, F), np.float32))
BAD_FILES = {
    "objects": (array_file(np.array([[[Dangerous()] * F]], dtype=object)), "without objects"),
    "a pickle": (b"\x80\x04cos\nmkdir\n(S'unpickled'\ntR.", "without objects"),
    "an archive": (archive(), "cannot be read as an array"),
    "nothing": (b"", "cannot be read as an array"),
    "half an array": (GOOD[:-20], "cannot be read as an array"),
    "too many numbers": (GOOD.replace(b"(3, 4, 3)", b"(9, 9, 3)"), "cannot be read as an array"),
    "whole numbers": (array_file(np.zeros((3, 4, F), np.int64)), "holds int64"),
    "wide numbers": (array_file(np.zeros((3, 4, F))), r"array.astype\('float16'\)"),
    "two dimensions": (array_file(np.zeros((3, F), np.float32)), r"\(N, S, F\)"),
    "other features": (array_file(np.zeros((3, 4, 5), np.float32)), "5 features a vector, and source.features is 3"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_array_is_one_message_and_nothing_is_unpickled(in_folder: Path, name: str) -> None:
    content, message = BAD_FILES[name]
    Path("bad.npy").write_bytes(content)
    with pytest.raises(DataError, match=f"^bad.npy: .*{message}"):
        open_vectors(Path("bad.npy"), SOURCE)
    assert not Path("unpickled").exists()


def test_a_missing_file_is_one_message(in_folder: Path) -> None:
    with pytest.raises(DataError, match=r"^none.npy: no such file$"):
        open_vectors(Path("none.npy"), SOURCE)
    Path("empty").mkdir()
    with pytest.raises(DataError, match=r"^empty/values.npy: no such file$"):
        open_vectors(Path("empty"), SOURCE)


@pytest.mark.parametrize("offsets", [[0, 2, 5], [1, 2, 6], [0, 4, 2, 6], [[0, 6]], [], [0.0, 6.0]])
def test_offsets_that_do_not_cover_the_values_are_one_message(in_folder: Path, offsets: list[Any]) -> None:
    folder = write_ragged(Path("ragged"), sources(2, 4))
    np.save(folder / "offsets.npy", np.array(offsets) if offsets else np.array([], dtype=np.int64))
    with pytest.raises(DataError, match=r"^ragged/offsets.npy: .*should"):
        open_vectors(folder, SOURCE)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("is_ragged", [True, False])
def test_a_number_that_is_none_is_a_message_with_file_and_row(
    in_folder: Path, lines: Path, value: float, is_ragged: bool
) -> None:
    rows = sources(4, 4, 4)
    rows[1][2, 0] = value
    np.save("features.npy", np.stack(rows))
    path = write_ragged(Path("ragged"), rows) if is_ragged else Path("features.npy")
    with pytest.raises(DataError, match=r"\.npy: row 1 \(counted from 0; line 2 .*NaN or infinite"):
        encoded(path, lines)


def test_a_row_too_few_is_a_message_with_both_counts(in_folder: Path, lines: Path) -> None:
    np.save("features.npy", np.stack(sources(4, 4)))
    with pytest.raises(DataError, match=r"features.npy has 2 sources, .*three.de has 3 lines"):
        encoded(Path("features.npy"), lines)


# --- Batches and the first layer -------------------------------------------------------------------------


def test_vectors_are_padded_on_the_right_without_an_end() -> None:
    rows = sources(2, 5, 3)
    source = source_of(rows, OWN_SPECIAL_IDS)
    assert source.values.dtype == torch.float32
    assert source.mask.sum(dim=1).tolist() == [2, 5, 3]
    for number, row in enumerate(rows):
        np.testing.assert_array_equal(source.values[number, : len(row)].numpy(), row)
        assert not source.values[number, len(row) :].any()


def test_the_first_layer_is_a_linear_map_a_normalisation_and_positions() -> None:
    layer = VectorLayer(SOURCE, d_model=8, max_positions=20, dropout=0.0).eval()
    torch.nn.init.normal_(layer.norm.weight)
    torch.nn.init.normal_(layer.norm.bias)
    (row,) = sources(5)
    weight, bias, gain, shift = (
        parameter.detach().numpy()
        for parameter in (layer.linear.weight, layer.linear.bias, layer.norm.weight, layer.norm.bias)
    )
    y = row @ weight.T + bias
    y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5) * gain + shift
    angles = np.arange(5)[:, None] / 10000 ** (np.arange(0, 8, 2) / 8)
    y[:, 0::2] += np.sin(angles)
    y[:, 1::2] += np.cos(angles)
    found = layer(source_of([row], OWN_SPECIAL_IDS)).values[0].detach().numpy()
    np.testing.assert_allclose(found, y, atol=1e-5)


def test_the_convolutions_over_time_are_those_of_numpy() -> None:
    source = SOURCE.model_copy(update={"convolution": True})
    stem = VectorLayer(source, d_model=4, max_positions=20, dropout=0.0).stem
    assert stem is not None
    (row,) = sources(6)
    expected: NDArray[Any] = row
    for convolution in (stem.first, stem.second):
        weight, bias = convolution.weight.detach().numpy(), convolution.bias.detach().numpy()  # (D, F, 3), (D,)
        padded = np.pad(expected, [(1, 1), (0, 0)])
        windows = np.stack([padded[start : start + 3].T for start in range(0, len(expected), 2)])  # (S / 2, F, 3)
        before = np.einsum("sft,dft->sd", windows, weight) + bias
        expected = before * np.array([[(1 + math.erf(x / math.sqrt(2))) / 2 for x in one] for one in before])
    values, mask = stem(torch.from_numpy(row)[None], torch.ones(1, 6, dtype=torch.bool))
    np.testing.assert_allclose(values[0].detach().numpy(), expected, atol=1e-5)
    assert mask.shape == (1, 2)
    assert mask.all()


@pytest.mark.parametrize("num_encoder_layers", [0, 2])
@pytest.mark.parametrize("convolution", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_batch_gives_what_its_sources_give_alone(
    small_config: TransformerConfig, num_encoder_layers: int, convolution: bool, positions: str
) -> None:
    source = SOURCE.model_copy(update={"convolution": convolution, "positions": positions})
    config = small_config.model_copy(update={"num_encoder_layers": num_encoder_layers})
    model = Transformer(config, 14, 14, source).eval()
    rows, tgt_in = sources(1, 9, 4, 6), torch.tensor([[1, 4, 5, 6]] * 4)
    with torch.no_grad():
        together = model(source_of(rows, OWN_SPECIAL_IDS), tgt_in)
    for number, row in enumerate(rows):
        alone = model(source_of([row], OWN_SPECIAL_IDS), tgt_in[:1]).detach()
        torch.testing.assert_close(together[number], alone[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together[1], together[2], atol=1e-3)  # the sources matter
    engine = TorchEngine(model, WORDS)
    targets = [[4, 5, 6]] * 4
    for number, scores in enumerate(engine.score(rows, targets)):
        expected = together[number].log_softmax(dim=-1)
        np.testing.assert_allclose(scores, [float(expected[t, out]) for t, out in enumerate([4, 5, 6, 2])], atol=1e-4)


@pytest.mark.parametrize("changes", [
    {}, {"cell": "lstm", "attention": "dot"}, {"num_encoder_layers": 0}, {"attention": "none", "input_feeding": False},
    {"attention": "none", "input_feeding": False, "num_encoder_layers": 0},
])  # fmt: skip
@pytest.mark.parametrize("convolution", [True, False])
def test_a_recurrent_model_reads_vectors_in_batches_and_step_by_step(
    changes: dict[str, Any], convolution: bool
) -> None:
    source = SOURCE.model_copy(update={"convolution": convolution})
    model = Rnn(RnnConfig(d_embedding=8, d_model=12, **changes), 14, 14, source).eval()
    rows, tgt_in = sources(1, 9, 4, 6), torch.tensor([[1, 4, 5, 6]] * 4)
    with torch.no_grad():
        batch = source_of(rows, OWN_SPECIAL_IDS)
        together = model(batch, tgt_in)
        state = model.start(model.encode(batch), 1, 4)
        for length in range(4):
            logits = model.step(tgt_in[:, length : length + 1], state)[:, 0]
            torch.testing.assert_close(logits, together[:, length], rtol=1e-4, atol=1e-5)
        for number, row in enumerate(rows):
            alone = model(source_of([row], OWN_SPECIAL_IDS), tgt_in[:1])
            torch.testing.assert_close(together[number], alone[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together[1], together[2], atol=1e-4)


def test_without_recurrent_encoder_layers_the_decoder_starts_from_the_mean() -> None:
    model = Rnn(RnnConfig(d_embedding=8, d_model=12, num_encoder_layers=0), 14, 14, SOURCE).eval()
    assert model.src_vectors is not None
    row, longer = sources(3, 5)
    memory = model.encode(source_of([row, longer], OWN_SPECIAL_IDS))
    alone = model.src_vectors(source_of([row], OWN_SPECIAL_IDS)).values[0]  # (3, D)
    torch.testing.assert_close(memory.last[0], alone.mean(dim=0))
    torch.testing.assert_close(memory.states[0, :3], alone)


def test_without_encoder_layers_the_memory_is_the_first_layers_output(small_config: TransformerConfig) -> None:
    config = small_config.model_copy(update={"num_encoder_layers": 0, "norm": "post"})
    model = Transformer(config, 14, 14, SOURCE).eval()
    source = source_of(sources(3, 5), OWN_SPECIAL_IDS)
    assert model.src_vectors is not None
    torch.testing.assert_close(model.encode(source).states, model.src_vectors(source).values)
    weights = model.attention_weights(source, torch.tensor([[1, 4], [1, 5]]))
    assert not any(name.startswith("encoder") for name in weights)


def test_a_step_gives_the_logits_of_forward(small_config: TransformerConfig) -> None:
    source = SOURCE.model_copy(update={"convolution": True})
    model = Transformer(small_config, 14, 14, source).eval()
    given, tgt_in = source_of(sources(7, 3), OWN_SPECIAL_IDS), torch.tensor([[1, 4, 5], [1, 6, 7]])
    state = model.start(model.encode(given), 1, 3)
    for length in (1, 2, 3):
        logits = model.step(tgt_in[:, length - 1 : length], state)[:, 0]
        torch.testing.assert_close(logits, model(given, tgt_in)[:, length - 1], rtol=1e-4, atol=1e-5)


def test_half_precision_reads_the_same_vectors(small_config: TransformerConfig) -> None:
    model = Transformer(small_config, 14, 14, SOURCE).eval()
    given, tgt_in = source_of(sources(5), OWN_SPECIAL_IDS), torch.tensor([[1, 4]])
    expected = model(given, tgt_in)
    found = model.to(torch.bfloat16)(given, tgt_in)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1)


def test_sources_embed_as_themselves(small_config: TransformerConfig) -> None:
    model = Transformer(small_config, 14, 14, SOURCE).eval()
    source = source_of(sources(4), OWN_SPECIAL_IDS)
    vectors = model.embed_sources(source).values.clone().requires_grad_()
    model(Source(vectors, source.mask), torch.tensor([[1, 4]])).sum().backward()
    assert vectors.grad is not None
    assert vectors.grad.abs().sum(dim=-1).all()  # every vector matters


# --- The configuration -----------------------------------------------------------------------------------

VECTOR_TASK = """\
data:
  train: {src: train.npy, tgt: train.de}
  validation: {src: val, tgt: val.de}
  test: {src: test.npy, tgt: test.de}
  max_length: 20
source: {type: vectors, features: 6}
tokenizer: {type: word, vocab_size: 14}
model: {d_model: 32, num_heads: 4, d_ff: 64, num_encoder_layers: 1, num_decoder_layers: 1, max_positions: 64}
augmentation: {tgt_word_dropout: 0.1}
training:
  max_steps: 8
  batch_tokens: 400
  learning_rate: 5.0e-3
  warmup_steps: 20
  validate_every: 4
  log_every: 4
  device: cpu
  threads: 1
decoding: {beam_size: 2, max_length: 30}
evaluation: {report: false}
export: {after_training: []}
"""
REFUSED = {
    "source.features=0": "source.features",
    "source.feature=6": "did you mean source.features",
    "source.patch_size=4": "unknown key source.patch_size",
    "source.type=sounds": "'text', 'vectors', 'images'",
    "tokenizer.joint=false": "only the target has a vocabulary",
    "augmentation.typed_input=0.1": "augmentation.typed_input: needs text sources",
    "augmentation.fragments=0.1": "augmentation.fragments: needs text sources",
    "source.type=text": "unknown key source.features",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_a_setting_that_vectors_do_not_have_is_refused(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "vectors.yaml"
    path.write_text(VECTOR_TASK, encoding="utf-8")
    with pytest.raises(ConfigError, match=REFUSED[setting]):
        load_config(path, [setting, "data.src_lang=en"])


def test_text_needs_an_encoder(tmp_path: Path) -> None:
    path = tmp_path / "text.yaml"
    text = VECTOR_TASK.replace("source: {type: vectors, features: 6}\n", "")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"model.num_encoder_layers: 0 is for a source of vectors"):
        load_config(path, ["data.src_lang=en", "model.num_encoder_layers=0"])


def test_vectors_have_no_language_unless_one_is_given(tmp_path: Path) -> None:
    path = tmp_path / "vectors.yaml"
    path.write_text(VECTOR_TASK, encoding="utf-8")
    assert load_config(path).data.src_lang == "zxx"
    assert load_config(path, ["data.src_lang=en"]).data.src_lang == "en"


# --- The command line ------------------------------------------------------------------------------------


@pytest.fixture
def vector_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_vector_task(tmp_path, monkeypatch)


def write_vector_task(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int = 200) -> Path:
    """Digits, each as a vector with a little noise; the validation set is ragged."""
    monkeypatch.chdir(folder)
    random = np.random.default_rng(1)
    base = random.standard_normal((10, 6))
    for name, size in (("train", count), ("val", 12), ("test", 12)):
        digits = random.integers(10, size=(size, 5))
        vectors = (base[digits] + 0.05 * random.standard_normal((size, 5, 6))).astype(np.float16)
        if name == "val":
            write_ragged(folder / "val", list(vectors), "float16")
        else:
            np.save(folder / f"{name}.npy", vectors)
        text = "".join(" ".join(map(str, row)) + "\n" for row in digits.tolist())
        (folder / f"{name}.de").write_text(text, encoding="utf-8")
    config = folder / "vectors.yaml"
    config.write_text(VECTOR_TASK, encoding="utf-8")
    return config


@pytest.mark.slow
def test_the_whole_way_through_the_command_line(vector_task: Path, cli: Cli) -> None:
    code, _, err = cli("train", "vectors.yaml", "--set", "training.processes=1")
    assert code == 0, err
    assert "14 pieces for the target; the sources are vectors with 6 features" in err
    weights = load_file("runs/vectors/model.safetensors")
    assert weights["src_vectors.linear.weight"].shape == (32, 6)

    code, out, _ = cli("translate", "--input", "test.npy")
    assert code == 0
    translations = out.splitlines()
    translator = nmt.load("vectors", device="cpu")
    assert translations == translator.translate(list(np.load("test.npy")))
    assert translations[3:4] == translator.translate([np.load("test.npy")[3]])
    code, _, err = cli("translate", "--input", "test.npy", "--output", "out.de")
    assert Path("out.de").read_text(encoding="utf-8").splitlines() == translations
    write_ragged(Path("ragged"), list(np.load("test.npy")), "float16")
    assert cli("translate", "--input", "ragged")[1].splitlines() == translations

    code, out, _ = cli("eval")
    assert code == 0
    assert "BLEU" in out
    assert Path("runs/vectors/evaluation/test.hyp").read_text(encoding="utf-8").splitlines() == translations
    code, out, _ = cli("vocab", "vectors.yaml", "--json")
    assert code == 0
    assert out.startswith('{"tgt"')
    code, out, err = cli("score", "--src", "test.npy", "--tgt", "test.de")
    assert code == 0
    assert len(out.splitlines()) == 12

    refused = {
        ("translate", "hello"): "reads vectors, not text; name a file of vectors: --input FILE",
        ("translate", "--output", "x.de"): "reads vectors, not text",
        ("translate", "--input", "test.npy", "--alignments", "a.txt"): "alignments are of words",
        ("translate", "--input", "test.de"): "test.de: cannot be read as an array of numbers",
        ("export", "ctranslate2"): "CTranslate2 has no models that read vectors",
        ("attention", "hello", "--output", "a.json"): "reads vectors; only texts and images can be explained",
        ("score", "--src", "test.npy", "--tgt", "train.de"): "has 12 sources",
    }
    for arguments, message in refused.items():
        code, _, err = cli(*arguments)
        assert (code, message in err, err.count("\n")) == (2, True, 1), err
    with pytest.raises(ConfigError, match="reads vectors, not text"):
        translator.translate(["hello"])
    with pytest.raises(ConfigError, match=r"line 1: has the shape \(5, 4\)"):
        translator.translate([np.zeros((5, 4), np.float32)])


def test_a_report_and_a_comparison_name_vectors_by_their_row(
    vector_task: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nmt.insight.report_output, "_charts", lambda report: iter(()))  # they take a second
    assert cli("train", "vectors.yaml", "--set", "training.processes=1", "--set", "training.max_steps=1")[0] == 0
    (vector_task.parent / "val").rename(vector_task.parent / "same")
    random = np.random.default_rng(2)
    lengths = [3, 4, 9, 10, 11, 19, 20, 20, 20, 5, 15, 12]  # of at most data.max_length
    rows = [random.standard_normal((length, 6)) for length in lengths]
    write_ragged(Path("val"), rows, "float16")
    code, out, err = cli("report", "--with-data")
    assert (code, out, err) == (0, "runs/vectors/report/index.html\n", "wrote runs/vectors/report/README.md\n")
    page = Path(out.strip()).read_text(encoding="utf-8")
    assert "The validation set has changed since the training" in page
    shown = re.findall(
        r'<span class="mono">val\[(\d+)\]</span>.*?<span class="muted">line (\d+)</span>', page, re.DOTALL
    )
    assert sorted(int(row) for row, _ in shown) == [*range(12)]
    assert all(int(line) == int(row) + 1 for row, line in shown)
    assert "Attention is not shown: vectors have no names." in page
    buckets = re.findall(r'<tr><td>([^<]+)</td><td class="number">(\d+)</td><td class="number">[\d.]+</td></tr>', page)
    assert buckets == [("below 10", "4"), ("10 to 19", "5"), ("20 to 49", "3")]

    shutil.copytree("runs/vectors", "runs/again")
    command = ("compare", "vectors", "again", "--src", "val", "--ref", "val.de", "--samples", "2", "--json")
    code, out, err = cli(*command)
    assert code == 0, err
    (compared,) = json.loads(out)["test_sets"]
    assert compared["differences"][0]["num_changed"] == 0
    table = compared["buckets"][0]
    assert table["by"] == "source length in vectors"
    assert [(row[0]["label"], row[0]["count"]) for row in table["rows"]] == [
        (label, int(count)) for label, count in buckets
    ]
    # What evaluation/ holds is used as long as sources and weights are the same.
    (stored,) = Path("runs/vectors/evaluation").glob("val.*.hyp")
    written = stored.stat().st_mtime_ns
    assert cli(*command)[0] == 0
    assert stored.stat().st_mtime_ns == written

    config = Path("runs/again/config.yaml")
    text = re.sub(r"(?s)source:.*?(?=\n\w)", "source: {type: text}", config.read_text(encoding="utf-8"))
    config.write_text(text, encoding="utf-8")
    code, _, err = cli(*command)
    assert code == 2
    assert_says(err, "nmt: runs/vectors reads vectors, runs/again reads text")


def test_an_unfinished_translation_resumes_with_the_same_vectors_alone(vector_task: Path, cli: Cli) -> None:
    cli("train", "vectors.yaml", "--set", "training.processes=1", "--set", "training.max_steps=1")
    command = ("translate", "--input", "test.npy", "--output")
    assert cli(*command, "whole.de")[0] == 0
    write = OutputFiles.write

    def breaking_off(files: OutputFiles, *texts: str) -> None:
        if files.done == 5:
            raise DataError("broken off")
        write(files, *texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutputFiles, "write", breaking_off)
        assert cli(*command, "out.de")[0] == 2
    good = np.load("test.npy")
    np.save("test.npy", good + np.float16(1))
    code, _, err = cli(*command, "out.de", "--continue")
    assert (code, "started with another content of --input" in err) == (2, True)
    np.save("test.npy", good)
    assert cli(*command, "out.de", "--continue")[0] == 0
    assert Path("out.de").read_text(encoding="utf-8") == Path("whole.de").read_text(encoding="utf-8")


def test_a_resumed_training_gives_the_same_weights_to_the_bit(vector_task: Path, cli: Cli) -> None:
    one = ["--set", "training.processes=1"]
    assert cli("train", "vectors.yaml", "--name", "whole", *one)[0] == 0
    assert cli("train", "vectors.yaml", "--name", "parts", *one, "--set", "training.max_steps=4")[0] == 0
    assert cli("train", "vectors.yaml", "--name", "parts", *one)[0] == 0
    whole, parts = (load_file(f"runs/{name}/checkpoints/8/model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    np.save("train.npy", np.load("train.npy") * np.float16(2))
    code, _, err = cli("train", "vectors.yaml", "--name", "parts", *one, "--set", "training.max_steps=9")
    assert code == 2, err  # other features: another corpus


def test_a_plan_of_vectors_keeps_to_the_batch_size(in_folder: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 10, size=50)
    Path("fifty.de").write_text("1 2\n" * 50, encoding="utf-8")
    corpus = encoded(write_ragged(Path("ragged"), sources(*lengths)), Path("fifty.de"))
    plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, 40, seed=1, epoch=0)
    assert sorted(np.concatenate(plan).tolist()) == list(range(50))
    assert all(len(batch) * int(corpus.src.lengths[batch].max()) <= 40 for batch in plan)


@pytest.mark.slow
def test_digits_are_read_from_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    write_vector_task(tmp_path, monkeypatch, count=1000)
    settings = ["training.max_steps=300", "training.validate_every=150", "training.batch_tokens=800",
                "training.schedule=linear", "model.dropout=0", "training.processes=1"]  # fmt: skip
    assert cli("train", "vectors.yaml", *(part for one in settings for part in ("--set", one)))[0] == 0
    translations = cli("translate", "--input", "test.npy")[1].splitlines()
    assert translations == Path("test.de").read_text(encoding="utf-8").splitlines()
