"""Reading a run's YAML into a `Config`, with errors that say where and what instead.

An unknown or repeated key, or a value that does not fit, is an error that names its path, its line and
what would be right. Paths in a file are relative to that file. `--set section.key=value` replaces single
values, written as in YAML.
"""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from nmt.config import Config, CorpusFiles
from nmt.errors import ConfigError


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Read a YAML file into a `Config`.

    `overrides` are `section.key=value` texts; their values are YAML.
    Raises `ConfigError` for anything that cannot be read or does not fit.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; name a configuration, for example configs/tiny.yaml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a configuration: {error}") from None
    root = _compose(text, str(path))
    raw = _construct(root, str(path)) if root is not None else None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: not a configuration; it should hold the sections {_listed(Config.model_fields)}")
    overridden = [_override(raw, text) for text in overrides]
    try:
        return Config.model_validate(raw, context={"folder": path.parent.resolve()})
    except ValidationError as error:
        raise ConfigError(_explain(error, root, overridden, path)) from None


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, less two surprises of YAML 1.1: `no` (Norwegian) as false, `1e-3` as text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _compose(text: str, where: str) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{where}:{mark.line + 1}" if mark else where
        raise ConfigError(f"{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    return root


def _construct(root: yaml.Node, where: str) -> Any:
    """The node's value; a key that stands twice is an error, since YAML would keep the last in silence."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if key.value in seen:
                    raise ConfigError(f"{where}:{key.start_mark.line + 1}: the key {key.value!r} stands here twice")
                seen.add(key.value)
                stack.append(value)
        elif isinstance(node, yaml.SequenceNode):
            stack.extend(node.value)
    loader = _Loader("")
    try:
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML: {error}") from None
    finally:
        loader.dispose()


def _override(raw: dict[str, Any], text: str) -> tuple[str, ...]:
    """Put `section.key=value` into the parsed file; returns the key's path."""
    key, equals, value = text.partition("=")
    parts = tuple(key.strip().split("."))
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigError(f"--set {text}: should be section.key=value, for example training.max_steps=100")
    node = _compose(value, f"--set {text}")
    place: Any = raw
    for part in parts[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place
        if not isinstance(place, dict):
            raise ConfigError(f"--set {text}: {part} holds no keys in the file, so {key} cannot be set")
    place[parts[-1]] = None if node is None else _construct(node, f"--set {text}")
    return parts


def _explain(error: ValidationError, root: yaml.Node | None, overridden: list[tuple[str, ...]], path: Path) -> str:
    """One line an error: where it is in the file, the key's path, and what would be right."""
    lines = []
    for problem in error.errors():
        location = tuple(str(part) for part in problem["loc"])
        key = ".".join(location)
        if any(location[: len(parts)] == parts for parts in overridden):
            where = f"--set {key}"
        else:
            where = f"{path}:{_line_of(root, location)}"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key {key}{_suggestion(location)}")
        elif problem["type"] == "missing":
            lines.append(f"{where}: {key} is missing")
        elif problem["type"] == "value_error":
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {message}" if len(location) < 2 else f"{where}: {key}: {message}")
        else:
            message = problem["msg"].replace("Input should", "should")
            lines.append(f"{where}: {key} is {problem['input']!r}; it {message[0].lower()}{message[1:]}")
    return "\n".join(lines)


def _line_of(root: yaml.Node | None, location: tuple[str, ...]) -> int:
    """The line of a key, or of the nearest section above it that stands in the file."""
    node, line = root, 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == part:
                    node, line = value, key.start_mark.line + 1
                    break
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
    return line


def _suggestion(location: tuple[str, ...]) -> str:
    """`; did you mean ...?`, from the same section's keys first, then from the other sections'."""
    *above, key = location
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    keys_of = {
        name: list(section.model_fields)
        for name, section in sections.items()
        if isinstance(section, type) and issubclass(section, BaseModel)
    }
    if not above:
        here = list(keys_of)
    elif len(above) == 1:
        here = keys_of.get(above[0], [])
    else:
        here = list(CorpusFiles.model_fields)
    for name, keys in keys_of.items():
        if key in keys:
            return f"; did you mean {name}.{key}?"
    close = difflib.get_close_matches(key, here, n=1)
    if close:
        return f"; did you mean {'.'.join([*above, close[0]])}?"
    return f"; known here: {_listed(here)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
