"""The files of a corpus: two texts, or one file with both sides."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from nmt.config.formats import COMPRESSIONS, PAIRS_FORMATS, pairs_format
from nmt.config.inference import TokenizerConfig
from nmt.config.section import Section


def _relative_to_config(path: Path, info: ValidationInfo) -> Path:
    folder = info.context.get("folder") if isinstance(info.context, dict) else None
    try:
        path = path.expanduser()
        # Only links to folders are followed: what one to a file leads to may lack the ending that says its format.
        return Path(folder, path).parent.resolve() / path.name if folder else path
    except RuntimeError as error:  # ~nobody, or links in a circle
        raise ValueError(str(error)) from None


ConfigPath = Annotated[Path, AfterValidator(_relative_to_config)]


def _as_column(value: object) -> object:
    if value is None or (isinstance(value, str) and value) or (type(value) is int and value > 0):
        return value
    raise ValueError(f"{value!r} is not a column: a number from 1, or a name")


Column = Annotated[int | str, BeforeValidator(_as_column)]


class CorpusFiles(Section):
    """Two text files with the same number of lines, `src` and `tgt`: line n of one is the translation of line n of the
    other. Or `pairs`, one file with both sides.

    With a source of vectors or images, line n of `tgt` describes source n of `src`.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["src", "tgt"]}, {"required": ["pairs"]}]})

    pairs: ConfigPath | None = None
    """Instead of `src` and `tgt`: one file with both sides. The end of its name says the format: .tsv, .csv, .jsonl,
    .tmx, or .zip (an archive with two texts, as OPUS has them). All but .zip may be compressed like a text."""
    src: ConfigPath | None = Field(default=None, validate_default=True)
    """The source side: UTF-8, one sentence a line; decompressed if the name ends in .gz, .bz2, .xz or .zst. A relative
    path starts at the folder of the configuration file. The `source` section says what it is instead, with vectors or
    images."""
    tgt: ConfigPath | None = Field(default=None, validate_default=True)
    """The target side, in the same format."""
    src_column: Column | None = None
    """Where the source is in `pairs`. TSV, CSV: a column's number from 1, or its name in the first row, which is then
    no pair. JSONL: a field, or `outer.inner` for one inside another. TMX: a language; `de` is also `de-DE`. ZIP: the
    end of a member's name (`de` for `Books.de-en.de`), or the whole. Default: 1 for TSV and CSV, else
    `data.src_lang`."""
    tgt_column: Column | None = None
    """Where the target is in `pairs`. Default: 2 for TSV and CSV, else `data.tgt_lang`."""
    inline_tags: Literal["drop", "keep"] | None = None
    """What happens to code inside the segments of a TMX, as in `<bpt>&lt;b&gt;</bpt>`: `drop` leaves it out, `keep`
    leaves what it holds, `<b>`, in the sentence. Default: `drop`."""

    _parsed: Path | None = PrivateAttr(default=None)

    @property
    def parsed(self) -> Path | None:
        """The folder of the cache with the pairs of a TMX that was parsed before (nmt.corpora.tmx_cache)."""
        return self._parsed

    def parsed_in(self, folder: Path) -> Self:
        """The same corpus, to be read from this folder."""
        copy = self.model_copy()
        copy._parsed = folder
        return copy

    @field_validator("pairs")
    @classmethod
    def _known_format(cls, value: Path | None) -> Path | None:
        if value is not None and pairs_format(value) is None:
            known = ", ".join(f".{name}" for name in PAIRS_FORMATS)
            raise ValueError(
                f"{value.name}: its ending says no known format; known are {known}, and all but .zip also with "
                f"{', '.join(COMPRESSIONS)} after it"
            )
        return value

    @field_validator("src", "tgt")
    @classmethod
    def _two_files_or_one(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if "pairs" not in info.data:  # reported already
            return value
        pairs = info.data["pairs"]
        if value is None and pairs is None:
            raise PydanticCustomError("missing", "Field required")
        if value is not None and pairs is not None:
            raise ValueError(f"pairs: {pairs.name} has both sides; leave {info.field_name} out, or pairs")
        if value is not None and pairs_format(value) in ("tmx", "zip"):
            raise ValueError(f"{value.name} holds both sides of a corpus; name it as pairs, without src and tgt")
        return value

    @model_validator(mode="after")
    def _columns_fit_the_format(self) -> Self:
        columns = {"src_column": self.src_column, "tgt_column": self.tgt_column}
        if self.pairs is None:
            if given := [key for key, value in (columns | {"inline_tags": self.inline_tags}).items() if value]:
                raise ValueError(f"{' and '.join(given)}: for `pairs`, one file with both sides; leave it out")
            return self
        found = pairs_format(self.pairs)
        if found not in ("tsv", "csv") and (numbers := [key for key, value in columns.items() if type(value) is int]):
            what = "the name of a field" if found == "jsonl" else "a language"
            raise ValueError(f"{numbers[0]} is a number; in {self.pairs.name} it is {what}")
        if self.inline_tags and found != "tmx":
            raise ValueError(f"inline_tags: for a TMX, and {self.pairs.name} has no such tags; leave it out")
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the keys of the other form, and without `replayed: false`."""
        return {key: value for key, value in dump(self).items() if value is not None and value is not False}

    @property
    def src_file(self) -> Path:
        """The file with the source side: `src`, or `pairs`."""
        return self._file(self.src)

    @property
    def tgt_file(self) -> Path:
        """The file with the target side: `tgt`, or `pairs`."""
        return self._file(self.tgt)

    def _file(self, side: Path | None) -> Path:
        file = side or self.pairs
        assert file is not None, "validated"
        return file

    @property
    def columns(self) -> tuple[int | str, int | str]:
        """`src_column` and `tgt_column` of `pairs`, which a configuration always has."""
        assert self.src_column is not None and self.tgt_column is not None, "resolved by `in_languages`"
        return self.src_column, self.tgt_column

    def in_languages(self, src_lang: str, tgt_lang: str) -> Self:
        """The same corpus with the defaults that depend on its format and languages written out."""
        if self.pairs is None:
            return self
        found = pairs_format(self.pairs)
        defaults: tuple[int | str, int | str] = (1, 2) if found in ("tsv", "csv") else (src_lang, tgt_lang)
        update = {
            "src_column": defaults[0] if self.src_column is None else self.src_column,
            "tgt_column": defaults[1] if self.tgt_column is None else self.tgt_column,
            "inline_tags": "drop" if found == "tmx" and self.inline_tags is None else self.inline_tags,
        }
        if update["src_column"] == update["tgt_column"]:
            raise ValueError(f"src_column and tgt_column are both {update['src_column']!r}; they are to be different")
        return self.model_copy(update=update)


class TrainingFiles(CorpusFiles):
    """One of the corpora to train on."""

    weight: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    """How often each pair of this corpus occurs in an epoch. With 2.5, every pair occurs twice and half of the pairs,
    sampled again for each epoch, a third time."""
    tag: Annotated[str, Field(min_length=1)] | None = None
    """One of `tokenizer.tags`, which is put before each source of this corpus in training, and never in translation.
    Text that was translated by a machine gets a tag, so that the model learns less of its style (Caswell et al.
    2019)."""
    replayed: SkipJsonSchema[bool] = False
    """Whether this is a corpus of `data.replay`, which nmt adds."""


def check_tags(corpora: Sequence[TrainingFiles], tokenizer: TokenizerConfig) -> None:
    """`ValueError` for a tag that is not one of `tokenizer.tags`, or tags that this tokenizer cannot have."""
    for key, given in (("tokenizer.tags", tokenizer.tags), ("data.train.tag", any(files.tag for files in corpora))):
        if given and tokenizer.type == "marian":
            raise ValueError(f"{key}: not with the tokenizer of an imported model (nmt import); leave it out")
    for tag in (files.tag for files in corpora if files.tag is not None and files.tag not in tokenizer.tags):
        raise ValueError(
            f"data.train.tag: {tag} is not one of tokenizer.tags, which names {', '.join(tokenizer.tags) or 'none'}; "
            f"with training.init_from they are those of the run that it names"
        )


class HeldOutFiles(CorpusFiles):
    """A validation or test set: files, or pairs that are drawn from the training corpora."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["src", "tgt"]}, {"required": ["pairs"]}, {"required": ["holdout"]}]}
    )

    holdout: Annotated[int, Field(ge=0)] | Literal["auto"] | None = None
    """Draw this many pairs from the training corpora, once, into the texts `src` and `tgt`; they are read from there
    afterwards. `auto`: one pair in 20, at least 10 and at most 1,000. What shares its source or its target with a
    drawn pair leaves the training text. Default of `src` and `tgt`: beside the configuration file, named after it,
    the set and the languages (`FILE.validation.en`). 0, for `data.validation` only: none is drawn, and the training
    pairs themselves are the validation set, as `auto` decides with fewer than 50."""

    @property
    def is_drawn(self) -> bool:
        """Whether the pairs are drawn from the training corpora, and leave them."""
        return self.holdout not in (None, 0)

    @model_validator(mode="after")
    def _drawn_into_texts(self) -> Self:
        if not self.is_drawn:
            return self
        if self.pairs is not None:
            raise ValueError(
                f"holdout: drawn pairs are written as two texts, not as {self.pairs.name}; leave pairs out"
            )
        for side in (self.src_file, self.tgt_file):
            if side.suffix in COMPRESSIONS:
                raise ValueError(f"holdout: drawn pairs are written as plain text; name {side.stem} for {side.name}")
        if self.src_file == self.tgt_file:
            raise ValueError(f"holdout: src and tgt are both {self.src_file.name}; they are to be different")
        return self


Files = TypeVar("Files", bound=CorpusFiles)


def in_the_languages(files: Files, info: ValidationInfo) -> Files:
    """`CorpusFiles.in_languages`, unless `data.src_lang` or `data.tgt_lang` is invalid, which is reported itself."""
    src_lang, tgt_lang = info.data.get("src_lang"), info.data.get("tgt_lang")
    if not src_lang or not tgt_lang or src_lang == "und":
        return files
    return files.in_languages(src_lang, tgt_lang)
