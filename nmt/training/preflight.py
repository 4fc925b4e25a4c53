"""Checks before the first step: suspicious data, disk space, and a trial of everything that may fail later."""

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from nmt.batches.augmentation import reach
from nmt.config.corpus import HeldOutFiles, TrainingFiles
from nmt.config.data import CleaningConfig
from nmt.config.training import Config, TrainingConfig
from nmt.errors import TrainingError
from nmt.evaluation.evaluate import TestSet, evaluate
from nmt.runs.folder import RunFolder
from nmt.runs.weights import load_checkpoint, save_checkpoint
from nmt.system.devices import bf16_slowdown, configure_process
from nmt.system.files import temporary_folder
from nmt.tokenizers.statistics import side_report, survey
from nmt.training.memory import fit_batch_tokens, free_memory, held_memory, size, try_worst_batch, with_batches
from nmt.training.monitor import Monitor
from nmt.training.preparation import Prepared, Problems, prepare
from nmt.training.trainer import Trainer
from nmt.training.validation import evaluating

# Larger shares than these, of the pieces or of the pairs, are reported.
MAX_UNKNOWN = 0.001
MAX_BYTES = 0.01
MAX_COPIED = 0.03
MAX_SEEN = 0.01
MAX_TOO_LONG = 0.01


def warnings(config: Config, prepared: Prepared) -> Iterator[str]:
    """Probable mistakes in the data that might otherwise be noticed after days."""
    data, counts, tokenizers = config.data, prepared.corpus.counts, prepared.tokenizers
    too_long = counts.dropped.get("too_long", 0)
    if too_long > MAX_TOO_LONG * counts.read:
        yield (
            f"{too_long:,} of {counts.read:,} training pairs ({too_long / counts.read:.1%}) are longer "
            f"than data.max_length ({data.max_length} pieces) and left out; raise it, or split them"
        )
    if config.training.init_from is not None:  # which has the vocabulary of other text
        new = len(data.train) - sum(files.replayed for files in data.train)  # the replayed corpora come last
        pairs = sum(prepared.corpus.sizes[:new])
        trained = [("src", prepared.corpus.src, tokenizers.src), ("tgt", prepared.corpus.tgt, tokenizers.tgt)]
        for side, corpus, tokenizer in trained[config.source.type != "text" :]:
            shares = (corpus.share_of(ids, pairs) for ids in ([tokenizer.special.unk], tokenizer.byte_ids))
            yield from _unfamiliar(config, "training text", side, *shares)
    for name, test_set in {"validation": prepared.validation, **prepared.test_sets}.items():
        reports = {"tgt": side_report(test_set.references[0], tokenizers.tgt, data.tgt_lang)}
        if lines := [item for item in test_set.src if isinstance(item, str)]:
            reports = {"src": side_report(lines, tokenizers.src, data.src_lang, data.max_length), **reports}
            too_long, longest = reports["src"].too_long, reports["src"].longest
            unit, how = "pieces", "translated in parts"
        else:
            lengths = [len(item) for item in test_set.src]
            too_long, longest = sum(length > data.max_length for length in lengths), max(lengths)
            unit, how = "vectors", "cut when they are translated"
        if too_long:
            yield (
                f"{name}: {too_long:,} sources are longer than data.max_length ({data.max_length} {unit}) and are "
                f"{how}; the longest has {longest:,}"
            )
        for side, report in reports.items():
            yield from _unfamiliar(config, name, side, report.unknown_share, report.byte_share)
    held_out = {"validation": data.validation, **data.test}
    if data.validation.holdout == 0:  # the training pairs themselves
        del held_out["validation"]
    found = survey(data.train, held_out, config.source, prepared.selection)
    if found.copied > MAX_COPIED * found.pairs:
        yield (
            f"in {found.copied:,} of {found.pairs:,} training pairs ({found.copied / found.pairs:.1%}) source and "
            f"target are the same text, which teaches the model to copy; leave them out"
        )
    for name, (pairs, seen) in found.held_out.items():
        if seen > MAX_SEEN * pairs:
            yield (
                f"{name}: {seen:,} of {pairs:,} pairs ({seen / pairs:.1%}) also "
                f"occur in the training text, so its scores will be too good; remove them from one of the two"
            )


