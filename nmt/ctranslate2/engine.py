"""Ids in, hypotheses out, with CTranslate2.

Its search ends as ours does, when K hypotheses are finished; what may not be emitted leaves the logits before the
softmax in both, and the tokens of a forced prefix cost nothing in both. Three things about it are corrected here. Its
scores count `</s>` as one more token, so the K that it gives back are scored and ranked again (where more than K
finished, it has left some out by its own ranking). A call has one longest output for all of its sources: see `search`.
And where nothing may be emitted, not even `</s>`, all tokens are as probable to it: see `_hypotheses`.

One thing stays different: with several beams, `</s>` right after a forced prefix is found only if it is the most
probable token there. PyTorch's search treats it as anywhere else.
"""

import importlib
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from nmt.config.inference import DecodingConfig
from nmt.data.tokenizer import Tokenizers
from nmt.decoding.hypothesis import Hypothesis, forbidden_ids
from nmt.errors import ConfigError, MissingExtraError, RunError, how_to_install
from nmt.processes import cores_to_use
from nmt.runs import RunFolder

# On a CPU, measured on two cores (scripts/README.md): a small batch on each is twice as fast as a large one on all.
MAX_WORKERS = 8
CPU_BATCH_TOKENS = 512
# What may not be emitted has the lowest logit of its type; that of float16 is the least low, -65,504.
_IMPOSSIBLE = -60_000


def import_ctranslate2() -> Any:
    """The package; `MissingExtraError` if it is not installed."""
    try:
        return importlib.import_module("ctranslate2")
    except ModuleNotFoundError:
        raise MissingExtraError(f"CTranslate2 is not installed: {how_to_install('ct2')}") from None


