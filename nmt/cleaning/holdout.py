"""Hold-outs: validation and test sets that are drawn from the training corpora, once, and written as plain text.

Pairs are drawn in the order of a hash of the seed and their text. So the draw is the same for any order and format of
the corpora, a pair that is repeated is as likely as any other, and sets that are drawn one after the other are those
that would have been drawn together.
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
from nmt.config.corpus import CorpusFiles, HeldOutFiles, TrainingFiles
from nmt.config.languages import is_without_spaces
from nmt.config.training import Config
from nmt.corpora.pairs import count_pairs, empty_error, read_pairs, reader_of
from nmt.errors import ConfigError, DataError
from nmt.system.console import log
from nmt.system.files import leftovers, locked, write_text

MIN_PAIRS = 50
"""With `auto`, none of fewer pairs than these are drawn."""
PAIRS_FOR_ONE = 20
AUTO_LIMITS = 10, 1000
"""With `auto`, one pair in `PAIRS_FOR_ONE` is drawn, within these limits."""


def with_hold_outs(config: Config) -> Config:
    """The configuration with every hold-out in its files: drawn, if they do not exist; `holdout` is then a number.

    With too few pairs, a validation set of `auto` becomes a training corpus, whose loss chooses the model unless
    another metric is named. Raises `ConfigError` for a number that is too large or not that of the existing files, and
    `DataError` if a file cannot be read or written. Of several processes, one draws, and the others wait.
    """
    data, hold_outs = config.data, config.data.hold_outs
    sizes: dict[str, int] = {}
    if missing := _missing(hold_outs):
        corpora = [files for files in data.train if not files.replayed]
        num_pairs = count_pairs(corpora)
        sizes = _sizes(missing, num_pairs)
        if any(sizes.values()):
            sizes = _draw_missing(config, corpora, num_pairs, sizes)
    found = {name: files.model_copy(update={"holdout": _checked_size(name, files)})
             for name, files in hold_outs.items() if sizes.get(name) != 0}  # fmt: skip
    if sizes.get("validation") == 0:
        found["validation"] = HeldOutFiles(**data.train[0].model_dump(include=set(CorpusFiles.model_fields)), holdout=0)
    validation = found.get("validation", data.validation)
    tests = {name: found.get(f"test.{name}", files) for name, files in data.test.items()}
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
    """The hold-outs that are not in their files: neither of them exists, or a process was killed between them."""
    return {
        name: files for name, files in hold_outs.items() if not (files.src_file.exists() and files.tgt_file.exists())
    }


def _sizes(missing: Mapping[str, HeldOutFiles], num_pairs: int) -> dict[str, int]:
    """The number of pairs to draw for each set; 0 if there are too few for a validation set of `auto`."""
    sizes = {}
    for name, files in missing.items():
        if isinstance(files.holdout, int):
            sizes[name] = files.holdout
        elif num_pairs >= MIN_PAIRS:
            low, high = AUTO_LIMITS
            sizes[name] = max(low, min(high, num_pairs // PAIRS_FOR_ONE))
        elif name == "validation":
            sizes[name] = 0
        else:
            raise ConfigError(
                f"data.{name}.holdout: auto needs {MIN_PAIRS} training pairs, and there are {num_pairs}; give a number"
            )
    if sizes.get("validation") == 0 and len(sizes) > 1:
        raise ConfigError(
            f"data.validation: {num_pairs} training pairs are too few to hold some out (auto), and the training pairs "
            f"cannot be the validation set beside a test set that is drawn from them; give data.validation"
        )
    if 2 * sum(sizes.values()) > num_pairs:
        what = " and ".join(f"data.{name}.holdout ({size:,})" for name, size in sizes.items() if size)
        raise ConfigError(f"{what}: more than half of the {num_pairs:,} training pairs; lower it")
    return sizes


def _draw_missing(
    config: Config, corpora: Sequence[TrainingFiles], num_pairs: int, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Draw and write the sets of these sizes, unless another process has; returns the sizes, 0 for those not drawn."""
    data = config.data
    wanted = {name: files for name, files in data.hold_outs.items() if sizes.get(name)}
    try:
        with locked(next(iter(wanted.values())).src_file, wait=True, leaves_no_file=True):
            wanted = _missing(wanted)
            others = [*(files for name, files in data.held_out.items() if name not in wanted), *data.exclude]
            total = sum(sizes[name] for name in wanted)
            drawn = draw(_usable(corpora, config), total, config.training.seed, SentenceIndex(others))
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
            f"{where}: a hold-out cannot be written there ({error.strerror or error}); name other files: "
            f"{{holdout: N, src: FILE, tgt: FILE}}"
        ) from None
    return dict(sizes)


