"""`nmt init`."""

import math
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from nmt.cli import options
from nmt.errors import ConfigError, TrainingError
from nmt.runs.history import duration
from nmt.system.console import log, show

if TYPE_CHECKING:  # imported when the command runs
    from nmt.cleaning.inspection import Inspection
    from nmt.recipes.starter import Recommended, TimedRow
    from nmt.training.trial import Speed


def init(
    corpora: options.CorporaArgument = None,
    src: Annotated[Path | None, Option(metavar="FILE", help="Source text, with --tgt.")] = None,
    tgt: Annotated[Path | None, Option(metavar="FILE", help="Target text, with --src.")] = None,
    src_lang: options.SrcLangOption = None,
    tgt_lang: options.TgtLangOption = None,
    test: Annotated[list[Path] | None, Option(metavar="CORPUS", help="Test set; may be repeated.")] = None,
    output: Annotated[Path | None, Option(metavar="FILE", help="File to write. Default: SRC-TGT.yaml.")] = None,
    time: Annotated[
        str | None,
        Option(metavar="TIME", help="Time for the training, such as 20m or 3h. Default: 2h on a CPU, 1h on a GPU."),
    ] = None,
    no_trial: Annotated[
        bool, Option("--no-trial", help="Write what suits the corpus, whatever time it takes, and measure nothing.")
    ] = False,
) -> None:
    """Inspect a corpus, and write a configuration that suits it."""
    from nmt.cleaning.inspection import describe, inspect
    from nmt.config.reading import load_config
    from nmt.corpora.discovery import discover
    from nmt.recipes.budget import seconds_of
    from nmt.recipes.starter import check_folders, expectation, named_tests, starting_config

    seconds = None if time is None else seconds_of(time)
    if seconds and no_trial:
        raise ConfigError("--time needs the trial that --no-trial skips; leave out one of them")
    training = discover(corpora or [], src, tgt, src_lang, tgt_lang)
    languages = training.src_lang, training.tgt_lang
    file = output or Path(f"{'-'.join(languages)}.yaml")
    options.check_output(file, ".yaml", ".yml")
    if os.path.lexists(file):
        raise ConfigError(f"{file} exists, and is not overwritten; name another with --output, or remove it")
    check_folders(corpora or [], [files.src_file for files in training.files])
    tests = named_tests(discover(test, None, None, *languages).files) if test else {}
    inspection = inspect(training, tuple(tests.values()))
    show(*describe(inspection), *expectation(inspection.pairs))
    with file.open("x", encoding="utf-8", newline="\n") as opened:
        opened.write(starting_config(training, inspection, tests, file))
    config = load_config(file)
    if not no_trial and (plan := _plan(file, inspection, seconds)) is not None:
        file.write_text(starting_config(training, inspection, tests, file, plan), encoding="utf-8", newline="\n")
    evaluation = ["  nmt eval"] if config.data.test else []
    translation = f"  nmt translate {shlex.quote(inspection.sample[0][0][:80])}"
    show(f"wrote {file}; next:", f"  nmt train {shlex.quote(str(file))}", *evaluation, translation, link=file)


def _plan(file: Path, inspection: "Inspection", seconds: float | None) -> "TimedRow | None":
    """Fit the training to the time, by trials, and print what was found; None if a trial fails, which is printed."""
    from nmt.config.reading import load_config
    from nmt.recipes.budget import HOURS_ON_A_CPU, HOURS_ON_A_GPU, fit, trial_settings
    from nmt.recipes.starter import recommended
    from nmt.training.trial import SECONDS, time_updates

    def trial(row: "Recommended") -> "Speed":
        log.info(f"timing updates with d_model {row.d_model} for about {SECONDS:.0f} s; --no-trial skips it")
        return time_updates(load_config(file, trial_settings(row, inspection)), inspection.sample)

    try:
        plan = fit(inspection.pairs, seconds, trial)
    except TrainingError as error:
        show(f"the trial failed, and the training would, too: {error}")
        return None
    row, speed = plan.row, plan.speed
    each, precision = plan.seconds / row.max_steps, f" in {speed.precision}" if speed.gain > 1 else ""
    show(
        f"about {duration(plan.seconds)} on this machine ({row.max_steps:,} updates of {each:.2g} s on {speed.device}"
        f"{precision}), and validations"
    )
    if plan.whole_seconds:
        own = recommended(inspection.pairs)
        whole = f"{own.max_steps:,} updates{' with R-Drop' if own.r_drop else ''}, d_model {own.d_model}"
        default = (
            f"; without --time, {HOURS_ON_A_CPU} h on a CPU or {HOURS_ON_A_GPU} on a GPU" if seconds is None else ""
        )
        hours = math.ceil(plan.whole_seconds / 3600)
        show(f"recommended for this many pairs: {whole} (--time {hours}h{default})")
    return plan
