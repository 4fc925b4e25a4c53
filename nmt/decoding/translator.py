"""Text in, text out: lines are batched by length, and returned in order."""

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, cast

from nmt.config.inference import DecodingConfig
from nmt.config.source import TEXT, SourceConfig
from nmt.data.tokenizer import Tokenizers
from nmt.decoding.engines import Engine, load_engine, shared_tokenizers
from nmt.decoding.hypothesis import NO_ALIGNMENT, EncodedSource, Hypothesis, WordAlignment, best_of
from nmt.decoding.sentences import join_parts
from nmt.decoding.source_text import Item, PartedSource, check_same_sources, source_encoder
from nmt.errors import ConfigError
from nmt.runs import open_runs

if TYPE_CHECKING:
    from nmt.decoding.alignment import WordAligner

LINES_AT_ONCE = 2000  # enough to sort by length, few enough to hold


@dataclasses.dataclass(frozen=True)
class Translation:
    """The translation of one line."""

    text: str
    num_tokens: int
    """Number of pieces of the text."""
    alignment: WordAlignment = NO_ALIGNMENT
    """Empty unless it was requested."""
    score: float = 0.0
    """`Hypothesis.score` of the text; 0 for an empty line."""
    n_best: tuple[tuple[str, float], ...] = ()
    """All translations found and their scores, best first, beginning with `text`: at most `decoding.beam_size`. Empty
    for an empty line and for one that was translated in parts. Two may be the same text in different pieces."""


class Translator:
    """Translates lines of text with an engine and the tokenizers that its model was trained with.

    The sources of a model of vectors or images are arrays (S, F) instead of lines. Several threads may use one at once.
    """

    def __init__(
        self,
        tokenizers: Tokenizers,
        engine: Engine,
        decoding: DecodingConfig,
        max_src_length: int,
        word_aligner: "WordAligner | None" = None,
        languages: tuple[str, str] = ("", ""),
        source: SourceConfig = TEXT,
        split_sentences: bool = False,
    ) -> None:
        self._tokenizers = tokenizers
        self._positions_at_once = decoding.batch_tokens * engine.batches_at_once
        self._engine = engine
        self._decoding = decoding
        self._languages = languages
        self._source_encoder = source_encoder(
            source, tokenizers.src, max_src_length, decoding.lower_capitals, languages[0]
        )
        self._split_sentences = split_sentences
        self._word_aligner = word_aligner

    @property
    def engine_name(self) -> str:
        """The engine's name, recorded with results."""
        return self._engine.name

    def translate(self, lines: Iterable[Item], numbers: Iterable[int] | None = None) -> list[str]:
        """The translation of each line or source of vectors, in order; an empty one gives an empty line.

        A line with more than `data.max_length` pieces is translated in parts, with a warning that contains its number,
        from `numbers`, one for each line, or counted from 1. So are all lines with `split_sentences`.
        """
        if isinstance(lines, str):
            raise TypeError("translate expects a list of lines, not one string")
        numbered = zip(itertools.count(1) if numbers is None else numbers, lines, strict=numbers is not None)
        texts = []
        while block := list(itertools.islice(numbered, LINES_AT_ONCE)):
            texts += [translation.text for translation in self._translate(block)]
        return texts

    def stream(self, blocks: Iterable[Sequence[Item]], first: int = 1) -> Iterator[Translation]:
        """Translations of any number of lines, in order, each as soon as it and all before it are done.

        One block is held in memory at a time; batches are made within it. Warnings count lines from `first`.

        >>> (translation,) = nmt.load("runs/multi30k_en_de").stream([["A dog runs."]])
        >>> [(text, round(score, 2)) for text, score in translation.n_best[:3]]
        [('Ein Hund rennt.', -0.15), ('Ein Hund läuft.', -0.23), ('Ein Hund, der rennt.', -0.41)]
        """
        for block in blocks:
            yield from self._translate(list(enumerate(block, start=first)))
            first += len(block)

    def _translate(self, numbered: list[tuple[int, Item]]) -> Iterator[Translation]:
        lines = [
            self._source_encoder.in_parts(line, f"line {number}", self._split_sentences) for number, line in numbered
        ]
        sources = [source for line in lines for source in line.encoded]
        done: list[Translation | None] = [None if len(source) else Translation("", 0) for source in sources]
        remaining, start = deque(lines), 0
        for batch in [*batches_by_length(sources, self._positions_at_once), []]:
            if batch:
                for index, translation in zip(batch, self._search([sources[index] for index in batch]), strict=True):
                    done[index] = translation
            while remaining and None not in (parts := done[start : start + len(remaining[0].parts)]):
                yield self._joined(remaining.popleft(), [part for part in parts if part])
                start += len(parts)

    def _joined(self, line: PartedSource, translations: Sequence[Translation]) -> Translation:
        """The translation of a line from those of its parts."""
        text = join_parts(line.parts, [one.text for one in translations], *self._languages)
        if len(translations) == 1:
            return dataclasses.replace(translations[0], text=text)
        alpha = self._decoding.length_penalty
        log_prob = sum(one.score * max(1, one.num_tokens) ** alpha for one in translations)
        num_tokens = sum(one.num_tokens for one in translations)
        alignment = sum((one.alignment for one in translations), NO_ALIGNMENT)
        return Translation(text, num_tokens, alignment, score=log_prob / max(1, num_tokens) ** alpha)

    def _search(self, sources: Sequence[EncodedSource]) -> list[Translation]:
        found = self._engine.search(sources, self._decoding)
        outputs = [best.tokens for best in best_of(found)]
        alignments = [NO_ALIGNMENT] * len(outputs)
        if self._word_aligner:
            alignments = self._word_aligner.align(cast(Sequence[Sequence[int]], sources), outputs)
        return [self._translation(of_one, alignment) for of_one, alignment in zip(found, alignments, strict=True)]

    def _translation(self, hypotheses: Sequence[Hypothesis], alignment: WordAlignment) -> Translation:
        n_best = tuple((self._decode(one.tokens), one.score) for one in hypotheses)
        (text, score), num_tokens = n_best[0], len(hypotheses[0].tokens)
        return Translation(text, num_tokens, alignment, score, n_best)

    def _decode(self, tokens: Sequence[int]) -> str:
        text = self._tokenizers.tgt.decode(tokens)
        return " ".join(text.split("\n"))  # byte pieces may encode a line break


