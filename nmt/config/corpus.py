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
        # Only links to folders are followed: the file that a link leads to may lack the suffix that tells its format.
        return Path(folder, path).parent.resolve() / path.name if folder else path
    except RuntimeError as error:  # ~nobody, or links in a circle
        raise ValueError(str(error)) from None


ConfigPath = Annotated[Path, AfterValidator(_relative_to_config)]


def _as_column(value: object) -> object:
    if value is None or (isinstance(value, str) and value) or (type(value) is int and value > 0):
        return value
    raise ValueError(f"{value!r} is not a column; give a number from 1, or a name")


Column = Annotated[int | str, BeforeValidator(_as_column)]


class CorpusFiles(Section):
    """Two text files with the same number of lines, `src` and `tgt`, where line n of `tgt` translates line n of `src`;
    or one file with both sides, `pairs`.

    With a source of vectors or images, line n of `tgt` describes source n of `src`.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["src", "tgt"]}, {"required": ["pairs"]}]})

    pairs: ConfigPath | None = None
    """Instead of `src` and `tgt`: one file with both sides, in the format of its suffix: .tsv, .csv, .jsonl, .tmx, or
    .zip (an archive of two texts, as from OPUS). All but .zip may be compressed like a text."""
    src: ConfigPath | None = Field(default=None, validate_default=True)
    """The source side: UTF-8, one sentence a line; decompressed if the name ends in .gz, .bz2, .xz or .zst. A relative
    path starts at the folder of the configuration file. For vectors and images, the `source` section describes the
    file."""
    tgt: ConfigPath | None = Field(default=None, validate_default=True)
    """The target side, in the same format."""
    src_column: Column | None = None
    """Place of the source in `pairs`. TSV, CSV: a column's number from 1, or its name in the first row, which is then a
    header. JSONL: a field; `outer.inner` for a nested one. TMX: a language; `de` also matches `de-DE`. ZIP: the end of
    a member's name (`de` for `Books.de-en.de`), or the whole name. Default: 1 for TSV and CSV, else `data.src_lang`."""
    tgt_column: Column | None = None
    """Place of the target in `pairs`. Default: 2 for TSV and CSV, else `data.tgt_lang`."""
    inline_tags: Literal["drop", "keep"] | None = None
    """Treatment of inline code in the segments of a TMX, such as `<bpt>&lt;b&gt;</bpt>`: `drop` removes it, `keep`
    leaves its content, `<b>`, in the sentence. Default: `drop`."""

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
                f"{value.name}: unknown format; known suffixes are {known}, and all but .zip may be followed by "
                f"{', '.join(COMPRESSIONS)}"
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
            raise ValueError(f"pairs: {pairs.name} has both sides; leave out {info.field_name} or the key pairs")
        if value is not None and pairs_format(value) in ("tmx", "zip"):
            raise ValueError(f"{value.name} holds both sides of a corpus; name it as pairs, without src and tgt")
        return value

    @model_validator(mode="after")
    def _columns_fit_the_format(self) -> Self:
        columns = {"src_column": self.src_column, "tgt_column": self.tgt_column}
        if self.pairs is None:
            if given := [key for key, value in (columns | {"inline_tags": self.inline_tags}).items() if value]:
                raise ValueError(f"{' and '.join(given)}: only for `pairs`, one file with both sides; leave it out")
            return self
        found = pairs_format(self.pairs)
        if found not in ("tsv", "csv") and (numbers := [key for key, value in columns.items() if type(value) is int]):
            what = "the name of a field" if found == "jsonl" else "a language"
            raise ValueError(f"{numbers[0]} is a number; in {self.pairs.name} it is {what}")
        if self.inline_tags and found != "tmx":
            raise ValueError(f"inline_tags: only for a TMX, which {self.pairs.name} is not; leave it out")
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The keys of the form that is used, without `replayed: false`."""
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

    def files_exist(self) -> bool:
        """True if the files of both sides exist."""
        return self.src_file.exists() and self.tgt_file.exists()

    def file_keys(self) -> dict[str, Any]:
        """The keys of `CorpusFiles` as in a configuration, without those of a training corpus or a held-out set."""
        return self.model_dump(mode="json", include=set(CorpusFiles.model_fields))

    @property
    def columns(self) -> tuple[int | str, int | str]:
        """`src_column` and `tgt_column` of `pairs`, which are resolved in any loaded configuration."""
        assert self.src_column is not None and self.tgt_column is not None, "resolved by `in_languages`"
        return self.src_column, self.tgt_column

    def in_languages(self, src_lang: str, tgt_lang: str) -> Self:
        """The same corpus, with the defaults that depend on its format and languages filled in."""
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
            raise ValueError(f"src_column and tgt_column are both {update['src_column']!r}; name two different ones")
        return self.model_copy(update=update)


class TrainingFiles(CorpusFiles):
    """A training corpus."""

    weight: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    """Number of times that each pair of this corpus occurs in an epoch. With 2.5, every pair occurs twice, and half of
    the pairs, sampled again for each epoch, a third time."""
    tag: Annotated[str, Field(min_length=1)] | None = None
    """One of `tokenizer.tags`, put before each source of this corpus in training, never in translation. A tag for
    machine-translated text makes the model learn less of its style (Caswell et al. 2019)."""
    replayed: SkipJsonSchema[bool] = False
    """True for a corpus of `data.replay`; nmt adds these."""


def check_tags(corpora: Sequence[TrainingFiles], tokenizer: TokenizerConfig) -> None:
    """Raise `ValueError` for a tag that is not one of `tokenizer.tags`, or tags that the tokenizer does not support."""
    for key, given in (("tokenizer.tags", tokenizer.tags), ("data.train.tag", any(files.tag for files in corpora))):
        if given and tokenizer.type == "marian":
            raise ValueError(f"{key}: the tokenizer of an imported model (nmt import) has no tags; leave it out")
    for tag in (files.tag for files in corpora if files.tag is not None and files.tag not in tokenizer.tags):
        raise ValueError(
            f"data.train.tag: {tag} is not one of tokenizer.tags ({', '.join(tokenizer.tags) or 'none'}); with "
            f"training.init_from, they are those of the base run"
        )


class HeldOutFiles(CorpusFiles):
    """A validation or test set: files, or pairs drawn from the training corpora."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["src", "tgt"]}, {"required": ["pairs"]}, {"required": ["holdout"]}]}
    )

    holdout: Annotated[int, Field(ge=0)] | Literal["auto"] | None = None
    """Draw this many pairs from the training corpora, once, into the texts `src` and `tgt`, which are read afterwards.
    `auto`: one pair in 20, at least 10 and at most 1,000. Training pairs that share their source or target with a drawn
    pair are dropped. By default, `src` and `tgt` lie beside the configuration file, and are named after it, the set and
    the language (`FILE.validation.en`). 0, for `data.validation` only: draw none, and validate on the training pairs
    themselves; `auto` does so with fewer than 50 pairs."""

    @property
    def is_drawn(self) -> bool:
        """True if the pairs are drawn from the training corpora, which lose them."""
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
            raise ValueError(f"holdout: src and tgt are both {self.src_file.name}; name two different files")
        return self


Files = TypeVar("Files", bound=CorpusFiles)


def in_the_languages(files: Files, info: ValidationInfo) -> Files:
    """`CorpusFiles.in_languages`, unless `data.src_lang` or `data.tgt_lang` is invalid, which is reported there."""
    src_lang, tgt_lang = info.data.get("src_lang"), info.data.get("tgt_lang")
    if not src_lang or not tgt_lang:
        return files
    return files.in_languages(src_lang, tgt_lang)
