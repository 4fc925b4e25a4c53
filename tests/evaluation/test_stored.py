"""Evaluations in a run folder: its own ones, others, and damaged ones."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import nmt.evaluation.evaluate
import nmt.evaluation.stored
from nmt.corpora.pairs import Side
from nmt.decoding.hypothesis import Request
from nmt.evaluation.evaluate import evaluate_runs
from nmt.evaluation.metrics import Score, make_metrics
from nmt.evaluation.stored import Evaluated, store, stored_evaluations, stored_hypotheses
from nmt.runs.exports import ModelFile
from nmt.runs.folder import RunFolder
from tests.conftest import RUN_CONFIG


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run with weights of no model, whose test set is test.en and test.de."""
    monkeypatch.chdir(tmp_path)
    run = RunFolder(Path("runs/made"))
    run.path.mkdir(parents=True)
    run.config_file.write_text(RUN_CONFIG.replace("test.", f"{tmp_path}/test."), encoding="utf-8")
    save_file({"a": np.zeros((3, 5), np.float32)}, run.model_file)
    for side in ("en", "de"):
        Path(f"test.{side}").write_text("a\nb\n", encoding="utf-8")
    return run


def evaluated(run: RunFolder, name: str = "test", **changed: object) -> Evaluated:
    """An evaluation of the test set by the run's model as configured, but for what is changed."""
    text = hashlib.sha256(b"a\nb\n").hexdigest()
    signatures = {"bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp", "chrf": "s", "ter": "s"}
    values = {
        "test_set": name, "models": ("a",), "weights": (ModelFile.of(run.model_file),), "engine": "torch",
        "decoding": run.inference_config().decoding, "src_sha256": text, "references_sha256": (text,), "lines": 2,
        "scores": {metric: Score(metric, 20.0, signature) for metric, signature in signatures.items()},
    }  # fmt: skip
    return Evaluated.model_validate(values | changed)


class Echo:
    """A translator whose translations are the sources."""

    engine_name = "echo"

    def translate(self, lines: Sequence[str], numbers: Sequence[int], request: Request) -> list[str]:
        return [*lines]


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no /dev/fd")
def test_a_pipe_is_read_once(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for --ref <(command): read again, it is empty, or waits for ever."""
    monkeypatch.setattr(nmt.evaluation.evaluate, "load", lambda *arguments, **options: Echo())
    pipes = []
    for content in (b"one\n", b"two\n"):
        reader, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        pipes.append(reader)
    src, ref = (Side(Path(f"/dev/fd/{number}")) for number in pipes)
    metrics = make_metrics(("bleu",), "de")
    ((_, result),) = evaluate_runs([run], {"piped": (src, [ref])}, metrics, run.inference_config().decoding, "cpu")
    for number in pipes:
        os.close(number)
    assert result.file is not None
    content = json.loads(result.file.with_suffix(".json").read_text(encoding="utf-8"))
    assert content["src_sha256"] == hashlib.sha256(b"one\n").hexdigest()
    assert content["references_sha256"] == [hashlib.sha256(b"two\n").hexdigest()]


def test_a_damaged_evaluation_is_left_out_with_one_warning(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    own = store(run, evaluated(run), ["x", "y"])
    (run.evaluation / "damaged.json").write_text("{}", encoding="utf-8")
    assert [one.hypotheses for one in stored_evaluations(run)] == [own]
    assert stored_hypotheses(run, Side(Path("test.en"))) == ["x", "y"]
    assert [("damaged.json" in message, "remove" in message) for message in caplog.messages] == [(True, True)]
    own.with_suffix(".json").write_text("not JSON", encoding="utf-8")
    assert stored_hypotheses(run, Side(Path("test.en"))) is None


def test_a_model_is_hashed_once_for_all_evaluations(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for beam_size in range(2, 6):
        decoding = run.inference_config().decoding.model_copy(update={"beam_size": beam_size})
        store(run, evaluated(run, decoding=decoding), ["x", "y"])
    os.utime(run.model_file)  # as after a copy
    hashed = []

    def counted(path: Path) -> str:
        hashed.append(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr(nmt.evaluation.stored, "file_sha256", counted)
    assert len(stored_evaluations(run)) == 4
    assert hashed == [run.model_file]


def test_an_engine_by_option_makes_an_evaluation_of_its_own(run: RunFolder) -> None:
    own = store(run, evaluated(run, engine="torch"), ["x", "y"])
    forced = {"engine": "ctranslate2, int8", "requested_engine": "ctranslate2"}
    other = store(run, evaluated(run, **forced), ["u", "v"])
    assert own != other
    found = [(one.hypotheses, one.deviation) for one in stored_evaluations(run)]
    assert found == [(own, ""), (other, "engine ctranslate2, int8")]
    src = Side(Path("test.en"))
    of_engines = {engine: stored_hypotheses(run, src, engine) for engine in ("auto", "torch", "ctranslate2")}
    assert of_engines == {"auto": ["x", "y"], "torch": ["x", "y"], "ctranslate2": ["u", "v"]}


def test_another_text_is_not_the_runs_own(run: RunFolder) -> None:
    own = store(run, evaluated(run), ["x", "y"])
    other = store(run, evaluated(run, "other.en"), ["x", "y"])
    assert [(one.hypotheses, one.deviation) for one in stored_evaluations(run)] == [
        (own, ""), (other, "not a text of data.test")
    ]  # fmt: skip


def test_advice_follows_all_reasons_where_it_helps(run: RunFolder) -> None:
    own = store(run, evaluated(run), ["x", "y"])
    case = {"bleu": Score("bleu", 20.0, "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp")}
    other = store(run, evaluated(run, scores=case), ["x", "y"])
    save_file({"a": np.ones((3, 5), np.float32)}, run.model_file)
    assert {one.hypotheses: one.deviation for one in stored_evaluations(run)} == {
        own: "an earlier model; run nmt eval again", other: "an earlier model, metrics bleu, case ignored"
    }  # fmt: skip
