"""Exports to Hugging Face's MarianMT: transformers loads them, and finds the same logits and translations."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import Cli
from huggingface_hub import ModelCard
from made_runs import LINES, made_run, text
from marian_models import write_folder
from safetensors.torch import load_file
from torch.testing import assert_close

import nmt.interop.huggingface
from nmt.config.inference import InferenceConfig
from nmt.decoding.torch_engine import load_model
from nmt.decoding.translator import load
from nmt.errors import MissingExtraError, RunError
from nmt.evaluation.metrics import Score
from nmt.interop.huggingface import export_huggingface
from nmt.interop.importing import import_model
from nmt.interop.verification import Verification, base_of
from nmt.models.source import pad, source_of
from nmt.runs.folder import RunFolder
from nmt.system.files import read_json, write_json
from nmt.tokenizers.tokenizer import load_tokenizers
from nmt.training.record import RecordedBase, RecordedFile


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    made = made_run(tmp_path_factory.mktemp("marian"), {"preset": "marian"})
    settings = made.config_file.read_text().replace("decoding:\n", "decoding:\n  no_repeat_ngram_size: 3\n")
    made.config_file.write_text(settings)
    return made


@pytest.fixture(scope="module")
def folder(run: RunFolder) -> Path:
    result = export_huggingface(run, device="cpu")
    assert all(comparison.same_lines >= 0.995 * LINES for comparison in result.comparisons)
    assert result.notes == ()
    return Path(result.folder)


def loaded(folder: Path) -> tuple[transformers.MarianMTModel, transformers.MarianTokenizer]:
    model, report = transformers.MarianMTModel.from_pretrained(folder, output_loading_info=True)
    assert not report["unexpected_keys"]
    assert not set(report["missing_keys"]) - {"model.shared.weight"}  # unused if the embeddings are not shared
    return model.eval(), transformers.MarianTokenizer.from_pretrained(folder)


FROM_ITS_ROW = {"preset": None, "norm": "post", "activation": "swish"}


@pytest.mark.parametrize(
    ("model", "joint"),
    [
        ({**FROM_ITS_ROW, "tie_embeddings": "all", "share_layers": True}, True),
        pytest.param(
            {**FROM_ITS_ROW, "tie_embeddings": "all", "activation": "relu", "layout": "marianmt-unscaled"},
            True,
            marks=pytest.mark.slow,
        ),
        pytest.param({"tie_embeddings": "decoder", "activation": "gelu"}, False, marks=pytest.mark.slow),
        pytest.param({}, False, marks=pytest.mark.slow),
    ],
)
def test_the_logits_are_ours(
    model: dict[str, object], joint: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of padded batches, and of every id that both have. Our `<pad>` is left out; our `<s>` is their `<pad>`, whose
    logits differ where a start of zeros is the row of a tied matrix.
    """
    same = Verification(1, 1, 1, Score("BLEU", 0.0, ""), Score("BLEU", 0.0, ""))
    monkeypatch.setattr(nmt.interop.huggingface, "verify", lambda *arguments: [same])
    run = made_run(tmp_path, {"preset": "marian", **model}, joint=joint)
    theirs, tokenizer = loaded(Path(export_huggingface(run, device="cpu").folder))
    tokenizers = load_tokenizers(run.tokenizer)
    ours = load_model(run, tokenizers).eval()
    lines, targets = text(8, seed=5)[:-1], text(8, seed=6)[:-1]
    src, tgt = tokenizers.src.encode_lines(lines), tokenizers.tgt.encode_lines(targets)
    start = tokenizers.tgt.special.start
    batch = tokenizer(lines, text_target=targets, return_tensors="pt", padding=True)
    labels = batch["labels"]
    first = torch.full_like(labels[:, :1], theirs.config.decoder_start_token_id)
    with torch.no_grad():
        expected = ours(source_of(src, tokenizers.src.special), pad(tgt, tokenizers.tgt.special.pad, first=[start]))
        found = theirs(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
            decoder_input_ids=torch.cat([first, labels[:, :-1]], dim=1),
        ).logits  # fmt: skip
    known = [index for index in range(tokenizers.tgt.vocab_size) if index not in (0, 1)] + [1]
    assert found.shape == (7, expected.shape[1], len(known))
    if model.get("tie_embeddings") and "preset" not in model:
        known, found = known[:-1], found[:, :, :-1]
    for row, ids in enumerate(tgt):
        assert_close(found[row, : len(ids) + 1], expected[row, : len(ids) + 1][:, known], atol=1e-4, rtol=0)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_generate_finds_what_our_search_finds(run: RunFolder, folder: Path, beam_size: int) -> None:
    model, tokenizer = loaded(folder)
    lines = text(20, seed=7)[:-1]
    ids = model.generate(**tokenizer(lines, return_tensors="pt", padding=True), num_beams=beam_size, length_penalty=0.0)
    changes = {"beam_size": beam_size, "length_penalty": 0.0, "max_length_ratio": 1000.0}
    decoding = run.inference_config().decoding.model_copy(update=changes)
    expected = load(run.path, engine="torch", device="cpu", decoding=decoding).translate(lines)
    assert len(set(expected)) > 5
    assert model.generation_config.no_repeat_ngram_size == decoding.no_repeat_ngram_size == 3
    found = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert sum(one == other for one, other in zip(found, expected, strict=True)) >= len(lines) - 1


