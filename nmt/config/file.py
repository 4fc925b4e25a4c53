"""Reading a YAML file into a `Config` or an `InferenceConfig`.

An unknown or repeated key, or an invalid value, is an error that names the key, its line and what would be valid. Paths
in a file are relative to its folder. `--set section.key=value` replaces single values, written as in YAML.
"""

import difflib
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from nmt.config.corpus import HeldOutFiles, TrainingFiles
from nmt.config.data import DataConfig
from nmt.config.inference import InferenceConfig, TextConfig
from nmt.config.section import selector_of, shown_keys, variants
from nmt.config.training import Config
from nmt.errors import ConfigError

Schema = TypeVar("Schema", bound=BaseModel)
Completion = Callable[[dict[str, Any]], None]
"""Fills in keys of a file's sections that it does not give, before they are validated."""


def read_config(
    path: Path, schema: type[Schema], overrides: Iterable[str] = (), complete: Completion | None = None
) -> Schema:
    """Read a file into a `schema`.

    `overrides` are `section.key=value` texts; their values are YAML. `complete` sees the values after them.
    Raises `ConfigError` if the file cannot be read or a value is invalid.
    """
    root, raw = _parse(path, schema)
    overridden = [_override(raw, text) for text in overrides]
    if complete is not None:
        complete(raw)
    return _validate(raw, schema, root, path, overridden)


def load_config(path: Path, overrides: Iterable[str] = (), complete: Completion | None = None) -> Config:
    """Read the configuration of a whole run, as `read_config` does."""
    return read_config(path, Config, overrides, complete)


def load_inference_config(path: Path) -> InferenceConfig:
    """Read what translation needs from the configuration of an exported model or of a whole run.

    Sections and keys that only training reads are skipped. Raises `ConfigError` as `load_config` does.
    """
    root, raw = _parse(path, InferenceConfig)
    raw = _without(raw, Config, InferenceConfig)
    if isinstance(data := raw.get("data"), dict):
        raw["data"] = _without(data, DataConfig, TextConfig)
    return _validate(raw, InferenceConfig, root, path)


def holds_training_config(path: Path) -> bool:
    """Whether a file is the configuration of a whole run, with the sections for training."""
    return "training" in _parse(path, InferenceConfig)[1]


def _parse(path: Path, schema: type[BaseModel]) -> tuple[yaml.Node | None, dict[str, Any]]:
    """A file's YAML as nodes, which have line numbers, and as values."""
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
    root = _compose(text, str(path))
    raw = _construct(root, str(path)) if root is not None else None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: not a configuration; it should hold the sections {', '.join(schema.model_fields)}")
    return root, raw


def _without(raw: dict[str, Any], larger: type[BaseModel], smaller: type[BaseModel]) -> dict[str, Any]:
    """`raw` without the keys that only `larger` has."""
    skipped = larger.model_fields.keys() - smaller.model_fields.keys()
    return {key: value for key, value in raw.items() if key not in skipped}


def _validate(
    raw: dict[str, Any],
    schema: type[Schema],
    root: yaml.Node | None,
    path: Path,
    overridden: Sequence[tuple[str, ...]] = (),
) -> Schema:
    """The values of a file as a `schema`; `ConfigError`, with a line for each invalid value, if there are any."""
    try:
        return schema.model_validate(raw, context={"folder": path.parent.resolve(), "stem": path.stem})
    except ValidationError as error:
        raise ConfigError(_explain(error, schema, root, overridden, path)) from None


class _Loader(yaml.SafeLoader):
    """YAML's safe loader without surprises of YAML 1.1: `no` (Norwegian) as false, `1e-3` as text, dates."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The node's value; a YAML error with its line where the safe loader raises an unrelated exception."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError):  # such as `!!int x` and `0x_`
            kind = node.tag.rpartition(":")[2]
            problem = f"{_short(node.value)} is not of the type {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would otherwise read as another type."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def with_overrides(sections: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Settings by section and key, after `section.key=value` texts; `ConfigError` for one that is not of this form."""
    for text in overrides:
        _override(sections, text)
    return sections


def to_yaml(config: InferenceConfig) -> str:
    """The configuration as YAML, with all defaults; reading it gives an equal configuration."""
    return settings_to_yaml(config.model_dump(mode="json"))


