"""What training adds to a configuration: the training itself, and the whole configuration of a run.

A YAML file is parsed once (file.py) into these frozen objects; each part of the program then gets only its section.
The keys a file may have are exactly the fields of the classes here and in the files beside this one.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nmt.config.corpus import check_tags
from nmt.config.data import DataConfig
from nmt.config.inference import InferenceConfig
from nmt.config.section import BeamSize, ModelPart, PositiveInt, Rate, Section

# ---- Random changes to training pairs: the section `augmentation` of a configuration.


class AugmentationConfig(Section):
    """Random changes to training pairs, different each time a pair is seen; never in validation or translation."""

    subword_sampling: Rate = 0.0
    """Split words into pieces at random. With `tokenizer.type: bpe`, each merge is skipped with this probability
    (BPE-dropout, Provilkov et al. 2020; 0.1 is usual). With `unigram`, a segmentation is sampled in proportion to its
    probability to the power of this value (Kudo 2018; 0.1 to 0.5). 0: off."""
    tgt_word_dropout: Rate = 0.0
    """Probability that a piece of the decoder's input is replaced by `<unk>`; the pieces to predict stay unchanged."""
    typed_input: Rate = 0.0
    """Share of the sources that are changed to what people type: one in three is lowercased by the rules of
    `data.src_lang` (Turkish I becomes ı), one loses its punctuation and symbols (Unicode's categories P and S), except
    inside words, and in one each word begins with a capital, as in headlines. Where the script of `data.src_lang` has
    no case, all of them lose their punctuation. Targets stay unchanged. 0.15 is usual, and 0.05 without case. For input
    in capitals: `decoding.lower_capitals`."""
    fragments: Rate = 0.0
    """Share of the batches whose lines are other than sentences; 0.1 is usual. In one half of them every two pairs are
    joined, so that the model can translate lines of several sentences. In the other half each pair is replaced by a
    short phrase pair out of it, such as `woman` and `Frau`, so that the model can translate single words. Phrases have
    1 to 4 source words, mostly 1 or 2; pairs without a reliable one are left out of the batch. They are found by word
    alignment (IBM Model 1 in both directions), which takes seconds at the start and learns from 100,000 pairs at most.
    With imported models (`tokenizer.type: marian`) there are no phrases: in all of these batches pairs are joined."""
    copies: Rate = 0.0
    """Share of the pairs into which a made-up text is inserted, the same on both sides and at the same place: an emoji
    or several, a number, a URL or an e-mail address. It teaches the model to copy what it has never seen. The place is
    the beginning, the end, before the final punctuation, or between two joined sentences. Needs
    `tokenizer.byte_fallback`, and no tokenizer of words: their vocabularies have no pieces for unseen text."""

    @property
    def changes_text(self) -> bool:
        """Whether sentences are tokenized again whenever they are seen."""
        return any((self.subword_sampling, self.copies, self.typed_input))

    @property
    def is_on(self) -> bool:
        """Whether any augmentation is enabled."""
        return any(dict(self).values())


# ---- How a model is scored and in which formats it leaves: the sections `evaluation` and `export` of a configuration.


Metric = Literal["bleu", "chrf", "chrf++", "ter"]
BleuTokenizer = Literal[
    "auto", "13a", "char", "intl", "none", "zh", "ja-mecab", "ko-mecab", "spm", "flores101", "flores200", "spBLEU-1K"
]


class EvaluationConfig(Section):
    """How translations are scored, always on plain text and by sacreBLEU."""

    metrics: Annotated[tuple[Metric, ...] | None, Field(min_length=1)] = None
    """Metrics that `nmt eval` prints and writes. `null`: `[bleu, chrf, ter]`, without `ter` for languages written
    without spaces other than Chinese and Japanese, such as Thai: it would count a sentence as one word. `chrf++` also
    counts words and pairs of words (Popović 2017)."""
    bleu_tokenizer: BleuTokenizer = "auto"
    """sacreBLEU's tokenizer for BLEU. `auto` follows `data.tgt_lang`: `zh`, `ja-mecab` and `ko-mecab` for Chinese,
    Japanese and Korean; `char` (characters) for other languages written without spaces, such as Thai, Khmer and
    Cantonese; otherwise `13a`. The others are by sacreBLEU's names; `spm`, `flores101`, `flores200` (spBLEU) and
    `spBLEU-1K` download a SentencePiece model once."""
    validation_beam_size: BeamSize = 1
    """Beam size of the validations during training; 1, greedy search, is the fastest."""
    report: bool = True
    """Whether `nmt train` writes a report and a model card into the run's folder when a training has ended."""


