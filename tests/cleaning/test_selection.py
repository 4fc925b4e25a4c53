"""Selection of training pairs, compared with loops over the text and Python's sets."""

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import nmt.cleaning.selection
import nmt.corpora.pairs
from nmt.batches.dataset import encode_corpus
from nmt.cleaning.normalize import normalize
from nmt.cleaning.selection import MAX_EXAMPLES, RULES, Selection, judge_corpora, rule_table, select, write_examples
from nmt.config.corpus import CorpusFiles
from nmt.config.data import CleaningConfig
from nmt.config.inference import TokenizerConfig
from nmt.corpora.hashes import CACHE, prune_cache
from nmt.corpora.pairs import read_pairs
from nmt.errors import DataError
from nmt.system.files import building
from nmt.tokenizers.building import ensure_tokenizers

WriteLines = Callable[[str, list[str]], Path]
LANGUAGES = ("en", "de")


@pytest.fixture(autouse=True)
def _small_blocks_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nmt.corpora.pairs, "BLOCK_PAIRS", 7)


@pytest.fixture
def corpora(write_lines: WriteLines) -> list[CorpusFiles]:
    """Two corpora of short lines, many of them repeated, some empty."""
    draws = random.Random(1)
    found = []
    for name, count in (("a", 120), ("b", 75)):
        lines = [[f"{side} {int(draws.expovariate(0.07))}" for _ in range(count)] for side in ("word", "Wort")]
        for side in lines:
            for index in range(3, count, 29):
                side[index] = draws.choice(["", "  ", "\u3000"])
            side[5] = f"  {side[4]} "
        found.append(CorpusFiles(src=write_lines(f"{name}.en", lines[0]), tgt=write_lines(f"{name}.de", lines[1])))
    return found


def rules_of(selection: Selection) -> list[list[str]]:
    return [["" if not verdict else RULES[verdict - 1] for verdict in one] for one in selection.verdicts]


def by_a_loop(corpora: list[CorpusFiles], cleaning: CleaningConfig, excluded: list[CorpusFiles]) -> list[list[str]]:
    """The rules for pairs that are compared with others, with sets and counters."""
    out = {normalize(line) for files in excluded for line, _ in read_pairs(files)} - {""}
    out_of_targets = {normalize(line) for files in excluded for _, line in read_pairs(files)} - {""}
    pairs: set[tuple[str, str]] = set()
    sources: Counter[str] = Counter()
    targets: Counter[str] = Counter()
    found = []
    for files in corpora:
        rules = []
        for pair in read_pairs(files):
            src, tgt = map(normalize, pair)
            if not (src and tgt):
                rules.append("empty")
                continue
            if src in out or tgt in out_of_targets:
                rules.append("overlap")
                continue
            repeated = {
                None: False, "pair": (src, tgt) in pairs, "source": src in sources, "target": tgt in targets,
                "either": src in sources or tgt in targets,
            }  # fmt: skip
            at_most = cleaning.max_repeats or 10**9
            often = sources[src] >= at_most or targets[tgt] >= at_most
            rules.append("duplicates" if repeated[cleaning.duplicates] else "max_repeats" if often else "")
            pairs.add((src, tgt))
            sources[src] += 1
            targets[tgt] += 1
        found.append(rules)
    return found


def test_rules_that_leave_nothing_are_named_before_the_vocabulary(write_lines: WriteLines) -> None:
    files = CorpusFiles(src=write_lines("t.en", ["same", "same", ""]), tgt=write_lines("t.de", ["same", "same", "x"]))
    for _ in range(2):  # also with the verdicts from the cache
        with pytest.raises(
            DataError, match=r"t\.en: no pair is left of 3: 1 have an empty side, 2 .*cleaning.identical"
        ):
            select([files], CleaningConfig(identical=True), LANGUAGES)


