"""Shared fixtures: a small model, a small corpus, a run that copies digits, and the command line."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
import torch
from browser import Browser, started_browser
from forked import ForkServer
from hypothesis import Phase, settings
from rich.cells import cell_len

from nmt.batches.augmentation import Augmented
from nmt.batches.batches import Batch, collate
from nmt.batches.joining import JoinedShape
from nmt.cli.main import main
from nmt.config.inference import TransformerConfig
from nmt.errors import NmtError
from nmt.models.source import ragged
from nmt.models.transformer import Transformer
from nmt.system.console import show_messages
from nmt.tokenizers.vocabulary import OWN_SPECIAL_IDS, SpecialIds

VOCAB_SIZE = 11
Pairs = Sequence[tuple[Sequence[int] | np.ndarray, Sequence[int] | np.ndarray]]
Cli = Callable[..., tuple[int, str, str]]
SOLVED = [
    "--set", "training.max_steps=500", "--set", "training.validate_every=250", "--set", "training.batch_tokens=800",
    "--set", "training.schedule=linear", "--set", "training.label_smoothing=0", "--set", "model.dropout=0",
    "--set", "model.d_model=64",
]  # fmt: skip

settings.register_profile("any machine", deadline=None)  # an example's time depends on the machine's load
settings.register_profile("first failure", deadline=None, phases=[Phase.explicit, Phase.generate])  # scripts/break_it
settings.load_profile("any machine")
for _name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):  # output is a pipe's, except with `screen`
    os.environ.pop(_name, None)
show_messages()  # as the command line does, also for tests of what it calls


def cpu_flags() -> set[str]:
    """The instruction sets of an x86 CPU, as Linux lists them; empty elsewhere."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.is_file() else ""
    lines = [line for line in text.splitlines() if line.startswith("flags")]
    return set(lines[0].split()) if lines else set()


has_exact_int8 = pytest.mark.skipif(
    "avx2" in cpu_flags() and not cpu_flags() & {"avx512_vnni", "avx_vnni"},
    reason="without VNNI, CTranslate2's int8 products saturate",
)


def batch_of(
    pairs: Pairs,
    src_special: SpecialIds = OWN_SPECIAL_IDS,
    tgt_special: SpecialIds = OWN_SPECIAL_IDS,
    shape: JoinedShape | None = None,
) -> Batch:
    """A batch of pairs of ids, without `<s>` and `</s>`; joined if there is a shape."""
    src, tgt = (ragged([np.asarray(ids, dtype=np.int64) for ids in side]) for side in zip(*pairs, strict=True))
    return collate(Augmented(src, tgt, tgt[0]), src_special, tgt_special, shape)


def unread_tokenizer(folder: Path) -> Path:
    """A tokenizer's folder for a test that gives the tokenizers themselves."""
    folder.mkdir()
    (folder / "joint.words").write_text("a\n")
    (folder / "tokenizer.json").write_text('{"src": "joint.words", "tgt": "joint.words"}')
    return folder


def assert_says(message: str, place: str, *phrases: str) -> None:
    """The message begins with the file and line or the key that it is about, and holds each phrase."""
    assert message.startswith(place), message
    assert [phrase for phrase in phrases if phrase not in message] == [], message


@contextlib.contextmanager
def refused(kind: type[NmtError], place: str, *phrases: str) -> Iterator[None]:
    """Expect an error of this class that says so."""
    with pytest.raises(kind) as caught:
        yield
    assert_says(str(caught.value), place, *phrases)


@pytest.fixture(autouse=True)
def _same_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture
def small_config() -> TransformerConfig:
    """Two layers a side, two heads, no dropout."""
    return TransformerConfig(
        num_encoder_layers=2, num_decoder_layers=2, d_model=16, num_heads=2, d_ff=32, dropout=0.0, max_positions=64
    )


@pytest.fixture
def small_model(small_config: TransformerConfig) -> Transformer:
    """A Transformer of `small_config` over 11 ids, random, in evaluation mode."""
    return Transformer(small_config, VOCAB_SIZE, VOCAB_SIZE).eval()


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[[str, list[str]], Path]:
    """`write_lines("train.en", ["a", "b"])` writes the file, a line each, and returns its path."""

    def write(name: str, lines: list[str]) -> Path:
        path = tmp_path / name
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
        return path

    return write


@pytest.fixture
def copy_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file for copying digits, in an empty folder that becomes the current one."""
    return write_copy_task(tmp_path, monkeypatch)


def write_copy_task(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Source and target are the same 2 to 8 digits; validation and test lines are not among the training ones."""
    monkeypatch.chdir(folder)
    random = Random(1)
    lines = sorted({" ".join(random.choices("0123456789", k=random.randint(2, 8))) for _ in range(1500)})
    random.shuffle(lines)
    for name, part in (("train", lines[100:]), ("val", lines[:50]), ("test", lines[50:100])):
        for side in ("en", "de"):
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
    config = folder / "copy.yaml"
    config.write_text(COPY_TASK, encoding="utf-8")
    return config


COPY_TASK = """\
data:
  train: {src: train.en, tgt: train.de}
  validation: {src: val.en, tgt: val.de}
  test: {src: test.en, tgt: test.de}
  max_length: 20
tokenizer: {type: word, vocab_size: 14}
model: {d_model: 32, num_heads: 4, d_ff: 64, num_encoder_layers: 1, num_decoder_layers: 1, max_positions: 64}
training:
  max_steps: 12
  batch_tokens: 400
  learning_rate: 5.0e-3
  warmup_steps: 50
  validate_every: 6
  log_every: 3
  device: cpu
  threads: 1
decoding: {beam_size: 3, max_length: 30}
evaluation: {report: false}
export: {after_training: []}
"""
# As in a run's own config.yaml, which names the languages.
RUN_CONFIG = COPY_TASK.replace("tokenizer:", "  src_lang: en\n  tgt_lang: de\ntokenizer:")


class Screen(NamedTuple):
    """A terminal that the output is fitted to."""

    width: int
    has_color: bool

    def lines(self, output: str) -> list[str]:
        """The lines without their styles; none is too long, and none coloured where colours are off."""
        assert self.has_color or not re.search(r"\x1b\[(\d+;)*[39]\d", output), output
        lines = re.sub(r"\x1b\[[\d;]*m", "", output).splitlines()
        assert [line for line in lines if cell_len(line) > self.width] == []
        return lines


@pytest.fixture(params=[(80, True), (80, False), (120, True), (120, False)], ids=lambda one: f"{one[0]} {one[1]}")
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Standard output and standard error are those of a terminal, with and without colour."""
    result = Screen(*request.param)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(result.width))
    if not result.has_color:
        monkeypatch.setenv("NO_COLOR", "1")
    return result


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli("eval", "--json")` -> exit code, standard output, standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nmt", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        return int(str(code or 0)), captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the copy task has been trained through the command line."""
    folder = tmp_path_factory.mktemp("solved")
    with pytest.MonkeyPatch.context() as monkeypatch:
        write_copy_task(folder, monkeypatch)
        monkeypatch.setattr(sys, "argv", ["nmt", "train", "copy.yaml", *SOLVED])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
            main()
        assert end.value.code in (None, 0), err.getvalue()
        assert out.getvalue() == ""
        assert "finished" in err.getvalue()
    return folder


@pytest.fixture
def in_solved(solved: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(solved)
    return solved


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Starts Python processes that have loaded torch and nmt already."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    with started_browser() as started:
        yield started
