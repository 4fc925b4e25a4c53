"""`nmt data --folds`: no line in two folds, nothing lost, balanced; groups against a search through the graph."""

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from conftest import Cli

from nmt.data.duplicates import line_hash
from nmt.data.folds import divide
from nmt.errors import ConfigError

Lines = list[tuple[str, str]]


def random_pairs(random: Random, count: int, sentences: int) -> Lines:
    return [(f"s{random.randrange(sentences)}", f"t{random.randrange(sentences)}") for _ in range(count)]


def folds_of(pairs: Lines, num_folds: int) -> list[int]:
    src, tgt = (
        np.frombuffer(b"".join(line_hash(line)[:8] for line in side), dtype=np.uint64)
        for side in zip(*pairs, strict=True)
    )
    return divide(src, tgt, num_folds).tolist()


def components(pairs: Lines) -> list[set[int]]:
    """The groups of pairs, each found by visiting all pairs that touch one of it, again and again."""
    left, found = set(range(len(pairs))), []
    while left:
        group = {left.pop()}
        while touching := {
            one
            for one in left
            if any(pairs[one][0] == pairs[other][0] or pairs[one][1] == pairs[other][1] for other in group)
        }:
            group |= touching
            left -= touching
        found.append(group)
    return found  # fmt: skip


@pytest.mark.parametrize(("count", "sentences"), [(80, 60), (80, 150), (60, 30)])
def test_what_is_connected_is_in_one_fold_and_folds_are_balanced(count: int, sentences: int) -> None:
    pairs = random_pairs(Random(count + sentences), count, sentences)
    groups = components(pairs)
    num_folds = min(4, len(groups))
    folds = folds_of(pairs, num_folds)
    assert all(len({folds[pair] for pair in group}) == 1 for group in groups)
    sizes = Counter(folds)
    assert set(sizes) == set(range(num_folds))
    # The largest first, each to the smallest fold: what a fold has too much is at most one group.
    assert max(sizes.values()) <= max(count / num_folds + max(map(len, groups[1:]), default=0), max(map(len, groups)))
    assert max(sizes.values()) - min(sizes.values()) <= max(map(len, groups))


def test_a_chain_of_shared_lines_is_one_group() -> None:
    chain = [(f"s{number // 2}", f"t{(number + 1) // 2}") for number in range(50)]
    random = Random(1)
    pairs = [*chain, *((f"x{number}", f"y{number}") for number in range(50))]
    random.shuffle(pairs)
    folds = folds_of(pairs, 2)
    assert len({fold for fold, (src, _) in zip(folds, pairs, strict=True) if src.startswith("s")}) == 1
    assert Counter(folds) == {0: 50, 1: 50}


def test_captions_of_an_image_are_not_dealt_out_in_turn() -> None:
    """Five pairs an image, by five annotators in the same order: a fold has some of each annotator."""
    folds = folds_of([(f"s{number}", f"t{number}") for number in range(500)], 5)
    of_annotators = Counter((fold, number % 5) for number, fold in enumerate(folds))
    assert len(of_annotators) == 25
    assert set(Counter(folds).values()) == {100}


def test_too_few_groups_are_a_plain_message() -> None:
    with pytest.raises(ConfigError, match="--folds 3: the 4 pairs that are left form 2 groups that share no line"):
        folds_of([("a", "1"), ("a", "2"), ("b", "3"), ("c", "3")], 3)


def test_the_command_writes_every_kept_pair_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [(f"Sentence number {number} here.", f"Satz  Nummer {number % 37} hier.") for number in range(100)]
    pairs += [("Sentence  number 3 here.", "Noch ein Satz."), ("Nothing.", "")]  # two spaces are normalized
    for corpus, part in (("a", pairs[:60]), ("b", pairs[60:])):
        for side, language in enumerate(("en", "de")):
            Path(f"{corpus}.{language}").write_text("".join(f"{pair[side]}\n" for pair in part))
    arguments = ("data", "a.en", "a.de", "b.en", "b.de", "--folds", "3", "--write")
    code, _, err = cli(*arguments, "out")
    assert (code, err) == (0, "out: 3 folds of 33 to 35 pairs, and cleaning.tsv with examples of what was dropped\n")
    written = [
        list(zip(*(Path(f"out/fold{number}.{language}").read_text().splitlines() for language in ("en", "de")),
                 strict=True))
        for number in (1, 2, 3)
    ]  # fmt: skip
    assert sorted(pair for fold in written for pair in fold) == sorted(pairs[:-1])
    for side in (0, 1):
        lines = [{" ".join(pair[side].split()) for pair in fold} for fold in written]
        assert sum(map(len, lines)) == len(set.union(*lines))
    for fold in written:
        assert [pairs.index(pair) for pair in fold] == sorted(pairs.index(pair) for pair in fold)
    cli(*arguments, "again")
    assert all(path.read_bytes() == Path("again", path.name).read_bytes() for path in Path("out").iterdir())
    code, _, err = cli("data", "a.en", "a.de", "--folds", "3")
    assert (code, err.count("\n")) == (2, 1)
    assert "--folds: says how to divide what --write FOLDER writes" in err
