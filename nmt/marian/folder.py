"""Reading a MarianMT model from a folder of Hugging Face's: config.json, weights, vocabulary, SentencePiece models.

Nothing of it is run: of a .bin file, torch reads tensors alone (`weights_only`). What a configuration leaves out or
sets to null has transformers' default.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor

from nmt.checkpoint import open_tensors
from nmt.config.inference import TransformerConfig
from nmt.config.section import MAX_POSITIONS as LIMIT
from nmt.data.marian import EOS, PAD, MarianFiles, read_vocabulary
from nmt.errors import RunError
from nmt.marian.found import (
    MAX_POSITIONS,
    FoundModel,
    PlainLoader,
    check_one_vocabulary,
    imported_section,
    read_file,
    read_object,
    refuse_paths,
)
from nmt.marian.names import LOGITS_BIAS, POSITIONS, copies, hugging_face_names
from nmt.models.factory import parameter_shapes

SAFETENSORS, BIN = "model.safetensors", "pytorch_model.bin"
ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu", "gelu": "gelu"}
# Options of a MarianMT configuration that no converter has ever set otherwise, and their only value that fits.
_FIXED = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}


class _Settings:
    """A folder's configuration: config.json, and what generation_config.json says instead."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "config.json"
        self._values = read_object(self.path)
        refuse_paths({key: value for key, value in self._values.items() if key != "_name_or_path"}, self.path)
        generation = folder / "generation_config.json"
        self._generation = read_object(generation) if generation.is_file() else {}

    def get(self, key: str, default: Any) -> Any:
        """A value of config.json; the default if it is missing or null."""
        value = self._values.get(key)
        return default if value is None else value

    def for_search(self, key: str, default: Any) -> Any:
        """A value that generation_config.json may hold."""
        value = self._generation.get(key)
        return self.get(key, default) if value is None else value

    def number(self, key: str, default: int, for_search: bool = False) -> int:
        """An integer; a list of one counts as one."""
        value = self.for_search(key, default) if for_search else self.get(key, default)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if type(value) is not int or value < 0:
            raise RunError(f"{self.path}: {key}: should be a number of 0 or more, not {str(value)[:80]!r}")
        return value


def is_hugging_face(folder: Path) -> bool:
    """Whether a folder looks like one of Hugging Face's models."""
    return (folder / "config.json").is_file()


def read_folder(folder: Path) -> FoundModel:
    """The model in a folder; `RunError` if it is no MarianMT model, or a file is missing or damaged."""
    settings = _Settings(folder)
    _check_architecture(settings)
    sides = _sides(folder, settings)
    with _tensors(folder) as tensors:
        config = _model_config(settings)
        check_one_vocabulary(config, sides.src == sides.tgt, settings.path)
        weights = _weights(config, tensors, len(sides.src), len(sides.tgt))
    embedding = weights["src_embedding.weight" if config.tie_embeddings == "all" else "tgt_embedding.weight"]
    notes = _unused(settings, tgt_pad=sides.tgt[PAD])
    if embedding[sides.start].count_nonzero():
        if config.layout == "marianmt":
            config = config.model_copy(update={"layout": "marianmt-own-start"})
        notes.append(
            "the row of the decoder's first input is not zero: the model was fine-tuned with transformers, and starts "
            "from that row here, too"
        )
    return FoundModel(
        format="huggingface",
        model=config,
        tokenizer=sides.files,
        weights=weights,
        decoding=_decoding(settings),
        languages=_languages(folder),
        license=_license(folder),
        notes=tuple(notes),
    )


def _check_architecture(settings: _Settings) -> None:
    kind = settings.get("model_type", None)
    if kind != "marian":
        named = str(settings.get("architectures", "none named"))[:80]
        raise RunError(
            f"{settings.path}: model_type {kind!r} ({named}) is no MarianMT model; nmt imports those alone, such as "
            f"OPUS-MT's (M2M100 and NLLB, for example, have norms, positions and language codes of other kinds)"
        )
    for key, value in _FIXED.items():
        if settings.get(key, value) != value:
            raise RunError(f"{settings.path}: {key}: {settings.get(key, value)} is not supported; MarianMT has {value}")


