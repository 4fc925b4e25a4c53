"""The training loop: update, validate, save, stop, resume."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmt.batches.batches import Batch, plan_epoch
from nmt.batches.dataset import EncodedCorpus
from nmt.config.training import Config
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import Translator
from nmt.errors import InterruptedTrainingError, TrainingError, WorkerError, is_out_of_memory
from nmt.evaluation.evaluate import evaluate
from nmt.models.factory import build_model
from nmt.models.interface import TrainableModel
from nmt.runs.folder import RunFolder
from nmt.runs.history import Progress, duration, is_better
from nmt.runs.weights import load_checkpoint, replace_progress, retain, save_checkpoint, save_weights
from nmt.system.console import log
from nmt.system.distributed import ALONE, Ranks
from nmt.system.files import write_json
from nmt.training.averaging import MovingAverage, exchanged
from nmt.training.divergence import DivergenceDetector, diagnosis, listed
from nmt.training.feeding import Feed, Share, batches_with_restarts
from nmt.training.fine_tuning import load_start
from nmt.training.limits import SIGNALS, Signals, Stopped, seconds_left, stop_reason, total_steps
from nmt.training.loss import LossSums, Objective
from nmt.training.monitor import IntervalSums, Monitor
from nmt.training.optimization import clear_rows, freeze, keep_rows, learning_rate, make_optimizer, update
from nmt.training.preparation import Prepared, announce, warn_of_warmup
from nmt.training.resuming import adopt_changes, check_same_corpus, restart_hint, validation_key


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and back into training mode when the block ends, also by an error."""
    model.eval()
    try:
        yield
    finally:
        model.train()


