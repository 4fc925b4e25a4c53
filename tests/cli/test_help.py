"""Help in groups with examples that parse, output in UTF-8, completion by its protocol, and `train` without a file."""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import COPY_TASK, Cli, assert_says

from nmt.cli.main import app
from nmt.cli.options import complete_run, configured_run


def all_commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with its words."""
    if not hasattr(command, "commands"):
        yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from all_commands(inner, (*words, name))


COMMANDS = dict(all_commands(typer.main.get_command(app)))


def test_an_exports_summary_is_not_cut(cli: Cli) -> None:
    code, out, _ = cli("export", "--help")
    assert code == 0
    for words, command in COMMANDS.items():
        if words[0] == "export":
            assert " ".join(command.help.split("\n\n")[0].split()) in " ".join(out.split())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_commands_help_ends_with_two_examples_that_parse(cli: Cli, words: tuple[str, ...]) -> None:
    code, out, _ = cli(*words, "--help")
    assert code == 0
    head, _, examples = out.partition("\n  Examples:\n")
    assert "  --help" in head
    lines = examples.rstrip("\n").split("\n")
    assert len(lines) == 2
    assert len(set(lines)) == 2
    for line in lines:
        assert line.startswith("    nmt ")
        (arguments, *_) = shlex.split(line.partition(" > ")[0]), None
        assert tuple(arguments[1 : 1 + len(words)]) == words
        context = COMMANDS[words].make_context(words[-1], arguments[1 + len(words) :])  # raises for a wrong option
        assert context.args == []


def test_help_shows_every_command_once_and_in_its_group(cli: Cli) -> None:
    code, out, _ = cli("--help")
    assert code == 0
    groups = dict(re.findall(r"^([A-Z][\w ]+):\n((?:  .*\n)+)", out, re.M))
    groups.pop("Options")
    assert list(groups) == ["Set up", "Train", "Translate", "Evaluate", "Look inside", "Ship"]
    listed = [name for rows in groups.values() for name in re.findall(r"^  (\S+)  ", rows, re.M)]
    assert sorted(listed) == sorted({words[0] for words in COMMANDS})
    assert "..." not in out.partition("\nSet up:\n")[2]


@pytest.mark.parametrize("command", ["translate", "eval"])
def test_the_many_options_are_in_groups(cli: Cli, command: str) -> None:
    out = cli(command, "--help")[1].partition("\n  Examples:")[0]
    panels = dict(re.findall(r"^([A-Z]\w+):\n((?:  .*\n)+)", out, re.M))
    assert [name for name in panels if name not in ("Arguments", "Scoring")] == [
        "Options", "Input", "Search", "Speed", "Output",
    ]  # fmt: skip
    assert all(re.search(rf"^  {option}\b", panels[panel], re.M) for panel, option in (
        ("Options", "--model"), ("Search", "--beam-size"), ("Search", "--seed"), ("Speed", "--engine"),
        ("Output", "--json"),
    ))  # fmt: skip
    named = [name for options in panels.values() for name in re.findall(r"^  (--[\w-]+)", options, re.M)]
    assert sorted(named) == sorted(
        parameter.opts[0] for parameter in COMMANDS[command,].get_params(COMMANDS[command,].make_context(command, []))
        if parameter.param_type_name == "option"
    )  # fmt: skip
    assert max(map(len, out.splitlines())) <= 80


# ------------------------------------------------------------------------------------------- completion


@pytest.fixture
def in_folder_with_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("captions", "captions-50", "other", "unfinished"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        if name != "unfinished":
            (tmp_path / "runs" / name / "config.yaml").write_text("")
    (tmp_path / "runs" / "latest").write_text("other\n")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nmt tra", ["train", "translate"]),
        ("nmt export ", ["ctranslate2", "argos", "huggingface", "onnx"]),
        ("nmt translate --be", ["--beam-size"]),
        ("nmt train --", ["--config", "--set", "--name", "--fresh", "--init-from", "--dry-run", "--help"]),
        ("nmt adapt --", ["--model", "--data", "--keep", "--max-drop", "--name", "--set", "--fresh", "--json",
                          "--help"]),
        ("nmt adapt --model o", ["other"]),
        ("nmt data --", ["--against", "--config", "--src-lang", "--tgt-lang", "--output", "--open", "--write",
                         "--json", "--help"]),
        ("nmt compare --test ", ["bs", "ar"]),
        ("nmt translate --model cap", ["captions", "captions-50"]),
        ("nmt show --model ", ["captions", "captions-50", "other"]),
        ("nmt compare captions o", ["other"]),
        ("nmt train --set de", [
            "decoding.beam_size=", "decoding.length_penalty=", "decoding.min_length=", "decoding.max_length=",
            "decoding.max_length_ratio=", "decoding.no_repeat_ngram_size=",
            "decoding.forbidden_words=", "decoding.lower_capitals=", "decoding.copied=",
            "decoding.precision=", "decoding.batch_tokens="]),
        ("nmt train --set t", ["tokenizer.", "training."]),
        ("nmt vocab --set training.b", ["training.batch_tokens=", "training.batches_per_update=",
                                        "training.batch_parts=", "training.best_metric="]),
        ("nmt train --set training.schedule", [
            f"training.schedule={value}" for value in ("inverse_sqrt", "cosine", "linear", "constant")]),
        ("nmt train --set training.warm", ["training.warmup_steps=1000"]),
        ("nmt train --set data.validation.", [
            f"data.validation.{key}="
            for key in ("pairs", "src", "tgt", "src_column", "tgt_column", "inline_tags", "holdout")]),
        ("nmt train --set nothing", []),
        ("nmt config tr", ["training"]),
        ("nmt config training.see", ["training.seed"]),
        ("nmt config data.train.w", ["data.train.weight"]),
    ],
)  # fmt: skip
def test_a_shell_gets_what_completes_a_line(
    in_folder_with_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    expected: list[str],
) -> None:
    words = line.split(" ")
    variables = {"_NMT_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        app(prog_name="nmt")
    assert (end.value.code, *capsys.readouterr()) == (0, "\n".join([*expected, ""]) if expected else "\n", "")


def test_without_runs_nothing_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete_run("") == []


def test_bash_completes_with_the_script_that_nmt_prints(in_folder_with_runs: Path) -> None:
    program = in_folder_with_runs / "bin" / "nmt"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom nmt.cli.main import main\nmain()\n")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    steps = """
    source <(_NMT_COMPLETE=source_bash nmt)
    [ "$(complete -p nmt)" = "complete -o default -F _nmt_completion nmt" ] || exit 9
    COMP_WORDS=(nmt translate --model capt) COMP_CWORD=3
    _nmt_completion nmt
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    found = subprocess.run(["bash", "--norc", "-c", steps], env=environment, capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "captions\ncaptions-50\n", "")


