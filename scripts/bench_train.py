#!/usr/bin/env python3
"""Training speed, beside the peak of the machine and beside eole.

    python scripts/bench_train.py                                    # this machine's CPU, Multi30k
    python scripts/bench_train.py --against ENVIRONMENT/bin/python   # eole in turn: A B A B ...
    python scripts/bench_train.py --preset rnn                       # additive attention, input feeding
    python scripts/bench_train.py --preset big --random-pairs 200000 --set training.batch_tokens=25344   # a GPU
    python scripts/bench_train.py --preset big --random-pairs 200000 --set training.batch_tokens=25344 \
        --set training.joined=false                                  # the same with padded batches

Each round is a fresh start, in as many processes as `nmt train` would take: warm-up updates first, then
`--updates` timed ones. Before and after each, every process runs a large matrix product, all at once, since on a shared
machine a rate means something only beside their sum. Only real (non-padding) tokens count.

FLOPs are those of matrix products over real positions: 2 m n k each, and twice as many again for the two products that
its gradient takes: 6 times these, for layers of width D with feed-forward width F (times 1.5 for swiglu), a source of S
and a target of T positions, and V words:

    encoder layer      S (4 D^2 + 2 D F) + 2 S^2 D           q, k, v and output maps; feed-forward; q k^T and weights v
    decoder layer      T (4 D^2 + 2 D F) + 2 T^2 D           the same (all of q k^T, though half of it is masked)
                       + (2 T + 2 S) D^2 + 2 T S D           cross-attention, keys and values over the source
    output             T D V

and for recurrent layers of width D, G gates (3 in a GRU, 4 in an LSTM), and embeddings of width E, with F = E in the
first layer and F = D in the others:

    encoder layer      S G D (F + D / 2)                     both directions, of D / 2 states each
    decoder layer      T G D (F + D)                         + T G D^2 in the first one with input feeding
    attention          (S + T) D^2 + 2 S T D, S D^2 + 2 S T D, 2 S T D      additive, general, dot; and its
                       + 2 T D^2                             attentional vector
    output             T D E (unless E = D) + T E V

Runs under any Python that can import nmt.
"""

import argparse
import itertools
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import yaml

from nmt.batches.batches import Batch
from nmt.cleaning.normalize import normalize
from nmt.config.inference import ModelConfig, RnnConfig
from nmt.config.reading import load_config
from nmt.config.training import Config
from nmt.corpora.lines import read_lines
from nmt.runs.folder import RunFolder
from nmt.system.devices import choose_device, configure_process
from nmt.system.distributed import Ranks, is_launched, process_group
from nmt.system.openmp import limit_spinning
from nmt.tokenizers.tokenizer import load_tokenizers
from nmt.training.launching import choose_processes, launch
from nmt.training.monitor import Monitor
from nmt.training.preparation import prepare
from nmt.training.resuming import resolve_processes
from nmt.training.trainer import Trainer

REPOSITORY = Path(__file__).resolve().parent.parent


def transformer(layers: int, d_model: int, d_ff: int, heads: int) -> dict[str, Any]:
    """Return the model section of a Transformer."""
    return {
        "num_encoder_layers": layers, "num_decoder_layers": layers,
        "d_model": d_model, "d_ff": d_ff, "num_heads": heads, "dropout": 0.1,
    }  # fmt: skip


PRESETS: dict[str, tuple[dict[str, Any], int]] = {  # the model, and the size of its vocabulary
    "small": (transformer(3, 256, 1024, 4), 8000),
    "base": (transformer(6, 512, 2048, 8), 32000),
    "big": (transformer(6, 1024, 4096, 16), 32000),
    "rnn": ({"architecture": "rnn", "d_embedding": 256, "d_model": 512, "dropout": 0.1}, 8000),
}
PEAK_SIZE = {"cpu": 1024, "cuda": 8192, "mps": 4096}


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the TFLOP/s of one large square matrix product, the median of eight."""
    size = PEAK_SIZE[device.type]
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    rates = []
    for _ in range(8):
        _wait(device)
        start = time.perf_counter()
        for _ in range(16):
            torch.mm(a, b)
        _wait(device)
        rates.append(16 * 2 * size**3 / (time.perf_counter() - start) / 1e12)
    return statistics.median(rates)


def peak_of_all(device: torch.device, dtype: torch.dtype, ranks: Ranks) -> float:
    """Return the sum of `matmul_peak` of all processes at the same time."""
    ranks.wait()
    return ranks.sum([matmul_peak(device, dtype)])[0]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def pair_lengths(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of positions of each real pair's source and target, (B,) each."""
    if (joined := batch.source.joined) is None:
        return batch.source.mask.sum(1).double(), (batch.tgt_out != 0).sum(1).double()
    ends = joined.tgt_starts[1:]
    real = (ends <= batch.num_tgt_tokens) & (joined.tgt_starts.diff() > 0)  # made-up pairs come after the real ones
    return joined.src_starts.diff()[real].double(), joined.tgt_starts.diff()[real].double()


