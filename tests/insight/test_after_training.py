"""The exports that follow a training: made by `nmt train`; a failure is a warning."""

import re
import sys
from pathlib import Path

import pytest
from conftest import Cli, assert_says
from made_runs import made_run

import nmt.insight.after_training
import nmt.interop.argos
from nmt.config.training import ExportConfig
from nmt.decoding.translator import load
from nmt.insight.after_training import export_after_training
from nmt.runs.folder import RunFolder


def test_a_training_is_followed_by_exports_and_a_refusal_is_a_warning(copy_task: Path, cli: Cli) -> None:
    """A model of words cannot be a MarianMT model; the export to CTranslate2 keeps its weights as they are."""
    assert ExportConfig().after_training == ("ctranslate2",)
    code, out, err = cli("train", str(copy_task), "--set", "export.after_training=[huggingface, ctranslate2]")
    assert (code, out) == (0, "")
    (refused,) = re.findall(r"^warning: no export to huggingface was made: .*", err, re.M)
    assert "tokenizer.type is word" in refused
    assert re.search(r"^export: runs/copy/export/ctranslate2-float32 \(\d+\.\d s\)$", err, re.M)
    assert [path.name for path in Path("runs/copy/export").iterdir()] == ["ctranslate2-float32"]
    assert load("runs/copy", device="cpu").engine_name == "ctranslate2, float32"
    code, _, err = cli("train", str(copy_task), "--set", "export.after_training=[ctranslate2]")  # it is finished
    assert (code, "export: " in err) == (0, False)


def test_a_missing_package_and_a_bug_are_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path, {"preset": "marian"})
    config = run.config().model_copy(update={"export": ExportConfig(after_training=("ctranslate2", "argos"))})
    monkeypatch.setitem(sys.modules, "ctranslate2", None)

    def broken(run: RunFolder, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(nmt.interop.argos, "export_argos", broken)
    capsys.readouterr()
    export_after_training(config, run)
    missing, bug = capsys.readouterr().err.splitlines()
    assert missing.startswith("warning: no export to ctranslate2 was made: CTranslate2 is not installed: ")
    assert_says(
        bug, "warning: no export to argos was made: ", "ZeroDivisionError", f"nmt export argos --model {run.path}"
    )
    assert not run.exports.exists()


def test_large_validation_sets_are_compared_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines from the whole of it, evenly spread."""
    monkeypatch.setattr(nmt.insight.after_training, "MAX_LINES", 5)
    run = made_run(tmp_path, {})
    capsys.readouterr()
    export_after_training(run.config(), run)
    assert capsys.readouterr().err == ""  # the configuration of this run wants none
    config = run.config().model_copy(update={"export": ExportConfig()})
    export_after_training(config, run)
    assert "\nexport: " in f"\n{capsys.readouterr().err}"
    from nmt.interop.verification import verification_text

    whole, part = verification_text(run, None, None), verification_text(run, None, None, max_lines=5)
    assert part.src == [whole.src[index] for index in (0, 3, 6, 9, 12)]
    assert part.references == [[whole.references[0][index] for index in (0, 3, 6, 9, 12)]]