class _Vocabularies(NamedTuple):
    """The vocabularies, checked against the configuration."""

    files: MarianFiles
    src: Mapping[str, int]
    tgt: Mapping[str, int]
    start: int


def _sides(folder: Path, settings: _Settings) -> _Vocabularies:
    stated = folder / "tokenizer_config.json"
    tokenizer = read_object(stated) if stated.is_file() else {}
    file_names = {key: value for key, value in tokenizer.items() if "spm" in key or "vocab" in key}
    refuse_paths({key: value for key, value in file_names.items() if not Path(str(value)).is_absolute()}, stated)
    separate = tokenizer.get("separate_vocabs")
    if separate is None:
        separate = (folder / "target_vocab.json").is_file()
    vocabulary = read_file(folder / "vocab.json")
    target_vocabulary = read_file(folder / "target_vocab.json") if separate else None
    src = _named(vocabulary, folder / "vocab.json")
    tgt = src if target_vocabulary is None else _named(target_vocabulary, folder / "target_vocab.json")
    src_size = settings.number("vocab_size", 58101)
    for key, ids, size in (
        ("vocab_size", src, src_size),
        ("decoder_vocab_size", tgt, settings.number("decoder_vocab_size", src_size)),
    ):
        if len(ids) != size:
            raise RunError(f"{settings.path}: {key} is {size:,}, and the vocabulary has {len(ids):,} pieces")
    pad = settings.number("pad_token_id", tgt[PAD], for_search=True)
    start = settings.number("decoder_start_token_id", pad, for_search=True)
    eos = settings.number("eos_token_id", tgt[EOS], for_search=True)
    if (pad, eos) != (tgt[PAD], tgt[EOS]) or start >= len(tgt):
        raise RunError(
            f"{settings.path}: pad_token_id {pad}, eos_token_id {eos} and decoder_start_token_id {start} do not fit "
            f"the vocabulary, where {PAD} is {tgt[PAD]} and {EOS} is {tgt[EOS]}"
        )
    spm = (read_file(folder / f"{side}.spm") for side in ("source", "target"))
    return _Vocabularies(MarianFiles(next(spm), next(spm), vocabulary, target_vocabulary, start), src, tgt, start)


def _named(data: bytes, path: Path) -> dict[str, int]:
    return read_vocabulary(data, str(path))


