"""Held-out sets: validation and test sets drawn from the training corpora, once, and written as plain text.

Pairs are drawn in the order of a hash of the seed and their text. So the draw is the same for any order and format of
the corpora, a repeated pair is as likely as any other, and sets drawn one after the other are those that would have
been drawn together.
"""

import hashlib
import heapq
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from nmt.cleaning.normalize import normalize
from nmt.cleaning.selection import select
from nmt.cleaning.sentence_index import Pair, SentenceIndex, independent
from nmt.config.corpus import HeldOutFiles, TrainingFiles
from nmt.config.languages import is_without_spaces
from nmt.config.training import Config
from nmt.corpora.pairs import count_pairs, empty_error, read_pairs, reader_of
from nmt.errors import ConfigError, DataError
from nmt.system.console import log
from nmt.system.files import leftovers, locked, write_text

MIN_PAIRS = 50
"""Minimum number of training pairs for `auto` to draw any."""
PAIRS_PER_DRAWN = 20
AUTO_LIMITS = 10, 1000
"""With `auto`, one pair in `PAIRS_PER_DRAWN` is drawn, within these limits."""


def with_hold_outs(config: Config) -> Config:
    """Draw the held-out sets whose files do not exist; return the configuration with the size of each as `holdout`.

    With too few pairs, the first training corpus becomes the validation set of `auto`, and its loss chooses the model
    unless another metric is named. Raises `ConfigError` for a number that is too large or not that of the existing
    files, and `DataError` if a file cannot be read or written. Of several processes, one draws, and the others wait.
    """
    data, hold_outs = config.data, config.data.hold_outs
    sizes: dict[str, int] = {}
    if missing := _missing(hold_outs):
        corpora = [files for files in data.train if not files.replayed]
        num_pairs = count_pairs(corpora)
        sizes = _sizes(missing, num_pairs)
        if any(sizes.values()):
            sizes = _draw_missing(config, corpora, num_pairs, sizes)
    held_out = {name: files.model_copy(update={"holdout": _checked_size(name, files)})
                for name, files in hold_outs.items() if sizes.get(name) != 0}  # fmt: skip
    if sizes.get("validation") == 0:
        held_out["validation"] = HeldOutFiles(**data.train[0].file_keys(), holdout=0)
    validation = held_out.get("validation", data.validation)
    tests = {name: held_out.get(f"test.{name}", files) for name, files in data.test.items()}
    settings = config.training
    if validation.holdout == 0:
        if "best_metric" not in settings.model_fields_set:
            settings = settings.model_copy(update={"best_metric": "loss"})
        chooses = f", and {settings.best_metric} on them chooses the model" if settings.best_metric else ""
        name = validation.src_file.name
        log.info(f"validation: no pairs are held out: the training pairs in {name} are the validation set{chooses}")
    changed = data.model_copy(update={"validation": validation, "test": tests})
    return config.model_copy(update={"data": changed, "training": settings})


def _missing(hold_outs: Mapping[str, HeldOutFiles]) -> dict[str, HeldOutFiles]:
    """The held-out sets without both files: not drawn yet, or by a process that was killed between the two."""
    return {name: files for name, files in hold_outs.items() if not files.files_exist()}


