"""The PyTorch engine: ids in, hypotheses out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.config.inference import DecodingConfig
from nmt.decoding.beam_search import SearchTree, TracedStep, beam_search, greedy_search, search_tree
from nmt.decoding.constraints import Constraints
from nmt.decoding.forbidden_words import ForbiddenWords
from nmt.decoding.hypothesis import EncodedSource, Hypothesis, Sampling
from nmt.decoding.sampling import random_numbers, sample_batch
from nmt.errors import RunError
from nmt.models.ensemble import Ensemble
from nmt.models.factory import build_model, parameter_shapes
from nmt.models.interface import Seq2SeqModel, TrainableModel
from nmt.models.packed import pack_linear_maps
from nmt.models.source import Source, pad, source_of
from nmt.runs.folder import RunFolder
from nmt.runs.weights import check_weights, load_weights
from nmt.system.devices import choose_device, choose_dtype
from nmt.tokenizers.tokenizer import Tokenizers


class TorchEngine:
    """Searches with a model on the device of its parameters. The model must be in evaluation mode."""

    name = "torch"
    batches_at_once = 1

    def __init__(self, model: Seq2SeqModel[Any, Any], tokenizers: Tokenizers) -> None:
        self._model = model
        self._tokenizers = tokenizers
        self._forbidden_words = ForbiddenWords(tokenizers.tgt)

    @torch.inference_mode()
    def search(
        self,
        sources: Sequence[EncodedSource],
        decoding: DecodingConfig,
        prefixes: Sequence[Sequence[int]] | None = None,
        scores: bool = True,
    ) -> list[list[Hypothesis]]:
        """As `Engine.search`; scores are always computed."""
        source, constraints = self._batch(sources, decoding, prefixes)
        if decoding.beam_size == 1:
            return greedy_search(self._model, source, constraints, decoding.length_penalty)
        return beam_search(self._model, source, constraints, decoding.beam_size, decoding.length_penalty)

    @torch.inference_mode()
    def sample(
        self,
        sources: Sequence[EncodedSource],
        decoding: DecodingConfig,
        sampling: Sampling,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """As `Sampler.sample`; `decoding.beam_size` is not used."""
        count = sampling.count
        repeated = [ids for ids in sources for _ in range(count)]
        forced = None if prefixes is None else [ids for ids in prefixes for _ in range(count)]
        source, constraints = self._batch(repeated, decoding, forced)
        uniforms = random_numbers(sources, sampling, int(constraints.max_lengths.max()))
        samples = sample_batch(self._model, source, constraints, decoding.length_penalty, sampling, uniforms)
        return [samples[start : start + count] for start in range(0, len(samples), count)]

    @torch.inference_mode()
    def traced_search(self, source: EncodedSource, decoding: DecodingConfig) -> tuple[list[Hypothesis], SearchTree]:
        """Search for one source, and return the candidates that were considered, too.

        With a beam size of 1 it is a beam search with one beam; its hypothesis is that of greedy search.
        """
        batch, constraints = self._batch([source], decoding)
        trace: list[TracedStep] = []
        results = beam_search(self._model, batch, constraints, decoding.beam_size, decoding.length_penalty, trace)
        return results[0], search_tree(trace, decoding, self._tokenizers.tgt)

    @torch.inference_mode()
    def score(self, sources: Sequence[EncodedSource], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """As `Engine.score`; all pairs are one batch."""
        source, special = self._source(sources), self._tokenizers.tgt.special
        tgt_in = pad(targets, special.pad, first=[special.start]).to(source.mask.device)  # (B, T)
        tgt_out = pad(targets, special.pad, last=[special.eos]).to(source.mask.device)
        logits = self._model(source, tgt_in).float()  # (B, T, V)
        chosen = logits.gather(2, tgt_out[:, :, None])[:, :, 0] - logits.logsumexp(dim=2)  # (B, T)
        return [row[: len(tgt) + 1] for row, tgt in zip(chosen.tolist(), targets, strict=True)]

    @torch.inference_mode()
    def attention(
        self, sources: Sequence[EncodedSource], targets: Sequence[Sequence[int]]
    ) -> list[NDArray[np.float32]]:
        """As `Engine.attention`, also for sources of vectors."""
        source, special = self._source(sources), self._tokenizers.tgt.special
        tgt_in = pad(targets, special.pad, first=[special.start])  # row t is the attention when id t was predicted
        weights = self._model.attention(source, tgt_in.to(source.mask.device)).float().cpu().numpy()
        return [matrix[: len(tgt), : len(src)] for matrix, src, tgt in zip(weights, sources, targets, strict=True)]

    def _batch(
        self,
        sources: Sequence[EncodedSource],
        decoding: DecodingConfig,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> tuple[Source, Constraints]:
        source, special = self._source(sources), self._tokenizers.tgt.special
        forbidden = self._forbidden_words.spellings(decoding.forbidden_words)
        return source, Constraints.of(
            decoding, special, [len(ids) for ids in sources], prefixes, source.mask.device, forbidden
        )

    def _source(self, sources: Sequence[EncodedSource]) -> Source:
        """A batch on the model's device, each source with its `</s>`."""
        assert not self._model.training  # dropout would change every translation
        return source_of(sources, self._tokenizers.src.special).to(next(self._model.parameters()).device)


def load_torch_engine(
    runs: Sequence[RunFolder], tokenizers: Tokenizers, device: str, precision: str = "fp32"
) -> TorchEngine:
    """The run's best model, or an ensemble of several runs' models, on a device; `ConfigError` as `choose_dtype`."""
    chosen = choose_device(device)
    dtype = choose_dtype(precision, chosen, "decoding.precision")
    with torch.random.fork_rng(devices=[]):  # initializing weights must not change the caller's generator
        models = [load_model(run, tokenizers).to(chosen, dtype).eval() for run in runs]
        for model in models:
            pack_linear_maps(model)
    return TorchEngine(models[0] if len(models) == 1 else Ensemble(models).eval(), tokenizers)


def load_model(run: RunFolder, tokenizers: Tokenizers) -> TrainableModel[Any, Any]:
    """The run's best model, on the CPU; `RunError` if weights, configuration and tokenizers do not match."""
    config, sizes = run.inference_config(), (tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    try:
        shapes = parameter_shapes(config.model, *sizes, config.source)
    except ValueError as error:
        raise RunError(f"{run.path}: its tokenizers do not match its model: {error}") from None
    check_weights(run.model_file, shapes)
    model = build_model(config.model, *sizes, config.source)
    load_weights(model, run.model_file)
    return model
