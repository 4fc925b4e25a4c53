"""The training loop: set up, update, validate, stop; and going on where an earlier training stopped."""

import contextlib
import dataclasses
import itertools
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from nmt.checkpoint import (
    Progress,
    checkpoint_steps,
    load_checkpoint,
    read_progress,
    retain,
    save_checkpoint,
    save_weights,
)
from nmt.config import Config
from nmt.config_file import to_yaml
from nmt.data.augmentation import Augmentation, reach
from nmt.data.batches import Batch, Plan, batch_loader, plan_epoch
from nmt.data.mixture import pairs_of_epoch
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import Translator
from nmt.device import keep_freed_memory
from nmt.distributed import ALONE, Ranks
from nmt.errors import ConfigError, InterruptedTrainingError, RunError, TrainingError
from nmt.evaluation.evaluate import evaluate
from nmt.evaluation.metrics import is_better
from nmt.models.factory import build_model
from nmt.models.interface import TrainableModel
from nmt.runs import RunFolder, write_text
from nmt.training.averaging import Averaging
from nmt.training.interruption import collected_signals, plain_messages
from nmt.training.loss import Objective
from nmt.training.memory import fit_batch_tokens, free_memory, in_numbers, size, try_worst_batch
from nmt.training.monitor import Interval, Monitor, duration
from nmt.training.optimization import learning_rate, make_optimizer, update
from nmt.training.preflight import Prepared, check_disk, describe, prepare
from nmt.training.resuming import as_begun, check_same
from nmt.training.stopping import seconds_left, stop_reason, total_steps


def train(config: Config, run: RunFolder, mode: str = "auto", ranks: Ranks = ALONE) -> None:
    """Train a model into `run`, together with the other `ranks`, of which the first alone writes.

    `mode` is `fresh` (an existing run is set aside first), `resume` (there must be one), or `auto` (resume
    if there is one). Raises `NmtError`s: for what is wrong before the start, `TrainingError` for what makes going
    on impossible, `InterruptedTrainingError` after a signal, with everything saved.
    """
    _check_processes(config, ranks)
    monitor = Monitor(run.metrics_file, silent=not ranks.is_main)
    step = ranks.from_main(lambda: _step_to_begin_at(config, run, mode, monitor))
    if step is None:
        return
    with plain_messages(run):
        keep_freed_memory()
        if config.training.threads:
            torch.set_num_threads(config.training.threads)
        with ranks.main_first():
            if not (ranks.is_main or run.tokenizer.is_dir()):
                raise RunError(f"{run.tokenizer} is not seen by all machines; train in a folder that they share")
            prepared = prepare(config, run, resuming=step > 0, say=monitor.say, ranks=ranks)
        if prepared.corpus.key != ranks.from_main(lambda: prepared.corpus.key):
            raise RunError("the machines do not see the same training corpus; train in a folder that they share")
        if step:
            config = as_begun(config, run)
            _check_processes(config, ranks)
        trainer = Trainer(config, run, prepared, monitor, ranks=ranks)
        if step:
            trainer.resume(run.checkpoints / str(step))
        trainer.settle_memory()
        if ranks.is_main:
            write_text(run.config_file, to_yaml(trainer.config))
            run.remember_as_latest()
        trainer.run()


def _check_processes(config: Config, ranks: Ranks) -> None:
    count = config.training.batches_per_update
    if config.training.batch_tokens != "auto" and count < ranks.size:
        raise ConfigError(
            f"training.batches_per_update ({count}) is less than the {ranks.size} processes, which share an update's "
            f"batches; set training.batches_per_update={ranks.size}, or a multiple"
        )


def _step_to_begin_at(config: Config, run: RunFolder, mode: str, monitor: Monitor) -> int | None:
    """The step of the checkpoint to go on from, 0 for a new run, None for one that is finished; rank 0 decides."""
    if mode == "fresh" and run.path.exists():
        monitor.say(f"{run.path}: set aside as {run.set_aside()}")
    steps = checkpoint_steps(run.checkpoints)
    if mode == "resume" and not steps:
        raise RunError(f"{run.path}: nothing to resume; leave --resume out to start")
    if not steps and run.model_file.exists() and not run.metrics_file.exists():  # an average, or a copy
        raise RunError(
            f"{run.path}: holds a model and no training to go on with, and a new one would replace the model; "
            f"take another --name, or set it aside with --fresh"
        )
    if steps:
        check_same(run.config(), as_begun(config, run), run)
        reason = stop_reason(read_progress(run.checkpoints / str(steps[-1])), config.training)
        if reason:
            run.remember_as_latest()
            monitor.say(f"{run.path}: this run is finished ({reason}); raise that to go on, or start over with --fresh")
            return None
    run.remove_leftovers()
    return steps[-1] if steps else 0


