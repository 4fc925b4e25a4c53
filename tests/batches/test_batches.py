"""Padded batches, the plan of an epoch, and the loader that follows it."""

import itertools
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import batch_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import nmt.batches.batches
import nmt.batches.dataset
from nmt.batches.batches import Plan, batch_loader, num_workers, plan_epoch, share_of_real_positions
from nmt.batches.dataset import EncodedCorpus, encode_corpus
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TokenizerConfig
from nmt.tokenizers.building import ensure_tokenizers

WriteLines = Callable[[str, list[str]], Path]
Lengths = NDArray[np.int32]
CorpusOf = Callable[[Lengths, Lengths], EncodedCorpus]

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=300)


def like_multi30k(count: int, seed: int) -> tuple[Lengths, Lengths]:
    """Lengths in pieces like those of Multi30k's English and German captions: 13 with a deviation of 4.5 a side,
    correlated to 0.88."""
    chance = np.random.default_rng(seed)
    src = np.exp(chance.normal(2.53, 0.33, count))
    tgt = src * np.exp(chance.normal(-0.06, 0.16, count))
    return src.round().clip(3, 60).astype(np.int32), tgt.round().clip(3, 60).astype(np.int32)


@pytest.fixture
def corpus_of(write_lines: WriteLines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CorpusOf:
    """`corpus_of(src_lengths, tgt_lengths)` encodes pairs of these lengths; word n of pair p is `p mod 50 + n`."""
    monkeypatch.chdir(tmp_path)

    def make(src_lengths: Lengths, tgt_lengths: Lengths) -> EncodedCorpus:
        def lines(lengths: Lengths) -> list[str]:
            return [" ".join(f"w{pair % 50 + n}" for n in range(length)) for pair, length in enumerate(lengths)]

        files = CorpusFiles(src=write_lines("p.src", lines(src_lengths)), tgt=write_lines("p.tgt", lines(tgt_lengths)))
        tokenizers = ensure_tokenizers([files], TokenizerConfig(type="word"), tmp_path / "tokenizer")
        corpus = encode_corpus([files], tokenizers, tmp_path / "tokenizer", 1000)
        assert corpus.src.lengths.tolist() == src_lengths.tolist()
        return corpus

    return make


def as_lists(plan: Plan) -> list[list[int]]:
    return [batch.tolist() for batch in plan]


# ------------------------------------------------------------------------------------------------- collate


def test_a_ragged_batch_is_padded_as_written_out_by_hand() -> None:
    batch = batch_of([([7, 8], [5]), ([9], [6, 7, 8]), (np.array([4, 5, 6], np.uint16), np.array([9, 4], np.uint16))])
    assert batch.source.values.tolist() == [[7, 8, 2, 0], [9, 2, 0, 0], [4, 5, 6, 2]]
    assert batch.source.mask.tolist() == [[True, True, True, False], [True, True, False, False], [True] * 4]
    assert batch.tgt_in.tolist() == [[1, 5, 0, 0], [1, 6, 7, 8], [1, 9, 4, 0]]
    assert batch.tgt_out.tolist() == [[5, 2, 0, 0], [6, 7, 8, 2], [9, 4, 2, 0]]
    assert batch.num_tgt_tokens == 2 + 4 + 3
    assert type(batch.num_tgt_tokens) is int
    assert {tensor.dtype for tensor in (batch.source.values, batch.tgt_in, batch.tgt_out)} == {torch.int64}
    assert batch.source.mask.dtype == torch.bool


def test_a_batch_of_one_has_no_padding() -> None:
    batch = batch_of([([65535], [4, 5])])
    assert batch.source.values.tolist() == [[65535, 2]]
    assert batch.source.mask.tolist() == [[True, True]]
    assert batch.tgt_in.tolist() == [[1, 4, 5]]
    assert batch.tgt_out.tolist() == [[4, 5, 2]]
    assert batch.num_tgt_tokens == 3


def test_a_batch_moves_whole() -> None:
    moved = batch_of([([7, 8], [5])]).to(torch.device("meta"))
    assert {tensor.device.type for tensor in (moved.source.values, moved.source.mask, moved.tgt_in, moved.tgt_out)} == {
        "meta"
    }
    assert moved.tgt_positions.device.type == "meta"
    assert moved.num_tgt_tokens == 2


@given(pairs=st.lists(st.tuples(st.lists(st.integers(3, 70_000)), st.lists(st.integers(3, 70_000))), min_size=1))
def test_a_batch_is_its_pairs_written_out(pairs: list[tuple[list[int], list[int]]]) -> None:
    batch = batch_of(pairs)
    longest = [max(len(pair[side]) for pair in pairs) + 1 for side in (0, 1)]

    def padded(ids: list[int], side: int) -> list[int]:
        return ids + [0] * (longest[side] - len(ids))

    assert batch.source.values.tolist() == [padded([*src, 2], 0) for src, _ in pairs]
    assert batch.source.mask.tolist() == [[index <= len(src) for index in range(longest[0])] for src, _ in pairs]
    assert batch.tgt_in.tolist() == [padded([1, *tgt], 1) for _, tgt in pairs]
    assert batch.tgt_out.tolist() == [padded([*tgt, 2], 1) for _, tgt in pairs]
    positions = [row * longest[1] + index for row, (_, tgt) in enumerate(pairs) for index in range(len(tgt) + 1)]
    assert batch.tgt_positions.tolist() == positions
    assert batch.tgt_positions.dtype == torch.int64
    assert batch.num_tgt_tokens == len(positions)
    assert batch.tgt_out.flatten()[batch.tgt_positions].tolist() == [i for _, tgt in pairs for i in [*tgt, 2]]


# -------------------------------------------------------------------------------------- the plan of an epoch


@given(pairs=LENGTHS, batch_tokens=st.integers(41, 400), seed=st.integers(0, 3), epoch=st.integers(0, 3))
def test_every_pair_is_in_one_batch_and_no_batch_exceeds_its_tokens(
    pairs: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int
) -> None:
    src, tgt = (np.array(side, dtype=np.int32) for side in zip(*pairs, strict=True))
    plan = as_lists(plan_epoch(src, tgt, batch_tokens, seed, epoch))
    assert sorted(index for batch in plan for index in batch) == list(range(len(pairs)))
    for chosen in plan:
        batch = batch_of([([4] * pairs[index][0], [5] * pairs[index][1]) for index in chosen])
        assert max(batch.source.values.numel(), batch.tgt_in.numel(), batch.tgt_out.numel()) <= batch_tokens


@given(pairs=LENGTHS, batch_tokens=st.integers(41, 400))
def test_a_batch_that_is_less_than_half_full_had_no_room_for_the_next_pair(
    pairs: list[tuple[int, int]], batch_tokens: int
) -> None:
    src, tgt = (np.array(side, dtype=np.int32) for side in zip(*pairs, strict=True))
    widths = [np.maximum(src, tgt)[batch] + 1 for batch in plan_epoch(src, tgt, batch_tokens, 0, 0)]
    widths.sort(key=lambda batch: (batch.min(), batch.max(), -len(batch)))
    for batch, following in itertools.pairwise(widths):
        if batch.max() * len(batch) < batch_tokens / 2:
            assert following.min() * (len(batch) + 1) > batch_tokens


def test_the_longest_allowed_pair_fills_a_batch() -> None:
    plan = as_lists(plan_epoch(np.array([40, 40, 1]), np.array([3, 40, 1]), 41, 0, 0))
    assert sorted(map(sorted, plan)) == [[0], [1], [2]]


def test_a_batch_takes_as_many_pairs_as_its_tokens_hold_and_not_one_more() -> None:
    nines = np.full(8, 9)  # ten positions each, with </s>
    assert [len(batch) for batch in plan_epoch(nines, nines, 80, 0, 0)] == [8]
    assert sorted(len(batch) for batch in plan_epoch(nines, nines, 79, 0, 0)) == [1, 7]


def test_a_plan_is_the_same_for_the_same_seed_and_epoch_and_another_for_others() -> None:
    src, tgt = like_multi30k(2000, seed=0)
    plan = as_lists(plan_epoch(src, tgt, 1024, 7, 3))
    torch.manual_seed(99)
    np.random.seed(99)
    assert as_lists(plan_epoch(src.copy(), tgt.copy(), 1024, 7, 3)) == plan
    others = [as_lists(plan_epoch(src, tgt, 1024, *key)) for key in ((7, 4), (8, 3), (3, 7))]
    for other in others:
        assert other != plan
        assert {frozenset(batch) for batch in other} != {frozenset(batch) for batch in plan}  # other batches too
    assert others[0] != others[1] != others[2]


def test_the_batches_do_not_come_in_the_order_of_their_lengths() -> None:
    src, tgt = like_multi30k(5000, seed=0)
    for epoch in range(3):
        widths = np.array([max(src[batch].max(), tgt[batch].max()) for batch in plan_epoch(src, tgt, 512, 1, epoch)])
        assert len(widths) > 100
        position = np.arange(len(widths))
        # Shuffled, the correlation has a deviation of 1 / sqrt(n - 1), under 0.1; sorted, it is near 1.
        assert abs(np.corrcoef(position, widths)[0, 1]) < 0.4


def test_the_first_batches_of_epochs_differ_in_length() -> None:
    src, tgt = like_multi30k(5000, seed=0)
    firsts = {int(src[plan_epoch(src, tgt, 512, 1, epoch)[0]].max()) for epoch in range(20)}
    assert len(firsts) > 5


def batches_pair_by_pair(src: Lengths, tgt: Lengths, batch_tokens: int) -> Counter[tuple[tuple[int, int], ...]]:
    """The batches that `plan_epoch` describes, by a sort of three keys and a loop over all pairs, as lengths."""

    def key(pair: tuple[int, int]) -> tuple[int, int]:
        longer = max(pair)
        return longer, (1 if longer % 2 == 0 else -1) * (pair[0] - pair[1])

    pairs = sorted(zip(src.tolist(), tgt.tolist(), strict=True), key=key)
    cuts, start, before = [0], 0, 0
    for end, width in enumerate(max(pair) + 1 for pair in pairs):
        is_full = width * (end + 1 - start) > batch_tokens
        if is_full or (width > before and before * (end - start) >= batch_tokens / 2):
            start = end
            cuts.append(start)
        before = width
    return Counter(tuple(pairs[begin:end]) for begin, end in itertools.pairwise([*cuts, len(pairs)]))


@given(pairs=LENGTHS, batch_tokens=st.integers(41, 400), piece=st.sampled_from([1, 7, 1 << 20]), data=st.data())
def test_a_plan_equals_that_of_a_loop_over_all_pairs(
    pairs: list[tuple[int, int]], batch_tokens: int, piece: int, data: st.DataObject
) -> None:
    """With every pair once, or with the pairs drawn for an epoch, some of them several times."""
    src, tgt = (np.array(side, dtype=np.int32) for side in zip(*pairs, strict=True))
    drawn = data.draw(st.none() | st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=300))
    chosen = np.arange(len(pairs)) if drawn is None else np.array(drawn)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(nmt.batches.batches, "_CHUNK", piece)
        plan = plan_epoch(src, tgt, batch_tokens, 0, 0, None if drawn is None else chosen)
    assert sorted(index for batch in as_lists(plan) for index in batch) == sorted(chosen.tolist())
    found = Counter(tuple((int(src[index]), int(tgt[index])) for index in batch) for batch in plan)
    assert found == batches_pair_by_pair(src[chosen], tgt[chosen], batch_tokens)