def test_a_dictionary_says_little_of_the_typical_ratio_of_sentences(write_lines: WriteLines) -> None:
    dictionary = [(f"word{number}", "a noun, explained at length with an example or two") for number in range(10500)]
    sentences = [
        (f"A sentence of the corpus, number {number}.", f"Satz des Korpus: {number}.") for number in range(2600)
    ]
    wrong = ("No.", "This is the translation of another sentence, which is longer than ten characters by far.")
    for whole in (False, True):
        texts = [[*dictionary, *sentences, wrong]] if whole else [dictionary, [*sentences, wrong]]
        files = [
            CorpusFiles(src=write_lines(f"{number}.en", list(src)), tgt=write_lines(f"{number}.de", list(tgt)))
            for number, pairs in enumerate(texts)
            for src, tgt in [zip(*pairs, strict=True)]
        ]
        selection = select(files, CleaningConfig(length_ratio=4), LANGUAGES)
        assert selection is not None
        verdicts = [rule for one in rules_of(selection) for rule in one]
        assert verdicts[len(dictionary) :] == [""] * len(sentences) + ["length_ratio"]


@pytest.mark.parametrize("with_excluded", [False, True])
@pytest.mark.parametrize(
    ("cleaning", "number"),
    [
        (CleaningConfig(duplicates="pair"), 0), (CleaningConfig(duplicates="source"), 0),
        (CleaningConfig(duplicates="target"), 0), (CleaningConfig(duplicates="either", max_repeats=1), 0),
        (CleaningConfig(max_repeats=3), 0), (CleaningConfig(duplicates="pair", max_repeats=2), 2),
    ],
)  # fmt: skip
def test_repeated_and_excluded_pairs_agree_with_sets(
    corpora: list[CorpusFiles],
    write_lines: WriteLines,
    cleaning: CleaningConfig,
    with_excluded: bool,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nmt.cleaning.selection, "num_processes_for", lambda pairs: number)
    test = CorpusFiles(src=write_lines("t.en", ["word 1", "", "x"]), tgt=write_lines("t.de", ["y", "Wort 2", ""]))
    excluded = [test] if with_excluded else []
    verdicts = tuple(judge_corpora(corpora, cleaning, LANGUAGES, excluded))
    expected = by_a_loop(corpora, cleaning, excluded)
    assert rules_of(Selection("", verdicts)) == expected
    assert len({rule for of_corpus in expected for rule in of_corpus}) >= 3


