"""The text that a training reads: the section `data` of a configuration, with its cleaning rules."""

import contextlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from nmt.config.corpus import CorpusFiles, HeldOutFiles, TrainingFiles, in_the_languages
from nmt.config.inference import TextConfig
from nmt.config.languages import check_language, file_endings, language_suffix
from nmt.config.section import Rate, Section


class CleaningConfig(Section):
    """Rules that drop pairs from the training text; each is off by default.

    Pairs with an empty side, or with more than `data.max_length` pieces, are always dropped.
    """

    duplicates: Literal["pair", "source", "target", "either"] | None = None
    """Drop a pair if an earlier one, in any of the corpora, has the same lines on both sides (`pair`), the same
    `source`, the same `target`, or `either` of them. `null`: off."""
    length_ratio: Annotated[float, Field(gt=1)] | None = None
    """Drop a pair if one side is more than this many times as long as the other, and at least 10 characters longer.
    Lengths are first divided by the typical ratio of the corpora, so that a value means the same for Chinese. `null`:
    off."""
    identical: bool = False
    """Drop a pair whose sides are the same text, which teaches the model to copy. Text without letters is kept."""
    script: Annotated[float, Field(gt=0, le=1)] | None = None
    """Drop a pair if less than this share of a side's letters is in a script of its language. Single letters count as
    symbols, and words that occur on both sides are ignored. `null`: off."""
    encoding: bool = False
    """Drop a pair with a line that is not UTF-8 (otherwise an error), was encoded twice (`Ã¼` for `ü`), or has a
    replacement character (U+FFFD)."""
    html: bool = False
    """Drop a pair with tags or entities (`<b>`, `&nbsp;`) in a line. Placeholders such as `<file>` are no tags."""
    numbers: bool = False
    """Drop a pair whose sides have different numbers."""
    max_repeats: Annotated[int, Field(ge=1)] | None = None
    """Drop a pair whose source or target sentence has already occurred in this many pairs: boilerplate. `null`: off."""
    overlap: bool = False
    """Drop a pair that shares its source or target sentence with the validation set or a test set. For held-out sets
    that were drawn from the training text (`holdout`), this is always on."""
    language: bool = False
    """Drop a pair with a long line that is identified as another language. Needs `scripts/install langid`."""

    @property
    def is_on(self) -> bool:
        """True if any rule is on."""
        return self != CleaningConfig()

    @property
    def text_rules(self) -> list[str]:
        """The keys that are set and need text on both sides."""
        return [key for key in self.model_fields_set if key != "duplicates" and getattr(self, key)]

    @classmethod
    def recommended(cls) -> Self:
        """The rules that suit most corpora; `nmt init` writes them."""
        return cls(
            duplicates="pair", length_ratio=4, identical=True, script=0.5, encoding=True, html=True, max_repeats=20,
            overlap=True,
        )  # fmt: skip


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


def _first_corpus(data: dict[str, Any]) -> dict[str, Any]:
    """The keys of the first training corpus; none if it is malformed."""
    corpora = _as_list(data.get("train"))
    first = corpora[0] if isinstance(corpora, list | tuple) and corpora else None
    return dict(first) if isinstance(first, dict | CorpusFiles) else {}


def _named_test_sets(value: object) -> object:
    if not isinstance(value, dict):
        return value
    if any(isinstance(part, str | int) for part in value.values()):  # paths, or the number of pairs of a drawn set
        return {"test": value}
    return {str(name): files for name, files in value.items()}  # a name like 2016 is a number to YAML


def _with_hold_outs(data: dict[str, Any], context: Any) -> dict[str, Any]:
    """The section `data` with a validation set, and with files for the drawn sets (`holdout`) that name none.

    The files are named after the configuration file; without one in `context`, nothing is added.
    """
    stem = context.get("stem") if isinstance(context, dict) else None
    if stem is None:
        return data
    validation = data.get("validation", {"holdout": "auto"})
    tests = _named_test_sets(data.get("test", {}))
    if isinstance(tests, dict):
        tests = {name: _with_files(files, f"{stem}.{name}", data) for name, files in tests.items()}
    return {**data, "validation": _with_files(validation, f"{stem}.validation", data), "test": tests}


def _with_files(files: Any, name: str, data: dict[str, Any]) -> Any:
    """A held-out set; with the files `name`.LANGUAGE if it is to be drawn and names none."""
    if not isinstance(files, dict) or files.get("holdout") is None or files.keys() & {"src", "tgt", "pairs"}:
        return files
    if files["holdout"] == 0:
        first = _first_corpus(data)
        return {**files, **{key: value for key, value in first.items() if key in CorpusFiles.model_fields}}
    languages = [str(data[side]) for side in ("src_lang", "tgt_lang")]
    for index, language in enumerate(languages):
        with contextlib.suppress(ValueError):  # reported elsewhere
            languages[index] = check_language(language)
    src, tgt = file_endings(*languages)
    return {**files, "src": f"{name}.{src}", "tgt": f"{name}.{tgt}"}


