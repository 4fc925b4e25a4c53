"""`nmt init`."""

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
    from nmt.config.training import Config
    from nmt.training.trial import Speed

_LONG = 4 * 3600


def init(
    corpora: options.CorporaArgument = None,
    src: Annotated[Path | None, Option(metavar="FILE", help="Source text, with --tgt.")] = None,
    tgt: Annotated[Path | None, Option(metavar="FILE", help="Target text, with --src.")] = None,
    src_lang: options.SrcLangOption = None,
    tgt_lang: options.TgtLangOption = None,
    test: Annotated[list[Path] | None, Option(metavar="CORPUS", help="Test set; may be repeated.")] = None,
    output: Annotated[Path | None, Option(metavar="FILE", help="File to write. Default: SRC-TGT.yaml.")] = None,
    no_trial: Annotated[bool, Option("--no-trial", help="Do not measure how long training will take.")] = False,
) -> None:
    """Inspect a corpus, and write a configuration that suits it."""
    from nmt.cleaning.inspection import describe, inspect
    from nmt.config.reading import load_config
    from nmt.corpora.discovery import discover
    from nmt.recipes.starter import check_folders, expectation, named_tests, starting_config

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
    text = starting_config(training, inspection, tests, file)
    with file.open("x", encoding="utf-8", newline="\n") as opened:
        opened.write(text)
    config = load_config(file)
    if not no_trial and (speed := _measured(config, inspection)) is not None:
        text = starting_config(training, inspection, tests, file, speed)
        file.write_text(text, encoding="utf-8", newline="\n")
    evaluation = ["  nmt eval"] if config.data.test else []
    translation = f"  nmt translate {shlex.quote(inspection.sample[0][0][:80])}"
    show(f"wrote {file}; next:", f"  nmt train {shlex.quote(str(file))}", *evaluation, translation, link=file)


def _measured(config: "Config", inspection: "Inspection") -> "Speed | None":
    """Measure the speed of updates and print it; None if they fail, which is printed, too."""
    from nmt.training.trial import SECONDS, time_updates

    log.info(f"timing updates on this machine for about {SECONDS:.0f} s; --no-trial skips it")
    try:
        speed = time_updates(config, inspection.sample)
    except TrainingError as error:
        show(f"the trial failed, and the training would, too: {error}")
        return None
    steps = config.training.max_steps or 0
    seconds = steps * speed.seconds
    precision = f" in {speed.precision}" if speed.gain > 1 else ""
    show(
        f"about {duration(seconds)} on this machine ({steps:,} updates of {speed.seconds:.2g} s on {speed.device}"
        f"{precision}), and validations"
    )
    if seconds > _LONG and speed.device == "cpu":
        show(
            "this is long for a CPU; use a GPU, or lower training.max_steps and model.d_model, which costs quality; "
            "training saves every 10 minutes, and can be stopped and resumed"
        )
    return speed
