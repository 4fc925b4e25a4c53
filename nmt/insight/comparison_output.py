"""A comparison as text, and as an HTML page."""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from nmt.config.languages import is_without_spaces
from nmt.config.training import Metric
from nmt.evaluation.significance import CONFIDENCE_SAMPLES, Interval, TestedScore
from nmt.insight.changes import Changed
from nmt.insight.comparison import BucketTable, ComparedSet, Comparison, Differences, SentenceDifference
from nmt.insight.drawing import Chart, Curve, curves
from nmt.insight.pages import render
from nmt.insight.systems import Trainings
from nmt.insight.verdict import SIGNIFICANT, OutputScores, Spread, SystemScores, p_of
from nmt.runs.history import HIGHER_IS_BETTER, ValidationMetric
from nmt.system.console import aligned, joined, shortened, styled, terminal_width
from nmt.system.files import write_text

if TYPE_CHECKING:
    from rich.text import Text

TEST_NAMES = {"bs": "paired bootstrap", "ar": "approximate randomization"}
_WIDTH = 100
"""Columns of settings in files and pipes."""
_SHOWN = 3  # sentences of each list; the JSON has more, and the page all that differ
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
        parts += [*_scores(test_set), _note(notes(comparison, baseline))]
        if any(len(system.outputs) > 1 for system in test_set.systems):
            parts += [_seeds(test_set.systems), _note([SEEDS_NOTE])]
        names = [system.outputs[0].name for system in test_set.systems]
        parts += [_buckets(table, names) for table in test_set.buckets]
        parts += [test_set.left_out] * bool(test_set.left_out)
        parts += [line for one in test_set.differences for line in _differences(one, baseline)]
    return joined("\n\n", parts)


