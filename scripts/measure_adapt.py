#!/usr/bin/env python3
"""Measure what the guard of `nmt adapt` keeps, and what it costs: a model of captions learns two other kinds of text.

    scripts/get_multi30k && scripts/get_localisation
    nmt train configs/multi30k_en_de.yaml
    python scripts/measure_adapt.py runs/multi30k_en_de     # trains what is missing; may be started again

The new text is LibreOffice's messages or the descriptions of Debian's packages (`--text`), cleaned by the recommended
rules. Of each, 1,000 of three words and more are the test set, which no training sees, and 500, 3,000 or all others (0)
are adapted to, another draw for each seed. The captions are the general text: their validation set decides, their test
set reports.

A row has BLEU on both test sets with the old weights (base), with what `nmt adapt` chose (guarded), and with what the
same training would have given without a guard: the weights that were best for the new text. `drop` is what the
captions have lost by the guarded model, with the 95% interval of a paired bootstrap. With `--alone`, a second training
has neither guard nor captions mixed in. `kept` is the guarded gain as a share of the last training's, which is the
second one's with `--alone`, and the unguarded one otherwise. `--set` gives a setting to all trainings, and `--name` a
name to what they are then called.
"""

import argparse
import random
import subprocess
import sys
from pathlib import Path

from nmt.adaptation.choosing import Measuring, as_drop
from nmt.adaptation.frontier import read_frontier
from nmt.atomic import write_text
from nmt.checkpoint import interpolated_weights
from nmt.config.cleaning import CleaningConfig
from nmt.config.corpus import CorpusFiles
from nmt.data.cleaning import normalize
from nmt.data.corpus import read_pairs
from nmt.data.selection import select
from nmt.evaluation.evaluate import corpus_test_set
from nmt.evaluation.significance import paired_difference
from nmt.runs import RunFolder
from nmt.training.guarding import weights_file_name

LOCALISATION = Path(__file__).resolve().parent.parent / "data" / "localisation"
TEXTS = {"messages": "libreoffice.jsonl", "descriptions": "descriptions.jsonl"}
PAIRS, SEEDS = (500, 3000, 0), (1, 2, 3)
TEST, VALIDATION = 1000, 300
LANGUAGES = ("en", "de")


def write_texts(folder: Path, text: str, sizes: list[int], seeds: list[int]) -> None:
    """The test set, and the new text of each size and seed; 0 stands for all."""
    folder.mkdir(parents=True, exist_ok=True)
    files = CorpusFiles(pairs=LOCALISATION / TEXTS[text], src_column="en", tgt_column="de")
    selection = select([files], CleaningConfig.recommended(), LANGUAGES)
    assert selection is not None, "there are rules"
    pairs = [(normalize(src), normalize(tgt)) for src, tgt in read_pairs(files, selection.chosen(0))]
    sentences = [pair for pair in pairs if len(pair[0].split()) >= 3]
    random.Random(0).shuffle(sentences)
    chosen = distinct(sentences)[: TEST + VALIDATION]
    write(folder / f"{text}-test", chosen[:TEST])
    sources, targets = ({pair[side] for pair in chosen} for side in (0, 1))
    rest = [pair for pair in pairs if pair[0] not in sources and pair[1] not in targets]
    for size in sizes:
        for seed in seeds:
            write(folder / f"{text}-{size}-{seed}", random.Random(seed).sample(rest, size or len(rest)))


def write(path: Path, pairs: list[tuple[str, str]]) -> None:
    """Two texts, PATH.en and PATH.de."""
    for side, language in enumerate(LANGUAGES):
        write_text(path.with_name(f"{path.name}.{language}"), "".join(f"{pair[side]}\n" for pair in pairs))


