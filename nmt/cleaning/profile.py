"""Profile of a corpus: lengths, repetitions, characters, overlap with test text, and the pairs that each rule drops.

The corpora are read once, as counts (counts.py), and then partly again for examples.
"""

import dataclasses
import functools
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from nmt.cleaning.counts import RATIO_EDGES, Counts, PairCounts, count_block
from nmt.cleaning.rules import PAIR_RULES
from nmt.cleaning.selection import (
    RULES,
    PairAt,
    Verdicts,
    Violations,
    bit,
    compare_pairs,
    first_violated,
    map_blocks,
    pairs_at,
    spread,
)
from nmt.cleaning.sentence_index import Hashes, SentenceIndex, pair_hashes, sentence_hashes, times_before
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.corpora.pairs import name_of

_NUM_BINS = 9  # of lengths: eight of the same width, and one for greater lengths
_MAX_CHARACTERS = 10  # unusual ones shown
_MAX_REPEATED = 5  # lines shown
_MAX_EXAMPLES = 3  # pairs shown of each rule and test set

PairsByNumber = Callable[[Collection[int]], Mapping[int, PairAt]]
"""Looks up pairs by their numbers among those of all corpora, from 0."""


@dataclasses.dataclass(frozen=True)
class Bin:
    """A bin of a histogram."""

    low: float
    high: float | None
    """Of lengths, the largest in the bin; of ratios, the limit, which lies in the next bin. None: no limit."""
    count: int


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Lengths of one side's lines, without those that are empty or undecodable."""

    total: int
    mean: float
    median: int
    longest: int
    bins: tuple[Bin, ...]


@dataclasses.dataclass(frozen=True)
class PairExample:
    """A pair and its place."""

    where: str
    """File and number of the line; in a TMX, of the unit."""
    src: str
    tgt: str


@dataclasses.dataclass(frozen=True)
class OddCharacter:
    """A character that is unusual in the language."""

    character: str
    code_point: str
    """`U+0430`"""
    name: str
    """Unicode's; '' for a character without a name."""
    count: int
    where: str
    """Place of the first occurrence."""


@dataclasses.dataclass(frozen=True)
class RepeatedLine:
    """A line that occurs several times."""

    text: str
    count: int
    where: str
    """Place of the first occurrence."""


@dataclasses.dataclass(frozen=True)
class SideProfile:
    """One side of the corpora."""

    language: str
    empty: int
    undecodable: int
    """Lines that are not UTF-8 or hold a NUL. No other figure counts them."""
    different: int
    """Number of different lines, without the empty ones."""
    words: Lengths | None
    """None for a language written without spaces."""
    characters: Lengths
    longest: str
    """Place of the longest line's first occurrence."""
    odd_characters: tuple[OddCharacter, ...]
    """The most frequent ones."""
    num_odd_characters: int
    """Number of different ones."""
    odd_occurrences: int
    """Number of their occurrences."""
    repeated: tuple[RepeatedLine, ...]
    """The most frequent lines."""


