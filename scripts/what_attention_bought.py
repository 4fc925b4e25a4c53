#!/usr/bin/env python3
"""Make every table and picture of docs/tutorials/attention.md.

    scripts/get_multi30k
    for name in none additive dot transformer; do nmt train configs/what_attention_bought/$name.yaml; done
    python scripts/what_attention_bought.py                    # all parts, of runs/none, runs/additive, ...
    python scripts/what_attention_bought.py results speed      # some of them
    python scripts/what_attention_bought.py --runs FOLDER      # of trainings in another folder

    results       parameters, updates, minutes, BLEU, and BLEU by length of the source: four quarters of each test set
    speed         training again for some updates in turn, which means something only on idle cores
    alignments    where additive attention, dot product and Transformer look while they write the same translation
    permutation   what is left if the words of the sources are shuffled, and of a Transformer without positions
    lengths       scripts/sequence_lengths.py

Each table replaces the text between `<!-- NAME -->` and `<!-- /NAME -->` on the page; `--page` names another page.
"""

import argparse
import dataclasses
import io
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.config.reading import load_config
from nmt.decoding.torch_engine import TorchEngine, load_model
from nmt.decoding.translator import Translator, load
from nmt.evaluation.metrics import make_metrics, score
from nmt.evaluation.significance import confidence_intervals
from nmt.insight.drawing import Curve, drawing
from nmt.insight.explanation import explain_attention
from nmt.insight.systems import ComparedFiles, Material, TranslatedSet, read_material
from nmt.models.source import Source
from nmt.models.transformer import Transformer
from nmt.runs.folder import RunFolder, open_run
from nmt.runs.history import duration, read_history
from nmt.system.files import read_json, write_text
from nmt.tokenizers.tokenizer import load_tokenizers

REPOSITORY = Path(__file__).resolve().parent.parent
CONFIGS = REPOSITORY / "configs" / "what_attention_bought"
NAMES = {"none": "no attention", "additive": "additive", "dot": "dot product", "transformer": "Transformer"}
COLOURS = {
    "no attention": "#5c6570", "GRU": "#5c6570", "additive": "#0b57a4", "additive attention": "#0b57a4",
    "dot product": "#b35c00", "Transformer": "#1b7f4b", "self-attention": "#1b7f4b",
    "self-attention written out": "#8a2b8a",
}  # fmt: skip
QUARTERS = ("shortest", "second", "third", "longest")
SENTENCE = "A man in a blue shirt is standing on a ladder cleaning a window."
TRANSLATION = "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster."
SEED = 1
WARMUP, UPDATES, ROUNDS = 5, 20, 3
"""Of `speed`."""


@dataclasses.dataclass(frozen=True)
class Place:
    """The folders of the runs, the tables and the pictures."""

    runs: Path
    page: Path
    images: Path

    def run(self, name: str) -> RunFolder:
        return open_run(str(self.runs / name))

    def write(self, name: str, text: str) -> None:
        write_text(self.page, filled(self.page.read_text(encoding="utf-8"), name, text))
        print(f"{text}\n", flush=True)


