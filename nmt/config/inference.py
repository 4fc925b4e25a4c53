"""The sections of a configuration that translation reads: languages, tokenizer, model, decoding.

Each key is documented where it is defined. An exported or imported model has only these sections; training.py adds the
sections for training.
"""

from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from nmt.config.languages import check_language
from nmt.config.section import (
    MAX_LAYERS,
    MAX_LENGTH_PENALTY,
    MAX_PIECES,
    MAX_POSITIONS,
    BeamSize,
    Layers,
    Positions,
    PositiveInt,
    Rate,
    Section,
    Width,
)
from nmt.config.source import TEXT, SourceConfig

PositionKind = Literal["sinusoidal", "sin_then_cos", "marian", "sinusoidal_2d", "learned"]
"""Kinds of position embeddings; all but `learned` are sine waves (nmt/models/embeddings.py)."""
LayoutName = Literal["nmt", "marianmt", "marianmt-own-start", "marianmt-unscaled", "marian"]


class Layout(NamedTuple):
    """The properties of a family of Transformers, such as another program's, that no key of the model section sets."""

    waves: PositionKind
    """The kind of fixed positions."""
    norm_epsilon: float
    """Added to the variance in each layer normalisation."""
    scale_embeddings: bool
    """Multiply embeddings by the square root of `d_model` before the positions are added."""
    zero_bos_embedding: bool
    """Start the decoder from a vector of zeros instead of an embedding. The row of `<pad>` is then zero, too, and stays
    so in training, as programs that read such models assume."""
    output_bias: bool
    """Add a bias to the logits, one number for each piece of the target vocabulary."""


LAYOUTS: dict[LayoutName, Layout] = {
    "nmt": Layout("sinusoidal", 1e-5, scale_embeddings=True, zero_bos_embedding=False, output_bias=False),
    # Hugging Face's MarianMT: OPUS-MT's models as they were converted; those fine-tuned with transformers since, whose
    # first row is no longer zero; and those that transformers trained with its own defaults.
    "marianmt": Layout("sin_then_cos", 1e-5, scale_embeddings=True, zero_bos_embedding=True, output_bias=True),
    "marianmt-own-start": Layout(
        "sin_then_cos", 1e-5, scale_embeddings=True, zero_bos_embedding=False, output_bias=True
    ),
    "marianmt-unscaled": Layout(
        "sin_then_cos", 1e-5, scale_embeddings=False, zero_bos_embedding=False, output_bias=True
    ),
    # Marian's own files (marian-dev, src/models/transformer.h).
    "marian": Layout("marian", 1e-6, scale_embeddings=True, zero_bos_embedding=True, output_bias=True),
}


Copied = Literal["symbols", "addresses", "numbers"]
"""Kinds of text that pass through to the translation unchanged."""


class TextConfig(Section):
    """The languages and the maximum length of a sentence."""

    src_lang: str
    """The source language: an ISO 639 code (`en`, `hsb`), with a script or region where it matters (BCP 47: `zh-Hant`,
    `pt-BR`, `sr-Latn`). Default: the suffix of the first training file, such as `train.en`."""
    tgt_lang: str
    """The target language, in the same form; `evaluation.bleu_tokenizer: auto` depends on it. Default: the suffix of
    the first training file."""
    max_length: Positions = 128
    """Maximum length of a sentence in pieces. Training drops pairs with a longer side and reports their number;
    translation splits a longer source and translates its parts. A line of more than 64 KB (or 64 bytes for each of
    these pieces, if that is more) counts as longer without being tokenized."""

    @field_validator("src_lang", "tgt_lang")
    @classmethod
    def _language(cls, value: str) -> str:
        return check_language(value)


