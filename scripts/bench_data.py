"""Speed and memory of the data path with corpora of growing size: encoding, start, plan, a pass over an epoch.

    python scripts/bench_data.py                                # 100,000 and 1,000,000 pairs
    python scripts/bench_data.py --sizes 100000,1000000,10000000 --json data.json

Each corpus is synthetic: words of a Zipf distribution, 5 to 60 of them a side, about 150 bytes a pair. A BPE of 8,000
pieces is trained on 100,000 of the pairs. All files are in a temporary folder (--folder chooses where) that is removed
at the end. A process of its own measures each figure, with the functions that `nmt train` calls.

    encode       pairs a second, from text on disk to the encoded corpus, counting and hashing included
    SentencePiece  pairs a second of its own encoder on lists of lines in memory, on the same cores: the best of
                 one call with its threads and of one process a core
    memory       private memory (/proc/*/smaps_rollup) over all processes at the peak of encoding, torch included;
                 and how much more that is than before
    start        a fresh process to its first batch, torch imported, once the corpus is encoded
    plan         seconds to plan an epoch, in that process
    walk         resident memory of that process, after its first batch and after every quarter of an epoch; and at
                 its peak until the first batch, while the epoch was planned
    nmt data     pairs a second, all passes over the text included; processor time of all processes; private memory
"""

import argparse
import concurrent.futures
import contextlib
import importlib
import itertools
import json
import math
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import sentencepiece

from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TokenizerConfig
from nmt.system.files import write_json
from nmt.system.processes import available_cores
from nmt.tokenizers.building import ensure_tokenizers
from nmt.tokenizers.tokenizer import load_tokenizers

NUM_WORDS = 200_000
PAIRS_AT_ONCE = 50_000
VOCABULARY_PAIRS = 100_000
SAMPLE_PAIRS = 100_000  # that SentencePiece's own encoder is timed on
MAX_LENGTH = 128
TOKENIZER = Path("tokenizer")


def make_words(random: np.random.Generator, syllables: list[str]) -> list[str]:
    """Return synthetic words, the frequent ones short."""
    words: dict[str, None] = {}
    while len(words) < NUM_WORDS:
        count = 1 + int(np.log10(1 + len(words)) * random.uniform(0.5, 1.2))
        words["".join(syllables[index] for index in random.integers(len(syllables), size=count))] = None
    return list(words)


def make_corpus(files: CorpusFiles, num_pairs: int, seed: int) -> None:
    """Write N pairs; the target has the source's words in the other language, with a few dropped or inserted."""
    random = np.random.default_rng(seed)
    syllables = {
        "src": [a + b for a in ("b", "ch", "d", "f", "g", "l", "m", "n", "p", "r", "st", "t", "w") for b in "aeiou"],
        "tgt": [
            a + b for a in ("b", "d", "f", "k", "l", "m", "n", "r", "s", "sch", "z") for b in ("a", "e", "i", "ö", "u")
        ],
    }
    words = {side: np.array(make_words(random, of_side), dtype=object) for side, of_side in syllables.items()}
    with files.src.open("w", encoding="utf-8") as src_file, files.tgt.open("w", encoding="utf-8") as tgt_file:
        for begin in range(0, num_pairs, PAIRS_AT_ONCE):
            count = min(PAIRS_AT_ONCE, num_pairs - begin)
            lengths = np.exp(random.normal(2.45, 0.5, count)).round().clip(2, 55).astype(int)
            other = (lengths * np.exp(random.normal(0, 0.12, count))).round().clip(2, 60).astype(int)
            ends = np.cumsum(np.maximum(lengths, other))
            # NUM_WORDS ** u of a uniform u is below r with probability log r / log NUM_WORDS: Zipf's law.
            ranks = (NUM_WORDS ** random.random(int(ends[-1]))).astype(np.int64) - 1
            begins = (ends - np.maximum(lengths, other)).tolist()
            for side, file, of_side in (("src", src_file, lengths), ("tgt", tgt_file, other)):
                text: list[str] = words[side][ranks].tolist()
                lines = (
                    " ".join(text[start : start + length])
                    for start, length in zip(begins, of_side.tolist(), strict=True)
                )
                file.write("".join(f"{line}.\n" for line in lines))


def corpus_files(folder: Path) -> CorpusFiles:
    """Return the two sides of a corpus in a folder."""
    return CorpusFiles(src=folder / "corpus.en", tgt=folder / "corpus.de")


# ------------------------------------------------------------- what is measured, each in a process of its own