def _unfamiliar(config: Config, text: str, side: str, unknown: float, of_bytes: float) -> Iterator[str]:
    """A text that the vocabulary does not cover: shares of `<unk>` and of bytes in its pieces."""
    if unknown > MAX_UNKNOWN:
        remedy = "set tokenizer.byte_fallback: true, or raise tokenizer.character_coverage"
        if config.training.init_from is not None:
            remedy = f"the vocabulary is that of {config.training.init_from}: replace such characters in the text"
        elif config.tokenizer.type == "word":
            remedy = "raise tokenizer.vocab_size, lower tokenizer.min_frequency, or take tokenizer.type: bpe"
        yield f"{text}: {unknown:.2%} of the {side} pieces are <unk>; {remedy}"
    if of_bytes > MAX_BYTES:
        yield (
            f"{text}: {of_bytes:.1%} of the {side} pieces are bytes of characters that the vocabulary lacks, and "
            f"that must be learned one by one; is the text in the right language?"
        )


def check_disk(run: RunFolder, num_parameters: int, settings: TrainingConfig) -> None:
    """`TrainingError` if the checkpoints that will be kept do not fit beside the run."""
    weights = 4 * num_parameters
    copies = 3 + (settings.ema_decay is not None)  # in a checkpoint: the weights and AdamW's two moments, any average
    # The last checkpoints, the best one, and the one being written; and the best model.
    needed = weights * copies * (settings.keep_checkpoints + 2) + weights
    free = shutil.disk_usage(run.path).free
    if free < needed:
        raise TrainingError(
            f"{run.path}: the checkpoints need about {size(needed)} and {size(free)} are free; "
            f"make room, or lower training.keep_checkpoints"
        )


def rehearse(trainer: Trainer) -> str:
    """Try everything that may fail later, and report all failures at once; returns the memory needed, in words."""
    problems = Problems()
    with problems.collected():
        memory = _settle_memory(trainer)
    if trainer.ranks.is_main:
        with problems.collected():
            check_disk(trainer.folder, sum(trainer.model.parameter_counts().values()), trainer.config.training)
        with problems.collected():
            _try_validation(trainer)
        with problems.collected():
            _try_checkpoint(trainer)
    problems.raise_all()
    return memory


def _try_validation(trainer: Trainer) -> None:
    """Translate the first pieces of the longest sentences, and score the results."""
    prepared = trainer.prepared
    longest = np.argsort(prepared.validation_corpus.src.lengths)[-8:]
    lines = [number - 1 for number in prepared.validation_corpus.line_numbers(longest)[0]]
    few = TestSet(
        [prepared.validation.src[line] for line in lines],
        [[texts[line] for line in lines] for texts in prepared.validation.references],
    )
    with evaluating(trainer.model):
        evaluate(trainer.validator.translator(max_length=10), few, prepared.metrics)


def _try_checkpoint(trainer: Trainer) -> None:
    """Save a checkpoint and read it back."""
    parts = (trainer.model, trainer.optimizer, trainer.scaler)
    with temporary_folder(trainer.folder.checkpoints / "trial") as holder:
        save_checkpoint(holder / "trial", *parts, trainer.progress, trainer.averaged)
        load_checkpoint(holder / "trial", *parts, trainer.averaged)
    with contextlib.suppress(OSError):
        trainer.folder.checkpoints.rmdir()  # if it is empty