# ------------------------------------------------------------------------------------------- train without a file


def test_train_alone_takes_the_one_configuration_here(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("train")
    assert (code, out) == (2, "")
    assert_says(err, "nmt: there is no configuration (*.yaml) in this folder", "nmt train FILE")
    (tmp_path / "my captions.yml").write_text(COPY_TASK)
    (tmp_path / ".hidden.yaml").write_text("")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "other.yaml").write_text("")
    config, run = configured_run("train", None, ["model.d_model=16"], None)
    assert (config.model.d_model, config.training.max_steps, run.path) == (16, 12, Path("runs/my captions"))
    assert configured_run("vocab", None, None, "mine")[1].path == Path("runs/mine")
    assert "train.en: no such file" in cli("train")[2]  # of that configuration
    (tmp_path / "a.yaml").write_text(COPY_TASK)
    for command in ("train", "vocab"):
        code, out, err = cli(command)
        assert (code, out) == (2, "")
        assert_says(
            err, "nmt: there are 2 configurations", f"nmt {command} a.yaml\n", f"nmt {command} 'my captions.yml'"
        )
    assert configured_run("train", Path("a.yaml"), None, None)[1].name == "a"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("compare --hyp one.zh --hyp two.zh --ref one.zh --tgt-lang zh", "→"),
        ("init --no-trial --src one.zh --tgt one.en --src-lang zh --tgt-lang en", "nmt translate '你好'"),
        ("vocab own.yaml", "▁"),
        ("translate --model nowhere→ hi", "nowhere→: no such run"),
    ],
)
def test_output_is_utf8_where_the_systems_encoding_is_another(
    command: str, shown: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under Windows, whose Pythons before 3.15 write into a pipe in the system's code page; emulated."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (("one.zh", "你好\n你好 世界\n"), ("two.zh", "你好\n你好 人\n"), ("one.en", "hi\nhi world\n")):
        Path(name).write_text(lines, encoding="utf-8")
    pair = "{src: one.en, tgt: one.zh}"
    Path("own.yaml").write_text(
        f"data: {{src_lang: en, tgt_lang: zh, train: {pair}, validation: {pair}}}\n"
        f"tokenizer: {{vocab_size: 280}}\ntraining: {{max_steps: 10, warmup_steps: 2}}\n"
    )
    written = io.BytesIO()
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, io.TextIOWrapper(written, encoding="cp1252", write_through=True))
    cli(*shlex.split(command))
    assert shown in written.getvalue().decode(), written.getvalue().decode()
