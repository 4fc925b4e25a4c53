"""Explanation of a translation as text for a terminal: the translation, its words, the least certain steps.

A page shows much more; this is what fits a screen.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from nmt.errors import printable
from nmt.insight.explanation import Candidate, Explanation

MIN_SHARE = 0.1
"""The least share of a word's attention that is shown."""
MAX_SOURCES = 3
MAX_STEPS = 3
CERTAIN = 0.9
"""Steps above this probability are not among the least certain."""
NUM_ALTERNATIVES = 3


def print_explanation(explanation: Explanation, output: TextIO) -> None:
    """Print an explanation at most as wide as the terminal; 80 columns elsewhere."""
    Console(file=output, markup=False, highlight=False, emoji=False).print(_shown(explanation))


def _shown(explanation: Explanation) -> Group:
    words = _table("translation", "attends to", "probability")
    for word, sources, probability in word_rows(explanation):
        words.add_row(word, ", ".join(f"{name} {share:.0%}" for name, share in sources), percent(probability))
    parts: list[Text | Table] = [
        Text(printable(explanation.src)),
        Text(printable(explanation.tgt), "bold"),
        Text(),
        words,
    ]
    if steps := list(uncertain_steps(explanation)):
        least = _table("least certain", "instead", "probability")
        for token, others, probability in steps:
            least.add_row(token, ", ".join(f"{name} {percent(share)}" for name, share in others), percent(probability))
        parts += [Text(), least]
    return Group(*parts)


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head, justify in zip(heads, ("left", "left", "right"), strict=True):
        table.add_column(head, justify=justify, overflow="fold")  # type: ignore[arg-type]
    return table


def percent(probability: float) -> str:
    """Format a probability: `98%`, `<1%`, and 100% for nothing less.

    >>> percent(0.98), percent(0.004), percent(0.9999), percent(1)
    ('98%', '<1%', '>99%', '100%')
    """
    if probability in (0, 1) or 0.01 <= probability < 0.995:
        return f"{probability:.0%}"
    return "<1%" if probability < 0.01 else ">99%"


def word_rows(explanation: Explanation) -> Iterator[tuple[str, list[tuple[str, float]], float]]:
    """Yield each word of the translation, its source words with their shares of attention, and its probability.

    The attention is the mean over layers, heads and the word's pieces, summed over a source word's pieces.
    """
    maps, steps = explanation.maps, explanation.steps
    weights = maps.cross.mean(axis=(0, 1))  # (T, S)
    src = _grouped(maps.src_words)
    names = [_joined([maps.src_tokens[column] for column in columns]) for columns in src]
    if explanation.picture is None:
        src, names = src[:-1], names[:-1]  # without the end
    for rows in _grouped(maps.out_words):
        of_word = weights[rows].mean(axis=0)
        shares = sorted(((float(of_word[columns].sum()), -number) for number, columns in enumerate(src)), reverse=True)
        sources = [(names[-number], share) for share, number in shares[:MAX_SOURCES] if share >= MIN_SHARE]
        probability = math.exp(sum(steps[row].log_prob for row in rows))
        yield _joined([maps.out_tokens[row] for row in rows]), sources, min(1.0, probability)


def uncertain_steps(explanation: Explanation) -> Iterator[tuple[str, list[tuple[str, float]], float]]:
    """Yield the least certain pieces, from the least, with the likeliest other pieces and all probabilities."""
    has_spaces = any(token.startswith("▁") for token in explanation.maps.out_tokens)

    def shown(one: Candidate) -> tuple[str, float]:
        name = _joined([one.token])
        is_inside = has_spaces and not one.token.startswith("▁") and name != "end"
        return f"…{name}" if is_inside else name, math.exp(one.log_prob)

    for step in sorted(explanation.steps, key=lambda step: step.log_prob)[:MAX_STEPS]:
        name, probability = shown(step)
        if probability < CERTAIN:
            others = [shown(one) for one in step.candidates if one.id != step.id][:NUM_ALTERNATIVES]
            yield name, others, probability


def _grouped(words: Sequence[int]) -> list[list[int]]:
    """The positions of each word, from the word of each position."""
    groups: dict[int, list[int]] = {}
    for position, word in enumerate(words):
        groups.setdefault(word, []).append(position)
    return list(groups.values())


def _joined(tokens: Sequence[str]) -> str:
    """The pieces of a word as text; `end` for the end of the sentence."""
    text = "".join(tokens).replace("▁", " ").strip()
    return printable("end" if text == "</s>" else text or "(space)")
