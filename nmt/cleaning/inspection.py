"""Inspection of the corpora for `nmt init`: pairs, lengths, characters, scripts, order of the sides.

All pairs are counted; everything else comes from an even sample.
"""

import itertools
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nmt.cleaning.normalize import CleaningCounts, normalize
from nmt.cleaning.rules import typical_ratio
from nmt.cleaning.scripts import is_out_of_script, scripts_of
from nmt.cleaning.selection import RULES, Judge, bit, compare_pairs, counts_of, first_violated, rule_table
from nmt.cleaning.sentence_index import Pair, SentenceIndex, comparable, sentence_hashes
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.config.languages import base_language, is_without_spaces, script_of
from nmt.config.source import TEXT
from nmt.corpora.discovery import Corpora
from nmt.corpora.lines import opened
from nmt.corpora.pairs import count_pairs, name_of, reader_of
from nmt.errors import DataError

SAMPLED_PAIRS = 50_000
MAX_UNDECODABLE = 0.01  # share of a side's lines: more means another encoding, fewer are single damaged lines
_MIN_OWN_SCRIPT = 0.3  # share of the lines
_MIN_SHARED_SCRIPT = 0.5
_MIN_SWAPPED = 0.05

# Letters that are frequent in one language and rare in most others, for two languages in one script.
_OWN_LETTERS = {
    "cs": "ěřůčžš", "da": "æøå", "de": "äöüß", "es": "ñáéíóú", "et": "õäöü", "fi": "äö", "fr": "éèêàçù", "hr": "čćžšđ",
    "hu": "őűáéö", "is": "ðþæ", "it": "èàùòì", "lt": "ėųįčž", "lv": "āēīļņ", "nb": "æøå", "no": "æøå", "pl": "ąęłżśćń",
    "pt": "ãõçáé", "ro": "ăâîșț", "sk": "ľĺčžáť",
    "sl": "čžš", "sv": "åäö", "tr": "ığşçö", "uk": "іїєґ", "vi": "ạảấầđơư",
    "ru": "ыэъё", "bg": "ъ", "sr": "јљњћђ",
}  # fmt: skip


class SideFacts(NamedTuple):
    """Facts about one side of the sample."""

    language: str
    characters: Counter[str]
    words: frozenset[str]
    """Separated by white space."""
    longest: int
    """The 99.9th percentile of line lengths, in characters."""
    own_script: float
    """Share of the lines with letters that have a letter of the language's script; 1.0 for an unknown script."""
    other_script: float
    """The same for the script of the other side's language; 0.0 for an unknown script."""


class Inspection(NamedTuple):
    """Facts about the training corpora."""

    pairs: int
    src: SideFacts
    tgt: SideFacts
    sample: tuple[tuple[str, str], ...]
    """At most `SAMPLED_PAIRS` pairs, drawn evenly, normalized, neither side empty."""
    counts: CleaningCounts
    """The pairs that were drawn, and those that the recommended rules drop."""
    shares: dict[str, float]
    """The share of these pairs that each rule about a single pair would drop by itself."""

    @property
    def share_a_script(self) -> bool:
        """True if most lines of each side have letters of the other side's scripts."""
        src, tgt = self.src, self.tgt
        known = [side.other_script for side, other in ((src, tgt), (tgt, src)) if scripts_of(other.language)]
        if known:
            return all(share > _MIN_SHARED_SCRIPT for share in known)
        return script_of(src.language) == script_of(tgt.language)


