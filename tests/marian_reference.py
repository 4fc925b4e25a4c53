"""Trains a small model with Marian itself, and translates with it: run by Python 3.11 with pymarian installed.

    python tests/marian_reference.py FOLDER     (the folder holds train.src, train.tgt, test.src: pieces, and vocab.yml)

It leaves FOLDER/model.npz (with FOLDER/decoder.yml) and FOLDER/test.out, the greedy translations of test.src in pieces.
"""

import sys
from pathlib import Path

import pymarian

SHAPE = {
    "type": "transformer", "dim-emb": 64, "enc-depth": 2, "dec-depth": 2, "transformer-heads": 4,
    "transformer-dim-ffn": 128, "transformer-ffn-activation": "swish", "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
}  # fmt: skip


def main(folder: Path, updates: int) -> None:
    vocabulary, model = folder / "vocab.yml", folder / "model.npz"
    shape = " ".join(f"--{key} {value}" for key, value in SHAPE.items())
    pymarian.Trainer(
        f"--model {model} --train-sets {folder / 'train.src'} {folder / 'train.tgt'} "
        f"--vocabs {vocabulary} {vocabulary} {shape} --tied-embeddings-all --after {updates}u --mini-batch 64 "
        f"--maxi-batch 10 --learn-rate 0.002 --lr-warmup 100 --seed 1 --cpu-threads 1 --workspace 500 --quiet "
        f"--disp-freq 100u --save-freq {updates}u --overwrite --max-length 100 --optimizer-params 0.9 0.98 1e-09 "
        f"--clip-norm 1 --cost-type ce-mean-words"
    ).train()
    translator = pymarian.Translator(
        f"--models {model} --vocabs {vocabulary} {vocabulary} --beam-size 1 --cpu-threads 1 --mini-batch 16 --quiet "
        f"--max-length 100 --max-length-factor 3 --workspace 500"
    )
    lines = (folder / "test.src").read_text(encoding="utf-8").splitlines()
    (folder / "test.out").write_text("".join(f"{translator.translate(line)}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 600)
