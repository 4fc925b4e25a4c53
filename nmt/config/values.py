"""Settings as texts: a value on one line, and those that differ from another configuration's or from the defaults."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from nmt.config.section import Section
from nmt.config.training import Config


def differences(old: Config, new: Config) -> Iterator[tuple[str, str, str]]:
    """Key, old and new value of each setting that differs, as texts."""
    there, here = (dict(_values(config.model_dump(mode="json"))) for config in (old, new))
    for key in dict.fromkeys((*there, *here)):  # an architecture has keys that another lacks
        before, now = there.get(key), here.get(key)
        if before != now:
            texts = ((shown_value(before, depth), shown_value(now, depth)) for depth in (1, 2, sys.maxsize))
            yield key, *next((pair for pair in texts if pair[0] != pair[1]), (json.dumps(before), json.dumps(now)))
    weights = [[files.weight for files in config.data.train] for config in (old, new)]
    if weights[0] != weights[1]:
        before, now = (", ".join(f"{weight:g}" for weight in run_weights) for run_weights in weights)
        yield "data.train.weight", before, now


def shown_value(value: object, depth: int = 1) -> str:
    """A setting's value on one line, as in YAML; corpora by the last `depth` parts of their files' paths.

    >>> shown_value([{"src": "a/train.en", "tgt": "a/train.de", "weight": 2.0, "tag": None}]), shown_value(None)
    ('train.en, train.de (weight 2)', 'null')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return f"{value:g}"
    if corpora := _corpora(value):
        return "; ".join(_shown_corpus(keys, depth) for keys in corpora)
    return json.dumps(value, ensure_ascii=False)


def _corpora(value: object) -> list[Mapping[str, object]]:
    """The corpora that a setting names; none for another setting."""
    values: list[object] = value if isinstance(value, list) else [value]
    found = [one for one in values if isinstance(one, dict) and {"src", "pairs"} & {*one}]
    return [*found] if len(found) == len(values) else []


def _shown_corpus(keys: Mapping[str, object], depth: int) -> str:
    paths = [Path(*Path(str(keys[key])).parts[-depth:]) for key in ("src", "tgt", "pairs") if keys.get(key)]
    others = [key for key in ("weight", "tag", "holdout") if keys.get(key) not in (None, 1)]
    return ", ".join(map(str, paths)) + "".join(f" ({key} {shown_value(keys[key])})" for key in others)


def _values(section: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in section.items():
        if isinstance(value, dict) and not _corpora(value):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def changed_settings(section: Section, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield key, value and default of each setting that differs from its default, inner sections included.

    The default is '' where there is none. Corpora are skipped.
    """
    dumped = section.model_dump(mode="json")
    for key, value in section:
        here, field = f"{path}{key}", type(section).model_fields[key]
        if here in ("data.train", "data.exclude", "data.validation", "data.test") or key not in dumped:
            continue
        if isinstance(value, Section):
            yield from changed_settings(value, f"{here}.")
            continue
        default = "" if field.is_required() else shown_value(field.get_default(call_default_factory=True))
        if shown_value(dumped[key]) != default:
            yield here, shown_value(dumped[key]), default
