"""The sections of a configuration that training reads, and the configuration of a whole run.

A YAML file is parsed once (reading.py) into these frozen objects; each part of the program then gets only its section.
The keys that a file may have are exactly the fields of the classes here and in the modules beside this one.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nmt.config.corpus import check_tags
from nmt.config.data import DataConfig
from nmt.config.inference import InferenceConfig
from nmt.config.section import BeamSize, ModelPart, PositiveInt, Rate, Section


class AugmentationConfig(Section):
    """Random changes to training pairs, drawn again each time a pair is used; never in validation or translation."""

    subword_sampling: Rate = 0.0
    """Subword regularization: split words into pieces at random. With `tokenizer.type: bpe`, each merge is skipped with
    this probability (BPE-dropout, Provilkov et al. 2020; 0.1 is usual). With `unigram`, a segmentation is sampled in
    proportion to its probability to the power of this value (Kudo 2018; 0.1 to 0.5). 0: off."""
    tgt_word_dropout: Rate = 0.0
    """Probability that a piece of the decoder's input is replaced by `<unk>`; the pieces to predict stay unchanged."""
    typed_input: Rate = 0.0
    """Share of the batches whose sources are changed to look typed by hand. In a third of these batches, they are
    lowercased by the rules of `data.src_lang` (Turkish I becomes ı); in a third, they lose punctuation and symbols
    (Unicode categories P and S), except inside words; in a third, each word begins with a capital, as in headlines. If
    the script of `data.src_lang` has no case, punctuation is removed in all of them. Targets stay unchanged, and so do
    batches with copies. 0.15 is usual, or 0.05 without case. For input in capitals, see `decoding.lower_capitals`."""
    fragments: Rate = 0.0
    """Share of the batches with lines that are not single sentences; 0.1 is usual. In half of these batches, pairs are
    joined two by two, so that the model learns to translate lines of several sentences. In the other half, each pair is
    replaced by a short phrase pair from it, such as `woman` and `Frau`, so that the model learns to translate single
    words. Phrases have 1 to 4 source words, mostly 1 or 2; pairs without a reliable phrase are dropped from the batch.
    Phrases come from word alignment (IBM Model 1 in both directions), which takes seconds at the start and learns from
    at most 100,000 pairs. With an imported model (`tokenizer.type: marian`) there are no phrases: all of these batches
    hold joined pairs."""
    copies: Rate = 0.0
    """Share of the batches into whose pairs synthetic text is inserted, the same on both sides and at the same place:
    emoji, a number, a URL or an e-mail address. It teaches the model to copy unseen text: numbers and emoji first;
    addresses, which are many rare pieces, take much longer. The place is the beginning, the end, before the final
    punctuation, or between two joined sentences. Needs `tokenizer.byte_fallback`, and a tokenizer of another type than
    `word`, whose vocabulary has no pieces for unseen text."""

    @property
    def changes_text(self) -> bool:
        """True if sentences are tokenized again each time they are used."""
        return any((self.subword_sampling, self.copies, self.typed_input))

    @property
    def is_on(self) -> bool:
        """True if any augmentation is enabled."""
        return any(dict(self).values())


Metric = Literal["bleu", "chrf", "chrf++", "ter"]
BleuTokenizer = Literal[
    "auto", "13a", "char", "intl", "none", "zh", "ja-mecab", "ko-mecab", "spm", "flores101", "flores200", "spBLEU-1K"
]


class EvaluationConfig(Section):
    """The scoring of translations: by sacreBLEU, on plain (detokenized) text."""

    metrics: Annotated[tuple[Metric, ...] | None, Field(min_length=1)] = None
    """Metrics that `nmt eval` prints and stores. `null`: `[bleu, chrf, ter]`, but no `ter` for languages written
    without spaces other than Chinese and Japanese, such as Thai, where it would count a sentence as one word. `chrf++`
    also counts words and word pairs (Popović 2017)."""
    bleu_tokenizer: BleuTokenizer = "auto"
    """sacreBLEU's tokenizer for BLEU. `auto` follows `data.tgt_lang`: `zh`, `ja-mecab` and `ko-mecab` for Chinese,
    Japanese and Korean; `char` (characters) for other languages written without spaces, such as Thai, Khmer and
    Cantonese; otherwise `13a`. All names are sacreBLEU's; `spm`, `flores101`, `flores200` (spBLEU) and `spBLEU-1K`
    download a SentencePiece model once."""
    validation_beam_size: BeamSize = 1
    """Beam size of the validations during training; 1, greedy search, is the fastest."""
    report: bool = True
    """Write a report and a model card into the run's folder at the end of a training."""


ExportFormat = Literal["ctranslate2", "argos", "huggingface", "onnx"]


