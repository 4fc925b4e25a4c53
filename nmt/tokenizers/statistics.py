"""Statistics before training: the fit of a vocabulary to a text, and the overlap of held-out and training text."""

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nmt.cleaning.selection import Selection, chosen_blocks, select
from nmt.cleaning.sentence_index import Pair, SentenceIndex, normalized_pairs
from nmt.config.corpus import CorpusFiles
from nmt.config.source import TEXT, SourceConfig
from nmt.config.training import Config
from nmt.corpora.hashes import CACHE, corpus_keys
from nmt.corpora.pairs import count_pairs, sides_of
from nmt.corpora.vectors import open_vectors
from nmt.errors import RunError
from nmt.runs.base import base_run, copy_tokenizer
from nmt.runs.folder import RunFolder
from nmt.system.files import read_json, write_json
from nmt.tokenizers.building import ensure_tokenizers
from nmt.tokenizers.tokenizer import Tokenizer, load_tokenizers

_SURVEY_FORMAT = 2  # raise it when the counts of a survey change


@dataclasses.dataclass(frozen=True)
class SideReport:
    """Fit of a vocabulary to one side of a text."""

    language: str
    vocab_size: int
    pieces_per_word: float
    """Words are separated by white space."""
    characters_per_piece: float
    """Without white space; replaces `pieces_per_word` for languages written without spaces."""
    unknown_share: float
    """Share of the pieces that are `<unk>`."""
    byte_share: float
    """Share of the pieces that are bytes of characters outside the vocabulary."""
    longest: int
    """Number of pieces in the longest line."""
    too_long: int
    """Number of lines with too many pieces."""
    first_line: tuple[str, ...]
    """Pieces of the first line, as an example."""


def side_report(lines: Iterable[str], tokenizer: Tokenizer, language: str, max_length: int | None = None) -> SideReport:
    """Encode lines after normalization and count their pieces; more than `max_length` are too many."""
    lines = list(lines)
    encoded = [tokenizer.encode(tokenizer.normalize(line)) for line in lines]
    pieces = sum(map(len, encoded))
    words = [word for line in lines for word in line.split()]
    byte_ids = tokenizer.byte_ids
    return SideReport(
        language=language,
        vocab_size=tokenizer.vocab_size,
        pieces_per_word=pieces / max(1, len(words)),
        characters_per_piece=sum(map(len, words)) / max(1, pieces),
        unknown_share=sum(ids.count(tokenizer.special.unk) for ids in encoded) / max(1, pieces),
        byte_share=sum(index in byte_ids for ids in encoded for index in ids) / max(1, pieces),
        longest=max(map(len, encoded), default=0),
        too_long=sum(max_length is not None and len(ids) > max_length for ids in encoded),
        first_line=tuple(tokenizer.pieces(encoded[0])) if encoded else (),
    )


def vocabulary_report(config: Config, run: RunFolder) -> dict[str, SideReport]:
    """Build the run's vocabulary if it is missing; report its fit to the `src` and `tgt` of the validation set.

    With `training.init_from` it is copied from the base run. Sources that are not text have no vocabulary and no
    report. Raises `RunError` instead of replacing the vocabulary of a run whose training has begun.
    """
    data = config.data
    count_pairs([*data.train, data.validation], config.source)
    if not run.exists() and config.training.init_from is not None:
        copy_tokenizer(base_run(config.training.init_from), run)
        tokenizers = load_tokenizers(run.tokenizer)
    elif not run.exists():
        languages = data.src_lang, data.tgt_lang
        selection = select(data.train, data.cleaning, languages, data.excluded_from_training, config.source)
        tokenizers = ensure_tokenizers(
            data.train, config.tokenizer, run.tokenizer, source=config.source, selection=selection
        )
    elif run.inference_config().tokenizer == config.tokenizer:
        tokenizers = load_tokenizers(run.tokenizer)
    else:
        raise RunError(f"{run.path}: this run is trained with another vocabulary; build this one under another --name")
    src, tgt = sides_of(data.validation)
    sides = {"src": (src, tokenizers.src, data.src_lang)} if config.source.type == "text" else {}
    sides["tgt"] = tgt, tokenizers.tgt, data.tgt_lang
    return {
        name: side_report(side.lines(), tokenizer, language, data.max_length)
        for name, (side, tokenizer, language) in sides.items()
    }


class Seen(NamedTuple):
    """Overlap of a held-out text with the training text."""

    pairs: int
    """Pairs of the held-out text."""
    seen: int
    """Pairs among them that occur in the training text, source and target."""


class Survey(NamedTuple):
    """Properties of the training text that deserve a warning before training.

    Pairs with an empty side are neither copied nor seen. Vectors and images are compared as numbers and never count as
    copied.
    """

    pairs: int
    copied: int
    """Number of pairs with identical source and target."""
    held_out: dict[str, Seen]
    """By the name of the held-out text."""


def survey(
    corpora: Sequence[CorpusFiles],
    held_out: Mapping[str, CorpusFiles],
    source: SourceConfig = TEXT,
    selection: Selection | None = None,
) -> Survey:
    """Survey the training text, or the part that a selection keeps; the result is cached by the hashes of the files.

    Only the held-out texts are in memory. Raises `DataError` if a file cannot be read or sides differ in length.
    """
    settings = [_SURVEY_FORMAT, len(corpora), *held_out, *([] if source.type == "text" else [source.description()])]
    digest = hashlib.sha256(json.dumps(settings).encode())
    digest.update(b"".join(corpus_keys([*corpora, *held_out.values()], source)))
    if selection is not None:
        digest.update(selection.key.encode())
    cached = CACHE / f"{digest.hexdigest()[:20]}.survey.json"
    with contextlib.suppress(RunError, TypeError, ValueError, AttributeError):  # there is none, or it is damaged
        num_pairs, copied, of_texts = read_json(cached)
        return Survey(num_pairs, copied, {name: Seen(*counts) for name, counts in of_texts.items()})
    texts = {name: SentenceIndex([files], source).pairs for name, files in held_out.items()}
    wanted = {pair for text in texts.values() for pair in text if all(pair)}
    seen = set[Pair]()
    open_file = functools.cache(open_vectors)
    num_pairs = copied = 0
    for index, corpus in enumerate(corpora):
        for block in chosen_blocks(corpus, source, selection, index):
            pairs = normalized_pairs(block, source, open_file)
            num_pairs += len(pairs)
            copied += sum(src == tgt != "" for src, tgt in pairs)
            seen |= wanted.intersection(pairs)
    found = {name: Seen(len(text), sum(map(seen.__contains__, text))) for name, text in texts.items()}
    write_json(cached, (num_pairs, copied, found))
    return Survey(num_pairs, copied, found)
