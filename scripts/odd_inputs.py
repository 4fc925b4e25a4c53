#!/usr/bin/env python3
"""Translations of odd input: emoji, URLs, numbers, single words, headlines, dashes, other languages, a long line.

    python scripts/odd_inputs.py                       # the newest run; --model RUN for another
    python scripts/odd_inputs.py --show                # with every input and output

The lines are always the same for a run's validation set, and are translated with the run's own search.

- **Unchanged**: ten emoji, numbers, URLs and e-mail addresses, each alone in a line, and before, after and in the
  middle of a validation source (before its final punctuation, too). An output is counted if it has the text, and no
  other letter or digit of ASCII beside it. Lines of dashes and punctuation are counted if they come out as they are.
- **chrF** as a share of what the same sources have as they are: each word with a capital (compared in lowercase), and
  without the punctuation at the end (compared without it). A line of 2,000 words is that many words of sources,
  compared with their references in one line.
- **Faults**, of every line: an empty output; the same word twice in succession; a word 3-gram three times (not of the
  long line, whose reference has some, too); run-away length, which is more than twice as many characters as the input
  and 20 more. A Chinese or Japanese character counts as three.
"""

import argparse
import dataclasses
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence

from sacrebleu.metrics.chrf import CHRF
from typed_inputs import CHARACTER, Pairs, choose, repeats, words_of

import nmt
from nmt.cleaning.casing import title_case
from nmt.config.inference import DecodingConfig
from nmt.corpora.pairs import read_pairs
from nmt.errors import DataError, NmtError
from nmt.evaluation.metrics import score
from nmt.runs.folder import open_run

COPIED = {
    "emoji": ["😀", "👍", "❤️", "🎉", "🐶", "😂😂", "🔥", "👩‍🚀", "🇩🇪", "✅"],
    "number": ["7", "42", "365", "1984", "2024", "90210", "3.5", "12:30", "2024-05-17", "4711815"],
    "URL": [
        "https://example.com", "http://nmt.org/", "www.wikipedia.org", "https://example.com/a/b?c=1",
        "https://www.nytimes.com/2024/05/news.html", "https://github.com/user/project", "http://localhost:8000/index",
        "https://en.wikipedia.org/wiki/Dog", "https://t.co/xYz12Ab", "ftp://files.example.net/pub/x.zip",
    ],
    "e-mail": [
        "john.smith@example.com", "info@nmt.org", "a@b.de", "support@company.co.uk", "jane_doe42@mail.net",
        "first.last@university.edu", "no-reply@shop.io", "me@my-site.info", "x.y.z@example.org", "hello@world.com",
    ],
}  # fmt: skip
PLACES = ("alone", "first", "last", "before the end", "in the middle")
SYMBOLS = ["---", "-" * 64, "- - - - - - - - - -", "?", "...", "!!!", "* * *", "=" * 20, "…", "( )"]
LANGUAGES = [
    "Un homme dort sur un canapé.", "Две собаки играют в снегу.", "一个女人在街上骑自行车。",
    "رجل يقرأ كتابا في الحديقة.", "Ένας σκύλος τρέχει στην παραλία.", "एक बच्चा गेंद से खेल रहा है।",
    "Mężczyzna gra na gitarze.", "男の人が料理をしています。", "Kaksi naista juo kahvia.", "Một cô gái đang hát.",
]  # fmt: skip
FAULTS = ("empty", "a word twice", "a 3-gram three times", "run-away length")
NUM_WORDS = 10
MIN_LETTERS = 4
LONG_LINE = 2000
PUNCTUATION_AT_THE_END = re.compile(r"[^\w\s]+$")


@dataclasses.dataclass(frozen=True)
class Line:
    """An odd line and its translation."""

    group: str
    typed: str
    output: str
    unchanged: bool | None = None
    """True if the text that should come through unchanged did; None where nothing should."""
    chrf: tuple[float, float] | None = None
    """chrF of the clean lines and of these, on the first line of a group."""

    @property
    def faults(self) -> list[str]:
        """Return those of FAULTS that the output has."""
        words = words_of(self.output)
        found = (
            not self.output.strip(),
            any(a == b for a, b in itertools.pairwise(words)),
            len(words) < LONG_LINE // 4 and repeats(self.output, 3),
            _size(self.output) > 2 * _size(self.typed) + 20,
        )
        return [name for name, has in zip(FAULTS, found, strict=True) if has]


def _size(text: str) -> int:
    return len(text) + 2 * len(re.findall(CHARACTER, text))


def inserted(text: str, place: str, source: str) -> str:
    """Return the source with a text at a place.

    >>> inserted("😀", "before the end", "A dog runs."), inserted("😀", "in the middle", "A dog runs.")
    ('A dog runs 😀.', 'A 😀 dog runs.')
    """
    if place == "alone":
        return text
    if place == "first":
        return f"{text} {source}"
    if place == "last":
        return f"{source} {text}"
    if place == "before the end":
        end = found.start() if (found := PUNCTUATION_AT_THE_END.search(source)) else len(source)
        return f"{source[:end]} {text}{source[end:]}"
    words = source.split(" ")
    half = len(words) // 2
    return " ".join([*words[:half], text, *words[half:]])


def comes_through(text: str, output: str) -> bool:
    """Return True if an output has the text, not as a part of a longer word or number.

    >>> comes_through("42", "Nummer 42."), comes_through("42", "Nummer 421."), comes_through("42", "Nummer 42.5")
    (True, False, False)
    """
    if not any(map(str.isalnum, text)):
        return text in output
    return bool(re.search(rf"(?<![0-9A-Za-z_@/.:-]){re.escape(text)}(?![0-9A-Za-z_@/]|[.:-][0-9A-Za-z])", output))