def distinct(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs without those whose source or target an earlier one has."""
    sources: set[str] = set()
    targets: set[str] = set()
    found = []
    for src, tgt in pairs:
        if src not in sources and tgt not in targets:
            found.append((src, tgt))
            sources.add(src)
            targets.add(tgt)
    return found


def as_options(settings: list[str]) -> list[str]:
    """The settings as options of a command."""
    return [part for setting in settings for part in ("--set", setting)]


def run(folder: Path, name: str, command: list[str]) -> RunFolder:
    """Run `nmt` in the folder; 3 is the exit code of an adaptation that keeps the base."""
    with (folder / f"{name}.log").open("a") as log:
        done = subprocess.run([sys.executable, "-m", "nmt", *command], cwd=folder, stdout=log, stderr=log, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{name}: failed, see {folder / name}.log")
    return RunFolder(folder / "runs" / name)


def adapt(text: str, size: int, seed: int, folder: Path, arguments: argparse.Namespace) -> list[RunFolder]:
    """Adapt, and with --alone fine-tune without captions and without a guard."""
    new, name = folder / "text" / f"{text}-{size}-{seed}", f"{arguments.name}-{text}-{size}-{seed}"
    settings = [f"training.seed={seed}", "evaluation.report=false", "export.after_training=[]", *arguments.settings]
    command = ["adapt", "--model", str(arguments.base), "--data", f"{new}.en", "--data", f"{new}.de", "--name", name]
    runs = [run(folder, name, [*command, "--max-drop", str(arguments.max_drop), *as_options(settings)])]
    if arguments.alone:
        other = as_options(["guard.max_drop=null", "data.replay=0"])
        runs.append(run(folder, f"{name}-alone", ["train", f"{name}.yaml", "--name", f"{name}-alone", *other]))
    return runs


def row(text: str, size: int, seed: int, folder: Path, runs: list[RunFolder]) -> str:
    """The row of one size and seed."""
    guarded, *alone = runs
    frontier, config = read_frontier(guarded), guarded.config()
    assert frontier is not None, "it is written before the command ends"
    measuring = Measuring(guarded, config)
    base = guarded.adaptation / weights_file_name("base")
    files = [
        base,
        guarded.model_file,
        guarded.adaptation / weights_file_name("tuned"),
        *(one.model_file for one in alone),
    ]
    src, tgt = (folder / "text" / f"{text}-test.{language}" for language in LANGUAGES)
    new_text = CorpusFiles(src=src, tgt=tgt)
    scores, drops = [], []
    for test in (new_text, next(iter(config.guard.test.values()))):
        test_set = corpus_test_set(test, config.source)
        figures = [measuring.measure(interpolated_weights(base, file, 1.0), test_set)["bleu"] for file in files]
        scores.append([measuring.value("bleu", one) for one in figures])
        change = paired_difference(figures[0], figures[1], measuring.scorer("bleu"))
        drops.append(as_drop(change, config.guard.model_copy(update={"drop_metric": "bleu"})))
    gain, reference = (scores[0][number] - scores[0][0] for number in (1, -1))
    cells = [f"{value:.2f}" for value in scores[0]] + [f"{value:.2f}" for value in scores[1]]
    cells.append(f"{drops[1].value:.2f} ({drops[1].low:.2f} to {drops[1].high:.2f})")
    point = frontier.point
    cells += [f"{gain / reference:.0%}" if reference > 0 else "", f"{point.alpha:g} of update {point.step:,}"]
    return f"| {text} | {f'{size:,}' if size else 'all'} | {seed} | {' | '.join(cells)} |"


def main() -> None:
    """Adapt with each text, size and seed, and print a row of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, help="the run of captions to start from")
    parser.add_argument("--runs", type=Path, default=Path("runs/adapting"), help="the folder of the trainings")
    parser.add_argument("--text", action="append", choices=list(TEXTS))
    parser.add_argument("--pairs", action="append", type=int, help="size of the new text; 0: all of it")
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--name", default="adapted")
    parser.add_argument("--max-drop", type=float, default=0.5)
    parser.add_argument("--alone", action="store_true", help="train without captions and without a guard, too")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    sizes = list(PAIRS) if arguments.pairs is None else arguments.pairs
    arguments.base, folder = arguments.base.resolve(), arguments.runs.resolve()
    ways = ["base", "guarded", "unguarded", *(["alone"] if arguments.alone else [])]
    head = ["text", "pairs", "seed", *(f"new: {way}" for way in ways), *(f"captions: {way}" for way in ways)]
    head += ["drop", "kept", "alpha"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}", flush=True)
    for text in arguments.text or list(TEXTS):
        write_texts(folder / "text", text, sizes, arguments.seed or list(SEEDS))
        for seed in arguments.seed or list(SEEDS):
            for size in sizes:
                runs = adapt(text, size, seed, folder, arguments)
                print(row(text, size, seed, folder, runs), flush=True)


if __name__ == "__main__":
    main()
