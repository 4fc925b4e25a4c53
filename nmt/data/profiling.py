"""The profile of corpora before anyone trains on them: their counts, what cleaning drops, and what is left, written."""

import functools
import unicodedata
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from nmt.atomic import replacing
from nmt.config.cleaning import CleaningConfig
from nmt.config.corpus import CorpusFiles
from nmt.config.source import TEXT
from nmt.data.corpus import Block, name_of, raw_pairs
from nmt.data.profile import (
    RATIO_EDGES,
    CorpusProfile,
    Counted,
    Odd,
    PairExample,
    Pairs,
    Profile,
    RuleProfile,
    duplicates,
    overlap,
    ratio_bins,
    side_profile,
)
from nmt.data.rules import PAIR_RULES, length_of
from nmt.data.scripts import is_out_of_script, scripts_of
from nmt.data.selection import (
    RULES,
    Judge,
    Verdicts,
    Violations,
    bit,
    compare_pairs,
    first_violated,
    look_at,
    pairs_at,
    spread,
    write_examples,
)
from nmt.data.sentence_index import comparable, normalized_pairs, sentence_hashes
from nmt.errors import ConfigError
from nmt.languages import is_without_spaces
from nmt.suffixes import without_compression

EXAMPLES = 3
"""Pairs that are shown for each rule."""


def _count(judge: Judge, block: Block) -> Counted:
    pairs = normalized_pairs(block, TEXT, judge.files, strict=False)
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
        for character in filter(lambda one: _is_unusual(one, scripts), set(text))
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
    num_processes: int | None = None,
) -> tuple[Profile, list[Verdicts]]:
    """Read the corpora, and count; the number of processes changes nothing but the time.

    The overlap with `tests` is counted; what shares a side with `excluded` is dropped. A line that is not UTF-8 is
    dropped in any case. Raises `DataError` if a file cannot be read, is empty, or if sides differ in length.
    """
    sizes, blocks = look_at(_count, corpora, _also_on(cleaning), languages, excluded, TEXT, num_processes)
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
    profile = Profile(
        pairs=sum(sizes),
        kept=sum(kept),
        corpora=tuple(map(CorpusProfile, map(name_of, corpora), sizes, kept)),
        rules=_rules(cleaning, counted.violations, verdicts, pairs),
        src=side_profile(0, languages[0], counted, pairs),
        tgt=side_profile(1, languages[1], counted, pairs),
        ratio=ratio_bins(counted.ratios),
        copies=int(((src == tgt) & (src != 0)).sum()),
        duplicates=duplicates(counted.hashes),
        against=tuple(overlap(name, files, counted.hashes, pairs) for name, files in tests.items()),
    )
    return profile, of_corpora


def _also_on(cleaning: CleaningConfig) -> CleaningConfig:
    """The rules with those for a single pair on, so that it is seen what each would drop; but for `language`, which
    needs an extra and takes long."""
    usual = CleaningConfig.recommended()
    off = [rule for rule in PAIR_RULES if rule != "language" and not getattr(cleaning, rule)]
    return cleaning.model_copy(update={rule: getattr(usual, rule) or True for rule in off})


def _rules(
    cleaning: CleaningConfig, violations: Violations, verdicts: Verdicts, pairs: Callable[[Iterable[int]], Pairs]
) -> tuple[RuleProfile, ...]:
    """What each rule drops, with examples; of one that drops nothing, of what violates it."""
    dropped = {rule: verdicts == number for number, rule in enumerate(RULES, start=1)}
    violating = {rule: violations & bit(rule) != 0 for rule in RULES}
    shown = {rule: spread(some if some.any() else violating[rule], EXAMPLES) for rule, some in dropped.items()}
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


def check_folder(folder: Path) -> None:
    """`ConfigError` if `write_cleaned` cannot write there."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"--write {folder}: exists already, and nothing is overwritten; name a new folder")


def write_cleaned(
    corpora: Sequence[CorpusFiles], verdicts: Sequence[Verdicts], languages: tuple[str, str], folder: Path
) -> list[str]:
    """Write what is left of each corpus as two texts, and cleaning.tsv with examples of what was dropped.

    Returns the names of the texts. The folder is written as a whole.
    """
    check_folder(folder)
    with replacing(folder) as temporary:
        temporary.mkdir()
        names = write_texts(temporary, corpora, verdicts, languages)
        write_examples(temporary / "cleaning.tsv", corpora, verdicts)
    return names


def write_texts(
    folder: Path, corpora: Sequence[CorpusFiles], verdicts: Sequence[Verdicts], languages: tuple[str, str]
) -> list[str]:
    """Write the pairs of each corpus that are kept as two texts, named by `cleaned_names`; returns the names."""
    names = cleaned_names(corpora, languages)
    for files, of_corpus, pair in zip(corpora, verdicts, names, strict=True):
        with (folder / pair[0]).open("wb") as src_file, (folder / pair[1]).open("wb") as tgt_file:
            for verdict, (src, tgt) in zip(of_corpus.tolist(), raw_pairs(files), strict=True):
                if verdict == 0:
                    src_file.write(_plain(src))
                    tgt_file.write(_plain(tgt))
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
