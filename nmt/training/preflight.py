"""Checks before the first step: suspicious data, disk space, and a rehearsal of everything that may fail later."""

import contextlib
import shutil
from collections.abc import Iterator

import numpy as np

from nmt.batches.augmentation import max_batch_shape
from nmt.config.training import Config, TrainingConfig
from nmt.errors import TrainingError
from nmt.evaluation.evaluate import TestSet, evaluate
from nmt.runs.folder import RunFolder
from nmt.runs.weights import load_checkpoint, save_checkpoint
from nmt.system.files import temporary_folder
from nmt.tokenizers.statistics import side_report, survey
from nmt.training.memory import (
    fit_batch_tokens,
    free_memory,
    held_memory,
    size,
    try_batch,
    try_worst_batch,
    with_batches,
)
from nmt.training.preparation import Problems, TrainingInputs
from nmt.training.trainer import Trainer
from nmt.training.validation import evaluating

# Larger shares of the pieces or pairs are reported.
MAX_UNKNOWN = 0.001
MAX_BYTES = 0.01
MAX_COPIED = 0.03
MAX_SEEN = 0.01
MAX_TOO_LONG = 0.01


def data_warnings(config: Config, prepared: TrainingInputs) -> Iterator[str]:
    """Probable mistakes in the data that might otherwise be noticed after days."""
    data, counts, tokenizers = config.data, prepared.corpus.counts, prepared.tokenizers
    too_long = counts.dropped.get("too_long", 0)
    if too_long > MAX_TOO_LONG * counts.read:
        yield (
            f"{too_long:,} of {counts.read:,} training pairs ({too_long / counts.read:.1%}) are longer "
            f"than data.max_length ({data.max_length} pieces) and are dropped; raise it, or split them"
        )
    if config.training.init_from is not None:  # the vocabulary was made from other text
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
    result = survey(data.train, held_out, config.source, prepared.selection)
    if result.copied > MAX_COPIED * result.pairs:
        yield (
            f"in {result.copied:,} of {result.pairs:,} training pairs ({result.copied / result.pairs:.1%}) source and "
            f"target are the same text, which teaches the model to copy; leave them out"
        )
    for name, (pairs, seen) in result.held_out.items():
        if seen > MAX_SEEN * pairs:
            yield (
                f"{name}: {seen:,} of {pairs:,} pairs ({seen / pairs:.1%}) also "
                f"occur in the training text, so its scores will be too good; remove them from one of the two"
            )


def _unfamiliar(config: Config, text: str, side: str, unknown: float, of_bytes: float) -> Iterator[str]:
    """Warnings of a text that the vocabulary does not cover, by the shares of `<unk>` and of bytes in its pieces."""
    if unknown > MAX_UNKNOWN:
        remedy = "set tokenizer.byte_fallback: true, or raise tokenizer.character_coverage"
        if config.training.init_from is not None:
            remedy = f"the vocabulary is that of {config.training.init_from}: replace such characters in the text"
        elif config.tokenizer.type == "word":
            remedy = "raise tokenizer.vocab_size, lower tokenizer.min_frequency, or take tokenizer.type: bpe"
        yield f"{text}: {unknown:.2%} of the {side} pieces are <unk>; {remedy}"
    if of_bytes > MAX_BYTES:
        yield (
            f"{text}: {of_bytes:.1%} of the {side} pieces are bytes, of characters that the vocabulary lacks; is "
            f"the text in the right language?"
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
    with evaluating(trainer.model), trainer.validator.uncompiled():
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
    batches = max_batch_shape(prepared.corpus, config.augmentation, config.data.max_length)
    free = free_memory(prepared.device)
    if free is not None and prepared.device.type == "cpu":
        free //= trainer.ranks.local_size
    held = held_memory(prepared.dtype) if prepared.device.type == "cpu" else 0
    trainer.model.train()
    if config.training.update_tokens is not None:
        with trainer.validator.uncompiled():
            fits = fit_batch_tokens(trainer.objective, batches, prepared.dtype, free, config.training.update_tokens)
        largest = min(trainer.ranks.gather([fits]))
        count = trainer.ranks.size  # every process gets the same number of batches
        rounds = -(-config.training.update_tokens // (largest * count))
        trainer.configure(config.model_copy(update={"training": with_batches(config.training, rounds * count)}))
    settings = trainer.config.training
    if trainer.feed.shape is not None:
        account = try_batch(trainer.objective, trainer.feed.example(), prepared.dtype)
        if trainer.captures:  # a graph returns gradients in buffers of its own
            account = account._replace(gradients=2 * account.gradients)
    else:
        account = try_worst_batch(
            trainer.objective, batches, settings.micro_batch_tokens, prepared.dtype, free, settings.parts
        )
    average = 0 if trainer.averaged is None else account.parameters
    program = max(0, held - account.parameters - average)
    account = account._replace(average=average, program=program)
    return f"{account}" + ("" if free is None else f"; {size(free)} are free besides what is already in use")
