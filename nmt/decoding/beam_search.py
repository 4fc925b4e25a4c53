"""Beam search and greedy search for a whole batch at once.

Shapes: B sentences in the batch, K beams, C = 2K candidates, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nmt.config.inference import DecodingConfig
from nmt.decoding.constraints import Constraints
from nmt.decoding.hypothesis import Hypothesis
from nmt.models.interface import M, S, Seq2SeqModel
from nmt.models.source import Source
from nmt.tokenizers.tokenizer import Tokenizer

# ---- The parts that greedy and beam search share: prefixes, their best extensions, and finished hypotheses.
#
# Shapes: B sentences in the batch, K prefixes of each, C candidates, V vocabulary.


class Candidates(NamedTuple):
    """The best extensions of each sentence's prefixes by one token: (B, C), best first."""

    log_probs: Tensor
    origins: Tensor
    """the index, among the K prefixes, of the one that each extends"""
    tokens: Tensor


def best_candidates(so_far: Tensor, log_probs: Tensor, count: int) -> Candidates:
    """The C = `count` best sums of (B, K) `so_far` and (B, K, V) `log_probs`; fewer where K * V is less.

    The vocabulary is viewed as a table of R rows and N columns. The C best entries are in the C columns with the
    largest maxima, so only these are searched: on a CPU, `topk` over all K * V takes several times as long.
    """
    batch, beam_size, vocab_size = log_probs.shape
    rows = max(rows for rows in range(1, math.isqrt(vocab_size) + 1) if vocab_size % rows == 0)
    table = log_probs.view(batch, beam_size, rows, -1)  # (B, K, R, N)
    num_columns = table.shape[3]
    best = (table.amax(dim=2) + so_far[:, :, None]).flatten(1)  # (B, K * N)
    columns = best.topk(min(count, best.shape[1]), dim=1, sorted=False).indices  # (B, C)
    beams, columns = columns // num_columns, columns % num_columns  # (B, C)
    sentences = torch.arange(batch, device=columns.device)[:, None]
    inside = table[sentences, beams, :, columns] + so_far.gather(1, beams)[:, :, None]  # (B, C, R)
    inside = inside.flatten(1)  # (B, C * R)
    totals, places = inside.topk(min(count, inside.shape[1]), dim=1)  # (B, C)
    chosen, row = places // rows, places % rows  # (B, C)
    return Candidates(totals, beams.gather(1, chosen), row * num_columns + columns.gather(1, chosen))


@dataclasses.dataclass
class Prefixes:
    """The unfinished hypotheses of each sentence in the batch: K of them, fewer at first."""

    constraints: Constraints
    """a row for each of the same B sentences"""
    sentences: Tensor
    """(B,) the index of each row's sentence in the batch at the start"""
    tokens: Tensor
    """(B, K, length) without the start id"""
    log_probs: Tensor
    """(B, K) sums over the tokens; -inf where there is no hypothesis"""

    @classmethod
    def start(cls, constraints: Constraints) -> "Prefixes":
        """One empty prefix of each sentence: K is 1."""
        max_lengths = constraints.max_lengths
        sentences = torch.arange(len(max_lengths), device=max_lengths.device)
        tokens = sentences.new_empty(len(sentences), 1, 0)
        return cls(constraints, sentences, tokens, torch.zeros(len(sentences), 1, device=max_lengths.device))

    def select(self, rows: Tensor) -> "Prefixes":
        """Only these rows."""
        return Prefixes(self.constraints.select(rows), self.sentences[rows], self.tokens[rows], self.log_probs[rows])

    def best_candidates(self, logits: Tensor, count: int = 1) -> Candidates:
        """The C = `count` best allowed extensions, by (B, K, V) logits, which are overwritten."""
        log_probs = self.constraints.allowed_log_probs(logits, self.tokens)
        return best_candidates(self.log_probs, log_probs, count)

    def ends(self, candidates: Candidates) -> Tensor:
        """(B, C) bool: the candidates with `</s>`, and all candidates of a sentence at its maximum length."""
        is_longest = self.tokens.shape[2] + 1 >= self.constraints.max_lengths  # (B,)
        return (candidates.tokens == self.constraints.special.eos) | is_longest[:, None]

    def extend(self, origins: Tensor | None, tokens: Tensor, log_probs: Tensor) -> None:
        """Replace prefix k by prefix `origins[b, k]` (None: itself) and one token; (B, K), `log_probs` of the whole."""
        before = self.tokens
        if origins is not None:
            before = before.gather(1, origins[:, :, None].expand(-1, -1, before.shape[2]))
        self.tokens, self.log_probs = torch.cat([before, tokens[:, :, None]], dim=2), log_probs

    def finish(
        self, candidates: Candidates, finished: Tensor, length_penalty: float, found: Sequence[list[Hypothesis]]
    ) -> bool:
        """Add the `finished` candidates, (B, C) bool, to `found` at their sentences; returns whether there are any."""
        rows, places = finished.nonzero(as_tuple=True)  # (F,), (F,)
        if not len(rows):
            return False
        origins = candidates.origins[rows, places]  # (F,)
        tokens = torch.cat([self.tokens[rows, origins], candidates.tokens[rows, places, None]], dim=1)
        columns = (self.sentences[rows], tokens, candidates.log_probs[rows, places])
        for sentence, ids, log_prob in zip(*(column.tolist() for column in columns), strict=True):
            output = tuple(ids[:-1] if ids[-1] == self.constraints.special.eos else ids)
            found[sentence].append(Hypothesis.scored(output, log_prob, length_penalty))
        return True


