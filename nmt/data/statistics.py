"""What a corpus is made of: as its tokenizer sees it, and what of it occurs in other text."""

import dataclasses
import hashlib
import itertools
import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from nmt.atomic import read_json, write_json
from nmt.config.training import Config, CorpusFiles
from nmt.data.cleaning import normalize
from nmt.data.corpus import count_pairs, raw_pairs, read_lines
from nmt.data.hashes import CACHE, corpus_hashes
from nmt.data.tokenizer import Tokenizer, ensure_tokenizers, load_tokenizers
from nmt.errors import RunError
from nmt.runs import RunFolder

_SURVEY_FORMAT = 1  # raise it when a survey counts something else


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
    byte_share: float
    """Of the pieces that are a byte of a character which the vocabulary does not hold."""
    longest: int
    """Pieces of the longest line."""
    too_long: int
    """Lines that have more pieces than they may."""
    first_line: tuple[str, ...]
    """The text's first line in pieces, to look at."""


def side_report(lines: Iterable[str], tokenizer: Tokenizer, language: str, max_length: int | None = None) -> SideReport:
    """Encode lines, once normalized, and count; a line may have `max_length` pieces."""
    words = characters = pieces = unknown = spelled = longest = too_long = 0
    byte_ids = tokenizer.byte_ids
    first_line: tuple[str, ...] | None = None
    for line in lines:
        ids = tokenizer.encode(normalize(line))
        if first_line is None:
            first_line = tuple(tokenizer.pieces(ids))
        line_words = line.split()
        words += len(line_words)
        characters += sum(map(len, line_words))
        pieces += len(ids)
        unknown += ids.count(tokenizer.special.unk)
        spelled += sum(index in byte_ids for index in ids)
        longest = max(longest, len(ids))
        too_long += max_length is not None and len(ids) > max_length
    return SideReport(
        language=language,
        vocab_size=tokenizer.vocab_size,
        pieces_per_word=pieces / max(1, words),
        characters_per_piece=characters / max(1, pieces),
        unknown_share=unknown / max(1, pieces),
        byte_share=spelled / max(1, pieces),
        longest=longest,
        too_long=too_long,
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
        "src": side_report(read_lines(data.validation.src), tokenizers.src, data.src_lang, data.max_length),
        "tgt": side_report(read_lines(data.validation.tgt), tokenizers.tgt, data.tgt_lang, data.max_length),
    }


@dataclasses.dataclass(frozen=True)
class Overlap:
    """How much of a held-out text occurs in the training text."""

    pairs: int
    """Of the held-out text."""
    seen: int
    """Those that occur in the training text, source with target."""


@dataclasses.dataclass(frozen=True)
class Survey:
    """What training text may be found out about before anything is learned from it.

    Lines are compared as bytes, without spaces at their ends; a pair with an empty side is never found to be anything.
    """

    pairs: int
    copied: int
    """Pairs whose target is their source."""
    overlaps: dict[str, Overlap]
    """For each of the texts that are held out, by its name."""


def survey(corpora: Sequence[CorpusFiles], held_out: Mapping[str, CorpusFiles]) -> Survey:
    """Read the training text through, unless it has been: the result is remembered by what the files hold.

    Memory is taken by the held-out texts alone. Raises `DataError` if a file cannot be read or sides differ in length.
    """
    digest = hashlib.sha256(json.dumps([_SURVEY_FORMAT, len(corpora), *held_out]).encode())
    digest.update(b"".join(corpus_hashes([*corpora, *held_out.values()])))
    remembered = CACHE / f"{digest.hexdigest()[:20]}.survey.json"
    found = _read_survey(remembered)
    if found is None:
        found = _survey(corpora, {name: list(_stripped_pairs(files)) for name, files in held_out.items()})
        write_json(remembered, dataclasses.asdict(found))
    return found


def _survey(corpora: Sequence[CorpusFiles], held_out: Mapping[str, list[tuple[bytes, bytes]]]) -> Survey:
    wanted = {pair for of_one in held_out.values() for pair in of_one if all(pair)}
    sources = {src for src, _ in wanted}  # of most pairs, it is enough to look at the source
    seen = set()
    pairs = copied = 0
    for files in corpora:
        for src, tgt in _stripped_pairs(files):
            pairs += 1
            if src == tgt and src:
                copied += 1
            if src in sources and (src, tgt) in wanted:
                seen.add((src, tgt))
    overlaps = {name: Overlap(len(of_one), sum(pair in seen for pair in of_one)) for name, of_one in held_out.items()}
    return Survey(pairs, copied, overlaps)


def _stripped_pairs(files: CorpusFiles) -> Iterator[tuple[bytes, bytes]]:
    pairs = raw_pairs(files)
    for src, tgt in itertools.islice(pairs, 1):
        yield src.removeprefix(BOM_UTF8).strip(), tgt.removeprefix(BOM_UTF8).strip()
    for src, tgt in pairs:
        yield src.strip(), tgt.strip()


def _read_survey(path: Path) -> Survey | None:
    """What is remembered, if it is; what is damaged is computed again."""
    try:
        value = read_json(path)
        overlaps = {name: Overlap(**of_one) for name, of_one in value["overlaps"].items()}
        return Survey(value["pairs"], value["copied"], overlaps)
    except (RunError, TypeError, KeyError, AttributeError):
        return None
