"""Text in, text out: batches by length, the order kept."""

import dataclasses
import itertools
import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.config.inference import DecodingConfig
from nmt.data.cleaning import normalize
from nmt.data.letters import has_dotless_i, is_in_capitals, lowercase
from nmt.data.tokenizer import Tokenizers, load_tokenizers, same_tokenizers
from nmt.decoding.engines import Engine, load_engine
from nmt.decoding.hypothesis import Hypothesis
from nmt.errors import ConfigError, RunError, TrainingError
from nmt.languages import base_language
from nmt.runs import open_runs

if TYPE_CHECKING:
    from nmt.decoding.alignment import WordAligner

log = logging.getLogger("nmt")

LINES_AT_ONCE = 2000  # enough to sort by length, few enough to hold
LONG_LINE_CHARACTERS = 1 << 14  # characters; SentencePiece needs hundreds of bytes of memory for each
PIECE_CHARACTERS = 16  # of SentencePiece's longest


@dataclasses.dataclass(frozen=True)
class Translation:
    """What came of one line."""

    text: str
    num_tokens: int
    """Pieces of the text."""
    alignment: str = ""
    """Which words come from which, "0-0 2-1", where that was asked for."""
    score: float = 0.0
    """`Hypothesis.score` of the text; 0 for an empty line, which is not searched for."""
    n_best: tuple[tuple[str, float], ...] = ()
    """All that was found and its score, best first, so that the text itself is the first: at most
    `decoding.beam_size`. None for an empty line. Two may be the same text in other pieces."""


class Translator:
    """Translates lines of text with an engine and the tokenizers that its model was trained with.

    Several threads may use one at once.
    """

    def __init__(
        self,
        tokenizers: Tokenizers,
        engine: Engine,
        decoding: DecodingConfig,
        max_src_length: int,
        word_aligner: "WordAligner | None" = None,
        src_lang: str = "",
    ) -> None:
        self._tokenizers = tokenizers
        self._positions_at_once = decoding.batch_tokens * engine.batches_at_once
        self._engine = engine
        self._decoding = decoding
        self._max_src_length = max_src_length
        self._word_aligner = word_aligner
        self._dotless_i = decoding.lower_capitals and has_dotless_i(base_language(src_lang))

    @property
    def engine_name(self) -> str:
        """What searches, for a record of results."""
        return self._engine.name

    def translate(self, lines: Iterable[str], numbers: Iterable[int] | None = None) -> list[str]:
        """One translation a line, in order; an empty line gives an empty line.

        A line with more pieces than the model was trained for is cut, with a warning that names it: by its number
        among `numbers`, one a line, else counted from 1.
        """
        if isinstance(lines, str):
            raise TypeError("translate takes a list of lines, not one string")
        numbered = zip(itertools.count(1) if numbers is None else numbers, lines, strict=numbers is not None)
        texts = []
        while block := list(itertools.islice(numbered, LINES_AT_ONCE)):
            texts += [translation.text for translation in self._translate(block)]
        return texts

    def stream(self, blocks: Iterable[Sequence[str]], first: int = 1) -> Iterator[Translation]:
        """Translations of any number of lines, in order, each as soon as it and all before it are done.

        Batches are made within a block, one of which is held at a time. Lines are numbered from `first`.

        >>> (translation,) = nmt.load("runs/multi30k_en_de").stream([["A dog runs."]])
        >>> [(text, round(score, 2)) for text, score in translation.n_best[:3]]
        [('Ein Hund rennt.', -0.15), ('Ein Hund läuft.', -0.23), ('Ein Hund, der rennt.', -0.41)]
        """
        for block in blocks:
            yield from self._translate(list(enumerate(block, start=first)))
            first += len(block)

    def _translate(self, numbered: list[tuple[int, str]]) -> Iterator[Translation]:
        sources = [self._encode(number, line) for number, line in numbered]
        done: list[Translation | None] = [None if ids else Translation("", 0) for ids in sources]
        next_out = 0
        for batch in [*batches_by_length(sources, self._positions_at_once), []]:
            if batch:
                for index, translation in zip(batch, self._search([sources[index] for index in batch]), strict=True):
                    done[index] = translation
            while next_out < len(done) and (ready := done[next_out]) is not None:
                yield ready
                next_out += 1

    def _search(self, sources: Sequence[Sequence[int]]) -> list[Translation]:
        found = self._engine.search(sources, self._decoding)
        if not all(found) or any(math.isnan(hypotheses[0].score) for hypotheses in found):
            raise TrainingError("the model's probabilities are not numbers (NaN): its training has diverged")
        outputs = [hypotheses[0].tokens for hypotheses in found]
        alignments = self._word_aligner.align(sources, outputs) if self._word_aligner else [""] * len(outputs)
        return [
            self._translation(hypotheses, alignment) for hypotheses, alignment in zip(found, alignments, strict=True)
        ]

    def _translation(self, hypotheses: Sequence[Hypothesis], alignment: str) -> Translation:
        n_best = tuple((self._decode(one.tokens), one.score) for one in hypotheses)
        (text, score), num_tokens = n_best[0], len(hypotheses[0].tokens)
        return Translation(text, num_tokens, alignment, score, n_best)

    def _decode(self, tokens: Sequence[int]) -> str:
        text = self._tokenizers.tgt.decode(tokens)
        return " ".join(text.split("\n"))  # bytes may spell a line's end; one line must stay one

    def _encode(self, number: int, line: str) -> list[int]:
        if self._decoding.lower_capitals and is_in_capitals(line):
            line = lowercase(line, self._dotless_i)
        length = len(line)
        ids = self._tokenizers.src.encode(normalize(self._beginning(line)))
        if len(ids) > self._max_src_length:
            log.warning(
                "line %d: %s; only the first %d (data.max_length) are translated",
                number,
                f"{len(ids)} pieces" if length <= LONG_LINE_CHARACTERS else f"{length:,} characters",
                self._max_src_length,
            )
            ids = ids[: self._max_src_length]
        return ids

    def _beginning(self, line: str) -> str:
        """As much of a long line as decides the pieces that are translated, and more, so that the rest has no say.

        Many spaces are one to a tokenizer, and up to three characters become one by Unicode's NFC.
        """
        if len(line) <= LONG_LINE_CHARACTERS:
            return line
        most = max(LONG_LINE_CHARACTERS, 2 * PIECE_CHARACTERS * self._max_src_length)
        words = itertools.islice(re.finditer("[^ ]+", line), most)
        return " ".join(word[0] for word in words)[: 2 * most]


