"""Translation memories: TMX 1.1 to 1.4, in any encoding that the first line declares.

    <tu>
      <tuv xml:lang="en-US"><seg>Press <bpt i="1">&lt;b&gt;</bpt>Start<ept i="1">&lt;/b&gt;</ept>.</seg></tuv>
      <tuv xml:lang="de-DE"><seg>Drücken Sie <hi>Start</hi>.</seg></tuv>
    </tu>

A file of any size takes the same memory. A file that defines entities is refused, and nothing outside it is read: a few
lines of entities can stand for gigabytes, or for other files of this machine.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from nmt.corpora.lines import opened
from nmt.corpora.tables import NumberedPair, listed, one_line
from nmt.errors import DataError
from nmt.system.console import warn_once

InlineTags = Literal["drop", "keep"]
_CHUNK_BYTES = 1 << 16
_SAMPLE_BYTES = 1 << 20
# Elements with code of the original document; a <sub> in them is text of another sentence.
_CODE = frozenset({"bpt", "ept", "it", "ph", "ut"})


def read_tmx(
    path: Path,
    src_lang: str,
    tgt_lang: str,
    inline_tags: InlineTags = "drop",
    warn: Callable[[str], object] = warn_once,
) -> Iterator[NumberedPair]:
    """Yield the units that have both languages; `de` is also `de-DE`, unless a unit has both.

    Of several segments in a language, the first is taken. Units without one of the languages are skipped. `warn` gets
    a message with the number of each. Raises `DataError` with the line number if the file is not a TMX or defines an
    entity, and if no unit has both languages.
    """
    units = _Units(path, (src_lang, tgt_lang), inline_tags)
    with opened(path) as file:
        while True:
            chunk = file.read(_CHUNK_BYTES)
            units.feed(chunk, is_end=not chunk)
            yield from units.pairs
            units.pairs.clear()
            if not chunk:
                break
    units.report(warn)


def languages_of_tmx(path: Path) -> tuple[str, list[str]]:
    """The source language of the header (`srclang`; '' without one), and the languages of the first units.

    The codes are as written, in order of appearance, from about the first megabyte. `DataError` as from `read_tmx`.
    """
    sample = _Units(path, ("", ""), "drop")
    with opened(path) as file:
        sample.feed(file.read(_SAMPLE_BYTES))
    return sample.source, list(sample.languages)


class _Units:
    """Handlers of an XML parser, which collect the pairs of the units."""

    def __init__(self, path: Path, languages: tuple[str, str], inline_tags: InlineTags) -> None:
        self.pairs: list[NumberedPair] = []  # since the last look
        self._path = path
        self._languages = languages
        self._wanted = (_standard(languages[0]), _standard(languages[1]))
        self._keeps_tags = inline_tags == "keep"
        self.languages: Counter[str] = Counter()  # of the segments, as written
        self.source = ""  # the header's srclang
        self._number = self._skipped = self._ambiguous = 0
        self._segments: list[tuple[str, str]] = []  # language and text, of the current unit
        self._language = ""
        self._parts: list[str] | None = None  # of the current segment's text
        self._depth = 0  # of the current element
        # Of the outermost code element around it: depth, tag, and the number of parts before it.
        self._code_depth, self._code_tag, self._before_code = 0, "", 0
        self.parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.EntityDeclHandler = self._refuse_entity
        parser.SkippedEntityHandler = self._refuse_undefined

    def feed(self, chunk: bytes, is_end: bool = False) -> None:
        """Parse the next part of the file."""
        try:
            self.parser.Parse(chunk, is_end)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            place = f"{self._path}:{error.lineno}"
            raise DataError(f"{place}: broken TMX, at column {error.offset + 1}: {reason}") from None
        except (ValueError, LookupError) as error:  # expat does not know the encoding
            raise DataError(f"{self._path}: its encoding cannot be read: {error}; convert it to UTF-8") from None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and name != "tmx":
            raise DataError(f"{self._place()}: not a TMX: its outermost element is <{name}>, not <tmx>")
        if self._parts is not None:
            if name in _CODE and not self._code_depth:
                self._code_depth = self._depth
                self._before_code = len(self._parts)
                self._code_tag = name + "".join(f" {key}={quoteattr(value)}" for key, value in attributes.items())
                self.parser.CharacterDataHandler = self._parts.append if self._keeps_tags else None
        elif name == "header":
            self.source = attributes.get("srclang", "")
        elif name == "tu":
            self._number += 1
            self._segments.clear()
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self._parts = []
            self.parser.CharacterDataHandler = self._parts.append

    def _end(self, name: str) -> None:
        if self._parts is not None:
            if self._code_depth == self._depth:
                self._code_depth = 0
                if self._keeps_tags and len(self._parts) == self._before_code:
                    self._parts.append(f"<{self._code_tag}/>")
                self.parser.CharacterDataHandler = self._parts.append
            elif name == "seg":
                self._segments.append((_standard(self._language), one_line("".join(self._parts))))
                self.languages[self._language] += 1
                self._parts, self.parser.CharacterDataHandler = None, None
        elif name == "tu":
            self._end_unit()
        self._depth -= 1

    def _end_unit(self) -> None:
        chosen, is_ambiguous = _choose_segments(tuple([language for language, _ in self._segments]), self._wanted)
        if chosen is None:
            self._skipped += 1
            return
        self._ambiguous += is_ambiguous
        src, tgt = chosen
        self.pairs.append(NumberedPair(self._number, self._segments[src][1], self._segments[tgt][1]))

    def report(self, warn: Callable[[str], object]) -> None:
        """Warn of units that were skipped or have several segments; `DataError` if all were skipped."""
        if self._number and self._skipped == self._number:
            raise DataError(
                f"{self._path}: no unit has both {self._languages[0]!r} and {self._languages[1]!r}; name two of its "
                f"languages as src_column and tgt_column: {listed([name for name, _ in self.languages.most_common()])}"
            )
        if self._skipped:
            src, tgt = self._languages
            warn(f"{self._path}: {self._skipped:,} of {self._number:,} units do not have both {src} and {tgt}: skipped")
        if self._ambiguous:
            warn(
                f"{self._path}: {self._ambiguous:,} of {self._number:,} units have several segments in a language: the "
                "first is taken"
            )

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise DataError(f"{self._place()}: defines the entity {name!r}, which is refused; write out its text")

    def _refuse_undefined(self, name: str, *_: object) -> None:
        raise DataError(f"{self._place()}: the entity &{name}; is not defined in this file; write out its text")

    def _place(self) -> str:
        return f"{self._path}:{self.parser.CurrentLineNumber}"


def is_read_as(written: str, language: str) -> bool:
    """True if `read_tmx` takes a segment whose code is `written` for one in a language."""
    return _matches(_standard(written), _standard(language))


@functools.lru_cache(1000)  # most units of a file have the same languages
def _standard(language: str) -> str:
    return language.replace("_", "-").lower()


def _matches(language: str, wanted: str) -> bool:
    return language == wanted or language.startswith(f"{wanted}-")


@functools.lru_cache(1000)
def _choose_segments(languages: tuple[str, ...], wanted: tuple[str, str]) -> tuple[tuple[int, int] | None, bool]:
    """The indexes of the segments in both languages, and True if others could have been taken.

    >>> _choose_segments(("en-gb", "en", "de-de"), ("en", "de"))
    ((1, 2), True)
    >>> _choose_segments(("en-gb", "en-us"), ("en", "en-gb"))
    ((1, 0), False)
    """
    chosen: dict[int, int] = {}
    for matches in (str.__eq__, _matches):
        for side, wanted_language in enumerate(wanted):
            for index, language in enumerate(languages):
                if side not in chosen and index not in chosen.values() and matches(language, wanted_language):
                    chosen[side] = index
    if len(chosen) < 2:
        return None, False
    others = [language for index, language in enumerate(languages) if index not in chosen.values()]
    return (chosen[0], chosen[1]), any(_matches(language, side) for language in others for side in wanted)
