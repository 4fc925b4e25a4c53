"""The translator: text in, text out. Lines are searched in batches by length, and returned in order."""

import dataclasses
import functools
import itertools
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from nmt.config.inference import DecodingConfig
from nmt.config.languages import is_without_spaces
from nmt.config.source import TEXT, SourceConfig
from nmt.decoding.engines import Engine, Sampler, load_engine, shared_tokenizers
from nmt.decoding.hypothesis import (
    BEST,
    DIVERGED,
    NO_ALIGNMENT,
    EncodedSource,
    Hypothesis,
    Request,
    ScoredTokens,
    WordAlignment,
    best_of,
)
from nmt.decoding.sentences import Part, join_parts, spaces_after
from nmt.decoding.source_text import Item, PartedSource, source_encoder
from nmt.errors import ConfigError, DataError, TrainingError
from nmt.runs.folder import open_runs
from nmt.system.console import log
from nmt.tokenizers.tokenizer import Tokenizer, Tokenizers

if TYPE_CHECKING:
    from nmt.decoding.alignment import WordAligner


LINES_AT_ONCE = 2000  # enough to sort by length, few enough for memory

Status: TypeAlias = Literal["translated", "empty", "copied", "cut", "ended at max_length"]
"""The status of a part of a line. `empty` and `copied` parts are not read by the model; of vectors that are `cut` at
`data.max_length` it reads the beginning; an output that `ended at max_length`, or at the limit of
`decoding.max_length_ratio`, is unfinished."""


class Translation(NamedTuple):
    """The translation of a line."""

    text: str
    num_tokens: int
    """Number of pieces of the text"""
    alignment: WordAlignment = NO_ALIGNMENT
    """Empty unless it was requested."""
    score: float = 0.0
    """`Hypothesis.score` of the text; 0 for a line that is empty or copied. For a line in parts, it is computed from
    the sums of the log-probabilities and numbers of pieces."""
    n_best: tuple[tuple[str, float], ...] = ()
    """At most `Request.n_best` translations with their scores, best first, beginning with `text`. Empty for a line that
    is empty or copied. Two may be the same text in different pieces. Samples are in the order of the draws, or by their
    expected chrF (`Sampling.by_risk`). For a line in parts: the best of each part, the second of each, ..."""
    scored: tuple[ScoredTokens, ...] = ()
    """The pieces and log-probabilities of the first `Request.num_scored` of `n_best`; each part ends with `</s>`."""
    status: tuple[Status, ...] = ("translated",)
    """The status of each part that has text, in `text`, not in the rest of `n_best`"""


class _TranslatedPart(NamedTuple):
    """The hypotheses of a part of a line, as texts."""

    status: Status
    texts: Sequence[str]
    """The text of each hypothesis, or the part's own text if it is copied"""
    hypotheses: Sequence[Hypothesis] = ()
    alignment: WordAlignment = NO_ALIGNMENT
    scored: tuple[ScoredTokens, ...] = ()


