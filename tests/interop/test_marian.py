"""Imported MarianMT models against transformers: ids, logits, losses, gradients, updates and searches.

Shapes: B batch, T target length, V vocabulary.
"""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from marian_models import TAGS, sentences, write_folder
from safetensors.torch import load_file
from torch import Tensor

import nmt.training.trainer
from nmt.config.inference import DecodingConfig
from nmt.decoding.ctranslate2_engine import load_ctranslate2_engine
from nmt.decoding.torch_engine import TorchEngine, load_model
from nmt.interop.ctranslate2 import write_model
from nmt.interop.importing import import_model
from nmt.interop.marian_model import hugging_face_names
from nmt.models.source import pad, source_of
from nmt.models.transformer import Transformer
from nmt.runs.base import load_run_config
from nmt.runs.folder import RunFolder, run_named
from nmt.tokenizers.marian import MarianTokenizer
from nmt.tokenizers.tokenizer import Tokenizers, load_tokenizers
from nmt.training.monitor import Monitor
from nmt.training.preparation import prepare
from nmt.training.trainer import Trainer

pytestmark = pytest.mark.slow  # transformers takes seconds to load

SHAPES: dict[str, dict[str, Any]] = {
    "as opus-mt": {},
    "eos elsewhere": {"eos": 37},
    "relu": {"activation_function": "relu"},
    "gelu": {"activation_function": "gelu"},
    "silu": {"activation_function": "silu", "eos": 200},
    "deep and shallow": {"encoder_layers": 6, "decoder_layers": 2, "max_position_embeddings": 200},
    "not scaled": {"scale_embedding": False},
    "wide heads": {"d_model": 24, "encoder_attention_heads": 1, "decoder_attention_heads": 1},
    "two vocabularies": {"separate": True},
    "two vocabularies, untied": {"separate": True, "tie_word_embeddings": False},
    "untied": {"tie_word_embeddings": False, "decoder_vocab_size": None},
    "tags and nulls": {"tags": TAGS, "num_beams": None, "max_length": None, "decoder_vocab_size": None,
                       "forced_eos_token_id": None},
}  # fmt: skip


class Both:
    """The same model here and in transformers."""

    def __init__(self, folder: Path, tgt_tag: str | None = None) -> None:
        from transformers import MarianMTModel, MarianTokenizer  # type: ignore[attr-defined]

        import_model(folder, "imported", None, None, tgt_tag)
        self.run: RunFolder = run_named("imported")
        self.tokenizers: Tokenizers = load_tokenizers(self.run.tokenizer)
        model = load_model(self.run, self.tokenizers).eval()
        assert isinstance(model, Transformer)
        self.model = model
        self.theirs: Any = MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.their_tokenizer: Any = MarianTokenizer.from_pretrained(folder)


def both_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any]) -> Both:
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "theirs", **shape)
    if "tags" in shape:
        config = json.loads((tmp_path / "theirs" / "config.json").read_text())
        generation = {key: config[key] for key in ("decoder_start_token_id", "pad_token_id")} | {"num_beams": 6}
        (tmp_path / "theirs" / "generation_config.json").write_text(json.dumps(generation))
    return Both(tmp_path / "theirs", ">>nld<<" if "tags" in shape else None)


def pairs_of(both: Both, count: int = 12) -> tuple[list[list[int]], list[list[int]]]:
    """Encoded lines of quite different lengths."""
    src, tgt = (sentences(side, count) for side in ("source", "target"))
    src = [line if number % 3 else line[: 4 + number] for number, line in enumerate(src)]
    return [both.tokenizers.src.encode(line) for line in src], [both.tokenizers.tgt.encode(line) for line in tgt]