SEEDS_NOTE = (
    "The gap is the mean minus the baseline's. It exceeds the spread if it is larger than the distance from the lowest "
    "to the highest seed, in the baseline and in the other system."
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
    keys = max(len(key) for key, _ in trainings.settings) + 2
    width = max(8, ((terminal_width() or _WIDTH) - keys) // len(trainings.names) - 2)
    rows = [
        [f"  {key}", *(shortened(value, width).rstrip() for value in values)]
        for key, values in (("", trainings.names), *trainings.settings)
    ]
    title = styled("settings that differ", "bold")
    return joined("\n", [title, aligned(rows, left=range(len(rows[0])), has_head=True)])


def p_text(tested: TestedScore, is_baseline: bool) -> str:
    """Format p: `p 0.012`; nothing for the baseline, `same` without a difference to test."""
    return "" if is_baseline else p_of(tested.p)


def _scores(test_set: ComparedSet) -> "Iterator[Text]":
    outputs = [output for system in test_set.systems for output in system.outputs]
    metrics: list[Metric] = list(outputs[0].scores)
    needed = max(len(output.name) for output in outputs) + 8 + 30 * len(metrics)
    for shown in [metrics] if needed <= (terminal_width() or needed) else [[metric] for metric in metrics]:
        yield aligned(_score_rows(outputs, shown), has_head=True)
    tested = outputs[0].scores.values()
    yield styled("\n".join(f"  {one.score.name:8}{one.score.signature}" for one in tested), "dim")


def _score_rows(outputs: Sequence[OutputScores], metrics: Sequence[Metric]) -> "list[list[str | Text]]":
    """A row an output: scores in these metrics, the best bold; p in colour where chance hardly explains it."""
    names = [outputs[0].scores[metric].score.name for metric in metrics]
    rows: list[list[str | Text]] = [["", *(column for name in names for column in (name, "95%", "")), "length"]]
    for output in outputs:
        row: list[str | Text] = [output.name]
        for metric in metrics:
            tested, sign = output.scores[metric], 1 if HIGHER_IS_BETTER[metric] else -1
            is_best = all(sign * (tested.score.value - one.scores[metric].score.value) >= 0 for one in outputs)
            color = "green" if sign * tested.difference > 0 else "red"
            is_significant = tested.p is not None and tested.p < SIGNIFICANT
            row += [
                styled(f"{tested.score.value:.2f}", "bold" if is_best else ""),
                f"{tested.interval.low:.2f}–{tested.interval.high:.2f}",
                styled(f"{p_text(tested, output is outputs[0]):7}", color if is_significant else ""),
            ]
        rows.append([*row, f"{output.length_ratio:.3f}"])
    return rows


def _seeds(systems: Sequence[SystemScores]) -> "Text":
    rows = [["seeds", "", "n", "mean", "deviation", "lowest", "highest", "gap", ""]]
    metrics: list[Metric] = list(systems[0].spread)
    for metric in metrics:
        for number, system in enumerate(systems):
            spread = system.spread[metric]
            title = system.outputs[0].scores[metric].score.name if number == 0 else ""
            deviation = "" if spread.deviation is None else f"{spread.deviation:.2f}"
            verdict = {None: "", True: "exceeds the spread", False: "within the spread"}[spread.gap_exceeds_spread]
            gap = f"{spread.gap:+.2f}" if number else ""
            numbers = [f"{spread.mean:.2f}", deviation, f"{spread.low:.2f}", f"{spread.high:.2f}"]
            rows.append([title, system.name, str(spread.count), *numbers, gap, verdict])
    return aligned(rows, left=(0, 1, 8), has_head=True)


def _buckets(table: BucketTable, names: Sequence[str]) -> "Text":
    digits = max(len(f"({bucket.count:,})") for row in table.rows for bucket in row)
    rows: list[list[str | Text]] = [["", *names]]
    for row in table.rows:
        best = max((one.score for one in row if one.score is not None), default=None)
        cells = [
            styled(
                f"{'-' if one.score is None else f'{one.score:.1f}'} {f'({one.count:,})':>{digits}}",
                "bold" if one.score == best else "",
            )
            for one in row
        ]
        rows.append([f"  {row[0].label}", *cells])
    title = styled(f"{table.metric} by {table.by} (number of {table.unit})", "bold")
    return joined("\n", [title, aligned(rows, has_head=True)])


def _differences(one: Differences, baseline: str) -> "Iterator[str | Text]":
    yield styled(f"{one.system} against {baseline}: {one.num_changed:,} lines differ", "bold")
    lists = [
        ("right more often", _words(one.words_right_more_often)),
        ("right less often", _words(one.words_right_less_often)),
        ("n-grams too many", _ngrams(one.ngrams_too_many)),
        ("n-grams too few", _ngrams(one.ngrams_too_few)),
    ]
    if any(listed for _, listed in lists):
        yield "\n".join(f"  {title:18}{'; '.join(listed)}" for title, listed in lists if listed)
    for title, sentences in (("better", one.better), ("worse", one.worse)):
        for sentence in sentences[:_SHOWN]:
            yield _sentence(title, sentence, (baseline, one.system))


def _words(words: Sequence[Changed]) -> list[str]:
    return [f"{one.text} {one.counts[0]} → {one.counts[1]} of {one.expected}" for one in words]


def _ngrams(ngrams: Sequence[Changed]) -> list[str]:
    return [f"{one.text} {one.counts[0]} → {one.counts[1]}" for one in ngrams]


def _sentence(title: str, sentence: SentenceDifference, names: tuple[str, str]) -> "Text":
    lines = [] if sentence.src is None else [("source", sentence.src)]
    lines += [("reference", sentence.reference), *zip(names, sentence.hypotheses, strict=True)]
    before, after = sentence.scores
    shown = aligned([["  ", name, text] for name, text in lines], left=(0, 1, 2))
    color = "green" if after > before else "red"
    head = joined("", ["  ", styled(title, color), f": line {sentence.line}, chrF {before:.0f} → {after:.0f}"])
    return joined("\n", [head, shown])


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
            return curves("validations", f"{label} on the validation set", label, lines)
    return None


def marked(texts: tuple[str, str], reference: str, by_character: bool) -> tuple[list[Span], list[Span]]:
    """Split both texts into spans, and mark the words, or characters, that only one of them has.

    They are right as often as the reference has them beside those that both have, and wrong otherwise.

    >>> marked(("a dog runs", "a cat runs"), "the cat ran", by_character=False)[1]
    [Span(text='a ', kind=''), Span(text='cat', kind='right'), Span(text=' runs', kind='')]
    """
    units = [re.findall(r"(?s)\s+|." if by_character else r"\s+|[^\s\w]|\w+", text) for text in (*texts, reference)]
    words = [[unit for unit in side if not unit.isspace()] for side in units]
    matches = difflib.SequenceMatcher(a=words[0], b=words[1], autojunk=False).get_matching_blocks()
    shared = [{place for match in matches for place in range(match[side], match[side] + match.size)} for side in (0, 1)]
    return (
        _spans(units[0], shared[0], Counter(words[2]) - Counter(words[0][place] for place in shared[0])),
        _spans(units[1], shared[1], Counter(words[2]) - Counter(words[1][place] for place in shared[1])),
    )


def _spans(units: Sequence[str], shared: set[int], expected: Counter[str]) -> list[Span]:
    """Join neighbours of the same kind; `shared` has the positions, without spaces, of what both texts have."""
    spans: list[Span] = []
    position = 0
    for unit in units:
        kind: Literal["", "right", "wrong"] = ""
        if not unit.isspace():
            if position not in shared:
                kind = "right" if expected[unit] > 0 else "wrong"
                expected[unit] -= 1
            position += 1
        if spans and spans[-1].kind == kind:
            spans[-1] = Span(spans[-1].text + unit, kind)
        else:
            spans.append(Span(unit, kind))
    return spans


def _scale(ranges: Iterable[Interval | Spread]) -> Callable[[float], float]:
    """A function from a score to its place on a scale that holds the ranges: 4 to 96, in percent."""
    ends = [end for one in ranges for end in (one.low, one.high)]
    low, high = min(ends), max(ends)
    return lambda value: round(4 + 92 * (value - low) / (high - low), 2) if high > low else 50.0
