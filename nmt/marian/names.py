"""The names of a MarianMT model's tensors in Hugging Face's files and in Marian's own, for each of our parameters.

encoder.0.self_attention.query.weight    model.encoder.layers.0.self_attn.q_proj.weight
                                         encoder_l1_self_Wq
decoder.1.cross_residual.norm.bias       model.decoder.layers.1.encoder_attn_layer_norm.bias
                                         decoder_l2_context_Wo_ln_bias
output.bias (V,)                         final_logits_bias (1, V)
                                         decoder_ff_logit_out_b
"""

from collections.abc import Iterable

# Of each part of a layer: Hugging Face's name, and Marian's with a place for the kind of the parameter.
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
"""Tables of sine waves, which older files hold; transformers computes them again."""


def hugging_face_names(parameters: Iterable[str], tie_embeddings: str) -> dict[str, str]:
    """Hugging Face's name for each of our parameters; tied matrices have the name under which a file holds them once.

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
