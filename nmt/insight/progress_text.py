"""Runs in a terminal: the status of one, once or until its training ends, and a table of all."""

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len, set_cell_size

from nmt.errors import ConfigError, NmtError
from nmt.insight.progress import MEANING, RunStatus, State, main_metric, read_status
from nmt.runs.folder import RunFolder
from nmt.runs.history import HIGHER_IS_BETTER, Validation, duration, in_words, read_history
from nmt.system.console import aligned, show, styled, terminal_width, widest

if TYPE_CHECKING:
    from rich.text import Text

REDRAW_SECONDS = 2.0
MAX_FAILURES = 5
"""Redraws for which a folder may be unreadable, while it is replaced."""
CURVE_WIDTH = 60
TRAINING_TEXT = "scores of the training text, which say nothing about other text"
_NAME_WIDTH = 20
"""Width of the name column for which other columns are dropped."""
_STYLES: Mapping[State, str] = {"training": "green", "interrupted": "yellow", "diverged": "red", "broken": "red"}
_NAMES = {"bleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++", "ter": "TER"}
_BARS = "▁▂▃▄▅▆▇█"


def watch(run: RunFolder, terminal: TextIO) -> None:
    """Show the status of a run every two seconds until its training ends; `ConfigError` if `terminal` is none."""
    if not terminal.isatty():
        raise ConfigError("--watch redraws a terminal, and the output is not one; leave --watch out")
    failures = 0
    while True:
        try:
            status, failures = read_status(run), 0
        except (NmtError, OSError):
            failures += 1
            if failures > MAX_FAILURES:
                raise
        else:
            terminal.write("\x1b[H\x1b[J")  # to the top left, and clear what is below
            show(*lines(run, status, terminal), stream=terminal)
            terminal.flush()
            if not status.is_being_trained:
                return
        time.sleep(REDRAW_SECONDS)


def lines(run: RunFolder, status: RunStatus, terminal: TextIO) -> "Iterator[str | Text]":
    """Lines of a run's status, with the curve of its loss, to show in a terminal."""
    head, *figures = describe(status)
    yield styled(head, "bold")
    yield from figures
    if losses := [one.loss for one in read_history(run).intervals if one.loss is not None]:
        first, last = f"{'loss':<14}{losses[0]:.2f} ", f" {losses[-1]:.2f}"
        room = (terminal_width(terminal) or CURVE_WIDTH * 2) - len(first + last)
        yield f"{first}{curve(losses, max(2, min(CURVE_WIDTH, room)))}{last}"


