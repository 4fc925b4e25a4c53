"""What `nmt init` recommends by the amount of data: one row for each size of corpus.

The row is the first one whose `pairs` is at least the number of training pairs; nothing is interpolated.
docs/starting.md shows the same table; docs/lab/defaults.md has the measurements.
"""

from typing import NamedTuple


class Recommended(NamedTuple):
    """The settings for corpora of up to `pairs` pairs. The names are those of the configuration's keys."""

    pairs: int | None
    """None: any number."""
    vocab_size: int
    """Of each vocabulary; smaller if the text does not allow it."""
    layers: int
    """Of the encoder, and of the decoder."""
    d_model: int
    d_ff: int
    num_heads: int
    dropout: float
    r_drop: float
    """0: off. An update costs twice as much with it."""
    max_steps: int
    warmup_steps: int
    learning_rate: float
    batch_tokens: int
    batches_per_update: int
    validate_every: int
    patience: int
    """Validations without a better score after which training ends."""
    ema_decay: float
    """0: off."""
    has_noise: bool
    """Whether it has `typed_input` and `fragments`."""


# Trained as they are: the row to 30,000 (configs/multi30k_en_de.yaml: 41.3 BLEU on 29,000 captions, three seeds), and
# those to 2,000 and 10,000 (17.2 and 30.6 validation BLEU on captions, one seed). Their vocabulary, width and dropout
# are also compared with other values, in ten minutes each, two seeds (docs/lab/defaults.md).
# The other rows are not measured: the smallest is scaled down, the larger ones are common practice.
RECOMMENDED = tuple(Recommended(*row) for row in (
    # Depth is layers, width d_model, every validate_every, pat patience; an update has x batches of batch tokens.
    #    pairs   vocab depth width   d_ff heads drop r_drop    steps   warm    rate  batch  x  every pat    ema  noise
    (      300,    500,    2,  128,   256,    4, 0.3,     0,   1_000,   100,   2e-3, 1_024, 1,   100,  5,  0.99, True),
    (    2_000,  2_000,    3,  192,   384,    4, 0.2,     3,   2_000,   200, 2.5e-3, 1_024, 2,   200,  5, 0.995, True),
    (   10_000,  4_000,    3,  192,   384,    4, 0.1,     3,   5_000,   350, 2.5e-3, 1_024, 2,   500,  5, 0.999, True),
    (   30_000,  5_000,    3,  192,   384,    4, 0.2,     3,  15_000,   700, 2.5e-3, 1_024, 2, 1_000,  5, 0.999, True),
    (  200_000,  8_000,    4,  256, 1_024,    4, 0.2,     1,  40_000, 1_500,   2e-3, 2_048, 2, 2_000,  5, 0.999, True),
    (1_000_000, 16_000,    6,  512, 2_048,    8, 0.1,     0, 100_000, 4_000,   1e-3, 4_096, 4, 4_000,  8, 0.999, False),
    (     None, 32_000,    6,  512, 2_048,    8, 0.1,     0, 200_000, 6_000,   1e-3, 4_096, 8, 5_000,  8, 0.999, False),
))  # fmt: skip

LABEL_SMOOTHING = 0.1
# Augmentation for text as people type it: measured with 29,000 captions (configs/README.md).
TYPED_INPUT = 0.15
TYPED_INPUT_WITHOUT_CASE = 0.05
FRAGMENTS = 0.1

# Pairs held out for validation, and as many for a test: a share of those that share no sentence with another one. In
# smaller corpora than the last number, so few say nothing.
HOLDOUT_SHARE = 0.05
HOLDOUT_MAX = 1_000
HOLDOUT_FROM = 100


def recommended(pairs: int) -> Recommended:
    """The row for a number of training pairs."""
    return next(row for row in RECOMMENDED if row.pairs is None or pairs <= row.pairs)


def holdout(pairs: int) -> int:
    """The number of pairs to hold out for each of validation and test, of those that can be; 0: none.

    >>> holdout(5), holdout(300), holdout(50_000)
    (0, 15, 1000)
    """
    return 0 if pairs < HOLDOUT_FROM else min(HOLDOUT_MAX, round(HOLDOUT_SHARE * pairs))
