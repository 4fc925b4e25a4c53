"""What each key of a configuration is: its type, default and meaning, as its JSON Schema says.

The reference, `nmt config` and the messages about invalid values are all made from here.
"""

import difflib
import functools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from nmt.config.schema import json_schema
from nmt.config.training import Config


class Key(NamedTuple):
    """One key of a mapping."""

    name: str
    kind: str
    """What its value may be, in words: "whole number, at least 1, or `null`"."""
    default: str | None
    """As YAML on one line; None where there is none."""
    is_required: bool
    """False also where the default is computed from other keys, as the meaning then says."""
    meaning: str
    """On one line."""
    inner: tuple["Variant", ...]
    """What the mappings that are its value, or in it, may be; none for a plain value."""
    is_named: bool
    """Whether the mappings in it have names that the user chooses, as test sets have."""

    @property
    def allowed(self) -> list[str]:
        """The only values that it may have, where `kind` lists them; also `null`, `true` and `false`."""
        return re.findall("`(.+?)`", self.kind.partition("list")[0])


class Variant(NamedTuple):
    """The keys that a mapping may have; one of several sets if a key of it chooses among them."""

    selector: str
    """The key that chooses this variant, with its value: `architecture: rnn`; '' if there is only one."""
    meaning: str
    keys: tuple[Key, ...]


class Place(NamedTuple):
    """A key where it is in a configuration."""

    path: str
    """`training.learning_rate`, `data.test.NAME.src`"""
    selector: str
    """The variant that has it, as in `Variant.selector`."""
    key: Key


@functools.cache
def sections(config: type[BaseModel] = Config) -> tuple[Key, ...]:
    """All sections of a configuration, in order; the first of the variants in one is the default."""
    schema = json_schema(config)
    return _keys(schema, schema["$defs"])


def places(config: type[BaseModel] = Config) -> Iterator[Place]:
    """Every key of every section, those of mappings inside them included; a path may have several variants."""
    for section in sections(config):
        for variant in section.inner:
            yield from _places(section.name, variant)


def _places(path: str, variant: Variant) -> Iterator[Place]:
    for key in variant.keys:
        here = f"{path}.{key.name}"
        yield Place(here, variant.selector, key)
        for inner in key.inner:
            yield from _places(f"{here}.NAME" if key.is_named else here, inner)


def nearest(path: str, known: Iterable[str]) -> list[str]:
    """The known paths that may be meant by another one, at most 3: of similar keys, the same section first."""
    section, _, key = path.rpartition(".")
    ends = {one: one.rpartition(".")[2] for one in known}
    close = [key] if key in ends.values() else difflib.get_close_matches(key, ends.values(), n=3)
    found = [one for end in dict.fromkeys(close) for one in ends if ends[one] == end]
    return sorted(found, key=lambda one: not one.startswith(f"{section}."))[:3]


def _keys(mapping: dict[str, Any], definitions: dict[str, Any]) -> tuple[Key, ...]:
    """The keys in the schema of a mapping."""
    required = mapping.get("required", ())
    return tuple(_key(name, part, name in required, definitions) for name, part in mapping["properties"].items())


def _key(name: str, schema: dict[str, Any], is_required: bool, definitions: dict[str, Any]) -> Key:
    has_default = "default" in schema or not (is_required or "Default:" in schema["description"])
    return Key(
        name=name,
        kind=_kind(schema),
        default=_as_yaml(schema.get("default", {})) if has_default else None,
        is_required=is_required,
        meaning=schema["description"],
        inner=_variants(schema, definitions),
        is_named='"additionalProperties"' in json.dumps(schema),
    )


def _variants(schema: dict[str, Any], definitions: dict[str, Any]) -> tuple[Variant, ...]:
    """The mappings that a schema refers to."""
    names = dict.fromkeys(re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema)))
    found = [definitions[name] for name in names]
    return tuple(
        Variant(_selector(one) if len(found) > 1 else "", one["description"], _keys(one, definitions)) for one in found
    )


def _selector(mapping: dict[str, Any]) -> str:
    return next(f"{name}: {part['const']}" for name, part in mapping["properties"].items() if "const" in part)


def _as_yaml(value: Any) -> str:
    """A default as YAML on one line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(_as_yaml, value))}]"
    return str(value)


def _kind(schema: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if options := schema.get("anyOf") or schema.get("oneOf"):
        # A list comes last: of "list; each item: text or `null`", an item seems to be the one that may be null.
        kinds = sorted(dict.fromkeys(map(_kind, options)), key=lambda kind: kind.startswith("list;"))
        return (", or " if any(", at" in kind or ", ab" in kind for kind in kinds) else " or ").join(kinds)
    if "enum" in schema:
        *others, last = [f"`{value}`" for value in schema["enum"]]
        return f"{', '.join(others)} or {last}"
    if "const" in schema:
        return f"`{schema['const']}`"
    match schema.get("type", "object"):
        case "object":
            return "mapping of names to mappings" if "additionalProperties" in schema else "mapping"
        case "array":
            return f"list; each item: {_kind(schema['items'])}"
        case "integer" | "number" as kind:
            bounds = [f"{words} {schema[key]:,}" for key, words in _BOUNDS.items() if key in schema]
            return ", ".join(["whole number" if kind == "integer" else "number", *bounds])
        case "boolean":
            return "`true` or `false`"
        case "null":
            return "`null`"
        case _:
            return "a file's path" if "format" in schema else "text"


_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
