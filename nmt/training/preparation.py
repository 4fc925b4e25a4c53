"""The preparation of a training: files, device, vocabulary, encoded corpus and metrics, and a summary of them."""

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from sacrebleu.metrics.base import Metric as SacreMetric

from nmt.batches.batches import Plan, num_workers, share_of_real_positions, start_worker_server
from nmt.batches.dataset import EncodedCorpus, encode_corpus
from nmt.batches.joining import JoinedShape
from nmt.batches.lexicon import Lexicon, learn_lexicon
from nmt.batches.mixture import describe_mixture
from nmt.cleaning.selection import Selection, rule_table, select
from nmt.config.languages import is_without_spaces
from nmt.config.training import Config, Metric, TrainingConfig
from nmt.corpora.pairs import count_pairs
from nmt.errors import ConfigError, MissingExtraError, NmtError, how_to_install
from nmt.evaluation.evaluate import TestSet, corpus_test_set
from nmt.evaluation.metrics import bleu_tokenizer, configured_metrics, make_metrics
from nmt.models.interface import TrainableModel
from nmt.runs.base import base_run, copy_tokenizer
from nmt.runs.folder import RunFolder
from nmt.runs.history import Progress, duration
from nmt.system.console import RESULT, log
from nmt.system.devices import bf16_slowdown, choose_device, choose_dtype
from nmt.system.distributed import ALONE, Ranks
from nmt.tokenizers.building import ensure_tokenizers
from nmt.tokenizers.tokenizer import Tokenizers, load_tokenizers
from nmt.training.stopping import seconds_left, total_steps


class TrainingInputs(NamedTuple):
    """The checked inputs of a training."""

    tokenizers: Tokenizers
    selection: Selection | None
    """The training pairs that `data.cleaning` keeps; None if it is off."""
    corpus: EncodedCorpus
    lexicon: Lexicon | None
    """Word translations of the training corpus; None without phrases (`augmentation.fragments`)."""
    validation: TestSet
    """As text or vectors, for translating."""
    validation_corpus: EncodedCorpus
    """As ids, for the loss."""
    test_sets: dict[str, TestSet]
    """By name. `nmt eval` scores them; a fine-tuning does, too, before and after it."""
    metrics: dict[Metric, SacreMetric]
    device: torch.device
    dtype: torch.dtype


class Problems:
    """A collection of errors, so that all are reported at once."""

    def __init__(self) -> None:
        self._errors: list[NmtError] = []

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Collect an `NmtError` that ends the block, and continue after it."""
        try:
            yield
        except NmtError as error:
            self._errors.append(error)

    def raise_all(self) -> None:
        """Raise the collected errors, if any, as one with all messages and the first one's exit code."""
        if self._errors:
            messages = dict.fromkeys(str(error) for error in self._errors)
            raise type(self._errors[0])("\n".join(messages))