@pytest.mark.parametrize("longest", [5, 255, 4000, 65_000])
def test_a_plan_of_long_lines_is_sorted_too(longest: int) -> None:
    src, tgt = np.random.default_rng(0).integers(1, longest + 1, size=(2, 400)).astype(np.int32)
    plan = plan_epoch(src, tgt, 2 * longest, 0, 0)
    found = Counter(tuple((int(src[index]), int(tgt[index])) for index in batch) for batch in plan)
    assert found == batches_pair_by_pair(src, tgt, 2 * longest)


def test_a_plan_of_long_lines_of_a_large_corpus_is_sorted_too() -> None:
    """The key of a pair has 64 bits; here its length takes 32 of them, and its number 25."""
    src, tgt = np.random.default_rng(0).integers(1, 65_001, size=(2, 400)).astype(np.int32)
    numbers = np.arange(2**24 - 400, 2**24)
    large = [np.concatenate([np.ones(2**24 - 400, np.int32), lengths]) for lengths in (src, tgt)]
    plan = plan_epoch(large[0], large[1], 130_000, 0, 0, numbers)
    found = Counter(tuple((int(large[0][pair]), int(large[1][pair])) for pair in batch) for batch in plan)
    assert found == batches_pair_by_pair(src, tgt, 130_000)


