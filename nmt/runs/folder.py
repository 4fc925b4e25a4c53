"""The run folder: its paths, its lock, and how a command finds it."""

import contextlib
import itertools
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from nmt.config.inference import InferenceConfig
from nmt.config.reading import holds_training_config, load_config, load_inference_config
from nmt.config.section import first_problem
from nmt.config.training import Config, EvaluationConfig
from nmt.errors import ConfigError, RunError
from nmt.system.files import leftovers, locked, read_json, rename, replacing, write_bytes, write_text

RUNS = Path("runs")


class Recorded(BaseModel):
    """Base of the records in a run's JSON files; a damaged file is an error, an unknown key is not."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True, allow_inf_nan=False)

    @classmethod
    def read(cls, path: Path, remedy: str = "restore or remove the file") -> Self:
        """The content of a file; `RunError` if it is damaged."""
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            raise RunError(f"{path}: {first_problem(error)}; {remedy}") from None


class RunFolder:
    """A run folder, `runs/<name>/`: its paths, which docs/run-folder.md describes, its configuration and its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        self.config_file = path / "config.yaml"
        self.tokenizer = path / "tokenizer"
        self.model_file = path / "model.safetensors"
        self.checkpoints = path / "checkpoints"
        self.metrics_file = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.evaluation = path / "evaluation"
        self.exports = path / "export"
        self.export_file = path / "export.json"
        self.average_file = path / "average.json"
        self.diagnosis_file = path / "diagnosis.json"
        self.record_file = path / "training.json"
        self.cleaning_file = path / "cleaning.tsv"
        self.report = path / "report"
        self.report_page = self.report / "index.html"
        self.fine_tuned_file = path / "fine_tuned.safetensors"
        self.training_file = path / "training.lock"

    def exists(self) -> bool:
        """True if a training has started here, or a model was written here."""
        return self.config_file.is_file()

    def has_checkpoints(self) -> bool:
        """True if there is a training to resume here."""
        return bool(checkpoint_steps(self.checkpoints))

    def is_export(self) -> bool:
        """True for an export, whose only model is in another engine's format."""
        return self.export_file.is_file()

    @property
    def weights_file(self) -> Path:
        """The file that identifies the weights of this run or export."""
        return self.export_file if self.is_export() else self.model_file

    def inference_config(self) -> InferenceConfig:
        """The inference sections: languages, tokenizer, model, decoding; `RunError` if they can't be read."""
        with self._readable_config():
            return load_inference_config(self.config_file)

    def has_training_config(self) -> bool:
        """True if there are training sections, too; an export has none."""
        with self._readable_config():
            return holds_training_config(self.config_file)

    def config(self, remedy: str = "name a run that was trained here") -> Config:
        """The whole configuration, with the defaults at the time when the run was made.

        Raises `RunError` if it can't be read, or with `remedy` if it holds the inference sections only.
        """
        if not self.has_training_config():
            raise RunError(f"{self.path}: holds no training configuration (it was exported or imported); {remedy}")
        with self._readable_config():
            return load_config(self.config_file)

    def evaluation_config(self) -> EvaluationConfig:
        """The evaluation section; the defaults where there is no training configuration."""
        return self.config().evaluation if self.has_training_config() else EvaluationConfig()

    @contextlib.contextmanager
    def _readable_config(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            raise RunError(
                f"{error}\n{self.path}: this run was made by another version of nmt, or its config.yaml was changed; "
                f"use that version, or correct what is named above"
            ) from None

    def remember_as_latest(self) -> None:
        """Make this the default of `--model`."""
        write_text(self.path.parent / "latest", self.name + "\n")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock against other trainings in the `with` block; `RunError` if another process holds it."""
        with locked(self.path, wait=False) as is_ours:
            if not is_ours:
                trainer = self.marked_trainer() or "by another process"
                raise RunError(f"{self.path}: is being trained ({trainer}); wait for it, or choose another --name")
            yield

    @contextlib.contextmanager
    def marked_as_training(self) -> Iterator[str]:
        """Record in the folder which process trains here, within the `with` block; only under the lock.

        Yields the record of an earlier process that was killed in such a block, or ''. The folder is created if needed,
        and removed if it stays empty.
        """
        killed = self.marked_trainer()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            trainer = f"process {os.getpid()} on {socket.gethostname()}, started {now}\n"
            write_bytes(self.training_file, trainer.encode())
            yield killed
        finally:
            self.training_file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def marked_trainer(self) -> str:
        """The record of a `marked_as_training` block that has not ended, or ''; after a kill, it stays."""
        try:
            return self.training_file.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def remove_leftovers(self) -> None:
        """Remove unfinished files that a kill left, and restore replaced ones; only under the lock.

        All other files stay, hidden or not.
        """
        for folder in (self.path, self.checkpoints):
            for leftover, name in list(leftovers(folder)):
                if (leftover / "old").exists() and not (folder / name).exists():
                    rename(leftover / "old", folder / name)
                shutil.rmtree(leftover, ignore_errors=True)

    def keep_model(self, step: int) -> None:
        """Copy the model of this step to a file that the next model will not replace."""
        kept = self.path / f"model.{step}.safetensors"
        if not kept.exists():  # otherwise the copy was made before a kill
            with replacing(kept) as temporary:
                shutil.copyfile(self.model_file, temporary)

    def set_aside(self) -> Path:
        """Rename the folder to the first free `<name>.old<N>`."""
        target = unused(self.path.with_name(f"{self.name}.old"))
        rename(self.path, target)
        return target


def unused(path: Path, first: int = 1) -> Path:
    """The first of PATH1, PATH2, ... that does not exist."""
    paths = (path.with_name(f"{path.name}{number}") for number in itertools.count(first))
    return next(path for path in paths if not os.path.lexists(path))


def checkpoint_steps(checkpoints: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    return sorted(int(path.name) for path in checkpoints.glob("*") if path.name.isascii() and path.name.isdecimal())


def run_named(name: str) -> RunFolder:
    """The folder for a run to be trained, under the current directory."""
    if not re.fullmatch(r"[^\s./\\]([^/\\\x00-\x1f]*[^\s/\\\x00-\x1f])?", name) or name in ("latest", "cache"):
        raise RunError(f"a run cannot be called {name!r}: the name becomes a folder under {RUNS}/")
    if len(name.encode(errors="surrogateescape")) > 200:  # a file's name has at most 255 bytes, and suffixes are added
        raise RunError(f"a run cannot be called {name[:20]!r}...: the name is too long for a folder; give another")
    run = RunFolder(RUNS / name)
    for folder in (RUNS, run.path):
        if os.path.lexists(folder) and not folder.is_dir():
            raise RunError(f"{folder}: is not a folder; move it, so that the run {name} can have a folder there")
    _refuse_links(run)
    return run


def open_run(model: str | None) -> RunFolder:
    """The trained run, or the export, that a command works on, found as by `find_run`.

    Raises `RunError`, too, if it has no model yet.
    """
    run = find_run(model)
    if not run.model_file.is_file() and not run.is_export():
        raise RunError(f"{run.path}: no model yet; its training has not reached a first validation")
    return run


def find_run(model: str | None) -> RunFolder:
    """The run or export of a name; its training may have just begun, so that there is not even a config.yaml.

    `model` is a folder's path or a run's name under `runs/`; without it, the newest run.
    Raises `RunError` if there is no such run, or a link in it leads out of it.
    """
    if model is None:
        if not (latest := latest_in(RUNS)):
            raise RunError(
                f"there is no {RUNS}/latest here: train a model first (nmt train FILE), or name one (--model RUN)"
            )
        model = str(RUNS / latest)
    if not model or "\0" in model or max(map(len, os.fsencode(model).split(b"/"))) > 255:
        raise RunError(f"--model {model[:100]!r}: no run can have this name")
    run = RunFolder(Path(model))
    if not run.exists() and ((RUNS / model / "config.yaml").is_file() or not run.path.is_dir()):
        run = RunFolder(RUNS / model)
    if not run.path.is_dir():
        others = run_names()
        raise RunError(f"{model}: no such run" + (f"; under {RUNS}/ there are {', '.join(others)}" if others else ""))
    has_vocabulary_alone = run.tokenizer.is_dir() and not run.model_file.is_file()
    if not (run.exists() or run.marked_trainer() or has_vocabulary_alone):
        raise RunError(f"{run.path}: not a run folder (it has no config.yaml)")
    _refuse_links(run)
    return run


def latest_in(folder: Path) -> str:
    """The name of the newest run in a folder of runs; '' if it is not known."""
    try:
        return (folder / "latest").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def run_names() -> list[str]:
    """The runs under `runs/`, sorted."""
    return sorted(path.parent.name for path in RUNS.glob("*/config.yaml"))


def _refuse_links(run: RunFolder) -> None:
    """`RunError` if a link in the folder leads out of it: a run's author must not choose what is read or written.

    The folder itself may be a link.
    """
    inside = Path(os.path.realpath(run.path))
    for folder, folders, files in os.walk(run.path):  # unlike rglob, it ignores folders that a training removes
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
                raise RunError(
                    f"{path}: a link that leads out of the run; replace it by a copy of its target, or move the whole "
                    f"run and link its folder"
                )


def open_runs(models: Sequence[str | Path] | None) -> list[RunFolder]:
    """The runs of an ensemble, or the only one, each found as by `open_run`; None means the newest."""
    if models is None:
        return [open_run(None)]
    if not models:
        raise RunError("the list of models is empty; name at least one run")
    return [open_run(str(model)) for model in models]
