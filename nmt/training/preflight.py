"""Everything that can fail, tried before the first step: files, vocabulary, metrics, disk."""

import dataclasses
import shutil
from collections.abc import Callable

import torch
from sacrebleu.metrics.base import Metric as SacreMetric

from nmt.config import Config, Metric, TrainingConfig
from nmt.data.batches import Plan, share_of_real_positions
from nmt.data.dataset import EncodedCorpus, encode_corpus
from nmt.data.mixture import describe_mixture
from nmt.data.statistics import side_report
from nmt.data.tokenizer import Tokenizers, ensure_tokenizers, load_tokenizers
from nmt.device import choose_device, choose_dtype
from nmt.distributed import ALONE, Ranks
from nmt.errors import TrainingError
from nmt.evaluation.evaluate import TestSet, read_test_set
from nmt.evaluation.metrics import make_metrics
from nmt.models.interface import TrainableModel
from nmt.runs import RunFolder

UNKNOWN_SHARE_LIMIT = 0.001
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


def prepare(
    config: Config, run: RunFolder, resuming: bool, say: Callable[[str], None], ranks: Ranks = ALONE
) -> Prepared:
    """Read and check everything; build vocabulary and encoded corpus where they are missing.

    A run that is resumed keeps the vocabulary it has. Raises `NmtError`s for whatever cannot work.
    """
    data = config.data
    device = ranks.device(choose_device(config.training.device))
    dtype = choose_dtype(config.training.precision, device)
    names: set[Metric] = {"bleu", "chrf"}
    if config.training.best_metric != "loss":
        names.add(config.training.best_metric)
    metrics = make_metrics(sorted(names), data.tgt_lang)
    make_metrics(config.evaluation.metrics, data.tgt_lang)
    for files in data.test.values():
        read_test_set(files.src, [files.tgt])
    validation = read_test_set(data.validation.src, [data.validation.tgt])

    if resuming:
        tokenizers = load_tokenizers(run.tokenizer)
    else:
        tokenizers = ensure_tokenizers(data.train, config.tokenizer, run.tokenizer)
    for side, tokenizer, lines in (
        ("src", tokenizers.src, validation.src),
        ("tgt", tokenizers.tgt, validation.references[0]),
    ):
        share = side_report(lines, tokenizer, side).unknown_share
        if share > UNKNOWN_SHARE_LIMIT:
            say(f"warning: {share:.2%} of the {side} pieces of the validation set are <unk>; {_remedy(config)}")
    corpus = encode_corpus(data.train, tokenizers, run.tokenizer, data.max_length, data.drop_duplicates, say)
    validation_corpus = encode_corpus([data.validation], tokenizers, run.tokenizer, data.max_length)
    return Prepared(tokenizers, corpus, validation, validation_corpus, metrics, device, dtype)


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
    config: Config, run: RunFolder, prepared: Prepared, model: TrainableModel, plan: Plan, memory: str
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
        f"{settings.positions:,} tokens each, {share_of_real_positions(corpus, plan):.1%} of them real",
        *([f"average     {average}"] if (average := _average(settings)) else []),
        f"until       {until}",
    ]


def _average(settings: TrainingConfig) -> str:
    """Which average of the weights is scored and kept, or ''."""
    if settings.ema_decay is not None:
        return f"exponential, decay {settings.ema_decay:g}"
    return f"of the last {settings.average_last} validations" if settings.average_last is not None else ""
