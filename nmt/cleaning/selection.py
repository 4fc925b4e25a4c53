"""Selection of training pairs by the rules of `data.cleaning`, without the sentences of held-out text.

The corpora are read once, in blocks. Worker processes apply the rules about a single pair, and hash the pairs that are
left. By the hashes, this process finds duplicates. The verdicts, a byte a pair, are cached in a folder named by a hash
of everything that they depend on. `write_cleaned` writes the kept pairs as plain texts.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.cleaning.normalize import CleaningCounts
from nmt.cleaning.rules import PAIR_RULES, PairRules, typical_ratio
from nmt.cleaning.sentence_index import (
    Hashes,
    Pair,
    SentenceIndex,
    normalized_pairs,
    pair_hashes,
    sentence_hashes,
    times_before,
)
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.config.formats import CLEANING_FILE, without_compression
from nmt.config.languages import file_endings
from nmt.config.source import TEXT, SourceConfig
from nmt.corpora.hashes import CACHE, corpus_keys
from nmt.corpora.pairs import Block, Result, count_pairs, over_blocks, read_blocks, reader_of
from nmt.corpora.vectors import open_vectors
from nmt.errors import ConfigError, DataError
from nmt.system.console import log
from nmt.system.files import building, read_json, replacing, write_json, write_text
from nmt.system.processes import num_processes_for

RULES = ("empty", *PAIR_RULES, "overlap", "duplicates", "max_repeats")
"""In the order in which they are applied."""
MAX_EXAMPLES = 20
"""Maximum number of pairs for each rule in cleaning.tsv."""
_FORMAT = 3  # raise it when a rule changes
_MAX_SAMPLE = 10_000  # pairs from which the typical length ratio is computed

Violations = NDArray[np.uint16]
"""(P,) bit n is set for a pair that violates `RULES[n]`, a rule about a single pair."""
Verdicts = NDArray[np.uint8]
"""(P,) 0 for a pair that is kept, or 1 + the index of the rule that drops it."""


@dataclasses.dataclass(frozen=True)
class Selection:
    """Verdicts on all pairs of some corpora."""

    key: str
    """A hash of the dropped pairs; '' for none."""
    verdicts: tuple[Verdicts, ...]
    """By corpus."""

    def chosen(self, corpus: int) -> bytes:
        """Return a byte for each pair of a corpus: 1 if it is kept, else 0."""
        is_kept: NDArray[np.bool_] = self.verdicts[corpus] == 0
        return is_kept.tobytes()

    @functools.cached_property
    def counts(self) -> CleaningCounts:
        """The numbers of pairs read and dropped in all corpora."""
        return counts_of(np.concatenate(self.verdicts))


def counts_of(verdicts: Verdicts, rules: Sequence[str] = RULES) -> CleaningCounts:
    """Count the pairs, and those that each rule drops."""
    counts = np.bincount(verdicts, minlength=1 + len(rules)).tolist()
    return CleaningCounts(len(verdicts), {rule: count for rule, count in zip(rules, counts[1:], strict=True) if count})


@dataclasses.dataclass
class Judge:
    """Judge of single pairs, in a worker process."""

    cleaning: CleaningConfig
    languages: tuple[str, str]
    typical_ratio: float
    excluded: SentenceIndex
    """Held-out sentences."""
    source: SourceConfig

    def __post_init__(self) -> None:
        self._rules = PairRules(self.cleaning, *self.languages, self.typical_ratio)
        self.open_file = functools.cache(open_vectors)

    def violations(self, pairs: Sequence[Pair]) -> Violations:
        """The rules that normalized pairs violate; a pair with an empty side violates `empty` alone."""
        return np.array([sum(map(bit, self._violated(*pair))) for pair in pairs], dtype=np.uint16)

    def _violated(self, src: str, tgt: str) -> list[str]:
        if not (src and tgt):
            return ["empty"]
        violated = self._rules.violated(src, tgt)
        return [*violated, "overlap"] if self.excluded.shares(src, tgt) else violated


def bit(rule: str) -> int:
    """The bit of a rule in `Violations`."""
    return 1 << RULES.index(rule)


def first_violated(violations: Violations, rules: Sequence[str] = RULES) -> Verdicts:
    """The verdicts of some rules: each pair's first violation."""
    verdicts = np.zeros(len(violations), dtype=np.uint8)
    for rule in reversed(rules):
        verdicts[violations & bit(rule) != 0] = 1 + RULES.index(rule)
    return verdicts


