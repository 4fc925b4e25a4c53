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
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.cleaning.normalize import CleaningCounts
from nmt.cleaning.rules import PAIR_RULES, PairRules, usual_ratio
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
EXAMPLES = 20
"""Maximum number of pairs for each rule in cleaning.tsv."""
_FORMAT = 3  # raise it when a rule changes
_SAMPLE = 10_000  # maximum number of pairs whose lengths say which ratio is usual

Violations = NDArray[np.uint16]
"""(P,) bit n is set for a pair that violates `RULES[n]`, one of the rules for a single pair."""
Verdicts = NDArray[np.uint8]
"""(P,) 0 for a pair that is kept, or 1 + the index of its rule."""


@dataclasses.dataclass(frozen=True)
class Selection:
    """The verdicts on all pairs of some corpora."""

    key: str
    """A hash of what they leave out; '' for nothing."""
    verdicts: tuple[Verdicts, ...]
    """Of each corpus."""

    def chosen(self, corpus: int) -> bytes:
        """A byte for each pair of a corpus: 1 if it is kept, else 0."""
        is_kept: NDArray[np.bool_] = self.verdicts[corpus] == 0
        return is_kept.tobytes()

    @functools.cached_property
    def counts(self) -> CleaningCounts:
        """The pairs of all corpora, and those left out by each rule."""
        return counts_of(np.concatenate(self.verdicts))


def counts_of(verdicts: Verdicts, rules: Sequence[str] = RULES) -> CleaningCounts:
    """The numbers of pairs that were judged, and of those left out by each rule."""
    counts = np.bincount(verdicts, minlength=1 + len(rules)).tolist()
    return CleaningCounts(len(verdicts), {rule: count for rule, count in zip(rules, counts[1:], strict=True) if count})


@dataclasses.dataclass
class Judge:
    """The rules for a single pair, in a worker process."""

    cleaning: CleaningConfig
    languages: tuple[str, str]
    usual_ratio: float
    excluded: SentenceIndex
    """Its sentences leave the training text."""
    source: SourceConfig

    def __post_init__(self) -> None:
        self._rules = PairRules(self.cleaning, *self.languages, self.usual_ratio)
        self.open_file = functools.cache(open_vectors)

    def violations(self, pairs: Sequence[Pair]) -> Violations:
        """What normalized pairs violate; of one with an empty side, only that is said."""
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
    """The verdicts by some rules."""
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
    """Return the verdicts on the pairs of each corpus.

    No pair that shares its source or target with one in `excluded` is kept. Raises `DataError` if a file cannot be read
    or sides differ in length.
    """
    sizes, judged = look_at(_verdicts, corpora, cleaning, languages, excluded, source)
    verdicts, hashes = (np.concatenate(parts, axis=-1) for parts in zip(*judged, strict=True))
    judged.clear()  # 16 bytes a pair
    compare_pairs(verdicts, hashes, cleaning)
    return np.split(verdicts, np.cumsum(sizes)[:-1])


def _verdicts(judge: Judge, block: Block) -> tuple[Verdicts, Hashes]:
    """The verdicts, and (2, K) hashes of the pairs that are kept so far, if rules compare them.

    Raises `DataError` for a line that is not UTF-8, unless the rule for it is on.
    """
    cleaning = judge.cleaning
    pairs = normalized_pairs(block, judge.source, judge.open_file, strict=not cleaning.encoding)
    verdicts = first_violated(judge.violations(pairs))
    compares_pairs = cleaning.max_repeats is not None or cleaning.duplicates is not None
    kept = itertools.compress(pairs, (verdicts == 0).tolist()) if compares_pairs else ()
    return verdicts, sentence_hashes(kept)


def look_at(
    say: Callable[[Judge, Block], Result],
    corpora: Sequence[CorpusFiles],
    cleaning: CleaningConfig,
    languages: tuple[str, str],
    excluded: Sequence[CorpusFiles],
    source: SourceConfig = TEXT,
) -> tuple[list[int], list[Result]]:
    """The number of pairs of each corpus, and what `say` says of each block, with a judge of its process.

    The number of processes, which does not change the answers, depends on the numbers of pairs and cores.
    """
    sizes = [count_pairs([files], source) for files in corpora]
    ratio = usual_ratio_of(corpora, sum(sizes)) if cleaning.length_ratio else 1.0
    prepare = functools.partial(_with_a_judge, say, cleaning, languages, ratio, SentenceIndex(excluded), source)
    blocks = itertools.chain.from_iterable(read_blocks(files, source) for files in corpora)
    return sizes, list(over_blocks(prepare, blocks, num_processes_for(sum(sizes)), "read"))


def _with_a_judge(say: Callable[[Judge, Block], Result], *settings: Any) -> Callable[[Block], Result]:
    return functools.partial(say, Judge(*settings))


def compare_pairs(verdicts: Verdicts, hashes: Hashes, cleaning: CleaningConfig) -> None:
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
    pairs = itertools.chain.from_iterable(reader_of(files).raw_pairs() for files in corpora)
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
    """The blocks of a corpus, each with the pairs that a selection keeps."""
    chosen = None if selection is None else selection.chosen(corpus)
    for block in read_blocks(files, source):
        yield block if chosen is None else dataclasses.replace(block, chosen=chosen[slice(*block.rows)])


def table(counts: CleaningCounts) -> list[str]:
    """The lines of a table for a terminal: each rule, how many pairs it left out, and their share."""
    if not counts.left_out:
        return []
    width = max(map(len, counts.left_out))
    return [f"{rule:{width}} {count:>13,} {count / counts.read:>6.1%}" for rule, count in counts.left_out.items()]


