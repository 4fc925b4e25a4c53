"""Which pairs of the training corpora are kept: the rules of `data.cleaning`, and no sentence of a held-out text.

The corpora are read once, in blocks. Worker processes apply the rules for a single pair, and hash what is left; whether
a pair or a sentence has occurred before is decided in this process, by hash tables. The verdicts, a byte a pair, are
kept in a folder that is named by a hash of everything that they depend on.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.atomic import building, read_json, write_json, write_text
from nmt.config.cleaning import CleaningConfig
from nmt.config.corpus import CorpusFiles
from nmt.config.source import TEXT, SourceConfig
from nmt.data.cleaning import CleaningCounts, normalize
from nmt.data.corpus import Block, places_of, raw_pairs, read_pairs
from nmt.data.duplicates import PairTable, line_hash, pair_hash
from nmt.data.hashes import CACHE, corpus_keys
from nmt.data.rules import PAIR_RULES, PairRules, usual_ratio
from nmt.data.vectors import OpenFiles, blocks_of, check_corpora, fingerprint
from nmt.errors import DataError
from nmt.processes import Workers, num_processes_for

RULES = ("empty", *PAIR_RULES, "overlap", "duplicates", "max_repeats")
"""In the order in which they are applied. A verdict is 0 for a pair that is kept, or 1 + the index of its rule."""
EXAMPLES = 20
"""Maximum number of pairs for each rule in cleaning.tsv."""
_FORMAT = 3  # raise it when a rule changes
_SAMPLE = 10_000  # maximum number of pairs whose lengths say which ratio is usual
_MAX_PENDING_BYTES = 1 << 23

Hashes = NDArray[np.uint8]
"""Hashes of `HASH_BYTES` each, concatenated."""


@dataclasses.dataclass(frozen=True)
class Selection:
    """The verdicts on all pairs of some corpora."""

    key: str
    """A hash of what they leave out; '' for nothing."""
    verdicts: tuple[NDArray[np.uint8], ...]
    """(P,) for each corpus."""

    def chosen(self, corpus: int) -> bytes:
        """A byte for each pair of a corpus: 1 if it is kept, else 0."""
        is_kept: NDArray[np.bool_] = self.verdicts[corpus] == 0
        return is_kept.tobytes()

    @functools.cached_property
    def counts(self) -> CleaningCounts:
        """The pairs of all corpora, and those left out by each rule."""
        of_rules = sum(
            (np.bincount(one, minlength=1 + len(RULES)) for one in self.verdicts), np.zeros(1, dtype=np.int64)
        )
        left_out = {rule: int(count) for rule, count in zip(RULES, of_rules[1:], strict=True) if count}
        return CleaningCounts(int(of_rules.sum()), left_out)


class Judge(NamedTuple):
    """The rules for a single pair, for a worker process."""

    cleaning: CleaningConfig
    languages: tuple[str, str]
    usual_ratio: float = 1.0
    sources: frozenset[bytes] = frozenset()
    """Hashes of sentences that leave the training text."""
    targets: frozenset[bytes] = frozenset()
    source: SourceConfig = TEXT

    @property
    def compares_lines(self) -> bool:
        """Whether it matters if a source or a target alone has occurred before."""
        return self.cleaning.max_repeats is not None or self.cleaning.duplicates not in (None, "pair")


class Judged(NamedTuple):
    """What a worker says about a block."""

    verdicts: NDArray[np.uint8]
    """(P,)"""
    pairs: Hashes
    """Of the pairs that are kept so far; empty unless they are needed."""
    sources: Hashes
    targets: Hashes


def judge_block(block: Block, judge: Judge, rules: PairRules, files: OpenFiles) -> Judged:
    """Apply the rules for a single pair; `DataError` for a line that is not UTF-8, unless the rule for it is on."""
    if judge.source.type == "text":
        src_lines, tgt_lines = block.lines(strict=not judge.cleaning.encoding)
    else:
        tgt_lines = block.tgt_lines()
        src_lines = [fingerprint(one) for one in files.read(block.src_name, judge.source, *block.rows)]
    verdicts = np.zeros(len(tgt_lines), dtype=np.uint8)
    hashes: list[list[bytes]] = [[], [], []]
    for index, (src, tgt) in enumerate(zip(src_lines, tgt_lines, strict=True)):
        one, other = normalize(src), normalize(tgt)
        rule = _first_violated(one, other, judge, rules)
        if rule:
            verdicts[index] = 1 + RULES.index(rule)
            continue
        if judge.cleaning.duplicates == "pair":
            hashes[0].append(pair_hash(one, other))
        if judge.compares_lines:
            hashes[1].append(line_hash(one))
            hashes[2].append(line_hash(other))
    return Judged(verdicts, *(np.frombuffer(b"".join(some), dtype=np.uint8) for some in hashes))


def _first_violated(src: str, tgt: str, judge: Judge, rules: PairRules) -> str:
    """The first rule that a pair of normalized lines violates, or ''."""
    if not (src and tgt):
        return "empty"
    if violated := rules.violated(src, tgt):
        return violated[0]
    if judge.sources and (line_hash(src) in judge.sources or line_hash(tgt) in judge.targets):
        return "overlap"
    return ""


class _Earlier:
    """Which pairs, sources and targets have occurred in the blocks before."""

    def __init__(self, cleaning: CleaningConfig, judge: Judge, num_pairs: int) -> None:
        self._cleaning = cleaning
        self._pairs = PairTable(num_pairs) if cleaning.duplicates == "pair" else None
        sides = 2 if judge.compares_lines else 0
        self._sides = [PairTable(num_pairs, counting=True) for _ in range(sides)]

    def judge(self, judged: Judged) -> NDArray[np.uint8]:
        """The verdicts with those of the rules that compare pairs."""
        verdicts = judged.verdicts.copy()
        kept = np.flatnonzero(verdicts == 0)
        repeats = [
            table.count(hashes) for table, hashes in zip(self._sides, (judged.sources, judged.targets), strict=False)
        ]
        if self._cleaning.max_repeats is not None:
            at_most = self._cleaning.max_repeats
            verdicts[kept[(repeats[0] >= at_most) | (repeats[1] >= at_most)]] = 1 + RULES.index("max_repeats")
        repeated = np.zeros(len(kept), dtype=np.bool_)
        if self._pairs is not None:
            repeated = ~self._pairs.add(judged.pairs)
        if self._cleaning.duplicates in ("source", "either"):
            repeated |= repeats[0] > 0
        if self._cleaning.duplicates in ("target", "either"):
            repeated |= repeats[1] > 0
        verdicts[kept[repeated]] = 1 + RULES.index("duplicates")
        return verdicts


def judge_corpora(
    corpora: Sequence[CorpusFiles],
    cleaning: CleaningConfig,
    languages: tuple[str, str],
    excluded: Sequence[CorpusFiles] = (),
    source: SourceConfig = TEXT,
    num_processes: int | None = None,
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """The verdicts on each block of the corpora, in order, with the index of its corpus.

    No pair that shares its source or target with one in `excluded` is kept. Raises `DataError` if a file cannot be read
    or sides differ in length. The number of processes does not change the verdicts; its default depends on the numbers
    of pairs and cores.
    """
    num_pairs = check_corpora(corpora, source)
    if num_processes is None:
        num_processes = num_processes_for(num_pairs)
    sources, targets = _sentences(excluded)
    ratio = usual_ratio_of(corpora, num_pairs) if cleaning.length_ratio else 1.0
    judge = Judge(cleaning, languages, ratio, sources, targets, source)
    earlier = _Earlier(cleaning, judge, num_pairs)
    with _judges(judge, num_processes) as judged:
        for index, files in enumerate(corpora):
            for one in judged(blocks_of(files, source)):
                yield index, earlier.judge(one)


@contextlib.contextmanager
def _judges(judge: Judge, num_processes: int) -> Iterator[Callable[[Iterable[Block]], Iterator[Judged]]]:
    """`judge_block` for many blocks, in order, by worker processes if there are several."""
    if num_processes < 2:
        yield functools.partial(map, _judging(judge))
        return
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with Workers([functools.partial(_judging, judge)] * num_processes, environment) as workers:
        yield functools.partial(workers.answers, size=_size, task=_task, room=_MAX_PENDING_BYTES)


def _size(block: Block) -> int:
    return len(block.src) + len(block.tgt)


def _task(block: Block) -> str:
    return f"read {block.src_name}"


def _judging(judge: Judge) -> Callable[[Block], Judged]:
    """The function with which a worker answers requests."""
    rules, files = PairRules(judge.cleaning, *judge.languages, judge.usual_ratio), OpenFiles()
    return lambda block: judge_block(block, judge, rules, files)


def _sentences(excluded: Sequence[CorpusFiles]) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """The hashes of all sources and of all targets."""
    pairs = [(normalize(src), normalize(tgt)) for files in excluded for src, tgt in read_pairs(files)]
    sources, targets = (
        {line_hash(line) for line in lines if line} for lines in ([s for s, _ in pairs], [t for _, t in pairs])
    )
    return frozenset(sources), frozenset(targets)


def usual_ratio_of(corpora: Sequence[CorpusFiles], num_pairs: int) -> float:
    """Return what target lengths are to be divided by, from an even sample of all the `num_pairs` pairs."""
    pairs = itertools.chain.from_iterable(map(raw_pairs, corpora))
    sample = itertools.islice(pairs, 0, None, -(-num_pairs // _SAMPLE))
    return usual_ratio((src.decode(errors="replace"), tgt.decode(errors="replace")) for src, tgt in sample)


def select(
    corpora: Sequence[CorpusFiles],
    cleaning: CleaningConfig,
    languages: tuple[str, str],
    excluded: Sequence[CorpusFiles] = (),
    source: SourceConfig = TEXT,
    say: Callable[[str], None] = lambda line: None,
) -> Selection | None:
    """The verdicts of `judge_corpora` on all pairs, from the cache or made; None if there is no rule and no text to
    exclude. Raises `DataError` as it does, and if no pair is kept."""
    if not (cleaning.is_on or excluded):
        return None
    settings = [_FORMAT, cleaning.model_dump(mode="json"), languages, "" if source.type == "text" else source.as_read()]
    digest = hashlib.sha256(json.dumps(settings).encode())
    digest.update(b"".join(corpus_keys(corpora, source)) + b"without" + b"".join(corpus_keys(excluded)))
    folder = CACHE / f"{digest.hexdigest()[:20]}.selection"
    if not folder.is_dir():
        with building(folder, say) as temporary:
            if temporary is not None:
                say("applying data.cleaning" if cleaning.is_on else "leaving held-out text out of the training text")
                judged = judge_corpora(corpora, cleaning, languages, excluded, source)
                sizes = [0] * len(corpora)
                with (temporary / "verdicts").open("wb") as file:
                    for index, verdicts in judged:
                        sizes[index] += len(verdicts)
                        file.write(verdicts.tobytes())
                write_json(temporary / "sizes.json", sizes)
    sizes = read_json(folder / "sizes.json")
    verdicts = np.fromfile(folder / "verdicts", dtype=np.uint8)
    key = hashlib.sha256((verdicts == 0).tobytes()).hexdigest()[:20] if verdicts.any() else ""
    selection = Selection(key, tuple(np.split(verdicts, np.cumsum(sizes)[:-1])))
    if not selection.counts.kept:
        raise no_pair_left(corpora, selection.counts)
    return selection


def no_pair_left(corpora: Sequence[CorpusFiles], counts: CleaningCounts, max_length: int = 0) -> DataError:
    """The error for corpora of which nothing is left to train on, by `data.cleaning` or `data.max_length`."""
    names = ", ".join(str(files.src_file) for files in corpora)
    reasons = {"empty": "have an empty side", "too_long": f"are longer than data.max_length ({max_length}) pieces"}
    by_rule = (
        f"{count:,} {reasons.get(rule, f'are left out by data.cleaning.{rule}')}"
        for rule, count in counts.left_out.items()
    )
    return DataError(f"{names}: no pair is left of {counts.read:,}: {', '.join(by_rule)}")


def chosen_blocks(
    files: CorpusFiles, source: SourceConfig, selection: Selection | None, corpus: int
) -> Iterator[Block]:
    """`blocks_of` a corpus, each with the pairs that a selection keeps."""
    chosen = None if selection is None else selection.chosen(corpus)
    for block in blocks_of(files, source):
        yield block if chosen is None else dataclasses.replace(block, chosen=chosen[slice(*block.rows)])


def table(counts: CleaningCounts) -> list[str]:
    """The lines of a table for a terminal: each rule, how many pairs it left out, and their share."""
    if not counts.left_out:
        return []
    width = max(map(len, counts.left_out))
    return [f"{rule:{width}} {count:>13,} {count / counts.read:>6.1%}" for rule, count in counts.left_out.items()]


def write_examples(
    path: Path, corpora: Sequence[CorpusFiles], verdicts: Sequence[NDArray[np.uint8]], source: SourceConfig = TEXT
) -> None:
    """Write a table (TSV): for each rule, `EXAMPLES` pairs that it left out, from everywhere in the corpora.

    Columns: the rule, the file, the number of the line (in a TMX of the unit), source, target. For a source that is not
    text the column is empty.
    """
    found = {
        (corpus, pair): rule
        for rule, places in _spread(verdicts).items()
        for corpus, pair in places
    }  # fmt: skip
    rows: dict[str, list[str]] = {rule: [] for rule in RULES}
    for corpus, files in enumerate(corpora):
        wanted = sorted(pair for of_corpus, pair in found if of_corpus == corpus)
        if not wanted:
            continue
        numbers = dict(zip(wanted, places_of(files, [pair + 1 for pair in wanted]), strict=True))
        for pair, (src, tgt) in _pairs_at(files, source, wanted):
            cells = [found[corpus, pair], str(files.src_file), str(numbers[pair]), src, tgt]
            rows[cells[0]].append("\t".join(cells))
    lines = ["rule\tfile\tnumber\tsource\ttarget", *itertools.chain.from_iterable(rows.values())]
    write_text(path, "".join(f"{line}\n" for line in lines))


def _spread(verdicts: Sequence[NDArray[np.uint8]]) -> Mapping[str, list[tuple[int, int]]]:
    """For each rule the corpora and the indexes of some pairs that it left out, evenly spaced."""
    begins = np.cumsum([0, *map(len, verdicts)])
    chosen = {}
    for verdict, rule in enumerate(RULES, start=1):
        places = np.concatenate(
            [begin + np.flatnonzero(one == verdict) for begin, one in zip(begins, verdicts, strict=False)]
        )
        places = places[np.unique(np.linspace(0, len(places) - 1, min(EXAMPLES, len(places))).astype(int))]
        corpora = np.searchsorted(begins, places, side="right") - 1
        chosen[rule] = list(zip(corpora.tolist(), (places - begins[corpora]).tolist(), strict=True))
    return chosen


def _pairs_at(files: CorpusFiles, source: SourceConfig, wanted: Sequence[int]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Some pairs by their indexes, in ascending order, on one line each."""
    rest = set(wanted)
    if source.type == "text":
        pairs: Iterable[tuple[bytes, bytes]] = raw_pairs(files)
    else:
        lines = (line.encode() for block in blocks_of(files, source) for line in block.tgt_lines())
        pairs = ((b"", line) for line in lines)
    for index, (src, tgt) in enumerate(itertools.islice(pairs, 1 + max(wanted))):
        if index in rest:
            yield index, (_cell(src), _cell(tgt))


def _cell(line: bytes) -> str:
    return " ".join(line.decode("utf-8", "replace").split())
