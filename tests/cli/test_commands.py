"""The command line: a task solved end to end, standard output and standard error, and the message of every mistake."""

import gzip
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
import zipfile
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch
from conftest import Cli, assert_says, refused
from safetensors.torch import load_file, save_file

import nmt
from nmt.config.inference import DecodingConfig
from nmt.config.reading import load_config
from nmt.corpora.pairs import Side
from nmt.errors import ConfigError, RunError
from nmt.evaluation.stored import stored_hypotheses
from nmt.runs.folder import RunFolder, run_named
from nmt.training.resuming import check_same


def test_the_copy_task_is_solved(in_solved: Path, cli: Cli) -> None:
    code, out, _ = cli("eval", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["scores"]["bleu"]["value"] > 95, result
    hypotheses = Path(result["hypotheses"]).read_text().splitlines()
    references = Path("test.de").read_text().splitlines()
    expected = sacrebleu.corpus_bleu(hypotheses, [references])
    assert result["scores"]["bleu"]["value"] == pytest.approx(expected.score)
    assert result["lines"] == len(hypotheses) == 50


def test_eval_prints_a_line_a_metric_with_its_signature(in_solved: Path, cli: Cli) -> None:
    code, out, _ = cli("eval")
    assert code == 0
    assert re.search(r"^test\n  BLEU +\d+\.\d\d  nrefs:1\|.*tok:13a", out)
    assert re.search(r"^  chrF2 .*\n  TER ", out, re.MULTILINE)


def test_eval_of_other_files_with_several_references(in_solved: Path, cli: Cli) -> None:
    Path("wrong.de").write_text("1 2 3\n" * 50)
    arguments = ["eval", "--src", "val.en", "--ref", "wrong.de", "--ref", "val.de", "--json", "--beam-size", "1"]
    code, out, _ = cli(*arguments)
    assert code == 0
    result = json.loads(out)
    assert "nrefs:2" in result["scores"]["bleu"]["signature"]
    assert result["scores"]["bleu"]["value"] > 90


def test_eval_scores_an_existing_file(in_solved: Path, cli: Cli) -> None:
    code, out, _ = cli("eval", "--hyp", "test.de", "--ref", "test.de", "--json")
    assert (code, json.loads(out)["scores"]["bleu"]["value"]) == (0, pytest.approx(100))
    hypotheses, references = (Path(name).read_text().splitlines() for name in ("test.de", "val.de"))
    expected = sacrebleu.corpus_bleu(hypotheses, [references]).score
    _, out, _ = cli("eval", "--hyp", "test.de", "--ref", "val.de", "--json")
    assert json.loads(out)["scores"]["bleu"]["value"] == pytest.approx(expected, abs=1e-4)


def _as_table(kind: str, src: str, ref: str) -> str:
    """The file with both sides of a corpus in this format, made from two texts."""
    pairs = list(zip(Path(src).read_text().splitlines(), Path(ref).read_text().splitlines(), strict=True))
    path = Path(f"both.{kind}")
    if kind == "tsv.gz":
        path.write_bytes(gzip.compress("".join(f"{one}\t{other}\n" for one, other in pairs).encode()))
    elif kind == "csv":
        path.write_text("de,note,en\n" + "".join(f"{other},,{one}\n" for one, other in pairs))
    else:
        units = "".join(
            f'<tu><tuv xml:lang="de-AT"><seg>{other}</seg></tuv><tuv xml:lang="en"><seg>{one}</seg></tuv></tu>'
            for one, other in pairs
        )
        path.write_text(f'<tmx version="1.4"><header srclang="en"/><body>{units}</body></tmx>')
    return str(path)


@pytest.mark.parametrize("kind", ["tsv.gz", "csv", "tmx"])
def test_eval_of_a_file_with_both_sides_is_that_of_two_texts(in_solved: Path, cli: Cli, kind: str) -> None:
    lines = Path("val.de").read_text().splitlines(keepends=True)
    Path("other.de").write_text("".join(reversed(lines)))  # the copy task has the same text on both sides
    both = _as_table(kind, "val.en", "other.de")
    found = [
        json.loads(cli("eval", *text, "--json", "--beam-size", "1")[1])
        for text in (("--src", both), ("--src", "val.en", "--ref", "other.de"))
    ]
    assert [one["test_set"] for one in found] == [both, "val.en"]
    assert found[0]["scores"] == found[1]["scores"]
    assert Path(found[0]["hypotheses"]).read_bytes() == Path(found[1]["hypotheses"]).read_bytes()
    command = ("eval", "--hyp", "test.de", "--json")
    expected = cli(*command, "--ref", "other.de")
    if kind != "tsv.gz":
        assert cli(*command, "--src", both, "--tgt-lang", "de") == expected
    else:  # nothing in it names a language
        assert "name its columns or fields after their languages" in cli(*command, "--src", both)[2]


@pytest.mark.parametrize(
    ("search", "recorded"),
    [
        (["--mbr", "3", "--seed", "7", "--temperature", "4"], ("sampling", {"count": 3, "seed": 7, "by_risk": True})),
        (
            ["--sample", "--top-k", "5", "--temperature", "4"],
            ("sampling", {"count": 1, "seed": 1, "top_k": 5, "by_risk": False}),
        ),
        (["--max-length", "3", "--forbid", "7"], ("decoding", {"max_length": 3, "forbidden_words": ["7"]})),
    ],
)
def test_eval_searches_as_translate_does_and_records_it(
    in_solved: Path, cli: Cli, search: list[str], recorded: tuple[str, dict[str, object]]
) -> None:
    for side in ("en", "de"):
        Path(f"few.{side}").write_text("".join(Path(f"test.{side}").read_text().splitlines(keepends=True)[:12]))
    expected = cli("translate", "--input", "few.en", *search)[1]
    code, out, err = cli("eval", "--src", "few.en", "--ref", "few.de", "--json", *search)
    assert code == 0, err
    written = Path(json.loads(out)["hypotheses"])
    assert written.read_text() == expected != Path("few.de").read_text()
    about = json.loads(written.with_suffix(".json").read_text())
    assert about[recorded[0]].items() >= recorded[1].items()
    run = RunFolder(in_solved / "runs" / "copy")
    assert stored_hypotheses(run, Side(Path("few.en"))) is None  # not what the run is configured to do


def test_translate_an_argument_a_file_and_standard_input(in_solved: Path, cli: Cli) -> None:
    assert cli("translate", "3 1 4 1 5") == (0, "3 1 4 1 5\n", "")
    assert cli("translate", "3", "1", "4") == (0, "3 1 4\n", "")
    lines = "7 7 1\n\n1 2\r\n   \n9 8 7 6"
    expected = "7 7 1\n\n1 2\n\n9 8 7 6\n"
    Path("in.txt").write_bytes(lines.encode())
    Path("in.txt.gz").write_bytes(gzip.compress(lines.encode()))
    assert cli("translate", "--input", "in.txt")[:2] == (0, expected)
    assert cli("translate", "--input", "in.txt.gz", "--output", "out.txt")[:2] == (0, "")
    assert Path("out.txt").read_bytes() == expected.encode()
    piped = subprocess.run([sys.executable, "-m", "nmt", "translate"], input=lines.encode(), capture_output=True)
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, expected.encode(), b"")


