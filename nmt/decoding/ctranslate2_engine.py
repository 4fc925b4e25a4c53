"""The CTranslate2 engine: ids in, hypotheses out.

Like the PyTorch search, CTranslate2's ends when K hypotheses are finished, masks forbidden tokens in the logits before
the softmax, and gives forced tokens log-probability 0. Three differences are corrected here:

- Its length includes `</s>`, so the K hypotheses that it returns are scored and ranked again. (Where more than K were
  finished, it has chosen the K by its own score.)
- A call has one maximum length for all sources: see `search`.
- Where no token is allowed, not even `</s>`, all have the same probability: see `_hypotheses`.

One difference remains: with several beams, `</s>` right after a forced prefix is considered only if it is the most
probable token there. PyTorch's search treats it as at any other position.
"""

import importlib
import logging
import math
import operator
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nmt.config.inference import DecodingConfig
from nmt.decoding.forbidden_words import ForbiddenWords
from nmt.decoding.hypothesis import DIVERGED, EncodedSource, Hypothesis, forbidden_ids
from nmt.errors import ConfigError, MissingExtraError, RunError
from nmt.runs.folder import RunFolder
from nmt.system.processes import cores_to_use
from nmt.tokenizers.tokenizer import Tokenizers

if TYPE_CHECKING:  # a translator without alignments needs no numpy
    import numpy as np
    from numpy.typing import NDArray

# On two CPU cores (docs/lab/speed.md), a small batch on each is twice as fast as a large batch on both. The time of a
# step depends on the number of hypotheses, so a batch of long sources holds as many as one of short sources.
MAX_WORKERS = 8
CPU_BATCH_HYPOTHESES = 40
CPU_BATCH_TOKENS = 384  # for scoring and attention, without a search
# CTranslate2 masks a logit with the lowest value of its type; float16's is the highest of these, -65,504.
_IMPOSSIBLE = -60_000


def import_ctranslate2() -> Any:
    """Import the package; `MissingExtraError` if it is not installed."""
    try:
        return importlib.import_module("ctranslate2")
    except ModuleNotFoundError:
        remedy = "pip install ctranslate2, or where it has no wheel, translate with PyTorch"
        raise MissingExtraError(f"CTranslate2 is not installed: {remedy}") from None