def batch_flops(batch: Batch, model: ModelConfig, vocab_size: int) -> float:
    """Return the FLOPs of a batch's matrix products, forward and backward, as the head of this file counts them."""
    src, tgt = pair_lengths(batch)
    if model.architecture == "rnn":
        return 6 * _rnn_products(src, tgt, model, vocab_size)
    d, f = model.d_model, model.d_ff * (1.5 if model.activation == "swiglu" else 1)
    encoder = src * (4 * d * d + 2 * d * f) + 2 * src * src * d
    decoder = tgt * (4 * d * d + 2 * d * f) + 2 * tgt * tgt * d + (2 * tgt + 2 * src) * d * d + 2 * tgt * src * d
    total = model.num_encoder_layers * encoder + model.num_decoder_layers * decoder + tgt * d * vocab_size
    return 6 * float(total.sum())


def _rnn_products(src: torch.Tensor, tgt: torch.Tensor, model: RnnConfig, vocab_size: int) -> float:
    """Return the multiplications of a forward pass over pairs of these lengths, (B,) each."""
    d, e, gates = model.d_model, model.d_embedding, 3 if model.cell == "gru" else 4
    total = torch.zeros_like(src)
    for number in range(model.num_encoder_layers):
        total += src * gates * d * ((d if number else e) + d / 2)
    for number in range(model.num_decoder_layers):
        total += tgt * gates * d * ((d if number else e) + d)
    if model.input_feeding:
        total += tgt * gates * d * d
    if model.attention != "none":
        keys, queries = {"additive": (src, tgt), "general": (src, 0 * tgt), "dot": (0 * src, 0 * tgt)}[model.attention]
        total += (keys + queries) * d * d + 2 * src * tgt * d + 2 * tgt * d * d
    total += tgt * e * (vocab_size + (d if d != e else 0))
    return float(total.sum())


def work_config(args: argparse.Namespace, folder: Path) -> Path:
    """Write the configuration of the work, and with `--random-pairs` its text."""
    model, vocab_size = PRESETS[args.preset]
    if args.random_pairs:
        data: dict[str, Any] = random_text(folder, args.random_pairs, vocab_size - 4)
        tokenizer: dict[str, Any] = {"type": "word", "vocab_size": vocab_size}
    else:
        text = args.data.resolve()
        data = {
            name: {"src": str(text / f"{stem}.en"), "tgt": str(text / f"{stem}.de")}
            for name, stem in (("train", "train"), ("validation", "val"))
        }
        tokenizer = {"vocab_size": vocab_size}
    config = {
        "data": {**data, "src_lang": "en", "tgt_lang": "de"},
        "tokenizer": tokenizer,
        "model": model,
        "training": {"max_steps": 10**6, "batch_tokens": 4096, "threads": args.threads},
    }  # fmt: skip
    file = folder / "bench.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def random_text(folder: Path, pairs: int, words: int) -> dict[str, Any]:
    """Write sentences of about 25 random words (log-normal lengths, as in web text); targets are about as long."""
    random = np.random.default_rng(1)
    data = {}
    for name, count in (("train", pairs), ("validation", 10)):
        lengths = np.clip(np.exp(random.normal(3.0, 0.6, count)), 1, 100).round().astype(int)
        files = {}
        for side in ("src", "tgt"):
            drawn = np.clip(lengths + random.normal(0, 2, count).round().astype(int), 1, 120)
            path = folder / f"{name}.{side}"
            with path.open("w") as file:
                for length in drawn.tolist():
                    file.write(" ".join(f"w{word}" for word in random.integers(0, words, length)) + "\n")
            files[side] = str(path)
        data[name] = files
    return data


