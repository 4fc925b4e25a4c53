"""Source encoding: lines of text to ids, for translation, scoring and explanation alike.

Vectors stay as they are. A source longer than `data.max_length` is split for translation; for scoring and explanation,
which need it whole, it is cut.
"""

import itertools
import operator
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

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
"""A source as a caller gives it: a line of text, or vectors (S, F)"""


class PartedSource(NamedTuple):
    """A source in parts that are translated separately."""

    parts: list[Part]
    """None for an empty line; one without text for vectors"""
    encoded: list[EncodedSource]
    """The same parts as the model reads them; of length 0 for parts that are copied"""


SourceEncoder: TypeAlias = "SourceText | SourceVectors"
"""An encoder of sources into ids or vectors, as a model reads them."""


def source_encoder(
    source: SourceConfig, tokenizer: Tokenizer, max_length: int, decoding: DecodingConfig, src_lang: str
) -> SourceEncoder:
    """Make the encoder of a model's sources, which have at most `max_length` positions."""
    if source.type == "text":
        return SourceText(tokenizer, max_length, decoding.lower_capitals, src_lang, decoding.copied)
    return SourceVectors(source, max_length)


class SourceVectors:
    """An encoder of vectors, or images as patches: checks them, and cuts them at `data.max_length`."""

    def __init__(self, source: VectorSource | ImageSource, max_length: int) -> None:
        self._source = source
        self._max_length = max_length

    def encode(self, item: Item, place: str, used: str = "translated") -> "Vectors":
        """Return the vectors, cut at the maximum, which is logged as in `SourceText.encode`.

        Raises `ConfigError` for text, and for vectors with another number of features.
        """
        width = self._source.width
        if isinstance(item, str):
            raise ConfigError(f"this model reads {self._source.type}, not text; give it a file: --input FILE")
        if item.ndim != 2 or item.shape[1] != width:
            raise ConfigError(f"{place}: has the shape {item.shape}; this model reads vectors (S, {width})")
        if len(item) > self._max_length:
            message = "%s: %d vectors; only the first %d (data.max_length) are %s"
            log.warning(message, place, len(item), self._max_length, used)
        return item[: self._max_length]

    def in_parts(self, numbered: Sequence[tuple[int, Item]], by_sentence: bool) -> list[PartedSource]:
        """Encode each source as a single part; errors and warnings are those of `encode`."""
        return [PartedSource([Part("")], [self.encode(item, f"line {number}")]) for number, item in numbered]