@dataclasses.dataclass(frozen=True)
class Share:
    """What of an update falls to this process."""

    batches: list[Batch]
    """Micro-batches rank, rank + size, ... of the update's."""
    num_tokens: int
    """Real target tokens of the whole update, in all processes."""
    is_extra: bool = False
    """There were none left for this process (an epoch's last update): it takes part in the sum with nothing."""


class Trainer:
    """One training: the model, how far it is, and the loop that takes it further."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        prepared: Prepared,
        monitor: Monitor,
        model: TrainableModel | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self.folder = run
        self.prepared = prepared
        self.monitor = monitor
        self.ranks = ranks
        torch.manual_seed(config.training.seed)
        tokenizers = prepared.tokenizers
        self.model = model or build_model(config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
        self.model.to(prepared.device)
        self.objective = Objective(self.model, config.training.label_smoothing, config.training.r_drop)
        if config.training.compile:
            self.objective.compile_states()
        self.synchronised = ranks.synchronised(self.objective, prepared.device)
        self.optimizer = make_optimizer(self.model, config.training)
        # Only fp16 has a range so small that the loss must be scaled into it.
        self.scaler = torch.amp.GradScaler(prepared.device.type, enabled=prepared.dtype == torch.float16)
        self.averaging = Averaging(self.model, config.training, run.checkpoints)
        self.progress = Progress(corpus_key=prepared.corpus.key)
        self.interval = Interval(prepared.device, ranks)
        self.saved_step = -1
        self.stopped_by = 0  # a signal's number
        self.memory = ""  # what it takes, for people
        self._began = time.perf_counter()
        check_disk(run, sum(self.model.parameter_counts().values()), config.training)

    def resume(self, checkpoint: Path) -> None:
        """Go back to where a checkpoint was saved."""
        progress = load_checkpoint(checkpoint, self.model, self.optimizer, self.scaler, self.averaging.state)
        if progress.corpus_key != self.prepared.corpus.key:
            raise RunError(
                f"{self.folder.path}: the training corpus has changed since this run began, or it was begun with an "
                f"earlier version of nmt, so its batches cannot be repeated; restore the one or the other, start over "
                f"with --fresh, or take another --name"
            )
        self.progress = progress
        self.saved_step = progress.step
        self.monitor.say(f"resuming at step {progress.step:,}")

    def settle_memory(self) -> None:
        """Try the worst batch, so that memory never runs out later; first find its size, if that is left to us."""
        config, prepared = self.config, self.prepared
        batches = reach(prepared.corpus, config.augmentation, config.data.max_length)
        free = free_memory(prepared.device)
        self.model.train()
        if config.training.update_tokens is not None:
            fits = fit_batch_tokens(self.objective, batches, prepared.dtype, free, config.training.update_tokens)
            largest = min(self.ranks.gather([fits]))
            settings = in_numbers(config.training, largest, self.ranks.size)
            self.config = config = config.model_copy(update={"training": settings})
        account = try_worst_batch(self.objective, batches, config.training.positions, prepared.dtype, free)
        if self.averaging.state is not None:
            account = dataclasses.replace(account, average=account.parameters)
        self.memory = f"{account}" + (f"; {size(free)} are free" if free is not None else "")

    def run(self) -> None:
        """Train until a limit is reached or a signal comes; validate and save on the way."""
        settings = self.config.training
        plan = self._plan()
        if self.ranks.size > 1:
            self.monitor.say(f"processes   {self.ranks.size}, which share the batches of each update")
        for line in describe(self.config, self.folder, self.prepared, self.model, plan, self.memory):
            self.monitor.say(line)
        batches_an_epoch = len(plan)
        self.monitor.start(self.progress.step, total_steps(settings, batches_an_epoch))
        self._began = time.perf_counter() - self.progress.seconds
        self.model.train()
        try:
            with collected_signals() as received:
                for share in self._updates(received):
                    self._update(share)
                    self._report(batches_an_epoch)
                    if self.progress.step % settings.validate_every == 0:
                        self._validate()
                if self.stopped_by:
                    self._save()
                    name = signal.Signals(self.stopped_by).name
                    raise InterruptedTrainingError(
                        f"stopped by {name} at step {self.progress.step:,}; saved in {self.folder.path}, "
                        f"and the same command goes on from there",
                        self.stopped_by,
                    )
                if self.saved_step != self.progress.step:
                    self._validate()
        finally:
            self.monitor.close()
        best = f"best {settings.best_metric} {self.progress.best_value:.3f} at step {self.progress.best_step:,}"
        self.monitor.say(
            f"finished: {stop_reason(self.progress, settings)}; {best}; "
            f"{duration(self.progress.seconds)} of training; the model is in {self.folder.path}"
        )

    def _updates(self, received: Sequence[int]) -> Iterator[Share]:
        """This process's share of one update after another, from where the plan stands, until a limit or a signal."""
        count = self.config.training.batches_per_update
        while True:
            plan = self._plan()
            numbers = list(range(self.progress.batch, len(plan)))
            updates = [numbers[start : start + count] for start in range(0, len(numbers), count)]
            shares = [self.ranks.share(whole) or whole[:1] for whole in updates]
            own = [number for share in shares for number in share]
            loader = iter(batch_loader(self.prepared.corpus, plan, self.prepared.device, own, self._augmentation()))
            for whole, share in zip(updates, shares, strict=True):
                batches = list(itertools.islice(loader, len(share)))
                is_extra = self.ranks.rank >= len(whole)
                num_tokens = self._agree(0 if is_extra else sum(batch.num_tgt_tokens for batch in batches), received)
                if self.stopped_by or stop_reason(self.progress, self.config.training):
                    return
                self.progress.batch += len(whole)
                if self.progress.batch == len(plan):
                    self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0
                yield Share(batches, num_tokens, is_extra)

    def _agree(self, num_tokens: int, received: Sequence[int]) -> int:
        """Before each update, the one word between the hosts: the update's tokens, a signal to any, rank 0's clock.

        So all stop at the same step, whoever was signalled and however their clocks run. No device waits for it.
        """
        seconds = self.progress.seconds if self.ranks.is_main else 0.0
        signals = [received.count(number) for number in (signal.SIGTERM, signal.SIGINT)]
        total, terminations, interrupts, self.progress.seconds = self.ranks.sum([num_tokens, *signals, seconds])
        self.stopped_by = signal.SIGTERM if terminations else signal.SIGINT if interrupts else 0
        return int(total)

    def _plan(self) -> Plan:
        """The batches of the current epoch."""
        settings, corpus, epoch = self.config.training, self.prepared.corpus, self.progress.epoch
        pairs = pairs_of_epoch(corpus.sizes, self.config.data, settings.seed, epoch)
        return plan_epoch(corpus.src.lengths, corpus.tgt.lengths, settings.positions, settings.seed, epoch, pairs)

    def _augmentation(self) -> Augmentation | None:
        """What is done to the batches of the current epoch."""
        if not self.config.augmentation.is_on:
            return None
        return Augmentation(self.config, self.prepared.tokenizers, self.progress.epoch)

    def _update(self, share: Share) -> None:
        """One change of the weights: the gradient of the mean loss over all target tokens of the update."""
        settings, ranks, device = self.config.training, self.ranks, self.prepared.device
        # The gradients of the processes are averaged, and their sum is wanted.
        weight = 0.0 if share.is_extra else ranks.size / share.num_tokens
        smoothed = torch.zeros((), device=device)
        cross_entropy = torch.zeros((), device=device)
        for number, batch in enumerate(share.batches):
            torch.manual_seed(_dropout_seed(settings.seed, self.progress.step, ranks.rank + number * ranks.size))
            is_last = number == len(share.batches) - 1
            with contextlib.nullcontext() if is_last else ranks.unsynchronised(self.synchronised):
                with torch.autocast(device.type, self.prepared.dtype, enabled=self.prepared.dtype != torch.float32):
                    sums = self.synchronised(batch.to(device))
                torch.autograd.backward(self.scaler.scale(sums.smoothed * weight))
            if not share.is_extra:
                smoothed += sums.smoothed.detach()
                cross_entropy += sums.cross_entropy
        rate = learning_rate(self.progress.step + 1, settings)
        norm = update(self.optimizer, self.scaler, settings.clip_norm, rate)
        self.progress.step += 1
        self.averaging.update(self.progress.step)
        self.progress.tgt_tokens += share.num_tokens
        self.progress.seconds = time.perf_counter() - self._began
        self.interval.add(smoothed, cross_entropy, norm, share.num_tokens)

    def _report(self, batches_an_epoch: int) -> None:
        """At the logging interval, read what the device has summed up."""
        settings, step = self.config.training, self.progress.step
        self.monitor.advance()
        if self.interval.updates == min(10, settings.log_every) and not self.interval.announced:
            self.interval.announced = True
            per_update = self.interval.seconds() / self.interval.updates
            left = seconds_left(self.progress, settings, batches_an_epoch, per_update)
            self.monitor.say(f"{per_update:.2f} s an update; about {duration(left)} to the end, validations aside")
        if step % settings.log_every:
            return
        means = self.interval.read()
        if means.skipped == means.updates:
            raise TrainingError(
                f"the gradients of the last {means.updates} updates, up to step {step:,}, are not finite: "
                f"the training has diverged; lower training.learning_rate, or raise training.warmup_steps"
            )
        left = seconds_left(self.progress, settings, batches_an_epoch, means.seconds / means.updates)
        record = {
            "step": step,
            "epoch": self.progress.epoch + 1,
            "loss": means.loss,
            "smoothed_loss": means.smoothed_loss,
            "learning_rate": learning_rate(step, settings),
            "grad_norm": means.grad_norm,
            "skipped_updates": means.skipped,
            "tgt_tokens_per_second": means.tokens / means.seconds,
            "seconds": self.progress.seconds,
        }
        self.monitor.interval(record, duration(left))

    def _validate(self) -> None:
        """Score the weights, or their average; then save, and as the best model too if it is."""
        start = time.perf_counter()
        settings = self.config.training
        with self.averaging.scored(self.progress.validations):
            values = self._scores()
            value = self.ranks.from_main(lambda: values[settings.best_metric])  # that all decide the same
            is_best = is_better(settings.best_metric, value, self.progress.best_value)
            if is_best and self.ranks.is_main:
                save_weights(self.model, self.folder.model_file)
        if is_best:
            self.progress.best_value, self.progress.best_step = value, self.progress.step
            self.progress.validations_since_best = 0
        else:
            self.progress.validations_since_best += 1
        self.progress.validations = self.averaging.remembered(self.progress.validations, self.progress.step)
        self.progress.seconds = time.perf_counter() - self._began
        record = {"step": self.progress.step, "epoch": self.progress.epoch + 1, **values}
        self.monitor.validation({**record, "seconds": self.progress.seconds}, is_best)
        self._save()
        self.interval.exclude(time.perf_counter() - start)

    def _scores(self) -> dict[str, float]:
        """Loss and translation of the validation set, with the model as it is."""
        config, prepared = self.config, self.prepared
        search = config.decoding.model_copy(update={"beam_size": config.evaluation.validation_beam_size})
        translator = Translator(prepared.tokenizers, TorchEngine(self.model), search, config.data.max_length)
        result = evaluate(translator, prepared.validation, prepared.metrics, self.ranks)
        return {"loss": self._validation_loss(), **{name: of.value for name, of in result.scores.items()}}

    @torch.no_grad()
    def _validation_loss(self) -> float:
        """Cross-entropy a token, without smoothing, in nats."""
        corpus, device = self.prepared.validation_corpus, self.prepared.device
        plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, self.config.training.positions, seed=0, epoch=0)
        total = torch.zeros((), device=device)
        num_tokens = 0
        self.model.eval()
        for batch in batch_loader(corpus, self.ranks.share(plan), device):
            num_tokens += batch.num_tgt_tokens
            total += self.objective(batch.to(device)).cross_entropy
        self.model.train()
        of_all, num_of_all = self.ranks.sum([total.item(), num_tokens])
        return of_all / num_of_all

    def _save(self) -> None:
        """Write a checkpoint, unless this step has one, and drop those no longer wanted."""
        if self.saved_step == self.progress.step:
            return
        if self.ranks.is_main:
            folder = self.folder.checkpoints / str(self.progress.step)
            progress, keep = self.progress, self.config.training.keep_checkpoints
            save_checkpoint(folder, self.model, self.optimizer, self.scaler, progress, self.averaging.state)
            retain(self.folder.checkpoints, keep, {progress.best_step, *progress.validations})
        self.saved_step = self.progress.step
        self.ranks.wait()


def _dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """What dropout hangs on: not on the process, nor on what was drawn before, so a checkpoint needs no generator."""
    return int(np.random.SeedSequence([seed, step, micro_batch]).generate_state(1, np.uint64)[0])
