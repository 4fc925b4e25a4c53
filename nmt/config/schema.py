"""The JSON Schema of a configuration, which editors complete from and check against.

It says what a file may hold, key by key. What concerns several keys at once (a temperature beside weights, a model's
limits) only `nmt train` checks.
"""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from nmt.config.keys import docstrings, is_required
from nmt.config.section import selector_of, variants
from nmt.config.training import Config

# pydantic's: a title repeats the name, `path` is no format of JSON Schema, and a discriminator is OpenAPI's.
_NOISE = ("title", "discriminator")


def json_schema() -> dict[str, Any]:
    """The schema, draft 2020-12: every key with its type, default and meaning; unknown keys are errors."""
    schema = Config.model_json_schema()
    classes = dict(_classes(Config))
    definitions = {name: _section(classes[name], part) for name, part in sorted(schema.pop("$defs").items())}
    definitions["TrainingFiles"]["patternProperties"] = {"^replayed$": {"const": True}}  # nmt adapt writes it
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_section(Config, schema),
        "title": "A configuration of nmt",
        "$defs": definitions,
    }


def schema_text() -> str:
    """The schema as JSON that a person can read."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _classes(section: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections and mappings inside a section, by the names that they have in pydantic's schema."""
    for field in section.model_fields.values():
        for inner in variants(field.annotation):
            yield inner.__name__, inner
            yield from _classes(inner)


def _section(section: type[BaseModel], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of one mapping: its keys described, and those required that a file must have."""
    meanings = docstrings(section)
    properties = {
        name: {**_plain(part), "description": " ".join(meanings[name].split())}
        for name, part in schema["properties"].items()
    }
    for name, part in properties.items():
        classes = variants(section.model_fields[name].annotation)
        if "oneOf" in part:  # a key of it decides which it is; without the key, it is the first
            (default, *others), part["oneOf"] = part["oneOf"], []
            selectors = [selector_of(one)[0] for one in classes[1:]]
            part["oneOf"] = [default, *({**one, "required": [key]} for one, key in zip(others, selectors, strict=True))]
    required = [name for name in section.model_fields if is_required(section, name)]
    plain = {**_plain(schema), "properties": properties, "description": " ".join((section.__doc__ or "").split())}
    return {**plain, "required": required} if required else {key: plain[key] for key in plain if key != "required"}


def _plain(schema: Any) -> Any:
    """A schema without what pydantic adds that no editor needs."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _plain(part)
        for key, part in schema.items()
        if key not in _NOISE and not (key == "format" and part == "path")
    }
