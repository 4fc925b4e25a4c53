"""Training of tokenizers on a corpus, or on a sample of a large one."""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nmt.cleaning.selection import Selection
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TokenizerConfig
from nmt.config.source import TEXT, SourceConfig
from nmt.corpora.hashes import corpus_keys, file_hashes
from nmt.corpora.pairs import read_pairs, reader_of
from nmt.system.console import log
from nmt.system.files import read_json
from nmt.tokenizers.tokenizer import (
    SentencePieceTokenizer,
    Tokenizer,
    Tokenizers,
    WordTokenizer,
    load_tokenizers,
    save_tokenizers,
)

_RECIPE = 3  # raise it when the same text and settings give another vocabulary


def train_tokenizers(
    corpora: Sequence[CorpusFiles],
    config: TokenizerConfig,
    source: SourceConfig = TEXT,
    selection: Selection | None = None,
) -> Tokenizers:
    """Build the vocabularies for `config` from the training corpora, or from a sample of large ones.

    A `selection` limits them to the pairs that it keeps. Sources that are not text have no vocabulary of their own.
    """
    kind = WordTokenizer if config.type == "word" else SentencePieceTokenizer
    samples = _sample([reader_of(files, source).count() for files in corpora], config.max_train_pairs, selection)

    def pairs() -> Iterator[tuple[str, ...]]:
        """The sides of each pair that are text."""
        for files, sample in zip(corpora, samples, strict=True):
            for pair in read_pairs(files, sample, source):
                yield pair if source.type == "text" else pair[1:]

    if config.joint:
        joint: Tokenizer = kind.train(itertools.chain.from_iterable(pairs()), config)
        return Tokenizers(joint, joint)
    src, tgt = (kind.train((pair[side] for pair in pairs()), config) for side in (0, 1))
    return Tokenizers(src, tgt)


def _sample(sizes: Sequence[int], max_pairs: int, selection: Selection | None) -> list[bytes | None]:
    """For each corpus, a byte for each pair, 1 if the pair is in the sample; None if all pairs are.

    The sample is uniform over all corpora together, or over the pairs that a selection keeps. Its seed is fixed, so
    the same sizes give the same sample.
    """
    if selection is None and sum(sizes) <= max_pairs:
        return [None] * len(sizes)
    kept = np.arange(sum(sizes)) if selection is None else np.flatnonzero(np.concatenate(selection.verdicts) == 0)
    if len(kept) > max_pairs:
        kept = kept[np.random.default_rng(0).choice(len(kept), max_pairs, replace=False, shuffle=False)]
    chosen = np.zeros(sum(sizes), dtype=np.uint8)
    chosen[kept] = 1
    return [part.tobytes() for part in np.split(chosen, np.cumsum(sizes)[:-1])]


def ensure_tokenizers(
    corpora: Sequence[CorpusFiles],
    config: TokenizerConfig,
    folder: Path,
    source: SourceConfig = TEXT,
    selection: Selection | None = None,
) -> Tokenizers:
    """Load the tokenizers in `folder`, built first if they are missing or were made from other text or settings."""
    made_from = _made_from(corpora, config, source, selection)
    file = folder / "tokenizer.json"
    description = read_json(file) if file.is_file() else None
    if not isinstance(description, dict) or description.get("made_from") != made_from:
        if description is not None:
            log.info(f"the vocabulary in {folder} was made from other text or with other settings, and is made again")
        save_tokenizers(train_tokenizers(corpora, config, source, selection), folder, made_from)
    return load_tokenizers(folder)


def _made_from(
    corpora: Sequence[CorpusFiles], config: TokenizerConfig, source: SourceConfig, selection: Selection | None
) -> str:
    """A hash of the settings and the text that a vocabulary depends on."""
    digest = hashlib.sha256(f"{_RECIPE} {config.model_dump_json()}".encode())
    if source.type == "text":
        digest.update(b"".join(corpus_keys(corpora)))
    else:
        digest.update(b"".join([b"targets", *file_hashes(files.tgt_file for files in corpora)]))
    if selection is not None:
        digest.update(selection.key.encode())
    return digest.hexdigest()[:20]
