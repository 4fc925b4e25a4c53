#!/usr/bin/env python3
"""Measure what each step of `nmt improve` gains, with several seeds.

    scripts/get_multi30k
    python scripts/measure_improving.py configs/multi30k_en_de.yaml                  # five seeds; may be started again
    python scripts/measure_improving.py configs/small_corpus.yaml --pairs 5000 --steps bidirectional,student

Other options are those of `nmt improve`. With `--pairs`, the training text is the first so many pairs of the
configuration's. Each seed is an improvement in a folder of its own. The first table has what each step gained on the
validation set over the best run until then, and whether it was kept; the last columns are the mean over the seeds and
the half width of its 95% interval, by Student's t. A step that one seed keeps and another leaves out has other
predecessors in each. The second table has BLEU of the first and of the best run on every test set: look at it once.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nmt.atomic import write_text
from nmt.config.file import load_config
from nmt.data.corpus import read_pairs
from nmt.improving.keeping_apart import held_out_files

SEEDS = (1, 2, 3, 4, 5)
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""0.975 quantiles of Student's t with 1, 2, ... degrees of freedom."""


def nmt(arguments: Sequence[str], log: Path) -> Any:
    """What a command prints as JSON; its messages are added to a file."""
    with log.open("a") as messages:
        command = [sys.executable, "-m", "nmt", *arguments, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=messages, check=False)
    if done.returncode != 0:
        raise SystemExit(f"nmt {' '.join(arguments)}: failed, see {log}")
    return json.loads(done.stdout)


def first_pairs(config: Path, settings: list[str], count: int, folder: Path) -> list[str]:
    """Write the first pairs of a configuration's training text; returns the settings that name them."""
    data = load_config(config, settings).data
    pairs = list(islice((pair for files in data.train for pair in read_pairs(files)), count))
    files = [folder.resolve() / f"first_{count}.{side}.txt" for side in ("src", "tgt")]
    for side, file in enumerate(files):
        write_text(file, "".join(f"{pair[side]}\n" for pair in pairs))
    languages = [f"data.src_lang={data.src_lang}", f"data.tgt_lang={data.tgt_lang}"]  # their names no longer say them
    return [f"data.train={{src: {files[0]}, tgt: {files[1]}}}", *languages]


def improved(
    config: Path, settings: list[str], seed: int, folder: Path, options: list[str]
) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """An improvement's steps, and of each test set the BLEU of the first run and of the best."""
    log = folder / f"seed_{seed}.log"
    work = folder / f"seed_{seed}"
    overrides = [word for text in (*settings, f"training.seed={seed}") for word in ("--set", text)]
    found = nmt(["improve", "--config", str(config), "--folder", str(work), *overrides, *options], log)
    runs = [work / "runs" / "baseline", Path(found["best"])]
    tests: dict[str, list[float]] = {}
    held_out = held_out_files(load_config(config, settings))
    for name in (name for name in held_out if name.startswith("test.")):
        src, ref = (str(work / file) for file in (held_out[name].src_file, held_out[name].tgt_file))
        sides = ["--src", src, "--ref", ref, "--metric", "bleu"]
        tests[name] = [nmt(["eval", "--model", str(run), *sides], log)["scores"]["bleu"]["value"] for run in runs]
    return found["steps"], tests


def mean_and_half_width(values: Sequence[float]) -> list[str]:
    """Two cells: the mean, and the half width of its 95% interval."""
    if len(values) < 2:
        return [f"{statistics.mean(values):.2f}", ""]
    half = T_QUANTILES[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5
    return [f"{statistics.mean(values):.2f}", f"{half:.2f}"]


def gains_table(of_seeds: dict[int, list[dict[str, Any]]]) -> list[list[str]]:
    """What each step gained, by seed."""
    rows = [["step", *(f"seed {seed}" for seed in of_seeds), "mean", "half width", "hours"]]
    for number, step in enumerate(next(iter(of_seeds.values()))):
        same = [steps[number] for steps in of_seeds.values()]
        hours = f"{statistics.mean(one['hours'] for one in same):.2f}"
        if step["decision"] is None:
            rows.append([step["step"], *("" for _ in same), "", "", hours])
        elif step["decision"]["gain"] is None:
            scores = [one["scores"]["bleu"] for one in same]
            rows.append([step["step"], *(f"{score:.2f}" for score in scores), *mean_and_half_width(scores), hours])
        else:
            gains = [one["decision"]["gain"] for one in same]
            kept = ["kept" if one["decision"]["kept"] else "left out" for one in same]
            cells = [f"{gain:+.2f} {word}" for gain, word in zip(gains, kept, strict=True)]
            rows.append([step["step"], *cells, *mean_and_half_width(gains), hours])
    return rows


def tests_table(of_seeds: dict[int, dict[str, list[float]]]) -> list[list[str]]:
    """BLEU of the first run and of the best on each test set, by seed."""
    rows = [["test set", "run", *(f"seed {seed}" for seed in of_seeds), "mean", "half width"]]
    for name in next(iter(of_seeds.values())):
        for number, run in enumerate(("first", "best")):
            scores = [tests[name][number] for tests in of_seeds.values()]
            rows.append([name, run, *(f"{score:.2f}" for score in scores), *mean_and_half_width(scores)])
    return rows


def markdown(rows: list[list[str]]) -> str:
    """A table whose first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, f"|{' --- |' * len(rows[0])}")
    return "\n".join(lines)


def main() -> None:
    """Improve with each seed, and print both tables after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--pairs", type=int, help="only the first so many pairs of the training text")
    parser.add_argument("--seed", action="append", type=int, help="default: 1 to 5")
    parser.add_argument("--runs", type=Path, default=Path("runs/improving"), help="the folder of the improvements")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments, options = parser.parse_known_args()
    folder, settings = arguments.runs, arguments.settings
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.pairs is not None:
        settings = [*settings, *first_pairs(arguments.config, settings, arguments.pairs, folder)]
    steps: dict[int, list[dict[str, Any]]] = {}
    tests: dict[int, dict[str, list[float]]] = {}
    for seed in arguments.seed or SEEDS:
        steps[seed], tests[seed] = improved(arguments.config, settings, seed, folder, options)
        print(f"{markdown(gains_table(steps))}\n\n{markdown(tests_table(tests))}\n", flush=True)


if __name__ == "__main__":
    main()