def _usable(corpora: Sequence[TrainingFiles], config: Config) -> Callable[[], Iterator[Pair]]:
    """What starts to read the pairs that a hold-out may have: those that `data.cleaning` keeps, if neither side is too
    long for `data.max_length`, as far as that can be said without a tokenizer."""
    data = config.data
    selection = select(corpora, data.cleaning, (data.src_lang, data.tgt_lang))
    longest = [_characters(data.max_length, config.tokenizer.type, code) for code in (data.src_lang, data.tgt_lang)]

    def read() -> Iterator[Pair]:
        for index, files in enumerate(corpora):
            for src, tgt in read_pairs(files, None if selection is None else selection.chosen(index)):
                if len(src) <= longest[0] and len(tgt) <= longest[1]:
                    yield src, tgt

    return read


def _characters(pieces: int, tokenizer: str, language: str) -> int:
    """The approximate number of characters in a line of this number of pieces."""
    if tokenizer == "char":
        return pieces
    return pieces * (6 if tokenizer == "word" else 2 if is_without_spaces(language) else 4)


def draw(pairs: Callable[[], Iterable[Pair]], number: int, seed: int, taken: SentenceIndex) -> list[Pair]:
    """Draw N pairs, or as many as there are, of which no two share a normalized source or target.

    None has an empty side, or shares a sentence with `taken`. `pairs` starts to read them again; few are in memory.
    """
    room = 4 * number + 100
    while True:
        ordered = heapq.nsmallest(room, _ordered(pairs(), seed, taken), key=itemgetter(0))
        drawn = list(itertools.islice(independent(pair for _, pair in ordered), number))
        if len(drawn) == number or len(ordered) < room:
            return drawn
        room *= 4  # many share a sentence


def _ordered(pairs: Iterable[Pair], seed: int, taken: SentenceIndex) -> Iterator[tuple[bytes, Pair]]:
    """The usable pairs, each with the hash by which they are to be ordered."""
    for src, tgt in pairs:
        one, other = normalize(src), normalize(tgt)
        # At the start of a text, a byte order mark would be dropped.
        if one and other and not taken.shares(one, other) and "\ufeff" not in (src[:1], tgt[:1]):
            yield hashlib.blake2b(f"{seed}\n{one}\n{other}".encode(), digest_size=16).digest(), (src, tgt)


def _write(name: str, files: HeldOutFiles, pairs: Sequence[Pair]) -> None:
    """Write both sides of a set. One of them may exist: a process was killed before it wrote the other."""
    for path, lines in zip((files.src_file, files.tgt_file), zip(*pairs, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in lines)
        for leftover, whose in list(leftovers(path.parent)):
            if whose == path.name:
                shutil.rmtree(leftover, ignore_errors=True)
        if not path.exists():
            write_text(path, text)
        elif path.read_bytes() != text.encode():
            other = files.tgt_file if path == files.src_file else files.src_file
            raise ConfigError(
                f"{path}: the other side of this hold-out ({other.name}) is missing, and the training "
                f"text has changed since it was drawn; restore it, or remove {path.name} to draw data.{name} again"
            )


def _checked_size(name: str, files: HeldOutFiles) -> int:
    """The number of pairs in a hold-out's files; `ConfigError` if `holdout` is another."""
    size = reader_of(files).count()
    if not size:
        raise empty_error(files)
    if files.holdout not in ("auto", size):
        raise ConfigError(
            f"data.{name}.holdout is {files.holdout:,}, and {files.src_file} holds {size:,} pairs, drawn before; set "
            f"holdout: {size}, or remove {files.src_file.name} and {files.tgt_file.name} to draw again, for a new run"
        )
    return size
