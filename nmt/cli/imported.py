"""`nmt import`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from nmt.cli.options import JsonOption, SrcLangOption, TgtLangOption, show_result
from nmt.system.console import log

if TYPE_CHECKING:  # imported when the command runs
    from nmt.interop.importing import ImportedRun


def import_model(
    model: Annotated[str, Argument(metavar="FOLDER", help="MarianMT model: a folder, a zip of Marian's, or hf:NAME.")],
    name: Annotated[str | None, Option(help="Name of the run. Default: that of the folder.")] = None,
    src_lang: SrcLangOption = None,
    tgt_lang: TgtLangOption = None,
    tgt_tag: Annotated[
        str | None, Option(metavar="TAG", help="Default target language of a multilingual model: deu.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Import a MarianMT model, such as OPUS-MT's, as a run: from a Hugging Face folder, or from Marian's own files.

    Like a trained run, it translates, and can be evaluated, exported and fine-tuned (`nmt train --init-from`).
    """
    from nmt.interop.importing import PREFIX, download
    from nmt.interop.importing import import_model as do_import
    from nmt.runs.folder import run_named

    folder, full_name = Path(model), None
    if model.startswith(PREFIX):
        full_name = model.removeprefix(PREFIX)
        folder, name = download(full_name), name or full_name.rsplit("/", 1)[-1]
    imported = do_import(folder, name, src_lang, tgt_lang, tgt_tag, full_name)
    run_named(Path(imported.run).name).remember_as_latest()
    for note in imported.notes:
        log.warning(note)
    show_result(as_json, imported.model_dump(), _lines(imported), link=imported.run)


def _lines(imported: "ImportedRun") -> Iterator[str]:
    src, tgt = imported.pieces
    yield f"{imported.run}: {imported.name}, {imported.src_lang} -> {imported.tgt_lang}"
    yield f"  {imported.parameters:,} parameters, vocabularies of {src:,} and {tgt:,} pieces"
    yield f"  license: {imported.license or 'not stated'}"
    if imported.tgt_tags:
        chosen = imported.tgt_tag or "none chosen: nmt translate --tgt-tag TAG"
        yield f"  target languages: {', '.join(imported.tgt_tags)} ({chosen})"
