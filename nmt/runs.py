"""The run folder: its paths, the latest run, its lock, and the one place that writes files.

Everything except metrics.jsonl, which is appended to, is written to a temporary name beside its
place, flushed to the disk, then renamed: whoever is killed at any instant leaves the old file or the
new one, never half of one. A disk is changed by `write_bytes`, `append`, `flush_one` and `rename` alone;
the tests have each call of each of them fail.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nmt.config import Config
from nmt.config_file import load_config
from nmt.errors import ConfigError, RunError
from nmt.locks import locked

RUNS = Path("runs")
# What is half written is in a folder beside its place that is called `.NAME.` + eight characters + this.
_TEMPORARY = ".nmt-part"


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file that nobody else knows yet, in a folder that `replacing` gave."""
    with path.open("wb") as file:
        file.write(data)


def append(path: Path, line: str) -> None:
    """Add a line to a file; of a write that fails, a part may stay."""
    with path.open("ab") as file:
        file.write(f"{line}\n".encode())


def flush_one(path: Path) -> None:
    """See to it that a file's content, or a folder's list of names, is on the disk."""
    if os.name != "nt":  # Windows opens no folders and flushes on close
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def rename(path: Path, to: Path) -> None:
    """Give a file or a folder another name; a file that has that name is replaced, at once."""
    path.replace(to)


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Give an empty folder beside `path` for the length of the block; of a kill's, `remove_leftovers` gets rid."""
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_TEMPORARY, dir=path.parent))
    try:
        yield holder
    finally:
        shutil.rmtree(holder, ignore_errors=True)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write a file or a folder at; it becomes `path` if the block ends well.

    Replacing a folder takes two renames; a kill between them leaves the old one in the folder `beside`, as `old`, from
    where `remove_leftovers` fetches it. Nothing replaces a checkpoint: each has a name of its own.
    """
    with beside(path) as holder:
        temporary, old = holder / path.name, holder / "old"
        try:
            yield temporary
            flush(temporary)
            if temporary.is_dir() and path.exists():  # a folder cannot be renamed onto another
                rename(path, old)
            rename(temporary, path)
            flush_one(path.parent)
        finally:
            if old.exists() and not path.exists():
                rename(old, path)


def _leftovers(folder: Path) -> Iterator[tuple[Path, str]]:
    """The folders `beside` what was being written in `folder` when a process was killed, and the names of that."""
    for path in folder.glob(f".*{_TEMPORARY}"):
        match = re.fullmatch(rf"\.(.+)\.[a-z0-9_]{{8}}{re.escape(_TEMPORARY)}", path.name, re.DOTALL)
        if match and path.is_dir() and not path.is_symlink():
            yield path, match[1]


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path | None]:
    """As `replacing`, for a folder that several processes may want at once: the first makes it, the others wait.

    Gives None where it is there by then. What one that was killed left of it is cleared away.
    """
    with locked(folder, wait=True):
        if folder.is_dir():
            yield None
            return
        for leftover, name in _leftovers(folder.parent):
            if name == folder.name:
                shutil.rmtree(leftover, ignore_errors=True)
        with replacing(folder) as temporary:
            temporary.mkdir()
            yield temporary


def write_text(path: Path, text: str) -> None:
    """Replace the file's content."""
    with replacing(path) as temporary:
        write_bytes(temporary, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace the file's content with indented JSON."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file of a run; `RunError` if it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None


def flush(path: Path) -> None:
    """See to it that a file, or a folder with all in it, is on the disk."""
    for inner in path.rglob("*") if path.is_dir() else ():
        flush_one(inner)
    flush_one(path)


class RunFolder:
    """The places inside `runs/<name>/`; see the README for what each holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        self.config_file = path / "config.yaml"
        self.tokenizer = path / "tokenizer"
        self.model_file = path / "model.safetensors"
        self.checkpoints = path / "checkpoints"
        self.metrics_file = path / "metrics.jsonl"
        self.evaluation = path / "evaluation"
        self.exports = path / "export"
        self.export_file = path / "export.json"
        self.diagnosis_file = path / "diagnosis.json"
        self.training_file = path / "training.lock"

    def exists(self) -> bool:
        """Whether a training has begun here."""
        return self.config_file.is_file()

    def is_export(self) -> bool:
        """Whether this is an export: a folder that holds a model in another engine's form instead of the run's own."""
        return self.export_file.is_file()

    def config(self) -> Config:
        """The run's configuration, every default written out when it was made; `RunError` if it can't be read."""
        try:
            return load_config(self.config_file)
        except ConfigError as error:
            raise RunError(
                f"{error}\n{self.path}: this run was made by another version of nmt, or its config.yaml was changed; "
                f"use that version, or set right what is named above"
            ) from None

    def remember_as_latest(self) -> None:
        """Make this the run that commands without `--model` take."""
        write_text(self.path.parent / "latest", self.name + "\n")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training here for the length of the block; `RunError` if another one does now."""
        with locked(self.path, wait=False) as is_ours:
            if not is_ours:
                who = self._who_trains() or "by another process"
                raise RunError(f"{self.path}: is being trained ({who}); wait for that, or take another --name")
            yield

    @contextlib.contextmanager
    def signed(self) -> Iterator[str]:
        """Leave word in the folder of who trains here, for the length of the block; only under the lock.

        Gives who else began such a block and vanished in it, killed or with the whole machine; '' if nobody did. The
        folder is made if need be, and removed if nothing comes of it.
        """
        vanished = self._who_trains()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            began = time.strftime("%Y-%m-%d %H:%M:%S")
            who = f"process {os.getpid()} on {socket.gethostname()}, begun {began}\n"
            write_bytes(self.training_file, who.encode())
            yield vanished
        finally:
            self.training_file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def _who_trains(self) -> str:
        """What the last `signed` block wrote that has not ended, or ''."""
        try:
            return self.training_file.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def remove_leftovers(self) -> None:
        """Clear away what a kill left half written, and fetch back what it left aside; only under the lock.

        Whatever else there is stays, hidden or not: the folder is the user's.
        """
        for folder in (self.path, self.checkpoints):
            for leftover, name in list(_leftovers(folder)):
                if (leftover / "old").exists() and not (folder / name).exists():
                    rename(leftover / "old", folder / name)
                shutil.rmtree(leftover, ignore_errors=True)

    def set_aside(self) -> Path:
        """Rename the folder to the first free `<name>.old<N>`; nothing of it is lost."""
        number = 1
        while (target := self.path.with_name(f"{self.name}.old{number}")).exists():
            number += 1
        rename(self.path, target)
        return target


def run_named(name: str) -> RunFolder:
    """The folder for a run to be trained, under the current directory."""
    if not re.fullmatch(r"[^\s./\\]([^/\\\x00-\x1f]*[^\s/\\\x00-\x1f])?", name) or name in ("latest", "cache"):
        raise RunError(f"a run cannot be called {name!r}: the name becomes a folder under {RUNS}/")
    if len(name.encode(errors="surrogateescape")) > 200:  # a file's name has at most 255 bytes, and ours add to it
        raise RunError(f"a run cannot be called {name[:20]!r}...: the name becomes a folder's, and is too long; --name")
    run = RunFolder(RUNS / name)
    for folder in (RUNS, run.path):
        if os.path.lexists(folder) and not folder.is_dir():
            raise RunError(f"{folder}: is not a folder, and the run {name} needs it to be one; move it out of the way")
    _refuse_links(run)
    return run


def open_run(model: str | None) -> RunFolder:
    """The trained run, or the export of one, that a command works on.

    `model` is a folder's path or a run's name under `runs/`; without it, the newest run.
    Raises `RunError` if there is no such run, it has no model yet, or a link in it leads elsewhere.
    """
    if model is None:
        try:
            model = str(RUNS / (RUNS / "latest").read_text(encoding="utf-8").strip())
        except (OSError, ValueError):
            raise RunError(
                f"there is no {RUNS}/latest here: train a model first (nmt train FILE), or name one (--model RUN)"
            ) from None
    if not model or "\0" in model or max(map(len, os.fsencode(model).split(b"/"))) > 255:
        raise RunError(f"--model {model[:100]!r}: no run can have this name")
    run = RunFolder(Path(model))
    if not run.exists() and ((RUNS / model / "config.yaml").is_file() or not run.path.is_dir()):
        run = RunFolder(RUNS / model)
    if not run.path.is_dir():
        others = sorted(path.parent.name for path in RUNS.glob("*/config.yaml"))
        raise RunError(f"{model}: no such run" + (f"; under {RUNS}/ there are {', '.join(others)}" if others else ""))
    if not run.exists():
        raise RunError(f"{run.path}: not a run folder (it has no config.yaml)")
    if not run.model_file.is_file() and not run.is_export():
        raise RunError(f"{run.path}: no model yet; its training has not reached a first validation")
    _refuse_links(run)
    return run


def _refuse_links(run: RunFolder) -> None:
    """`RunError` if a link in the folder leads out of it: whoever made the run must not choose what is read or written.

    The folder itself may be reached through a link.
    """
    inside = Path(os.path.realpath(run.path))
    for folder, folders, files in os.walk(run.path):  # unlike rglob, it bears folders that vanish: somebody may train
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
                raise RunError(
                    f"{path}: a link that leads out of the run; put in its place what it leads to, or move the whole "
                    f"run and link its folder"
                )


def open_runs(models: Sequence[str | Path] | None) -> list[RunFolder]:
    """The trained runs whose models translate together, as `open_run` finds them; without any, the newest alone."""
    if models is None:
        return [open_run(None)]
    if not models:
        raise RunError("no run is named")
    return [open_run(str(model)) for model in models]