def measure(config: Config, folder: Path, warmup: int, updates: int, ranks: Ranks) -> dict[str, Any]:
    """Train for some updates, and return the figures of all processes together."""
    config = resolve_processes(config, ranks.size)
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    configure_process()
    run = RunFolder(folder / "run")
    run.path.mkdir(exist_ok=True)
    with ranks.main_first():
        prepared = prepare(config, run, resuming=False, ranks=ranks)
    device = prepared.device
    trainer = Trainer(config, run, prepared, Monitor(run.metrics_file, silent=not ranks.is_main), ranks=ranks)
    trainer.model.train()
    trainer.capture_graph()
    stream = trainer.updates()
    for _ in range(warmup):
        trainer.update(*next(stream))
    before = peak_of_all(device, prepared.dtype, ranks)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    waited, ends, batches = 0.0, [], []
    _wait(device)
    start = time.perf_counter()
    for _ in range(updates):
        asked = time.perf_counter()
        share, num_tokens = next(stream)
        waited += time.perf_counter() - asked
        trainer.update(share, num_tokens)
        if device.type == "cuda":
            ends.append(torch.cuda.Event(enable_timing=True))
            ends[-1].record()
        else:
            ends.append(time.perf_counter())
        batches += share.batches
    _wait(device)
    seconds = time.perf_counter() - start
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _max_rss()
    after = peak_of_all(device, prepared.dtype, ranks)
    if device.type == "cuda":
        times = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(ends)]
    else:
        times = np.diff([start, *ends]).tolist()
    src_tokens = sum(int(pair_lengths(batch)[0].sum()) for batch in batches)
    tgt_tokens = sum(batch.num_tgt_tokens for batch in batches)
    flops = sum(batch_flops(batch, config.model, prepared.tokenizers.tgt.vocab_size) for batch in batches)
    positions = sum(batch.tgt_out.numel() for batch in batches)
    src_tokens, tgt_tokens, flops, positions, memory = ranks.sum([src_tokens, tgt_tokens, flops, positions, memory])
    return {
        "tgt_tokens_per_second": tgt_tokens / seconds,
        "tokens_per_second": (src_tokens + tgt_tokens) / seconds,
        "step_seconds_median": statistics.median(times),
        "step_seconds_p95": float(np.percentile(times, 95)),
        "share_waiting_for_input": waited / seconds,
        "padding": 1 - tgt_tokens / positions,
        "mflop_per_tgt_token": flops / tgt_tokens / 1e6,
        "tflops": flops / seconds / 1e12,
        "peak_tflops_before": before,
        "peak_tflops_after": after,
        "share_of_peak": flops / seconds / 1e12 / ((before + after) / 2),
        "peak_memory_gb": memory / 1e9,
        "device": f"{device}, {str(prepared.dtype).removeprefix('torch.')}, {ranks.size} processes, "
        f"{torch.get_num_threads()} threads each",
    }


def _max_rss(whose: int = resource.RUSAGE_SELF) -> float:
    """Return the largest resident size so far, in bytes."""
    return (1 if sys.platform == "darwin" else 1024) * resource.getrusage(whose).ru_maxrss