def write_examples(
    path: Path,
    corpora: Sequence[CorpusFiles],
    verdicts: Sequence[Verdicts],
    source: SourceConfig = TEXT,
    rules: Sequence[str] = RULES,
) -> None:
    """Write a table (TSV): for each rule, `EXAMPLES` pairs that it left out, from everywhere in the corpora.

    Columns: the rule, the file, the number of the line (in a TMX of the unit), source, target. For a source that is not
    text the column is empty.
    """
    of_all = np.concatenate(verdicts)
    chosen = {rule: spread(of_all == verdict, EXAMPLES) for verdict, rule in enumerate(rules, start=1)}
    found = pairs_at(corpora, [*map(len, verdicts)], set().union(*chosen.values()), source)
    rows = [
        [rule, pair.names[0], str(pair.number), *(" ".join(text.split()) for text in pair.texts)]
        for rule, pairs in chosen.items()
        for pair in map(found.__getitem__, pairs)
    ]
    lines = ["\t".join(row) for row in (["rule", "file", "number", "source", "target"], *rows)]
    write_text(path, "".join(f"{line}\n" for line in lines))


def spread(is_chosen: NDArray[np.bool_], number: int) -> list[int]:
    """N of the pairs that are chosen, evenly spaced: their numbers among all, from 0."""
    places = np.flatnonzero(is_chosen)
    return [int(places[at]) for at in np.linspace(0, len(places) - 1, min(number, len(places))).astype(int)]


class PairAt(NamedTuple):
    """A pair and where it is. What cannot be decoded in it is replaced by U+FFFD."""

    names: tuple[str, str]
    """The files of its sides."""
    number: int
    """That of its lines; in a TMX, of the unit."""
    texts: tuple[str, str]
    """A source that is not text is empty."""

    def where(self, side: int = 0) -> str:
        """The place of its source, or target."""
        return f"{self.names[side]}:{self.number}"


def pairs_at(
    corpora: Sequence[CorpusFiles], sizes: Sequence[int], wanted: Collection[int], source: SourceConfig = TEXT
) -> dict[int, PairAt]:
    """Some pairs by their numbers among those of all corpora, from 0."""
    found, begin = dict[int, PairAt](), 0
    for files, size in zip(corpora, sizes, strict=True):
        rows = sorted(index - begin for index in set(wanted) if begin <= index < begin + size)
        reader = reader_of(files, source)
        numbers = dict(zip(rows, reader.places([row + 1 for row in rows]), strict=True)) if rows else {}
        for row, sides in enumerate(itertools.islice(reader.raw_pairs(), max(rows, default=-1) + 1)):
            if row in numbers:
                src, tgt = (side.decode(errors="replace").removeprefix("\ufeff").strip() for side in sides)
                found[begin + row] = PairAt((reader.src_name, reader.tgt_name), numbers[row], (src, tgt))
        begin += size
    return found


# ---- What cleaning leaves of corpora, written as plain texts.


def check_folder(folder: Path) -> None:
    """`ConfigError` if `write_cleaned` cannot write there."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"--write {folder}: exists already, and nothing is overwritten; name a new folder")


def write_cleaned(
    corpora: Sequence[CorpusFiles],
    verdicts: Sequence[Verdicts],
    languages: tuple[str, str],
    folder: Path,
    rules: Sequence[str] = RULES,
) -> list[str]:
    """Write what is left of each corpus as two texts, and cleaning.tsv with examples of what was dropped.

    Returns the names of the texts, which are `cleaned_names`. The folder is written as a whole.
    """
    check_folder(folder)
    names = cleaned_names(corpora, languages)
    with replacing(folder) as temporary:
        temporary.mkdir()
        for files, of_corpus, pair in zip(corpora, verdicts, names, strict=True):
            with (temporary / pair[0]).open("wb") as src_file, (temporary / pair[1]).open("wb") as tgt_file:
                for verdict, pair_read in itertools.zip_longest(of_corpus.tolist(), reader_of(files).raw_pairs()):
                    if verdict is None or pair_read is None:
                        raise DataError(f"{files.src_file}: has changed while it was read; run the command again")
                    if not verdict:
                        src_file.write(_plain(pair_read[0]))
                        tgt_file.write(_plain(pair_read[1]))
        write_examples(temporary / CLEANING_FILE, corpora, verdicts, rules=rules)
    return [name for pair in names for name in pair]


def cleaned_names(corpora: Sequence[CorpusFiles], languages: tuple[str, str]) -> list[tuple[str, str]]:
    """The names of the two texts that are written of each corpus, after its source's file: `train.en` and `train.de`;
    `train.src.en` and `train.tgt.en` if the languages are one."""
    (src, tgt), names = languages, []
    stems: Counter[str] = Counter()
    for files in corpora:
        stem = without_compression(files.src_file).stem
        stems[stem] += 1
        if stems[stem] > 1:
            stem = f"{stem}.{stems[stem]}"
        names.append((f"{stem}.{src}", f"{stem}.{tgt}") if src != tgt else (f"{stem}.src.{src}", f"{stem}.tgt.{tgt}"))
    return names


def _plain(line: bytes) -> bytes:
    """A line of a plain text: with one line end, and without a byte order mark."""
    return line.removeprefix(BOM_UTF8).removesuffix(b"\n").removesuffix(b"\r") + b"\n"
