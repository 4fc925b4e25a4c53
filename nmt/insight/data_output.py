"""Profile of a corpus as text for a terminal, and as an HTML page."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cleaning.profile import Bin, Lengths, Profile
from nmt.errors import printable
from nmt.system.console import aligned, bar, joined, shortened, styled, terminal_width
from nmt.system.files import write_text

if TYPE_CHECKING:
    from rich.text import Text

MAX_WIDTH = 100
"""Columns of the histograms in files and pipes."""


def data_text(profile: Profile) -> "Text":
    """Format the tables and histograms."""
    sections = [_corpora, _rules, _histograms, _repetitions, _characters, *[_overlaps] * bool(profile.against)]
    return joined("\n\n", [joined("\n", section(profile)) for section in sections])


def _room() -> int:
    return terminal_width() or MAX_WIDTH


def write_page(profile: Profile, path: Path) -> None:
    """Write the profile as one HTML file that requests nothing."""
    from nmt.insight.pages import render  # loads a template engine

    names = [one.name for one in profile.corpora]
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    functions = (bin_label, lengths_line, percent, printable, trimmed)
    named = {function.__name__: function for function in functions}
    page = render("data.html", f"{names[0]}{more}", profile=profile, **named)
    write_text(path, page)


def percent(count: int, total: int) -> str:
    """Format a share in percent: `0.3%`, `<0.1%`, or '' for 0."""
    if not count:
        return ""
    share = 100 * count / max(1, total)
    return "<0.1%" if share < 0.05 else f"{share:.1f}%"


def bin_label(one: Bin) -> str:
    """Format the limits of a bin: `1-5`, `over 40`; for ratios `1.25-1.5`, `below 0.2`."""
    if one.high is None:
        return f"over {one.low - 1:g}" if isinstance(one.low, int) else f"from {one.low:.2g}"
    if isinstance(one.low, int):
        return f"{one.low}" if one.low == one.high else f"{one.low:g}-{one.high:g}"
    return f"{one.low:.3g} - {one.high:.3g}" if one.low else f"below {one.high:.3g}"


def trimmed(bins: Sequence[Bin]) -> Sequence[Bin]:
    """The bins without the empty ones at both ends."""
    used = [index for index, one in enumerate(bins) if one.count] or [0]
    return bins[used[0] : used[-1] + 1]


def lengths_line(lengths: Lengths) -> str:
    """Format the figures of a histogram on one line."""
    return f"mean {lengths.mean:.1f}, median {lengths.median:,}, longest {lengths.longest:,}"


def _corpora(profile: Profile) -> "Iterator[str | Text]":
    rows = [["corpus", "pairs", "left", ""]]
    parts = [(one.name, one.pairs, one.kept) for one in profile.corpora]
    if len(parts) > 1:
        parts.append(("together", profile.pairs, profile.kept))
    rows += [[name, f"{pairs:,}", f"{kept:,}", percent(kept, pairs)] for name, pairs, kept in parts]
    yield styled(f"{profile.src.language} to {profile.tgt.language}", "bold")
    yield aligned(rows, has_head=True)


def _rules(profile: Profile) -> "Iterator[str | Text]":
    rows = [["rule", "setting", "drops", "", "alone"]]
    for one in profile.rules:
        alone = "" if one.alone is None else f"{one.alone:,}"
        rows.append([one.rule, one.setting, f"{one.dropped:,}", percent(one.dropped, profile.pairs), alone])
    yield styled("what the rules of data.cleaning drop, in this order; alone: as the only rule", "bold")
    yield aligned(rows, left=(0, 1), has_head=True)
    for rule in profile.rules:
        for pair in rule.examples:
            yield f"{rule.rule}: {pair.where}"
            yield from _pair(pair.src, pair.tgt)


def _pair(src: str, tgt: str) -> list[str]:
    return [shortened(f"    {text}", _room()).rstrip() for text in (src, tgt)]


def _histograms(profile: Profile) -> "Iterator[str | Text]":
    sides = (profile.src, profile.tgt)
    words = [(side, side.words) for side in sides if side.words is not None]
    for unit, shown in (("words", words), ("characters", [(side, side.characters) for side in sides])):
        if shown:
            yield styled(f"{unit} a line", "bold")
            yield from (f"{side.language}: {lengths_line(lengths)}" for side, lengths in shown)
            yield _side_by_side([lengths.bins for _, lengths in shown], _room())
            yield ""
    yield styled(f"length ratio: characters of {profile.tgt.language} for each of {profile.src.language}", "bold")
    yield _side_by_side([trimmed(profile.ratio)], _room() * 2 // 3)


def _side_by_side(columns: Sequence[Sequence[Bin]], width: int) -> "Text":
    """Format histograms with the same bins beside each other."""
    rows = [["", bin_label(one)] for one in columns[0]]
    for bins in columns:
        largest, digits = max(one.count for one in bins), max(len(f"{one.count:,}") for one in bins)
        room = (width - max(len(label) for _, label, *_ in rows)) // len(columns) - digits - 5
        for row, one in zip(rows, bins, strict=True):
            row += [f"{one.count:,}", bar(one.count / max(1, largest), max(4, room))]
    return aligned(rows, left=range(3, 3 + 2 * len(columns), 2))


def _repetitions(profile: Profile) -> "Iterator[str | Text]":
    found = profile.duplicates
    yield styled(
        f"repetitions: {_number(found['pair'], 'pair')}, {_number(found['source'], 'source')} and "
        f"{_number(found['target'], 'target')} occurred before",
        "bold",
    )
    yield f"  copies, whose target is the source: {_number(profile.copies, 'pair')}"
    for side in (profile.src, profile.tgt):
        for one in side.repeated:
            head = f"  {side.language}  {one.count:,} times  "
            place = f"  {one.where}"
            yield head + shortened(one.text, max(20, _room() - len(head) - len(place))) + place
    for side in (profile.src, profile.tgt):
        if side.empty or side.undecodable:
            yield f"  {side.language}: {_number(side.empty, 'empty line')}, {side.undecodable:,} not UTF-8"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _characters(profile: Profile) -> "Iterator[str | Text]":
    yield styled("unusual characters: of other scripts, control characters, without a meaning", "bold")
    for side in (profile.src, profile.tgt):
        if not side.num_odd_characters:
            yield f"  {side.language}: none"
            continue
        yield f"  {side.language}: {side.num_odd_characters:,} different, {_number(side.odd_occurrences, 'occurrence')}"
        rows = [
            ["   ", one.code_point, printable(one.character), one.name, f"{one.count:,}", one.where]
            for one in side.odd_characters
        ]
        yield aligned(rows, left=(0, 1, 2, 3, 5))


def _overlaps(profile: Profile) -> "Iterator[str | Text]":
    yield styled("overlap with test text", "bold")
    rows = [["", "pairs", "source known", "", "target known", "", "both", ""]]
    for one in profile.against:
        cells = [(f"{count:,}", percent(count, one.pairs)) for count in (one.src, one.tgt, one.both)]
        rows.append([f"  {one.name}", f"{one.pairs:,}", *(cell for pair in cells for cell in pair)])
    yield aligned(rows, has_head=True)
    for one in profile.against:
        for shared in one.examples:
            yield f"  {shared.where} as {shared.also}"
            yield from _pair(shared.src, shared.tgt)