def test_a_plan_takes_four_bytes_a_pair() -> None:
    assert {batch.dtype for batch in plan_epoch(*like_multi30k(100, seed=0), 512, 0, 0)} == {np.dtype(np.int32)}


def test_a_plan_can_be_sliced() -> None:
    src, tgt = like_multi30k(2000, seed=0)
    plan = plan_epoch(src, tgt, 512, 0, 0)
    ranks = [plan[rank::3] for rank in range(3)]
    assert sum(map(len, ranks)) == len(plan)
    assert [batch.tolist() for batch in plan[4:7]] == [ranks[index % 3][index // 3].tolist() for index in (4, 5, 6)]


# ----------------------------------------------------------------------------------- share of real positions


def test_the_share_of_real_positions_agrees_with_a_count_by_hand(corpus_of: CorpusOf) -> None:
    corpus = corpus_of(np.array([1, 3, 5], np.int32), np.array([2, 1, 5], np.int32))
    # Each line and its </s>. Together: sources 2 + 4 + 6 of 18, targets 3 + 2 + 6 of 18.
    assert share_of_real_positions(corpus, [np.array([0, 1, 2])]) == pytest.approx(23 / 36)
    # Apart: sources 2 + 4 of 8, targets 3 + 2 of 6, then 6 of 6 twice.
    assert share_of_real_positions(corpus, [np.array([2]), np.array([1, 0])]) == pytest.approx(23 / 26)


def test_the_share_of_real_positions_agrees_with_the_batches(corpus_of: CorpusOf) -> None:
    corpus = corpus_of(*like_multi30k(500, seed=2))
    plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, 512, 0, 0)
    batches = list(batch_loader(corpus, plan, torch.device("cpu")))
    real = sum(int(batch.source.mask.sum()) + batch.num_tgt_tokens for batch in batches)
    everything = sum(batch.source.values.numel() + batch.tgt_out.numel() for batch in batches)
    assert share_of_real_positions(corpus, plan) == pytest.approx(real / everything)


@pytest.mark.parametrize("seed", [1, 2])
def test_nearly_all_positions_are_real_on_a_corpus_like_multi30k(seed: int) -> None:
    src, tgt = like_multi30k(29_000, seed)
    real = padded = 0
    for batch in plan_epoch(src, tgt, 4096, seed, 0):
        for lengths in (src[batch] + 1, tgt[batch] + 1):
            real += lengths.sum()
            padded += lengths.max() * len(batch)
    assert real / padded >= 0.95
    assert padded / 2 / 4096 >= 0.85 * len(plan_epoch(src, tgt, 4096, seed, 0))  # and the batches are full


# ----------------------------------------------------------------------------------------------- the loader


def test_the_loader_yields_the_batches_of_the_plan_in_order(corpus_of: CorpusOf) -> None:
    corpus = corpus_of(*like_multi30k(300, seed=3))
    plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, 256, 5, 2)
    assert len(plan) > 10
    batches = list(batch_loader(corpus, plan, torch.device("cpu")))
    assert len(batches) == len(plan)
    for batch, chosen in zip(batches, plan, strict=True):
        for row, pair in enumerate(chosen.tolist()):
            src, tgt = (side.tolist() for side in corpus[pair])
            assert batch.source.values[row][batch.source.mask[row]].tolist() == [*src, 2]
            assert batch.tgt_in[row, : len(tgt) + 1].tolist() == [1, *tgt]
            assert batch.tgt_out[row, : len(tgt) + 1].tolist() == [*tgt, 2]
        assert len(batch.source.values) == len(chosen)