def test_an_empty_text_is_an_empty_line(in_solved: Path, cli: Cli) -> None:
    assert cli("translate", "") == (0, "\n", "")


def test_a_line_too_long_is_split_with_a_warning_that_names_it(
    in_solved: Path, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    Path("long.txt").write_text("1 2\n" + "5 " * 30 + "\n3 4\n")
    code, out, _ = cli("translate", "--input", "long.txt")
    assert (code, out.count("\n")) == (0, 3)
    assert "line 2: more than 20 pieces (data.max_length)" in caplog.text


@pytest.mark.slow
def test_a_conversation_on_a_terminal(in_solved: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "nmt", "translate"], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"> " not in seen:
        seen += os.read(ours, 1000)
    os.write(ours, b"8 0 8\n")
    while seen.count(b"> ") < 2:
        seen += os.read(ours, 1000)
    os.write(ours, b"\x04")
    assert process.wait(timeout=60) == 0
    os.close(ours)
    assert re.search(rb"> 8 0 8\r\n8 0 8\r\n> ", seen)


CONVERSATION = """
from nmt.cli.translate import _translate_typed
from nmt.system.console import show_messages

show_messages()
_translate_typed(None, lambda line: line.encode().decode().upper())
"""


def test_of_a_conversation_the_output_has_the_translations_alone(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    os.write(ours, b"caf\xe9\nabc\n\x04")
    environment = os.environ | {"LC_ALL": "C"}  # as in Docker: what is not UTF-8 is read as surrogates
    with (tmp_path / "out.txt").open("wb") as output:
        command = [sys.executable, "-c", CONVERSATION]
        process = subprocess.run(command, stdin=theirs, stdout=output, stderr=theirs, env=environment, timeout=60)
    shown = os.read(ours, 10000)
    os.close(ours)
    os.close(theirs)
    assert (process.returncode, (tmp_path / "out.txt").read_bytes()) == (0, b"ABC\n"), shown
    assert re.sub(rb"\x1b\[[\d;]*m", b"", shown) == b"end with Ctrl-D\r\n> nmt: not UTF-8\r\n> > \r\n"


@pytest.mark.slow
def test_a_bar_on_a_terminal_and_plain_lines_elsewhere(copy_task: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    command = [sys.executable, "-m", "nmt", "train", "copy.yaml"]
    process = subprocess.Popen(command, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 10000):
            seen += data
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    assert b"12/12" in seen
    assert re.search(rb"loss \d\.\d+, tokens/s [\d,]+, lr \S+\]", seen)
    assert b"step 3  epoch" not in seen
    plain = subprocess.run([*command, "--name", "other"], capture_output=True, text=True)
    assert "12/12" not in plain.stderr
    assert re.search(r"^step 3  epoch 1  loss \d\.\d+  lr \S+  tokens/s [\d,]+  left \d:\d\d$", plain.stderr, re.M)
    assert re.search(r"about \d:\d\d left", plain.stderr)


def test_from_python(in_solved: Path) -> None:
    assert nmt.load("runs/copy").translate(["1 2 3", "", "9 9"]) == ["1 2 3", "", "9 9"]
    assert nmt.load().translate(["4 5"]) == ["4 5"]
    with pytest.raises(TypeError, match="a list of lines"):
        nmt.load().translate("4 5")


def test_settings_beyond_the_models_limits_are_refused(in_solved: Path) -> None:
    with refused(ConfigError, "runs/copy: decoding.max_length (64)", "max_positions (64)"):
        nmt.load(decoding=DecodingConfig(max_length=64))


@pytest.mark.parametrize("beam_size", ["1", "3"])
def test_a_model_that_has_diverged_is_one_message(in_solved: Path, tmp_path: Path, cli: Cli, beam_size: str) -> None:
    run = shutil.copytree("runs/copy", tmp_path / "diverged")
    weights = {name: torch.full_like(value, torch.nan) for name, value in load_file(run / "model.safetensors").items()}
    save_file(weights, run / "model.safetensors")
    code, out, err = cli("translate", "--model", str(run), "--beam-size", beam_size, "1 2")
    assert (code, out) == (3, "")
    assert "its training has diverged" in err


def test_a_run_folder_alone_translates_elsewhere(in_solved: Path, tmp_path: Path, cli: Cli) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("config.yaml", "model.safetensors", "tokenizer"):
        subprocess.run(["cp", "-r", f"runs/copy/{name}", str(moved)], check=True)
    os.chdir(tmp_path)
    assert cli("translate", "--model", "moved", "2 4 6") == (0, "2 4 6\n", "")


@pytest.fixture
def two_runs(solved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Path:
    """A copy of the folder with a second, smaller model that was trained briefly."""
    folder = shutil.copytree(solved, tmp_path / "two")
    monkeypatch.chdir(folder)
    code, _, err = cli("train", "copy.yaml", "--name", "other", "--set", "training.seed=2")
    assert code == 0, err
    return folder


def test_several_models_translate_together(two_runs: Path, cli: Cli) -> None:
    Path("lines.txt").write_text("3 1 4 1 5\n\n2 7 1 8\n")

    def translated(*models: str) -> str:
        options = [argument for model in models for argument in ("--model", model)]
        code, out, _ = cli("translate", *options, "--input", "lines.txt")
        assert code == 0
        return out

    together = translated("other", "runs/copy")
    assert together == "3 1 4 1 5\n\n2 7 1 8\n"  # the trained one is sure, the other is not
    assert together == translated("copy", "other")
    other = translated("other")
    assert other != together
    assert other == translated("other", "other")
    assert other == translated()  # the newest
    assert nmt.load(["other", "copy"]).translate(["3 1 4 1 5", ""]) == ["3 1 4 1 5", ""]


def test_eval_of_several_models_leaves_the_first_ones_files(two_runs: Path, cli: Cli) -> None:
    alone = json.loads(cli("eval", "--model", "other", "--json")[1])
    before = Path("runs/other/evaluation/test.hyp").read_bytes()
    code, out, _ = cli("eval", "--model", "other", "--model", "copy", "--json")
    together = json.loads(out)
    assert code == 0
    assert together["scores"]["bleu"]["value"] > alone["scores"]["bleu"]["value"] + 50
    stored = Path(together["hypotheses"])
    assert (str(stored.parent), stored.name.startswith("test.")) == ("runs/other/evaluation", True)
    assert Path("runs/other/evaluation/test.hyp").read_bytes() == before
    description = json.loads(stored.with_suffix(".json").read_text())
    assert description["models"] == ["runs/other", "runs/copy"]
    assert description["scores"] == together["scores"]


def test_scores_that_cannot_be_stored_are_printed(two_runs: Path, cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    """As in a run on a read-only disk: here, a file is in the folder's place."""
    expected = json.loads(cli("eval", "--model", "copy", "--json")[1])
    for name in ("copy", "other"):
        shutil.rmtree(f"runs/{name}/evaluation", ignore_errors=True)
        Path(f"runs/{name}/evaluation").touch()
    code, out, _ = cli("eval", "--model", "copy", "--json")
    assert (code, json.loads(out)) == (0, {**expected, "hypotheses": None})
    assert_says(caplog.messages[-1], "runs/copy/evaluation: ", "not stored")
    assert re.search(r"50 lines in \d", cli("eval", "--model", "copy")[1])
    code, out, _ = cli("compare", "copy", "other", "--samples", "2")
    assert (code, "baseline copy" in out) == (0, True)


@pytest.mark.parametrize("command", [["translate", "1 2"], ["eval"]])
def test_models_with_different_vocabularies_are_one_message(two_runs: Path, cli: Cli, command: list[str]) -> None:
    assert cli("train", "copy.yaml", "--name", "fewer", "--set", "tokenizer.vocab_size=9")[0] == 0
    code, out, err = cli(*command, "--model", "copy", "--model", "fewer")
    assert (code, out) == (2, "")
    assert err.startswith("nmt: runs/copy and runs/fewer have different vocabularies"), err
    assert err.count("\n") == 1


def test_vocab_reports_and_train_uses_what_it_built(copy_task: Path, cli: Cli) -> None:
    code, out, _ = cli("vocab", "copy.yaml", "--json", "--set", "tokenizer.joint=false",
                       "--set", "model.tie_embeddings=none")  # fmt: skip
    assert code == 0
    assert json.loads(out)["src"] == {
        "language": "en",
        "vocab_size": 14,
        "pieces_per_word": 1.0,
        "characters_per_piece": 1.0,
        "unknown_share": 0.0,
        "byte_share": 0.0,
        "longest": 8,
        "too_long": 0,
        "first_line": Path("val.en").read_text().splitlines()[0].split(),
    }
    assert {path.name for path in Path("runs/copy/tokenizer").iterdir()} == {"src.words", "tgt.words", "tokenizer.json"}
    code, out, _ = cli("vocab", "copy.yaml", "--set", "tokenizer.vocab_size=9")
    assert code == 0
    assert re.search(r"^tgt \(de\): 9 pieces; .* \d\d\.\d\d% <unk>, 0\.00% bytes$", out, re.M)
    before = Path("runs/copy/tokenizer").stat().st_ino
    assert cli("train", "copy.yaml", "--set", "tokenizer.vocab_size=9", "--set", "training.max_steps=1")[0] == 0
    assert Path("runs/copy/tokenizer").stat().st_ino == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "copy.yaml", "--config", "copy.yaml"], "name one configuration"),
        (["train", "copy.yaml", "--set", "tokenizer.type=bpe", "--set", "tokenizer.vocab_size=9000"],
         r"tokenizer\.vocab_size \(9,000\) is larger than the training corpus allows; set it to \d+ or less"),
        (["eval", "--hyp", "test.en", "--ref", "both.tmx"],
         "both.tmx holds both sides of a test set; name it as"),
        (["eval", "--hyp", "test.en", "--ref", "test.de", "--beam-size", "3"],
         "nothing is translated: leave out --beam-size"),
        (["eval", "--hyp", "test.en", "--ref", "test.de", "--length-penalty", "0"], "leave out --length-penalty"),
        (["eval", "--hyp", "test.en", "--ref", "test.de", "--precision", "fp32"], "leave out --precision"),
        (["eval", "--hyp", "test.en", "--ref", "test.de", "--device", "cpu", "--engine", "auto"],
         "leave out --device, --engine"),
        (["eval", "--hyp", "test.en", "--ref", "test.de", "--mbr", "4", "--top-k", "3"], "leave out --mbr, --top-k"),
        (["eval", "--top-k", "3"], "--top-k: only for sampling; add --sample or --mbr N"),
        (["eval", "--mbr", "3", "--beam-size", "2"], "--beam-size is for a search"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_plain_message_and_loses_nothing(
    copy_task: Path, cli: Cli, arguments: list[str], message: str
) -> None:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    code, out, err = cli(*arguments)
    assert (code, out) == (2, ""), err
    assert re.search(message, err), err
    assert "Traceback" not in err
    after = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert before.items() <= after.items()


@pytest.fixture
def with_checkpoints(copy_task: Path, cli: Cli) -> Path:
    """The copy task after 24 steps, with checkpoints at 4, 8, ... 24."""
    settings = ["max_steps=24", "validate_every=4", "keep_checkpoints=6", "best_metric=loss"]
    code, _, err = cli("train", "copy.yaml", *(part for key in settings for part in ("--set", f"training.{key}")))
    assert code == 0, err
    return copy_task


def assert_mean_of(run: str, steps: list[int]) -> None:
    parts = [load_file(f"runs/copy/checkpoints/{step}/model.safetensors") for step in steps]
    for name, value in load_file(f"runs/{run}/model.safetensors").items():
        expected = np.mean([part[name].double().numpy() for part in parts], axis=0).astype(np.float32)
        np.testing.assert_array_equal(value.numpy(), expected)


def test_average_makes_a_run_of_the_last_and_of_the_best_checkpoints(with_checkpoints: Path, cli: Cli) -> None:
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    code, out, err = cli("average", "--last", "3", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["runs"], result["average"], result["steps"]) == (["runs/copy"], "runs/copy-average", [16, 20, 24])
    assert_mean_of("copy-average", [16, 20, 24])
    files = {str(path.relative_to("runs/copy-average")) for path in Path("runs/copy-average").rglob("*")}
    assert files == {"config.yaml", "tokenizer", "tokenizer/joint.words", "tokenizer/tokenizer.json",
                     "model.safetensors", "average.json"}  # fmt: skip
    assert json.loads(Path("runs/copy-average/average.json").read_text()) == result
    for run, scores in (("copy", result["run_scores"][0]), ("copy-average", result["average_scores"])):
        _, out, _ = cli("eval", "--model", run, "--src", "val.en", "--ref", "val.de", "--json")
        assert json.loads(out)["scores"] == scores
    shutil.rmtree("runs/copy/evaluation")

    code, out, err = cli("average", "--model", "copy", "--last", "2", "--name", "two")
    assert (code, err) == (0, "")
    assert out.startswith("runs/two: the mean of 2 checkpoints (steps 20, 24) of runs/copy\n")
    assert re.search(r"^validation +runs/copy +average\nBLEU +\d+\.\d\d +\d+\.\d\d$", out, re.M)
    assert_mean_of("two", [20, 24])

    # The checkpoints that the run keeps by default, unchanged.
    assert cli("average", "--name", "default")[0] == 0
    assert_mean_of("default", [4, 8, 12, 16, 20, 24])
    after = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    assert before.items() <= after.items()
    assert all(path.name.endswith(".lock") for path in Path("runs").glob(".*"))


def test_another_layout_is_another_run(copy_task: Path) -> None:
    """`model.layout` is dumped only where it is not our own."""
    own, marian = (load_config(copy_task, ["tokenizer.type=bpe", *more]) for more in ([], ["model.preset=marian"]))
    for old, new in ((own, marian), (marian, own)):
        with pytest.raises(RunError, match=r"model\.layout: .*marianmt"):
            check_same(old, new, run_named("copy"))


def test_an_average_is_never_replaced_silently(with_checkpoints: Path, cli: Cli) -> None:
    assert cli("average")[0] == 0
    before = {path: path.read_bytes() for path in Path("runs/copy-average").rglob("*") if path.is_file()}
    for arguments, message in [
        (["average"], "runs/copy-average exists already; .*--name"),
        (["average", "--model", "copy-average"], "runs/copy-average: there are 0 checkpoints"),
        (["train", "copy.yaml", "--name", "copy-average"], "no training to resume.* --fresh"),
    ]:
        code, out, err = cli(*arguments)
        assert (code, out) == (2, ""), err
        assert re.search(message, err), err
        assert not Path("runs/x").exists()
    assert {path: path.read_bytes() for path in Path("runs/copy-average").rglob("*") if path.is_file()} == before
    assert cli("train", "copy.yaml", "--name", "copy-average", "--fresh")[0] == 0
    assert (
        Path("runs/copy-average.old1/model.safetensors").read_bytes()
        == before[Path("runs/copy-average/model.safetensors")]
    )


def test_average_makes_a_run_of_the_models_of_several_runs_with_one_start(with_checkpoints: Path, cli: Cli) -> None:
    tuning = ["--init-from", "copy", "--set", "training.max_steps=8", "--set", "training.best_metric=loss"]
    for seed in ("1", "2"):
        code, _, err = cli("train", "copy.yaml", "--name", f"tuned_{seed}", *tuning, "--set", f"training.seed={seed}")
        assert code == 0, err
    three = ["--model", "tuned_1", "--model", "tuned_2", "--model", "copy"]
    code, out, err = cli("average", *three, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["runs"] == ["runs/tuned_1", "runs/tuned_2", "runs/copy"]
    assert (result["average"], result["steps"]) == ("runs/tuned_1-average", [])
    parts = [load_file(f"{run}/model.safetensors") for run in result["runs"]]
    for name, value in load_file("runs/tuned_1-average/model.safetensors").items():
        expected = np.mean([part[name].double().numpy() for part in parts], axis=0).astype(np.float32)
        np.testing.assert_array_equal(value.numpy(), expected)
    for run, scores in zip([*result["runs"], result["average"]], [*result["run_scores"], result["average_scores"]],
                           strict=True):  # fmt: skip
        _, out, _ = cli("eval", "--model", run, "--src", "val.en", "--ref", "val.de", "--json")
        assert json.loads(out)["scores"] == scores
    code, out, _ = cli("average", *three[:4], "--name", "two")
    assert out.startswith("runs/two: the mean of the models of runs/tuned_1, runs/tuned_2\n")
    assert re.search(r"^BLEU +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d$", out, re.M) and "\nBLEU   nrefs:1" in out
    code, out, err = cli("report", "--model", "two")
    assert code == 0, err
    assert "the mean of the models of the runs tuned_1, tuned_2" in Path("runs/two/report/index.html").read_text()

    # Models whose mean says nothing.
    assert cli("export", "ctranslate2", "--model", "tuned_2", "--quantization", "float32")[0] == 0
    exported = "runs/tuned_2/export/ctranslate2-float32"
    assert cli("train", "copy.yaml", "--name", "apart", "--set", "training.max_steps=4")[0] == 0
    for arguments, message in [
        ([*three, "--last", "2"], "--last chooses checkpoints of one run"),
        (three, "runs/tuned_1-average exists already"),
        (["--model", "tuned_1", "--model", exported, "--name", "x"], "float32: holds no training configuration"),
        (["--model", "tuned_1", "--model", "runs/tuned_1", "--name", "x"], "have the same model; name each once"),
        (["--model", "tuned_1", "--model", "apart", "--name", "x"],
         r"runs/apart does not have the same base model \(training.init_from\) as runs/tuned_1"),
    ]:  # fmt: skip
        code, out, err = cli("average", *arguments)
        assert (code, out) == (2, "")
        assert re.search(message, err), err
        assert not Path("runs/x").exists()


def test_an_average_that_is_not_scored_leaves_nothing(with_checkpoints: Path, cli: Cli) -> None:
    Path("val.de").write_text("1 2\n")
    code, out, err = cli("average")
    assert (code, out) == (2, "")
    assert "every line needs its reference" in err
    assert [path.name for path in Path("runs").glob("*average*")] == [".copy-average.lock"]


def test_text_of_a_corpus_does_not_move_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("t.en", "t.de", "hyp.de"):
        lines = [f"\x1b[2J\u202e{name} {number}\x9b" for number in range(60)]
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    Path("run.yaml").write_text(
        "data: {train: {src: t.en, tgt: t.de}, validation: {src: t.en, tgt: t.de}}\ntokenizer: {type: char}\n"
        "training: {max_steps: 1}\n"
    )
    with zipfile.ZipFile("t.zip", "w") as archive:
        archive.writestr("\x1b[2J.en", "a\n")
        archive.writestr("\x1b[2J.de", "a\n")
    commands = (
        ("vocab", "run.yaml"), ("compare", "--hyp", "t.de", "--hyp", "hyp.de", "--ref", "t.de"),
        ("init", "--src", "t.en", "--tgt", "t.de", "--no-trial"), ("data", "t.zip", "--src-lang", "en"),
    )  # fmt: skip
    for command in commands:
        _, out, err = cli(*command)
        assert "\ufffd" in out + err, command
        assert not re.search("[\x1b\x9b\u202e]", out + err), command


def test_help_and_version(cli: Cli) -> None:
    code, out, _ = cli("--help")
    assert code == 0
    assert all(command in out for command in ("train", "translate", "eval", "vocab", "average"))
    assert cli("--version") == (0, f"nmt {nmt.__version__}\n", "")
