"""What a beam search looked at: every candidate of every step, as a tree.

Shapes: B = 1 sentence, K beams, C = 2K candidates.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from nmt.config.inference import DecodingConfig
from nmt.decoding.candidates import Candidates
from nmt.decoding.hypothesis import Hypothesis
from nmt.tokenizers.tokenizer import Tokenizer

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