class CTranslate2Engine:
    """Searches with a model that `nmt export ctranslate2` wrote, whose vocabularies are the tokenizers' pieces."""

    def __init__(self, translator: Any, tokenizers: Tokenizers) -> None:
        src, tgt = tokenizers.src, tokenizers.tgt
        self.name = f"ctranslate2, {translator.compute_type}"
        self.batches_at_once = 16 * translator.num_translators
        self._translator = translator
        self._src_pieces = src.pieces(range(src.vocab_size))
        self._tgt_pieces = tgt.pieces(range(tgt.vocab_size))
        self._tgt_ids = {piece: index for index, piece in enumerate(self._tgt_pieces)}
        self._forbidden = forbidden_ids(tgt.special)

    def search(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """As `Engine.search`, without `token_log_probs`.

        How long an output may be depends on its source. So sources are searched with the least limit of several:
        those that end before it are done, and the others are searched once more, with the limit of their own.
        """
        prefixes = prefixes or [()] * len(sources)
        limits = [decoding.longest_output(len(ids)) for ids in sources]
        found: dict[int, list[Hypothesis]] = {}
        unfinished: dict[tuple[int, bool], list[int]] = {}
        # Those with a prefix apart: an empty one among others would be one after which </s> must be the best.
        apart = ([row for row, prefix in enumerate(prefixes) if bool(prefix) is forced] for forced in (False, True))
        groups = [group for rows in apart for group in [*_groups(rows, sources, limits)][::-1]]
        for index, limit, hypotheses in self._translate(sources, prefixes, groups, limits, decoding):
            if limits[index] > limit and _came_to_the_end(hypotheses, limit, decoding.beam_size):
                unfinished.setdefault((limits[index], bool(prefixes[index])), []).append(index)
            else:
                found[index] = hypotheses
        for index, _, hypotheses in self._translate(sources, prefixes, unfinished.values(), limits, decoding):
            found[index] = hypotheses
        return [found[index] for index in range(len(sources))]

    def _translate(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        groups: Iterable[Sequence[int]],
        limits: Sequence[int],
        decoding: DecodingConfig,
    ) -> Iterator[tuple[int, int, list[Hypothesis]]]:
        """(index, longest output, hypotheses) of the sources in all groups; a group's longest output is its first's."""
        most = CPU_BATCH_TOKENS if self._translator.device == "cpu" else decoding.batch_tokens
        share = -(-sum(len(ids) + 1 for ids in sources) // self._translator.num_translators)
        started = []
        for group in groups:  # all of them at once, so that no worker waits for another's last batch
            results = self._translator.translate_batch(
                [[self._src_pieces[index] for index in sources[row]] for row in group],
                [[self._tgt_pieces[index] for index in prefixes[row]] for row in group] if prefixes[group[0]] else None,
                beam_size=decoding.beam_size,
                num_hypotheses=decoding.beam_size,
                # With 0 it would stop at the first finished hypothesis that is the best one so far.
                length_penalty=decoding.length_penalty or 1e-9,
                min_decoding_length=decoding.min_length,
                no_repeat_ngram_size=decoding.no_repeat_ngram_size,
                max_decoding_length=limits[group[0]],
                max_input_length=0,
                max_batch_size=min(decoding.batch_tokens, most, share),
                batch_type="tokens",
                suppress_sequences=[[self._tgt_pieces[index]] for index in self._forbidden],
                return_scores=True,
                asynchronous=True,
            )
            started.append((group, results))
        for group, results in started:
            limit = limits[group[0]]
            for index, result in zip(group, results, strict=True):
                hypotheses = self._hypotheses(result.result(), limit, decoding, len(prefixes[index]))
                yield index, limit, sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)

    def _hypotheses(
        self, result: Any, max_length: int, decoding: DecodingConfig, num_forced: int
    ) -> Iterator[Hypothesis]:
        """What was found, but for what no allowed token led to; cut where the only way on was to end early."""
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            ids = tuple(self._tgt_ids[piece] for piece in pieces)
            its_length = len(ids) + (len(ids) < max_length)  # only at the longest output does one end without </s>
            log_prob = score * its_length**decoding.length_penalty
            if log_prob < _IMPOSSIBLE:
                continue
            ids = ids[: _allowed_length(ids, self._forbidden, decoding.no_repeat_ngram_size, num_forced)]
            yield Hypothesis.scored(ids, log_prob, decoding.length_penalty)


def _allowed_length(
    ids: Sequence[int], forbidden: Collection[int], no_repeat_ngram_size: int, num_forced: int = 0
) -> int:
    """How many of the ids come before the first that may not be emitted and is not forced."""
    seen: set[tuple[int, ...]] = set()
    for end in range(1, len(ids) + 1):
        ngram = tuple(ids[end - no_repeat_ngram_size : end]) if 0 < no_repeat_ngram_size <= end else ()
        if end > num_forced and (ids[end - 1] in forbidden or (ngram and ngram in seen)):
            return end - 1
        seen.add(ngram)
    return len(ids)


def _came_to_the_end(hypotheses: Sequence[Hypothesis], max_length: int, beam_size: int) -> bool:
    """Whether a search was stopped at its longest output.

    It finishes K hypotheses there, of `max_length` tokens or, with `</s>`, one less. Those that were finished before
    are shorter, and fewer than K; so the best K show it.
    """
    return len(hypotheses) < beam_size or any(len(one.tokens) >= max_length - 1 for one in hypotheses)


def _groups(rows: Sequence[int], sources: Sequence[Sequence[int]], limits: Sequence[int]) -> Iterator[list[int]]:
    """The rows, shortest source first, cut so that the first one's limit will do for most outputs of a group."""
    order = sorted(rows, key=lambda index: len(sources[index]))
    start = 0
    for end in range(1, len(order) + 1):
        limit = limits[order[start]]
        if end == len(order) or (limits[order[end]] > limit and 1.5 * len(sources[order[end]]) > limit):
            yield order[start:end]
            start = end


def load_ctranslate2_engine(export: RunFolder, tokenizers: Tokenizers, device: str) -> CTranslate2Engine:
    """The exported model, on a device: auto, cpu, cuda or cuda:N."""
    ctranslate2 = import_ctranslate2()
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not index.isdecimal()):
        raise ConfigError(f"device {device!r}: CTranslate2 takes auto, cpu, cuda and cuda:N")
    gpus = 0 if kind == "cpu" else ctranslate2.get_cuda_device_count()
    if kind == "cuda" and int(index or 0) >= gpus:
        raise ConfigError(f"device {device}: this machine has no such GPU for CTranslate2; use auto or cpu")
    if kind == "auto":
        kind = "cuda" if gpus else "cpu"
    cores = cores_to_use()
    workers = min(cores, MAX_WORKERS) if kind == "cpu" else 1
    ctranslate2.set_log_level(logging.ERROR)  # no page about a type that this machine has not and is replaced
    try:
        translator = ctranslate2.Translator(
            str(export.path), kind, device_index=int(index or 0), inter_threads=workers, intra_threads=cores // workers
        )
    except (RuntimeError, ValueError) as error:
        raise RunError(f"{export.path}: CTranslate2 cannot load it: {error}") from None
    return CTranslate2Engine(translator, tokenizers)
