"""What training adds to a configuration: corpora, augmentation, training, evaluation.

A YAML file is parsed once (file.py) into these frozen objects; every part of the program is then given its own section
and nothing else. What the file may hold is exactly what the classes here and in inference.py hold.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from nmt.config.inference import BeamSize, InferenceConfig, PositiveInt, Rate, Section, TextConfig
from nmt.languages import language_suffix

Metric = Literal["bleu", "chrf", "ter"]
BleuTokenizer = Literal["auto", "13a", "char", "flores200"]
MAX_PROCESSES = 1_024


def _relative_to_config(path: Path, info: ValidationInfo) -> Path:
    folder = info.context.get("folder") if isinstance(info.context, dict) else None
    try:
        path = path.expanduser()
    except RuntimeError as error:  # ~nobody
        raise ValueError(str(error)) from None
    return Path(folder, path).resolve() if folder else path


ConfigPath = Annotated[Path, AfterValidator(_relative_to_config)]


class CorpusFiles(Section):
    """Two text files of equal length: line n of one is the translation of line n of the other."""

    src: ConfigPath
    """The source side: UTF-8, one sentence a line; read through gzip if it ends in .gz."""
    tgt: ConfigPath
    """The target side."""


class TrainingFiles(CorpusFiles):
    """One of the corpora to train on."""

    weight: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    """How often each of its pairs occurs in an epoch. A fraction of them is drawn again in every
    epoch: 2.5 is every pair twice, and half of them once more."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


def _one_or_named(value: object) -> object:
    if not isinstance(value, dict):
        return value
    if any(isinstance(part, str) for part in value.values()):
        return {"test": value}
    return {str(name): files for name, files in value.items()}  # a name like 2016 is a number to YAML


class DataConfig(TextConfig):
    """Which text is read, and in which languages."""

    train: Annotated[tuple[TrainingFiles, ...], Field(min_length=1), BeforeValidator(_as_list)]
    """The training corpus: one `{src, tgt}`, or a list of them, each with a `weight` if it should be seen more
    or less often than the others."""
    temperature: Annotated[float, Field(ge=1)] | None = None
    """Instead of weights: corpora share an epoch, which has as many pairs as all of them together, in proportion to
    size ** (1 / temperature). 1 leaves them as they are; the higher, the more alike (5 is usual)."""
    drop_duplicates: bool = False
    """Leave out a pair that is the same, character for character, as one before it in any of the corpora."""
    validation: CorpusFiles
    """The validation set: chooses the best checkpoint and stops the training."""
    test: Annotated[dict[str, CorpusFiles], BeforeValidator(_one_or_named)] = Field(default_factory=dict)
    """The test sets that `nmt eval` scores: `name: {src, tgt}`, or one `{src, tgt}`."""

    @model_validator(mode="before")
    @classmethod
    def _languages_of_files(cls, raw: Any) -> Any:
        """Where a language is not given, the suffix of the first training file names it."""
        if not isinstance(raw, dict):
            return raw
        corpora, languages = _as_list(raw.get("train")), {}
        first = corpora[0] if isinstance(corpora, list | tuple) and corpora else None
        for side in ("src", "tgt"):
            if raw.get(f"{side}_lang"):
                continue
            path = first.get(side) if isinstance(first, dict) else getattr(first, side, None)
            if not isinstance(path, str | Path):
                languages[f"{side}_lang"] = "und"  # the file is reported as missing; that is enough
                continue
            languages[f"{side}_lang"] = language_suffix(Path(path))
            if not languages[f"{side}_lang"]:
                raise ValueError(
                    f"data.{side}_lang: not given, and the name {Path(path).name} does not end in a language code; "
                    f"add data.{side}_lang, for example `{side}_lang: de`"
                )
        return raw | languages

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