def their_batch(both: Both, src: list[list[int]], tgt: list[list[int]]) -> dict[str, Tensor]:
    special = both.tokenizers.tgt.special
    src_ids = pad(src, special.pad, last=[both.tokenizers.src.special.eos])
    lengths = torch.tensor([len(ids) + 1 for ids in src])
    mask = torch.arange(src_ids.shape[1])[None] < lengths[:, None]
    labels = pad(tgt, -100, last=[special.eos])
    return {"input_ids": src_ids, "attention_mask": mask.long(), "labels": labels}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_are_transformers(shape: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of padded batches, and of each pair alone."""
    both = both_of(tmp_path, monkeypatch, shape)
    src, tgt = pairs_of(both)
    special = both.tokenizers.tgt.special
    with torch.no_grad():
        for rows in [range(len(src)), *([number] for number in range(3))]:
            some_src, some_tgt = [src[row] for row in rows], [tgt[row] for row in rows]
            tgt_in = pad(some_tgt, special.pad, first=[special.start])
            ours = both.model(source_of(some_src, both.tokenizers.src.special), tgt_in)  # (B, T, V)
            theirs = both.theirs(**their_batch(both, some_src, some_tgt)).logits
            for row, ids in enumerate(some_tgt):
                length = len(ids) + 1
                torch.testing.assert_close(ours[row, :length], theirs[row, :length], rtol=0, atol=1e-4)


def hostile_lines(count: int) -> list[str]:
    """Text of every kind: controls, spaces, combining marks, other scripts, emoji, marks of SentencePiece, tags."""
    random = Random(7)
    parts = [
        *sentences("source", 60), *sentences("target", 60), *TAGS, "</s>", "<unk>", "<pad>", "\u2581",
        "<s>", "\u2581\u2581", "  ", "\t",
        "\u00a0", "\u3000", "\u200b", "\u200d", "\ufeff", "\x00", "\x07", "\x1f", "\x7f", "\x85", "\u2028",
        "e\u0301", "\u00e9", "\ufb01", "\uff21", "\u00bd", "\u0130", "\u1e9e", "\U0001f469\u200d\U0001f680", "\ufffd",
        "<0x0A>", ">>", "<<", ">> no tag <<", "<<>>", "\\", "\"", "'", "&amp;", "<b>", "100,5", "\ue000", "\U0010ffff",
    ]  # fmt: skip
    blocks = [(0x20, 0x7E), (0xA0, 0x17F), (0x370, 0x3FF), (0x400, 0x45F), (0x5D0, 0x5EA), (0x600, 0x6FF),
              (0x900, 0x94D), (0xE00, 0xE4F), (0x1100, 0x1170), (0x300, 0x33F), (0x4E00, 0x4FFF), (0xAC00, 0xAC50),
              (0x1F300, 0x1F64F), (0x0, 0x1F), (0x2000, 0x206F), (0xFF00, 0xFF5E)]  # fmt: skip
    lines = []
    for _ in range(count):
        words = []
        for _ in range(random.randint(0, 7)):
            if random.random() < 0.5:
                words.append(random.choice(parts))
            else:
                first, last = random.choice(blocks)
                words.append("".join(chr(random.randint(first, last)) for _ in range(random.randint(1, 6))))
        lines.append(random.choice(["", " "]).join(words))
    return lines


@pytest.mark.parametrize("separate", [False, True])
def test_ids_and_texts_are_transformers_for_hostile_lines(
    separate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 lines a side; transformers is told to take no text for a special token, and takes any for a tag."""
    from transformers import MarianTokenizer as TheirTokenizer  # type: ignore[attr-defined]

    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "theirs", tags=() if separate else TAGS, separate=separate)
    theirs = TheirTokenizer.from_pretrained(tmp_path / "theirs", split_special_tokens=True)
    import_model(tmp_path / "theirs", "imported", None, None, None)
    tokenizers = load_tokenizers(run_named("imported").tokenizer)
    lines, compared, tagged, unknown = hostile_lines(10_000), 0, 0, 0
    for side, ours in (("source", tokenizers.src), ("target", tokenizers.tgt)):
        assert isinstance(ours, MarianTokenizer)
        assert ours.special.eos == theirs.eos_token_id
        tags = () if separate else TAGS
        tag_ids = [theirs.convert_tokens_to_ids(tag) for tag in tags]
        plain = []
        for line in lines:
            has_tag = line.startswith(tags) if tags else False
            if line.startswith(">>") and "<<" in line and not has_tag:
                unknown += 1
                continue
            plain.append(line if has_tag or side == "target" or separate else f"{TAGS[1]}{line}")
            tagged += has_tag
        expected = theirs(plain) if side == "source" else theirs(text_target=plain)
        for line, own, ids in zip(plain, ours.encode_lines(plain), expected["input_ids"], strict=True):
            wanted = ids[:-1] if len(ids) > 2 or ids[0] not in tag_ids else []  # a tag before no text
            assert own == wanted, repr(line)
            assert own == ours.encode(line)
            compared += 1
        for row in expected["input_ids"][:2000]:
            text = theirs.decode(row, skip_special_tokens=True, use_source_tokenizer=side == "source")
            if separate and side == "source":
                continue  # transformers decodes with the target's vocabulary alone
            if side == "source" and row[0] in tag_ids:
                text = text.removeprefix(theirs.convert_ids_to_tokens(row[0])).lstrip()
            assert ours.decode(row) == text.replace("<unk>", ""), row
    assert compared > 19_500
    assert separate or tagged > 100
    assert unknown > 30


CONFIG = """\
data:
  train: {src: train.en, tgt: train.zh}
  validation: {src: train.en, tgt: train.zh}
model: {dropout: 0}
training:
  init_from: imported
  max_steps: 1
  batch_tokens: 4000
  label_smoothing: 0
  device: cpu
  threads: 1
evaluation: {report: false}
export: {after_training: []}
"""