def active_rows(stopped: Tensor) -> Tensor:
    """(B,) bool -> (B',), the rows to keep: the last ones replace those that stopped, the others keep their places."""
    rows = torch.arange(len(stopped), device=stopped.device)
    active = rows[~stopped]
    kept = rows[: len(active)].clone()
    kept[stopped[: len(active)]] = active[active >= len(active)]
    return kept


# ---- What a beam search looked at: every candidate of every step, as a tree.
#
# Shapes: B = 1 sentence, K beams, C = 2K candidates.


State = Literal["kept", "pruned", "finished"]


@dataclasses.dataclass(frozen=True)
class Node:
    """A prefix that the search looked at: its parent's prefix and one more token."""

    id: int
    """Its place in `SearchTree.nodes`; parents come before their children, and better candidates of a step first."""
    parent: int | None
    """None for the root, the empty prefix."""
    step: int
    """The number of its tokens, `</s>` included."""
    token: str
    """Its last piece; `<s>` for the root."""
    token_id: int
    log_prob: float
    """The sum over its tokens, after the search's constraints."""
    score: float
    """`Hypothesis.score` of its tokens; hypotheses are ranked by it once they are finished."""
    state: State
    """`kept`: extended in the next step. `finished`: a hypothesis. `pruned`: neither."""


class SearchTree(NamedTuple):
    """The candidates that a search looked at: at most 2K a step, whose log-probability is not minus infinity."""

    beam_size: int
    length_penalty: float
    nodes: tuple[Node, ...]
    best: int | None
    """The finished node that the search returns first; None if there is none."""

    def tokens(self, node: Node) -> tuple[int, ...]:
        """The ids from the root's first child to the node, `</s>` included."""
        ids = []
        while node.parent is not None:
            ids.append(node.token_id)
            node = self.nodes[node.parent]
        return tuple(reversed(ids))


class TracedStep(NamedTuple):
    """A step of a beam search for one sentence."""

    candidates: Candidates
    """(1, C)"""
    finished: Tensor
    """(1, K) bool: the first K candidates that end"""
    kept: Tensor
    """(1, K): the places of the next prefixes among the candidates"""


def search_tree(steps: Sequence[TracedStep], decoding: DecodingConfig, tokenizer: Tokenizer) -> SearchTree:
    """All steps of a search as a tree."""
    special, alpha = tokenizer.special, decoding.length_penalty
    nodes = [Node(0, None, 0, tokenizer.pieces([special.start])[0], special.start, 0.0, 0.0, "kept")]
    prefixes = [0]  # the node of each of the K prefixes
    for step, (candidates, finished, kept) in enumerate(steps, start=1):
        log_probs, origins, tokens = (column[0].tolist() for column in candidates)
        ends, next_prefixes = finished[0].tolist(), kept[0].tolist()
        numbers: dict[int, int] = {}  # the nodes of the candidates, by their places, where there is a hypothesis
        rows = zip(origins, tokens, tokenizer.pieces(tokens), log_probs, strict=True)
        for place, (origin, token, piece, log_prob) in enumerate(rows):
            if log_prob == float("-inf"):
                continue
            score = Hypothesis.scored((0,) * (step - (token == special.eos)), log_prob, alpha).score
            is_extended = place in next_prefixes and token != special.eos and step < len(steps)
            ended = place < len(ends) and ends[place]
            state: State = "finished" if ended else "kept" if is_extended else "pruned"
            numbers[place] = len(nodes)
            nodes.append(Node(len(nodes), prefixes[origin], step, piece, token, log_prob, score, state))
        # A place without a hypothesis is never extended to one; the root is its placeholder.
        prefixes = [numbers.get(place, 0) for place in next_prefixes]
    best = max((node for node in nodes if node.state == "finished"), key=lambda node: node.score, default=None)
    return SearchTree(decoding.beam_size, alpha, tuple(nodes), best.id if best else None)


