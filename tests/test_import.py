"""`nmt import`: what a folder must hold, what is refused, and what the run it makes can do."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Cli
from marian_models import TAGS, sentences, write_folder
from safetensors.torch import load_file

import nmt
from nmt.data.tokenizer import load_tokenizers
from nmt.errors import ConfigError, DataError, RunError
from nmt.marian.importing import import_model
from nmt.marian.names import hugging_face_names
from nmt.runs import RunFolder, open_run


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of one target language."""
    folder = tmp_path_factory.mktemp("downloaded") / "opus-mt-en-zh"
    write_folder(folder)
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\ntags:\n- translation\n---\n# A model\n")
    return folder


@pytest.fixture
def folder(downloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it beside the current folder's runs."""
    monkeypatch.chdir(tmp_path)
    copied: Path = shutil.copytree(downloaded, tmp_path / downloaded.name)
    return copied


def changed(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def imported(folder: Path, tgt_tag: str | None = None) -> RunFolder:
    return RunFolder(Path(import_model(folder, None, None, None, tgt_tag).run))


def test_an_imported_model_is_a_run(folder: Path, cli: Cli) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, _ = cli("import", str(folder))
    assert code == 0
    assert "en -> zh" in out
    assert "license: cc-by-4.0" in out
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    run = open_run(None)
    assert run.path == Path("runs/opus-mt-en-zh")
    assert not run.has_training_config()
    assert run.inference_config().decoding.beam_size == 4
    for name in ("source.spm", "target.spm", "vocab.json"):
        assert (run.tokenizer / name).read_bytes() == before[name]
    origin = json.loads((run.path / "imported.json").read_text())
    assert origin["files"].keys() == before.keys()
    assert origin["license"] == "cc-by-4.0"
    assert nmt.load(run.path).translate(["the farmer likes the market .", ""])[1] == ""
    code, out, _ = cli("translate", "--beam-size", "1", "the farmer likes the market .")
    assert code == 0
    assert out.strip()
    code, out, message = cli("import", str(folder))
    assert code == 2
    assert "runs/opus-mt-en-zh: exists already; give the imported model another name: --name NAME" in message


def test_the_tensors_are_those_of_the_file_to_the_bit(folder: Path) -> None:
    theirs = load_file(folder / "model.safetensors")
    found = load_file(imported(folder).model_file)
    names = hugging_face_names(found, "all")
    assert sorted(names.values()) == sorted(theirs)
    for name, value in found.items():
        assert torch.equal(value, theirs[names[name]].reshape(value.shape)), name
    config = json.loads((folder / "config.json").read_text())
    assert found["output.bias"].shape == (config["vocab_size"],)


def test_a_model_whose_start_is_not_zero_keeps_its_row(folder: Path) -> None:
    """As transformers leaves it, where it fine-tunes: the row of `<pad>` is trained there."""
    assert imported(folder).inference_config().model.zero_start
    weights = load_file(folder / "model.safetensors")
    weights["model.shared.weight"][-1] += 0.1
    save(weights, folder)
    result = import_model(folder, "tuned", None, None, None)
    assert "not zero" in result.notes[0]
    assert not RunFolder(Path(result.run)).inference_config().model.zero_start


def save(weights: dict[str, torch.Tensor], folder: Path) -> None:
    from safetensors.torch import save_file

    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


class Harm:
    """Unpickled, it makes a file."""

    def __reduce__(self) -> tuple[Callable[[Path], object], tuple[Path]]:
        return Path.touch, (Path("harm"),)


def as_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": torch.zeros(2), "other": Harm()}, folder / "pytorch_model.bin")


def with_weight(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def broken(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights[name] = change(weights.get(name, torch.zeros(3))).contiguous()
        save(weights, folder)

    return broken


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def set_to(**values: Any) -> Callable[[Path], None]:
    return lambda folder: changed(folder, **values)


def written(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pickle that runs code": (as_pickle, r"pytorch_model\.bin: not read: .*might run code"),
    "a path upwards": (
        set_to(vocab_file="../../secret.json"), r"config\.json: names '\.\./\.\./secret\.json', which leads out"
    ),
    "a path in the tokenizer": (
        written("tokenizer_config.json", '{"source_spm": "../x.spm"}'), r"tokenizer_config\.json: names '\.\./x\.spm'"
    ),
    "m2m100": (
        set_to(model_type="m2m_100", architectures=["M2M100ForConditionalGeneration"]),
        r"model_type 'm2m_100' \(M2M100ForConditionalGeneration\) is no MarianMT model",
    ),
    "no type": (set_to(model_type=None), r"model_type None .* is no MarianMT model"),
    "pre-norm": (set_to(normalize_before=True), r"normalize_before: True is not supported"),
    "an activation": (set_to(activation_function="gelu_new"), r"activation_function: gelu_new is not supported"),
    "two numbers of heads": (set_to(decoder_attention_heads=4), r"decoder_attention_heads 4: nmt has one number"),
    "heads that do not fit": (
        set_to(encoder_attention_heads=3, decoder_attention_heads=3), r"config\.json: .*must be divisible"
    ),
    "a text for a number": (set_to(d_model="16"), r"d_model: should be a number of 0 or more, not '16'"),
    "huge": (set_to(d_model=1 << 40), r"config\.json: d_model"),
    "another width": (set_to(d_model=32), r"\(\d+, 16\); by config\.json it is \(\d+, 32\)"),
    "another vocabulary": (set_to(vocab_size=17), r"vocab_size is 17, and the vocabulary has"),
    "another eos": (set_to(eos_token_id=5), r"eos_token_id 5 .* fit the vocabulary, where <pad> is \d+ and </s> is 0"),
    "not JSON": (written("config.json", "{"), r"config\.json: cannot be read"),
    "a list": (written("config.json", "[]"), r"config\.json: should hold keys and values"),
    "no config": (without("config.json"), r"no model that nmt can import"),
    "no vocabulary": (without("vocab.json"), r"vocab\.json: cannot be read"),
    "no target pieces": (without("target.spm"), r"target\.spm: cannot be read"),
    "no weights": (without("model.safetensors"), r"has no weights; it needs model\.safetensors or pytorch_model\.bin"),
    "holes in the ids": (written("vocab.json", '{"</s>": 0, "<unk>": 1, "<pad>": 3}'), r"do not have the ids 0 to 2"),
    "no pad": (written("vocab.json", '{"</s>": 0, "<unk>": 1}'), r"vocab\.json: lacks <pad>"),
    "damaged pieces": (written("source.spm", "nonsense"), r"source\.spm: cannot be read as a SentencePiece model"),
    "a missing matrix": (
        set_to(encoder_layers=3), r"lacks model\.encoder\.layers\.2\.\S+, which a model of this config\.json has"
    ),
    "a matrix too many": (set_to(decoder_layers=0), r"num_decoder_layers"),
    "an unknown matrix": (
        with_weight("model.decoder.layernorm_embedding.weight", lambda old: old),
        r"holds model\.decoder\.layernorm_embedding\.weight, which no MarianMT model",
    ),
    "a tied copy that differs": (
        with_weight("lm_head.weight", lambda old: torch.ones(431, 16)),
        r"model\.shared\.weight and lm_head\.weight differ, and config\.json says that they are one matrix",
    ),
    "integers": (
        with_weight("model.decoder.layers.0.fc1.bias", lambda old: old.to(torch.int32)), r"fc1\.bias: holds numbers of"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "message"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_marian_model_is_refused_in_one_message(
    harm: Callable[[Path], None], message: str, folder: Path
) -> None:
    harm(folder)
    with pytest.raises(RunError, match=message) as caught:
        import_model(folder, None, None, None, None)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert not Path("harm").exists()
    assert not Path("runs/opus-mt-en-zh").exists()
    assert not list(Path("runs").glob(".*")) if Path("runs").exists() else True


def test_languages_that_the_files_do_not_say_are_asked_for(folder: Path) -> None:
    folder = folder.rename("some-model")
    (folder / "tokenizer_config.json").write_text('{"source_lang": "eng", "target_lang": "mul+x"}')
    with pytest.raises(ConfigError, match=r"its files say 'mul\+x', which is no single language; give it: --tgt-lang"):
        import_model(folder, None, None, None, None)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match=r"its files do not say the language; give it: --src-lang CODE"):
        import_model(folder, None, None, "zh", None)
    with pytest.raises(ConfigError, match=r"--tgt-lang chinese"):
        import_model(folder, None, "en", "chinese", None)
    config = RunFolder(Path(import_model(folder, None, "en", "zh", None).run)).inference_config()
    assert (config.data.src_lang, config.data.tgt_lang) == ("en", "zh")


def test_target_tags_are_named_checked_and_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(Path("many"), tags=TAGS)
    code, out, _ = cli("import", "many", "--name", "many")
    assert code == 0
    assert "target languages: >>deu<<, >>nld<<, >>gos_Latn<< (none chosen: nmt translate --tgt-tag TAG)" in out
    line = sentences("source", 1)[0]
    code, _, message = cli("translate", line)
    assert code == 2
    assert "needs to know which: nmt translate --tgt-tag TAG" in message
    code, _, message = cli("translate", "--tgt-tag", "fra", line)
    assert code == 2
    assert "--tgt-tag >>fra<<: not in this model's vocabulary; its target tags are >>deu<<, >>nld<<," in message
    code, _, message = cli("translate", f">>fra<< {line}")
    assert code == 2
    assert "a line begins with >>fra<<, which is no target tag of this model" in message
    results = {cli("translate", *arguments) for arguments in (
        ("--tgt-tag", "nld", line), ("--tgt-tag", ">>nld<<", line), (f">>nld<<{line}",))}  # fmt: skip
    assert len(results) == 1
    code, out, _ = cli("import", "many", "--name", "one", "--tgt-tag", "nld")
    assert (code, cli("translate", line)) == (0, results.pop())
    tokenizer = load_tokenizers(Path("runs/one/tokenizer")).src
    ids = tokenizer.encode(line)
    assert tokenizer.pieces(ids)[0] == ">>nld<<"
    assert tokenizer.words(ids)[:2] == [0, 0]
    assert tokenizer.pieces(tokenizer.encode(f">>deu<< {line}"))[0] == ">>deu<<"
    assert tokenizer.decode(ids) == line
    assert tokenizer.encode("") == []
    with pytest.raises(DataError, match=r"no target tag of this model"):
        tokenizer.encode(">>xx<< text")
    assert tokenizer.encode(">> quoted << text")[0] == ids[0]


def test_a_run_without_tags_has_none_to_choose(folder: Path, cli: Cli, copy_task: Path) -> None:
    imported(folder)
    code, _, message = cli("translate", "--model", "opus-mt-en-zh", "--tgt-tag", "deu", "text")
    assert code == 2
    assert "it has no target tags" in message


def test_a_vocabulary_of_its_own_a_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(Path("en-zh"), separate=True)
    run = imported(Path("en-zh"))
    config, tokenizers = run.inference_config(), load_tokenizers(run.tokenizer)
    assert config.model.tie_embeddings == "decoder"
    assert not tokenizers.joint
    assert not config.tokenizer.joint
    line = sentences("target", 1)[0]
    ids = tokenizers.tgt.encode(line)
    vocabulary = json.loads(Path("en-zh/target_vocab.json").read_text(encoding="utf-8"))
    assert ids == [vocabulary.get(piece, 0 + vocabulary["<unk>"]) for piece in np.array(tokenizers.tgt.pieces(ids))]


@pytest.mark.slow
def test_an_imported_run_is_evaluated_exported_and_trained(folder: Path, cli: Cli) -> None:
    """Everything that a command offers for runs; the text is data/tiny's."""
    imported(folder)
    for side, suffix in (("source", "en"), ("target", "zh")):
        Path(f"text.{suffix}").write_text("".join(f"{line}\n" for line in sentences(side, 40)), encoding="utf-8")
    model = ("--model", "opus-mt-en-zh")
    assert cli("eval", *model, "--src", "text.en", "--ref", "text.zh")[0] == 0
    assert cli("score", *model, "--src", "text.en", "--tgt", "text.zh")[0] == 0
    assert cli("attention", *model, "the farmer likes the market .", "--output", "page.html")[0] == 0
    code, out, _ = cli("export", "ctranslate2", *model, "--quantization", "float32", "--src", "text.en",
                       "--ref", "text.zh", "--json")  # fmt: skip
    assert code == 0
    assert all(one["same_lines"] == 40 for one in json.loads(out)["comparisons"])
    Path("new.yaml").write_text("""\
data: {train: {src: text.en, tgt: text.zh}, validation: {src: text.en, tgt: text.zh}}
training: {max_steps: 4, validate_every: 2, batch_tokens: 2000, device: cpu, threads: 1}
evaluation: {report: false}
""")
    code, _, message = cli("train", "new.yaml", "--init-from", "opus-mt-en-zh")
    assert code == 0, message
    run = open_run("new")
    weights = load_file(run.model_file)
    assert not weights["src_embedding.weight"][-1].any()
    assert (run.tokenizer / "marian.json").is_file()
    assert cli("translate", "the farmer likes the market .")[0] == 0
    code, _, message = cli("train", "new.yaml", "--set", "tokenizer.type=marian", "--name", "other")
    assert code == 2
    assert "tokenizer.type: marian is that of an imported model" in message
