"""Weights on disk: they are read back as written, shared matrices are stored once, and no file is unpickled."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import nmt
from nmt.config.inference import TransformerConfig
from nmt.errors import RunError
from nmt.models.source import Source
from nmt.models.transformer import Transformer
from nmt.runs.weights import load_weights, save_weights

SIZE = 11
SHARED = {"all": 1, "decoder": 2, "none": 3}
"""The number of distinct (vocabulary, D) matrices for each way to tie the three."""


def make_model(config: TransformerConfig, seed: int, vocab_size: int = SIZE, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(config.model_copy(update=changes), vocab_size, vocab_size).eval()


def logits(model: Transformer) -> Tensor:
    src_ids = torch.tensor([[5, 6, 7, 2]])
    result: Tensor = model(Source(src_ids, src_ids != 0), torch.tensor([[1, 8, 9]]))
    return result.detach()


def keys(path: Path) -> set[str]:
    with safe_open(path, framework="pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("tie", SHARED)
def test_weights_come_back_as_they_were(
    small_config: TransformerConfig, tmp_path: Path, tie: str, positions: str
) -> None:
    saved = make_model(small_config, 1, tie_embeddings=tie, positions=positions)
    other = make_model(small_config, 2, tie_embeddings=tie, positions=positions)
    assert not torch.equal(logits(saved), logits(other))
    save_weights(saved, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    for (name, one), (_, two) in zip(saved.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(one, two), name
        assert two.requires_grad, name
    assert torch.equal(logits(saved), logits(other))


@pytest.mark.parametrize("tie", SHARED)
def test_tied_matrices_are_still_tied_after_loading(small_config: TransformerConfig, tmp_path: Path, tie: str) -> None:
    save_weights(make_model(small_config, 1, tie_embeddings=tie), tmp_path / "model.safetensors")
    model = make_model(small_config, 2, tie_embeddings=tie)
    load_weights(model, tmp_path / "model.safetensors")
    matrices = (model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight)
    assert len({matrix.data_ptr() for matrix in matrices}) == SHARED[tie]
    with torch.no_grad():
        model.output.weight[5] = 42.0
    assert (model.tgt_embedding.weight[5] == 42).all() == (tie != "none")
    assert (model.src_embedding.weight[5] == 42).all() == (tie == "all")


@pytest.mark.parametrize("tie", SHARED)
def test_the_file_holds_each_shared_matrix_once(small_config: TransformerConfig, tmp_path: Path, tie: str) -> None:
    model = make_model(small_config, 1, tie_embeddings=tie)
    save_weights(model, tmp_path / "model.safetensors")
    stored = load_file(tmp_path / "model.safetensors")
    matrices = [name for name, value in stored.items() if value.shape == (SIZE, small_config.d_model)]
    assert set(matrices) == set(["src_embedding.weight", "tgt_embedding.weight", "output.weight"][: SHARED[tie]])
    assert len(matrices) == SHARED[tie]
    assert sum(value.numel() for value in stored.values()) == sum(model.parameter_counts().values())
    assert keys(tmp_path / "model.safetensors") == {name for name, _ in model.named_parameters()}


def test_saving_replaces_the_file_and_leaves_nothing_else(small_config: TransformerConfig, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "model.safetensors"
    save_weights(make_model(small_config, 1), path)
    save_weights(make_model(small_config, 2), path)
    model = make_model(small_config, 3)
    load_weights(model, path)
    assert torch.equal(logits(model), logits(make_model(small_config, 2)))
    assert [entry.name for entry in path.parent.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("changes", "vocab_size", "named"),
    [
        ({"d_ff": 33}, SIZE, "encoder.0.feed_forward.inner.weight"),
        ({"num_decoder_layers": 3}, SIZE, "decoder.2.cross_attention.key.bias"),
        ({"num_encoder_layers": 1}, SIZE, "encoder.1.feed_forward.inner.bias"),
        ({"activation": "swiglu"}, SIZE, "decoder.0.feed_forward.gate.bias"),
        ({"positions": "learned"}, SIZE, "src_positions.table"),
        ({"tie_embeddings": "none"}, SIZE, "output.weight"),
        ({"norm": "post"}, SIZE, "decoder_norm.bias"),
        ({}, SIZE + 1, "src_embedding.weight"),
    ],
)
def test_weights_of_another_shape_are_refused_by_name_and_change_nothing(
    small_config: TransformerConfig, tmp_path: Path, changes: dict[str, object], vocab_size: int, named: str
) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(make_model(small_config, 1), path)
    model = make_model(small_config, 2, vocab_size, **changes)
    before = logits(model)
    with pytest.raises(RunError) as error:
        load_weights(model, path)
    assert str(path) in str(error.value)
    assert named in str(error.value)
    assert torch.equal(logits(model), before)


def damaged(good: bytes) -> Iterator[bytes]:
    yield b""
    yield b"this is no safetensors file, but a line of text\n"
    yield b"\x80\x04\x95 a pickle begins like this" * 10
    yield good[: len(good) // 2]
    yield good[:5]
    yield b"\xff" * 8 + good[8:]
    yield good + b"\0"


def test_a_damaged_file_is_refused_in_one_message(small_config: TransformerConfig, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = make_model(small_config, 1)
    save_weights(model, path)
    before = logits(model)
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"model\.safetensors: cannot be read"):
            load_weights(model, path)
    assert torch.equal(logits(model), before)


def test_a_missing_file_is_refused_in_one_message(small_config: TransformerConfig, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere\.safetensors"):
        load_weights(make_model(small_config, 1), tmp_path / "nowhere.safetensors")
    with pytest.raises(RunError):
        load_weights(make_model(small_config, 1), tmp_path)  # a folder


def test_a_file_with_one_weight_too_many_is_refused(small_config: TransformerConfig, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = make_model(small_config, 1)
    save_weights(model, path)
    save_file({**load_file(path), "extra.weight": torch.zeros(1)}, path)
    with pytest.raises(RunError, match=r"extra\.weight"):
        load_weights(model, path)


# --- No pickle -------------------------------------------------------------------------------------------

PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
UNPICKLING_CALLS = {"torch.load", "torch.save", "torch.hub", "numpy.load", "np.load", "pandas.read_pickle"}


def unpickling(code: str) -> list[str]:
    """The calls in a module that read or write pickles; numpy's `load` does not with a literal `allow_pickle=False`.

    torch's `load` with a literal `weights_only=True` reads a pickle, but has an interpreter of its own for it, which
    runs nothing: it is how imported models' .bin files are read.
    """
    found = []
    nodes = list(ast.walk(ast.parse(code)))
    safe: list[ast.AST] = []
    for call in nodes:
        if isinstance(call, ast.Call):
            wanted = {"np.load": "allow_pickle=False", "torch.load": "weights_only=True"}.get(ast.unparse(call.func))
            safe += [call.func for keyword in call.keywords if ast.unparse(keyword) == wanted]
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in PICKLERS]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
            found += [name for name in names if module.split(".")[0] in PICKLERS or name in UNPICKLING_CALLS]
        elif isinstance(node, ast.Attribute) and node not in safe and ast.unparse(node) in UNPICKLING_CALLS:
            found.append(ast.unparse(node))
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append("allow_pickle")
    return found


def test_no_file_is_ever_unpickled() -> None:
    files = sorted(Path(nmt.__file__).parent.rglob("*.py"))
    # It pickles what goes through pipes to workers that it has started, as multiprocessing does, and nothing else.
    files.remove(pipes := Path(nmt.__file__).parent / "system" / "processes.py")
    text = pipes.read_text(encoding="utf-8")
    assert sorted(re.findall(r"pickle\.loads?\(.*?\)", text)) == [
        "pickle.load(process.stdout)", "pickle.load(sys.stdin.buffer)", "pickle.load(sys.stdin.buffer)",
        "pickle.loads(prepare)",
    ]  # fmt: skip
    assert not re.search(r"from pickle|Unpickler\b|open\(", text.replace("Popen(", "").replace("fdopen(", ""))
    assert len(files) > 20
    assert {str(path): found for path in files if (found := unpickling(path.read_text(encoding="utf-8")))} == {}
    assert [path.name for path in files if "torch.load" in path.read_text(encoding="utf-8")] == ["marian_folder.py"]


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from dill import loads", "from torch import load", "import torch\ntorch.load('x')",
     "torch.load('x', weights_only=False)", "torch.load('x', weights_only=flag)",
     "torch.save(1, 'x')", "import numpy as np\nnp.load('x')", "np.memmap('x'); f(allow_pickle=True)",
     "np.load('x', allow_pickle=True)", "np.load('x', allow_pickle=flag)", "np.load(np.load('x'), allow_pickle=False)"],
)  # fmt: skip
def test_an_unpickler_would_be_found(code: str) -> None:
    assert unpickling(code)


def test_an_array_that_holds_no_objects_may_be_loaded() -> None:
    assert unpickling("np.load('x', mmap_mode='r', allow_pickle=False)") == []
