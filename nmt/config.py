"""The configuration of a run: seven sections, each documented where it is defined.

A YAML file is parsed once (config_file.py) into these frozen objects; every part of the program is then
given its own section and nothing else. What the file may hold is exactly what the classes below hold.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from nmt.languages import check_language, language_suffix


def _relative_to_config(path: Path, info: ValidationInfo) -> Path:
    folder = info.context.get("folder") if isinstance(info.context, dict) else None
    try:
        path = path.expanduser()
    except RuntimeError as error:  # ~nobody
        raise ValueError(str(error)) from None
    return Path(folder, path).resolve() if folder else path


ConfigPath = Annotated[Path, AfterValidator(_relative_to_config)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]
Metric = Literal["bleu", "chrf", "ter"]
BleuTokenizer = Literal["auto", "13a", "char", "flores200"]

# Beyond any Transformer ever trained: a slip of the keyboard is told at once, and a configuration from elsewhere
# cannot take all memory.
MOST_LAYERS = 256
MOST_WIDTH = 1 << 17
MOST_POSITIONS = 1 << 16
MOST_PIECES = 1_000_000
MOST_BEAMS = 1_000
MOST_LENGTH_PENALTY = 10.0
MAX_PROCESSES = 1_024
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
Width = Annotated[int, Field(ge=1, le=MOST_WIDTH)]
Positions = Annotated[int, Field(ge=1, le=MOST_POSITIONS)]
BeamSize = Annotated[int, Field(ge=1, le=MOST_BEAMS)]


class Section(BaseModel):
    """What all sections share: unknown keys are refused and nothing changes after parsing."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,  # a section that is never read costs no time
        allow_inf_nan=False,
        protected_namespaces=(),
    )


class CorpusFiles(Section):
    """Two text files of equal length: line n of one is the translation of line n of the other."""

    src: ConfigPath
    """The source side: UTF-8, one sentence a line; read through gzip if it ends in .gz."""
    tgt: ConfigPath
    """The target side."""


class TrainingFiles(CorpusFiles):
    """One of the corpora to train on."""

    weight: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    """How often each of its pairs occurs in an epoch. Of a fraction, as many pairs as it makes are drawn anew
    in every epoch: 2.5 is every pair twice, and half of them once more."""


def _one_or_several(value: object) -> object:
    return [value] if isinstance(value, dict) else value


def _one_or_named(value: object) -> object:
    if not isinstance(value, dict):
        return value
    if any(isinstance(part, str) for part in value.values()):
        return {"test": value}
    return {str(name): files for name, files in value.items()}  # a name like 2016 is a number to YAML


