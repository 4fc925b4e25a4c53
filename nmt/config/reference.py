"""The keys of a configuration with type, default and meaning: as a JSON Schema, as objects, and as text.

The JSON Schema is made from the classes of the sections and the docstring below each field; editors complete and check
files by it. It says what a file may hold, key by key; what concerns several keys at once (a temperature beside
weights, the limits of a model), only `nmt train` checks. The reference, `nmt config` and the messages about invalid
values are all made from here.
"""

import difflib
import functools
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from nmt.config.training import Config
from nmt.errors import ConfigError
from nmt.version import __version__


@functools.cache
def json_schema(config: type[BaseModel]) -> dict[str, Any]:
    """The schema, draft 2020-12: every key with its type, default and meaning; unknown keys are errors."""
    schema = json.loads(json.dumps(config.model_json_schema()), object_hook=_plain_schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A configuration of nmt"}


def schema_text() -> str:
    """The schema as JSON that a person can read."""
    schema = json.loads(json.dumps(json_schema(Config)), object_hook=_without_format)
    schema["$defs"]["TrainingFiles"]["patternProperties"] = {"^replayed$": {"const": True}}  # nmt adapt writes it
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _plain_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A mapping of pydantic's schema, with texts on one line, and only keys that a file must have as required."""
    plain = {key: part for key, part in schema.items() if key not in ("title", "discriminator", "required")}
    if "description" in plain:
        plain["description"] = " ".join(plain["description"].split())
    if chooser := schema.get("discriminator"):  # without this key, the mapping is the first variant
        default, *others = schema["oneOf"]
        plain["oneOf"] = [default, *({**other, "required": [chooser["propertyName"]]} for other in others)]
    keys = schema.get("properties", {})
    if required := [key for key in schema.get("required", ()) if "Default:" not in str(keys.get(key))]:
        plain["required"] = required
    return plain


def _without_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in schema.items() if key != "format"}  # JSON Schema has none for a path


class Key(NamedTuple):
    """A key of a mapping."""

    name: str
    kind: str
    """Its valid values in words: "whole number, at least 1, or `null`"."""
    default: str | None
    """As YAML on one line; None if there is none."""
    is_required: bool
    """False also if the default is computed from other keys, as the meaning then says."""
    meaning: str
    """On one line."""
    inner: tuple["Variant", ...]
    """The variants of the mappings that are its value, or in it; none for a plain value."""
    is_named: bool
    """True if the user names the mappings in it, such as test sets."""

    @property
    def allowed(self) -> list[str]:
        """All valid values, if `kind` lists them; also `null`, `true` and `false`."""
        return re.findall("`(.+?)`", self.kind.partition("list")[0])


class Variant(NamedTuple):
    """The keys that a mapping may have; one of several sets if one of its keys chooses among them."""

    selector: str
    """The key that chooses this variant, with its value: `architecture: rnn`; '' if it is the only one."""
    meaning: str
    keys: tuple[Key, ...]


class Place(NamedTuple):
    """A key and its place in a configuration."""

    path: str
    """`training.learning_rate`, `data.test.NAME.src`"""
    selector: str
    """The variant that has the key, as in `Variant.selector`."""
    key: Key


@functools.cache
def sections(config: type[BaseModel] = Config) -> tuple[Key, ...]:
    """All sections of a configuration, in order; the first variant of each is the default."""
    schema = json_schema(config)
    return _keys(schema, schema["$defs"])


