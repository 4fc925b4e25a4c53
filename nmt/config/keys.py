"""What each key of a configuration is: its type, default and meaning, as the classes of the sections say.

The meaning is the docstring below a key's field. The reference, the JSON Schema and `nmt config` are all made from
here, so that a key is described in one place.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import sys
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from nmt.config.section import selector_of, variants
from nmt.config.training import Config


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a mapping."""

    name: str
    kind: str
    """What its value may be, in words: "whole number, at least 1, or `null`"."""
    allowed: tuple[str, ...]
    """The only values that it may have, where they can be listed; also `null`, `true` and `false`."""
    has_default: bool
    default: Any
    """As in JSON; None where there is none."""
    is_required: bool
    """False also where the default is computed from other keys, as the meaning then says."""
    meaning: str
    """On one line."""
    inner: tuple["Variant", ...]
    """What the mappings that are its value, or in it, may be; none for a plain value."""
    is_named: bool
    """Whether the mappings in it have names that the user chooses, as test sets have."""

    @property
    def default_text(self) -> str:
        """The default as YAML on one line; '' where there is none."""
        return as_yaml(self.default) if self.has_default else ""


class Variant(NamedTuple):
    """The keys that a mapping may have; one of several sets if a key of it chooses among them."""

    selector: str
    """The key that chooses this variant, with its value: `architecture: rnn`; '' if there is only one."""
    meaning: str
    keys: tuple[Key, ...]


class SectionKeys(NamedTuple):
    """A section of a configuration."""

    name: str
    meaning: str
    is_required: bool
    variants: tuple[Variant, ...]
    """The first is the default."""


class Place(NamedTuple):
    """A key where it is in a configuration."""

    path: str
    """`training.learning_rate`, `data.test.NAME.src`"""
    selector: str
    """The variant that has it, as in `Variant.selector`."""
    key: Key


@functools.cache
def sections() -> tuple[SectionKeys, ...]:
    """All sections of a configuration, in order."""
    meanings, required = docstrings(Config), Config.model_fields
    return tuple(
        SectionKeys(name, meanings[name], required[name].is_required(), _described(variants(field.annotation)))
        for name, field in Config.model_fields.items()
    )


def places() -> Iterator[Place]:
    """Every key of every section, those of mappings inside them included; a path may have several variants."""
    for section in sections():
        for variant in section.variants:
            yield from _places(section.name, variant)


def _places(path: str, variant: Variant) -> Iterator[Place]:
    for key in variant.keys:
        here = f"{path}.{key.name}"
        yield Place(here, variant.selector, key)
        for inner in key.inner:
            yield from _places(f"{here}.NAME" if key.is_named else here, inner)


def nearest(path: str) -> list[str]:
    """The paths that may be meant by one that does not exist, at most 3: of similar keys, the same section first."""
    known = list(dict.fromkeys([section.name for section in sections()] + [place.path for place in places()]))
    section, _, key = path.rpartition(".")
    ends = [one.rpartition(".")[2] for one in known]
    close = [key] if key in ends else difflib.get_close_matches(key, ends, n=3)
    found = [one for end in dict.fromkeys(close) for one in known if one.rpartition(".")[2] == end]
    return sorted(found, key=lambda one: not one.startswith(f"{section}."))[:3]


def is_required(section: type[BaseModel], name: str) -> bool:
    """Whether a file must have the key; a default that is computed from other keys is described by the docstring."""
    return section.model_fields[name].is_required() and "Default:" not in docstrings(section)[name]


def as_yaml(value: Any) -> str:
    """A default as YAML on one line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return f"[{', '.join(as_yaml(part) for part in value)}]"
    return str(value)


def _described(classes: list[type[BaseModel]]) -> tuple[Variant, ...]:
    return tuple(
        Variant(
            selector=": ".join(selector_of(section)) if len(classes) > 1 else "",
            meaning=_on_one_line(inspect.getdoc(section) or ""),
            keys=_keys_of(section),
        )
        for section in classes
    )


@functools.cache
def _keys_of(section: type[BaseModel]) -> tuple[Key, ...]:
    properties: dict[str, Any] = section.model_json_schema()["properties"]  # without what nmt writes itself
    keys = []
    for name, schema in properties.items():
        field = section.model_fields[name]
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            default = default.model_dump(exclude_defaults=True)  # the keys in it say their own
        keys.append(
            Key(
                name=name,
                kind=_kind(schema),
                allowed=tuple(dict.fromkeys(_allowed(schema))),
                has_default=default is not PydanticUndefined,
                default=None if default is PydanticUndefined else to_jsonable_python(default),
                is_required=is_required(section, name),
                meaning=_on_one_line(docstrings(section)[name]),
                inner=_described(variants(field.annotation)),
                is_named=typing.get_origin(field.annotation) is dict,
            )
        )
    return tuple(keys)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


@functools.cache
def docstrings(section: type[BaseModel]) -> dict[str, str]:
    """The text below each field, inherited ones included, in the order of the fields."""
    texts = {}
    for base in reversed(section.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        definition = _definitions(base.__module__)[base.__name__]
        for statement, below in zip(definition.body, definition.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                texts[statement.target.id] = inspect.cleandoc(below.value.value)
    missing = [key for key in section.model_fields if key not in texts]
    assert not missing, f"{section.__name__}: no docstring below {', '.join(missing)}"
    return {key: texts[key] for key in section.model_fields}


@functools.cache
def _definitions(module: str) -> dict[str, ast.ClassDef]:
    """The classes in a module's source."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {statement.name: statement for statement in body if isinstance(statement, ast.ClassDef)}


def _allowed(schema: dict[str, Any]) -> Iterator[str]:
    """The values that a schema lists; what else it allows is left out."""
    for option in schema.get("anyOf") or schema.get("oneOf") or ():
        yield from _allowed(option)
    yield from map(str, schema.get("enum", ()))
    if "const" in schema:
        yield str(schema["const"])
    if schema.get("type") == "boolean":
        yield from ("true", "false")
    if schema.get("type") == "null":
        yield "null"


def _kind(schema: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if options := schema.get("anyOf") or schema.get("oneOf"):
        # A list comes last: of "list; each item: text or `null`", an item seems to be the one that may be null.
        kinds = sorted(dict.fromkeys(_kind(option) for option in options), key=lambda kind: kind.startswith("list;"))
        return (", or " if any(", at" in kind or ", ab" in kind for kind in kinds) else " or ").join(kinds)
    if "enum" in schema:
        *others, last = [f"`{value}`" for value in schema["enum"]]
        return f"{', '.join(others)} or {last}"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "$ref" in schema or schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return "mapping of names to mappings" if isinstance(inner, dict) else "mapping"
    if schema["type"] == "array":
        parts = schema.get("prefixItems")
        if parts:
            return f"list of {len(parts)}: {_kind(parts[0])} each"
        return f"list; each item: {_kind(schema['items'])}"
    if schema["type"] in ("integer", "number"):
        return _number(schema)
    words = {"boolean": "`true` or `false`", "null": "`null`"}
    return words.get(schema["type"], "a file's path" if schema.get("format") == "path" else "text")


_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def _number(schema: dict[str, Any]) -> str:
    bounds = [f"{words} {schema[key]:,}" for key, words in _BOUNDS.items() if key in schema]
    return ", ".join(["whole number" if schema["type"] == "integer" else "number", *bounds])
