#!/usr/bin/env python3
"""Measure what `nmt adapt` gains and loses: a model of captions learns two other kinds of text.

    scripts/get_multi30k && scripts/get_localisation
    nmt train configs/multi30k_en_de.yaml
    python scripts/measure_adapt.py runs/multi30k_en_de     # trains what is missing; may be started again

The new text is LibreOffice's messages or the descriptions of Debian's packages (`--text`), cleaned by the recommended
rules. Of each, 1,000 of three words and more are the test set, which no training sees. The model adapts to 500, 3,000
or all others (0), another draw for each seed. The captions are the general text.

A row has BLEU on both test sets with the base model and after `nmt adapt`, and the change of the captions with the 95%
interval of a paired bootstrap. With `--alone`, a second training has no captions mixed in, and `kept` is the gain of
`nmt adapt` as a share of that training's. `--set` gives a setting to all trainings, and `--name` is a prefix of their
names.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

from nmt.cleaning.normalize import normalize
from nmt.cleaning.selection import select
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.corpora.pairs import read_pairs, sides_of
from nmt.runs.folder import RunFolder
from nmt.system.files import write_text
from nmt.training.fine_tuning import read_forgetting

LOCALISATION = Path(__file__).resolve().parent.parent / "data" / "localisation"
TEXTS = {"messages": "libreoffice.jsonl", "descriptions": "descriptions.jsonl"}
PAIRS, SEEDS = (500, 3000, 0), (1, 2, 3)
TEST, VALIDATION = 1000, 300
LANGUAGES = ("en", "de")


def write_texts(folder: Path, text: str, sizes: list[int], seeds: list[int]) -> None:
    """Write the test set, and the new text of each size and seed; 0 stands for all."""
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
    """Write two texts, PATH.en and PATH.de."""
    for side, language in enumerate(LANGUAGES):
        write_text(path.with_name(f"{path.name}.{language}"), "".join(f"{pair[side]}\n" for pair in pairs))


def distinct(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs of which neither source nor target occurs in an earlier pair."""
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
    """Return the settings as options of a command."""
    return [part for setting in settings for part in ("--set", setting)]


def run(folder: Path, name: str, command: list[str]) -> RunFolder:
    """Run `nmt` in the folder; exit code 3 is an adaptation outside `--max-drop`."""
    with (folder / f"{name}.log").open("a") as log:
        done = subprocess.run([sys.executable, "-m", "nmt", *command], cwd=folder, stdout=log, stderr=log, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{name}: failed, see {folder / name}.log")
    return RunFolder(folder / "runs" / name)


def adapt(text: str, size: int, seed: int, folder: Path, arguments: argparse.Namespace) -> list[RunFolder]:
    """Adapt, and with --alone fine-tune without captions."""
    new, name = folder / "text" / f"{text}-{size}-{seed}", f"{arguments.name}-{text}-{size}-{seed}"
    settings = [f"training.seed={seed}", "evaluation.report=false", "export.after_training=[]", *arguments.settings]
    command = ["adapt", "--model", str(arguments.base), "--data", f"{new}.en", "--data", f"{new}.de", "--name", name]
    runs = [run(folder, name, [*command, *as_options(settings)])]
    if arguments.alone:
        other = as_options(["data.replay=0"])
        runs.append(run(folder, f"{name}-alone", ["train", f"{name}.yaml", "--name", f"{name}-alone", *other]))
    return runs


def bleu(runs: list[RunFolder], src: Path, ref: Path) -> list[float]:
    """Return BLEU of each run on a test set."""
    command = [sys.executable, "-m", "nmt", "compare", *(str(one.path) for one in runs)]
    done = subprocess.run([*command, f"--src={src}", f"--ref={ref}", "--json"], stdout=subprocess.PIPE, check=True)
    systems = json.loads(done.stdout)["test_sets"][0]["systems"]
    return [system["outputs"][0]["scores"]["bleu"]["score"]["value"] for system in systems]


def row(text: str, size: int, seed: int, folder: Path, runs: list[RunFolder]) -> str:
    """Return the row of one size and seed; `runs` begin with the base."""
    name, captions = next(iter(runs[0].config().data.test.items()))
    new = bleu(runs, *(folder / "text" / f"{text}-test.{language}" for language in LANGUAGES))
    old = bleu(runs, *(side.path for side in sides_of(captions)))
    change = next(one for one in read_forgetting(runs[1]) if one.name == name).change("bleu")
    cells = [f"{value:.2f}" for value in (*new, *old)]
    cells.append(f"{change.change:+.2f} ({change.low:+.2f} to {change.high:+.2f})")
    cells.append(f"{(new[1] - new[0]) / (new[2] - new[0]):.0%}" if len(new) == 3 else "")
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
    parser.add_argument("--alone", action="store_true", help="train without captions, too")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    sizes = list(PAIRS) if arguments.pairs is None else arguments.pairs
    arguments.base, folder = arguments.base.resolve(), arguments.runs.resolve()
    ways = ["base", "adapted", *(["alone"] if arguments.alone else [])]
    head = ["text", "pairs", "seed", *(f"new: {way}" for way in ways), *(f"captions: {way}" for way in ways)]
    head += ["change of captions", "kept"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}", flush=True)
    for text in arguments.text or list(TEXTS):
        write_texts(folder / "text", text, sizes, arguments.seed or list(SEEDS))
        for seed in arguments.seed or list(SEEDS):
            for size in sizes:
                runs = [RunFolder(arguments.base), *adapt(text, size, seed, folder, arguments)]
                print(row(text, size, seed, folder, runs), flush=True)


if __name__ == "__main__":
    main()
