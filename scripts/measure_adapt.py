#!/usr/bin/env python3
"""Measure what the guard of `nmt adapt` keeps, and what it costs: a model of captions learns LibreOffice's messages.

    scripts/get_multi30k && scripts/get_localisation
    nmt train configs/multi30k_en_de.yaml
    python scripts/measure_adapt.py train runs/multi30k_en_de    # what is missing; may be started again
    python scripts/measure_adapt.py table runs/multi30k_en_de

The texts are those of scripts/measure_fine_tuning.py: 1,000 messages are the test set, which no training sees, and 500,
3,000 or all others (0) the new text, another draw for each seed. Each is learned in three ways: `guarded` by
`nmt adapt`; `mixed` with the same configuration without its guard; and `alone` without captions mixed in, too. The
captions are the general text: their validation set decides, their test set reports. The table has BLEU on both test
sets, the alpha that the guard chose, and how much of the best gain of the others is left. `--set` gives a setting to
all trainings.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from measure_fine_tuning import CATALOGUE, SEEDS, TEST, VALIDATION, write

from nmt.adaptation.frontier import read_frontier
from nmt.atomic import read_json
from nmt.config.cleaning import CleaningConfig
from nmt.config.corpus import CorpusFiles
from nmt.data.cleaning import normalize
from nmt.data.corpus import read_pairs
from nmt.data.selection import select
from nmt.runs import RunFolder

PAIRS = (500, 3000, 0)
WAYS = {"guarded": [], "mixed": ["guard.max_drop=null"], "alone": ["guard.max_drop=null", "data.replay=0"]}
"""What each way changes in the configuration that `nmt adapt` wrote."""


def write_texts(folder: Path, sizes: list[int], seeds: list[int]) -> None:
    """The test set, and the new text of each size and seed; 0 stands for all."""
    folder.mkdir(parents=True, exist_ok=True)
    files = CorpusFiles(pairs=CATALOGUE, src_column="en", tgt_column="de")
    selection = select([files], CleaningConfig.recommended(), ("en", "de"))
    assert selection is not None, "there are rules"
    pairs = [(normalize(src), normalize(tgt)) for src, tgt in read_pairs(files, selection.chosen(0))]
    sentences = [pair for pair in pairs if len(pair[0].split()) >= 3]
    random.Random(0).shuffle(sentences)
    chosen = distinct(sentences)[: TEST + VALIDATION]  # the same test set as measure_fine_tuning.py
    write(folder / "test", chosen[:TEST])
    sources, targets = ({pair[side] for pair in chosen} for side in (0, 1))
    rest = [pair for pair in pairs if pair[0] not in sources and pair[1] not in targets]
    for size in sizes:
        for seed in seeds:
            write(folder / f"new-{size}-{seed}", random.Random(seed).sample(rest, size or len(rest)))


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


def train(base: Path, folder: Path, arguments: argparse.Namespace) -> None:
    """Adapt with each size and seed in each way, one after the other."""
    write_texts(folder / "text", arguments.pairs, arguments.seed)
    always = ["evaluation.report=false", *arguments.settings]
    for seed in arguments.seed:
        for size in arguments.pairs:
            new = folder / "text" / f"new-{size}-{seed}"
            name = f"guarded-{size}-{seed}"
            settings = [f"training.seed={seed}", *always]
            adapt = ["adapt", "--model", str(base), "--data", f"{new}.en", "--data", f"{new}.de", "--name", name]
            adapt += ["--max-drop", str(arguments.max_drop), *as_options(settings)]
            run(folder, name, adapt)
            for way in ("mixed", "alone"):
                other = f"{way}-{size}-{seed}"
                run(folder, other, ["train", f"{name}.yaml", "--name", other, *as_options(WAYS[way])])


def as_options(settings: list[str]) -> list[str]:
    """The settings as options of a command."""
    return [part for setting in settings for part in ("--set", setting)]


def run(folder: Path, name: str, command: list[str]) -> None:
    """Run `nmt` in the folder; 3 is the exit code of an adaptation that keeps the base."""
    with (folder / f"{name}.log").open("a") as log:
        done = subprocess.run([sys.executable, "-m", "nmt", *command], cwd=folder, stdout=log, stderr=log, check=False)
    print(f"{name}: {'done' if done.returncode in (0, 3) else f'failed, see {log.name}'}", flush=True)


def table(base: Path, folder: Path, arguments: argparse.Namespace) -> None:
    """Compare all runs with the base on both test sets."""
    head = ["pairs", "seed", "messages: base", *WAYS, "captions: base", *WAYS, "alpha", "gain kept"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for size in arguments.pairs:
        for seed in arguments.seed:
            runs = [RunFolder(folder / "runs" / f"{way}-{size}-{seed}") for way in WAYS]
            if any(not list((one.evaluation / "after").glob("*.json")) for one in runs):
                continue  # not finished
            print(row(base, folder, runs, size, seed), flush=True)


def row(base: Path, folder: Path, runs: list[RunFolder], size: int, seed: int) -> str:
    """The row of one size and seed."""
    sides = [f"--src={folder}/text/test.en", f"--ref={folder}/text/test.de", "--json"]
    models = [str(base), *(str(one.path) for one in runs)]
    command = [sys.executable, "-m", "nmt", "compare", *models, *sides]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    systems: list[dict[str, Any]] = json.loads(done.stdout)["test_sets"][0]["systems"]
    messages = [system["outputs"][0]["scores"]["bleu"]["score"]["value"] for system in systems]
    captions = [captions_score(runs[0], "before"), *(captions_score(one, "after") for one in runs)]
    frontier = read_frontier(runs[0])
    assert frontier is not None
    best = max(messages[2:]) - messages[0]
    kept = f"{(messages[1] - messages[0]) / best:.0%}" if best > 0 else ""
    cells = [f"{value:.2f}" for value in (*messages, *captions)]
    point = frontier.point
    return " | ".join([f"| {size or 'all'}", str(seed), *cells, f"{point.alpha:g} of step {point.step}", f"{kept} |"])


def captions_score(run: RunFolder, when: str) -> float:
    """BLEU on the first of the base's test sets."""
    record = read_json(run.record_file)["init_from"]["test"]
    name = next(name for name in record if name != "new")
    value: float = read_json(run.evaluation / when / f"{name}.json")["scores"]["bleu"]["value"]
    return value


def main() -> None:
    """Train, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["train", "table"])
    parser.add_argument("base", type=Path, help="the run of captions to start from")
    parser.add_argument("--runs", type=Path, default=Path("runs/adapting"), help="the folder of the trainings")
    parser.add_argument("--pairs", action="append", type=int, help="size of the new text; 0: all of it")
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--max-drop", type=float, default=0.5)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    arguments.pairs = list(PAIRS) if arguments.pairs is None else arguments.pairs
    arguments.seed = arguments.seed or list(SEEDS)
    base, folder = arguments.base.resolve(), arguments.runs.resolve()
    if arguments.part == "train":
        train(base, folder, arguments)
    else:
        table(base, folder, arguments)


if __name__ == "__main__":
    main()