def prepare(config: Config, run: RunFolder, resuming: bool, ranks: Ranks = ALONE) -> TrainingInputs:
    """Read all files and the device; build vocabulary and encoded corpus where they are missing.

    A resumed run keeps its vocabulary, and a run with a base model gets a copy of the base model's. Raises one
    `NmtError` that lists all problems.
    """
    data, source = config.data, config.source
    problems = Problems()
    with problems.collected():
        device = ranks.device(choose_device(config.training.device))
        dtype = choose_dtype(config.training.precision, device)
        _check_lstm(config, dtype, device)
    with problems.collected():
        if config.training.monitor == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
            remedy = how_to_install("tensorboard")
            raise MissingExtraError(f"training.monitor: TensorBoard is not installed: {remedy}")
    with problems.collected():
        best = config.training.best_metric
        names: set[Metric] = {"bleu", "chrf", *([] if best is None or best == "loss" else [best])}
        metrics = make_metrics(sorted(names), data.tgt_lang, config.evaluation.bleu_tokenizer)
    with problems.collected():
        configured_metrics(config.evaluation, data.tgt_lang)
    with problems.collected():
        validation = corpus_test_set(data.validation, source)
    test_sets: dict[str, TestSet] = {}
    for name, files in data.test.items():
        with problems.collected():
            test_sets[name] = corpus_test_set(files, source)
    for corpus_files in () if resuming else data.train:
        with problems.collected():
            count_pairs([corpus_files], source)
    problems.raise_all()

    if num_workers(device, config.augmentation.is_on):
        start_worker_server()
    selection = select(data.train, data.cleaning, (data.src_lang, data.tgt_lang), data.excluded_from_training, source)
    if not resuming and config.training.init_from is not None and ranks.is_main:  # `train` lets it come first
        copy_tokenizer(base_run(config.training.init_from), run)
    if resuming or config.training.init_from is not None:
        tokenizers = load_tokenizers(run.tokenizer)
    else:
        tokenizers = ensure_tokenizers(data.train, config.tokenizer, run.tokenizer, source, selection)
    corpus = encode_corpus(data.train, tokenizers, run.tokenizer, data.max_length, selection, source=source)
    return TrainingInputs(
        tokenizers=tokenizers,
        selection=selection,
        corpus=corpus,
        lexicon=_lexicon(config, corpus, tokenizers),
        validation=validation,
        validation_corpus=encode_corpus([data.validation], tokenizers, run.tokenizer, data.max_length, source=source),
        test_sets=test_sets,
        metrics=metrics,
        device=device,
        dtype=dtype,
    )


def _lexicon(config: Config, corpus: EncodedCorpus, tokenizers: Tokenizers) -> Lexicon | None:
    """The lexicon from which `augmentation.fragments` draws phrases; None if it is off, or the model is imported."""
    if not config.augmentation.fragments:
        return None
    if config.tokenizer.type == "marian":
        log.info("augmentation.fragments: joined pairs alone; no phrases with the tokenizer of an imported model")
        return None
    has_pieces, data = config.tokenizer.type != "word", config.data
    by_piece = [has_pieces and is_without_spaces(language) for language in (data.src_lang, data.tgt_lang)]
    return learn_lexicon(corpus, tokenizers, (by_piece[0], by_piece[1]))


def _check_lstm(config: Config, dtype: torch.dtype, device: torch.device) -> None:
    """`ConfigError` if torch cannot train an LSTM in bf16 here: oneDNN needs CPU instructions for it."""
    is_lstm = config.model.architecture == "rnn" and config.model.cell == "lstm"
    if not is_lstm or (device.type, dtype) != ("cpu", torch.bfloat16):
        return
    try:
        with torch.autocast("cpu", dtype):
            torch.nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError:
        raise ConfigError(
            "training.precision: bf16: torch cannot train an LSTM in bf16 on this CPU, which has no instructions for "
            "it; use fp32, or model.cell: gru"
        ) from None


