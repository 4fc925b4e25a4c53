"""Argos packages: their structure, and that they translate as the run does, searched as Argos Translate does."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import ctranslate2
import pytest
import sentencepiece
from conftest import Cli, has_exact_int8
from made_runs import LINES, made_run, text
from marian_models import TAGS, sentences, write_folder

import nmt.interop.verification
from nmt.config.inference import InferenceConfig
from nmt.corpora.hashes import file_hashes
from nmt.decoding.translator import load
from nmt.errors import ExportError, RunError
from nmt.interop.argos import argos_code, export_argos, metadata
from nmt.interop.importing import import_model
from nmt.runs.folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return made_run(tmp_path_factory.mktemp("argos"), {"preset": "marian"})


@pytest.fixture(scope="module")
def package(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's folder, unpacked as `package.install_from_path` of argostranslate does."""
    result = export_argos(run, "float32", device="cpu")
    assert all(comparison.same_lines >= LINES - 1 for comparison in result.comparisons)
    folder = tmp_path_factory.mktemp("packages")
    with zipfile.ZipFile(run.exports / "argos" / "made.argosmodel") as archive:
        archive.extractall(folder)
    (top,) = folder.iterdir()
    return top


def as_argos_translates(package: Path, lines: list[str]) -> list[str]:
    """The calls of argostranslate 1.11: tokenizer.py, and `apply_packaged_translation` in translate.py."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(package / "sentencepiece.model"))
    translator = ctranslate2.Translator(str(package / "model"), device="cpu", compute_type="auto")
    found = []
    for line in lines:
        (result,) = translator.translate_batch(
            [processor.encode(line, out_type=str)], target_prefix=None, replace_unknowns=True, max_batch_size=32,
            batch_type="tokens", beam_size=4, num_hypotheses=1, length_penalty=0.2, return_scores=True,
        )  # fmt: skip
        value = processor.decode_pieces(list(result.hypotheses[0])).replace("▁", " ").replace("_", " ")
        found.append(value[1:] if value.startswith(" ") else value)
    return found


def test_a_package_has_one_folder_with_all_that_argos_reads(run: RunFolder, package: Path) -> None:
    assert {path.name for path in (run.exports / "argos").iterdir()} == {"made.argosmodel", "export.json"}
    assert package.name == "translate-en_de-made"
    names = {"metadata.json", "README.md", "export.json", "sentencepiece.model", "model"}
    assert {path.name for path in package.iterdir()} == names
    described = json.loads((package / "metadata.json").read_text())
    assert {key: described[key] for key in ("from_code", "from_name", "to_code", "to_name")} == {
        "from_code": "en", "from_name": "English", "to_code": "de", "to_name": "German"
    }  # fmt: skip
    assert json.loads((package / "model" / "config.json").read_text())["add_source_eos"] is True
    assert (package / "sentencepiece.model").read_bytes() == (run.tokenizer / "joint.model").read_bytes()
    said = json.loads((run.exports / "argos" / "export.json").read_text())
    assert said["model"]["sha256"] == file_hashes([run.model_file])[0].hex()
    assert (said["base"], said["license"], said["quantization"]) == (None, "unknown", "float32")
    assert said["model"]["sha256"] in (package / "README.md").read_text(encoding="utf-8")


@has_exact_int8
def test_a_package_translates_as_its_run_does(run: RunFolder, package: Path) -> None:
    settings = {"beam_size": 4, "length_penalty": 0.2, "max_length_ratio": 1000.0, "max_length": 256, "copied": ()}
    decoding = run.inference_config().decoding.model_copy(update=settings)
    lines = text(20, seed=7)
    expected = load(run.path, engine="torch", device="cpu", decoding=decoding).translate(lines)
    assert len(set(expected)) > 7
    assert sum(one == other for one, other in zip(as_argos_translates(package, lines), expected, strict=True)) >= 17


def test_no_package_emits_padding_a_start_or_unknown_pieces(run: RunFolder, package: Path) -> None:
    """Argos forbids no piece, so the model's logits do."""
    translator = ctranslate2.Translator(str(package / "model"), device="cpu")
    (scored,) = translator.score_batch([["▁"]], [["<pad>", "<s>", "<unk>", "▁"]])
    assert max(scored.log_probs[:3]) < -9_000
    assert scored.log_probs[3] > -9_000


def test_two_sentencepiece_models_go_as_the_one_of_the_source(tmp_path: Path) -> None:
    """Argos returns the pieces that this one lacks as they are, and replaces their mark of a space."""
    run = made_run(tmp_path, {"preset": "marian"}, joint=False)
    result = export_argos(run, "float32", device="cpu")
    assert "joins translations with the source's SentencePiece model" in result.notes[0]
    assert all(comparison.same_lines >= LINES - 1 for comparison in result.comparisons)


