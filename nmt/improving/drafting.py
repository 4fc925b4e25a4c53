"""A plan in the making: the kinds of targets that its steps consist of."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from nmt.config.corpus import CorpusFiles
from nmt.config.training import Config
from nmt.data.profiling import cleaned_names
from nmt.improving.configuring import OF_CORPORA, Corpus, Sections, cleaning_sections, write_out
from nmt.improving.deciding import (
    best_file,
    decide,
    decision_file,
    decision_text,
    json_text,
    read_decision,
    scores_file,
)
from nmt.improving.keeping_apart import FOLDER, check_no_leakage, held_out_files, write_held_out
from nmt.improving.plan import BestRun, Command, Plan, Target, needed
from nmt.suffixes import without_compression

HELD_OUT = f"{FOLDER.as_posix()}/pairs.json"
Make = Callable[[], str]
"""Makes the text of a target, in the working folder."""
# An export may be there or not, after a kill; it may choose another translation where two are equally good.
_ENGINE = ("--engine", "torch")


class Request(Protocol):
    """What a command line asks for."""

    command: ClassVar[str]
    """The command of nmt."""

    def arguments(self) -> tuple[str, ...]:
        """The options that ask for the same."""

    def record(self) -> dict[str, Any]:
        """What decides the files of the plan, besides the configuration."""


@dataclasses.dataclass(frozen=True)
class Wish:
    """A request to `nmt improve`; paths are relative to the working folder."""

    command: ClassVar[str] = "improve"
    config: Path
    overrides: tuple[str, ...] = ()
    mono_tgt: Path | None = None
    """Text in the target language alone."""
    mono_src: Path | None = None
    """Text in the source language alone."""
    steps: tuple[str, ...] | None = None
    """None: all that apply."""
    folds: int = 2
    teachers: int = 3
    min_gain: float = 0.3
    sample: bool = False
    """Whether back-translations are drawn at random, instead of searched."""

    def arguments(self) -> tuple[str, ...]:
        """The options that ask for the same."""
        words = ["--config", self.config.as_posix()]
        for text in self.overrides:
            words += ["--set", text]
        for option, path in (("--mono-tgt", self.mono_tgt), ("--mono-src", self.mono_src)):
            words += [] if path is None else [option, path.as_posix()]
        words += [] if self.steps is None else ["--steps", ",".join(self.steps)]
        words += ["--folds", str(self.folds), "--teachers", str(self.teachers), "--min-gain", f"{self.min_gain:g}"]
        return (*words, *(["--sample"] if self.sample else []))

    def record(self) -> dict[str, Any]:
        """What decides the files of the plan; steps may be added."""
        return {
            "mono_tgt": None if self.mono_tgt is None else self.mono_tgt.as_posix(),
            "mono_src": None if self.mono_src is None else self.mono_src.as_posix(),
            "folds": self.folds,
            "teachers": self.teachers,
            "min_gain": self.min_gain,
            "sample": self.sample,
        }


@dataclasses.dataclass(frozen=True)
class Training:
    """A training of the plan, as far as its time depends on it."""

    step: str
    share: float
    """Times the updates of the user's configuration."""
    is_cut: bool
    """Whether it has token cutoff and R-Drop 1."""


@dataclasses.dataclass(frozen=True)
class Translation:
    """Lines to translate."""

    step: str
    share: float
    """Of the training text's pairs; 0 for another text."""
    file: Path | None
    """That text."""
    models: int