class TokenizerConfig(Section):
    """The tokenizer: splits text into pieces (subwords), the tokens that the model reads and writes."""

    type: Literal["bpe", "unigram", "char", "word", "marian"] = "bpe"
    """`bpe` (byte-pair encoding, Sennrich et al. 2016), `unigram` (Kudo 2018) and `char` (characters) are SentencePiece
    models; `word` splits at white space. `marian` is the tokenizer of an imported model (`nmt import`), not for new
    ones."""
    vocab_size: Annotated[int, Field(ge=5, le=MAX_PIECES)] = 8000
    """Number of pieces in a vocabulary, including the four special ones: the exact number for `bpe` and `unigram`, the
    maximum for `char` and `word`."""
    joint: bool = True
    """Use one vocabulary for both sides, which `model.tie_embeddings: all` needs; `false`: one for each side. With a
    source of vectors or images, only the target has a vocabulary, and `false` is an error."""
    byte_fallback: bool = True
    """Encode characters that are not in the vocabulary as bytes instead of `<unk>`; no effect on `word`."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0
    """Share of the training text's characters that the vocabulary covers; rarer ones become bytes or `<unk>`. No effect
    on `word`."""
    min_frequency: PositiveInt = 1
    """With `type: word`: minimum frequency of a word in the training text; rarer words become `<unk>`."""
    normalization: Literal["identity", "nfkc", "nmt_nfkc"] = "identity"
    """SentencePiece's normalization rule; `identity` keeps the text as it is. The nfkc rules also turn Chinese
    punctuation into ASCII, which lowers scores against references that keep it."""
    tags: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,29}$")], ...] = ()
    """Names of tags, such as `[bt]`. A training corpus with `tag: bt` has the tag before each of its sources, so that
    the model can tell them from others, such as back-translations from human text (Caswell et al. 2019). Each tag is a
    piece of the vocabulary that no text is encoded to, and that no translation contains."""
    max_train_pairs: PositiveInt = 1_000_000
    """Maximum number of training pairs that the vocabulary is built from, since SentencePiece holds them in memory.
    Larger corpora are sampled uniformly; the same corpus always gives the same vocabulary."""

    @model_validator(mode="after")
    def _different_tags(self) -> Self:
        if len(set(self.tags)) < len(self.tags):
            raise ValueError("tokenizer.tags: a tag is named twice")
        if self.type == "word" and self.vocab_size <= 4 + len(self.tags):
            raise ValueError(f"tokenizer.vocab_size ({self.vocab_size}) leaves no room for words beside the tags")
        return self


PRESETS: dict[str, dict[str, tuple[Any, ...]]] = {
    "marian": {
        "norm": ("post",), "activation": ("swish", "relu", "gelu"), "positions": ("sinusoidal",),
        "layout": ("marianmt",),
    },
}  # fmt: skip
"""The values that a preset allows for keys of the model, first its default."""


class TransformerConfig(Section):
    """The encoder-decoder Transformer (Vaswani et al. 2017)."""

    architecture: Literal["transformer"] = "transformer"
    """The kind of model."""
    preset: Literal["marian", "argos"] | None = None
    """The program that the trained model is for. Keys that are not given get the values that it needs; other values are
    errors before training. `marian`: Hugging Face's MarianMT (`nmt export huggingface`), which needs `norm: post`,
    `activation: swish`, `relu` or `gelu`, `positions: sinusoidal`, and a SentencePiece tokenizer; order of the sine
    waves, start of the decoder and bias of the logits are then MarianMT's. `argos`: Argos Translate and LibreTranslate
    (`nmt export argos`), which need one SentencePiece tokenizer for both sides. `null`: none."""
    num_encoder_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS)] = 3
    """Number of encoder layers. With a source of vectors it may be 0: the decoder then attends to the vectors
    themselves, after the model's first layer (as in Xu et al. 2015)."""
    num_decoder_layers: Layers = 3
    """Number of decoder layers."""
    d_model: Width = 256
    """Dimension of the embeddings and of the states between layers; a multiple of `num_heads`."""
    num_heads: Width = 4
    """Number of attention heads; each has `d_model / num_heads` dimensions."""
    d_ff: Width = 1024
    """Inner dimension of the feed-forward networks."""
    norm: Literal["pre", "post"] = "pre"
    """Layer normalisation before each sublayer (`pre`, trains more stably) or after it (`post`, as in Vaswani et al.
    2017)."""
    activation: Literal["relu", "gelu", "swish", "swiglu"] = "relu"
    """Activation of the feed-forward networks: `swish` is x sigmoid(x); `swiglu` (Shazeer 2020) adds a third matrix to
    each."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Position embeddings: fixed sine waves (`sinusoidal`, Vaswani et al. 2017), which need an even `d_model`, or
    `learned` vectors."""
    max_positions: Positions = 512
    """Maximum length of a source or target in pieces, including `<s>` or `</s>`."""
    dropout: Rate = 0.1
    """Dropout probability of the embeddings and of each sublayer's output."""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """Which matrices are shared: source embedding, target embedding and output projection (`all`, needs
    `tokenizer.joint: true`), target embedding and output projection (`decoder`), or none."""
    share_layers: bool = False
    """Share one set of weights among all encoder layers, and another among all decoder layers, like Marian's tied
    layers (Dabre and Fujita 2019): a much smaller model, but no faster one."""
    layout: SkipJsonSchema[LayoutName] = "nmt"
    """The key of the model's family in `LAYOUTS`. Importers and `preset: marian` set it."""

    @property
    def position_kind(self) -> PositionKind:
        """The kind of position embeddings."""
        return "learned" if self.positions == "learned" else self.family.waves

    @property
    def family(self) -> Layout:
        """The properties that `layout` stands for."""
        return LAYOUTS[self.layout]

    @property
    def has_attention(self) -> bool:
        """True if the decoder attends to the source."""
        return True

    @property
    def source_width(self) -> int:
        """Dimension of the first layer's output for a source of vectors."""
        return self.d_model

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, raw: Any) -> Any:
        """Fill in the values that a preset needs for keys that are not given."""
        needed = PRESETS.get(str(raw.get("preset"))) if isinstance(raw, dict) else None
        return raw if needed is None else {key: allowed[0] for key, allowed in needed.items()} | raw

    @model_validator(mode="after")
    def _as_the_preset_needs(self) -> Self:
        values = dict(self)
        for key, allowed in PRESETS.get(self.preset or "", {}).items():
            if (value := values[key]) not in allowed:
                if key == "layout":
                    raise ValueError(
                        f"model.preset: the base model has a layout of its own ({value}); leave out preset"
                    )
                known = " or ".join(allowed)
                raise ValueError(f"model.preset: {self.preset} needs model.{key}: {known}, not {value}")
        return self

    @model_serializer(mode="wrap")
    def _without_our_layout(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if (key, value) != ("layout", "nmt")}

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.d_model % self.num_heads:
            raise ValueError(f"model.d_model ({self.d_model}) must be divisible by model.num_heads ({self.num_heads})")
        if self.positions != "learned" and self.d_model % 2:
            raise ValueError(f"model.d_model ({self.d_model}) must be even for {self.positions} positions")
        if self.position_kind == "marian" and self.d_model < 4:
            raise ValueError(f"model.d_model ({self.d_model}) must be at least 4 for Marian's positions")
        return self


