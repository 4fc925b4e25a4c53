"""Hold-outs: validation and test pairs that are drawn from the training text once, and then are files like any others.

Pairs are drawn in the order of their hashes, which is random and depends on nothing but the pairs: not on a seed, the
number of processes, or the order of the files. So the same text always gives the same hold-out, also after a kill, and
several corpora contribute in proportion to their sizes.
"""

import heapq
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from nmt.atomic import leftovers, write_text
from nmt.config.corpus import CorpusFiles, HeldOutFiles
from nmt.config.training import Config, DataConfig
from nmt.data.cleaning import normalize
from nmt.data.corpus import pairs_in, read_pairs
from nmt.data.duplicates import pair_hash
from nmt.errors import ConfigError
from nmt.locks import locked

MIN_PAIRS = 50
"""Of fewer pairs, `auto` draws none."""
AUTO_SHARE = 10
"""`auto` draws one pair of this many, ..."""
MAX_AUTO = 500
"""... and at most this many."""

Pairs = list[tuple[str, str]]


def with_holdouts(config: Config, say: Callable[[str], None]) -> Config:
    """`config` with the number of pairs of every hold-out; the files that are missing are drawn and written.

    Several processes may call it at once: the first one draws. Raises `ConfigError` if the files do not fit the
    configuration, or too few pairs could be drawn; `DataError` if a corpus cannot be read.
    """
    drawn = {name: files for name, files in config.data.held_out.items() if files.is_drawn}
    _check_names(drawn, config.data)
    resolved = {name: files.model_copy(update={"holdout": _held(name, files)}) for name, files in drawn.items()}
    if not all(files.holdout for files in resolved.values()):
        first = next(iter(drawn.values())).src_file
        try:
            with locked(first, wait=True):
                resolved = _ensure(drawn, config.data, say)
        except OSError as error:
            raise ConfigError(
                f"{first.parent}: pairs that are held out are to be written here, and cannot be: {error.strerror}; "
                f"name files in another folder: {_key('validation')}: {{holdout: 500, src: ..., tgt: ...}}"
            ) from None
    if resolved.get("validation", config.data.validation).holdout == 0:
        return _validating_on_training_pairs(config, resolved, say)
    return _with(config, resolved)


def _with(config: Config, resolved: Mapping[str, HeldOutFiles]) -> Config:
    held_out = config.data.held_out | resolved
    validation = held_out.pop("validation")
    return config.model_copy(
        update={"data": config.data.model_copy(update={"validation": validation, "test": held_out})}
    )


def _key(name: str) -> str:
    return "data.validation" if name == "validation" else f"data.test.{name}"


def _check_names(drawn: Mapping[str, HeldOutFiles], data: DataConfig) -> None:
    """`ConfigError` if a hold-out would be written over other text."""
    others = {path for files in data.train for path in (files.src_file, files.tgt_file)}
    for name, files in drawn.items():
        for path in (files.src_file, files.tgt_file):
            if path in others:
                raise ConfigError(
                    f"{_key(name)}: {path} is another corpus of this configuration, and a hold-out has files of its "
                    f"own; leave src and tgt out, or name others"
                )
            others.add(path)


def _held(name: str, files: HeldOutFiles) -> int | None:
    """The number of pairs in the files of a hold-out; None if one of them is missing."""
    if not (files.src_file.exists() and files.tgt_file.exists()):
        return None
    found = pairs_in(files)
    if files.holdout not in ("auto", found):
        raise ConfigError(
            f"{_key(name)}.holdout is {files.holdout}, but {files.src_file} and {files.tgt_file} have {found:,} pairs: "
            f"write holdout: {found} to keep them, or delete both files to draw others; scores of earlier runs are "
            f"then of another set"
        )
    return found


def _ensure(
    drawn: Mapping[str, HeldOutFiles], data: DataConfig, say: Callable[[str], None]
) -> dict[str, HeldOutFiles]:
    """Draw the hold-outs whose files are missing, under the lock; returns all with their numbers of pairs."""
    counts = {name: _held(name, files) for name, files in drawn.items()}
    missing = {name: files for name, files in drawn.items() if counts[name] is None}
    corpora = [files for files in data.train if not files.replayed]
    others = [files for name, files in data.held_out.items() if name not in missing and files.holdout != 0]
    pairs, num_pairs = _draw(corpora, [*others, *data.exclude], _at_least(missing))
    sizes = {name: _size(files, len(pairs)) for name, files in missing.items()}
    _check_sizes(missing, sizes, len(pairs), corpora)
    begin = 0
    for name, size in sizes.items():
        if size:
            _write(missing[name], pairs[begin : begin + size])
            begin += size
            say(
                f"{name}: {size:,} of {num_pairs:,} pairs are held out of the training text, in "
                f"{_shown(missing[name].src_file)} and {_shown(missing[name].tgt_file)} ({_key(name)}.holdout)"
            )
    return {
        name: files.model_copy(update={"holdout": sizes[name] if name in sizes else counts[name]})
        for name, files in drawn.items()
    }


def _at_least(missing: Mapping[str, HeldOutFiles]) -> int:
    """The number of pairs to look for: hold-outs may be half of it, and `auto` depends on it."""
    numbers = [AUTO_SHARE * MAX_AUTO if files.holdout == "auto" else 2 * (files.holdout or 0)
               for files in missing.values()]  # fmt: skip
    return sum(numbers)


