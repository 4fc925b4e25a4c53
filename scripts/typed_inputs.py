#!/usr/bin/env python3
"""Translations of input as people type it.

    python scripts/typed_inputs.py                     # the newest run; --model RUN for another
    python scripts/typed_inputs.py --show              # with the 50 inputs and outputs

From the run's validation set, always the same 50 lines, ten of each kind and none twice: the shortest ones as they are;
others, drawn evenly, in capitals, without punctuation, twice in a row, and cut after half of their words. They are
translated with the run's own search. A kind passes if

- the chrF of its outputs is at least 80% of the clean lines' chrF. Lines in capitals are compared in lowercase on all
  sides, and lines without punctuation without it, since a model cannot know these. For a doubled line, reference and
  clean output are doubled too. Short lines, which are clean themselves, are compared with the whole validation set.
- no output has a word 3-gram three times.
- every output is half to twice as long as its input, in characters: in words, EEEEEE would be as long as "a".

Pairs that fail these checks themselves, by a reference of more than twice the length or a 3-gram that occurs
twice, are not drawn. Sums over the lines of a kind are scored, since a single score depends on how its reference
happens to be worded; the last row has the means of the kinds.

There is no reference for a fragment. It is compared with the first half of the reference, beside the first half of the
clean output: fair as far as both languages say things in the same order, as most English and German captions do; of
English and Chinese it says little. Punctuation is left out, and the score is chrF1: chrF2, which counts what is missing
four times as much as what is too much, hardly sees an invented end.

Words are compared in lower case and without punctuation. A Chinese or Japanese character is a word, and as long as
three letters.
"""

import argparse
import dataclasses
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

from sacrebleu.metrics.chrf import CHRF

import nmt
from nmt.corpora.pairs import read_pairs
from nmt.errors import DataError, NmtError
from nmt.evaluation.metrics import score
from nmt.runs.folder import open_run

Pairs = Sequence[tuple[str, str]]

MIN_SHARE = 0.8
MIN_LENGTH, MAX_LENGTH = 0.5, 2.0
MIN_WORDS = 4  # of a line that is changed, on both sides: half of it is still two words

CHARACTER = r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"  # kana and Han
WORD = re.compile(rf"{CHARACTER}|(?:(?!{CHARACTER})\S)+")


def as_it_is(text: str) -> str:
    return text


def doubled(text: str) -> str:
    return f"{text} {text}"


def without_punctuation(text: str) -> str:
    """Remove the characters of Unicode's category P, and the spaces around them.

    >>> without_punctuation("Two men - one's old - talk.")
    'Two men ones old talk'
    """
    return " ".join("".join(c for c in text if not unicodedata.category(c).startswith("P")).split())


def first_half(text: str) -> str:
    """Return the first half of the words, rounded down.

    >>> first_half("A dog is running."), first_half("一只狗在跑")
    ('A dog', '一只')
    """
    words = list(WORD.finditer(text))
    count = len(words) // 2
    return text[: words[count - 1].end()] if count else ""


def words_of(text: str) -> list[str]:
    return WORD.findall(without_punctuation(text).lower())


def repeats(text: str, times: int) -> bool:
    """Return True if a word 3-gram occurs at least N times."""
    words = words_of(text)
    return max(Counter(zip(words, words[1:], words[2:], strict=False)).values(), default=0) >= times


def length_ratio(output: str, typed: str) -> float:
    """Return the ratio of letters and digits; `typed` has some."""
    return _length(output) / _length(typed)


def _length(text: str) -> int:
    letters = "".join(words_of(text))
    return len(letters) + 2 * len(re.findall(CHARACTER, letters))


def is_wrong_length(ratio: float) -> bool:
    return not MIN_LENGTH <= ratio <= MAX_LENGTH


