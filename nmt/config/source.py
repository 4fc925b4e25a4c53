"""Kinds of source: text, vectors or images (the section `source`). Each key is documented where it is defined."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from nmt.config.section import MAX_IMAGE_SIZE, Section, Width


class TextSource(Section):
    """Text, a sentence a line."""

    type: Literal["text"] = "text"
    """The kind of source."""

    def description(self) -> str:
        """A phrase with all fields that determine how a file is read."""
        return self.type


class VectorSource(Section):
    """Sequences of vectors: speech, video frames, regions of a picture, or another model's states.

    A file with the suffix .npy holds an array (N, S, F): N sources of S vectors with F features. Sources of different
    lengths are a folder: `values.npy`, the vectors of all sources one after another, (sum of the lengths, F), and
    `offsets.npy`, int64 (N + 1): source n is `values[offsets[n]:offsets[n + 1]]`. Vectors are fp16 or fp32.
    """

    type: Literal["vectors"]
    """The kind of source."""
    features: Width
    """Number of features F of each vector."""
    convolution: bool = False
    """Shorten each source to a quarter by two convolutions with stride 2 before the encoder, for long sources such as
    speech."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Position embeddings that are added to the vectors."""

    @property
    def width(self) -> int:
        """Dimension of each vector that the model reads."""
        return self.features

    def description(self) -> str:
        """A phrase with all fields that determine how a file is read."""
        return f"{self.type} with {self.features} features"


class ImageSource(Section):
    """Images, each read as a sequence of square patches (Dosovitskiy et al. 2021).

    A file is a list: each line has the path of an image, relative to the folder of the list.
    """

    type: Literal["images"]
    """The kind of source."""
    image_size: Annotated[int, Field(ge=1, le=MAX_IMAGE_SIZE)] = 224
    """Width and height in pixels that every image is scaled to."""
    patch_size: Annotated[int, Field(ge=1, le=MAX_IMAGE_SIZE)] = 16
    """Width and height of a patch in pixels; a divisor of `image_size`. An image becomes
    `(image_size / patch_size) ** 2` patches, which `data.max_length` must allow."""
    convolution: bool = False
    """Embed the patches by convolutions with stride 2 instead of one linear map (Xiao et al. 2021); `patch_size` must
    be a power of 2."""
    positions: Literal["sinusoidal_2d", "learned"] = "sinusoidal_2d"
    """Position embeddings that are added to the patches: fixed sine waves of a patch's row and column, for which
    `model.d_model` must be a multiple of 4, or learned vectors."""

    @property
    def grid(self) -> int:
        """Number of patches in each row and column."""
        return self.image_size // self.patch_size

    @property
    def width(self) -> int:
        """Dimension of each vector that the model reads: red, green and blue of each pixel of a patch."""
        return 3 * self.patch_size**2

    def description(self) -> str:
        """A phrase with all fields that determine how a file is read."""
        return f"{self.type} of {self.image_size} pixels in patches of {self.patch_size}"

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.image_size % self.patch_size:
            raise ValueError(
                f"source.image_size ({self.image_size}) must be a multiple of source.patch_size ({self.patch_size})"
            )
        if self.convolution and (self.patch_size < 2 or self.patch_size & (self.patch_size - 1)):
            raise ValueError(f"source.convolution needs a source.patch_size of 2, 4, 8, ..., not {self.patch_size}")
        return self


def _text_by_default(raw: Any) -> Any:
    return {"type": "text", **raw} if isinstance(raw, dict) else raw


SourceConfig = Annotated[
    TextSource | VectorSource | ImageSource, Field(discriminator="type"), BeforeValidator(_text_by_default)
]
TEXT = TextSource.model_construct()  # without validation, which would load much of pydantic at start-up