@dataclasses.dataclass(frozen=True)
class SharedPair(PairExample):
    """A pair of a test set that shares a side with a pair of the corpora."""

    also: str
    """Place of the pair of the corpora."""


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Overlap of a test set with the corpora."""

    name: str
    pairs: int
    src: int
    """Pairs whose source is a source of the corpora."""
    tgt: int
    """Pairs whose target is a target of the corpora."""
    both: int
    """Pairs that are a pair of the corpora."""
    examples: tuple[SharedPair, ...]
    """Some of the pairs that share a side."""


@dataclasses.dataclass(frozen=True)
class RuleProfile:
    """Profile of a rule of `data.cleaning`."""

    rule: str
    setting: str
    """Its value in the configuration, as YAML."""
    dropped: int
    """Pairs that it drops and no rule before it drops."""
    alone: int | None
    """Pairs that it would drop as the only rule, also for a rule that is off. None for rules that compare pairs with
    each other."""
    examples: tuple[PairExample, ...]


@dataclasses.dataclass(frozen=True)
class CorpusProfile:
    """Numbers of pairs of one corpus."""

    name: str
    pairs: int
    kept: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """Profile of all corpora together."""

    pairs: int
    kept: int
    """Pairs that no rule drops."""
    corpora: tuple[CorpusProfile, ...]
    rules: tuple[RuleProfile, ...]
    """In the order in which they are applied."""
    src: SideProfile
    tgt: SideProfile
    ratio: tuple[Bin, ...]
    """Complete pairs by target length / source length, in characters."""
    copies: int
    """Pairs with identical sides."""
    duplicates: dict[str, int]
    """Pairs that repeat an earlier `pair`, `source` or `target`, except those with an empty or undecodable line."""
    against: tuple[Overlap, ...]
    """The overlap with each test set."""


def profile_corpora(
    corpora: Sequence[CorpusFiles],
    languages: tuple[str, str],
    cleaning: CleaningConfig,
    tests: Mapping[str, CorpusFiles],
    excluded: Sequence[CorpusFiles] = (),
) -> tuple[Profile, list[Verdicts]]:
    """Profile the corpora, with the verdicts on the pairs of each corpus.

    Counts the overlap with `tests`, and drops pairs that share a side with `excluded`. Drops a line that is not UTF-8
    in any case. Raises `DataError` if a file cannot be read or is empty, or if sides differ in length.
    """
    sizes, blocks = map_blocks(count_block, corpora, _all_pair_rules(cleaning), languages, excluded)
    counts = PairCounts.together(blocks)
    if (counts.characters < 0).any():
        cleaning = cleaning.model_copy(update={"encoding": True})  # such lines cannot be kept
    on = [rule for rule in RULES if rule not in PAIR_RULES or getattr(cleaning, rule)]
    verdicts = first_violated(counts.violations, on)
    compare_pairs(verdicts, counts.hashes[:, verdicts == 0], cleaning)
    corpus_verdicts = np.split(verdicts, np.cumsum(sizes)[:-1])
    kept = [int((of_corpus == 0).sum()) for of_corpus in corpus_verdicts]
    pairs = functools.partial(pairs_at, corpora, sizes)
    src, tgt = counts.hashes
    ratios = np.bincount(counts.ratios, minlength=len(RATIO_EDGES) + 1)
    profile = Profile(
        pairs=sum(sizes),
        kept=sum(kept),
        corpora=tuple(map(CorpusProfile, map(name_of, corpora), sizes, kept)),
        rules=_rules(cleaning, counts.violations, verdicts, pairs),
        src=_side(0, languages[0], counts, pairs),
        tgt=_side(1, languages[1], counts, pairs),
        ratio=tuple(map(Bin, (0.0, *RATIO_EDGES), (*RATIO_EDGES, None), ratios.tolist())),
        copies=int(((src == tgt) & (src != 0)).sum()),
        duplicates=_duplicates(counts.hashes),
        against=tuple(_overlap(name, files, counts.hashes, pairs) for name, files in tests.items()),
    )
    return profile, corpus_verdicts


def _all_pair_rules(cleaning: CleaningConfig) -> CleaningConfig:
    """The rules with those about a single pair switched on, except `language`, which needs an extra and is slow."""
    recommended = CleaningConfig.recommended()
    off = [rule for rule in PAIR_RULES if rule != "language" and not getattr(cleaning, rule)]
    return cleaning.model_copy(update={rule: getattr(recommended, rule) or True for rule in off})


def _rules(
    cleaning: CleaningConfig, violations: Violations, verdicts: Verdicts, pairs: PairsByNumber
) -> tuple[RuleProfile, ...]:
    """The profile of each rule, with examples of dropped pairs, or of violations if it drops none."""
    dropped = {rule: verdicts == number for number, rule in enumerate(RULES, start=1)}
    violating = {rule: violations & bit(rule) != 0 for rule in RULES}
    shown = {rule: spread(is_in if is_in.any() else violating[rule], _MAX_EXAMPLES) for rule, is_in in dropped.items()}
    by_number = pairs({number for numbers in shown.values() for number in numbers})
    judged = [rule for rule in PAIR_RULES if getattr(_all_pair_rules(cleaning), rule)]
    return tuple(
        RuleProfile(
            rule=rule,
            setting=_setting(cleaning, rule),
            dropped=int(dropped[rule].sum()),
            alone=int(violating[rule].sum()) if rule in judged else None,
            examples=tuple(PairExample(pair.where(), *pair.texts) for pair in map(by_number.__getitem__, shown[rule])),
        )
        for rule in RULES
    )


def _setting(cleaning: CleaningConfig, rule: str) -> str:
    """A rule's value in the configuration, as YAML."""
    if rule == "empty":
        return "always"
    value = getattr(cleaning, rule)
    return str(value).lower() if value else "off"


