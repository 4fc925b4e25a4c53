"""The settings of `nmt init` for a time: model, regularization and updates from the measured speed of this machine.

The recommended rows (starter.py) say what a corpus of a size deserves, however long it takes. Within a time, a training
keeps its row's model if it can make enough updates, and has R-Drop if it passes over the corpus often enough with it.
docs/lab/defaults.md has the measurements.
"""

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from nmt.cleaning.inspection import Inspection
from nmt.errors import ConfigError
from nmt.recipes.starter import RECOMMENDED, Recommended, TimedRow, recommended, tokens_for

if TYPE_CHECKING:  # without a trial, nothing loads torch
    from nmt.training.trial import Speed

HOURS_ON_A_CPU, HOURS_ON_A_GPU = 2, 1
"""The time of a training if none is given."""
_FOR_UPDATES = 0.9  # share of the time; the rest is for validations
_R_DROP_COST = 1.8  # time of an update, in updates without it: 1.72 to 1.80 measured
_MIN_SHARE = 1 / 10  # of a row's updates; with fewer, the next smaller model is taken
_MANY_EPOCHS = 30
"""From here on, R-Drop is worth its time, and dropout the recommended one. With 29,000 captions, R-Drop is 4.6 BLEU
behind at 6 epochs and as good as none at 22, and far ahead at 58; with 2,000, ahead at 130 (docs/lab)."""
_SHORT_DROPOUT = 0.1


def seconds_of(text: str) -> float:
    """The seconds of a time such as `20m`, `1h` or `1h30m`; `ConfigError` for other text.

    >>> seconds_of("20m"), seconds_of("1.5h"), seconds_of("1h30m")
    (1200.0, 5400.0, 5400.0)
    """
    found = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?", text.replace(" ", ""))
    try:
        hours, minutes = (float(part or 0) for part in found.groups()) if found else (0.0, 0.0)
    except ValueError:
        hours = minutes = 0.0
    if not hours + minutes:
        raise ConfigError(f"--time: {text!r} is no time; write hours and minutes, such as 20m, 1h or 1h30m")
    return 3600 * hours + 60 * minutes


def fit(pairs: int, seconds: float | None, trial: "Callable[[Recommended], Speed]") -> TimedRow:
    """The settings for a number of pairs and a time, by default that of the device.

    `trial` measures the speed of a row's updates, which it calls for smaller and smaller models until the time allows
    enough updates.
    """
    own = recommended(pairs)
    smaller = {row.d_model: row for row in RECOMMENDED if row.d_model < own.d_model}  # the last row of each width
    whole = 0.0
    for row in (own, *(smaller[width] for width in sorted(smaller, reverse=True))):
        speed = trial(row._replace(r_drop=0))
        whole = whole or _seconds(own, speed) / _FOR_UPDATES
        given = seconds or 3600.0 * (HOURS_ON_A_CPU if speed.device == "cpu" else HOURS_ON_A_GPU)
        updates = _FOR_UPDATES * given / speed.seconds
        if updates >= _MIN_SHARE * row.max_steps:
            break
    if whole <= given:
        return TimedRow(own, speed, _seconds(own, speed), 0)
    fitted = _with_updates(row, updates, pairs / speed.pairs, row.max_steps if row is own else math.inf)
    return TimedRow(fitted, speed, _seconds(fitted, speed), whole)


def _seconds(row: Recommended, speed: "Speed") -> float:
    """The time of all updates of a row, at the speed without R-Drop."""
    return row.max_steps * speed.seconds * (_R_DROP_COST if row.r_drop else 1)


def _with_updates(row: Recommended, updates: float, epoch: float, limit: float) -> Recommended:
    """The row for a training as long as `updates` without R-Drop, `limit` at most; an epoch has `epoch` updates."""
    has_r_drop = bool(row.r_drop) and updates / _R_DROP_COST >= _MANY_EPOCHS * epoch
    steps = int(min(limit, updates / _R_DROP_COST if has_r_drop else updates))
    steps = max(1, steps // 100 * 100 or steps)
    return row._replace(
        max_steps=steps,
        r_drop=row.r_drop if has_r_drop else 0,
        dropout=row.dropout if steps >= _MANY_EPOCHS * epoch else min(row.dropout, _SHORT_DROPOUT),
        warmup_steps=min(row.warmup_steps, steps // 12),
        validate_every=max(1, min(row.validate_every, steps // 8)),
        ema_decay=min(row.ema_decay, round(max(0.0, 1 - 5 / steps), 4)),
    )


def trial_settings(row: Recommended, inspection: Inspection) -> list[str]:
    """The overrides of a configuration that make its updates those of a row."""
    return [
        f"tokenizer.vocab_size={tokens_for(inspection, row).vocab_size}",
        f"model.num_encoder_layers={row.layers}",
        f"model.num_decoder_layers={row.layers}",
        f"model.d_model={row.d_model}",
        f"model.d_ff={row.d_ff}",
        f"model.num_heads={row.num_heads}",
        f"training.batch_tokens={row.batch_tokens}",
        f"training.batches_per_update={row.batches_per_update}",
        f"training.r_drop={row.r_drop:g}",
    ]
