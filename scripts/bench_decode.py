#!/usr/bin/env python3
"""Translation speed, beside CTranslate2 called directly and beside eole.

    python scripts/bench_decode.py --model RUN                                     # this machine's CPU
    python scripts/bench_decode.py --model RUN --against ENVIRONMENT/bin/python    # eole too, with the same weights
    python scripts/bench_decode.py --model RUN --batches 64,0 --beams 5 --rounds 9
    python scripts/bench_decode.py --model RUN --device cuda --precision bf16 --batches 64,512,2048,0    # a GPU

Each engine is one process that stays, and they take turns: a round of one, then of the next, setting by setting, since
on a shared machine only a ratio within a round means something. A round is text in and text out, tokenization included:
sentences are sorted by length, longest first, and cut into batches of the given size. All engines search alike:
`--beams` hypotheses, the run's length penalty, at most 256 pieces. The first round of each setting is not counted. A
large matrix product runs before every round.

A batch of 0 means the whole file at once, which each engine batches by its own rules: ours as `nmt translate` does,
CTranslate2 into 32 sentences for each core, which was its best (docs/lab/speed.md). eole does not take part there.

CTranslate2 needs `RUN/export/ctranslate2-float32` (`nmt export ctranslate2 --quantization float32`); others that lie
beside it, such as ctranslate2-int8, take part too. Each export is called through CTranslate2's own Python API, and
through ours.
"""

import argparse
import json
import logging
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nmt.cleaning.normalize import normalize
from nmt.corpora.lines import read_lines
from nmt.runs.folder import RunFolder, open_run
from nmt.tokenizers.tokenizer import Tokenizers, load_tokenizers

REPOSITORY = Path(__file__).resolve().parent.parent
LONGEST = 256

Search = Callable[[Sequence[Sequence[int]], int], list[Sequence[int]]]
"""Sources (ids without `</s>`) and the beam size -> the best output of each."""


# --- The engines, each in its own process ----------------------------------------------------------------


def torch_search(run: RunFolder, tokenizers: Tokenizers, args: argparse.Namespace) -> Search:
    """Return the search of nmt with PyTorch."""
    import torch

    from nmt.decoding.torch_engine import load_torch_engine

    torch.set_num_threads(args.threads)
    return _through_engine(run, load_torch_engine([run], tokenizers, args.device, args.precision))


def our_ctranslate2_search(run: RunFolder, export: Path, tokenizers: Tokenizers, device: str) -> Search:
    """Return the search of nmt with CTranslate2, in OMP_NUM_THREADS threads."""
    from nmt.decoding.ctranslate2_engine import load_ctranslate2_engine

    return _through_engine(run, load_ctranslate2_engine(RunFolder(export), tokenizers, device))


def longest_output(run: RunFolder) -> int:
    """Return the length limit of every search: the same for all models, unless one has too few positions."""
    model = run.config().model
    return LONGEST if model.architecture == "rnn" else min(LONGEST, model.max_positions - 1)


def _through_engine(run: RunFolder, engine: Any) -> Search:
    decoding, longest = run.config().decoding, longest_output(run)

    def search(sources: Sequence[Sequence[int]], beam_size: int) -> list[Sequence[int]]:
        changes = {"beam_size": beam_size, "max_length": longest, "batch_tokens": 10**9}
        return [found[0].tokens for found in engine.search(sources, decoding.model_copy(update=changes))]

    return search


