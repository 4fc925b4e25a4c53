"""A comparison as text, and as an HTML page."""

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from nmt.config.languages import is_without_spaces
from nmt.evaluation.significance import CONFIDENCE_SAMPLES, Interval
from nmt.insight.comparison import BucketTable, Comparison, Differences, SentenceDifference
from nmt.insight.drawing import Chart, Curve, curves
from nmt.insight.pages import render
from nmt.insight.systems import Trainings
from nmt.insight.verdict import SIGNIFICANT, OutputScores, Result, SeedScores, SystemScores, judge, p_text
from nmt.runs.history import HIGHER_IS_BETTER, ValidationMetric
from nmt.system.console import aligned, joined, shortened, styled, terminal_width
from nmt.system.files import write_text

if TYPE_CHECKING:
    from rich.text import Text

TEST_NAMES = {"bs": "paired bootstrap", "ar": "approximate randomization"}
COLORS: dict[Result, str] = {"better": "green", "worse": "red"}
MAX_SENTENCE_BYTES = 5_000_000
"""Maximum size of the sentences on a page, all test sets and systems together."""
_SHOWN_WORDS, _SHOWN_SENTENCES = 5, 3
"""Of each list; the page and the JSON have more."""
_CURVES: dict[ValidationMetric, str] = {"bleu": "BLEU", "chrf": "chrF", "loss": "Loss (lower is better)"}


def comparison_text(comparison: Comparison) -> "Text":
    """Format the verdict, what differs between the trainings, the tables, and a few of the sentences."""
    parts: list[str | Text] = []
    for number, test_set in enumerate(comparison.test_sets):
        baseline = test_set.systems[0].outputs[0].name
        title = styled(f"{test_set.name}: {test_set.num_lines:,} lines, baseline {baseline}", "bold")
        parts.append(joined("\n", [title, *(f"  {one}" for one in test_set.verdict)]))
        if number == 0 and comparison.trainings.settings:
            parts.append(_settings(comparison.trainings))
        outputs = [output for system in test_set.systems for output in system.outputs]
        signatures = [f"{one.score.name:8}{one.score.signature}" for one in outputs[0].scores.values()]
        parts += [_scores(outputs), _note(signatures), _note(notes(comparison, baseline))]
        if len(outputs) > len(test_set.systems):
            parts += [_seeds(test_set.systems), _note([SEEDS_NOTE])]
        names = [system.outputs[0].name for system in test_set.systems]
        parts += [_buckets(table, names) for table in test_set.buckets]
        parts += [test_set.left_out] * bool(test_set.left_out)
        parts += [line for one in test_set.differences for line in _differences(one, baseline)]
    return joined("\n\n", parts)


SEEDS_NOTE = (
    "The gap is the mean minus the baseline's. It is better or worse if it exceeds the spread: the distance from the "
    "lowest to the highest seed, in the baseline and in the other system. A single seed is not compared with several."
)


def notes(comparison: Comparison, baseline: str) -> list[str]:
    """The meaning of the intervals and of p, and their limits."""
    resampled = CONFIDENCE_SAMPLES if comparison.test == "ar" else comparison.samples
    return [
        f"95%: the interval of the scores of {resampled:,} resampled test sets. p: the probability of such a "
        f"difference from {baseline} if both were equally good ({TEST_NAMES[comparison.test]}, "
        f"{comparison.samples:,} samples).",
        "Both say how far the result depends on these sentences. They say nothing about seeds: the same training with "
        "another seed can differ by more. Train each system with several, and join them: RUN,RUN.",
    ]


def _settings(trainings: Trainings) -> "Text":
    rows = [["", *trainings.names], *([f"  {key}", *values] for key, values in trainings.settings.items())]
    title = styled("settings that differ", "bold")
    return joined("\n", [title, aligned(rows, left=range(len(rows[0])), has_head=True, has_keys=True)])


def _scores(outputs: Sequence[OutputScores]) -> "Text":
    """A part for each metric: the best score bold, p in colour where chance hardly explains the difference."""
    rows: list[list[str | Text]] = []
    for metric, first in outputs[0].scores.items():
        rows.append([styled(cell, "bold") for cell in ("", first.score.name, "95%", "gap", "", "length")])
        values = [one.scores[metric].score.value for one in outputs]
        best = max(values) if HIGHER_IS_BETTER[metric] else min(values)
        for output, value in zip(outputs, values, strict=True):
            tested, is_first = output.scores[metric], output is outputs[0]
            color = COLORS.get(judge(metric, values[:1], [value], tested.p).result, "")
            row: list[str | Text] = [output.name, styled(f"{value:.2f}", "bold" if value == best else "")]
            row.append(f"{tested.interval.low:.2f}–{tested.interval.high:.2f}")
            row += ["", ""] if is_first else [f"{tested.difference:+.2f}", styled(p_text(tested.p), color)]
            rows.append([*row, f"{output.length_ratio:.3f}"])
    return aligned(rows, left=(0, 4))


def _seeds(systems: Sequence[SystemScores]) -> "Text":
    rows = [["seeds", "", "n", "mean", "lowest", "highest", "deviation", "gap", ""]]
    for metric, tested in systems[0].outputs[0].scores.items():
        for system in systems:
            one, is_first = system.seeds[metric], system is systems[0]
            row = [tested.score.name * is_first, system.name, str(len(system.outputs))]
            row += [f"{value:.2f}" for value in (one.mean, one.low, one.high)]
            row.append("" if one.deviation is None else f"{one.deviation:.2f}")
            rows.append([*row, *(("", "") if is_first else (f"{one.gap:+.2f}", one.result))])
    return aligned(rows, left=(0, 1, 8), has_head=True)