def batches_by_length(sources: Sequence[Sized], batch_tokens: int) -> Iterator[list[int]]:
    """Batches of the indices of nonempty sources, longest first, each of at most `batch_tokens` positions.

    A batch holds at least one source, however long.
    """
    order = sorted(
        (index for index in range(len(sources)) if len(sources[index])), key=lambda index: -len(sources[index])
    )
    while order:
        count = max(1, batch_tokens // (len(sources[order[0]]) + 1))
        yield order[:count]
        order = order[count:]


def load(
    model: str | Path | Sequence[str | Path] | None = None,
    *,
    device: str = "auto",
    decoding: DecodingConfig | None = None,
    engine: str = "auto",
    alignments: bool = False,
    precision: str | None = None,
    split_sentences: bool = False,
    own_process: bool = False,
) -> Translator:
    """The translator of a run: `load("runs/tiny").translate(["hello world"])`.

    `model` is the folder or name of a run, or the folder of an export; by default the newest run under ./runs. Several,
    `load(["runs/a", "runs/b"])`, are an ensemble, with the search settings of the first and the least
    `data.max_length`. `decoding` replaces the search settings. `engine` is `torch`, `ctranslate2`, or `auto`:
    CTranslate2 for an export, and on a CPU for a run with a fresh export. With `alignments`, translations have word
    alignments. `precision` replaces `decoding.precision` and selects PyTorch, since an export has its own. With
    `split_sentences`, lines are texts of several sentences, each translated by itself, and white space is kept. With
    `own_process`, for a process that only translates, the C library keeps the memory that PyTorch frees, which is
    faster on a CPU, and waiting threads stop spinning while other programs need the cores; without it, nothing outside
    the translator is changed. Raises `nmt.errors.RunError` if a model is not a trained run or vocabularies differ, and
    `ConfigError` if `decoding.max_length` is too long for a model, or alignments are wanted of one without attention.
    """
    runs = open_runs([model] if isinstance(model, str | Path) else model)
    configs = [run.inference_config() for run in runs]
    check_same_sources(runs, configs)
    source = configs[0].source
    if alignments and source.type != "text":
        raise ConfigError(f"{runs[0].path}: alignments are of words, and the sources of this model are {source.type}")
    decoding = decoding or configs[0].decoding
    for run, config in zip(runs, configs, strict=True):
        if decoding.max_length >= config.model.max_positions:
            raise ConfigError(
                f"{run.path}: decoding.max_length ({decoding.max_length}) must be less than the model's max_positions "
                f"({config.model.max_positions})"
            )
        if alignments and not config.model.has_attention:
            raise ConfigError(f"{run.path}: has no attention (model.attention: none), so it cannot align words")
    tokenizers = shared_tokenizers(runs)
    loaded = load_engine(runs, tokenizers, device, engine, alignments, precision, decoding.precision)
    if own_process and loaded.name == "torch":
        from nmt import device as devices  # which imports torch

        devices.own_the_process()
    languages = (configs[0].data.src_lang, configs[0].data.tgt_lang)
    word_aligner = None
    if alignments:
        from nmt.decoding.alignment import Aligner, WordAligner  # which imports numpy

        assert isinstance(loaded, Aligner)
        word_aligner = WordAligner(loaded, tokenizers, *languages)
    max_src_length = min(config.data.max_length for config in configs)
    return Translator(tokenizers, loaded, decoding, max_src_length, word_aligner, languages, source, split_sentences)
