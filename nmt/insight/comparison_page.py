"""A comparison as one page that opens anywhere."""

import difflib
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nmt.config.languages import is_without_spaces
from nmt.evaluation.significance import Interval
from nmt.insight.comparison import Comparison, Spread
from nmt.insight.comparison_output import SEEDS_NOTE, notes, p_text
from nmt.insight.pages import render
from nmt.system.files import write_text


class Span(NamedTuple):
    """A part of a translation."""

    text: str
    is_changed: bool
    """Whether the other translation does not have it there."""


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the comparison as HTML, with no request to anywhere."""
    names = [system.name for system in comparison.test_sets[0].systems]
    page = render(
        "comparison.html",
        f"{' and '.join(names[1:])} compared with {names[0]}",
        comparison=comparison,
        notes=notes,
        seeds_note=SEEDS_NOTE,
        p_text=p_text,
        scale=_scale,
        marked=partial(marked, by_character=is_without_spaces(comparison.tgt_lang)),
    )
    write_text(path, page)


def marked(texts: tuple[str, str], by_character: bool) -> tuple[list[Span], list[Span]]:
    """Both texts in parts, with the words, or characters, marked in which they differ; the parts of each make its text.

    >>> marked(("a dog runs", "a cat runs"), by_character=False)[1]
    [Span(text='a ', is_changed=False), Span(text='cat', is_changed=True), Span(text=' runs', is_changed=False)]
    """
    units = [list(text) if by_character else re.findall(r"\s+|[^\s\w]|\w+", text) for text in texts]
    matcher = difflib.SequenceMatcher(a=units[0], b=units[1], autojunk=False)
    parts: tuple[list[Span], list[Span]] = ([], [])
    for kind, first, first_end, second, second_end in matcher.get_opcodes():
        for side, start, end in ((0, first, first_end), (1, second, second_end)):
            if text := "".join(units[side][start:end]):
                parts[side].append(Span(text, kind != "equal"))
    return parts


def _scale(ranges: Iterable[Interval | Spread]) -> Callable[[float], float]:
    """Where a score lies on a scale that holds the ranges: 4 to 96, in percent."""
    ends = [end for one in ranges for end in (one.low, one.high)]
    low, high = min(ends), max(ends)
    return lambda value: round(4 + 92 * (value - low) / (high - low), 2) if high > low else 50.0
