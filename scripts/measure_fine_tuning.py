#!/usr/bin/env python3
"""Measure what a model of captions gains and loses when it is fine-tuned on LibreOffice's messages.

    scripts/get_multi30k && scripts/get_localisation
    nmt train configs/multi30k_en_de.yaml
    python scripts/measure_fine_tuning.py train runs/multi30k_en_de    # what is missing; may be started again
    python scripts/measure_fine_tuning.py table runs/multi30k_en_de

The messages are cleaned first, by the recommended rules of `data.cleaning`. 1,000 of those of three words and more
are the test set, 300 others the validation set. 500 and 3,000 of the others, another draw for each seed, are the
training text. The table has BLEU on the test set before and after with the p of a paired bootstrap, and BLEU on the
captions' test set before and after. `--set` gives a setting to all trainings, and `--name` a name to what they are
then called.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from nmt.atomic import write_text
from nmt.config.cleaning import CleaningConfig
from nmt.config.corpus import CorpusFiles
from nmt.config.file import settings_to_yaml
from nmt.data.cleaning import normalize
from nmt.data.corpus import read_pairs
from nmt.data.selection import select
from nmt.history import read_history
from nmt.runs import RunFolder
from nmt.training.forgetting import read_forgetting

REPOSITORY = Path(__file__).resolve().parent.parent
CATALOGUE = REPOSITORY / "data" / "localisation" / "libreoffice.jsonl"
PAIRS, SEEDS = (500, 3000), (1, 2, 3)
TEST, VALIDATION = 1000, 300
LANGUAGES = ("en", "de")


def write_texts(folder: Path) -> None:
    """The test set, the validation set, and the training text of each size and seed."""
    folder.mkdir(parents=True, exist_ok=True)
    files = CorpusFiles(pairs=CATALOGUE, src_column="en", tgt_column="de")
    selection = select([files], CleaningConfig.recommended(), LANGUAGES)
    assert selection is not None, "there are rules"
    pairs = [(normalize(src), normalize(tgt)) for src, tgt in read_pairs(files, selection.chosen(0))]
    sentences = [pair for pair in pairs if len(pair[0].split()) >= 3]
    random.Random(0).shuffle(sentences)
    sources: set[str] = set()
    targets: set[str] = set()
    for name, count in (("test", TEST), ("validation", VALIDATION)):
        chosen = [pair for pair in sentences if pair[0] not in sources and pair[1] not in targets][:count]
        write(folder / name, chosen)
        sources.update(src for src, _ in chosen)
        targets.update(tgt for _, tgt in chosen)
    rest = [(src, tgt) for src, tgt in pairs if src not in sources and tgt not in targets]
    for count in PAIRS:
        for seed in SEEDS:
            write(folder / f"train-{count}-{seed}", random.Random(seed).sample(rest, count))


def write(path: Path, pairs: list[tuple[str, str]]) -> None:
    """Two texts, PATH.en and PATH.de."""
    for side, language in enumerate(LANGUAGES):
        write_text(path.with_name(f"{path.name}.{language}"), "".join(f"{pair[side]}\n" for pair in pairs))


def train(base: Path, folder: Path, pairs: list[int], seeds: list[int], name: str, settings: list[str]) -> None:
    """Fine-tune with each size and seed, one after the other, on one core."""
    texts = folder / "text"
    write_texts(texts)
    for seed in seeds:
        for count in pairs:
            run = f"{name}-{count}-{seed}"
            parts = {"train": f"train-{count}-{seed}", "validation": "validation", "test": "test"}
            data = {
                key: {"src": str(texts / f"{part}.en"), "tgt": str(texts / f"{part}.de")} for key, part in parts.items()
            }
            training = {"seed": seed, "threads": 1, "processes": 1}
            sections = {"data": data, "training": training, "evaluation": {"report": False}}
            sections |= {"export": {"after_training": []}}
            config = folder / f"{run}.yaml"
            write_text(config, settings_to_yaml(sections))
            overrides = [part for setting in settings for part in ("--set", setting)]
            command = ["train", str(config), "--name", run, "--init-from", str(base), *overrides]
            with (folder / f"{run}.log").open("a") as log:
                done = subprocess.run([sys.executable, "-m", "nmt", *command], cwd=folder, stderr=log, check=False)
            print(f"{run}: {'done' if done.returncode == 0 else f'failed, see {log.name}'}", flush=True)


def table(base: Path, folder: Path, pairs: list[int], seeds: list[int], name: str) -> None:
    """Compare every run with the base on both test sets."""
    head = ["pairs", "seed", "updates", "messages before", "after", "p", "captions before", "after"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for count in pairs:
        for seed in seeds:
            run = folder / "runs" / f"{name}-{count}-{seed}"
            if not (run / "model.safetensors").is_file():
                continue
            sides = [f"--src={folder}/text/test.en", f"--ref={folder}/text/test.de", "--json"]
            command = [sys.executable, "-m", "nmt", "compare", str(base), str(run), *sides]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            print(row(json.loads(done.stdout), run, count, seed), flush=True)


def row(comparison: dict[str, Any], run: Path, count: int, seed: int) -> str:
    """The row of one run."""
    old, new = (system["outputs"][0]["scores"]["bleu"] for system in comparison["test_sets"][0]["systems"])
    (captions,) = read_forgetting(RunFolder(run))
    best = read_history(RunFolder(run)).best(RunFolder(run).config().training.best_metric)
    values = [old["score"]["value"], new["score"]["value"], captions.before["bleu"].value, captions.after["bleu"].value]
    cells = [f"{value:.2f}" for value in values]
    updates = "" if best is None else f"{best.step:,}"
    return f"| {count:,} | {seed} | {updates} | {cells[0]} | {cells[1]} | {new['p']:.4f} | {cells[2]} | {cells[3]} |"


def main() -> None:
    """Train, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["train", "table"])
    parser.add_argument("base", type=Path, help="the run of captions to start from")
    parser.add_argument("--runs", type=Path, default=Path("runs/fine-tuning"), help="the folder of the trainings")
    parser.add_argument("--pairs", action="append", type=int)
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--name", default="messages")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    base, folder = arguments.base.resolve(), arguments.runs.resolve()
    pairs, seeds = arguments.pairs or list(PAIRS), arguments.seed or list(SEEDS)
    if arguments.part == "train":
        train(base, folder, pairs, seeds, arguments.name, arguments.settings)
    else:
        table(base, folder, pairs, seeds, arguments.name)


if __name__ == "__main__":
    main()
