"""`nmt filter`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from nmt.cli import options
from nmt.errors import ConfigError
from nmt.system.console import aligned

if TYPE_CHECKING:  # imported when the command runs
    from rich.text import Text

    from nmt.evaluation.filtering import FilterReport, ScoringModels


def filter_corpora(
    keep: Annotated[float, Option(metavar="SHARE", help="Share of pairs to keep, the best: 0 to 1.")],
    write: Annotated[Path, Option(metavar="FOLDER", help="New folder for the kept pairs.")],
    corpora: options.CorporaArgument = None,
    forward: Annotated[list[str] | None, options.run_option(help="Run that scores targets; may be repeated.")] = None,
    backward: Annotated[list[str] | None, options.run_option(help="Run that scores sources; may be repeated.")] = None,
    round_trip: Annotated[bool, Option("--round-trip", help="Translate targets back; score by chrF.")] = False,
    engine: options.EngineOption = None,
    device: options.DeviceOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Keep the pairs that models find good.

    The score is the chrF of a translation back (--backward --round-trip), or the cross-entropy by a model of one
    direction or of both. Pairs that the recommended rules drop go first.
    """
    from nmt.corpora.discovery import discover
    from nmt.evaluation.filtering import ScoringModels, filter_pairs

    models = ScoringModels(forward or (), backward or (), round_trip, engine or "auto", device or "auto")
    _check(models, keep)
    files = discover(corpora or [], None, None, *models.languages()).files
    report = filter_pairs(files, models, keep, write)
    options.show_written(write)
    options.show_result(as_json, report, _tables(report))


def _check(models: "ScoringModels", keep: float) -> None:
    """Raise `ConfigError` for options that need or exclude others."""
    if not (models.forward or models.backward):
        raise ConfigError("name a model that scores the pairs: --forward RUN, --backward RUN, or both")
    if models.round_trip and not models.backward:
        raise ConfigError("--round-trip needs a model that translates targets back: --backward RUN")
    if models.round_trip and models.forward:
        raise ConfigError("--round-trip scores by translations back alone; leave out --forward")
    if not 0 < keep <= 1:
        raise ConfigError(f"--keep {keep:g}: give a share of the pairs, above 0 and at most 1")


def _tables(report: "FilterReport") -> "Iterator[str | Text]":
    """The pairs that each rule drops, and the distribution of the scores."""
    rows = [["pairs", f"{report.pairs:,}", "100.0%"]]
    counts = [*((f"  {rule}", count) for rule, count in report.dropped.items()), ("kept", report.kept)]
    rows += [[name, f"{count:,}", f"{count / report.pairs:.1%}"] for name, count in counts]
    scores = {**report.quantiles, "worst kept": report.worst_kept}
    table = [["", *scores], [report.score, *(f"{score:.2f}" for score in scores.values())]]
    yield from (aligned(rows), "", aligned(table, has_head=True))