def _size(files: HeldOutFiles, available: int) -> int:
    if files.holdout != "auto":
        return files.holdout or 0
    return min(MAX_AUTO, available // AUTO_SHARE) if available >= MIN_PAIRS else 0


def _check_sizes(
    missing: Mapping[str, HeldOutFiles], sizes: Mapping[str, int], available: int, corpora: Sequence[CorpusFiles]
) -> None:
    names = ", ".join(str(files.src_file) for files in corpora)
    found = f"{names}: {available:,} pairs share neither their source nor their target with one another"
    for name, size in sizes.items():
        if not size and name != "validation":
            raise ConfigError(
                f"{found}, too few to hold a test set out; name its files, or leave {_key(name)} out"
            )
    if 2 * sum(sizes.values()) > available:
        keys = " and ".join(f"{_key(name)}.holdout ({size:,})" for name, size in sizes.items() if size)
        together = " together" if len(missing) > 1 else ""
        raise ConfigError(f"{found}, and {keys}{together} would take more than half of them; lower it")


def _draw(corpora: Sequence[CorpusFiles], others: Sequence[CorpusFiles], at_least: int) -> tuple[Pairs, int]:
    """Pairs of the corpora in the order of their hashes, and the number of pairs that are not empty.

    No pair shares its source or its target with another one, or with the `others`. They are all there are, or
    `at_least` so many. Sentences are compared as the tokenizer sees them.
    """
    taken: tuple[set[str], set[str]] = set(), set()
    for files in others:
        for src, tgt in read_pairs(files):
            taken[0].add(normalize(src))
            taken[1].add(normalize(tgt))
    room = 2 * at_least
    while True:
        first, num_pairs, are_all = _first_by_hash(corpora, taken, room)
        pairs = list(_sharing_nothing(first))
        if are_all or len(pairs) >= at_least:
            return pairs, num_pairs
        room *= 4


def _first_by_hash(
    corpora: Sequence[CorpusFiles], taken: tuple[set[str], set[str]], room: int
) -> tuple[Pairs, int, bool]:
    """The different pairs with the smallest hashes, in their order; the number of all pairs that are not empty; and
    whether there was room for all different ones. One pass over the text, in the memory of `room` pairs."""
    kept: dict[int, tuple[str, str]] = {}
    largest: list[int] = []  # a heap of the negated hashes
    num_pairs, are_all = 0, True
    for files in corpora:
        for src, tgt in read_pairs(files):
            one, other = normalize(src), normalize(tgt)
            if not (one and other):
                continue
            num_pairs += 1
            if one in taken[0] or other in taken[1]:
                continue
            digest = int.from_bytes(pair_hash(one, other), "big")
            if digest in kept:
                continue
            if len(kept) == room:
                are_all = False
                if digest > -largest[0]:
                    continue
                del kept[-heapq.heapreplace(largest, -digest)]
            else:
                heapq.heappush(largest, -digest)
            kept[digest] = src, tgt
    return [kept[digest] for digest in sorted(kept)], num_pairs, are_all


def _sharing_nothing(pairs: Pairs) -> Iterator[tuple[str, str]]:
    """The pairs whose source and target occur in no earlier one of them."""
    sources, targets = set(), set()
    for src, tgt in pairs:
        one, other = normalize(src), normalize(tgt)
        if one not in sources and other not in targets:
            sources.add(one)
            targets.add(other)
            yield src, tgt


def _write(files: HeldOutFiles, pairs: Pairs) -> None:
    """Write both texts; one that is there already is the result of an earlier drawing that was killed, or refused."""
    texts = dict(zip((files.src_file, files.tgt_file), ("".join(f"{line}\n" for line in side) for side in zip(*pairs)),
                     strict=True))  # fmt: skip
    for path, text in texts.items():
        if path.exists() and path.read_bytes() != text.encode():
            (other,) = texts.keys() - {path}
            raise ConfigError(f"{path} is there without {other}; restore that file, or delete this one to draw pairs")
    for path, text in texts.items():
        for leftover, name in leftovers(path.parent):
            if name == path.name:
                shutil.rmtree(leftover, ignore_errors=True)
        write_text(path, text)


def _validating_on_training_pairs(
    config: Config, resolved: Mapping[str, HeldOutFiles], say: Callable[[str], None]
) -> Config:
    corpora = [files for files in config.data.train if not files.replayed]
    files = next((one for one in corpora if pairs_in(one)), corpora[0])
    own_keys = files.model_dump(exclude=set(type(files).model_fields) - set(CorpusFiles.model_fields))
    say(
        f"validation: no pair is held out ({_key('validation')}.holdout: auto needs {MIN_PAIRS} different ones): "
        f"{_shown(files.src_file)} itself is validated on, and the loss chooses the model; its scores say nothing "
        f"about other text"
    )
    config = _with(config, {**resolved, "validation": HeldOutFiles(**own_keys, holdout=0)})
    return config.model_copy(update={"training": config.training.model_copy(update={"best_metric": "loss"})})


def _shown(path: Path) -> str:
    """The path as from the current folder, if it is in it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