def without_end(text: str) -> str:
    return PUNCTUATION_AT_THE_END.sub("", text).rstrip()


def frequent_words(pairs: Pairs) -> list[str]:
    """Return the most frequent words of the sources that are not the shortest ones, in lowercase."""
    words = Counter(word for src, _ in pairs for word in words_of(src))
    return [word for word, _ in words.most_common() if len(word) >= MIN_LETTERS and word.isalpha()][:NUM_WORDS]


def long_line(pairs: Pairs) -> list[int]:
    """Return the indices of pairs whose sources have LONG_LINE words together, repeated from the start as needed."""
    chosen: list[int] = []
    count = 0
    while count < LONG_LINE:
        chosen.append(len(chosen) % len(pairs))
        count += max(1, len(pairs[chosen[-1]][0].split()))
    return chosen


def measure(translate: Callable[[list[str]], list[str]], pairs: Pairs) -> list[Line]:
    """Return every line, group by group."""
    if not pairs:
        raise DataError("the validation set is empty")
    (_, rows), *_ = [(kind, rows) for kind, rows in choose(pairs, 10) if kind.name == "ALL CAPS"]
    sources = [pairs[row][0] for row in rows]
    lines: list[Line] = []
    for kind, texts in COPIED.items():
        for place in PLACES:
            typed = [inserted(text, place, source) for text, source in zip(texts, sources, strict=True)]
            outputs = translate(typed)
            lines += [
                Line(f"{kind}, {place}", line, output, comes_through(text, output))
                for text, line, output in zip(texts, typed, outputs, strict=True)
            ]
    lines += [
        Line("dashes, punctuation", line, out, out == line)
        for line, out in zip(SYMBOLS, translate(SYMBOLS), strict=True)
    ]
    for group, texts in (("one word", frequent_words(pairs)), ("another language", LANGUAGES)):
        lines += [Line(group, line, out) for line, out in zip(texts, translate(texts), strict=True)]
    clean = translate(sources)
    references = [pairs[row][1] for row in rows]
    for group, change, compared in (
        ("Title Case", title_case, str.lower),
        ("no punctuation at the end", without_end, without_end),
    ):
        typed = [change(source) for source in sources]
        lines += _compared(group, typed, translate(typed), clean, references, compared)
    rows = long_line(pairs)
    whole = " ".join(pairs[row][0] for row in rows)
    clean = [" ".join(translate([pairs[row][0] for row in rows]))]
    references = [" ".join(pairs[row][1] for row in rows)]
    return lines + _compared("2,000 words", [whole], translate([whole]), clean, references, str)


def _compared(
    group: str,
    typed: Sequence[str],
    outputs: Sequence[str],
    clean: Sequence[str],
    references: Sequence[str],
    compared: Callable[[str], str],
) -> list[Line]:
    reduced = [compared(line) for line in references]
    of_clean, of_typed = (
        score({"chrf": CHRF()}, [compared(line) for line in one], [reduced])["chrf"].value for one in (clean, outputs)
    )
    lines = [Line(group, line, output) for line, output in zip(typed, outputs, strict=True)]
    return [dataclasses.replace(lines[0], chrf=(of_clean, of_typed)), *lines[1:]]


def tables(lines: Sequence[Line]) -> str:
    """Return Markdown: shares that come through, a row a kind and a column a place; then the other groups."""
    groups = {group: [line for line in lines if line.group == group] for group in dict.fromkeys(x.group for x in lines)}
    first = [["unchanged", *PLACES]]
    first += [[kind, *(_kept(groups.pop(f"{kind}, {place}")) for place in PLACES)] for kind in COPIED]
    second = [["group", "lines", "unchanged", "chrF, of the clean lines'", *FAULTS]]
    for group, of_group in groups.items():
        clean, typed = of_group[0].chrf or (0, 0)
        faults = [str(sum(fault in line.faults for line in of_group)) for fault in FAULTS]
        second.append([group, str(len(of_group)), _kept(of_group), f"{typed / clean:.0%}" if clean else "", *faults])
    faulty = sum(bool(line.faults) for line in lines if line.group not in groups)
    return f"{_markdown(first)}\nlines with a fault: {faulty}\n\n{_markdown(second)}"


def _kept(lines: Sequence[Line]) -> str:
    kept = [line.unchanged for line in lines if line.unchanged is not None]
    return f"{sum(kept) / len(kept):.0%}" if kept else ""


def _markdown(rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what a run makes of odd input.")
    parser.add_argument("--model", metavar="RUN", help="a run's folder or name; the newest without")
    parser.add_argument("--copied", metavar="KINDS", help="in place of the run's decoding.copied, separated by commas")
    parser.add_argument("--show", action="store_true", help="inputs and outputs before the table")
    args = parser.parse_args()
    try:
        run = open_run(args.model)
        decoding = run.inference_config().decoding
        if args.copied is not None:
            kinds = [kind for kind in args.copied.split(",") if kind]
            decoding = DecodingConfig.model_validate({**decoding.model_dump(), "copied": kinds})
        lines = measure(nmt.load(run.path, decoding=decoding).translate, list(read_pairs(run.config().data.validation)))
    except NmtError as error:
        print(f"odd_inputs: {error}", file=sys.stderr)
        return error.exit_code
    except ValueError as error:
        parser.error(str(error))
    shown = "".join(f"{line.group}: {', '.join(line.faults)}\n  {line.typed}\n  {line.output}\n" for line in lines)
    print((f"{shown}\n" if args.show else "") + tables(lines), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