def test_the_pieces_are_ours(run: RunFolder, folder: Path) -> None:
    """Bytes included; ids are two lower, since our `<pad>` and `<s>` are first, and theirs is last."""
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    ours = load_tokenizers(run.tokenizer).src
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id) == (0, 1, ours.vocab_size - 2)
    for line in text(seed=9):
        ids = tokenizer(ours.normalize(line))["input_ids"]
        assert [index + 2 for index in ids] == [*ours.encode(ours.normalize(line)), ours.special.eos]
        assert tokenizer.decode(ids, skip_special_tokens=True) == ours.normalize(line)


def test_the_card_and_the_description(run: RunFolder, folder: Path) -> None:
    card = ModelCard.load(folder / "README.md")
    assert (card.data.library_name, card.data.license, card.data.language) == ("transformers", "unknown", ["en", "de"])
    said = read_json(folder / "export.json")
    assert said["model"]["sha256"] in card.text
    assert any("MarianMTModel.from_pretrained" in line for line in said["usage"])
    assert said["base"] is None


def test_an_imported_model_goes_out_as_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    original = tmp_path / "opus"
    write_folder(original)
    (original / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n", encoding="utf-8")
    import_model(original, "imported", "en", "zh", None)
    lines = tmp_path / "lines"
    lines.write_text("hello world\ngood morning\n", encoding="utf-8")
    result = export_huggingface(RunFolder(Path("runs/imported")), lines, lines, "cpu")
    folder = Path(result.folder)
    before, after = load_file(original / "model.safetensors"), load_file(folder / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    for name in ("source.spm", "target.spm", "vocab.json"):
        assert (original / name).read_bytes() == (folder / name).read_bytes()
    said = read_json(folder / "export.json")
    assert (said["license"], said["base"]["name"], said["base"]["license"]) == ("cc-by-4.0", "opus", "cc-by-4.0")
    assert "vocab.json" in said["base"]["sha256"]


def test_the_base_model_of_a_card_is_the_model_of_the_hub_that_all_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(Path("opus"))
    import_model(Path("opus"), "imported", "en", "zh", None)
    imported, tuned = RunFolder(Path("runs/imported")), RunFolder(Path("runs/tuned"))
    shutil.copytree(imported.path, tuned.path)
    (tuned.path / "imported.json").unlink()
    file = RecordedFile(path="runs/imported/model.safetensors", sha256="0" * 64)
    start = RecordedBase(run="runs/imported", model=file, test={}, test_files={})
    monkeypatch.setattr("nmt.interop.verification.read_record", lambda run: SimpleNamespace(init_from=start))

    assert [base and base.hub_name for base in map(base_of, (imported, tuned))] == [None, None]  # a folder
    origin = imported.path / "imported.json"
    write_json(origin, {**read_json(origin), "name": "Helsinki-NLP/opus-mt-en-zh", "revision": "0123abcd"})
    lines = Path("lines")
    lines.write_text("hello world\ngood morning\n", encoding="utf-8")
    result = export_huggingface(tuned, lines, lines, "cpu")
    assert ModelCard.load(Path(result.folder) / "README.md").data.base_model == "Helsinki-NLP/opus-mt-en-zh"


def test_what_marianmt_cannot_express_is_refused_with_the_remedy(tmp_path: Path) -> None:
    run = made_run(tmp_path, {"norm": "pre", "activation": "swiglu"})
    with pytest.raises(RunError, match=r"norm is pre, not post; model\.activation is swiglu.*model\.preset: marian"):
        export_huggingface(run, device="cpu")
    assert not run.exports.exists()
    (tmp_path / "ours").mkdir()
    run = made_run(tmp_path / "ours", {"norm": "post", "activation": "relu"}, biased=False)
    with pytest.raises(RunError, match=r"sine waves alternate.*model\.preset: marian"):
        export_huggingface(run, device="cpu")


@pytest.mark.slow
def test_marians_own_positions_are_said_to_cost_something(tmp_path: Path) -> None:
    run = made_run(tmp_path, {"norm": "post", "activation": "swish", "layout": "marian"})
    (note,) = export_huggingface(run, device="cpu").notes
    assert note.startswith("MarianMT cannot express Marian's own wavelengths of the positions and its epsilon 1e-06")
    assert note.endswith("; CTranslate2 can")


def test_the_preset_sets_what_marianmt_needs() -> None:
    data = {"src_lang": "en", "tgt_lang": "de"}
    config = InferenceConfig(data=data, model={"preset": "marian"})
    model = config.model
    assert (model.norm, model.position_kind, model.activation) == ("post", "sin_then_cos", "swish")
    assert model.layout == "marianmt"
    assert InferenceConfig(data=data, model={"preset": "marian", "activation": "relu"}).model.activation == "relu"
    with pytest.raises(ValueError, match=r"model\.preset: marian needs model\.norm: post, not pre"):
        InferenceConfig(data=data, model={"preset": "marian", "norm": "pre"})
    with pytest.raises(ValueError, match=r"needs model\.activation: swish or relu or gelu, not swiglu"):
        InferenceConfig(data=data, model={"preset": "marian", "activation": "swiglu"})
    with pytest.raises(ValueError, match=r"base model has a layout of its own \(marian\); leave out preset"):
        InferenceConfig(data=data, model={"preset": "marian", "layout": "marian"})
    assert InferenceConfig.model_validate(config.model_dump()) == config


def test_a_missing_package_is_one_line(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"transformers is not installed: .*scripts/install hf"):
        export_huggingface(run)


@pytest.mark.slow
def test_the_command(run: RunFolder, folder: Path, cli: Cli) -> None:
    arguments = ["export", "huggingface", "--model", str(run.path), "--device", "cpu"]
    code, out, err = cli(*arguments, "--license", "cc-by-4.0")
    assert (code, err) == (0, "")
    assert f"{LINES} lines, translated with PyTorch and with the export" in out
    assert "license: cc-by-4.0" in (folder / "README.md").read_text(encoding="utf-8")
    assert cli(*arguments, "--license", "C C")[0] == 2


PIPELINE = """
import json, sys, transformers
assert transformers.__version__.startswith("4.57"), transformers.__version__
translate = transformers.pipeline("translation", model=sys.argv[1], device="cpu")
print(json.dumps([one["translation_text"] for one in translate(json.load(sys.stdin), num_beams=1)]))
"""


def test_the_pipeline_of_transformers_4_translates_the_same(run: RunFolder, folder: Path) -> None:
    """Version 5 has no `pipeline("translation")`; TRANSFORMERS_4_PYTHON names a Python with 4.57."""
    if not (python := os.environ.get("TRANSFORMERS_4_PYTHON")):
        pytest.skip("TRANSFORMERS_4_PYTHON names no Python with transformers 4.57: docs/exporting.md")
    lines = text(10, seed=8)[:-1]
    decoding = run.inference_config().decoding.model_copy(update={"beam_size": 1, "max_length_ratio": 1000.0})
    expected = load(run.path, engine="torch", device="cpu", decoding=decoding).translate(lines)
    done = subprocess.run(
        [python, "-W", "ignore", "-c", PIPELINE, str(folder)], input=json.dumps(lines), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
