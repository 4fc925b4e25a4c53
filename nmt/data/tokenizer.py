"""Text to ids and back: SentencePiece and word tokenizers behind one protocol.

    >>> tokenizer = load_tokenizers(Path("runs/tiny/tokenizer")).src
    >>> tokenizer.encode("hello world")
    [401, 297, 747, 263, 273, 290]
    >>> tokenizer.pieces(tokenizer.encode("hello world"))
    ['▁he', 'll', 'o', '▁w', 'or', 'ld']

The ids of a sentence come without `<s>` and `</s>`; whoever builds a batch adds them. Nothing here
imports torch, so that a translator that does not need torch need not load it.
"""

import dataclasses
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import sentencepiece

from nmt.atomic import read_json, replacing, write_json
from nmt.config.inference import TokenizerConfig
from nmt.config.training import CorpusFiles
from nmt.data.cleaning import normalize
from nmt.data.corpus import pairs_in, read_pairs
from nmt.data.hashes import corpus_hashes
from nmt.data.vocabulary import OWN_SPECIAL_IDS, SPECIAL_PIECES, SpecialIds, Vocabulary
from nmt.errors import RunError, VocabularyError

_RECIPE = 2  # raise it when the same text and settings give another vocabulary


class Tokenizer(Protocol):
    """One side's text to ids and back.

    A tokenizer changes no more of a line than it says; what has to be normalized is normalized before (`normalize`).
    """

    @property
    def vocab_size(self) -> int:
        """Number of ids, the special ones included."""

    @property
    def special(self) -> SpecialIds:
        """The ids that stand for no text."""

    @property
    def byte_ids(self) -> frozenset[int]:
        """The ids that stand for one byte of a character that the vocabulary does not hold."""

    def encode(self, line: str) -> list[int]:
        """Ids of a line, without `<s>` and `</s>`; none for an empty line."""

    def encode_lines(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """`encode` of each, in less time."""

    def decode(self, ids: Sequence[int]) -> str:
        """The line that the ids spell; special ids are passed over."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The written form of each id."""

    def words(self, ids: Sequence[int]) -> list[int]:
        """For each id, which of the words that white space separates it belongs to, counted from 0."""

    def save(self, stem: Path) -> Path:
        """Write the tokenizer to `stem` with its own suffix; returns the file."""


class SentencePieceTokenizer:
    """A SentencePiece model (Kudo and Richardson 2018): `bpe`, `unigram` or `char`.

    With byte fallback no text becomes `<unk>`, and with the normalization `identity` `decode(encode(line)) == line` for
    every line of Unicode characters: combining marks, white space of any kind and at any place, even NUL. The one
    exception is U+2581, by which SentencePiece writes a space: it comes back as one. The nfkc rules give what they make
    of the line, with spaces at its ends removed and runs of them made one.
    """

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._processor = processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.special = SpecialIds(processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())

    def __reduce__(self) -> tuple[type["SentencePieceTokenizer"], tuple[bytes]]:
        return SentencePieceTokenizer, (self._model,)  # the processor would be a second copy of it

    @classmethod
    def train(cls, lines: Iterable[str], config: TokenizerConfig) -> "SentencePieceTokenizer":
        """Train on lines, once normalized; `VocabularyError` if they cannot give `vocab_size` pieces."""
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
                max_sentence_length=1 << 20,  # bytes; SentencePiece leaves longer lines out in silence
                minloglevel=2,
            )
        except RuntimeError as error:
            raise VocabularyError(_why_not_trained(str(error), config)) from None
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: Path) -> "SentencePieceTokenizer":
        """Read a model file; `RunError` if it is missing or damaged."""
        try:
            tokenizer = cls(path.read_bytes())
        except (OSError, RuntimeError) as error:
            raise RunError(f"{path}: cannot be read as a SentencePiece model: {error}") from None
        if -1 in tokenizer.special:
            raise RunError(f"{path}: lacks one of {', '.join(SPECIAL_PIECES)}, which translation models need")
        return tokenizer

    @property
    def vocab_size(self) -> int:
        return int(self._processor.get_piece_size())

    @property
    def byte_ids(self) -> frozenset[int]:
        return frozenset(filter(self._processor.is_byte, range(self.vocab_size)))

    def encode(self, line: str) -> list[int]:
        ids: list[int] = self._processor.encode(line)
        return ids

    def encode_lines(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode(list(lines), num_threads=threads)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._processor.decode([int(index) for index in ids if index not in self.special])
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(self._processor.id_to_piece(int(index))) for index in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        word, after_space, words = -1, True, []
        for piece in self.pieces(ids):
            after_space = after_space or piece.startswith("▁")
            if after_space and piece.strip("▁"):  # one of several spaces begins no word
                word, after_space = word + 1, False
            words.append(max(0, word))
        return words

    def normal_pieces(self) -> tuple[list[str | None], dict[str, float]]:
        """The text of each id, None for special pieces and bytes; and the score of each text.

        `bpe` merges the two pieces first that together have the highest score; of `unigram` it is the logarithm of a
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

    def save(self, stem: Path) -> Path:
        path = stem.with_suffix(".model")
        path.write_bytes(self._model)
        return path


class WordTokenizer:
    """Words are what white space separates, however much of whatever kind; each comes back as one space."""

    special = OWN_SPECIAL_IDS

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @classmethod
    def train(cls, lines: Iterable[str], config: TokenizerConfig) -> "WordTokenizer":
        """Count the words of lines, once normalized; `VocabularyError` if none is left."""
        sentences = (normalize(line).split() for line in lines)
        vocabulary = Vocabulary.build(sentences, config.vocab_size, config.min_frequency)
        if len(vocabulary) == len(SPECIAL_PIECES):
            raise VocabularyError(
                f"no word of the training corpus occurs {config.min_frequency} times; lower tokenizer.min_frequency"
            )
        return cls(vocabulary)

    @classmethod
    def load(cls, path: Path) -> "WordTokenizer":
        """Read a word list, one a line in the order of the ids; `RunError` if it is missing or damaged."""
        try:
            return cls(Vocabulary(path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")))
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be read as a word list: {error}") from None

    @property
    def vocab_size(self) -> int:
        return len(self._vocabulary)

    @property
    def byte_ids(self) -> frozenset[int]:
        return frozenset()

    def encode(self, line: str) -> list[int]:
        return self._vocabulary.encode(line.split())

    def encode_lines(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [self.encode(line) for line in lines]  # no time is lost between the lines, nor has Python threads for it

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self._vocabulary.words[index] for index in ids if index not in self.special)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._vocabulary.words[index] for index in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        return list(range(len(ids)))

    def save(self, stem: Path) -> Path:
        path = stem.with_suffix(".words")
        path.write_bytes("".join(word + "\n" for word in self._vocabulary.words).encode())
        return path


@dataclasses.dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both sides; with a joint vocabulary they are one object."""

    src: Tokenizer
    tgt: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both sides share one vocabulary."""
        return self.src is self.tgt


def train_tokenizers(corpora: Sequence[CorpusFiles], config: TokenizerConfig) -> Tokenizers:
    """Build the vocabularies that `config` asks for from the training corpora, or from a sample of large ones."""
    chosen = _sample([pairs_in(files) for files in corpora], config.max_train_pairs)

    def pairs() -> Iterator[tuple[str, str]]:
        for files, of_files in zip(corpora, chosen, strict=True):
            yield from read_pairs(files, of_files)

    kind = WordTokenizer if config.type == "word" else SentencePieceTokenizer
    if config.joint:
        tokenizer: Tokenizer = kind.train((line for pair in pairs() for line in pair), config)
        return Tokenizers(tokenizer, tokenizer)
    return Tokenizers(kind.train((src for src, _ in pairs()), config), kind.train((tgt for _, tgt in pairs()), config))


def _sample(sizes: Sequence[int], max_pairs: int) -> list[bytes | None]:
    """For each corpus, a byte a pair that is 1 if it belongs to the sample; None where all pairs do.

    The sample is drawn evenly from all corpora together, by a fixed seed: the same sizes give the same one.
    """
    total = sum(sizes)
    if total <= max_pairs:
        return [None] * len(sizes)
    import numpy as np  # a translator needs no numpy

    chosen = np.zeros(total, dtype=np.uint8)
    chosen[np.random.default_rng(0).choice(total, max_pairs, replace=False, shuffle=False)] = 1
    return [part.tobytes() for part in np.split(chosen, np.cumsum(sizes)[:-1])]


def ensure_tokenizers(
    corpora: Sequence[CorpusFiles],
    config: TokenizerConfig,
    folder: Path,
    say: Callable[[str], None] = lambda line: None,
) -> Tokenizers:
    """The tokenizers in `folder`, built first if they are missing or were made from other text or settings."""
    made_from = _made_from(corpora, config)
    file = folder / "tokenizer.json"
    description = read_json(file) if file.is_file() else None
    if not isinstance(description, dict) or description.get("made_from") != made_from:
        if description is not None:
            say(f"the vocabulary in {folder} was made from other text or with other settings, and is made again")
        save_tokenizers(train_tokenizers(corpora, config), folder, made_from)
    return load_tokenizers(folder)


def _made_from(corpora: Sequence[CorpusFiles], config: TokenizerConfig) -> str:
    """A hash of the settings and the text that decide a vocabulary."""
    digest = hashlib.sha256(f"{_RECIPE} {config.model_dump_json()}".encode())
    digest.update(b"".join(corpus_hashes(corpora)))
    return digest.hexdigest()[:20]


def save_tokenizers(tokenizers: Tokenizers, folder: Path, made_from: str) -> None:
    """Write the folder whole: the model or word list of each vocabulary, and tokenizer.json naming them."""
    with replacing(folder) as temporary:
        temporary.mkdir()
        if tokenizers.joint:
            src_file = tgt_file = tokenizers.src.save(temporary / "joint")
        else:
            src_file, tgt_file = (tokenizers.src.save(temporary / "src"), tokenizers.tgt.save(temporary / "tgt"))
        names = {"src": src_file.name, "tgt": tgt_file.name, "made_from": made_from}
        write_json(temporary / "tokenizer.json", names)


def load_tokenizers(folder: Path) -> Tokenizers:
    """Read what `save_tokenizers` wrote; `RunError` if it cannot be read."""
    src_file, tgt_file = _files(folder)
    src = _load(src_file)
    return Tokenizers(src, src if src_file == tgt_file else _load(tgt_file))


def same_tokenizers(folder: Path, other: Path) -> bool:
    """Whether two folders hold the same tokenizers, to the byte, on both sides; `RunError` if one cannot be read."""
    try:
        one, two = ([path.read_bytes() for path in _files(of_run)] for of_run in (folder, other))
    except OSError as error:
        raise RunError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return one == two


def _files(folder: Path) -> tuple[Path, Path]:
    """The files of src and tgt; one file twice where the vocabulary is joint."""
    file = folder / "tokenizer.json"
    names = read_json(file)
    try:
        src, tgt = names["src"], names["tgt"]
    except (TypeError, KeyError):
        raise RunError(f"{file}: does not name the tokenizers of src and tgt") from None
    for name in (src, tgt):
        if not (isinstance(name, str) and re.fullmatch(r"\w[\w.-]{0,99}", name)):  # a path could lead anywhere
            raise RunError(f"{file}: names {str(name)[:100]!r}, which is not the name of a file beside it")
        if (folder / name).is_file() and not (folder / name).stat().st_size:  # to SentencePiece that is a model
            raise RunError(f"{folder / name}: is empty; copy the run's tokenizer/ again")
    return folder / src, folder / tgt


def _load(path: Path) -> Tokenizer:
    return WordTokenizer.load(path) if path.suffix == ".words" else SentencePieceTokenizer.load(path)


def _why_not_trained(message: str, config: TokenizerConfig) -> str:
    """SentencePiece's error in our words: mostly, the corpus is too small for the vocabulary."""
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
        return "the training corpus holds no text to build a vocabulary from"
    return f"SentencePiece could not build the vocabulary with {asked}: {message}"
