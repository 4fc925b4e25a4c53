"""Tokenizers of imported Marian models: SentencePiece splits text into pieces, and a vocabulary gives their ids.

    source.spm  target.spm             SentencePiece models of the two sides
    vocab.json  [target_vocab.json]    {"</s>": 0, ..., "<pad>": 58100}, joint or one for each side
    marian.json                        whether the vocabulary is joint, the start id, and the default target tag

All but marian.json are kept as imported, byte for byte. The ids equal those of transformers' MarianTokenizer, except in
a text with `</s>`, `<unk>` or `<pad>` (special ids there, ordinary text here), or with a tag `>>xxx<<` at its beginning
that the vocabulary lacks (`<unk>` there).

A model of several target languages expects the tag of one, `>>xxx<<`, before each source.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from nmt.corpora.tables import listed
from nmt.errors import ConfigError, DataError, RunError
from nmt.runs.folder import Recorded
from nmt.system.files import write_bytes, write_json
from nmt.tokenizers.vocabulary import SpecialIds, sentencepiece_processor, with_tag, word_numbers

EOS, UNK, PAD = "</s>", "<unk>", "<pad>"
SETTINGS = "marian.json"
_TAG = re.compile(r">>.+<<")
_LEADING_TAG = re.compile(r">>[^\s<>]{1,30}<<")


class MarianTokenizer:
    """One side of a Marian model."""

    def __init__(
        self,
        model: bytes,
        vocabulary: Mapping[str, int],
        special: SpecialIds,
        default_tag: int | None = None,
        name: str = "",
    ) -> None:
        """`vocabulary` has the id of each piece, 0 to V - 1; `default_tag` is for lines without a tag of their own.

        `RunError` with the file's `name` if `model` is no SentencePiece model.
        """
        self._made_from = model, vocabulary, special, default_tag
        self.model: bytes | None = model
        self.special = special
        self._processor = sentencepiece_processor(model, name)
        self._ids, self._default_tag = vocabulary, default_tag
        self._pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        self._tags = self.pieces(special.tags)

    def __reduce__(self) -> tuple[type["MarianTokenizer"], tuple[object, ...]]:
        return MarianTokenizer, self._made_from

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def byte_ids(self) -> frozenset[int]:
        processor = self._processor
        of_bytes = filter(processor.is_byte, range(processor.get_piece_size()))
        return frozenset(self._ids[piece] for piece in map(processor.id_to_piece, of_bytes) if piece in self._ids)

    def normalize(self, line: str) -> str:
        """The line without white space at its ends; SentencePiece normalizes the rest as it was trained to."""
        return line.strip()

    def encode(self, line: str, tag: int | None = None) -> list[int]:
        """As `Tokenizer.encode`; `DataError` for a tag that the model lacks, or for none."""
        tag, text = self._tag_of(line) if tag is None else (tag, line)
        return self._with_tag(tag, self._processor.encode(text, out_type=str))

    def encode_lines(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        tags, texts = zip(*map(self._tag_of, lines), strict=True) if lines else ((), ())
        pieces: list[list[str]] = self._processor.encode(list(texts), out_type=str, num_threads=threads)
        return [self._with_tag(tag, of_line) for tag, of_line in zip(tags, pieces, strict=True)]

    def split_tag(self, line: str) -> tuple[int | None, str]:
        """As `Tokenizer.split_tag`."""
        end = line.find("<<") + 2
        has_tag = line.startswith(">>") and end > 1 and line[:end] in self._ids
        return (self._ids[line[:end]], line[end:]) if has_tag else (None, line)

    def _tag_of(self, line: str) -> tuple[int | None, str]:
        """The target tag for a line, and the line without its own."""
        tag, text = self.split_tag(line)
        if tag is not None or not self._tags:
            return tag, text
        if found := _LEADING_TAG.match(line):
            raise DataError(
                f"a line begins with {found[0]}, which is no target tag of this model: {listed(self._tags)}"
            )
        if self._default_tag is None and line:
            raise DataError(
                f"this model translates into several languages, and needs to know which: nmt translate --tgt-tag TAG, "
                f"nmt import --tgt-tag TAG for good, or the tag at the beginning of each line; it has "
                f"{listed(self._tags)}"
            )
        return self._default_tag, line

    def _with_tag(self, tag: int | None, pieces: list[str]) -> list[int]:
        return [*with_tag(tag, [self._ids.get(piece, self.special.unk) for piece in pieces])]

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [self._pieces[int(index)] for index in ids if index not in self.special]
        text: str = self._processor.decode_pieces(pieces)
        return text.replace("▁", " ").strip()

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[int(index)] for index in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        pieces = self.pieces(ids)
        tags = pieces[:1] if pieces and _TAG.fullmatch(pieces[0]) else []  # no word of the text
        return [0] * len(tags) + word_numbers(pieces[len(tags) :])


class _MarianSettings(Recorded):
    """The content of marian.json."""

    joint: bool
    start: Annotated[int, Field(ge=0)]
    tgt_tag: str | None


@dataclasses.dataclass(frozen=True)
class MarianFiles:
    """Files of both sides, as imported and kept."""

    contents: Mapping[str, bytes]
    """By name: source.spm, target.spm, vocab.json; and target_vocab.json unless the vocabulary is joint."""
    start: int
    """The decoder's first input."""
    tgt_tag: str | None = None

    def tokenizers(self) -> tuple[MarianTokenizer, MarianTokenizer]:
        """The tokenizers of source and target; `RunError` if a file is damaged, `ConfigError` for an unknown tag."""
        src = tgt = read_vocabulary(self.contents["vocab.json"], "vocab.json")
        if "target_vocab.json" in self.contents:
            tgt = read_vocabulary(self.contents["target_vocab.json"], "target_vocab.json")
        if self.start >= len(tgt):
            raise RunError(f"{SETTINGS}: the start id {self.start} is beyond the vocabulary")
        tags = [piece for piece in src if _TAG.fullmatch(piece)]
        if self.tgt_tag is not None and self.tgt_tag not in tags:
            known = f"its target tags are {listed(tags)}" if tags else "it has no target tags"
            raise ConfigError(f"--tgt-tag {self.tgt_tag}: not in this model's vocabulary; {known}")
        # A source has no start id; any id will do, such as its pad.
        src_special = SpecialIds(src[PAD], src[PAD], src[EOS], src[UNK], tuple(src[tag] for tag in tags))
        tgt_special = SpecialIds(tgt[PAD], self.start, tgt[EOS], tgt[UNK])
        default = None if self.tgt_tag is None else src[self.tgt_tag]
        return (
            MarianTokenizer(self.contents["source.spm"], src, src_special, default, "source.spm"),
            MarianTokenizer(self.contents["target.spm"], tgt, tgt_special, None, "target.spm"),
        )

    def with_tag(self, tag: str) -> "MarianFiles":
        """The same files with another default target tag, given as `deu` or `>>deu<<`."""
        return dataclasses.replace(self, tgt_tag=tag if _TAG.fullmatch(tag) else f">>{tag}<<")

    def save(self, folder: Path) -> None:
        """Write the files into an existing folder, and tokenizer.json, which names the SentencePiece models."""
        for name, content in self.contents.items():
            write_bytes(folder / name, content)
        joint = "target_vocab.json" not in self.contents
        write_json(folder / SETTINGS, {"joint": joint, "start": self.start, "tgt_tag": self.tgt_tag})
        write_json(folder / "tokenizer.json", {"src": "source.spm", "tgt": "target.spm", "made_from": "import"})

    @classmethod
    def load(cls, folder: Path) -> "MarianFiles":
        """Read a folder of `save`; `RunError` if a file is missing or damaged."""
        settings = _MarianSettings.read(folder / SETTINGS, "copy the run's tokenizer/ again")
        names = ["source.spm", "target.spm", "vocab.json", *([] if settings.joint else ["target_vocab.json"])]
        try:
            contents = {name: (folder / name).read_bytes() for name in names}
        except OSError as error:
            raise RunError(f"{error.filename}: cannot be read: {error.strerror}") from None
        return cls(contents, settings.start, settings.tgt_tag)


def is_marian(folder: Path) -> bool:
    """True for a folder with a Marian tokenizer."""
    return (folder / SETTINGS).is_file()


def read_vocabulary(data: bytes, name: str) -> dict[str, int]:
    """The ids of a vocabulary in JSON, checked; `RunError` with the file's `name`."""
    try:
        ids = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{name}: cannot be read as JSON: {error}") from None
    if not isinstance(ids, dict) or not all(type(index) is int for index in ids.values()):
        raise RunError(f"{name}: not a vocabulary: it should map each piece to its id")
    if sorted(ids.values()) != list(range(len(ids))):
        raise RunError(f"{name}: its {len(ids):,} pieces do not have the ids 0 to {len(ids) - 1:,}")
    for piece in (EOS, UNK, PAD):
        if piece not in ids:
            raise RunError(f"{name}: lacks {piece}, which Marian's vocabularies have")
    return ids


def vocabulary_json(ids: Mapping[str, int]) -> bytes:
    """The content of a vocab.json."""
    return (
        json.dumps(dict(sorted(ids.items(), key=lambda item: item[1])), ensure_ascii=False, indent=0) + "\n"
    ).encode()
