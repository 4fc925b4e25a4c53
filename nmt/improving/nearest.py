"""Of several translations of a sentence, the one that is nearest to its reference, by sentence chrF.

Sequence-level interpolation (Kim and Rush 2016, arXiv:1606.07947, section 3.4), with chrF in the place of BLEU: a
student learns what its teacher can say and what is close to what a person has written.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from sacrebleu.metrics.chrf import CHRF

from nmt.data.lines import read_lines
from nmt.errors import DataError


def nearest(texts: Sequence[str], reference: str, metric: CHRF) -> str:
    """The text with the highest sentence chrF; of equal ones the first, which a search finds more probable."""
    if len(texts) == 1:
        return texts[0]
    return max(texts, key=lambda text: metric.sentence_score(text, [reference]).score)


def nearest_lines(n_best: Path, references: Path) -> str:
    """For each line of `nmt translate --json --n-best N`, the translation nearest to its line of the references.

    `DataError` if the files differ in length.
    """
    metric, found = CHRF(), list[str]()
    try:
        for texts, reference in zip(_translations(n_best), read_lines(references), strict=True):
            found.append(nearest(texts, reference, metric))
    except ValueError as error:
        raise DataError(f"{n_best}: is not the translation of {references} ({error}); remove it") from None
    return "".join(f"{text}\n" for text in found)


def best_lines(n_best: Path) -> str:
    """For each line of `nmt translate --json --n-best N`, the most probable translation."""
    return "".join(f"{texts[0]}\n" for texts in _translations(n_best))


def _translations(n_best: Path) -> Iterator[list[str]]:
    with n_best.open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            yield [one["text"] for one in record["n_best"]] or [record["text"]]  # none: it was copied
