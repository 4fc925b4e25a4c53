"""Sequence-level knowledge distillation (Kim and Rush 2016, arXiv:1606.07947): the text that a student learns.

Its teachers give N translations of each training source; of these, the most probable one and the one nearest to the
reference, by sentence chrF (their section 3.4 has BLEU), become two corpora:

    text/real/train.en  ->  text/translated/1.jsonl  ->  text/best/1.txt, text/nearest/1.txt
"""

import functools
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from sacrebleu.metrics.chrf import CHRF

from nmt.atomic import leftovers, read_json, write_json, write_text
from nmt.config.corpus import CorpusFiles
from nmt.config.data import DataConfig
from nmt.config.file import settings_to_yaml
from nmt.config.training import Config
from nmt.data.hashes import corpus_hashes, file_hash
from nmt.data.holdout import with_hold_outs
from nmt.data.lines import read_lines
from nmt.data.profiling import cleaned_names, profile_corpora, write_cleaned
from nmt.decoding.files import Files, made_from, translate_files
from nmt.decoding.parallel import line_translator
from nmt.decoding.records import as_json
from nmt.errors import ConfigError, DataError, RunError
from nmt.improving.teachers import check_teachers
from nmt.locks import locked
from nmt.runs import RunFolder

STUDENT = "student"
"""The name of the run."""
_FILES = set(CorpusFiles.model_fields)
log = logging.getLogger(__name__)


class Distillation(NamedTuple):
    """A request to `nmt distill`."""

    teachers: Sequence[RunFolder]
    folder: Path
    """Gets the texts, the student's configuration, and its run."""
    mono_src: Path | None = None
    """Text in the source language alone."""
    n_best: int = 8
    """Translations of each source, of which the best one and the one nearest to the reference are learned."""
    keep_real: bool = False
    """Whether the student also learns from the pairs as people wrote them."""


def write_student(request: Distillation, config: Config) -> Path:
    """Translate the text of a student's configuration, and write the one that learns it, which is returned.

    What is there is not made again. `ConfigError` for a configuration that is no student's, teachers that have learned
    its held-out text, or a folder that was begun with others; `RunError` if another process is at work there.
    """
    if config.source.type != "text":
        raise ConfigError(f"the sources of this configuration are {config.source.type}, and nmt distill reads text")
    folder = request.folder
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=False, leaves_no_file=True) as is_ours:
        if not is_ours:
            raise RunError(f"{folder}: another process is at work here; wait for it, or choose another --folder")
        data = with_hold_outs(config, lambda line: None).data
        if data.validation.holdout == 0:
            raise ConfigError(
                "data.validation: the training pairs would say which model is best; give more pairs, or files"
            )
        data = data.model_copy(update={"cleaning": data.cleaning.model_copy(update={"overlap": True})})
        _begin(request, data)
        excluded = {f"exclude.{number}": files for number, files in enumerate(data.exclude, start=1)}
        start = config.training.init_from
        names = [*(str(teacher.path) for teacher in request.teachers), *([] if start is None else [start])]
        check_teachers(names, {**data.held_out, **excluded})
        file = folder / f"{STUDENT}.yaml"
        sections = _student(config, data, [_relative(corpus, folder) for corpus in _corpora(request, data)])
        write_text(file, f"# Written by nmt distill.\n{settings_to_yaml(sections)}")
    return file


def _begin(request: Distillation, data: DataConfig) -> None:
    """Record what the text to learn depends on; `ConfigError` if the folder has that of something else."""
    folder, mono_src = request.folder, request.mono_src
    record = {
        "teachers": [[str(run.path.resolve()), file_hash(run.model_file).hex()] for run in request.teachers],
        "mono_src": mono_src and [str(mono_src.resolve()), file_hash(mono_src).hex()],
        "n_best": request.n_best,
        "keep_real": request.keep_real,
        **{f"data.{key}": value for key, value in data.model_dump(mode="json").items()},
        "text": [digest.hex() for digest in corpus_hashes([*data.train, *data.excluded_from_training])],
    }
    file = folder / "distill.json"
    if not file.exists():
        if {*folder.iterdir()} - {path for path, name in leftovers(folder) if name == file.name}:
            raise ConfigError(f"{folder}: is not a folder of nmt distill, and not empty; name another with --folder")
        write_json(file, record)
    old = read_json(file)
    if changed := [key for key, value in record.items() if old.get(key) != value]:
        raise ConfigError(
            f"{folder}: was begun with another {changed[0]} ({json.dumps(old.get(changed[0]))} before, "
            f"{json.dumps(record[changed[0]])} now); give another --folder, or the same options"
        )
    for place in (folder, folder / "text", *folder.glob("text/*")):
        for leftover, _ in list(leftovers(place)):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)