class SourceText:
    """An encoder of lines of text.

    With `decoding.lower_capitals`, a line in all capitals is lowercased. Then it is normalized and split into pieces.
    In a translation, parts that are copied (`decoding.copied`) have no pieces, and the others have the line's tag.
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

    def encode(self, item: Item, place: str, used: str = "translated") -> list[int]:
        """Return the ids of a line, without `</s>`, cut at the maximum; none if there is nothing to translate.

        A cut is logged: the line's `place`, and that only the beginning is `used` (translated, read, ...). Raises
        `ConfigError` for vectors.
        """
        tag, line = self._line(item, place)
        (ids,) = self._encoded([(tag, beginning(line, self._max_length))])
        if len(ids) > self._max_length:
            log.warning(
                "%s: %s; only the first %d (data.max_length) are %s",
                place,
                f"{len(ids)} pieces" if len(line) <= LONG_LINE_CHARACTERS else f"{len(line):,} characters",
                self._max_length,
                used,
            )
            ids = ids[: self._max_length]
        return ids

    def in_parts(self, numbered: Sequence[tuple[int, Item]], by_sentence: bool) -> list[PartedSource]:
        """Encode lines for translation: whole or, `by_sentence`, in sentences; in smaller parts if too long.

        The number of the first line that is too long is logged. Raises `ConfigError` for vectors.
        """
        lines = [self._tagged_parts(item, f"line {number}", by_sentence) for number, item in numbered]
        encoded = iter(self._ids_that_fit([(tag, part.text) for line in lines for tag, part in line]))
        sources = []
        for (number, _), line in zip(numbered, lines, strict=True):
            source = PartedSource([], [])
            for (tag, part), ids in zip(line, encoded, strict=False):
                if ids is not None:
                    source.parts.append(part)
                    source.encoded.append(ids)
                    continue
                if not self._reported:
                    message = "line %d: more than %d pieces (data.max_length); such lines are translated in parts, %s"
                    log.warning(message, number, self._max_length, "split at the ends of sentences and clauses")
                    self._reported = True
                smaller = self._emoji_apart(self._smaller_parts(tag, part))
                source.parts.extend(smaller)
                source.encoded.extend(self._ids(tag, smaller_part.text) for smaller_part in smaller)
            sources.append(source)
        return sources

    def _tagged_parts(self, item: Item, place: str, by_sentence: bool) -> list[tuple[int | None, Part]]:
        """The parts of a line, of any length, each with its target tag."""
        first_tag, line = self._line(item, place)
        parts = split_sentences(line, self._src_lang) if by_sentence else [Part(self._tokenizer.normalize(line))]
        tag, before, tagged = first_tag, "", []
        for part in self._emoji_apart(parts):
            if "\n" in before:  # another line, which may have its own tag
                tag = first_tag
            own_tag, text = self._split_tag(part.text)
            tag, before = tag if own_tag is None else own_tag, part.after
            tagged.append((tag, Part(text, part.after)))
        return tagged

    def _emoji_apart(self, parts: list[Part]) -> list[Part]:
        return [smaller for part in parts for smaller in emoji_apart(part)] if "symbols" in self._copied else parts

    def _line(self, item: Item, place: str) -> tuple[int | None, str]:
        """The target tag at the beginning of a line, or None, and the line without it."""
        if not isinstance(item, str):
            raise ConfigError(f"{place}: holds vectors, and this model reads text")
        tag, line = self._split_tag(item)
        if self._lower_capitals and is_in_capitals(line) and not is_copied(line, self._copied):
            line = lowercase(line, self._dotless_i)
        return tag, line

    def _split_tag(self, text: str) -> tuple[int | None, str]:
        """As `Tokenizer.split_tag`, without white space after the tag."""
        tag, rest = self._tokenizer.split_tag(text)
        return tag, text if tag is None else rest.lstrip()

    def _ids_that_fit(self, texts: Sequence[tuple[int | None, str]]) -> list[list[int] | None]:
        """The ids of parts of lines, each with its tag; empty for a copied part, None for a part that is too long."""
        results: list[list[int] | None] = [[] if is_copied(text, self._copied) else None for _, text in texts]
        longest = characters_of(self._max_length)
        rest = [index for index, (_, text) in enumerate(texts) if results[index] is None and len(text) <= longest]
        for index, ids in zip(rest, self._encoded([texts[index] for index in rest]), strict=True):
            results[index] = ids if len(ids) <= self._max_length else None
        return results

    def _ids(self, tag: int | None, text: str) -> list[int]:
        """The ids of a part of a line; empty if it is copied."""
        return [] if is_copied(text, self._copied) else self._encoded([(tag, text)])[0]

    def _encoded(self, texts: Sequence[tuple[int | None, str]]) -> list[list[int]]:
        """The ids of texts, each with its tag. Texts of the same tag are encoded together, in half the time."""
        ids: list[list[int]] = []
        for tag, group in itertools.groupby(texts, key=operator.itemgetter(0)):
            lines = [self._tokenizer.normalize(text) for _, text in group]
            ids += (
                self._tokenizer.encode_lines(lines)
                if tag is None
                else [self._tokenizer.encode(line, tag) for line in lines]
            )
        return ids

    def _smaller_parts(self, tag: int | None, part: Part) -> list[Part]:
        """The sentences of a part; those that are too long, in several parts."""
        *sentences, last = split_sentences(part.text, self._src_lang)
        sentences.append(Part(last.text, last.after + part.after))
        return [
            smaller
            for sentence in sentences
            for smaller in split_to_fit(sentence, lambda text: self._ids_that_fit([(tag, text)]) != [None])
        ]


def characters_of(num_pieces: int) -> int:
    """An upper bound of the number of characters in N pieces, without long runs of spaces."""
    return max(LONG_LINE_CHARACTERS, 2 * PIECE_CHARACTERS * num_pieces)


def beginning(line: str, num_pieces: int) -> str:
    """Cut a very long line where the rest cannot affect its first `num_pieces` pieces.

    A tokenizer reads several spaces as one, and Unicode's NFC composes up to three characters into one.
    """
    if len(line) <= LONG_LINE_CHARACTERS:
        return line
    count = characters_of(num_pieces)
    words = itertools.islice(re.finditer("[^ ]+", line), count)
    return " ".join(word[0] for word in words)[: 2 * count]
