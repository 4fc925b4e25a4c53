"""The configuration that `nmt init` writes: recommended settings for a corpus of its size and text, as commented YAML.

The settings are a row of `RECOMMENDED`: the first whose `pairs` is at least the number of training pairs; nothing is
interpolated. docs/starting.md shows the same table; docs/lab/defaults.md has the measurements.
"""

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml

from nmt.cleaning.holdout import MIN_PAIRS
from nmt.cleaning.inspection import Inspection
from nmt.cleaning.sentence_index import independent
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.config.languages import has_case, is_without_spaces
from nmt.corpora.discovery import Corpora
from nmt.errors import ConfigError
from nmt.runs.history import duration

if TYPE_CHECKING:  # without a trial, nothing loads torch
    from nmt.training.trial import Speed


class Recommended(NamedTuple):
    """The settings for corpora of up to `pairs` pairs. The names are those of the configuration's keys."""

    pairs: int | None
    """None: any number."""
    vocab_size: int
    """Pieces of each vocabulary; fewer if the text does not allow as many."""
    layers: int
    """Layers of the encoder, and as many of the decoder."""
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
    """True with `typed_input` and `fragments`."""


class TimedRow(NamedTuple):
    """The settings of a training that ends within a time (budget.py)."""

    row: Recommended
    speed: "Speed"
    """Of updates with the row's model, without R-Drop."""
    seconds: float
    """The time of all its updates."""
    whole_seconds: float
    """The time that the recommended updates need for a corpus of this size, with validations; 0 if these are they."""


# Trained as they are, on captions: the row to 30,000 (with copies, configs/multi30k_en_de.yaml: 41.1, three seeds), and
# those to 2,000 and 10,000 (17.2 and 30.6, one seed; all greedy validation BLEU). The vocabulary, width and dropout of
# these two are also compared with other values, in ten minutes each, two seeds (docs/lab/defaults.md).
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
# Augmentation for text as people type it: measured with 29,000 captions (docs/measurements.md).
TYPED_INPUT = 0.15
TYPED_INPUT_WITHOUT_CASE = 0.05
FRAGMENTS = 0.1

# Pairs held out for validation, and as many for a test: a share of the pairs that have no sentence in common with
# others. Below HOLDOUT_FROM, held-out sets are too small to be informative.
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


def expectation(pairs: int) -> Iterator[str]:
    """Yield what a training on few pairs can give; nothing from a few hundred pairs on."""
    if pairs < MIN_PAIRS:
        yield "no pairs are held out, so scores will be of the training text itself, and say nothing about other text"
    if pairs <= (RECOMMENDED[0].pairs or 0):
        yield f"{pairs:,} pairs are enough to try nmt out; the model will memorize them, and fail on other text"
        yield "a useful model needs about 10,000 pairs, or a public model as its base (nmt import, then nmt adapt)"


_SPECIAL_AND_BYTES = 4 + 256
_COVERAGE = 0.9995  # of the text's characters, if there are thousands of different ones; rare ones become bytes
_LENGTHS = (128, 256, 512)
_DEFAULT_POSITIONS = 512
_OPTIONAL_RULES = ("html", "script", "length_ratio")
_MAX_DROPPED = 0.2  # share of the pairs
_COMMENT_COLUMN = 34
_HELD_OUT_NAME = re.compile(r"(test|val|valid|validation|dev)(?![a-z])", re.IGNORECASE)

Lines = Iterator[tuple[str, str]]
"""Lines of YAML, each with its comment or ''."""


class Tokens(NamedTuple):
    """Settings that follow from the characters and words of the sample."""

    vocab_size: int
    character_coverage: float
    max_length: int
    joint: bool


