#!/usr/bin/env python3
"""Time and memory against sequence length: where the line of recurrence and the square of attention cross.

    python scripts/sequence_lengths.py             # lengths 16 to 2,048; some minutes of one core
    python scripts/sequence_lengths.py --quick     # up to 128, each once

Sequences of N random pieces, fp32, one thread:

    layer, 1 sentence       forward and backward pass of one layer alone, of width 512
    layer, 16 sentences     the same for 16 sequences side by side
    training                forward and backward pass of the loss for one pair, without the update of the weights;
                            N pieces on either side
    decoding                greedy search for N pieces from a source of N, as `nmt translate` does it

The models are those of configs/what_attention_bought with random weights, on which time does not depend. Times are
medians of rounds in which all take turns. Memory is resident memory at its peak, beyond the peak of the same work with
half of the shortest length, in a new process (a fork) for each figure: weights, gradients and the program are not
counted. It needs Linux or macOS. A length that may need more than MAX_BYTES is left out.
"""

import argparse
import dataclasses
import itertools
import math
import os
import resource
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nmt.batches.batches import Batch
from nmt.config.inference import ModelConfig
from nmt.config.reading import load_config
from nmt.decoding.beam_search import greedy_search
from nmt.decoding.constraints import Constraints
from nmt.models.attention import MultiHeadAttention
from nmt.models.factory import build_model
from nmt.models.packed import pack_linear_maps
from nmt.models.recurrence import Bidirectional, reversal_within
from nmt.models.source import Source
from nmt.system.devices import configure_process
from nmt.tokenizers.vocabulary import OWN_SPECIAL_IDS
from nmt.training.loss import Objective

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "what_attention_bought"
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
WIDTH, HEADS, VOCABULARY, MANY = 512, 4, 8000, 16
MAX_BYTES = 4e9
MODELS = {"none": "no attention", "additive": "additive attention", "transformer": "Transformer"}
ALONE, SIDE_BY_SIDE = "layer, 1 sentence", f"layer, {MANY} sentences"
# Which (line, square) are compared, by kind.
COMPARED = {
    ALONE: (("GRU", "self-attention"), ("GRU", "self-attention written out")),
    SIDE_BY_SIDE: (("GRU", "self-attention"),),
    "training": (("no attention", "Transformer"), ("additive attention", "Transformer")),
    "decoding": (("no attention", "Transformer"), ("additive attention", "Transformer")),
}

Work = Callable[[int], object]
"""Work on sequences of N positions, done once a call."""


@dataclasses.dataclass(frozen=True)
class Series:
    """Measurements of one kind of work; a skipped length is missing."""

    kind: str
    name: str
    seconds: Mapping[int, float]
    megabytes: Mapping[int, float]


def crossing(line: Mapping[int, float], square: Mapping[int, float]) -> float | None:
    """Return the length from which the second takes more than the first, up to the last length that both have.

    Between two lengths both are taken for straight on logarithmic axes. None if it takes less at the last length; the
    first length if it always takes more.

    >>> crossing({10: 2.0, 100: 20.0}, {10: 1.0, 100: 100.0})  # 0.2 n and 0.01 n ** 2
    20.0
    """
    lengths = sorted(line.keys() & square.keys())
    above = [math.log(square[n] / line[n]) for n in lengths]
    if above[-1] <= 0:
        return None
    for number in range(len(lengths) - 1, 0, -1):
        low, high = above[number - 1 : number + 1]
        if low <= 0:
            begin, end = map(math.log, lengths[number - 1 : number + 1])
            return round(math.exp(begin + (end - begin) * -low / (high - low)), 6)
    return float(lengths[0])


def works() -> dict[tuple[str, str], Work]:
    """Return the works by (kind, name)."""
    torch.manual_seed(1)
    gru, attention = Bidirectional("gru", WIDTH, WIDTH), MultiHeadAttention(WIDTH, HEADS)

    def recurrence(x: Tensor) -> Tensor:
        states: Tensor = gru(x, reversal_within(torch.ones(x.shape[:2], dtype=torch.bool)))
        return states

    found: dict[tuple[str, str], Work] = {}
    for kind, rows in ((ALONE, 1), (SIDE_BY_SIDE, MANY)):
        found[kind, "GRU"] = _layer(recurrence, rows)
        found[kind, "self-attention"] = _layer(lambda x: attention(x, x), rows)
    found[ALONE, "self-attention written out"] = _layer(lambda x: attention.forward_written_out(x, x)[0], 1)
    for file, name in MODELS.items():
        config = load_config(CONFIGS / f"{file}.yaml").model.model_copy(update={"max_positions": max(LENGTHS) + 2})
        found["training", name] = _training(config)
        found["decoding", name] = _decoding(config)
    return found


def _layer(layer: Callable[[Tensor], Tensor], rows: int) -> Work:
    def work(length: int) -> None:
        x = torch.randn(rows, length, WIDTH, requires_grad=True)
        torch.autograd.backward(layer(x).sum())

    return work


def _training(config: ModelConfig) -> Work:
    objective = Objective(build_model(config, VOCABULARY, VOCABULARY), label_smoothing=0.1)

    def work(length: int) -> None:
        tgt_in, tgt_out = _random_ids(length), _random_ids(length)
        batch = Batch(_random_source(length), tgt_in, tgt_out, torch.arange(length), length)
        torch.autograd.backward(objective(batch).smoothed)

    return work


