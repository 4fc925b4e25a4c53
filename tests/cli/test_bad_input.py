"""Bad input: each row of the table is a mistake or a strange text, with the expected message.

For every row: one message, no traceback, and an unchanged folder, except for the files that the row names.
"""

import dataclasses
import gzip
import io
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conftest import Cli, write_copy_task
from safetensors.torch import load_file, save_file

from nmt.cli.main import main

Prepare = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Row:
    """`command`, run in a folder with three runs that `prepare` has changed; its exit code and parts of its output."""

    name: str
    command: str
    """Words; $name is replaced by one of `WORDS`."""
    parts: Sequence[str]
    """Parts of standard error if the exit code is not 0, else of standard output."""
    prepare: Prepare = lambda: None
    code: int = 2
    makes: Sequence[str] = ()
    """Beginnings of the paths that are made or changed."""
    stdin: bytes = b""
    unreadable: str = ""
    """A file that can't be opened."""


def write(name: str, content: bytes | str) -> Prepare:
    data = content.encode() if isinstance(content, str) else content
    return lambda: Path(name).write_bytes(data)


def append(name: str, content: bytes) -> Prepare:
    return lambda: Path(name).write_bytes(Path(name).read_bytes() + content)


def change(name: str, old: str, new: str) -> Prepare:
    def prepare() -> None:
        text = Path(name).read_text()
        assert old in text
        Path(name).write_text(text.replace(old, new))

    return prepare


def remove(name: str) -> Prepare:
    return lambda: shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()


def folder(name: str) -> Prepare:
    return lambda: Path(name).mkdir(parents=True)


def pipe(name: str) -> Prepare:
    return lambda: os.mkfifo(name)


def link(name: str, target: str) -> Prepare:
    return lambda: Path(name).symlink_to(target)


def copy(name: str, target: str) -> Prepare:
    return lambda: shutil.copytree(name, target, dirs_exist_ok=True)


def all_of(*parts: Prepare) -> Prepare:
    return lambda: [prepare() for prepare in parts]


def diverged() -> None:
    """All weights of the run are NaN."""
    weights = load_file(f"{RUN}/model.safetensors")
    save_file({name: value * math.nan for name, value in weights.items()}, f"{RUN}/model.safetensors")


RUN = "runs/copy"
CACHE = "runs/cache"
LONG = "a" * 300
LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20))
COMMAND_TAG = '!!python/object/apply:os.system ["touch pwned"]'
WORDS = {
    "$empty": "",
    "$long": LONG,
    "$tag": f"model.d_model={COMMAND_TAG}",
    "$outside": "data.test={'../../x': {src: test.en, tgt: test.de}}",
    "$long.json": f"{LONG}.json",
    "$nul": "a\0b",
    "$spaces": " ",
    "$latin": "caf\udce9",
    "$dash": "- Come in.",
    "$help": "--help me",
}
TRAIN = "train copy.yaml --name new"
VOCAB = "vocab copy.yaml --name new"
TRANSLATE = "translate --model copy"
FILES = f"{TRANSLATE} --input test.en --output out"
ATTENTION = "attention --model copy --output x.json"
SCORE = "score --model copy --src test.en --tgt test.de"
EXPORT = "export ctranslate2 --model copy"
CHARACTERS = "--set tokenizer.type=char --set tokenizer.vocab_size=300"
USAGE = ["Error: Invalid value for"]


def yaml_row(name: str, text: bytes | str, *parts: str) -> Row:
    """Another configuration file."""
    return Row(f"yaml: {name}", "train bad.yaml", parts, write("bad.yaml", text))


def more_yaml(name: str, addition: str, *parts: str) -> Row:
    """An additional line, the 18th."""
    return Row(f"yaml: {name}", "train copy.yaml --name new", parts, append("copy.yaml", addition.encode()))


