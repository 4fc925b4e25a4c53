"""Carrying out a plan on this machine, one target after the other; what is there is not made again."""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from nmt.atomic import leftovers, replacing, write_text
from nmt.errors import RunError, TargetError
from nmt.improving.plan import BestRun, Command, Plan, Target
from nmt.locks import locked
from nmt.processes import python_command

# The command line, in a process that ends when its standard input does: with the one that has started it. `os.read`
# holds no lock, as `sys.stdin` would, at which the interpreter stops when it ends.
_PROGRAM = """import os, threading
def watch():
    os.read(0, 1)
    os._exit(143)
threading.Thread(target=watch, daemon=True).start()
from nmt.cli.main import main
main()
"""


def carry_out(plan: Plan, makers: Mapping[str, Callable[[], str]], folder: Path, say: Callable[[str], None]) -> None:
    """Make all targets of a plan in `folder`.

    What `--make` would make is made in this process, by `makers`, which saves the time to start another.
    Raises `TargetError` with the exit code of the first command that fails; the same call resumes. A command ends with
    this process, even if this one is killed.
    """
    folder.mkdir(exist_ok=True)
    with locked(folder, wait=False, leaves_no_file=True) as is_ours:
        if not is_ours:
            raise RunError(f"{folder}: another process is at work here; wait for it, or choose another --folder")
        _remove_leftovers(folder)
        for number, target in enumerate(plan.targets, start=1):
            if not (folder / target.file).exists():
                say(f"[{number}/{len(plan.targets)}] {target.step}: {target.file}")
                if target.file in makers:
                    with contextlib.chdir(folder):
                        write_text(Path(target.file), makers[target.file]())
                else:
                    _make(target, folder)


def _remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files of killed processes; those inside a run are its training's."""
    inner = [path for path in (*folder.iterdir(), *(folder / "text").glob("*")) if path.is_dir()]
    for place in (folder, *inner):
        for leftover, _ in list(leftovers(place)):
            shutil.rmtree(leftover, ignore_errors=True)


def _make(target: Target, folder: Path) -> None:
    file = folder / target.file
    (folder / target.folder).mkdir(parents=True, exist_ok=True)
    for command in target.commands:
        code = _run(command, folder)
        if code:
            words = " ".join(_words(command, folder))
            raise TargetError(f"{file}: could not be made: nmt {words}; the same command resumes here", code)
    if target.is_stamp:
        write_text(file, "")


def _words(command: Command, folder: Path) -> Iterator[str]:
    """The arguments, with the best run's name where it is needed."""
    for word in command.arguments:
        if isinstance(word, BestRun):
            yield f"runs/{(folder / word.file).read_text(encoding='utf-8')}"
        else:
            yield word


def _run(command: Command, folder: Path) -> int:
    """Run a command in the folder; its exit code."""
    if command.output is None:
        return _run_to(command, folder, subprocess.DEVNULL)
    output = folder / command.output
    with contextlib.suppress(_FailedError), replacing(output) as temporary, temporary.open("wb") as file:
        if code := _run_to(command, folder, file.fileno()):
            raise _FailedError  # so that nothing is put in the output's place
    return code


class _FailedError(Exception):
    """A command has failed, and its output is not to be kept."""


def _run_to(command: Command, folder: Path, output: int) -> int:
    # In a session of its own, so that Ctrl-C reaches it once, through us: a second signal would end it unsaved.
    process = subprocess.Popen(
        python_command(_PROGRAM, *_words(command, folder)),
        cwd=folder, stdin=subprocess.PIPE, stdout=output, start_new_session=True,
    )  # fmt: skip
    try:
        code = process.wait()
    except SystemExit as ending:  # a signal: see nmt.cli.main
        number = ending.code - 128 if isinstance(ending.code, int) and ending.code > 128 else signal.SIGTERM
        process.send_signal(number)
        process.wait()
        raise
    return code if code >= 0 else 128 - code
