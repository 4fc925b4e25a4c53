"""`nmt distill`."""

import contextlib
from pathlib import Path
from typing import Annotated

from typer import Option

from nmt.cli import options
from nmt.config.formats import pairs_format
from nmt.config.section import MAX_BEAMS
from nmt.errors import ConfigError
from nmt.system.console import show


def distill(
    teachers: Annotated[list[str], options.run_option("--teacher", help="Run that teaches; several form an ensemble.")],
    config: Annotated[Path, Option(metavar="FILE", help="Configuration of the student.")],
    mono_src: Annotated[Path | None, Option(metavar="FILE", help="More source text, without translations.")] = None,
    n_best: Annotated[int, Option(min=1, max=MAX_BEAMS, help="Translations of each source to choose from.")] = 8,
    keep_real: Annotated[bool, Option("--keep-real", help="Also train on the original pairs.")] = False,
    overrides: options.SetOption = None,
    folder: Annotated[Path | None, Option(metavar="FOLDER", help="Working folder. Default: CONFIG.distill.")] = None,
) -> None:  # fmt: skip
    """Train a small, fast student on the translations of larger models.

    An interrupted distillation is resumed.
    """
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
            from nmt.insight.after_training import finish

            finish(settings, run, trained)
    student = where / run.path
    commands = ["translate", *(["eval"] if settings.data.test else []), "export ctranslate2"]
    show(f"the student: {student}", *(f"  nmt {command} --model {student}" for command in commands), link=student)