class Trainer:
    """A training: the model, its progress, and the loop."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        prepared: Prepared,
        monitor: Monitor,
        model: TrainableModel[Any, Any] | None = None,
        ranks: Ranks = ALONE,
        initial_weights: Path | None = None,
    ) -> None:
        """`initial_weights` is a file with the weights to start from; they are validated before the first update."""
        self.folder = run
        self.prepared = prepared
        self.monitor = monitor
        self.ranks = ranks
        self.configure(config)
        torch.manual_seed(config.training.seed)
        tokenizers = prepared.tokenizers
        sizes = tokenizers.src.vocab_size, tokenizers.tgt.vocab_size
        self.model = model or build_model(config.model, *sizes, config.source)
        if initial_weights is not None:
            for line in load_start(self.model, initial_weights):
                log.info(line)
        freeze(self.model, config.training.freeze)
        self.model.to(prepared.device)
        self.padding_rows = self.model.padding_rows(tokenizers.src.special.pad, tokenizers.tgt.special.pad)
        if initial_weights is None:
            clear_rows(self.padding_rows)
        self.objective = Objective(self.model, config.training.label_smoothing, config.training.r_drop)
        if config.training.compile:
            self.objective.fuse()
        self.synchronised = ranks.synchronised(self.objective, prepared.device)
        self.optimizer = make_optimizer(self.model, config.training)
        # Only the range of fp16 is so small that the loss must be scaled.
        self.scaler = torch.amp.GradScaler(prepared.device.type, enabled=prepared.dtype == torch.float16)
        decay = config.training.ema_decay
        self.average = None if decay is None else MovingAverage(self.model, decay)
        self.progress = Progress(
            validation_key=validation_key(config),
            corpus=prepared.corpus.made_from,
            validated_step=0 if initial_weights is None else -1,  # never
            schedule_end=config.training.schedule_end,
        )
        self.interval = IntervalSums(prepared.device, ranks)
        self.divergence = DivergenceDetector(config, prepared.corpus, tokenizers.tgt.vocab_size)
        self.saved = (-1, -1)  # step of the last checkpoint, and the step last validated in it
        self.saved_at = 0.0  # in seconds of training
        self.signals = Signals()
        self.stopped_by = 0  # number of the signal that ends this training
        self.memory = ""  # the memory for the worst batch, in words
        self._began = time.perf_counter()

    def configure(self, config: Config) -> None:
        """Use the settings of `config`; the batches may change."""
        self.config = config
        self.feed = Feed(config, self.prepared, self.ranks)

    @property
    def averaged(self) -> dict[str, Tensor] | None:
        """The moving average of the weights, by name; None without `training.ema_decay`."""
        return None if self.average is None else self.average.values

    def resume(self, checkpoint: Path) -> None:
        """Load a checkpoint to resume from."""
        progress = load_checkpoint(checkpoint, self.model, self.optimizer, self.scaler, self.averaged)
        check_same_corpus(progress.corpus, self.prepared.corpus.made_from, self.config, self.folder)
        self.progress = progress
        adopt_changes(progress, self.config, self.folder)
        self.saved = (progress.step, progress.validated_step)
        self.saved_at = progress.seconds
        log.info(f"resuming at step {progress.step:,}")

    def announce(self) -> None:
        """Print the summary of the training."""
        if self.ranks.size > 1:
            log.info(f"processes   {self.ranks.size}, which share the batches of each update")
        plan = self.feed.plan(self.progress.epoch)
        announce(self.config, self.folder, self.prepared, self.model, plan, self.memory)

    def run(self) -> None:
        """Train until a limit or a signal, with validations and checkpoints."""
        settings = self.config.training
        self.batches_an_epoch = len(self.feed.plan(self.progress.epoch))
        begin = self.progress.step if self.progress.validated_step >= 0 else -1  # of what metrics.jsonl may hold
        if self.ranks.is_main:
            self.folder.diagnosis_file.unlink(missing_ok=True)  # of a training that is continued from before it
        self.monitor.start(begin, total_steps(settings, self.batches_an_epoch))
        self.interval.exclude(time.perf_counter() - self._began)  # a trial of the memory, for example, is no update
        self.interval.restore(self.progress.interval)
        self._began = time.perf_counter() - self.progress.seconds
        self.model.train()
        try:
            with self.signals.collected():
                self._validate_if_due()  # a signal may have stopped the run before this validation
                for share, num_tokens in self._updates():
                    self._update(share, num_tokens)
                    self._report()
                    self._validate_if_due()
                if not self.stopped_by and self.progress.validated_step != self.progress.step:
                    self._validate()
                    self._agree(0)
                reason = stop_reason(self.progress, settings)
                if self.stopped_by and not (reason and self.progress.validated_step == self.progress.step):
                    self._save()
                    name = signal.Signals(self.stopped_by).name
                    raise InterruptedTrainingError(
                        f"stopped by {name} at step {self.progress.step:,}; saved in {self.folder.path}, "
                        f"and the same command resumes from there",
                        self.stopped_by,
                    )
        finally:
            self.monitor.close()
        metric, values, step = settings.best_metric, self.progress.best_values, f"{self.progress.best_step:,}"
        best = f"best {metric} {values[metric]:.3f} at step {step}" if metric else f"the weights of step {step}"
        log.info(
            f"finished: {reason}; {best}; "
            f"{duration(self.progress.seconds)} of training; the model is in {self.folder.path}"
        )

    def timed_updates(self, seconds: float) -> list[float]:
        """Train for about so many seconds, and two updates at least; the seconds that each update took.

        Nothing is validated, logged or saved.
        """
        self.model.train()
        taken: list[float] = []
        began = start = time.perf_counter()
        for share, num_tokens in self._updates():
            self._update(share, num_tokens)
            self.interval.read()  # waits for the device
            taken.append(time.perf_counter() - start)
            start = time.perf_counter()
            if len(taken) > 1 and start > began + seconds:
                break
        return taken

    def _updates(self) -> Iterator[tuple[Share, int]]:
        """This process's share of each update until a limit or a signal, and the whole update's real target tokens."""
        progress = self.progress
        while True:
            plan = self.feed.plan(progress.epoch)
            for share in self.feed.rest_of_epoch(plan, progress.epoch, progress.batch):
                num_tokens, save_is_due = self._agree(share.num_tokens)
                if self.stopped_by or stop_reason(progress, self.config.training):
                    return
                if save_is_due:
                    self._save()
                progress.batch += len(share.update_pairs)
                if progress.batch == len(plan):
                    progress.epoch, progress.batch = progress.epoch + 1, 0
                yield share, num_tokens

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

    def _update(self, share: Share, num_tokens: int) -> None:
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
        norm = update(self.optimizer, self.scaler, settings.clip_norm, rate)
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
            (rows, src_length), tgt_length = batch.source.mask.shape, batch.tgt_in.shape[1]
            raise TrainingError(
                f"out of memory in step {self.progress.step + 1:,}, with {rows:,} pairs of {src_length:,} and "
                f"{tgt_length:,} pieces ({listed(self.divergence.lines([pairs]))}); lower training.batch_tokens "
                f"({self.config.training.batch_tokens}) or data.max_length, and resume from the last checkpoint"
            ) from None
        return sums

    def _report(self) -> None:
        """Log the update's interval if it is complete, which waits for the device."""
        settings, step = self.config.training, self.progress.step
        self.monitor.advance()
        if self.interval.updates == min(10, settings.log_every) and not self.interval.announced:
            self.interval.announced = True
            per_update = self.interval.seconds() / self.interval.updates
            left = seconds_left(self.progress, settings, self.batches_an_epoch, per_update)
            log.info(f"{per_update:.2f} s an update; about {duration(left)} left, plus validations")
            if total_steps(settings, self.batches_an_epoch) is None:  # max_minutes alone is set
                warn_of_warmup(settings, step + left / per_update)
        if step % settings.log_every:
            return
        self._report_skipped()
        figures, per_update = self.interval.read()
        left = seconds_left(self.progress, settings, self.batches_an_epoch, per_update)
        record = {
            "step": step,
            "epoch": self.progress.current_epoch,
            **figures,
            "learning_rate": learning_rate(step, settings, self.progress.schedule_start),
            "seconds": self.progress.seconds,
            "total_steps": total_steps(settings, self.batches_an_epoch),
            "seconds_left": left,
        }
        self.monitor.interval(record, duration(left))
        if reason := self.divergence.verdict(self.progress, record):
            self._stop_diverged(reason)

    def _report_skipped(self) -> None:
        """Log the updates skipped since the last call; waits for the device."""
        for skipped in self.divergence.skipped(self.progress):
            self.monitor.skipped(skipped, is_usual=self.scaler.is_enabled())

    def _stop_diverged(self, reason: str) -> NoReturn:
        """Write a diagnosis and end the training; the last checkpoint is kept."""
        if self.ranks.is_main:
            write_json(self.folder.diagnosis_file, diagnosis(reason, self.progress.step, self.model))
        settings = self.config.training
        raise TrainingError(
            f"{reason}, at step {self.progress.step:,}; {self.folder.diagnosis_file} holds figures of the weights, "
            f"{self.folder.metrics_file} the losses and the lines of skipped updates, and the last checkpoint is kept. "
            f"If the training has diverged, lower training.learning_rate ({settings.learning_rate:g}) or raise "
            f"training.warmup_steps ({settings.warmup_steps}), and {restart_hint(self.folder)}"
        )

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
        start = time.perf_counter()
        with contextlib.nullcontext() if self.averaged is None else exchanged(self.model, self.averaged):
            try:
                with self.signals.ending_the_block() if self.ranks.size == 1 else contextlib.nullcontext():
                    values = self._scores()
            except Stopped:
                return
            except WorkerError:
                raise
            except TrainingError as error:  # NaN probabilities
                self._stop_diverged(str(error))
            values = self.ranks.from_main(lambda: values)  # so that all decide the same
            metric, progress = self.config.training.best_metric, self.progress
            is_best = metric is None or is_better(metric, values, progress.best_values)
            if is_best and self.ranks.is_main:
                if progress.best_step and not progress.best_values:
                    self.folder.keep_model(progress.best_step)
                save_weights(self.model, self.folder.model_file)
        if is_best:
            progress.best_values, progress.best_step = values, progress.step
        progress.validations_since_best = 0 if is_best else progress.validations_since_best + 1
        progress.validated_step = progress.step
        progress.seconds = time.perf_counter() - self._began
        place = {"step": progress.step, "epoch": progress.current_epoch, "complete_epochs": progress.epoch}
        record = {**place, **values, "seconds": progress.seconds}
        self.monitor.validation({**record, "validation_key": progress.validation_key}, is_best and metric is not None)
        self._save()
        self.interval.exclude(time.perf_counter() - start)

    def _scores(self) -> dict[str, float]:
        """The loss and the translation scores of the validation set."""
        prepared = self.prepared
        with evaluating(self.model):
            result = evaluate(self.translator(), prepared.validation, prepared.metrics, self.ranks)
            loss = self._validation_loss(prepared.validation_corpus)
        return {"loss": loss, **{name: score.value for name, score in result.scores.items()}}

    def translator(self, max_length: int | None = None) -> Translator:
        """The translator for validations, within `evaluating`; `max_length` limits the pieces of a translation."""
        config = self.config
        beam_size, limit = config.evaluation.validation_beam_size, max_length or config.decoding.max_length
        decoding = config.decoding.model_copy(update={"beam_size": beam_size, "max_length": limit})
        data, tokenizers = config.data, self.prepared.tokenizers
        engine, languages = TorchEngine(self.model, tokenizers), (data.src_lang, data.tgt_lang)
        return Translator(tokenizers, engine, decoding, data.max_length, languages=languages, source=config.source)

    @torch.no_grad()
    def _validation_loss(self, corpus: EncodedCorpus) -> float:
        """Cross-entropy a token, without smoothing, in nats; within `evaluating`."""
        device, batch_tokens = self.prepared.device, self.config.training.micro_batch_tokens
        plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, batch_tokens, seed=0, epoch=0)
        total = torch.zeros((), device=device)
        num_tokens = 0
        for batch in batches_with_restarts(corpus, self.ranks.share(plan), device):
            num_tokens += batch.num_tgt_tokens
            total += self.objective(batch.to(device)).cross_entropy
        loss_sum, token_sum = self.ranks.sum([total.item(), num_tokens])
        return loss_sum / token_sum

    def _save(self) -> None:
        """Write a checkpoint, unless the same one exists, and remove those no longer needed."""
        progress = self.progress
        now = (progress.step, progress.validated_step)
        if self.saved == now:
            return
        self._report_skipped()
        progress.interval = self.interval.state()
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
