"""The profile of a corpus: lengths, repetitions, characters, overlap with test text, and what each rule drops.

The corpora are read once, in blocks, by worker processes. Everything is made of arrays about all pairs.
"""

import dataclasses
import functools
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.cleaning.rules import PAIR_RULES, length_of
from nmt.cleaning.scripts import is_out_of_script, scripts_of
from nmt.cleaning.selection import (
    RULES,
    Judge,
    PairAt,
    Verdicts,
    Violations,
    bit,
    compare_pairs,
    first_violated,
    look_at,
    pairs_at,
    spread,
)
from nmt.cleaning.sentence_index import (
    Hashes,
    SentenceIndex,
    comparable,
    normalized_pairs,
    pair_hashes,
    sentence_hashes,
    times_before,
)
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.config.languages import is_without_spaces
from nmt.config.source import TEXT
from nmt.corpora.pairs import Block, name_of

RATIO_EDGES = (
    0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0
)  # fmt: skip
"""Where the bins of the length ratio begin, but for the first, which begins at 0."""

_NUM_BINS = 9  # of lengths: eight of the same width, and one for what is longer
_SHOWN = 10  # characters, at most
_REPEATED = 5  # lines, at most
_EXAMPLES = 3  # pairs of each rule and test set, at most

Counts = NDArray[np.int32]
Pairs = Mapping[int, PairAt]
Odd = dict[str, tuple[int, int]]
"""How often each unusual character occurs, and the index of the first pair with it."""


@dataclasses.dataclass(frozen=True)
class Bin:
    """How many lie between two limits."""

    low: float
    high: float | None
    """Of lengths, the largest one; of ratios, the limit, which lies in the next bin. None: no limit."""
    count: int


@dataclasses.dataclass(frozen=True)
class Lengths:
    """The lengths of one side's lines, without those that are empty or undecodable."""

    total: int
    mean: float
    median: int
    longest: int
    bins: tuple[Bin, ...]


@dataclasses.dataclass(frozen=True)
class PairExample:
    """A pair, and where it is."""

    where: str
    """The file and the number of the line; of a TMX, of the unit."""
    src: str
    tgt: str


@dataclasses.dataclass(frozen=True)
class OddCharacter:
    """A character that the language is not written with."""

    character: str
    code_point: str
    """`U+0430`"""
    name: str
    """Unicode's; '' for one without."""
    count: int
    where: str
    """Where it is first."""


@dataclasses.dataclass(frozen=True)
class Repeated:
    """A line that occurs several times."""

    text: str
    count: int
    where: str
    """Where it is first."""


@dataclasses.dataclass(frozen=True)
class SideProfile:
    """One side of the corpora."""

    language: str
    empty: int
    undecodable: int
    """Lines that are not UTF-8, or hold a NUL. They are in none of the other figures."""
    different: int
    """Number of different lines, without the empty ones."""
    words: Lengths | None
    """None for a language that is written without spaces."""
    characters: Lengths
    longest: str
    """Where the longest line is first."""
    odd_characters: tuple[OddCharacter, ...]
    """The most frequent ones."""
    num_odd_characters: int
    """How many different ones there are."""
    odd_occurrences: int
    """How often they occur, all together."""
    repeated: tuple[Repeated, ...]
    """The most frequent lines."""


@dataclasses.dataclass(frozen=True)
class Shared(PairExample):
    """A pair of a test set that shares a side with a pair of the corpora."""

    also: str
    """Where the other is in the corpora."""


@dataclasses.dataclass(frozen=True)
class Overlap:
    """How much of a test set is in the corpora."""

    name: str
    pairs: int
    src: int
    """Pairs whose source is a source there."""
    tgt: int
    """Pairs whose target is a target there."""
    both: int
    """Pairs that are a pair there."""
    examples: tuple[Shared, ...]
    """Some of the pairs that share either side."""


@dataclasses.dataclass(frozen=True)
class RuleProfile:
    """What one rule of `data.cleaning` drops."""

    rule: str
    setting: str
    """Its value in the configuration, as YAML."""
    dropped: int
    """Pairs that it drops and no rule before it does."""
    alone: int | None
    """Pairs that it would drop if it were the only rule, or that it would drop if it were on. None for rules that
    compare pairs with each other."""
    examples: tuple[PairExample, ...]