def _buckets(table: BucketTable, names: Sequence[str]) -> "Text":
    width = max(12, ((terminal_width() or 1000) - 16) // len(names) - 2)
    rows: list[list[str | Text]] = [["", *(shortened(name, width) for name in names)]]
    for buckets in table.rows:
        best = max((one.score for one in buckets if one.score is not None), default=None)
        row: list[str | Text] = [f"  {buckets[0].label}"]
        for one in buckets:
            score = "-" if one.score is None else f"{one.score:.1f}"
            row.append(styled(f"{score} {f'({one.count:,})':>7}", "bold" if one.score == best else ""))
        rows.append(row)
    title = styled(f"{table.metric} by {table.by} (number of {table.unit})", "bold")
    return joined("\n", [title, aligned(rows, has_head=True)])


def _differences(one: Differences, baseline: str) -> "Iterator[Text]":
    title = styled(f"{one.system} against {baseline}: {one.num_changed:,} lines differ", "bold")
    lists = []
    for kind, words in one.words.items():
        counts = [
            f"{word.text} {word.counts[0]} → {word.counts[1]} of {word.expected}" for word in words[:_SHOWN_WORDS]
        ]
        lists += [f"  {kind:24}{'; '.join(counts)}"] * bool(words)
    yield joined("\n", [title, *lists])
    for result, sign in zip(COLORS, (1, -1), strict=True):
        changed = (sentence for sentence in one.sentences if sign * sentence.change > 0)
        for sentence in itertools.islice(changed, _SHOWN_SENTENCES):
            yield _sentence(result, sentence, (baseline, one.system))


def _sentence(result: Result, sentence: SentenceDifference, names: tuple[str, str]) -> "Text":
    lines = [] if sentence.src is None else [("source", sentence.src)]
    lines += [("reference", sentence.reference), *zip(names, sentence.hypotheses, strict=True)]
    before, after = sentence.scores
    shown = aligned([["  ", name, text] for name, text in lines], left=(0, 1, 2))
    change = f": line {sentence.line}, chrF {before:.0f} → {after:.0f}"
    return joined("\n", [joined("", ["  ", styled(result, COLORS[result]), change]), shown])


def _note(paragraphs: Sequence[str]) -> "Text":
    return styled("\n".join(f"  {paragraph}" for paragraph in paragraphs), "dim")


class Span(NamedTuple):
    """A part of a translation."""

    text: str
    kind: Literal["", "right", "wrong"]
    """If the other translation does not have it: right if the reference has it."""


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the comparison as one HTML file that requests nothing."""
    names = [system.name for system in comparison.test_sets[0].systems]
    page = render(
        "comparison.html",
        f"{' and '.join(names[1:])} compared with {names[0]}",
        comparison=comparison,
        chart=_chart(comparison.trainings),
        room=MAX_SENTENCE_BYTES // sum(len(one.differences) for one in comparison.test_sets),
        notes=notes,
        seeds_note=SEEDS_NOTE,
        p_text=p_text,
        significant=SIGNIFICANT,
        scale=_scale,
        marked=partial(marked, by_character=is_without_spaces(comparison.tgt_lang)),
    )
    write_text(path, page)


def _chart(trainings: Trainings) -> Chart | None:
    """The validations of all runs in the first metric that two of them have; None without one."""
    for metric, label in _CURVES.items():
        points = [
            [(one.step, one.values[metric]) for one in run.validations if metric in one.values]
            for run in trainings.histories
        ]
        lines = [Curve(name, line) for name, line in zip(trainings.names, points, strict=True) if line]
        if len(lines) > 1:
            highest = None if metric == "loss" else 100
            return curves("validations", f"{label} on the validation set", label, lines, highest=highest)
    return None


def marked(texts: tuple[str, str], reference: str, by_character: bool) -> list[list[Span]]:
    """Split both texts into spans, and mark the words, or characters, that only one of them has.

    They are right as often as the reference has them beside those that both have, and wrong otherwise.

    >>> marked(("a dog runs", "a cat runs"), "the cat ran", by_character=False)[1]
    [Span(text='a ', kind=''), Span(text='cat', kind='right'), Span(text=' runs', kind='')]
    """
    units = [re.findall(r"(?s)\s+|." if by_character else r"\s+|[^\s\w]|\w+", text) for text in (*texts, reference)]
    words = [[unit for unit in side if not unit.isspace()] for side in units]
    matches = difflib.SequenceMatcher(a=words[0], b=words[1], autojunk=False).get_matching_blocks()
    spans = []
    for side in (0, 1):
        shared = {place for match in matches for place in range(match[side], match[side] + match.size)}
        expected = Counter(words[2]) - Counter(words[side][place] for place in shared)
        places = itertools.count()
        kinds: list[Literal["", "right", "wrong"]] = []
        for unit in units[side]:
            is_marked = not unit.isspace() and next(places) not in shared
            kinds.append("" if not is_marked else "right" if expected[unit] > 0 else "wrong")
            expected[unit] -= is_marked
        groups = itertools.groupby(zip(units[side], kinds, strict=True), key=lambda pair: pair[1])
        spans.append([Span("".join(unit for unit, _ in group), kind) for kind, group in groups])
    return spans


def _scale(ranges: Iterable[Interval | SeedScores]) -> Callable[[float], float]:
    """A function from a score to its place on a scale that holds the ranges: 4 to 96, in percent."""
    ends = [end for one in ranges for end in (one.low, one.high)]
    low, high = min(ends), max(ends)
    return lambda value: round(4 + 92 * (value - low) / (high - low), 2) if high > low else 50.0