def judge_corpora(
    corpora: Sequence[CorpusFiles],
    cleaning: CleaningConfig,
    languages: tuple[str, str],
    excluded: Sequence[CorpusFiles] = (),
    source: SourceConfig = TEXT,
) -> list[Verdicts]:
    """Judge the pairs of each corpus.

    Drops each pair that shares its source or target with a pair of `excluded`. Raises `DataError` if a file cannot be
    read or sides differ in length.
    """
    sizes, judged = map_blocks(_judge_block, corpora, cleaning, languages, excluded, source)
    verdicts, hashes = (np.concatenate(parts, axis=-1) for parts in zip(*judged, strict=True))
    judged.clear()  # 16 bytes a pair
    compare_pairs(verdicts, hashes, cleaning)
    return np.split(verdicts, np.cumsum(sizes)[:-1])


def _judge_block(judge: Judge, block: Block) -> tuple[Verdicts, Hashes]:
    """The verdicts, and (2, K) hashes of the pairs that are kept so far, if a rule compares pairs.

    Raises `DataError` for a line that is not UTF-8, unless the rule for it is on.
    """
    cleaning = judge.cleaning
    pairs = normalized_pairs(block, judge.source, judge.open_file, strict=not cleaning.encoding)
    verdicts = first_violated(judge.violations(pairs))
    compares_pairs = cleaning.max_repeats is not None or cleaning.duplicates is not None
    kept = itertools.compress(pairs, (verdicts == 0).tolist()) if compares_pairs else ()
    return verdicts, sentence_hashes(kept)


def map_blocks(
    function: Callable[[Judge, Block], Result],
    corpora: Sequence[CorpusFiles],
    cleaning: CleaningConfig,
    languages: tuple[str, str],
    excluded: Sequence[CorpusFiles],
    source: SourceConfig = TEXT,
) -> tuple[list[int], list[Result]]:
    """Map a function over all blocks in worker processes, each with its judge; returns the corpora's sizes, too.

    The number of processes, which does not change the results, depends on the numbers of pairs and cores.
    """
    sizes = [count_pairs([files], source) for files in corpora]
    ratio = sampled_ratio(corpora, sum(sizes)) if cleaning.length_ratio else 1.0
    prepare = functools.partial(_with_judge, function, cleaning, languages, ratio, SentenceIndex(excluded), source)
    blocks = itertools.chain.from_iterable(read_blocks(files, source) for files in corpora)
    return sizes, list(over_blocks(prepare, blocks, num_processes_for(sum(sizes)), "read"))


def _with_judge(function: Callable[[Judge, Block], Result], *settings: Any) -> Callable[[Block], Result]:
    return functools.partial(function, Judge(*settings))


def compare_pairs(verdicts: Verdicts, hashes: Hashes, cleaning: CleaningConfig) -> None:
    """Add the verdicts of the rules that compare pairs, by the hashes (2, K) of the pairs that are kept so far."""
    kept = np.flatnonzero(verdicts == 0)
    if cleaning.max_repeats is not None:
        for side in hashes:
            verdicts[kept[times_before(side) >= cleaning.max_repeats]] = 1 + RULES.index("max_repeats")
    compared: dict[str | None, Iterable[Hashes]] = {
        None: (), "pair": [pair_hashes(hashes)], "source": hashes[:1], "target": hashes[1:], "either": hashes
    }  # fmt: skip
    for repeated in compared[cleaning.duplicates]:
        verdicts[kept[times_before(repeated) > 0]] = 1 + RULES.index("duplicates")