@pytest.mark.parametrize("name", ["as opus-mt", "eos elsewhere", "untied", "two vocabularies", "relu", "gelu"])
def test_an_update_has_transformers_loss_and_gradients(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From text to gradients: ours by the trainer, theirs by MarianTokenizer and the model's own loss. The rows of
    `<pad>` aside, which stay zero here, and the bias of the logits, which is no parameter there."""
    both = both_of(tmp_path, monkeypatch, SHAPES[name])
    lines = {side: sentences(side, 9) for side in ("source", "target")}
    for side, suffix in (("source", "en"), ("target", "zh")):
        Path(f"train.{suffix}").write_text("".join(f"{line}\n" for line in lines[side]), encoding="utf-8")
    Path("new.yaml").write_text(CONFIG)
    run = run_named("new")
    config = load_run_config(Path("new.yaml"), (), run, is_fresh=False)
    run.path.mkdir(parents=True)
    prepared = prepare(config, run, resuming=False)
    trainer = Trainer(config, run, prepared, Monitor(run.metrics_file), initial_weights=both.run.model_file)
    monkeypatch.setattr(nmt.training.trainer, "clip_and_step", lambda *arguments: torch.zeros(()))
    share, num_tokens = next(trainer.updates())
    trainer.update(share, num_tokens)

    encoded = both.their_tokenizer(lines["source"], text_target=lines["target"], padding=True, return_tensors="pt")
    encoded["labels"][encoded["labels"] == both.their_tokenizer.pad_token_id] = -100
    loss = both.theirs(**encoded).loss
    loss.backward()
    assert num_tokens == (encoded["labels"] != -100).sum()
    assert trainer.interval.read()[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    theirs = dict(both.theirs.named_parameters())
    own = dict(trainer.model.named_parameters())
    names = hugging_face_names(own, config.model.tie_embeddings)  # type: ignore[union-attr]
    assert len(own) - 1 == len([one for one in theirs.values() if one.grad is not None])
    pad_row = both.tokenizers.tgt.special.pad
    for ours, parameter in own.items():
        if ours == "output.bias":
            continue
        gradient, expected = parameter.grad, theirs[names[ours]].grad
        assert gradient is not None
        if "embed" in names[ours] or "shared" in names[ours] or "lm_head" in names[ours]:
            assert not gradient[pad_row].any()
            gradient, expected = gradient[:pad_row], expected[:pad_row]
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["as opus-mt", "eos elsewhere", "two vocabularies, untied", "deep and shallow"])
def test_searches_find_what_transformers_finds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy, and beam 4 without a length penalty; `<unk>` is never written here, so there it is forbidden, too."""
    both = both_of(tmp_path, monkeypatch, SHAPES[name])
    src, _ = pairs_of(both, 40)
    special = both.tokenizers.tgt.special
    batch = their_batch(both, src, src)
    for beam_size in (1, 4):
        decoding = DecodingConfig(beam_size=beam_size, length_penalty=0, max_length=20, max_length_ratio=100,
                                  min_length=0)  # fmt: skip
        found = TorchEngine(both.model, both.tokenizers).search(src, decoding)
        settings = {"num_beams": beam_size, "do_sample": False, "max_length": 21, "forced_eos_token_id": None}
        if beam_size > 1:
            settings |= {"early_stopping": True, "length_penalty": 0.0}
        theirs = both.theirs.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
            bad_words_ids=[[special.pad], [special.unk]], **settings,
        )  # fmt: skip
        same = 0
        for hypotheses, row in zip(found, theirs.tolist(), strict=True):
            ids = row[1:]
            ids = ids[: ids.index(special.eos)] if special.eos in ids else ids
            same += list(hypotheses[0].tokens) == [index for index in ids if index != special.pad]
        assert same >= len(src) - 1, (beam_size, same)
        export = tmp_path / f"export-{beam_size}"
        export.mkdir()
        write_model(both.model, both.tokenizers, "float32", export)
        engine = load_ctranslate2_engine(RunFolder(export), both.tokenizers, "cpu")
        others = engine.search(src, decoding)
        agreeing = sum(one[0].tokens == other[0].tokens for one, other in zip(found, others, strict=True))
        assert agreeing >= len(src) - 1, (beam_size, agreeing)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_files_of_transformers_in_all_forms_are_the_same_model(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What version 5 saves, and a .bin with all copies and the tables of positions; 16 bits are read as 32."""
    both = both_of(tmp_path, monkeypatch, {})
    both.theirs.to(dtype).save_pretrained(tmp_path / "saved")
    both.their_tokenizer.save_pretrained(tmp_path / "saved")
    shutil.copytree(tmp_path / "saved", tmp_path / "bin")
    (tmp_path / "bin" / "model.safetensors").unlink()
    torch.save(both.theirs.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    assert "lm_head.weight" in both.theirs.state_dict()
    expected = {name: value.to(dtype).float() for name, value in load_file(both.run.model_file).items()}
    for form in ("saved", "bin"):
        import_model(tmp_path / form, None, None, None, None)
        found = load_file(run_named(form).model_file)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)
        for name in ("source.spm", "target.spm"):
            assert (run_named(form).tokenizer / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