def places(config: type[BaseModel] = Config) -> Iterator[Place]:
    """Every key of every section, including those of mappings inside; a path may have several variants."""
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
    """At most 3 known paths with similar keys, for an unknown path; those of the same section first."""
    section, _, key = path.rpartition(".")
    ends = {other: other.rpartition(".")[2] for other in known}
    close = [key] if key in ends.values() else difflib.get_close_matches(key, ends.values(), n=3)
    similar = [other for end in dict.fromkeys(close) for other in ends if ends[other] == end]
    return sorted(similar, key=lambda other: not other.startswith(f"{section}."))[:3]


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
    mappings = [definitions[name] for name in names]
    return tuple(
        Variant(_selector(mapping) if len(mappings) > 1 else "", mapping["description"], _keys(mapping, definitions))
        for mapping in mappings
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
    """The valid values in words."""
    if options := schema.get("anyOf") or schema.get("oneOf"):
        # A list comes last: in "list; each item: text or `null`", an item would seem to be what may be null.
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


_WIDTH = 100

EXAMPLES = {
    "data.src_lang": "en",
    "data.tgt_lang": "de",
    "data.train.src": "train.en",
    "data.train.tgt": "train.de",
    "data.validation.src": "val.en",
    "data.validation.tgt": "val.de",
    "source.features": "80",
    "model.input_feeding": "true",
    "training.max_epochs": "30",
}
"""Values of keys without a default, and a limit of the training, so that the template is a valid configuration."""

# Editors look for the line about the schema in any comment, so it must not be spelled out here.
_HEAD = f"""\
# Every key of a configuration with its default (nmt {__version__}, nmt config).
#
# A key that is left out has its default. Required are data.train, and one of training.max_steps,
# max_epochs and max_minutes; their values here are examples. So are the files of data.validation,
# which may be left out, or be {{holdout: 1000}}. Relative paths start at the folder of the file.
# A key with # directly before it is switched off; remove the # to use it. nmt config KEY explains it.
#
# To complete and check keys in an editor: nmt config --json-schema > schema.json, and as the first line
# yaml-language-server: $schema=schema.json, after a # and a space."""


def template() -> str:
    """A YAML configuration with every key, its meaning, and its default or an example.

    The other variants of a section follow it, switched off. A comment has a space after its #, a key that is switched
    off has none: `#src_lang: en`.
    """
    lines = [_HEAD]
    seen: set[str] = set()
    for section in sections():
        for variant in section.inner:
            lines += ["", *_section(section, variant, seen)]
    return "\n".join(lines) + "\n"


def _section(section: Key, variant: Variant, seen: set[str]) -> Iterator[str]:
    is_on = variant is section.inner[0]
    if is_on:
        yield from _wrapped(section.meaning, "# ")
        if variant.selector:
            yield from _wrapped(f"{variant.selector}. {variant.meaning}", "# ")
    else:
        yield from _wrapped(f"Instead of the section {section.name} above, with {variant.selector}:", "# ")
        yield from _wrapped(variant.meaning, "# ")
    off = "" if is_on else "#"
    yield f"{off}{section.name}:"
    yield from _key_lines(variant, section.name, "  ", off, seen)


def _key_lines(variant: Variant, path: str, indent: str, off: str, seen: set[str]) -> Iterator[str]:
    for key in variant.keys:
        here = f"{path}.{key.name}"
        kind = _without_backticks(key.kind[:1].upper() + key.kind[1:])
        text = f"{kind}.{' Required.' if key.is_required else ''} {key.meaning}"
        if f"{key.name}: {text}" not in seen:  # explained once, as long as it means the same
            yield from _wrapped(text, f"{indent}# ")
        seen.add(f"{key.name}: {text}")
        if key.inner and (key.default is None or (key.default == "{}" and not key.is_named)):
            yield f"{indent}{off}{key.name}:"
            yield from _key_lines(key.inner[0], here, indent + "  ", off, seen)
        else:
            yield f"{indent}{_setting(key, here, off)}"


def _setting(key: Key, path: str, off: str) -> str:
    """The key with its default or an example; switched off if its default is computed from other keys."""
    example = EXAMPLES.get(path)
    if key.default is not None:
        plain = f"{off}{key.name}: {key.default if example is None else example}"
        return plain if example is None else f"{plain}  # an example; the default is {key.default}"
    if key.is_required:
        return f"{off}{key.name}: {key.allowed[0] if len(key.allowed) == 1 else example}"
    return f"#{key.name}: {example}"


def explanation(name: str) -> str:
    """Type, default and meaning of a key and the keys inside it, or of all keys of a section, for a terminal.

    Raises `ConfigError`, with similar names, if there is no such key.
    """
    matching = [place for place in places() if f"{place.path}.".startswith(f"{name}.")]
    if not matching:
        names = [section.name for section in sections()]
        close = nearest(name, [*names, *(place.path for place in places())]) or names
        raise ConfigError(f"{name}: there is no such key; did you mean {_either(close)}?")
    heads = ["\n".join([name, *_wrapped(section.meaning, "  ")]) for section in sections() if section.name == name]
    return "\n\n".join([*heads, *_explained(matching)])


def _explained(matching: list[Place]) -> Iterator[str]:
    """A paragraph for each key; a text that several variants of a section share is given once."""
    selectors_of: dict[tuple[str, str], list[str]] = {}
    for place in matching:
        key = place.key
        default = key.default or ("none; it is required" if key.is_required else "depends on other keys")
        lines = [f"  type: {_without_backticks(key.kind)}", f"  default: {default}", *_wrapped(key.meaning, "  ")]
        selectors_of.setdefault((place.path, "\n".join(lines)), []).append(place.selector)
    num_variants = {section.name: len(section.inner) for section in sections()}
    for (path, text), selectors in selectors_of.items():
        is_everywhere = not selectors[0] or len(selectors) == num_variants[path.partition(".")[0]]
        yield f"{path}{'' if is_everywhere else f' (with {_either(selectors)})'}\n{text}"


def _wrapped(text: str, before: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=before, subsequent_indent=before, break_long_words=False, break_on_hyphens=False
    )


def _either(names: list[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _without_backticks(kind: str) -> str:
    return kind.replace("`", "")
