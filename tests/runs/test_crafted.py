"""Malicious run folders: no code is run, nothing outside is read or written, memory is not exhausted.

Each is opened by another process; tests of memory measure its peak.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from conftest import COPY_TASK, RUN_CONFIG, assert_says
from safetensors.torch import save_file

import nmt
from nmt.config.inference import DecodingConfig, TokenizerConfig, TransformerConfig
from nmt.config.reading import load_config
from nmt.corpora.lines import line_blocks
from nmt.decoding.hypothesis import Hypothesis
from nmt.decoding.source_text import LONG_LINE_CHARACTERS, SourceText
from nmt.decoding.translator import Translator
from nmt.errors import ConfigError, DataError, RunError
from nmt.models.factory import build_model, parameter_shapes
from nmt.runs.folder import open_run, run_named
from nmt.runs.weights import check_weights, weights_of
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizers, WordTokenizer, load_tokenizers
from nmt.tokenizers.vocabulary import SPECIAL_PIECES

WORDS = [*SPECIAL_PIECES, *"abcdef"]
MB = 1 << 20

# Runs `{action}` on each folder named; prints the rise of peak memory in MB and the message.
FOR_EACH = """
import json, resource, sys
from nmt.errors import NmtError
{imports}

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

for folder in sys.argv[1:]:
    before = peak()
    try:
        {action}
        message = "loaded"
    except NmtError as error:
        message = str(error)
    print(json.dumps([peak() - before, message]))
"""
LOAD = FOR_EACH.format(
    imports="import torch, nmt.decoding.torch_engine, nmt.decoding.translator",
    action="nmt.decoding.translator.load(folder, device='cpu', engine='torch')",
)
READ_CONFIG = FOR_EACH.format(imports="from nmt.runs.folder import open_run", action="open_run(folder).config()")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Path:
    """A run that translates, with words and random weights."""
    path = Path("run")
    (path / "tokenizer").mkdir(parents=True)
    (path / "config.yaml").write_text(RUN_CONFIG)
    (path / "tokenizer/joint.words").write_text("".join(f"{word}\n" for word in WORDS))
    (path / "tokenizer/tokenizer.json").write_text('{"src": "joint.words", "tgt": "joint.words", "made_from": ""}')
    model = build_model(load_config(path / "config.yaml").model, len(WORDS), len(WORDS))
    save_file(weights_of(model), path / "model.safetensors")
    return path


def elsewhere(program: str, runs: list[Path], limit: int = 8 << 30) -> list[tuple[int, str]]:
    """The output of a process with `limit` bytes of address space: the rise of memory and the message for each run."""
    limited = ["/bin/sh", "-c", f'ulimit -v {limit // 1024}; exec "$@"', "sh"]
    result = subprocess.run(
        [*limited, sys.executable, "-c", program, *map(str, runs)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return [tuple(json.loads(line)) for line in result.stdout.splitlines()]


def write_weights(run: Path, header: bytes | dict[str, object], data: bytes = b"", length: int | None = None) -> None:
    """A file of tensors, written by hand: https://github.com/huggingface/safetensors#format."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    number = struct.pack("<Q", len(text) if length is None else length)
    (run / "model.safetensors").write_bytes(number + text + data)


# ----------------------------------------------------------------------------------------- weights


def floats(*shape: int, start: int, end: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        (b"{}", b"", 2**63),
        (b"{}", b"", 10_000),
        (b"", b"", 0),
        (b"[" * 100_000, b"", None),
        (b"\xff\xfe", b"", None),
        ({"a": floats(2**40, 2**40, start=0, end=4)}, b"1234", None),
        ({"a": floats(2, start=0, end=8)}, b"1234", None),
        ({"a": floats(2, start=0, end=8), "b": floats(2, start=4, end=12)}, b"1234" * 3, None),
        ({"a": floats(2, start=8, end=0)}, b"1234" * 2, None),
        ({"a": floats(2, start=0, end=8)}, b"1234" * 3, None),
        ({"a": {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 4]}}, b"1234", None),
    ],
    ids=["a header of 2**63 bytes", "a header beyond the file", "no header", "deep", "not text", "a shape too large",
         "sizes beyond the file", "overlapping", "backwards", "bytes left over", "a type that is none"],
)  # fmt: skip
def test_a_file_without_weights_is_one_message(
    run: Path, header: bytes | dict[str, object], data: bytes, length: int | None
) -> None:
    write_weights(run, header, data, length)
    with pytest.raises(RunError, match=r"^run/model\.safetensors: cannot be read as safetensors: .+") as caught:
        check_weights(run / "model.safetensors", {})
    assert "\n" not in str(caught.value)


