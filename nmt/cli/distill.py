"""`nmt distill`."""

import contextlib
from pathlib import Path
from typing import Annotated

from typer import Option

from nmt.cli import options
from nmt.config.formats import pairs_format
from nmt.config.section import MAX_BEAMS
from nmt.errors import ConfigError


def distill(
    teachers: Annotated[list[str], options.run_option("--teacher", help="A run; may be repeated.")],
    config: Annotated[Path, Option(metavar="FILE", help="The student's configuration.")],
    mono_src: Annotated[Path | None, Option(metavar="FILE", help="More text, of the source language alone.")] = None,
    n_best: Annotated[int, Option(min=1, max=MAX_BEAMS, help="Translations to choose from, for each pair.")] = 8,
    keep_real: Annotated[bool, Option("--keep-real", help="Learn from the training pairs as they are, too.")] = False,
    overrides: options.SetOption = None,
    folder: Annotated[Path | None, Option(metavar="FOLDER", help="To work in. Default: CONFIG.distill.")] = None,
) -> None:  # fmt: skip
    """Train a small, fast model on the translations of larger ones.

    A distillation that was stopped resumes.
    """
    from nmt.insight.after_training import finish
    from nmt.recipes.distill import train_student, write_student

    if mono_src is not None and not mono_src.is_file():
        raise ConfigError(f"{mono_src}: no such file; name a text, a sentence a line")
    if mono_src is not None and pairs_format(mono_src) is not None:
        raise ConfigError(f"{mono_src}: holds pairs, which belong to data.train; name a text, a sentence a line")
    where = folder or Path(f"{config.stem}.distill")
    file = write_student(config, overrides or (), teachers, where, mono_src, n_best, keep_real)
    with contextlib.chdir(where):  # as `nmt train student.yaml` there
        settings, run, trained = train_student(Path(file.name))
        if trained is not None:
            finish(settings, run, trained)
    student = where / run.path
    print(f"the student: {student}")
    print(f"  nmt translate --model {student}")
    if settings.data.test:
        print(f"  nmt eval --model {student}")
    print(f"  nmt export ctranslate2 --model {student}")
