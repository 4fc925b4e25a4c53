"""Sequence-level knowledge distillation (Kim and Rush 2016, arXiv:1606.07947): the text that a student learns.

The teachers give N translations of each training source. The most probable one and the one nearest to the reference,
by sentence chrF (BLEU in the paper's section 3.4), become two corpora. The steps, with their files in the student's
folder; files that exist are not made again:

    clean        data.train               ->  text/real/train.en, text/real/train.de
    translate    text/real/train.en       ->  text/translated/1.jsonl
    choose       text/translated/1.jsonl  ->  text/best/1.txt, text/nearest/1.txt
    configure    the student's YAML       ->  student.yaml, with which nmt train trains it
"""

import functools
import json
import shutil
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from sacrebleu.metrics.chrf import CHRF

from nmt.cleaning.holdout import with_hold_outs
from nmt.cleaning.selection import cleaned_names, judge_corpora, select, write_cleaned
from nmt.config.corpus import CorpusFiles
from nmt.config.data import DataConfig
from nmt.config.reading import load_config, settings_to_yaml
from nmt.config.training import Config
from nmt.corpora.hashes import corpus_hashes, file_hash
from nmt.corpora.lines import read_lines
from nmt.decoding.engines import shared_tokenizers
from nmt.decoding.files import Files, made_from, translate_files
from nmt.decoding.translator import as_json, load
from nmt.errors import ConfigError, DataError, NmtError, RunError
from nmt.runs.base import base_run, load_run_config
from nmt.runs.folder import RunFolder, open_run, run_named
from nmt.system.console import log
from nmt.system.distributed import ALONE
from nmt.system.files import leftovers, locked, read_json, write_json, write_text
from nmt.tokenizers.statistics import survey
from nmt.training.start import train_in_processes

MAX_LEARNED = 0.5
"""The share of a held-out set that a teacher may have learned. Some short sentences are in any training text by
chance."""


def write_student(
    file: Path,
    overrides: Sequence[str],
    teachers: Sequence[str],
    folder: Path,
    mono_src: Path | None = None,
    n_best: int = 8,
    keep_real: bool = False,
) -> Path:
    """Translate the training text of a student's configuration; write and return the configuration that learns it.

    The student also learns the translations of `mono_src`, a text in the source language alone, and with `keep_real`
    the pairs as people wrote them. Raises `ConfigError` or `RunError` for an unsuitable configuration or base model,
    teachers of other languages or sources, teachers that have learned its held-out text, and a folder that was begun
    with others, or in which another process is at work.
    """
    config = load_config(file, overrides)
    if config.source.type != "text":
        raise ConfigError(f"the sources of this configuration are {config.source.type}, and nmt distill reads text")
    bases = []
    if config.training.init_from is not None:
        bases.append(base_run(config.training.init_from))
        load_run_config(file, overrides, RunFolder(folder), is_fresh=True)  # refuses another model now, not later
    runs = _opened(teachers, config)
    for key, run in [*(("training.init_from", run) for run in bases), *(("--teacher", run) for run in runs)]:
        if run.path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{key}: {run.path} is in the folder of the student; choose another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=False, leaves_no_file=True) as is_ours:
        if not is_ours:
            raise RunError(f"{folder}: another process is at work here; wait for it, or choose another --folder")
        data = with_hold_outs(config).data
        if data.validation.holdout == 0:
            raise ConfigError(
                "data.validation: the training pairs would choose the best model; give more pairs, or files"
            )
        data = data.model_copy(update={"cleaning": data.cleaning.model_copy(update={"overlap": True})})
        record = {
            "teachers": [[str(run.path.resolve()), file_hash(run.model_file).hex()] for run in runs],
            "mono_src": mono_src and [str(mono_src.resolve()), file_hash(mono_src).hex()],
            "n_best": n_best,
            "keep_real": keep_real,
            **{f"data.{key}": value for key, value in data.model_dump(mode="json").items()},
            "text": [digest.hex() for digest in corpus_hashes([*data.train, *data.excluded_from_training])],
        }
        _begin(folder, record)
        _check_learned([*runs, *bases], data)
        real, taught = _corpora(folder, data, runs, n_best)
        if mono_src is not None:
            taught.append({"src": str(mono_src.absolute()), "tgt": "text/translated/mono_src.txt"})
            _translate(runs, mono_src, folder / "text/translated/mono_src.txt")
        sections = _sections(config, data, [*(real if keep_real else []), *taught])
        if bases:
            sections["training"]["init_from"] = str(bases[0].path.resolve())
        write_text(folder / "student.yaml", f"# Written by nmt distill.\n{settings_to_yaml(sections)}")
    return folder / "student.yaml"


def train_student(file: Path) -> tuple[Config, RunFolder, bool | None]:
    """Train as `nmt train FILE` does in the current folder, that of the student.

    Returns the run with its configuration, and what `train_in_processes` returns.
    """
    run = run_named(file.stem)
    config = load_run_config(file, (), run, False)
    return config, run, train_in_processes(config, run, False, ALONE, False, ["train", str(file)])


def _opened(teachers: Sequence[str], config: Config) -> list[RunFolder]:
    """The teachers; `ConfigError` or `RunError` for an unsuitable one, or for several that are no ensemble."""
    runs = [open_run(name) for name in teachers]
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise ConfigError("--teacher: a run is named twice; an ensemble has different models")
    for run in runs:
        there = run.inference_config()
        old, new = (f"{data.src_lang}-{data.tgt_lang}" for data in (there.data, config.data))
        if run.is_export():
            raise ConfigError(f"--teacher {run.path}: is an export; name the run that it was made from")
        if there.source.type != "text":
            raise ConfigError(f"--teacher {run.path}: reads {there.source.type}, and the student reads text")
        if old != new:
            raise ConfigError(f"--teacher {run.path}: translates {old}, and the student {new}; name another run")
    shared_tokenizers(runs)
    return runs


