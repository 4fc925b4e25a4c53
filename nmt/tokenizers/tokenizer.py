"""SentencePiece and word tokenizers with a common protocol, and the files that hold them.

    >>> tokenizer = load_tokenizers(Path("runs/tiny/tokenizer")).src
    >>> tokenizer.encode("hello world")
    [401, 297, 747, 263, 273, 290]
    >>> tokenizer.pieces(tokenizer.encode("hello world"))
    ['▁he', 'll', 'o', '▁w', 'or', 'ld']

The ids of a sentence do not include `<s>` and `</s>`; batches add them. Nothing here imports torch, which translation
through CTranslate2 does not need.
"""

import dataclasses
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import Field

from nmt.cleaning.normalize import normalize
from nmt.config.inference import TokenizerConfig
from nmt.errors import ConfigError, RunError, VocabularyError
from nmt.runs.folder import Recorded
from nmt.system.files import replacing, write_json
from nmt.tokenizers.marian import MarianFiles, is_marian
from nmt.tokenizers.vocabulary import (
    OWN_SPECIAL_IDS,
    SPECIAL_PIECES,
    SpecialIds,
    sentencepiece_processor,
    tag_of,
    tag_piece,
    with_tag,
    word_numbers,
)

LONG_LINE_BYTES = 1 << 16
"""Longer lines are usually not trained on: SentencePiece needs a hundred times as much memory for them, and `unigram`
fails."""

_FileName = Annotated[str, Field(pattern=r"^\w[\w.-]{0,99}$")]  # a path could lead anywhere