def filled(page: str, name: str, text: str) -> str:
    """Return the page with `text` between the markers of a name, each of which is on a line of its own.

    >>> filled("<!-- a -->\\nold\\n<!-- /a -->\\n", "a", "new")
    '<!-- a -->\\nnew\\n<!-- /a -->\\n'
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"the page needs one line {begin.strip()} and after it one line {end.strip()}")
    before, rest = page.split(begin)
    return before + begin + text + "\n" + end + rest.split(end)[1]


def quarters(lengths: Sequence[int]) -> list[list[int]]:
    """Return the positions of the shortest quarter, the next two, and the longest; equal lengths stay in order.

    >>> quarters([5, 1, 9, 1, 7, 3, 8, 2])
    [[1, 3], [7, 5], [0, 4], [6, 2]]
    """
    order = sorted(range(len(lengths)), key=lambda position: lengths[position])
    edges = [len(order) * part // 4 for part in range(5)]
    return [order[begin:end] for begin, end in itertools.pairwise(edges)]


def shuffled(lines: Sequence[str], seed: int = SEED) -> list[str]:
    """Return the words of each line in random order, always the same for a seed."""
    generator = random.Random(seed)
    return [" ".join(generator.sample(words, len(words))) for words in (line.split() for line in lines)]


@torch.no_grad()
def order_difference(model: Any, ids: Tensor, permutation: Tensor) -> float:
    """Return the largest difference between the states of permuted ids and the permuted states of the ids.

    (1, S), (S,) -> the largest difference of two numbers, in units of the states' standard deviation.
    """
    mask = torch.ones_like(ids, dtype=torch.bool)
    states = model.encode(Source(ids, mask)).states  # (1, S, D)
    of_permuted = model.encode(Source(ids[:, permutation], mask)).states
    return float((of_permuted - states[:, permutation]).abs().max() / states.std())


def without_source_positions(model: Transformer) -> Transformer:
    """Return the model without its source positions: nothing is added to the source embeddings."""
    model.src_positions.table.zero_()
    return model


def plot(path: Path, x_label: str, panels: Mapping[str, Sequence[Curve]], logarithmic: bool = False) -> None:
    """Draw diagrams side by side, by the titles of their vertical axes, as SVG on white."""
    with drawing(()):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.0 if len(panels) == 1 else 9.0, 3.6), layout="constrained")
        for number, (y_label, lines) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(1, len(panels), number)
            for line in lines:
                x, y = zip(*line.points, strict=True)
                colour = COLOURS[line.label]
                axes.plot(x, y, color=colour, label=line.label, marker="o", markersize=3.5, linewidth=1.6)
            if logarithmic:
                axes.set_xscale("log", base=2)
                axes.set_yscale("log")
                axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
            axes.grid(color="#d9dde2", linewidth=0.8)
            axes.legend(frameon=False, fontsize=9)
        figure.savefig(path, metadata={"Date": None})


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def results(place: Place) -> None:
    """Make the tables `results` and `quarters`, and the plot of BLEU by length."""
    runs = {name: place.run(name) for name in NAMES}
    test, validation = translated_sets(place, runs["none"])
    rows = []
    scores = {one.name: bleu_of(one, range(len(one.references[0]))) for one in (validation, test)}
    for number, (name, run) in enumerate(runs.items()):
        history = read_history(run)
        rates = [one.tgt_tokens_per_second for one in history.intervals if one.tgt_tokens_per_second]
        parameters = sum(read_json(run.record_file)["parameters"].values())
        row = [NAMES[name], f"{parameters / 1e6:.2f} million", f"{history.step:,}", duration(history.seconds or 0)]
        row.append(f"{statistics.median(rates):,.0f}")
        rows.append([*row, *(f"{of_set[number]:.2f}" for of_set in scores.values())])
    head = ["model", "parameters", "updates", "minutes", "target tokens/s", validation.name, test.name]
    place.write("results", table(head, rows))
    of_validation, (of_test, means) = by_length(validation)[0], by_length(test)
    head = ["source length in words", "lines", *NAMES.values()]
    of_quarters = table(head, of_test + of_validation)
    place.write("quarters", f"{of_quarters}\n\n{gains(test.name, [*means, scores[test.name]])}")
    middles = [statistics.fmean(_words(test)[line] for line in part) for part in quarters(_words(test))]
    lines = [
        Curve(title, [(x, row[number]) for x, row in zip(middles, means, strict=True)])
        for number, title in enumerate(NAMES.values())
    ]
    plot(place.images / "attention-lengths.svg", "mean source length of a quarter, words", {"BLEU": lines})


def gains(title: str, columns: Sequence[Sequence[float]]) -> str:
    """Return the gain of each model over the one before, by quarter and in all; scores are by column."""
    names = [*NAMES.values()]
    rows = [
        [f"{names[step]} minus {names[step - 1]}", *(f"{column[step] - column[step - 1]:+.1f}" for column in columns)]
        for step in range(1, len(names))
    ]
    rows.append([f"{names[-1]} minus {names[0]}", *(f"{column[-1] - column[0]:+.1f}" for column in columns)])
    return table([f"BLEU on {title}", *QUARTERS, "all"], rows)


def translated_sets(place: Place, first: RunFolder) -> tuple[TranslatedSet, TranslatedSet]:
    """Return the test and the validation set translated by all models, as `nmt compare` does."""
    paths = [str(place.runs / name) for name in NAMES]
    (test,) = read_material(paths, (), ComparedFiles(), None).test_sets
    files = first.config().data.validation
    assert files is not None
    material: Material = read_material(paths, (), ComparedFiles([files.tgt], files.src), None)
    return test, material.test_sets[0]._replace(name="validation")


def _words(test_set: TranslatedSet) -> Sequence[int]:
    assert test_set.src is not None
    return test_set.src.lengths.values


def bleu_of(test_set: TranslatedSet, lines: Sequence[int]) -> list[float]:
    """Return the cased BLEU of each system on some lines, as one corpus."""
    return [score(BLEU, hypotheses, references)["bleu"].value for hypotheses, references in _chosen(test_set, lines)]


def _chosen(test_set: TranslatedSet, lines: Sequence[int]) -> list[tuple[list[str], list[list[str]]]]:
    references = [[reference[line] for line in lines] for reference in test_set.references]
    return [([one.outputs[0].hypotheses[line] for line in lines], references) for one in test_set.systems]


def by_length(test_set: TranslatedSet) -> tuple[list[list[str]], list[list[float]]]:
    """Return a row of the table for each quarter, and its scores, one for each system."""
    lengths = _words(test_set)
    rows, values = [], []
    for name, part in zip(QUARTERS, quarters(lengths), strict=True):
        values.append(bleu_of(test_set, part))
        intervals = [confidence_intervals(BLEU, *one)["bleu"] for one in _chosen(test_set, part)]
        widths = [(one.high - one.low) / 2 for one in intervals]
        sizes = [lengths[line] for line in part]
        cells = [f"{value:.1f} ± {width:.1f}" for value, width in zip(values[-1], widths, strict=True)]
        rows.append([f"{test_set.name}, {name}: {min(sizes)} to {max(sizes)}", str(len(part)), *cells])
    return rows, values


def speed(place: Place) -> None:
    """Make the table `speed`: some updates of each configuration in turn, each in a new process on one core."""
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for name, measured in rounds.items():
                command = [sys.executable, __file__, "--once", name, folder]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                measured.append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for name, measured in rounds.items():
        rate, step, share = (
            statistics.median(one[key] for one in measured)
            for key in ("tgt_tokens_per_second", "step_seconds_median", "share_of_peak")
        )
        spread = " to ".join(f"{end(one['tgt_tokens_per_second'] for one in measured):,.0f}" for end in (min, max))
        steps = load_config(CONFIGS / f"{name}.yaml").training.max_steps or 0
        row = [NAMES[name], f"{rate:,.0f} ({spread})", f"{step:.3f} s", f"{share:.0%}", f"{steps:,}"]
        rows.append([*row, duration(steps * step)])
    head = ["model", "target tokens/s", "an update", "share of peak", "updates", "these take"]
    place.write("speed", table(head, rows))


def once(name: str, folder: Path) -> None:
    """Run one round of `speed` for one configuration, in this process."""
    from bench_train import measure  # which lies beside this file

    from nmt.system.distributed import ALONE

    settings = ["training.threads=1", "training.processes=1"]
    config = load_config(CONFIGS / f"{name}.yaml", settings)
    own = folder / name
    own.mkdir(exist_ok=True)
    print(json.dumps(measure(config, own, WARMUP, UPDATES, ALONE)))


def alignments(place: Place) -> None:
    """Draw three models' attention, side by side."""
    from PIL import Image

    from nmt.insight.attention_output import make_figure

    panels = []
    for name in ("additive", "dot", "transformer"):
        maps = explain_attention(place.run(name), SENTENCE, TRANSLATION, "cpu")
        layers, heads = maps.cross.shape[:2]
        mean = maps._replace(cross=maps.cross.mean(axis=(0, 1), keepdims=True))
        with drawing([*maps.src_tokens, *maps.out_tokens]):
            figure = make_figure(mean, model=NAMES[name])
            figure.axes[0].set_title(
                f"mean of {layers} layers of {heads} heads" if layers * heads > 1 else "", fontsize=9
            )
            data = io.BytesIO()
            figure.savefig(data, format="png", dpi=110)
        panels.append(Image.open(data).convert("RGB"))
    whole = Image.new("RGB", (sum(panel.width for panel in panels), max(panel.height for panel in panels)), "white")
    left = 0
    for panel in panels:
        whole.paste(panel, (left, 0))
        left += panel.width
    whole.quantize(128, dither=Image.Dither.NONE).save(place.images / "attention-alignments.png", optimize=True)