def direct_search(
    run: RunFolder,
    export: Path,
    tokenizers: Tokenizers,
    device: str,
    threads: int,
    workers: int = 1,
    max_batch_size: int = 0,
) -> Search:
    """Return the search of CTranslate2's own Python API."""
    import ctranslate2

    translator = ctranslate2.Translator(str(export), device=device, inter_threads=workers, intra_threads=threads)
    decoding, longest = run.config().decoding, longest_output(run)
    src_pieces = tokenizers.src.pieces(range(tokenizers.src.vocab_size))
    ids = {piece: index for index, piece in enumerate(tokenizers.tgt.pieces(range(tokenizers.tgt.vocab_size)))}

    def search(sources: Sequence[Sequence[int]], beam_size: int) -> list[Sequence[int]]:
        results = translator.translate_batch(
            [[src_pieces[index] for index in source] for source in sources],
            beam_size=beam_size, length_penalty=decoding.length_penalty, max_decoding_length=longest,
            no_repeat_ngram_size=decoding.no_repeat_ngram_size,
            max_input_length=0, disable_unk=True, max_batch_size=max_batch_size,
        )  # fmt: skip
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    return search


def eole_search(folder: Path, tokenizers: Tokenizers, threads: int) -> Search:
    """Return the search of eole's predictor in this process, with the weights of `write_eole_model`."""
    import torch
    from eole.config.run import PredictConfig
    from eole.inference_engine import InferenceEnginePY

    torch.set_num_threads(threads)
    logging.disable(logging.INFO)
    engines: dict[int, Any] = {}  # by beam size
    ids = {piece: index for index, piece in enumerate(tokenizers.tgt.pieces(range(tokenizers.tgt.vocab_size)))}

    def search(sources: Sequence[Sequence[int]], beam_size: int) -> list[Sequence[int]]:
        if beam_size not in engines:
            engines[beam_size] = InferenceEnginePY(PredictConfig(
                model_path=str(folder), src="none", beam_size=beam_size, batch_size=10**4, batch_type="sents",
                max_length=LONGEST, length_penalty="avg", alpha=1.0, gpu_ranks=[], world_size=1, compute_dtype="fp32",
                ban_unk_token=True,
            ))  # fmt: skip
        lines = [" ".join([*tokenizers.src.pieces(source), "</s>"]) for source in sources]
        _, _, found = engines[beam_size].infer_list(lines)
        return [[ids[piece] for piece in outputs[0].split()] for outputs in found]

    return search


def file_translation(
    name: str, run: RunFolder, tokenizers: Tokenizers, args: argparse.Namespace
) -> Callable[[Sequence[str], int], list[str]]:
    """Return a function of lines and beam size that translates all lines in one call."""
    decoding = run.config().decoding.model_copy(update={"max_length": longest_output(run)})
    if name.startswith("nmt, "):
        import nmt

        engine = name.removeprefix("nmt, ")
        model = run.path if engine == "torch" else run.path / "export" / engine
        translators: dict[int, nmt.Translator] = {}  # by beam size

        def ours(lines: Sequence[str], beam_size: int) -> list[str]:
            if beam_size not in translators:
                search = decoding.model_copy(update={"beam_size": beam_size})
                translators[beam_size] = nmt.load(
                    model,
                    device=args.device,
                    decoding=search,
                    engine=engine.split("-")[0],
                    own_process=True,
                    precision=args.precision if engine == "torch" else None,
                )
            return translators[beam_size].translate(lines)

        return ours
    export = run.path / "export" / name
    search = direct_search(run, export, tokenizers, args.device, 1, workers=args.threads, max_batch_size=32)

    def direct(lines: Sequence[str], beam_size: int) -> list[str]:
        return [
            tokenizers.tgt.decode(ids)
            for ids in search(tokenizers.src.encode_lines([*map(normalize, lines)]), beam_size)
        ]

    return direct


