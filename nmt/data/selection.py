"""Which pairs of the training corpora are kept: the rules of `data.cleaning`, and no sentence of a held-out text.

The corpora are read once, in blocks. Worker processes apply the rules for a single pair, and hash what is left; whether
a pair or a sentence has occurred before is decided in this process, by the hashes. The verdicts, a byte a pair, are
kept in a folder that is named by a hash of everything that they depend on.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.atomic import building, read_json, write_json, write_text
from nmt.config.cleaning import CleaningConfig
from nmt.config.corpus import CorpusFiles
from nmt.config.source import TEXT, SourceConfig
from nmt.console import log
from nmt.data.cleaning import CleaningCounts
from nmt.data.corpus import Block, over_blocks, places_of, raw_pairs
from nmt.data.hashes import CACHE, corpus_keys
from nmt.data.rules import PAIR_RULES, PairRules, usual_ratio
from nmt.data.sentence_index import Hashes, SentenceIndex, normalized_pairs, pair_hashes, sentence_hashes, times_before
from nmt.data.vectors import OpenFiles, all_blocks, blocks_of, count_pairs
from nmt.errors import DataError
from nmt.processes import num_processes_for

RULES = ("empty", *PAIR_RULES, "overlap", "duplicates", "max_repeats")
"""In the order in which they are applied. A verdict is 0 for a pair that is kept, or 1 + the index of its rule."""
EXAMPLES = 20
"""Maximum number of pairs for each rule in cleaning.tsv."""
_FORMAT = 3  # raise it when a rule changes
_SAMPLE = 10_000  # maximum number of pairs whose lengths say which ratio is usual


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


class Judged(NamedTuple):
    """What a worker says about a block."""

    corpus: int
    verdicts: NDArray[np.uint8]
    """(P,)"""
    hashes: Hashes
    """(2, K) of the pairs that are kept so far; empty unless they are needed."""


class Judge:
    """The rules for a single pair, in a worker process; sentences in `excluded` leave the training text."""

    def __init__(
        self,
        cleaning: CleaningConfig,
        languages: tuple[str, str],
        usual_ratio: float,
        excluded: SentenceIndex,
        source: SourceConfig,
    ) -> None:
        self._rules = PairRules(cleaning, *languages, usual_ratio)
        self._cleaning, self._excluded, self._source, self._files = cleaning, excluded, source, OpenFiles()

    def __call__(self, block: Block) -> Judged:
        """Apply the rules; `DataError` for a line that is not UTF-8, unless the rule for it is on."""
        pairs = normalized_pairs(block, self._source, self._files, strict=not self._cleaning.encoding)
        verdicts = np.zeros(len(pairs), dtype=np.uint8)
        for index, (src, tgt) in enumerate(pairs):
            if rule := self._first_violated(src, tgt):
                verdicts[index] = 1 + RULES.index(rule)
        compares_pairs = self._cleaning.max_repeats is not None or self._cleaning.duplicates is not None
        kept = itertools.compress(pairs, (verdicts == 0).tolist()) if compares_pairs else ()
        return Judged(block.corpus, verdicts, sentence_hashes(kept))

    def _first_violated(self, src: str, tgt: str) -> str:
        """The first rule that a pair of normalized lines violates, or ''."""
        if not (src and tgt):
            return "empty"
        if violated := self._rules.violated(src, tgt):
            return violated[0]
        return "overlap" if self._excluded.shares(src, tgt) else ""


def judge_corpora(
    corpora: Sequence[CorpusFiles],
    cleaning: CleaningConfig,
    languages: tuple[str, str],
    excluded: Sequence[CorpusFiles] = (),
    source: SourceConfig = TEXT,
    num_processes: int | None = None,
) -> list[NDArray[np.uint8]]:
    """Return the verdicts on the pairs of each corpus.

    No pair that shares its source or target with one in `excluded` is kept. Raises `DataError` if a file cannot be read
    or sides differ in length. The number of processes does not change the verdicts; its default depends on the numbers
    of pairs and cores.
    """
    num_pairs = count_pairs(corpora, source)
    if num_processes is None:
        num_processes = num_processes_for(num_pairs)
    ratio = usual_ratio_of(corpora, num_pairs) if cleaning.length_ratio else 1.0
    judge = functools.partial(Judge, cleaning, languages, ratio, SentenceIndex(excluded), source)
    judged = list(over_blocks(judge, all_blocks(corpora, source), num_processes, "read"))
    sizes = np.bincount([one.corpus for one in judged], [len(one.verdicts) for one in judged])
    verdicts = np.concatenate([one.verdicts for one in judged])
    hashes = np.concatenate([one.hashes for one in judged], axis=1)
    judged.clear()  # 16 bytes a pair
    _compare_pairs(verdicts, hashes, cleaning)
    return np.split(verdicts, np.cumsum(sizes)[:-1].astype(np.int64))


def _compare_pairs(verdicts: NDArray[np.uint8], hashes: Hashes, cleaning: CleaningConfig) -> None:
    """Add the verdicts of the rules that compare pairs, by the hashes (2, K) of those that are kept so far."""
    kept = np.flatnonzero(verdicts == 0)
    if cleaning.max_repeats is not None:
        for side in hashes:
            verdicts[kept[times_before(side) >= cleaning.max_repeats]] = 1 + RULES.index("max_repeats")
    compared: dict[str | None, Iterable[Hashes]] = {
        None: (), "pair": [pair_hashes(hashes)], "source": hashes[:1], "target": hashes[1:], "either": hashes
    }  # fmt: skip
    for one in compared[cleaning.duplicates]:
        verdicts[kept[times_before(one) > 0]] = 1 + RULES.index("duplicates")


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
) -> Selection | None:
    """The verdicts of `judge_corpora` on all pairs, from the cache or made; None if there is no rule and no text to
    exclude. Raises `DataError` as it does, and if no pair is kept."""
    if not (cleaning.is_on or excluded):
        return None
    settings = [_FORMAT, cleaning.model_dump(mode="json"), languages, "" if source.type == "text" else source.as_read()]
    digest = hashlib.sha256(json.dumps(settings).encode())
    digest.update(b"".join(corpus_keys(corpora, source)) + b"without" + b"".join(corpus_keys(excluded)))
    folder = CACHE / f"{digest.hexdigest()[:20]}.selection"
    with building(folder) as temporary:
        if temporary is not None:
            log.info("applying data.cleaning" if cleaning.is_on else "leaving held-out text out of the training text")
            judged = judge_corpora(corpora, cleaning, languages, excluded, source)
            (temporary / "verdicts").write_bytes(np.concatenate(judged).tobytes())
            write_json(temporary / "sizes.json", [len(one) for one in judged])
        sizes = read_json((temporary or folder) / "sizes.json")  # under the lock, so that nothing removes them
        verdicts = np.fromfile((temporary or folder) / "verdicts", dtype=np.uint8)
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
        for rule, places in spread(verdicts, EXAMPLES).items()
        for corpus, pair in places
    }  # fmt: skip
    rows: dict[str, list[str]] = {rule: [] for rule in RULES}
    for corpus, files in enumerate(corpora):
        wanted = sorted(pair for of_corpus, pair in found if of_corpus == corpus)
        if not wanted:
            continue
        numbers = dict(zip(wanted, places_of(files, wanted), strict=True))
        for pair, (src, tgt) in _pairs_at(files, source, wanted):
            cells = [found[corpus, pair], str(files.src_file), str(numbers[pair]), src, tgt]
            rows[cells[0]].append("\t".join(cells))
    lines = ["rule\tfile\tnumber\tsource\ttarget", *itertools.chain.from_iterable(rows.values())]
    write_text(path, "".join(f"{line}\n" for line in lines))


def spread(verdicts: Sequence[NDArray[np.uint8]], number: int) -> Mapping[str, list[tuple[int, int]]]:
    """Choose N pairs that each rule left out, evenly spaced: their corpora, from 0, and numbers there, from 1."""
    begins = np.cumsum([0, *map(len, verdicts)])
    of_all = np.concatenate(verdicts)
    chosen = {}
    for verdict, rule in enumerate(RULES, start=1):
        places = np.flatnonzero(of_all == verdict)
        places = places[np.unique(np.linspace(0, len(places) - 1, min(number, len(places))).astype(int))]
        corpora = np.searchsorted(begins, places, side="right") - 1
        chosen[rule] = list(zip(corpora.tolist(), (places - begins[corpora] + 1).tolist(), strict=True))
    return chosen


def _pairs_at(files: CorpusFiles, source: SourceConfig, wanted: Sequence[int]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Some pairs by their numbers, in ascending order, on one line each."""
    rest = set(wanted)
    if source.type == "text":
        pairs: Iterable[tuple[bytes, bytes]] = raw_pairs(files)
    else:
        lines = (line.encode() for block in blocks_of(files, source) for line in block.tgt_lines())
        pairs = ((b"", line) for line in lines)
    for index, (src, tgt) in enumerate(itertools.islice(pairs, max(wanted)), start=1):
        if index in rest:
            yield index, (_cell(src), _cell(tgt))


def _cell(line: bytes) -> str:
    return " ".join(line.decode("utf-8", "replace").split())
