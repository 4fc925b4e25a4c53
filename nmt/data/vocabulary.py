"""The word-level vocabulary, and special ids: those of any tokenizer, and those of vocabularies that nmt builds."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """A tokenizer's ids that represent no text; two of them may be equal."""

    pad: int
    """Pads a sequence to the width of its batch."""
    start: int
    """The decoder's first input: `<s>` in vocabularies that nmt builds, often `<pad>` in others."""
    eos: int
    """Ends a sequence."""
    unk: int
    """Represents text outside the vocabulary."""
    tags: tuple[int, ...] = ()
    """Those of `tokenizer.tags`, in order, or of an imported model: a source may begin with one."""

    def __contains__(self, index: int) -> bool:
        return index in (self.pad, self.start, self.eos, self.unk) or index in self.tags


# The first pieces of every vocabulary that nmt builds.
SPECIAL_PIECES = ("<pad>", "<s>", "</s>", "<unk>")
PAD_ID, BOS_ID, EOS_ID, UNK_ID = range(4)
OWN_SPECIAL_IDS = SpecialIds(PAD_ID, BOS_ID, EOS_ID, UNK_ID)
_TAG_PIECE = re.compile("<tag (.+)>")


def tag_piece(tag: str) -> str:
    """The piece of a tag: `<tag bt>`. It holds a space, so that no word of a text is like it."""
    return f"<tag {tag}>"


def tag_of(piece: str) -> str | None:
    """The tag whose piece this is, or None."""
    found = _TAG_PIECE.fullmatch(piece)
    return found[1] if found else None


def with_tag(tag: int | None, ids: Sequence[int]) -> Sequence[int]:
    """The ids of a source with its tag before them; nothing has no tag."""
    return ids if tag is None or not ids else [tag, *ids]


def word_numbers(pieces: Iterable[str]) -> list[int]:
    """For each of SentencePiece's pieces, the index of its word, from 0; `▁` stands for a space.

    >>> word_numbers(["▁he", "llo", "▁", "▁world"])
    [0, 0, 0, 1]
    """
    word, after_space, words = -1, True, []
    for piece in pieces:
        after_space = after_space or piece.startswith("▁")
        if after_space and piece.strip("▁"):  # a space before another space begins no word
            word, after_space = word + 1, False
        words.append(max(0, word))
    return words


class Vocabulary:
    """Words and their ids: the special pieces first, then tags, then words by descending frequency."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.tags = tuple(index for index, word in enumerate(self.words) if tag_of(word) is not None)
        self.ids = {word: index for index, word in enumerate(self.words)}
        if self.words[: len(SPECIAL_PIECES)] != SPECIAL_PIECES or len(self.ids) != len(self.words):
            raise ValueError("a vocabulary begins with the special pieces and names each word once")

    @classmethod
    def build(
        cls, sentences: Iterable[Sequence[str]], max_size: int, min_frequency: int, tags: Sequence[str] = ()
    ) -> "Vocabulary":
        """The most frequent words; ties are broken in code-point order.

        >>> Vocabulary.build([["a", "b", "a"]], max_size=5, min_frequency=1).words[4:]
        ('a',)
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        for piece in SPECIAL_PIECES:  # occurrences in a text do not count
            del counts[piece]
        ranked = sorted((-count, word) for word, count in counts.items() if count >= min_frequency)
        return cls([*SPECIAL_PIECES, *map(tag_piece, tags), *(word for _, word in ranked)][:max_size])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Ids of words; `<unk>` for words outside the vocabulary, and for the names of special pieces."""
        unk = OWN_SPECIAL_IDS.unk
        ids = (self.ids.get(word, unk) for word in words)
        return [index if index >= len(SPECIAL_PIECES) else unk for index in ids]