def measure_encoding(duplicates: bool) -> dict[str, Any]:
    """Encode as `nmt train` does, with torch loaded, while the parent watches the memory."""
    from nmt.batches.dataset import encode_corpus
    from nmt.cleaning.selection import select
    from nmt.config.data import CleaningConfig

    importlib.import_module("nmt.training.trainer")  # in the memory of a training, too
    tokenizers = load_tokenizers(TOKENIZER)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    cleaning = CleaningConfig(duplicates="pair" if duplicates else None)
    selection = select([corpus_files(Path())], cleaning, ("en", "de"))
    corpus = encode_corpus([corpus_files(Path())], tokenizers, TOKENIZER, MAX_LENGTH, selection)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "pairs_per_second": corpus.counts.read / seconds, "kept": corpus.counts.kept}


def measure_start() -> dict[str, Any]:
    """Time from the start of the interpreter, which the parent took, to the first batch; then walk through an epoch."""
    import torch

    from nmt.batches.batches import batch_loader, plan_epoch, share_of_real_positions
    from nmt.batches.dataset import encode_corpus

    importlib.import_module("nmt.training.trainer")  # loaded by a training, too
    corpus = encode_corpus([corpus_files(Path())], load_tokenizers(TOKENIZER), TOKENIZER, MAX_LENGTH)
    start = time.perf_counter()
    plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, 4096, 1, 0)
    seconds = time.perf_counter() - start
    batches = iter(batch_loader(corpus, plan, torch.device("cpu")))
    next(batches)
    first_batch = time.time()
    memory = [memory_of("self")]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    start = time.perf_counter()
    for index, _ in enumerate(batches, start=2):
        if any(index == len(plan) * quarter // 4 for quarter in (1, 2, 3, 4)):
            memory.append(memory_of("self"))
    walk = time.perf_counter() - start
    return {
        "first_batch_at": first_batch,
        "plan_seconds": seconds,
        "batches": len(plan),
        "real_positions": share_of_real_positions(corpus, plan),
        "rss_mb": [round(of["Rss"]) for of in memory],
        "anonymous_mb": [round(of["Anonymous"]) for of in memory],
        "peak_rss_mb": round(peak),
        "walk_batches_per_second": len(plan) / walk,
    }


def measure_sentencepiece() -> dict[str, Any]:
    """Return pairs a second of SentencePiece's encoder: the better of one call with threads and a process a core."""
    cores = available_cores()
    rates = {f"{threads} threads": _own_rate(threads) for threads in sorted({1, cores, 2 * cores})}
    with concurrent.futures.ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_own_rate, [1] * cores))  # so that all have started
        rates[f"{cores} processes"] = sum(pool.map(_own_rate, [1] * cores))
    return {"pairs_per_second": max(rates.values()), "each": rates}


def _own_rate(threads: int) -> float:
    """Return pairs a second of one process, the best of three runs."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(TOKENIZER / "joint.model"))
    files = corpus_files(Path())
    lines = []
    for path in (files.src, files.tgt):
        with path.open(encoding="utf-8") as file:
            lines.append([line.rstrip("\n") for line in itertools.islice(file, SAMPLE_PAIRS)])
    best = math.inf
    for _ in range(3):
        start = time.perf_counter()
        for of_side in lines:
            processor.encode(of_side, num_threads=threads)
        best = min(best, time.perf_counter() - start)
    return len(lines[0]) / best


def measure_profile() -> dict[str, Any]:
    """Profile the corpus as `nmt data` does, without test text, while the parent watches the memory."""
    from nmt.cleaning.profile import profile_corpora
    from nmt.config.data import CleaningConfig

    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    found, _ = profile_corpora([corpus_files(Path())], ("en", "de"), CleaningConfig.recommended(), {})
    seconds = time.perf_counter() - start
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "seconds": seconds,
        "pairs_per_second": found.pairs / seconds,
        "cpu_seconds": sum(one.ru_utime + one.ru_stime for one in used),
        "kept": found.kept,
    }


MEASUREMENTS = {
    "encoding": lambda: measure_encoding(False),
    "encoding_without_duplicates": lambda: measure_encoding(True),
    "start": measure_start,
    "profile": measure_profile,
    "sentencepiece": measure_sentencepiece,
}


# ------------------------------------------------------------------------------------------------ watching


def memory_of(process: int | str) -> dict[str, float]:
    """Return the memory figures of a process in /proc, in MB (10 ** 6 bytes); none if it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
        return {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines}
    return {}


def private_memory(root: int) -> float:
    """Return the private memory of a process and of all that it started, in MB."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    family, total = [root], 0.0
    while family:
        process = family.pop()
        family += children.get(process, [])
        memory = memory_of(process)
        total += memory.get("Private_Clean", 0) + memory.get("Private_Dirty", 0)
    return total


@contextlib.contextmanager
def measuring(name: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start this script in a process of its own, which makes one measurement in a folder."""
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", name]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
    if process.returncode:
        raise SystemExit(f"the measurement {name!r} ended with exit code {process.returncode}")


