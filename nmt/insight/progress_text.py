"""Where a run stands, as text for a terminal: figures and a chart of the loss, once or until its training ends."""

import shutil
import time
import unicodedata
from collections.abc import Iterator, Mapping
from typing import TextIO

from nmt.errors import ConfigError, NmtError, printable
from nmt.history import Validation, duration, read_history
from nmt.insight.progress import MEANING, RunStatus, read_status
from nmt.insight.terminal_chart import Point, can_draw, chart
from nmt.runs import RunFolder

CHART_HEIGHT = 14
MAX_WIDTH = 120
POLL_SECONDS = 0.3
REDRAW_SECONDS = 5.0
"""The time left is counted down this often, also while nothing is recorded."""
PATIENCE_SECONDS = 10.0
"""A folder may be unreadable for this long while it is replaced."""


def show(run: RunFolder, terminal: TextIO) -> None:
    """Print where a run stands."""
    status = read_status(run)
    width = min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)
    for line in [*describe(status), *loss_chart(run, terminal, width, CHART_HEIGHT)]:
        print(line, file=terminal)


def watch(run: RunFolder, terminal: TextIO) -> None:
    """Show where a run stands, and again whenever its records change, until its training ends.

    `ConfigError` if `terminal` is not one.
    """
    if not terminal.isatty():
        raise ConfigError("--watch redraws a terminal, and the output is not one; leave --watch out")
    num_drawn = 0
    while True:
        seen = _signature(run)
        status = _read_patiently(run)
        size = shutil.get_terminal_size((80, 24))
        width, height = min(size.columns, MAX_WIDTH) - 1, size.lines - 1
        lines = describe(status)
        lines += loss_chart(run, terminal, width, min(CHART_HEIGHT, height - len(lines)))
        lines = [_cut(line, width) for line in lines[:height]]  # a wrapped line would be two
        if num_drawn:
            terminal.write(f"\x1b[{num_drawn}F\x1b[J")  # up, and clear what is below
        terminal.write("".join(f"{line}\n" for line in lines))
        terminal.flush()
        num_drawn = len(lines)
        if not status.is_being_trained:
            return
        drawn_at = time.monotonic()
        while _signature(run) == seen and time.monotonic() < drawn_at + REDRAW_SECONDS:
            time.sleep(POLL_SECONDS)


def loss_chart(run: RunFolder, terminal: TextIO, width: int, height: int) -> list[str]:
    """The loss of the training and of the validations by step; nothing without a record."""
    history = read_history(run)
    is_plain = not can_draw(terminal.encoding)
    curve = [Point(each.step, each.loss) for each in history.intervals if each.loss is not None]
    marks = [Point(each.step, each.values["loss"]) for each in history.validations if "loss" in each.values]
    lines = chart(curve, marks, width, height - 2, is_plain)
    return ["", f"loss by step; {'o' if is_plain else '●'} validation", *lines] if lines else []


def describe(status: RunStatus) -> list[str]:
    """The figures of a run, a line each."""
    head = MEANING[status.state]
    if status.state == "interrupted":
        if status.trainer:
            head = f"its training ended abruptly ({status.trainer})"
        head += f"; the same command {'starts it again' if status.checkpoint is None else 'resumes it'}"
    elif detail := status.trainer if status.is_being_trained else status.reason:
        head += f" ({detail})"
    lines = [f"{status.path}: {head}", *(f"{name:<14}{value}" for name, value in _figures(status))]
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
    yield from _validations(status)
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


def _validations(status: RunStatus) -> Iterator[tuple[str, str]]:
    best, last = status.best_validation, status.last_validation
    if last is not None and last != best:
        yield "validation", _validation(last)
    if best is not None:
        name = f"best {status.best_metric}" if status.best_metric else "validation"
        yield name, f"{_validation(best)}: the model"


def _validation(validation: Validation) -> str:
    return f"{_scores(validation.values)}  at step {validation.step:,}"


def _scores(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.{3 if name == 'loss' else 2}f}" for name, value in values.items())


def _read_patiently(run: RunFolder) -> RunStatus:
    """The run's status, also if its folder is just being replaced."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return read_status(run)
        except (NmtError, OSError):
            if time.monotonic() > give_up:
                raise
        time.sleep(POLL_SECONDS)


def _signature(run: RunFolder) -> tuple[object, ...]:
    """What changes when a training records something, ends or begins, and when the window's size does."""
    try:
        found = run.metrics_file.stat()
        written = (found.st_mtime_ns, found.st_size, found.st_ino)
    except OSError:
        written = None
    return written, run.marked_trainer(), shutil.get_terminal_size((80, 24))


def _cut(line: str, width: int) -> str:
    """The line, cut where it is wider than a terminal."""
    used = 0
    for position, character in enumerate(line):
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > width:
            return line[:position]
    return line
