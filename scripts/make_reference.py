#!/usr/bin/env python3
"""Write docs/reference.md: every configuration key and every command, from the code.

usage: scripts/make_reference.py [--check]

A key's text is the docstring below its field; a command's is that of its function, an option's its help. --check
writes nothing and fails if the page is not what the code says.
"""

import argparse
import ast
import functools
import inspect
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from nmt.cli.main import app
from nmt.config.training import Config

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
HEAD = """# Reference
<!-- Made by scripts/make_reference.py. Do not edit it: edit the docstring or the help text, and run the script. -->

Every key of a configuration and every command. `--set SECTION.KEY=VALUE` replaces a key for one command.
"""


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        *_contents(),
        *_configuration(),
        "## Commands\n",
        *_commands(typer.main.get_command(app), "nmt", None),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _contents() -> Iterator[str]:
    for name, classes in _sections():
        keys = dict.fromkeys(key for section in classes for key in section.model_fields)
        yield _wrapped(f"**{name}**: " + ", ".join(f"[{key}](#{name}{key})" for key in keys))
    names = [name for name, _, _ in _all_commands(typer.main.get_command(app), "nmt", None)]
    links = ", ".join(f"[{name.replace(' ', chr(0))}](#{name.replace(' ', '-')})" for name in names)  # kept on one line
    yield _wrapped(f"**Commands**: {links}").replace(chr(0), " ")


# Configuration


def _sections() -> list[tuple[str, list[type[BaseModel]]]]:
    """Each section's name, and the classes that it may be."""
    return [(name, _models(field.annotation)) for name, field in Config.model_fields.items()]


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The sections within a type, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models(part)]


def _configuration() -> Iterator[str]:
    yield "## Configuration\n"
    for name, classes in _sections():
        yield f"### {name}\n"
        yield _wrapped(_docstrings(Config)[name])
        chooser = _chooser(classes)
        if chooser:
            kinds = [_wrapped(f"- `{chooser}: {_const(one, chooser)}`: {_one_line(one)}", "  ") for one in classes]
            yield "".join(kinds)
        for key in dict.fromkeys(key for section in classes for key in section.model_fields):
            yield f"#### {name}.{key}\n"  # once, since links lead to headings
            if key == chooser:
                kinds = [f"`{_const(one, key)}`" for one in classes]
                required = " Required." if key in _schema(classes[0]).get("required", ()) else f" Default: {kinds[0]}."
                yield _wrapped(f"{', '.join(kinds[:-1])} or {kinds[-1]}.{required}")
                yield _wrapped(_docstrings(classes[0])[key])
            else:
                yield from _key(key, classes, chooser)


def _chooser(classes: list[type[BaseModel]]) -> str:
    """The key whose value decides which of several classes a section is; empty for a section of one class."""
    if len(classes) == 1:
        return ""
    (chooser,) = [
        key
        for key in classes[0].model_fields
        if all("const" in _schema(one)["properties"].get(key, {}) for one in classes)
    ]
    return chooser


def _one_line(section: type[BaseModel]) -> str:
    """A class's docstring without its paragraphs."""
    return " ".join((inspect.getdoc(section) or "").split())


def _const(section: type[BaseModel], key: str) -> str:
    return str(_schema(section)["properties"][key]["const"])


def _key(key: str, classes: list[type[BaseModel]], chooser: str) -> Iterator[str]:
    """A key's texts: one if they are the same in all classes, or each after the classes that it is of."""
    texts: dict[str, list[type[BaseModel]]] = {}
    for section in classes:
        if key in section.model_fields:
            property_ = _schema(section)["properties"][key]
            no_default = key in _schema(section).get("required", ())
            # A default that is computed from other keys is described by the docstring.
            required = " Required." if no_default and "Default:" not in _docstrings(section)[key] else ""
            text = f"{_kind(property_)}.{'' if no_default else _default(section, key, property_)}{required}"
            texts.setdefault(f"{_wrapped(text)}\n{_wrapped(_docstrings(section)[key])}", []).append(section)
    for text, sections in texts.items():
        if len(sections) < len(classes):
            values = " or ".join(f"`{chooser}: {_const(one, chooser)}`" for one in sections)
            yield f"*With {values}:*\n"
        yield text
        for inner in _models(sections[0].model_fields[key].annotation):
            yield _inner_keys(inner)


