"""`nmt distill`."""

import contextlib
from pathlib import Path
from typing import Annotated

from typer import Option

from nmt.cli import options
from nmt.config.formats import pairs_format
from nmt.config.section import MAX_BEAMS
from nmt.errors import ConfigError
from nmt.runs.base import load_run_config
from nmt.runs.folder import run_named
from nmt.system.distributed import ALONE


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
    from nmt.insight.report_output import report_after_training
    from nmt.interop.after_training import finish
    from nmt.recipes.distill import write_student
    from nmt.training.start import train_in_processes

    if mono_src is not None and not mono_src.is_file():
        raise ConfigError(f"{mono_src}: no such file; name a text, a sentence a line")
    if mono_src is not None and pairs_format(mono_src) is not None:
        raise ConfigError(f"{mono_src}: holds pairs, which belong to data.train; name a text, a sentence a line")
    where = folder or Path(f"{config.stem}.distill")
    file = write_student(config, overrides or (), teachers, where, mono_src, n_best, keep_real)
    with contextlib.chdir(where):  # as `nmt train student.yaml` there
        run = run_named(file.stem)
        settings = load_run_config(Path(file.name), (), run, False)
        trained = train_in_processes(settings, run, False, ALONE, False, ["train", file.name])
        if trained is not None:
            finish(settings, run, trained)
        if trained:
            report_after_training(settings, run)
    student = where / run.path
    print(f"the student: {student}")
    print(f"  nmt translate --model {student}")
    if settings.data.test:
        print(f"  nmt eval --model {student}")
    print(f"  nmt export ctranslate2 --model {student}")