def _side(side: int, language: str, counts: PairCounts, pairs: PairsByNumber) -> SideProfile:
    """The profile of a side: 0 for the source, 1 for the target."""
    hashes, characters, words = counts.hashes[side], counts.characters[side], counts.words[side]
    unusual = counts.unusual[side]
    different, frequencies = np.unique(hashes[hashes != 0], return_counts=True)
    most_frequent = np.argsort(-frequencies, kind="stable")[:_MAX_REPEATED]
    repeated = [
        (int(np.argmax(hashes == different[at])), int(frequencies[at])) for at in most_frequent if frequencies[at] > 1
    ]
    odd = sorted(unusual.items(), key=lambda item: (-item[1][0], item[0]))[:_MAX_CHARACTERS]
    longest = int(characters.argmax())
    by_number = pairs([longest, *(first for first, _ in repeated), *(first for _, (_, first) in odd)])
    places = {number: pair.where(side) for number, pair in by_number.items()}
    return SideProfile(
        language=language,
        empty=int((characters == 0).sum()),
        undecodable=int((characters < 0).sum()),
        different=len(different),
        words=_lengths(words, counts.words) if words.any() else None,
        characters=_lengths(characters, counts.characters),
        longest=places[longest] if characters[longest] > 0 else "",
        odd_characters=tuple(
            OddCharacter(character, f"U+{ord(character):04X}", unicodedata.name(character, ""), count, places[first])
            for character, (count, first) in odd
        ),
        num_odd_characters=len(unusual),
        odd_occurrences=sum(count for count, _ in unusual.values()),
        repeated=tuple(
            RepeatedLine(by_number[first].texts[side], count, places[first])
            for first, count in sorted(repeated, key=lambda item: (-item[1], item[0]))
        ),
    )


def _lengths(of_side: Counts, of_both: Counts) -> Lengths:
    """The lengths of a side's lines, in bins of the same width for both sides."""
    lengths = of_side[of_side > 0]
    total = int(lengths.sum())
    bins = length_bins(lengths, bin_width(of_both[of_both > 0]))
    return Lengths(total, total / max(1, len(lengths)), _quantile(lengths, 0.5), int(lengths.max(initial=0)), bins)


def length_bins(lengths: Counts, width: int) -> tuple[Bin, ...]:
    """Count lengths above 0 in bins of a width: 1 to `width` and so on; the last bin has no limit."""
    last = _NUM_BINS - 1
    counts = np.bincount(np.minimum((lengths - 1) // width, last), minlength=_NUM_BINS).tolist()
    return tuple(
        Bin(index * width + 1, (index + 1) * width if index < last else None, count)
        for index, count in enumerate(counts)
    )


def bin_width(lengths: Counts) -> int:
    """A round width with at least 95% of the lengths in the bins that have a limit."""
    min_width = -(-_quantile(lengths, 0.95) // (_NUM_BINS - 1))
    widths: Iterator[int] = (base * 10**power for power in range(10) for base in (1, 2, 3, 4, 5, 6, 8))
    return next(width for width in widths if width >= min_width)


def _quantile(lengths: Counts, share: float) -> int:
    """The smallest length that this share of the lines does not exceed; 0 without lines."""
    return int(np.quantile(lengths, share, method="inverted_cdf")) if len(lengths) else 0


def _duplicates(hashes: Hashes) -> dict[str, int]:
    """Count the pairs that repeat an earlier pair, source or target, by their hashes (2, P)."""
    complete = hashes[:, (hashes != 0).all(axis=0)]
    compared = {"pair": pair_hashes(complete), "source": complete[0], "target": complete[1]}
    return {name: int(np.count_nonzero(times_before(repeated))) for name, repeated in compared.items()}


def _overlap(name: str, test: CorpusFiles, hashes: Hashes, pairs: PairsByNumber) -> Overlap:
    """The overlap of a test set with the corpora, whose sources and targets have these hashes (2, P)."""
    own = sentence_hashes(SentenceIndex([test]).pairs)
    is_shared = np.array([np.isin(lines, of_all) & (lines != 0) for lines, of_all in zip(own, hashes, strict=True)])
    both = np.isin(pair_hashes(own), pair_hashes(hashes)) & (own != 0).all(axis=0)
    shared = np.flatnonzero(is_shared.any(axis=0))[:_MAX_EXAMPLES].tolist()
    sides = [int(is_shared[:, index].argmax()) for index in shared]
    others = [int(np.argmax(hashes[side] == own[side, index])) for index, side in zip(shared, sides, strict=True)]
    test_pairs, corpus_pairs = pairs_at([test], [own.shape[1]], shared), pairs(others)
    examples = tuple(
        SharedPair(test_pairs[index].where(), *test_pairs[index].texts, also=corpus_pairs[other].where())
        for index, other in zip(shared, others, strict=True)
    )
    src, tgt = is_shared.sum(axis=1).tolist()
    return Overlap(name, own.shape[1], src, tgt, int(both.sum()), examples)
