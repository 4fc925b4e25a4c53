"""The batches of each update: the processes share an epoch's plan, and workers prepare its batches."""

import functools
import itertools
import signal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.batches.augmentation import Augmentation
from nmt.batches.batches import Batch, Batches, Plan, batch_loader, plan_epoch
from nmt.batches.dataset import EncodedCorpus
from nmt.batches.joining import JoinedShape, plan_joined
from nmt.batches.mixture import pairs_of_epoch
from nmt.config.inference import TransformerConfig
from nmt.config.training import Config
from nmt.errors import ConfigError, WorkerError
from nmt.models.joined import can_join
from nmt.system.console import log
from nmt.system.distributed import Ranks
from nmt.training.preparation import TrainingInputs

MAX_DEATHS = 3  # consecutive deaths of workers


class Share(NamedTuple):
    """This process's part of an update."""

    batches: list[Batch]
    """Number rank, rank + size, ... of the update's micro-batches (or of their parts)."""
    pairs: list[NDArray[np.integer]]
    """The pairs of each of `batches`."""
    update_pairs: list[NDArray[np.integer]]
    """The pairs of each micro-batch of the whole update, over all processes."""
    is_extra: bool = False
    """True in an epoch's last update if no batch was left for this process; its batch then has weight 0."""

    @property
    def num_tokens(self) -> int:
        """Target tokens of this process's part of the update, without padding."""
        return 0 if self.is_extra else sum(batch.num_tgt_tokens for batch in self.batches)


def updates_from(begin: int, end: int, count: int) -> list[range]:
    """Divide the batches `begin` to `end` into updates of `count`; an epoch's last update may have fewer."""
    return [range(start, min(start + count, end)) for start in range(begin, end, count)]


def cut(plan: Plan, parts: int) -> Plan:
    """The batches, each cut into N parts; part n takes every N-th pair, so that the parts have similar lengths.

    >>> [part.tolist() for part in cut([np.arange(5), np.arange(5, 6)], 2)]
    [[0, 2, 4], [1, 3], [5], []]
    """
    return [batch[part::parts] for batch in plan for part in range(parts)]


def resolve_joined(config: Config, device: torch.device, dtype: torch.dtype) -> Config:
    """`config` with `training.joined` as true or false; `ConfigError` if joined batches are asked for in vain."""
    wanted = config.training.joined
    obstacle = "" if wanted is False else _obstacle(config, device, dtype)
    if wanted is True and obstacle:
        raise ConfigError(f"training.joined: true does not work {obstacle}; leave it out, or start a new run")
    joined = wanted is True or (wanted == "auto" and device.type == "cuda" and not obstacle)
    return config.model_copy(update={"training": config.training.model_copy(update={"joined": joined})})


def _obstacle(config: Config, device: torch.device, dtype: torch.dtype) -> str:
    """The obstacle to joining batches, as the end of a sentence; '' if there is none."""
    model, augmentation = config.model, config.augmentation
    if not isinstance(model, TransformerConfig):
        return f"with model.architecture: {model.architecture}"
    if config.source.type != "text":
        return f"with source.type: {config.source.type}"
    if augmentation.changes_text or augmentation.fragments:  # a row has no room for longer sentences
        return "with augmentation that changes the lengths of sentences"
    if config.training.parts > 1:
        return "with batches divided between processes (make training.batches_per_update a multiple of their number)"
    return "" if can_join(device, dtype, model.d_model // model.num_heads) else f"on {device} with this torch"


class Feed:
    """The stream of this process's shares of consecutive updates."""

    def __init__(self, config: Config, prepared: TrainingInputs, ranks: Ranks) -> None:
        self._config = config
        self._prepared = prepared
        self._ranks = ranks

    @functools.cached_property
    def shape(self) -> JoinedShape | None:
        """The shape of joined batches; None if batches are padded."""
        settings, corpus = self._config.training, self._prepared.corpus
        if settings.joined is not True:
            return None
        pairs = pairs_of_epoch(corpus.sizes, self._config.data, settings.seed, 0)
        return JoinedShape.of(corpus, settings.micro_batch_tokens, pairs)

    def plan(self, epoch: int) -> Plan:
        """The batches of an epoch."""
        settings, corpus = self._config.training, self._prepared.corpus
        pairs = pairs_of_epoch(corpus.sizes, self._config.data, settings.seed, epoch)
        lengths = corpus.src.lengths, corpus.tgt.lengths
        if self.shape is not None:
            return plan_joined(*lengths, self.shape, settings.seed, epoch, pairs)
        return plan_epoch(*lengths, settings.micro_batch_tokens, settings.seed, epoch, pairs)

    def example(self) -> Batch:
        """A batch like those of an epoch, prepared here."""
        return Batches(self._prepared.corpus, None, self.shape)[0, self.plan(0)[0]]

    def rest_of_epoch(self, plan: Plan, epoch: int, begin: int) -> Iterator[Share]:
        """This process's share of each update, starting at batch `begin` of an epoch's plan."""
        settings = self._config.training
        parts = cut(plan, settings.parts)
        updates = updates_from(begin, len(plan), settings.batches_per_update)
        non_empty = [  # a batch of few pairs has fewer parts
            [part for part in range(whole.start * settings.parts, whole.stop * settings.parts) if len(parts[part])]
            for whole in updates
        ]
        shares = [self._ranks.share(numbers) or numbers[:1] for numbers in non_empty]
        chosen = list(itertools.chain.from_iterable(shares))
        corpus, device = self._prepared.corpus, self._prepared.device
        augmentation = None
        if self._config.augmentation.is_on:
            augmentation = Augmentation(self._config, self._prepared.tokenizers, epoch, self._prepared.lexicon)
        batches = batches_with_restarts(corpus, parts, device, chosen, augmentation, self.shape)
        for whole, numbers, share in zip(updates, non_empty, shares, strict=True):
            yield Share(
                list(itertools.islice(batches, len(share))),
                [parts[number] for number in share],
                [plan[number] for number in whole],
                is_extra=self._ranks.rank >= len(numbers),
            )


def batches_with_restarts(
    corpus: EncodedCorpus,
    plan: Plan,
    device: torch.device,
    numbers: Sequence[int] | None = None,
    augmentation: Augmentation | None = None,
    shape: JoinedShape | None = None,
) -> Iterator[Batch]:
    """The batches of `batch_loader`; a worker process that dies is replaced.

    A batch depends on its number alone, so a new worker can continue where another died (of `pkill`, for example).
    Raises `WorkerError` if workers die repeatedly.
    """
    numbers = range(len(plan)) if numbers is None else numbers
    done = deaths = 0
    while done < len(numbers):
        loader = iter(batch_loader(corpus, plan, device, numbers[done:], augmentation, shape))
        _disable_torch_sigchld_handler()
        try:
            for batch in loader:
                yield batch
                done, deaths = done + 1, 0
        except (RuntimeError, OSError, EOFError) as error:
            # OSError or EOFError if the worker died with batches that had not been read.
            if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
                raise
            deaths += 1
            if deaths == MAX_DEATHS:
                raise WorkerError(
                    f"processes that prepare batches have died {deaths} times in a row ({error}); if memory ran "
                    f"out, close other programs; the same command resumes from the last checkpoint"
                ) from None
            log.info("a process that prepares batches was killed; a new one replaces it")


def _disable_torch_sigchld_handler() -> None:
    """Prevent an error inside an update when a worker dies: the loader notices when it waits for a batch.

    torch installs its handler once, with the first loader.
    """
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
