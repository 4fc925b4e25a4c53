#!/usr/bin/env python3
"""Write docs/reference.md (every key and command), docs/words.md and configs/schema.json from the code.

usage: scripts/make_reference.py [--check]

A key's text is the docstring below its field; a command's is that of its function, an option's its help. The words are
those of nmt/insight/static/glossary.yaml. --check writes nothing and fails if a file is not what the code says.
"""

import argparse
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from nmt.cli.main import app
from nmt.config.reference import Key, Variant, schema_text, sections

REPOSITORY = Path(__file__).resolve().parent.parent
GLOSSARY = REPOSITORY / "nmt" / "insight" / "static" / "glossary.yaml"
PAGE = REPOSITORY / "docs" / "reference.md"
WORDS = REPOSITORY / "docs" / "words.md"
SCHEMA = REPOSITORY / "configs" / "schema.json"
HEAD = """# Reference
<!-- Made by scripts/make_reference.py. Do not edit it: edit the docstring or the help text, and run the script. -->

Every key of a configuration and every command. `--set SECTION.KEY=VALUE` replaces a key for one command. What a key
means is the docstring below its field: in [nmt/config/inference.py](../nmt/config/inference.py) for what translating
reads, in [nmt/config/training.py](../nmt/config/training.py) and its neighbours for the rest.
"""


def page() -> str:
    """Return the whole page."""
    parts = [
        HEAD,
        *_contents(),
        *_configuration(),
        "## Commands\n",
        *_commands(typer.main.get_command(app), "nmt", None),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def words() -> str:
    """Return the page of the glossary."""
    head = "# Words\n<!-- Made by scripts/make_reference.py from nmt/insight/static/glossary.yaml. -->\n\n"
    return head + "".join(
        _wrapped(f"- **{term}**: {meaning}", "  ")
        for term, meaning in yaml.safe_load(GLOSSARY.read_text("utf-8")).items()
    )


def _contents() -> Iterator[str]:
    for section in sections():
        keys = dict.fromkeys(key.name for variant in section.inner for key in variant.keys)
        yield _wrapped(f"**{section.name}**: " + ", ".join(f"[{key}](#{section.name}{key})" for key in keys))
    names = [name for name, _, _ in _all_commands(typer.main.get_command(app), "nmt", None)]
    links = ", ".join(f"[{name.replace(' ', chr(0))}](#{name.replace(' ', '-')})" for name in names)  # kept on one line
    yield _wrapped(f"**Commands**: {links}").replace(chr(0), " ")


# Configuration


def _configuration() -> Iterator[str]:
    yield "## Configuration\n"
    for section in sections():
        yield f"### {section.name}\n"
        yield _wrapped(section.meaning)
        chooser = section.inner[0].selector.partition(":")[0]
        if chooser:
            yield "".join(_wrapped(f"- `{variant.selector}`: {variant.meaning}", "  ") for variant in section.inner)
        for name in dict.fromkeys(key.name for variant in section.inner for key in variant.keys):
            yield f"#### {section.name}.{name}\n"  # once, since links lead to headings
            keys = [(variant, key) for variant in section.inner for key in variant.keys if key.name == name]
            if name == chooser:
                yield from _choosing_key([key for _, key in keys])
            else:
                yield from _key(keys, len(section.inner))


def _choosing_key(keys: Sequence[Key]) -> Iterator[str]:
    """Yield the key whose value decides the variant of a section, as each variant has it."""
    kinds, first = [key.kind for key in keys], keys[0]
    default = " Required." if first.is_required else f" Default: {kinds[0]}."
    yield _wrapped(f"{', '.join(kinds[:-1])} or {kinds[-1]}.{default}")
    yield _wrapped(first.meaning)


def _key(keys: Sequence[tuple[Variant, Key]], num_variants: int) -> Iterator[str]:
    """Yield a key's texts: one if all variants of a section share it, or each after its variants."""
    texts: dict[str, list[str]] = {}
    for variant, key in keys:
        text = [_wrapped(f"{_type(key)}{' Required.' if key.is_required else ''}"), _wrapped(key.meaning)]
        for inner in key.inner:
            text.append("".join(_wrapped(f"- `{one.name}`: {_type(one)} {one.meaning}", "  ") for one in inner.keys))
        texts.setdefault("\n".join(text), []).append(variant.selector)
    for of_text, selectors in texts.items():
        if len(selectors) < num_variants:
            yield f"*With {' or '.join(f'`{selector}`' for selector in selectors)}:*\n"
        yield of_text


def _type(key: Key) -> str:
    """Return the type of a value, and the default if it is informative."""
    default = "" if key.default in (None, "", "[]", "{}") else f" Default: `{key.default}`."
    return f"{key.kind[0].upper()}{key.kind[1:]}.{default}"


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
        if one.epilog:  # its examples, after a mark and a heading
            yield "\n".join(["```", *(line.strip() for line in one.epilog.splitlines()[2:]), "```"]) + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    lines = textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the reference, the glossary and the schema from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    is_check = parser.parse_args().check
    for path, text in ((PAGE, page()), (WORDS, words()), (SCHEMA, schema_text())):
        if not is_check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.relative_to(REPOSITORY)} is not what the code says; run scripts/make_reference.py")


if __name__ == "__main__":
    main()