class Translator:
    """A translator of lines of text, with an engine and the tokenizers that its model was trained with.

    The sources of a model of vectors or images are arrays (S, F) instead of lines. Threads may share a translator.
    """

    def __init__(
        self,
        tokenizers: Tokenizers,
        engine: Engine,
        decoding: DecodingConfig,
        max_src_length: int,
        languages: tuple[str, str] = ("", ""),
        source: SourceConfig = TEXT,
    ) -> None:
        self._tokenizers = tokenizers
        self._engine = engine
        self._decoding = decoding
        self._languages = languages
        self._source_type = source.type
        self.source_encoder = source_encoder(source, tokenizers.src, max_src_length, decoding, languages[0])

    @property
    def engine_name(self) -> str:
        """Name of the engine, recorded with results."""
        return self._engine.name

    def translate(
        self, lines: Iterable[Item], numbers: Iterable[int] | None = None, request: Request = BEST
    ) -> list[str]:
        """Translate lines or sources of vectors, in order; an empty source gives an empty line.

        A line with more than `data.max_length` pieces is translated in parts, with a warning that contains its number:
        that in `numbers`, or counted from 1. Raises errors as `stream` does.
        """
        if isinstance(lines, str):
            raise TypeError("translate expects a list of lines, not one string")
        numbered = zip(itertools.count(1) if numbers is None else numbers, lines, strict=numbers is not None)
        request = dataclasses.replace(request, n_best=1, scores=False)
        texts = []
        while block := list(itertools.islice(numbered, LINES_AT_ONCE)):
            texts += [translation.text for translation in self._translate(block, request)]
        return texts

    def stream(
        self,
        blocks: Iterable[Sequence[Item]],
        first: int = 1,
        prefixes: Iterable[str] | str | None = None,
        request: Request = BEST,
    ) -> Iterator[Translation]:
        """Translate any number of lines, in order; a line is yielded as soon as it and all lines before it are done.

        A block is held in memory at a time; batches are made within it. Warnings count lines from `first`. `prefixes`
        are the texts that translations begin with, one for all lines or one for each; white space at their ends is
        ignored.

        Raises `DataError` if a prefix has a word outside the vocabulary, or the numbers of prefixes and lines differ;
        `ConfigError` for a `request` of samples from CTranslate2, or of alignments of vectors; and `RunError` for
        alignments by a model without attention.

        >>> (translation,) = nmt.load("runs/multi30k_en_de").stream([["A dog runs."]])
        >>> [(text, round(score, 2)) for text, score in translation.n_best[:3]]
        [('Ein Hund rennt.', -0.15), ('Ein Hund läuft.', -0.23), ('Ein Hund, der rennt.', -0.41)]
        """
        for block, beginnings in with_prefixes(blocks, prefixes, first):
            yield from self._translate(list(enumerate(block, start=first)), request, beginnings)
            first += len(block)

    def _translate(
        self, numbered: list[tuple[int, Item]], request: Request, beginnings: Sequence[str] | None = None
    ) -> Iterator[Translation]:
        if request.alignment and self._source_type != "text":
            raise ConfigError(f"alignments are of words, and the sources of this model are {self._source_type}")
        if request.sampling and not isinstance(self._engine, Sampler):
            raise ConfigError("CTranslate2 cannot seed its samples a sentence: load the run with engine torch")
        lines = self.source_encoder.in_parts(numbered, request.by_sentence)
        sources = [source for line in lines for source in line.encoded]
        forced = None
        if beginnings is not None:
            trios = zip(beginnings, numbered, lines, strict=True)
            forced = [ids for prefix, (number, _), line in trios for ids in self._forced(prefix, number, line)]
        texts = [part.text for line in lines for part in line.parts]
        done = [None if len(ids) else self._copied(text, request) for ids, text in zip(sources, texts, strict=True)]
        remaining, start = deque(zip(numbered, lines, strict=True)), 0
        draws = request.sampling.count if request.sampling else 1
        positions_at_once = max(1, self._decoding.batch_tokens * self._engine.batches_at_once // draws)
        for batch in [*batches_by_length(sources, positions_at_once), []]:
            if batch:
                prefixes = None if forced is None else [forced[index] for index in batch]
                results = self._search([sources[index] for index in batch], request, prefixes)
                for index, part in zip(batch, results, strict=True):
                    done[index] = part
            while remaining and None not in (parts := done[start : start + len(remaining[0][1].parts)]):
                (number, item), line = remaining.popleft()
                finished = [part for part in parts if part is not None]
                if not isinstance(item, str) and len(item) > len(line.encoded[0]):
                    finished = [finished[0]._replace(status="cut")]
                yield self._joined(number, line, finished)
                start += len(parts)

    def _joined(self, number: int, line: PartedSource, parts: Sequence[_TranslatedPart]) -> Translation:
        """Join the translations of a line's parts."""
        for source, part in zip(line.parts, parts, strict=True):
            log.debug("line %d: %s: %r -> %r", number, part.status, source.text, part.texts[0])
        if len(parts) == 1 and not line.parts[0].after:  # true for most lines, which saves time
            (part,) = parts
            best = part.hypotheses[0] if part.hypotheses else Hypothesis((), 0.0, 0.0)
            n_best = tuple((text, one.score) for text, one in zip(part.texts, part.hypotheses, strict=False))
            return Translation(
                part.texts[0], len(best.tokens), part.alignment, best.score, n_best, part.scored, (part.status,)
            )

        def text(rank: int) -> str:
            texts = [part.texts[min(rank, len(part.texts) - 1)] for part in parts]
            return join_parts(line.parts, texts, *self._languages)

        def score(rank: int) -> float:
            of_rank = [part.hypotheses[rank] for part in filled]
            if len(of_rank) == 1:
                return of_rank[0].score
            tokens = tuple(token for hypothesis in of_rank for token in hypothesis.tokens)
            log_prob = sum(hypothesis.log_prob for hypothesis in of_rank)
            return Hypothesis.scored(tokens, log_prob, self._decoding.length_penalty).score

        filled = [part for part in parts if part.hypotheses]
        alignment = self._joined_alignment(line.parts, [part.alignment for part in parts])
        status = tuple(part.status for part in parts if part.status != "empty") or ("empty",)
        if not filled:
            return Translation(text(0), 0, alignment, status=status)
        n_best = tuple((text(rank), score(rank)) for rank in range(min(len(part.hypotheses) for part in filled)))
        scored = tuple(map(_one_after_another, zip(*(part.scored for part in filled), strict=False)))
        num_tokens = sum(len(part.hypotheses[0].tokens) for part in filled)
        return Translation(n_best[0][0], num_tokens, alignment, n_best[0][1], n_best, scored, status)

    def _joined_alignment(self, parts: Sequence[Part], alignments: Sequence[WordAlignment]) -> WordAlignment:
        """The alignment of a line; without white space between two parts, they share a word."""
        src_lang, tgt_lang = self._languages
        joined, one_src_word, one_tgt_word = NO_ALIGNMENT, False, False
        for part, after, alignment in zip(parts, spaces_after(parts, src_lang, tgt_lang), alignments, strict=True):
            joined = joined.followed_by(alignment, one_src_word, one_tgt_word)
            one_src_word = not part.after and not is_without_spaces(src_lang)
            one_tgt_word = not (after or is_without_spaces(tgt_lang)) and (one_tgt_word or alignment.num_tgt_words > 0)
        return joined

    def _copied(self, text: str, request: Request) -> _TranslatedPart:
        """The result of a part that is not translated: copied or empty."""
        alignment = self._word_aligner.align_copy(text) if request.alignment else NO_ALIGNMENT
        return _TranslatedPart("copied" if text else "empty", [_in_one_line(text)], alignment=alignment)

    def _forced(self, prefix: str, number: int, line: PartedSource) -> list[list[int]]:
        """The ids that each part's translation begins with: the prefix for the first part that has text, else none."""
        first = next((place for place, source in enumerate(line.encoded) if len(source)), 0)
        return [
            self._prefix_ids(prefix, number, len(source)) if place == first else []
            for place, source in enumerate(line.encoded)
        ]

    def _prefix_ids(self, prefix: str, number: int, src_length: int) -> list[int]:
        tokenizer = self._tokenizers.tgt
        ids = tokenizer.encode(tokenizer.normalize(prefix))
        if tokenizer.special.unk in ids:
            raise DataError(
                f"line {number}: the prefix {prefix!r} holds a word or character outside the model's vocabulary"
            )
        limit = self._decoding.longest_output(src_length)
        if src_length and len(ids) > limit:
            message = (
                "line %d: the prefix has %d pieces, and the translation may have %d (decoding.max_length, %s): cut"
            )
            log.warning(message, number, len(ids), limit, "decoding.max_length_ratio")
        return ids

    @functools.cached_property
    def _word_aligner(self) -> "WordAligner":
        from nmt.decoding.alignment import WordAligner  # imports numpy

        return WordAligner(self._engine, self._tokenizers, *self._languages)

    def _search(
        self, sources: Sequence[EncodedSource], request: Request, prefixes: Sequence[Sequence[int]] | None
    ) -> list[_TranslatedPart]:
        decoding = self._decoding
        results: Iterable[list[Hypothesis]]
        if request.sampling:
            assert isinstance(self._engine, Sampler), "checked by _translate"
            results = self._engine.sample(sources, decoding, request.sampling, prefixes)
        else:
            results = self._engine.search(sources, decoding, prefixes, request.scores)
        parts = []
        for source, hypotheses in zip(sources, results, strict=True):  # texts are made while the rest is searched
            (best,) = best_of([hypotheses])  # raises an error for NaN
            if request.sampling and request.sampling.by_risk:
                from nmt.decoding.mbr import by_risk  # imports numpy

                hypotheses = [hypotheses[index] for index in by_risk([self._decode(one.tokens) for one in hypotheses])]
                best = hypotheses[0]
            has_ended = len(best.tokens) < decoding.longest_output(len(source))
            hypotheses = hypotheses[: request.n_best]
            texts = [self._decode(one.tokens) for one in hypotheses]
            parts.append(_TranslatedPart("translated" if has_ended else "ended at max_length", texts, hypotheses))
        if request.alignment:
            outputs = [part.hypotheses[0].tokens for part in parts]
            alignments = self._word_aligner.align(cast(Sequence[Sequence[int]], sources), outputs)
            parts = [part._replace(alignment=one) for part, one in zip(parts, alignments, strict=True)]
        if request.num_scored:
            scored = self._scored(sources, [part.hypotheses for part in parts], request.num_scored)
            parts = [part._replace(scored=one) for part, one in zip(parts, scored, strict=True)]
        return parts

    def _scored(
        self, sources: Sequence[EncodedSource], results: Sequence[Sequence[Hypothesis]], count: int
    ) -> list[tuple[ScoredTokens, ...]]:
        """The pieces and log-probabilities of each source's first `count` hypotheses."""
        pairs = [
            (source, hypothesis.tokens)
            for source, hypotheses in zip(sources, results, strict=True)
            for hypothesis in hypotheses[:count]
        ]
        scored = iter(scored_pairs(self._engine, self._tokenizers.tgt, pairs, self._decoding.batch_tokens))
        return [tuple(itertools.islice(scored, min(count, len(hypotheses)))) for hypotheses in results]

    def _decode(self, tokens: Sequence[int]) -> str:
        return _in_one_line(self._tokenizers.tgt.decode(tokens))  # byte pieces may encode a line break


def _in_one_line(text: str) -> str:
    return text.replace("\n", " ")


def _one_after_another(parts: Sequence[ScoredTokens]) -> ScoredTokens:
    tokens = tuple(token for part in parts for token in part.tokens)
    return ScoredTokens(tokens, tuple(log_prob for part in parts for log_prob in part.log_probs))


def scored_pairs(
    engine: Engine, tokenizer: Tokenizer, pairs: Sequence[tuple[EncodedSource, Sequence[int] | None]], batch_tokens: int
) -> list[ScoredTokens]:
    """The pieces of each pair's target and their log-probabilities; none where the target is None."""
    scored = [ScoredTokens()] * len(pairs)
    # A pair takes the positions of its longer side, with </s>; 0: it is not scored.
    sides = [range(0 if tgt is None else max(len(src), len(tgt)) + 1) for src, tgt in pairs]
    for batch in batches_by_length(sides, batch_tokens * engine.batches_at_once):
        targets = [pairs[index][1] or () for index in batch]
        scores = engine.score([pairs[index][0] for index in batch], targets)
        for index, ids, log_probs in zip(batch, targets, scores, strict=True):
            if any(map(math.isnan, log_probs)):
                raise TrainingError(DIVERGED)
            scored[index] = ScoredTokens(tuple(tokenizer.pieces([*ids, tokenizer.special.eos])), tuple(log_probs))
    return scored


def with_prefixes(
    blocks: Iterable[Sequence[Item]], prefixes: Iterable[str] | str | None, first: int
) -> Iterator[tuple[Sequence[Item], list[str] | None]]:
    """Yield each block with the prefixes of its lines; `DataError` if the numbers of prefixes and lines differ."""
    if isinstance(prefixes, str):
        yield from ((block, [prefixes] * len(block)) for block in blocks)
        return
    beginnings = iter(prefixes or ())
    for block in blocks:
        taken = None if prefixes is None else list(itertools.islice(beginnings, len(block)))
        if taken is not None and len(taken) < len(block):
            raise DataError(f"line {first + len(taken)} has no prefix: give a line of prefixes for each line of text")
        yield block, taken
        first += len(block)
    if next(beginnings, None) is not None:
        raise DataError(f"there are more prefixes than the {first - 1:,} lines of text; give one for each line")


def batches_by_length(sources: Sequence[Sized], batch_tokens: int) -> Iterator[list[int]]:
    """Batch the indices of nonempty sources, longest first, with at most `batch_tokens` positions a batch.

    A batch holds at least one source, of any length.
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
    precision: str | None = None,
    tgt_tag: str | None = None,
    own_process: bool = False,
) -> Translator:
    """Load the translator of a run: `load("runs/tiny").translate(["hello world"])`.

    `model` is the folder or name of a run, or the folder of an export; by default the newest run under ./runs. Several,
    `load(["runs/a", "runs/b"])`, are an ensemble, with the search settings of the first and the least
    `data.max_length`. `decoding` replaces the search settings. `engine` is `torch`, `ctranslate2`, or `auto`:
    CTranslate2 for an export, and on a CPU for a run with a fresh export. `precision` replaces `decoding.precision` and
    selects PyTorch, since an export has its own. `tgt_tag` is the target language of an imported model of several, as
    `deu` or `>>deu<<`; by default the run's. With `own_process`, for a process that only translates, the C library
    keeps the memory that PyTorch frees, which is faster on a CPU, and waiting threads stop spinning while other
    programs need the cores; without it, nothing outside the translator is changed. Raises `nmt.errors.RunError` if a
    model is not a trained run or vocabularies differ, and `ConfigError` if `decoding.max_length` is too long for a
    model.
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
    tokenizers = shared_tokenizers(runs, tgt_tag)
    loaded = load_engine(runs, tokenizers, device, engine, precision, decoding.precision, own_process)
    languages = (configs[0].data.src_lang, configs[0].data.tgt_lang)
    max_src_length = min(config.data.max_length for config in configs)
    return Translator(tokenizers, loaded, decoding, max_src_length, languages, configs[0].source)


def as_json(translation: Translation, n_best: int = 0, alignment: bool = False, tokens: bool = False) -> str:
    """Return a translation as a line of JSON: text, score, and status, with an entry for each part of the line.

    The score of an empty line is null. `n_best` adds a list of at most N hypotheses, `alignment` the word alignment,
    and `tokens` the tokens and log_probs of each text.

    >>> as_json(Translation("Hallo", 1, n_best=(("Hallo", -0.5),)))
    '{"text": "Hallo", "score": -0.5, "status": ["translated"]}'
    """
    hypotheses: list[dict[str, Any]] = []
    for rank, (text, score) in enumerate(translation.n_best[: max(n_best, 1)] or [(translation.text, None)]):
        hypotheses.append({"text": text, "score": None if score is None else round(score, 6)})
        if tokens:
            hypotheses[-1] |= (translation.scored[rank] if translation.scored else ScoredTokens()).to_json()
    content = hypotheses[0] | {"status": translation.status}
    if alignment:
        content["alignment"] = str(translation.alignment)
    if n_best:
        content["n_best"] = hypotheses if translation.n_best else []
    return json.dumps(content, ensure_ascii=False)
