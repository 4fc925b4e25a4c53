"""Explanation of a translation: attention, gradients, likeliest pieces, the search tree, alternatives.

Shapes: S source positions with `</s>`, T target positions with `<s>` or `</s>`, D width, V vocabulary.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.config.inference import DecodingConfig
from nmt.corpora.vectors import patches, read_image
from nmt.decoding.beam_search import SearchTree
from nmt.decoding.constraints import Constraints
from nmt.decoding.forbidden_words import ForbiddenWords
from nmt.decoding.hypothesis import EncodedSource, Hypothesis, best_of
from nmt.decoding.source_text import source_encoder
from nmt.decoding.torch_engine import TorchEngine, load_model, load_torch_engine
from nmt.decoding.translator import batches_by_length
from nmt.errors import ConfigError, RunError
from nmt.insight.attention import KINDS, AttentionMaps, Picture, attention_maps, model_inputs, word_at
from nmt.models.interface import TrainableModel
from nmt.models.source import Source
from nmt.runs.folder import RunFolder
from nmt.system.devices import choose_device
from nmt.tokenizers.tokenizer import Tokenizer, Tokenizers, load_tokenizers

NUM_CANDIDATES = 10
NUM_WHAT_IFS = 2
GRADIENT_POSITIONS = 4096  # source and target positions of a batch of gradients; bounds its memory


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A possible next piece, with its log-probability without constraints."""

    token: str
    id: int
    log_prob: float


@dataclasses.dataclass(frozen=True)
class Step(Candidate):
    """Prediction of one piece from the source and the pieces before it, without constraints."""

    entropy: float
    """Entropy of the distribution of the next piece, in nats: 0 for certainty, log V for a uniform distribution."""
    candidates: tuple[Candidate, ...]
    """The ten likeliest pieces, best first."""


@dataclasses.dataclass(frozen=True)
class WhatIf(Candidate):
    """The translation that results if another piece is chosen at one position."""

    position: int
    """The row t of `AttentionMaps.out_tokens` that is replaced; the pieces before it are kept."""
    word: str
    """The word of `text` that the other piece is part of, or the name of the end's piece."""
    text: str
    tokens: tuple[str, ...]
    """The whole translation, without `</s>`."""
    score: float
    """As in a search: the log-probability of all its tokens, kept ones included, over length^alpha."""


