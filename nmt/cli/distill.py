"""`nmt distill`."""

from pathlib import Path
from typing import Annotated

import typer

from nmt.cli import options
from nmt.cli.completion import complete_run
from nmt.cli.improve import carry_out_here, check_monolingual, make_file, seen_from
from nmt.config.section import MAX_BEAMS
from nmt.errors import ConfigError


def distill(
    teachers: Annotated[
        list[str] | None,
        typer.Option(
            "--teacher", metavar="RUN", help="A run that teaches; several are an ensemble.", autocompletion=complete_run
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="The student's configuration.")] = None,
    mono_src: Annotated[
        Path | None, typer.Option(metavar="FILE", help="More text in the source language alone, a sentence a line.")
    ] = None,
    n_best: Annotated[
        int,
        typer.Option(
            min=1, max=MAX_BEAMS, metavar="N",
            help="Translations of each training pair; the best one and the one nearest to its target are learned.",
        ),
    ] = 8,
    keep_real: Annotated[
        bool, typer.Option("--keep-real", help="Learn from the training pairs as they are, too.")
    ] = False,
    overrides: options.SetOption = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The working folder. Default: CONFIG.distill.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan as a Makefile; write nothing.")] = False,
    make: Annotated[
        str | None, typer.Option(metavar="FILE", help="Make one file of the plan, in the current folder, and end.")
    ] = None,
) -> None:  # fmt: skip
    """Train a small, fast model on the translations of larger ones.

    A distillation that was stopped resumes.
    """
    from nmt.improving.distilling import STUDENT, Distillation, distillation_draft
    from nmt.improving.manifest import add_manifest
    from nmt.improving.teachers import load_student, open_teachers

    if config is None or not teachers:
        raise ConfigError("name the student's configuration and its teachers: --config FILE --teacher RUN")
    if make is not None and (plan or folder):
        raise ConfigError("--make FILE makes one file in the current folder: leave out --plan and --folder")
    check_monolingual(mono_src)
    where = Path() if make is not None else folder or Path(f"{config.stem}.distill")
    settings, sets = load_student(config, overrides or (), where)
    runs = open_teachers(teachers, settings, where)
    request = Distillation(
        seen_from(where, config), tuple(seen_from(where, run.path) for run in runs), sets,
        mono_src and seen_from(where, mono_src), n_best, keep_real,
    )  # fmt: skip
    draft = distillation_draft(request, settings)
    add_manifest(draft)
    if plan:
        print(draft.plan().to_makefile(), end="")
    elif make is not None:
        make_file(draft, make)
    else:
        carry_out_here(draft, where)
        student = where / "runs" / STUDENT
        print(f"the student: {student}")
        print(f"  nmt translate --model {student}")
        if settings.data.test:
            print(f"  nmt eval --model {student}")
        print(f"  nmt export ctranslate2 --model {student}")
