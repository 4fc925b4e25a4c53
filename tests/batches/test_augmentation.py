"""Augmentation of training pairs: what it changes, what it depends on, and how large it makes a batch."""

import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import regex
import torch
from test_training import newest_weights, trained

import nmt.batches.batches
import nmt.training.feeding
from nmt.batches.augmentation import Augmentation, Augmented, max_batch_shape, synthetic_text
from nmt.batches.batches import batch_loader, plan_epoch
from nmt.batches.dataset import EncodedCorpus, Ragged, encode_corpus
from nmt.batches.lexicon import Lexicon, learn_lexicon
from nmt.cleaning.normalize import normalize
from nmt.config.corpus import HeldOutFiles, TrainingFiles
from nmt.config.data import DataConfig
from nmt.config.inference import TokenizerConfig
from nmt.config.reading import load_config
from nmt.config.training import AugmentationConfig, Config, TrainingConfig
from nmt.errors import ConfigError
from nmt.tokenizers.building import ensure_tokenizers
from nmt.tokenizers.subwords import SubwordSampler
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer, Tokenizers
from nmt.tokenizers.vocabulary import EOS_ID, OWN_SPECIAL_IDS, UNK_ID

TINY = Path(__file__).parents[2] / "data" / "tiny"
FILES = HeldOutFiles(src=TINY / "val.en", tgt=TINY / "val.zh")
CPU = torch.device("cpu")
Corpus = tuple[Tokenizers, EncodedCorpus, Lexicon]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The validation set of the tiny corpus, its sentences with a capital, as BPE of 700 pieces."""
    folder = tmp_path_factory.mktemp("augmentation")
    for name in ("val.en", "val.zh"):
        (folder / name).write_text("".join(f"{line}\n" for line in lines(name, list(range(200)))), encoding="utf-8")
    files = HeldOutFiles(src=folder / "val.en", tgt=folder / "val.zh")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        tokenizers = ensure_tokenizers([files], TokenizerConfig(vocab_size=700), Path("tokenizer"))
        encoded = EncodedCorpus(
            encode_corpus([files], tokenizers, Path("tokenizer"), 60)._folder.resolve(),
            (OWN_SPECIAL_IDS, OWN_SPECIAL_IDS),
        )
        return tokenizers, encoded, learn_lexicon(encoded, tokenizers, (False, True))


def augmentation(
    corpus: Corpus, max_length: int = 400, epoch: int = 0, has_phrases: bool = False, **settings: float
) -> Augmentation:
    """Without phrases all fragments are joined pairs."""
    config = Config(
        data=DataConfig(train=(TrainingFiles(**FILES.model_dump()),), validation=FILES, max_length=max_length),
        training=TrainingConfig(max_steps=1),
        augmentation=AugmentationConfig(**settings),
    )
    return Augmentation(config, corpus[0], epoch, corpus[2] if has_phrases else None)


def augmented(corpus: Corpus, pairs: list[int], number: int = 0, epoch: int = 0, **settings: float) -> Augmented:
    """The pairs, augmented with the settings, as one batch."""
    encoded, chosen = corpus[1], np.array(pairs)
    change = augmentation(corpus, epoch=epoch, **settings)
    return change(number, encoded.src.gather(chosen), encoded.tgt.gather(chosen))


def rows(side: Ragged) -> list[list[int]]:
    ids, lengths = side
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def texts(side: Ragged, corpus: Corpus) -> list[str]:
    return [corpus[0].src.decode(row) for row in rows(side)]


def lines(name: str, pairs: list[int]) -> list[str]:
    every = (TINY / name).read_text(encoding="utf-8").splitlines()
    return [every[pair][0].upper() + every[pair][1:] for pair in pairs]


MANY = list(range(40))


def bpe_sampler(corpus: Corpus, alpha: float) -> SubwordSampler:
    assert isinstance(corpus[0].src, SentencePieceTokenizer)
    return SubwordSampler(corpus[0].src, "bpe", alpha)


def test_sampled_pieces_spell_the_same_text_in_other_ways(corpus: Corpus) -> None:
    """In every epoch, and many sentences are segmented differently in each."""
    seen = []
    for epoch in range(4):
        sampled = augmented(corpus, MANY, epoch=epoch, subword_sampling=0.2)
        assert texts(sampled.src, corpus) == lines("val.en", MANY)
        assert texts(sampled.tgt, corpus) == lines("val.zh", MANY)
        assert sampled.tgt_seen.tolist() == sampled.tgt[0].tolist()
        seen.append(rows(sampled.src) + rows(sampled.tgt))
    for one, other in itertools.combinations(seen, 2):
        assert sum(a != b for a, b in zip(one, other, strict=True)) > len(MANY)


def test_bpe_dropout_leaves_a_merge_out_as_often_as_it_says(corpus: Corpus) -> None:
    """One merge makes "▁a", so it is split with exactly that probability: 0.3 of 4,000, within four sigma."""
    tokenizer, sampler, random = corpus[0].src, bpe_sampler(corpus, 0.3), Random(1)
    ids = tokenizer.encode("a")
    assert tokenizer.pieces(ids) == ["▁a"]
    split = sum(len(sampler(ids, random)) == 2 for _ in range(4000))
    assert split / 4000 == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 4000) ** 0.5)


def test_without_dropout_the_merges_are_sentencepieces(corpus: Corpus) -> None:
    tokenizer, sampler = corpus[0].src, bpe_sampler(corpus, 0.0)
    for line in [*lines("val.en", list(range(200))), *lines("val.zh", list(range(200))), "UNSEEN Wörds, 漢字!", "a  b"]:
        assert sampler(tokenizer.encode(line), Random(1)) == tokenizer.encode(line)
    letters = bpe_sampler(corpus, 0.999999)(tokenizer.encode("the market"), Random(1))
    assert tokenizer.pieces(letters) == [*"▁the▁market"]


def test_a_merge_that_overlaps_itself_is_made_from_the_left_as_sentencepiece_makes_it() -> None:
    tokenizer = SentencePieceTokenizer.train(["aaaa baa aa"] * 100, TokenizerConfig(vocab_size=267))
    assert {"aa", "▁", "b"} <= tokenizer.normal_pieces()[1].keys()
    sampler = SubwordSampler(tokenizer, "bpe", 0.0)
    for word in ("aaa", "baaa", "aaaaa", "baaaaaaaaaba", "aaabaaabaaa"):
        assert sampler(tokenizer.encode(word), Random(1)) == tokenizer.encode(word)


def test_unigram_sampling_avoids_places_that_no_pieces_lead_to() -> None:
    """Nothing ends after "▁a", so neither "b" nor what follows it can be used."""
    scores = {"▁": -1.0, "abc": -20.0, "b": -1.0, "c": -1.0, "bc": -1.0}

    class Written:
        def normal_pieces(self) -> tuple[list[str | None], dict[str, float]]:
            return list(scores), scores

    sampler, random = SubwordSampler(Written(), "unigram", 0.5), Random(1)
    assert {tuple(sampler([0, 1], random)) for _ in range(50)} == {(0, 1)}


def test_a_text_that_starts_within_a_word_keeps_its_start(corpus: Corpus) -> None:
    tokenizer = corpus[0].src
    letters = bpe_sampler(corpus, 0.999999)(tokenizer.encode("the market"), Random(1))[1:]
    assert tokenizer.pieces(letters) == [*"the▁market"]
    for alpha in (0.0, 0.5):
        sampled = bpe_sampler(corpus, alpha)(letters, Random(1))
        assert "".join(tokenizer.pieces(sampled)) == "the▁market"


def test_unigram_sampling_draws_cuts_by_their_probability_to_the_power_alpha() -> None:
    """Kudo 2018: P(cut) in proportion to p(cut) ** alpha, over all cuts of the word, enumerated here."""
    text = (TINY / "train.en").read_text(encoding="utf-8").splitlines()[:1000]
    tokenizer = SentencePieceTokenizer.train(text, TokenizerConfig(type="unigram", vocab_size=500))
    alpha, word = 0.4, "▁man"
    _, scores = tokenizer.normal_pieces()
    chances = {}
    for places in itertools.chain.from_iterable(itertools.combinations(range(1, 4), n) for n in range(4)):
        cut = tuple(word[begin:end] for begin, end in itertools.pairwise((0, *places, 4)))
        if all(piece in scores for piece in cut):
            chances[cut] = np.exp(alpha * sum(scores[piece] for piece in cut))
    assert len(chances) > 1
    sampler, random = SubwordSampler(tokenizer, "unigram", alpha), Random(1)
    ids = tokenizer.encode("man")
    drawn = Counter(tuple(tokenizer.pieces(sampler(ids, random))) for _ in range(6000))
    assert drawn.keys() <= chances.keys()
    for cut, chance in chances.items():
        expected = chance / sum(chances.values())
        assert drawn[cut] / 6000 == pytest.approx(expected, abs=4 * (expected / 6000) ** 0.5 + 1e-3)


def test_unigram_sampling_of_a_long_word_has_as_many_pieces_as_its_probabilities_say() -> None:
    """In Decimal, whose range suffices for the weights of all segmentations of 240 characters: the mean number of
    pieces, from the sums of the weights, and of weights times pieces, over all segmentations up to each place."""
    text = (TINY / "train.en").read_text(encoding="utf-8").splitlines()[:1000]
    tokenizer = SentencePieceTokenizer.train(text, TokenizerConfig(type="unigram", vocab_size=500))
    _, scores = tokenizer.normal_pieces()
    alpha, word = 0.99, "▁" + "woman" * 48
    sums = [(Decimal(1), Decimal(0))]
    for end in range(1, len(word) + 1):
        weight = pieces = Decimal(0)
        for begin in range(max(0, end - 16), end):
            if (score := scores.get(word[begin:end])) is not None:
                chance = (Decimal(alpha) * Decimal(score)).exp()
                weight += chance * sums[begin][0]
                pieces += chance * (sums[begin][1] + sums[begin][0])
        sums.append((weight, pieces))
    assert float(sums[-1][0]) == 0  # it underflows outside the log domain
    expected = float(sums[-1][1] / sums[-1][0])
    assert 48 <= expected < 0.8 * len(word)
    sampler, random = SubwordSampler(tokenizer, "unigram", alpha), Random(1)
    drawn = [sampler(tokenizer.encode(word[1:]), random) for _ in range(300)]
    assert {tokenizer.decode(ids) for ids in drawn} == {word[1:]}
    counts = [len(ids) for ids in drawn]
    assert np.mean(counts) == pytest.approx(expected, abs=4 * np.std(counts) / 300**0.5 + 1e-6)


def test_draws_depend_on_seed_epoch_and_batch_alone(corpus: Corpus) -> None:
    def drawn(**where: int) -> list[list[int]]:
        change = augmented(corpus, MANY, **where, subword_sampling=0.1)  # type: ignore[arg-type]
        return rows(change.src) + rows(change.tgt)

    first = drawn(number=3, epoch=2)
    np.random.default_rng().random()
    assert drawn(number=3, epoch=2) == first
    assert drawn(number=4, epoch=2) != first != drawn(number=3, epoch=1)


def test_word_dropout_hides_its_share_and_never_the_targets_output(corpus: Corpus) -> None:
    plain, hidden = augmented(corpus, MANY), augmented(corpus, MANY, tgt_word_dropout=0.3)
    changed = plain.tgt_seen != hidden.tgt_seen
    assert (hidden.tgt_seen[changed] == UNK_ID).all()
    assert changed.mean() == pytest.approx(0.3, abs=4 * (0.21 / len(changed)) ** 0.5)
    assert hidden.tgt[0].tolist() == plain.tgt[0].tolist()
    assert hidden.src[0].tolist() == plain.src[0].tolist()


def test_hidden_words_reach_the_batch_at_the_decoders_input_alone(corpus: Corpus) -> None:
    encoded, change = corpus[1], augmentation(corpus, tgt_word_dropout=0.5)
    plan = [np.array(MANY)]
    plain, hidden = (next(iter(batch_loader(encoded, plan, CPU, augmentation=use))) for use in (None, change))
    assert torch.equal(hidden.tgt_out, plain.tgt_out)
    assert torch.equal(hidden.tgt_positions, plain.tgt_positions)
    assert torch.equal(hidden.source.mask, plain.source.mask)
    assert torch.equal(hidden.source.values, plain.source.values)
    assert 0.3 < (hidden.tgt_in == UNK_ID).sum() / plain.tgt_in.bool().sum() < 0.7
    assert torch.equal(hidden.tgt_in[hidden.tgt_in != UNK_ID], plain.tgt_in[hidden.tgt_in != UNK_ID])
    assert torch.equal((hidden.source.values == EOS_ID).sum(1), torch.ones(len(MANY)))
    assert (hidden.tgt_in[:, 0] == 1).all()


CHANGES: dict[str, Callable[[str], str]] = {
    "unchanged": str,
    "lowercased": str.lower,
    "a headline": lambda text: " ".join(word[0].upper() + word[1:] for word in text.split(" ")),
    "no punctuation": lambda text: text.translate(dict.fromkeys(map(ord, ".,?!"))),
}


def test_typed_input_has_a_third_of_each_change_in_whole_batches_and_on_the_source_alone(corpus: Corpus) -> None:
    pairs, counts, count = list(range(8)), Counter[str](), 500
    wanted = lines("val.en", pairs)
    for number in range(count):
        found = augmented(corpus, pairs, number, typed_input=0.6)
        assert texts(found.tgt, corpus) == lines("val.zh", pairs)
        (kind,) = (kind for kind, change in CHANGES.items() if [*map(change, wanted)] == texts(found.src, corpus))
        counts[kind] += 1
    for kind, share in zip(CHANGES, (0.4, 0.2, 0.2, 0.2), strict=True):
        assert counts[kind] / count == pytest.approx(share, abs=4 * (share * (1 - share) / count) ** 0.5)


def test_typed_input_keeps_combining_marks_and_knows_the_letters_of_a_language(tmp_path: Path) -> None:
    """Of Hindi, which has no case, the vowel signs are combining marks; of Turkish, I and i are two letters."""
    (tmp_path / "train.txt").write_text("हिन्दी भाषा।\nKIZ IŞIKTA, İNCİ!\nkız ışıkta, inci! ki̇\n" * 20, encoding="utf-8")
    files = TrainingFiles(src=tmp_path / "train.txt", tgt=tmp_path / "train.txt")
    tokenizer: Tokenizer = SentencePieceTokenizer.train(
        files.src.read_text(encoding="utf-8").splitlines(), TokenizerConfig(vocab_size=320)
    )

    def typed(line: str, src_lang: str) -> set[str]:
        """The line in 40 batches."""
        config = Config(
            data=DataConfig(train=(files,), validation=FILES, src_lang=src_lang, tgt_lang="en"),
            training=TrainingConfig(max_steps=1),
            augmentation=AugmentationConfig(typed_input=0.999999),
        )
        ids, change = np.array(tokenizer.encode(line)), Augmentation(config, Tokenizers(tokenizer, tokenizer), 0)
        side = ids, np.array([len(ids)])
        return {tokenizer.decode(change(number, side, side).src[0].tolist()) for number in range(40)}

    for script in ("hi", "mr-Deva", "ne"):
        assert typed("हिन्दी भाषा।", script) == {"हिन्दी भाषा"}
    for turkish in ("tr", "tur", "az-Latn"):
        assert typed("KIZ IŞIKTA, İNCİ!", turkish) == {"KIZ IŞIKTA, İNCİ!", "kız ışıkta, inci!", "KIZ IŞIKTA İNCİ"}
        assert typed("kız ışıkta, inci!", turkish) == {"kız ışıkta, inci!", "Kız Işıkta, İnci!", "kız ışıkta inci"}
    assert "KIZ IŞIKTA, İNCİ!".lower() in typed("KIZ IŞIKTA, İNCİ!", "en")


def inserted(before: str, after: str) -> set[tuple[int, str]]:
    """Every place and text whose insertion into `before`, with a space, makes `after`."""
    length = len(after) - len(before)
    return {
        (place, after[place : place + length])
        for place in range(len(before) + 1)
        if length > 1 and before[:place] == after[:place] and before[place:] == after[place + length :]
    }


@pytest.mark.parametrize("fragments", [0.0, 0.999])
def test_a_copy_is_the_same_on_both_sides_at_the_same_place(corpus: Corpus, fragments: float) -> None:
    """At one of four places: the beginning, the end, before the punctuation at the end, between joined sentences."""
    seen: Counter[str] = Counter()
    copied = with_copies = count = 0
    for number in range(40):
        plain = augmented(corpus, MANY, number, fragments=fragments)
        changed = augmented(corpus, MANY, number, fragments=fragments, copies=0.5, typed_input=0.6)
        sides = [texts(side, corpus) for side in (plain.src, plain.tgt, changed.src, changed.tgt)]
        assert changed.tgt_seen.tolist() == changed.tgt[0].tolist()
        if sides[1] == sides[3]:
            continue
        with_copies += 1
        count += len(sides[0])
        for src, tgt, new_src, new_tgt in zip(*sides, strict=True):
            if new_tgt == tgt:
                assert new_src == src
                continue
            copied += 1
            # The space is before the text, or after it at the beginning of a line.
            found = {text.strip() for _, text in inserted(src, new_src)} & {
                t.strip() for _, t in inserted(tgt, new_tgt)
            }
            assert found, (src, new_src, tgt, new_tgt)
            text = min(found, key=len)
            before, after = new_tgt.split(text, 1) if new_tgt.count(text) == 1 else ("?", "?")
            if (before, after) != ("?", "?"):
                ends_alike = [side.split(text, 1)[1].strip() for side in (new_src, new_tgt)]
                place = (
                    "first" if not before.strip() else "last" if not after else
                    "before the end" if all(end in (*".?!。？！",) for end in ends_alike) else "between"
                )  # fmt: skip
                seen[place] += 1
                assert (place == "first") == (not new_src.split(text, 1)[0].strip())
                assert (place == "last") == (not ends_alike[0])
    assert 7 < with_copies < 33  # four sigma
    assert copied / count > 0.7  # the others would be too long for their batch
    assert set(seen) == {"first", "last", "before the end", *(["between"] if fragments else [])}


def test_what_is_copied_is_written_in_known_pieces_and_of_every_kind() -> None:
    random = Random(1)
    made = [synthetic_text(random) for _ in range(4000)]
    patterns = {
        "e-mail": r"\S+@\S+",
        "URL": r"(https?://|www\.)\S+",
        "number": r"[0-9][0-9:./-]*",
        "emoji": r"[\p{Extended_Pictographic}\ufe0f]+",
    }
    kinds = Counter(kind for text in made for kind, pattern in patterns.items() if regex.fullmatch(pattern, text))
    assert kinds.total() == 4000
    assert set(kinds) == {"e-mail", "URL", "number", "emoji"}
    assert all(900 < number < 1100 for number in kinds.values())
    assert len(set(made)) > 3000
    assert all(text == text.lower() == normalize(text) and " " not in text for text in made)


def test_copies_need_pieces_for_unseen_characters(copy_task: Path) -> None:
    with pytest.raises(ConfigError, match=r"augmentation\.copies needs .*byte_fallback"):
        load_config(copy_task, ["augmentation.copies=0.1"])
    of_pieces = ["augmentation.copies=0.1", "tokenizer.type=bpe"]
    load_config(copy_task, of_pieces)
    with pytest.raises(ConfigError, match=r"augmentation\.copies needs .*byte_fallback"):
        load_config(copy_task, [*of_pieces, "tokenizer.byte_fallback=false"])
    with pytest.raises(ConfigError, match=r"augmentation\.typed_input and augmentation\.copies: needs? text sources"):
        load_config(copy_task, [*of_pieces, "augmentation.typed_input=0.1", "source.type=vectors", "source.features=3"])


@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_joining_uses_every_pair_once(corpus: Corpus, count: int) -> None:
    pairs = list(range(count))
    joined = augmented(corpus, pairs, fragments=0.999)
    half = count // 2
    for name, side in (("val.en", joined.src), ("val.zh", joined.tgt)):
        own = lines(name, pairs)
        alone = own[2 * half :]
        assert texts(side, corpus) == [f"{own[index]} {own[index + half]}" for index in range(half)] + alone
    apart = augmented(corpus, pairs)
    assert sorted(joined.tgt[0]) == sorted(apart.tgt[0])


def test_two_pairs_that_are_too_long_together_are_not_joined(corpus: Corpus) -> None:
    encoded = corpus[1]
    longest = np.argsort(encoded.tgt.lengths)[-2:]
    limit = max(int(side.lengths[longest].sum()) for side in (encoded.src, encoded.tgt)) - 1
    change = augmentation(corpus, limit, fragments=0.999)
    assert len(change(0, encoded.src.gather(longest), encoded.tgt.gather(longest)).tgt[1]) == 2
    change = augmentation(corpus, limit + 1, fragments=0.999)
    assert len(change(0, encoded.src.gather(longest), encoded.tgt.gather(longest)).tgt[1]) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fragments": 0.5},
        {"subword_sampling": 0.5},
        {"copies": 0.9},
        {"fragments": 0.9, "subword_sampling": 0.9, "copies": 0.9, "typed_input": 0.3},
    ],
)
@pytest.mark.parametrize("room", [0, 30])
@pytest.mark.parametrize("has_phrases", [False, True])
def test_no_batch_outgrows_its_limits(
    corpus: Corpus, settings: dict[str, float], room: int, has_phrases: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nmt.batches.batches, "num_workers", lambda device, is_augmented: 0)
    encoded = corpus[1]
    max_length = room + int(max(encoded.src.lengths.max(), encoded.tgt.lengths.max()))
    config = AugmentationConfig(**settings)
    limits = max_batch_shape(encoded, config, max_length)
    for batch_tokens in (64, 300):
        plan = plan_epoch(encoded.src.lengths, encoded.tgt.lengths, batch_tokens, 1, 0)
        change = augmentation(corpus, max_length, has_phrases=has_phrases, **settings) if config.is_on else None
        for batch in batch_loader(encoded, plan, CPU, augmentation=change):
            for side in (batch.source.values, batch.tgt_out):
                assert side.shape[1] <= limits.width <= max_length + 1
                assert side.numel() <= limits.stretch * batch_tokens


def test_words_with_unknown_pieces_keep_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = TokenizerConfig(vocab_size=600, byte_fallback=False, character_coverage=0.98)
    tokenizers = ensure_tokenizers([FILES], config, Path("tokenizer"))
    ids = tokenizers.src.encode("a man 漢 in a hat")
    assert UNK_ID in ids
    assert isinstance(tokenizers.src, SentencePieceTokenizer)
    sampled = SubwordSampler(tokenizers.src, "bpe", 0.9)(ids, Random(1))
    pieces = tokenizers.src.pieces(sampled)
    assert pieces.count("<unk>") == 1
    assert len(sampled) > len(ids)


ALL_ON = [
    "tokenizer.type=bpe", "tokenizer.vocab_size=275", "augmentation.subword_sampling=0.2", "augmentation.fragments=0.5",
    "augmentation.tgt_word_dropout=0.1", "augmentation.typed_input=0.2",
    "augmentation.copies=0.1",
]  # fmt: skip


@pytest.mark.slow
def test_interrupted_and_resumed_sees_the_same_pairs(copy_task: Path) -> None:
    straight = trained(copy_task, "straight", *ALL_ON)
    trained(copy_task, "stopped", *ALL_ON, "training.max_steps=5")  # in the middle of an epoch
    again = trained(copy_task, "stopped", *ALL_ON)
    assert newest_weights(again) == newest_weights(straight)
    without = trained(copy_task, "without", *ALL_ON, "augmentation.subword_sampling=0")
    assert newest_weights(without) != newest_weights(straight)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_everything_sent_to_a_worker_can_be_pickled(corpus: Corpus, kind: str) -> None:
    """It has the same effect in the worker."""
    files = TrainingFiles(**FILES.model_dump())
    tokenizers = corpus[0]
    if kind == "unigram":
        text = FILES.src.read_text(encoding="utf-8").splitlines()
        tokenizer = SentencePieceTokenizer.train(text, TokenizerConfig(type="unigram", vocab_size=400))
        tokenizers = Tokenizers(tokenizer, tokenizer)
    config = Config(
        data=DataConfig(train=(files,), validation=FILES),
        tokenizer=TokenizerConfig(type=kind),  # type: ignore[arg-type]
        training=TrainingConfig(max_steps=1),
        augmentation=AugmentationConfig(subword_sampling=0.3, typed_input=0.6, fragments=0.3, copies=0.3),
    )
    change = Augmentation(config, tokenizers, 3)
    sides = [tokenizers.src.encode_lines(lines("val.en", MANY)) for _ in range(2)]
    src, tgt = ((np.concatenate(side), np.array([*map(len, side)])) for side in sides)
    change(0, src, tgt)  # its cache is not sent
    again = pickle.loads(pickle.dumps(change))
    assert len(pickle.dumps(change)) < 10_000 + len(tokenizers.src.model or b"")
    for number in range(3):
        one, other = change(number, src, tgt), again(number, src, tgt)
        assert rows(one.src) + rows(one.tgt) == rows(other.src) + rows(other.tgt)


@pytest.mark.parametrize("method", ["as chosen", "spawn"])
def test_workers_make_the_same_batches_with_every_start_method(
    corpus: Corpus, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method != "as chosen":
        monkeypatch.setattr(nmt.batches.batches, "START_METHOD", method)
    encoded = corpus[1]
    plan = plan_epoch(encoded.src.lengths, encoded.tgt.lengths, 600, 1, 0)
    change = augmentation(corpus, has_phrases=True, subword_sampling=0.3, typed_input=0.6, fragments=0.6)
    loader = batch_loader(encoded, plan, CPU, augmentation=change)
    assert loader.num_workers == 1
    made = iter(loader)
    first = next(made)
    (worker,) = multiprocessing.active_children()
    assert f"{'ForkServer' if method == 'as chosen' and sys.platform == 'linux' else 'Spawn'}Process" in str(worker)
    here = [loader.dataset[key] for key in loader.sampler]
    for one, other in zip([first, *made], here, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def keep_asking(event: Any, ready: Any) -> None:
    ready.send(True)
    while not event.is_set():
        pass


def test_a_worker_killed_while_it_asks_whether_to_end_holds_no_lock(corpus: Corpus) -> None:
    """With multiprocessing's own event, such a worker holds its lock nearly half of the time, and asking then hangs.

    So it is stopped 40 times, at which it holds what it would hold if it was killed there, and then killed.
    """
    plan = plan_epoch(corpus[1].src.lengths, corpus[1].tgt.lengths, 600, 1, 0)
    loader = batch_loader(corpus[1], plan, CPU, augmentation=augmentation(corpus, typed_input=0.3))
    context = loader.multiprocessing_context
    event = context.Event()
    ready, theirs = context.Pipe(duplex=False)
    worker = context.Process(target=keep_asking, args=(event, theirs), daemon=True)
    worker.start()
    assert ready.poll(60) and ready.recv()
    for _ in range(40):
        os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(0.005)  # until it has stopped
        asking = threading.Thread(target=event.is_set, daemon=True)
        asking.start()
        asking.join(10)
        assert not asking.is_alive()
        os.kill(worker.pid, signal.SIGCONT)
        time.sleep(0.005)
    worker.kill()
    worker.join()
    worker = context.Process(target=keep_asking, args=(event, theirs), daemon=True)
    worker.start()
    event.set()
    worker.join(60)
    assert worker.exitcode == 0


def test_validation_is_not_augmented(copy_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    plain = nmt.training.feeding.batch_loader

    def watched(corpus: EncodedCorpus, *arguments: Any) -> Any:
        seen.append((corpus.key, arguments[3] is not None))
        return plain(corpus, *arguments)

    monkeypatch.setattr(nmt.training.feeding, "batch_loader", watched)
    trained(copy_task, "run", *ALL_ON)
    assert len({key for key, _ in seen}) == len(set(seen)) == 2  # either always or never
    assert [augmented for _, augmented in seen].count(False) == 2  # validations


def test_sampling_needs_a_tokenizer_that_has_ways_to_choose_from(copy_task: Path) -> None:
    with pytest.raises(ConfigError, match=r"subword_sampling needs tokenizer\.type bpe or unigram: a word tokenizer"):
        load_config(copy_task, ["augmentation.subword_sampling=0.1"])
