"""`nmt compare`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from nmt.cli import options
from nmt.errors import ConfigError, printable
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
    options.check_opened(output, is_opened)
    if output is not None:
        options.check_output(output, ".html")
    from nmt.insight.comparison import compare as compare_systems
    from nmt.insight.comparison_output import comparison_text, write_page
    from nmt.insight.systems import ComparedFiles, read_material

    if not runs and (device or engine):
        raise ConfigError(f"{'--engine' if engine else '--device'} is for runs; files are not translated")
    files = ComparedFiles(ref or (), src, train or (), device or "auto", engine or "auto")
    material = read_material(runs or (), hyp or (), files, scoring.tgt_lang)
    material = material._replace(settings=scoring.settings(material.settings), lowercase=scoring.lowercase)
    comparison = compare_systems(material, test, samples, with_examples=output is not None)
    if output is not None:
        write_page(comparison, output)
    print(json.dumps(comparison.for_programs()) if as_json else printable(comparison_text(comparison)))
    if output is not None:
        options.show_written(output, is_opened)
    if not as_json:
        _show_next(runs or (), output)


def _show_next(runs: Sequence[str], output: Path | None) -> None:
    """Say what to do after a comparison."""
    steps = []
    if output is None:
        steps.append("--output compare.html    all translations and tables as a page")
    if len(runs) > 1 and not any("," in run for run in runs):
        train = "nmt train RUN/config.yaml --name RUN-2 --set training.seed=2"
        steps.append(f"{train}, then nmt compare A,A-2 B,B-2    does the difference outlive another seed?")
    if steps:
        log.info("\n".join(["next:", *(f"  {step}" for step in steps)]))