def permutation(place: Place) -> None:
    """Make the tables `order` and `shuffled`."""
    run = place.run("transformer")
    tokenizers = load_tokenizers(run.tokenizer)
    ids = torch.tensor([tokenizers.src.encode(SENTENCE)])
    permuted = torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(SEED))
    model = load_model(run, tokenizers).double().eval()
    assert isinstance(model, Transformer)
    with_positions = order_difference(model, ids, permuted)
    without = order_difference(without_source_positions(model), ids, permuted)
    place.write("order", table(
        ["encoder of the Transformer", "largest difference"],
        [["with positions", f"{with_positions:.2g}"], ["without positions", f"{without:.1g}"]],
    ))  # fmt: skip
    test = read_material([str(place.runs / name) for name in NAMES], (), ComparedFiles(), None).test_sets[0]
    assert test.src is not None
    mixed = shuffled(test.src.names)
    rows = []
    for system, (name, title) in zip(test.systems, NAMES.items(), strict=True):
        of_mixed = load(place.run(name).path, device="cpu").translate(mixed)
        rows.append(shuffled_row(title, system.outputs[0].hypotheses, of_mixed, test))
    translator = orderless_translator(run)
    in_order, of_mixed = (translator.translate(lines) for lines in (test.src.names, mixed))
    rows.append(shuffled_row("Transformer, source positions removed", in_order, of_mixed, test))
    place.write("shuffled", table(["model", "BLEU", "BLEU, sources shuffled", "translations unchanged"], rows))


