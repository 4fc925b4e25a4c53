"""How long the steps of a plan will take: real updates of each shape of training, and a decode, timed on this machine.

It is an upper limit: where cutoff is left out, the trainings after it are shorter.
"""

import dataclasses
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from nmt.config.training import Config
from nmt.data.batches import source_of
from nmt.data.corpus import count_pairs, read_pairs
from nmt.data.lines import count_lines
from nmt.data.vocabulary import OWN_SPECIAL_IDS
from nmt.decoding.beam import beam_search
from nmt.decoding.constraints import Constraints
from nmt.device import choose_device
from nmt.improving.configuring import CUTOFF
from nmt.improving.drafting import Draft, Training
from nmt.models.factory import build_model
from nmt.training.trial import time_updates

SECONDS = 10.0
"""Of a trial, for each shape of training."""
_SAMPLE = 10_000  # pairs of which the trial's vocabulary is built
_LINES = 32  # of the timed decode
_CHARACTERS_OF_A_PIECE = 4  # for lengths alone; Chinese has fewer


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a step will take on this machine."""

    step: str
    what: str
    hours: float


@dataclasses.dataclass(frozen=True)
class _Text:
    """The training text, as far as time depends on it."""

    pairs: int
    sample: list[tuple[str, str]]
    lengths: tuple[int, int]
    """Mean numbers of pieces of a source and a target, at least 1."""


def estimate(draft: Draft, folder: Path, say: Callable[[str], None]) -> list[Estimate]:
    """The hours of each step of a plan whose working folder is `folder`; `TrainingError` if a training would fail."""
    text = _text(draft.config)
    say(f"timing updates and translations on this machine for about {2 * SECONDS:.0f} s")
    cut = sorted({training.is_cut for training in draft.trainings})
    seconds = {is_cut: _seconds_of_an_update(draft.config, text, is_cut) for is_cut in cut}
    of_line = _seconds_of_a_line(draft.config, text)
    found = []
    for step in draft.plan().steps:
        trainings = [one for one in draft.trainings if one.step == step]
        translations = [one for one in draft.translations if one.step == step]
        updates = sum(_updates(draft.config, text, one) for one in trainings)
        hours = sum(_hours(draft.config, text, one, seconds[one.is_cut]) for one in trainings)
        lines = 0.0
        for one in translations:
            file = None if one.file is None else Path(os.path.normpath(folder / one.file))
            count = one.share * text.pairs if file is None else count_lines(file)
            lines += count
            hours += count * one.models * of_line / 3600
        parts = [f"{updates:,.0f} updates in {len(trainings)} trainings"] if trainings else []
        parts += [f"{lines:,.0f} lines to translate"] if lines else []
        if parts:
            found.append(Estimate(step, ", ".join(parts), hours))
    return found


def table(found: list[Estimate]) -> list[list[str]]:
    """Cells for a terminal, with the total."""
    rows = [[one.step, one.what, f"{one.hours:.2f}"] for one in found]
    total = sum(one.hours for one in found)
    return [["step", "what", "hours"], *rows, ["total", "", f"{total:.2f}"]]


def _text(config: Config) -> _Text:
    pairs = itertools.chain.from_iterable(map(read_pairs, config.data.train))
    sample = [pair for pair in itertools.islice(pairs, _SAMPLE) if all(map(str.strip, pair))]
    mean = [statistics.fmean(len(pair[side]) for pair in sample) for side in (0, 1)]
    src, tgt = (max(1, round(characters / _CHARACTERS_OF_A_PIECE)) for characters in mean)
    return _Text(count_pairs(config.data.train), sample, (src, tgt))


def _seconds_of_an_update(config: Config, text: _Text, is_cut: bool) -> float:
    if is_cut:
        sections = {"model": config.model, "training": config.training}
        changed = {name: sections[name].model_copy(update=keys) for name, keys in CUTOFF.items()}
        config = config.model_copy(update=changed)
    speed = time_updates(config, text.sample, SECONDS)
    return speed.seconds if config.training.precision == "bf16" else speed.seconds * speed.gain  # the latter: fp32


def _updates(config: Config, text: _Text, training: Training) -> float:
    """The number of updates, by the nearest of the limits; with `max_minutes` alone, 0."""
    settings, found = config.training, list[float]()
    if settings.max_steps is not None:
        found.append(settings.max_steps)
    if settings.max_epochs is not None:
        micro_batch = settings.batch_tokens if isinstance(settings.batch_tokens, int) else settings.update_tokens or 1
        tokens = micro_batch * settings.batches_per_update
        found.append(settings.max_epochs * math.ceil(text.pairs * (1 + max(text.lengths)) / tokens))
    return training.share * min(found, default=0)


def _hours(config: Config, text: _Text, training: Training, seconds: float) -> float:
    found = [_updates(config, text, training) * seconds / 3600] if _updates(config, text, training) else []
    if config.training.max_minutes is not None:
        found.append(training.share * config.training.max_minutes / 60)
    return min(found)


def _seconds_of_a_line(config: Config, text: _Text) -> float:
    """The time to translate a sentence of mean length in a batch, with a model of random weights."""
    device, size = choose_device(config.training.device), config.tokenizer.vocab_size
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        model = build_model(config.model, size, size, config.source).to(device).eval()
        src, tgt = text.lengths
        sources = [[size - 1] * src] * _LINES
        limits = {"max_length": tgt, "min_length": min(tgt, 10), "forbidden_words": ()}
        decoding = config.decoding.model_copy(update=limits)
        constraints = Constraints.of(decoding, OWN_SPECIAL_IDS, [src] * _LINES, None, device)
        source = source_of(sources, OWN_SPECIAL_IDS).to(device)
        began = time.perf_counter()
        beam_search(model, source, constraints, decoding.beam_size, decoding.length_penalty)
    return (time.perf_counter() - began) / _LINES
