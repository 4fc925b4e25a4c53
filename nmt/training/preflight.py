"""All that can be known before the first step: files, vocabulary, metrics, disk, and what is probably not meant so."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sacrebleu.metrics.base import Metric as SacreMetric

from nmt.config.training import Config, Metric, TrainingConfig
from nmt.data.batches import Plan, num_workers, share_of_real_positions, start_worker_server
from nmt.data.corpus import count_pairs
from nmt.data.dataset import EncodedCorpus, encode_corpus
from nmt.data.mixture import describe_mixture
from nmt.data.statistics import side_report, survey
from nmt.data.tokenizer import Tokenizers, ensure_tokenizers, load_tokenizers
from nmt.device import choose_device, choose_dtype
from nmt.distributed import ALONE, Ranks
from nmt.errors import NmtError, TrainingError
from nmt.evaluation.evaluate import TestSet, read_test_set
from nmt.evaluation.metrics import bleu_tokenizer, make_metrics
from nmt.models.interface import TrainableModel
from nmt.runs import RunFolder
from nmt.training.stopping import total_steps

# What is more than chance, as shares: of the pieces, of the pairs.
MAX_UNKNOWN = 0.001
MAX_BYTES = 0.01
MAX_COPIED = 0.03
MAX_SEEN = 0.01
MAX_TOO_LONG = 0.01
COPIES_OF_WEIGHTS = 3  # in a checkpoint: the weights and AdamW's two moments


@dataclasses.dataclass(frozen=True)
class Prepared:
    """All that a training needs, read and found sound."""

    tokenizers: Tokenizers
    corpus: EncodedCorpus
    validation: TestSet
    """As text, for translating."""
    validation_corpus: EncodedCorpus
    """As ids, for the loss."""
    metrics: dict[Metric, SacreMetric]
    device: torch.device
    dtype: torch.dtype


class Problems:
    """What is wrong, collected so that all of it is told at once."""

    def __init__(self) -> None:
        self._found: list[NmtError] = []

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """An `NmtError` ends the block, and what comes after it goes on."""
        try:
            yield
        except NmtError as error:
            self._found.append(error)

    def raise_all(self) -> None:
        """One error for all, with the exit code of the first, if there was any."""
        if self._found:
            messages = dict.fromkeys(str(error) for error in self._found)
            raise type(self._found[0])("\n".join(messages))


def prepare(
    config: Config, run: RunFolder, resuming: bool, say: Callable[[str], None], ranks: Ranks = ALONE
) -> Prepared:
    """Read and check everything; build vocabulary and encoded corpus where they are missing.

    A run that is resumed keeps the vocabulary it has. Raises `NmtError`s for whatever cannot work, all at once.
    """
    data = config.data
    problems = Problems()
    test_sets = {}
    with problems.collected():
        device = ranks.device(choose_device(config.training.device))
        dtype = choose_dtype(config.training.precision, device)
    with problems.collected():
        names: set[Metric] = {"bleu", "chrf"}
        if config.training.best_metric != "loss":
            names.add(config.training.best_metric)
        metrics = make_metrics(sorted(names), data.tgt_lang, config.evaluation.bleu_tokenizer)
    with problems.collected():
        make_metrics(config.evaluation.metrics, data.tgt_lang, config.evaluation.bleu_tokenizer)
    with problems.collected():
        validation = read_test_set(data.validation.src, [data.validation.tgt])
    for name, files in data.test.items():
        with problems.collected():
            test_sets[name] = read_test_set(files.src, [files.tgt])
    for files in () if resuming else data.train:
        with problems.collected():
            count_pairs([files])
    problems.raise_all()

    if num_workers(device, config.augmentation.is_on):
        start_worker_server()
    if resuming:
        tokenizers = load_tokenizers(run.tokenizer)
    else:
        tokenizers = ensure_tokenizers(data.train, config.tokenizer, run.tokenizer, say)
    corpus = encode_corpus(data.train, tokenizers, run.tokenizer, data.max_length, data.drop_duplicates, say)
    validation_corpus = encode_corpus([data.validation], tokenizers, run.tokenizer, data.max_length)
    if not resuming and ranks.is_main:
        for line in _warnings(config, tokenizers, corpus, {"validation": validation, **test_sets}):
            say(f"warning: {line}")
    return Prepared(tokenizers, corpus, validation, validation_corpus, metrics, device, dtype)


def _warnings(
    config: Config, tokenizers: Tokenizers, corpus: EncodedCorpus, test_sets: dict[str, TestSet]
) -> Iterator[str]:
    """What is probably not meant so, and would be found out after days."""
    data, counts = config.data, corpus.counts
    if counts.too_long > MAX_TOO_LONG * counts.read:
        yield (
            f"{counts.too_long:,} of {counts.read:,} training pairs ({counts.too_long / counts.read:.1%}) are longer "
            f"than data.max_length ({data.max_length} pieces) and left out; raise it, or split them"
        )
    for name, test_set in test_sets.items():
        src = side_report(test_set.src, tokenizers.src, data.src_lang, data.max_length)
        tgt = side_report(test_set.references[0], tokenizers.tgt, data.tgt_lang)
        if src.too_long:
            yield (
                f"{name}: {src.too_long:,} sources are longer than data.max_length ({data.max_length} pieces) and are "
                f"cut when they are translated; the longest has {src.longest:,}"
            )
        for side, report in (("src", src), ("tgt", tgt)):
            if report.unknown_share > MAX_UNKNOWN:
                yield f"{name}: {report.unknown_share:.2%} of the {side} pieces are <unk>; {_remedy(config)}"
            if report.byte_share > MAX_BYTES:
                yield (
                    f"{name}: {report.byte_share:.1%} of the {side} pieces are bytes of characters that the vocabulary "
                    f"does not hold; is the text in the language that it was made from ({report.language})?"
                )
    held_out = {"validation": data.validation, **data.test}
    found = survey(data.train, held_out)
    if found.copied > MAX_COPIED * found.pairs:
        yield (
            f"in {found.copied:,} of {found.pairs:,} training pairs ({found.copied / found.pairs:.1%}) source and "
            f"target are the same text; a model learns to copy from them: leave them out"
        )
    for name, overlap in found.overlaps.items():
        if overlap.seen > MAX_SEEN * overlap.pairs:
            yield (
                f"{name}: {overlap.seen:,} of {overlap.pairs:,} pairs ({overlap.seen / overlap.pairs:.1%}) stand in "
                f"the training text, too, so its scores will be too good; leave them out of the one or the other"
            )


def _remedy(config: Config) -> str:
    if config.tokenizer.type == "word":
        return "raise tokenizer.vocab_size, lower tokenizer.min_frequency, or take tokenizer.type: bpe"
    return "set tokenizer.byte_fallback: true, or raise tokenizer.character_coverage"


def check_disk(run: RunFolder, num_parameters: int, settings: TrainingConfig) -> None:
    """`TrainingError` if the checkpoints that will be kept do not fit beside the run."""
    weights = 4 * num_parameters
    copies = COPIES_OF_WEIGHTS + (settings.ema_decay is not None)
    last = max(settings.keep_checkpoints, (settings.average_last or 1) - 1)
    # The last ones, the best, and the one being written; and the best model.
    needed = weights * copies * (last + 2) + weights
    free = shutil.disk_usage(run.path).free
    if free < needed:
        raise TrainingError(
            f"{run.path}: the checkpoints need about {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            f"make room, or lower training.{'average_last' if last > settings.keep_checkpoints else 'keep_checkpoints'}"
        )


def describe(
    config: Config, run: RunFolder, prepared: Prepared, model: TrainableModel[Any, Any], plan: Plan, memory: str
) -> list[str]:
    """What will be done, in lines for people; `plan` is the current epoch's, `memory` what was found about it."""
    data, settings, corpus = config.data, config.training, prepared.corpus
    src_size, tgt_size = prepared.tokenizers.src.vocab_size, prepared.tokenizers.tgt.vocab_size
    sizes = f"joint, {src_size:,} pieces" if prepared.tokenizers.joint else f"{src_size:,} and {tgt_size:,} pieces"
    counts = model.parameter_counts()
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    threads = f" ({torch.get_num_threads()} threads)" if prepared.device.type == "cpu" else ""
    limits = {"steps": settings.max_steps, "epochs": settings.max_epochs, "minutes": settings.max_minutes}
    until = " or ".join(f"{limit:,} {unit}" for unit, limit in limits.items() if limit is not None)
    mixture = describe_mixture(corpus.sizes, data)
    return [
        f"run         {run.path}",
        f"data        {data.src_lang} -> {data.tgt_lang}: training {corpus.counts}, "
        f"validation {len(prepared.validation.src):,} pairs",
        *([f"mixture     {mixture}"] if mixture else []),
        f"vocabulary  {config.tokenizer.type}, {sizes}",
        f"model       {sum(counts.values()):,} parameters ({parts})",
        f"device      {prepared.device}{threads}, {str(prepared.dtype).removeprefix('torch.')}",
        *([f"memory      {memory}"] if memory else []),
        f"batches     {len(plan):,} an epoch, {settings.batches_per_update} an update, at most "
        f"{settings.micro_batch_tokens:,} tokens each, {share_of_real_positions(corpus, plan):.1%} of them real"
        + (f"; cut into {settings.parts} parts each" if settings.parts > 1 else ""),
        f"scores      BLEU's tokenizer is {bleu_tokenizer(data.tgt_lang, config.evaluation.bleu_tokenizer)}, for "
        f"{data.tgt_lang}",
        *([f"average     {average}"] if (average := _average(settings)) else []),
        f"until       {until}",
        *warmup_warning(settings, total_steps(settings, len(plan))),
    ]


def warmup_warning(settings: TrainingConfig, steps: float | None) -> list[str]:
    """A line if a training of so many updates, None if that is not known, ends before its warm-up does."""
    if steps is None or steps > settings.warmup_steps:
        return []
    return [
        f"warning: the learning rate never reaches its peak: training.warmup_steps is {settings.warmup_steps:,}, of "
        f"{steps:,.0f} steps in all; lower it"
    ]


def _average(settings: TrainingConfig) -> str:
    """Which average of the weights is scored and kept, or ''."""
    if settings.ema_decay is not None:
        return f"exponential, decay {settings.ema_decay:g}"
    return f"of the last {settings.average_last} validations" if settings.average_last is not None else ""
