#!/usr/bin/env python3
"""Measure what `nmt init` chooses by size: vocabulary, width, dropout and R-Drop, for three corpora.

    scripts/get_multi30k && scripts/get_localisation
    python scripts/measure_defaults.py speed       # updates that ten minutes of one idle core allow
    python scripts/measure_defaults.py train       # trains the missing ones; may be stopped and started again
    python scripts/measure_defaults.py table       # validation BLEU so far

For each corpus there is a default, and for each value a lower and a higher neighbour with all else alike; R-Drop is on
or off. Each trains for ten minutes of one core, along a cosine, with each seed; with `--whole`, for as many updates as
`nmt init` writes for such a corpus (20 minutes to 3 hours a training: name the variants). Validation BLEU is greedy,
the best of the validations. `--runs` names the folder of the trainings, `--corpus`, `--seed` and `--variant` restrict
them (repeatable).

measured_defaults.json beside this file keeps the updates and the scores, since all runs together take eight hours: a
training that it has is not run again.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from filelock import FileLock

from nmt.config.corpus import CorpusFiles
from nmt.config.reading import load_config, settings_to_yaml
from nmt.corpora.pairs import read_pairs
from nmt.recipes.starter import recommended
from nmt.runs.folder import RunFolder
from nmt.runs.history import read_history
from nmt.system.distributed import ALONE

REPOSITORY = Path(__file__).resolve().parent.parent
MEASURED = Path(__file__).resolve().with_name("measured_defaults.json")
SECONDS = 600
SEEDS = (1, 2)
ROUNDS, WARMUP, UPDATES = 3, 3, 12
VALIDATIONS = 5


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Values that are measured."""

    vocab_size: int
    d_model: int
    dropout: float
    r_drop: float

    def __str__(self) -> str:
        return f"v{self.vocab_size}-d{self.d_model}-p{self.dropout}-r{self.r_drop:g}"

    def costs_like(self, other: "Sizes") -> bool:
        """Return True if an update takes as long as with others: dropout costs nothing."""
        return dataclasses.replace(self, dropout=other.dropout) == other


@dataclasses.dataclass(frozen=True)
class Grid:
    """A corpus, its default and the neighbours of each value."""

    default: Sizes
    vocab_sizes: tuple[int, ...]
    widths: tuple[int, ...]
    dropouts: tuple[float, ...]
    r_drops: tuple[float, ...]

    def variants(self) -> Iterator[tuple[str, Sizes]]:
        """Yield the variants to train: the default, and each neighbour with the value that differs."""
        yield "default", self.default
        neighbours = {
            "vocab_size": self.vocab_sizes, "d_model": self.widths, "dropout": self.dropouts, "r_drop": self.r_drops,
        }  # fmt: skip
        for key, values in neighbours.items():
            for value in values:
                yield f"{key} {value:,}", dataclasses.replace(self.default, **{key: value})


GRIDS = {
    "captions-2000": Grid(Sizes(2000, 192, 0.2, 3), (1000, 4000), (128, 256), (0.1, 0.3), (0,)),
    "captions-10000": Grid(Sizes(4000, 192, 0.1, 3), (2000, 8000), (128, 256), (0.05, 0.2), (0,)),
    "localisation-20000": Grid(Sizes(5000, 192, 0.2, 3), (2500, 10000), (128, 256), (0.1, 0.3), (0,)),
}
"""The defaults are those of nmt/recipes/starter.py."""


