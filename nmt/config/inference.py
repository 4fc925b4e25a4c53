"""What translating reads of a configuration: languages, tokenizer, model, decoding.

Each key is documented where it is defined. A model that was exported or imported has these sections alone; what
training adds is in training.py.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nmt.languages import check_language

Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]

# Beyond any Transformer ever trained: a typing mistake is reported at once, and a configuration from elsewhere
# cannot take all memory.
MAX_LAYERS = 256
MAX_WIDTH = 1 << 17
MAX_POSITIONS = 1 << 16
MAX_PIECES = 1_000_000
MAX_BEAMS = 1_000
MAX_LENGTH_PENALTY = 10.0
Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Positions = Annotated[int, Field(ge=1, le=MAX_POSITIONS)]
BeamSize = Annotated[int, Field(ge=1, le=MAX_BEAMS)]


class Section(BaseModel):
    """What all sections share: unknown keys are refused and nothing changes after parsing."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,  # a section that is never read costs no time
        allow_inf_nan=False,
        protected_namespaces=(),
    )


class TextConfig(Section):
    """What text is translated: its languages, and how long it may be."""

    src_lang: str
    """The source language, as a code of ISO 639 (`en`, `hsb`), with a script or a region where that matters (BCP 47:
    `zh-Hant`, `pt-BR`, `sr-Latn`). Default: the suffix of the first training file."""
    tgt_lang: str
    """The target language; it also chooses the tokenizer of BLEU (`evaluation.bleu_tokenizer`)."""
    max_length: Positions = 128
    """Pairs with more pieces than this on either side are left out of training, and counted; a longer
    sentence is cut when translating, with a warning. A line of 64 KB, or of 64 bytes a piece if that is more,
    counts as longer without being looked at."""

    @field_validator("src_lang", "tgt_lang")
    @classmethod
    def _language(cls, value: str) -> str:
        return check_language(value)


class TokenizerConfig(Section):
    """How text becomes the pieces that the model sees."""

    type: Literal["bpe", "unigram", "char", "word"] = "bpe"
    """SentencePiece with byte pairs (Sennrich et al. 2016), a unigram model (Kudo 2018) or characters; or
    `word`: whatever white space separates."""
    vocab_size: Annotated[int, Field(ge=5, le=MAX_PIECES)] = 8000
    """Number of pieces, the four special ones included: exactly that many for `bpe` and `unigram`, at most
    that many for `char` and `word`."""
    joint: bool = True
    """One vocabulary for both sides, which lets the embeddings be tied, or one a side."""
    byte_fallback: bool = True
    """Write characters that are not in the vocabulary as bytes instead of `<unk>` (not for `word`)."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0
    """Share of the training text's characters that `bpe`, `unigram` and `char` must cover."""
    min_frequency: PositiveInt = 1
    """`word` only: rarer words are `<unk>`."""
    normalization: Literal["identity", "nfkc", "nmt_nfkc"] = "identity"
    """What SentencePiece rewrites first. The nfkc rules also turn Chinese punctuation into ASCII, which
    a reference that keeps it will count as errors."""
    max_train_pairs: PositiveInt = 1_000_000
    """A larger training corpus is represented by this many of its pairs, drawn evenly, when the vocabulary is built:
    SentencePiece holds what it learns from in memory. The same corpus gives the same vocabulary."""


