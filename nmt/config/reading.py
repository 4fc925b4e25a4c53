"""Reading a YAML file into a `Config` or an `InferenceConfig`.

An unknown or repeated key, or an invalid value, is an error that names the key, its line and what would be valid. Paths
in a file are relative to its folder. `--set section.key=value` replaces single values, written as in YAML.
"""

import re
import reprlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from nmt.config.data import DataConfig
from nmt.config.inference import InferenceConfig, TextConfig
from nmt.config.reference import nearest, places, sections
from nmt.config.training import Config
from nmt.errors import ConfigError

Schema = TypeVar("Schema", bound=InferenceConfig)


def load_config(
    path: Path, overrides: Iterable[str] = (), complete: Callable[[dict[str, Any]], None] | None = None
) -> Config:
    """Read the configuration of a whole run.

    `overrides` are `section.key=value` texts; their values are YAML. `complete` sees the sections after them, and fills
    in keys before they are validated. Raises `ConfigError` if the file cannot be read or a value is invalid.
    """
    root, raw = _parse(path, Config)
    overridden = [override(raw, text) for text in overrides]
    if complete is not None:
        complete(raw)
    return _validate(raw, Config, _Input(path, root, overridden))


def load_inference_config(path: Path) -> InferenceConfig:
    """Read what translation needs from the configuration of an exported model or of a whole run.

    Sections and keys that only training reads are skipped. Raises `ConfigError` as `load_config` does.
    """
    root, raw = _parse(path, InferenceConfig)
    raw = _without(raw, Config, InferenceConfig)
    if isinstance(data := raw.get("data"), dict):
        raw["data"] = _without(data, DataConfig, TextConfig)
    return _validate(raw, InferenceConfig, _Input(path, root, []))


def holds_training_config(path: Path) -> bool:
    """True if a file is the configuration of a whole run, with the sections for training."""
    return "training" in _parse(path, InferenceConfig)[1]


def _parse(path: Path, schema: type[BaseModel]) -> tuple[yaml.Node | None, dict[str, Any]]:
    """The YAML of a file as nodes, which have line numbers, and as values."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; name a configuration, for example configs/tiny.yaml") from None
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise ConfigError(f"{path}:{line}: not a configuration: it is not UTF-8 ({error.reason}); convert it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read as a configuration: {reason}") from None
    root, raw = _yaml(text, str(path))
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: not a configuration; it should hold the sections {', '.join(schema.model_fields)}")
    return root, raw


def _without(raw: dict[str, Any], larger: type[BaseModel], smaller: type[BaseModel]) -> dict[str, Any]:
    """`raw` without the keys that only `larger` has."""
    skipped = larger.model_fields.keys() - smaller.model_fields.keys()
    return {key: value for key, value in raw.items() if key not in skipped}


class _Input(NamedTuple):
    """The file and options that a configuration comes from, to locate errors."""

    path: Path
    root: yaml.Node | None
    overridden: Sequence[tuple[str, ...]]
    """The keys that `--set` replaced."""


def _validate(raw: dict[str, Any], schema: type[Schema], given: _Input) -> Schema:
    """The values of a file as a `schema`. Raises `ConfigError` with a line for each invalid value."""
    folder = given.path.parent.resolve()
    try:
        return schema.model_validate(raw, context={"folder": folder, "stem": given.path.stem})
    except ValidationError as error:
        raise ConfigError(_explain(error, schema, given)) from None


# Lone surrogates, which YAML can write as "\\ud800", and NUL.
_UNWRITABLE = re.compile("[\ud800-\udfff\0]")


class _Loader(yaml.SafeLoader):
    """YAML's safe loader without the surprises of YAML 1.1: `no` (Norwegian) as false, `1e-3` as text, dates,
    `0100` as 64, `1:30` as 90."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The node's value; a YAML error with its line if the safe loader raises an unrelated exception."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError):  # such as `!!int x` and `0x_`
            raise _problem(node, f"{_short(node.value)} is not of the type {node.tag.rpartition(':')[2]}") from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The node's values; an error for a repeated key, of which YAML would silently keep the last, and for `<<`.

        The key `<<` copies a mapping into another; ten lines of it can make a billion keys.
        """
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                raise _problem(key, "a key is one word, not a list or a mapping")
            if key.tag == "tag:yaml.org,2002:merge":
                raise _problem(key, "the key << is not supported; write out the keys that it copies")
            if key.value in seen:
                raise _problem(key, f"the key {key.value!r} occurs twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """The node's text; an error for characters that no name or text may hold."""
        if isinstance(node.value, str) and _UNWRITABLE.search(node.value):
            raise _problem(node, f"{_short(node.value)} holds a character that is not allowed in a name or text")
        return super().construct_scalar(node)


def _problem(node: yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag.rpartition(":")[2] not in ("bool", "timestamp", "int", "float")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][\d_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.[\d_]*|\.\d[\d_]*|\d+(?=[eE]))(?:[eE][-+]?\d+)?$|^[-+]?\.inf$|^\.nan$"),
    list("-+.0123456789"),
)


