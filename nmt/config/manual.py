"""The configuration as text: a YAML file with every key explained, and what `nmt config KEY` says about one.

In the YAML, a comment has a space after its #, and a key that is switched off has none: `#src_lang: en`.
"""

import textwrap
from collections.abc import Iterator

from nmt.config.reference import Key, Place, Variant, nearest, places, sections
from nmt.errors import ConfigError
from nmt.version import __version__

_WIDTH = 100

# Values of what has no default, and one limit of the training, so that the file is a configuration as it is.
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

# Editors look for the line about the schema in any comment, so that it may not be spelled out here.
_HEAD = f"""\
# Every key of a configuration with its default (nmt {__version__}, nmt config).
#
# What a file leaves out has its default. It needs data.train, and training.max_steps, max_epochs or
# max_minutes; their values here are examples, as are the files of data.validation, which may be left
# out or be {{holdout: 1000}}. Relative paths start at the file's folder.
# A key with # directly before it is switched off: remove the # to use it. nmt config KEY explains one.
#
# To complete and check keys in an editor: nmt config --json-schema > schema.json, and as the first line
# yaml-language-server: $schema=schema.json, after a # and a space."""


def template() -> str:
    """A YAML configuration with every key, its meaning, and its default or an example.

    The variants of a section that are not the default follow it, switched off.
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
    yield from _keys(variant, section.name, "  ", off, seen)


def _keys(variant: Variant, path: str, indent: str, off: str, seen: set[str]) -> Iterator[str]:
    for key in variant.keys:
        here = f"{path}.{key.name}"
        text = f"{_plain(key.kind[:1].upper() + key.kind[1:])}.{' Required.' if key.is_required else ''} {key.meaning}"
        if f"{key.name}: {text}" not in seen:  # explained once, as long as it means the same
            yield from _wrapped(text, f"{indent}# ")
        seen.add(f"{key.name}: {text}")
        if key.inner and (key.default is None or (key.default == "{}" and not key.is_named)):
            yield f"{indent}{off}{key.name}:"
            yield from _keys(key.inner[0], here, indent + "  ", off, seen)
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
    """Type, default and meaning of a key and those inside it, or of every key of a section, for a terminal.

    `ConfigError` with the nearest names if there is no such key.
    """
    found = [place for place in places() if f"{place.path}.".startswith(f"{name}.")]
    if not found:
        names = [section.name for section in sections()]
        close = nearest(name, [*names, *(place.path for place in places())]) or names
        raise ConfigError(f"{name}: there is no such key; did you mean {_either(close)}?")
    heads = ["\n".join([name, *_wrapped(section.meaning, "  ")]) for section in sections() if section.name == name]
    return "\n\n".join([*heads, *_explained(found)])


def _explained(found: list[Place]) -> Iterator[str]:
    """A paragraph for each key; what is the same in several variants of a section is said once."""
    selectors_of: dict[tuple[str, str], list[str]] = {}
    for place in found:
        key = place.key
        default = key.default or ("none; it is required" if key.is_required else "depends on other keys")
        lines = [f"  type: {_plain(key.kind)}", f"  default: {default}", *_wrapped(key.meaning, "  ")]
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


def _plain(kind: str) -> str:
    return kind.replace("`", "")
