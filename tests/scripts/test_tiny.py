"""The tiny corpus: reproducible, clean, and solvable with attention."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / "data" / "tiny"


def read(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")


def test_the_committed_corpus_is_the_scripts_output() -> None:
    subprocess.run([sys.executable, REPOSITORY / "scripts" / "make_tiny_corpus.py", "--check"], check=True)


def test_sizes_and_no_sentence_twice() -> None:
    sizes = {"train": 4000, "val": 200, "test": 200}
    for side in ("en", "zh"):
        lines = [line for name, size in sizes.items() for line in read(f"{name}.{side}")]
        assert len(lines) == len(set(lines)) == sum(sizes.values())
    pairs = dict(zip(read("train.en"), read("train.zh"), strict=True))
    assert pairs["hello world"] == "你好世界"


@pytest.mark.slow
@pytest.mark.parametrize("config", ["tiny.yaml", "tiny_rnn.yaml"])
def test_attention_is_enough(tmp_path: Path, config: str) -> None:
    nmt = [sys.executable, "-m", "nmt"]
    subprocess.run([*nmt, "train", str(REPOSITORY / "configs" / config)], cwd=tmp_path, check=True)
    result = subprocess.run([*nmt, "eval", "--json"], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True)
    assert json.loads(result.stdout)["scores"]["bleu"]["value"] >= 90
    result = subprocess.run([*nmt, "translate", "hello world"], cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    assert result.stdout.decode() == "你好世界\n"