class DataConfig(Section):
    """Which text is read, and in which languages."""

    train: Annotated[tuple[TrainingFiles, ...], Field(min_length=1), BeforeValidator(_one_or_several)]
    """The training corpus: one `{src, tgt}`, or a list of them, each with a `weight` if it should be seen more
    or less often than the others."""
    temperature: Annotated[float, Field(ge=1)] | None = None
    """Instead of weights: corpora share an epoch, which has as many pairs as all of them together, in proportion to
    size ** (1 / temperature). 1 leaves them as they are; the higher, the more alike (5 is usual)."""
    drop_duplicates: bool = False
    """Leave out a pair that is the same, character for character, as one before it in any of the corpora."""
    validation: CorpusFiles
    """The validation set: chooses the best checkpoint and stops the training."""
    test: Annotated[dict[str, CorpusFiles], BeforeValidator(_one_or_named)] = {}
    """The test sets that `nmt eval` scores: `name: {src, tgt}`, or one `{src, tgt}`."""
    src_lang: str = Field(default="", validate_default=True)
    """The source language, as a code of ISO 639 (`en`, `hsb`), with a script or a region where that matters (BCP 47:
    `zh-Hant`, `pt-BR`, `sr-Latn`). Default: the suffix of the first training file."""
    tgt_lang: str = Field(default="", validate_default=True)
    """The target language; it also chooses the tokenizer of BLEU (`evaluation.bleu_tokenizer`)."""
    max_length: Positions = 128
    """Pairs with more pieces than this on either side are left out of training, and counted; a longer
    sentence is cut when translating, with a warning. A line of 64 KB, or of 64 bytes a piece if that is more,
    counts as longer without being looked at."""

    @field_validator("src_lang", "tgt_lang")
    @classmethod
    def _language(cls, value: str, info: ValidationInfo) -> str:
        train: tuple[TrainingFiles, ...] = info.data.get("train", ())
        if value:
            return check_language(value)
        if not train:
            return value
        side = str(info.field_name).removesuffix("_lang")
        path: Path = train[0].src if side == "src" else train[0].tgt
        suffix = language_suffix(path)
        if not suffix:
            raise ValueError(
                f"not given, and the name {path.name} does not end in a language code; "
                f"add data.{side}_lang, for example `{side}_lang: de`"
            )
        return suffix

    @field_validator("temperature")
    @classmethod
    def _no_weights(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and any(files.weight != 1 for files in info.data.get("train", ())):
            raise ValueError("a mixture follows from the corpora's sizes or from their weights; leave one of them out")
        return value

    @field_validator("test")
    @classmethod
    def _test_names(cls, value: dict[str, CorpusFiles]) -> dict[str, CorpusFiles]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
                raise ValueError(f"a test set's name becomes a file's name; {name!r} cannot (letters, digits, _ . -)")
        return value


class TokenizerConfig(Section):
    """How text becomes the pieces that the model sees."""

    type: Literal["bpe", "unigram", "char", "word"] = "bpe"
    """SentencePiece with byte pairs (Sennrich et al. 2016), a unigram model (Kudo 2018) or characters; or
    `word`: whatever white space separates."""
    vocab_size: Annotated[int, Field(ge=5, le=MOST_PIECES)] = 8000
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
    """A larger training corpus is represented by so many of its pairs, drawn evenly, when the vocabulary is built:
    SentencePiece holds what it learns from in memory. The same corpus gives the same vocabulary."""


class AugmentationConfig(Section):
    """What is done to training pairs, anew each time they are seen; validation and translation see none of it."""

    subword_sampling: Rate = 0.0
    """Words are cut into pieces at random: with `tokenizer.type: bpe`, each merge is left out with this probability
    (BPE-dropout, Provilkov et al. 2020; 0.1 is usual), with `unigram`, cuts are drawn in proportion to their
    probability to this power (Kudo 2018; 0.1 to 0.5)."""
    src_word_dropout: Rate = 0.0
    """Each source piece is hidden behind `<unk>` with this probability (Sennrich et al. 2016)."""
    tgt_word_dropout: Rate = 0.0
    """The same of what the decoder reads; what it should say stays."""
    lower_case: Rate = 0.0
    """Share of the sources that are put in lowercase, as `data.src_lang` has it (Turkish I is ı; a script without case
    stays), like what follows for inputs as people type them; what they should be translated into stays. For capitals
    there is `decoding.lower_capitals`."""
    drop_punctuation: Rate = 0.0
    """Share of the sources that lose their punctuation marks and symbols (Unicode's categories P and S), but for those
    inside words."""
    join: Rate = 0.0
    """Share of the batches whose pairs are joined two by two, for inputs of more than one sentence."""

    @property
    def changes_text(self) -> bool:
        """Whether sentences are cut into pieces anew."""
        return any((self.subword_sampling, self.lower_case, self.drop_punctuation))

    @property
    def is_on(self) -> bool:
        """Whether anything is done at all."""
        return self.changes_text or any((self.src_word_dropout, self.tgt_word_dropout, self.join))

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.lower_case + self.drop_punctuation > 1:
            raise ValueError(
                "augmentation.lower_case and drop_punctuation exclude each other: they may sum to 1 at most"
            )
        return self


class ModelConfig(Section):
    """The encoder-decoder Transformer (Vaswani et al. 2017)."""

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
    """How a place in the sentence is told."""
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

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.d_model % self.num_heads:
            raise ValueError(f"model.d_model ({self.d_model}) must be divisible by model.num_heads ({self.num_heads})")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"model.d_model ({self.d_model}) must be even for sinusoidal positions")
        return self


