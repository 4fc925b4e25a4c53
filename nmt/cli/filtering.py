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

    from nmt.evaluation.filtering import FilterReport, Limits, ScoringModels


def filter_corpora(
    write: Annotated[Path, Option(metavar="FOLDER", help="New folder for the kept pairs.")],
    corpora: options.CorporaArgument = None,
    forward: Annotated[list[str] | None, options.run_option(help="Run that scores targets; may be repeated.")] = None,
    backward: Annotated[list[str] | None, options.run_option(help="Run that scores sources; may be repeated.")] = None,
    round_trip: Annotated[bool, Option("--round-trip", help="Translate targets back; score by chrF.")] = False,
    keep: Annotated[float | None, Option(metavar="SHARE", help="Share of pairs to keep, the best: 0 to 1.")] = None,
    max_cross_entropy: Annotated[float | None, Option(metavar="X", help="Keep pairs up to this cross-entropy.")] = None,
    min_chrf: Annotated[float | None, Option(metavar="X", help="Keep pairs with at least this chrF: 0 to 100.")] = None,
    engine: options.EngineOption = None,
    device: options.DeviceOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Keep the pairs that models score best, for example of synthetic text.

    The score is the dual conditional cross-entropy with --forward and --backward, or the cross-entropy with one of
    them.
    """
    from nmt.corpora.discovery import discover
    from nmt.evaluation.filtering import Limits, ScoringModels, filter_pairs

    models = ScoringModels(forward or (), backward or (), round_trip, engine or "auto", device or "auto")
    limits = Limits(keep, max_cross_entropy, min_chrf)
    _check(models, limits)
    files = discover(corpora or [], None, None, *models.languages()).files
    report = filter_pairs(files, models, limits, write)
    options.show_written(write)
    options.show_result(as_json, report, _tables(report))


def _check(models: "ScoringModels", limits: "Limits") -> None:
    """Raise `ConfigError` for options that need or exclude others."""
    by_limit = limits.max_cross_entropy is not None or limits.min_chrf is not None
    if not (models.forward or models.backward):
        raise ConfigError("name a model that scores the pairs: --forward RUN, --backward RUN, or both")
    if models.round_trip and not models.backward:
        raise ConfigError("--round-trip needs a model that translates targets back: --backward RUN")
    if limits.max_cross_entropy is not None and models.round_trip and not models.forward:
        raise ConfigError("--max-cross-entropy needs --forward RUN: --backward with --round-trip computes chrF alone")
    if limits.min_chrf is not None and not models.round_trip:
        raise ConfigError("--min-chrf is the chrF of targets translated back; add --round-trip")
    if limits.keep is None and not by_limit:
        raise ConfigError("say what to keep: --keep SHARE, --max-cross-entropy X or --min-chrf X")
    if limits.keep is not None and by_limit:
        raise ConfigError("--keep and limits exclude each other; leave out --keep, or the limits")
    if limits.keep is not None and not 0 < limits.keep <= 1:
        raise ConfigError(f"--keep {limits.keep:g}: give a share of the pairs, above 0 and at most 1")


def _tables(report: "FilterReport") -> "Iterator[str | Text]":
    """The pairs that each rule drops, and the distribution of the scores."""
    rows = [["pairs", f"{report.pairs:,}", "100.0%"]]
    counts = [*((f"  {rule}", count) for rule, count in report.dropped.items()), ("kept", report.kept)]
    rows += [[name, f"{count:,}", f"{count / report.pairs:.1%}"] for name, count in counts]
    names = list(next(iter(report.quantiles.values())))
    scores = [["", *names, "worst kept"]]
    for name, quantiles in report.quantiles.items():
        scores.append([name, *(f"{quantiles[one]:.2f}" for one in names), f"{report.worst_kept[name]:.2f}"])
    yield from (aligned(rows), "", aligned(scores, has_head=True))