ExportFormat = Literal["ctranslate2", "argos", "huggingface", "onnx"]


class ExportConfig(Section):
    """The model in other programs' formats."""

    after_training: tuple[ExportFormat, ...] = ("ctranslate2",)
    """The exports that `nmt train` makes when a training has ended, as `nmt export` does, each compared with PyTorch on
    at most 300 lines of the validation set; `[]`: none. With `ctranslate2`, which keeps the weights as they are
    (float32), `nmt translate` starts sooner, and is faster on a CPU. An export that is refused, or whose package is not
    installed, is a line; the training has succeeded."""


class TrainingConfig(Section):
    """How the model is trained: duration, batches, optimizer, device, validation, checkpoints."""

    init_from: str | None = None
    """Start from the weights of a trained run, given as for `--model` by its folder or its name. Its tokenizer,
    architecture, source and languages are the new run's; leave these sections out. A Transformer may have fewer layers
    (`model.num_encoder_layers`, `model.num_decoder_layers`): it keeps the first, the last, and others evenly between.
    `data.max_length` and the keys of `decoding` are the old run's where they are not given, and learning rate, warm-up,
    schedule, limits and validations have the defaults of fine-tuning (docs/fine-tuning.md). `null`: random weights."""
    freeze: tuple[ModelPart, ...] = ()
    """With `init_from`: the parts of the model that keep the old run's weights, of `embeddings`, `encoder`, `decoder`
    and `output`. A matrix that two parts share (`model.tie_embeddings`) is frozen by the name of either."""
    max_steps: PositiveInt | None = None
    """Stop after this many updates; `null`: no limit. One of `max_steps`, `max_epochs`, `max_minutes` is required."""
    max_epochs: PositiveInt | None = None
    """Stop after this many epochs (passes over the training corpus); `null`: no limit."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop after this many minutes of training, including those before a resume; `null`: no limit."""
    batch_tokens: PositiveInt | Literal["auto"] = 4096
    """Size of a micro-batch in tokens, padding included; the larger of its two sides counts. `auto` finds the largest
    size that fits into the device's memory, and writes it and `batches_per_update` into the run's config.yaml."""
    batches_per_update: PositiveInt = 1
    """Number of micro-batches whose gradients are summed for one update, over all processes together."""
    update_tokens: PositiveInt | None = None
    """With `batch_tokens: auto`, which requires it: size of a whole update in tokens, padding included."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak of the learning rate schedule, reached after the warm-up."""
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """Learning rate after the warm-up: it falls with the inverse square root of the step (Vaswani et al. 2017), falls
    along a cosine or a line to `min_learning_rate` at `max_steps`, or stays constant. A run with `cosine` or `linear`
    that is resumed with another `max_steps` repeats warm-up and decay over the updates that are left."""
    warmup_steps: Annotated[int, Field(ge=0)] = 1000
    """Number of updates over which the learning rate rises linearly from 0 to its peak."""
    min_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at `max_steps`, with `schedule: cosine` or `linear`; the other schedules ignore it."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's weight decay, applied to matrices only, not to biases and normalisations."""
    label_smoothing: Rate = 0.1
    """Share of the target probability that is spread evenly over the whole vocabulary (Szegedy et al. 2016)."""
    r_drop: Annotated[float, Field(ge=0)] = 0.0
    """Weight alpha of the R-Drop loss (Liang et al. 2021): each batch passes through the model twice, with two dropout
    masks, and differing predictions are penalised. 5 is usual; 0: off. An update then costs twice as much."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Scale gradients down to this global norm if theirs is larger; `null`: never."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Number format of the matrix products; `auto` is bf16 on a GPU that supports it, otherwise fp32."""
    compile: bool = False
    """Fuse the operations between the matrix products with torch.compile, for batches of any shape. For large models on
    GPUs: compiling takes half a minute, and on a CPU it gains nothing. Not for `model.architecture: rnn`."""
    processes: Annotated[int, Field(ge=1, le=1_024)] | Literal["auto"] = "auto"
    """Number of processes that `nmt train` starts and that share each update. `auto` is one for each GPU, or on a CPU
    one for each core if each then gets 1,000 tokens of a micro-batch, otherwise one. Under torchrun only `auto`."""
    batch_parts: PositiveInt | Literal["auto"] = "auto"
    """Number of parts that each micro-batch is divided into for several processes; an update has the same pairs as with
    one process. `auto`: as few as give every process the same number. The run's config.yaml records the number."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    """Device to train on: `cpu`, `cuda`, `cuda:N` (GPU number N), `mps` (Apple), or `auto`: the first available of
    CUDA, MPS and the CPU. With `auto` and `cuda`, each of several processes uses a different GPU."""
    threads: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """Number of CPU threads of each process; `null` divides the cores evenly. The same numbers of processes, parts and
    threads give the same weights to the bit."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of everything random in training: initial weights, order of batches, dropout, augmentation."""
    validate_every: PositiveInt = 500
    """Number of updates between two validations; a checkpoint is saved after each validation."""
    save_every_minutes: Annotated[float, Field(gt=0)] | None = None
    """Also save a checkpoint whenever this many minutes have passed since the last one, for machines that may shut down
    at any time; `null`: only at validations."""
    log_every: PositiveInt = 50
    """Number of updates between two lines of the log."""
    monitor: Literal["tensorboard"] | None = None
    """`tensorboard` also writes every figure of metrics.jsonl into the run's folder tensorboard/, for
    `tensorboard --logdir runs`; this needs `scripts/install tensorboard`. `null`: off."""
    best_metric: Literal["loss", "bleu", "chrf", "ter"] | None = "bleu"
    """The validation metric that decides which model is the best and, with `patience`, when training stops; of equal
    values, the one with the lower loss. `null`: none; the last weights become the model, as suits a learning rate that
    falls to 0 and a small validation set."""
    patience: PositiveInt | None = None
    """Stop after this many consecutive validations without a better `best_metric`; `null`: never."""
    keep_checkpoints: PositiveInt = 2
    """Number of latest checkpoints kept on disk, in addition to the best."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Validate an exponential moving average of the weights, with this decay an update; the best average becomes the
    run's model. 0.999 averages over about 1,000 updates. Training itself is unaffected. `null`: off."""

    @property
    def micro_batch_tokens(self) -> int:
        """`batch_tokens` as a number, which it always is once training has started."""
        assert isinstance(self.batch_tokens, int), "resolved before the first plan"
        return self.batch_tokens

    @property
    def parts(self) -> int:
        """`batch_parts` as a number; an unresolved `auto` is 1."""
        return 1 if self.batch_parts == "auto" else self.batch_parts

    @property
    def ends_at_max_steps(self) -> bool:
        """Whether every learning rate of the schedule depends on `max_steps`."""
        return self.schedule in ("cosine", "linear")

    @property
    def schedule_end(self) -> int | None:
        """The update that every learning rate of the schedule depends on; None with the other schedules."""
        return self.max_steps if self.ends_at_max_steps else None

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.max_steps is None and self.max_epochs is None and self.max_minutes is None:
            raise ValueError("one of training.max_steps, training.max_epochs and training.max_minutes is needed")
        if (self.batch_tokens == "auto") != (self.update_tokens is not None):
            raise ValueError("training.batch_tokens: auto and training.update_tokens need each other")
        if self.batch_tokens == "auto" and self.batches_per_update != 1:
            raise ValueError("training.batch_tokens: auto decides training.batches_per_update itself; leave it out")
        if self.best_metric is None and self.patience is not None:
            raise ValueError("training.patience needs a training.best_metric; set training.patience: null")
        if self.freeze and self.init_from is None:
            raise ValueError("training.freeze needs training.init_from: without it, random weights would be frozen")
        if self.ends_at_max_steps and self.max_steps is None:
            raise ValueError(f"training.schedule: {self.schedule} ends at training.max_steps, which is not set")
        if self.schedule_end is not None and self.schedule_end <= self.warmup_steps:
            raise ValueError(
                f"training.warmup_steps ({self.warmup_steps}) must be less than training.max_steps ({self.max_steps})"
            )
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"training.min_learning_rate ({self.min_learning_rate:g}) must not exceed "
                f"training.learning_rate ({self.learning_rate:g})"
            )
        return self


