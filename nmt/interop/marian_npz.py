"""Reader of Marian's own models: a folder or zip with decoder.yml, *.npz, vocab.yml, source.spm, target.spm.

Marian multiplies vectors from the left, so every matrix but the embeddings is transposed here. It has no `<pad>`: a row
of zeros is appended for it to embeddings and output. Its sine waves have other lengths than Hugging Face's.
"""

import contextlib
import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor

from nmt.config.inference import TransformerConfig
from nmt.errors import RunError
from nmt.interop.marian_model import (
    MAX_POSITIONS,
    ImportedModel,
    PlainLoader,
    check_one_vocabulary,
    imported_section,
    marian_name,
)
from nmt.models.factory import parameter_shapes
from nmt.tokenizers.marian import PAD, MarianFiles, read_vocabulary, vocabulary_json

MAX_BYTES = 1 << 33  # of an unpacked model
SETTINGS = "special:model.yml"
# Options of Marian that change what a model computes, and the values that its post-norm Transformers have.
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-ffn-activation": ("swish", "relu"),
    "transformer-preprocess": ("",),
    "transformer-postprocess": ("dan",),
    "transformer-postprocess-top": ("", None),
    "transformer-postprocess-emb": ("", "d", None),
    "transformer-decoder-autoreg": ("self-attention", None),
    "transformer-no-projection": (False, None),
    "transformer-train-position-embeddings": (False, None),
    "transformer-ffn-depth": (2, None),
    "transformer-decoder-ffn-depth": (0, 2, None),
    "transformer-decoder-dim-ffn": (0, None),
    "transformer-tied-layers": ([], None),
    "transformer-pool": (False, None),
    "lemma-dim-emb": (0, None),
}
_HEAD = "decoder_ff_logit_out"


def _files(path: Path) -> dict[str, Path | zipfile.Path]:
    """The files of a model in a folder or a zip, by name; `RunError` for a zip with names that lead out of it."""
    if path.is_dir():
        return {file.name: file for file in path.iterdir() if file.is_file()}
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise RunError(f"{path}: cannot be read as a zip: {error}") from None
    entries = [one for one in archive.infolist() if not one.is_dir()]
    if any(".." in PurePosixPath(one.filename).parts or one.filename.startswith("/") for one in entries):
        raise RunError(f"{path}: holds names that lead out of its folder; such an archive is not read")
    if sum(one.file_size for one in entries) > MAX_BYTES:
        raise RunError(f"{path}: more than {MAX_BYTES:,} bytes, unpacked")
    return {PurePosixPath(one.filename).name: zipfile.Path(archive, one.filename) for one in entries}


def read_archive(path: Path) -> ImportedModel:
    """Read the model in a folder or a zip; `RunError` for anything else, or another architecture."""
    files = _files(path)

    def read(name: str) -> bytes:
        if name not in files:
            raise RunError(f"{path}: {name}: no such file; a Marian model has this file")
        try:
            return files[name].read_bytes()
        except Exception as error:  # a damaged or hostile file may raise anything
            raise RunError(f"{path}: {name}: {error}; a Marian model has this file") from None

    decoder = _parsed(read("decoder.yml"), f"{path}/decoder.yml") if "decoder.yml" in files else {}
    model_name = _one_name(path, files, decoder.get("models"), ".npz", "models")
    vocabs = decoder.get("vocabs") or [None]
    listed = vocabs if isinstance(vocabs, list) else [vocabs]
    vocab_names = [_one_name(path, files, [name], ".yml", "vocabs") for name in listed]
    where = path / model_name
    arrays = _arrays(where if path.is_dir() else io.BytesIO(read(model_name)), where)
    settings = _settings(arrays, where)
    sides = [_vocabulary(read(name), path / name) for name in (vocab_names[0], vocab_names[-1])]
    joint = sides[0] == sides[1]
    config = _config(settings, arrays, where)
    check_one_vocabulary(config, joint, where)
    weights = _weights(config, arrays, (len(sides[0]), len(sides[1])), where)
    contents = {name: read(name) for name in ("source.spm", "target.spm")}
    contents["vocab.json"] = vocabulary_json(sides[0])
    if not joint:
        contents["target_vocab.json"] = vocabulary_json(sides[1])
    texts = [read(name).decode("utf-8", "replace") if name in files else "" for name in ("README.md", "LICENSE")]
    tokenizer = MarianFiles(contents, start=sides[1][PAD])
    return ImportedModel("marian", config, tokenizer, weights, _decoding(decoder), license=_license(*texts))


