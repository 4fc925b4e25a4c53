"""Exports to ONNX: onnxruntime gives our logits, step by step and with a cache, and our translations."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli
from made_runs import LINES, made_run, text
from torch.testing import assert_close

from nmt.decoding.torch_engine import load_model
from nmt.errors import MissingExtraError
from nmt.interop.onnx import Graph, OnnxModel, export_onnx, write_graphs
from nmt.models.source import pad, source_of
from nmt.models.transformer import Transformer
from nmt.tokenizers.tokenizer import load_tokenizers

MODELS = [
    {"preset": "marian"},
    {"norm": "pre", "activation": "swiglu", "tie_embeddings": "all", "positions": "learned", "layout": "nmt",
     "share_layers": True},
]  # fmt: skip


@pytest.mark.parametrize("settings", MODELS)
def test_the_graphs_compute_what_the_model_does(settings: dict[str, object], tmp_path: Path) -> None:
    """Before they are ONNX: position by position with a cache; sources with padding."""
    run = made_run(tmp_path, settings)
    tokenizers = load_tokenizers(run.tokenizer)
    model = load_model(run, tokenizers).eval()
    assert isinstance(model, Transformer)
    special = tokenizers.src.special
    source = source_of(tokenizers.src.encode_lines(text(5)[:-1]), special)
    tgt = pad(tokenizers.tgt.encode_lines(text(5, seed=4)[:-1]), special.pad, first=[special.start])[:, :7]
    graph, mask, found = Graph(model), source.mask.long(), []
    with torch.no_grad():
        expected = model(source, tgt)
        of_src = graph(source.values, mask)
        of_tgt = [torch.zeros(*part.shape[:2], 0, part.shape[3]) for part in of_src]
        for token in tgt.split(1, dim=1):
            layers = [[*of_tgt[i : i + 2], *of_src[i : i + 2]] for i in range(0, len(of_src), 2)]
            logits, *of_tgt = graph(token, mask, [part for layer in layers for part in layer])
            found.append(logits)
    assert_close(torch.cat(found, dim=1), expected, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_onnxruntime_finds_the_same(tmp_path: Path, cli: Cli) -> None:
    """Called here by hand, greedily: pieces until `</s>`. The target begins with an embedding of zeros."""
    import onnxruntime

    run = made_run(tmp_path, MODELS[0])
    code, out, err = cli("export", "onnx", "--model", str(run.path), "--device", "cpu")
    assert (code, err) == (0, "")
    assert f"{LINES} lines, translated with PyTorch and with the export" in out
    folder, tokenizers = run.exports / "onnx", load_tokenizers(run.tokenizer)
    encoder, decoder = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
    special = tokenizers.tgt.special
    model = load_model(run, tokenizers).eval()
    for line in text(6, seed=3)[:-1]:
        ids = tokenizers.src.encode(line)
        mask = np.ones((1, len(ids) + 1), np.int64)
        names = [one.name.removeprefix("present.") for one in encoder.get_outputs()]
        parts = encoder.run(None, {"input_ids": [[*ids, special.eos]], "attention_mask": mask})
        cache = dict(zip(names, parts, strict=True))
        names = [one.name.removeprefix("present.") for one in decoder.get_outputs()[1:]]
        cache |= {name: np.zeros((1, 4, 0, 8), np.float32) for name in names}
        found = [special.start]
        for _ in range(6):
            past = {f"past_key_values.{name}": value for name, value in cache.items()}
            logits, *new = decoder.run(None, {"encoder_attention_mask": mask, "input_ids": [found[-1:]]} | past)
            with torch.no_grad():
                expected = model(source_of([ids], special), torch.tensor([found]))[:, -1]
            assert_close(torch.from_numpy(logits[:, -1]), expected, atol=1e-4, rtol=0)
            cache |= dict(zip(names, new, strict=True))
            found.append(int(logits[0, -1].argmax()))


@pytest.mark.slow
def test_hypotheses_and_sentences_are_selected_as_in_pytorch(tmp_path: Path) -> None:
    run = made_run(tmp_path, MODELS[1], biased=False)
    tokenizers = load_tokenizers(run.tokenizer)
    model = load_model(run, tokenizers).eval()
    assert isinstance(model, Transformer)
    special = tokenizers.tgt.special
    write_graphs(model, special.start, tmp_path)
    exported = OnnxModel(tmp_path).eval()
    source = source_of(tokenizers.src.encode_lines(text(5)[:-1]), special)
    tokens = torch.full((4, 1), special.start)
    with torch.no_grad():
        states = [one.start(one.encode(source), 3, 9) for one in (model, exported)]
        for step in range(6):
            expected, found = model.step(tokens, states[0]), exported.step(tokens, states[1])
            assert_close(found, expected, atol=1e-4, rtol=0)
            beams = torch.randint(tokens.shape[1], (len(tokens), 3))
            kept = torch.tensor([0, 2] if step == 3 else range(len(tokens)))
            tokens = torch.randint(10, 200, beams.shape)[kept]
            for state in states:
                state.select_beams(beams)
                state.select_sentences(kept)


def test_a_missing_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_run(tmp_path, {})
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"onnx is not installed: .*scripts/install onnx"):
        export_onnx(run, device="cpu")
    assert not run.exports.exists()
