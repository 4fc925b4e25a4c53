"""Export of a run's model as a package for Argos Translate and LibreTranslate.

    RUN -> translate-en_de-RUN/{metadata.json, model/, sentencepiece.model, README.md}
        -> RUN/export/argos/RUN.argosmodel

A package is searched as Argos Translate does (argostranslate 1.11, `translate.apply_packaged_translation`): its one
SentencePiece model splits the source and joins the translation, `</s>` is not appended to the source, `_` becomes a
space, and the length penalty is 0.2. `translate_as_argos` repeats these steps for the verification.
"""

import dataclasses
import functools
import re
import shutil
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt.config.inference import DecodingConfig
from nmt.config.languages import base_language
from nmt.decoding.ctranslate2_engine import import_ctranslate2
from nmt.decoding.hypothesis import forbidden_ids
from nmt.errors import RunError
from nmt.interop.ctranslate2 import prepare_ctranslate2, remedy, write_model
from nmt.interop.verification import PLAIN_SEARCH, ExportedRun, Prepared, describe, verify
from nmt.runs.folder import RunFolder
from nmt.system.files import replacing, write_bytes, write_json, write_text

BEAM_SIZE, LENGTH_PENALTY, BATCH_TOKENS = 4, 0.2, 32
"""Argos Translate's own settings."""
_POSITIONS = 1_025
"""CTranslate2 cuts sources after 1,024 pieces, and Argos Translate sets no other limit."""
_MAX_LENGTH = 256
"""CTranslate2's limit for a translation, which Argos Translate keeps."""
# Argos's own codes; all others are ISO 639-1.
_CODES = {"zh-Hant": "zt", "zh-TW": "zt", "zh-HK": "zt", "pt-BR": "pb"}
_LANGUAGES = """
    ar=Arabic az=Azerbaijani bg=Bulgarian bn=Bengali ca=Catalan cs=Czech da=Danish de=German el=Greek en=English
    eo=Esperanto es=Spanish et=Estonian eu=Basque fa=Persian fi=Finnish fr=French ga=Irish gl=Galician he=Hebrew
    hi=Hindi hr=Croatian hsb=Upper_Sorbian hu=Hungarian id=Indonesian is=Icelandic it=Italian ja=Japanese ko=Korean
    ky=Kyrgyz lt=Lithuanian lv=Latvian ms=Malay nb=Norwegian_(Bokmål) nl=Dutch pb=Portuguese_(Brazil) pl=Polish
    pt=Portuguese ro=Romanian ru=Russian sk=Slovak sl=Slovenian sq=Albanian sr=Serbian sv=Swedish th=Thai tl=Tagalog
    tr=Turkish uk=Ukrainian ur=Urdu vi=Vietnamese zh=Chinese zt=Chinese_(traditional)
"""
_NAMES: dict[str, str] = {code: name for code, _, name in (pair.partition("=") for pair in _LANGUAGES.split())}


def export_argos(
    run: RunFolder,
    quantization: str = "int8",
    src: Path | None = None,
    ref: Path | None = None,
    device: str = "auto",
    max_lines: int | None = None,
) -> ExportedRun:
    """Write RUN/export/argos/RUN.argosmodel, if it translates as PyTorch does, with the search of Argos Translate.

    PyTorch, too, uses Argos's beam size and length penalty. The text is that of `export_ctranslate2`. Raises `RunError`
    for a model without SentencePiece models, and `ExportError` if the BLEU differs too much.
    """
    prepared = prepare_ctranslate2(run, quantization, src, ref, device, max_lines)
    config = prepared.config
    source_model, notes = _pieces(prepared)
    codes = argos_code(config.data.src_lang), argos_code(config.data.tgt_lang)
    name = re.sub(r"[^\w.-]", "_", run.name)
    folder = run.exports / "argos"
    file = folder / f"{name}.argosmodel"
    usage = [f"argospm install {file}", f'argos-translate --from {codes[0]} --to {codes[1]} "..."',
             "LibreTranslate: install it so before the server starts; docs/exporting.md"]  # fmt: skip
    max_length = min(_MAX_LENGTH, config.model.max_positions - 1)
    changes = PLAIN_SEARCH | {"length_penalty": LENGTH_PENALTY, "max_length": max_length, "min_length": 1}
    decodings = [config.decoding.model_copy(update=changes | {"beam_size": size}) for size in (1, BEAM_SIZE)]

    with replacing(folder) as temporary:
        package = temporary / f"translate-{codes[0]}_{codes[1]}-{name}"
        (package / "model").mkdir(parents=True)
        never = forbidden_ids(prepared.tokenizers.tgt.special)  # Argos forbids none of them
        write_model(prepared.model, prepared.tokenizers, quantization, package / "model", never, _POSITIONS)
        write_bytes(package / "sentencepiece.model", source_model)
        version = time.strftime("%Y.%m.%d", time.gmtime(run.model_file.stat().st_mtime))
        write_json(package / "metadata.json", metadata(codes, version))
        translate = functools.partial(translate_as_argos, package)
        comparisons = verify(prepared, file, decodings, translate, False, remedy("argos", run, quantization))
        result = describe(run, folder, "argos", usage, comparisons, quantization, notes)
        write_text(package / "README.md", _readme(result, codes))
        write_json(package / "export.json", dataclasses.asdict(result))
        _zip(package, temporary / file.name)
        shutil.copyfile(package / "export.json", temporary / "export.json")
        shutil.rmtree(package)
    return result