def watch_encoding(name: str, folder: Path) -> dict[str, Any]:
    """Return the measurement, and the private memory before it and at its peak."""
    with measuring(name, folder) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = peak = private_memory(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(process.stdout.read)
            while not answer.done():
                peak = max(peak, private_memory(process.pid))
                time.sleep(1)
    return {**json.loads(answer.result()), "private_mb_before": round(before), "private_mb_peak": round(peak)}


def watch_start(folder: Path) -> dict[str, Any]:
    """Return the measurement, and the seconds from the start of the process."""
    start = time.time()
    with measuring("start", folder) as process:
        out, _ = process.communicate()
    result = json.loads(out)
    return {"seconds_to_first_batch": result.pop("first_batch_at") - start, **result}


def measure_size(num_pairs: int, folder: Path) -> dict[str, Any]:
    """Make a corpus in `folder`, and return all measurements of it."""

    def say(line: str) -> None:
        print(f"{num_pairs:,} pairs: {line}", file=sys.stderr, flush=True)

    files = corpus_files(folder)
    start = time.perf_counter()
    make_corpus(files, num_pairs, seed=1)
    say(f"made in {time.perf_counter() - start:.0f} s")
    config = TokenizerConfig(vocab_size=8000, max_train_pairs=VOCABULARY_PAIRS)
    ensure_tokenizers([files], config, folder / TOKENIZER)
    time.sleep(4)  # the cache of hashes does not trust the date of a file that has just been written
    with measuring("sentencepiece", folder) as process:
        own = json.loads(process.communicate()[0])
    say(f"SentencePiece's own encoder: {own['pairs_per_second']:,.0f} a second")
    encoding = watch_encoding("encoding", folder)
    say(f"encoded: {encoding['pairs_per_second']:,.0f} a second")
    start_of = watch_start(folder)
    say(f"first batch after {start_of['seconds_to_first_batch']:.1f} s")
    without = watch_encoding("encoding_without_duplicates", folder)
    profile = watch_encoding("profile", folder)
    say(f"nmt data: {profile['pairs_per_second']:,.0f} a second")
    return {
        "pairs": num_pairs,
        "cores": available_cores(),
        "text_mb": round((files.src.stat().st_size + files.tgt.stat().st_size) / 1e6),
        "sentencepiece": own,
        "encoding": {
            **encoding,
            "share_of_each": {how: encoding["pairs_per_second"] / rate for how, rate in own["each"].items()},
        },
        "start": start_of,
        "without_duplicates": without,
        "profile": profile,
    }


def print_table(results: list[dict[str, Any]]) -> None:
    """Print the figures as Markdown."""
    print("| pairs | encode, pairs/s | of SentencePiece's own (threads, processes) | private memory, peak (added) |"
          " first batch | plan |"
          " RSS over an epoch (peak of planning) | without duplicates: pairs/s, peak |"
          " nmt data: seconds (of processors), peak |")  # fmt: skip
    print("|" + " --- |" * 9)
    for of in results:
        encoding, start, without, profile = (of[key] for key in ("encoding", "start", "without_duplicates", "profile"))
        shares = encoding["share_of_each"]
        by_threads = min(share for how, share in shares.items() if how.endswith("threads"))
        by_processes = min(share for how, share in shares.items() if how.endswith("processes"))
        added = encoding["private_mb_peak"] - encoding["private_mb_before"]
        print(
            f"| {of['pairs']:,} | {encoding['pairs_per_second']:,.0f} | {by_threads:.0%}, {by_processes:.0%} | "
            f"{encoding['private_mb_peak']} MB ({added}) | {start['seconds_to_first_batch']:.1f} s | "
            f"{start['plan_seconds']:.2f} s | {', '.join(map(str, start['rss_mb']))} MB "
            f"({start['peak_rss_mb']}) | "
            f"{without['pairs_per_second']:,.0f}, {without['private_mb_peak']} MB | "
            f"{profile['seconds']:.0f} s ({profile['cpu_seconds']:.0f}), {profile['private_mb_peak']} MB |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the data path on corpora that are made up.")
    parser.add_argument("--sizes", default="100000,1000000", help="numbers of pairs, with commas between them")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--measure", choices=MEASUREMENTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(MEASUREMENTS[args.measure]()))
        return 0
    results = []
    for size in args.sizes.split(","):
        with tempfile.TemporaryDirectory(dir=args.folder, prefix="bench_data.") as name:
            folder = Path(name).resolve()  # before the current folder is another
            with contextlib.chdir(folder):
                results.append(measure_size(int(size), folder))
    if args.json:
        write_json(args.json, results)
    print_table(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