def inspect(corpora: Corpora, tests: Sequence[CorpusFiles] = ()) -> Inspection:
    """Inspect the corpora.

    Raises `DataError` as `count_pairs` does, and if they are not in UTF-8, not in the scripts of their languages, or if
    their sides are swapped.
    """
    for files in corpora.files:
        _check_is_not_utf16(files)
    num_pairs = count_pairs(corpora.files)
    drawn = [pair for files in corpora.files for pair in _drawn(files, -(-num_pairs // SAMPLED_PAIRS))]
    sample = tuple(pair for pair in drawn if all(comparable(pair)))
    if not sample:
        raise DataError(f"{corpora.files[0].src_file}: holds no pair with text on both sides; name another corpus")
    languages = corpora.src_lang, corpora.tgt_lang
    judge = Judge(CleaningConfig.recommended(), languages, typical_ratio(sample), SentenceIndex(tests), TEXT)
    violations = judge.violations(drawn)
    verdicts = first_violated(violations)
    kept = itertools.compress(drawn, (verdicts == 0).tolist())
    compare_pairs(verdicts, sentence_hashes(kept), judge.cleaning)
    inspection = Inspection(
        pairs=num_pairs,
        src=_facts([src for src, _ in sample], corpora.src_lang, corpora.tgt_lang),
        tgt=_facts([tgt for _, tgt in sample], corpora.tgt_lang, corpora.src_lang),
        sample=sample,
        counts=counts_of(verdicts),
        shares={rule: float((violations & bit(rule) != 0).mean()) for rule in RULES},
    )
    _check_languages(inspection, corpora)
    return inspection


def _drawn(files: CorpusFiles, step: int) -> list[Pair]:
    """Every `step`-th pair of a corpus, normalized; `DataError` if a side is not in UTF-8."""
    reader = reader_of(files)
    raw = itertools.islice(reader.raw_pairs(), 0, None, step)
    sides = [[normalize(line.decode(errors="surrogateescape")) for line in side] for side in zip(*raw, strict=True)]
    places = (reader.src_name, files.src_file), (reader.tgt_name, files.tgt_file)
    for lines, (name, path) in zip(sides, places, strict=True):
        damaged = [number for number, line in enumerate(comparable(lines)) if line is None]
        if len(damaged) > MAX_UNDECODABLE * len(lines):
            (place,) = reader.places([damaged[0] * step + 1])
            raise DataError(
                f"{name}:{place}: not UTF-8, like {len(damaged):,} of {len(lines):,} lines; if it is "
                f"Latin-1: {_conversion(path, 'LATIN1')}"
            )
    return list(zip(*sides, strict=True))


def _check_is_not_utf16(files: CorpusFiles) -> None:
    """Raise `DataError` for a text in UTF-16, whose lines end elsewhere than those of UTF-8."""
    for path in (files.src, files.tgt):
        if path is None:
            continue
        with opened(path) as file:
            if b"\0" in file.readline(1 << 16):
                raise DataError(f"{path}:1: not UTF-8, and probably UTF-16: {_conversion(path, 'UTF-16')}")


def _conversion(path: Path, encoding: str) -> str:
    """The command that converts a text to UTF-8, in a file with the language at the end of its name."""
    to = path.with_name(f"{path.stem}.utf8{path.suffix}")
    return f"iconv -f {encoding} -t UTF-8 {shlex.quote(str(path))} > {shlex.quote(str(to))}"


def _facts(lines: Sequence[str], language: str, other: str) -> SideFacts:
    characters = Counter(itertools.chain.from_iterable(lines))
    letters = {character for character in characters if character.isalpha()}
    return SideFacts(
        language=language,
        characters=characters,
        words=frozenset(word for line in lines for word in line.split()),
        longest=sorted(map(len, lines))[int(0.999 * len(lines))],
        own_script=_share_in_script(lines, letters, scripts_of(language), 1.0),
        other_script=_share_in_script(lines, letters, scripts_of(other), 0.0),
    )


def _share_in_script(lines: Sequence[str], letters: set[str], scripts: frozenset[str], unknown: float) -> float:
    """The share of the lines with letters that have a letter of the scripts; `unknown` without scripts.

    It is a share of lines, not of letters: a name in another script may be longer than the rest of a Chinese line.
    """
    own = {letter for letter in letters if not is_out_of_script(letter, scripts)}
    total = sum(not letters.isdisjoint(line) for line in lines)
    if not scripts or not total:
        return unknown
    return sum(not own.isdisjoint(line) for line in lines) / total


def _check_languages(inspection: Inspection, corpora: Corpora) -> None:
    """Raise `DataError` if the sides are swapped, or not in the scripts of their languages."""
    src, tgt = inspection.src, inspection.tgt
    name = name_of(corpora.files[0])
    by_scripts = all(side.own_script < side.other_script / 2 for side in (src, tgt))
    if by_scripts or _are_letters_swapped(inspection):
        raise DataError(
            f"{name}: by {'scripts' if by_scripts else 'letters'}, the source text is in {tgt.language} "
            f"and the target text in {src.language}; swap the two texts, or --src-lang and --tgt-lang"
        )
    for side, option in ((src, "--src-lang"), (tgt, "--tgt-lang")):
        if side.own_script < _MIN_OWN_SCRIPT:
            raise DataError(
                f"{name}: {1 - side.own_script:.0%} of the lines on the side of {side.language} have no letter of its "
                f"script ({script_of(side.language)}); give the right language with {option}, with its script if it "
                "has several (sr-Latn)"
            )


def _are_letters_swapped(inspection: Inspection) -> bool:
    """True if each side has the letters that are typical of the other side's language, and not of its own."""
    of_src, of_tgt = (_OWN_LETTERS.get(base_language(side.language), "") for side in (inspection.src, inspection.tgt))

    def share(side: int, letters: str, others: str) -> float:
        """The share of a side's lines with letters of one language that the other does not have."""
        own = set(letters) - set(others)
        return sum(not own.isdisjoint(pair[side].lower()) for pair in inspection.sample) / len(inspection.sample)

    straight = share(0, of_src, of_tgt) + share(1, of_tgt, of_src)
    swapped = share(0, of_tgt, of_src) + share(1, of_src, of_tgt)
    return swapped > _MIN_SWAPPED and swapped > 5 * straight


def describe(inspection: Inspection) -> Iterator[str]:
    """Yield the lines that describe the corpora to the user."""
    src, tgt, sampled = inspection.src, inspection.tgt, inspection.counts.read
    of_sample = "" if sampled == inspection.pairs else f"; from an even sample of {sampled:,}:"
    yield f"{src.language} to {tgt.language}: {inspection.pairs:,} pairs{of_sample}"
    for side in (src, tgt):
        words = "without spaces" if is_without_spaces(side.language) else f"{len(side.words):,} different words"
        yield (
            f"  {side.language}: {words}, {len(side.characters):,} different characters, lines of up to "
            f"{side.longest:,} characters"
        )
    if rules := rule_table(inspection.counts):
        yield "  the recommended rules of data.cleaning drop:"
        yield from (f"    {line}" for line in rules)
