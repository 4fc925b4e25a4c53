"""`nmt compare`."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from nmt.cli import options
from nmt.errors import ConfigError
from nmt.system.console import log


@options.grouped
def compare(
    runs: Annotated[list[str] | None, options.run_argument(help="Runs; RUN,RUN joins seeds of a system.")] = None,
    hyp: Annotated[
        list[str] | None, Option(metavar="FILE", help="Translations; FILE,FILE joins seeds of a system.")
    ] = None,
    ref: options.ReferencesOption = None,
    src: options.TestOption = None,
    train: Annotated[list[Path] | None, Option(metavar="FILE", help="Training text. Default: the first run's.")] = None,
    test: Annotated[Literal["bs", "ar"], Option(help="Paired bootstrap or approximate randomization.")] = "bs",
    samples: Annotated[
        int | None, Option(min=1, max=1_000_000, help="Resamples. Default: 1,000 (bs), 10,000 (ar).")
    ] = None,
    output: options.PageOption = None,
    is_opened: options.OpenOption = False,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = None,
    engine: options.EngineOption = None,
    *,
    scoring: options.ScoringOptions,
) -> None:
    """Compare systems: scores with significance tests, scores by bucket, and the lines that differ most.

    The first system is the baseline. A run translates its test sets unless translations of its current model are
    stored.
    """
    options.check_output(output, ".html", is_opened=is_opened)
    from nmt.insight.comparison import compare as compare_systems
    from nmt.insight.comparison_output import comparison_text, write_page
    from nmt.insight.systems import ComparedFiles, read_material

    if not runs and (device or engine):
        raise ConfigError(f"{'--engine' if engine else '--device'} is for runs; files are not translated")
    files = ComparedFiles(ref or (), src, train or (), device or "auto", engine or "auto")
    material = read_material(runs or (), hyp or (), files, scoring.tgt_lang)
    material = material._replace(settings=scoring.settings(material.settings), lowercase=scoring.lowercase)
    comparison = compare_systems(material, test, samples)
    trainings = comparison.trainings
    content = {**vars(comparison), "trainings": {"names": trainings.names, "settings": trainings.settings}}
    options.show_result(as_json, content, map(comparison_text, [comparison]))
    if output is not None:
        write_page(comparison, output)
        options.show_written(output, is_opened)
    steps = [] if output else ["  all translations that differ: the same command with --output compare.html --open"]
    if runs and len(trainings.names) == len(runs) and not any("," in name for name in runs):
        seeds = shlex.join(f"{name},{Path(name).name}-2" for name in runs)
        steps.append(
            f"  another seed: nmt train --set training.seed=2 --name NAME-2, of each; then nmt compare {seeds}"
        )
    if steps and not as_json:
        log.info("\n".join(["next:", *steps]))