class Draft:
    """Collects targets; each method adds those of one kind, and `step` names the step that they belong to."""

    def __init__(self, request: Request, config: Config) -> None:
        self.request = request
        self.config = config
        self.step = ""
        self.targets: list[Target] = []
        self.makers: dict[str, Make] = {}
        """Of the targets that this process makes itself."""
        self.decided: list[str] = []
        """The steps with a decision, in order."""
        self.left_out: list[str] = []
        self.texts: dict[str, list[Corpus]] = {}
        """The cleaned texts by name, as corpora of a configuration."""
        self.made: dict[str, str] = {}
        """By text, the target that makes it."""
        self.trainings: list[Training] = []
        self.translations: list[Translation] = []
        self.longest = Training("", 1.0, is_cut=False)
        """What a training of the best configuration so far may cost at most."""

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.config.data.src_lang, self.config.data.tgt_lang

    @property
    def best(self) -> BestRun:
        """The best run when all decisions until here have been made."""
        return BestRun(best_file(self.decided[-1]))

    def plan(self) -> Plan:
        """What was collected."""
        return Plan(tuple(self.targets), tuple(self.left_out))

    def command(self, file: str, needs: Sequence[str | None], command: Command, *, is_stamp: bool = False,
                makes_folder: bool = False) -> str:  # fmt: skip
        """A file that a command of nmt makes; returns its name."""
        self.targets.append(Target(file, self.step, needed(needs), (command,), is_stamp, makes_folder))
        return file

    def own(self, file: str, needs: Sequence[str | None], make: Make) -> str:
        """A file that this process makes itself."""
        self.makers[file] = make
        return self.command(file, needs, Command((self.request.command, *self.request.arguments(), "--make", file)))

    def held_out(self) -> str:
        """The texts that nothing is trained on."""
        return self.own(HELD_OUT, [], lambda: json_text(write_held_out(self.config)))

    def held_out_corpora(self) -> dict[str, Corpus]:
        """These, as in a configuration."""
        return {name: as_corpus(files) for name, files in held_out_files(self.config).items()}

    def cleaned(self, name: str, sources: Sequence[Path], corpora: Callable[[], Sequence[Corpus]],
                needs: Sequence[str]) -> str:  # fmt: skip
        """Texts in the folder text/NAME: pairs without those that the user's rules drop, or that are held out.

        `corpora` are asked for when they are to be cleaned; `sources` are the names of their source files.
        """

        def config() -> str:
            return write_out(cleaning_sections(self.config, corpora(), self.held_out_corpora()))

        return self._written(name, config, [_named(source) for source in sources], needs)

    def real(self) -> None:
        """The user's training text, cleaned; each corpus keeps its weight, tag and noise."""
        train = self.config.data.train
        self.cleaned("real", [files.src_file for files in train], lambda: [as_corpus(files) for files in train], [])
        self.texts["real"] = [
            {**corpus, **files.model_dump(mode="json", include=OF_CORPORA, exclude_defaults=True)}
            for corpus, files in zip(self.texts["real"], train, strict=True)
        ]

    def folds(self, name: str, text: str, count: int) -> str:
        """A cleaned text in parts that share no line."""

        def config() -> str:
            return write_out(cleaning_sections(self.config, self.texts[text], self.held_out_corpora()))

        sources = [_named(Path(f"fold{number}.txt")) for number in range(1, count + 1)]
        needs = [self.made[text]]
        return self._written(name, config, sources, needs, "--folds", str(count))

    def _written(
        self, name: str, make: Make, corpora: Sequence[CorpusFiles], needs: Sequence[str], *options: str
    ) -> str:
        names = cleaned_names(corpora, self.languages)
        file = self.own(f"configs/clean_{name}.yaml", [HELD_OUT, *needs], make)
        self.texts[name] = [{"src": f"../text/{name}/{src}", "tgt": f"../text/{name}/{tgt}"} for src, tgt in names]
        command = Command(("data", "--config", file, "--write", f"text/{name}", *options))
        self.made[name] = self.command(f"text/{name}/cleaning.tsv", [file], command, makes_folder=True)
        return self.made[name]

    def translated(self, models: Sequence[Path | str | BestRun], source: Path, output: str, needs: Sequence[str | None],
                   share: float | None, *options: str) -> str:  # fmt: skip
        """A file's translations by a run, or by several together; `share`: see `Translation`."""
        names = [model.as_posix() if isinstance(model, Path) else model for model in models]
        words = [word for name in names for word in ("--model", name)]
        files = ("--input", source.as_posix(), "--output", output, "--continue")
        self.translations.append(Translation(self.step, share or 0.0, None if share else source, len(models)))
        return self.command(output, needs, Command(("translate", *words, *files, *_ENGINE, *options)))

    def trained(self, name: str, needs: Sequence[str | None], sections: Callable[[], Sections], *texts: str,
                share: float | None = None) -> str:  # fmt: skip
        """A training; `texts` are those that it is the first to see, which are looked through for held-out lines.

        `share`: of the updates of the user's configuration; by default those of the best run so far, at most.
        """

        def make() -> str:
            check_no_leakage(self.text_files(*texts), held_out_files(self.config))
            return write_out(sections())

        as_best = dataclasses.replace(self.longest, step=self.step)
        self.trainings.append(as_best if share is None else Training(self.step, share, is_cut=False))
        made = [self.made[text] for text in texts]
        file = self.own(f"configs/{name}.yaml", [HELD_OUT, *made, *needs], make)
        return self.command(f"runs/{name}.done", [file], Command(("train", file)), is_stamp=True)

    def filtered(self, name: str, text: str, share: float) -> Sequence[Corpus]:
        """The best pairs of a text with one corpus, by the first forward model and the backward model."""
        (files,) = self.text_files(text)
        sides = [files.src_file.as_posix(), files.tgt_file.as_posix()]
        ((src, tgt),) = cleaned_names([files], self.languages)
        self.texts[name] = [{"src": f"../text/{name}/{src}", "tgt": f"../text/{name}/{tgt}"}]
        models = ("--forward", "runs/baseline", "--backward", "runs/backward")
        command = Command(("filter", *sides, *models, "--keep", f"{share:g}", "--write", f"text/{name}", *_ENGINE))
        needs = [self.made[text], "runs/baseline.done", "runs/backward.done"]
        self.made[name] = self.command(f"text/{name}/{src}", needs, command, makes_folder=True)
        return self.texts[name]

    def text_files(self, *texts: str) -> list[CorpusFiles]:
        """The files of cleaned texts, as seen from the working folder."""
        return [
            CorpusFiles(**{side: Path(corpus[side][len("../") :]) for side in ("src", "tgt")})
            for text in texts
            for corpus in self.texts[text]
        ]

    def scored(self, name: str, models: Sequence[str | BestRun], needs: Sequence[str], is_swapped: bool = False) -> str:
        """The scores of a run, or of several together, on the validation set."""
        files = held_out_files(self.config)["validation"]
        sides = [files.src_file.as_posix(), files.tgt_file.as_posix()]
        src, tgt = reversed(sides) if is_swapped else sides
        words = [word for model in models for word in ("--model", model)]
        metrics = ("--metric", "bleu", "--metric", "chrf")
        command = Command(("eval", *words, "--src", src, "--ref", tgt, *metrics, *_ENGINE, "--json"),
                          scores_file(name))  # fmt: skip
        return self.command(scores_file(name), needs, command)

    def best_name(self) -> Callable[[], str]:
        """Says which run is the best, of all decisions until here, when they have been made."""
        file = Path(self.best.file)
        return lambda: file.read_text(encoding="utf-8")


