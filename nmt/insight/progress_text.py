"""Runs in a terminal: the status of one, once or until its training ends, and a table of all."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len

from nmt.errors import ConfigError, NmtError, printable
from nmt.insight.progress import MEANING, RunStatus, State, main_metric, main_score, read_status
from nmt.runs.folder import RunFolder
from nmt.runs.history import Validation, duration, is_better, read_history
from nmt.system import console
from nmt.system.console import aligned, styled, terminal_width

if TYPE_CHECKING:
    from rich.text import Text

REDRAW_SECONDS = 2.0
MAX_FAILURES = 5
"""Redraws for which a folder may be unreadable, while it is replaced."""
CURVE_WIDTH = 60
TRAINING_TEXT = "scores of the training text, which say nothing about other text"
_NAME_WIDTH = 20
"""Columns of a run's name for which others are dropped from the table."""
_STYLES: Mapping[State, str] = {"training": "green", "interrupted": "yellow", "diverged": "red", "broken": "red"}
_NAMES = {"bleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++", "ter": "TER"}
_BARS = "▁▂▃▄▅▆▇█"


def show(run: RunFolder, terminal: TextIO) -> None:
    """Print the status of a run."""
    _print(run, read_status(run), terminal)


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
            _print(run, status, terminal)
            terminal.flush()
            if not status.is_being_trained:
                return
        time.sleep(REDRAW_SECONDS)


def _print(run: RunFolder, status: RunStatus, terminal: TextIO) -> None:
    head, *lines = describe(status)
    if losses := [one.loss for one in read_history(run).intervals if one.loss is not None]:
        first, last = f"{'loss':<14}{losses[0]:.2f} ", f" {losses[-1]:.2f}"
        room = (console.terminal_width(terminal) or CURVE_WIDTH * 2) - len(first + last)
        lines.append(f"{first}{curve(losses, max(2, min(CURVE_WIDTH, room)))}{last}")
    console.show(styled(head, "bold"), *lines, stream=terminal)


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
    lines = [f"{status.path}: {head}", *(f"{name:<13} {value}" for name, value in _figures(status))]
    return [printable(line) for line in lines]


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
        yield f"test {name}", _scores(scores)
    for name, scores, deviation in status.other_scores:
        yield f"test {name}", f"{_scores(scores)}  ({deviation})"
    if status.scores:
        yield "validation", _scores(status.scores)
    if status.validates_on_training_text and status.validation_scores:
        yield "validation", f"! {TRAINING_TEXT}"


def _validation(validation: Validation) -> str:
    return f"{_scores(validation.values)}  at step {validation.step:,}"


def _scores(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.{3 if name == 'loss' else 2}f}" for name, value in values.items())


def table(statuses: Sequence[RunStatus]) -> "list[str | Text]":
    """A head and a line for each run, in columns; then a line for each broken run that says what is wrong.

    On a terminal, each test set has a column, and those for which there is no room are left out.
    A last line explains the mark of scores of training text, if there are any.
    """
    below = [status.reason for status in statuses if status.state == "broken"]
    if any(status.validates_on_training_text and status.validation_scores for status in statuses):
        below.append(f"! {TRAINING_TEXT}")
    if (width := terminal_width()) is not None:
        return [_for_terminal(statuses, width), *below]
    rows = [["", "name", "state", "step", "validation", "test", "parameters", "changed"], *map(_row, statuses)]
    return [aligned(rows, left=range(len(rows[0]))), *below]


def _for_terminal(statuses: Sequence[RunStatus], width: int) -> "Text":
    tests = [name for name, _ in Counter(name for status in statuses for name in status.test_scores).most_common()]
    marks = [status.validates_on_training_text for status in statuses]
    columns: dict[str, list[str | Text]] = {
        "": ["", "", *("*" if status.is_latest else "" for status in statuses)],
        "name": ["name", "", *(status.name for status in statuses)],
        "state": ["state", "", *(styled(status.state, _STYLES.get(status.state, "")) for status in statuses)],
        "step": ["step", "", *(f"{status.step:,}" if status.step else "" for status in statuses)],
        "validation": ["validation", *_score_cells([status.validation_scores for status in statuses], marks)],
        "marks": ["", "", *("!" * is_marked for is_marked in marks)],
    }
    for name in tests:
        scores = [status.test_scores.get(name, {}) for status in statuses]
        columns[f"test {name}"] = [name, *_score_cells(scores, [False] * len(statuses))]
    columns["size"] = ["size", "", *(_millions(status.parameters) for status in statuses)]
    columns["changed"] = ["changed", "", *("" if one.changed is None else ago(one.changed) for one in statuses)]
    widths = {name: max(cell_len(str(cell)) for cell in cells) + 2 for name, cells in columns.items()}
    widths["name"] = min(widths["name"], _NAME_WIDTH + 2)
    least_first = ["size", *(f"test {name}" for name in tests[:0:-1]), "step", "changed", "state"]
    for name in least_first:
        if sum(widths[each] for each in columns) - 2 > width:
            columns.pop(name, None)
    left = [index for index, name in enumerate(columns) if name in ("", "name", "state", "marks", "changed")]
    return aligned(list(zip(*columns.values(), strict=True)), left, has_head=True)


def _score_cells(scores: "Sequence[Mapping[str, float]]", marks: Sequence[bool]) -> "Iterator[str | Text]":
    """The column's metric, and a score a run: the best of those without a mark bold, one of another metric named."""
    metrics = [main_metric(each) for each in scores]
    ((usual, _),) = Counter(name for name in metrics if name is not None).most_common(1) or [("", 0)]
    best: Mapping[str, float] = {}
    for metric, each, is_marked in zip(metrics, scores, marks, strict=True):
        if metric == usual and not is_marked and is_better(usual, {usual: each[usual]}, best):
            best = {usual: each[usual]}
    yield styled(_NAMES.get(usual, usual), "dim")
    for metric, each in zip(metrics, scores, strict=True):
        if metric is None:
            yield ""
        elif metric == usual:
            yield styled(f"{each[metric]:.2f}", "bold" if each[metric] == best.get(metric) else "")
        else:
            yield f"{_NAMES.get(metric, metric)} {each[metric]:.2f}"


def _millions(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:.1f} M" if count >= 50_000 else f"{count:,}"


def ago(then: float, now: float | None = None) -> str:
    """The time since `then`, in seconds since 1970; the date if it is weeks ago.

    >>> ago(0, 30), ago(0, 600), ago(0, 90_000), ago(0, 400_000)
    ('now', '10 min ago', '25 h ago', '4 days ago')
    """
    passed = max(0.0, (time.time() if now is None else now) - then)
    for limit, unit, name in ((60, 60, ""), (3600, 60, "min"), (48 * 3600, 3600, "h"), (14 * 86_400, 86_400, "days")):
        if passed < limit:
            return f"{passed // unit:.0f} {name} ago" if name else "now"
    return time.strftime("%Y-%m-%d", time.localtime(then))


def _row(status: RunStatus) -> list[str]:
    validation = main_score(status.validation_scores)
    tests = {name: main_score(scores) for name, scores in status.test_scores.items()}
    return [
        "*" if status.is_latest else "",
        status.name,
        status.state,
        f"{status.step:,}" if status.step else "",
        "" if validation is None else f"{validation:.2f}{' !' * status.validates_on_training_text}",
        "  ".join(f"{name} {value:.2f}" for name, value in tests.items() if value is not None),
        "" if status.parameters is None else f"{status.parameters:,}",
        "" if status.changed is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(status.changed)),
    ]
