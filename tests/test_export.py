"""Exports: CTranslate2 computes and finds what our own model and search do, or the export is refused; which engine
translates; and a folder that translates alone, without torch.

Shapes: B batch, K beams, T target length, V vocabulary.
"""

import json
import logging
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import nmt.decoding.engines
import nmt.export.ctranslate2
from conftest import COPY_TASK
from nmt.checkpoint import write_weights
from nmt.config import DecodingConfig, ModelConfig
from nmt.data.batches import pad
from nmt.data.tokenizer import Tokenizers, WordTokenizer, save_tokenizers
from nmt.data.vocabulary import BOS_ID, EOS_ID, PAD_ID, SPECIAL_PIECES, UNK_ID, Vocabulary
from nmt.decoding.ctranslate2_engine import CTranslate2Engine, _came_to_the_end, load_ctranslate2_engine
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import load
from nmt.errors import ConfigError, DataError, ExportError, MissingExtraError, RunError
from nmt.export.ctranslate2 import ExportedRun, export_ctranslate2, write_model
from nmt.masks import padding_mask
from nmt.models.interface import DecoderState, Seq2SeqModel
from nmt.models.transformer import Transformer
from nmt.runs import RunFolder, read_json

SRC_WORDS = ["<0x0A>", "▁", '"', "\\", "\x00", "ß", "\u200b", "｟a｠", "a￨b", "0"]
TGT_WORDS = ["a", "b", "\x7f", "<0x41>", "▁<s>", "\ufeff", "x"]


def words(extra: Sequence[str]) -> WordTokenizer:
    return WordTokenizer(Vocabulary([*SPECIAL_PIECES, *extra]))


JOINT = Tokenizers(tokenizer := words(SRC_WORDS), tokenizer)
APART = Tokenizers(words(SRC_WORDS), words(TGT_WORDS))


def random_model(config: ModelConfig, tokenizers: Tokenizers, seed: int = 0) -> Transformer:
    """No parameter is what it is at first: biases are not zero, and norms not one."""
    torch.manual_seed(seed)
    model = Transformer(config, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.25 * torch.randn_like(parameter)
    return model


SMALL = {"num_encoder_layers": 2, "num_decoder_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 24, "max_positions": 64}
ARCHITECTURES = [
    (ModelConfig(**SMALL), JOINT),
    (ModelConfig(**SMALL, norm="post"), JOINT),
    (ModelConfig(**SMALL, activation="gelu", tie_embeddings="decoder", positions="learned"), APART),
    (ModelConfig(**SMALL, activation="swiglu", tie_embeddings="none", norm="post"), APART),
    (ModelConfig(**{**SMALL, "num_heads": 4}, activation="swiglu", positions="learned", tie_embeddings="none"), JOINT),
]


def engine_for(model: Transformer, config: ModelConfig, tokenizers: Tokenizers, folder: Path) -> CTranslate2Engine:
    write_model(model, config, tokenizers, "float32", folder)
    return load_ctranslate2_engine(RunFolder(folder), tokenizers, "cpu")


def random_sources(count: int, vocab_size: int, longest: int = 20) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(4, vocab_size, size=random.integers(1, longest + 1)).tolist() for _ in range(count)]


# --- The model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "tokenizers"), ARCHITECTURES)
def test_the_log_probabilities_are_ours(config: ModelConfig, tokenizers: Tokenizers, tmp_path: Path) -> None:
    model = random_model(config, tokenizers)
    write_model(model, config, tokenizers, "float32", tmp_path)
    sources = random_sources(8, tokenizers.src.vocab_size)
    targets = random_sources(8, tokenizers.tgt.vocab_size)
    src_ids = pad(sources, last=[EOS_ID])
    tgt_in, tgt_out = pad([[BOS_ID, *ids] for ids in targets]), pad(targets, last=[EOS_ID])
    with torch.no_grad():
        log_probs = model(src_ids, padding_mask(src_ids, PAD_ID), tgt_in).log_softmax(dim=-1)  # (B, T, V)
    expected = log_probs.gather(2, tgt_out[:, :, None])[:, :, 0]  # (B, T)
    scores = ctranslate2.Translator(str(tmp_path), intra_threads=1).score_batch(
        [tokenizers.src.pieces(ids) for ids in sources], [tokenizers.tgt.pieces(ids) for ids in targets]
    )
    for row, (ids, score) in enumerate(zip(targets, scores, strict=True)):
        assert score.log_probs == pytest.approx(expected[row, : len(ids) + 1].tolist(), abs=2e-5)


class Masked(Seq2SeqModel):
    """A model that cannot emit what may not be emitted: CTranslate2 takes it out before the softmax."""

    def __init__(self, model: Transformer, min_length: int) -> None:
        super().__init__()
        self.model, self.min_length, self.steps = model, min_length, 0

    def forward(self, src_ids: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        raise NotImplementedError

    def start(self, src_ids: Tensor, src_mask: Tensor, beam_size: int, max_length: int) -> DecoderState:
        self.steps = 0
        return self.model.start(src_ids, src_mask, beam_size, max_length)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        logits = self.model.step(tokens, state)
        logits[..., [PAD_ID, BOS_ID, UNK_ID]] = -math.inf
        if self.steps < self.min_length:
            logits[..., EOS_ID] = -math.inf
        self.steps += 1
        return logits


@pytest.mark.parametrize(
    "decoding",
    [
        DecodingConfig(beam_size=1, max_length=30, max_length_ratio=0.7),
        DecodingConfig(beam_size=4, max_length=30, max_length_ratio=0.7),
        DecodingConfig(beam_size=3, length_penalty=0.0, max_length=20, min_length=3, max_length_ratio=0.01),
        DecodingConfig(beam_size=2, length_penalty=1.5, max_length=7, batch_tokens=30),
    ],
)
@pytest.mark.parametrize(("config", "tokenizers"), ARCHITECTURES[1:4])
def test_the_searches_find_the_same(
    config: ModelConfig, tokenizers: Tokenizers, decoding: DecodingConfig, tmp_path: Path
) -> None:
    """Sources of many lengths in one call, each with the longest output of its own, which many outputs reach."""
    model = random_model(config, tokenizers, seed=3)
    sources = random_sources(60, tokenizers.src.vocab_size)
    found = engine_for(model, config, tokenizers, tmp_path).search(sources, decoding)
    expected = TorchEngine(Masked(model, decoding.min_length)).search(sources, decoding)
    lengths = [len(hypotheses[0].tokens) for hypotheses in expected]
    assert len(set(lengths)) > 3
    assert sum(
        length == decoding.longest_output(len(ids)) for length, ids in zip(lengths, sources, strict=True)
    ) >= 3  # fmt: skip
    for ours, theirs in zip(expected, found, strict=True):
        assert len(theirs) == len(ours)
        assert theirs[0].score == pytest.approx(ours[0].score, abs=1e-4)
        assert theirs[0].log_prob == pytest.approx(ours[0].log_prob, abs=1e-3)
        assert theirs[0].tokens == ours[0].tokens
        assert [one.score for one in theirs] == sorted((one.score for one in theirs), reverse=True)


def test_what_may_not_be_emitted_is_not_even_if_there_is_little_else(tmp_path: Path) -> None:
    config, tokenizers = ModelConfig(**SMALL), Tokenizers(tokenizer := words(["a"]), tokenizer)
    engine = engine_for(random_model(config, tokenizers), config, tokenizers, tmp_path)
    found = engine.search([[4], [4, 4]], DecodingConfig(beam_size=5, max_length=3, min_length=3))
    assert [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in found] == [[(4, 4, 4)]] * 2
