"""Export of a run's model as a MarianMT folder for Hugging Face's transformers.

    RUN -> RUN/export/huggingface/{config.json, generation_config.json, model.safetensors, source.spm, target.spm,
                                   vocab.json[, target_vocab.json], tokenizer_config.json, README.md, export.json}

MarianMT's decoder starts with `<pad>`, the last id. Our own vocabularies have `<pad>` and `<s>`: our row of `<pad>`,
which no model uses, is left out, and that of `<s>` becomes the row of `<pad>` there. Imported models have MarianMT's
ids already; their tensors and tokenizer files are exported unchanged.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt.config.inference import PRESETS, DecodingConfig, InferenceConfig, TransformerConfig
from nmt.errors import RunError, import_extra
from nmt.interop.marian_folder import FIXED
from nmt.interop.marian_model import LOGITS_BIAS, hugging_face_names
from nmt.interop.model_card import CardFacts, CardScores, check_card_options, model_card
from nmt.interop.verification import PLAIN_SEARCH, ExportedRun, Prepared, describe, greedy_and_beam, prepare, verify
from nmt.models.transformer import Transformer
from nmt.runs.folder import RunFolder
from nmt.runs.weights import weights_of
from nmt.system.files import replacing, write_bytes, write_json, write_text
from nmt.tokenizers.marian import EOS, PAD, UNK, MarianFiles, vocabulary_json
from nmt.tokenizers.tokenizer import Tokenizer

CHECK_BATCH = 32  # sentences


def export_huggingface(
    run: RunFolder,
    src: Path | None = None,
    ref: Path | None = None,
    device: str = "auto",
    license: str | None = None,
    max_lines: int | None = None,
) -> ExportedRun:
    """Write the run's model to RUN/export/huggingface/, if transformers translates as nmt does.

    They are compared on the text of `export_ctranslate2`, without length penalty. If MarianMT cannot express a part of
    an imported model, the export is kept, and a note states the cost. Raises `RunError` for a model that MarianMT
    cannot express, with the remedy, and `ExportError` if the translations differ too much.
    """
    check_card_options(license, ())
    prepared = prepare(run, "MarianMT", lambda: import_extra("transformers", "hf"), src, ref, device, max_lines)
    config, tokenizers = prepared.config, prepared.tokenizers
    architecture, sides = _architecture(prepared), _sides(prepared)
    has_all = architecture.layout != "marian"
    # transformers counts `</s>` in the length.
    decodings = greedy_and_beam(config.decoding.model_copy(update=PLAIN_SEARCH | {"length_penalty": 0.0}))
    folder = run.exports / "huggingface"
    usage = (
        f'model = transformers.MarianMTModel.from_pretrained("{folder}")',
        f'tokenizer = transformers.MarianTokenizer.from_pretrained("{folder}")',
        'ids = model.generate(**tokenizer(["..."], return_tensors="pt", padding=True))',
        "tokenizer.batch_decode(ids, skip_special_tokens=True)",
    )

    with replacing(folder) as temporary:
        temporary.mkdir()
        tensors = _tensors(prepared.model, architecture, sides)
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        write_json(temporary / "config.json", _config(architecture, sides))
        write_json(temporary / "generation_config.json", _generation(config, sides, tokenizers.tgt))
        _write_tokenizer(prepared, sides, temporary)
        translate = functools.partial(translate_with_transformers, temporary)
        comparisons = verify(prepared, folder, decodings, translate, True if has_all else None)
        notes: tuple[str, ...] = ()
        if not has_all:
            now, before = comparisons[-1].export_score.value, comparisons[-1].torch_score.value
            notes = (
                f"MarianMT cannot express Marian's own wavelengths of the positions and its epsilon "
                f"{architecture.family.norm_epsilon:g} of normalisations (it has 1e-05): {now:.2f} BLEU here "
                f"instead of {before:.2f}; CTranslate2 can",
            )
        result = describe(run, folder, "huggingface", usage, comparisons, None, notes, license)
        write_text(temporary / "README.md", _card(prepared, result))
        write_json(temporary / "export.json", dataclasses.asdict(result))
    return result


class _Side(NamedTuple):
    """MarianMT's vocabulary of one side."""

    ids: list[int]
    """Our id for each of theirs."""
    vocabulary: dict[str, int]
    """The content of vocab.json."""
    start: int
    """Their id for the decoder's first input."""


