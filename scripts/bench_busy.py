#!/usr/bin/env python3
"""Speed of the commands on an idle machine, and while another program keeps one of its cores busy.

    python scripts/bench_busy.py                                      # the trainings, and commands with a tiny run
    python scripts/bench_busy.py --model RUN                          # and translations by this run, 128 lines
    python scripts/bench_busy.py --against FOLDER --rounds 9 --idle tiny recipe benchmark

Every round runs each command once idle and once busy; with `--against`, each with this checkout and with the one in
FOLDER, in turn. A training is timed for `--seconds` from its third update on, in target tokens a second; any other
command as a whole process, in runs a minute. So more is better everywhere, and only ratios within a round mean
something on a shared machine. The other program is an endless loop in a session of its own, since Linux shares cores
between sessions first: a loop in the same session would take less.

Needs data/multi30k (scripts/get_multi30k) for the recipe and the benchmark, which is bench_train.py's `small`.
"""

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
TRAININGS = ("tiny", "recipe", "benchmark")
FIRST = 2  # updates that are not counted


def write_configs(folder: Path, checkout: Path) -> None:
    """Write tiny.yaml, recipe.yaml and benchmark.yaml in the keys of a checkout, with the paths of the text here."""
    folder.mkdir()
    for name, source in (("tiny", "tiny"), ("recipe", "multi30k_en_de")):
        text = (checkout / "configs" / f"{source}.yaml").read_text(encoding="utf-8")
        (folder / f"{name}.yaml").write_text(text.replace("../data", str(REPOSITORY / "data")), encoding="utf-8")
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
    benchmark = {
        "data": recipe["data"],
        "tokenizer": {"vocab_size": 8000},
        "training": {"max_steps": 10**6, "batch_tokens": 4096},
    }
    (folder / "benchmark.yaml").write_text(yaml.safe_dump(benchmark), encoding="utf-8")


def nmt(checkout: Path, *arguments: str) -> list[str]:
    program = f"import runpy, sys; sys.path.insert(0, {str(checkout)!r}); runpy.run_module('nmt', run_name='__main__')"
    return [sys.executable, "-c", program, *arguments]


def training_speed(checkout: Path, name: str, folder: Path, seconds: float) -> float:
    """Return the target tokens a second of `nmt train`, which is stopped after the timing."""
    run = folder / "runs" / name
    shutil.rmtree(run, ignore_errors=True)
    settings = ["training.log_every=1", "training.validate_every=1000000"]
    overrides = [part for setting in settings for part in ("--set", setting)]
    command = nmt(checkout, "train", f"{name}.yaml", *overrides)
    environment = {**os.environ, "PYTHONPATH": str(checkout)}  # for processes that it starts
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stderr=log, env=environment)
    try:
        while True:
            time.sleep(0.5)
            if process.poll() is not None:
                raise SystemExit(f"{name} did not train:\n{(folder / 'log').read_text()}")
            records = read_records(run / "metrics.jsonl")[FIRST:]
            if len(records) > 1 and records[-1]["seconds"] - records[0]["seconds"] >= seconds:
                break
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    # The first of them only says when counting begins.
    spans = [(after["seconds"] - before["seconds"], after) for before, after in itertools.pairwise(records)]
    tokens = sum(span * record["tgt_tokens_per_second"] for span, record in spans)
    return tokens / sum(span for span, _ in spans)


