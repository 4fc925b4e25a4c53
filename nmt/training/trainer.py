"""The training loop: update, validate, save, stop, resume."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.batches.batches import Batch
from nmt.config.training import Config
from nmt.errors import TrainingError, WorkerError, is_out_of_memory
from nmt.models.factory import build_model
from nmt.runs.folder import RunFolder
from nmt.runs.history import Progress
from nmt.runs.weights import load_checkpoint, replace_progress, retain, save_checkpoint
from nmt.system.console import log
from nmt.system.distributed import ALONE, Ranks
from nmt.system.processes import SIGNALS
from nmt.training.averaging import MovingAverage, exchanged
from nmt.training.divergence import DivergenceDetector, listed
from nmt.training.feeding import Feed, Share, resolve_joined
from nmt.training.fine_tuning import load_base_weights
from nmt.training.loss import LossSums, Objective
from nmt.training.memory import batch_error
from nmt.training.monitor import IntervalSums, Monitor
from nmt.training.optimization import clear_rows, clip_and_step, freeze, keep_rows, learning_rate, make_optimizer
from nmt.training.preparation import TrainingInputs, announce_duration
from nmt.training.resuming import adopt_changes, check_same_corpus, validation_key
from nmt.training.stopping import Signals, Stopped, interruption, reached, seconds_left, total_steps
from nmt.training.validation import Validator


class Trainer:
    """A training: the model, its progress, and the loop, `run`.

    An update is batches -> loss -> backward pass -> clipping -> optimizer, at the learning rate of the schedule.
    """

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        prepared: TrainingInputs,
        monitor: Monitor,
        ranks: Ranks = ALONE,
        initial_weights: Path | None = None,
    ) -> None:
        """`initial_weights` is a file with the weights to start from; they are validated before the first update."""
        config = resolve_joined(config, prepared.device, prepared.dtype)
        settings, tokenizers = config.training, prepared.tokenizers
        self.folder = run
        self.prepared = prepared
        self.monitor = monitor
        self.ranks = ranks
        torch.manual_seed(settings.seed)
        sizes = tokenizers.src.vocab_size, tokenizers.tgt.vocab_size
        self.model = build_model(config.model, *sizes, config.source)
        if initial_weights is not None:
            load_base_weights(self.model, initial_weights)
        freeze(self.model, settings.freeze)
        self.model.to(prepared.device)
        self.padding_rows = self.model.padding_rows(tokenizers.src.special.pad, tokenizers.tgt.special.pad)
        if initial_weights is None:
            clear_rows(self.padding_rows)
        self.objective = Objective(self.model, settings.label_smoothing, settings.r_drop)
        if settings.compile:
            self.objective.fuse(dynamic=not settings.joined)
        self.synchronised = ranks.synchronised(self.objective, prepared.device)
        self.optimizer = make_optimizer(self.model, settings)
        # Only the range of fp16 is so small that the loss must be scaled.
        self.scaler = torch.amp.GradScaler(prepared.device.type, enabled=prepared.dtype == torch.float16)
        self.average = None if settings.ema_decay is None else MovingAverage(self.model, settings.ema_decay)
        self.averaged = None if self.average is None else self.average.values
        self.configure(config)
        self.progress = Progress(
            validation_key=validation_key(config),
            corpus=prepared.corpus.made_from,
            validated_step=0 if initial_weights is None else -1,  # never
            schedule_end=settings.schedule_end,
        )
        self.interval = IntervalSums(prepared.device, ranks)
        self.divergence = DivergenceDetector(config, prepared.corpus, tokenizers.tgt.vocab_size, run, ranks)
        self.saved = (-1, -1)  # step of the last checkpoint, and the step last validated in it
        self.saved_at = 0.0  # in seconds of training
        self.signals = Signals()
        self.stopped_by = 0  # number of the signal that ends this training
        self._is_duration_announced = False
        self._began = time.perf_counter()

    def configure(self, config: Config) -> None:
        """Use the settings of `config`; the batches may change."""
        self.config = config
        self.feed = Feed(config, self.prepared, self.ranks)
        self.validator = Validator(config, self.prepared, self.objective, self.folder, self.ranks)

    def resume(self, checkpoint: Path) -> None:
        """Load a checkpoint to resume from."""
        progress = load_checkpoint(checkpoint, self.model, self.optimizer, self.scaler, self.averaged)
        check_same_corpus(progress.corpus, self.prepared.corpus.made_from, self.config, self.folder)
        self.progress = progress
        adopt_changes(progress, self.config, self.folder)
        self.saved, self.saved_at = (progress.step, progress.validated_step), progress.seconds
        log.info(f"resuming at step {progress.step:,}")

    def run(self) -> None:
        """Train until a limit or a signal, with validations and checkpoints."""
        settings = self.config.training
        self.batches_an_epoch = len(self.feed.plan(self.progress.epoch))
        begin = self.progress.step if self.progress.validated_step >= 0 else -1  # records up to this step are kept
        if self.ranks.is_main:
            self.folder.diagnosis_file.unlink(missing_ok=True)  # of an earlier attempt, resumed before it diverged
        self.monitor.start(begin, total_steps(settings, self.batches_an_epoch))
        self.interval.exclude(time.perf_counter() - self._began)  # the preparation is no update
        self.interval.restore(self.progress.interval)
        self._began = time.perf_counter() - self.progress.seconds
        self.model.train()
        self.capture_graph()
        try:
            with self.signals.collected():
                self._validate_if_due()  # a signal may have stopped the run before this validation
                while True:
                    for share, num_tokens in self.updates():
                        self.update(share, num_tokens)
                        self._report()
                        self._validate_if_due()
                    if not self.stopped_by and self.progress.validated_step != self.progress.step:
                        self._validate()
                        self._agree(0)
                    limit = reached(self.progress, settings)
                    if limit or self.stopped_by:
                        break  # otherwise, the last validation was the best, and `patience` is not reached any more
                if self.stopped_by and not (limit and self.progress.validated_step == self.progress.step):
                    self._save()
                    raise interruption(self.stopped_by, self.progress.step, self.folder)
        finally:
            self.monitor.close()
        assert limit is not None, "only a limit or a signal ends a training"
        self.monitor.finished(limit.reason, self.progress, settings.best_metric, self.folder)

    @property
    def captures(self) -> bool:
        """True if the model is to be captured as a CUDA graph: for joined batches, on a GPU, in a single process."""
        return self.feed.shape is not None and self.prepared.device.type == "cuda" and self.ranks.size == 1

    def capture_graph(self) -> None:
        """Capture the model as a CUDA graph if `captures`, before the first batch is loaded."""
        if self.captures:
            self.objective.capture(self.feed.example().to(self.prepared.device), self.prepared.dtype)

    def updates(self) -> Iterator[tuple[Share, int]]:
        """This process's share of each update until a limit or a signal, and the whole update's real target tokens."""
        progress = self.progress
        while True:
            plan = self.feed.plan(progress.epoch)
            for share in self.feed.rest_of_epoch(plan, progress.epoch, progress.batch):
                num_tokens, save_is_due = self._agree(share.num_tokens)
                if self.stopped_by or reached(progress, self.config.training):
                    return
                if save_is_due:
                    self._save()
                progress.batch += len(share.update_pairs)
                if progress.batch == len(plan):
                    progress.epoch, progress.batch = progress.epoch + 1, 0
                yield share, num_tokens

    def update(self, share: Share, num_tokens: int) -> None:
        """Make one update, with the gradient of the mean loss over all its target tokens."""
        settings, ranks, device = self.config.training, self.ranks, self.prepared.device
        # The gradients of the processes are averaged, but we need their sum.
        weight = 0.0 if share.is_extra else ranks.size / num_tokens
        # The loss scales its gradients by this: close to the factor in `_forward_backward`, and never 0.
        scale = self.scaler.scale(torch.ones((), device=device)) / num_tokens if self.scaler.is_enabled() else None
        smoothed = torch.zeros((), device=device)
        cross_entropy = torch.zeros((), device=device)
        for number, batch in enumerate(share.batches):
            # A seed that depends on neither process nor earlier draws, so that checkpoints hold no generator state.
            of_batch = settings.seed, self.progress.step, ranks.rank + number * ranks.size
            torch.manual_seed(int(np.random.SeedSequence(of_batch).generate_state(1, np.uint64)[0]))
            is_last = number == len(share.batches) - 1
            with contextlib.nullcontext() if is_last else ranks.unsynchronised(self.synchronised):
                sums = self._forward_backward(batch, weight, scale, share.pairs[number])
            if not share.is_extra:
                smoothed += sums.smoothed.detach()
                cross_entropy += sums.cross_entropy
        rate = learning_rate(self.progress.step + 1, settings, self.progress.schedule_start)
        keep_rows(self.padding_rows)
        is_captured = self.objective.trunk is not None
        norm = clip_and_step(self.optimizer, self.scaler, settings.clip_norm, rate, is_captured)
        self.progress.step += 1
        if self.average is not None:  # after a skipped update, too, whose weights are those before
            self.average.update(self.model, self.progress.step)
        self.progress.tgt_tokens += num_tokens
        self.progress.seconds = time.perf_counter() - self._began
        self.interval.add(smoothed, cross_entropy, norm, num_tokens)
        self.divergence.add(self.progress.step, share.update_pairs, norm)

    def _forward_backward(
        self, batch: Batch, weight: float, scale: Tensor | None, pairs: NDArray[np.integer]
    ) -> LossSums:
        """Forward and backward pass of a micro-batch; returns its losses."""
        device, dtype = self.prepared.device, self.prepared.dtype
        try:
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                sums: LossSums = self.synchronised(batch.to(device), scale)
            torch.autograd.backward(self.scaler.scale(sums.smoothed * weight))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            lines = listed(self.divergence.lines([pairs]))
            raise batch_error(self.progress.step + 1, batch, lines, self.config.training) from None
        return sums

    def _report(self) -> None:
        """Count the update; at the end of an interval, log its means, which waits for the device."""
        settings, progress, batches = self.config.training, self.progress, self.batches_an_epoch
        self.monitor.advance()
        if self.interval.updates == min(10, settings.log_every) and not self._is_duration_announced:
            self._is_duration_announced = True
            announce_duration(settings, progress, batches, self.interval.seconds() / self.interval.updates)
        if progress.step % settings.log_every:
            return
        self._report_skipped()
        figures, per_update = self.interval.read()
        rate = learning_rate(progress.step, settings, progress.schedule_start)
        left = seconds_left(progress, settings, batches, per_update)
        self.monitor.interval(progress, figures, rate, total_steps(settings, batches), left)
        if reason := self.divergence.verdict(progress, figures):
            self.divergence.stop(reason, progress.step, self.model)

    def _report_skipped(self) -> None:
        """Log the updates skipped since the last call; waits for the device."""
        for skipped in self.divergence.skipped(self.progress):
            self.monitor.skipped(skipped, is_usual=self.scaler.is_enabled())

    def _validate_if_due(self) -> None:
        progress = self.progress
        if progress.step % self.config.training.validate_every == 0 and progress.validated_step != progress.step:
            self._agree(0)
            if not self.stopped_by:
                self._validate()

    def _validate(self) -> None:
        """Score the weights or their average; save a checkpoint, and the model if it is the best so far.

        With one process, a signal ends the validation, and the resumed run repeats it; several processes complete it.
        """
        progress, average = self.progress, self.averaged
        with self.interval.paused(), contextlib.nullcontext() if average is None else exchanged(self.model, average):
            try:
                with self.signals.ending_the_block() if self.ranks.size == 1 else contextlib.nullcontext():
                    scores = self.validator.scores()
            except Stopped:
                return
            except WorkerError:
                raise
            except TrainingError as error:  # NaN probabilities
                self.divergence.stop(str(error), progress.step, self.model)
            is_best = self.validator.keep_if_best(scores, progress)
        progress.seconds = time.perf_counter() - self._began
        is_best = is_best and self.config.training.best_metric is not None
        self.monitor.validation(progress, scores, is_best, self.validator.example)
        self._save()

    def _save(self) -> None:
        """Write a checkpoint, unless the same one exists, and remove those no longer needed."""
        progress = self.progress
        if self.saved == (now := (progress.step, progress.validated_step)):
            return
        self._report_skipped()
        progress.interval = self.interval.state()
        with self.interval.paused():
            if self.ranks.is_main:
                self.monitor.flush()
                folder = self.folder.checkpoints / str(progress.step)
                if self.saved[0] == progress.step:  # due to the clock or a signal, before the validation
                    replace_progress(folder, progress, self.scaler)
                else:
                    save_checkpoint(folder, self.model, self.optimizer, self.scaler, progress, self.averaged)
                retain(self.folder.checkpoints, self.config.training.keep_checkpoints, {progress.best_step})
            self.saved, self.saved_at = now, progress.seconds
            self.ranks.wait()

    def _agree(self, num_tokens: int) -> tuple[int, bool]:
        """Exchange between processes before each update: the sum of the tokens, and whether to save a checkpoint.

        Signals to any process and rank 0's clock are shared too, so that all stop at the same step. No device waits.
        """
        progress, minutes = self.progress, self.config.training.save_every_minutes
        is_due = minutes is not None and progress.seconds >= self.saved_at + 60 * minutes
        of_main = [progress.seconds, float(is_due)] if self.ranks.is_main else [0.0, 0.0]
        signals = [self.signals.received.count(number) for number in SIGNALS]
        total, progress.seconds, due, *counts = self.ranks.sum([num_tokens, *of_main, *signals])
        self.stopped_by = next((number for number, count in zip(SIGNALS, counts, strict=True) if count), 0)
        return int(total), due > 0