def curve(values: Sequence[float], width: int) -> str:
    """Draw values as bars, at most `width` of them at even distances, scaled from the lowest to the highest shown.

    >>> curve([9, 5, 3, 2], 60), curve(range(100), 4)
    ('█▄▂▁', '▁▃▆█')
    """
    if len(values) > width:
        values = [values[(len(values) - 1) * place // (width - 1)] for place in range(width)]
    low, high = min(values), max(values)
    return "".join(_BARS[round(7 * (value - low) / ((high - low) or 1))] for value in values)


def describe(status: RunStatus) -> list[str]:
    """The figures of a run, one per line."""
    head = MEANING[status.state]
    if status.state == "interrupted":
        if status.trainer:
            head = f"its training ended abruptly ({status.trainer})"
        head += f"; the same command {'starts it again' if status.checkpoint is None else 'resumes it'}"
    elif detail := status.trainer if status.is_being_trained else status.reason:
        head += f" ({detail})"
    return [f"{status.path}: {head}", *(f"{name:<12}  {value}" for name, value in _figures(status))]


def _figures(status: RunStatus) -> Iterator[tuple[str, str]]:
    if status.step or status.is_being_trained:
        total = f" of {status.total_steps:,}" if status.total_steps else ""
        epoch = f", epoch {status.epoch:,}" if status.epoch else ""
        yield "step", f"{status.step:,}{total}{epoch}"
    if status.seconds is not None:
        left = ""
        if status.seconds_left is not None:
            left = f", about {duration(status.seconds_left)} left, plus validations"
        yield "time", f"{duration(status.seconds)} of training{left}"
    if (interval := status.interval) is not None:
        loss = "-" if interval.loss is None else f"{interval.loss:.3f}"
        rate = "-" if interval.learning_rate is None else f"{interval.learning_rate:.2e}"
        speed = "-" if interval.tgt_tokens_per_second is None else f"{interval.tgt_tokens_per_second:,.0f}"
        yield "training", f"loss {loss}  learning rate {rate}  target tokens/s {speed}"
    best, last = status.best_validation, status.last_validation
    if last is not None and last != best:
        yield "validation", _validation(last)
    if best is not None:
        name = f"best {status.best_metric}" if status.best_metric else "validation"
        yield name, f"{_validation(best)}: the model"
    if status.skipped_updates:
        yield "skipped", f"{status.skipped_updates:,} updates, whose gradient was not finite"
    if status.checkpoint is not None:
        yield "checkpoint", f"at step {status.checkpoint:,}"
    if status.parameters is not None:
        yield "model", f"{status.parameters:,} parameters"
    elif not status.has_model and status.state != "export":
        yield "model", "none yet; the first validation writes it"
    for name, scores in status.test_scores.items():
        yield f"test {name}", in_words(scores)
    for name, scores, deviation in status.other_scores:
        yield f"test {name}", f"{in_words(scores)}  ({deviation})"
    if status.scores:
        yield "validation", in_words(status.scores)
    if status.validates_on_training_text and status.validation_scores:
        yield "validation", f"! {TRAINING_TEXT}"


def _validation(validation: Validation) -> str:
    return f"{in_words(validation.values)}  at step {validation.step:,}"


def table(statuses: Sequence[RunStatus]) -> "Iterator[str | Text]":
    """Yield a head and a line for each run, in columns; then a line for each broken run that says what is wrong.

    Each test set has a column. On a terminal, the least important columns for which there is no room are left out. A
    last line explains the mark of scores of training text, if there are any.
    """
    tests = [name for name, _ in Counter(name for one in statuses for name in one.test_scores).most_common()]
    scores = {"validation": [(one.validation_scores, one.validates_on_training_text) for one in statuses]}
    for name in tests:
        head = "test validation" if name == "validation" else name
        scores[head] = [(one.test_scores.get(name, {}), False) for one in statuses]
    scored = dict(_score_column(name, runs) for name, runs in scores.items())
    columns: dict[str, Sequence[str | Text]] = {
        "": ["*" if one.is_latest else "" for one in statuses],
        "name": [one.name for one in statuses],
        "state": [styled(one.state, _STYLES.get(one.state, "")) for one in statuses],
        "step": [f"{one.step:,}" if one.step else "" for one in statuses],
        **scored,
        "parameters": ["" if one.parameters is None else f"{one.parameters:,}" for one in statuses],
        "changed": ["" if one.changed is None else ago(one.changed) for one in statuses],
    }
    names = columns["name"]
    for least in ("parameters", *list(scored)[:1:-1], "step", "changed", "state", None):
        others = sum(widest([name, *cells]) + 2 for name, cells in columns.items() if name != "name")
        room = (terminal_width() or math.inf) - others
        if least and room < min(_NAME_WIDTH, widest(names)):
            columns.pop(least, None)
    columns["name"] = [_cut(str(name), max(_NAME_WIDTH, room)) for name in names]
    left = [place for place, name in enumerate(columns) if name in ("", "name", "state", "changed")]
    below = [status.reason for status in statuses if status.state == "broken"]
    if any(status.validates_on_training_text and status.validation_scores for status in statuses):
        below.append(f"! {TRAINING_TEXT}")
    rows = zip(*([name, *cells] for name, cells in columns.items()), strict=True)
    yield aligned(list(rows), left, has_head=True)
    yield from below


def _cut(name: str, width: float) -> str:
    """Cut a name in the middle if it is too wide: names of runs often differ at their ends."""
    if cell_len(name) <= width:
        return name
    half = (int(width) - 1) // 2
    return f"{set_cell_size(name, half)}…{set_cell_size(name[::-1], half)[::-1]}"


def _score_column(name: str, runs: "Sequence[tuple[Mapping[str, float], bool]]") -> "tuple[str, Sequence[Text]]":
    """The head, with the metric, and a score a run: the best bold, one of another metric named.

    `runs` are the scores of each, and whether they are of training text: such a score is marked, and never the best.
    """
    usual = statistics.mode([metric for scores, _ in runs if (metric := main_metric(scores))] or ["bleu"])
    compared = [scores[usual] for scores, is_marked in runs if usual in scores and not is_marked]
    best = (max if HIGHER_IS_BETTER[usual] else min)(compared, default=None)
    cells = []
    for scores, is_marked in runs:
        metric = usual if usual in scores else main_metric(scores)
        value = "" if metric is None else f"{'! ' * is_marked}{scores[metric]:.2f}"
        is_best = metric == usual and not is_marked and scores[metric] == best
        name_before = f"{_NAMES[metric]} " if metric and metric != usual else ""
        cells.append(styled(f"{name_before}{value}", "bold" if is_best else ""))
    return f"{name}\n{_NAMES[usual]}", cells


def ago(then: float) -> str:
    """The time since `then`, in seconds since 1970; the date if it is weeks ago.

    >>> ago(time.time() - 600), ago(time.time() - 90_000), ago(0)
    ('10 min ago', '25 h ago', '1970-01-01')
    """
    passed = max(0.0, time.time() - then)
    for limit, unit, name in ((3600, 60, "min"), (48 * 3600, 3600, "h"), (14 * 86_400, 86_400, "days")):
        if passed < limit:
            return f"{passed // unit:.0f} {name} ago"
    return time.strftime("%Y-%m-%d", time.localtime(then))
