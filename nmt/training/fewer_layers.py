"""A start from a Transformer with more layers, of which some are kept: `training.init_from`.

Shleifer and Rush 2020 (arXiv:2010.13002) shrink models so, and train them on their teachers' translations.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor, nn

from nmt.runs.weights import copy_weights, read_weights, weights_of

_LAYER = re.compile(r"(encoder|decoder)\.(\d+)\.(.+)")


def load_start(model: nn.Module, file: Path) -> list[str]:
    """Read the weights that a training starts from; returns a line for the encoder or decoder that loses layers.

    Raises `RunError` if they do not fit.
    """
    wanted, stored = weights_of(model), read_weights(file)
    counts, of = _num_layers(wanted), _num_layers(stored)
    chosen = {part: kept_layers(counts[part], of[part]) for part in ("encoder", "decoder") if counts[part] < of[part]}
    copy_weights(with_layers(stored, chosen), wanted, file)
    return [
        f"{part:11} layers kept of {of[part]}: {', '.join(str(layer + 1) for layer in layers) or 'none'}"
        for part, layers in chosen.items()
    ]


def kept_layers(count: int, of: int) -> list[int]:
    """Which of the layers, from 0, a model of `count` layers keeps: the first, the last, and others evenly between."""
    return [round(number * (of - 1) / max(count - 1, 1)) for number in range(count)]


def with_layers(weights: Mapping[str, Tensor], chosen: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """The weights without the layers of `encoder` or `decoder` that are not `chosen`, which are renumbered."""
    found = {}
    for name, value in weights.items():
        if (match := _LAYER.fullmatch(name)) and match[1] in chosen:
            part, layer, rest = match[1], int(match[2]), match[3]
            if layer in chosen[part]:
                found[f"{part}.{chosen[part].index(layer)}.{rest}"] = value
        else:
            found[name] = value
    return found


def _num_layers(names: Iterable[str]) -> Counter[str]:
    matches = [_LAYER.fullmatch(name) for name in names]
    layers = {match.group(1, 2) for match in matches if match}
    return Counter(part for part, _ in layers)