def argos_code(language: str) -> str:
    """Argos's code for a language: `zt` for traditional Chinese, `pb` for Brazilian Portuguese, else ISO 639."""
    return _CODES.get(language) or base_language(language)


def metadata(codes: tuple[str, str], version: str) -> dict[str, Any]:
    """The content of a package's metadata.json.

    The version is a date, higher than the versions of Argos's own packages, so that no update replaces this one.
    """
    names = [_NAMES.get(code, code).replace("_", " ") for code in codes]
    return {
        "package_version": version,
        "argos_version": "1.0",
        "from_code": codes[0],
        "from_name": names[0],
        "to_code": codes[1],
        "to_name": names[1],
    }


def translate_as_argos(package: Path, lines: Sequence[str], decoding: DecodingConfig) -> list[str]:
    """Translate each line as one sentence; an empty line gives an empty one."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(package / "sentencepiece.model"))
    translator = import_ctranslate2().Translator(str(package / "model"), device="cpu")
    translations = [""] * len(lines)
    rows = [row for row, line in enumerate(lines) if line.strip()]
    results = translator.translate_batch(
        [processor.encode(lines[row], out_type=str) for row in rows],
        replace_unknowns=True,
        max_batch_size=BATCH_TOKENS,
        batch_type="tokens",
        beam_size=decoding.beam_size,
        num_hypotheses=1,
        length_penalty=LENGTH_PENALTY,
    )
    for row, result in zip(rows, results, strict=True):
        text = processor.decode_pieces(result.hypotheses[0]).replace("▁", " ").replace("_", " ")
        translations[row] = text.removeprefix(" ")
    return translations


def _pieces(prepared: Prepared) -> tuple[bytes, tuple[str, ...]]:
    """The SentencePiece model that splits sources and joins translations, and notes about it."""
    run, kind = prepared.run, prepared.config.tokenizer.type
    src, tgt = prepared.tokenizers.src, prepared.tokenizers.tgt
    if src.model is None or tgt.model is None:
        raise RunError(
            f"{run.path}: an Argos package holds a SentencePiece model, and tokenizer.type is {kind}; train with "
            f"model.preset: argos, which says so before training"
        )
    if kind == "marian" and src.special.tags:
        raise RunError(f"{run.path}: this model reads target tags such as {src.pieces(src.special.tags)[0]} before "
                       f"each source, which no Argos package can add")  # fmt: skip
    if (num_positions := len(prepared.model.src_positions.extended(_POSITIONS))) < _POSITIONS:
        raise RunError(
            f"{run.path}: Argos Translate translates sentences of up to 1,024 pieces, and this model has learned "
            f"{num_positions:,} positions (model.max_positions); train with model.positions: "
            f"sinusoidal, or max_positions: {_POSITIONS} and text of that length"
        )
    if src.model == tgt.model:
        return src.model, ()
    if tgt.byte_ids and not src.byte_ids:
        raise RunError(
            f"{run.path}: an Argos package joins translations with the SentencePiece model of the source, which has no "
            f"pieces for single bytes, while that of the target has; train with model.preset: argos"
        )
    # Unknown pieces are returned unchanged, and Argos replaces their mark of a space.
    return src.model, ("an Argos package joins translations with the source's SentencePiece model; compared as such",)


def _readme(result: ExportedRun, codes: tuple[str, str]) -> str:
    """The package's README."""
    of = f"It was made from {result.base.name}.\n" if result.base else ""
    beam = result.comparisons[-1]
    return f"""# {codes[0]} to {codes[1]}
A translation model for Argos Translate and LibreTranslate, trained with nmt. {of}
- Licence: {result.license}
- SHA-256 of the weights it was made from: {result.model.sha256}
- On {beam.lines:,} lines of its validation text, this package has {beam.export_score.value:.2f} BLEU, and the model in
  PyTorch {beam.torch_score.value:.2f} (beam {beam.beam_size}; {beam.export_score.signature}).

Argos Translate writes a space instead of `_`.
"""


def _zip(folder: Path, file: Path) -> None:
    """Write a zip archive with the folder at its top; the same content gives the same bytes."""
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(folder.parent).as_posix())
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                with path.open("rb") as content, archive.open(entry, "w", force_zip64=True) as target:
                    shutil.copyfileobj(content, target, 1 << 20)
