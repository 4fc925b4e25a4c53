"""Greedy and beam search by hand, against brute force, and against a search written with loops.

Shapes: B batch, K beams, S source length, V vocabulary.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmt.config.inference import DecodingConfig, TransformerConfig
from nmt.decoding.beam_search import active_rows, beam_search, best_candidates, greedy_search
from nmt.decoding.constraints import Constraints
from nmt.decoding.hypothesis import Hypothesis
from nmt.models.interface import Seq2SeqModel
from nmt.models.source import Source, source_of
from nmt.models.transformer import Transformer
from nmt.tokenizers.vocabulary import BOS_ID, EOS_ID, OWN_SPECIAL_IDS, PAD_ID, UNK_ID, SpecialIds

V = 11
Prefix = tuple[int, ...]
NextToken = Callable[[int, Prefix], Mapping[int, float]]
"""The first source id and a prefix (without <s>) -> probability of each next token; of the others, 0."""


class TableState:
    """Remembers every hypothesis's prefix."""

    def __init__(self, keys: list[int], beam_size: int, max_length: int) -> None:
        self.keys = keys
        self.prefixes: list[list[Prefix]] = [[()] for _ in keys]
        self.beam_size = beam_size
        self.max_length = max_length
        self.steps = 0

    def select_beams(self, beams: Tensor) -> None:
        assert len(beams) == len(self.prefixes)
        assert beams.shape[1] <= self.beam_size
        self.prefixes = [
            [row[beam] for beam in chosen] for row, chosen in zip(self.prefixes, beams.tolist(), strict=True)
        ]

    def select_sentences(self, sentences: Tensor) -> None:
        self.prefixes = [self.prefixes[row] for row in sentences.tolist()]
        self.keys = [self.keys[row] for row in sentences.tolist()]


class TableModel(Seq2SeqModel[list[int], TableState]):
    """A model with given distributions."""

    def __init__(self, next_token: NextToken, vocab_size: int = V, start_id: int = BOS_ID) -> None:
        super().__init__()
        self.next_token = next_token
        self.vocab_size = vocab_size
        self.start_id = start_id

    def _logits(self, key: int, prefix: Prefix) -> Tensor:
        logits = torch.full((self.vocab_size,), -torch.inf)
        for token, probability in self.next_token(key, prefix).items():
            logits[token] = math.log(probability) if probability else -torch.inf
        return logits

    def encode(self, source: Source) -> list[int]:
        return source.values[:, 0].tolist()

    def forward(self, source: Source, tgt_in: Tensor) -> Tensor:
        rows = zip(self.encode(source), tgt_in.tolist(), strict=True)
        return torch.stack(
            [torch.stack([self._logits(key, tuple(ids[1:end])) for end in range(1, len(ids) + 1)]) for key, ids in rows]
        )  # (B, T, V)

    def attention(self, source: Source, tgt_in: Tensor) -> Tensor:
        raise NotImplementedError

    def attention_weights(self, source: Source, tgt_in: Tensor) -> dict[str, Tensor]:
        raise AssertionError("a search has nothing to do with it")

    def start(self, memory: list[int], beam_size: int, max_length: int) -> TableState:
        return TableState(memory, beam_size, max_length)

    def step(self, tokens: Tensor, state: TableState) -> Tensor:
        assert tokens.shape == (len(state.prefixes), len(state.prefixes[0]))
        if state.steps == 0:
            assert (tokens == self.start_id).all()
        else:
            state.prefixes = [
                [(*prefix, token) for prefix, token in zip(row, latest, strict=True)]
                for row, latest in zip(state.prefixes, tokens.tolist(), strict=True)
            ]
        state.steps += 1
        assert state.steps <= state.max_length, "more steps than the search has asked room for"
        return torch.stack(
            [
                torch.stack([self._logits(key, prefix) for prefix in row])
                for key, row in zip(state.keys, state.prefixes, strict=True)
            ]
        )  # (B, K, V)


def source(sentences: Sequence[Sequence[int]]) -> Source:
    return source_of(sentences, OWN_SPECIAL_IDS)


def constraints(
    max_lengths: Sequence[int],
    min_length: int,
    no_repeat: int,
    prefixes: Sequence[Sequence[int]] | None = None,
    special: SpecialIds = OWN_SPECIAL_IDS,
) -> Constraints:
    """With given maximal lengths, not computed from the sources."""
    decoding = DecodingConfig(min_length=min_length, no_repeat_ngram_size=no_repeat)
    made = Constraints.of(decoding, special, [1] * len(max_lengths), prefixes)
    return dataclasses.replace(made, max_lengths=torch.tensor(max_lengths))


