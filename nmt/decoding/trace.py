"""What a beam search looked at: every candidate of every step, as a tree.

Shapes: B = 1 sentence, K beams, C = 2K candidates.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from nmt.decoding.candidates import Candidates
from nmt.decoding.hypothesis import Hypothesis

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


class SearchTrace:
    """Records a beam search for one sentence, if it is passed to `beam_search`."""

    def __init__(self, start_id: int, eos_id: int) -> None:
        self._eos_id = eos_id
        self._nodes = [Node(0, None, 0, "", start_id, 0.0, 0.0, "kept")]
        self._prefixes = [0]  # the node of each of the K prefixes

    def record(self, candidates: Candidates, finished: Tensor, kept: Tensor, length_penalty: float) -> None:
        """A step: its candidates (1, C), which of the first of them end (1, K), the places of the next K prefixes."""
        step = self._nodes[-1].step + 1
        ends, next_prefixes = finished[0].tolist(), kept[0].tolist()
        nodes: list[int | None] = []  # of each candidate; None where there is no hypothesis
        columns = (column[0].tolist() for column in (candidates.origins, candidates.tokens, candidates.log_probs))
        for place, (origin, token, log_prob) in enumerate(zip(*columns, strict=True)):
            if log_prob == float("-inf"):
                nodes.append(None)
                continue
            ended = place < len(ends) and ends[place]
            length = step - (token == self._eos_id)
            score = Hypothesis.scored((0,) * length, log_prob, length_penalty).score
            is_extended = place in next_prefixes and token != self._eos_id
            state: State = "finished" if ended else "kept" if is_extended else "pruned"
            nodes.append(len(self._nodes))
            self._nodes.append(Node(len(self._nodes), self._prefixes[origin], step, "", token, log_prob, score, state))
        # A place without a hypothesis is never extended to one; the root is its placeholder.
        self._prefixes = [nodes[place] or 0 for place in next_prefixes]

    def tree(
        self, beam_size: int, length_penalty: float, pieces: Callable[[Sequence[int]], Sequence[str]]
    ) -> SearchTree:
        """The search that was recorded; `pieces` are the tokenizer's."""
        last = self._nodes[-1].step
        names = pieces([node.token_id for node in self._nodes])
        nodes = tuple(
            # No step follows the last one, so what it kept was not extended.
            dataclasses.replace(
                node, token=name, state="pruned" if (node.state, node.step) == ("kept", last) else node.state
            )
            for node, name in zip(self._nodes, names, strict=True)
        )
        ended = [node for node in nodes if node.state == "finished"]
        best = max(ended, key=lambda node: node.score).id if ended else None
        return SearchTree(beam_size, length_penalty, nodes, best)
