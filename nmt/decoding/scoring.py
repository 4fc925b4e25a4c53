"""Scoring of given translations by their log-probability, in constant memory."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nmt.config.corpus import CorpusFiles
from nmt.config.formats import pairs_format
from nmt.config.inference import InferenceConfig
from nmt.config.source import SourceConfig
from nmt.corpora.discovery import discover
from nmt.corpora.lines import read_lines
from nmt.corpora.pairs import read_pairs, reader_of
from nmt.decoding.engines import Engine, load_engine, shared_tokenizers
from nmt.decoding.hypothesis import ScoredTokens
from nmt.decoding.source_text import Item, SourceEncoder, beginning, source_encoder
from nmt.decoding.translator import LINES_AT_ONCE, scored_pairs
from nmt.errors import ConfigError
from nmt.runs.folder import open_runs
from nmt.system.console import log
from nmt.tokenizers.tokenizer import Tokenizers


@dataclasses.dataclass
class Totals:
    """Sums of scores over pairs."""

    pairs: int = 0
    """Number of pairs that have a score."""
    not_scored: int = 0
    """Number of pairs whose target is too long for the model."""
    tokens: int = 0
    """Number of target tokens, with a `</s>` for each pair."""
    log_prob: float = 0.0

    def add(self, pair: ScoredTokens) -> None:
        """Add a pair."""
        if not pair.tokens:
            self.not_scored += 1
            return
        self.pairs += 1
        self.tokens += len(pair.tokens)
        self.log_prob += pair.log_prob

    @property
    def perplexity(self) -> float:
        """exp(-log_prob / tokens): 1 if certain, the vocabulary size for a uniform guess; NaN without tokens."""
        return math.exp(-self.log_prob / self.tokens) if self.tokens else math.nan


def files_to_score(
    corpora: Sequence[Path], src: Path | None, tgt: Path | None, config: InferenceConfig
) -> Sequence[CorpusFiles]:
    """Return the named corpora in a model's languages; `ConfigError` if none is named, or the model reads no text."""
    if src and not tgt and pairs_format(src):
        corpora, src = [*corpora, src], None  # as in the commands that take --src and --ref
    if corpora:
        if config.source.type != "text":
            raise ConfigError(f"the sources of this model are {config.source.type}; name them with --src, and --tgt")
        return discover(corpora, src, tgt, config.data.src_lang, config.data.tgt_lang).files
    if src is None or tgt is None:
        raise ConfigError("name what to score: a corpus, or its sides with --src and --tgt")
    return [CorpusFiles(src=src, tgt=tgt)]


def pairs_to_score(files: CorpusFiles, source: SourceConfig) -> Iterator[tuple[Item, str]]:
    """Yield the pairs of two files; `DataError` if a file cannot be read, or they differ in length."""
    if source.type == "text":
        yield from read_pairs(files)
        return
    from nmt.corpora.vectors import vector_blocks  # imports numpy

    reader_of(files, source).count()
    vectors = itertools.chain.from_iterable(vector_blocks(files.src_file, source))
    yield from zip(vectors, read_lines(files.tgt_file), strict=True)


class Scorer:
    """Scorer of sentence pairs, with an engine and the tokenizers that its model was trained with."""

    def __init__(
        self,
        tokenizers: Tokenizers,
        engine: Engine,
        source_encoder: SourceEncoder,
        max_tgt_length: int,
        batch_tokens: int,
    ) -> None:
        self._tokenizer = tokenizers.tgt
        self._engine = engine
        self._source_encoder = source_encoder
        self._max_tgt_length = max_tgt_length
        self._batch_tokens = batch_tokens

    def stream(self, pairs: Iterable[tuple[Item, str]], numbers: Iterable[int] | None = None) -> Iterator[ScoredTokens]:
        """Yield the scores of any number of pairs of source, line or vectors, and target line, in order.

        A source with more than `data.max_length` pieces is cut, with a warning, since it cannot be scored in parts. A
        target is never cut; a target with more pieces than the model has positions is not scored, with a warning. An
        empty line is a sentence without pieces: as a target it has the log-probability of `</s>` alone. Warnings name a
        pair's line by its number: that in `numbers`, or counted from 1.
        """
        numbered = zip(itertools.count(1) if numbers is None else numbers, pairs, strict=numbers is not None)
        while block := list(itertools.islice(numbered, LINES_AT_ONCE)):
            encoded = [
                (self._source_encoder.encode(src, f"line {number}", "read"), self._target(tgt, number))
                for number, (src, tgt) in block
            ]
            yield from scored_pairs(self._engine, self._tokenizer, encoded, self._batch_tokens)

    def _target(self, line: str, number: int) -> list[int] | None:
        ids = self._tokenizer.encode(self._tokenizer.normalize(beginning(line, self._max_tgt_length)))
        if len(ids) <= self._max_tgt_length:
            return ids
        message = "line %d: the target has more than the %d pieces that the model can read, so it is not scored"
        log.warning(message, number, self._max_tgt_length)
        return None


def load_scorer(
    models: Sequence[str | Path] | None = None,
    device: str = "auto",
    engine: str = "auto",
    precision: str | None = None,
    own_process: bool = False,
) -> Scorer:
    """Load the scorer of a run, an export, or an ensemble of runs; the arguments are those of `nmt.load`."""
    runs = open_runs(models)
    configs = [run.inference_config() for run in runs]
    tokenizers, decoding = shared_tokenizers(runs), configs[0].decoding
    loaded = load_engine(runs, tokenizers, device, engine, precision, decoding.precision, own_process)
    max_tgt_length = min(config.model.max_positions for config in configs) - 1  # without <s>
    max_src_length = min(config.data.max_length for config in configs)
    encoder = source_encoder(configs[0].source, tokenizers.src, max_src_length, decoding, configs[0].data.src_lang)
    return Scorer(tokenizers, loaded, encoder, max_tgt_length, decoding.batch_tokens)
