"""The runs that a distillation uses: which can teach, and what they have seen of the student's held-out text."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from nmt.config.corpus import CorpusFiles
from nmt.config.file import load_config
from nmt.config.training import Config
from nmt.data.selection import select
from nmt.data.statistics import survey
from nmt.decoding.engines import shared_tokenizers
from nmt.errors import ConfigError, NmtError
from nmt.inheritance import load_run_config, starting_run
from nmt.runs import RunFolder, open_run

MOST = 0.5
"""The share of a held-out set that no teacher may have learned. A few of its pairs are in any training text by chance,
as short sentences are."""
log = logging.getLogger(__name__)


def open_teachers(names: Sequence[str], config: Config, folder: Path) -> list[RunFolder]:
    """The runs that teach a student of this configuration in `folder`.

    Raises `ConfigError` or `RunError` for one that cannot, or for several that are no ensemble.
    """
    runs = [open_run(name) for name in names]
    for number, run in enumerate(runs):
        if run.path.resolve() in [other.path.resolve() for other in runs[:number]]:
            raise ConfigError(f"--teacher {run.path}: is named twice; an ensemble has different models")
        if run.path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"--teacher {run.path}: is in the folder of its student; choose another --folder")
        if run.is_export():
            raise ConfigError(f"--teacher {run.path}: is an export; name the run that it was made from")
        there = run.inference_config()
        if there.source.type != "text":
            raise ConfigError(f"--teacher {run.path}: reads {there.source.type}, and the student reads text")
        languages = [(data.src_lang, data.tgt_lang) for data in (there.data, config.data)]
        if languages[0] != languages[1]:
            old, new = ("-".join(pair) for pair in languages)
            raise ConfigError(f"--teacher {run.path}: translates {old}, and the student {new}; name another run")
    shared_tokenizers(runs)
    return runs


def load_student(path: Path, overrides: Sequence[str], folder: Path) -> Config:
    """The student's configuration, in which `training.init_from` is an absolute path.

    Raises `ConfigError` or `RunError` for a run that the student cannot start from: in the student's `folder`, or with
    another model, tokenizer or languages.
    """
    config = load_config(path, overrides)
    if (name := config.training.init_from) is None:
        return config
    run = starting_run(name)
    if run.path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"training.init_from: {run.path} is in the folder of the student; choose another --folder")
    load_run_config(path, overrides, RunFolder(folder), is_fresh=True)  # refuses another model now, not when it starts
    training = config.training.model_copy(update={"init_from": str(run.path.resolve())})
    return config.model_copy(update={"training": training})


def check_teachers(names: Sequence[str], held_out: Mapping[str, CorpusFiles]) -> None:
    """Log how many pairs of each held-out set each of these runs has learned, or that it is not known.

    They are the teachers, and the run that the student starts from. Raises `ConfigError` for one that has learned most
    of a set: the student's score there would say nothing.
    """
    for teacher in names:
        try:
            data = open_run(teacher).config().data
            languages = data.src_lang, data.tgt_lang
            selection = select(data.train, data.cleaning, languages, data.excluded_from_training)
            found = survey(data.train, held_out, selection=selection).held_out
        except NmtError as error:
            log.warning("%s: whether it has learned the student's held-out text is not known: %s", teacher, error)
            continue
        for name, (size, count) in found.items():
            if count > MOST * size:
                raise ConfigError(
                    f"{teacher}: has learned {count:,} of the {size:,} pairs of the student's {name}, whose score "
                    f"would say nothing; name another run, or other text, in another --folder"
                )
            if count:
                log.warning("%s: has learned %d of the %d pairs of the student's %s", teacher, count, size, name)