def test_a_pickle_is_not_unpickled(run: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Callable[[Path], object], tuple[Path]]:
            return Path.touch, (Path("harm"),)

    torch.save({"model": Harm()}, run / "model.safetensors")
    with pytest.raises(RunError, match="cannot be read as safetensors"):
        nmt.load(run, engine="torch")
    assert not Path("harm").exists()


def test_mismatched_files_are_refused_before_memory_is_allocated(run: Path) -> None:
    """Read, the headers would take hundreds of MB; built, the models would take 70 GB, 100 MB, and a hundred layers."""
    headers = [
        b'{"__metadata__":{"a":"' + b"x" * 99_000_000 + b'"}}',
        b"{%s}" % b",".join(b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % n for n in range(1_000_000)),
    ]
    changes = [("d_model: 32", "d_model: 65536"), ("d_ff: 64", "d_ff: 131072"), ("layers: 1,", "layers: 100,")]
    runs = [shutil.copytree(run, Path(f"run{number}")) for number in range(6)]
    for folder, header in zip(runs, headers, strict=False):
        write_weights(folder, header)
    for folder, change in zip(runs[2:], changes, strict=False):
        (folder / "config.yaml").write_text(RUN_CONFIG.replace(*change))
    *refused, (_, sound) = elsewhere(LOAD, runs)
    assert sound == "loaded"
    for folder, (rise, message) in zip(runs, refused, strict=False):
        about = "cannot be read as safetensors: a header of" if folder in runs[:2] else "not the weights of this model:"
        assert message.startswith(f"{folder}/model.safetensors: {about}"), message
        assert rise < 60, message


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize(("norm", "activation", "layout"), [("pre", "relu", "nmt"), ("post", "swiglu", "marian")])
def test_the_shapes_are_those_of_the_model(tied: str, positions: str, norm: str, activation: str, layout: str) -> None:
    config = TransformerConfig.model_validate(
        {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_encoder_layers": 2, "num_decoder_layers": 1, "norm": norm,
         "tie_embeddings": tied, "positions": positions, "activation": activation, "max_positions": 9,
         "layout": layout}
    )  # fmt: skip
    sizes = (11, 11) if tied == "all" else (11, 13)
    expected = {name: tuple(parameter.shape) for name, parameter in build_model(config, *sizes).named_parameters()}
    assert parameter_shapes(config, *sizes) == expected


def test_shapes_cost_no_import() -> None:
    """torch's compiler is not imported: it would take most of the time before a translation."""
    program = (
        "import sys, nmt.models.factory as f\nfrom nmt.config.inference import TransformerConfig\n"
        "f.parameter_shapes(TransformerConfig(), 9, 9)\nprint('sympy' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "False False\n"


# ----------------------------------------------------------------------------------------- tokenizers and links


@pytest.mark.parametrize(
    "name",
    ["../../secret.words", "/etc/hostname", "..", ".", "", "a/b.words", "a\\b.words", "joint.words\n", "\0", None, 3,
     ["joint.words"], "a" * 300],
)  # fmt: skip
def test_tokenizers_are_files_of_their_folder(run: Path, name: object) -> None:
    Path("secret.words").write_text("".join(f"{word}\n" for word in WORDS))
    for names in ({"src": name, "tgt": "joint.words"}, {"src": "joint.words", "tgt": name}):
        (run / "tokenizer/tokenizer.json").write_text(json.dumps(names))
        with pytest.raises(RunError, match=r"^run/tokenizer/tokenizer\.json: (src|tgt): "):
            load_tokenizers(run / "tokenizer")


LINKS = ["tokenizer", "tokenizer/joint.words", "model.safetensors", "checkpoints", "evaluation", "export",
         "config.yaml", "metrics.jsonl", "export/ctranslate2-int8", "checkpoints/12"]  # fmt: skip


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("absolute", [False, True])
def test_a_link_out_of_a_run_is_refused(run: Path, name: str, absolute: bool) -> None:
    inside, outside = run / name, Path("outside")
    if inside.exists():
        inside.rename(outside)
    else:
        outside.mkdir()
        inside.parent.mkdir(exist_ok=True)
    inside.symlink_to(outside.resolve() if absolute else os.path.relpath(outside, inside.parent))
    with pytest.raises(RunError, match=rf"^run/{name}: a link "):
        open_run("run")
    Path("runs").mkdir()
    run.rename("runs/run")
    inside = Path("runs", inside)
    inside.unlink()
    inside.symlink_to(outside.resolve())
    with pytest.raises(RunError, match=rf"^runs/run/{name}: a link "):
        run_named("run")  # to resume a training


def test_links_inside_a_run_and_to_it_are_followed(run: Path) -> None:
    (run / "model.safetensors").rename(run / "best.safetensors")
    (run / "model.safetensors").symlink_to("best.safetensors")
    (run / "gone").symlink_to("nowhere")
    Path("elsewhere").symlink_to("run")
    assert open_run("run").model_file.is_file()
    assert open_run("elsewhere").config().model.d_model == 32


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".hidden", "/x", "a\\b", "a\nb", ""])
def test_a_test_set_does_not_write_elsewhere(run: Path, name: str) -> None:
    test = json.dumps({name: {"src": "a.en", "tgt": "a.de"}})
    (run / "config.yaml").write_text(COPY_TASK.replace("test: {src: test.en, tgt: test.de}", f"test: {test}"))
    with pytest.raises(RunError, match="a test set's name becomes a file's name"):
        open_run("run").config()


