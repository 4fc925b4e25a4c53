"""Three figures of a model of configs/shapes.yaml; the exit code is 1 if one of them misses its limit.

    python scripts/check_shapes.py data/shapes                # of runs/latest
    python scripts/check_shapes.py data/shapes --model runs/shapes
    python scripts/check_shapes.py data/shapes --choosing       # held_out_val instead of held_out: to choose settings

exact       pictures of held_out, with combinations that training never showed, whose description is right word for word
            (at least 90%), and the same of test
shuffled    the same of held_out with each description compared with the picture of another one (less than 20%): a
            model that guesses the likeliest sentence without looking would lose nothing
attention   the share of a noun's cross-attention (the mean of all layers and heads) that lies on the cells of its
            shape, divided by the share of the picture that these cells are (at least 3)
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from make_shapes_corpus import SIDE, draw, scenes
from numpy.typing import NDArray

from nmt.corpora.lines import read_lines
from nmt.corpora.vectors import Vectors, open_vectors
from nmt.decoding.torch_engine import TorchEngine, load_torch_engine
from nmt.decoding.translator import load
from nmt.runs.folder import open_run
from nmt.tokenizers.tokenizer import load_tokenizers

COVERED = 0.25  # a cell belongs to a shape that covers this share of it
BATCH = 100


def exact(outputs: list[str], references: list[str]) -> float:
    """Return the share of the outputs that equal their reference."""
    return sum(output == reference for output, reference in zip(outputs, references, strict=True)) / len(references)


def cells_of(mask: NDArray[np.bool_], grid: int) -> NDArray[np.bool_]:
    """Return the cells of a shape: (SIDE, SIDE) pixels -> (grid * grid,), row by row."""
    size = SIDE // grid
    covered = mask.reshape(grid, size, grid, size).mean(axis=(1, 3))
    return (covered >= min(COVERED, covered.max())).ravel()


def attention_on_shapes(
    engine: TorchEngine, split: str, sources: list[Vectors], targets: list[list[int]]
) -> tuple[float, float]:
    """Return the mean share of the nouns' attention on their shapes' cells, and the mean share of the cells."""
    on_shape, chance = [], []
    drawn = [draw(scene, random)[1] for scene, random in scenes(split)]
    for begin in range(0, len(sources), BATCH):
        part = slice(begin, begin + BATCH)
        for weights, masks in zip(engine.attention(sources[part], targets[part]), drawn[part], strict=True):
            grid = round(weights.shape[1] ** 0.5)
            for row, mask in zip((2, -1), masks, strict=True):  # ein ROTER KREIS ...: the third word, and the last
                cells = cells_of(mask, grid)
                on_shape.append(weights[row, cells].sum())
                chance.append(cells.mean())
    return float(np.mean(on_shape)), float(np.mean(chance))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the corpus, as scripts/make_shapes_corpus.py wrote it")
    parser.add_argument("--model", help="the run; default: the newest")
    parser.add_argument("--choosing", action="store_true", help="measure held_out_val, not held_out")
    arguments = parser.parse_args()
    split = "held_out_val" if arguments.choosing else "held_out"
    run = open_run(arguments.model)
    source = run.inference_config().source
    assert source.type == "images"
    translator = load(run.path, device="cpu")
    found, read = {}, {}
    for name in ("test", split):
        read[name] = open_vectors(arguments.folder / f"{name}.txt", source).read()
        found[name] = translator.translate(read[name])
    references = {name: list(read_lines(arguments.folder / f"{name}.de")) for name in found}
    shuffled = exact(translator.translate(read[split][1:] + read[split][:1]), references[split])
    tokenizers = load_tokenizers(run.tokenizer)
    targets = [tokenizers.tgt.encode(line) for line in references[split]]
    engine = load_torch_engine([run], tokenizers, "cpu")
    on_shape, chance = attention_on_shapes(engine, split, read[split], targets)
    held_out = exact(found[split], references[split])
    print(f"exact: {held_out:.1%} of {split}, {exact(found['test'], references['test']):.1%} of test")
    print(f"shuffled: {shuffled:.1%} of {split}")
    print(f"attention: {on_shape:.1%} on the noun's shape, {chance:.1%} of the picture: {on_shape / chance:.1f} times")
    if held_out < 0.9 or shuffled >= 0.2 or on_shape < 3 * chance:
        sys.exit(1)


if __name__ == "__main__":
    main()