def eole_config(config: Config, folder: Path, updates: int, warmup: int) -> Path:
    """Write the same work for eole: our pieces as its words, the same shapes, dropout on the residual stream alone."""
    tokenizers = load_tokenizers(folder / "run" / "tokenizer")
    files = config.data.train[0]
    for side, tokenizer in (("src", tokenizers.src), ("tgt", tokenizers.tgt)):
        with (folder / f"eole.{side}").open("w", encoding="utf-8") as file:
            for line in read_lines(getattr(files, side)):
                file.write(" ".join(tokenizer.pieces(tokenizer.encode(normalize(line)))) + "\n")
    size = tokenizers.tgt.vocab_size
    assert config.model.architecture == "transformer"
    pieces = tokenizers.tgt.pieces(range(4, size))
    (folder / "eole.vocab").write_text("".join(f"{piece}\t1\n" for piece in pieces), encoding="utf-8")
    model, training = config.model, config.training
    settings = {
        "data": {"corpus": {"path_src": "eole.src", "path_tgt": "eole.tgt", "transforms": []}},
        "src_vocab": "eole.vocab", "tgt_vocab": "eole.vocab", "share_vocab": True,
        "src_vocab_size": size, "tgt_vocab_size": size,
        "save_data": "eole", "overwrite": True, "n_sample": 0, "report_every": warmup, "seed": 1,
        "training": {
            "model_path": "eole/model", "world_size": 1, "gpu_ranks": [], "compute_dtype": "fp32",
            "train_steps": warmup + updates, "valid_steps": 10**6, "save_checkpoint_steps": 10**6,
            "batch_type": "tokens", "batch_size": training.batch_tokens, "normalization": "tokens",
            "accum_count": [1], "bucket_size": 10**6, "num_workers": 0,
            "optim": "adam", "adam_beta2": 0.98, "learning_rate": 1.0, "decay_method": "noam", "warmup_steps": 1000,
            "dropout": [model.dropout], "attention_dropout": [0.0],
            "label_smoothing": training.label_smoothing, "max_grad_norm": training.clip_norm,
        },
        "model": {
            "architecture": "transformer", "layers": model.num_encoder_layers, "hidden_size": model.d_model,
            "heads": model.num_heads, "transformer_ff": model.d_ff,
            "share_embeddings": True, "share_decoder_embeddings": True,
            "embeddings": {"word_vec_size": model.d_model, "position_encoding_type": "SinusoidalInterleaved"},
        },
    }  # fmt: skip
    file = folder / "eole.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


def measure_eole(
    python: Path, config: Config, folder: Path, warmup: int, updates: int, environment: dict[str, str]
) -> dict[str, Any]:
    """Run eole, and return the rates that it logs (real tokens), without the first interval, which is a warmup."""
    file = eole_config(config, folder, updates, warmup)
    device = torch.device("cpu")
    before = matmul_peak(device, torch.float32)
    threads = str(config.training.threads or torch.get_num_threads())
    done = subprocess.run(
        [python.parent / "eole", "train", "--config", file.name],
        cwd=folder, env={**environment, "OMP_NUM_THREADS": threads}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    log = done.stdout + done.stderr
    number = r"([\d.]+)"
    pattern = rf"Step +(\d+)/.*bsz: +{number}/ *{number}/.*?; +{number}/ *{number} tok/s"
    intervals = re.findall(pattern, log)[1:]
    if done.returncode or not intervals:
        raise SystemExit(f"eole did not train:\n{log[-3000:]}")
    after = matmul_peak(device, torch.float32)
    # It logs real tokens a batch and tokens a second; every interval has the same number of batches.
    seconds = sum(float(tgt) / float(rate) for _, _, tgt, _, rate in intervals)
    tgt_tokens = sum(float(tgt) for _, _, tgt, _, _ in intervals)
    src_tokens = sum(float(src) for _, src, _, _, _ in intervals)
    return {
        "tgt_tokens_per_second": tgt_tokens / seconds,
        "tokens_per_second": (src_tokens + tgt_tokens) / seconds,
        "step_seconds_mean": seconds / len(intervals),
        "padding": 1 - tgt_tokens / len(intervals) / config.training.batch_tokens,
        "peak_tflops_before": before,
        "peak_tflops_after": after,
        "peak_memory_gb": _max_rss(resource.RUSAGE_CHILDREN) / 1e9,
    }


COLUMNS = {
    "tgt_tokens_per_second": ("target tokens/s", "{:,.0f}"),
    "tokens_per_second": ("source+target tokens/s", "{:,.0f}"),
    "step_seconds_median": ("step, median s", "{:.3f}"),
    "step_seconds_p95": ("step, p95 s", "{:.3f}"),
    "share_waiting_for_input": ("waiting for input", "{:.1%}"),
    "padding": ("padding (target)", "{:.1%}"),
    "peak_tflops_before": ("peak before, TFLOP/s", "{:.3f}"),
    "peak_tflops_after": ("peak after", "{:.3f}"),
    "share_of_peak": ("FLOPs over mean peak", "{:.0%}"),
    "peak_memory_gb": ("memory, GB", "{:.2f}"),
}


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return a row for each system: medians over its rounds."""
    lines = ["| | " + " | ".join(title for title, _ in COLUMNS.values()) + " |", "| --- " * (len(COLUMNS) + 1) + "|"]
    for name, rounds in results.items():
        cells = []
        for key, (_, form) in COLUMNS.items():
            values = [one[key] for one in rounds if key in one]
            cells.append(form.format(statistics.median(values)) if values else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def add_share_of_peak(results: dict[str, list[dict[str, Any]]]) -> None:
    """Add a peer's share of the peak; it does as many FLOPs per target token as nmt."""
    per_token = statistics.median(one["mflop_per_tgt_token"] for one in results["nmt"]) * 1e6
    for one in results.get("eole", []):
        peak = (one["peak_tflops_before"] + one["peak_tflops_after"]) / 2
        one["share_of_peak"] = one["tgt_tokens_per_second"] * per_token / 1e12 / peak


def absolute(path: str) -> Path:
    """Make a path absolute without following links: a Python knows its environment by the place of its link."""
    return Path(path).absolute()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time training, beside the machine's peak and beside eole.")
    parser.add_argument("--preset", choices=PRESETS, default="small", help="the model (default: small)")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "data" / "multi30k", help="folder of train.en ...")
    parser.add_argument("--random-pairs", type=int, metavar="N", help="train on N random sentences instead")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=5, metavar="UPDATES", help="not counted (default: 5)")
    parser.add_argument("--updates", type=int, default=40, help="timed in each round (default: 40)")
    parser.add_argument("--against", type=absolute, metavar="PYTHON", help="the Python of an environment that has eole")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures here")
    parser.add_argument("--once", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)  # one round, in this process
    return parser.parse_args()