class DataConfig(TextConfig):
    """Corpora for training, validation and testing, and their languages."""

    train: Annotated[
        tuple[Annotated[TrainingFiles, AfterValidator(in_the_languages)], ...],
        Field(min_length=1),
        BeforeValidator(
            _as_list, json_schema_input_type=TrainingFiles | Annotated[tuple[TrainingFiles, ...], Field(min_length=1)]
        ),
    ]
    """The training corpus: `{src, tgt}` or `{pairs}`, or a list of several. `weight` makes the pairs of a corpus occur
    more or less often."""
    temperature: Annotated[float, Field(ge=1)] | None = None
    """Instead of weights: sample each corpus in proportion to `size ** (1 / temperature)`; an epoch has as many pairs
    as all corpora together. 1 keeps the sizes; higher values make them more equal (5 is usual). `null`: off."""
    replay: Rate = 0.0
    """With `training.init_from`: share of each epoch's pairs that comes from the base run's training corpora, so that
    the model forgets less. The pairs are sampled again for each epoch, by the weights of those corpora. 0: off."""
    exclude: tuple[Annotated[CorpusFiles, AfterValidator(in_the_languages)], ...] = ()
    """Further held-out texts, such as a test set for later: training pairs that share their source or target with one
    of their pairs are dropped. With `training.init_from`, the default is the held-out text of the base run."""
    cleaning: CleaningConfig = Field(default_factory=CleaningConfig)
    """Rules that drop pairs from the training text."""
    validation: Annotated[HeldOutFiles, AfterValidator(in_the_languages)]
    """The validation set: decides which checkpoint is the best and, with `training.patience`, when training stops.
    `{src, tgt}`, `{pairs}`, or `{holdout: N}` to draw N training pairs. Default: `{holdout: auto}`."""
    test: Annotated[
        dict[str, Annotated[HeldOutFiles, AfterValidator(in_the_languages)]],
        BeforeValidator(_named_test_sets, json_schema_input_type=HeldOutFiles | dict[str, HeldOutFiles]),
    ] = Field(default_factory=dict)
    """The test sets that `nmt eval` scores: for each, `NAME: {src, tgt}`, `NAME: {pairs}` or `NAME: {holdout: N}`. A
    single one may stand without a name; it is named `test`."""

    @model_validator(mode="before")
    @classmethod
    def _from_file_names(cls, raw: Any, info: ValidationInfo) -> Any:
        """Take missing languages from the suffix of the first training file, and name the files of drawn sets."""
        if not isinstance(raw, dict):
            return raw
        first, languages = _first_corpus(raw), {}
        for side in ("src", "tgt"):
            if raw.get(f"{side}_lang"):
                continue
            path = first.get(side)
            if first.get("pairs") is not None:
                raise ValueError(
                    f"data.{side}_lang: not given, and the name {first['pairs']} tells no language; add data.src_lang "
                    f"and data.tgt_lang, for example `src_lang: en` and `tgt_lang: de`"
                )
            if not isinstance(path, str | Path):
                languages[f"{side}_lang"] = "und" if side == "src" else "mul"  # valid; the missing path has its message
                continue
            languages[f"{side}_lang"] = language_suffix(Path(path))
            if not languages[f"{side}_lang"]:
                raise ValueError(
                    f"data.{side}_lang: not given, and the name {Path(path).name} does not end in a language code; "
                    f"add data.{side}_lang, for example `{side}_lang: de`"
                )
        return _with_hold_outs(raw | languages, info.context)

    @model_validator(mode="after")
    def _one_way_to_mix(self) -> Self:
        if self.temperature is not None and (self.replay or any(files.weight != 1 for files in self.train)):
            other = "data.replay" if self.replay else "the weights in data.train"
            raise ValueError(f"data.temperature and {other} exclude each other; leave one out")
        return self

    @field_validator("test")
    @classmethod
    def _test_names(cls, value: dict[str, HeldOutFiles]) -> dict[str, HeldOutFiles]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
                raise ValueError(f"a test set's name becomes a file's name; {name!r} cannot (letters, digits, _ . -)")
            if value[name].holdout == 0:
                raise ValueError(f"{name}: holdout: 0 is for data.validation; a test set has at least one pair")
        return value

    @model_validator(mode="after")
    def _hold_outs_are_apart(self) -> Self:
        if self.validation.holdout == 0 and self.hold_outs:
            raise ValueError(
                f"data.{next(iter(self.hold_outs))}: would be drawn from the training pairs, which are the validation "
                f"set with data.validation.holdout: 0; give data.validation files, or a number"
            )
        names: dict[Path, str] = {}
        for corpus in self.train:
            names |= dict.fromkeys((corpus.src_file, corpus.tgt_file), "data.train")
        for name, held_out in self.held_out.items():
            own = (held_out.src_file, held_out.tgt_file)
            for file in own if held_out.is_drawn else ():
                if file in names:
                    raise ValueError(
                        f"data.{name}: {file.name} is also a file of {names[file]}; give the test set another name, or "
                        f"the held-out set another src and tgt"
                    )
            if held_out.holdout != 0:
                names |= dict.fromkeys(own, f"data.{name}")
        return self

    @property
    def held_out(self) -> dict[str, HeldOutFiles]:
        """The validation set and the test sets by their keys: `validation`, `test.NAME`."""
        return {"validation": self.validation, **{f"test.{name}": files for name, files in self.test.items()}}

    @property
    def hold_outs(self) -> dict[str, HeldOutFiles]:
        """The held-out sets that are drawn from the training corpora."""
        return {name: files for name, files in self.held_out.items() if files.is_drawn}

    @property
    def validates_on_training_text(self) -> bool:
        """True if the validation set is training text, whose scores say nothing about other text."""
        own, train = self.validation, {(files.src_file, files.tgt_file) for files in self.train}
        return own.holdout == 0 or (own.src_file, own.tgt_file) in train

    @property
    def excluded_from_training(self) -> tuple[CorpusFiles, ...]:
        """The held-out texts: training pairs that share a source or target with one are dropped."""
        held_out = self.held_out if self.cleaning.overlap else self.hold_outs
        return (*(files for files in held_out.values() if files.holdout != 0), *self.exclude)
