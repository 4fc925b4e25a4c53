"""Folds of the pairs that cleaning keeps: no line of one occurs in another, on either side.

So a model that is trained on all folds but one has seen neither the sources nor the targets of that one.
"""

import contextlib
import heapq
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.atomic import replacing
from nmt.data.cleaning import normalize
from nmt.data.corpus import read_pairs
from nmt.data.duplicates import line_hash
from nmt.data.profiling import Profiled, check_folder, plain_pairs, side_names
from nmt.data.selection import write_examples
from nmt.errors import ConfigError


def write_folds(profiled: Profiled, languages: tuple[str, str], folder: Path, num_folds: int) -> list[int]:
    """Write what is left of all corpora as `num_folds` times two texts, `fold1.en` and `fold1.de` and so on, and
    cleaning.tsv with examples of what was dropped.

    A fold's pairs have the order of the corpora. Returns the number of pairs of each fold. The folder is written as a
    whole. `ConfigError` if the pairs cannot be divided into as many folds.
    """
    check_folder(folder)
    folds = divide(*_hashes(profiled), num_folds)
    with replacing(folder) as temporary, contextlib.ExitStack() as stack:
        temporary.mkdir()
        names = [side_names(f"fold{number}", languages) for number in range(1, num_folds + 1)]
        files = [[stack.enter_context((temporary / name).open("wb")) for name in pair] for pair in names]
        kept = itertools.chain.from_iterable(map(plain_pairs, profiled.corpora, profiled.verdicts))
        for fold, sides in zip(folds.tolist(), kept, strict=True):
            for file, line in zip(files[fold], sides, strict=True):
                file.write(line)
        write_examples(temporary / "cleaning.tsv", profiled.corpora, profiled.verdicts)
    return [int(size) for size in np.bincount(folds, minlength=num_folds)]


def _hashes(profiled: Profiled) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The hashes of the normalized lines of both sides of the P pairs that are kept: (P,) each.

    64 bits are enough: two lines with the same hash only bring their pairs into the same fold.
    """
    sides = bytearray(), bytearray()
    for files, verdicts in zip(profiled.corpora, profiled.verdicts, strict=True):
        for pair in read_pairs(files, (verdicts == 0).tobytes()):
            for side, line in zip(sides, pair, strict=True):
                side += line_hash(normalize(line))[:8]
    src, tgt = (np.frombuffer(side, dtype=np.uint64) for side in sides)
    return src, tgt


def divide(src: NDArray[np.uint64], tgt: NDArray[np.uint64], num_folds: int) -> NDArray[np.intp]:
    """The fold of each pair, from 0: (P,), from the hashes of its two lines.

    Pairs that share a line are in one fold, and so are those that share one with these. Such groups are dealt out, the
    largest first, each to the fold with the fewest pairs; groups of equal size in the order of their hashes, so that no
    fold follows an order in the corpus, as the annotators of captions. `ConfigError` with fewer groups than folds.
    """
    groups = _groups(src, tgt)
    sizes = np.bincount(groups)
    if len(sizes) < num_folds:
        raise ConfigError(
            f"--folds {num_folds}: the {len(groups):,} pairs that are left form {len(sizes):,} groups that share no "
            f"line with one another; ask for fewer folds"
        )
    ranks = np.unique(src, return_inverse=True)[1]  # of each hash among all
    first = np.full(len(sizes), len(ranks))
    np.minimum.at(first, groups, ranks)
    fewest = [(0, fold) for fold in range(num_folds)]
    fold_of_group = np.empty(len(sizes), dtype=np.intp)
    for group in np.lexsort((first, -sizes)).tolist():
        pairs, fold = fewest[0]
        fold_of_group[group] = fold
        heapq.heapreplace(fewest, (pairs + int(sizes[group]), fold))
    return fold_of_group[groups]


def _groups(src: NDArray[np.uint64], tgt: NDArray[np.uint64]) -> NDArray[np.intp]:
    """The group of each pair, from 0: the connected components of the graph in which pairs with a common line touch."""
    parents = list(range(len(src)))

    def root(pair: int) -> int:
        while parents[pair] != pair:
            parents[pair] = pair = parents[parents[pair]]  # halves the path
        return pair

    for one, other in _links(src, tgt):
        a, b = root(one), root(other)
        parents[max(a, b)] = min(a, b)
    return np.unique([root(pair) for pair in range(len(parents))], return_inverse=True)[1]


def _links(*sides: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Each pair with the first one that has the same line, if that is another."""
    for lines in sides:
        _, first, line = np.unique(lines, return_index=True, return_inverse=True)
        firsts = first[line]
        again = np.flatnonzero(firsts != np.arange(len(lines)))
        yield from zip(again.tolist(), firsts[again].tolist(), strict=True)


def describe_folds(sizes: Sequence[int]) -> str:
    """`5 folds of 1,999 to 2,001 pairs`."""
    return f"{len(sizes)} folds of {min(sizes):,} to {max(sizes):,} pairs"
