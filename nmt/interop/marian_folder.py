"""Reader of Hugging Face's MarianMT folders: config.json, weights, vocabulary, SentencePiece models.

No code is executed: `.bin` files are loaded with `weights_only`. Keys that a configuration lacks or sets to null have
transformers' default.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from nmt.config.inference import TransformerConfig
from nmt.config.section import MAX_POSITIONS as LIMIT
from nmt.errors import RunError
from nmt.interop.marian_model import (
    LOGITS_BIAS,
    MAX_POSITIONS,
    POSITIONS,
    ImportedModel,
    PlainLoader,
    check_one_vocabulary,
    copies,
    hugging_face_names,
    imported_section,
    read_file,
    read_object,
)
from nmt.models.factory import parameter_shapes
from nmt.runs.weights import read_weights
from nmt.tokenizers.marian import EOS, PAD, MarianFiles, read_vocabulary

SAFETENSORS, BIN = "model.safetensors", "pytorch_model.bin"
ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu", "gelu": "gelu"}
# Options of a MarianMT configuration with the only value that is supported, which every converter writes.
FIXED = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
# Settings of transformers' search that nmt's lacks, each with its defaults.
UNUSED: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": (),
    "forced_eos_token_id": (),
    "forced_bos_token_id": (),
    "do_sample": (False,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "repetition_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "max_new_tokens": (),
}
# The keys of generation_config.json that are read.
SEARCH = {
    *UNUSED, "num_beams", "max_length", "min_length", "length_penalty", "no_repeat_ngram_size", "pad_token_id",
    "eos_token_id", "decoder_start_token_id",
}  # fmt: skip


class _Settings:
    """Configuration of a folder: config.json, and the search of generation_config.json; null counts as missing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "config.json"
        search = _optional(folder / "generation_config.json")
        values = [*read_object(self.path).items(), *((key, search[key]) for key in search if key in SEARCH)]
        self._values = {key: value for key, value in values if value is not None}

    def get(self, key: str, default: Any = None) -> Any:
        """A value; the default if it is missing."""
        return self._values.get(key, default)

    def number(self, key: str, default: int) -> int:
        """An integer; a list of one counts as one."""
        value = self.get(key, default)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if type(value) is not int or value < 0:
            raise RunError(f"{self.path}: {key}: should be a number of 0 or more, not {str(value)[:80]!r}")
        return value


def _optional(file: Path) -> dict[str, Any]:
    return read_object(file) if file.is_file() else {}


def read_folder(folder: Path) -> ImportedModel:
    """Read the model in a folder; `RunError` for other models, and for missing or damaged files."""
    settings, tokenizer = _Settings(folder), _optional(folder / "tokenizer_config.json")
    _check_architecture(settings)
    files, src, tgt = _vocabularies(folder, settings, tokenizer.get("separate_vocabs"))
    path, tensors = _tensors(folder)
    config = _model_config(settings)
    check_one_vocabulary(config, src == tgt, settings.path)
    weights = _weights(config, path, tensors, len(src), len(tgt))
    embedding = weights["src_embedding.weight" if config.tie_embeddings == "all" else "tgt_embedding.weight"]
    notes = _unused(settings, tgt_pad=tgt[PAD])
    if embedding[files.start].count_nonzero():
        if config.layout == "marianmt":
            config = config.model_copy(update={"layout": "marianmt-own-start"})
        notes.append(
            "the row of the decoder's first input is not zero: the model was fine-tuned with transformers, and starts "
            "from that row here, too"
        )
    stated = [tokenizer.get(f"{side}_lang") for side in ("source", "target")]
    src_lang, tgt_lang = (one if isinstance(one, str) else None for one in stated)
    return ImportedModel(
        format="huggingface",
        model=config,
        tokenizer=files,
        weights=weights,
        decoding=_decoding(settings),
        languages=(src_lang, tgt_lang),
        license=_license(folder),
        notes=tuple(notes),
    )