class RnnConfig(Section):
    """A recurrent encoder-decoder (Sutskever et al. 2014), usually with attention (Bahdanau et al. 2015, Luong et al.
    2015)."""

    architecture: Literal["rnn"] = "rnn"
    """The kind of model."""
    cell: Literal["gru", "lstm"] = "gru"
    """Recurrent unit of all layers: `gru` (Cho et al. 2014) or `lstm` (Hochreiter and Schmidhuber 1997)."""
    num_encoder_layers: Annotated[int, Field(ge=0, le=MAX_LAYERS)] = 1
    """Number of encoder layers; each reads its input in both directions. With a source of vectors or images it may be
    0: the decoder then attends to the vectors themselves, after the model's first layer (Xu et al. 2015)."""
    num_decoder_layers: Layers = 1
    """Number of decoder layers."""
    d_embedding: Width = 256
    """Dimension of the embeddings and of the input of the output projection."""
    d_model: Width = 512
    """Dimension of the states; even, since each direction of an encoder layer has half of it."""
    attention: Literal["additive", "dot", "general", "none"] = "additive"
    """Attention score of a decoder state s and an encoder state h: `additive`, v tanh(W s + U h) (Bahdanau et al.
    2015); `dot`, s h, or `general`, s W h (Luong et al. 2015). With `none`, the decoder starts from the last encoder
    states and knows nothing else of the source (Sutskever et al. 2014)."""
    input_feeding: bool
    """Feed the attentional vector to the decoder together with the next piece (Luong et al. 2015, section 3.3). It
    translates better but trains more slowly, because the steps of a sentence cannot be computed at once. Default:
    `true`, but `false` with `attention: none`, which has no such vector."""
    max_positions: Positions = 512
    """Maximum length of a source or target in pieces, including `<s>` or `</s>`. No weight depends on it."""
    dropout: Rate = 0.2
    """Dropout probability of the embeddings, each layer's output, and the input of the output projection."""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """Which matrices are shared: source embedding, target embedding and output projection (`all`, needs
    `tokenizer.joint: true`), target embedding and output projection (`decoder`), or none."""

    @property
    def has_attention(self) -> bool:
        """True if the decoder attends to the source."""
        return self.attention != "none"

    @property
    def source_width(self) -> int:
        """Dimension of the first layer's output for a source of vectors."""
        return self.d_embedding if self.num_encoder_layers else self.d_model

    @model_validator(mode="before")
    @classmethod
    def _feeding_where_there_is_attention(cls, raw: Any) -> Any:
        return {"input_feeding": raw.get("attention") != "none"} | raw if isinstance(raw, dict) else raw

    @model_validator(mode="after")
    def _widths(self) -> Self:
        if self.d_model % 2:
            raise ValueError(f"model.d_model ({self.d_model}) must be even: half of it for each direction")
        if self.input_feeding and self.attention == "none":
            raise ValueError("model.input_feeding: true needs attention; leave it out with model.attention: none")
        return self