def read_records(file: Path) -> list[dict[str, float]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def runs_a_minute(command: Sequence[str], folder: Path) -> float:
    """Run a command once, and return how often it would run in a minute."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return 60 / (time.perf_counter() - start)


def commands(model: Path | None, folder: Path) -> dict[str, list[str]]:
    """Return the arguments of each command that is timed as a whole process."""
    found = {
        "preflight": ["train", "recipe.yaml", "--name", "dry", "--dry-run"],
        "vocab": ["vocab", "recipe.yaml", "--name", "vocabulary"],
    }
    if model is None:
        return found
    shutil.copytree(model, folder / "model", ignore=shutil.ignore_patterns("checkpoints"))
    lines = (REPOSITORY / "data/multi30k/test_2016_flickr.en").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "lines.en").write_text("".join(lines[:128]), encoding="utf-8")
    reference = (REPOSITORY / "data/multi30k/test_2016_flickr.de").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "lines.de").write_text("".join(reference[:128]), encoding="utf-8")
    translate = ["translate", "--model", "model", "--input", "lines.en", "--output", "out.de", "--engine"]
    files = ["--model", "model", "--src", "lines.en", "--ref", "lines.de"]
    return {
        **found,
        "translate, PyTorch, beam 5": [*translate, "torch"],
        "translate, PyTorch, greedy": [*translate, "torch", "--beam-size", "1"],
        "translate, CTranslate2, beam 5": [*translate, "ctranslate2"],
        "eval, PyTorch, greedy (as a validation)": ["eval", *files, "--engine", "torch", "--beam-size", "1"],
        "export ctranslate2 (both engines, greedy and beam)": ["export", "ctranslate2", *files],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time commands on an idle machine and on a busy one.")
    parser.add_argument("only", nargs="*", metavar="NAME", help="commands whose names begin so (default: all)")
    parser.add_argument("--model", type=Path, metavar="RUN", help="translate with this run, which has an export")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout, run in turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15, help="that a training is timed (default: 15)")
    parser.add_argument("--idle", action="store_true", help="only on the idle machine")
    return parser.parse_args()


def main() -> int:
    args = parse()
    checkouts = {"now": REPOSITORY, **({"before": args.against.resolve()} if args.against else {})}
    results: dict[tuple[str, str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folders = {which: Path(name) / which for which in checkouts}
        for which, checkout in checkouts.items():
            write_configs(folders[which], checkout)
            others = commands(args.model.resolve() if args.model else None, folders[which])
        wanted = [one for one in [*TRAININGS, *others] if not args.only or one.startswith(tuple(args.only))]
        for number in range(args.rounds):
            for command in wanted:
                for is_busy in (False,) if args.idle else (False, True):
                    for which, checkout in checkouts.items():
                        folder = folders[which]
                        loop = [sys.executable, "-c", "while True: pass"]
                        other = subprocess.Popen(loop, start_new_session=True) if is_busy else None
                        try:
                            if command in TRAININGS:
                                speed = training_speed(checkout, command, folder, args.seconds)
                            else:
                                shutil.rmtree(folder / "runs" / "vocabulary", ignore_errors=True)
                                speed = runs_a_minute(nmt(checkout, *others[command]), folder)
                        finally:
                            if other is not None:
                                other.kill()
                                other.wait()
                        results.setdefault((command, which, is_busy), []).append(speed)
                        state = "busy" if is_busy else "idle"
                        print(
                            f"round {number + 1}: {command} {which} {state}: {speed:,.1f}", file=sys.stderr, flush=True
                        )
    print_table(wanted, results, bool(args.against), args.idle)
    return 0


def print_table(
    wanted: Sequence[str], results: dict[tuple[str, str, bool], list[float]], compared: bool, idle: bool
) -> None:
    """Print medians, and ratios of the rounds: median (minimum to maximum)."""
    states = [False] if idle else [False, True]
    columns = [(which, is_busy) for which in (["now"] + ["before"] * compared) for is_busy in states]
    head = [f"{'busy' if is_busy else 'idle'}{', before' if which == 'before' else ''}" for which, is_busy in columns]
    ratios = [] if idle else [(("now", False), ("now", True), "idle / busy")]
    ratios += [
        (("now", state), ("before", state), f"{'busy' if state else 'idle'} / before") for state in states
    ] * compared
    titles = ["command", *head, *(title for _, _, title in ratios)]
    print("| " + " | ".join(titles) + " |\n" + "| --- " * len(titles) + "|")
    for command in wanted:
        cells = [f"{statistics.median(results[command, *column]):,.1f}" for column in columns]
        for above, below, _ in ratios:
            pairs = zip(results[command, *above], results[command, *below], strict=True)
            of_rounds = [one / other for one, other in pairs]
            cells.append(f"{statistics.median(of_rounds):.2f} ({min(of_rounds):.2f} to {max(of_rounds):.2f})")
        print(f"| {command} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(main())