class Improvement(Draft):
    """The draft of `nmt improve`."""

    def __init__(self, wish: Wish, config: Config) -> None:
        super().__init__(wish, config)
        self.wish = wish

    def candidate(self, name: str, file: str) -> None:
        """A decision on the run NAME, of which `file` says that it is there; it is the step's last."""
        step, previous = self.step, self.decided[-1] if self.decided else None

        def make() -> str:
            before = None if previous is None else read_decision(previous)
            return decision_text(decide(step, name, before, self.wish.min_gain))

        scores = self.scored(name, [f"runs/{name}"], [file])
        before = None if previous is None else decision_file(previous)
        decision = self.own(decision_file(step), [scores, before], make)
        self.own(best_file(step), [decision], lambda: read_decision(step).best)
        self.decided.append(step)


def as_corpus(files: CorpusFiles) -> Corpus:
    """A corpus with paths as seen from the folder configs/."""
    dumped: Corpus = files.model_dump(mode="json", exclude_defaults=True)
    for key in ("src", "tgt", "pairs"):
        if key in dumped:
            dumped[key] = Path(os.path.relpath(dumped[key], "configs")).as_posix()
    return dumped


def _named(source: Path) -> CorpusFiles:
    """A corpus that is not there yet, for what its source file's name says."""
    return CorpusFiles(src=Path(without_compression(source).stem + ".txt"), tgt=source)