def _architecture(prepared: Prepared) -> TransformerConfig:
    """The model section; `RunError` if MarianMT cannot express the model, with the keys to change."""
    run, model = prepared.run, prepared.config.model
    assert model.architecture == "transformer"
    values = dict(model)
    wrong = [
        f"model.{key} is {values[key]}, not {' or '.join(allowed)}"
        for key, allowed in PRESETS["marian"].items()
        if key != "layout" and values[key] not in allowed
    ]
    if model.layout == "nmt":
        wrong.append("its sine waves alternate, its decoder starts from <s>")
    if prepared.config.tokenizer.type == "word":
        wrong.append("tokenizer.type is word, not one of SentencePiece's")
    if wrong:
        raise RunError(
            f"{run.path}: MarianMT cannot express this model: {'; '.join(wrong)}; train with model.preset: marian, "
            f"which sets these keys"
        )
    return model


def _sides(prepared: Prepared) -> tuple[_Side, _Side]:
    """The vocabularies of source and target; `RunError` if their special ids would differ."""
    tokenizers, as_it_is = prepared.tokenizers, prepared.config.tokenizer.type == "marian"
    src, tgt = _side(tokenizers.src, as_it_is), _side(tokenizers.tgt, as_it_is)
    for piece in (EOS, UNK, PAD):
        if src.vocabulary[piece] != tgt.vocabulary[piece]:
            raise RunError(
                f"{prepared.run.path}: in MarianMT, {piece} has the same id in both vocabularies, and these have "
                f"{len(src.ids):,} and {len(tgt.ids):,} pieces; train with tokenizer.joint: true, or with bpe or "
                f"unigram, whose vocabularies have the same size"
            )
    return src, tgt


def _side(tokenizer: Tokenizer, as_it_is: bool) -> _Side:
    """All ids unchanged; or all but our `<pad>` and `<s>`, followed by that of `<s>`, which becomes `<pad>`."""
    special, ids = tokenizer.special, list(range(tokenizer.vocab_size))
    pieces, start = tokenizer.pieces(ids), special.start
    if not as_it_is:
        ids = [index for index in ids if index not in (special.pad, special.start)]
        pieces, start = [*tokenizer.pieces(ids), PAD], len(ids)
        ids.append(special.start)
    return _Side(ids, {piece: index for index, piece in enumerate(pieces)}, start)


def _tensors(model: Transformer, config: TransformerConfig, sides: tuple[_Side, _Side]) -> dict[str, Tensor]:
    """The weights by Hugging Face's names, rows in the order of its ids; layers that share weights get copies."""
    once = weights_of(model)
    every = {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}
    ours = {name: value for name, value in every.items() if name in once or name.startswith(("encoder.", "decoder."))}
    tensors = {}
    for name, theirs in hugging_face_names(ours, config.tie_embeddings).items():
        value = ours[name]
        if name.startswith(("src_embedding", "tgt_embedding", "output")):
            side = sides[0] if name.startswith("src") else sides[1]
            value = value[side.ids]
            if config.family.zero_bos_embedding and "embedding" in name:
                value[side.start] = 0
        tensors[theirs] = value[None] if theirs == LOGITS_BIAS else value
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}


def _config(config: TransformerConfig, sides: tuple[_Side, _Side]) -> dict[str, Any]:
    special = sides[1].vocabulary
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
        "scale_embedding": config.family.scale_embeddings,
        "max_position_embeddings": config.max_positions,
        "dropout": config.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        **FIXED,
        "vocab_size": len(sides[0].ids),
        "decoder_vocab_size": len(sides[1].ids),
        "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
        "tie_word_embeddings": config.tie_embeddings != "none",
        "pad_token_id": special[PAD],
        "eos_token_id": special[EOS],
        "bos_token_id": special[EOS],  # unused; OPUS-MT's models have this
        "decoder_start_token_id": sides[1].start,
        "forced_eos_token_id": None,
        "torch_dtype": "float32",
    }


