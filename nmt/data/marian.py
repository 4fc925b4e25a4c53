"""The tokenizer of imported Marian models: SentencePiece splits text into strings, and a vocabulary gives their ids.

    source.spm  target.spm             SentencePiece models of the two sides
    vocab.json  [target_vocab.json]    {"</s>": 0, ..., "<pad>": 58100}, for both sides or for one each
    marian.json                        which vocabulary a side has, the special ids, and the default target tag

All of them but marian.json are kept as they were imported, byte for byte. The ids are those of transformers'
MarianTokenizer, except where a text holds `</s>`, `<unk>` or `<pad>` (there ids of their own, here text as any other)
or begins with `>>xxx<<` that is in no vocabulary (there `<unk>`).

A model of several target languages expects the tag of one, `>>xxx<<`, before each source.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nmt.atomic import read_json, write_bytes, write_json
from nmt.data.vocabulary import SpecialIds, with_tag, word_numbers
from nmt.errors import ConfigError, DataError, RunError

EOS, UNK, PAD = "</s>", "<unk>", "<pad>"
SETTINGS = "marian.json"
_TAG = re.compile(r">>.+<<")
_LEADING_TAG = re.compile(r">>[^\s<>]{1,30}<<")
_MAX_LISTED = 20


class MarianSide(NamedTuple):
    """What makes the tokenizer of one side."""

    model: bytes
    """A SentencePiece model."""
    vocabulary: Mapping[str, int]
    """The id of each piece: 0 to V - 1."""
    special: SpecialIds
    default_tag: str | None = None
    """Added to each line that has no tag of its own; only for sources."""
    tags: tuple[str, ...] = ()
    """The target tags that a line may begin with. If there are any and no default, a line without one is refused."""


class MarianTokenizer:
    """One side of a Marian model."""

    def __init__(self, side: MarianSide) -> None:
        import sentencepiece  # where it is used, as for other tokenizers

        self._side = side
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=side.model)
        self._ids = side.vocabulary
        self._pieces = sorted(side.vocabulary, key=side.vocabulary.__getitem__)
        self.special = side.special

    def __reduce__(self) -> tuple[type["MarianTokenizer"], tuple[MarianSide]]:
        return MarianTokenizer, (self._side,)

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def byte_ids(self) -> frozenset[int]:
        processor = self._processor
        of_bytes = filter(processor.is_byte, range(processor.get_piece_size()))
        return frozenset(self._ids[piece] for piece in map(processor.id_to_piece, of_bytes) if piece in self._ids)

    def normalize(self, line: str) -> str:
        """White space at the ends is left out; SentencePiece does the rest, as it was trained to."""
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
        if tag is not None:
            return tag, text
        if self._side.tags and (found := _LEADING_TAG.match(line)):
            raise DataError(
                f"a line begins with {found[0]}, which is no target tag of this model: {_listed(self._side.tags)}"
            )
        default = self._side.default_tag
        if self._side.tags and default is None and line:
            raise DataError(
                f"this model translates into several languages, and needs to know which: nmt translate --tgt-tag TAG, "
                f"nmt import --tgt-tag TAG for good, or the tag at the beginning of each line; it has "
                f"{_listed(self._side.tags)}"
            )
        return None if default is None else self._ids[default], line

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

    def save(self, stem: Path) -> Path:
        path = stem.with_suffix(".spm")
        path.write_bytes(self._side.model)
        return path


@dataclasses.dataclass(frozen=True)
class MarianFiles:
    """The files of both sides, as they are imported and kept."""

    source_spm: bytes
    target_spm: bytes
    vocabulary: bytes
    """vocab.json: of both sides, or of the source."""
    target_vocabulary: bytes | None
    """target_vocab.json, where the sides have one vocabulary each."""
    start: int
    """The decoder's first input."""
    tgt_tag: str | None = None

    def sides(self) -> tuple[MarianSide, MarianSide]:
        """The tokenizers of source and target; `RunError` if a file is damaged, `ConfigError` for an unknown tag."""
        src = read_vocabulary(self.vocabulary, "vocab.json")
        is_joint = self.target_vocabulary is None
        tgt = src if is_joint else read_vocabulary(self.target_vocabulary or b"", "target_vocab.json")
        check_spm(self.source_spm, "source.spm")
        check_spm(self.target_spm, "target.spm")
        if self.start >= len(tgt):
            raise RunError(f"{SETTINGS}: the start id {self.start} is beyond the vocabulary")
        tags = tuple(piece for piece in src if _TAG.fullmatch(piece))
        if self.tgt_tag is not None and self.tgt_tag not in tags:
            known = f"its target tags are {_listed(tags)}" if tags else "it has no target tags"
            raise ConfigError(f"--tgt-tag {self.tgt_tag}: not in this model's vocabulary; {known}")
        # A source has no start; its pad is as good as any other id.
        src_special = SpecialIds(src[PAD], src[PAD], src[EOS], src[UNK], tuple(src[tag] for tag in tags))
        tgt_special = SpecialIds(tgt[PAD], self.start, tgt[EOS], tgt[UNK])
        return (
            MarianSide(self.source_spm, src, src_special, self.tgt_tag, tags),
            MarianSide(self.target_spm, tgt, tgt_special),
        )

    def with_tag(self, tag: str) -> "MarianFiles":
        """The same with another default target tag, given as `deu` or `>>deu<<`."""
        return dataclasses.replace(self, tgt_tag=tag if _TAG.fullmatch(tag) else f">>{tag}<<")

    def save(self, folder: Path) -> None:
        """Write the files into a folder that exists, and tokenizer.json, which names those of SentencePiece."""
        write_bytes(folder / "source.spm", self.source_spm)
        write_bytes(folder / "target.spm", self.target_spm)
        write_bytes(folder / "vocab.json", self.vocabulary)
        if self.target_vocabulary is not None:
            write_bytes(folder / "target_vocab.json", self.target_vocabulary)
        joint = self.target_vocabulary is None
        write_json(folder / SETTINGS, {"joint": joint, "start": self.start, "tgt_tag": self.tgt_tag})
        write_json(folder / "tokenizer.json", {"src": "source.spm", "tgt": "target.spm", "made_from": "import"})

    @classmethod
    def load(cls, folder: Path) -> "MarianFiles":
        """Read a folder of `save`; `RunError` if a file is missing or damaged."""
        settings = read_json(folder / SETTINGS)
        try:
            joint, start, tag = settings["joint"], settings["start"], settings["tgt_tag"]
            is_valid = isinstance(joint, bool) and isinstance(start, int) and start >= 0
            is_valid = is_valid and (tag is None or isinstance(tag, str))
        except (TypeError, KeyError):
            is_valid = False
        if not is_valid:
            raise RunError(f"{folder / SETTINGS}: damaged; copy the run's tokenizer/ again")
        try:
            source_spm, target_spm, vocabulary = (
                (folder / name).read_bytes() for name in ("source.spm", "target.spm", "vocab.json")
            )
            target = None if joint else (folder / "target_vocab.json").read_bytes()
        except OSError as error:
            raise RunError(f"{error.filename}: cannot be read: {error.strerror}") from None
        return cls(source_spm, target_spm, vocabulary, target, start, tag)


def is_marian(folder: Path) -> bool:
    """Whether a tokenizer folder holds Marian's."""
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


def check_spm(model: bytes, name: str) -> None:
    """`RunError` with the file's `name` if it is no SentencePiece model."""
    import sentencepiece

    try:
        if model:  # SentencePiece takes an empty file for a model
            sentencepiece.SentencePieceProcessor(model_proto=model)
            return
    except RuntimeError:
        pass
    raise RunError(f"{name}: cannot be read as a SentencePiece model")


def _listed(tags: Sequence[str]) -> str:
    more = f" and {len(tags) - _MAX_LISTED} more" if len(tags) > _MAX_LISTED else ""
    return ", ".join(tags[:_MAX_LISTED]) + more
