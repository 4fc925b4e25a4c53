"""What `nmt init` recommends by the amount of data: one row for each size of corpus.

The row is the first one whose `pairs` is at least the number of training pairs; nothing is interpolated.
docs/first-hour.md shows the same table, and what was measured.
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
# are also compared with neighbours, in ten minutes each, two seeds (scripts/measure_defaults.py, docs/first-hour.md).
# The other rows are not measured: the smallest is scaled down, the larger ones are common practice.
RECOMMENDED = (
    Recommended(
        pairs=300, vocab_size=500, layers=2, d_model=128, d_ff=256, num_heads=4, dropout=0.3, r_drop=0,
        max_steps=1_000, warmup_steps=100, learning_rate=2e-3, batch_tokens=1_024, batches_per_update=1,
        validate_every=100, patience=5, ema_decay=0.99, has_noise=True,
    ),
    Recommended(
        pairs=2_000, vocab_size=2_000, layers=3, d_model=192, d_ff=384, num_heads=4, dropout=0.2, r_drop=3,
        max_steps=2_000, warmup_steps=200, learning_rate=2.5e-3, batch_tokens=1_024, batches_per_update=2,
        validate_every=200, patience=5, ema_decay=0.995, has_noise=True,
    ),
    Recommended(
        pairs=10_000, vocab_size=4_000, layers=3, d_model=192, d_ff=384, num_heads=4, dropout=0.1, r_drop=3,
        max_steps=5_000, warmup_steps=350, learning_rate=2.5e-3, batch_tokens=1_024, batches_per_update=2,
        validate_every=500, patience=5, ema_decay=0.999, has_noise=True,
    ),
    Recommended(
        pairs=30_000, vocab_size=5_000, layers=3, d_model=192, d_ff=384, num_heads=4, dropout=0.2, r_drop=3,
        max_steps=15_000, warmup_steps=700, learning_rate=2.5e-3, batch_tokens=1_024, batches_per_update=2,
        validate_every=1_000, patience=5, ema_decay=0.999, has_noise=True,
    ),
    Recommended(
        pairs=200_000, vocab_size=8_000, layers=4, d_model=256, d_ff=1_024, num_heads=4, dropout=0.2, r_drop=1,
        max_steps=40_000, warmup_steps=1_500, learning_rate=2e-3, batch_tokens=2_048, batches_per_update=2,
        validate_every=2_000, patience=5, ema_decay=0.999, has_noise=True,
    ),
    Recommended(
        pairs=1_000_000, vocab_size=16_000, layers=6, d_model=512, d_ff=2_048, num_heads=8, dropout=0.1, r_drop=0,
        max_steps=100_000, warmup_steps=4_000, learning_rate=1e-3, batch_tokens=4_096, batches_per_update=4,
        validate_every=4_000, patience=8, ema_decay=0.999, has_noise=False,
    ),
    Recommended(
        pairs=None, vocab_size=32_000, layers=6, d_model=512, d_ff=2_048, num_heads=8, dropout=0.1, r_drop=0,
        max_steps=200_000, warmup_steps=6_000, learning_rate=1e-3, batch_tokens=4_096, batches_per_update=8,
        validate_every=5_000, patience=8, ema_decay=0.999, has_noise=False,
    ),
)  # fmt: skip

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
