"""What a corpus is made of, as its tokenizer sees it."""

import dataclasses
from collections.abc import Iterable

from nmt.config import Config
from nmt.data.corpus import count_pairs, read_lines
from nmt.data.tokenizer import Tokenizer, ensure_tokenizers, load_tokenizers
from nmt.data.vocabulary import UNK_ID
from nmt.errors import RunError
from nmt.runs import RunFolder


@dataclasses.dataclass(frozen=True)
class SideReport:
    """How a vocabulary fits one side of a text."""

    language: str
    vocab_size: int
    pieces_per_word: float
    """Words are what white space separates."""
    characters_per_piece: float
    """White space not counted; the figure to look at in languages that do without it."""
    unknown_share: float
    """Of the pieces that are `<unk>`."""
    first_line: tuple[str, ...]
    """The text's first line in pieces, to look at."""


def side_report(lines: Iterable[str], tokenizer: Tokenizer, language: str) -> SideReport:
    """Encode lines and count."""
    words = characters = pieces = unknown = 0
    first_line: tuple[str, ...] | None = None
    for line in lines:
        ids = tokenizer.encode(line)
        if first_line is None:
            first_line = tuple(tokenizer.pieces(ids))
        line_words = line.split()
        words += len(line_words)
        characters += sum(map(len, line_words))
        pieces += len(ids)
        unknown += ids.count(UNK_ID)
    return SideReport(
        language=language,
        vocab_size=tokenizer.vocab_size,
        pieces_per_word=pieces / max(1, words),
        characters_per_piece=characters / max(1, pieces),
        unknown_share=unknown / max(1, pieces),
        first_line=first_line or (),
    )


def vocabulary_report(config: Config, run: RunFolder) -> dict[str, SideReport]:
    """Build the run's vocabulary if it is missing; how it fits the `src` and `tgt` of the validation set.

    Raises `RunError` rather than replace the vocabulary of a run whose training has begun.
    """
    data = config.data
    count_pairs([*data.train, data.validation])
    if not run.exists():
        tokenizers = ensure_tokenizers(data.train, config.tokenizer, run.tokenizer)
    elif run.config().tokenizer == config.tokenizer:
        tokenizers = load_tokenizers(run.tokenizer)
    else:
        raise RunError(f"{run.path}: this run is trained with another vocabulary; build this one under another --name")
    return {
        "src": side_report(read_lines(data.validation.src), tokenizers.src, data.src_lang),
        "tgt": side_report(read_lines(data.validation.tgt), tokenizers.tgt, data.tgt_lang),
    }
