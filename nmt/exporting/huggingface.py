"""Export of a run's model as a MarianMT folder of Hugging Face's, for transformers and what is built on it.

    RUN -> RUN/export/huggingface/{config.json, generation_config.json, model.safetensors, source.spm, target.spm,
                                   vocab.json[, target_vocab.json], tokenizer_config.json, README.md, export.json}

MarianMT's decoder starts with `<pad>`, the last id. Our own vocabularies have `<pad>` and `<s>`: our row of `<pad>`,
which no model ever uses, is left out, and that of `<s>` becomes the row of the `<pad>` there. Imported models have
MarianMT's ids already, and their tensors and tokenizer files go out as they came.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt.atomic import replacing, write_bytes, write_json, write_text
from nmt.checkpoint import weights_of
from nmt.config.inference import DecodingConfig, InferenceConfig, TransformerConfig
from nmt.data.marian import MarianFiles, is_marian
from nmt.data.tokenizer import SentencePieceTokenizer, Tokenizer, Tokenizers, load_tokenizers
from nmt.decoding.torch_engine import load_model
from nmt.device import choose_device
from nmt.errors import RunError
from nmt.exporting.description import ExportedRun, describe, exportable, text_config_error, write_description
from nmt.exporting.proof import Verification, check, compare, greedy_and_beam, proof_text
from nmt.exporting.transformers_search import import_transformers, translate_with_transformers
from nmt.insight.model_card import CardFacts, CardScores, check_card_options, model_card
from nmt.marian.names import LOGITS_BIAS, hugging_face_names
from nmt.models.transformer import Transformer
from nmt.runs import RunFolder

EOS, UNK, PAD = "</s>", "<unk>", "<pad>"


def export_huggingface(
    run: RunFolder,
    src: Path | None = None,
    ref: Path | None = None,
    device: str = "auto",
    license: str | None = None,
    max_lines: int | None = None,
) -> ExportedRun:
    """Write the run's model to RUN/export/huggingface/, if transformers translates as nmt does.

    They are compared on the text of `export_ctranslate2`, without length penalty. Where MarianMT cannot express a part
    of an imported model, the export is kept, and a note says what it costs. Raises `RunError` for a model that MarianMT
    cannot express, with what to train instead, and `ExportError` if the translations differ by more than is allowed.
    """
    check_card_options(license, ())
    config = exportable(run).inference_config()
    if config.source.type != "text":
        raise text_config_error(run, config.source.type, "MarianMT")
    architecture = _architecture(run, config)
    text = proof_text(run, src, ref, device, max_lines)
    import_transformers()
    choose_device(device)
    tokenizers = load_tokenizers(run.tokenizer)
    sides = _sides(run, tokenizers)
    model = load_model(run, tokenizers)
    assert isinstance(model, Transformer)
    lacking = _lacking(architecture)
    # Without what transformers does otherwise: it counts `</s>` in the length, for example.
    changes = {"length_penalty": 0.0, "max_length_ratio": 1000.0, "no_repeat_ngram_size": 0,
               "forbidden_words": (), "lower_capitals": False, "copied": ()}  # fmt: skip
    decoding = config.decoding.model_copy(update=changes)
    folder = run.exports / "huggingface"

    def translate(lines: Sequence[str], decoding: DecodingConfig) -> list[str]:
        return translate_with_transformers(temporary, lines, decoding)

    with replacing(folder) as temporary:
        temporary.mkdir()
        save_file(_tensors(model, architecture, sides), temporary / "model.safetensors", metadata={"format": "pt"})
        write_json(temporary / "config.json", _config(architecture, sides))
        write_json(temporary / "generation_config.json", _generation(config, sides, tokenizers.tgt))
        write_json(temporary / "tokenizer_config.json", _tokenizer_config(config, tokenizers.joint))
        _write_tokenizer(run, tokenizers, sides, temporary)
        comparisons = compare(run, config, text, greedy_and_beam(decoding), translate)
        if not lacking:
            check(comparisons, folder, run, is_exact=True)
        description = describe(run, "huggingface", license)
        result = ExportedRun(
            str(run.path), str(folder), "huggingface", comparisons, _usage(folder), None, _notes(lacking, comparisons)
        )
        write_text(temporary / "README.md", _card(run, config, result, description, model))
        write_description(temporary / "export.json", description, result)
    return result


class _Side(NamedTuple):
    """The vocabulary of one side there."""

    ids: list[int]
    """Our id of each of theirs."""
    pieces: list[str]
    start: int
    """Their id of the decoder's first input."""

    @property
    def vocabulary(self) -> dict[str, int]:
        """vocab.json."""
        return {piece: index for index, piece in enumerate(self.pieces)}


