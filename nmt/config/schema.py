"""The JSON Schema of a configuration, which editors complete from and check against.

It says what a file may hold, key by key, with the docstring below a key's field. What concerns several keys at once (a
temperature beside weights, a model's limits) only `nmt train` checks.
"""

import functools
import json
from typing import Any

from pydantic import BaseModel

from nmt.config.training import Config


@functools.cache
def json_schema(config: type[BaseModel]) -> dict[str, Any]:
    """The schema, draft 2020-12: every key with its type, default and meaning; unknown keys are errors."""
    schema = json.loads(json.dumps(config.model_json_schema()), object_hook=_plain)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A configuration of nmt"}


def schema_text() -> str:
    """The schema as JSON that a person can read."""
    schema = json.loads(json.dumps(json_schema(Config)), object_hook=_without_format)
    schema["$defs"]["TrainingFiles"]["patternProperties"] = {"^replayed$": {"const": True}}  # nmt adapt writes it
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A mapping of pydantic's schema, with texts on one line, and the keys required that a file must have."""
    plain = {key: part for key, part in schema.items() if key not in ("title", "discriminator", "required")}
    if "description" in plain:
        plain["description"] = " ".join(plain["description"].split())
    if chooser := schema.get("discriminator"):  # without this key, the mapping is of the first kind
        default, *others = schema["oneOf"]
        plain["oneOf"] = [default, *({**one, "required": [chooser["propertyName"]]} for one in others)]
    keys = schema.get("properties", {})
    if required := [key for key in schema.get("required", ()) if "Default:" not in str(keys.get(key))]:
        plain["required"] = required
    return plain


def _without_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in schema.items() if key != "format"}  # JSON Schema has none for a path