def write_eole_model(run: RunFolder, folder: Path) -> None:
    """Write a run's weights under eole's names, for a pre-norm model with relu and all embeddings tied."""
    import torch
    from safetensors.torch import load_file, save_file

    config = run.config().model
    if config.architecture != "transformer":
        raise SystemExit("--against takes Transformers: only their weights are converted")
    if (config.norm, config.activation, config.tie_embeddings) != ("pre", "relu", "all"):
        raise SystemExit("--against takes models with norm: pre, activation: relu, tie_embeddings: all")
    weights = load_file(run.model_file)
    names = {
        "encoder_norm": "encoder.layer_norm", "decoder_norm": "decoder.layer_norm", "cross_attention": "context_attn",
        "self_attention": "self_attn", "query": "linear_query", "key": "linear_keys", "value": "linear_values",
        "output": "final_linear", "feed_forward.inner": "mlp.gate_up_proj", "feed_forward.outer": "mlp.down_proj",
        "self_residual.norm": "input_layernorm", "cross_residual.norm": "precontext_layernorm",
        "feed_forward_residual.norm": "post_attention_layernorm",
    }  # fmt: skip
    theirs = {}
    for name, value in weights.items():
        for our_part, their_part in names.items():
            name = name.replace(our_part, their_part)
        for side in ("encoder", "decoder"):
            name = re.sub(rf"^{side}\.(\d)", rf"{side}.transformer_layers.\1", name)
        theirs[name] = value
    # Their first ids are <unk> <blank> <s> </s>, ours <pad> <s> </s> <unk>.
    embedding = theirs.pop("src_embedding.weight")
    theirs["src_emb.embeddings.weight"] = torch.cat([embedding[[3, 0, 1, 2]], embedding[4:]])
    theirs["generator.bias"] = torch.zeros(len(embedding))
    save_file(theirs, folder / "model.00.safetensors")
    tokenizers = load_tokenizers(run.tokenizer)
    pieces = ["<unk>", "<blank>", "<s>", "</s>", *tokenizers.tgt.pieces(range(4, len(embedding)))]
    specials = {"unk_token": "<unk>", "pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>"}
    vocabulary = {"src": pieces, "tgt": pieces, "decoder_start_token": "<s>", "specials": specials}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    shape = {
        "layers": config.num_encoder_layers, "hidden_size": config.d_model, "heads": config.num_heads,
        "transformer_ff": config.d_ff, "add_qkvbias": True, "add_final_linear_bias": True, "add_ffnbias": True,
        "position_encoding_type": "SinusoidalInterleaved",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({
        "src_vocab": "none", "tgt_vocab": "none", "share_vocab": True, "save_data": "none",
        "src_vocab_size": len(pieces), "tgt_vocab_size": len(pieces), "data": {},
        "training": {"gpu_ranks": [], "world_size": 1, "compute_dtype": "fp32"},
        "model": {
            **shape, "architecture": "transformer", "share_embeddings": True, "share_decoder_embeddings": True,
            "encoder": {"encoder_type": "transformer", "src_word_vec_size": config.d_model, **shape},
            "decoder": {"decoder_type": "transformer", "tgt_word_vec_size": config.d_model, **shape},
            "embeddings": {
                "word_vec_size": config.d_model, "src_word_vec_size": config.d_model,
                "tgt_word_vec_size": config.d_model, "position_encoding_type": "SinusoidalInterleaved",
            },
        },
    }))  # fmt: skip


def make_search(name: str, run: RunFolder, tokenizers: Tokenizers, args: argparse.Namespace) -> Search:
    """Return a search by its name: `nmt, torch`, `nmt, ctranslate2-int8`, `ctranslate2-int8`, `eole=FOLDER`."""
    if name == "nmt, torch":
        return torch_search(run, tokenizers, args)
    if name.startswith("eole="):
        return eole_search(Path(name.removeprefix("eole=")), tokenizers, args.threads)
    export = run.path / "export" / name.removeprefix("nmt, ")
    if name.startswith("nmt, "):
        return our_ctranslate2_search(run, export, tokenizers, args.device)
    return direct_search(run, export, tokenizers, args.device, args.threads)