class _Dumper(yaml.SafeDumper):
    """YAML's safe dumper, which quotes text that `_Loader` would read as another type."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def to_yaml(config: InferenceConfig) -> str:
    """The configuration as YAML, with all defaults; reading it gives an equal configuration."""
    return settings_to_yaml(config.model_dump(mode="json"))


def settings_to_yaml(sections: Mapping[str, Any]) -> str:
    """Settings by section and key, as YAML that `load_config` reads."""
    text: str = yaml.dump(sections, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def _yaml(text: str, where: str) -> tuple[yaml.Node | None, Any]:
    """The node and the value of a text; both are None for an empty one."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return root, None if root is None else loader.construct_document(root)
    except yaml.reader.ReaderError as error:
        line = f"{where}:{1 + text.count(chr(10), 0, error.position)}"
        raise ConfigError(f"{line}: not valid YAML: it holds the character U+{error.character:04X}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{where}:{mark.line + 1}" if mark else where
        raise ConfigError(f"{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise ConfigError(f"{where}: its lists or mappings are nested too deeply") from None


def override(raw: dict[str, Any], text: str) -> tuple[str, ...]:
    """Apply `section.key=value` to settings by section and key, and return the key's path.

    Raises `ConfigError` for any other form.
    """
    key, equals, value = text.partition("=")
    parts = tuple(key.strip().split("."))
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigError(f"--set {text}: should be section.key=value, for example training.max_steps=100")
    place: Any = raw
    for part in parts[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place
        if not isinstance(place, dict):
            raise ConfigError(f"--set {text}: {part} holds no keys in the file, so {key} cannot be set")
    _, place[parts[-1]] = _yaml(value, f"--set {text}")
    return parts


def _explain(error: ValidationError, schema: type[BaseModel], given: _Input) -> str:
    """A line for each error: its line in the file, the key's path, and what would be valid."""
    lines = []
    problems = error.errors()
    for problem in problems:
        # pydantic also reports a list as too short if its only item is invalid.
        if problem["type"] == "too_short" and any(
            other["loc"][: len(problem["loc"])] == problem["loc"] for other in problems if other is not problem
        ):
            continue
        keys, known_as, variant, wanted = _located(schema, problem["loc"])
        value = problem["input"]
        if problem["type"] == "union_tag_invalid":
            keys.append(problem["ctx"]["discriminator"].strip("'"))
            value, wanted = problem["ctx"]["tag"], f"one of {problem['ctx']['expected_tags']}"
        location, line = _find(given.root, keys)
        key = ".".join(location)
        if any(location[: len(parts)] == parts or (not line and parts[: len(location)] == location)
               for parts in given.overridden):  # fmt: skip
            where = f"--set {key}".rstrip()
        else:
            where = f"{given.path}:{line or 1}"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key {key}{_suggestion(schema, location, known_as, variant)}")
        elif problem["type"] == "missing":
            lines.append(f"{where}: {key} is missing")
        elif problem["type"] == "value_error":
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {message}" if len(location) < 2 else f"{where}: {key}: {message}")
        else:
            message = f"it should be: {wanted}" if wanted else re.sub(r"^\w+ should", "it should", problem["msg"])
            lines.append(f"{where}: {key} is {_short(value)}; {message[0].lower()}{message[1:]}")
    return "\n".join(dict.fromkeys(lines))


def _located(schema: type[BaseModel], location: Iterable[int | str]) -> tuple[list[str], str, str, str]:
    """A pydantic location as the keys in a file, the path of the key in `places`, and two texts that may be ''.

    The first text is the variant of a section that has several: pydantic's location names it after the section, as in
    model, transformer, d_ff. The second describes the valid values if pydantic reports an error for each alternative:
    for `training.batch_tokens`, a number or `auto`, one ends in `constrained-int`, the other in `literal['auto']`.
    """
    has_variants = {section.name: len(section.inner) > 1 for section in sections(schema)}
    known = {place.path: place.key for place in places(schema)}
    keys: list[str] = []
    path = variant = ""
    for part in map(str, location):
        key, inner = known.get(path), f"{path}.{part}" if path else part
        if has_variants.get(path) and not variant:
            variant = part
            continue
        if key is not None and key.is_named:
            path += ".NAME"
        elif inner not in known and key is not None and not key.inner and not part.isdigit():
            return keys, path, variant, key.kind.replace("`", "")
        elif not part.isdigit():
            path = inner
        keys.append(part)
    return keys, path, variant, ""


def _find(root: yaml.Node | None, location: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """A key's path as written in the file, and its line.

    For a missing key, the line of the nearest section above it, or 0 if there is none. The path has no list index if
    the file has a single item instead of a list.
    """
    node, line, path = root, 0, []
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == part]
            if not found and part.isdigit():
                continue
            for key, value in found:
                node, line = value, key.start_mark.line + 1
            if not found:
                node = None
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
        path.append(part)
    return tuple(path), line


def _suggestion(schema: type[BaseModel], location: Sequence[str], path: str, variant: str) -> str:
    """`; did you mean ...?` with the same key elsewhere or a similar key here, otherwise the keys beside it."""
    known = [section.name for section in sections(schema)]
    known += [
        place.path for place in places(schema) if not (variant and place.selector) or place.selector.endswith(variant)
    ]
    above, (section, _, name) = location[:-1], path.rpartition(".")
    here = [one for one in known if one.rpartition(".")[0] == section]
    is_elsewhere = any(one.rpartition(".")[2] == name for one in known)
    is_of_another_variant = any(place.path == path for place in places(schema))
    if not is_of_another_variant and (near := nearest(path, known if is_elsewhere else here)):
        near_section, _, key = near[0].rpartition(".")
        return f"; did you mean {'.'.join([*above, key]) if near_section == section else near[0]}?"
    return f"; known here: {', '.join(one.rpartition('.')[2] for one in here)}"


def _short(value: object) -> str:
    """The value's `repr`, abbreviated if long: by aliases, a line of YAML can hold a billion words."""
    shortened = reprlib.Repr()
    shortened.maxlevel, shortened.maxstring, shortened.maxother = 2, 100, 100
    try:
        return shortened.repr(value)
    except ValueError:
        return "a number of thousands of digits"