# ----------------------------------------------------------------------------------------- configurations


def laughs(key: str, merged: bool) -> str:
    """Ten lines that expand to ten billion values."""
    first = "x0: &x0 {a: 1}\n" if merged else "x0: &x0 [a]\n"
    line = "x{0}: &x{0} {{<<: [{1}]}}\n" if merged else "x{0}: &x{0} [{1}]\n"
    return first + "".join(line.format(n, ", ".join([f"*x{n - 1}"] * 10)) for n in range(1, 11)) + f"{key}: *x10\n"


def test_a_billion_laughs_are_refused(run: Path) -> None:
    runs = []
    for key in ("augmentation", "tokenizer", "other"):
        for merged in (False, True):
            runs.append(shutil.copytree(run, Path(f"{key}-{merged}")))
            text = COPY_TASK.replace("tokenizer: {type: word, vocab_size: 14}\n", "") + laughs(key, merged)
            (runs[-1] / "config.yaml").write_text(text)
    for folder, (rise, message) in zip(runs, elsewhere(READ_CONFIG, runs, 3 << 30), strict=True):
        assert message.startswith(f"{folder}/config.yaml:")
        assert len(message) < 4000
        assert rise < 50


@pytest.mark.parametrize("tag", ["object/apply:os.system", "object/new:os.system", "name:os.system"])
def test_a_tag_runs_nothing(run: Path, tag: str) -> None:
    (run / "config.yaml").write_text(f'{COPY_TASK}augmentation: !!python/{tag} ["touch harm"]\n')
    with pytest.raises(RunError, match=r"^run/config\.yaml:20: not valid YAML: "):
        open_run("run").config()
    assert not Path("harm").exists()