def _generation(config: InferenceConfig, sides: tuple[_Side, _Side], tokenizer: Tokenizer) -> dict[str, Any]:
    """The search of the run's configuration; impossible pieces are masked before the softmax, as in nmt."""
    special, decoding = sides[1].vocabulary, config.decoding
    tags = [special[piece] for piece in tokenizer.pieces(tokenizer.special.tags)]
    return {
        "num_beams": decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "early_stopping": decoding.beam_size > 1,
        "min_new_tokens": decoding.min_length,
        "no_repeat_ngram_size": decoding.no_repeat_ngram_size,
        "max_length": decoding.max_length + 1,  # with the start
        "bad_words_ids": [[index] for index in dict.fromkeys((special[PAD], special[UNK], sides[1].start, *tags))],
        "renormalize_logits": True,
        "pad_token_id": special[PAD],
        "eos_token_id": special[EOS],
        "decoder_start_token_id": sides[1].start,
        "do_sample": False,
    }


def _write_tokenizer(prepared: Prepared, sides: tuple[_Side, _Side], folder: Path) -> None:
    """Write the tokenizer's files; those of an imported model byte for byte."""
    src, tgt = prepared.tokenizers.src.model, prepared.tokenizers.tgt.model
    assert src is not None and tgt is not None, "words are refused"
    files = {"source.spm": src, "target.spm": tgt, "vocab.json": vocabulary_json(sides[0].vocabulary)}
    if not prepared.tokenizers.joint:
        files["target_vocab.json"] = vocabulary_json(sides[1].vocabulary)
    if prepared.config.tokenizer.type == "marian":
        files = dict(MarianFiles.load(prepared.run.tokenizer).contents)
    for name, content in files.items():
        write_bytes(folder / name, content)
    config = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": prepared.config.data.src_lang,
        "target_lang": prepared.config.data.tgt_lang,
        "separate_vocabs": not prepared.tokenizers.joint,
        "model_max_length": min(512, prepared.config.model.max_positions),
        "unk_token": UNK,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "sp_model_kwargs": {},
    }
    write_json(folder / "tokenizer_config.json", config)


def _card(prepared: Prepared, result: ExportedRun) -> str:
    run, config, base = prepared.run, prepared.config, result.base
    parameters = sum(parameter.numel() for parameter in prepared.model.parameters())
    made_from = f"Made with nmt from {base.name} ({base.license})." if base else "Trained with nmt."
    code = "\n".join(result.usage).replace(result.folder, f"./{run.name}")
    score = result.comparisons[-1].export_score
    return model_card(
        CardFacts(
            name=run.name,
            source="text",
            src_lang=config.data.src_lang,
            tgt_lang=config.data.tgt_lang,
            scores=[CardScores("text of the export's check", "validation", {"bleu": score})],
            validates_on_training_text=prepared.is_training_text,
            description=f"A MarianMT model with {parameters:,} parameters. {made_from}",
            usage=f"```python\nimport transformers\n\n{code}\n```",
            training=f"{made_from}\n\nSHA-256 of the weights it was made from: {result.model.sha256}",
            limits="\n\n".join([*result.notes, "It knows the kind of text that it was trained on, and no other."]),
            license=result.license,
            library="transformers",
            base_model=base.hub_name if base else None,
        )
    )


@torch.inference_mode()
def translate_with_transformers(folder: Path, lines: Sequence[str], decoding: DecodingConfig) -> list[str]:
    """Translate each line by `MarianMTModel.generate` on the CPU; an empty line gives an empty one."""
    transformers = import_extra("transformers", "hf")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # it warns of beam settings that greedy search leaves unused
    model = transformers.MarianMTModel.from_pretrained(str(folder), dtype=torch.float32).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(str(folder))
    beams = {"length_penalty": decoding.length_penalty, "early_stopping": True} if decoding.beam_size > 1 else {}
    translations = [""] * len(lines)
    rows = sorted((row for row, line in enumerate(lines) if line.strip()), key=lambda row: len(lines[row]))
    for start in range(0, len(rows), CHECK_BATCH):
        batch = rows[start : start + CHECK_BATCH]
        ids = model.generate(
            **tokenizer([lines[row] for row in batch], return_tensors="pt", padding=True),
            num_beams=decoding.beam_size,
            **beams,
            min_new_tokens=decoding.min_length,
            no_repeat_ngram_size=decoding.no_repeat_ngram_size,
            max_length=decoding.max_length + 1,  # with the start
        )
        for row, text in zip(batch, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
            translations[row] = text
    return translations
