"""Joined batches: the plan of an epoch, and the rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import batch_of
from hypothesis import given
from hypothesis import strategies as st

from nmt.batches.batches import batch_loader, share_of_real_positions
from nmt.batches.dataset import encode_corpus
from nmt.batches.joining import JoinedShape, plan_joined
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TokenizerConfig
from nmt.models.joined import sentences_of
from nmt.tokenizers.building import ensure_tokenizers

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=300)


class _Side:
    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths


class _Corpus:
    """What a shape needs of a corpus."""

    def __init__(self, pairs: list[tuple[int, int]]) -> None:
        self.src, self.tgt = (_Side(np.array(side, dtype=np.int32)) for side in zip(*pairs, strict=True))


@given(pairs=LENGTHS, batch_tokens=st.integers(2, 400), seed=st.integers(0, 3), epoch=st.integers(0, 3))
def test_every_pair_is_in_one_batch_and_every_batch_has_the_shape(
    pairs: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int
) -> None:
    corpus = _Corpus(pairs)
    shape = JoinedShape.of(corpus, batch_tokens)  # type: ignore[arg-type]
    plan = plan_joined(corpus.src.lengths, corpus.tgt.lengths, shape, seed, epoch)
    assert sorted(index for batch in plan for index in batch.tolist()) == list(range(len(pairs)))
    for chosen in plan:
        ids = [([4] * pairs[index][0], [5] * pairs[index][1]) for index in chosen]
        batch = batch_of(ids, shape=shape)
        joined = batch.source.joined
        assert joined is not None
        assert joined.max_length == 1 + max(max(pair) for pair in pairs)
        assert (batch.source.values.shape, batch.tgt_in.shape) == ((1, shape.lengths[0]), (1, shape.lengths[1]))
        assert batch.tgt_out.shape == batch.tgt_in.shape
        for starts, side, length in zip(joined[:2], (0, 1), shape.lengths, strict=True):
            assert starts.dtype == torch.int32
            assert len(starts) == shape.pairs + shape.spare + 1
            found = starts.diff().tolist()
            assert found[: len(ids)] == [len(pair[side]) + 1 for pair in ids]
            assert sum(found) == length
            fillers = [length for length in found[len(ids) :] if length]
            assert found[len(ids) :] == fillers + [0] * (len(found) - len(ids) - len(fillers))
            assert max(found) <= joined.max_length
        # As many filler sentences on both sides: a query without a key would have no attention.
        assert ((joined.src_starts.diff() > 0) == (joined.tgt_starts.diff() > 0)).all()


def test_joined_pairs_are_written_out_by_hand() -> None:
    shape = JoinedShape((10, 9), pairs=3, max_length=4)
    batch = batch_of([([7, 8], [5]), ([9], [6, 7, 8])], shape=shape)
    assert batch.source.values.tolist() == [[7, 8, 2, 9, 2, 2, 2, 2, 2, 2]]
    assert batch.source.mask.tolist() == [[True] * 10]
    assert batch.tgt_in.tolist()[0][:6] == [1, 5, 1, 6, 7, 8]
    assert batch.tgt_out.tolist() == [[5, 2, 6, 7, 8, 2, 2, 2, 2]]
    assert batch.tgt_positions.tolist() == list(range(6))
    assert batch.num_tgt_tokens == 6
    assert batch.source.joined is not None
    src_starts, tgt_starts, max_length = batch.source.joined
    assert src_starts.tolist() == [0, 3, 5, 7, 10, 10, 10]  # fillers of 2 and 3 positions
    assert tgt_starts.tolist() == [0, 2, 6, 7, 9, 9, 9]
    assert max_length == 4
    sentences, places = sentences_of(src_starts, 10)
    assert sentences.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert places.tolist() == [0, 1, 2, 0, 1, 0, 1, 0, 1, 2]


def test_a_joined_batch_moves_whole() -> None:
    batch = batch_of([([7, 8], [5])], shape=JoinedShape((8, 8), pairs=2, max_length=4))
    moved = batch.to(torch.device("meta")).source.joined
    assert moved is not None
    assert [starts.device.type for starts in moved[:2]] == ["meta", "meta"]
    assert moved.max_length == 4


def test_batches_of_a_large_corpus_are_full_and_planned_alike_each_time() -> None:
    random = np.random.default_rng(1)
    src = np.exp(random.normal(3.0, 0.6, 200_000)).clip(1, 127).round().astype(np.int32)
    tgt = (1.4 * src + random.normal(0, 2, len(src))).clip(1, 127).round().astype(np.int32)
    corpus = _Corpus(list(zip(src.tolist(), tgt.tolist(), strict=True)))
    shape = JoinedShape.of(corpus, 25_344)  # type: ignore[arg-type]
    assert shape.lengths[1] == 25_344
    assert shape.lengths[0] % 128 == 0
    assert shape.lengths[0] < 0.8 * shape.lengths[1]
    plan = plan_joined(src, tgt, shape, 1, 0)
    assert all((one == other).all() for one, other in zip(plan, plan_joined(src, tgt, shape, 1, 0), strict=True))
    other_epoch = plan_joined(src, tgt, shape, 1, 1)
    assert plan[0].tolist() != other_epoch[0].tolist()
    real = sum(int((side + 1).sum()) for side in (src, tgt))
    assert real > 0.97 * len(plan) * sum(shape.lengths)
    fullest = [
        max((side[batch] + 1).sum() / length for side, length in zip((src, tgt), shape.lengths, strict=True))
        for batch in plan[:-1]
    ]
    assert min(fullest) > 0.98


def test_a_batch_has_no_more_pairs_than_the_shape_allows() -> None:
    lengths = np.ones(20, dtype=np.int32)
    plan = plan_joined(lengths, lengths, JoinedShape((400, 400), pairs=3, max_length=6), 1, 0)
    assert [len(batch) for batch in plan] == [3, 3, 3, 3, 3, 3, 2]


def test_a_small_corpus_has_small_batches_and_a_mixture_the_shape_of_its_pairs() -> None:
    corpus = _Corpus([(9, 9)] * 50)
    shape = JoinedShape.of(corpus, 25_344)  # type: ignore[arg-type]
    assert shape.lengths[0] < 600
    assert len(plan_joined(corpus.src.lengths, corpus.tgt.lengths, shape, 1, 0)) == 1
    # Few long pairs, and short ones many times: the plan fills its rows, too.
    mixed = _Corpus([(60, 60)] * 300 + [(4, 8)] * 50)
    pairs = np.array([*range(0, 300, 10), *np.repeat(np.arange(300, 350), 40)])
    shape = JoinedShape.of(mixed, 2_000, pairs)  # type: ignore[arg-type]
    assert shape.lengths[0] < 0.8 * shape.lengths[1]
    plan = plan_joined(mixed.src.lengths, mixed.tgt.lengths, shape, 1, 0, pairs)
    real = sum(int((side.lengths[batch] + 1).sum()) for batch in plan for side in (mixed.src, mixed.tgt))
    assert real > 0.85 * len(plan) * sum(shape.lengths)


def test_a_mixture_repeats_pairs_as_often_as_it_says() -> None:
    lengths = np.full(10, 5, dtype=np.int32)
    shape = JoinedShape((40, 40), pairs=20, max_length=6)
    chosen = np.array([0, 0, 1, 2, 2, 2])
    plan = plan_joined(lengths, lengths, shape, 1, 0, chosen)
    assert sorted(np.concatenate(plan).tolist()) == chosen.tolist()


def test_the_loader_joins_the_pairs_of_the_plan(
    write_lines: Callable[[str, list[str]], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [" ".join(f"w{(pair + n) % 9}" for n in range(1 + pair % 7)) for pair in range(60)]
    files = CorpusFiles(src=write_lines("p.src", lines), tgt=write_lines("p.tgt", lines[::-1]))
    tokenizers = ensure_tokenizers([files], TokenizerConfig(type="word"), tmp_path / "tokenizer")
    corpus = encode_corpus([files], tokenizers, tmp_path / "tokenizer", 100)
    shape = JoinedShape.of(corpus, 64)
    plan = plan_joined(corpus.src.lengths, corpus.tgt.lengths, shape, 1, 0)
    batches = list(batch_loader(corpus, plan, torch.device("cpu"), shape=shape))
    assert len(batches) == len(plan) > 3
    real = 0
    for chosen, batch in zip(plan, batches, strict=True):
        expected = [index for pair in chosen for index in [*corpus[pair][1].tolist(), corpus.tgt.special.eos]]
        assert batch.tgt_out[0, : batch.num_tgt_tokens].tolist() == expected
        sources = [index for pair in chosen for index in [*corpus[pair][0].tolist(), corpus.src.special.eos]]
        assert batch.source.values[0, : len(sources)].tolist() == sources
        real += len(expected) + len(sources)
    assert share_of_real_positions(corpus, plan, shape) == real / (len(plan) * sum(shape.lengths))