def beam(
    model: Seq2SeqModel,
    sentences: Sequence[Sequence[int]],
    max_lengths: Sequence[int],
    beam_size: int,
    length_penalty: float = 1.0,
    min_length: int = 1,
    no_repeat: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    limits = constraints(max_lengths, min_length, no_repeat, prefixes)
    with torch.no_grad():
        return beam_search(model, source(sentences), limits, beam_size, length_penalty)


def greedy(
    model: Seq2SeqModel,
    sentences: Sequence[Sequence[int]],
    max_lengths: Sequence[int],
    length_penalty: float = 1.0,
    min_length: int = 1,
    no_repeat: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[Hypothesis]:
    limits = constraints(max_lengths, min_length, no_repeat, prefixes)
    with torch.no_grad():
        found = greedy_search(model, source(sentences), limits, length_penalty)
    assert all(len(hypotheses) == 1 for hypotheses in found)
    return [best for (best,) in found]


def assert_same(found: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> None:
    assert [hypothesis.tokens for hypothesis in found] == [hypothesis.tokens for hypothesis in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
        assert one.score == pytest.approx(other.score, abs=1e-4)


# --- By hand ---------------------------------------------------------------------------------------------

A_, B_, END = 4, 5, EOS_ID

TABLE: dict[Prefix, dict[int, float]] = {
    (): {A_: 0.6, B_: 0.4},
    (A_,): {END: 0.5, A_: 0.3, B_: 0.2},
    (B_,): {B_: 0.9, END: 0.1},
    (B_, B_): {END: 0.8, A_: 0.2},
    (A_, A_): {END: 0.7, A_: 0.3},
    (A_, B_): {END: 1.0},
}
# With two beams:
#   step 1   a .60   b .40                                                both continue
#   step 2   bb .36   a</s> .30   aa .18   ab .12   b</s> .04             "a" is finished; bb and aa continue
#   step 3   bb</s> .288   aa</s> .126   bba .072   aaa .054              "bb" and "aa" are finished: three, so stop
# Of the three, the two best by log-probability over length ** alpha:
#   alpha 0     a  ln .30 = -1.2040    bb ln .288     = -1.2448   aa ln .126     = -2.0715
#   alpha 1     a  ln .30 = -1.2040    bb ln .288 / 2 = -0.6224   aa ln .126 / 2 = -1.0357
#   alpha 0.5   a  ln .30 = -1.2040    bb / sqrt 2    = -0.8802   aa / sqrt 2    = -1.4648
LN_A, LN_BB, LN_AA = math.log(0.30), math.log(0.288), math.log(0.126)
LN_36_7 = math.log(0.36 * 0.7)


def by_hand(key: int, prefix: Prefix) -> Mapping[int, float]:
    return TABLE.get(prefix, {A_: 1.0})  # an empty beam is computed as well


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.0, [((A_,), LN_A, -1.2040), ((B_, B_), LN_BB, -1.2448)]),
        (0.5, [((B_, B_), LN_BB, -0.8802), ((A_,), LN_A, -1.2040)]),
        (1.0, [((B_, B_), LN_BB, -0.6224), ((A_, A_), LN_AA, -1.0357)]),
    ],
)
def test_the_length_penalty_chooses_the_winner(alpha: float, expected: list[tuple[Prefix, float, float]]) -> None:
    (found,) = beam(TableModel(by_hand), [[9]], [10], beam_size=2, length_penalty=alpha)
    assert_same(found, [Hypothesis(*values) for values in expected])


def test_greedy_takes_the_most_probable_token_though_a_better_sentence_exists() -> None:
    """a .6, then </s> .5."""
    (found,) = greedy(TableModel(by_hand), [[9]], [10])
    assert_same([found], [Hypothesis((A_,), LN_A, -1.2040)])


def test_at_the_longest_output_hypotheses_are_finished_as_they_are() -> None:
    """After step 1: a .6 and b .4, whose scores have no </s> in them."""
    (found,) = beam(TableModel(by_hand), [[9]], [1], beam_size=2)
    assert_same(found, [Hypothesis((A_,), -0.5108, -0.5108), Hypothesis((B_,), -0.9163, -0.9163)])
    # After step 2: bb .36 unfinished, and a</s> .30; aa and ab are not among the two best.
    (found,) = beam(TableModel(by_hand), [[9]], [2], beam_size=2)
    assert_same(found, [Hypothesis((B_, B_), -1.0217, -0.5108), Hypothesis((A_,), LN_A, -1.2040)])
    (found,) = beam(TableModel(by_hand), [[9]], [2], beam_size=2, length_penalty=0.0)
    assert_same(found, [Hypothesis((B_, B_), -1.0217, -1.0217), Hypothesis((A_,), LN_A, -1.2040)])


def test_the_probability_of_a_forbidden_end_of_sentence_is_shared_among_the_other_tokens() -> None:
    """</s> is forbidden for two tokens, and the others share its probability in proportion to theirs.

    Step 2: a after a has .3 / (.3 + .2) = .6, b after a .4, and b after b all: bb .4, aa .36, ab .24.
    Step 3: bb</s> .32, aa</s> .252, aaa .108, bba .08: both finished.
    """
    expected = [Hypothesis((B_, B_), math.log(0.32), math.log(0.32)), Hypothesis((A_, A_), LN_36_7, LN_36_7)]
    (found,) = beam(TableModel(by_hand), [[9]], [10], beam_size=2, length_penalty=0.0, min_length=2)
    assert_same(found, expected)
    # Greedy: a .6, a .6, </s> .7.
    (best,) = greedy(TableModel(by_hand), [[9]], [10], length_penalty=0.0, min_length=2)
    assert_same([best], expected[1:])


@pytest.mark.parametrize("beam_size", [1, 2, 6])
def test_where_all_else_is_forbidden_the_translation_ends_and_its_score_is_a_number(beam_size: int) -> None:
    """Two words, no repetition, and a minimal length of three: after two only </s> is left, with probability 1.

    Step 1: a .6 / .8, b .2 / .8, without </s>. Step 2: all probability is on the other word.
    """
    table = TableModel(lambda _, prefix: {A_: 0.6, B_: 0.2, END: 0.1, UNK_ID: 0.1}, vocab_size=6)
    expected = [Hypothesis((A_, B_), math.log(0.75), math.log(0.75) / 2)]
    expected += [Hypothesis((B_, A_), math.log(0.25), math.log(0.25) / 2)]
    assert_same(greedy(table, [[9]], [6], min_length=3, no_repeat=1), expected[:1])
    (found,) = beam(table, [[9]], [6], beam_size, min_length=3, no_repeat=1)
    assert_same(found, expected[:beam_size])


def test_a_candidate_that_ends_below_the_k_best_is_not_finished() -> None:
    """Step 2: aa .63, ba .18, b</s> .12: third of two. Step 3: aa</s> .63, ba</s> .108, both finished.

    "b" would have beaten "ba", but was out of the beam when it ended.
    """
    table: dict[Prefix, dict[int, float]] = {
        (): {A_: 0.7, B_: 0.3},
        (A_,): {A_: 0.9, B_: 0.05, END: 0.05},
        (B_,): {A_: 0.6, END: 0.4},
        (A_, A_): {END: 1.0},
        (B_, A_): {END: 0.6, A_: 0.4},
    }
    (found,) = beam(TableModel(lambda _, prefix: table[prefix]), [[9]], [10], beam_size=2, length_penalty=0.0)
    expected = [((A_, A_), math.log(0.63)), ((B_, A_), math.log(0.108))]
    assert_same(found, [Hypothesis(tokens, log_prob, log_prob) for tokens, log_prob in expected])


def test_an_empty_translation_scores_its_own_log_probability() -> None:
    model = TableModel(lambda _, prefix: {END: 0.9, A_: 0.1})
    expected = [Hypothesis((), math.log(0.9), math.log(0.9))]
    assert_same(greedy(model, [[9]], [5], min_length=0), expected)
    assert_same(beam(model, [[9]], [5], beam_size=1, min_length=0)[0], expected)
    # a</s> .09, by alpha 2: ln .09 / 1.
    (found,) = beam(model, [[9]], [5], beam_size=2, length_penalty=2.0, min_length=0)
    assert_same(found, [*expected, Hypothesis((A_,), math.log(0.09), math.log(0.09))])


def test_a_beam_wider_than_the_choices_finds_each_sentence_once() -> None:
    """At first, only two tokens can follow the one prefix: the other four beams are empty and are dropped."""
    (found,) = beam(TableModel(by_hand), [[9]], [2], beam_size=6, length_penalty=0.0)
    expected = {(B_, B_): 0.36, (A_,): 0.30, (A_, A_): 0.18, (A_, B_): 0.12, (B_,): 0.04}
    assert_same(found, [Hypothesis(ids, math.log(value), math.log(value)) for ids, value in expected.items()])


def test_a_forced_prefix_costs_nothing_and_counts_in_the_length_by_hand() -> None:
    """After b, which is forced: b .9, </s> .1; then </s> .8, a .2; after bba, a forever.

    Step 2: bb .9, b</s> .1: "b" is finished. Step 3: bb</s> .72, bba .18: both finished are enough.
    A prefix as long as the longest output is all of it, and free.
    """
    expected = [
        Hypothesis((B_, B_), math.log(0.72), math.log(0.72) / 2),
        Hypothesis((B_,), math.log(0.1), math.log(0.1)),
    ]
    (found,) = beam(TableModel(by_hand), [[9]], [10], beam_size=2, prefixes=[(B_,)])
    assert_same(found, expected)
    (best,) = greedy(TableModel(by_hand), [[9]], [10], prefixes=[(B_,)])
    assert_same([best], expected[:1])
    whole = Hypothesis((B_, UNK_ID, B_), 0.0, 0.0)  # with a token that the search itself may not emit
    (found,) = beam(TableModel(by_hand), [[9]], [3], beam_size=2, no_repeat=1, prefixes=[(B_, UNK_ID, B_, A_)])
    assert_same(found, [whole])
    assert_same(greedy(TableModel(by_hand), [[9]], [3], no_repeat=1, prefixes=[(B_, UNK_ID, B_, A_)]), [whole])


@pytest.mark.parametrize(
    "special",
    [
        SpecialIds(pad=10, start=10, eos=0, unk=1),  # as Marian's models have them
        SpecialIds(pad=1, start=2, eos=2, unk=3),  # a decoder that starts with </s>
        SpecialIds(pad=7, start=0, eos=5, unk=9),
    ],
)
@pytest.mark.parametrize("min_length", [0, 2])
def test_special_ids_are_where_the_tokenizer_has_them(special: SpecialIds, min_length: int) -> None:
    """The same distributions with other ids give the same hypotheses with other ids."""
    ours = [EOS_ID, UNK_ID, 4, 5, 6]
    theirs = dict(zip(ours, [special.eos, special.unk, 4, 6, 8], strict=True))
    back = {other: one for one, other in theirs.items()}
    table = random_table(3, [4, 5, 6])

    def renamed(key: int, prefix: Prefix) -> Mapping[int, float]:
        found = {theirs[token]: value for token, value in table(key, tuple(back[one] for one in prefix)).items()}
        total = 1 + 0.3 * (special.start != special.eos) + 0.2  # forbidden tokens are likely
        return {**{token: value / total for token, value in found.items()}, special.pad: 0.3 / total}

    limits, other_limits = constraints([6], min_length, 2), constraints([6], min_length, 2, special=special)
    model, other = TableModel(table), TableModel(renamed, start_id=special.start)
    for found, expected in (
        (beam_search(other, source([[9]]), other_limits, 3, 1.0), beam_search(model, source([[9]]), limits, 3, 1.0)),
        (greedy_search(other, source([[9]]), other_limits, 1.0), greedy_search(model, source([[9]]), limits, 1.0)),
    ):
        assert_same([one._replace(tokens=tuple(back[token] for token in one.tokens)) for one in found[0]], expected[0])


# --- Against brute force ---------------------------------------------------------------------------------


def random_table(seed: int, tokens: Sequence[int]) -> NextToken:
    """Distributions over `tokens` and </s>, with some probability for <unk>, which may not be emitted."""
    tables: dict[tuple[int, Prefix], dict[int, float]] = {}
    random = np.random.default_rng(seed)
    choices = [EOS_ID, UNK_ID, *tokens]

    def next_token(key: int, prefix: Prefix) -> Mapping[int, float]:
        if (key, prefix) not in tables:
            drawn = random.dirichlet([0.7] * len(choices))
            tables[key, prefix] = dict(zip(choices, drawn.tolist(), strict=True))
        return tables[key, prefix]

    return next_token


def allowed_probabilities(
    probabilities: Mapping[int, float], prefix: Prefix, min_length: int, no_repeat: int
) -> dict[int, float]:
    """The tokens allowed after a prefix, with probabilities that sum to 1 again."""
    allowed = {
        token: value for token, value in probabilities.items() if may_follow(token, prefix, min_length, no_repeat)
    }
    total = sum(allowed.values())
    return {token: value / total for token, value in allowed.items()} if total else {EOS_ID: 1.0}


def every_sentence(
    next_token: NextToken, tokens: Sequence[int], longest: int, alpha: float, min_length: int, no_repeat: int = 0
) -> list[Hypothesis]:
    """Each sequence of at most `longest` tokens with its score, best first."""
    found = []
    for length in range(longest + 1):
        for sentence in itertools.product(tokens, repeat=length):
            ids = sentence + ((EOS_ID,) if length < longest else ())
            probabilities = [
                allowed_probabilities(next_token(9, ids[:place]), ids[:place], min_length, no_repeat).get(token, 0.0)
                for place, token in enumerate(ids)
            ]
            if all(probabilities):
                log_prob = sum(map(math.log, probabilities))
                found.append(Hypothesis(sentence, log_prob, log_prob / max(1, length) ** alpha))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.7])