def _inner_keys(section: type[BaseModel]) -> str:
    """The keys of a mapping that is a key's value."""
    schema = _schema(section)
    lines = []
    for key, text in _docstrings(section).items():
        default = "" if key in schema.get("required", ()) else _default(section, key, schema["properties"][key])
        lines.append(_wrapped(f"- `{key}`: {_kind(schema['properties'][key])}.{default} {text}", "  "))
    return "".join(lines)


@functools.cache
def _schema(section: type[BaseModel]) -> dict[str, Any]:
    return section.model_json_schema()


@functools.cache
def _docstrings(section: type[BaseModel]) -> dict[str, str]:
    """The text below each field, inherited ones included, in the order of the fields."""
    texts = {}
    for base in reversed(section.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
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
    if missing:
        raise SystemExit(f"{section.__name__}: no docstring below {', '.join(missing)}")
    return {key: texts[key] for key in section.model_fields}


def _kind(schema: dict[str, Any]) -> str:
    """What a value may be, in words."""
    return (words := _kind_in_sentence(schema))[:1].upper() + words[1:]


def _kind_in_sentence(schema: dict[str, Any]) -> str:
    if options := schema.get("anyOf") or schema.get("oneOf"):
        kinds = list(dict.fromkeys(_kind_in_sentence(option) for option in options))
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
            return f"list of {len(parts)}: {_kind_in_sentence(parts[0])} each"
        return f"list; each item: {_kind_in_sentence(schema['items'])}"
    if schema["type"] in ("integer", "number"):
        return _number(schema)
    words = {"boolean": "`true` or `false`", "null": "`null`"}
    return words.get(schema["type"], "a file's path" if schema.get("format") == "path" else "text")


_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def _number(schema: dict[str, Any]) -> str:
    bounds = [f"{words} {schema[key]:,}" for key, words in _BOUNDS.items() if key in schema]
    return ", ".join(["whole number" if schema["type"] == "integer" else "number", *bounds])


def _default(section: type[BaseModel], key: str, schema: dict[str, Any]) -> str:
    value = schema.get("default")
    if value == "" or (isinstance(value, (dict, list)) and not value):
        return ""
    if value is None:
        return "" if section.model_fields[key].default_factory else " Default: `null`."
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, list):
        value = f"[{', '.join(str(part) for part in value)}]"
    return f" Default: `{value}`."


# Commands


def _all_commands(command: Any, name: str, parent: Any) -> Iterator[tuple[str, Any, Any]]:
    context = command.context_class(command, info_name=name.split()[-1], parent=parent, terminal_width=1000)
    yield name, command, context
    for inner_name, inner in getattr(command, "commands", {}).items():
        yield from _all_commands(inner, f"{name} {inner_name}", context)


def _commands(command: Any, name: str, parent: Any) -> Iterator[str]:
    for path, one, context in _all_commands(command, name, parent):
        yield f"### {path}\n"
        pieces = " ".join(one.collect_usage_pieces(context)).replace("[[", "[").replace("]]", "]")
        yield f"```\n{path} {pieces}\n```\n"
        if one.help:
            yield "\n".join(_wrapped(paragraph) for paragraph in inspect.cleandoc(one.help).split("\n\n"))
        records = [record for parameter in one.get_params(context) if (record := parameter.get_help_record(context))]
        records = [(names, text) for names, text in records if not names.startswith("--help")]
        yield "".join(_wrapped(f"- `{names}`: {text}", "  ") for names, text in records) or "\n"


def _wrapped(text: str, indent: str = "") -> str:
    lines = textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/reference.md from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is stale")
    if parser.parse_args().check:
        if PAGE.read_text(encoding="utf-8") != page():
            sys.exit(f"{PAGE.relative_to(PAGE.parents[1])} is not what the code says; run scripts/make_reference.py")
    else:
        PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
