"""The base of a configuration's sections, the limits of their numbers, and the variants of a section."""

from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]

# Larger than in any model so far: a typing error is reported at once, and an untrusted configuration cannot
# exhaust the memory.
MAX_LAYERS = 256
MAX_WIDTH = 1 << 17
MAX_POSITIONS = 1 << 16
MAX_PIECES = 1_000_000
MAX_BEAMS = 1_000
MAX_LENGTH_PENALTY = 10.0
MAX_IMAGE_SIZE = 4_096
Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Positions = Annotated[int, Field(ge=1, le=MAX_POSITIONS)]
BeamSize = Annotated[int, Field(ge=1, le=MAX_BEAMS)]

ModelPart = Literal["embeddings", "encoder", "decoder", "output"]
"""The parts of every model, of which `output` is the projection to the vocabulary."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, and values cannot change after parsing."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,  # saves time where a section is never read
        allow_inf_nan=False,
        protected_namespaces=(),
    )


def first_problem(error: ValidationError) -> str:
    """The first problem that a validation found: the key, and what is wrong."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'its content'}: {first['msg']}"


def shown_keys(section: type[BaseModel]) -> list[str]:
    """The keys that users see: all but those of type `SkipJsonSchema`, which nmt writes itself."""
    return list(section.model_json_schema()["properties"])


def variants(annotation: Any) -> list[type[BaseModel]]:
    """The classes of mappings within a type, in order: one, several that a key distinguishes, or none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [variant for part in get_args(annotation) for variant in variants(part)]


def selector_of(section: type[BaseModel]) -> tuple[str, str]:
    """The key that distinguishes a variant from the others, and its value; ('', '') if there is none."""
    for name, field in section.model_fields.items():
        values = get_args(field.annotation)
        if get_origin(field.annotation) is Literal and len(values) == 1:
            return name, str(values[0])
    return "", ""