class TrainingConfig(Section):
    """How long, how fast and on what the model is trained."""

    max_steps: PositiveInt | None = None
    """Stop after this many updates. At least one of max_steps, max_epochs and max_minutes is needed."""
    max_epochs: PositiveInt | None = None
    """Stop after this many passes over the corpus."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop after this many minutes of training, those before a resume counted in."""
    batch_tokens: PositiveInt | Literal["auto"] = 4096
    """Size of a micro-batch: the larger of its padded source and padded target positions. `auto` finds the largest
    that fits the device, and writes it and `batches_per_update` into the run's config.yaml."""
    batches_per_update: PositiveInt = 1
    """Micro-batches whose gradients are summed for one update, over all processes together."""
    update_tokens: PositiveInt | None = None
    """With `batch_tokens: auto`: the positions of an update, however many micro-batches make it."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """The schedule's peak."""
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """After the warm-up: falling with the root of the step (as in the paper), along a cosine or a line
    to `min_learning_rate` at `max_steps`, or not at all."""
    warmup_steps: Annotated[int, Field(ge=0)] = 1000
    """Updates over which the learning rate rises in a line from 0 to its peak."""
    min_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """Where `cosine` and `linear` end."""
    restart_schedule: bool = False
    """A run that is resumed with another max_steps runs warm-up and decay once more, over the updates from there to
    max_steps. Without it, `cosine` and `linear` refuse that: the rate of every update so far depends on max_steps."""
    schedule_start: Annotated[int, Field(ge=0)] = 0
    """The update after which the schedule was started again. Written by nmt; a resumed run keeps it."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's, on matrices alone: biases and normalisations are left as they are."""
    adam_betas: tuple[Rate, Rate] = (0.9, 0.98)
    """AdamW's two decay rates."""
    label_smoothing: Rate = 0.1
    """Share of the target probability that is spread over the whole vocabulary (Szegedy et al. 2016)."""
    r_drop: Annotated[float, Field(ge=0)] = 0.0
    """Alpha of R-Drop (Liang et al. 2021): each batch passes twice, with two dropout masks, and the two must agree;
    5 is usual. 0 leaves it out. It makes an update cost twice as much."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Gradients are scaled down to this global norm; `null` leaves them."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Of the matrix products; `auto` is bf16 on a GPU that has it, else fp32."""
    compile: bool = False
    """Have torch.compile fuse what stands between the matrix products, for batches of any shape at once. For GPUs: on
    a CPU it takes minutes and gains nothing."""
    processes: Annotated[int, Field(ge=1, le=MAX_PROCESSES)] | Literal["auto"] = "auto"
    """Processes that `nmt train` starts, which share each update. `auto` is one for each GPU, or on a CPU one for each
    core, if that leaves each of them 1,000 positions of a micro-batch; otherwise one. Under torchrun, `auto` alone."""
    batch_parts: PositiveInt | Literal["auto"] = "auto"
    """Parts that each micro-batch is cut into, so that several processes can share it: the update has the same pairs.
    `auto` is as few as give every process the same number; the run's config.yaml holds the number."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    """`auto` (CUDA, then Apple's MPS, then the CPU), `cpu`, `cuda`, `cuda:N` or `mps`. With `auto` and `cuda`,
    several processes take a GPU each."""
    threads: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """CPU threads of each process; `null` shares the cores evenly. The same numbers of processes, parts and threads
    give the same weights to the bit."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Of everything random."""
    validate_every: PositiveInt = 500
    """Updates between validations; each one is followed by a checkpoint."""
    save_every_minutes: Annotated[float, Field(gt=0)] | None = None
    """Save a checkpoint, too, whenever so many minutes have passed since the last one: for machines that may be taken
    away at any time; `null`: at validations alone."""
    log_every: PositiveInt = 50
    """Updates between two lines of the log."""
    best_metric: Literal["loss", "bleu", "chrf", "ter"] = "bleu"
    """What of a validation decides which model is the best, and stops the training early."""
    patience: PositiveInt | None = None
    """Stop after this many validations in a row without a better `best_metric`; `null`: never."""
    max_skipped_updates: PositiveInt = 20
    """An update whose gradient is not finite is skipped; after so many in a row the training ends, and says why."""
    keep_checkpoints: PositiveInt = 2
    """How many of the last checkpoints stay on disk, beside the best and those that `average_last` needs."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Validations score an exponential moving average of the weights over the updates, and the best of these averages
    is the run's model; 0.999 looks back over about 1,000 updates. The weights themselves are trained as without it."""
    average_last: Annotated[int, Field(ge=2)] | None = None
    """Or: validations score the mean of the weights at this validation and at those before it, so many in all; of all
    that there are at first."""

    @property
    def positions(self) -> int:
        """`batch_tokens` where it is known to be a number: in a run whose training has begun."""
        assert isinstance(self.batch_tokens, int), "resolved before the first plan"
        return self.batch_tokens

    @property
    def parts(self) -> int:
        """`batch_parts` in a number: 1 until processes are there to share a micro-batch."""
        return 1 if self.batch_parts == "auto" else self.batch_parts

    @property
    def ends_at_max_steps(self) -> bool:
        """Whether the schedule does, so that all of its rates depend on it."""
        return self.schedule in ("cosine", "linear")

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.max_steps is None and self.max_epochs is None and self.max_minutes is None:
            raise ValueError("one of training.max_steps, training.max_epochs and training.max_minutes is needed")
        if (self.batch_tokens == "auto") != (self.update_tokens is not None):
            raise ValueError(
                "training.batch_tokens: auto and training.update_tokens, the size of a whole update, need each other"
            )
        if self.batch_tokens == "auto" and self.batches_per_update != 1:
            raise ValueError("training.batch_tokens: auto decides training.batches_per_update itself; leave it out")
        if self.ema_decay is not None and self.average_last is not None:
            raise ValueError("training.ema_decay and training.average_last exclude each other; leave one of them out")
        if self.ends_at_max_steps:
            if self.max_steps is None:
                raise ValueError(f"training.schedule: {self.schedule} ends at training.max_steps, which is not set")
            if self.max_steps - self.schedule_start <= self.warmup_steps:
                start = f" - training.schedule_start ({self.schedule_start})" if self.schedule_start else ""
                raise ValueError(
                    f"training.warmup_steps ({self.warmup_steps}) must be less than "
                    f"training.max_steps ({self.max_steps}){start}"
                )
        elif self.restart_schedule or self.schedule_start:
            key = "restart_schedule" if self.restart_schedule else "schedule_start"
            raise ValueError(
                f"training.{key} is for cosine and linear; training.schedule: {self.schedule} does not depend on "
                f"training.max_steps, and can be extended without it; leave it out"
            )
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"training.min_learning_rate ({self.min_learning_rate:g}) must not exceed "
                f"training.learning_rate ({self.learning_rate:g})"
            )
        return self