def _sizes(missing: Mapping[str, HeldOutFiles], num_pairs: int) -> dict[str, int]:
    """The number of pairs to draw for each set; 0 for a validation set of `auto` with too few training pairs."""
    sizes = {}
    for name, files in missing.items():
        if isinstance(files.holdout, int):
            sizes[name] = files.holdout
        elif num_pairs >= MIN_PAIRS:
            low, high = AUTO_LIMITS
            sizes[name] = max(low, min(high, num_pairs // PAIRS_PER_DRAWN))
        elif name == "validation":
            sizes[name] = 0
        else:
            raise ConfigError(
                f"data.{name}.holdout: auto needs {MIN_PAIRS} training pairs, and there are {num_pairs}; give a number"
            )
    if sizes.get("validation") == 0 and len(sizes) > 1:
        raise ConfigError(
            f"data.validation: {num_pairs} training pairs are too few to hold some out (auto), and they cannot be the "
            f"validation set beside a test set drawn from them; give data.validation"
        )
    if 2 * sum(sizes.values()) > num_pairs:
        what = " and ".join(f"data.{name}.holdout ({size:,})" for name, size in sizes.items() if size)
        raise ConfigError(f"{what}: more than half of the {num_pairs:,} training pairs; lower it")
    return sizes


def _draw_missing(
    config: Config, corpora: Sequence[TrainingFiles], num_pairs: int, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Draw and write the sets of these sizes, unless another process has; return the sizes, 0 for a set not drawn."""
    data = config.data
    wanted = {name: files for name, files in data.hold_outs.items() if sizes.get(name)}
    try:
        with locked(next(iter(wanted.values())).src_file, wait=True, leaves_no_file=True):
            wanted = _missing(wanted)
            others = [*(files for name, files in data.held_out.items() if name not in wanted), *data.exclude]
            total = sum(sizes[name] for name in wanted)
            drawn = draw(_usable_pairs(corpora, config), total, config.training.seed, SentenceIndex(others))
            if len(drawn) < total:
                if list(data.hold_outs) == ["validation"] and data.validation.holdout == "auto":
                    return {**sizes, "validation": 0}
                what = " and ".join(f"data.{name}.holdout ({sizes[name]:,})" for name in wanted)
                kept = "are kept by data.cleaning, " if data.cleaning.is_on else ""
                raise ConfigError(
                    f"{what}: only {len(drawn):,} training pairs {kept}fit data.max_length and share no sentence with "
                    f"one another or with another validation or test set; lower it"
                )
            for name, files in wanted.items():
                own, drawn = drawn[: sizes[name]], drawn[sizes[name] :]
                _write(name, files, own)
                log.info(
                    f"{len(own):,} of {num_pairs:,} training pairs are held out, in "
                    f"{files.src_file} and {files.tgt_file.name}"
                )
    except OSError as error:
        where = error.filename or next(iter(wanted.values())).src_file.parent
        raise DataError(
            f"{where}: a held-out set cannot be written there ({error.strerror or error}); name other files: "
            f"{{holdout: N, src: FILE, tgt: FILE}}"
        ) from None
    return dict(sizes)


def _usable_pairs(corpora: Sequence[TrainingFiles], config: Config) -> Callable[[], Iterator[Pair]]:
    """A function that reads the pairs that `data.cleaning` keeps and that probably fit `data.max_length`.

    There is no tokenizer yet, so lengths are estimated from characters.
    """
    data = config.data
    selection = select(corpora, data.cleaning, (data.src_lang, data.tgt_lang))
    max_src, max_tgt = (
        _num_characters(data.max_length, config.tokenizer.type, code) for code in (data.src_lang, data.tgt_lang)
    )

    def read() -> Iterator[Pair]:
        for index, files in enumerate(corpora):
            for src, tgt in read_pairs(files, None if selection is None else selection.chosen(index)):
                if len(src) <= max_src and len(tgt) <= max_tgt:
                    yield src, tgt

    return read


def _num_characters(pieces: int, tokenizer: str, language: str) -> int:
    """The approximate number of characters in a line of N pieces."""
    if tokenizer == "char":
        return pieces
    return pieces * (6 if tokenizer == "word" else 2 if is_without_spaces(language) else 4)


def draw(pairs: Callable[[], Iterable[Pair]], number: int, seed: int, taken: SentenceIndex) -> list[Pair]:
    """Draw N pairs, or as many as there are, of which no two share a normalized source or target.

    No pair has an empty side, or shares a sentence with `taken`. A call of `pairs` rereads them; few are in memory.
    """
    num_candidates = 4 * number + 100
    while True:
        candidates = heapq.nsmallest(num_candidates, _hashed(pairs(), seed, taken), key=itemgetter(0))
        drawn = list(itertools.islice(independent(pair for _, pair in candidates), number))
        if len(drawn) == number or len(candidates) < num_candidates:
            return drawn
        num_candidates *= 4  # many share a sentence


def _hashed(pairs: Iterable[Pair], seed: int, taken: SentenceIndex) -> Iterator[tuple[bytes, Pair]]:
    """Yield the usable pairs, each with the hash that orders them."""
    for src, tgt in pairs:
        normalized = src_line, tgt_line = normalize(src), normalize(tgt)
        # A byte order mark at the start of the written text would be lost.
        if all(normalized) and not taken.shares(*normalized) and "\ufeff" not in (src[:1], tgt[:1]):
            yield hashlib.blake2b(f"{seed}\n{src_line}\n{tgt_line}".encode(), digest_size=16).digest(), (src, tgt)


def _write(name: str, files: HeldOutFiles, pairs: Sequence[Pair]) -> None:
    """Write both sides of a set. One may exist already, if a process was killed before it wrote the other."""
    for path, lines in zip((files.src_file, files.tgt_file), zip(*pairs, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in lines)
        for leftover, name_of_leftover in list(leftovers(path.parent)):
            if name_of_leftover == path.name:
                shutil.rmtree(leftover, ignore_errors=True)
        if not path.exists():
            write_text(path, text)
        elif path.read_bytes() != text.encode():
            other = files.tgt_file if path == files.src_file else files.src_file
            raise ConfigError(
                f"{path}: the other side of this held-out set ({other.name}) is missing, and the training text has "
                f"changed since the draw; restore {other.name}, or remove {path.name} to draw data.{name} again"
            )


def _checked_size(name: str, files: HeldOutFiles) -> int:
    """The number of pairs in a held-out set's files; `ConfigError` if `holdout` is another number."""
    size = reader_of(files).count()
    if not size:
        raise empty_error(files)
    if files.holdout not in ("auto", size):
        raise ConfigError(
            f"data.{name}.holdout is {files.holdout:,}, and {files.src_file} holds {size:,} pairs, drawn before; set "
            f"holdout: {size}, or remove {files.src_file.name} and {files.tgt_file.name} to draw again, for a new run"
        )
    return size
