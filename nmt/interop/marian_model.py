"""What an importer finds in somebody else's files: a model in our terms, whatever the format."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from torch import Tensor

from nmt.config.inference import TransformerConfig
from nmt.config.section import Section, first_problem
from nmt.errors import RunError
from nmt.tokenizers.marian import MarianFiles

S = TypeVar("S", bound=Section)
MAX_POSITIONS = 512
"""At least: sine waves have no end, and OPUS-MT's models were trained on sentences of up to 500 pieces."""


@dataclasses.dataclass(frozen=True)
class FoundModel:
    """A model as it was found."""

    format: str
    """`huggingface` or `marian`."""
    model: TransformerConfig
    tokenizer: MarianFiles
    weights: Mapping[str, Tensor]
    """By our names, in fp32."""
    decoding: Mapping[str, Any]
    """Keys of the `decoding` section that the files give."""
    languages: tuple[str | None, str | None] = (None, None)
    license: str | None = None
    notes: tuple[str, ...] = ()
    """What the user should know, a line each."""


def imported_section(section: type[S], values: Mapping[str, Any], where: Path) -> S:
    """The section for values of an imported configuration; `RunError` if it allows none such."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        said = str(error.errors()[0]["input"])[:80]
        raise RunError(f"{where}: {first_problem(error)}, and it says {said!r}") from None


def check_one_vocabulary(config: TransformerConfig, joint: bool, where: Path) -> None:
    """`RunError` for a model with one matrix for both sides and a vocabulary for each."""
    if config.tie_embeddings == "all" and not joint:
        raise RunError(f"{where}: source and target share their embeddings, but have a vocabulary each; not read")


def read_file(path: Path) -> bytes:
    """A file's content; `RunError` if it is missing or cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; a model to import has this file") from None


def read_object(path: Path) -> dict[str, Any]:
    """The keys and values in a file of JSON; `RunError` if it holds no such thing."""
    try:
        value = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: should hold keys and values")
    return value


class PlainLoader(yaml.SafeLoader):
    """YAML without aliases: ten lines of them can make a billion values."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node; `YAMLError` for an alias."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it holds an alias (*name), which no model needs")
        return super().compose_node(parent, index)