def announce(
    config: Config,
    run: RunFolder,
    prepared: TrainingInputs,
    model: TrainableModel[Any, Any],
    plan: Plan,
    shape: JoinedShape | None,
    memory: str,
) -> None:
    """Print the summary of a training before its first step.

    `plan` is the current epoch's, `shape` that of joined batches, and `memory` describes the memory for the worst one.
    """
    data, settings, corpus, tokenizers = config.data, config.training, prepared.corpus, prepared.tokenizers
    src_size, tgt_size = tokenizers.src.vocab_size, tokenizers.tgt.vocab_size
    sizes = f"joint, {src_size:,} pieces" if tokenizers.joint else f"{src_size:,} and {tgt_size:,} pieces"
    if config.source.type != "text":
        sizes = f"{tgt_size:,} pieces for the target; the sources are {config.source.description()}"
    counts = model.parameter_counts()
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    count = torch.get_num_threads()
    threads = f" ({count} {'thread' if count == 1 else 'threads'})" if prepared.device.type == "cpu" else ""
    limits = {"steps": settings.max_steps, "epochs": settings.max_epochs, "minutes": settings.max_minutes}
    num_frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    frozen = f"; {', '.join(settings.freeze)} frozen, {num_frozen:,} parameters" if settings.freeze else ""
    tokenizer = bleu_tokenizer(data.tgt_lang, config.evaluation.bleu_tokenizer)
    kept, cleaning = str(corpus.counts), ""
    if prepared.selection is not None and corpus.counts.dropped:
        kept = f"{corpus.counts.kept:,} of {corpus.counts.read:,} pairs"
        cleaning = "\ncleaning    ".join(rule_table(corpus.counts)) + f"\n            examples: {run.cleaning_file}"
    lines = {
        "processes": "" if settings.processes == 1 else f"{settings.processes}, which share the batches of each update",
        "run": str(run.path),
        "data": f"{data.src_lang} -> {data.tgt_lang}: training {kept}, "
        f"validation {len(prepared.validation.src):,} pairs",
        "cleaning": cleaning,
        "mixture": describe_mixture(corpus.sizes, data),
        "base model": f"{settings.init_from}{frozen}" if settings.init_from is not None else "",
        "vocabulary": f"{config.tokenizer.type}, {sizes}",
        "model": f"{sum(counts.values()):,} parameters ({parts})",
        "device": f"{prepared.device}{threads}, {str(prepared.dtype).removeprefix('torch.')}",
        "memory": memory,
        "batches": _batches(settings, corpus, plan, shape),
        "scores": f"BLEU's tokenizer is {tokenizer}, for {data.tgt_lang}",
        "average": f"exponential, decay {settings.ema_decay:g}" if settings.ema_decay is not None else "",
        "until": " or ".join(f"{limit:,} {unit}" for unit, limit in limits.items() if limit is not None),
    }
    for name, text in lines.items():
        if text:
            log.info(f"{name:11} {text}", extra=RESULT)
    warn_of_warmup(settings, total_steps(settings, len(plan)))
    is_bf16_on_a_cpu = prepared.device.type == "cpu" and prepared.dtype == torch.bfloat16
    if is_bf16_on_a_cpu and (slowdown := bf16_slowdown()) >= 2:  # less may be chance
        log.warning(
            f"this CPU has no instructions for bf16: a matrix product takes {slowdown:.0f} times as long as in fp32; "
            f"stop (Ctrl-C), and start over with --set training.precision=fp32 --fresh"
        )


def _batches(settings: TrainingConfig, corpus: EncodedCorpus, plan: Plan, shape: JoinedShape | None) -> str:
    """The batches of an epoch, in words."""
    tokens = settings.micro_batch_tokens if shape is None else max(shape.lengths)
    cut = f"; cut into {settings.parts} parts each" if settings.parts > 1 else ""
    joined = "" if shape is None else "; the pairs of a batch are joined in one row"
    return (
        f"{len(plan):,} an epoch, {settings.batches_per_update} an update, at most {tokens:,} "
        f"tokens each, {share_of_real_positions(corpus, plan, shape):.1%} of them real{cut}{joined}"
    )


def announce_duration(
    settings: TrainingConfig, progress: Progress, batches_an_epoch: int, seconds_per_update: float
) -> None:
    """Print the speed of the first updates and the time left at this speed."""
    left = seconds_left(progress, settings, batches_an_epoch, seconds_per_update)
    log.info(f"{seconds_per_update:.2f} s an update; about {duration(left)} left, plus validations", extra=RESULT)
    if total_steps(settings, batches_an_epoch) is None:  # max_minutes alone is set
        warn_of_warmup(settings, progress.step + left / seconds_per_update)


def warn_of_warmup(settings: TrainingConfig, steps: float | None) -> None:
    """Warn if a training of `steps` updates (None: unknown) ends before its warmup does."""
    if steps is not None and steps <= settings.warmup_steps:
        log.warning(
            f"the learning rate never reaches its peak: training.warmup_steps is {settings.warmup_steps:,}, of "
            f"{steps:,.0f} steps in all; lower it"
        )
