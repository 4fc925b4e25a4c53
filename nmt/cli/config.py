"""`nmt config`."""

import sys
from typing import Annotated

from typer import Argument, Option

from nmt.cli.options import complete_key
from nmt.errors import ConfigError


def config(
    key: Annotated[str | None, Argument(metavar="KEY", help="A key or section.", autocompletion=complete_key)] = None,
    as_schema: Annotated[bool, Option("--json-schema", help="Print the JSON Schema, for editors.")] = False,
) -> None:
    """Print a configuration with every key explained, or explain one key."""
    if key is not None and as_schema:
        raise ConfigError("--json-schema prints all keys; leave out KEY")
    from nmt.config.reference import explanation, schema_text, template

    text = schema_text() if as_schema else template() if key is None else f"{explanation(key)}\n"
    sys.stdout.buffer.write(text.encode())  # UTF-8 on every system: it is saved as a file
