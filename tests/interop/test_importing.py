"""`nmt import`: what a folder must hold, what is refused, and what the run it makes can do."""

import io
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import sentencepiece
import torch
import yaml
from conftest import Cli
from marian_models import TAGS, sentences, spm, vocabulary, write_folder
from safetensors.torch import load_file

import nmt
from nmt.batches.augmentation import Augmentation
from nmt.cleaning.casing import lowercase, title_case, without_punctuation
from nmt.config.inference import DecodingConfig
from nmt.config.training import Config
from nmt.decoding.alignment import WordAligner
from nmt.decoding.source_text import SourceText
from nmt.decoding.torch_engine import TorchEngine, load_model
from nmt.errors import ConfigError, DataError, RunError
from nmt.interop.importing import import_model
from nmt.interop.marian_model import hugging_face_names
from nmt.interop.marian_npz import read_pieces
from nmt.models.embeddings import sinusoidal_positions
from nmt.models.source import ragged
from nmt.models.transformer import Transformer
from nmt.runs.folder import RunFolder, open_run
from nmt.tokenizers.tokenizer import load_tokenizers


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
    (folder / "tf_model.h5").write_bytes(b"for another program")
    code, out, _ = cli("import", str(folder))
    assert code == 0
    assert "en -> zh" in out
    assert "license: cc-by-4.0" in out
    assert before.items() <= {path.name: path.read_bytes() for path in folder.iterdir()}.items()
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
    assert imported(folder).inference_config().model.layout == "marianmt"
    weights = load_file(folder / "model.safetensors")
    weights["model.shared.weight"][-1] += 0.1
    save(weights, folder)
    result = import_model(folder, "tuned", None, None, None)
    assert "not zero" in result.notes[0]
    assert RunFolder(Path(result.run)).inference_config().model.layout == "marianmt-own-start"