@dataclasses.dataclass(frozen=True)
class CorpusProfile:
    """One of the corpora."""

    name: str
    pairs: int
    kept: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """What some corpora are made of."""

    pairs: int
    kept: int
    """Pairs that no rule drops."""
    corpora: tuple[CorpusProfile, ...]
    rules: tuple[RuleProfile, ...]
    """In the order in which they are applied."""
    src: SideProfile
    tgt: SideProfile
    ratio: tuple[Bin, ...]
    """Complete pairs by the characters of the target for each of the source."""
    copies: int
    """Pairs with identical sides."""
    duplicates: dict[str, int]
    """Pairs that repeat an earlier `pair`, `source` or `target`; those with a line that is empty or undecodable are not
    counted."""
    against: tuple[Overlap, ...]
    """The overlap with each test set."""


class Counted(NamedTuple):
    """Counts of P pairs: those of a block, or all."""

    violations: Violations
    """(P,)"""
    hashes: Hashes
    """(2, P) of the sources and of the targets; 0 for a line that is empty or undecodable."""
    characters: Counts
    """(2, P) of each line, normalized; -1 for one that is undecodable, whose text is counted nowhere else."""
    words: Counts
    """(2, P); 0 for a language without spaces."""
    ratios: NDArray[np.uint8]
    """The bin of `RATIO_EDGES` of each complete pair: the target's length divided by the source's."""
    odd: tuple[Odd, Odd]
    """Of each side."""

    @classmethod
    def together(cls, blocks: Sequence["Counted"]) -> "Counted":
        """The counts of all blocks."""
        all_odd: tuple[Odd, Odd] = {}, {}
        begin = 0
        for block in blocks:
            for odd, of_block in zip(all_odd, block.odd, strict=True):
                for character, (count, index) in of_block.items():
                    before, first = odd.get(character, (0, begin + index))
                    odd[character] = before + count, first
            begin += len(block.violations)
        columns = list(zip(*blocks, strict=True))[:-1]
        violations, hashes, characters, words, ratios = (np.concatenate(parts, axis=-1) for parts in columns)
        return cls(violations, hashes, characters, words, ratios, all_odd)


def _count(judge: Judge, block: Block) -> Counted:
    pairs = normalized_pairs(block, TEXT, strict=False)
    src, tgt = sides = [comparable(lines) for lines in zip(*pairs, strict=True)]
    complete = [(one, other) for one, other in zip(src, tgt, strict=True) if one and other]
    ratios = [length_of(other) / max(1, length_of(one)) for one, other in complete]
    return Counted(
        violations=judge.violations(pairs),
        hashes=sentence_hashes(zip(src, tgt, strict=True)),
        characters=np.array([[-1 if line is None else len(line) for line in side] for side in sides], np.int32),
        words=np.array(list(map(_num_words, sides, judge.languages)), np.int32),
        ratios=np.searchsorted(RATIO_EDGES, ratios, side="right").astype(np.uint8),
        odd=(_odd(src, judge.languages[0]), _odd(tgt, judge.languages[1])),
    )


def _num_words(lines: Sequence[str | None], language: str) -> list[int]:
    if is_without_spaces(language):
        return [0] * len(lines)
    return [len((line or "").split()) for line in lines]


def _odd(lines: Sequence[str | None], language: str) -> Odd:
    """The characters of the lines that text in the language hardly has."""
    text, scripts = "".join(line or "" for line in lines), scripts_of(language)
    return {
        character: (text.count(character), next(index for index, line in enumerate(lines) if character in (line or "")))
        for character in set(text)
        if _is_unusual(character, scripts)
    }


@functools.cache
def _is_unusual(character: str, scripts: frozenset[str]) -> bool:
    """Whether text in these scripts hardly has this character.

    That is a letter of another script, a control character, one for private use or without a meaning in Unicode, and
    U+FFFD, which stands where a program could not decode something.
    """
    is_meaningless = unicodedata.category(character) in ("Cc", "Co", "Cn") or character == "\ufffd"
    return is_meaningless or is_out_of_script(character, scripts)