def work(args: argparse.Namespace) -> None:
    """Run one engine: a round for each line of standard input, its figures on standard output."""
    run = open_run(args.model)
    tokenizers = load_tokenizers(run.tokenizer)
    search = make_search(args.work, run, tokenizers, args)
    whole_file = None
    for request in map(json.loads, sys.stdin):
        lines, batch_size, beam_size = request["lines"], request["batch"], request["beam"]
        if not batch_size:
            whole_file = whole_file or file_translation(args.work, run, tokenizers, args)
            start = time.perf_counter()
            texts = whole_file(lines, beam_size)
            _answer(time.perf_counter() - start, [], texts, sum(map(len, tokenizers.tgt.encode_lines(texts))))
            continue
        start = time.perf_counter()
        sources = tokenizers.src.encode_lines([*map(normalize, lines)])
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
        outputs: dict[int, Sequence[int]] = {}
        of_batches = []
        for place in range(0, len(order), batch_size):
            batch = order[place : place + batch_size]
            before = time.perf_counter()
            outputs.update(zip(batch, search([sources[index] for index in batch], beam_size), strict=True))
            of_batches.append(time.perf_counter() - before)
        texts = [tokenizers.tgt.decode(outputs[index]) for index in range(len(lines))]
        _answer(time.perf_counter() - start, of_batches, texts, sum(map(len, outputs.values())))


def _answer(seconds: float, of_batches: list[float], texts: list[str], tokens: int) -> None:
    print(json.dumps({
        "seconds": seconds, "batch_seconds": of_batches, "texts": texts, "tokens": tokens,
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }), flush=True)  # fmt: skip