def corpora(name: str, folder: Path) -> dict[str, dict[str, str]]:
    """Return the training and the validation files of a corpus, made if they are missing."""
    folder = folder / "text"
    folder.mkdir(parents=True, exist_ok=True)
    kind, _, size = name.partition("-")
    multi30k, catalogue = REPOSITORY / "data" / "multi30k", REPOSITORY / "data" / "localisation" / "libreoffice.jsonl"
    if kind == "captions":
        pairs = list(islice(read_pairs(CorpusFiles(src=multi30k / "train.en", tgt=multi30k / "train.de")), int(size)))
        held_out = list(read_pairs(CorpusFiles(src=multi30k / "val.en", tgt=multi30k / "val.de")))
    else:
        files = CorpusFiles(pairs=catalogue, src_column="en", tgt_column="de")
        whole = list(dict.fromkeys((src.strip(), tgt.strip()) for src, tgt in read_pairs(files)))
        held_out = whole[::20][:1000]
        sources, targets = {src for src, _ in held_out}, {tgt for _, tgt in held_out}
        pairs = [(src, tgt) for src, tgt in whole if src not in sources and tgt not in targets]
    found = {}
    for part, some in (("train", pairs), ("validation", held_out)):
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in some)
            (folder / f"{name}.{part}.{language}").write_text(lines, encoding="utf-8")
        found[part] = {side: str(folder / f"{name}.{part}.{code}") for side, code in (("src", "en"), ("tgt", "de"))}
    return found