def settings_to_yaml(sections: Mapping[str, Any]) -> str:
    """Some settings by section and key, as YAML that `read_config` reads."""
    text: str = yaml.dump(sections, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def _compose(text: str, where: str) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        line = f"{where}:{1 + text.count(chr(10), 0, error.position)}"
        raise ConfigError(f"{line}: not valid YAML: it holds the character U+{error.character:04X}") from None
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from None
    except RecursionError:
        raise ConfigError(f"{where}: its lists or mappings are nested too deeply") from None
    return root


def _not_yaml(error: yaml.YAMLError, where: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    line = f"{where}:{mark.line + 1}" if mark else where
    return ConfigError(f"{line}: not valid YAML: {getattr(error, 'problem', None) or error}")


def _construct(root: yaml.Node, where: str) -> Any:
    """The node's value; `ConfigError` for a repeated key, since YAML would silently keep the last, and for `<<`.

    The key `<<` copies a mapping into another; ten lines of it can make a billion keys.
    """
    stack, visited = [root], set()
    while stack:
        node = stack.pop()
        if id(node) in visited:  # referred to by an alias
            continue
        visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                line = f"{where}:{key.start_mark.line + 1}"
                if not isinstance(key, yaml.ScalarNode):
                    raise ConfigError(f"{line}: a key is one word, not a list or a mapping")
                if key.tag == "tag:yaml.org,2002:merge":
                    raise ConfigError(f"{line}: the key << is not supported; write out the keys that it would copy")
                if key.value in seen:
                    raise ConfigError(f"{line}: the key {key.value!r} occurs twice")
                seen.add(key.value)
                stack.append(value)
        elif isinstance(node, yaml.SequenceNode):
            stack.extend(node.value)
        elif _UNWRITABLE.search(node.value):
            line = f"{where}:{node.start_mark.line + 1}"
            raise ConfigError(f"{line}: {_short(node.value)} holds a character that is not allowed in a name or text")
    loader = _Loader("")
    try:
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from None
    finally:
        loader.dispose()


def _override(raw: dict[str, Any], text: str) -> tuple[str, ...]:
    """Apply `section.key=value` to the parsed file; returns the key's path."""
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


def _explain(
    error: ValidationError,
    schema: type[BaseModel],
    root: yaml.Node | None,
    overridden: Sequence[tuple[str, ...]],
    path: Path,
) -> str:
    """One line an error: its line in the file, the key's path, and what would be valid."""
    lines = []
    problems = error.errors()
    for problem in problems:
        # pydantic also reports a list as too short if its only item is invalid.
        if problem["type"] == "too_short" and any(
            other["loc"][: len(problem["loc"])] == problem["loc"] for other in problems if other is not problem
        ):
            continue
        keys, variant = _split_location(schema, [str(part) for part in problem["loc"]])
        keys, wanted = _without_alternative(schema, keys)
        if problem["type"] == "union_tag_invalid":
            keys.append(problem["ctx"]["discriminator"].strip("'"))
        location, line = _find(root, keys)
        key = ".".join(location)
        if any(location[: len(parts)] == parts or (not line and parts[: len(location)] == location)
               for parts in overridden):  # fmt: skip
            where = f"--set {key}".rstrip()
        else:
            where = f"{path}:{line or 1}"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key {key}{_suggestion(schema, location, variant)}")
        elif problem["type"] == "missing":
            lines.append(f"{where}: {key} is missing")
        elif wanted:
            lines.append(f"{where}: {key} is {_short(problem['input'])}; it should be: {wanted}")
        elif problem["type"] == "union_tag_invalid":
            context = problem["ctx"]
            lines.append(f"{where}: {key} is {_short(context['tag'])}; it should be one of {context['expected_tags']}")
        elif problem["type"] == "value_error":
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {message}" if len(location) < 2 else f"{where}: {key}: {message}")
        else:
            message = re.sub(r"^\w+ should", "it should", problem["msg"])
            lines.append(f"{where}: {key} is {_short(problem['input'])}; {message[0].lower()}{message[1:]}")
    return "\n".join(dict.fromkeys(lines))


def _split_location(schema: type[BaseModel], location: list[str]) -> tuple[list[str], str]:
    """A pydantic location as the keys in a file, and the variant of the section ('' if it has only one).

    For a section with several variants, pydantic's location names one after the section: model, transformer, d_ff.
    """
    field = schema.model_fields.get(location[0]) if location else None
    if field is None or len(location) < 2 or len(variants(field.annotation)) < 2:
        return location, ""
    return [location[0], *location[2:]], location[1]


def _without_alternative(schema: type[BaseModel], location: list[str]) -> tuple[list[str], str]:
    """A location without what pydantic adds for each alternative of a value, and all of them in words; '' if it adds
    nothing.

    For `training.batch_tokens`, a number or `auto`, pydantic reports two errors: one with `constrained-int` at the end
    of its location, the other with `literal['auto']`.
    """
    sections, path = [schema], ""
    for index, part in enumerate(location):
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        if fields:
            sections = [inner for field in fields for inner in variants(field.annotation)]
            path += f".{part}"
        elif sections and not part.isdigit():
            path += ".NAME"  # of a test set, or an unknown key
        elif not part.isdigit():
            from nmt.config.keys import places  # takes time

            kinds = [place.key.kind for place in places() if place.path == path[1:]]
            return location[:index], kinds[0].replace("`", "") if kinds else ""
    return location, ""


def _find(root: yaml.Node | None, location: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """A key's path as written in the file, and its line.

    For a missing key, the line of the nearest section above it, or 0 if there is none. A list index is left out of the
    path where the file has a single item instead of a list.
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


def _suggestion(schema: type[BaseModel], location: tuple[str, ...], variant: str) -> str:
    """`; did you mean ...?` with the same key elsewhere or a similar one in this section, else its keys."""
    *above, key = location
    keys_of = {name: _keys(field.annotation, variant) for name, field in schema.model_fields.items()}
    if not above:
        here = list(keys_of)
    elif len(above) == 1:
        here = keys_of.get(above[0], [])
    else:
        here = shown_keys(TrainingFiles if above[1] == "train" else HeldOutFiles)
    for name, keys in keys_of.items():
        if key in keys:
            return f"; did you mean {name}.{key}?"
    close = difflib.get_close_matches(key, here, n=1)
    if close:
        return f"; did you mean {'.'.join([*above, close[0]])}?"
    return f"; known here: {', '.join(here)}"


def _keys(section: Any, variant: str) -> list[str]:
    """The keys of a section; if it has several variants, those of the one with this name in a `Literal`."""
    classes = variants(section)
    named = [one for one in classes if selector_of(one)[1] == variant]
    return [key for one in named or classes for key in shown_keys(one)]


# Half of a surrogate pair, which YAML can write as "\\ud800", and NUL.
_UNWRITABLE = re.compile("[\ud800-\udfff\0]")


def _short(value: object) -> str:
    """The value's `repr`, abbreviated if long: with aliases, a line of YAML can hold a billion words."""
    shortened = reprlib.Repr()
    shortened.maxlevel, shortened.maxstring, shortened.maxother = 2, 100, 100
    try:
        return shortened.repr(value)
    except ValueError:
        return "a number of thousands of digits"
