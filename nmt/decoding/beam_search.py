"""Beam search, and greedy search as its special case, for a batch of sentences at once.

A search looks for the translation y of a source x with the highest score,

    score(y) = log P(y | x) / |y|^alpha,    log P(y | x) = sum over t of log P(y_t | y_1 ... y_(t-1), x),

where alpha is the length penalty and |y| counts the tokens without `</s>`. No search can score all y. Beam search
(Sutskever et al. 2014, arXiv:1409.3215, section 3.2) keeps the K most probable prefixes of each sentence, its beams,
and extends them token by token:

1. The model gives the log-probability of each token after each prefix, (B, K, V); constraints rule tokens out.
2. The candidates are the 2K most probable extensions of a sentence's prefixes by one token. A prefix can end in only
   one way, with `</s>`, so at least K candidates do not end.
3. Of the K best candidates, those that end are finished hypotheses.
4. The K best candidates that do not end are the next prefixes.
5. A sentence is done once it has K finished hypotheses, or at its maximum length, where the K best candidates are
   finished even without `</s>`. It leaves the batch, so that later steps cost less.

Greedy search is the case K = 1: each token is the most probable one.

Shapes: B sentences still searched, K beams (one at first), C = 2K candidates (one in greedy search), V vocabulary.
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


def beam_search(
    model: Seq2SeqModel[M, S],
    source: Source,
    constraints: Constraints,
    beam_size: int,
    length_penalty: float,
    trace: "list[TracedStep] | None" = None,
) -> list[list[Hypothesis]]:
    """Translate a batch: at most K hypotheses for each sentence, best first; sentences in their order.

    If a `trace` is given, the batch is a single sentence, and the steps of its search are appended.
    """
    assert trace is None or len(source.mask) == 1
    max_length = int(constraints.max_lengths.max())
    state = model.start(model.encode(source), beam_size, max_length)
    prefixes = Prefixes.start(constraints)
    latest = torch.full_like(prefixes.sentences, constraints.special.start)[:, None]  # (B, K)
    num_finished = torch.zeros_like(prefixes.sentences)  # (B,) hypotheses of each sentence
    results: list[list[Hypothesis]] = [[] for _ in latest]
    for length in range(max_length):
        candidates = prefixes.best_candidates(model.step(latest, state), 2 * beam_size)
        finished = (prefixes.ends(candidates) & (candidates.log_probs > -torch.inf))[:, :beam_size]  # (B, K)
        any_finished = prefixes.finish(candidates, finished, length_penalty, results)
        width = 1 if length < constraints.num_forced else beam_size
        beams, latest, kept = prefixes.advance(candidates, width)  # (B, K) each
        if trace is not None:
            trace.append(TracedStep(candidates, finished, kept))
        state.select_beams(beams)
        if not any_finished:
            continue
        num_finished += finished.sum(dim=1)
        done = (num_finished >= beam_size) | (length + 1 >= prefixes.constraints.max_lengths)  # (B,)
        active = active_rows(done)
        if not len(active):
            break
        state.select_sentences(active)
        prefixes, latest, num_finished = prefixes.select(active), latest[active], num_finished[active]
    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:beam_size] for hypotheses in results]


def greedy_search(
    model: Seq2SeqModel[M, S],
    source: Source,
    constraints: Constraints,
    length_penalty: float,
    choose: "Callable[[Prefixes, Tensor], Candidates]" = lambda prefixes, logits: prefixes.best_candidates(logits),
) -> list[list[Hypothesis]]:
    """Translate a batch: one hypothesis for each sentence, in its order.

    The next token is the most probable one, or the one that `choose` returns for logits (B, 1, V). Beam search with one
    beam gives the same result. A step of this loop does less, which saves about 7% for a single sentence.
    """
    state = model.start(model.encode(source), 1, int(constraints.max_lengths.max()))
    prefixes = Prefixes.start(constraints)
    latest = torch.full_like(prefixes.sentences, constraints.special.start)[:, None]  # (B, 1)
    results: list[list[Hypothesis]] = [[] for _ in latest]
    while len(latest):
        chosen = choose(prefixes, model.step(latest, state))  # (B, 1)
        ends = prefixes.ends(chosen)
        any_finished = prefixes.finish(chosen, ends, length_penalty, results)
        prefixes.extend(None, chosen.tokens, chosen.log_probs)
        latest = chosen.tokens
        if any_finished:
            active = active_rows(ends[:, 0])
            state.select_sentences(active)
            prefixes, latest = prefixes.select(active), latest[active]
    return results


class Candidates(NamedTuple):
    """Extensions of each sentence's prefixes by one token: (B, C), best first."""

    log_probs: Tensor
    """sums over all tokens, the new one included"""
    beams: Tensor
    """the beam, 0 to K - 1, whose prefix is extended"""
    tokens: Tensor
    """the new token"""


