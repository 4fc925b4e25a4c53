"""Translating with transformers, to check an export: what a user of the exported folder would see."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nmt.config.inference import DecodingConfig
from nmt.errors import MissingExtraError, how_to_install

_BATCH = 32


def import_transformers() -> Any:
    """The package; `MissingExtraError` if it is not installed."""
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError:
        raise MissingExtraError(f"transformers is not installed: {how_to_install('hf')}") from None


@torch.inference_mode()
def translate_with_transformers(folder: Path, lines: Sequence[str], decoding: DecodingConfig) -> list[str]:
    """The translation of each line by `MarianMTModel.generate`, on the CPU; an empty line gives an empty one."""
    transformers = import_transformers()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # it warns of beam settings that greedy search leaves unused
    model = transformers.MarianMTModel.from_pretrained(str(folder), dtype=torch.float32).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(str(folder))
    beams = {"length_penalty": decoding.length_penalty, "early_stopping": True} if decoding.beam_size > 1 else {}
    found = [""] * len(lines)
    rows = sorted((row for row, line in enumerate(lines) if line.strip()), key=lambda row: len(lines[row]))
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        ids = model.generate(
            **tokenizer([lines[row] for row in batch], return_tensors="pt", padding=True),
            num_beams=decoding.beam_size,
            **beams,
            min_new_tokens=decoding.min_length,
            max_length=decoding.max_length + 1,  # with the start
        )
        for row, text in zip(batch, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
            found[row] = text
    return found
