"""Noise in the sources of a corpus: words dropped, blanked and moved, as in self-training (He et al. 2020)."""

import itertools
from collections.abc import Sequence

import numpy as np

MAX_SHIFT = 3
"""No word is passed by more than this many of those after it or before it."""


def noisy(ids: Sequence[int], words: Sequence[int], share: float, unk: int, random: np.random.Generator) -> list[int]:
    """The ids with noise; `words` has the number of each id's word, in order.

    Words are moved (Lample et al. 2018, section 2.3: sorted by their places, each plus a number below `MAX_SHIFT` + 1),
    then each is dropped with probability `share`, and what is left replaced by one `<unk>` with the same probability.
    At least one word is left, or its `<unk>`.
    """
    pairs = zip(ids, words, strict=True)
    spans = [[index for index, _ in span] for _, span in itertools.groupby(pairs, key=lambda pair: pair[1])]
    order = np.argsort(np.arange(len(spans)) + random.random(len(spans)) * (MAX_SHIFT + 1))
    is_kept = random.random(len(spans)) >= share
    is_kept[random.integers(len(spans))] |= not is_kept.any()
    is_blank = random.random(len(spans)) < share
    found: list[int] = []
    for place in order.tolist():
        if is_kept[place]:
            found += [unk] if is_blank[place] else spans[place]
    return found