class Worker:
    """A process that translates on request."""

    def __init__(self, command: Sequence[str | Path], threads: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one round, and return its figures."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("an engine has ended; its message is above")
        found: dict[str, Any] = json.loads(answer)
        return found

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


# --- The rounds ------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace, run: RunFolder, names: Sequence[str], eole_model: Path) -> list[dict[str, Any]]:
    """Return a row for each setting, engine and round."""
    import torch
    from bench_train import matmul_peak

    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    everything = list(read_lines(args.lines))
    lines = everything[:: max(1, len(everything) // args.sentences)][: args.sentences]
    options = [__file__, f"--model={run.path}", f"--threads={args.threads}", f"--device={args.device}",
               f"--precision={args.precision}"]  # fmt: skip
    workers = {name: Worker([sys.executable, *options, f"--work={name}"], args.threads) for name in names}
    if args.against:
        write_eole_model(run, eole_model)
        workers["eole"] = Worker([args.against, *options, f"--work=eole={eole_model}"], args.threads)
    rows = []
    for beam in args.beams:
        for batch in args.batches:
            request = {"lines": lines[::4] if batch == 1 else lines, "batch": batch, "beam": beam}
            for number in range(args.rounds + 1):
                peak = matmul_peak(device, torch.float32)
                for name, worker in workers.items():
                    if name == "eole" and not batch:
                        continue
                    figures = worker.ask(request)
                    rows.append({"engine": name, "beam": beam, "batch": batch, "round": number,
                                 "sentences": len(request["lines"]), "peak_tflops": peak, **figures})  # fmt: skip
            _report([row for row in rows if (row["beam"], row["batch"]) == (beam, batch)])
    for worker in workers.values():
        worker.end()
    return rows


def _report(rows: Sequence[dict[str, Any]]) -> None:
    """Print a row for each engine; a ratio is the median over the rounds of the ratios within each."""
    names = list(dict.fromkeys(row["engine"] for row in rows))
    counted = {name: [row for row in rows if row["engine"] == name and row["round"]] for name in names}
    for name, of_engine in counted.items():
        last = of_engine[-1]
        seconds = statistics.median(row["seconds"] for row in of_engine)
        cells = [
            f"{last['batch'] or 'file'}, {last['beam']}",
            name,
            f"{last['sentences'] / seconds:.1f}",
            f"{last['tokens'] / seconds:,.0f}",
        ]
        each = [1000 * one for row in of_engine for one in row["batch_seconds"]]
        cells.append(f"{statistics.median(each):.1f}" if last["batch"] == 1 else "")
        against = counted.get("ctranslate2-float32", of_engine)
        if name.startswith("nmt, "):
            against = counted.get(name.removeprefix("nmt, "), against)
        ratios = sorted(theirs["seconds"] / ours["seconds"] for ours, theirs in zip(of_engine, against, strict=True))
        cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        pairs = zip(last["texts"], against[-1]["texts"], strict=True)
        cells.append(f"{sum(one == other for one, other in pairs) / last['sentences']:.1%}")
        cells.append(f"{last['peak_memory_gb']:.2f}")
        cells.append(f"{statistics.median(row['peak_tflops'] for row in of_engine) * 1000:.0f}")
        print("| " + " | ".join(cells) + " |", flush=True)


def cold_starts(run: RunFolder, rounds: int) -> dict[str, float]:
    """Time whole processes in turn, and return the median seconds of each."""
    nmt = [sys.executable, "-m", "nmt"]
    translate = [*nmt, "translate", "--model", str(run.path.resolve()), "hello world"]
    engines = ["torch", "ctranslate2"] if any((run.path / "export").glob("ctranslate2-*")) else ["torch"]
    commands = {
        'python -c "import torch"': [sys.executable, "-c", "import torch"],
        "nmt --help": [*nmt, "--help"],
        **{f'nmt translate "hello world", {engine}': [*translate, "--engine", engine] for engine in engines},
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(of_one[1:]) for name, of_one in seconds.items()}


def parse() -> argparse.Namespace:
    numbers = {"type": lambda text: [int(part) for part in text.split(",")], "metavar": "N,N"}
    parser = argparse.ArgumentParser(description="Time translating, beside CTranslate2 and eole.")
    parser.add_argument("--model", metavar="RUN", help="a run's folder or name (default: the newest)")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="sources",
                        default=REPOSITORY / "data" / "multi30k" / "test_2016_flickr.en")  # fmt: skip
    parser.add_argument("--sentences", type=int, default=256, help="number of sentences, evenly picked (default: 256)")
    parser.add_argument("--batches", default=[1, 32, 64, 128], help="sentences (default: 1,32,64,128)", **numbers)
    parser.add_argument("--beams", default=[1, 5], help="beam sizes (default: 1,5)", **numbers)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N; eole stays on the CPU")
    parser.add_argument("--precision", default="fp32", help="PyTorch's: fp32 (default), bf16 or fp16")
    parser.add_argument("--against", type=Path, metavar="PYTHON", help="the Python of an environment that has eole")
    parser.add_argument("--engines", help="only those whose names have one of these words in them, by commas")
    parser.add_argument("--starts", type=int, default=5, metavar="ROUNDS", help="cold starts (default: 5; 0: none)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures here")
    parser.add_argument("--work", help=argparse.SUPPRESS)  # as one engine, in this process
    return parser.parse_args()


def main() -> int:
    args = parse()
    if args.work:
        work(args)
        return 0
    run = open_run(args.model)
    exports = sorted(path.name for path in (run.path / "export").glob("ctranslate2-*"))
    ours = [f"nmt, {export}" for export in exports]
    names = ["nmt, torch", *ours, *exports]
    if args.engines:
        names = [name for name in names if any(word in name for word in args.engines.split(","))]
    print("| batch, beam | engine | sentences/s | tokens/s | one sentence, median ms | speed / called directly "
          "(least to most) | same output | memory, GB | matmul, GFLOP/s |\n" + "| --- " * 9 + "|",
          flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args, run, names, Path(folder))
    starts = cold_starts(run, args.starts) if args.starts else {}
    for name, seconds in starts.items():
        print(f"{name}: {seconds:.2f} s")
    if args.json:
        args.json.write_text(json.dumps({"rounds": rows, "cold_starts": starts}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
