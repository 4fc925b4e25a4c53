#!/usr/bin/env python3
"""Speed, size and BLEU of a teacher and its students.

    nmt distill --teacher multi30k_en_de --config configs/multi30k_en_de_improved.yaml
    nmt export ctranslate2 --model RUN                      # of each; int8 is the default
    python scripts/measure_students.py TEACHER STUDENT ... --src test.en --ref test.de --plot students.svg

Each model translates the whole file with PyTorch, and with its int8 export if it has a fresh one, by its run's own beam
size and length penalty (without its limit on lengths). Each is one process that is kept (that of bench_decode.py), and
they take turns: a round of one, then of the next, and the first round of each is not counted. So a speed is of a warm
model, without its start; "times" is the median of the ratios to the teacher with PyTorch, within each round. Size is
that of the weights: model.safetensors, or the export's folder. BLEU is that of the translations that were timed.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_decode import Worker

from nmt.config.corpus import CorpusFiles
from nmt.corpora.pairs import read_pairs
from nmt.evaluation.metrics import make_metrics, score
from nmt.insight.drawing import drawing
from nmt.runs.exports import exports_of
from nmt.runs.folder import RunFolder, open_run
from nmt.system.files import write_json

COLOURS = {"PyTorch": "#0b57a4", "CTranslate2 int8": "#b35c00"}


def weights_of(run: RunFolder, engine: str) -> Path | None:
    """Return the file or folder with an engine's weights; None without a fresh export."""
    if engine == "PyTorch":
        return run.model_file
    for export in exports_of(run):
        if export.quantization == "int8" and export.model.is_still(run.model_file):
            return export.folder.path
    return None


def megabytes(path: Path) -> float:
    """Return the size of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


def measure(
    runs: Sequence[RunFolder], pairs: Sequence[tuple[str, str]], rounds: int, threads: int
) -> list[dict[str, Any]]:
    """Return a row for each run and engine; the first is the teacher with PyTorch."""
    sources, references = zip(*pairs, strict=True)
    rows, workers = list[dict[str, Any]](), list[tuple[Worker, dict[str, Any]]]()
    script = Path(__file__).with_name("bench_decode.py")
    for run in runs:
        for engine in COLOURS:
            if (weights := weights_of(run, engine)) is None:
                print(f"{run.path}: no fresh int8 export: nmt export ctranslate2 --model {run.path}", file=sys.stderr)
                continue
            name = "nmt, torch" if weights == run.model_file else f"nmt, {weights.name}"
            command = [sys.executable, script, f"--model={run.path}", f"--threads={threads}", f"--work={name}"]
            request = {"lines": sources, "batch": 0, "beam": run.inference_config().decoding.beam_size}
            workers.append((Worker(command, threads), request))
            rows.append({"run": run.name, "engine": engine, "megabytes": megabytes(weights), "seconds": []})
    for _ in range(rounds + 1):
        for row, (worker, request) in zip(rows, workers, strict=True):
            answer = worker.ask(request)
            row["seconds"].append(answer["seconds"])
            row["texts"] = answer["texts"]
    metrics = make_metrics(["bleu"], runs[0].inference_config().data.tgt_lang)
    for row, (worker, _) in zip(rows, workers, strict=True):
        worker.end()
        row["bleu"] = score(metrics, row.pop("texts"), [references])["bleu"].value
        row["speed"] = len(sources) / statistics.median(row["seconds"][1:])
        ratios = [first / own for first, own in zip(rows[0]["seconds"], row["seconds"], strict=True)]
        row["times"] = statistics.median(ratios[1:])
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = ["| run | engine | sentences/s | times | MB | BLEU |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| {row['run']} | {row['engine']} | {row['speed']:,.0f} | {row['times']:.2f} | {row['megabytes']:.1f} "
        f"| {row['bleu']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw BLEU over speed, as PNG or SVG."""
    with drawing([row["run"] for row in rows]):
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

        figure = Figure(figsize=(7.5, 4.0), layout="constrained")
        axes = figure.add_subplot()
        numbers = {name: number for number, name in enumerate(dict.fromkeys(row["run"] for row in rows), start=1)}
        for engine, colour in COLOURS.items():
            shown = [row for row in rows if row["engine"] == engine]
            x, y = ([row[key] for row in shown] for key in ("speed", "bleu"))
            axes.scatter(x, y, s=130, color=colour, label=engine)
            for row in shown:
                place = (row["speed"], row["bleu"])
                axes.annotate(str(numbers[row["run"]]), place, ha="center", va="center", color="white", fontsize=8)
        runs = "\n".join(f"{number}  {name}" for name, number in numbers.items())
        axes.annotate(runs, (1.02, 1.0), xycoords="axes fraction", va="top", fontsize=9, linespacing=1.6)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("sentences a second")
        axes.set_ylabel("BLEU")
        axes.grid(color="#d9dde2", linewidth=0.8)
        axes.legend(frameon=False, fontsize=9)
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed, size and BLEU of a teacher and its students.")
    parser.add_argument("teacher", help="a run's folder or name")
    parser.add_argument("students", nargs="+", metavar="STUDENT", help="runs")
    parser.add_argument("--src", type=Path, required=True, metavar="FILE", help="sources")
    parser.add_argument("--ref", type=Path, required=True, metavar="FILE", help="references")
    parser.add_argument("--rounds", type=int, default=5, help="that are counted (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="of each model (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's seconds here")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw BLEU over speed here, as .svg or .png")
    args = parser.parse_args()
    runs = [open_run(name) for name in (args.teacher, *args.students)]
    rows = measure(runs, list(read_pairs(CorpusFiles(src=args.src, tgt=args.ref))), args.rounds, args.threads)
    print(table(rows))
    if args.json:
        write_json(args.json, rows)
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