def beam_search(
    model: Seq2SeqModel[M, S],
    source: Source,
    constraints: Constraints,
    beam_size: int,
    length_penalty: float,
    trace: list[TracedStep] | None = None,
) -> list[list[Hypothesis]]:
    """Translate a batch; at most K hypotheses a sentence, best first, sentences in their order.

    The candidates of a step are the 2K best one-token extensions of a sentence's K prefixes. A prefix can end in one
    way, so at least K candidates do not end. Of the K best candidates, those that end are finished; the K best that do
    not end are the next prefixes. A sentence stops once it has K finished hypotheses, or at its maximum length, where
    the K best candidates are finished without `</s>`. The steps for a single sentence are added to `trace`.
    """
    assert trace is None or len(source.mask) == 1
    max_length = int(constraints.max_lengths.max())
    state = model.start(model.encode(source), beam_size, max_length)
    prefixes = Prefixes.start(constraints)
    latest = torch.full_like(prefixes.sentences, constraints.special.start)[:, None]  # (B, K)
    num_finished = torch.zeros_like(prefixes.sentences)  # (B,) hypotheses of each sentence
    found: list[list[Hypothesis]] = [[] for _ in latest]
    for length in range(max_length):
        candidates = prefixes.best_candidates(model.step(latest, state), 2 * beam_size)
        finished = (prefixes.ends(candidates) & (candidates.log_probs > -torch.inf))[:, :beam_size]  # (B, K)
        some_finish = prefixes.finish(candidates, finished, length_penalty, found)
        width = 1 if length < constraints.num_forced else beam_size
        origins, latest, kept = _advance(prefixes, candidates, width)  # (B, K) each
        if trace is not None:
            trace.append(TracedStep(candidates, finished, kept))
        state.select_beams(origins)
        if not some_finish:
            continue
        num_finished += finished.sum(dim=1)
        stopped = (num_finished >= beam_size) | (length + 1 >= prefixes.constraints.max_lengths)  # (B,)
        staying = active_rows(stopped)
        if not len(staying):
            break
        state.select_sentences(staying)
        prefixes, latest, num_finished = prefixes.select(staying), latest[staying], num_finished[staying]
    return [sorted(hypotheses, key=lambda one: -one.score)[:beam_size] for hypotheses in found]


def _advance(prefixes: Prefixes, candidates: Candidates, beam_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Replace the prefixes by the K best candidates that do not end; their origins, tokens and places, (B, K) each."""
    continuing = candidates.log_probs.masked_fill(candidates.tokens == prefixes.constraints.special.eos, -torch.inf)
    log_probs, kept = continuing.topk(min(beam_size, continuing.shape[1]), dim=1)  # (B, K)
    origins, latest = candidates.origins.gather(1, kept), candidates.tokens.gather(1, kept)
    prefixes.extend(origins, latest, log_probs)
    return origins, latest, kept


def greedy_search(
    model: Seq2SeqModel[M, S],
    source: Source,
    constraints: Constraints,
    length_penalty: float,
    next_of: Callable[[Prefixes, Tensor], Candidates] = Prefixes.best_candidates,
) -> list[list[Hypothesis]]:
    """Translate a batch; one hypothesis a sentence, in its order. Finished sentences leave the batch.

    The next token is the most probable one, or that of `next_of`, which gets logits (B, 1, V). Beam search with one
    beam finds the same. A step of this loop does less, which saves about 7% for one sentence.
    """
    state = model.start(model.encode(source), 1, int(constraints.max_lengths.max()))
    prefixes = Prefixes.start(constraints)
    latest = torch.full_like(prefixes.sentences, constraints.special.start)[:, None]  # (B, 1)
    found: list[list[Hypothesis]] = [[] for _ in latest]
    while len(latest):
        following = next_of(prefixes, model.step(latest, state))  # (B, 1)
        ends = prefixes.ends(following)
        some_finish = prefixes.finish(following, ends, length_penalty, found)
        prefixes.extend(None, following.tokens, following.log_probs)
        latest = following.tokens
        if some_finish:
            staying = active_rows(ends[:, 0])
            state.select_sentences(staying)
            prefixes, latest = prefixes.select(staying), latest[staying]
    return found
