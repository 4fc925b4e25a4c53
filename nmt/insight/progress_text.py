"""Runs in a terminal: the status of one, once or until its training ends, and a table of all."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from nmt.errors import ConfigError, NmtError, printable
from nmt.insight.progress import MEANING, RunStatus, main_score, read_status
from nmt.runs.folder import RunFolder
from nmt.runs.history import Validation, duration, read_history
from nmt.system.console import aligned

REDRAW_SECONDS = 2.0
MAX_FAILURES = 5
"""Redraws for which a folder may be unreadable, while it is replaced."""
CURVE_WIDTH = 60
TRAINING_TEXT = "scores of the training text, which say nothing about other text"
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
    for line in describe(status):
        print(line, file=terminal)
    if losses := [one.loss for one in read_history(run).intervals if one.loss is not None]:
        print(f"{'loss':<14}{losses[0]:.2f} {curve(losses, CURVE_WIDTH)} {losses[-1]:.2f}", file=terminal)


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


def table(statuses: Sequence[RunStatus]) -> list[str]:
    """A header and a line for each run, in columns; then a line for each broken run that says what is wrong.

    A last line explains the mark of scores of training text, if there are any.
    """
    rows = [["", "name", "state", "step", "validation", "test", "parameters", "changed"], *map(_row, statuses)]
    problems = [status.reason for status in statuses if status.state == "broken"]
    marked = any(status.validates_on_training_text and status.validation_scores for status in statuses)
    return [*aligned(rows, left=range(len(rows[0]))).split("\n"), *problems, *[f"! {TRAINING_TEXT}"] * marked]


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