def profile_corpora(
    corpora: Sequence[CorpusFiles],
    languages: tuple[str, str],
    cleaning: CleaningConfig,
    tests: Mapping[str, CorpusFiles],
    excluded: Sequence[CorpusFiles] = (),
) -> tuple[Profile, list[Verdicts]]:
    """Read the corpora, and count.

    The overlap with `tests` is counted; what shares a side with `excluded` is dropped. A line that is not UTF-8 is
    dropped in any case. Raises `DataError` if a file cannot be read, is empty, or if sides differ in length.
    """
    sizes, blocks = look_at(_count, corpora, _also_on(cleaning), languages, excluded)
    counted = Counted.together(blocks)
    if (counted.characters < 0).any():
        cleaning = cleaning.model_copy(update={"encoding": True})  # such lines cannot be kept
    on = [rule for rule in RULES if rule not in PAIR_RULES or getattr(cleaning, rule)]
    verdicts = first_violated(counted.violations, on)
    compare_pairs(verdicts, counted.hashes[:, verdicts == 0], cleaning)
    of_corpora = np.split(verdicts, np.cumsum(sizes)[:-1])
    kept = [int((one == 0).sum()) for one in of_corpora]
    pairs = functools.partial(pairs_at, corpora, sizes)
    src, tgt = counted.hashes
    ratios = np.bincount(counted.ratios, minlength=len(RATIO_EDGES) + 1)
    profile = Profile(
        pairs=sum(sizes),
        kept=sum(kept),
        corpora=tuple(map(CorpusProfile, map(name_of, corpora), sizes, kept)),
        rules=_rules(cleaning, counted.violations, verdicts, pairs),
        src=_side(0, languages[0], counted, pairs),
        tgt=_side(1, languages[1], counted, pairs),
        ratio=tuple(map(Bin, (0.0, *RATIO_EDGES), (*RATIO_EDGES, None), ratios.tolist())),
        copies=int(((src == tgt) & (src != 0)).sum()),
        duplicates=_duplicates(counted.hashes),
        against=tuple(_overlap(name, files, counted.hashes, pairs) for name, files in tests.items()),
    )
    return profile, of_corpora


def _also_on(cleaning: CleaningConfig) -> CleaningConfig:
    """The rules with those for a single pair on, so that it is seen what each would drop; but for `language`, which
    needs an extra and takes long."""
    usual = CleaningConfig.recommended()
    off = [rule for rule in PAIR_RULES if rule != "language" and not getattr(cleaning, rule)]
    return cleaning.model_copy(update={rule: getattr(usual, rule) or True for rule in off})


def _rules(
    cleaning: CleaningConfig, violations: Violations, verdicts: Verdicts, pairs: Callable[[Collection[int]], Pairs]
) -> tuple[RuleProfile, ...]:
    """What each rule drops, with examples; of one that drops nothing, of what violates it."""
    dropped = {rule: verdicts == number for number, rule in enumerate(RULES, start=1)}
    violating = {rule: violations & bit(rule) != 0 for rule in RULES}
    shown = {rule: spread(some if some.any() else violating[rule], _EXAMPLES) for rule, some in dropped.items()}
    found = pairs({index for some in shown.values() for index in some})
    judged = [rule for rule in PAIR_RULES if getattr(_also_on(cleaning), rule)]
    return tuple(
        RuleProfile(
            rule=rule,
            setting=_setting(cleaning, rule),
            dropped=int(dropped[rule].sum()),
            alone=int(violating[rule].sum()) if rule in judged else None,
            examples=tuple(PairExample(pair.where(), *pair.texts) for pair in map(found.__getitem__, shown[rule])),
        )
        for rule in RULES
    )


def _setting(cleaning: CleaningConfig, rule: str) -> str:
    """A rule's value in the configuration, as YAML."""
    if rule == "empty":
        return "always"
    value = getattr(cleaning, rule)
    return str(value).lower() if value else "off"


