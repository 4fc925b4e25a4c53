"""How a source becomes what a model reads: one path for translating, scoring and explaining.

A line of text becomes ids; vectors stay as they are. To be scored or explained, a source must be one piece, and is cut
at `data.max_length`; to be translated, a text that is longer is split.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from nmt.cleaning.casing import has_dotless_i, is_in_capitals, lowercase
from nmt.config.inference import Copied, DecodingConfig
from nmt.config.languages import base_language
from nmt.config.source import ImageSource, SourceConfig, VectorSource
from nmt.decoding.hypothesis import EncodedSource
from nmt.decoding.sentences import Part, emoji_apart, is_copied, split_sentences, split_to_fit
from nmt.errors import ConfigError
from nmt.system.console import log
from nmt.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:  # a translator of text needs no numpy
    from nmt.corpora.vectors import Vectors


LONG_LINE_CHARACTERS = 1 << 14  # SentencePiece needs hundreds of bytes of memory for each character
PIECE_CHARACTERS = 16  # maximum length of SentencePiece's pieces


Item: TypeAlias = "str | Vectors"
"""A source as a caller gives it: a line of text, or vectors (S, F)."""


class PartedSource(NamedTuple):
    """A source in the parts in which it is translated."""

    parts: list[Part]
    """Empty for an empty line. Of vectors, one without text."""
    encoded: list[EncodedSource]
    """The same parts as the model reads them; of length 0 for those that are not translated but copied."""


class SourceEncoder(Protocol):
    """Encodes sources as a model is to read them."""

    def in_parts(self, item: Item, place: str, by_sentence: bool) -> PartedSource:
        """The source for a translation: a line as a whole, or `by_sentence`; if that is too long, in smaller parts.

        The first of these is reported in the log with its `place`, and so is each source of vectors that is cut.
        """

    def encode(self, item: Item, place: str, done_to_it: str = "translated") -> EncodedSource:
        """The ids of a line, without `</s>`, or vectors; of length 0 if there is nothing to translate.

        One that is cut is reported in the log: its `place`, and what is `done_to_it`.
        """


def source_encoder(
    source: SourceConfig, tokenizer: Tokenizer, max_length: int, decoding: DecodingConfig, src_lang: str
) -> SourceEncoder:
    """The encoder of a model's sources; each is cut at `max_length` positions."""
    if source.type == "text":
        return SourceText(tokenizer, max_length, decoding.lower_capitals, src_lang, decoding.copied)
    return SourceVectors(source, max_length)


class SourceVectors:
    """Checks vectors, or images as patches, and cuts them at `data.max_length`."""

    def __init__(self, source: VectorSource | ImageSource, max_length: int) -> None:
        self._source = source
        self._max_length = max_length

    def encode(self, item: Item, place: str, done_to_it: str = "translated") -> "Vectors":
        """As `SourceEncoder.encode`; `ConfigError` for text, and for vectors with another number of features."""
        width = self._source.width
        if isinstance(item, str):
            raise ConfigError(f"this model reads {self._source.type}, not text; give it a file: --input FILE")
        if item.ndim != 2 or item.shape[1] != width:
            raise ConfigError(f"{place}: has the shape {item.shape}; this model reads vectors (S, {width})")
        if len(item) > self._max_length:
            message = "%s: %d vectors; only the first %d (data.max_length) are %s"
            log.warning(message, place, len(item), self._max_length, done_to_it)
        return item[: self._max_length]

    def in_parts(self, item: Item, place: str, by_sentence: bool) -> PartedSource:
        """As `SourceEncoder.in_parts`: one part; `ConfigError` as for `encode`."""
        return PartedSource([Part("")], [self.encode(item, place)])


