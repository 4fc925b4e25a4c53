"""What each model and each text of an improvement was made from, by hashes."""

import itertools
import os
from pathlib import Path
from typing import Any

from nmt.data.hashes import file_hash
from nmt.improving.deciding import decision_file, json_text
from nmt.improving.drafting import Draft
from nmt.improving.keeping_apart import check_no_leakage, held_out_files
from nmt.improving.plan import BestRun, Target
from nmt.runs import RunFolder
from nmt.training.record import RecordedCorpus, read_record

MANIFEST = "manifest.json"


def add_manifest(draft: Draft) -> None:
    """The last target: the manifest of all texts and runs, and no leakage into any of them."""
    draft.step = "manifest"
    needs = [target.file for target in draft.targets if _is_made_of_text(target)]
    needs += [decision_file(step) for step in draft.decided]
    draft.own(MANIFEST, needs, lambda: json_text(manifest(draft)))


def manifest(draft: Draft) -> dict[str, Any]:
    """By file: its SHA-256, and those of what it was made from. Of a run, the model and the corpora that it saw.

    Raises `DataError` if one of the texts has a line that is kept apart. Paths are relative to the working folder, and
    nothing says when it was made, so that two improvements can be compared.
    """
    check_no_leakage(draft.text_files(*draft.texts), held_out_files(draft.config))
    found: dict[str, Any] = {"held_out": _hashes_in(Path("text/held_out"))}
    for target in draft.targets:
        if target.file.startswith("text/"):
            path = Path(target.file)
            files = _hashes_in(path.parent) if target.makes_folder else {target.file: _hash(path)}
            found[target.file] = {"files": files, "made_from": _made_from(target)}
        elif _run_of(target.file):
            found[f"runs/{_run_of(target.file)}"] = _run(target)
    return found


def _is_made_of_text(target: Target) -> bool:
    return target.file.startswith("text/") or bool(_run_of(target.file))


def _run_of(file: str) -> str:
    """The run that a target's file stands for, or ''."""
    folder, _, name = file.partition("/")
    return name.removesuffix(".done").partition("/")[0] if folder == "runs" else ""


def _made_from(target: Target) -> dict[str, str]:
    """The hashes of what a target's commands read: for a run, of its model."""
    found = {}
    for file in target.needs:
        run = _run_of(file)
        if run:
            file = _model_of(run)
        if not file.endswith(".best"):
            found[file] = _hash(Path(file))
    for command in target.commands:
        for before, word in itertools.pairwise(command.arguments):
            if before == "--input" and isinstance(word, str):
                found[word] = _hash(Path(word))
            elif isinstance(word, BestRun):
                file = _model_of(Path(word.file).read_text(encoding="utf-8"))
                found[file] = _hash(Path(file))
            elif before == "--model":  # a run that the plan has not made, or one of `needs`
                found[f"{word}/model.safetensors"] = _hash(Path(word, "model.safetensors"))
    return found


def _model_of(run: str) -> str:
    return f"runs/{run}/model.safetensors"


def _run(target: Target) -> dict[str, Any]:
    run = RunFolder(Path("runs") / _run_of(target.file))
    found: dict[str, Any] = {"model": _hash(run.model_file), "made_from": _made_from(target)}
    record = read_record(run)
    if record is not None:
        found["train"] = [_corpus(corpus) for corpus in record.train]
        found["validation"] = _corpus(record.validation)
        if record.init_from is not None:
            found["init_from"] = {Path(record.init_from.run).as_posix(): record.init_from.model.sha256}
    return found


def _corpus(corpus: RecordedCorpus) -> dict[str, str]:
    return {Path(os.path.relpath(file.path)).as_posix(): file.sha256 for file in corpus.files}


def _hashes_in(folder: Path) -> dict[str, str]:
    return {path.as_posix(): _hash(path) for path in sorted(folder.iterdir()) if path.is_file()}


def _hash(path: Path) -> str:
    return file_hash(path).hex()