def sampled_ratio(corpora: Sequence[CorpusFiles], num_pairs: int) -> float:
    """The `typical_ratio` of an even sample of all the `num_pairs` pairs."""
    pairs = itertools.chain.from_iterable(reader_of(files).raw_pairs() for files in corpora)
    sample = itertools.islice(pairs, 0, None, -(-num_pairs // _MAX_SAMPLE))
    return typical_ratio((src.decode(errors="replace"), tgt.decode(errors="replace")) for src, tgt in sample)


def select(
    corpora: Sequence[CorpusFiles],
    cleaning: CleaningConfig,
    languages: tuple[str, str],
    excluded: Sequence[CorpusFiles] = (),
    source: SourceConfig = TEXT,
) -> Selection | None:
    """Select pairs by `judge_corpora` or its cached verdicts; None if no rule is on and no text is excluded.

    Raises `DataError` as `judge_corpora` does, and if no pair is kept.
    """
    if not (cleaning.is_on or excluded):
        return None
    settings = [
        _FORMAT,
        cleaning.model_dump(mode="json"),
        languages,
        "" if source.type == "text" else source.description(),
    ]
    digest = hashlib.sha256(json.dumps(settings).encode())
    digest.update(b"".join(corpus_keys(corpora, source)) + b"without" + b"".join(corpus_keys(excluded)))
    folder = CACHE / f"{digest.hexdigest()[:20]}.selection"
    with building(folder) as temporary:
        if temporary is not None:
            log.info("applying data.cleaning" if cleaning.is_on else "leaving held-out text out of the training text")
            judged = judge_corpora(corpora, cleaning, languages, excluded, source)
            (temporary / "verdicts").write_bytes(np.concatenate(judged).tobytes())
            write_json(temporary / "sizes.json", list(map(len, judged)))
        sizes = read_json((temporary or folder) / "sizes.json")  # under the lock, so that nothing removes them
        verdicts = np.fromfile((temporary or folder) / "verdicts", dtype=np.uint8)
    key = hashlib.sha256((verdicts == 0).tobytes()).hexdigest()[:20] if verdicts.any() else ""
    selection = Selection(key, tuple(np.split(verdicts, np.cumsum(sizes)[:-1])))
    if not selection.counts.kept:
        raise no_pair_left(corpora, selection.counts)
    return selection


def no_pair_left(corpora: Sequence[CorpusFiles], counts: CleaningCounts, max_length: int = 0) -> DataError:
    """The error for corpora whose pairs are all dropped by `data.cleaning` or `data.max_length`."""
    names = ", ".join(str(files.src_file) for files in corpora)
    reasons = {"empty": "have an empty side", "too_long": f"are longer than data.max_length ({max_length}) pieces"}
    by_rule = (
        f"{count:,} {reasons.get(rule, f'are dropped by data.cleaning.{rule}')}"
        for rule, count in counts.dropped.items()
    )
    return DataError(f"{names}: no pair is left of {counts.read:,}: {', '.join(by_rule)}")


def chosen_blocks(
    files: CorpusFiles, source: SourceConfig, selection: Selection | None, corpus: int
) -> Iterator[Block]:
    """Yield the blocks of a corpus, with the pairs that a selection keeps."""
    chosen = None if selection is None else selection.chosen(corpus)
    for block in read_blocks(files, source):
        yield block if chosen is None else dataclasses.replace(block, chosen=chosen[slice(*block.rows)])


def rule_table(counts: CleaningCounts) -> list[str]:
    """The lines of a table for a terminal: each rule, and the number and share of the pairs that it drops."""
    if not counts.dropped:
        return []
    width = max(map(len, counts.dropped))
    return [f"{rule:{width}} {count:>13,} {count / counts.read:>6.1%}" for rule, count in counts.dropped.items()]


def write_examples(
    path: Path,
    corpora: Sequence[CorpusFiles],
    verdicts: Sequence[Verdicts],
    source: SourceConfig = TEXT,
    rules: Sequence[str] = RULES,
) -> None:
    """Write a TSV with at most `MAX_EXAMPLES` dropped pairs for each rule, from everywhere in the corpora.

    Columns: rule, file, number of the line (in a TMX, of the unit), source, target. A source that is not text is empty.
    """
    of_all = np.concatenate(verdicts)
    chosen = {rule: spread(of_all == verdict, MAX_EXAMPLES) for verdict, rule in enumerate(rules, start=1)}
    by_number = pairs_at(corpora, [*map(len, verdicts)], set().union(*chosen.values()), source)
    rows = [
        [rule, pair.names[0], str(pair.number), *(" ".join(text.split()) for text in pair.texts)]
        for rule, numbers in chosen.items()
        for pair in map(by_number.__getitem__, numbers)
    ]
    lines = ["\t".join(row) for row in (["rule", "file", "number", "source", "target"], *rows)]
    write_text(path, "".join(f"{line}\n" for line in lines))


def spread(is_chosen: NDArray[np.bool_], number: int) -> list[int]:
    """Evenly spaced numbers, from 0, of at most `number` chosen pairs."""
    places = np.flatnonzero(is_chosen)
    return [int(places[at]) for at in np.linspace(0, len(places) - 1, min(number, len(places))).astype(int)]


class PairAt(NamedTuple):
    """A pair and its place. U+FFFD replaces bytes that cannot be decoded."""

    names: tuple[str, str]
    """The files of its sides."""
    number: int
    """That of its lines; in a TMX, of the unit."""
    texts: tuple[str, str]
    """A source that is not text is empty."""

    def where(self, side: int = 0) -> str:
        """Return the place of its source, or target."""
        return f"{self.names[side]}:{self.number}"


def pairs_at(
    corpora: Sequence[CorpusFiles], sizes: Sequence[int], wanted: Collection[int], source: SourceConfig = TEXT
) -> dict[int, PairAt]:
    """Look up pairs by their numbers among those of all corpora, from 0."""
    by_number, begin = dict[int, PairAt](), 0
    for files, size in zip(corpora, sizes, strict=True):
        rows = sorted(index - begin for index in set(wanted) if begin <= index < begin + size)
        reader = reader_of(files, source)
        numbers = dict(zip(rows, reader.places([row + 1 for row in rows]), strict=True)) if rows else {}
        for row, sides in enumerate(itertools.islice(reader.raw_pairs(), max(rows, default=-1) + 1)):
            if row in numbers:
                src, tgt = (side.decode(errors="replace").removeprefix("\ufeff").strip() for side in sides)
                by_number[begin + row] = PairAt((reader.src_name, reader.tgt_name), numbers[row], (src, tgt))
        begin += size
    return by_number


def check_folder(folder: Path) -> None:
    """Raise `ConfigError` unless the folder for `write_cleaned` is new or empty."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"--write {folder}: exists already, and nothing is overwritten; name a new folder")


def write_cleaned(
    corpora: Sequence[CorpusFiles],
    verdicts: Sequence[Verdicts],
    languages: tuple[str, str],
    folder: Path,
    rules: Sequence[str] = RULES,
) -> list[str]:
    """Write the kept pairs of each corpus as two texts, and cleaning.tsv with examples of dropped pairs.

    Returns the names of the texts, as from `cleaned_names`. The folder is written whole or not at all.
    """
    check_folder(folder)
    names = cleaned_names(corpora, languages)
    with replacing(folder) as temporary:
        temporary.mkdir()
        for files, of_corpus, pair in zip(corpora, verdicts, names, strict=True):
            with (temporary / pair[0]).open("wb") as src_file, (temporary / pair[1]).open("wb") as tgt_file:
                for verdict, lines in itertools.zip_longest(of_corpus.tolist(), reader_of(files).raw_pairs()):
                    if verdict is None or lines is None:
                        raise DataError(f"{files.src_file}: has changed while it was read; run the command again")
                    if not verdict:
                        src_file.write(_plain(lines[0]))
                        tgt_file.write(_plain(lines[1]))
        write_examples(temporary / CLEANING_FILE, corpora, verdicts, rules=rules)
    return [name for pair in names for name in pair]


def cleaned_names(corpora: Sequence[CorpusFiles], languages: tuple[str, str]) -> list[tuple[str, str]]:
    """The names of each corpus's two cleaned texts, after its source file: `train.en` and `train.de`.

    For one language on both sides, `train.src.en` and `train.tgt.en`.
    """
    src, tgt = file_endings(*languages)
    names = []
    stems: set[str] = set()
    for files in corpora:
        own = without_compression(files.src_file).stem
        names_of_it = itertools.chain([own], (f"{own}.{number}" for number in itertools.count(2)))
        stem = next(name for name in names_of_it if name not in stems)
        stems.add(stem)
        names.append((f"{stem}.{src}", f"{stem}.{tgt}"))
    return names


def _plain(line: bytes) -> bytes:
    """The line with "\\n" at its end, and without a byte order mark."""
    return line.removeprefix(BOM_UTF8).removesuffix(b"\n").removesuffix(b"\r") + b"\n"