def _corpora(request: Distillation, data: DataConfig) -> list[dict[str, Any]]:
    """What the student learns from, as in `data.train`, with paths as seen from here."""
    text, languages = request.folder / "text", (data.src_lang, data.tgt_lang)
    if not (text / "real").exists():
        cleaned = profile_corpora(data.train, languages, data.cleaning, {}, data.excluded_from_training)
        write_cleaned(cleaned, languages, text / "real")
    real, taught = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, (files, names) in enumerate(
        zip(data.train, cleaned_names(data.train, languages), strict=True), start=1
    ):
        src, tgt = (text / "real" / name for name in names)
        if not src.stat().st_size:
            continue  # no pair is left
        keys = files.model_dump(mode="json", exclude=_FILES, exclude_defaults=True)  # such as its weight
        real.append({**keys, "src": src, "tgt": tgt})
        n_best = _translated(request, src, text / "translated" / f"{number}.jsonl", request.n_best)
        choices = {"best": functools.partial(best_lines, n_best)}
        if request.n_best > 1:
            choices["nearest"] = functools.partial(nearest_lines, n_best, tgt)
        for choice, lines in choices.items():
            file = text / choice / f"{number}.txt"
            if not file.exists():
                write_text(file, lines())
            taught.append({**keys, "src": src, "tgt": file})
    if request.mono_src is not None:
        output = _translated(request, request.mono_src, text / "translated" / "mono_src.txt", None)
        taught.append({"src": request.mono_src.absolute(), "tgt": output})
    return [*(real if request.keep_real else []), *taught]


def _translated(request: Distillation, source: Path, output: Path, n_best: int | None) -> Path:
    """Write the teachers' translations of a text, a line each, or `n_best` of each as JSON; returns `output`.

    One translation is of the teachers' own search; for several, the beam is as wide.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    files = Files(source, output)
    if files.are_finished():
        return output
    decoding = request.teachers[0].inference_config().decoding
    if n_best is not None and n_best > 1:
        decoding = decoding.model_copy(update={"beam_size": n_best})
    record = attrgetter("text") if n_best is None else functools.partial(as_json, n_best=n_best)
    # An export may be there or not, after a kill; it may choose another translation where two are equally good.
    with line_translator([str(run.path) for run in request.teachers], decoding, engine="torch") as translator:
        made_by = made_from(files, request.teachers, decoding, translator.engine_name)
        log.info("%s: translating %s", output, source)
        log.info("%s: %s", output, translate_files(translator, files, made_by, resume=True, record=record))
    return output


def _student(config: Config, data: DataConfig, corpora: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The user's configuration, with these corpora, the held-out text in its files, and nothing of that learned."""
    sections: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    held_out = {name: files.model_dump(mode="json", include=_FILES) for name, files in data.held_out.items()}
    sections["data"] |= {
        "train": corpora,
        "src_lang": data.src_lang,
        "tgt_lang": data.tgt_lang,
        "validation": held_out.pop("validation"),
        "test": {name.removeprefix("test."): files for name, files in held_out.items()},
        "cleaning": {**sections["data"].get("cleaning", {}), "overlap": True},
    }
    return sections


def _relative(corpus: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The corpus with paths as seen from the folder, if they are in it."""
    paths = {key: corpus[key] for key in ("src", "tgt")}
    near = {key: path.relative_to(folder) if path.is_relative_to(folder) else path for key, path in paths.items()}
    return {**corpus, **{key: path.as_posix() for key, path in near.items()}}


def nearest_lines(n_best: Path, references: Path) -> str:
    """For each line of `nmt translate --json --n-best N`, the translation nearest to its line of the references.

    Of equal ones it is the first, which a search finds more probable. `DataError` if the files differ in length.
    """
    metric, found = CHRF(), list[str]()
    try:
        for texts, reference in zip(_translations(n_best), read_lines(references), strict=True):
            scores = [metric.sentence_score(text, [reference]).score for text in texts]
            found.append(texts[scores.index(max(scores))])
    except ValueError as error:
        raise DataError(f"{n_best}: is not the translation of {references} ({error}); remove it") from None
    return "".join(f"{text}\n" for text in found)


def best_lines(n_best: Path) -> str:
    """For each line of `nmt translate --json --n-best N`, the most probable translation."""
    return "".join(f"{texts[0]}\n" for texts in _translations(n_best))


def _translations(n_best: Path) -> Iterator[list[str]]:
    with n_best.open(encoding="utf-8") as file:
        for record in map(json.loads, file):
            yield [one["text"] for one in record["n_best"]] or [record["text"]]  # none: it was copied