def save(weights: dict[str, torch.Tensor], folder: Path) -> None:
    from safetensors.torch import save_file

    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_weight_that_is_no_number_is_not_said_to_differ_from_itself(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.shared.weight"][5, 0] = math.nan
    save(weights, folder)
    assert load_file(imported(folder).model_file)["src_embedding.weight"][5, 0].isnan()


def test_settings_of_the_search_are_taken_over_or_named(folder: Path) -> None:
    (folder / "generation_config.json").write_text(
        json.dumps({"num_beams": 6, "max_length": 512, "length_penalty": 0.8, "no_repeat_ngram_size": 4,
                    "forced_bos_token_id": 7, "repetition_penalty": 1.0, "suppress_tokens": None})
    )  # fmt: skip
    result = import_model(folder, None, None, None, None)
    decoding = RunFolder(Path(result.run)).inference_config().decoding
    assert (decoding.beam_size, decoding.max_length, decoding.length_penalty) == (6, 511, 0.8)
    assert decoding.no_repeat_ngram_size == 4
    assert result.notes == ("forced_bos_token_id: 7 is for transformers' search, and nmt's does without",)


def test_generation_config_neither_erases_the_search_nor_changes_the_model(folder: Path) -> None:
    changed(folder, num_beams=6, no_repeat_ngram_size=3, num_beam_groups=1, diversity_penalty=0.0)
    (folder / "generation_config.json").write_text(
        json.dumps({"num_beams": None, "no_repeat_ngram_size": None, "model_type": "bart", "d_model": 8,
                    "encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 0})
    )  # fmt: skip
    result = import_model(folder, None, None, None, None)
    decoding = RunFolder(Path(result.run)).inference_config().decoding
    assert (decoding.beam_size, decoding.no_repeat_ngram_size) == (6, 3)
    assert result.notes == ("encoder_repetition_penalty: 1.5 is for transformers' search, and nmt's does without",)


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


def with_other_target_vocabulary(folder: Path) -> None:
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    (folder / "target_vocab.json").write_text(json.dumps(ids | {"<unk>": ids["▁the"], "▁the": ids["<unk>"]}))
    (folder / "tokenizer_config.json").write_text('{"separate_vocabs": true}')


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pickle that runs code": (as_pickle, r"pytorch_model\.bin: not read: .*might run code"),
    "m2m100": (
        set_to(model_type="m2m_100", architectures=["M2M100ForConditionalGeneration"]),
        r"model_type 'm2m_100' \(\['M2M100ForConditionalGeneration'\]\) is no MarianMT model",
    ),
    "an odd architecture": (set_to(model_type="bert", architectures=5), r"model_type 'bert' \(5\) is no MarianMT"),
    "a list of activations": (set_to(activation_function=["relu"]), r"activation_function: \['relu'\] is not"),
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
    "two vocabularies for one matrix": (
        with_other_target_vocabulary, r"source and target share their embeddings, but have a vocabulary each"
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
    assert "--tgt-tag >>fra<<: not in this model's vocabulary; its target tags are '>>deu<<', '>>nld<<'," in message
    code, _, message = cli("translate", f">>fra<< {line}")
    assert code == 2
    assert "a line begins with >>fra<<, which is no target tag of this model" in message
    results = {cli("translate", *arguments) for arguments in (
        ("--tgt-tag", "nld", line), ("--tgt-tag", ">>nld<<", line), (f">>nld<<{line}",))}  # fmt: skip
    assert len(results) == 1
    code, out, _ = cli("import", "many", "--name", "one", "--tgt-tag", "nld")
    assert (code, cli("translate", line)) == (0, results.pop())
    assert "en -> nl" in out
    tokenizer = load_tokenizers(Path("runs/one/tokenizer")).src
    ids = tokenizer.encode(line)
    assert tokenizer.pieces(ids)[0] == ">>nld<<"
    assert tokenizer.words(ids)[:2] == [0, 0]
    assert tokenizer.pieces(tokenizer.encode(f">>deu<< {line}"))[0] == ">>deu<<"
    assert tokenizer.decode(ids) == tokenizer.decode(ids[1:]) != ""
    assert tokenizer.encode(tokenizer.decode(ids))[0] == ids[0]
    assert tokenizer.encode("") == []
    with pytest.raises(DataError, match=r"no target tag of this model"):
        tokenizer.encode(">>xx<< text")
    assert tokenizer.encode(">> quoted << text")[0] == ids[0]


def test_a_lines_tag_reaches_each_of_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(Path("many"), tags=TAGS)
    import_model(Path("many"), "many", None, None, None)
    tokenizer = load_tokenizers(Path("runs/many/tokenizer")).src
    one, two, three = (tokenizer.encode(f">>nld<<{text}") for text in ("1. A dog runs.", "A man sleeps.", "A cat."))
    german = tokenizer.encode(">>deu<< A cat.")
    for longest, by_sentence in ((64, True), (2 + max(map(len, (one, two, three))), False)):  # typed, or a long line
        source = SourceText(tokenizer, longest, True, "en", ("symbols", "addresses"))
        (found,) = source.in_parts([(1, ">>nld<< 1. A dog runs. 👍 A man sleeps. A cat.")], by_sentence)
        assert found.encoded == [one, [], two, three]
        assert [part.text for part in found.parts] == ["1. A dog runs.", "👍", "A man sleeps.", "A cat."]
    typed = SourceText(tokenizer, 64, True, "en", ("symbols", "addresses"))
    assert typed.in_parts([(1, ">>nld<< A CAT.")], True)[0].encoded == [tokenizer.encode(">>nld<< a cat.")]
    assert typed.encode(">>nld<< A CAT.", "") == tokenizer.encode(">>nld<< a cat.")
    assert typed.in_parts([(1, ">>nld<< A cat.\n>>deu<< A cat. A cat.")], True)[0].encoded == [three, german, german]
    assert typed.in_parts([(1, ">>nld<< A cat.\n>>deu<< A cat.\nA cat.")], True)[0].encoded == [three, german, three]
    assert typed.in_parts([(1, ">>nld<< www.example.com")], False)[0].encoded == [[]]
    with pytest.raises(DataError, match=r"a line begins with >>xx<<"):
        typed.in_parts([(1, ">>xx<< A cat. A cat.")], True)
    with pytest.raises(DataError, match=r"needs to know which"):
        typed.in_parts([(1, "A cat. A cat.")], True)


def test_a_tag_is_no_word_of_an_alignment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        def attention(self, sources: list[list[int]], targets: list[list[int]]) -> list[np.ndarray]:
            return [np.eye(len(tgt), len(src), dtype=np.float32) for src, tgt in zip(sources, targets, strict=True)]

    monkeypatch.chdir(tmp_path)
    write_folder(Path("many"), tags=TAGS)
    import_model(Path("many"), "many", None, None, "deu")
    tokenizers = load_tokenizers(Path("runs/many/tokenizer"))
    src, tgt = tokenizers.src.encode("a man sleeps"), tokenizers.tgt.encode("你好")
    for language in ("zh", "en"):  # words are characters, or what is between spaces
        aligned = WordAligner(Engine(), tokenizers, language, "zh").align([src, src[1:]], [tgt, tgt])
        assert len({one.num_src_words for one in aligned}) == 1


@pytest.mark.parametrize("default", [None, "deu"])
def test_augmentation_leaves_tags_at_the_beginning_of_sources(
    default: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs of one tag are joined behind it, those of two stay apart; changed text is encoded as what it is."""
    monkeypatch.chdir(tmp_path)
    write_folder(Path("many"), tags=TAGS)
    run = RunFolder(Path(import_model(Path("many"), "many", None, "de", default).run))
    tokenizers = load_tokenizers(run.tokenizer)
    unk = tokenizers.src.special.unk
    texts = [line for line in sentences("source", 50) if unk not in tokenizers.src.encode(f">>nld<<{line}")][:4]
    tags = [">>nld<<", ">>nld<<", ">>nld<<", ">>deu<<"]  # the first is joined with the third
    lines = [f"{tag} {text}" for tag, text in zip(tags, texts, strict=True)]
    src = ragged([np.array(tokenizers.src.encode(line)) for line in lines])
    tgt = ragged([np.array(tokenizers.tgt.encode(text)) for text in texts])
    settings = run.inference_config().model_dump(mode="json")
    files = {"src": "a", "tgt": "b"}
    settings["data"] |= {"train": files, "validation": files, "max_length": 500}
    for augmentation in ({"fragments": 0.9999999}, {"typed_input": 0.9999999}):
        config = Config.model_validate(
            {**settings, "augmentation": augmentation, "training": {"max_steps": 9000, "init_from": "many"}}
        )
        found = [Augmentation(config, tokenizers, epoch)(0, src, tgt).src for epoch in range(6)]
        for ids, lengths in found:
            rows = np.split(ids, np.cumsum(lengths)[:-1])
            if "fragments" in augmentation:
                one, two, three, four = (tokenizers.src.encode(line) for line in lines)
                assert [row.tolist() for row in rows] == [[*one, *three[1:]], two, four]
                continue
            for tag, text, row in zip(tags, texts, rows, strict=True):
                changed = without_punctuation(text), lowercase(text), title_case(text)
                assert row.tolist() in [tokenizers.src.encode(f"{tag} {one}") for one in changed]


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


MARIANS = {
    "self_attn.q_proj": "self_{}q", "self_attn.k_proj": "self_{}k", "self_attn.v_proj": "self_{}v",
    "self_attn.out_proj": "self_{}o", "encoder_attn.q_proj": "context_{}q", "encoder_attn.k_proj": "context_{}k",
    "encoder_attn.v_proj": "context_{}v", "encoder_attn.out_proj": "context_{}o", "fc1": "ffn_{}1", "fc2": "ffn_{}2",
    "self_attn_layer_norm": "self_Wo_ln_{}", "encoder_attn_layer_norm": "context_Wo_ln_{}",
    "final_layer_norm": "ffn_ffn_ln_{}",
}  # fmt: skip


def write_marian(folder: Path, theirs: Path, **changes: Any) -> None:
    """The model of a folder of Hugging Face's as Marian has it: matrices transposed, no row for `<pad>`."""
    config = json.loads((theirs / "config.json").read_text()) | changes
    weights = {name: value.numpy() for name, value in load_file(theirs / "model.safetensors").items()}
    arrays: dict[str, Any] = {"decoder_ff_logit_out_b": weights.pop("final_logits_bias")[:, :-1]}
    if "lm_head.weight" in weights:
        del weights["model.shared.weight"]
        arrays["decoder_ff_logit_out_W"] = weights.pop("lm_head.weight")[:-1].T
        for side in ("encoder", "decoder"):
            arrays[f"{side}_Wemb"] = weights.pop(f"model.{side}.embed_tokens.weight")[:-1]
    else:
        arrays["Wemb"] = weights.pop("model.shared.weight")[:-1]
    for name, value in weights.items():
        _, side, _, number, rest = name.split(".", 4)
        part, kind = rest.rsplit(".", 1)
        words = ("scale", "bias") if "norm" in part else ("W", "b")
        marians = f"{side}_l{int(number) + 1}_{MARIANS[part].format(words[kind == 'bias'])}"
        arrays[marians] = value.T if value.ndim == 2 else value[None]
    settings = {
        "type": "transformer", "enc-depth": config["encoder_layers"], "dec-depth": config["decoder_layers"],
        "dim-emb": config["d_model"], "transformer-heads": config["encoder_attention_heads"],
        "transformer-dim-ffn": config["encoder_ffn_dim"], "transformer-ffn-activation": config["activation_function"],
        "transformer-preprocess": "", "transformer-postprocess": config.get("postprocess", "dan"),
        "transformer-postprocess-emb": "d", "transformer-decoder-autoreg": "self-attention",
    }  # fmt: skip
    padded = yaml.safe_dump(settings).encode() + b"\0" * 37 + b": not YAML ["  # what follows a NUL is not read
    np.savez(folder / "model.npz", **arrays, **{"special:model.yml": np.frombuffer(padded, dtype=np.int8)})
    ids = json.loads((theirs / "vocab.json").read_text(encoding="utf-8"))
    del ids["<pad>"]
    (folder / "vocab.yml").write_text(yaml.safe_dump(ids, allow_unicode=True), encoding="utf-8")
    for side in ("source", "target"):
        shutil.copy(theirs / f"{side}.spm", folder)
    (folder / "decoder.yml").write_text(
        "relative-paths: true\nmodels:\n  - model.npz\nvocabs:\n  - vocab.yml\n  - vocab.yml\n"
        "beam-size: 6\nnormalize: 1\n"
    )


def import_en_zh(path: Path, name: str | None = None) -> RunFolder:
    return RunFolder(Path(import_model(path, name, "en", "zh", None).run))


def test_marians_own_files_are_the_same_model_with_other_positions(folder: Path) -> None:
    """In a folder and in a zip."""
    Path("opus").mkdir()
    write_marian(Path("opus"), folder)
    shutil.make_archive("packed", "zip", "opus")
    expected, theirs = imported(folder), load_tokenizers(RunFolder(Path("runs/opus-mt-en-zh")).tokenizer)
    for run in (import_en_zh(Path("opus")), import_en_zh(Path("packed.zip"))):
        config = run.inference_config()
        assert config.model.layout == "marian"
        assert (config.decoding.beam_size, config.decoding.length_penalty) == (6, 1.0)
        one, other = load_file(run.model_file), load_file(expected.model_file)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
        tokenizers = load_tokenizers(run.tokenizer)
        assert tokenizers.tgt.special == theirs.tgt.special
        for line in sentences("source", 5):
            assert tokenizers.src.encode(line) == theirs.src.encode(line)
        assert nmt.load(run.path).translate(["the farmer likes the market ."])[0]
    assert [path.name for path in sorted(Path("runs").glob("*"))] == ["opus", "opus-mt-en-zh", "packed"]


def test_a_model_is_downloaded_with_huggingface_hub_where_there_is_one(
    folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str]]] = []

    def snapshot_download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        if name == "no/such":
            raise OSError("404 Client Error: no such repository\nmore lines")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert cli("import", "hf:Helsinki-NLP/opus-mt-en-zh")[0] == 0
    assert asked == [("Helsinki-NLP/opus-mt-en-zh", ["*.json", "*.spm", "README.md", "model.safetensors"])]
    origin = json.loads(Path("runs/opus-mt-en-zh/imported.json").read_text())
    assert origin["name"] == "Helsinki-NLP/opus-mt-en-zh"
    assert origin["revision"] == folder.name  # which is the commit in huggingface_hub's own folders
    code, _, message = cli("import", "hf:no/such")
    assert (code, message) == (2, "nmt: hf:no/such: cannot be downloaded: 404 Client Error: no such repository\n")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    code, _, message = cli("import", "hf:Helsinki-NLP/opus-mt-en-zh", "--name", "again")
    assert code == 2
    assert "huggingface_hub is not installed: in your clone of nmt, scripts/install hf" in message


def test_untied_matrices_of_marian_are_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(Path("theirs"), tie_word_embeddings=False)
    Path("opus").mkdir()
    write_marian(Path("opus"), Path("theirs"))
    one, other = (load_file(import_en_zh(Path(name)).model_file) for name in ("opus", "theirs"))
    assert len([name for name in one if "embedding" in name or name == "output.weight"]) == 3
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def broken_marian(change: Callable[[Path, dict[str, Any]], None]) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        arrays = dict(np.load(folder / "model.npz"))
        change(folder, arrays)
        np.savez(folder / "model.npz", **arrays)

    return harm


def damaged(data: bytes, member: str) -> bytes:
    """A zip with the first compressed bytes of a member turned over."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        start = archive.getinfo(member).header_offset + 30 + len(member)
    return data[:start] + bytes(255 - byte for byte in data[start : start + 40]) + data[start + 40 :]


def compressed_and_damaged(folder: Path) -> None:
    arrays = dict(np.load(folder / "model.npz"))
    np.savez_compressed(folder / "model.npz", **arrays)
    (folder / "model.npz").write_bytes(damaged((folder / "model.npz").read_bytes(), "Wemb.npy"))


# Nine lists of nine: a billion values.
ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in itertools.pairwise("abcdefghi")
)

BROKEN_MARIAN: dict[str, tuple[Callable[[Path], None], str]] = {
    "a path upwards": (
        written("decoder.yml", "models: [../../model.npz]"), r"decoder\.yml: models names '\.\./\.\./model\.npz'"
    ),
    "a vocabulary elsewhere": (
        written("decoder.yml", "models: [model.npz]\nvocabs: [/etc/vocab.yml]"), r"vocabs names '/etc/vocab\.yml'"
    ),
    "an ensemble": (written("decoder.yml", "models: [a.npz, b.npz]"), r"there should be one file \*\.npz, not 2"),
    "two vocabularies for one matrix": (
        written("decoder.yml", "models: [model.npz]\nvocabs: [vocab.yml, other.yml]"),
        r"source and target share their embeddings, but have a vocabulary each",
    ),
    "objects": (
        broken_marian(lambda folder, arrays: arrays.update(Wemb=np.array([Harm()], dtype=object))),
        r"model\.npz: cannot be read as a Marian model: Object arrays cannot be loaded",
    ),
    "no options": (
        broken_marian(lambda folder, arrays: arrays.pop("special:model.yml")), r"model\.npz: lacks special:model\.yml"
    ),
    "a missing matrix": (
        broken_marian(lambda folder, arrays: arrays.pop("encoder_l2_ffn_W1")), r"lacks encoder_l2_ffn_W1, which a model"
    ),
    "trained positions": (
        broken_marian(lambda folder, arrays: arrays.update(Wpos=np.zeros((4, 16), np.float32))), r"holds Wpos, which"
    ),
    "another shape": (
        broken_marian(lambda folder, arrays: arrays.update(Wemb=np.zeros((4, 16), np.float32))),
        r"the shape of src_embedding\.weight is \(5, 16\); by its options it is \(431, 16\)",
    ),
    "no pieces": (without("source.spm"), r"source\.spm: no such file; a Marian model has this file"),
    "not an npz": (written("model.npz", "text"), r"model\.npz: cannot be read as a Marian model"),
    "aliases": (written("decoder.yml", ALIASES + "models: *i\n"), r"decoder\.yml: cannot be read as YAML: .*an alias"),
    "aliases in a piece": (
        written("vocab.yml", f'"</s>": 0\n"a": [{ALIASES.strip().replace(chr(10), ", ")}] # ": 1\n'),
        r"vocab\.yml: cannot be read as a vocabulary: .*an alias",
    ),
    "vocabularies that are a number": (written("decoder.yml", "vocabs: 5\n"), r"vocabs names '5'"),
    "a matrix that is a number": (
        broken_marian(lambda folder, arrays: arrays.update(Wemb=np.float32(1))), r"the shape of src_embedding\.weight"
    ),
    "a damaged member": (compressed_and_damaged, r"model\.npz: cannot be read as a Marian model"),
    "too many beams": (
        written("decoder.yml", "models: [model.npz]\nvocabs: [vocab.yml, vocab.yml]\nbeam-size: 5000\n"),
        r"^opus: beam_size: .* 1000, and it says '5000'",
    ),
    "not YAML": (written("vocab.yml", "[\n"), r"vocab\.yml: cannot be read as a vocabulary"),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "message"), BROKEN_MARIAN.values(), ids=BROKEN_MARIAN)
def test_what_is_no_model_of_marian_is_refused_in_one_message(
    harm: Callable[[Path], None], message: str, folder: Path
) -> None:
    Path("opus").mkdir()
    write_marian(Path("opus"), folder)
    Path("opus/other.yml").write_text("</s>: 0\n<unk>: 1\n")
    harm(Path("opus"))
    with pytest.raises(RunError, match=message) as caught:
        import_en_zh(Path("opus"))
    assert "\n" not in str(caught.value)
    assert not Path("harm").exists()
    assert not Path("runs/opus").exists()


def test_a_damaged_member_of_a_zip_is_named(folder: Path) -> None:
    Path("opus").mkdir()
    write_marian(Path("opus"), folder)
    with zipfile.ZipFile("opus.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in Path("opus").iterdir():
            archive.write(path, path.name)
    whole = Path("opus.zip").read_bytes()
    for member in ("vocab.yml", "source.spm"):
        Path("opus.zip").write_bytes(damaged(whole, member))
        with pytest.raises(RunError, match=rf"opus\.zip: {member}: .*; a Marian model has this file"):
            import_en_zh(Path("opus.zip"))


def test_an_empty_licence_is_none(folder: Path) -> None:
    Path("opus").mkdir()
    write_marian(Path("opus"), folder)
    for name in ("LICENSE", "README.md"):
        Path("opus", name).write_text("\n")
    assert json.loads((import_en_zh(Path("opus")).path / "imported.json").read_text())["license"] is None


def test_a_model_card_of_aliases_says_no_licence(folder: Path) -> None:
    (folder / "README.md").write_text(f"---\n{ALIASES}<<: *i\nlicense: mit\n---\n")
    assert json.loads((imported(folder).path / "imported.json").read_text())["license"] is None


def test_every_piece_of_a_vocabulary_of_marians_is_read() -> None:
    """Against PyYAML where it can be trusted: text that YAML has other plans for, and quotes of both kinds."""
    pieces = ["</s>", "<unk>", "yes", "null", "1", "1.5", "~", "=", "-", "?", ":", "a:b", "#", "'", "''", '"', "\\",
              "!", "\u2581", "\u2581the", "<<", "{", "[", "%", "@", "`", "|", "\x7f", "\ufeff", "\u00e9",
              "x" * 200]  # fmt: skip
    ids = {piece: number for number, piece in enumerate(pieces)}
    for options in ({"allow_unicode": True}, {}, {"default_style": '"'}):
        written = yaml.safe_dump(ids, sort_keys=False, width=1 << 20, **options)
        if "default_style" in options:  # the ids are quoted, too
            written = re.sub(r'(!!int )?"(\d+)"$', r"\2", written, flags=re.MULTILINE)
        assert read_pieces(written) == ids, options
    assert read_pieces(json.dumps(ids)) == ids
    assert read_pieces("a\u2028b: 0\n\x85: 1\r\n") == {"a\u2028b": 0, "\x85": 1}
    with pytest.raises(ValueError, match="invalid literal"):
        read_pieces("a: b")


def test_other_architectures_of_marian_are_refused_with_the_option(folder: Path) -> None:
    Path("opus").mkdir()
    write_marian(Path("opus"), folder, postprocess="da")
    with pytest.raises(RunError, match=r"transformer-postprocess: 'da' is not supported; .* with 'dan'"):
        import_en_zh(Path("opus"))
    write_marian(Path("opus"), folder, activation_function="gelu")
    with pytest.raises(RunError, match=r"transformer-ffn-activation: 'gelu' is not supported; .* 'swish' or 'relu'"):
        import_en_zh(Path("opus"))


def test_a_zip_that_writes_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("model.zip", "w") as archive:
        archive.writestr("../decoder.yml", "models: [model.npz]")
    with pytest.raises(RunError, match=r"model\.zip: holds names that lead out of its folder"):
        import_en_zh(Path("model.zip"))


def pymarian_python() -> str | None:
    """A Python that has pymarian, which needs 3.11 and 604 MB: the one that PYMARIAN_PYTHON names."""
    return os.environ.get("PYMARIAN_PYTHON")


@pytest.mark.slow
@pytest.mark.skipif(
    pymarian_python() is None, reason="PYMARIAN_PYTHON names no Python with pymarian (pip install pymarian)"
)
def test_greedy_outputs_are_marians(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that Marian trains here, and its translations of 200 lines, in pieces."""
    monkeypatch.chdir(tmp_path)
    folder = Path("opus")
    folder.mkdir()
    pieces = vocabulary(("source", "target"))[:-1]
    (folder / "vocab.yml").write_text(yaml.safe_dump({piece: number for number, piece in enumerate(pieces)}))
    for side, suffix in (("source", "src"), ("target", "tgt")):
        (folder / f"{side}.spm").write_bytes(spm(side))
        processor = sentencepiece.SentencePieceProcessor(model_proto=spm(side))
        lines = [" ".join(processor.encode(line, out_type=str)) for line in sentences(side, 3700)]
        (folder / f"train.{suffix}").write_text("".join(f"{line}\n" for line in lines[:3500]), encoding="utf-8")
        (folder / f"test.{suffix}").write_text("".join(f"{line}\n" for line in lines[3500:]), encoding="utf-8")
    script = Path(__file__).parents[1] / "marian_reference.py"
    subprocess.run([str(pymarian_python()), str(script), str(folder), "400"], check=True)
    for unused in folder.glob("model.npz.*"):
        unused.unlink()
    run = import_en_zh(folder)
    tokenizers = load_tokenizers(run.tokenizer)
    model = load_model(run, tokenizers).eval()
    assert isinstance(model, Transformer)
    engine = TorchEngine(model, tokenizers)
    ids = {piece: number for number, piece in enumerate(pieces)}
    sources = [[ids.get(piece, 1) for piece in line.split()] for line in (folder / "test.src").read_text().splitlines()]
    theirs = (folder / "test.out").read_text(encoding="utf-8").splitlines()
    assert len(set(theirs)) > 100

    def same() -> int:
        found = engine.search(sources, DecodingConfig(beam_size=1, length_penalty=0, max_length=511))
        ours = [" ".join(tokenizers.tgt.pieces(hypotheses[0].tokens)) for hypotheses in found]
        return sum(one == other for one, other in zip(ours, theirs, strict=True))

    assert same() >= 198
    table = sinusoidal_positions(512, 64, "sin_then_cos")  # as Hugging Face and CTranslate2 would have it
    for positions in (model.src_positions, model.tgt_positions):
        positions.table.copy_(table)
    assert same() < 190


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
augmentation: {fragments: 0.5}
training: {max_steps: 4, validate_every: 2, batch_tokens: 2000, device: cpu, threads: 1}
evaluation: {report: false}
export: {after_training: []}
""")
    code, _, message = cli("train", "new.yaml", "--init-from", "opus-mt-en-zh")
    assert code == 0, message
    assert "augmentation.fragments: joined pairs alone" in message
    run = open_run("new")
    weights = load_file(run.model_file)
    assert not weights["src_embedding.weight"][-1].any()
    assert (run.tokenizer / "marian.json").is_file()
    assert cli("translate", "the farmer likes the market .")[0] == 0
    code, _, message = cli("train", "new.yaml", "--set", "tokenizer.type=marian", "--name", "other")
    assert code == 2
    assert "tokenizer.type: marian is the tokenizer of an imported model" in message