class _Sides(NamedTuple):
    src: _Side
    tgt: _Side


def _architecture(run: RunFolder, config: InferenceConfig) -> TransformerConfig:
    """The model section; `RunError` if MarianMT cannot express the model, with the keys that would make it fit."""
    model = config.model
    if model.architecture != "transformer":
        raise RunError(f"{run.path}: MarianMT models are Transformers, and model.architecture is {model.architecture}")
    allowed = {"norm": ("post",), "activation": ("relu", "gelu", "swish"), "positions": ("sinusoidal",)}
    values = dict(model)
    wrong = [
        f"model.{key} is {values[key]}, not {' or '.join(ones)}"
        for key, ones in allowed.items()
        if values[key] not in ones
    ]
    if model.layout == "nmt":
        wrong.append("its sine waves alternate, its decoder starts from <s>")
    if config.tokenizer.type == "word":
        wrong.append("tokenizer.type is word, not one of SentencePiece's")
    if wrong:
        raise RunError(
            f"{run.path}: MarianMT cannot express this model: {'; '.join(wrong)}; train with model.preset: marian, "
            f"which sets these keys"
        )
    return model


def _lacking(config: TransformerConfig) -> list[str]:
    """What MarianMT has otherwise, though little depends on it."""
    if config.layout != "marian":
        return []
    epsilon = config.of_layout.norm_epsilon
    return ["Marian's own wavelengths of the positions", f"its epsilon {epsilon:g} of normalisations (it has 1e-05)"]


def _notes(lacking: Sequence[str], comparisons: Sequence[Verification]) -> tuple[str, ...]:
    if not lacking:
        return ()
    best = comparisons[-1]
    now, before = best.export_score.value, best.torch_score.value
    what = " and ".join(lacking)
    return (f"MarianMT cannot express {what}: {now:.2f} BLEU here instead of {before:.2f}; CTranslate2 can",)


def _sides(run: RunFolder, tokenizers: Tokenizers) -> _Sides:
    """The vocabularies; `RunError` if the special ids of two would differ."""
    src, tgt = (_side(one, is_marian(run.tokenizer)) for one in (tokenizers.src, tokenizers.tgt))
    for piece in (EOS, UNK, PAD):
        if src.vocabulary[piece] != tgt.vocabulary[piece]:
            raise RunError(
                f"{run.path}: in MarianMT, {piece} has the same id in both vocabularies, and these have "
                f"{len(src.ids):,} and {len(tgt.ids):,} pieces; train with tokenizer.joint: true, or with bpe or "
                f"unigram, whose vocabularies have the same size"
            )
    return _Sides(src, tgt)


def _side(tokenizer: Tokenizer, as_it_is: bool) -> _Side:
    """All ids as they are; or all but our own `<pad>` and `<s>`, and then that of `<s>`, which is `<pad>` there."""
    special, ids = tokenizer.special, list(range(tokenizer.vocab_size))
    if as_it_is:
        return _Side(ids, tokenizer.pieces(ids), special.start)
    ids = [index for index in ids if index not in (special.pad, special.start)]
    return _Side([*ids, special.start], [*tokenizer.pieces(ids), PAD], len(ids))


def _tensors(model: Transformer, config: TransformerConfig, sides: _Sides) -> dict[str, Tensor]:
    """The weights by Hugging Face's names, rows in the order of its ids; layers that share theirs have copies there."""
    once = weights_of(model)
    every = {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}
    ours = {name: value for name, value in every.items() if name in once or name.startswith(("encoder.", "decoder."))}
    tensors = {}
    for name, theirs in hugging_face_names(ours, config.tie_embeddings).items():
        value = ours[name]
        if name.startswith(("src_embedding", "tgt_embedding", "output")):
            side = sides.src if name.startswith("src") else sides.tgt
            value = value[side.ids]
            if config.of_layout.zero_start and "embedding" in name:
                value[side.start] = 0
        tensors[theirs] = value[None] if theirs == LOGITS_BIAS else value
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}