class Tokenizer(Protocol):
    """Conversion of one side's text to ids and back.

    A tokenizer changes a line only as documented; callers `normalize` it first.
    """

    special: SpecialIds
    """The ids that represent no text."""
    model: bytes | None
    """The SentencePiece model; None for words."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, including the special ones."""

    @property
    def byte_ids(self) -> frozenset[int]:
        """The ids that represent one byte of a character outside the vocabulary."""
        return frozenset()

    def normalize(self, line: str) -> str:
        """The line as input for `encode`, in training and in translation."""
        return normalize(line)

    def split_tag(self, line: str) -> tuple[int | None, str]:
        """The id of the target tag that a line begins with, such as `>>deu<<`, and the text after it; or the line."""
        return None, line

    def encode(self, line: str, tag: int | None = None) -> list[int]:
        """Ids of a line, after the `tag`, without `<s>` and `</s>`; none for an empty line.

        Without `tag`, the line of an imported model has the tag that it begins with, or that of the model.
        """

    def encode_lines(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """`encode` for each line, but faster."""
        return [self.encode(line) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids; special ids are skipped."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The written form of each id."""

    def words(self, ids: Sequence[int]) -> list[int]:
        """For each id, the index of its word; words are separated by white space and counted from 0."""


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model (Kudo and Richardson 2018): `bpe`, `unigram` or `char`.

    With byte fallback no text becomes `<unk>`. With the normalization `identity`, `decode(encode(line)) == line` for
    every line of Unicode characters, including combining marks, white space of any kind in any place, and NUL. The only
    exception is U+2581, SentencePiece's mark for a space: it is decoded as a space. With the nfkc rules, decoding gives
    the normalized line, without spaces at its ends and with runs of spaces as one.
    """

    def __init__(self, model: bytes, name: object = "the model") -> None:
        """`RunError` with the file's `name` if the model is damaged, or lacks one of the special pieces."""
        self.model = model
        self._processor = processor = sentencepiece_processor(model, name)
        ids = processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()
        if -1 in ids:
            raise RunError(f"{name}: lacks one of {', '.join(SPECIAL_PIECES)}, which translation models need")
        controls = filter(processor.is_control, range(processor.get_piece_size()))
        tags = tuple(index for index in controls if tag_of(processor.id_to_piece(index)) is not None)
        self.special = SpecialIds(*ids, tags)
        self._without_text = frozenset((*ids, *tags))

    def __reduce__(self) -> tuple[type["SentencePieceTokenizer"], tuple[bytes | None]]:
        return SentencePieceTokenizer, (self.model,)  # the processor would be a second copy of it

    @classmethod
    def train(cls, lines: Iterable[str], config: TokenizerConfig) -> "SentencePieceTokenizer":
        """Train on lines after normalization; `VocabularyError` if `vocab_size` pieces cannot be built from them."""
        import sentencepiece

        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=map(normalize, lines),
                model_writer=model,
                model_type=config.type,
                vocab_size=config.vocab_size,
                hard_vocab_limit=config.type != "char",
                byte_fallback=config.byte_fallback,
                character_coverage=config.character_coverage,
                normalization_rule_name=config.normalization,
                remove_extra_whitespaces=config.normalization != "identity",
                pad_id=OWN_SPECIAL_IDS.pad,
                bos_id=OWN_SPECIAL_IDS.start,
                eos_id=OWN_SPECIAL_IDS.eos,
                unk_id=OWN_SPECIAL_IDS.unk,
                control_symbols=[*map(tag_piece, config.tags)],
                max_sentence_length=LONG_LINE_BYTES,  # longer lines are left out here, too
                minloglevel=2,
            )
        except RuntimeError as error:
            raise VocabularyError(_why_not_trained(str(error), config)) from None
        return cls(model.getvalue())

    @property
    def vocab_size(self) -> int:
        return int(self._processor.get_piece_size())

    @property
    def byte_ids(self) -> frozenset[int]:
        return frozenset(filter(self._processor.is_byte, range(self.vocab_size)))

    def encode(self, line: str, tag: int | None = None) -> list[int]:
        return [*with_tag(tag, self._processor.encode(line))]

    def encode_lines(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode(list(lines), num_threads=threads)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._processor.decode([int(index) for index in ids if index not in self._without_text])
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(self._processor.id_to_piece(int(index))) for index in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        return word_numbers(self.pieces(ids))

    def normal_pieces(self) -> tuple[list[str | None], dict[str, float]]:
        """The text of each id, or None for special pieces and bytes; and the score of each text.

        `bpe` first merges the two pieces whose concatenation has the highest score; with `unigram`, a score is a log
        probability.
        """
        processor = self._processor
        special = (processor.is_unknown, processor.is_control, processor.is_byte, processor.is_unused)
        pieces = [
            None if any(test(index) for test in special) else str(processor.id_to_piece(index))
            for index in range(self.vocab_size)
        ]
        scores = {piece: float(processor.get_score(index)) for index, piece in enumerate(pieces) if piece is not None}
        return pieces, scores


class WordTokenizer(Tokenizer):
    """A word list: text is split at runs of any white space, and decoding separates words by one space."""

    def __init__(self, words: Sequence[str]) -> None:
        """`words` by their ids: the special pieces, then tags, then others; `ValueError` for any other list."""
        self.model = None
        self._words = tuple(words)
        if self._words[: len(SPECIAL_PIECES)] != SPECIAL_PIECES or len(set(words)) != len(words):
            raise ValueError("a vocabulary begins with the special pieces and names each word once")
        tags = tuple(index for index, word in enumerate(words) if tag_of(word) is not None)
        self.special = dataclasses.replace(OWN_SPECIAL_IDS, tags=tags)
        # In a text, the name of a special piece is an unknown word.
        self._ids = {word: index for index, word in enumerate(words) if index >= len(SPECIAL_PIECES)}

    @classmethod
    def train(cls, lines: Iterable[str], config: TokenizerConfig) -> "WordTokenizer":
        """Keep the most frequent words of lines after normalization, by frequency; ties are in code-point order.

        `VocabularyError` if no word is frequent enough.
        """
        counts = Counter(word for line in lines for word in normalize(line).split())
        for piece in SPECIAL_PIECES:  # occurrences in a text do not count
            del counts[piece]
        ranked = sorted((-count, word) for word, count in counts.items() if count >= config.min_frequency)
        if not ranked:
            raise VocabularyError(
                f"no word of the training corpus occurs {config.min_frequency} times; lower tokenizer.min_frequency"
            )
        words = [*SPECIAL_PIECES, *map(tag_piece, config.tags), *(word for _, word in ranked)]
        return cls(words[: config.vocab_size])

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    def encode(self, line: str, tag: int | None = None) -> list[int]:
        return [*with_tag(tag, [self._ids.get(word, OWN_SPECIAL_IDS.unk) for word in line.split()])]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self._words[index] for index in ids if index not in self.special)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._words[index] for index in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        return list(range(len(ids)))


@dataclasses.dataclass(frozen=True)
class Tokenizers:
    """Tokenizers of both sides.

    With a joint vocabulary they are the same object, or imported ones with the same ids. If the sources are not text,
    `src` is `tgt`, too, and encodes nothing.
    """

    src: Tokenizer
    tgt: Tokenizer

    @property
    def joint(self) -> bool:
        """True if both sides share one vocabulary: the same piece for each id."""
        if self.src is self.tgt:
            return True
        sizes = self.src.vocab_size, self.tgt.vocab_size
        return sizes[0] == sizes[1] and self.src.pieces(range(sizes[0])) == self.tgt.pieces(range(sizes[1]))


def tag_id(tokenizer: Tokenizer, tag: str) -> int:
    """The id of one of `tokenizer.tags`; `ConfigError` if the tokenizer lacks it."""
    for index in tokenizer.special.tags:
        if tokenizer.pieces([index]) == [tag_piece(tag)]:
            return index
    raise ConfigError(f"data.train: the vocabulary has no tag {tag}; it has those of tokenizer.tags when it was made")


def save_tokenizers(tokenizers: Tokenizers, folder: Path, made_from: str) -> None:
    """Write the folder atomically: the model or word list of each vocabulary, and tokenizer.json with their names."""
    src, tgt = tokenizers.src, tokenizers.tgt
    with replacing(folder) as temporary:
        temporary.mkdir()
        names = {"made_from": made_from}
        for side, tokenizer in (("src", src), ("tgt", tgt)):
            content, suffix = tokenizer.model, ".model"
            if content is None:
                words = tokenizer.pieces(range(tokenizer.vocab_size))
                content, suffix = "".join(f"{word}\n" for word in words).encode(), ".words"
            names[side] = ("joint" if src is tgt else side) + suffix
            (temporary / names[side]).write_bytes(content)
        write_json(temporary / "tokenizer.json", names)


def load_tokenizers(folder: Path, tgt_tag: str | None = None) -> Tokenizers:
    """Read tokenizers from a folder of `save_tokenizers` or of an import; `RunError` if they cannot be read.

    `tgt_tag` is the default target tag instead of the folder's; `ConfigError` if the model has no such tag.
    """
    if is_marian(folder):
        files = MarianFiles.load(folder)
        return Tokenizers(*(files if tgt_tag is None else files.with_tag(tgt_tag)).tokenizers())
    if tgt_tag is not None:
        raise ConfigError(f"--tgt-tag {tgt_tag}: only imported models of several target languages have tags")
    src_file, tgt_file = _files(folder)
    src = _load(src_file)
    return Tokenizers(src, src if src_file == tgt_file else _load(tgt_file))


def _load(file: Path) -> Tokenizer:
    """The tokenizer of a model or a word list, one word a line in the order of the ids; `RunError` if damaged."""
    try:
        content = file.read_bytes()
        if file.suffix == ".words":
            return WordTokenizer(content.decode("utf-8").removesuffix("\n").split("\n"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file}: cannot be read as a vocabulary: {error}") from None
    return SentencePieceTokenizer(content, file)


def same_tokenizers(folder: Path, other: Path) -> bool:
    """True if two folders hold identical tokenizer files for both sides; `RunError` if a file cannot be read."""
    try:
        first, second = ([path.read_bytes() for path in tokenizer_files(either)] for either in (folder, other))
    except OSError as error:
        raise RunError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return first == second


def tokenizer_files(folder: Path) -> list[Path]:
    """The files that determine the ids of a text."""
    vocabularies = sorted(folder.glob("*.json")) if is_marian(folder) else []
    return [*_files(folder), *(path for path in vocabularies if path.name != "tokenizer.json")]


class _FileNames(Recorded):
    """The content of tokenizer.json."""

    src: _FileName
    tgt: _FileName


def _files(folder: Path) -> tuple[Path, Path]:
    """The files of src and tgt; the same file twice if the vocabulary is joint."""
    names = _FileNames.read(folder / "tokenizer.json", "copy the run's tokenizer/ again")
    return folder / names.src, folder / names.tgt


def _why_not_trained(message: str, config: TokenizerConfig) -> str:
    """Explain an error of SentencePiece; usually the corpus is too small for the vocabulary."""
    asked = f"tokenizer.vocab_size ({config.vocab_size:,})"
    if found := re.search(r"value <= (\d+)", message):
        return f"{asked} is larger than the training corpus allows; set it to {int(found[1]):,} or less"
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"{asked} is too small for the corpus's characters and the special pieces; set it to "
            f"{int(found[1]):,} or more, or lower tokenizer.character_coverage"
        )
    if "(vocab_size) >= (0)" in message:
        return f"{asked} is too small for the special pieces and bytes; set it to 300 or more"
    if "!sentences_.empty()" in message or "(all_chars_count) > (0)" in message:
        return "the training corpus holds no text to build a vocabulary from (lines of more than 64 KB do not count)"
    return f"SentencePiece could not build the vocabulary with {asked}: {message}"
