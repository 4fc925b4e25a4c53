"""Layouts of imported Transformers: the differences of another program's models, by the name of their family."""

from typing import Literal, NamedTuple

PositionKind = Literal["sinusoidal", "halves", "marian", "learned"]
"""Kinds of position embeddings; those but `learned` are sine waves (nmt/models/positions.py)."""
LayoutName = Literal["nmt", "marianmt", "marianmt-own-start", "marianmt-unscaled", "marian"]


class Layout(NamedTuple):
    """The properties of a family's Transformers that no key of the model section decides."""

    waves: PositionKind
    """The kind of the fixed positions."""
    norm_epsilon: float
    """Added to the variance in each layer normalisation."""
    scale_embeddings: bool
    """Whether embeddings are multiplied by the root of `d_model` before the positions are added."""
    zero_start: bool
    """Whether the decoder starts from a vector of zeros instead of an embedding. The row of `<pad>` is then zero, too,
    and stays so in training, as programs that read such models assume."""
    output_bias: bool
    """Whether the logits have a bias, one number for each piece of the target vocabulary."""


LAYOUTS: dict[LayoutName, Layout] = {
    "nmt": Layout("sinusoidal", 1e-5, scale_embeddings=True, zero_start=False, output_bias=False),
    # Hugging Face's MarianMT: OPUS-MT's models as they were converted; those fine-tuned with transformers since, whose
    # first row is no longer zero; and those that transformers trained from its own defaults.
    "marianmt": Layout("halves", 1e-5, scale_embeddings=True, zero_start=True, output_bias=True),
    "marianmt-own-start": Layout("halves", 1e-5, scale_embeddings=True, zero_start=False, output_bias=True),
    "marianmt-unscaled": Layout("halves", 1e-5, scale_embeddings=False, zero_start=False, output_bias=True),
    # Marian's own files (marian-dev, src/models/transformer.h).
    "marian": Layout("marian", 1e-6, scale_embeddings=True, zero_start=True, output_bias=True),
}