def test_batches_of_the_loader_equal_collated_pairs_though_pages_are_released(
    corpus_of: CorpusOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nmt.batches.dataset, "_PAIRS_MAPPED", 20)
    corpus = corpus_of(*like_multi30k(300, seed=3))
    plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, 256, 5, 2)
    for batch, chosen in zip(batch_loader(corpus, plan, torch.device("cpu")), plan, strict=True):
        expected = batch_of([corpus[pair] for pair in chosen.tolist()])
        for ours, theirs in zip(batch, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_another_process_opens_the_files_itself(corpus_of: CorpusOf, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of(*like_multi30k(3000, seed=3))
    sent = pickle.dumps(corpus)
    assert len(sent) < 1000
    monkeypatch.chdir("/")
    again = pickle.loads(sent)
    assert again.key == corpus.key
    assert [again[5][side].tolist() for side in (0, 1)] == [corpus[5][side].tolist() for side in (0, 1)]


def test_the_loader_yields_the_requested_batches(corpus_of: CorpusOf) -> None:
    corpus = corpus_of(*like_multi30k(300, seed=3))
    plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, 256, 5, 2)
    whole = [batch.source.values.tolist() for batch in batch_loader(corpus, plan, torch.device("cpu"))]
    for numbers in (range(4, len(plan)), [7, 2, 5], []):
        some = batch_loader(corpus, plan, torch.device("cpu"), numbers)
        assert [batch.source.values.tolist() for batch in some] == [whole[number] for number in numbers]


def test_batches_are_made_ahead_for_a_gpu_and_where_there_is_something_to_augment() -> None:
    ahead = {(kind, more): num_workers(torch.device(kind), more) for kind in ("cpu", "cuda") for more in (False, True)}
    assert ahead["cpu", False] == 0
    assert min(ahead["cpu", True], ahead["cuda", False], ahead["cuda", True]) > 0


def test_the_loader_draws_nothing_from_the_generator_that_dropout_uses(corpus_of: CorpusOf) -> None:
    corpus = corpus_of(*like_multi30k(100, seed=3))
    plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, 256, 0, 0)
    before = torch.get_rng_state()
    for _ in range(2):
        assert len(list(batch_loader(corpus, plan, torch.device("cpu")))) == len(plan)
    assert torch.equal(torch.get_rng_state(), before)