def _begin(folder: Path, record: Mapping[str, Any]) -> None:
    """Record what the text to learn depends on; `ConfigError` if the folder was begun with something else."""
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


def _check_learned(runs: Sequence[RunFolder], student: DataConfig) -> None:
    """Warn of pairs in the student's held-out sets that a run has learned, or that this is unknown.

    Raises `ConfigError` if a run has learned most of a set: the student's score on it would be meaningless.
    """
    excluded = {f"exclude.{number}": files for number, files in enumerate(student.exclude, start=1)}
    held_out: dict[str, CorpusFiles] = {**student.held_out, **excluded}
    for run in runs:
        try:
            data = run.config().data
            languages = data.src_lang, data.tgt_lang
            selection = select(data.train, data.cleaning, languages, data.excluded_from_training)
            learned = survey(data.train, held_out, selection=selection).held_out
        except NmtError as error:
            log.warning("%s: cannot tell whether it has learned the student's held-out text: %s", run.path, error)
            continue
        for name, (size, count) in learned.items():
            if count > MAX_LEARNED * size:
                raise ConfigError(
                    f"{run.path}: has learned {count:,} of the {size:,} pairs of the student's {name}, whose score "
                    f"would say nothing; name another run, or other text, in another --folder"
                )
            if count:
                log.warning("%s: has learned %d of the %d pairs of the student's %s", run.path, count, size, name)


def _corpora(
    folder: Path, data: DataConfig, runs: Sequence[RunFolder], n_best: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The cleaned training text and its chosen translations, as in `data.train`, with paths in the folder."""
    languages = data.src_lang, data.tgt_lang
    if not (folder / "text/real").exists():
        cleaning = data.cleaning.model_copy(update={"encoding": True})  # damaged lines are dropped, not refused
        verdicts = judge_corpora(data.train, cleaning, languages, data.excluded_from_training)
        write_cleaned(data.train, verdicts, languages, folder / "text/real")
    real, taught = list[dict[str, Any]](), list[dict[str, Any]]()
    names = cleaned_names(data.train, languages)
    for number, (files, (src_name, tgt_name)) in enumerate(zip(data.train, names, strict=True), start=1):
        src, tgt = f"text/real/{src_name}", f"text/real/{tgt_name}"
        if not (folder / src).stat().st_size:
            continue  # no pair is left
        # The keys of training corpora alone, such as the weight.
        keys = files.model_dump(mode="json", exclude=set(CorpusFiles.model_fields), exclude_defaults=True)
        real.append({**keys, "src": src, "tgt": tgt})
        translations = folder / f"text/translated/{number}.jsonl"
        _translate(runs, folder / src, translations, n_best)
        chosen = [f"text/{choice}/{number}.txt" for choice in ("best", "nearest")[:n_best]]
        if not all((folder / name).exists() for name in chosen):
            for name, lines in zip(chosen, choose(translations, folder / tgt), strict=False):
                write_text(folder / name, "".join(f"{line}\n" for line in lines))
        taught += [{**keys, "src": src, "tgt": name} for name in chosen]
    return real, taught


def _translate(runs: Sequence[RunFolder], source: Path, output: Path, n_best: int | None = None) -> None:
    """Write the teachers' translations of a text, a line each, or `n_best` of each as JSON, unless they exist.

    A single translation is from the teachers' own search; for several, the beam is `n_best` wide.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    files = Files(source, output)
    if files.are_finished():
        return
    decoding = runs[0].inference_config().decoding
    if n_best is not None and n_best > 1:
        decoding = decoding.model_copy(update={"beam_size": n_best})
    record = attrgetter("text") if n_best is None else functools.partial(as_json, n_best=n_best)
    # Always PyTorch: after a kill there may be an export that chooses otherwise between equally good translations.
    translator = load([run.path for run in runs], decoding=decoding, engine="torch", own_process=True)
    made_by = made_from(files, runs, decoding, translator.engine_name)
    log.info("%s: translating %s", output, source)
    log.info("%s: %s", output, translate_files(translator, files, made_by, resume=True, record=record))


def choose(translations: Path, references: Path) -> tuple[list[str], list[str]]:
    """The most probable translations in lines of `nmt translate --json --n-best N`, and those nearest to references.

    Of equally near ones, the more probable is chosen. `DataError` if the files differ in length.
    """
    metric, best, nearest = CHRF(), list[str](), list[str]()
    try:
        with translations.open(encoding="utf-8") as file:
            for record, reference in zip(map(json.loads, file), read_lines(references), strict=True):
                texts = [hypothesis["text"] for hypothesis in record["n_best"]] or [record["text"]]  # none: copied
                scores = [metric.sentence_score(text, [reference]).score for text in texts]
                best.append(texts[0])
                nearest.append(texts[scores.index(max(scores))])
    except ValueError as error:
        raise DataError(f"{translations}: is not the translation of {references} ({error}); remove it") from None
    return best, nearest


def _sections(config: Config, data: DataConfig, corpora: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The user's configuration with these corpora and its held-out text as files, of which no pair is learned."""
    sections: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    held_out = {name: files.file_keys() for name, files in data.held_out.items()}
    sections["data"] |= {
        "train": corpora,
        "src_lang": data.src_lang,
        "tgt_lang": data.tgt_lang,
        "validation": held_out.pop("validation"),
        "test": {name.removeprefix("test."): files for name, files in held_out.items()},
        "cleaning": {**sections["data"].get("cleaning", {}), "overlap": True},
    }
    return sections