def _side(side: int, language: str, counted: Counted, pairs: Callable[[Collection[int]], Pairs]) -> SideProfile:
    """The report on a side: 0 for the source, 1 for the target."""
    hashes, characters, words = counted.hashes[side], counted.characters[side], counted.words[side]
    different, counts = np.unique(hashes[hashes != 0], return_counts=True)
    most = np.argsort(-counts, kind="stable")[:_REPEATED]
    repeated = [(int(np.argmax(hashes == different[at])), int(counts[at])) for at in most if counts[at] > 1]
    odd = sorted(counted.odd[side].items(), key=lambda one: (-one[1][0], one[0]))[:_SHOWN]
    longest = int(characters.argmax())
    found = pairs([longest, *(first for first, _ in repeated), *(first for _, (_, first) in odd)])
    return SideProfile(
        language=language,
        empty=int((characters == 0).sum()),
        undecodable=int((characters < 0).sum()),
        different=len(different),
        words=_lengths(words, counted.words) if words.any() else None,
        characters=_lengths(characters, counted.characters),
        longest=found[longest].where(side) if characters[longest] > 0 else "",
        odd_characters=tuple(
            OddCharacter(
                character, f"U+{ord(character):04X}", unicodedata.name(character, ""), count, found[first].where(side)
            )
            for character, (count, first) in odd
        ),
        num_odd_characters=len(counted.odd[side]),
        odd_occurrences=sum(count for count, _ in counted.odd[side].values()),
        repeated=tuple(
            Repeated(found[first].texts[side], count, found[first].where(side))
            for first, count in sorted(repeated, key=lambda one: (-one[1], one[0]))
        ),
    )


def _lengths(of_side: Counts, of_both: Counts) -> Lengths:
    """The lengths of a side's lines, in bins that suit both sides."""
    lengths = of_side[of_side > 0]
    total = int(lengths.sum())
    bins = length_bins(lengths, bin_width(of_both[of_both > 0]))
    return Lengths(total, total / max(1, len(lengths)), _quantile(lengths, 0.5), int(lengths.max(initial=0)), bins)


def length_bins(lengths: Counts, width: int) -> tuple[Bin, ...]:
    """Lengths above 0 in bins of a width: 1 to `width` and so on; the last one has no limit."""
    last = _NUM_BINS - 1
    counts = np.bincount(np.minimum((lengths - 1) // width, last), minlength=_NUM_BINS).tolist()
    return tuple(
        Bin(index * width + 1, (index + 1) * width if index < last else None, count)
        for index, count in enumerate(counts)
    )


def bin_width(lengths: Counts) -> int:
    """A round width such that 95% of the lengths are in the bins that have a limit."""
    wide = -(-_quantile(lengths, 0.95) // (_NUM_BINS - 1))
    steps: Iterator[int] = (base * 10**power for power in range(10) for base in (1, 2, 3, 4, 5, 6, 8))
    return next(step for step in steps if step >= wide)


def _quantile(lengths: Counts, share: float) -> int:
    """The smallest length that this share of the lines has at most; 0 for no lines."""
    return int(np.quantile(lengths, share, method="inverted_cdf")) if len(lengths) else 0


def _duplicates(hashes: Hashes) -> dict[str, int]:
    """How many of the pairs with these hashes, (2, P), repeat an earlier one."""
    complete = hashes[:, (hashes != 0).all(axis=0)]
    compared = {"pair": pair_hashes(complete), "source": complete[0], "target": complete[1]}
    return {name: int(np.count_nonzero(times_before(one))) for name, one in compared.items()}


def _overlap(name: str, test: CorpusFiles, hashes: Hashes, pairs: Callable[[Collection[int]], Pairs]) -> Overlap:
    """How much of a test set is in the corpora, whose sources and targets have these hashes, (2, P)."""
    own = sentence_hashes(SentenceIndex([test]).pairs)
    known = np.array([np.isin(one, of_all) & (one != 0) for one, of_all in zip(own, hashes, strict=True)])
    both = np.isin(pair_hashes(own), pair_hashes(hashes)) & (own != 0).all(axis=0)
    shared = np.flatnonzero(known.any(axis=0))[:_EXAMPLES].tolist()
    sides = [int(known[:, index].argmax()) for index in shared]
    others = [int(np.argmax(hashes[side] == own[side, index])) for index, side in zip(shared, sides, strict=True)]
    here, there = pairs_at([test], [own.shape[1]], shared), pairs(others)
    examples = tuple(
        Shared(here[index].where(), *here[index].texts, also=there[other].where())
        for index, other in zip(shared, others, strict=True)
    )
    src, tgt = known.sum(axis=1).tolist()
    return Overlap(name, own.shape[1], src, tgt, int(both.sum()), examples)
