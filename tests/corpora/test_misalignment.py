"""The place of missing lines, in the tiny corpus with lines taken out at random places."""

import random
from pathlib import Path

import pytest

from nmt.config.corpus import CorpusFiles
from nmt.corpora.misalignment import Gap, find_gap
from nmt.corpora.pairs import count_pairs
from nmt.errors import DataError

TINY = Path(__file__).parents[2] / "data" / "tiny"


def lengths_without(src_lines: list[int], tgt_lines: list[int], count: int) -> tuple[list[int], list[int]]:
    """The lengths in bytes of the first lines of the tiny corpus, without some of each side."""
    sides = []
    for language, missing in (("en", src_lines), ("zh", tgt_lines)):
        lines = (TINY / f"train.{language}").read_bytes().split(b"\n")[:count]
        sides.append([len(line) for index, line in enumerate(lines) if index not in missing])
    return sides[0], sides[1]


def test_the_place_of_missing_lines_is_found_give_or_take_a_few() -> None:
    generator = random.Random(1)
    for _ in range(40):
        count = generator.choice([250, 1000, 4000])
        place, number, in_src = (
            generator.randrange(count - 40),
            generator.choice([1, 1, 3, 10]),
            generator.random() < 0.5,
        )
        missing = list(range(place, place + number))
        gap = find_gap(*lengths_without(missing if in_src else [], [] if in_src else missing, count))
        assert gap is not None
        assert gap.in_src == in_src
        assert gap.line is not None
        assert abs(gap.line - (place + 1)) <= 8


@pytest.mark.parametrize(
    ("src_lines", "tgt_lines", "expected"),
    [
        (list(range(700, 1000)), [], Gap(in_src=True, line=None)),
        ([], [998, 999], Gap(in_src=False, line=None)),
        ([200, 700], [], None),  # two places
        ([200, 300, 301], [700], None),
        ([], [], None),
    ],
)
def test_the_end_is_found_and_nothing_is_said_of_several_places(
    src_lines: list[int], tgt_lines: list[int], expected: Gap | None
) -> None:
    assert find_gap(*lengths_without(src_lines, tgt_lines, 1000)) == expected


def test_texts_that_are_no_translations_and_short_ones_have_no_gap() -> None:
    generator = random.Random(2)
    src, tgt = ([generator.randrange(20, 200) for _ in range(count)] for count in (1000, 1003))
    assert find_gap(src, tgt) is None
    assert find_gap([10] * 100, [10] * 99) is None


def test_the_message_names_the_place(tmp_path: Path) -> None:
    lines = {
        language: (TINY / f"train.{language}").read_bytes().splitlines(keepends=True)[:500] for language in ("en", "zh")
    }
    del lines["zh"][300]
    for language, of_side in lines.items():
        (tmp_path / f"a.{language}").write_bytes(b"".join(of_side))
    with pytest.raises(
        DataError, match=r"every line needs its translation .*lines are missing near .*a\.zh:(29|30)[0-9]"
    ):
        count_pairs([CorpusFiles(src=tmp_path / "a.en", tgt=tmp_path / "a.zh")])
    (tmp_path / "a.zh").write_bytes(b"".join(lines["zh"][:250]))
    with pytest.raises(DataError, match=r"a\.zh lacks the last lines of .*a\.en"):
        count_pairs([CorpusFiles(src=tmp_path / "a.en", tgt=tmp_path / "a.zh")])