class SourceText:
    """Encodes source lines as a model is to read them.

    A line that is all capitals is lowercased if `decoding.lower_capitals` says so. Then it is normalized and split into
    pieces. In a translation, parts that are copied (`decoding.copied`) have none, and the others have the line's tag.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        lower_capitals: bool,
        src_lang: str,
        copied: Collection[Copied] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._copied = copied
        self._max_length = max_length
        self._lower_capitals = lower_capitals
        self._src_lang = src_lang
        self._dotless_i = lower_capitals and has_dotless_i(base_language(src_lang))
        self._reported = False

    def encode(self, item: Item, place: str, done_to_it: str = "translated") -> list[int]:
        """As `SourceEncoder.encode`; `ConfigError` for vectors."""
        tag, line = self._line(item, place)
        ids = self._encoded(tag, beginning(line, self._max_length))
        if len(ids) > self._max_length:
            log.warning(
                "%s: %s; only the first %d (data.max_length) are %s",
                place,
                f"{len(ids)} pieces" if len(line) <= LONG_LINE_CHARACTERS else f"{len(line):,} characters",
                self._max_length,
                done_to_it,
            )
            ids = ids[: self._max_length]
        return ids

    def in_parts(self, item: Item, place: str, by_sentence: bool) -> PartedSource:
        """As `SourceEncoder.in_parts`; `ConfigError` for vectors."""
        first_tag, line = self._line(item, place)
        tag, source = first_tag, PartedSource([], [])
        for part in self._emoji_apart(
            split_sentences(line, self._src_lang) if by_sentence else [Part(self._tokenizer.normalize(line))]
        ):
            if source.parts and "\n" in source.parts[-1].after:  # a further line, which may have a tag of its own
                tag = first_tag
            own_tag, text = self._split_tag(part.text)
            tag, part = tag if own_tag is None else own_tag, Part(text, part.after)
            if (ids := self._ids_that_fit(tag, part.text)) is not None:
                source.parts.append(part)
                source.encoded.append(ids)
                continue
            if not self._reported:
                message = "%s: more than %d pieces (data.max_length); such lines are translated in parts, split at %s"
                log.warning(message, place, self._max_length, "the ends of sentences and clauses")
                self._reported = True
            smaller = list(self._emoji_apart(self._smaller_parts(tag, part)))
            source.parts.extend(smaller)
            source.encoded.extend(self._ids(tag, one.text) for one in smaller)
        return source

    def _emoji_apart(self, parts: Sequence[Part]) -> Iterator[Part]:
        for part in parts:
            yield from emoji_apart(part) if "symbols" in self._copied else [part]

    def _line(self, item: Item, place: str) -> tuple[int | None, str]:
        """The target tag that a line begins with, if any, and the line without it."""
        if not isinstance(item, str):
            raise ConfigError(f"{place}: holds vectors, and this model reads text")
        tag, line = self._split_tag(item)
        if self._lower_capitals and is_in_capitals(line):
            line = lowercase(line, self._dotless_i)
        return tag, line

    def _split_tag(self, text: str) -> tuple[int | None, str]:
        """As `Tokenizer.split_tag`, without white space after the tag."""
        tag, rest = self._tokenizer.split_tag(text)
        return tag, text if tag is None else rest.lstrip()

    def _ids(self, tag: int | None, text: str) -> list[int]:
        """The ids of a part of a line, with its tag; none if it is copied."""
        return [] if is_copied(text, self._copied) else self._encoded(tag, text)

    def _encoded(self, tag: int | None, text: str) -> list[int]:
        return self._tokenizer.encode(self._tokenizer.normalize(text), tag)

    def _ids_that_fit(self, tag: int | None, text: str) -> list[int] | None:
        """The same, or None if they are too many."""
        if is_copied(text, self._copied):
            return []
        if len(text) > characters_of(self._max_length):
            return None
        ids = self._encoded(tag, text)
        return ids if len(ids) <= self._max_length else None

    def _smaller_parts(self, tag: int | None, part: Part) -> list[Part]:
        """Sentences; those that are too long in several parts."""
        *sentences, last = split_sentences(part.text, self._src_lang)
        sentences.append(Part(last.text, last.after + part.after))
        return [
            one
            for sentence in sentences
            for one in split_to_fit(sentence, lambda text: self._ids_that_fit(tag, text) is not None)
        ]


def characters_of(num_pieces: int) -> int:
    """Number of characters that are more than a text of this many pieces has, if it has no long runs of spaces."""
    return max(LONG_LINE_CHARACTERS, 2 * PIECE_CHARACTERS * num_pieces)


def beginning(line: str, num_pieces: int) -> str:
    """The beginning of a long line, long enough that the rest cannot affect its first `num_pieces` pieces.

    A tokenizer reads several spaces as one, and Unicode's NFC composes up to three characters into one.
    """
    if len(line) <= LONG_LINE_CHARACTERS:
        return line
    count = characters_of(num_pieces)
    words = itertools.islice(re.finditer("[^ ]+", line), count)
    return " ".join(word[0] for word in words)[: 2 * count]