def shuffled_row(title: str, in_order: list[str], of_mixed: list[str], test: TranslatedSet) -> list[str]:
    scores = [score(BLEU, hypotheses, test.references)["bleu"].value for hypotheses in (in_order, of_mixed)]
    same = sum(one == other for one, other in zip(in_order, of_mixed, strict=True)) / len(in_order)
    return [title, *(f"{value:.2f}" for value in scores), f"{same:.0%}"]


def orderless_translator(run: RunFolder) -> Translator:
    """Return a translator by the run's Transformer without source positions."""
    config, tokenizers = run.inference_config(), load_tokenizers(run.tokenizer)
    model = load_model(run, tokenizers).eval()
    assert isinstance(model, Transformer)
    engine = TorchEngine(without_source_positions(model), tokenizers)
    languages = (config.data.src_lang, config.data.tgt_lang)
    return Translator(tokenizers, engine, config.decoding, config.data.max_length, languages=languages)


def lengths(place: Place) -> None:
    """Make the tables `layer`, `training` and `decoding`, and two plots."""
    import sequence_lengths

    series = sequence_lengths.measure(*sequence_lengths.chosen(quick=False), say=print)
    for kind, name in (
        (sequence_lengths.ALONE, "layer"), (sequence_lengths.SIDE_BY_SIDE, "layers"),
        ("training", "training"), ("decoding", "decoding"),
    ):  # fmt: skip
        found = sequence_lengths.table(series, kind), sequence_lengths.crossings(series, kind)
        place.write(name, "\n\n".join(found))
        of_kind = [one for one in series if one.kind == kind]
        panels = {
            "seconds": [Curve(one.name, [*one.seconds.items()]) for one in of_kind],
            "MB (1 or more)": [
                Curve(one.name, points)
                for one in of_kind
                if (points := [(length, size) for length, size in one.megabytes.items() if size >= 1])
            ],
        }
        plot(place.images / f"attention-{name}.svg", "length", panels, logarithmic=True)


PARTS: dict[str, Callable[[Place], None]] = {
    "results": results, "speed": speed, "alignments": alignments, "permutation": permutation, "lengths": lengths,
}  # fmt: skip
BLEU = make_metrics(["bleu"], "de")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the folder of the runs none, additive, ...")
    parser.add_argument("--page", type=Path, default=REPOSITORY / "docs" / "tutorials" / "attention.md")
    parser.add_argument("--images", type=Path, default=REPOSITORY / "docs" / "images", help="a folder")
    parser.add_argument("--once", nargs=2, help=argparse.SUPPRESS)  # a round of `speed`, in this process
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if arguments.once:
        name, folder = arguments.once
        once(name, Path(folder))
        return
    place = Place(arguments.runs, arguments.page, arguments.images)
    for part in arguments.parts or PARTS:
        PARTS[part](place)


if __name__ == "__main__":
    main()