@pytest.mark.slow
def test_imported_models_go_and_those_with_target_tags_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{line}\n" for line in sentences("source", 2)), encoding="utf-8")
    for name, tags, tag in (("plain", (), None), ("tagged", TAGS, "deu")):
        write_folder(tmp_path / name, tags=tags)
        import_model(tmp_path / name, None, "en", "zh", tag)
    monkeypatch.setattr(nmt.interop.verification, "BLEU_DIFFERENCE", 100)  # outputs of random models are endless
    result = export_argos(RunFolder(Path("runs/plain")), "float32", lines, lines, "cpu")
    with zipfile.ZipFile(Path(result.folder) / "plain.argosmodel") as archive:
        spm = archive.read("translate-en_zh-plain/sentencepiece.model")
        vocabulary = json.loads(archive.read("translate-en_zh-plain/model/shared_vocabulary.json"))
        assert json.loads(archive.read("translate-en_zh-plain/export.json"))["base"]["name"] == "plain"
    assert spm == (tmp_path / "plain" / "source.spm").read_bytes()
    pieces = json.loads((tmp_path / "plain" / "vocab.json").read_text(encoding="utf-8"))
    assert vocabulary == sorted(pieces, key=pieces.__getitem__)
    with pytest.raises(RunError, match="reads target tags such as >>deu<< before each source, which no Argos package"):
        export_argos(RunFolder(Path("runs/tagged")), "float32", lines, lines, "cpu")


def test_a_model_of_words_is_refused(tmp_path: Path) -> None:
    run = made_run(tmp_path, {}, words=True)
    with pytest.raises(RunError, match=r"tokenizer\.type is word; train with model\.preset: argos"):
        export_argos(run, device="cpu")
    assert not run.exports.exists()


def test_a_package_that_translates_worse_is_refused_with_its_own_command(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nmt.interop.verification, "BLEU_DIFFERENCE", -1000.0)
    with pytest.raises(ExportError, match=rf"not kept.*nmt export argos --model {run.path} --quantization int16$"):
        export_argos(run, "int8", device="cpu", max_lines=1)


def test_a_long_sentence_is_no_error(package: Path) -> None:
    """Argos knows nothing of the model's 320 positions; CTranslate2 cuts a source after 1,024 pieces."""
    assert as_argos_translates(package, [" ".join(["ein mann"] * 900)])[0]


def test_learned_positions_that_argos_exceeds_are_refused(tmp_path: Path) -> None:
    run = made_run(tmp_path, {"positions": "learned"})
    with pytest.raises(RunError, match=r"has learned 320 positions \(model\.max_positions\); train with"):
        export_argos(run, device="cpu")


def test_the_command(run: RunFolder, package: Path, cli: Cli) -> None:
    code, out, err = cli("export", "argos", "--model", str(run.path), "--device", "cpu", "--quantization", "float32")
    assert (code, err) == (0, "")
    assert f"{LINES} lines, translated with PyTorch and with the export" in out
    assert f"argospm install {run.exports / 'argos' / 'made.argosmodel'}" in out


@pytest.mark.parametrize(
    ("language", "code", "name"),
    [("de", "de", "German"), ("zh-Hant", "zt", "Chinese (traditional)"), ("pt-BR", "pb", "Portuguese (Brazil)"),
     ("nob", "nb", "Norwegian (Bokmål)"), ("mul", "mul", "mul")],
)  # fmt: skip
def test_languages_have_argos_codes(language: str, code: str, name: str) -> None:
    assert argos_code(language) == code
    assert metadata((code, "en"), "2026.11.23")["from_name"] == name


def test_the_preset_says_before_training_what_argos_needs() -> None:
    data = {"src_lang": "en", "tgt_lang": "de"}
    config = InferenceConfig(data=data, model={"preset": "argos"})
    assert (config.model.norm, config.tokenizer.joint) == ("pre", True)  # CTranslate2 has all Transformers
    for tokenizer, message in (
        ({"joint": False}, "model.preset: argos needs tokenizer.joint: true"),
        ({"type": "word"}, "model.preset: argos needs a SentencePiece tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            InferenceConfig(data=data, model={"preset": "argos", "tie_embeddings": "none"}, tokenizer=tokenizer)


REAL = """
import json, os, sys
from pathlib import Path
from argostranslate import package, sbd, translate
package.install_from_path(Path(sys.argv[1]))
sbd.MiniSBDSentencizer.__init__ = lambda self, pkg: None  # its model would be downloaded
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
(installed,) = package.get_installed_packages()
print(json.dumps([translate.translate(line, installed.from_code, installed.to_code) for line in json.load(sys.stdin)]))
"""


@pytest.mark.parametrize("variable", ["ARGOS_PYTHON", "ARGOS_LT_PYTHON"])
def test_the_real_argos_translate_installs_it_and_translates(
    run: RunFolder, package: Path, variable: str, tmp_path: Path
) -> None:
    """The variables name a Python with argostranslate 1.11, and one with LibreTranslate's argos-translate-lt 1.12.1."""
    if not (python := os.environ.get(variable)):
        if importlib.util.find_spec("argostranslate") is None or variable == "ARGOS_LT_PYTHON":
            pytest.skip(f"{variable} names no Python with Argos Translate: docs/exporting.md")
        python = sys.executable
    lines = text(20, seed=8)[:-1]
    folders = dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(tmp_path))
    file = run.exports / "argos" / "made.argosmodel"
    done = subprocess.run(
        [python, "-W", "ignore", "-c", REAL, str(file)], input=json.dumps(lines), capture_output=True, text=True,
        env={**os.environ, **folders, "ARGOS_PACKAGES_DIR": str(tmp_path / "packages")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == as_argos_translates(package, lines)