@pytest.mark.parametrize(("min_length", "no_repeat"), [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (3, 1), (1, 2)])
@pytest.mark.parametrize(("tokens", "longest"), [((4, 5), 3), ((4, 5, 6), 2), ((4,), 5), ((4, 5), 4)])
def test_a_beam_that_holds_every_prefix_agrees_with_brute_force(
    tokens: tuple[int, ...], longest: int, min_length: int, no_repeat: int, alpha: float
) -> None:
    """Masked and renormalized probabilities of every possible sentence, one by one."""
    for seed in range(3):
        next_token = random_table(seed, tokens)
        expected = every_sentence(next_token, tokens, longest, alpha, min_length, no_repeat)
        assert all(not no_repeat or not repeats(one.tokens, no_repeat) for one in expected)
        for spare in (0, 1, 5):  # empty beams must not count as finished, or the search would stop too early
            beams = len(expected) + spare
            (found,) = beam(TableModel(next_token), [[9]], [longest], beams, alpha, min_length, no_repeat)
            assert_same(found, expected)


# --- Against searches written with loops -----------------------------------------------------------------


def lively_model(seed: int, **changes: object) -> Transformer:
    """Random, with distributions uneven enough that sentences end early, late or never."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0, max_positions=64,
        tie_embeddings="none", norm=("pre", "post")[seed % 2],
    )  # fmt: skip
    model = Transformer(config.model_copy(update=changes), V, V).eval()
    with torch.no_grad():
        model.output.weight.mul_(2.0)
        model.decoder[0].cross_attention.output.weight.mul_(3.0)  # the source matters
    return model


def random_sentences(seed: int, count: int, longest: int = 9) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(4, V, size=random.integers(1, longest + 1)).tolist() for _ in range(count)]


def random_prefix(random: np.random.Generator) -> Prefix:
    """A forced prefix of none to six tokens, also `<unk>` and repetitions, but not `</s>`."""
    return tuple(random.integers(UNK_ID, V, size=random.integers(0, 7)).tolist())


def next_log_probs(
    model: Seq2SeqModel,
    sentence: Sequence[int],
    prefixes: Sequence[Prefix],
    min_length: int,
    no_repeat: int,
    forced: Prefix = (),
) -> list[dict[int, float]]:
    """Log-probabilities of the allowed tokens after each prefix (of equal lengths), by running the model again."""
    if len(prefixes[0]) < len(forced):
        return [{forced[len(prefixes[0])]: 0.0}] * len(prefixes)
    sources = source([sentence] * len(prefixes))
    tgt_in = torch.tensor([[BOS_ID, *prefix] for prefix in prefixes])
    with torch.no_grad():
        rows: list[list[float]] = model(sources, tgt_in)[:, -1].double().softmax(dim=-1).tolist()
    allowed = [
        allowed_probabilities(dict(enumerate(row)), prefix, min_length, no_repeat)
        for prefix, row in zip(prefixes, rows, strict=True)
    ]
    return [{token: math.log(value) for token, value in row.items() if value} for row in allowed]


def may_follow(token: int, prefix: Prefix, min_length: int, no_repeat: int) -> bool:
    if token == EOS_ID:
        return len(prefix) >= min_length
    return token not in (PAD_ID, BOS_ID, UNK_ID) and not (no_repeat and repeats_at_its_end((*prefix, token), no_repeat))


def repeats(tokens: Prefix, size: int) -> bool:
    """True if an n-gram of `size` tokens occurs twice."""
    ngrams = [tokens[start : start + size] for start in range(len(tokens) - size + 1)]
    return len(set(ngrams)) < len(ngrams)


def repeats_at_its_end(tokens: Prefix, size: int) -> bool:
    """True if the last `size` tokens occur before, too; a forced prefix may hold other repetitions."""
    return any(tokens[start : start + size] == tokens[-size:] for start in range(len(tokens) - size))


def naive_beam(
    model: Seq2SeqModel,
    sentence: Sequence[int],
    longest: int,
    beam_size: int,
    alpha: float,
    min_length: int,
    no_repeat: int = 0,
    forced: Prefix = (),
) -> list[Hypothesis]:
    """The algorithm in the docstring of nmt/decoding/beam_search.py, for one sentence, with lists."""
    prefixes: list[tuple[Prefix, float]] = [((), 0.0)]
    finished: list[Hypothesis] = []

    def finish(tokens: Prefix, log_prob: float) -> None:
        finished.append(Hypothesis(tokens, log_prob, log_prob / max(1, len(tokens)) ** alpha))

    for length in range(longest):
        following = next_log_probs(model, sentence, [tokens for tokens, _ in prefixes], min_length, no_repeat, forced)
        candidates = [
            (so_far + log_prob, tokens, token)
            for (tokens, so_far), log_probs in zip(prefixes, following, strict=True)
            for token, log_prob in log_probs.items()
        ]
        candidates = sorted(candidates, reverse=True)[: 2 * beam_size]
        for log_prob, tokens, token in candidates[:beam_size]:
            if token == EOS_ID:
                finish(tokens, log_prob)
            elif length + 1 == longest:
                finish((*tokens, token), log_prob)
        if len(finished) >= beam_size:
            break
        prefixes = [((*tokens, token), log_prob) for log_prob, tokens, token in candidates if token != EOS_ID]
        prefixes = prefixes[:beam_size]
    return sorted(finished, key=lambda hypothesis: -hypothesis.score)[:beam_size]


def naive_greedy(
    model: Seq2SeqModel,
    sentence: Sequence[int],
    longest: int,
    alpha: float,
    min_length: int,
    no_repeat: int = 0,
    forced: Prefix = (),
) -> Hypothesis:
    tokens: Prefix = ()
    total = 0.0
    while len(tokens) < longest:
        (log_probs,) = next_log_probs(model, sentence, [tokens], min_length, no_repeat, forced)
        best = max(log_probs, key=lambda token: log_probs[token])
        total += log_probs[best]
        if best == EOS_ID:
            break
        tokens = (*tokens, best)
    return Hypothesis(tokens, total, total / max(1, len(tokens)) ** alpha)


SETTINGS = [
    (seed, beam_size, alpha, min_length)
    for seed, (beam_size, alpha, min_length) in enumerate(
        [*itertools.product(range(1, 7), (0.0, 0.7, 1.0, 1.4), (0,)), *itertools.product(range(1, 7), (1.0,), (1, 4))]
    )
]


@pytest.mark.parametrize(("seed", "beam_size", "alpha", "min_length"), SETTINGS)
def test_beam_search_agrees_with_a_search_with_loops(seed: int, beam_size: int, alpha: float, min_length: int) -> None:
    model = lively_model(seed)
    sentences = random_sentences(seed, 4)
    max_lengths = np.random.default_rng(seed).integers(4, 11, size=4).tolist()
    found = beam(model, sentences, max_lengths, beam_size, alpha, min_length)
    for sentence, longest, hypotheses in zip(sentences, max_lengths, found, strict=True):
        assert_same(hypotheses, naive_beam(model, sentence, longest, beam_size, alpha, min_length))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**16),
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(4, 12)), min_size=1, max_size=5),
    beam_size=st.integers(1, 13),  # up to more than there are tokens
    alpha=st.floats(0, 2),
    min_length=st.integers(0, 4),
    no_repeat=st.sampled_from([0, 2, 3]),
    forcing=st.booleans(),
)
def test_any_beam_search_agrees_with_a_search_with_loops(
    seed: int,
    lengths: list[tuple[int, int]],
    beam_size: int,
    alpha: float,
    min_length: int,
    no_repeat: int,
    forcing: bool,
) -> None:
    random = np.random.default_rng(seed)
    model, sentences = lively_model(seed), [random.integers(4, V, size=length).tolist() for length, _ in lengths]
    max_lengths = [longest for _, longest in lengths]
    prefixes = [random_prefix(random) if forcing else () for _ in lengths]
    found = beam(model, sentences, max_lengths, beam_size, alpha, min_length, no_repeat, prefixes)
    for sentence, longest, prefix, hypotheses in zip(sentences, max_lengths, prefixes, found, strict=True):
        expected = naive_beam(model, sentence, longest, beam_size, alpha, min_length, no_repeat, prefix)
        assert_same(hypotheses, expected)
        assert all(one.tokens[: len(prefix)] == prefix[:longest] for one in hypotheses)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**16), beams=st.integers(1, 6), vocab_size=st.integers(5, 300), count=st.integers(1, 12),
)  # fmt: skip
def test_the_best_candidates_agree_with_a_full_sort(seed: int, beams: int, vocab_size: int, count: int) -> None:
    """Against numpy's sort; some candidates are impossible, and some prefixes are empty beams."""
    random = np.random.default_rng(seed)
    so_far = random.normal(size=(3, beams))
    log_probs = random.normal(size=(3, beams, vocab_size)) - 3
    log_probs[:, :, :4] = so_far[:, 1:] = -np.inf
    totals = (so_far[:, :, None] + log_probs).reshape(3, -1)
    expected = np.argsort(-totals, axis=1)[:, :count]
    best = best_candidates(torch.from_numpy(so_far), torch.from_numpy(log_probs), count)
    np.testing.assert_allclose(best.log_probs, np.take_along_axis(totals, expected, axis=1))
    possible = best.log_probs.numpy() > -np.inf
    places = (best.beams * vocab_size + best.tokens).numpy()
    assert (places == expected)[possible].all()
    assert all(len(set(row)) == len(row) for row in places.tolist())


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_active_rows_move_only_to_fill_a_gap(done: list[bool]) -> None:
    active = active_rows(torch.tensor(done)).tolist()
    assert sorted(active) == [row for row, is_done in enumerate(done) if not is_done]
    assert all(active[row] == row for row in range(len(active)) if not done[row])


