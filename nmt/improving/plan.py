"""A plan of `nmt` commands: which file each makes, and what it needs. Make reads it, and so does our own executor."""

import dataclasses
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from nmt.errors import ConfigError

_SAFE_NAME = re.compile(r"[\w./-]+")  # to make, a space, $, #, %, : or ~ in a target's name means something else


@dataclasses.dataclass(frozen=True)
class BestRun:
    """An argument that is known only when the plan is carried out: the folder of the best run so far."""

    file: str
    """Holds the run's name; a target."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of nmt, run in the working folder."""

    arguments: tuple[str | BestRun, ...]
    output: str | None = None
    """The file that gets its standard output. None: what is printed is not needed."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A file, and the commands that make it."""

    file: str
    """Its path in the working folder, with `/`."""
    step: str
    """The step that it belongs to."""
    needs: tuple[str, ...]
    """The files of other targets that exist before it is made."""
    commands: tuple[Command, ...]
    is_stamp: bool = False
    """Whether the file is an empty one that says that the commands have succeeded."""
    makes_folder: bool = False
    """Whether the commands make the folder that it is in, as a whole."""

    @property
    def folder(self) -> str:
        """The folder that is to exist before."""
        folder = PurePosixPath(self.file).parent
        return str(folder.parent if self.makes_folder else folder)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Targets in an order in which they can be made."""

    targets: tuple[Target, ...]
    left_out: tuple[str, ...] = ()
    """Steps that are not in it, and why: a line each."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` for what a Makefile cannot hold; two targets of one file, or in a wrong order, are our
        bugs."""
        made = set[str]()
        for target in self.targets:
            if not _SAFE_NAME.fullmatch(target.file):
                raise ConfigError(
                    f"{target.file}: a Makefile cannot hold this name; rename the text to letters, digits, . _ -"
                )
            assert made.issuperset(target.needs), f"{target.file} needs what is made later"
            assert target.file not in made, f"{target.file} is made twice"
            made.add(target.file)
            for argument in _words(target):
                if "\n" in argument:
                    raise ConfigError(f"{argument!r}: a Makefile cannot hold a name with a line end; rename it")

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps, in order."""
        return tuple(dict.fromkeys(target.step for target in self.targets))

    def to_makefile(self) -> str:
        """The plan as a Makefile: `make -C FOLDER` carries it out, with `-j` several targets at once."""
        needs = {need for target in self.targets for need in target.needs}
        lines = [
            "# Written by nmt. `make -C FOLDER -j2` makes two targets at once; NMT=... is the command to run.",
            "NMT ?= nmt",
            "SHELL := /bin/sh",
            ".DELETE_ON_ERROR:",
            ".PHONY: all",
            f"all: {' '.join(target.file for target in self.targets if target.file not in needs)}",
        ]
        for target in self.targets:
            lines += ["", f"{target.file}: {' '.join(target.needs)}".rstrip(), f"\t@mkdir -p {target.folder}"]
            lines += [f"\t{_recipe(command)}" for command in target.commands]
            lines += ["\t@touch $@"] if target.is_stamp else []
        return "\n".join(lines) + "\n"


def _words(target: Target) -> Iterator[str]:
    for command in target.commands:
        yield from (word for word in command.arguments if isinstance(word, str))


def _recipe(command: Command) -> str:
    """A command as a line of a Makefile, for a shell."""
    line = f"$(NMT) {' '.join(map(_argument, command.arguments))}"
    if command.output is None:
        return line
    part = f"{command.output}.part"  # so that a kill leaves no half file under the target's name
    return f"{line} > {part} && mv {part} {command.output}"


def _argument(word: str | BestRun) -> str:
    if isinstance(word, BestRun):
        return f'"runs/$$(cat {word.file})"'
    return shlex.quote(word).replace("$", "$$")


def needed(needs: Sequence[str | None]) -> tuple[str, ...]:
    """The needs of a target, each once, without those that there are not."""
    return tuple(dict.fromkeys(need for need in needs if need is not None))