def main() -> int:
    args = parse()
    if args.once:
        os.chdir(args.once)
        config = load_config(args.once / "bench.yaml", args.overrides)
        if not is_launched() and (count := choose_processes(config.training)) > 1:
            return launch(count, [sys.executable, __file__, *sys.argv[1:]], config.training.threads)
        with process_group() as ranks:
            result = measure(config, args.once, args.warmup, args.updates, ranks)
            if ranks.is_main:
                print(json.dumps(result), flush=True)
        return 0
    environment = dict(os.environ)  # eole's: how its threads wait is its own
    limit_spinning()
    results: dict[str, list[dict[str, Any]]] = {"nmt": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = load_config(work_config(args, folder), args.overrides)
        if args.against and config.model.architecture != "transformer":
            raise SystemExit("--against is for Transformers")
        if args.against and choose_device(config.training.device).type != "cpu":
            raise SystemExit("--against is for the CPU: --set training.device=cpu")
        passed_on = [f"--set={override}" for override in args.overrides]
        passed_on += [f"--warmup={args.warmup}", f"--updates={args.updates}"]
        for number in range(1, args.rounds + 1):
            done = subprocess.run(
                [sys.executable, __file__, f"--once={folder}", *passed_on],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            results["nmt"].append(json.loads(done.stdout.splitlines()[-1]))
            if args.against:
                results.setdefault("eole", []).append(
                    measure_eole(args.against, config, folder, args.warmup, args.updates, environment)
                )
                add_share_of_peak(results)
            rates = ", ".join(f"{key} {rounds[-1]['tgt_tokens_per_second']:,.0f}" for key, rounds in results.items())
            print(f"round {number}: {rates} target tokens/s", file=sys.stderr, flush=True)
    print(f"{results['nmt'][0]['device']}; {results['nmt'][0]['mflop_per_tgt_token']:.1f} MFLOP a target token\n")
    print(table(results))
    if args.against:
        pairs = zip(results["nmt"], results["eole"], strict=True)
        ratio = statistics.median(a["tgt_tokens_per_second"] / b["tgt_tokens_per_second"] for a, b in pairs)
        print(f"\nnmt / eole, median of {args.rounds} interleaved rounds: {ratio:.2f}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