@dataclasses.dataclass
class Prefixes:
    """The unfinished hypotheses of each sentence: K of them, one at first."""

    constraints: Constraints
    """a row for each of the same B sentences"""
    sentences: Tensor
    """(B,) the index of each row's sentence in the whole batch"""
    tokens: Tensor
    """(B, K, length) without the start id"""
    log_probs: Tensor
    """(B, K) sums over the tokens; -inf where there is no hypothesis"""

    @classmethod
    def start(cls, constraints: Constraints) -> "Prefixes":
        """Begin with one empty prefix for each sentence."""
        max_lengths = constraints.max_lengths
        sentences = torch.arange(len(max_lengths), device=max_lengths.device)
        tokens = sentences.new_empty(len(sentences), 1, 0)
        return cls(constraints, sentences, tokens, torch.zeros(len(sentences), 1, device=max_lengths.device))

    def select(self, rows: Tensor) -> "Prefixes":
        """Keep only these rows."""
        return Prefixes(self.constraints.select(rows), self.sentences[rows], self.tokens[rows], self.log_probs[rows])

    def best_candidates(self, logits: Tensor, count: int = 1) -> Candidates:
        """Return the C = `count` best allowed extensions by (B, K, V) logits, which are overwritten."""
        log_probs = self.constraints.allowed_log_probs(logits, self.tokens)
        return best_candidates(self.log_probs, log_probs, count)

    def ends(self, candidates: Candidates) -> Tensor:
        """(B, C) bool: True for candidates with `</s>`, and for all candidates of a sentence at its maximum length."""
        is_longest = self.tokens.shape[2] + 1 >= self.constraints.max_lengths  # (B,)
        return (candidates.tokens == self.constraints.special.eos) | is_longest[:, None]

    def finish(
        self, candidates: Candidates, finished: Tensor, length_penalty: float, results: Sequence[list[Hypothesis]]
    ) -> bool:
        """Append the `finished` candidates, (B, C) bool, to their sentences' `results`; True if there are any."""
        rows, ranks = finished.nonzero(as_tuple=True)  # (F,), (F,)
        if not len(rows):
            return False
        beams = candidates.beams[rows, ranks]  # (F,)
        tokens = torch.cat([self.tokens[rows, beams], candidates.tokens[rows, ranks, None]], dim=1)  # (F, length + 1)
        columns = (self.sentences[rows], tokens, candidates.log_probs[rows, ranks])
        for sentence, ids, log_prob in zip(*(column.tolist() for column in columns), strict=True):
            output = tuple(ids[:-1] if ids[-1] == self.constraints.special.eos else ids)
            results[sentence].append(Hypothesis.scored(output, log_prob, length_penalty))
        return True

    def advance(self, candidates: Candidates, beam_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Continue with the K best candidates that do not end; return their beams, tokens and ranks, (B, K) each."""
        continuing = candidates.log_probs.masked_fill(candidates.tokens == self.constraints.special.eos, -torch.inf)
        log_probs, ranks = continuing.topk(min(beam_size, continuing.shape[1]), dim=1)  # (B, K)
        beams, tokens = candidates.beams.gather(1, ranks), candidates.tokens.gather(1, ranks)
        self.extend(beams, tokens, log_probs)
        return beams, tokens, ranks

    def extend(self, beams: Tensor | None, tokens: Tensor, log_probs: Tensor) -> None:
        """Replace prefix k by prefix `beams[b, k]` (None: by itself) and a token; (B, K), `log_probs` of the whole."""
        before = self.tokens
        if beams is not None:
            before = before.gather(1, beams[:, :, None].expand(-1, -1, before.shape[2]))
        self.tokens, self.log_probs = torch.cat([before, tokens[:, :, None]], dim=2), log_probs


def best_candidates(prefix_log_probs: Tensor, log_probs: Tensor, count: int) -> Candidates:
    """Return the C = `count` best sums of (B, K) and (B, K, V) log-probabilities; fewer where K * V is less.

    It is `topk` over all K * V sums, which on a CPU takes several times as long. The vocabulary is viewed as a table of
    R rows and N columns: the C best entries are in the C columns with the largest maxima, so only these are searched.
    """
    batch, beam_size, vocab_size = log_probs.shape
    num_rows = max(rows for rows in range(1, math.isqrt(vocab_size) + 1) if vocab_size % rows == 0)
    table = log_probs.view(batch, beam_size, num_rows, -1)  # (B, K, R, N)
    num_columns = table.shape[3]
    maxima = (table.amax(dim=2) + prefix_log_probs[:, :, None]).flatten(1)  # (B, K * N)
    columns = maxima.topk(min(count, maxima.shape[1]), dim=1, sorted=False).indices  # (B, C)
    beams, columns = columns // num_columns, columns % num_columns  # (B, C)
    sentences = torch.arange(batch, device=columns.device)[:, None]
    entries = table[sentences, beams, :, columns] + prefix_log_probs.gather(1, beams)[:, :, None]  # (B, C, R)
    entries = entries.flatten(1)  # (B, C * R)
    totals, places = entries.topk(min(count, entries.shape[1]), dim=1)  # (B, C)
    chosen, rows = places // num_rows, places % num_rows  # (B, C)
    return Candidates(totals, beams.gather(1, chosen), rows * num_columns + columns.gather(1, chosen))


def active_rows(done: Tensor) -> Tensor:
    """(B,) bool -> (B',) the rows to keep. The last ones replace those that are done, the others keep their places."""
    rows = torch.arange(len(done), device=done.device)
    active = rows[~done]
    kept = rows[: len(active)].clone()
    kept[done[: len(active)]] = active[active >= len(active)]
    return kept


# The trace of a search for one sentence, as a tree of all candidates that it considered.

NodeState = Literal["kept", "pruned", "finished"]


@dataclasses.dataclass(frozen=True)
class Node:
    """A prefix that the search considered: its parent's prefix and one more token."""

    id: int
    """Index in `SearchTree.nodes`; parents come before their children, better candidates of a step before others."""
    parent: int | None
    """None for the root, the empty prefix."""
    step: int
    """Number of tokens, `</s>` included."""
    token: str
    """The last piece; `<s>` for the root."""
    token_id: int
    log_prob: float
    """Sum over the tokens, after the search's constraints."""
    score: float
    """`Hypothesis.score` of the tokens; finished hypotheses are ranked by it."""
    state: NodeState
    """`kept`: extended in the next step. `finished`: a hypothesis. `pruned`: neither."""


class SearchTree(NamedTuple):
    """The candidates that a search considered: at most 2K a step, without those of log-probability minus infinity."""

    beam_size: int
    length_penalty: float
    nodes: tuple[Node, ...]
    best: int | None
    """The finished node that the search returns first; None if there is none."""


class TracedStep(NamedTuple):
    """A step of a beam search for one sentence."""

    candidates: Candidates
    """(1, C)"""
    finished: Tensor
    """(1, K) bool: which of the first K candidates end"""
    kept: Tensor
    """(1, K): the ranks of the next prefixes among the candidates"""


def search_tree(steps: Sequence[TracedStep], decoding: DecodingConfig, tokenizer: Tokenizer) -> SearchTree:
    """Make a tree of all steps of a search."""
    special, alpha = tokenizer.special, decoding.length_penalty
    nodes = [Node(0, None, 0, tokenizer.pieces([special.start])[0], special.start, 0.0, 0.0, "kept")]
    prefixes = [0]  # the node of each of the K prefixes
    for step, (candidates, finished, kept) in enumerate(steps, start=1):
        log_probs, beams, tokens = (column[0].tolist() for column in candidates)
        ends, next_prefixes = finished[0].tolist(), kept[0].tolist()
        node_of_rank: dict[int, int] = {}  # without the ranks at which there is no hypothesis
        rows = zip(beams, tokens, tokenizer.pieces(tokens), log_probs, strict=True)
        for rank, (beam, token, piece, log_prob) in enumerate(rows):
            if log_prob == float("-inf"):
                continue
            score = Hypothesis.scored((0,) * (step - (token == special.eos)), log_prob, alpha).score
            is_extended = rank in next_prefixes and token != special.eos and step < len(steps)
            is_finished = rank < len(ends) and ends[rank]
            state: NodeState = "finished" if is_finished else "kept" if is_extended else "pruned"
            node_of_rank[rank] = len(nodes)
            nodes.append(Node(len(nodes), prefixes[beam], step, piece, token, log_prob, score, state))
        # A beam without a hypothesis never gets one again; the root is its placeholder.
        prefixes = [node_of_rank.get(rank, 0) for rank in next_prefixes]
    best = max((node for node in nodes if node.state == "finished"), key=lambda node: node.score, default=None)
    return SearchTree(decoding.beam_size, alpha, tuple(nodes), best.id if best else None)