class ExportConfig(Section):
    """Exports of the model to other programs' formats."""

    after_training: tuple[ExportFormat, ...] = ("ctranslate2",)
    """Exports that `nmt train` makes at the end of a training, as `nmt export` does. Each is verified against PyTorch
    on at most 300 lines of the validation set. `[]`: none. With `ctranslate2`, which keeps the weights as they are
    (float32), `nmt translate` starts sooner and is faster on a CPU. A failed export, or one whose package is missing,
    is reported as a warning; it does not fail the training."""


class TrainingConfig(Section):
    """The training: duration, batches, optimizer, device, validation, checkpoints."""

    init_from: str | None = None
    """Fine-tuning: start from the weights of a base run, given by its folder or name as for `--model`. The new run has
    the same tokenizer, architecture, source and languages; leave these sections out. A Transformer may have fewer
    layers (`model.num_encoder_layers`, `model.num_decoder_layers`): it keeps the first, the last, and others evenly
    between. If not given, `data.max_length` and the keys of `decoding` have the base run's values, and learning rate,
    warmup, schedule, limits and validations have the defaults for fine-tuning (docs/fine-tuning.md). `null`: start from
    random weights."""
    freeze: tuple[ModelPart, ...] = ()
    """With `init_from`: parts of the model that keep the base run's weights, among `embeddings`, `encoder`, `decoder`
    and `output`. A matrix that two parts share (`model.tie_embeddings`) is frozen if either is named."""
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
    """Size of a whole update in tokens, padding included; required with `batch_tokens: auto`, and only there."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate, reached at the end of the warmup."""
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """Learning rate after the warmup: it decays with the inverse square root of the step (Vaswani et al. 2017), along a
    cosine or a line to `min_learning_rate` at `max_steps`, or stays constant. A run with `cosine` or `linear` that is
    resumed with another `max_steps` repeats warmup and decay over the remaining updates."""
    warmup_steps: Annotated[int, Field(ge=0)] = 1000
    """Warmup updates, in which the learning rate rises linearly from 0 to its peak."""
    min_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at `max_steps`, with `schedule: cosine` or `linear`; the other schedules ignore it."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's weight decay, applied to matrices, not to biases and normalisations."""
    label_smoothing: Rate = 0.1
    """Share of the target probability that is spread evenly over the whole vocabulary (Szegedy et al. 2016)."""
    r_drop: Annotated[float, Field(ge=0)] = 0.0
    """Weight alpha of the R-Drop loss (Liang et al. 2021): each batch passes through the model twice, with two dropout
    masks, and a divergence of the two predictions is penalised. An update then costs twice as much. 5 is usual; 0:
    off."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Maximum global norm of the gradients, which larger ones are scaled down to; `null`: no limit."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Number format of the matrix products; `auto` is bf16 on a GPU that supports it, otherwise fp32."""
    joined: bool | Literal["auto"] = "auto"
    """Join the pairs of a micro-batch in one row, one after the other, instead of padding them, so that all batches
    have one shape and a GPU can capture its work once (CUDA graph). `auto`: on a GPU with CUDA, for a Transformer that
    translates text, unless `augmentation` changes the lengths of sentences or batches are divided between processes.
    The run's config.yaml records it. On a CPU, padding is faster."""
    compile: bool = False
    """Fuse the operations between matrix products with torch.compile. Worth it for large models on GPUs: compiling
    takes half a minute, and gains nothing on a CPU. Not for `model.architecture: rnn`."""
    processes: Annotated[int, Field(ge=1, le=1_024)] | Literal["auto"] = "auto"
    """Number of processes that `nmt train` starts, and that share each update. `auto`: one for each GPU; on a CPU, one
    for each core if each then gets 1,000 tokens of a micro-batch, otherwise one. Under torchrun, only `auto`."""
    batch_parts: PositiveInt | Literal["auto"] = "auto"
    """Number of parts that each micro-batch is divided into for several processes; an update has the same pairs as with
    one process. `auto`: the smallest number that gives every process equally many. The run's config.yaml records it."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    """Device to train on: `cpu`, `cuda`, `cuda:N` (GPU number N), `mps` (Apple), or `auto`: the first available of
    CUDA, MPS and the CPU. With `auto` and `cuda`, each of several processes uses a different GPU."""
    threads: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """Number of CPU threads of each process; `null` divides the cores evenly. The same numbers of processes, parts and
    threads give the same weights to the bit."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Random seed of the training: initial weights, order of batches, dropout, augmentation."""
    validate_every: PositiveInt = 500
    """Number of updates between two validations; a checkpoint is saved after each."""
    save_every_minutes: Annotated[float, Field(gt=0)] | None = None
    """Also save a checkpoint this many minutes after the last one, for machines that may shut down at any time; `null`:
    only at validations."""
    log_every: PositiveInt = 50
    """Number of updates between two lines of the log."""
    monitor: Literal["tensorboard"] | None = None
    """`tensorboard` also writes all figures of metrics.jsonl into the run's folder tensorboard/, for
    `tensorboard --logdir runs`; needs `scripts/install tensorboard`. `null`: off."""
    best_metric: Literal["loss", "bleu", "chrf", "ter"] | None = "bleu"
    """Validation metric that decides which checkpoint becomes the model and, with `patience`, when training stops; ties
    go to the lower loss. `null`: the last weights become the model, which suits a learning rate that falls to 0 and a
    small validation set."""
    patience: PositiveInt | None = None
    """Early stopping: stop after this many consecutive validations without a better `best_metric`; `null`: off."""
    keep_checkpoints: PositiveInt = 2
    """Number of latest checkpoints kept on disk, in addition to the best."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Validate an exponential moving average of the weights, with this decay per update; the best average becomes the
    run's model. 0.999 averages about 1,000 updates. Training itself is unaffected. `null`: off."""

    @property
    def micro_batch_tokens(self) -> int:
        """`batch_tokens` as a number, resolved before the first plan of a training."""
        assert isinstance(self.batch_tokens, int), "resolved before the first plan"
        return self.batch_tokens

    @property
    def parts(self) -> int:
        """`batch_parts` as a number; an unresolved `auto` is 1."""
        return 1 if self.batch_parts == "auto" else self.batch_parts

    @property
    def ends_at_max_steps(self) -> bool:
        """True if every learning rate of the schedule depends on `max_steps`."""
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
    """The configuration of a whole run: the sections for translation and those for training."""

    data: DataConfig
    """Corpora and languages."""
    augmentation: AugmentationConfig = Field(default_factory=AugmentationConfig)
    """Random changes to training pairs."""
    training: TrainingConfig
    """Duration, batches, optimizer, device, validation and checkpoints of the training."""
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    """Scoring of translations."""
    export: ExportConfig = Field(default_factory=ExportConfig)
    """Exports of the model to other programs' formats."""

    @model_validator(mode="after")
    def _training_agrees(self) -> Self:
        if self.source.type != "text":
            self._check_without_text()
        check_tags(self.data.train, self.tokenizer)
        if self.data.replay and self.training.init_from is None:
            raise ValueError("data.replay repeats corpora of a base run; set training.init_from, or leave it out")
        self._check_augmentation()
        self._check_training()
        return self

    def _check_without_text(self) -> None:
        """Raise `ValueError` for options that need text sources: the sources are vectors or images."""
        data, tag = self.data, any(files.tag for files in self.data.train)
        given = {"data.exclude": data.exclude, "tokenizer.tags": self.tokenizer.tags, "data.train.tag": tag}
        corpora = [*data.train, *data.exclude, *data.held_out.values()]
        files = ["data: pairs"] if any(files.pairs for files in corpora) else []
        files += [f"data.{name}: holdout" for name in data.hold_outs]
        keys = [f"data.cleaning.{key}" for key in data.cleaning.text_rules]
        keys += [
            f"augmentation.{key}" for key in ("typed_input", "fragments", "copies") if dict(self.augmentation)[key]
        ]
        keys += [key for key, value in given.items() if value]
        if files or keys:
            remedy = "name src and tgt" if files else "leave it out"
            raise ValueError(
                f"{' and '.join(files or keys)}: needs text sources, and source.type is {self.source.type}; {remedy}"
            )

    def _check_augmentation(self) -> None:
        """Raise `ValueError` for augmentation that the tokenizer does not support."""
        tokenizer, augmentation = self.tokenizer, self.augmentation
        if tokenizer.type == "marian" and self.training.init_from is None:
            raise ValueError(
                "tokenizer.type: marian is the tokenizer of an imported model (nmt import), for fine-tuning it "
                "(training.init_from); choose another for a new model"
            )
        if augmentation.subword_sampling and tokenizer.type not in ("bpe", "unigram"):
            raise ValueError(
                f"augmentation.subword_sampling needs tokenizer.type bpe or unigram: a {tokenizer.type} tokenizer does "
                "not support subword sampling; leave it out"
            )
        if augmentation.copies and (tokenizer.type == "word" or not tokenizer.byte_fallback):
            raise ValueError(
                "augmentation.copies needs tokenizer.byte_fallback: true, and another tokenizer.type than word: this "
                "vocabulary has no pieces for text that the training corpus lacks, such as emoji; leave copies out"
            )

    def _check_training(self) -> None:
        """Raise `ValueError` for settings of the training that do not fit the model or the data."""
        settings, max_length = self.training, self.data.max_length
        if settings.compile and self.model.architecture == "rnn":
            raise ValueError("training.compile: true is for Transformers: the steps of an RNN cannot be fused")
        key, value = "batch_tokens", settings.batch_tokens
        if settings.update_tokens is not None:
            key, value = "update_tokens", settings.update_tokens
        if isinstance(value, int) and value <= max_length:
            raise ValueError(
                f"training.{key} ({value}) must be more than data.max_length ({max_length}): the longest pair must fit "
                "into a batch"
            )
