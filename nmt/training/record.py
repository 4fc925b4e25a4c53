"""The record of a training, training.json: its data, its model, and the machine and versions of each of its starts.

A start writes it before its first update; a report reads it later.
"""

import contextlib
import datetime
import platform
from collections.abc import Mapping
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from nmt.cleaning.normalize import CleaningCounts
from nmt.config.corpus import CorpusFiles
from nmt.config.source import SourceConfig
from nmt.config.training import Config
from nmt.corpora.hashes import corpus_hashes
from nmt.errors import RunError
from nmt.runs.folder import Recorded, RunFolder
from nmt.system.files import write_json
from nmt.system.processes import available_cores, processor_name
from nmt.training.preparation import TrainingInputs
from nmt.training.resuming import check_same
from nmt.version import __version__

# Packages that affect the weights or the scores.
_PACKAGES = ("numpy", "sentencepiece", "sacrebleu")


class RecordedFile(Recorded):
    """A text file, identified by its content."""

    path: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RecordedCorpus(Recorded):
    """Both sides of a corpus."""

    src: RecordedFile
    tgt: RecordedFile
    """The same as `src`, if one file holds both."""

    @property
    def files(self) -> tuple[RecordedFile, ...]:
        """The two files, or the one."""
        return tuple(dict.fromkeys((self.src, self.tgt)))


class RecordedBase(Recorded):
    """The base model of a training."""

    run: str
    """The folder of its run."""
    model: RecordedFile
    """model.safetensors then."""
    test: dict[str, RecordedCorpus]
    """The test sets to score before and after, by name."""
    test_files: dict[str, CorpusFiles]
    """Their files, and how they are read."""


class Start(Recorded):
    """A start of a training: the first, or a resume."""

    step: int
    """Number of updates made before it."""
    time: str
    """ISO 8601, with the offset from UTC."""
    versions: dict[str, str]
    """nmt, Python, and the packages that affect the weights or the scores."""
    machine: str
    """The processor or the GPU, in words."""
    system: str
    device: str
    precision: str
    """torch's name: `float32`, for example."""
    processes: int
    threads: int
    """Of each process."""
    changed: tuple[str, ...] = ()
    """The settings that this resume changed: `key: old -> new`."""


class TrainingRecord(Recorded):
    """The content of training.json."""

    folder: str
    """The directory that the training was started in."""
    train: tuple[RecordedCorpus, ...]
    validation: RecordedCorpus
    test: dict[str, RecordedCorpus]
    pairs: dict[str, int]
    """Training pairs read and, by rule, dropped: `CleaningCounts.as_dict`."""
    corpus_sizes: tuple[int, ...]
    """Training pairs kept of each corpus."""
    validation_pairs: int
    vocabulary: dict[str, int]
    """Number of pieces: `joint`, or `src` and `tgt`."""
    parameters: dict[str, int]
    """Of each part of the model; shared ones are counted once."""
    init_from: RecordedBase | None = None
    """None for a run that started from random weights."""
    starts: Annotated[tuple[Start, ...], Field(min_length=1)]
    """In order. Updates of a start after the step of the next one were lost."""

    @property
    def counts(self) -> CleaningCounts:
        """Training pairs read and dropped."""
        return CleaningCounts.of(self.pairs)


def record_start(
    config: Config,
    run: RunFolder,
    prepared: TrainingInputs,
    parameters: Mapping[str, int],
    resumed_at: int | None,
    processes: int,
    base: RecordedBase | None = None,
) -> None:
    """Write training.json, or add this start to it if the training is resumed at a step.

    The run's config.yaml must still be that of the start before.
    """
    now = datetime.datetime.now(datetime.UTC).astimezone().isoformat(timespec="seconds")
    step = resumed_at or 0
    old = None
    with contextlib.suppress(RunError):  # a damaged record must not prevent a resume
        old = None if resumed_at is None else read_record(run)
    earlier = () if old is None else old.starts
    kept = [start for start in earlier if start.step < step]
    changed = [line for start in earlier[len(kept) :] for line in start.changed]  # these changes stay in config.yaml
    if resumed_at is not None:
        changed += check_same(run.config(), config, run)
    start = Start(
        step=step,
        time=now,
        # torch's own name of its version says which build it is.
        versions={"nmt": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
        | {package: version_of(package) for package in _PACKAGES},
        machine=_machine(prepared.device),
        system=f"{platform.system()} {platform.machine()}",
        device=str(prepared.device),
        precision=str(prepared.dtype).removeprefix("torch."),
        processes=processes,
        threads=torch.get_num_threads(),
        changed=tuple(dict.fromkeys(changed)),  # a kill may have left config.yaml as it was
    )
    record = _described(config, prepared, parameters, base, start) if old is None else old
    record = record.model_copy(update={"starts": (*kept, start)})
    write_json(run.record_file, record.model_dump(mode="json"))


def read_record(run: RunFolder) -> TrainingRecord | None:
    """The run's record; None if there is none, as in an imported or averaged run. `RunError` if it is damaged."""
    return TrainingRecord.read(run.record_file) if run.record_file.is_file() else None


def _described(
    config: Config, prepared: TrainingInputs, parameters: Mapping[str, int], base: RecordedBase | None, start: Start
) -> TrainingRecord:
    data, corpus, tokenizers = config.data, prepared.corpus, prepared.tokenizers
    sizes = {"src": tokenizers.src.vocab_size, "tgt": tokenizers.tgt.vocab_size}
    return TrainingRecord(
        folder=str(Path.cwd()),
        train=tuple(recorded_corpus(files, config.source) for files in data.train),
        validation=recorded_corpus(data.validation, config.source),
        test={name: recorded_corpus(files, config.source) for name, files in data.test.items()},
        pairs=corpus.counts.as_dict(),
        corpus_sizes=corpus.sizes,
        validation_pairs=len(prepared.validation.src),
        vocabulary={"joint": sizes["src"]} if tokenizers.joint else sizes,
        parameters=dict(parameters),
        init_from=base,
        starts=(start,),
    )


def recorded_corpus(files: CorpusFiles, source: SourceConfig) -> RecordedCorpus:
    """A corpus with the hashes of its files; `DataError` if one cannot be read."""
    src, tgt = (digest.hex() for digest in corpus_hashes([files], source))
    return RecordedCorpus(
        src=RecordedFile(path=str(files.src_file), sha256=src), tgt=RecordedFile(path=str(files.tgt_file), sha256=tgt)
    )


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores = available_cores()
    return f"{processor_name()}, {cores} {'core' if cores == 1 else 'cores'}"