def batches_by_length(sources: Sequence[Sequence[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of the sources that are not empty, longest first, cut where padding would exceed `batch_tokens`.

    A batch holds at least one source, however long.
    """
    order = sorted((index for index in range(len(sources)) if sources[index]), key=lambda index: -len(sources[index]))
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
    own_process: bool = False,
) -> Translator:
    """The translator of a run: `load("runs/tiny").translate(["hello world"])`.

    `model` is a run's folder or name, by default the newest under ./runs; several, `load(["runs/a", "runs/b"])`,
    translate together as an ensemble, with the search settings of the first, and sources cut at the least of their
    `data.max_length`. The folder of an export will do for a run's. `decoding` replaces the search settings; `engine` is
    `torch`, `ctranslate2`, or `auto`: CTranslate2 for an export, and on a CPU for a run with one that is fresh; with
    `alignments`, translations tell which words come from which. A `precision` replaces `decoding.precision` and, as an
    export has its own, asks for PyTorch. Nothing outside of the translator is changed, unless `own_process`
    says that this process is for translating alone, as our commands' are: then the C library keeps what PyTorch frees,
    which is faster on a CPU, and threads stop spinning while other programs want their cores.
    Raises `nmt.errors.RunError` if one is not a trained run or their vocabularies
    differ, and `ConfigError` if a model cannot hold outputs of `decoding.max_length`.
    """
    runs = open_runs([model] if isinstance(model, str | Path) else model)
    configs = [run.inference_config() for run in runs]
    decoding = decoding or configs[0].decoding
    for run, config in zip(runs, configs, strict=True):
        if decoding.max_length >= config.model.max_positions:
            raise ConfigError(
                f"{run.path}: decoding.max_length ({decoding.max_length}) must be less than the model's max_positions "
                f"({config.model.max_positions})"
            )
    tokenizers = load_tokenizers(runs[0].tokenizer)
    for run in runs[1:]:
        if not same_tokenizers(run.tokenizer, runs[0].tokenizer):
            raise RunError(
                f"{runs[0].path} and {run.path} have different vocabularies; the models of an ensemble share theirs: "
                "train them on the same text with the same tokenizer settings"
            )
    loaded = load_engine(runs, tokenizers, device, engine, alignments, precision, decoding.precision)
    if own_process and loaded.name == "torch":
        from nmt import device as devices  # which imports torch

        devices.own_the_process()
    word_aligner = None
    if alignments:
        from nmt.decoding.alignment import Aligner, WordAligner  # numpy, too, is loaded when it is first needed

        assert isinstance(loaded, Aligner)
        word_aligner = WordAligner(loaded, tokenizers, configs[0].data.src_lang, configs[0].data.tgt_lang)
    max_src_length = min(config.data.max_length for config in configs)
    return Translator(tokenizers, loaded, decoding, max_src_length, word_aligner, configs[0].data.src_lang)