def test_the_random_models_end_their_sentences_early_late_and_never() -> None:
    """Otherwise the comparisons of this file would prove little."""
    lengths = [
        len(hypothesis.tokens)
        for seed in range(40)
        for hypotheses in beam(lively_model(seed), random_sentences(seed, 4), [9] * 4, beam_size=3, min_length=0)
        for hypothesis in hypotheses
    ]
    assert set(lengths) == set(range(10))


@pytest.mark.parametrize("no_repeat", [0, 1, 2, 3])
@pytest.mark.parametrize("min_length", [0, 1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_greedy_agrees_with_a_search_with_loops(seed: int, min_length: int, no_repeat: int) -> None:
    model = lively_model(seed)
    sentences, max_lengths = random_sentences(seed, 6), [1, 5, 9, 2, 7, 12]
    if min_length == 3:
        max_lengths = [max(length, 3) for length in max_lengths]
    random = np.random.default_rng(seed)
    for prefixes in [()] * 6, [random_prefix(random) for _ in sentences]:
        expected = [
            naive_greedy(model, sentence, longest, 0.8, min_length, no_repeat, prefix)
            for sentence, longest, prefix in zip(sentences, max_lengths, prefixes, strict=True)
        ]
        assert_same(greedy(model, sentences, max_lengths, 0.8, min_length, no_repeat, prefixes), expected)


@pytest.mark.parametrize("seed", range(10))
def test_a_beam_of_one_is_greedy(seed: int) -> None:
    model, sentences = lively_model(seed), random_sentences(seed, 12)
    max_lengths = np.random.default_rng(seed).integers(1, 12, size=12).tolist()
    found = beam(model, sentences, max_lengths, 1, 0.6, min_length=0)
    assert [len(hypotheses) for hypotheses in found] == [1] * 12
    assert_same(greedy(model, sentences, max_lengths, 0.6, min_length=0), [hypotheses[0] for hypotheses in found])


# --- Invariances -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_neither_the_batch_nor_its_order_changes_a_translation(seed: int, beam_size: int) -> None:
    model, sentences = lively_model(seed), random_sentences(seed, 10, longest=20)
    max_lengths = np.random.default_rng(seed).integers(1, 15, size=10).tolist()

    def search(rows: Sequence[int]) -> list[list[Hypothesis]]:
        chosen, longest = [sentences[row] for row in rows], [max_lengths[row] for row in rows]
        if beam_size == 1:
            return [[hypothesis] for hypothesis in greedy(model, chosen, longest)]
        return beam(model, chosen, longest, beam_size)

    together = search(range(10))
    for row in range(10):
        assert_same(search([row])[0], together[row])
    order = np.random.default_rng(seed).permutation(10).tolist()
    for row, hypotheses in zip(order, search(order), strict=True):
        assert_same(hypotheses, together[row])
    for row, hypotheses in zip([3, 3, 8], search([3, 3, 8]), strict=True):
        assert_same(hypotheses, together[row])


# --- Guarantees for every hypothesis ---------------------------------------------------------------------


def test_special_ids_are_never_emitted_at_any_probability() -> None:
    model = TableModel(lambda _, prefix: {PAD_ID: 0.5, BOS_ID: 0.3, UNK_ID: 0.19, EOS_ID: 0.002, 4: 0.006, 5: 0.002})
    (best,) = greedy(model, [[9]], [6])  # 4 has .006 of the .008 that 4 and 5 have at first, and then of .01
    log_prob = math.log(0.75) + 5 * math.log(0.6)
    assert_same([best], [Hypothesis((4,) * 6, log_prob, log_prob / 6)])
    for beam_size in range(1, 7):
        (found,) = beam(model, [[9]], [6], beam_size, min_length=0)
        assert len(found) == beam_size
        assert {token for hypothesis in found for token in hypothesis.tokens} <= {4, 5}


@pytest.mark.parametrize("min_length", [0, 1, 2, 5])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_no_translation_is_shorter_than_min_length(beam_size: int, min_length: int) -> None:
    """The model would end at once."""
    model = TableModel(lambda _, prefix: {EOS_ID: 0.9, 4: 0.07, 5: 0.03})
    (found,) = beam(model, [[9]], [8], beam_size, min_length=min_length)
    assert min(len(hypothesis.tokens) for hypothesis in found) == min_length
    (best,) = greedy(model, [[9]], [8], min_length=min_length)
    assert best.tokens == (4,) * min_length
    assert best.log_prob == pytest.approx(min_length * math.log(0.7) + math.log(0.9), abs=1e-5)


def test_a_loop_is_left_where_it_would_repeat() -> None:
    """A model that repeats 4 5 forever, and emits 6 or </s> where that is forbidden."""
    model = TableModel(lambda _, prefix: {4 if prefix[-1:] != (4,) else 5: 0.9, 6: 0.06, EOS_ID: 0.04})
    expected = {0: (4, 5, 4, 5, 4, 5, 4, 5), 1: (4, 5, 6), 2: (4, 5, 4, 6, 4), 3: (4, 5, 4, 5, 6, 4, 5)}
    for size, tokens in expected.items():
        (best,) = greedy(model, [[9]], [8], no_repeat=size)
        assert best.tokens == tokens
        (found,) = beam(model, [[9]], [8], 4, no_repeat=size)
        assert not size or not any(repeats(hypothesis.tokens, size) for hypothesis in found)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_each_sentence_keeps_to_its_own_longest_output(beam_size: int) -> None:
    """The model never ends; a hypothesis cut at its maximal length has no </s> in its log-probability."""
    model = TableModel(lambda _, prefix: {EOS_ID: 0.0, 4: 0.9, 5: 0.1})
    max_lengths = [3, 1, 7, 2]
    for longest, hypotheses in zip(max_lengths, beam(model, [[9]] * 4, max_lengths, beam_size), strict=True):
        assert_same(hypotheses[:1], [Hypothesis((4,) * longest, longest * math.log(0.9), math.log(0.9))])
        assert all(len(hypothesis.tokens) == longest for hypothesis in hypotheses)
    for longest, hypothesis in zip(max_lengths, greedy(model, [[9]] * 4, max_lengths), strict=True):
        assert_same([hypothesis], [Hypothesis((4,) * longest, longest * math.log(0.9), math.log(0.9))])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_a_log_probability_is_forwards_sum_over_allowed_tokens(seed: int, alpha: float) -> None:
    model, sentences, longest = lively_model(seed), random_sentences(seed, 5), 7
    found = beam(model, sentences, [longest] * 5, beam_size=4, length_penalty=alpha)
    best = greedy(model, sentences, [longest] * 5, length_penalty=alpha)
    for sentence, hypotheses in zip(sentences * 2, [*found, *([one] for one in best)], strict=True):
        for hypothesis in hypotheses:
            ended = (EOS_ID,) if len(hypothesis.tokens) < longest else ()
            tgt_out = torch.tensor([hypothesis.tokens + ended])  # (1, T)
            tgt_in = torch.tensor([[BOS_ID, *hypothesis.tokens, EOS_ID][: tgt_out.shape[1]]])
            with torch.no_grad():
                logits = model(source([sentence]), tgt_in)  # (1, T, V)
            logits[..., [PAD_ID, BOS_ID, UNK_ID]] = logits[:, 0, EOS_ID] = -torch.inf
            log_probs = logits.log_softmax(dim=-1)  # (1, T, V)
            total = log_probs.gather(2, tgt_out[:, :, None]).sum().item()
            assert hypothesis.log_prob == pytest.approx(total, abs=1e-4)
            assert hypothesis.score == pytest.approx(total / max(1, len(hypothesis.tokens)) ** alpha, abs=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_hypotheses_are_distinct_and_sorted_best_first(seed: int) -> None:
    for alpha in (0.0, 1.0):
        for hypotheses in beam(lively_model(seed), random_sentences(seed, 5), [8] * 5, 5, alpha):
            scores = [hypothesis.score for hypothesis in hypotheses]
            assert len(hypotheses) == 5
            assert scores == sorted(scores, reverse=True)
            assert len({hypothesis.tokens for hypothesis in hypotheses}) == 5


def test_a_hypothesis_holds_plain_numbers() -> None:
    model = lively_model(0)
    found = [greedy(model, [[5, 6]], [5])[0], *beam(model, [[5, 6]], [5], beam_size=2)[0]]
    for hypothesis in found:
        assert type(hypothesis.tokens) is tuple
        assert {type(token) for token in hypothesis.tokens} == {int}
        assert type(hypothesis.log_prob) is type(hypothesis.score) is float


# --- Constraints -----------------------------------------------------------------------------------------


def test_longest_outputs_by_hand() -> None:
    """Ratio 1.5 and ten more, at most 50: 11.5, 14.5 and 25 are rounded down, 160 is cut."""
    config = DecodingConfig(max_length_ratio=1.5, max_length=50)
    longest = Constraints.of(config, OWN_SPECIAL_IDS, [1, 3, 10, 26, 27, 100]).max_lengths
    assert longest.tolist() == [11, 14, 25, 49, 50, 50]
    assert longest.dtype == torch.int64
    assert Constraints.of(DecodingConfig(), OWN_SPECIAL_IDS, [0, 4]).max_lengths.tolist() == [10, 22]


def test_log_probabilities_of_allowed_tokens_by_hand() -> None:
    """Equal logits: each of the N tokens that are allowed has a probability of 1 / N."""
    never = -math.inf

    def row(prefix: Prefix, min_length: int, no_repeat: int) -> list[float]:
        limits = constraints([9], min_length, no_repeat)
        log_probs = limits.allowed_log_probs(torch.full((1, 1, 6), 7.0), torch.tensor([[prefix]]))
        return [round(value, 4) for value in log_probs[0, 0].tolist()]

    half, third = round(math.log(1 / 2), 4), round(math.log(1 / 3), 4)
    assert row((4,), min_length=2, no_repeat=0) == [never, never, never, never, half, half]
    assert row((4, 4), min_length=2, no_repeat=3) == [never, never, third, never, third, third]
    assert row((4, 4), min_length=2, no_repeat=2) == [never, never, half, never, never, half]
    assert row((5, 4), min_length=2, no_repeat=2) == [never, never, third, never, third, third]
    assert row((5, 4), min_length=3, no_repeat=1) == [never, never, 0.0, never, never, never]


def test_nan_is_not_hidden_by_forbidden_tokens() -> None:
    logits = torch.full((2, 1, 6), torch.nan)
    limits = constraints([9, 9], min_length=3, no_repeat=0)
    assert limits.allowed_log_probs(logits, torch.tensor([[[4, 5]]] * 2))[..., 4:].isnan().all()


def test_half_precision_logits_become_fp32_before_the_softmax() -> None:
    logits = torch.randn(2, 1, 6).bfloat16()
    log_probs = constraints([9, 9], 0, 0).allowed_log_probs(logits.clone(), torch.tensor([[[4]]] * 2))
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(
        log_probs[..., [2, 4, 5]], logits[..., [2, 4, 5]].float().log_softmax(-1), rtol=0, atol=1e-6
    )