@dataclasses.dataclass(frozen=True)
class Kind:
    """A way of typing."""

    name: str
    typed: Callable[[str], str]
    """The change of the source."""
    expected: Callable[[str], str]
    """The change of the reference and of the clean line's output."""
    compared: Callable[[str], str]
    """The reduction of all three, and of the output, before they are compared."""
    chrf_beta: int = 2

    def chrf(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        """Return the corpus chrF of both after the reduction."""
        reduced = [self.compared(output) for output in outputs], [[self.compared(line) for line in references]]
        return score({"chrf": CHRF(beta=self.chrf_beta)}, *reduced)["chrf"].value


SHORT = Kind("short", as_it_is, as_it_is, as_it_is)
CHANGED = (
    Kind("ALL CAPS", str.upper, as_it_is, str.lower),
    Kind("without punctuation", without_punctuation, as_it_is, without_punctuation),
    Kind("doubled", doubled, doubled, as_it_is),
    Kind("fragment", first_half, first_half, without_punctuation, chrf_beta=1),
)


@dataclasses.dataclass(frozen=True)
class Line:
    """A typed line and its translation."""

    kind: str
    number: int
    """The number of the clean line in the validation set, from 1."""
    typed: str
    output: str
    clean_output: str
    """The output of the whole clean line."""
    reference: str
    """The reference for this kind."""
    repeats: bool
    length_ratio: float

    @property
    def has_wrong_length(self) -> bool:
        return is_wrong_length(self.length_ratio)


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of a kind, or of all."""

    kind: str
    lines: int
    clean: float
    """chrF, 0 to 100."""
    typed: float
    repeating: int
    """Lines with a 3-gram three times."""
    wrong_length: int

    @property
    def share(self) -> float:
        return self.typed / self.clean if self.clean else 0.0

    @property
    def passes(self) -> bool:
        return self.share >= MIN_SHARE and not self.repeating and not self.wrong_length


def choose(pairs: Pairs, per_kind: int) -> list[tuple[Kind, list[int]]]:
    """Return indices of the pairs that each kind is made from: none twice, and no source twice.

    Raises `DataError` if there are too few.
    """
    first = {src: index for index, (src, _) in reversed(list(enumerate(pairs)))}
    sizes = {index: min(len(words_of(side)) for side in pairs[index]) for index in sorted(first.values())}
    usable = [index for index in sizes if sizes[index] and _could_pass(*pairs[index])]
    short = sorted(usable, key=lambda index: len(words_of(pairs[index][0])))[:per_kind]
    rest = [index for index in usable if sizes[index] >= MIN_WORDS and index not in short]
    count = per_kind * len(CHANGED)
    if len(short) < per_kind or len(rest) < count:
        raise DataError(
            f"{per_kind + count} lines are to be made, and the validation set has {len(short)} short lines and "
            f"{len(rest)} of at least {MIN_WORDS} words that can be taken; --per-kind makes fewer"
        )
    drawn = [rest[n * len(rest) // count] for n in range(count)]
    return [(SHORT, short), *((kind, drawn[n :: len(CHANGED)]) for n, kind in enumerate(CHANGED))]


def _could_pass(src: str, tgt: str) -> bool:
    """Return True if a perfect translation of the pair passes the checks, doubled too."""
    return not (repeats(src, 2) or repeats(tgt, 2) or is_wrong_length(length_ratio(tgt, src)))


def measure(translate: Callable[[list[str]], list[str]], pairs: Pairs, per_kind: int) -> tuple[list[Row], list[Line]]:
    """Return a row for each kind and for all of them, and every line."""
    chosen = choose(pairs, per_kind)
    clean_outputs = translate([src for src, _ in pairs])
    rows, lines = [], []
    for kind, indices in chosen:
        typed = [kind.typed(pairs[index][0]) for index in indices]
        outputs = translate(typed)
        references = [kind.expected(pairs[index][1]) for index in indices]
        if kind is SHORT:
            clean = kind.chrf(clean_outputs, [tgt for _, tgt in pairs])
        else:
            clean = kind.chrf([kind.expected(clean_outputs[index]) for index in indices], references)
        made = [
            Line(
                kind.name, index + 1, text, output, clean_outputs[index], reference,
                repeats(output, 3), length_ratio(output, text),
            )
            for index, text, output, reference in zip(indices, typed, outputs, references, strict=True)
        ]  # fmt: skip
        rows.append(_row(kind.name, made, clean, kind.chrf(outputs, references)))
        lines += made
    # Each kind has a chrF of its own sort, so that their mean is what can be said of all.
    means = [sum(values) / len(rows) for values in ([row.clean for row in rows], [row.typed for row in rows])]
    return [*rows, _row("all", lines, *means)], lines


def _row(name: str, lines: Sequence[Line], clean: float, typed: float) -> Row:
    repeating = sum(line.repeats for line in lines)
    return Row(name, len(lines), clean, typed, repeating, sum(line.has_wrong_length for line in lines))


def table(rows: Sequence[Row]) -> str:
    """Return Markdown, and a line that says whether every kind passes."""
    head = ["kind", "lines", "chrF clean", "chrF typed", "share", "a 3-gram three times", "wrong length"]
    cells = [head, ["---"] * len(head)]
    for row in rows:
        figures = [f"{row.clean:.1f}", f"{row.typed:.1f}", f"{row.share:.0%}"]
        cells.append([row.kind, str(row.lines), *figures, str(row.repeating), str(row.wrong_length)])
    failing = [row.kind for row in rows[:-1] if not row.passes]
    verdict = f"fails: {', '.join(failing)}" if failing else "passes"
    return "".join(f"| {' | '.join(line)} |\n" for line in cells) + f"\n{verdict}\n"


def listing(lines: Sequence[Line]) -> str:
    """Return inputs and outputs as text."""
    text = ""
    for line in lines:
        faults = ["a 3-gram three times"] * line.repeats + ["wrong length"] * line.has_wrong_length
        text += f"{', '.join([f'{line.kind} {line.number}', *faults])}\n  {line.typed}\n  {line.output}\n"
    return f"{text}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how a run translates input as people type it.")
    parser.add_argument("--model", metavar="RUN", help="a run's folder or name; the newest without")
    parser.add_argument("--per-kind", type=int, default=10, metavar="N", help="lines of each of the five kinds (10)")
    parser.add_argument("--show", action="store_true", help="inputs and outputs before the table")
    args = parser.parse_args()
    if args.per_kind < 1:
        parser.error("--per-kind must be at least 1")
    try:
        run = open_run(args.model)
        pairs = list(read_pairs(run.config().data.validation))
        rows, lines = measure(nmt.load(run.path).translate, pairs, args.per_kind)
    except NmtError as error:
        print(f"typed_inputs: {error}", file=sys.stderr)
        return error.exit_code
    print((listing(lines) if args.show else "") + table(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