def _transformer_by_default(raw: Any) -> Any:
    return {"architecture": "transformer"} | raw if isinstance(raw, dict) else raw


ModelConfig = Annotated[
    TransformerConfig | RnnConfig, Field(discriminator="architecture"), BeforeValidator(_transformer_by_default)
]


class DecodingConfig(Section):
    """Beam search and its limits."""

    beam_size: BeamSize = 5
    """Number of hypotheses kept at each step; 1 is greedy search."""
    length_penalty: Annotated[float, Field(ge=0, le=MAX_LENGTH_PENALTY)] = 1.0
    """Exponent alpha of the ranking by `log-probability / length ** alpha`; 0 prefers short translations."""
    min_length: Annotated[int, Field(ge=0)] = 1
    """Minimum length of a translation in pieces; at most 10 and `max_length`."""
    max_length: Positions = 256
    """Maximum length of a translation in pieces; less than `model.max_positions`."""
    max_length_ratio: Annotated[float, Field(gt=0)] = 3.0
    """Maximum length of a translation as a multiple of the length of its source, plus ten pieces."""
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=MAX_POSITIONS)] = 0
    """Forbid that a sequence of N pieces occurs twice in a translation, which stops loops; 0: off. N counts pieces, not
    words, as in CTranslate2 and Hugging Face: with 3, a name of three or more pieces cannot occur twice, while three
    words can if they are split differently the second time. A small N damages translations that must repeat something;
    use 0, or more pieces than the longest name has."""
    forbidden_words: tuple[Annotated[str, Field(pattern=r"\S", max_length=1000)], ...] = ()
    """Words or sequences of words that no translation may contain: `[Hund, New York]`. Case-sensitive. Longer words
    that begin with them are mostly forbidden, too ([forbidden words](translating.md#forbidden-words))."""
    lower_capitals: bool = False
    """Lowercase a source line of several words if all of its letters are capitals: a vocabulary has few pieces in
    capitals, and words split into letters are translated badly. Use it together with `augmentation.typed_input`."""
    copied: tuple[Copied, ...] = ("symbols", "addresses")
    """Kinds of input that are copied unchanged if a line, or a sentence of a typed text, consists of nothing else:
    `symbols` (emoji, punctuation), `addresses` (URLs, e-mail addresses) and `numbers` (digits without letters: 1,234.56
    stays as it is). With `symbols`, emoji at both ends of a line are copied, too. `[]`: none. Leave out `numbers` if
    the model should write numbers in another way."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of weights and matrix products in PyTorch; fp16 is for GPUs. The 16-bit formats need half the
    memory, and less time if the device has instructions for them. A CTranslate2 export is quantized instead."""
    batch_tokens: PositiveInt = 2048
    """Number of source tokens, padding included, that are translated at once; affects only speed and memory."""

    def longest_output(self, src_length: int) -> int:
        """Maximum number of tokens of a translation without `</s>`, for a source of this length."""
        return int(min(self.max_length, src_length * self.max_length_ratio + 10))

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.min_length > min(self.max_length, 10):
            raise ValueError(f"decoding.min_length ({self.min_length}) must be at most 10 and decoding.max_length")
        return self


