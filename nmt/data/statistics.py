"""Statistics of a text: how a vocabulary fits it, and how much of it occurs in the training text."""

import dataclasses
import hashlib
import itertools
import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from nmt.atomic import read_json, write_json
from nmt.config.corpus import CorpusFiles
from nmt.config.source import TEXT, SourceConfig
from nmt.config.training import Config
from nmt.data.corpus import raw_pairs, sides_of
from nmt.data.hashes import CACHE, corpus_keys
from nmt.data.lines import read_lines
from nmt.data.selection import Selection, select
from nmt.data.tokenizer import Tokenizer, load_tokenizers
from nmt.data.tokenizer_training import ensure_tokenizers
from nmt.data.vectors import check_corpora, fingerprint, vector_blocks
from nmt.errors import RunError
from nmt.inheritance import copy_tokenizer, starting_run
from nmt.runs import RunFolder

_SURVEY_FORMAT = 1  # raise it when the counts of a survey change


@dataclasses.dataclass(frozen=True)
class SideReport:
    """How a vocabulary fits one side of a text."""

    language: str
    vocab_size: int
    pieces_per_word: float
    """Words are separated by white space."""
    characters_per_piece: float
    """White space not counted; replaces `pieces_per_word` for languages written without spaces."""
    unknown_share: float
    """Share of the pieces that are `<unk>`."""
    byte_share: float
    """Share of the pieces that are one byte of a character outside the vocabulary."""
    longest: int
    """Number of pieces in the longest line."""
    too_long: int
    """Number of lines with too many pieces."""
    first_line: tuple[str, ...]
    """The pieces of the text's first line, as an example."""


def side_report(lines: Iterable[str], tokenizer: Tokenizer, language: str, max_length: int | None = None) -> SideReport:
    """Encode lines after normalization, and count; lines of more than `max_length` pieces are too long."""
    words = characters = pieces = unknown = byte_pieces = longest = too_long = 0
    byte_ids = tokenizer.byte_ids
    first_line: tuple[str, ...] | None = None
    for line in lines:
        ids = tokenizer.encode(tokenizer.normalize(line))
        if first_line is None:
            first_line = tuple(tokenizer.pieces(ids))
        line_words = line.split()
        words += len(line_words)
        characters += sum(map(len, line_words))
        pieces += len(ids)
        unknown += ids.count(tokenizer.special.unk)
        byte_pieces += sum(index in byte_ids for index in ids)
        longest = max(longest, len(ids))
        too_long += max_length is not None and len(ids) > max_length
    return SideReport(
        language=language,
        vocab_size=tokenizer.vocab_size,
        pieces_per_word=pieces / max(1, words),
        characters_per_piece=characters / max(1, pieces),
        unknown_share=unknown / max(1, pieces),
        byte_share=byte_pieces / max(1, pieces),
        longest=longest,
        too_long=too_long,
        first_line=first_line or (),
    )


def vocabulary_report(config: Config, run: RunFolder) -> dict[str, SideReport]:
    """Build the run's vocabulary if it is missing; report how it fits the `src` and `tgt` of the validation set.

    With `training.init_from` it is copied, not built. Sources that are not text have no vocabulary, and no report.
    Raises `RunError` instead of replacing the vocabulary of a run that is already being trained.
    """
    data = config.data
    check_corpora([*data.train, data.validation], config.source)
    if not run.exists() and config.training.init_from is not None:
        copy_tokenizer(starting_run(config.training.init_from), run)
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


@dataclasses.dataclass(frozen=True)
class Overlap:
    """The overlap of a held-out text with the training text."""

    pairs: int
    """Number of pairs in the held-out text."""
    seen: int
    """Number of these pairs that occur in the training text, with the same target."""


@dataclasses.dataclass(frozen=True)
class Survey:
    """Properties of the training text that deserve a warning before training.

    Lines are compared as bytes, without white space at the ends; pairs with an empty side are neither copied nor seen.
    Vectors and images are compared as numbers, and are never copies.
    """

    pairs: int
    copied: int
    """Number of pairs with identical source and target."""
    overlaps: dict[str, Overlap]
    """The overlap with each held-out text, by its name."""


def survey(
    corpora: Sequence[CorpusFiles],
    held_out: Mapping[str, CorpusFiles],
    source: SourceConfig = TEXT,
    selection: Selection | None = None,
) -> Survey:
    """Survey the training text, or what a selection keeps of it; the result is cached by the hashes of the files.

    Only the held-out texts are held in memory. Raises `DataError` if a file cannot be read or sides differ in length.
    """
    settings = [_SURVEY_FORMAT, len(corpora), *held_out, *([] if source.type == "text" else [source.as_read()])]
    digest = hashlib.sha256(json.dumps(settings).encode())
    digest.update(b"".join(corpus_keys([*corpora, *held_out.values()], source)))
    if selection is not None:
        digest.update(selection.key.encode())
    cached = CACHE / f"{digest.hexdigest()[:20]}.survey.json"
    found = _read_survey(cached)
    if found is None:
        texts = {name: list(_pairs(files, source)) for name, files in held_out.items()}
        found = _survey(corpora, texts, source, selection)
        write_json(cached, dataclasses.asdict(found))
    return found


def _survey(
    corpora: Sequence[CorpusFiles],
    held_out: Mapping[str, list[tuple[bytes, bytes]]],
    source: SourceConfig,
    selection: Selection | None,
) -> Survey:
    wanted = {pair for text in held_out.values() for pair in text if all(pair)}
    sources = {src for src, _ in wanted}  # for most pairs, checking the source is enough
    seen = set()
    pairs = copied = 0
    for index, files in enumerate(corpora):
        text = _pairs(files, source)
        for src, tgt in text if selection is None else itertools.compress(text, selection.chosen(index)):
            pairs += 1
            if src == tgt and src:
                copied += 1
            if src in sources and (src, tgt) in wanted:
                seen.add((src, tgt))
    overlaps = {name: Overlap(len(text), sum(pair in seen for pair in text)) for name, text in held_out.items()}
    return Survey(pairs, copied, overlaps)


def _pairs(files: CorpusFiles, source: SourceConfig) -> Iterator[tuple[bytes, bytes]]:
    """Each pair's lines without white space at the ends; for vectors, a hash in place of the source line."""
    if source.type != "text":
        vectors = itertools.chain.from_iterable(vector_blocks(files.src_file, source))
        for one, line in zip(vectors, read_lines(files.tgt_file), strict=True):
            yield fingerprint(one).encode(), line.strip().encode()
        return
    pairs = raw_pairs(files)
    for src, tgt in itertools.islice(pairs, 1):
        yield src.removeprefix(BOM_UTF8).strip(), tgt.removeprefix(BOM_UTF8).strip()
    for src, tgt in pairs:
        yield src.strip(), tgt.strip()


def _read_survey(path: Path) -> Survey | None:
    """The cached survey; None if it is missing or damaged."""
    try:
        value = read_json(path)
        overlaps = {name: Overlap(**overlap) for name, overlap in value["overlaps"].items()}
        return Survey(value["pairs"], value["copied"], overlaps)
    except (RunError, TypeError, KeyError, AttributeError):
        return None