ROWS = [
    # ------------------------------------------------------------------------------------------- configurations
    Row("config: several", "train", ["there are 2 configurations in this folder", "nmt train other.yaml"],
        write("other.yaml", "")),
    Row("config: missing", "train nothing.yaml", ["nothing.yaml: no such file", "configs/tiny.yaml"]),
    Row("config: unreadable", TRAIN, ["copy.yaml: cannot be read", "Permission denied"], unreadable="copy.yaml"),
    Row("config: a name too long", "train $long", ["a run cannot be called", "too long"]),
    yaml_row("binary", bytes(range(256)), "bad.yaml:2: not a configuration: it is not UTF-8"),
    yaml_row("UTF-16", "data: {}\n".encode("utf-16"), "bad.yaml:1: not a configuration: it is not UTF-8"),
    yaml_row("NUL", "data:\n  src_lang: \0\n", "bad.yaml:2: not valid YAML: it holds the character U+0000"),
    yaml_row("NUL, escaped", 'data:\n  src_lang: "\\0"\n', "bad.yaml:2: ", "a character that is not allowed"),
    yaml_row("half a character", 'data:\n  src_lang: "\\ud800"\n', "bad.yaml:2: ", "a character that is not allowed"),
    yaml_row("tabs", "data:\n\ttrain: {}\n", "bad.yaml:2: not valid YAML: found character '\\t'"),
    yaml_row("too deep", "data: " + "[" * 2000, "bad.yaml: its lists or mappings are nested too deeply"),
    more_yaml("a key that is none", "modle: {}\n", "copy.yaml:20: unknown key modle; did you mean model?"),
    more_yaml("a command", f"augmentation: {COMMAND_TAG}\n", "copy.yaml:20: not valid YAML", "os.system"),
    more_yaml("a number that is none", "augmentation: !!int x\n", "copy.yaml:20: ", "'x' is not of the type int"),
    more_yaml("a truth that is none", "augmentation: !!bool x\n", "copy.yaml:20: ", "'x' is not of the type bool"),
    more_yaml("a merged mapping", "augmentation: {<<: {a: 1}}\n", "copy.yaml:20: ", "the key << is not supported"),
    more_yaml("a key that is a list", "augmentation: {? [a]: 1}\n", "copy.yaml:20: ", "a key is one word, not a list"),
    more_yaml("a billion laughs", f"{LAUGHS}augmentation: *a19\n", "copy.yaml:40: augmentation is [[[", "should be"),
    Row("--set: a command", f"{TRAIN} --set $tag", ["--set model.d_model=", "not valid YAML"]),
    Row("--set: out of range", f"{TRAIN} --set model.d_ff=1000000000", ["--set model.d_ff: ", "equal to 131072"]),
    Row("--set: infinite", f"{TRAIN} --set training.learning_rate=.inf", ["learning_rate is inf", "finite number"]),
    Row("--set: a test set outside", f"{TRAIN} --set $outside", ["data.test", "'../../x' cannot"]),
    # ------------------------------------------------------------------------------------------- training
    Row("train: another model", "train copy.yaml --set model.d_model=64",
        ["started with other settings", "model.d_model: 32, not 64", "--name copy-2", "--fresh"]),
    Row("train: no such device", f"{TRAIN} --set training.device=cuda:9", ["cuda:9: this machine has no such GPU"]),
    Row("train: a device that is none", f"{TRAIN} --set training.device=tpu", ["training.device is 'tpu'"]),
    Row("train: a name that leads out", "train copy.yaml --name ../x", ["a run cannot be called '../x'"]),
    Row("train: no name", "train copy.yaml --name $empty", ["a run cannot be called ''"]),
    Row("train: a name too long", "train copy.yaml --name $long", ["a run cannot be called", "too long"]),
    Row("train: runs is a file", TRAIN, ["runs: is not a folder"], all_of(remove("runs"), write("runs", ""))),
    Row("train: the run is a file", TRAIN, ["runs/new: is not a folder"], write("runs/new", "")),
    Row("train: text is missing", TRAIN, ["train.en: no such file"], remove("train.en")),
    Row("train: text is a folder", TRAIN, ["val.de: ", "Is a directory"], all_of(remove("val.de"), folder("val.de"))),
    Row("train: text is unreadable", TRAIN, ["train.de: ", "Permission denied"], unreadable="train.de"),
    Row("train: text is empty", TRAIN, ["are empty"], all_of(write("train.en", ""), write("train.de", ""))),
    Row("train: a line more", TRAIN, ["train.en has 1,263 lines", "train.de has 1,262"], append("train.en", b"1\n")),
    Row("train: a reference less", TRAIN, ["test.en has 51 lines", "has 50"], append("test.en", b"1\n")),
    Row("train: not UTF-8", TRAIN, ["val.en:51: not UTF-8", "convert"],
        all_of(append("val.en", b"caf\xe9\n"), append("val.de", b"1\n"))),
    Row("train: NUL", TRAIN, ["train.en:1263: a NUL character", "convert"],
        all_of(append("train.en", b"1 \0 2\n"), append("train.de", b"1\n"))),
    Row("train: NUL in validation", TRAIN, ["val.de:51: a NUL character"],
        all_of(append("val.en", b"1\n"), append("val.de", b"\0\n"))),
    Row("train: a link out of the run", "train copy.yaml --set training.max_steps=13",
        ["runs/copy/metrics.jsonl: a link that leads out of the run"],
        all_of(remove(f"{RUN}/metrics.jsonl"), link(f"{RUN}/metrics.jsonl", "../../test.en"))),
    Row("train: a line of 10 MB", f"{TRAIN} --set training.max_steps=1 {CHARACTERS}", [],
        all_of(append("train.en", b"12 " * 3_500_000 + b"\n"), append("train.de", b"1\n")),
        code=0, makes=["runs/new", CACHE, "runs/latest"]),
    # ------------------------------------------------------------------------------------------- vocabularies
    Row("vocab: several files", "vocab", ["there are 2 configurations", "nmt vocab copy"], write("other.yaml", "")),
    Row("vocab: text is missing", VOCAB, ["train.de: no such file"], remove("train.de")),
    Row("vocab: a line more", VOCAB, ["val.en has 51 lines", "val.de has 50"], append("val.en", b"1\n")),
    Row("vocab: too large", f"{VOCAB} --set tokenizer.type=bpe", ["tokenizer.vocab_size (14)", "or more"]),
    Row("vocab: of a run with another", "vocab copy.yaml --set tokenizer.vocab_size=9",
        ["runs/copy", "another --name"]),
    Row("vocab: nothing but white space", VOCAB, ["min_frequency"],
        all_of(write("train.en", " \n" * 9), write("train.de", "\n" * 9))),
    Row("vocab: gzip that is none", f"{VOCAB} --set data.train.src=a.gz --set data.src_lang=en", ["a.gz: ", "gzip"],
        write("a.gz", "1 2 3")),
    Row("vocab: gzip cut off", f"{VOCAB} --set data.train.src=a.gz --set data.src_lang=en", ["a.gz: cannot be read"],
        write("a.gz", gzip.compress(b"1 2 3\n" * 999)[:30])),
    Row("vocab: a BOM", VOCAB, ["14 pieces", "0.00% <unk>"],
        lambda: [write(name, b"\xef\xbb\xbf" + Path(name).read_bytes())() for name in ("val.en", "copy.yaml")],
        code=0, makes=["runs/new"]),
    Row("vocab: CRLF", VOCAB, ["14 pieces", "0.00% <unk>"],
        lambda: [write(name, Path(name).read_bytes().replace(b"\n", b"\r\n"))() for name in ("val.en", "copy.yaml")],
        code=0, makes=["runs/new"]),
    # ------------------------------------------------------------------------------------------- translations: runs
    Row("run: none yet", "translate 1", ["there is no runs/latest here: train a model first"], remove("runs/latest")),
    Row("run: latest is binary", "translate 1", ["there is no runs/latest"], write("runs/latest", b"\xff\0")),
    Row("run: latest is a folder", "translate 1", ["there is no runs/latest"],
        all_of(remove("runs/latest"), folder("runs/latest"))),
    Row("run: missing", "translate --model nothing 1", ["nothing: no such run; under runs/ there are copy, pieces"]),
    Row("run: a file", "translate --model test.en 1", ["test.en: no such run"]),
    Row("run: no name", "translate --model $empty 1", ["--model ''"]),
    Row("run: a name too long", "translate --model $long 1", ["--model 'aaa", "no run can have this name"]),
    Row("run: without its config", f"{TRANSLATE} 1", ["runs/copy: not a run folder"], remove(f"{RUN}/config.yaml")),
    Row("run: without a model", f"{TRANSLATE} 1", ["runs/copy: no model yet"], remove(f"{RUN}/model.safetensors")),
    Row("run: of another version", f"{TRANSLATE} 1",
        [f"{RUN}/config.yaml:1: unknown key optimizer", "another version of nmt"],
        lambda: write(f"{RUN}/config.yaml", f"optimizer: {{}}\n{Path(RUN, 'config.yaml').read_text()}")()),
    Row("run: another model's config", f"{TRANSLATE} 1", ["model.safetensors: not the weights of this model"],
        change(f"{RUN}/config.yaml", "d_ff: 64", "d_ff: 128")),
    Row("run: another run's tokenizer", f"{TRANSLATE} 1", ["model.safetensors: not the weights of this model"],
        all_of(remove(f"{RUN}/tokenizer"), copy("runs/pieces/tokenizer", f"{RUN}/tokenizer"))),
    Row("run: two tokenizers for one", f"{TRANSLATE} 1", ["runs/copy: its tokenizers do not match its model"],
        all_of(write(f"{RUN}/tokenizer/a.words", "<pad>\n<s>\n</s>\n<unk>\na\n"),
               change(f"{RUN}/tokenizer/tokenizer.json", '"tgt": "joint.words"', '"tgt": "a.words"'))),
    Row("run: a tokenizer that is gone", f"{TRANSLATE} 1", ["joint.words: cannot be read"],
        remove(f"{RUN}/tokenizer/joint.words")),
    Row("run: an empty word list", f"{TRANSLATE} 1", ["joint.words: cannot be read"],
        write(f"{RUN}/tokenizer/joint.words", "")),
    Row("run: an empty SentencePiece model", "translate --model pieces 1", ["joint.model: cannot be read"],
        write("runs/pieces/tokenizer/joint.model", "")),
    Row("run: a damaged SentencePiece model", "translate --model pieces 1", ["joint.model: cannot be read"],
        write("runs/pieces/tokenizer/joint.model", b"\xff\0\1" * 99)),
    Row("run: weights that are empty", f"{TRANSLATE} 1", ["model.safetensors: cannot be read as safetensors"],
        write(f"{RUN}/model.safetensors", "")),
    Row("run: weights that are unreadable", f"{TRANSLATE} 1", ["model.safetensors: ", "Permission denied"],
        unreadable="model.safetensors"),
    Row("run: an export for another engine", f"{TRANSLATE} --engine ctranslate2 1", ["nmt export ctranslate2"]),
    Row("run: an export that is damaged", f"{TRANSLATE} --engine ctranslate2 1", ["export.json: cannot be read"],
        all_of(folder(f"{RUN}/export/ctranslate2-int8"), write(f"{RUN}/export/ctranslate2-int8/export.json", "{"))),
    Row("run: unlike vocabularies", f"{TRANSLATE} --model pieces 1", ["have different vocabularies"]),
    # ------------------------------------------------------------------------------------------- translations: options
    Row("translate: no such device", f"{TRANSLATE} --device cuda:9 1", ["cuda:9: this machine has no such GPU", "cpu"]),
    *(Row(f"translate: device {name}", f"{TRANSLATE} --device {name} 1", [f"device '{name}' is not one of auto, cpu"])
      for name in ("tpu", "meta", "xpu", "cpu:1", "cuda:" + 30 * "9")),
    Row("translate: no such engine", f"{TRANSLATE} --engine onnx 1", ["engine 'onnx': should be one of auto, torch"]),
    Row("translate: no such precision", f"{TRANSLATE} --precision fp8 1", [*USAGE, "--precision", "'bf16'"]),
    Row("translate: fp16 on a CPU", f"{TRANSLATE} --precision fp16 --device cpu 1", ["fp16 is for GPUs; use fp32"]),
    Row("translate: no beam", f"{TRANSLATE} --beam-size 0 1", ["decoding.beam_size: "]),
    Row("translate: a beam too large", f"{TRANSLATE} --beam-size 100000 1", ["decoding.beam_size: "]),
    Row("translate: a penalty that is none", f"{TRANSLATE} --length-penalty nan 1", ["decoding.length_penalty: "]),
    Row("translate: a penalty too large", f"{TRANSLATE} --length-penalty 1e308 1", ["decoding.length_penalty: "]),
    Row("translate: an option that is none", f"{TRANSLATE} --beem 3 1", ["No such option: --beem"]),
    *(Row(f"{command}: begins with -", f"{command} {text}", [f"No such option: {said}", f"nmt {command} -- "])
      for command in ("translate", "attention", "score", "data") for text, said in (("$dash", "- "), ("-5", "-5"))),
    Row("translate: begins like an option", f"{TRANSLATE} $help", ["No such option: --help me", "nmt translate -- "]),
    Row("translate: a misspelled option", f"{TRANSLATE} --beam 3 1", ["--beam (Possible options: --beam-size)"]),
    Row("translate: a text and a file", f"{TRANSLATE} --input test.en 1", ["not both"]),
    Row("translate: --continue alone", f"{TRANSLATE} --continue", ["--continue needs --input FILE and --output FILE"]),
    Row("translate: a text that is not UTF-8", f"{TRANSLATE} $latin", ["the text is not UTF-8"]),
    # ------------------------------------------------------------------------------------------- translations: files
    Row("input: missing", f"{TRANSLATE} --input nothing --output out", ["nothing: no such file"]),
    Row("input: a folder", f"{TRANSLATE} --input runs --output out", ["runs: cannot be read", "Is a directory"]),
    Row("input: unreadable", FILES, ["test.en: cannot be read", "Permission denied"], unreadable="test.en"),
    Row("input: a name that is none", f"{TRANSLATE} --input $nul", [*USAGE, "--input"]),
    Row("input: not UTF-8", FILES, ["test.en:1: not UTF-8"], write("test.en", b"caf\xe9\n")),
    Row("input: UTF-16", FILES, ["test.en:1: a NUL character", "UTF-16"], write("test.en", "1\n".encode("utf-16-le"))),
    Row("input: NUL", FILES, ["test.en:2: a NUL character"], write("test.en", b"1\n2 \0\n")),
    Row("input: gzip that is none", f"{TRANSLATE} --input a.gz --output out", ["a.gz: cannot be read", "gzip"],
        write("a.gz", "1")),
    Row("input: empty", FILES, [], write("test.en", ""), code=0, makes=["out"]),
    Row("output: the input", f"{TRANSLATE} --input test.en --output ./test.en", ["must be different files"]),
    Row("output: the input by a link", FILES, ["must be different files"], link("out", "test.en")),
    Row("output: a folder", FILES, ["--output out: is a folder; name a file in it"], folder("out")),
    Row("input: a pipe to continue", f"{TRANSLATE} --input in --output out --continue", ["a pipe does not allow: in;"],
        pipe("in")),
    Row("output: a pipe", FILES, ["--output out: is not a file", "use > or |"], pipe("out")),
    Row("output: into a missing folder", f"{TRANSLATE} --input test.en --output no/where/out",
        ["--output no/where/out: there is no folder no/where; make it first"]),
    Row("output: into a file", f"{TRANSLATE} --input test.en --output test.de/out", ["there is no folder test.de"]),
    Row("output: no name", f"{TRANSLATE} --input test.en --output $empty", ["--output .: is a folder"]),
    Row("output: a name too long", f"{TRANSLATE} --input test.en --output $long", ["--output aaa", "too long"]),
    Row("output: before a model is looked for", "translate --model nothing --input test.en --output no/out",
        ["--output no/out: there is no folder no"]),
    Row("output: broken off before", FILES, ["out.part holds", "--continue"],
        all_of(write("out.part", "1\n"), write("out.from.json", "{}"))),
    Row("output: --continue with another beam", f"{FILES} --continue", ["out.part was started with another"],
        all_of(write("out.part", "1\n"), write("out.from.json", "{}"))),
    Row("output: what it leads to", FILES, [], link("out", "elsewhere"), code=0, makes=["elsewhere"]),
    Row("alignments: a folder", f"{TRANSLATE} --input test.en --alignments out", ["--alignments out: is a folder"],
        folder("out")),
    Row("alignments: into a missing folder", f"{TRANSLATE} --input test.en --alignments no/out",
        ["--alignments no/out: there is no folder no"]),
    Row("alignments: the output", f"{FILES} --alignments out", ["must be different files"]),
    Row("stdin: not UTF-8", TRANSLATE, ["standard input:1: not UTF-8"], stdin=b"caf\xe9\n1 2\n"),
    Row("stdin: NUL", TRANSLATE, ["standard input:1: a NUL character"], stdin=b"1 \0 2\n"),
    # ------------------------------------------------------------------------------------------- looking inside
    Row("attention: a text that is not UTF-8", f"{ATTENTION} $latin", ["the text is not UTF-8"]),
    Row("attention: a translation that is not UTF-8", f"{ATTENTION} 1 --tgt $latin", ["the text is not UTF-8"]),
    Row("attention: layers count from 1", f"{ATTENTION} 1 --layer 0", [*USAGE, "--layer"]),
    Row("attention: a folder", f"{ATTENTION} 1", ["--output x.json: is not a file in an"], folder("x.json")),
    Row("attention: a name too long", "attention --model copy 1 --output $long.json", ["File name too long"]),
    Row("attention: weights that are not numbers", f"{ATTENTION} 1", ["not numbers (NaN)"], diverged, code=3),
    Row("score: no files", "score --model copy", ["name what to score: a corpus, or its sides with --src and --tgt"]),
    Row("score: unlike lengths", "score --model copy --src test.en --tgt train.de",
        ["differ in length", "train.de has"]),
    Row("score: missing", "score --model copy --src test.en --tgt no", ["no: no such file"]),
    Row("score: weights that are not numbers", SCORE, ["not numbers (NaN)"], diverged, code=3),
    # ------------------------------------------------------------------------------------------- strange texts
    *(Row(f"text: {name}", "translate --model pieces --device cpu", [f"{lines} lines"], stdin=text.encode(), code=0)
      for name, text, lines in (
          ("emoji", "😀😀🏳️‍🌈\n👩‍👩‍👧\n", 2),
          ("right to left", "مرحبا بالعالم\nשלום\n", 2),
          ("combining marks", "e" + "\u0301" * 999 + "\n\u0301\n", 2),
          ("100,000 spaces", " " * 100_000 + "\n" + "1" + " " * 100_000 + "2\n", 2),
          ("U+2028", "1 2\u20283 4\n5\x85\x0b\x0c\x1c6\n", 2),
          ("a BOM and CRLF", "\ufeff1 2\r\n3\r\n\r\n", 3),
          ("no end", "1\n\n2", 3),
      )),
    # ------------------------------------------------------------------------------------------- scores
    Row("eval: --src alone", "eval --src test.en", ["--src and --ref go together"]),
    Row("eval: --hyp alone", "eval --hyp test.en", ["--hyp FILE is scored against --ref FILE"]),
    Row("eval: a hypothesis that is missing", "eval --hyp nothing --ref test.de", ["nothing: no such file"]),
    Row("eval: a hypothesis that is a folder", "eval --hyp runs --ref test.de", ["runs: cannot be read"]),
    Row("eval: an empty hypothesis", "eval --hyp a --ref test.de", ["a is empty"], write("a", "")),
    Row("eval: a line less", "eval --hyp a --ref test.de", ["a has 2 lines", "test.de has 50"], write("a", "1\n2\n")),
    Row("eval: a reference with NUL", "eval --hyp test.de --ref a.de", ["a.de:2: a NUL"], write("a.de", b"1\n\0\n")),
    Row("eval: no language", "eval --hyp copy.yaml --ref copy.yaml", ["add --tgt-lang"]),
    Row("eval: a language that is none", "eval --model copy --tgt-lang ../x", ["'../x' is not a language code"]),
    Row("eval: no such run", "eval --model nothing", ["nothing: no such run"]),
    Row("eval: no such device", "eval --model copy --device tpu", ["device 'tpu' is not one of"]),
    Row("eval: a test set that is gone", "eval --model copy", ["test.de: no such file"], remove("test.de")),
    Row("eval: no test set", "eval --model copy", ["config.yaml: data.test names no test set", "--src and --ref"],
        lambda: write(f"{RUN}/config.yaml", "\n".join(
            line for line in Path(RUN, "config.yaml").read_text().split("\n") if "test" not in line))()),
    Row("eval: a link out of the run", "eval --model copy", ["runs/copy/evaluation: a link that leads out"],
        link(f"{RUN}/evaluation", "../..")),
    # ------------------------------------------------------------------------------------------- averages
    Row("average: no such run", "average --model nothing", ["nothing: no such run"]),
    Row("average: of one", "average --model copy --last 1", [*USAGE, "--last"]),
    Row("average: of more than there are", "average --model copy --last 9", ["there are 2 checkpoints, not 9"]),
    Row("average: of checkpoints that are gone", "average --model copy", ["there are 0 checkpoints"],
        remove(f"{RUN}/checkpoints")),
    Row("average: of a damaged one", "average --model copy", ["12/model.safetensors: cannot be read"],
        write(f"{RUN}/checkpoints/12/model.safetensors", "damaged")),
    Row("average: a name that exists", "average --model copy --name pieces", ["runs/pieces exists", "--name"]),
    Row("average: a name that leads out", "average --model copy --name ../x", ["a run cannot be called '../x'"]),
    Row("average: a link out of the run", "average --model copy", ["runs/copy/checkpoints: a link that leads out"],
        all_of(remove(f"{RUN}/checkpoints"), link(f"{RUN}/checkpoints", "../pieces/checkpoints"))),
    # ------------------------------------------------------------------------------------------- exports
    Row("export: no such run", "export ctranslate2 --model nothing", ["nothing: no such run"]),
    Row("export: no such engine", "export marian", ["No such command 'marian'"]),
    Row("export: no such quantization", f"{EXPORT} --quantization int3",
        ["--quantization int3: should be one of int8"]),
    Row("export: --src alone", f"{EXPORT} --src test.en", ["--src and --ref go together"]),
    Row("export: text is missing", EXPORT, ["val.en: no such file", "--src FILE --ref FILE"], remove("val.en")),
    Row("export: a line less", f"{EXPORT} --src a --ref test.de", ["a has 1 lines", "has 50"], write("a", "1\n")),
    Row("export: no such device", f"{EXPORT} --device tpu", ["device 'tpu' is not one of"]),
    Row("export: damaged weights", EXPORT, ["model.safetensors: cannot be read"],
        write(f"{RUN}/model.safetensors", b"\xff" * 99)),
    Row("export: another tokenizer", EXPORT, ["not the weights of this model"],
        append(f"{RUN}/tokenizer/joint.words", b"more\n")),
    Row("export: a link out of the run", EXPORT, ["runs/copy/export: a link that leads out"],
        link(f"{RUN}/export", "../../..")),
    Row("export: an export", "export ctranslate2 --model copy", ["is an export; name the run"],
        write(f"{RUN}/export.json", "{}")),
]  # fmt: skip


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the copy task and two runs, of words and of SentencePiece's characters."""
    place = tmp_path_factory.mktemp("ready")
    with pytest.MonkeyPatch.context() as monkeypatch:
        write_copy_task(place, monkeypatch)
        for arguments in (
            ["--name", "pieces", "--set", "tokenizer.type=char", "--set", "tokenizer.vocab_size=300",
             "--set", "training.max_steps=1", "--set", "training.schedule=constant"],
            [],
        ):  # fmt: skip
            monkeypatch.setattr(sys, "argv", ["nmt", "train", "copy.yaml", *arguments])
            with pytest.MonkeyPatch.context() as quiet:
                quiet.setattr(sys, "stderr", io.StringIO())
                try:
                    main()
                except SystemExit as end:
                    assert not end.code
        shutil.rmtree(CACHE)
        for run in ("copy", "pieces"):  # their paths are in this folder
            config = Path("runs", run, "config.yaml")
            config.write_text(config.read_text().replace(f"{place}/", "../../"))
    return place