def test_a_selection_is_read_before_the_cache_can_be_emptied(
    corpora: list[CorpusFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def emptied_after(folder: Path) -> Iterator[Path | None]:
        with building(folder) as temporary:
            yield temporary
        prune_cache()

    monkeypatch.setattr(nmt.cleaning.selection, "building", emptied_after)
    assert select(corpora, CleaningConfig(duplicates="pair"), LANGUAGES) is not None


def test_a_selection_is_made_once_and_depends_on_all_that_it_reads(
    corpora: list[CorpusFiles],
    monkeypatch: pytest.MonkeyPatch,
    write_lines: WriteLines,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert select(corpora, CleaningConfig(), LANGUAGES) is None
    cleaning = CleaningConfig(duplicates="pair")
    first = select(corpora, cleaning, LANGUAGES)
    again = select(corpora, cleaning, LANGUAGES)
    assert first is not None
    assert again is not None
    assert capsys.readouterr().err.splitlines() == ["applying data.cleaning"]
    assert rules_of(first) == rules_of(again)
    test = CorpusFiles(src=write_lines("t.en", ["word 1"]), tgt=write_lines("t.de", ["y"]))
    others = [
        select(corpora, CleaningConfig(duplicates="source"), LANGUAGES), select(corpora[:1], cleaning, LANGUAGES),
        select(corpora, cleaning, ("en", "fr")), select(corpora, cleaning, LANGUAGES, [test]),
        select(corpora, CleaningConfig(), LANGUAGES, [test]),
    ]  # fmt: skip
    assert len(list(CACHE.glob("*.selection"))) == 6
    keys = [one.key for one in (first, *others) if one is not None]
    assert keys[3] == keys[0]  # the rules do not read the language, so the same pairs are kept
    assert len(set(keys)) == 5


def test_vocabulary_and_ids_are_those_of_the_pairs_that_are_kept(
    corpora: list[CorpusFiles], write_lines: WriteLines, tmp_path: Path
) -> None:
    cleaning = CleaningConfig(duplicates="either")
    selection = select(corpora, cleaning, LANGUAGES)
    assert selection is not None
    pairs = [pair for files in corpora for pair in read_pairs(files)]
    rules = [rule for of_corpus in rules_of(selection) for rule in of_corpus]
    kept = [pair for pair, rule in zip(pairs, rules, strict=True) if not rule]
    by_hand = CorpusFiles(
        src=write_lines("kept.en", [src for src, _ in kept]), tgt=write_lines("kept.de", [tgt for _, tgt in kept])
    )
    config = TokenizerConfig(type="word", vocab_size=100)
    folders = tmp_path / "selected", tmp_path / "by_hand"
    tokenizers = ensure_tokenizers(corpora, config, folders[0], selection=selection)
    expected = ensure_tokenizers([by_hand], config, folders[1])
    assert (folders[0] / "joint.words").read_bytes() == (folders[1] / "joint.words").read_bytes()
    corpus = encode_corpus(corpora, tokenizers, folders[0], 50, selection)
    alone = encode_corpus([by_hand], expected, folders[1], 50)
    assert len(corpus) == len(alone) == len(kept) > 10
    assert all(
        ours.tolist() == theirs.tolist()
        for index in range(len(corpus))
        for ours, theirs in zip(corpus[index], alone[index], strict=True)
    )
    assert corpus.counts.read == len(pairs)
    assert corpus.counts.dropped == dict(Counter(rule for rule in rules if rule))


def test_a_line_that_is_not_utf8_is_refused_or_dropped(tmp_path: Path) -> None:
    src, tgt = tmp_path / "x.en", tmp_path / "x.de"
    src.write_bytes(b"one\ntwo\nthree\n")
    tgt.write_bytes(b"eins\n" + "zwö\n".encode("latin-1") + b"drei\n")
    files = CorpusFiles(src=src, tgt=tgt)
    with pytest.raises(DataError, match=r"x\.de:2: not UTF-8"):
        select([files], CleaningConfig(duplicates="pair"), LANGUAGES)
    selection = select([files], CleaningConfig(encoding=True), LANGUAGES)
    assert selection is not None
    assert rules_of(selection) == [["", "encoding", ""]]
    tokenizers = ensure_tokenizers(
        [files], TokenizerConfig(type="word", vocab_size=20), tmp_path / "tokenizer", selection=selection
    )
    corpus = encode_corpus([files], tokenizers, tmp_path / "tokenizer", 9, selection)
    assert corpus.line_numbers(np.arange(2)) == {0: [1, 3]}


def test_examples_are_spread_over_the_dropped_pairs(corpora: list[CorpusFiles], tmp_path: Path) -> None:
    selection = select(corpora, CleaningConfig(duplicates="source"), LANGUAGES)
    assert selection is not None
    write_examples(tmp_path / "cleaning.tsv", corpora, selection.verdicts)
    head, *rows = [line.split("\t") for line in (tmp_path / "cleaning.tsv").read_text().splitlines()]
    assert head == ["rule", "file", "number", "source", "target"]
    counts = Counter(row[0] for row in rows)
    assert counts == {rule: min(MAX_EXAMPLES, count) for rule, count in selection.counts.dropped.items()}
    texts = {
        str(files.src_file): [" ".join(f"{src}\t{tgt}".split(" ")) for src, tgt in read_pairs(files)]
        for files in corpora
    }
    rules = dict(zip(map(str, (files.src_file for files in corpora)), rules_of(selection), strict=True))
    for rule, file, number, src, tgt in rows:
        assert rules[file][int(number) - 1] == rule
        assert [" ".join(side.split()) for side in texts[file][int(number) - 1].split("\t")] == [src, tgt]
    places = [int(row[2]) for row in rows if row[0] == "duplicates" and row[1] == str(corpora[0].src_file)]
    assert places[-1] > 60
    assert rule_table(selection.counts)[0].split() == ["empty", str(selection.counts.dropped["empty"]), "4.1%"]