def write_config(name: str, sizes: Sizes, updates: int | None, folder: Path) -> Path:
    """Write a configuration with these sizes and number of updates; None: the number that `nmt init` writes."""
    if updates is None:
        row = recommended(int(name.partition("-")[2]))
        keys = ("max_steps", "warmup_steps", "batches_per_update", "learning_rate", "ema_decay", "validate_every")
        length = {key: getattr(row, key) for key in keys}
    else:
        length = {
            "max_steps": updates, "warmup_steps": updates // 8, "learning_rate": 2.0e-3, "ema_decay": 0.99,
            "validate_every": -(-updates // VALIDATIONS),
        }  # fmt: skip
    sections = {
        "data": {**corpora(name, folder), "src_lang": "en", "tgt_lang": "de"},
        "tokenizer": {"type": "bpe", "vocab_size": sizes.vocab_size, "joint": True},
        "model": {
            "num_encoder_layers": 3, "num_decoder_layers": 3, "d_model": sizes.d_model, "d_ff": 2 * sizes.d_model,
            "num_heads": 4, "dropout": sizes.dropout, "tie_embeddings": "all",
        },
        "training": {
            **length, "batch_tokens": 1024, "schedule": "cosine", "label_smoothing": 0.1, "precision": "bf16",
            "threads": 1, "processes": 1, "save_every_minutes": 5, "r_drop": sizes.r_drop,
        },
        "evaluation": {"report": False},
        "export": {"after_training": []},
    }  # fmt: skip
    path = folder / f"{name}-{sizes}{'-whole' if updates is None else ''}.yaml"
    path.write_text(settings_to_yaml(sections), encoding="utf-8")
    return path


def measured() -> dict[str, dict[str, float]]:
    """Return the results so far: the `updates` that ten minutes allow, by sizes, and the best `bleu`, by run."""
    known: dict[str, dict[str, float]] = json.loads(MEASURED.read_text())
    return known


def record(part: str, values: dict[str, float]) -> None:
    """Add results; two of these scripts may run at once."""
    with FileLock(MEASURED.with_suffix(".lock")):
        known = measured()
        known[part] = dict(sorted((known[part] | values).items()))
        MEASURED.write_text(json.dumps(known, indent=2) + "\n")


def speed(names: list[str], folder: Path) -> None:
    """Time some updates of each width and vocabulary, in turn, in processes of their own."""
    seconds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name in names:
            for _, sizes in GRIDS[name].variants():
                key = f"{name}-{sizes}"
                if sizes != GRIDS[name].default and sizes.costs_like(GRIDS[name].default):
                    continue
                command = [sys.executable, __file__, "once", str(write_config(name, sizes, 1000, folder))]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                seconds.setdefault(key, []).append(json.loads(done.stdout.splitlines()[-1]))
    found = {key: round(SECONDS / statistics.median(values)) for key, values in seconds.items()}
    record("updates", found)
    for key, values in seconds.items():
        spread = f"{min(values):.3f} to {max(values):.3f}"
        print(f"{key}: {statistics.median(values):.3f} s ({spread}), {found[key]} updates")


def once(path: Path) -> None:
    """Time updates of one configuration, in this process."""
    from bench_train import measure  # which lies beside this file

    print(measure(load_config(path), path.parent, WARMUP, UPDATES, ALONE)["step_seconds_median"])


def run_name(name: str, sizes: Sizes, seed: int, whole: bool) -> str:
    """Return the name of a training's run."""
    return f"{name}-{sizes}-s{seed}{'-whole' if whole else ''}"


def train(names: list[str], seeds: list[int], variants: list[str], whole: bool, folder: Path) -> None:
    """Train the missing variants: the defaults first, then the neighbours."""
    known = measured()
    jobs = [
        (index, seed, name, sizes)
        for name in names
        for index, (title, sizes) in enumerate(GRIDS[name].variants())
        for seed in seeds
        if run_name(name, sizes, seed, whole) not in known["bleu"] and (not variants or title in variants)
    ]
    for _, seed, name, sizes in sorted(jobs, key=lambda job: (job[1], job[0] > 0, names.index(job[2]), job[0])):
        default = GRIDS[name].default
        timed = default if sizes.costs_like(default) else sizes
        path = write_config(name, sizes, None if whole else int(known["updates"][f"{name}-{timed}"]), folder)
        run = run_name(name, sizes, seed, whole)
        command = [sys.executable, "-m", "nmt", "train", str(path), "--name", run]
        log = folder / f"{run}.log"
        with log.open("a") as file:
            done = subprocess.run([*command, "--set", f"training.seed={seed}"], cwd=folder, stderr=file, check=False)
        if done.returncode:
            print(f"{run}: failed, see {log}", flush=True)
            continue
        bleu = max(one.values["bleu"] for one in read_history(RunFolder(folder / "runs" / run)).validations)
        record("bleu", {run: round(bleu, 2)})
        print(f"{run}: {bleu:.2f}", flush=True)


def table(names: list[str], seeds: list[int], whole: bool) -> None:
    """Print a table a corpus: each variant's updates, scores, and mean difference from the default's same seeds."""
    known = measured()
    for name in names:
        default = GRIDS[name].default
        print(f"\n| {name} | updates | {' | '.join(f'seed {seed}' for seed in seeds)} | difference |")
        print(f"| --- | --- |{' --- |' * (len(seeds) + 1)}")
        for title, sizes in GRIDS[name].variants():
            timed = known["updates"].get(f"{name}-{default if sizes.costs_like(default) else sizes}")
            updates = recommended(int(name.partition("-")[2])).max_steps if whole else timed
            scores = [known["bleu"].get(run_name(name, sizes, seed, whole)) for seed in seeds]
            cells = ["" if score is None else f"{score:.2f}" for score in scores]
            own = [known["bleu"].get(run_name(name, default, seed, whole)) for seed in seeds]
            gains = [a - b for a, b in zip(scores, own, strict=True) if a is not None and b is not None]
            mean = f"{statistics.mean(gains):+.2f}" if gains and title != "default" else ""
            print(f"| {title} | {'' if updates is None else f'{updates:,.0f}'} | {' | '.join(cells)} | {mean} |")


def main() -> None:
    """Measure, train, or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "train", "table", "once"])
    parser.add_argument("config", nargs="?", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--corpus", action="append", choices=list(GRIDS))
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--variant", action="append", help="'default', or as in the table: 'dropout 0.1'")
    parser.add_argument("--whole", action="store_true", help="for the updates that nmt init writes, not ten minutes")
    arguments = parser.parse_args()
    names, seeds, folder = arguments.corpus or list(GRIDS), arguments.seed or list(SEEDS), arguments.runs.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    match arguments.part:
        case "speed":
            speed(names, folder)
        case "train":
            train(names, seeds, arguments.variant or [], arguments.whole, folder)
        case "table":
            table(names, seeds, arguments.whole)
        case _:
            once(arguments.config)


if __name__ == "__main__":
    main()