def _one_name(path: Path, files: Iterable[str], named: Any, suffix: str, key: str) -> str:
    """The only file that decoder.yml names, or else the only file with the suffix."""
    if named in (None, [None]):
        found = [name for name in sorted(files) if name.endswith(suffix) and name != "decoder.yml"]
    else:
        found = [str(name) for name in named] if isinstance(named, list) else [str(named)]
    if len(found) != 1:
        raise RunError(f"{path}: decoder.yml: {key}: there should be one file *{suffix}, not {len(found)}")
    if not found[0].endswith(suffix) or PurePosixPath(found[0].replace("\\", "/")).name != found[0]:
        raise RunError(f"{path}: decoder.yml: {key} names {found[0][:100]!r}; nmt reads *{suffix} beside it alone")
    return found[0]


def _parsed(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = yaml.load(data, Loader=PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RunError(f"{where}: cannot be read as YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict):
        raise RunError(f"{where}: should hold keys and values")
    return value


def _arrays(data: Path | io.BytesIO, where: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of the .npz; nothing in it is unpickled."""
    try:
        with np.load(data, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:  # a damaged or hostile file may raise anything
        raise RunError(f"{where}: cannot be read as a Marian model: {error}") from None


def _settings(arrays: Mapping[str, NDArray[Any]], where: Path) -> dict[str, Any]:
    """Read and check the options that Marian wrote into the file, padded with NULs since version 1.12."""
    if SETTINGS not in arrays:
        raise RunError(f"{where}: lacks {SETTINGS}, in which Marian says what a model is")
    settings = _parsed(arrays[SETTINGS].tobytes().split(b"\0")[0], f"{where}: {SETTINGS}")
    for key, allowed in _REQUIRED.items():
        value = settings.get(key)
        if value not in allowed:
            shown = " or ".join(repr(one) for one in allowed if one is not None)
            raise RunError(f"{where}: {key}: {value!r} is not supported; nmt reads Marian's models with {shown}")
    return settings


def _config(settings: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], where: Path) -> TransformerConfig:
    head = f"{_HEAD}_W" in arrays or f"{_HEAD}_Wt" in arrays
    tie = "none" if head else "all" if "Wemb" in arrays else "decoder"
    values = {
        "num_encoder_layers": settings.get("enc-depth"),
        "num_decoder_layers": settings.get("dec-depth"),
        "d_model": settings.get("dim-emb"),
        "num_heads": settings.get("transformer-heads"),
        "d_ff": settings.get("transformer-dim-ffn"),
        "norm": "post",
        "activation": settings["transformer-ffn-activation"],
        "max_positions": MAX_POSITIONS,
        "dropout": settings.get("transformer-dropout", 0.1),
        "tie_embeddings": tie,
        "layout": "marian",
    }
    return imported_section(TransformerConfig, values, where)


def _vocabulary(data: bytes, where: Path) -> dict[str, int]:
    """Read and check the ids of vocab.yml, with one more for `<pad>`."""
    try:
        ids = read_pieces(data.decode("utf-8"))
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{where}: cannot be read as a vocabulary: {reason}") from None
    return read_vocabulary(vocabulary_json(ids | {PAD: len(ids)}), str(where))


def read_pieces(text: str) -> dict[str, int]:
    """Read a vocabulary of Marian's: YAML with one piece per line, or JSON. Raises `ValueError` or `YAMLError`.

    A YAML parser takes some pieces (U+0085, U+2028) for ends of lines, and others for numbers or truth values.

    >>> read_pieces('"</s>": 0\\nyes: 1\\n? "\\\\x85"\\n: 2')
    {'</s>': 0, 'yes': 1, '\\x85': 2}
    """
    if text.lstrip().startswith("{"):
        return {str(piece): int(index) for piece, index in json.loads(text).items()}
    text = re.sub(r"^\? (.*?)\r?\n:", r"\1:", text, flags=re.MULTILINE)  # long keys, which have a line of their own
    ids: dict[str, int] = {}
    for line in text.split("\n"):
        if (line := line.rstrip("\r")) not in ("", "---"):
            piece, _, index = line.rpartition(":")
            ids[_scalar(piece.rstrip(" "))] = int(index)
    return ids


def _scalar(written: str) -> str:
    """Parse a key in YAML, plain or in quotes."""
    if len(written) > 1 and written[0] == written[-1] == "'":
        return written[1:-1].replace("''", "'")
    if len(written) > 1 and written[0] == written[-1] == '"':
        return str(yaml.load(written, Loader=PlainLoader))
    return written


def _weights(
    config: TransformerConfig, arrays: Mapping[str, NDArray[Any]], sizes: tuple[int, int], where: Path
) -> dict[str, Tensor]:
    """The weights by our names, transposed, with rows of zeros for `<pad>`; `RunError` if they do not fit."""
    used: set[str] = set()

    def array(*names: str) -> NDArray[Any]:
        for name in names:
            if name in arrays:
                used.add(name)
                return arrays[name]
        raise RunError(f"{where}: lacks {names[0]}, which a model of these options has")

    def padded(rows: NDArray[Any]) -> NDArray[Any]:
        rows = np.atleast_1d(rows)
        return np.concatenate([rows, np.zeros((1, *rows.shape[1:]), rows.dtype)])

    found: dict[str, NDArray[Any]] = {}
    shapes = parameter_shapes(config, *sizes)
    for name in shapes:
        if name == "src_embedding.weight":
            found[name] = padded(array("Wemb", "encoder_Wemb"))
        elif name == "tgt_embedding.weight":
            found[name] = padded(array("Wemb", "decoder_Wemb"))
        elif name == "output.weight":
            held = f"{_HEAD}_Wt" in arrays
            found[name] = padded(array(f"{_HEAD}_Wt") if held else array(f"{_HEAD}_W").T)
        elif name == "output.bias":
            has_bias = f"{_HEAD}_b" in arrays
            bias = array(f"{_HEAD}_b").reshape(-1) if has_bias else np.zeros(sizes[1] - 1, np.float32)
            found[name] = padded(bias)
        else:
            values = array(marian_name(name))
            found[name] = values.T if len(shapes[name]) > 1 else values.reshape(-1)
    unused = sorted(key for key in arrays.keys() - used if not key.startswith("special:") and key != "decoder_c_tt")
    if unused:
        raise RunError(f"{where}: holds {unused[0]}, which nmt's Transformer does not have")
    weights = {}
    for name, values in found.items():
        if values.shape != shapes[name] or not np.issubdtype(values.dtype, np.floating):
            raise RunError(f"{where}: the shape of {name} is {values.shape}; by its options it is {shapes[name]}")
        weights[name] = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32).copy())
    return weights


def _decoding(decoder: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with contextlib.suppress(KeyError, TypeError, ValueError):
        found["beam_size"] = max(1, int(decoder["beam-size"]))
    with contextlib.suppress(KeyError, TypeError, ValueError):
        found["length_penalty"] = max(0.0, float(decoder["normalize"]))
    return found


def _license(readme: str, license: str) -> str | None:
    """The licence in README.md's license line, or else the first line of LICENSE, as in OPUS-MT's packages."""
    if match := re.search(r"licen[cs]e\**:?\s*\[?([\w .-]{3,60})", readme, re.IGNORECASE):
        return match[1].strip()
    return license.strip().partition("\n")[0][:100].strip() or None