def tokens_for(inspection: Inspection, row: Recommended) -> Tokens:
    """A vocabulary that the text allows and needs, and a maximum length for all but one pair in a thousand."""
    wanted = row.vocab_size
    sides = (inspection.src, inspection.tgt)
    coverage = _COVERAGE if any(len(side.characters) > wanted / 4 for side in sides) else 1.0
    joint = inspection.share_a_script
    smallest, largest = _limits(inspection, coverage, joint)
    if smallest > largest:  # one side has more characters than the other has words
        joint = True
        smallest, largest = _limits(inspection, coverage, joint)
    size = min(largest, wanted if smallest <= wanted / 2 else smallest + wanted // 2)
    rounded = size // 100 * 100
    # An upper estimate of a line's pieces: small vocabularies have 2 to 4 characters a piece.
    pieces = max(side.longest // (1 if is_without_spaces(side.language) else 2) for side in sides)
    return Tokens(
        vocab_size=rounded if rounded >= smallest else size,
        character_coverage=coverage,
        max_length=next((length for length in _LENGTHS if pieces <= length), _LENGTHS[-1]),
        joint=joint,
    )


def _limits(inspection: Inspection, coverage: float, joint: bool) -> tuple[int, int]:
    """The smallest and the largest vocabulary that every side allows, or both together if `joint`."""
    src, tgt = inspection.src, inspection.tgt
    texts = [(src.characters, src.words), (tgt.characters, tgt.words)]
    if joint:
        texts = [(src.characters + tgt.characters, src.words | tgt.words)]
    bases = [_SPECIAL_AND_BYTES + _covering(characters, coverage) + 1 for characters, _ in texts]  # 1: for a space
    # Every word can become a piece; only half count, since some occur only in pairs that are held out or dropped.
    return max(bases), min(base + len(words) // 2 for base, (_, words) in zip(bases, texts, strict=True))


def _covering(characters: Counter[str], coverage: float) -> int:
    """The number of the most frequent characters that make up this share of a text."""
    sums = itertools.accumulate(count for _, count in characters.most_common())
    return 1 + next(number for number, total in enumerate(sums) if total >= coverage * characters.total())


def starting_config(
    corpora: Corpora,
    inspection: Inspection,
    tests: Mapping[str, CorpusFiles],
    output: Path,
    plan: TimedRow | None = None,
) -> str:
    """The YAML text of the file `output`, whose folder relative paths start from.

    The settings are those of a plan for a time on this machine, or the recommended ones for a corpus of this size.
    """
    row = recommended(inspection.pairs) if plan is None else plan.row
    tokens = tokens_for(inspection, row)
    sections = [
        *_data(corpora, inspection, tests, output.parent, tokens),
        *_tokenizer(tokens, inspection, row),
        *_model(row, inspection, tokens),
        *_augmentation(inspection),
        *_training(row, plan),
        *_decoding(inspection, tokens),
    ]
    lines = [f"{setting:<{_COMMENT_COLUMN}}  # {comment}" if comment else setting for setting, comment in sections]
    return "\n".join([*_head(corpora, inspection, output, plan), *lines]) + "\n"


def _head(corpora: Corpora, inspection: Inspection, output: Path, plan: TimedRow | None) -> Iterator[str]:
    if (output.parent / "schema.json").is_file():
        yield "# yaml-language-server: $schema=schema.json"
    pairs = inspection.pairs
    row = recommended(pairs)
    size = f"up to {row.pairs:,} pairs" if row.pairs else "large corpora"
    languages = f"{corpora.src_lang} to {corpora.tgt_lang}"
    time = f" and {duration(plan.seconds)} of training" if plan is not None and plan.whole_seconds else ""
    yield f"# {languages}, {pairs:,} pairs. Written by nmt init, with its values for {size}{time} (docs/starting.md)."
    yield "# Change what you like; `nmt config KEY` explains a key. Keys that are not here have their defaults."


def _data(
    corpora: Corpora, inspection: Inspection, tests: Mapping[str, CorpusFiles], folder: Path, tokens: Tokens
) -> Lines:
    languages = corpora.src_lang, corpora.tgt_lang
    yield "data:", ""
    if len(corpora.files) == 1:
        yield f"  train: {_files(corpora.files[0], folder, *languages)}", ""
    else:
        yield "  train:", ""
        for files in corpora.files:
            yield f"    - {_files(files, folder, *languages)}", ""
    held_out = _held_out(inspection)
    if held_out:
        yield f"  validation: {{holdout: {held_out}}}", "pairs drawn once, written beside this file, not trained on"
    if tests:
        yield "  test:", ""
        for name, files in tests.items():
            yield f"    {_value(name)}: {_files(files, folder, *languages)}", ""
    elif held_out:
        yield f"  test: {{holdout: {held_out}}}", "what `nmt eval` scores"
    yield f"  src_lang: {_value(languages[0])}", ""
    yield f"  tgt_lang: {_value(languages[1])}", ""
    yield (f"  max_length: {tokens.max_length}", "pieces; training drops longer pairs, translation splits longer lines")
    yield "  cleaning:", "rules by which training drops pairs, and counts them; `nmt config data.cleaning`"
    yield from _cleaning(inspection, has_tests=bool(tests or held_out))


def _cleaning(inspection: Inspection, has_tests: bool) -> Lines:
    """The recommended rules, without those that would drop much of this corpus."""
    recommendation = CleaningConfig.recommended()
    for rule, value in recommendation.model_dump(exclude_defaults=True).items():
        if rule in _OPTIONAL_RULES and (share := inspection.shares[rule]) > _MAX_DROPPED:
            yield f"    #{rule}: {_value(value)}", f"off: it would drop {share:.0%} of the pairs"
        elif rule != "overlap" or has_tests:
            yield f"    {rule}: {_value(value)}", ""


def _held_out(inspection: Inspection) -> int:
    """The number of pairs to hold out for each set."""
    return holdout(sum(1 for _ in independent(inspection.sample)) * inspection.pairs // inspection.counts.read)


def _files(files: CorpusFiles, folder: Path, src_lang: str, tgt_lang: str) -> str:
    """The corpus as a mapping on one line, without keys that have their defaults."""
    if files.pairs is None:
        assert files.src is not None and files.tgt is not None, "validated"
        return f"{{src: {_path(files.src, folder)}, tgt: {_path(files.tgt, folder)}}}"
    default = CorpusFiles(pairs=files.pairs).in_languages(src_lang, tgt_lang)
    columns = ""
    if files.columns != default.columns:
        src, tgt = map(_value, files.columns)
        columns = f", src_column: {src}, tgt_column: {tgt}"
    return f"{{pairs: {_path(files.pairs, folder)}{columns}}}"


def _path(path: Path, folder: Path) -> str:
    if path.is_absolute():  # as it was named
        return _value(path.as_posix())
    return _value(Path(os.path.relpath(path, folder.resolve())).as_posix())


def _value(value: object) -> str:
    """A value as YAML, in quotes if other programs would read it as something else (`no`)."""
    text: str = yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, width=1_000_000)
    return text.strip()[1:-1]


def _tokenizer(tokens: Tokens, inspection: Inspection, row: Recommended) -> Lines:
    yield "tokenizer:", ""
    yield "  type: bpe", ""
    limit = "" if tokens.vocab_size >= row.vocab_size else "; the text has too few words for more"
    yield f"  vocab_size: {tokens.vocab_size}", f"pieces{'' if tokens.joint else ' of each side'}{limit}"
    scripts = "the languages share a script" if inspection.share_a_script else "the languages have different scripts"
    why = scripts if tokens.joint == inspection.share_a_script else "too few words for two"
    yield f"  joint: {str(tokens.joint).lower()}", why
    if tokens.character_coverage < 1:
        characters = max(len(side.characters) for side in (inspection.src, inspection.tgt))
        rest = f"of {characters:,} characters; rare ones become bytes"
        yield f"  character_coverage: {tokens.character_coverage}", rest


def _model(row: Recommended, inspection: Inspection, tokens: Tokens) -> Lines:
    is_usual = row.dropout == recommended(inspection.pairs).dropout
    yield "model:", ""
    yield f"  num_encoder_layers: {row.layers}", ""
    yield f"  num_decoder_layers: {row.layers}", ""
    yield f"  d_model: {row.d_model}", ""
    yield f"  d_ff: {row.d_ff}", ""
    yield f"  num_heads: {row.num_heads}", ""
    yield f"  dropout: {row.dropout:g}", "more with less text" if is_usual else "little, for a short training"
    yield f"  tie_embeddings: {'all' if tokens.joint else 'decoder'}", ""
    if tokens.max_length >= _DEFAULT_POSITIONS:
        yield f"  max_positions: {2 * tokens.max_length}", ""


def _augmentation(inspection: Inspection) -> Lines:
    if not recommended(inspection.pairs).has_noise:
        return
    yield "augmentation:", "for input as people type it"
    if has_case(inspection.src.language):
        yield f"  typed_input: {TYPED_INPUT:g}", "sources in lowercase, as headlines, or without punctuation"
    else:
        yield f"  typed_input: {TYPED_INPUT_WITHOUT_CASE:g}", "sources without punctuation"
    yield f"  fragments: {FRAGMENTS:g}", "batches with two sentences a line, or with single words and short phrases"


def _training(row: Recommended, plan: TimedRow | None) -> Lines:
    yield "training:", ""
    time = "updates"
    if plan is not None:
        each = f"{plan.seconds / row.max_steps:.2g} s"
        time = f"updates of {each} on the machine where this was written: about {duration(plan.seconds)}"
    yield f"  max_steps: {row.max_steps}", time
    yield f"  patience: {row.patience}", "stop earlier after this many validations without a better score"
    yield f"  validate_every: {row.validate_every}", "updates"
    yield f"  batch_tokens: {row.batch_tokens}", "pieces, padding included; an update has"
    batches = row.batches_per_update
    yield f"  batches_per_update: {batches}", f"{batches} such batch{'es' if batches > 1 else ''}"
    yield f"  learning_rate: {row.learning_rate:g}", ""
    yield "  schedule: cosine", "falls to 0 at max_steps"
    yield f"  warmup_steps: {row.warmup_steps}", ""
    yield f"  label_smoothing: {LABEL_SMOOTHING:g}", ""
    if row.r_drop:
        yield f"  r_drop: {row.r_drop:g}", "each pair in two passes, which must agree: twice the time"
    if row.ema_decay:
        yield f"  ema_decay: {row.ema_decay:g}", "this average of the weights is validated and kept"
    if plan is not None and plan.speed.gain > 1:
        yield (
            "  precision: bf16",
            f"{plan.speed.gain:.1f} times as fast as fp32 where this was written; not on every CPU",
        )
    yield "  save_every_minutes: 10", "so that little is lost if the machine stops"


def _decoding(inspection: Inspection, tokens: Tokens) -> Lines:
    yield "decoding:", ""
    if recommended(inspection.pairs).has_noise and any(
        character.lower() != character for character in inspection.src.characters
    ):
        yield "  lower_capitals: true", "a line in capitals is translated as if in lowercase"
    if tokens.max_length >= _DEFAULT_POSITIONS:
        yield f"  max_length: {tokens.max_length}", ""
    yield "  copied: [symbols, addresses, numbers]", "lines of nothing else are not translated"


def named_tests(files: tuple[CorpusFiles, ...]) -> dict[str, CorpusFiles]:
    """Test sets by names that are made of their file names and can be file names."""
    named: dict[str, CorpusFiles] = {}
    for corpus in files:
        stem = corpus.src_file.name.partition(".")[0]
        name = base = re.sub(r"[^\w.-]+", "_", stem, flags=re.ASCII).strip("_.-") or "test"
        number = 2
        while name in named:
            name, number = f"{base}_{number}", number + 1
        named[name] = corpus
    return named


def check_folders(corpora: Sequence[Path], files: Sequence[Path]) -> None:
    """`ConfigError` if a folder of `corpora` holds a file that looks like a test set, which is not to be trained on."""
    for file in files:
        if file.parent in corpora and _HELD_OUT_NAME.match(file.name):
            raise ConfigError(
                f"{file} looks like text for validation or tests, and all of a folder is training text; name the "
                "training files instead of the folder, and test sets with --test"
            )