def _check_architecture(settings: _Settings) -> None:
    kind = settings.get("model_type")
    if kind != "marian":
        named = str(settings.get("architectures", "none named"))[:80]
        raise RunError(
            f"{settings.path}: model_type {kind!r} ({named}) is no MarianMT model; nmt imports those alone, such as "
            f"OPUS-MT's (M2M100 and NLLB, for example, have norms, positions and language codes of other kinds)"
        )
    for key, value in FIXED.items():
        if settings.get(key, value) != value:
            raise RunError(f"{settings.path}: {key}: {settings.get(key, value)} is not supported; MarianMT has {value}")


def _vocabularies(
    folder: Path, settings: _Settings, separate: object
) -> tuple[MarianFiles, dict[str, int], dict[str, int]]:
    """The tokenizer's files, and the ids of both sides, checked against the configuration."""
    names = ["source.spm", "target.spm", "vocab.json"]
    if separate or (separate is None and (folder / "target_vocab.json").is_file()):
        names.append("target_vocab.json")
    contents = {name: read_file(folder / name) for name in names}
    src, tgt = (read_vocabulary(contents[name], str(folder / name)) for name in (names[2], names[-1]))
    src_size = settings.number("vocab_size", 58101)
    for key, ids, size in (
        ("vocab_size", src, src_size),
        ("decoder_vocab_size", tgt, settings.number("decoder_vocab_size", src_size)),
    ):
        if len(ids) != size:
            raise RunError(f"{settings.path}: {key} is {size:,}, and the vocabulary has {len(ids):,} pieces")
    pad = settings.number("pad_token_id", tgt[PAD])
    start = settings.number("decoder_start_token_id", pad)
    eos = settings.number("eos_token_id", tgt[EOS])
    if (pad, eos) != (tgt[PAD], tgt[EOS]) or start >= len(tgt):
        raise RunError(
            f"{settings.path}: pad_token_id {pad}, eos_token_id {eos} and decoder_start_token_id {start} do not fit "
            f"the vocabulary, where {PAD} is {tgt[PAD]} and {EOS} is {tgt[EOS]}"
        )
    return MarianFiles(contents, start), src, tgt


def _model_config(settings: _Settings) -> TransformerConfig:
    """The model section; whether the start is zero is seen from the weights later."""
    for key, default in (("attention_heads", 16), ("ffn_dim", 4096)):
        src, tgt = (settings.number(f"{side}_{key}", default) for side in ("encoder", "decoder"))
        if src != tgt:
            raise RunError(f"{settings.path}: encoder_{key} {src} and decoder_{key} {tgt}: nmt has one number for both")
    activation = settings.get("activation_function", "gelu")
    if str(activation) not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise RunError(f"{settings.path}: activation_function: {activation} is not supported; nmt has {known}")
    tie = "none"
    if settings.get("tie_word_embeddings", True):
        tie = "all" if settings.get("share_encoder_decoder_embeddings", True) else "decoder"
    values = {
        "num_encoder_layers": settings.number("encoder_layers", 12),
        "num_decoder_layers": settings.number("decoder_layers", 12),
        "d_model": settings.number("d_model", 1024),
        "num_heads": settings.number("encoder_attention_heads", 16),
        "d_ff": settings.number("encoder_ffn_dim", 4096),
        "norm": "post",
        "activation": ACTIVATIONS[activation],
        "max_positions": min(LIMIT, max(MAX_POSITIONS, settings.number("max_position_embeddings", 1024))),
        "dropout": settings.get("dropout", 0.1),
        "tie_embeddings": tie,
        "layout": "marianmt" if settings.get("scale_embedding", False) else "marianmt-unscaled",
    }  # fmt: skip
    return imported_section(TransformerConfig, values, settings.path)


