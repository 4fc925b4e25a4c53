"""Ids in, hypotheses out, with PyTorch."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.checkpoint import check_weights, load_weights
from nmt.config.inference import DecodingConfig
from nmt.data.batches import pad
from nmt.data.tokenizer import Tokenizers
from nmt.data.vocabulary import BOS_ID, EOS_ID, PAD_ID
from nmt.decoding.beam import beam_search
from nmt.decoding.constraints import longest_outputs
from nmt.decoding.greedy import greedy_search
from nmt.decoding.hypothesis import Hypothesis
from nmt.device import choose_device, choose_dtype
from nmt.errors import RunError
from nmt.masks import padding_mask
from nmt.models.ensemble import Ensemble
from nmt.models.factory import build_model, parameter_shapes
from nmt.models.interface import Seq2SeqModel, TrainableModel
from nmt.models.packed import pack_linear_maps
from nmt.runs import RunFolder


class TorchEngine:
    """Searches with a model on the device where its parameters are."""

    name = "torch"
    batches_at_once = 1

    def __init__(self, model: Seq2SeqModel) -> None:
        self._model = model

    @torch.inference_mode()
    def search(self, sources: Sequence[Sequence[int]], decoding: DecodingConfig) -> list[list[Hypothesis]]:
        """Hypotheses of each source (ids without `</s>`), best first. The model is left in the mode it was in."""
        device = next(self._model.parameters()).device
        src_ids = pad(sources, last=[EOS_ID]).to(device)
        src_mask = padding_mask(src_ids, PAD_ID)
        max_lengths = longest_outputs(torch.tensor([len(ids) for ids in sources]), decoding).to(device)
        settings = decoding.length_penalty, decoding.min_length, decoding.no_repeat_ngram_size
        was_training = self._model.training
        self._model.eval()
        try:
            if decoding.beam_size == 1:
                found = greedy_search(self._model, src_ids, src_mask, max_lengths, *settings)
                return [[hypothesis] for hypothesis in found]
            return beam_search(self._model, src_ids, src_mask, max_lengths, decoding.beam_size, *settings)
        finally:
            self._model.train(was_training)

    @torch.inference_mode()
    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[NDArray[np.float32]]:
        """How much each id of a target looked at each of its source, `</s>` left out: (T, S) for each pair."""
        device = next(self._model.parameters()).device
        src_ids = pad(sources, last=[EOS_ID]).to(device)
        tgt_in = pad(targets, first=[BOS_ID]).to(device)  # row t is what id t was chosen by
        weights = self._model.attention(src_ids, padding_mask(src_ids, PAD_ID), tgt_in).float().cpu().numpy()
        return [of_pair[: len(tgt), : len(src)] for of_pair, src, tgt in zip(weights, sources, targets, strict=True)]


def load_torch_engine(
    runs: Sequence[RunFolder], tokenizers: Tokenizers, device: str, precision: str = "fp32"
) -> TorchEngine:
    """The run's best model, or the ensemble of several runs', on a device; `ConfigError` as `choose_dtype`."""
    chosen = choose_device(device)
    dtype = choose_dtype(precision, chosen, "decoding.precision")
    with torch.random.fork_rng(devices=[]):  # weights are drawn before they are read, and others use the generator
        models = [_prepared_model(run, tokenizers, chosen, dtype) for run in runs]
    return TorchEngine(models[0] if len(models) == 1 else Ensemble(models).eval())


def load_model(run: RunFolder, tokenizers: Tokenizers) -> TrainableModel:
    """The run's best model, on the CPU; `RunError` if weights, configuration and tokenizers don't belong together."""
    config, sizes = run.inference_config().model, (tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    try:
        shapes = parameter_shapes(config, *sizes)
    except ValueError as error:
        raise RunError(f"{run.path}: its tokenizers are not those of its model: {error}") from None
    check_weights(run.model_file, shapes)
    model = build_model(config, *sizes)
    load_weights(model, run.model_file)
    return model


def _prepared_model(run: RunFolder, tokenizers: Tokenizers, device: torch.device, dtype: torch.dtype) -> Seq2SeqModel:
    model = load_model(run, tokenizers)
    model.to(device, dtype).eval()
    pack_linear_maps(model)
    return model