class CTranslate2Engine:
    """An engine for a model that `nmt export ctranslate2` wrote; its vocabularies are the tokenizers' pieces."""

    def __init__(self, translator: Any, tokenizers: Tokenizers) -> None:
        src, tgt = tokenizers.src, tokenizers.tgt
        self.name = f"ctranslate2, {translator.compute_type}"
        self.batches_at_once = 16 * translator.num_translators
        self._translator = translator
        self._src_pieces = src.pieces(range(src.vocab_size))
        self._tgt_pieces = tgt.pieces(range(tgt.vocab_size))
        self._tgt_ids = {piece: index for index, piece in enumerate(self._tgt_pieces)}
        self._special = forbidden_ids(tgt.special)
        self._forbidden_words = ForbiddenWords(tgt)

    def search(
        self,
        sources: Sequence[EncodedSource],
        decoding: DecodingConfig,
        prefixes: Sequence[Sequence[int]] | None = None,
        scores: bool = True,
    ) -> Iterator[list[Hypothesis]]:
        """As `Engine.search`; sources are ids, since models of vectors cannot be exported.

        The maximum length of an output depends on its source. A group of sources is searched with the largest of their
        limits, and those whose outputs reach their own limit are searched again with it.
        """
        prefixes = prefixes or [()] * len(sources)
        limits = [decoding.longest_output(len(ids)) for ids in sources]
        share = -(-len(sources) // self._translator.num_translators)
        words = self._forbidden_words.spellings(decoding.forbidden_words)
        forbidden = {*((index,) for index in self._special), *words}
        options = self._options(decoding, forbidden, scores)
        by_last_id = _by_last_id(forbidden)

        def start(group: Sequence[int], limit: int) -> tuple[Sequence[int], int, Any]:
            results = self._translator.translate_batch(
                [[self._src_pieces[index] for index in sources[row]] for row in group],
                [[self._tgt_pieces[index] for index in prefixes[row]] for row in group] if prefixes[group[0]] else None,
                min_decoding_length=decoding.min_length,
                max_decoding_length=limit,
                **self._batch_size(decoding, max(len(sources[row]) + 1 for row in group), share),
                **options,
            )
            return group, limit, results

        # Rows without a prefix are separate: even after an empty prefix, </s> would have to be the most probable token.
        parts = ([row for row, prefix in enumerate(prefixes) if bool(prefix) is forced] for forced in (False, True))
        groups = [group for rows in parts for group in reversed([*_groups(rows, sources, limits)])]
        # All are started at once, so that no worker waits for another's last batch; results are read while they work.
        started = deque(start(group[::-1], limits[group[-1]]) for group in groups)
        found: dict[int, list[Hypothesis]] = {}
        next_row = 0
        while started:
            group, limit, results = started.popleft()
            unfinished: dict[int, list[int]] = {}
            for index, result in zip(group, results, strict=True):
                hypotheses = self._hypotheses(result.result(), limit, decoding, len(prefixes[index]), by_last_id)
                if limits[index] < limit and _reached_limit(hypotheses, limits[index], decoding.beam_size):
                    unfinished.setdefault(limits[index], []).append(index)
                else:
                    found[index] = sorted(hypotheses, key=operator.attrgetter("score"), reverse=True)
                while next_row in found:
                    yield found.pop(next_row)
                    next_row += 1
            started.extend(start(rows, own_limit) for own_limit, rows in unfinished.items())

    def score(self, sources: Sequence[EncodedSource], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """As `Engine.score`; CTranslate2 makes the batches and shares them among its workers."""
        results = self._translator.score_batch(
            [[self._src_pieces[index] for index in ids] for ids in sources],
            [[self._tgt_pieces[index] for index in ids] for ids in targets],
            max_batch_size=CPU_BATCH_TOKENS,
            batch_type="tokens",
            max_input_length=0,  # no source is cut
        )
        return [[float(log_prob) for log_prob in result.log_probs] for result in results]

    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> "list[NDArray[np.float32]]":
        """As `Engine.attention`, by forced decoding.

        It is the mean over the heads of the layer that the export names: `Transformer.alignment_layer`.
        """
        import numpy as np

        weights = [np.zeros((0, len(ids)), dtype=np.float32) for ids in sources]
        rows = [row for row, ids in enumerate(targets) if ids]
        if not rows:
            return weights
        results = self._translator.translate_batch(
            [[self._src_pieces[index] for index in sources[row]] for row in rows],
            [[self._tgt_pieces[index] for index in targets[row]] for row in rows],
            beam_size=1,
            max_decoding_length=max(len(targets[row]) for row in rows),  # the forced ids count in it
            max_input_length=0,
            max_batch_size=CPU_BATCH_TOKENS,
            batch_type="tokens",
            return_attention=True,
        )
        for row, result in zip(rows, results, strict=True):  # shorter targets may have been continued
            weights[row] = np.array(result.attention[0][: len(targets[row])], dtype=np.float32)
        return weights

    def _batch_size(self, decoding: DecodingConfig, longest: int, share: int) -> dict[str, Any]:
        """The options for the batch size of sources with at most `longest` positions; `share`: sources per worker."""
        if self._translator.device != "cpu":
            return {"max_batch_size": decoding.batch_tokens, "batch_type": "tokens"}
        size = min(CPU_BATCH_HYPOTHESES // decoding.beam_size, decoding.batch_tokens // longest, share)
        return {"max_batch_size": max(1, size), "batch_type": "examples"}

    def _options(
        self, decoding: DecodingConfig, forbidden: Collection[tuple[int, ...]], scores: bool
    ) -> dict[str, Any]:
        """The options of `translate_batch` that all groups of a search share."""
        return {
            "beam_size": decoding.beam_size,
            "num_hypotheses": decoding.beam_size,
            # With 0 it would stop as soon as the best hypothesis so far is finished.
            "length_penalty": decoding.length_penalty or 1e-9,
            "no_repeat_ngram_size": decoding.no_repeat_ngram_size,
            "max_input_length": 0,
            "suppress_sequences": [[self._tgt_pieces[index] for index in ids] for ids in forbidden],
            # With a shortlist, pieces of a longer sequence that are not on it would be mistaken for others.
            "use_vmap": all(len(ids) == 1 for ids in forbidden),
            # On a CPU, greedy search takes up to a tenth less time without the softmax.
            "return_scores": scores or decoding.beam_size > 1 or self._translator.device != "cpu",
            "asynchronous": True,
        }

    def _hypotheses(
        self,
        result: Any,
        max_length: int,
        decoding: DecodingConfig,
        num_forced: int,
        forbidden: Mapping[int, Collection[tuple[int, ...]]],
    ) -> list[Hypothesis]:
        """The hypotheses of a result, without those with an impossible token, and cut before forbidden tokens."""
        hypotheses = []
        for pieces, score in zip(result.hypotheses, result.scores or [0.0], strict=True):
            ids = tuple(map(self._tgt_ids.__getitem__, pieces))
            length = len(ids) + (len(ids) < max_length)  # shorter hypotheses end with </s>
            log_prob = score * length**decoding.length_penalty
            if log_prob < _IMPOSSIBLE:
                continue
            ids = ids[: _allowed_length(ids, forbidden, decoding.no_repeat_ngram_size, num_forced)]
            hypotheses.append(Hypothesis.scored(ids, log_prob, decoding.length_penalty))
        return hypotheses


def _by_last_id(sequences: Iterable[tuple[int, ...]]) -> dict[int, list[tuple[int, ...]]]:
    """Group sequences by their last id."""
    groups: dict[int, list[tuple[int, ...]]] = {}
    for sequence in sequences:
        groups.setdefault(sequence[-1], []).append(sequence)
    return groups


def _allowed_length(
    ids: tuple[int, ...],
    forbidden: Mapping[int, Collection[tuple[int, ...]]],
    no_repeat_ngram_size: int,
    num_forced: int = 0,
) -> int:
    """The number of ids before the first id, not forced, that ends a forbidden sequence or a repeated n-gram.

    `forbidden` has the sequences by their last ids.
    """
    if forbidden.keys().isdisjoint(ids) and not _has_repeated_ngram(ids, no_repeat_ngram_size):  # nearly always
        return len(ids)
    seen: set[tuple[int, ...]] = set()
    for end in range(1, len(ids) + 1):
        ngram = ids[end - no_repeat_ngram_size : end] if 0 < no_repeat_ngram_size <= end else ()
        is_forbidden = any(ids[:end][-len(banned) :] == banned for banned in forbidden.get(ids[end - 1], ()))
        if end > num_forced and (is_forbidden or (ngram and ngram in seen)):
            return end - 1
        seen.add(ngram)
    return len(ids)


def _has_repeated_ngram(ids: tuple[int, ...], size: int) -> bool:
    if size == 0 or len(set(ids)) == len(ids):
        return False
    ngrams = [*zip(*(ids[start:] for start in range(size)), strict=False)]
    return len(set(ngrams)) < len(ngrams)


def _reached_limit(hypotheses: Sequence[Hypothesis], max_length: int, beam_size: int) -> bool:
    """True if a search was stopped at its maximum length.

    It then finishes K hypotheses of `max_length` tokens, or one less with `</s>`. Fewer than K were finished before, so
    at least one of these is among the best K.
    """
    return len(hypotheses) < beam_size or any(len(hypothesis.tokens) >= max_length - 1 for hypothesis in hypotheses)


def _groups(rows: Sequence[int], sources: Sequence[EncodedSource], limits: Sequence[int]) -> Iterator[list[int]]:
    """Group the rows by length, shortest source first.

    No limit in a group is more than twice another, so that an output that never ends takes little time.
    """
    order = sorted(rows, key=lambda index: len(sources[index]))
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or limits[order[end]] > 2 * limits[order[start]]:
            yield order[start:end]
            start = end


def load_ctranslate2_engine(export: RunFolder, tokenizers: Tokenizers, device: str) -> CTranslate2Engine:
    """Load the exported model on a device: auto, cpu, cuda or cuda:N.

    Raises `ConfigError` for another device, and `RunError` if the export is damaged or its model has diverged.
    """
    ctranslate2 = import_ctranslate2()
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not index.isdecimal()):
        raise ConfigError(f"device {device!r}: CTranslate2 accepts auto, cpu, cuda and cuda:N")
    gpus = 0 if kind == "cpu" else ctranslate2.get_cuda_device_count()
    if kind == "cuda" and int(index or 0) >= gpus:
        raise ConfigError(f"device {device}: this machine has no such GPU for CTranslate2; use auto or cpu")
    if kind == "auto":
        kind = "cuda" if gpus else "cpu"
    cores = cores_to_use()
    workers = min(cores, MAX_WORKERS) if kind == "cpu" else 1
    ctranslate2.set_log_level(logging.ERROR)  # else it warns at length about types that the machine lacks
    try:
        translator = ctranslate2.Translator(
            str(export.path),
            kind,
            device_index=int(index or 0),
            inter_threads=workers,
            intra_threads=cores // workers,
            max_queued_batches=-1,  # no limit: results are read while the rest is searched
        )
        engine = CTranslate2Engine(translator, tokenizers)
        is_nan = math.isnan(engine.score([[tokenizers.src.special.eos]], [()])[0][0])
    except (RuntimeError, ValueError, IndexError, MemoryError) as error:  # depending on the damage
        raise RunError(f"{export.path}: CTranslate2 cannot load it: {error}") from None
    if is_nan:  # a greedy search without scores would not show it
        raise RunError(f"{export.path}: {DIVERGED}, or the export is damaged")
    return engine
