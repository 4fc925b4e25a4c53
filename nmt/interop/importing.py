"""Import of a model: from another program's files to a run folder that translates, exports, and can be fine-tuned.

Models of the Hugging Face Hub are downloaded into huggingface_hub's cache.
"""

import contextlib
import dataclasses
import re
from pathlib import Path

from nmt.config.inference import DecodingConfig, InferenceConfig, TextConfig, TokenizerConfig
from nmt.config.languages import check_language
from nmt.config.reading import to_yaml
from nmt.errors import ConfigError, RunError, import_extra
from nmt.interop.marian_folder import BIN, SAFETENSORS, read_folder
from nmt.interop.marian_model import MAX_POSITIONS, ImportedModel, imported_section
from nmt.interop.marian_npz import read_archive
from nmt.runs.folder import Recorded, RunFolder, run_named
from nmt.runs.weights import write_weights
from nmt.system.files import file_sha256, replacing, write_json, write_text
from nmt.tokenizers.tokenizer import load_tokenizers

PREFIX = "hf:"
_DOWNLOADED = ("*.json", "*.spm", "README.md")
_READ = (".json", ".spm", ".md", ".yml", ".npz", ".safetensors", ".bin")
_PAIR = re.compile(r"opus-mt-(?:tc-(?:big|base)-|big-)?([A-Za-z_]+)-([A-Za-z_]+)")


class ImportedRun(Recorded):
    """An imported model: the content of its imported.json."""

    run: str
    name: str
    """The model's name on the hub, or else its folder's name."""
    revision: str | None
    """The commit on the hub."""
    format: str
    license: str | None
    files: dict[str, str]
    """SHA-256 of each file, by name."""
    parameters: int
    pieces: tuple[int, int]
    """Sizes of the vocabularies of source and target."""
    src_lang: str
    tgt_lang: str
    tgt_tags: tuple[str, ...]
    """Tags of the target languages; empty for a model of one."""
    tgt_tag: str | None
    notes: tuple[str, ...]


def download(name: str) -> Path:
    """Download the model `name` (`Helsinki-NLP/opus-mt-en-de`) unless it is cached; return its folder.

    Raises `MissingExtraError` if huggingface_hub is not installed, and `RunError` if there is no such model or no
    network.
    """
    hub = import_extra("huggingface_hub", "hf")
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=[*_DOWNLOADED, SAFETENSORS]))
        if not (folder / SAFETENSORS).is_file():
            folder = Path(hub.snapshot_download(name, allow_patterns=[*_DOWNLOADED, BIN]))
    except (OSError, ValueError, RuntimeError, hub.errors.HfHubHTTPError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise RunError(f"{PREFIX}{name}: cannot be downloaded: {first[0][:300]}") from None
    return folder


def import_model(
    folder: Path,
    name: str | None,
    src_lang: str | None,
    tgt_lang: str | None,
    tgt_tag: str | None,
    full_name: str | None = None,
) -> ImportedRun:
    """Write a run folder for the model in `folder`, which is not changed.

    Languages and the target tag that are None come from the files, or from the `full_name` of a downloaded model,
    which is recorded instead of the folder's name. Raises `RunError` for files that are no such model, and
    `ConfigError` for unknown languages or tags, and for the name of an existing run.
    """
    if not folder.exists():
        raise RunError(f"{folder}: no such folder or zip; name one with a MarianMT model")
    is_hugging_face = (folder / "config.json").is_file()
    is_marian = folder.suffix == ".zip" or (folder / "decoder.yml").is_file() or any(folder.glob("*.npz"))
    if not is_hugging_face and not is_marian:
        raise RunError(
            f"{folder}: no model that nmt can import: it has no config.json (Hugging Face), and no decoder.yml and "
            f".npz (Marian)"
        )
    run = run_named(name or _name_of(folder))
    if run.path.exists():
        raise ConfigError(f"{run.path}: exists already; give the imported model another name: --name NAME")
    found = read_folder(folder) if is_hugging_face else read_archive(folder)
    if tgt_tag is not None:
        found = dataclasses.replace(found, tokenizer=found.tokenizer.with_tag(tgt_tag))
    model_name = full_name or _name_of(folder)
    languages = _languages(found, src_lang, tgt_lang, model_name)
    with replacing(run.path) as temporary:
        new = RunFolder(temporary)
        new.tokenizer.mkdir(parents=True)
        found.tokenizer.save(new.tokenizer)
        tokenizers = load_tokenizers(new.tokenizer)
        sizes = tokenizers.src.vocab_size, tokenizers.tgt.vocab_size
        write_text(new.config_file, to_yaml(_config(found, languages, max(sizes), tokenizers.joint, folder)))
        write_weights(found.weights, new.model_file)
        imported = ImportedRun(
            run=str(run.path),
            name=model_name,
            revision=folder.name if full_name else None,  # huggingface_hub names its folders so
            format=found.format,
            license=found.license,
            files={path.name: file_sha256(path) for path in _files(folder)},
            parameters=sum(value.numel() for value in found.weights.values()),
            pieces=sizes,
            src_lang=languages[0],
            tgt_lang=languages[1],
            tgt_tags=tuple(tokenizers.src.pieces(tokenizers.src.special.tags)),
            tgt_tag=found.tokenizer.tgt_tag,
            notes=found.notes,
        )
        write_json(new.path / "imported.json", imported.model_dump())
    return imported


def _config(
    found: ImportedModel, languages: tuple[str, str], vocab_size: int, joint: bool, folder: Path
) -> InferenceConfig:
    longest = MAX_POSITIONS - 1
    decoding = {"max_length": longest, **found.decoding}
    return InferenceConfig(
        data=TextConfig(src_lang=languages[0], tgt_lang=languages[1], max_length=longest),
        tokenizer=TokenizerConfig(type="marian", vocab_size=vocab_size, joint=joint, byte_fallback=False),
        model=found.model,
        decoding=imported_section(DecodingConfig, decoding, folder),
    )


def _languages(found: ImportedModel, src_lang: str | None, tgt_lang: str | None, name: str) -> tuple[str, str]:
    """The languages given, or else those of the target tag, the files or the model's name, if they are codes."""
    match = _PAIR.search(name)
    if tgt_lang is None and found.tokenizer.tgt_tag is not None:
        with contextlib.suppress(ValueError):  # a tag may also be something else
            tgt_lang = check_language(found.tokenizer.tgt_tag.strip("<>"))
    named = match.groups() if match else (None, None)
    codes = []
    for given, stated, option in (
        (src_lang, found.languages[0] or named[0], "--src-lang"),
        (tgt_lang, found.languages[1] or named[1], "--tgt-lang"),
    ):
        try:
            codes.append(check_language(given if given is not None else (stated or "")))
        except ValueError as error:
            if given is not None:
                raise ConfigError(f"{option} {given}: {error}") from None
            said = f"say {stated!r}, which is no single language" if stated else "do not say the language"
            raise ConfigError(f"{name}: its files {said}; give it: {option} CODE") from None
    return codes[0], codes[1]


def _name_of(path: Path) -> str:
    return (path.resolve() if path.name in ("", "..") else path).name.removesuffix(".zip")


def _files(path: Path) -> list[Path]:
    """The files of a model that are read; Hugging Face's folders often hold the weights in other formats, too."""
    if not path.is_dir():
        return [path]
    files = sorted(one for one in path.iterdir() if one.suffix in _READ or one.name == "LICENSE")
    return [one for one in files if one.name != BIN or not (path / SAFETENSORS).is_file()]
