"""The profile of corpora before anyone trains on them: their counts, what cleaning drops, and what is left, written."""

import functools
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.atomic import replacing
from nmt.config.cleaning import CleaningConfig
from nmt.config.corpus import CorpusFiles
from nmt.data.corpus import name_of, raw_pairs
from nmt.data.counts import EXAMPLES, Counted, Profiler, count_text
from nmt.data.profile import (
    CorpusProfile,
    PairExample,
    Profile,
    RuleProfile,
    duplicates,
    overlap,
    ratio_bins,
    side_profiles,
    texts_at,
)
from nmt.data.rules import PAIR_RULES
from nmt.data.selection import RULES, judge_corpora, spread, usual_ratio_of, write_examples
from nmt.data.sentence_index import SentenceIndex
from nmt.data.vectors import count_pairs
from nmt.errors import ConfigError
from nmt.processes import num_processes_for
from nmt.suffixes import without_compression

Verdicts = Sequence[NDArray[np.uint8]]
"""(P,) for each corpus: 0 for a pair that is kept, else 1 + the index of the rule that drops it."""


class Profiled(NamedTuple):
    """Corpora with their profile."""

    corpora: Sequence[CorpusFiles]
    profile: Profile
    verdicts: Verdicts


def profile_corpora(
    corpora: Sequence[CorpusFiles],
    languages: tuple[str, str],
    cleaning: CleaningConfig,
    tests: Mapping[str, CorpusFiles],
    excluded: Sequence[CorpusFiles] = (),
    num_processes: int | None = None,
) -> Profiled:
    """Read the corpora, and count; the number of processes changes nothing but the time.

    The overlap with `tests` is counted; what shares a side with `excluded` is dropped. A line that is not UTF-8 is
    dropped in any case. Raises `DataError` if a file cannot be read, is empty, or if sides differ in length.
    """
    num_pairs = count_pairs(corpora)
    if num_processes is None:
        num_processes = num_processes_for(num_pairs)
    index = SentenceIndex(tests.values())
    usual_ratio = usual_ratio_of(corpora, num_pairs)
    profiler = functools.partial(Profiler, languages, _also_on(cleaning), usual_ratio, index)
    counted = count_text(corpora, profiler, num_processes)
    if counted.counts.src.undecodable or counted.counts.tgt.undecodable:
        cleaning = cleaning.model_copy(update={"encoding": True})  # such lines cannot be kept
    verdicts = judge_corpora(corpora, cleaning, languages, excluded, num_processes=num_processes)
    src, tgt = side_profiles(counted, corpora, *languages)
    kept = [int((one == 0).sum()) for one in verdicts]
    profile = Profile(
        pairs=counted.counts.pairs,
        kept=sum(kept),
        corpora=tuple(map(CorpusProfile, map(name_of, corpora), counted.pairs, kept)),
        rules=_rules(cleaning, counted, corpora, verdicts),
        src=src,
        tgt=tgt,
        ratio=ratio_bins(counted.counts.ratios),
        copies=counted.counts.copies,
        duplicates=duplicates(counted.hashes),
        against=tuple(overlap(name, files, counted.counts.known, corpora) for name, files in tests.items()),
    )
    return Profiled(corpora, profile, verdicts)


def _also_on(cleaning: CleaningConfig) -> CleaningConfig:
    """The rules with those for a single pair on, so that it is seen what each would drop; but for `language`, which
    needs an extra and takes long."""
    usual = CleaningConfig.recommended()
    off = [rule for rule in PAIR_RULES if rule != "language" and not getattr(cleaning, rule)]
    return cleaning.model_copy(update={rule: getattr(usual, rule) or True for rule in off})


def _rules(
    cleaning: CleaningConfig, counted: Counted, corpora: Sequence[CorpusFiles], verdicts: Verdicts
) -> tuple[RuleProfile, ...]:
    """What each rule drops, with examples."""
    dropped = np.bincount(np.concatenate(verdicts), minlength=1 + len(RULES))
    chosen = spread(verdicts, EXAMPLES)
    places = {rule: some or counted.counts.violating.get(rule, []) for rule, some in chosen.items()}
    found = texts_at(corpora, {place for some in places.values() for place in some})
    return tuple(
        RuleProfile(
            rule=rule,
            setting=_setting(cleaning, rule),
            dropped=int(dropped[number]),
            alone=counted.counts.violations[rule] if rule in PAIR_RULES and getattr(_also_on(cleaning), rule) else None,
            examples=tuple(
                PairExample(src.where, src.text, tgt.text) for src, tgt in map(found.__getitem__, places[rule])
            ),
        )
        for number, rule in enumerate(RULES, start=1)
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


def write_cleaned(profiled: Profiled, languages: tuple[str, str], folder: Path) -> list[str]:
    """Write what is left of each corpus as two texts, and cleaning.tsv with examples of what was dropped.

    Returns the names of the texts. The folder is written as a whole.
    """
    check_folder(folder)
    with replacing(folder) as temporary:
        temporary.mkdir()
        names = write_texts(temporary, profiled.corpora, profiled.verdicts, languages)
        write_examples(temporary / "cleaning.tsv", profiled.corpora, profiled.verdicts)
    return names


def write_texts(
    folder: Path, corpora: Sequence[CorpusFiles], verdicts: Verdicts, languages: tuple[str, str]
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