class DecodingConfig(Section):
    """How a translation is searched for."""

    beam_size: BeamSize = 5
    """Hypotheses kept at each step; 1 is greedy search."""
    length_penalty: Annotated[float, Field(ge=0, le=MOST_LENGTH_PENALTY)] = 1.0
    """Alpha: a hypothesis is ranked by its log-probability over length ** alpha; 0 prefers short ones."""
    min_length: Annotated[int, Field(ge=0)] = 1
    """Fewest pieces of a translation."""
    max_length: Positions = 256
    """Most pieces of a translation."""
    max_length_ratio: Annotated[float, Field(gt=0)] = 3.0
    """A translation also has at most this many times the source's pieces, and ten more."""
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=MOST_POSITIONS)] = 0
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


class EvaluationConfig(Section):
    """How translations are scored, always on plain text and by sacreBLEU."""

    metrics: Annotated[tuple[Metric, ...], Field(min_length=1)] = ("bleu", "chrf", "ter")
    """What `nmt eval` prints."""
    bleu_tokenizer: BleuTokenizer = "auto"
    """How BLEU cuts text into words. `auto` follows `data.tgt_lang`: sacreBLEU's `zh`, `ja-mecab` and `ko-mecab`,
    `char` (characters) for other languages written without spaces, such as Thai, Khmer and Cantonese, else `13a`.
    `flores200` (spBLEU) downloads a SentencePiece model once."""
    validation_beam_size: BeamSize = 1
    """Beam size of the validations during training; greedy search is the fastest."""


class Config(Section):
    """A whole run."""

    data: DataConfig
    """Which text is read, and in which languages."""
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    """How text becomes pieces."""
    augmentation: AugmentationConfig = Field(default_factory=AugmentationConfig)
    """What is done to training pairs each time they are seen."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The shape of the network."""
    training: TrainingConfig
    """How it is trained."""
    decoding: DecodingConfig = Field(default_factory=DecodingConfig)
    """How a translation is searched for."""
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    """How translations are scored."""

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.model.tie_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError("model.tie_embeddings: all needs tokenizer.joint: true; else use `decoder` or `none`")
        if self.augmentation.subword_sampling and self.tokenizer.type not in ("bpe", "unigram"):
            raise ValueError(
                f"augmentation.subword_sampling needs tokenizer.type bpe or unigram: a {self.tokenizer.type} "
                f"tokenizer has one way to write a word"
            )
        # One more than the pieces: the target carries <s> or </s>, the source </s>.
        for key, value in (
            ("data.max_length", self.data.max_length),
            ("decoding.max_length", self.decoding.max_length),
        ):
            if value + 1 > self.model.max_positions:
                raise ValueError(f"{key} ({value}) must be less than model.max_positions ({self.model.max_positions})")
        key = "batch_tokens" if self.training.update_tokens is None else "update_tokens"
        if self.data.max_length + 1 > (positions := getattr(self.training, key)):
            raise ValueError(
                f"training.{key} ({positions}) must be more than data.max_length "
                f"({self.data.max_length}), or the longest pair fits no batch"
            )
        return self