class TransformerConfig(Section):
    """The encoder-decoder Transformer (Vaswani et al. 2017)."""

    architecture: Literal["transformer"] = "transformer"
    """Which kind of model it is."""
    num_encoder_layers: Layers = 3
    """Layers of the encoder."""
    num_decoder_layers: Layers = 3
    """Layers of the decoder."""
    d_model: Width = 256
    """Width of the states between the layers."""
    num_heads: Width = 4
    """Attention heads; `d_model` is divided among them."""
    d_ff: Width = 1024
    """Width of the feed-forward networks."""
    norm: Literal["pre", "post"] = "pre"
    """Layer normalisation before each part (trains stably without care) or after it (as in the paper)."""
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """Of the feed-forward networks; `swiglu` (Shazeer 2020) has a third matrix."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """How the model knows the place of a piece in its sentence."""
    max_positions: Positions = 512
    """Longest sequence the model can hold, in pieces."""
    dropout: Rate = 0.1
    """On the embeddings and on what each part adds to the residual stream."""
    attention_dropout: Rate = 0.0
    """On the attention weights."""
    activation_dropout: Rate = 0.0
    """Inside the feed-forward networks, after the activation."""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """Which matrices are one: source, target and output (`all`, needs a joint vocabulary), target and
    output (`decoder`), or none."""
    output_bias: bool = False
    """A bias on the logits, one number a piece of the target vocabulary."""

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.d_model % self.num_heads:
            raise ValueError(f"model.d_model ({self.d_model}) must be divisible by model.num_heads ({self.num_heads})")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"model.d_model ({self.d_model}) must be even for sinusoidal positions")
        return self


# A second joins as `Annotated[A | B, Field(discriminator="architecture"), BeforeValidator(transformer_by_default)]`.
ModelConfig = TransformerConfig


class DecodingConfig(Section):
    """How a translation is searched for."""

    beam_size: BeamSize = 5
    """Hypotheses kept at each step; 1 is greedy search."""
    length_penalty: Annotated[float, Field(ge=0, le=MAX_LENGTH_PENALTY)] = 1.0
    """Alpha: a hypothesis is ranked by its log-probability over length ** alpha; 0 prefers short ones."""
    min_length: Annotated[int, Field(ge=0)] = 1
    """Fewest pieces of a translation."""
    max_length: Positions = 256
    """Most pieces of a translation."""
    max_length_ratio: Annotated[float, Field(gt=0)] = 3.0
    """A translation also has at most this many times the source's pieces, and ten more."""
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=MAX_POSITIONS)] = 0
    """No N pieces in a row may occur twice in a translation, which stops loops; 0 allows any. It counts pieces, not
    words, as in CTranslate2 and Hugging Face: with 3, a name or word that is cut into three or more pieces cannot occur
    twice, while three words in a row can if they are cut in another way the second time. A small N harms what must be
    said twice; 0, or an N above the pieces of the longest name, keeps it."""
    lower_capitals: bool = False
    """Translate a line of several words in capitals alone as if it were in lowercase: few capitals are in a
    vocabulary, and spelled out letter by letter they are translated badly. Goes with `augmentation.lower_case`."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of PyTorch's weights and products: half of it takes half of the memory, and less time where a device has
    instructions for it; fp16 is for GPUs. An export for CTranslate2 has a quantization instead."""
    batch_tokens: PositiveInt = 2048
    """Padded source positions that are translated at once; changes speed and memory alone."""

    def longest_output(self, src_length: int) -> int:
        """Most tokens of a translation, from its source's length alone, without `</s>`."""
        return int(min(self.max_length, src_length * self.max_length_ratio + 10))

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.min_length > min(self.max_length, 10):
            raise ValueError(f"decoding.min_length ({self.min_length}) must be at most 10 and decoding.max_length")
        return self


class InferenceConfig(Section):
    """All that a model needs in order to translate."""

    data: TextConfig
    """Which languages, and how long a sentence may be."""
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    """How text becomes pieces."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The shape of the network."""
    decoding: DecodingConfig = Field(default_factory=DecodingConfig)
    """How a translation is searched for."""

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.model.tie_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError("model.tie_embeddings: all needs tokenizer.joint: true; else use `decoder` or `none`")
        # One more than the pieces: the target carries <s> or </s>, the source </s>.
        for key, value in (
            ("data.max_length", self.data.max_length),
            ("decoding.max_length", self.decoding.max_length),
        ):
            if value + 1 > self.model.max_positions:
                raise ValueError(f"{key} ({value}) must be less than model.max_positions ({self.model.max_positions})")
        return self