def make_unreadable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for root, who ignores permissions."""
    really_open = io.open

    def refuse(file: object, *arguments: object, **options: object) -> object:
        if str(file).endswith(name):
            raise PermissionError(13, "Permission denied", str(file))
        return really_open(file, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(io, "open", refuse)


def snapshot() -> dict[str, object]:
    """All files and folders in the current folder, with their contents."""
    found: dict[str, object] = {}
    for path in Path().rglob("*"):
        if path.match(".*.lock") and not path.stat().st_size:  # stays
            continue
        if path.is_symlink():
            found[str(path)] = path.readlink()
        else:
            found[str(path)] = path.read_bytes() if path.is_file() else "not a file"
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_mistake_is_one_message_and_changes_nothing(
    row: Row, ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(shutil.copytree(ready, tmp_path / "here"))
    row.prepare()
    before = snapshot()
    with pytest.MonkeyPatch.context() as context:
        if row.unreadable:
            make_unreadable(row.unreadable, context)
        context.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(row.stdin))))
        code, out, err = cli(*(WORDS.get(word, word) for word in row.command.split(" ")))
    assert code == row.code, err
    assert "Traceback" not in err
    assert len(err) < 4000
    said = err if code else f"{out}{out.count(chr(10))} lines"
    for part in row.parts:
        assert part in said, said
    if code:
        assert out == ""
        lines = err.splitlines()
        messages = [line for line in lines if line.startswith(("nmt: ", "Error: "))]
        assert len(messages) == 1, err
        assert lines[0] == messages[0] or lines[0].startswith("Usage: "), err
    after = snapshot()
    different = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert [path for path in sorted(different) if not path.startswith(tuple(row.makes))] == []
    assert Path("..", "..", "x").exists() is False


@pytest.mark.parametrize(
    "command", ["translate --model copy --beam-size 1 --input train.en", "eval --hyp test.de --ref test.de"]
)
def test_a_closed_pipe_ends_it_quietly(ready: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(ready)
    ours, theirs = os.pipe()
    os.close(ours)  # without a reader
    with os.fdopen(theirs, "wb") as pipe:
        result = subprocess.run(
            [sys.executable, "-m", "nmt", *command.split()], stdout=pipe, stderr=subprocess.PIPE, check=False
        )
    assert (result.returncode, result.stderr) == (0, b"")