@pytest.mark.parametrize(
    ("section", "key"),
    [("model", "d_model"), ("model", "num_heads"), ("model", "d_ff"), ("model", "num_encoder_layers"),
     ("model", "num_decoder_layers"), ("model", "max_positions"), ("tokenizer", "vocab_size"), ("data", "max_length"),
     ("decoding", "beam_size"), ("decoding", "max_length"), ("evaluation", "validation_beam_size"),
     ("training", "threads")],
)  # fmt: skip
def test_numbers_beyond_any_model_are_refused(run: Path, section: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{section}\.{key} is 10000000; .* \d+$"):
        load_config(run / "config.yaml", [f"{section}.{key}=10000000"])


# ----------------------------------------------------------------------------------------- lines


class Recorder(WordTokenizer):
    """Records the length of the longest line."""

    longest = 0

    def encode(self, line: str, tag: int | None = None) -> list[int]:
        self.longest = max(self.longest, len(line))
        return super().encode(line, tag)


class Echo:
    """An engine whose translation is its source."""

    name, batches_at_once = "echo", 1

    def search(self, sources: list[list[int]], decoding: DecodingConfig, *_: object) -> list[list[Hypothesis]]:
        return [[Hypothesis(tuple(ids), 0.0, 0.0)] for ids in sources]


def recorded(max_src_length: int) -> tuple[Translator, Recorder]:
    tokenizer = Recorder(WORDS)
    return Translator(Tokenizers(tokenizer, tokenizer), Echo(), DecodingConfig(), max_src_length), tokenizer


def test_all_of_a_long_line_is_translated_without_tokenizing_it_as_one(caplog: pytest.LogCaptureFixture) -> None:
    """SentencePiece needs hundreds of bytes of memory for each character of a line."""
    short, seen = recorded(20)
    line = "a b c " * 10_000
    assert short.translate([line, "d e"]) == [line.strip(), "d e"]
    assert seen.longest <= LONG_LINE_CHARACTERS
    (message,) = caplog.messages
    assert_says(message, "line 1: more than 20 pieces (data.max_length)")
    far, seen = recorded(5000)
    assert far.translate([line]) == [line.strip()]
    assert seen.longest <= 2 * 16 * 5000


def test_spaces_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    spaces = " " * 100_000
    made, seen = recorded(20)
    assert made.translate([f"{spaces}a{spaces}b{spaces}", spaces, spaces + "c"]) == ["a b", "", "c"]
    assert seen.longest == 3
    assert caplog.messages == []


def test_a_beginning_is_translated_as_the_whole_would_be() -> None:
    """With the tokenizer of SentencePiece that is most likely to look ahead, in a text without spaces."""
    random = Random(3)
    lines = ["".join(random.choices("abcde", k=40)) for _ in range(300)]
    config = TokenizerConfig(type="unigram", vocab_size=400)
    tokenizer = SentencePieceTokenizer.train(lines, config)
    made = SourceText(tokenizer, 50, False, "")
    for _ in range(5):
        line = "".join(random.choices("abcde", k=3 * LONG_LINE_CHARACTERS))
        assert made.encode(line, "line 1") == tokenizer.encode(line)[:50]


def test_a_line_of_10_mb_takes_the_memory_of_a_few() -> None:
    """SentencePiece alone would take a gigabyte."""
    program = """
import resource
from pathlib import Path
from nmt.config.inference import TokenizerConfig
from nmt.tokenizers.tokenizer import SentencePieceTokenizer
from nmt.decoding.source_text import SourceText

tokenizer = SentencePieceTokenizer.train(["a b c d"] * 99, TokenizerConfig(type="char", vocab_size=300))
made = SourceText(tokenizer, 20, False, "")
for line in ("ab " * 3_500_000, "ab" * 5_000_000, " " * 10_000_000):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made.encode(line, "line 1")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    rises = [int(line) // 1024 for line in result.stdout.split()]
    assert len(rises) == 3
    assert max(rises) < 60, rises


def test_a_nul_is_found_where_it_is(tmp_path: Path) -> None:
    lines = [b"one two three\n"] * 50_000
    lines[40_321] = b"one \0 three\n"
    path = tmp_path / "text"
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=r"^text:40322: a NUL character"), path.open("rb") as file:
        for _ in line_blocks(file, "text"):
            pass


# --- Loading has no side effects --------------------------------------------------------------------------

BYSTANDER = """
import logging, os, random, signal, sys, warnings
import numpy, torch
import nmt.system.devices
from nmt.decoding.translator import load

def process():
    return {
        "allocator": len(calls),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "environment": dict(os.environ),
        "logging": [(log.level, list(log.handlers), log.disabled) for log in map(logging.getLogger, (None, "nmt"))],
        "warnings": list(warnings.filters),
        "generators": (torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state())),
        "torch": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
                  torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()),
        "place": (os.getcwd(), list(sys.path), os.umask(18), os.umask(18)),
    }

calls = []
class Library:
    mallopt = staticmethod(lambda *options: calls.append(options) or 1)
nmt.system.devices.ctypes.CDLL = lambda name: Library
before = process()
translator = load(sys.argv[1], device="cpu", engine="torch")
translator.translate(["a b c", "f"])
after = process()
print([key for key in before if before[key] != after[key]])
load(sys.argv[1], device="cpu", engine="torch", own_process=True)
print(len(calls))
"""


def test_loading_and_translating_leave_the_process_as_it_is(run: Path) -> None:
    """A program that embeds a translator has its own allocator, signals, logging and generators."""
    result = subprocess.run([sys.executable, "-c", BYSTANDER, str(run)], capture_output=True, text=True)
    assert result.stdout.splitlines() == ["[]", "3"], result.stderr
