"""Validation during training: the loss and the translation scores of held-out text, and the best model by them."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from nmt.batches.batches import plan_epoch
from nmt.config.training import Config
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import Translator
from nmt.evaluation.evaluate import evaluate
from nmt.runs.folder import RunFolder
from nmt.runs.history import Example, Progress, is_better
from nmt.runs.weights import save_weights
from nmt.system.distributed import Ranks
from nmt.training.feeding import batches_with_restarts
from nmt.training.loss import Objective
from nmt.training.preparation import TrainingInputs


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and back into training mode when the block ends, also by an error."""
    model.eval()
    try:
        yield
    finally:
        model.train()


class Validator:
    """The validation of a model, with the weights that it has at each call: its scores, and the best model so far."""

    def __init__(
        self, config: Config, prepared: TrainingInputs, objective: Objective, run: RunFolder, ranks: Ranks
    ) -> None:
        self._config = config
        self._prepared = prepared
        self._objective = objective
        self._model = objective.model
        self._run = run
        self._ranks = ranks
        self.example = Example(src="", reference="", translation="")
        """A sentence as the last validation translated it; the sentence is the same in all."""

    def scores(self) -> dict[str, float]:
        """The loss and the translation scores of the validation set."""
        test_set = self._prepared.validation
        with evaluating(self._model), self.uncompiled():
            result = evaluate(self.translator(), test_set, self._prepared.metrics, self._ranks)
            loss = self._loss()
        line = test_set.middle
        src, reference = test_set.src[line], test_set.references[0][line]
        src = src if isinstance(src, str) else ""
        self.example = Example(src=src, reference=reference, translation=result.hypotheses[line])
        scores: dict[str, float] = {"loss": loss, **{name: score.value for name, score in result.scores.items()}}
        return self._ranks.from_main(lambda: scores)  # so that all processes decide the same

    def uncompiled(self) -> contextlib.AbstractContextManager[object]:
        """Keep layers that are compiled for joined batches from being compiled for each padded shape, too."""
        settings = self._config.training
        is_needed = settings.compile and settings.joined is True
        return torch.compiler.set_stance("force_eager") if is_needed else contextlib.nullcontext()

    def translator(self, max_length: int | None = None) -> Translator:
        """The translator for validations, within `evaluating`; `max_length` limits the pieces of a translation."""
        config, tokenizers = self._config, self._prepared.tokenizers
        beam_size, limit = config.evaluation.validation_beam_size, max_length or config.decoding.max_length
        decoding = config.decoding.model_copy(update={"beam_size": beam_size, "max_length": limit})
        data, engine = config.data, TorchEngine(self._model, tokenizers)
        languages = data.src_lang, data.tgt_lang
        return Translator(tokenizers, engine, decoding, data.max_length, languages=languages, source=config.source)

    @torch.no_grad()
    def _loss(self) -> float:
        """Cross-entropy a token of the validation set, without smoothing, in nats; within `evaluating`."""
        corpus, device = self._prepared.validation_corpus, self._prepared.device
        batch_tokens = self._config.training.micro_batch_tokens
        plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, batch_tokens, seed=0, epoch=0)
        total = torch.zeros((), device=device)
        num_tokens = 0
        for batch in batches_with_restarts(corpus, self._ranks.share(plan), device):
            num_tokens += batch.num_tgt_tokens
            total += self._objective(batch.to(device)).cross_entropy
        loss_sum, token_sum = self._ranks.sum([total.item(), num_tokens])
        return loss_sum / token_sum

    def keep_if_best(self, scores: dict[str, float], progress: Progress) -> bool:
        """Write the model if `scores` are the best so far, and record the validation in `progress`.

        Returns True if the model was written. Without `training.best_metric`, each validation replaces it.
        """
        metric = self._config.training.best_metric
        is_best = metric is None or is_better(metric, scores, progress.best_values)
        if is_best and self._ranks.is_main:
            if progress.best_step and not progress.best_values:  # a resume with other validations; see `adopt_changes`
                self._run.keep_model(progress.best_step)
            save_weights(self._model, self._run.model_file)
        if is_best:
            progress.best_values, progress.best_step = scores, progress.step
        progress.validations_since_best = 0 if is_best else progress.validations_since_best + 1
        progress.validated_step = progress.step
        return is_best
