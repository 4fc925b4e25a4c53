"""Noise in the sources of a corpus: shares and distances counted, pieces of a word together, nothing else changed."""

from pathlib import Path

import numpy as np
import pytest
from test_tags import config_of, corpora, folder, rows, tokenizers_of

from nmt.config.training import Config
from nmt.data.augmentation import Augmentation
from nmt.data.dataset import encode_corpus
from nmt.data.noise import MAX_SHIFT, noisy
from nmt.data.vocabulary import UNK_ID

__all__ = ["folder"]


def test_words_are_dropped_blanked_and_moved_as_often_and_as_far_as_it_says() -> None:
    random, share, count, rounds = np.random.default_rng(1), 0.1, 40, 500
    ids = range(10, 10 + count)
    dropped = blanked = shifted = 0
    reached = 0
    for _ in range(rounds):
        found = noisy(ids, range(count), share, UNK_ID, random)
        dropped += count - len(found)
        blanked += found.count(UNK_ID)
        real = [index for index in found if index != UNK_ID]
        for place, index in enumerate(real):  # how many of those after it are before it, and the other way round
            passed = sum(other > index for other in real[:place]), sum(other < index for other in real[place:])
            assert max(passed) <= MAX_SHIFT
            reached = max(reached, *passed)
        shifted += real != sorted(real)
    total = count * rounds
    assert dropped / total == pytest.approx(share, abs=0.01)
    assert blanked / (total - dropped) == pytest.approx(share, abs=0.01)
    assert shifted > 0.99 * rounds
    assert reached == MAX_SHIFT


def test_a_word_stays_together_and_one_is_always_left() -> None:
    random = np.random.default_rng(2)
    for _ in range(200):
        found = noisy([10, 11, 12, 20, 30, 31], [0, 0, 0, 1, 2, 2], 0.3, UNK_ID, random)
        text = "".join({10: "a", 11: "b", 12: "c", 20: "d", 30: "e", 31: "f", UNK_ID: "?"}[index] for index in found)
        assert set(text.replace("abc", "").replace("d", "").replace("ef", "")) <= {"?"}
        assert len(noisy([10, 11], [0, 0], 0.99, UNK_ID, random)) in (1, 2)


def with_noise(config: Config, *shares: float) -> Config:
    train = [files.model_copy(update={"noise": share}) for files, share in zip(config.data.train, shares, strict=True)]
    return config.model_copy(update={"data": config.data.model_copy(update={"train": tuple(train)})})


def test_only_the_sources_of_its_corpus_change_and_another_way_each_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizers = tokenizers_of(folder, "bpe")
    corpus = encode_corpus(corpora(folder), tokenizers, Path("bpe"), 200, num_processes=0)
    pairs = np.array([70, 3, 61, 59, 80, 60])
    of_corpora = corpus.corpora_of(pairs)
    assert of_corpora.tolist() == [1, 0, 1, 0, 1, 1]
    src, tgt = corpus.src.gather(pairs), corpus.tgt.gather(pairs)
    config = with_noise(config_of(folder), 0.0, 0.2)
    assert config.changes_pairs
    assert not config_of(folder).changes_pairs
    first, again, later = (
        Augmentation(config, tokenizers, epoch)(5, src, tgt, of_corpora) for epoch in (0, 0, 1)
    )  # fmt: skip
    assert rows(first.src) == rows(again.src) != rows(later.src)
    assert rows(first.tgt) == rows(tgt)
    for corpus_of_row, before, after in zip(of_corpora, rows(src), rows(first.src), strict=True):
        if corpus_of_row == 0:
            assert after == before
        else:
            assert after[0] == before[0] == 5  # the tag
            pieces = [index for index in after[1:] if index != UNK_ID]
            assert all(pieces.count(index) <= before.count(index) for index in pieces)
            assert after != before
    plain = Augmentation(with_noise(config_of(folder), 0.3, 0.0), tokenizers, 0)(5, src, tgt, of_corpora)
    assert [one == other for one, other in zip(rows(plain.src), rows(src), strict=True)] == [
        corpus_of_row == 1 for corpus_of_row in of_corpora
    ]


def test_in_scripts_without_spaces_pieces_are_words(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizers = tokenizers_of(folder, "char")
    config = with_noise(config_of(folder), 0.1, 0.1)
    chinese = config.model_copy(update={"data": config.data.model_copy(update={"src_lang": "zh"})})
    ids = tokenizers.src.encode("Ein Mann schläft. " * 20)
    src = np.array(ids), np.array([len(ids)])
    english, by_piece = (Augmentation(one, tokenizers, 0)(0, src, src).src[0].tolist() for one in (config, chinese))
    assert by_piece.count(UNK_ID) > 2 * english.count(UNK_ID) > 0
    assert english != by_piece