class InferenceConfig(Section):
    """The configuration that a model needs for translation."""

    data: TextConfig
    """Languages, and the maximum length of a sentence."""
    source: SourceConfig = TEXT
    """Kind of source: text, vectors or images."""
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    """Splitting of text into pieces."""
    model: ModelConfig = Field(default_factory=TransformerConfig)
    """Architecture of the network."""
    decoding: DecodingConfig = Field(default_factory=DecodingConfig)
    """Beam search and its limits."""

    @model_validator(mode="before")
    @classmethod
    def _language_of_vectors(cls, raw: Any) -> Any:
        """Set the source language of vectors and images, if none is given: `zxx`, "no linguistic content"."""
        match raw:
            case {"source": {"type": "vectors" | "images"}, "data": dict() as data}:
                return {**raw, "data": {"src_lang": "zxx", **data}}
        return raw

    @model_validator(mode="after")
    def _source_agrees(self) -> Self:
        if self.source.type == "text":
            if self.model.num_encoder_layers == 0:
                raise ValueError("model.num_encoder_layers: 0 is for a source of vectors or images, not for text")
            return self
        if not self.tokenizer.joint:
            raise ValueError(
                f"tokenizer.joint: false is for text on both sides; with source.type: {self.source.type} only the "
                "target has a vocabulary; leave it out"
            )
        if self.source.type == "images":
            patches = self.source.grid**2
            if patches > self.data.max_length:
                raise ValueError(
                    f"an image of source.image_size {self.source.image_size} has {patches:,} patches of "
                    f"source.patch_size {self.source.patch_size}, more than data.max_length ({self.data.max_length})"
                )
        step, width = {"sinusoidal_2d": 4, "sinusoidal": 2}.get(self.source.positions, 1), self.model.source_width
        if width % step:
            key = "d_model" if width == self.model.d_model else "d_embedding"
            raise ValueError(
                f"model.{key} ({width}) must be a multiple of {step} for source.positions: {self.source.positions}"
            )
        return self

    def _preset_agrees(self) -> None:
        """Raise `ValueError` if the program of `model.preset` does not support the tokenizer or the source."""
        preset = self.model.preset if self.model.architecture == "transformer" else None
        if preset is None:
            return
        if self.source.type != "text":
            raise ValueError(f"model.preset: {preset} needs text sources, and source.type is {self.source.type}")
        if self.tokenizer.type == "word":
            raise ValueError(
                f"model.preset: {preset} needs a SentencePiece tokenizer: tokenizer.type bpe, unigram or char, not word"
            )
        if preset == "argos" and not self.tokenizer.joint:
            raise ValueError(
                "model.preset: argos needs tokenizer.joint: true: a package has one SentencePiece model for both sides"
            )

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        self._preset_agrees()
        if self.model.tie_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError("model.tie_embeddings: all needs tokenizer.joint: true; otherwise use `decoder` or `none`")
        limit = self.model.max_positions
        for section, value in (("data", self.data.max_length), ("decoding", self.decoding.max_length)):
            if value + 1 > limit:  # the pieces, and <s> or </s>
                raise ValueError(f"{section}.max_length ({value}) must be less than model.max_positions ({limit})")
        return self