class Explanation(NamedTuple):
    """Everything that `nmt attention` shows of one source and one translation."""

    model: str
    src: str
    tgt: str
    is_own: bool
    """True if `tgt` is the model's own translation, False if it was given."""
    src_lang: str
    tgt_lang: str
    maps: AttentionMaps
    gradients: NDArray[np.float32]
    """(T, S): `gradient_times_input` of each row's prediction."""
    steps: tuple[Step, ...]
    """One per row, T in all."""
    search: SearchTree
    """The model's own search, also if `tgt` was given."""
    what_if: tuple[WhatIf, ...]
    """For each position, the two likeliest other pieces that a search may choose there; none beyond the length limit of
    a search."""

    picture: Picture | None = None
    """The source if it is an image; `src` is then its file name."""

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON (fields: docs/looking-inside.md); weights have five significant digits."""
        content, maps = self._asdict(), self.maps._asdict()
        del content["maps"]
        if (picture := content.pop("picture")) is not None:
            content["picture"] = picture.to_json()
        return {
            "format": 1,
            "attention": {kind: _rounded(maps.pop(kind)) for kind in KINDS},
            **content,
            **maps,
            "gradients": _rounded(self.gradients),
            "steps": [dataclasses.asdict(step) for step in self.steps],
            "search": {**self.search._asdict(), "nodes": [dataclasses.asdict(node) for node in self.search.nodes]},
            "what_if": [dataclasses.asdict(one) for one in self.what_if],
        }


def _rounded(values: NDArray[np.float32]) -> Any:
    """Nested lists of numbers between 0 and 1 with five significant digits: a third of the JSON."""
    wide = values.astype(np.float64)
    digits = np.clip(4 - np.floor(np.log10(np.maximum(wide, 1e-16))), 5, 20)
    scale = 10.0**digits
    return (np.rint(wide * scale) / scale).tolist()


def explain(run: RunFolder, text: str, tgt: str | None = None, device: str = "auto") -> Explanation:
    """Explain the model's own translation of a text or image (`text` is then its path), or the translation `tgt`.

    The search is that of `nmt translate` with PyTorch and the settings of the run; the rest is computed in fp32.
    Raises `RunError` for an export, and `ConfigError` if a text is empty or too long.
    """
    case = _Case(run, text, tgt, device)
    tokenizers, decoding = case.tokenizers, case.decoding
    found, search = case.engine.traced_search(case.src_ids, decoding)
    tgt_ids = case.given or best_of([found])[0].tokens
    pair = (case.model(), tokenizers, case.src_ids, tgt_ids)
    log_probs = next_log_probs(*pair)
    what_if = _what_ifs(case.engine, tokenizers, decoding, log_probs, case.src_ids, tgt_ids, case.languages[1])
    return Explanation(
        model=run.name,
        src=text if isinstance(case.src_ids, Sequence) else Path(text).name,
        tgt=_text(tokenizers, tgt_ids) if tgt is None else tgt,
        is_own=tgt is None,
        src_lang=case.languages[0],
        tgt_lang=case.languages[1],
        maps=attention_maps(*pair, *case.languages),
        gradients=gradient_times_input(*pair),
        steps=tuple(_steps(log_probs, tokenizers, tgt_ids)),
        search=search,
        what_if=tuple(what_if),
        picture=Picture.of(case.src_ids) if isinstance(case.src_ids, np.ndarray) else None,
    )


def explain_attention(run: RunFolder, text: str, tgt: str | None = None, device: str = "auto") -> AttentionMaps:
    """Compute `explain(...).maps` alone, which takes less time; with `tgt`, without a search."""
    case = _Case(run, text, tgt, device)
    tgt_ids = case.given or best_of(case.engine.search([case.src_ids], case.decoding))[0].tokens
    return attention_maps(case.model(), case.tokenizers, case.src_ids, tgt_ids, *case.languages)


class _Case:
    """One explanation: the model and the sentence pair."""

    def __init__(self, run: RunFolder, text: str, tgt: str | None, device: str) -> None:
        if run.is_export():
            raise RunError(
                f"{run.path}: an export, for CTranslate2, has no attention; name the run that it was made from"
            )
        config, tokenizers = run.inference_config(), load_tokenizers(run.tokenizer)
        if not config.model.has_attention:
            raise RunError(f"{run.path}: has no attention (model.attention: none), so there is none to show")
        self.src_ids: EncodedSource
        match config.source.type:
            case "text":
                settings = (config.data.max_length, config.decoding, config.data.src_lang)
                encoder = source_encoder(config.source, tokenizers.src, *settings)
                self.src_ids = encoder.encode(text, "the text", "explained")
                if not len(self.src_ids):
                    raise ConfigError("the text is empty, so there is nothing to explain")
            case "images":
                size, patch_size = config.source.image_size, config.source.patch_size
                self.src_ids = patches(read_image(Path(text), size, "the image"), patch_size)
            case "vectors":
                raise ConfigError(f"{run.path}: reads vectors; only texts and images can be explained")
        self.run, self.device, self.tokenizers, self.decoding = run, device, tokenizers, config.decoding
        self.languages = (config.data.src_lang, config.data.tgt_lang)
        self.given = None if tgt is None else _given(tgt, tokenizers, config.model.max_positions)

    @functools.cached_property
    def engine(self) -> TorchEngine:
        """The engine of `nmt translate`; its model may be in half precision, and has no gradients."""
        return load_torch_engine([self.run], self.tokenizers, self.device, self.decoding.precision)

    def model(self) -> TrainableModel[Any, Any]:
        """The model in fp32, with gradients for its input alone."""
        model = load_model(self.run, self.tokenizers).to(choose_device(self.device))
        return model.eval().requires_grad_(False)


def _given(tgt: str, tokenizers: Tokenizers, max_positions: int) -> list[int]:
    """The ids of a given translation."""
    ids = tokenizers.tgt.encode(tokenizers.tgt.normalize(tgt))
    if not ids:
        raise ConfigError("the given translation is empty; without one, the model's own is explained")
    if len(ids) >= max_positions:
        raise ConfigError(
            f"the given translation has {len(ids)} pieces; this model has room for {max_positions - 1} "
            "(model.max_positions, less one for <s>)"
        )
    return ids


def _text(tokenizers: Tokenizers, ids: Sequence[int]) -> str:
    return " ".join(tokenizers.tgt.decode(ids).split("\n"))  # as a translator does


@torch.no_grad()
def next_log_probs(
    model: TrainableModel[Any, Any], tokenizers: Tokenizers, src_ids: EncodedSource, tgt_ids: Sequence[int]
) -> Tensor:
    """The log-probability of every piece at each of the T rows, without constraints: (T, V) fp32 on the CPU."""
    source, tgt_in = model_inputs(model, tokenizers, src_ids, tgt_ids)
    log_probs: Tensor = model(source, tgt_in)[0].float().log_softmax(dim=-1).cpu()
    return log_probs


def gradient_times_input(
    model: TrainableModel[Any, Any], tokenizers: Tokenizers, src_ids: EncodedSource, tgt_ids: Sequence[int]
) -> NDArray[np.float32]:
    """Contribution of each source position to each prediction, to first order: (T, S), rows sum to 1.

    Entry (t, s) is the absolute value of the dot product of two vectors: the embedding of source position s, and the
    gradient of `log p(out_t | out_<t, source)` with respect to it (gradient times input, Shrikumar et al. 2016,
    arXiv:1605.01713). It is the change of the log-probability if the embedding shrank to zero and the model
    were linear. A row is divided by its sum.
    """
    source, tgt_in = model_inputs(model, tokenizers, src_ids, tgt_ids)
    vectors = model.embed_sources(source).values.detach()  # (1, S, D)
    out = torch.tensor([*tgt_ids, tokenizers.tgt.special.eos], device=tgt_in.device)  # (T,)
    found = []
    size = max(1, GRADIENT_POSITIONS // (vectors.shape[1] + len(out)))
    for start in range(0, len(out), size):
        rows = torch.arange(start, min(start + size, len(out)), device=out.device)
        # A copy of the pair for each row, so that one backward pass gives the gradients of all rows.
        copies = vectors.expand(len(rows), -1, -1).clone().requires_grad_()  # (rows, S, D)
        mask = source.mask.expand(len(rows), -1)
        seen = tgt_in[:, : start + len(rows)].expand(len(rows), -1)  # a row depends on no later position
        states = model.states(Source(copies, mask), seen)[rows - start, rows]  # (rows, D)
        log_probs = model.output(states).log_softmax(dim=-1).gather(1, out[rows, None])  # (rows, 1)
        (gradients,) = torch.autograd.grad(log_probs.sum(), copies)
        found.append((gradients * copies.detach()).sum(dim=-1).abs())  # (rows, S)
    products = torch.cat(found)
    shares = products / products.sum(dim=1, keepdim=True).clamp(min=torch.finfo(products.dtype).tiny)
    return shares.float().cpu().numpy()


def _steps(log_probs: Tensor, tokenizers: Tokenizers, tgt_ids: Sequence[int]) -> Iterator[Step]:
    """The step of each row, from (T, V) log-probabilities."""
    tokenizer = tokenizers.tgt
    entropies = -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(dim=1)  # (T,); 0 log 0 is 0
    best, best_ids = log_probs.topk(min(NUM_CANDIDATES, log_probs.shape[1]), dim=1)
    out = [*tgt_ids, tokenizer.special.eos]
    for row, (token, piece) in enumerate(zip(out, tokenizer.pieces(out), strict=True)):
        ids = best_ids[row].tolist()
        candidates = map(Candidate, tokenizer.pieces(ids), ids, best[row].tolist())
        yield Step(piece, token, float(log_probs[row, token]), float(entropies[row]), tuple(candidates))


def _what_ifs(
    engine: TorchEngine,
    tokenizers: Tokenizers,
    decoding: DecodingConfig,
    log_probs: Tensor,
    src_ids: EncodedSource,
    tgt_ids: Sequence[int],
    tgt_lang: str,
) -> Iterator[WhatIf]:
    """Yield the likeliest other pieces of each position with their translations; `log_probs` are (T, V).

    They are searched in as few batches as `decoding.batch_tokens` allows.
    """
    tokenizer, alpha = tokenizers.tgt, decoding.length_penalty
    others = list(_others(tokenizer, decoding, log_probs, len(src_ids), tgt_ids))
    prefixes = [[*tgt_ids[:position], piece] for position, piece, _ in others]
    # A translation that ends with the other piece needs no search.
    found = {
        number: Hypothesis.scored(tuple(prefix[:-1]), 0.0, alpha)
        for number, prefix in enumerate(prefixes)
        if prefix[-1] == tokenizer.special.eos
    }
    going_on = [number for number in range(len(others)) if number not in found]
    for batch in batches_by_length([src_ids] * len(going_on), decoding.batch_tokens):
        numbers = [going_on[index] for index in batch]
        hypotheses = engine.search([src_ids] * len(batch), decoding, [prefixes[number] for number in numbers])
        found.update(zip(numbers, best_of(hypotheses), strict=True))
    for number, (position, piece, prefix_log_prob) in enumerate(others):
        one, (token,) = found[number], tokenizer.pieces([piece])
        # The search gives forced tokens log-probability 0, so the prefix's is added.
        scored = Hypothesis.scored(one.tokens, prefix_log_prob + one.log_prob, alpha)
        yield WhatIf(
            position=position,
            token=token,
            id=piece,
            log_prob=float(log_probs[position, piece]),
            word=word_at(tokenizer, one.tokens, position, tgt_lang),
            text=_text(tokenizers, one.tokens),
            tokens=tuple(tokenizer.pieces(one.tokens)),
            score=scored.score,
        )


def _others(
    tokenizer: Tokenizer, decoding: DecodingConfig, log_probs: Tensor, src_length: int, tgt_ids: Sequence[int]
) -> Iterator[tuple[int, int, float]]:
    """The two best allowed pieces at each position other than the translation's own, from (T, V) log-probabilities.

    Each is a position, an id, and the log-probability of the prefix with this piece, as the search adds them up.
    """
    special, forbidden = tokenizer.special, ForbiddenWords(tokenizer).spellings(decoding.forbidden_words)
    constraints = Constraints.of(decoding, special, [src_length], forbidden_sequences=forbidden)
    prefix, so_far = torch.tensor([[tgt_ids]], dtype=torch.int64), 0.0  # (1, 1, T - 1)
    for position, token in enumerate([*tgt_ids, special.eos][: int(constraints.max_lengths)]):
        free = log_probs[position]
        allowed = constraints.allowed_log_probs(free[None, None].clone(), prefix[..., :position])[0, 0]  # (V,)
        own = float(allowed[token])
        allowed[token] = -torch.inf
        best, ids = allowed.topk(NUM_WHAT_IFS)
        for other, log_prob in zip(ids.tolist(), best.tolist(), strict=True):
            if log_prob > -math.inf:
                yield position, other, so_far + log_prob
        so_far += own if own > -math.inf else float(free[token])  # a given translation may hold forbidden pieces
