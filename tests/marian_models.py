"""MarianMT models with random weights, in folders as Hugging Face has them, written without transformers."""

import functools
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray
from safetensors.numpy import save_file

TEXT = {"source": "en", "target": "zh"}
TAGS = (">>deu<<", ">>nld<<", ">>gos_Latn<<")
SHAPE: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "activation_function": "swish",
    "scale_embedding": True, "max_position_embeddings": 64, "dropout": 0.1, "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}  # fmt: skip
# Keys of config.json that every model of OPUS-MT has.
COMMON: dict[str, Any] = {
    "model_type": "marian", "architectures": ["MarianMTModel"], "is_encoder_decoder": True, "normalize_before": False,
    "normalize_embedding": False, "static_position_embeddings": True, "add_final_layer_norm": False,
    "max_length": 64, "num_beams": 4, "bos_token_id": 0,
}  # fmt: skip


@functools.cache
def sentences(side: str, count: int) -> list[str]:
    text = Path(__file__).parent.parent / "data" / "tiny" / f"train.{TEXT[side]}"
    return text.read_text(encoding="utf-8").splitlines()[:count]


@functools.cache
def spm(side: str, vocab_size: int = 230) -> bytes:
    """As OPUS-MT's: unigram, `nmt_nfkc`, no byte fallback."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(side, 300)), model_writer=model, model_type="unigram", vocab_size=vocab_size,
        minloglevel=2, character_coverage=0.98, bos_id=-1, eos_id=0, unk_id=1,
    )  # fmt: skip
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(index) for index in range(2, processor.get_piece_size())]


def vocabulary(sides: tuple[str, ...], eos: int = 0, tags: tuple[str, ...] = (), size: int | None = None) -> list[str]:
    """Pieces by id: those of some sides, a few left out, so that they are `<unk>`; `</s>` at `eos`, `<pad>` last."""
    known = dict.fromkeys(piece for side in sides for piece in pieces_of(spm(side)))
    pieces = ["<unk>", *tags, *(piece for number, piece in enumerate(known) if number % 17 != 5)]
    pieces = pieces[: None if size is None else size - 2]
    pieces.insert(eos, "</s>")
    return [*pieces, "<pad>"]


def tensors(config: dict[str, Any], src_size: int, tgt_size: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """Random weights by transformers' names, tied ones once. The rows of `<pad>` are zero, as in every conversion."""
    random = np.random.default_rng(seed)
    d, found = config["d_model"], {}

    def normal(*shape: int, scale: float = 0.3) -> NDArray[np.float32]:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    def linear(name: str, d_in: int, d_out: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = normal(d_out, d_in), normal(d_out)

    def embedding(name: str, size: int) -> None:
        found[name] = normal(size, d, scale=1.0 if config["scale_embedding"] else 0.6)
        found[name][-1] = 0

    for side in ("encoder", "decoder"):
        for number in range(config[f"{side}_layers"]):
            layer = f"model.{side}.layers.{number}"
            attentions = ["self_attn", "encoder_attn"] if side == "decoder" else ["self_attn"]
            for attention in attentions:
                for part in "qkv":
                    linear(f"{layer}.{attention}.{part}_proj", d, d)
                linear(f"{layer}.{attention}.out_proj", d, d)
            linear(f"{layer}.fc1", d, config[f"{side}_ffn_dim"])
            linear(f"{layer}.fc2", config[f"{side}_ffn_dim"], d)
            for norm in (*(f"{attention}_layer_norm" for attention in attentions), "final_layer_norm"):
                found[f"{layer}.{norm}.weight"] = 1 + normal(d)
                found[f"{layer}.{norm}.bias"] = normal(d)
    shared, tied = (config.get(f"{key}_embeddings", True) for key in ("share_encoder_decoder", "tie_word"))
    if shared:  # not used if nothing is tied
        embedding("model.shared.weight", src_size)
    if not (shared and tied):
        embedding("model.encoder.embed_tokens.weight", src_size)
        embedding("model.decoder.embed_tokens.weight", tgt_size)
        if not tied:
            embedding("lm_head.weight", tgt_size)
    found["final_logits_bias"] = normal(1, tgt_size, scale=1.0)
    found["final_logits_bias"][0, -1] = 0
    return found


def write_folder(
    folder: Path, eos: int = 0, tags: tuple[str, ...] = (), separate: bool = False, seed: int = 0, **changes: Any
) -> dict[str, Any]:
    """A model's folder as `huggingface_hub` downloads it; returns its config.json."""
    folder.mkdir(parents=True)
    both = ("source", "target")
    src, tgt = vocabulary(both, eos, tags), None
    if separate:
        src, tgt = (vocabulary((side,), eos, size=180) for side in both)
    for side in both:
        (folder / f"{side}.spm").write_bytes(spm(side))
    for name, pieces in (("vocab.json", src), ("target_vocab.json", tgt)):
        if pieces is not None:
            ids = {piece: index for index, piece in enumerate(pieces)}
            (folder / name).write_text(json.dumps(ids, indent=1, ensure_ascii=False), encoding="utf-8")
    pad = len(src) - 1
    config = {
        **COMMON, **SHAPE, "vocab_size": len(src), "pad_token_id": pad, "decoder_start_token_id": pad,
        "eos_token_id": eos, "forced_eos_token_id": eos, "bad_words_ids": [[pad]], **changes,
    }  # fmt: skip
    if separate:
        config |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": len(tgt or src)}
    settings = {"source_lang": "en", "target_lang": "zh", "model_max_length": 512, "separate_vocabs": separate}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    weights = tensors(config, len(src), len(tgt or src), seed)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return config
