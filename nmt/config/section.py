"""The base class of configuration sections, and the limits of their numbers."""

import ast
import inspect
import itertools
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, InitErrorDetails

Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]

# Larger than in any model so far, so that a typing error is reported at once, and an untrusted configuration cannot
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
    """The base of all sections: unknown keys are errors, and values cannot change after parsing."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,  # saves time where a section is never read
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, raw: Any) -> Any:
        """Refuse true and false for a number; pydantic takes them as 1 and 0."""
        wrong: list[InitErrorDetails] = [
            {"type": "float_type" if float in types else "int_type", "loc": (key,), "input": value}
            for key, value in (raw.items() if isinstance(raw, dict) else ())
            if isinstance(value, bool) and key in cls.model_fields
            if {int, float} & (types := {*_plain_types(cls.model_fields[key].annotation)}) and bool not in types
        ]
        if wrong:
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return raw

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """pydantic's JSON Schema, with the docstring below each field as its description."""
        # pydantic's own setting, use_attribute_docstrings, adds 0.1 s to the start of every command.
        schema = handler.resolve_ref_schema(handler(core_schema))
        keys = schema["properties"]
        for section in (base for base in reversed(cls.__mro__) if issubclass(base, Section)):
            (definition,) = ast.parse(inspect.getsource(section)).body
            assert isinstance(definition, ast.ClassDef)
            for statements in itertools.pairwise(definition.body):
                match statements:
                    case (ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=text))):
                        if key in keys:  # rather than one that nmt writes itself
                            keys[key]["description"] = text
        return schema


def _plain_types(annotation: Any) -> Iterator[Any]:
    """The types of an annotation, inside unions and `Annotated`."""
    inner = get_args(annotation)
    if not inner or get_origin(annotation) is Literal:
        yield annotation
    for one in inner if get_origin(annotation) in (Annotated, Union, UnionType) else ():
        yield from _plain_types(one)


def first_problem(error: ValidationError) -> str:
    """The first problem of a failed validation: the key, and what is wrong."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'its content'}: {first['msg']}"
