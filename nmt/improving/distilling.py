"""The plan of a distillation: teachers translate the student's training text, and the student learns from that.

Sequence-level knowledge distillation (Kim and Rush 2016, arXiv:1606.07947).
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar

from nmt.config.training import Config
from nmt.improving import configuring as configs
from nmt.improving.configuring import Corpus
from nmt.improving.deciding import json_text
from nmt.improving.drafting import HELD_OUT, Draft
from nmt.improving.keeping_apart import FOLDER, held_out_files
from nmt.improving.nearest import best_lines, nearest_lines
from nmt.improving.steps import check_config
from nmt.improving.teachers import check_teachers

STUDENT = "student"
"""The name of the run."""


@dataclasses.dataclass(frozen=True)
class Distillation:
    """A request to `nmt distill`; paths are relative to the working folder."""

    command: ClassVar[str] = "distill"
    config: Path
    teachers: tuple[Path, ...]
    """Their folders."""
    overrides: tuple[str, ...] = ()
    mono_src: Path | None = None
    """Text in the source language alone."""
    n_best: int = 8
    """Translations of each source, of which the best one and the one nearest to the reference are learned."""
    keep_real: bool = False
    """Whether the student also learns from the pairs as people wrote them."""

    def arguments(self) -> tuple[str, ...]:
        """The options that ask for the same."""
        words = [word for teacher in self.teachers for word in ("--teacher", teacher.as_posix())]
        words += ["--config", self.config.as_posix()]
        for text in self.overrides:
            words += ["--set", text]
        words += [] if self.mono_src is None else ["--mono-src", self.mono_src.as_posix()]
        words += ["--n-best", str(self.n_best)]
        return (*words, *(["--keep-real"] if self.keep_real else []))

    def record(self) -> dict[str, Any]:
        """What decides the files of the plan."""
        return {
            "teachers": [teacher.as_posix() for teacher in self.teachers],
            "monolingual": None if self.mono_src is None else self.mono_src.as_posix(),
            "n_best": self.n_best,
            "keep_real": self.keep_real,
        }


def distillation_draft(request: Distillation, config: Config) -> Draft:
    """The targets of a distillation; `ConfigError` for a configuration that is no student's."""
    check_config(config, request.command)
    draft = Draft(request, config)
    draft.step = "teachers"
    draft.held_out()
    start = config.training.init_from
    names = [*(teacher.as_posix() for teacher in request.teachers), *([] if start is None else [start])]
    checked = draft.own(f"{FOLDER.as_posix()}/teachers.json", [HELD_OUT],
                        lambda: json_text(check_teachers(names, held_out_files(config))))  # fmt: skip
    draft.real()
    texts = [_taught(draft, request, checked)]
    texts += [] if request.mono_src is None else [_monolingual(draft, request, request.mono_src, checked)]
    texts = ["real", *texts] if request.keep_real else texts
    draft.step = "student"
    draft.trained(STUDENT, [], lambda: _student_sections(draft, texts), *texts, share=1.0)
    return draft


def _taught(draft: Draft, request: Distillation, checked: str) -> str:
    """The training text with translations of the teachers as targets; its name.

    Of several translations, the one that is nearest to the reference and the one that the teachers find best, each as
    a corpus.
    """
    number_of = str(request.n_best)
    beam = ("--beam-size", number_of) if request.n_best > 1 else ()  # one translation is of the teachers' own search
    options = ("--json", "--n-best", number_of, *beam)
    needs, pairs, real = [checked, draft.made["real"]], list[Corpus](), draft.texts["real"]
    chosen = list[str]()
    for number, (corpus, files) in enumerate(zip(real, draft.text_files("real"), strict=True), start=1):
        n_best = draft.translated(
            request.teachers, files.src_file, f"text/translated/{number}.jsonl", needs, 1 / len(real), *options
        )
        choices = {"best": functools.partial(best_lines, Path(n_best))}
        if request.n_best > 1:
            choices["nearest"] = functools.partial(nearest_lines, Path(n_best), files.tgt_file)
        for choice, make in choices.items():
            chosen.append(draft.own(f"text/{choice}/{number}.txt", [n_best], make))
            pairs.append({**corpus, "tgt": f"../{chosen[-1]}"})
    plain = [{side: corpus[side] for side in ("src", "tgt")} for corpus in pairs]
    draft.cleaned("distilled", [Path(corpus["src"]) for corpus in pairs], lambda: plain, chosen)
    draft.texts["distilled"] = [
        {**corpus, **cleaned} for corpus, cleaned in zip(pairs, draft.texts["distilled"], strict=True)
    ]
    return "distilled"


def _monolingual(draft: Draft, request: Distillation, source: Path, checked: str) -> str:
    """The monolingual text with the teachers' translations; its name."""
    output = draft.translated(request.teachers, source, "text/translated/mono_src.txt", [checked], None)
    pairs = [{"src": f"../{source.as_posix()}", "tgt": f"../{output}"}]
    draft.cleaned("monolingual", [source], lambda: pairs, [output])
    return "monolingual"


def _student_sections(draft: Draft, texts: list[str]) -> configs.Sections:
    """The student's configuration, with its test sets: nothing is chosen by them, and `nmt eval` scores them."""
    config, held_out = draft.config, draft.held_out_corpora()
    corpora = configs.not_empty([corpus for text in texts for corpus in draft.texts[text]])
    sections = configs.first_sections(config, corpora, held_out)
    tests = {name.removeprefix("test."): files for name, files in held_out.items() if name.startswith("test.")}
    others = [files for name, files in held_out.items() if name.startswith("exclude.")]
    sections["data"] |= {"test": tests, "exclude": others}
    for name in ("evaluation", "export"):  # it is what the user wants to have
        sections[name] = config.model_dump(mode="json", exclude_unset=True).get(name, {})
    return sections