def _decoding(config: ModelConfig) -> Work:
    model = build_model(config, VOCABULARY, VOCABULARY).eval()
    pack_linear_maps(model)
    forbidden = torch.tensor([OWN_SPECIAL_IDS.pad, OWN_SPECIAL_IDS.eos])  # so that every translation has N pieces

    def work(length: int) -> None:
        limits = Constraints(OWN_SPECIAL_IDS, forbidden, 1, 0, torch.tensor([length]))
        with torch.inference_mode():
            ((found,),) = greedy_search(model, _random_source(length), limits, 1.0)
        assert len(found.tokens) == length

    return work


def _random_ids(length: int) -> Tensor:
    return torch.randint(len(dataclasses.fields(OWN_SPECIAL_IDS)), VOCABULARY, (1, length))


def _random_source(length: int) -> Source:
    return Source(_random_ids(length), torch.ones(1, length, dtype=torch.bool))


def measure(lengths: Sequence[int], rounds: int, say: Callable[[str], None]) -> list[Series]:
    """Measure memory first, while this process is small; then time."""
    torch.set_num_threads(1)
    done = works()
    for work in done.values():
        work(lengths[0])  # the first pass loads kernels and allocates the gradients
    megabytes: dict[tuple[str, str], dict[int, float]] = {key: {} for key in done}
    for key, work in done.items():
        for length in lengths:
            if 4 * megabytes[key].get(length // 2, 0) > MAX_BYTES / 1e6:  # a square
                break
            megabytes[key][length] = _peak_bytes(work, length, lengths[0] // 2) / 1e6
        say(f"memory of {' '.join(key)}: up to {max(megabytes[key].values()):,.0f} MB")
    configure_process()
    times: dict[tuple[str, str, int], list[float]] = {}
    for length in lengths:
        for _ in range(rounds):
            for key, work in done.items():
                if length in megabytes[key]:
                    begin = time.perf_counter()
                    work(length)
                    times.setdefault((*key, length), []).append(time.perf_counter() - begin)
        say(f"times of {length:,} positions")
    return [
        Series(*key, {length: statistics.median(times[*key, length]) for length in sizes}, sizes)
        for key, sizes in megabytes.items()
    ]


def _peak_bytes(work: Work, length: int, shorter: int) -> int:
    """Return how far the peak memory is above that of a shorter length, in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            work(shorter)
            before = _peak()
            work(length)
            os.write(writing, str(_peak() - before).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer:
        raise SystemExit(f"the process that was to measure the memory at length {length:,} died")
    return int(answer)


def _peak() -> int:
    return (1 if sys.platform == "darwin" else 1024) * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def table(series: Sequence[Series], kind: str) -> str:
    """Return rows of times and of memory, a column for each length, and the factor of the last doubling."""
    chosen = [one for one in series if one.kind == kind]
    lengths = sorted({length for one in chosen for length in one.seconds})
    lines = [f"| {kind} | " + " | ".join(f"{length:,}" for length in lengths) + " | last doubling |"]
    lines.append("| --- " * (len(lengths) + 2) + "|")
    for unit, figures in (("ms", "seconds"), ("MB", "megabytes")):
        for one in chosen:
            values = {n: 1e3 * s for n, s in one.seconds.items()} if figures == "seconds" else one.megabytes
            cells = [_rounded(values[length], unit) if length in values else "-" for length in lengths]
            *_, before, last = (values[length] for length in sorted(values))
            growth = f"x {last / before:.1f}" if unit == "ms" or before >= 1 else ""
            lines.append(f"| {one.name}, {unit} | " + " | ".join(cells) + f" | {growth} |")
    return "\n".join(lines)


def _rounded(value: float, unit: str) -> str:
    if value >= 10:
        return f"{value:,.0f}"
    return "< 1" if unit == "MB" and value < 1 else f"{value:.1f}"  # less than a megabyte is not resolved


def crossings(series: Sequence[Series], kind: str) -> str:
    """Return a sentence about time for each pair of COMPARED."""
    of = {one.name: one.seconds for one in series if one.kind == kind}
    sentences = []
    for line, square in COMPARED[kind]:
        lengths = sorted(of[line].keys() & of[square].keys())
        point = crossing(of[line], of[square])
        if point is None:
            ratio = of[line][lengths[-1]] / of[square][lengths[-1]]
            text = (
                f"does not take longer than {line} up to {lengths[-1]:,}, where {line} takes {ratio:.1f} times as long"
            )
        elif point == lengths[0]:
            text = f"takes longer than {line} at every length"
        else:
            text = f"takes longer than {line} from {_two_digits(point):,} on"
        sentences.append(f"{kind}: {square} {text}.")
    items = (f"- {sentence[0].upper()}{sentence[1:]}" for sentence in sentences)
    return "\n".join(textwrap.fill(item, 120, subsequent_indent="  ") for item in items)


def _two_digits(value: float) -> int:
    """Round to two digits: a value between two measured points is worth no more."""
    return int(float(f"{value:.1e}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="lengths up to 128, each once")
    arguments = parser.parse_args()
    series = measure(*chosen(arguments.quick), say=lambda line: print(line, file=sys.stderr, flush=True))
    for kind in COMPARED:
        print(f"{table(series, kind)}\n\n{crossings(series, kind)}\n")


def chosen(quick: bool) -> tuple[Sequence[int], int]:
    """Return lengths and rounds."""
    return ([*itertools.takewhile(lambda n: n <= 128, LENGTHS)], 1) if quick else (LENGTHS, 3)


if __name__ == "__main__":
    main()