class Config(InferenceConfig):
    """The configuration of a whole run: the sections for translating and those for training."""

    data: DataConfig
    """Corpora and languages."""
    augmentation: AugmentationConfig = Field(default_factory=AugmentationConfig)
    """Random changes to training pairs."""
    training: TrainingConfig
    """How the model is trained."""
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    """How translations are scored."""
    export: ExportConfig = Field(default_factory=ExportConfig)
    """The model in other programs' formats."""

    @model_validator(mode="after")
    def _training_agrees(self) -> Self:
        if self.source.type != "text":
            self._check_without_text()
        check_tags(self.data.train, self.tokenizer)
        if self.data.replay and self.training.init_from is None:
            raise ValueError("data.replay repeats the corpora of the run that training.init_from names; leave it out")
        self._check_augmentation()
        self._check_training()
        return self

    def _check_without_text(self) -> None:
        """`ValueError` for what needs sources of text: the sources are vectors or images."""
        data, tag = self.data, any(files.tag for files in self.data.train)
        given = {"data.exclude": data.exclude, "tokenizer.tags": self.tokenizer.tags, "data.train.tag": tag}
        corpora = [*data.train, *data.exclude, *data.held_out.values()]
        files = ["data: pairs"] if any(files.pairs for files in corpora) else []
        files += [f"data.{name}: holdout" for name in data.hold_outs]
        keys = [f"data.cleaning.{key}" for key in data.cleaning.of_text]
        keys += [
            f"augmentation.{key}" for key in ("typed_input", "fragments", "copies") if dict(self.augmentation)[key]
        ]
        keys += [key for key, value in given.items() if value]
        if files or keys:
            remedy = "name src and tgt" if files else "leave it out"
            raise ValueError(
                f"{' and '.join(files or keys)}: for a source of text, and source.type is {self.source.type}; {remedy}"
            )

    def _check_augmentation(self) -> None:
        """`ValueError` for augmentation that the tokenizer cannot do."""
        tokenizer, augmentation = self.tokenizer, self.augmentation
        if tokenizer.type == "marian" and self.training.init_from is None:
            raise ValueError(
                "tokenizer.type: marian is that of an imported model (nmt import), for a training that starts from it "
                "(training.init_from); for a new model choose another"
            )
        if augmentation.subword_sampling and tokenizer.type not in ("bpe", "unigram"):
            raise ValueError(
                f"augmentation.subword_sampling needs tokenizer.type bpe or unigram: a {tokenizer.type} tokenizer has "
                "one way to write a word; leave it out"
            )
        if augmentation.copies and (tokenizer.type == "word" or not tokenizer.byte_fallback):
            raise ValueError(
                "augmentation.copies needs a tokenizer with byte_fallback: true, and of another type than word: this "
                "one has no pieces for text that the training corpus lacks, such as an emoji; leave copies out"
            )

    def _check_training(self) -> None:
        """`ValueError` for settings of the training that do not go with the model or the data."""
        settings, max_length = self.training, self.data.max_length
        if settings.compile and self.model.architecture == "rnn":
            raise ValueError("training.compile: true is for Transformers: the steps of an RNN cannot be fused")
        key, value = "batch_tokens", settings.batch_tokens
        if settings.update_tokens is not None:
            key, value = "update_tokens", settings.update_tokens
        if isinstance(value, int) and value <= max_length:
            raise ValueError(
                f"training.{key} ({value}) must be more than data.max_length ({max_length}), or the longest pair fits "
                "no batch"
            )