def _settle_memory(trainer: Trainer) -> str:
    """Try the worst batch, so that memory does not run out later; with `batch_tokens: auto`, first find the size.

    Returns the memory needed, in words.
    """
    config, prepared = trainer.config, trainer.prepared
    batches = reach(prepared.corpus, config.augmentation, config.data.max_length)
    free = free_memory(prepared.device)
    if free is not None and prepared.device.type == "cpu":
        free //= trainer.ranks.local_size
    held = held_memory(prepared.dtype) if prepared.device.type == "cpu" else 0
    trainer.model.train()
    if config.training.update_tokens is not None:
        fits = fit_batch_tokens(trainer.objective, batches, prepared.dtype, free, config.training.update_tokens)
        largest = min(trainer.ranks.gather([fits]))
        count = trainer.ranks.size  # every process gets the same number of batches
        rounds = -(-config.training.update_tokens // (largest * count))
        trainer.configure(config.model_copy(update={"training": with_batches(config.training, rounds * count)}))
    settings = trainer.config.training
    account = try_worst_batch(
        trainer.objective, batches, settings.micro_batch_tokens, prepared.dtype, free, settings.parts
    )
    average = 0 if trainer.averaged is None else account.parameters
    program = max(0, held - account.parameters - average)
    account = account._replace(average=average, program=program)
    return f"{account}" + ("" if free is None else f"; {size(free)} are free besides what is already in use")


# ---- How long a training will take: real updates on this machine, timed before it starts.


SECONDS = 20.0
_MUCH_FASTER = 1.2  # times as fast: less may be chance


class Speed(NamedTuple):
    """What a trial measured."""

    seconds: float
    """Of an update, in the mean."""
    device: str
    precision: str
    """`bf16` if that is much faster on this CPU than fp32, otherwise `auto`."""
    gain: float
    """How many times as fast as fp32 that is; 1.0 with `auto`."""


def time_updates(config: Config, sample: Sequence[tuple[str, str]]) -> Speed:
    """Train on some pairs for about `SECONDS`, preparation included, in a folder that is removed at the end.

    The vocabulary is built from these pairs alone; `VocabularyError` if they do not allow its size, and `TrainingError`
    if memory runs out.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="nmt-trial-") as folder, contextlib.chdir(folder):
        run = RunFolder(Path("runs/trial"))
        run.path.mkdir(parents=True)
        trial = _on(config, sample, Path(folder))
        if config.training.threads:
            torch.set_num_threads(config.training.threads)
        configure_process()
        prepared = prepare(trial, run, resuming=False)
        dtypes = [prepared.dtype]
        if prepared.device.type == "cpu":
            # Where a matrix product is not faster in bf16, no update is, and one may take ten times as long.
            dtypes = [torch.float32, *([torch.bfloat16] if bf16_slowdown() < 1 else [])]
        left = max(began + SECONDS - time.perf_counter(), 8.0) / len(dtypes)
        taken = [_seconds_of_an_update(trial, run, prepared._replace(dtype=one), left) for one in dtypes]
    gain = taken[0] / taken[-1]
    if gain < _MUCH_FASTER:
        return Speed(taken[0], str(prepared.device), "auto", 1.0)
    return Speed(taken[-1], str(prepared.device), "bf16", gain)


def _seconds_of_an_update(config: Config, run: RunFolder, prepared: Prepared, seconds: float) -> float:
    """Train for about this time, two updates at least, without validations, logs and checkpoints."""
    trainer = Trainer(config, run, prepared, Monitor(run.metrics_file, silent=True))
    trainer.model.train()
    taken: list[float] = []
    began = start = time.perf_counter()
    for share, num_tokens in trainer.updates():
        trainer.update(share, num_tokens)
        trainer.interval.read()  # waits for the device
        taken.append(time.perf_counter() - start)
        start = time.perf_counter()
        if len(taken) > 1 and start > began + seconds:
            break
    trainer.monitor.close()
    return statistics.fmean(taken[2:] or taken[-1:])  # the first ones allocate memory


def _on(config: Config, pairs: Sequence[tuple[str, str]], folder: Path) -> Config:
    """The configuration with this text for training, and a little of it for validation."""
    for side, name in enumerate(("src", "tgt")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"train.{name}").write_bytes(text.encode())
        (folder / f"val.{name}").write_bytes("".join(f"{pair[side]}\n" for pair in pairs[:10]).encode())
    data = config.data.model_copy(
        update={
            "train": (TrainingFiles(src=folder / "train.src", tgt=folder / "train.tgt"),),
            "validation": HeldOutFiles(src=folder / "val.src", tgt=folder / "val.tgt"),
            "test": {},
            "cleaning": CleaningConfig(),
        }
    )
    return config.model_copy(update={"data": data})