def _config(config: TransformerConfig, sides: _Sides) -> dict[str, Any]:
    special = sides.tgt.vocabulary
    layers = {
        f"{side}_{key}": value
        for side, number in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers))
        for key, value in (("layers", number), ("attention_heads", config.num_heads), ("ffn_dim", config.d_ff))
    }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": config.d_model,
        **layers,
        "activation_function": config.activation,
        "scale_embedding": config.of_layout.scale_embeddings,
        "max_position_embeddings": config.max_positions,
        "dropout": config.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "static_position_embeddings": True,
        "vocab_size": len(sides.src.ids),
        "decoder_vocab_size": len(sides.tgt.ids),
        "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
        "tie_word_embeddings": config.tie_embeddings != "none",
        "pad_token_id": special[PAD],
        "eos_token_id": special[EOS],
        "bos_token_id": special[EOS],  # unused; OPUS-MT's models have this
        "decoder_start_token_id": sides.tgt.start,
        "forced_eos_token_id": None,
        "torch_dtype": "float32",
    }


def _generation(config: InferenceConfig, sides: _Sides, tokenizer: Tokenizer) -> dict[str, Any]:
    """The search of the run's configuration; impossible pieces are masked before the softmax, as ours are."""
    special, decoding = sides.tgt.vocabulary, config.decoding
    tags = [special[piece] for piece in tokenizer.pieces(tokenizer.special.tags)]
    return {
        "num_beams": decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "early_stopping": decoding.beam_size > 1,
        "min_new_tokens": decoding.min_length,
        "max_length": decoding.max_length + 1,  # with the start
        "bad_words_ids": [[index] for index in dict.fromkeys((special[PAD], special[UNK], sides.tgt.start, *tags))],
        "renormalize_logits": True,
        "pad_token_id": special[PAD],
        "eos_token_id": special[EOS],
        "decoder_start_token_id": sides.tgt.start,
        "do_sample": False,
    }


def _tokenizer_config(config: InferenceConfig, joint: bool) -> dict[str, Any]:
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.data.src_lang,
        "target_lang": config.data.tgt_lang,
        "separate_vocabs": not joint,
        "model_max_length": min(512, config.model.max_positions),
        "unk_token": UNK,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "sp_model_kwargs": {},
    }


def _write_tokenizer(run: RunFolder, tokenizers: Tokenizers, sides: _Sides, folder: Path) -> None:
    """The SentencePiece models and vocabularies; those of an imported model byte for byte."""
    if is_marian(run.tokenizer):
        files = MarianFiles.load(run.tokenizer)
        write_bytes(folder / "source.spm", files.source_spm)
        write_bytes(folder / "target.spm", files.target_spm)
        write_bytes(folder / "vocab.json", files.vocabulary)
        if files.target_vocabulary is not None:
            write_bytes(folder / "target_vocab.json", files.target_vocabulary)
        return
    for tokenizer, name in ((tokenizers.src, "source"), (tokenizers.tgt, "target")):
        assert isinstance(tokenizer, SentencePieceTokenizer), "words are refused"
        tokenizer.save(folder / name).rename(folder / f"{name}.spm")
    write_text(folder / "vocab.json", json.dumps(sides.src.vocabulary, ensure_ascii=False, indent=0))
    if not tokenizers.joint:
        write_text(folder / "target_vocab.json", json.dumps(sides.tgt.vocabulary, ensure_ascii=False, indent=0))


def _usage(folder: Path) -> tuple[str, ...]:
    return (
        f'model = transformers.MarianMTModel.from_pretrained("{folder}")',
        f'tokenizer = transformers.MarianTokenizer.from_pretrained("{folder}")',
        'ids = model.generate(**tokenizer(["..."], return_tensors="pt", padding=True))',
        "tokenizer.batch_decode(ids, skip_special_tokens=True)",
    )


def _card(
    run: RunFolder, config: InferenceConfig, result: ExportedRun, description: dict[str, Any], model: Transformer
) -> str:
    base = description["base"]
    best = result.comparisons[-1]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    made_from = "Trained with nmt." if base is None else f"Made with nmt from {base['name']} ({base['license']})."
    code = "\n".join(result.usage).replace(str(result.folder), f"./{run.name}")
    limits = ["\n".join(result.notes)] if result.notes else []
    return model_card(
        CardFacts(
            name=run.name,
            source="text",
            src_lang=config.data.src_lang,
            tgt_lang=config.data.tgt_lang,
            scores=[CardScores("text of the export's check", "validation", {"bleu": best.export_score})],
            description=f"A MarianMT model with {parameters:,} parameters. {made_from}",
            usage=f"```python\nimport transformers\n\n{code}\n```",
            training=f"{made_from}\n\nSHA-256 of the weights it was made from: {description['model']['sha256']}",
            limits="\n\n".join([*limits, "It knows the kind of text that it was trained on, and no other."]),
            license=description["license"],
            library="transformers",
            base_model=base["name"] if base is not None and "/" in base["name"] else None,
        )
    )
