#!/usr/bin/env python3
"""Speed and memory of reading the pairs of a corpus from each format.

    python scripts/bench_readers.py train.en train.de             # two texts, which are written in all other formats
    python scripts/bench_readers.py train.en train.de --repeat 40

Each format is read in a process of its own, once, as for encoding: pairs a second of its CPU time, megabytes a second
of the file, and how much its resident memory rose at its peak.
"""

import argparse
import csv
import gzip
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nmt.config.corpus import CorpusFiles
from nmt.corpora.lines import read_lines
from nmt.corpora.pairs import read_blocks

KEYS: dict[str, tuple[int | str, int | str]] = {
    "tsv": (1, 2), "csv": (1, 2), "jsonl": ("x", "y"), "tmx": ("x", "y"), "zip": ("x", "y"), "tsv.gz": (1, 2)
}  # fmt: skip


def write(src: Path, tgt: Path, repeat: int, folder: Path) -> None:
    """Write two texts, whose lines are repeated, in all formats."""
    pairs = list(zip(read_lines(src), read_lines(tgt), strict=True))
    names = ("a.x", "a.y", "a.tsv", "a.csv", "a.jsonl", "a.tmx")
    x, y, tsv, table, jsonl, tmx = ((folder / name).open("w", encoding="utf-8", newline="") for name in names)
    with x, y, tsv, table, jsonl, tmx:
        rows = csv.writer(table)
        tmx.write('<?xml version="1.0"?>\n<tmx version="1.4"><header/><body>\n')
        for _ in range(repeat):
            rows.writerows(pairs)
            for one, other in pairs:
                x.write(f"{one}\n")
                y.write(f"{other}\n")
                tsv.write(f"{one}\t{other}\n")
                jsonl.write(json.dumps({"x": one, "y": other}, ensure_ascii=False) + "\n")
                sides = (("x", one), ("y", other))
                segments = (f'<tuv xml:lang="{side}"><seg>{escape(text)}</seg></tuv>\n' for side, text in sides)
                tmx.write(f"<tu>\n{''.join(segments)}</tu>\n")
        tmx.write("</body></tmx>\n")
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "a.x", "a.x")
        archive.write(folder / "a.y", "a.y")
    (folder / "a.tsv.gz").write_bytes(gzip.compress((folder / "a.tsv").read_bytes()))


def peak() -> int:
    """Return this process's peak memory in KB (Linux); `ru_maxrss` would include the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def measure(name: str) -> str:
    """Read one format of the current folder."""
    if name == "text":
        files = CorpusFiles(src=Path("a.x"), tgt=Path("a.y"))
    else:
        src, tgt = KEYS[name]
        files = CorpusFiles(pairs=Path(f"a.{name}"), src_column=src, tgt_column=tgt)
    before, start = peak(), time.process_time()
    pairs = sum(block.src.count(b"\n") for block in read_blocks(files))
    seconds = time.process_time() - start
    rise = peak() - before
    size = sum(path.stat().st_size for path in {files.src_file, files.tgt_file}) / 1e6
    return f"{name:6}  {pairs:,} pairs, {size:.0f} MB: {pairs / seconds:,.0f} pairs/s, {size / seconds:.0f} MB/s, " + (
        f"memory + {rise / 1e3:.1f} MB"
    )


def main() -> None:
    """Write the formats, and measure each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", type=Path)
    parser.add_argument("tgt", type=Path)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(measure(args.measure), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(args.src, args.tgt, args.repeat, Path(folder))
        for name in ("text", *KEYS):
            script = [sys.executable, str(Path(__file__).resolve()), str(args.src), str(args.tgt), "--measure", name]
            subprocess.run(script, cwd=folder, check=True)


if __name__ == "__main__":
    main()
