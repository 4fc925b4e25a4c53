"""A MarianMT model in our terms, read from Hugging Face's files or Marian's own, and the names of its tensors.

encoder.0.self_attention.query.weight    model.encoder.layers.0.self_attn.q_proj.weight
                                         encoder_l1_self_Wq
decoder.1.cross_residual.norm.bias       model.decoder.layers.1.encoder_attn_layer_norm.bias
                                         decoder_l2_context_Wo_ln_bias
output.bias (V,)                         final_logits_bias (1, V)
                                         decoder_ff_logit_out_b
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from torch import Tensor

from nmt.config.inference import TransformerConfig
from nmt.config.section import Section, first_problem
from nmt.errors import RunError
from nmt.tokenizers.marian import MarianFiles

# For each part of a layer: Hugging Face's name, and Marian's with a place for the kind of the parameter.
_PARTS = {
    "self_attention.query": ("self_attn.q_proj", "self_{}q"),
    "self_attention.key": ("self_attn.k_proj", "self_{}k"),
    "self_attention.value": ("self_attn.v_proj", "self_{}v"),
    "self_attention.output": ("self_attn.out_proj", "self_{}o"),
    "self_residual.norm": ("self_attn_layer_norm", "self_Wo_ln_{}"),
    "cross_attention.query": ("encoder_attn.q_proj", "context_{}q"),
    "cross_attention.key": ("encoder_attn.k_proj", "context_{}k"),
    "cross_attention.value": ("encoder_attn.v_proj", "context_{}v"),
    "cross_attention.output": ("encoder_attn.out_proj", "context_{}o"),
    "cross_residual.norm": ("encoder_attn_layer_norm", "context_Wo_ln_{}"),
    "feed_forward.inner": ("fc1", "ffn_{}1"),
    "feed_forward.outer": ("fc2", "ffn_{}2"),
    "feed_forward_residual.norm": ("final_layer_norm", "ffn_ffn_ln_{}"),
}
_SHARED, _HEAD = "model.shared.weight", "lm_head.weight"
_SRC, _TGT = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
LOGITS_BIAS = "final_logits_bias"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
"""Tables of sine waves in older files; transformers recomputes them."""


def hugging_face_names(parameters: Iterable[str], tie_embeddings: str) -> dict[str, str]:
    """Map our parameters to Hugging Face's names; tied matrices have the name under which a file holds them once.

    >>> hugging_face_names(["src_embedding.weight", "output.bias", "encoder.0.feed_forward.inner.bias"], "all")
    {'src_embedding.weight': 'model.shared.weight', 'output.bias': 'final_logits_bias', \
'encoder.0.feed_forward.inner.bias': 'model.encoder.layers.0.fc1.bias'}
    """
    return {name: _name(name, tie_embeddings) for name in parameters}


def copies(name: str, tie_embeddings: str) -> tuple[str, ...]:
    """Other names under which a file of Hugging Face may hold the matrix that `hugging_face_names` gives `name`."""
    if name == _SHARED:
        return _SRC, _TGT, _HEAD
    return (_HEAD,) if name == _TGT and tie_embeddings == "decoder" else ()


def _name(name: str, tie_embeddings: str) -> str:
    match name:
        case "src_embedding.weight":
            return _SHARED if tie_embeddings == "all" else _SRC
        case "tgt_embedding.weight":
            return _TGT
        case "output.weight":
            return _HEAD
        case "output.bias":
            return LOGITS_BIAS
    side, number, rest = name.split(".", 2)
    part, kind = rest.rsplit(".", 1)
    return f"model.{side}.layers.{number}.{_PARTS[part][0]}.{kind}"


def marian_name(name: str) -> str:
    """Marian's name for one of our parameters of a layer.

    >>> marian_name("encoder.0.feed_forward.inner.weight"), marian_name("decoder.1.self_residual.norm.weight")
    ('encoder_l1_ffn_W1', 'decoder_l2_self_Wo_ln_scale')
    """
    side, number, rest = name.split(".", 2)
    part, kind = rest.rsplit(".", 1)
    kinds = {"weight": "scale", "bias": "bias"} if part.endswith(".norm") else {"weight": "W", "bias": "b"}
    return f"{side}_l{int(number) + 1}_{_PARTS[part][1].format(kinds[kind])}"


S = TypeVar("S", bound=Section)
MAX_POSITIONS = 512
"""Positions of an imported model: sine waves have no end, and OPUS-MT was trained on up to 500 pieces."""


@dataclasses.dataclass(frozen=True)
class ImportedModel:
    """A model from another program's files."""

    format: str
    """`huggingface` or `marian`."""
    model: TransformerConfig
    tokenizer: MarianFiles
    weights: Mapping[str, Tensor]
    """The weights by our names, in fp32."""
    decoding: Mapping[str, Any]
    """Keys of the `decoding` section that are in the files."""
    languages: tuple[str | None, str | None] = (None, None)
    license: str | None = None
    notes: tuple[str, ...] = ()
    """Notices for the user, one per line."""


def imported_section(section: type[S], values: Mapping[str, Any], where: Path) -> S:
    """Make a section from values of an imported configuration; `RunError` for values that it does not allow."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        said = str(error.errors()[0]["input"])[:80]
        raise RunError(f"{where}: {first_problem(error)}, and it says {said!r}") from None


def check_one_vocabulary(config: TransformerConfig, joint: bool, where: Path) -> None:
    """Raise `RunError` for a model with one embedding matrix for two vocabularies."""
    if config.tie_embeddings == "all" and not joint:
        raise RunError(f"{where}: source and target share their embeddings, but have a vocabulary each; not read")


def read_file(path: Path) -> bytes:
    """Read a file; `RunError` if it is missing or unreadable."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; a model to import has this file") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; `RunError` for anything else."""
    try:
        value = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: should hold keys and values")
    return value


class PlainLoader(yaml.SafeLoader):
    """YAML loader without aliases: ten lines of them can make a billion values."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node; `YAMLError` for an alias."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it holds an alias (*name), which no model needs")
        return super().compose_node(parent, index)