def _tensors(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The file of the weights, and its tensors."""
    path = folder / SAFETENSORS
    if path.is_file():
        return path, read_weights(path)
    path = folder / BIN
    if not path.is_file():
        sharded = next((file.name for file in sorted(folder.glob("*.index.json"))), None)
        why = f"its weights are in several files ({sharded}), which nmt does not read" if sharded else "has no weights"
        raise RunError(f"{folder}: {why}; it needs {SAFETENSORS} or {BIN}")
    return path, _unpickled(path)


def _unpickled(path: Path) -> dict[str, Tensor]:
    """Load the tensors of a .bin file; `RunError` if it holds anything else, which is never executed."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file may raise anything
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RunError(
            f"{path}: not read: damaged, or a pickle that holds more than tensors and might run code: {first[:200]}"
        ) from None
    if not isinstance(found, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) and value.layout == torch.strided
        for key, value in found.items()
    ):
        raise RunError(f"{path}: should hold tensors by name and nothing else")
    return found


def _weights(
    config: TransformerConfig, path: Path, tensors: Mapping[str, Tensor], src_size: int, tgt_size: int
) -> dict[str, Tensor]:
    """The weights by our names, in fp32; `RunError` if the file's names or shapes are not those of this model."""
    shapes, tie = parameter_shapes(config, src_size, tgt_size), config.tie_embeddings
    weights, known = {}, set(POSITIONS)
    for name, theirs in hugging_face_names(shapes, tie).items():
        held = [one for one in (theirs, *copies(theirs, tie)) if one in tensors]
        if not held and tie == "none" and "model.shared.weight" in tensors and name != "output.weight":
            held = ["model.shared.weight"]  # shared by both embeddings, with a head of its own
        if not held:
            raise RunError(f"{path}: lacks {theirs}, which a model of this config.json has")
        expected = (1, *shapes[name]) if theirs == LOGITS_BIAS else shapes[name]
        for one in held:
            tensor = tensors[one]
            if tensor.shape != expected:
                raise RunError(f"{path}: {one} has the shape {tuple(tensor.shape)}; by config.json it is {expected}")
            if not tensor.is_floating_point():
                raise RunError(f"{path}: {one}: holds numbers of the type {tensor.dtype}, and weights are fractions")
            if one != held[0] and not torch.equal(tensor.float(), tensors[held[0]].float()):
                raise RunError(f"{path}: {held[0]} and {one} differ, and config.json says that they are one matrix")
        weights[name] = tensors[held[0]].float().reshape(shapes[name]).contiguous()
        known.update(held)
    if tie == "none":
        known.add("model.shared.weight")  # transformers keeps an unused one
    if unknown := sorted(tensors.keys() - known):
        raise RunError(f"{path}: holds {unknown[0]}, which no MarianMT model of this config.json has")
    return weights


def _decoding(settings: _Settings) -> dict[str, Any]:
    """The search settings of the folder; transformers' maximum length counts the start and `</s>`."""
    longest = settings.number("max_length", MAX_POSITIONS)
    found: dict[str, Any] = {"max_length": max(1, min(longest, MAX_POSITIONS) - 1)}
    if settings.get("num_beams") is not None:
        found["beam_size"] = settings.number("num_beams", 1)
    found |= {key: value for key in ("no_repeat_ngram_size", "min_length") if (value := settings.number(key, 0))}
    penalty = settings.get("length_penalty")
    if isinstance(penalty, (int, float)) and penalty >= 0:
        found["length_penalty"] = float(penalty)
    return found


def _unused(settings: _Settings, tgt_pad: int) -> list[str]:
    """A notice for each setting of transformers' search that is not its default, and that nmt's search lacks."""
    plain = UNUSED | {"bad_words_ids": ([[tgt_pad]],), "forced_eos_token_id": (settings.get("eos_token_id"),)}
    found = {key: settings.get(key) for key in plain}
    return [
        f"{key}: {str(value)[:80]} is for transformers' search, and nmt's does without"
        for key, value in found.items()
        if value is not None and value not in plain[key]
    ]


def _license(folder: Path) -> str | None:
    """The licence in the model card's header."""
    card = folder / "README.md"
    try:
        match = re.match(r"---\s*\n(.*?)\n---", card.read_text(encoding="utf-8")[:100_000], re.DOTALL)
        header = yaml.load(match[1], Loader=PlainLoader) if match else None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    stated = header.get("license") if isinstance(header, dict) else None
    return stated if isinstance(stated, str) else None