def _model_config(settings: _Settings) -> TransformerConfig:
    """The model section; whether the start is zero is seen from the weights later."""
    for one, other in (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")):
        default = 16 if "heads" in one else 4096
        first, second = settings.number(one, default), settings.number(other, default)
        if first != second:
            raise RunError(f"{settings.path}: {one} {first} and {other} {second}: nmt has one number for both")
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


class Tensors:
    """The tensors of a file, read one by one where the format allows it."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], read: Any) -> None:
        self.path = path
        self.shapes = shapes
        self._read = read

    def read(self, name: str) -> Tensor:
        """A tensor in fp32."""
        tensor: Tensor = self._read(name)
        if not tensor.is_floating_point():
            raise RunError(f"{self.path}: {name}: holds numbers of the type {tensor.dtype}, and weights are fractions")
        return tensor.float().contiguous()


@contextlib.contextmanager
def _tensors(folder: Path) -> Iterator[Tensors]:
    path = folder / SAFETENSORS
    if path.is_file():
        with open_tensors(path) as file:
            names = sorted(file.keys())
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
            yield Tensors(path, shapes, file.get_tensor)
        return
    path = folder / BIN
    if not path.is_file():
        sharded = next((file.name for file in sorted(folder.glob("*.index.json"))), None)
        why = f"its weights are in several files ({sharded}), which nmt does not read" if sharded else "has no weights"
        raise RunError(f"{folder}: {why}; it needs {SAFETENSORS} or {BIN}")
    found = _unpickled(path)
    yield Tensors(path, {name: tuple(value.shape) for name, value in found.items()}, found.__getitem__)


def _unpickled(path: Path) -> dict[str, Tensor]:
    """The tensors of a .bin file; `RunError` if it holds anything else, which is never run."""
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


def _weights(config: TransformerConfig, tensors: Tensors, src_size: int, tgt_size: int) -> dict[str, Tensor]:
    """The weights by our names; `RunError` if the file's names or shapes are not those of this model."""
    shapes = parameter_shapes(config, src_size, tgt_size)
    tie = config.tie_embeddings
    weights, known = {}, set(POSITIONS)
    for name, theirs in hugging_face_names(shapes, tie).items():
        held = [one for one in (theirs, *copies(theirs, tie)) if one in tensors.shapes]
        if not held and tie == "none" and "model.shared.weight" in tensors.shapes and name != "output.weight":
            held = ["model.shared.weight"]  # shared by both embeddings, with a head of its own
        if not held:
            raise RunError(f"{tensors.path}: lacks {theirs}, which a model of this config.json has")
        expected = (1, *shapes[name]) if theirs == LOGITS_BIAS else shapes[name]
        for one in held:
            if tensors.shapes[one] != expected:
                raise RunError(
                    f"{tensors.path}: {one} has the shape {tensors.shapes[one]}; by config.json it is {expected}"
                )
        weights[name] = tensors.read(held[0]).reshape(shapes[name])
        for one in held[1:]:
            if not torch.equal(tensors.read(one).reshape(shapes[name]), weights[name]):
                raise RunError(
                    f"{tensors.path}: {held[0]} and {one} differ, and config.json says that they are one matrix"
                )
        known.update(held)
    if tie == "none":
        known.add("model.shared.weight")  # transformers keeps an unused one
    unknown = sorted(tensors.shapes.keys() - known)
    if unknown:
        raise RunError(f"{tensors.path}: holds {unknown[0]}, which no MarianMT model of this config.json has")
    return weights


def _decoding(settings: _Settings) -> dict[str, Any]:
    """The search that the folder describes; transformers' maximum length counts the start and `</s>`."""
    found: dict[str, Any] = {}
    longest = settings.number("max_length", MAX_POSITIONS, for_search=True)
    found["max_length"] = max(1, min(longest, MAX_POSITIONS) - 1)
    beams = settings.for_search("num_beams", None)
    if beams is not None:
        found["beam_size"] = settings.number("num_beams", 1, for_search=True)
    for theirs, ours in (("no_repeat_ngram_size", "no_repeat_ngram_size"), ("min_length", "min_length")):
        if settings.number(theirs, 0, for_search=True):
            found[ours] = settings.number(theirs, 0, for_search=True)
    penalty = settings.for_search("length_penalty", None)
    if isinstance(penalty, (int, float)) and not isinstance(penalty, bool) and penalty >= 0:
        found["length_penalty"] = float(penalty)
    return found


def _unused(settings: _Settings, tgt_pad: int) -> list[str]:
    """A line for each setting of transformers' search that is none of its defaults, and that nmt's search lacks."""
    eos = settings.for_search("eos_token_id", None)
    plain: dict[str, tuple[Any, ...]] = {
        "bad_words_ids": ([[tgt_pad]],),
        "forced_eos_token_id": (eos,),
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
    found = {key: settings.for_search(key, None) for key in plain}
    return [
        f"{key}: {str(value)[:80]} is for transformers' search, and nmt's does without"
        for key, value in found.items()
        if value is not None and value not in plain[key]
    ]


def _languages(folder: Path) -> tuple[str | None, str | None]:
    """The languages that the tokenizer's configuration says, where it does."""
    path = folder / "tokenizer_config.json"
    stated = read_object(path) if path.is_file() else {}
    src, tgt = (stated.get(f"{side}_lang") for side in ("source", "target"))
    return src if isinstance(src, str) else None, tgt if isinstance(tgt, str) else None


def _license(folder: Path) -> str | None:
    """What the model card's header says."""
    card = folder / "README.md"
    try:
        match = re.match(r"---\s*\n(.*?)\n---", card.read_text(encoding="utf-8")[:100_000], re.DOTALL)
        header = yaml.load(match[1], Loader=PlainLoader) if match else None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    stated = header.get("license") if isinstance(header, dict) else None
    return stated if isinstance(stated, str) else None