class AugmentationConfig(Section):
    """What is done to training pairs, drawn again each time they are seen; never in validation or translation."""

    subword_sampling: Rate = 0.0
    """Words are cut into pieces at random: with `tokenizer.type: bpe`, each merge is left out with this probability
    (BPE-dropout, Provilkov et al. 2020; 0.1 is usual), with `unigram`, cuts are drawn in proportion to their
    probability to this power (Kudo 2018; 0.1 to 0.5)."""
    src_word_dropout: Rate = 0.0
    """Each source piece is hidden behind `<unk>` with this probability (Sennrich et al. 2016)."""
    tgt_word_dropout: Rate = 0.0
    """The same for the decoder's input; its targets stay as they are."""
    lower_case: Rate = 0.0
    """Share of the sources that are put in lowercase by the rules of `data.src_lang` (Turkish I is ı; a script without
    case stays); for inputs as people type them, like the next key. Targets stay as they are. For capitals there is
    `decoding.lower_capitals`."""
    drop_punctuation: Rate = 0.0
    """Share of the sources that lose their punctuation marks and symbols (Unicode's categories P and S), but for those
    inside words."""
    join: Rate = 0.0
    """Share of the batches whose pairs are joined two by two, for inputs of more than one sentence."""

    @property
    def changes_text(self) -> bool:
        """Whether sentences are tokenized again in each epoch."""
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


class TrainingConfig(Section):
    """How long, how fast and on what the model is trained."""

    max_steps: PositiveInt | None = None
    """Stop after this many updates. At least one of max_steps, max_epochs and max_minutes is needed."""
    max_epochs: PositiveInt | None = None
    """Stop after this many passes over the corpus."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop after this many minutes of training, including those before a resume."""
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
    """A run that is resumed with another max_steps repeats warm-up and decay over the updates from there to
    max_steps. Without it, `cosine` and `linear` refuse that: the rate of every update so far depends on max_steps."""
    schedule_start: Annotated[int, Field(ge=0)] = 0
    """The update after which the schedule was restarted. Written by nmt; a resumed run keeps it."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's, on matrices alone: not on biases and normalisations."""
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
    """Have torch.compile fuse the operations between the matrix products, for batches of any shape. For GPUs: on a CPU
    it takes minutes and gains nothing."""
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
    """Also save a checkpoint whenever this many minutes have passed since the last one, for machines that may be taken
    away at any time; `null`: only at validations."""
    log_every: PositiveInt = 50
    """Updates between two lines of the log."""
    best_metric: Literal["loss", "bleu", "chrf", "ter"] = "bleu"
    """The validation metric that decides which model is the best, and when training stops early."""
    patience: PositiveInt | None = None
    """Stop after this many validations in a row without a better `best_metric`; `null`: never."""
    max_skipped_updates: PositiveInt = 20
    """An update whose gradient is not finite is skipped; after this many in a row the training ends, and says why."""
    keep_checkpoints: PositiveInt = 2
    """How many of the last checkpoints stay on disk, beside the best and those that `average_last` needs."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Validations score an exponential moving average of the weights over the updates, and the best of these averages
    is the run's model; 0.999 looks back over about 1,000 updates. The weights themselves are trained as without it."""
    average_last: Annotated[int, Field(ge=2)] | None = None
    """Or: validations score the mean of the weights at this many validations, the last one included; at first of as
    many as there are."""

    @property
    def micro_batch_tokens(self) -> int:
        """`batch_tokens` where it is known to be a number: in a run whose training has started."""
        assert isinstance(self.batch_tokens, int), "resolved before the first plan"
        return self.batch_tokens

    @property
    def parts(self) -> int:
        """`batch_parts` as a number: 1 until processes share a micro-batch."""
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


class Config(InferenceConfig):
    """A whole run: what translating reads, and what training adds."""

    data: DataConfig
    """Which text is read, and in which languages."""
    augmentation: AugmentationConfig = Field(default_factory=AugmentationConfig)
    """What is done to training pairs each time they are seen."""
    training: TrainingConfig
    """How the model is trained."""
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    """How translations are scored."""

    @model_validator(mode="after")
    def _training_agrees(self) -> Self:
        if self.augmentation.subword_sampling and self.tokenizer.type not in ("bpe", "unigram"):
            raise ValueError(
                f"augmentation.subword_sampling needs tokenizer.type bpe or unigram: a {self.tokenizer.type} "
                f"tokenizer has one way to write a word"
            )
        settings = self.training
        key, value = (
            ("batch_tokens", settings.batch_tokens)
            if settings.update_tokens is None
            else ("update_tokens", settings.update_tokens)
        )
        if isinstance(value, int) and self.data.max_length + 1 > value:
            raise ValueError(
                f"training.{key} ({value}) must be more than data.max_length "
                f"({self.data.max_length}), or the longest pair fits no batch"
            )
        return self
