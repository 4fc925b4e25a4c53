"""Preparing a training: reads its files and the device, builds vocabulary, encoded corpus and metrics."""

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import NamedTuple

import torch
from sacrebleu.metrics.base import Metric as SacreMetric

from nmt.batches.batches import num_workers, start_worker_server
from nmt.batches.dataset import EncodedCorpus, encode_corpus
from nmt.batches.lexicon import Lexicon, learn_lexicon
from nmt.cleaning.selection import Selection, select
from nmt.config.evaluation import Metric
from nmt.config.languages import is_without_spaces
from nmt.config.training import Config
from nmt.corpora.pairs import count_pairs
from nmt.errors import ConfigError, MissingExtraError, NmtError, how_to_install
from nmt.evaluation.evaluate import TestSet, corpus_test_set
from nmt.evaluation.metrics import configured_metrics, make_metrics
from nmt.runs.base import copy_tokenizer, starting_run
from nmt.runs.folder import RunFolder
from nmt.system.console import log
from nmt.system.devices import choose_device, choose_dtype
from nmt.system.distributed import ALONE, Ranks
from nmt.tokenizers.building import ensure_tokenizers
from nmt.tokenizers.tokenizer import Tokenizers, load_tokenizers


class Prepared(NamedTuple):
    """The checked inputs of a training."""

    tokenizers: Tokenizers
    selection: Selection | None
    """The training pairs that `data.cleaning` keeps; None if it is off."""
    corpus: EncodedCorpus
    lexicon: Lexicon | None
    """Of the training corpus; None without phrases (`augmentation.fragments`)."""
    validation: TestSet
    """As text or vectors, for translating."""
    validation_corpus: EncodedCorpus
    """As ids, for the loss."""
    test_sets: dict[str, TestSet]
    """By name; `nmt eval` translates them, and a fine-tuning, before and after it."""
    metrics: dict[Metric, SacreMetric]
    device: torch.device
    dtype: torch.dtype


class Problems:
    """Collects errors, so that all are reported at once."""

    def __init__(self) -> None:
        self._found: list[NmtError] = []

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Collect an `NmtError` that ends the block; the program continues after it."""
        try:
            yield
        except NmtError as error:
            self._found.append(error)

    def raise_all(self) -> None:
        """Raise one error with all messages and the first one's exit code, if any were collected."""
        if self._found:
            messages = dict.fromkeys(str(error) for error in self._found)
            raise type(self._found[0])("\n".join(messages))


def prepare(config: Config, run: RunFolder, resuming: bool, ranks: Ranks = ALONE) -> Prepared:
    """Read all files and the device; build vocabulary and encoded corpus where they are missing.

    A resumed run keeps its vocabulary, and a run with `training.init_from` gets a copy of the other's. Raises one
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
        copy_tokenizer(starting_run(config.training.init_from), run)
    if resuming or config.training.init_from is not None:
        tokenizers = load_tokenizers(run.tokenizer)
    else:
        tokenizers = ensure_tokenizers(data.train, config.tokenizer, run.tokenizer, source, selection)
    corpus = encode_corpus(data.train, tokenizers, run.tokenizer, data.max_length, selection, source=source)
    return Prepared(
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
    """The lexicon from which `augmentation.fragments` draws phrases; None: it is off, or the model is imported."""
    if not config.augmentation.fragments:
        return None
    if config.tokenizer.type == "marian":
        log.info("augmentation.fragments: joined pairs alone; no phrases with the tokenizer of an imported model")
        return None
    has_pieces, data = config.tokenizer.type != "word", config.data
    by_piece = [has_pieces and is_without_spaces(language) for language in (data.src_lang, data.tgt_lang)]
    return learn_lexicon(corpus, tokenizers, (by_piece[0], by_piece[1]))


def _check_lstm(config: Config, dtype: torch.dtype, device: torch.device) -> None:
    """`ConfigError` if torch cannot train an LSTM in bf16 here: oneDNN's needs a CPU with instructions for it."""
    if getattr(config.model, "cell", None) != "lstm" or (device.type, dtype) != ("cpu", torch.bfloat16):
        return
    try:
        with torch.autocast("cpu", dtype):
            torch.nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError:
        raise ConfigError(
            "training.precision: bf16: torch cannot train an LSTM in bf16 on this CPU, which has no instructions for "
            "it; use fp32, or model.cell: gru"
        ) from None
