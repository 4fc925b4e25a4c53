"""Phrase pairs out of sentence pairs: words, IBM Model 1, consistency, and what a training sees of them."""

import itertools
import pickle
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

import nmt.batches.lexicon
from nmt.batches.augmentation import Augmentation, Augmented
from nmt.batches.dataset import EncodedCorpus, Ragged, encode_corpus
from nmt.batches.lexicon import Lexicon, is_text, learn_lexicon, links_of, sample, words_of
from nmt.batches.phrases import LENGTH_CHANCES, MAX_DIFFERENCE, MAX_WORDS, blocks, draw_phrases
from nmt.config.corpus import HeldOutFiles, TrainingFiles
from nmt.config.data import DataConfig
from nmt.config.inference import TokenizerConfig
from nmt.config.training import AugmentationConfig, Config, TrainingConfig
from nmt.tokenizers.building import ensure_tokenizers
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer, Tokenizers
from nmt.tokenizers.vocabulary import UNK_ID

TINY = Path(__file__).parents[2] / "data" / "tiny"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def as_ragged(rows: Sequence[Sequence[int]]) -> Ragged:
    return np.concatenate([np.array(row) for row in rows]), np.array([len(row) for row in rows])


def words_in(lines: Sequence[str], tokenizer: Tokenizer, by_piece: bool = False) -> list[list[tuple[str, bool]]]:
    """The text of each word of each line, and whether it counts as text. Put together, the words are the line."""
    found = words_of(as_ragged([tokenizer.encode(line) for line in lines]), tokenizer, by_piece)
    if not by_piece:
        assert ["".join(words) for words in found] == [*lines]
    return [[(word.strip(), is_text(word)) for word in words] for words in found]


def split(line: str) -> Iterator[tuple[str, bool]]:
    """The words of a line between spaces, punctuation at their ends apart."""
    for word in line.split():
        marks = "".join("p" if unicodedata.category(character)[0] in "PS" else "x" for character in word)
        begin, end = len(marks) - len(marks.lstrip("p")), len(marks.rstrip("p"))
        parts = (
            [(word, False)] if begin > end else [(word[:begin], False), (word[begin:end], True), (word[end:], False)]
        )
        yield from ((part, is_text) for part, is_text in parts if part)


LINES = [
    'the teacher\'s t-shirt, "the black" (coat)... is too-cheap !', "— and — so", "a  b 漢字 x漢y 🎉 z", "...", "old",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_words_are_what_is_between_spaces_and_the_punctuation_around_them(kind: str) -> None:
    text = [*(TINY / "train.en").read_text(encoding="utf-8").splitlines()[:400], *LINES]
    config = TokenizerConfig(type=kind, vocab_size=450)  # type: ignore[arg-type]
    tokenizer = SentencePieceTokenizer.train(text, config)
    assert words_in(text, tokenizer) == [list(split(line)) for line in text]


def test_in_a_script_without_spaces_every_piece_is_a_word_and_bytes_are_no_text() -> None:
    text = (TINY / "train.zh").read_text(encoding="utf-8").splitlines()[:300]
    tokenizer = SentencePieceTokenizer.train(text, TokenizerConfig(vocab_size=520))
    (found,) = words_in(["老师和她🎉爸爸。"], tokenizer, by_piece=True)
    pieces = tokenizer.pieces(tokenizer.encode("老师和她🎉爸爸。"))
    assert sum(piece.startswith("<0x") for piece in pieces) == 4
    assert [text for text, _ in found] == [piece.lstrip("▁") for piece in pieces if piece != "▁"]
    assert "".join(text for text, is_word in found if is_word) == "老师和她爸爸"


def test_a_line_with_an_unknown_word_has_no_words_and_a_tag_is_none() -> None:
    tokenizers = words("old", "neu")
    assert words_in(["old old"], tokenizers.src) == [[("old", True)] * 2]
    found = words_of(as_ragged([[4, UNK_ID, 4], [4]]), tokenizers.src, False)
    assert found == [[], ["old"]]
    config = TokenizerConfig(vocab_size=275, tags=("bt",))
    tokenizer = SentencePieceTokenizer.train(["an old old man"] * 50, config)
    line = [*tokenizer.special.tags, *tokenizer.encode("old man")]
    for by_piece in (False, True):
        assert "".join(words_of(as_ragged([line]), tokenizer, by_piece)[0]).strip() == "old man"


def words(*texts: str) -> Tokenizers:
    """Tokenizers of words for the sources and targets, which are written in turn."""
    (Path.cwd() / "src.txt").write_text("".join(f"{line}\n" for line in texts[::2]), encoding="utf-8")
    (Path.cwd() / "tgt.txt").write_text("".join(f"{line}\n" for line in texts[1::2]), encoding="utf-8")
    return ensure_tokenizers([FILES], TokenizerConfig(type="word", joint=False), Path("tokenizer"))


FILES = HeldOutFiles(src=Path("src.txt"), tgt=Path("tgt.txt"))
Chances = dict[tuple[str, str], float]
PAIRS = [
    "the house", "das haus", "the book", "das buch", "a Book", "ein buch",
    "a the the dog", "der hund", "dog .", "hund .",
]  # fmt: skip


def slow_model_1(pairs: Sequence[tuple[list[str], list[str]]], iterations: int) -> Chances:
    """t(f | e) for words that are in one sentence pair, with NULL as "": Brown et al. 1993, by the formula.

    The count of (f, e) is the sum over the sentence pairs and their words of t(f | e) / sum over e' of t(f | e').
    """
    chances: Chances = defaultdict(lambda: 1 / len({word for _, tgt in pairs for word in tgt}))
    for _ in range(iterations):
        counts: Chances = defaultdict(float)
        for src, tgt in pairs:
            for f in tgt:
                total = sum(chances[e, f] for e in ["", *src])
                for e in ["", *src]:
                    counts[e, f] += chances[e, f] / total
        totals: dict[str, float] = defaultdict(float)
        for (e, _), count in counts.items():
            totals[e] += count
        chances = defaultdict(float, {(e, f): count / totals[e] for (e, f), count in counts.items()})
    return chances


def test_model_1_gives_what_the_formula_gives_in_both_directions(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizers = words(*PAIRS)
    corpus = encode_corpus([FILES], tokenizers, Path("tokenizer"), 50, num_processes=0)
    lexicon = learn_lexicon(corpus, tokenizers, (False, False))
    assert capsys.readouterr().err.startswith("aligned the words of 5 pairs in ")
    side = [line.lower().split() for line in PAIRS]
    pairs = list(zip(side[::2], side[1::2], strict=True))
    forward = slow_model_1(pairs, nmt.batches.lexicon.ITERATIONS)
    backward = slow_model_1([(tgt, src) for src, tgt in pairs], nmt.batches.lexicon.ITERATIONS)
    largest = 0.0
    for src, tgt in pairs:
        found = lexicon.posteriors([word.upper() for word in src], [f" {word}" for word in tgt])
        expected = np.array([
            [[forward[e, f] / sum(forward[other, f] for other in ["", *src]) for f in tgt] for e in src],
            [[backward[f, e] / sum(backward[other, e] for other in ["", *tgt]) for f in tgt] for e in src],
        ])  # fmt: skip
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        largest = max(largest, expected.max())
    assert largest > 0.9
    of_unknown = lexicon.posteriors(["house", "unknown"], ["haus", "unbekannt", "unbekannt"])
    assert (np.array(of_unknown) > 0).tolist() == [[[True, False, False], [False] * 3]] * 2


def test_links_are_every_source_word_with_every_target_word() -> None:
    src, tgt = np.array([2, 1, 3]), np.array([1, 4, 2])
    links = links_of(src, tgt)
    expected = [
        (sum(src[:row]) + one, sum(tgt[:row]) + other)
        for row in range(3)
        for one, other in itertools.product(range(src[row]), range(tgt[row]))
    ]
    assert list(zip(*(side.tolist() for side in links), strict=True)) == expected


def test_a_sample_is_spread_evenly_and_has_few_enough_pairs_and_links(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(1).integers(1, 30, size=(2, 5000)).astype(np.int32)
    assert sample(*lengths).tolist() == [*range(5000)]
    monkeypatch.setattr(nmt.batches.lexicon, "MAX_PAIRS", 1000)
    pairs = sample(*lengths)
    assert len(pairs) == 1000
    assert {0, 4999} < {*pairs.tolist()}
    assert set(np.diff(pairs)) <= {4, 5, 6}
    for limit in (20_000, 100_000):
        monkeypatch.setattr(nmt.batches.lexicon, "MAX_LINKS", limit)
        pairs = sample(*lengths)
        assert 0.8 * limit < (lengths[0][pairs] * lengths[1][pairs]).sum() <= limit
        assert len(set(pairs)) == len(pairs)
        assert np.bincount(pairs // 500).min() > 0.6 * len(pairs) / 10
    assert sample(np.array([10_000]), np.array([10_000])).tolist() == [0]


def test_phrases_are_those_that_no_link_leaves() -> None:
    """Brute force: every source span with every target span."""
    random = np.random.default_rng(3)
    kinds: Counter[tuple[int, int]] = Counter()
    for _ in range(400):
        shape = random.integers(1, 8, size=2)
        possible = random.random(shape) < 0.2
        sure = possible & (random.random(shape) < 0.7)
        expected = []
        for i, j in itertools.product(*(itertools.combinations(range(size + 1), 2) for size in shape.tolist())):
            block = np.zeros(shape, dtype=bool)
            block[slice(*i), slice(*j)] = True
            beside = np.zeros(shape, dtype=bool)
            beside[slice(*i)] = beside[:, slice(*j)] = True
            if (
                i[1] - i[0] <= MAX_WORDS
                and abs((i[1] - i[0]) - (j[1] - j[0])) <= MAX_DIFFERENCE
                and not (possible & beside & ~block).any()
                and all((sure & block)[row].any() for row in (i[0], i[1] - 1))
                and all((sure & block)[:, column].any() for column in (j[0], j[1] - 1))
            ):
                expected.append((slice(*i), slice(*j)))
                kinds[i[1] - i[0], j[1] - j[0]] += 1
        assert sorted(blocks(sure, possible), key=str) == sorted(expected, key=str)
    assert len(kinds) > 8


SRC_WORDS = [
    "sun", "moon", "star", "tree", "bird", "fish", "ball", "book", "lamp", "hand",
    "hill", "road", "king", "coin", "door", "leaf", "wind", "rain", "fire", "snow",
]  # fmt: skip
TRANSLATED = {word: word[::-1].capitalize() for word in SRC_WORDS}
Toy = tuple[Tokenizers, EncodedCorpus, Lexicon]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Sentences of random words, a comma and a mark; in translation, each word's own in reverse order, and the mark."""
    folder, random = tmp_path_factory.mktemp("toy"), Random(1)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        sentences = [random.sample(SRC_WORDS, random.randint(3, 8)) for _ in range(300)]
        ends = random.choices(".?!", k=300)
        both = [*zip(sentences, ends, strict=True)]
        Path("src.txt").write_text("".join(f"{' '.join(words[:-1])}, {words[-1]}{end}\n" for words, end in both))
        Path("tgt.txt").write_text("".join(f"{translation(words)}{end}\n" for words, end in both))
        tokenizers = ensure_tokenizers([FILES], TokenizerConfig(vocab_size=380), Path("tokenizer"))
        files = TrainingFiles(**FILES.model_dump())
        corpus = encode_corpus([files], tokenizers, Path("tokenizer"), 50, num_processes=0)
        again = pickle.loads(pickle.dumps((corpus, learn_lexicon(corpus, tokenizers, (False, False)))))
        return tokenizers, *again


def translation(words: Sequence[str]) -> str:
    return " ".join(TRANSLATED[word] for word in reversed(words))


def augmentation(toy: Toy, epoch: int = 0, has_phrases: bool = True, **settings: float) -> Augmentation:
    files = TrainingFiles(src=Path("src.txt"), tgt=Path("tgt.txt"))
    config = Config(
        data=DataConfig(train=(files,), validation=FILES, src_lang="en", tgt_lang="de"),
        training=TrainingConfig(max_steps=1),
        augmentation=AugmentationConfig(**settings),
    )
    return Augmentation(config, toy[0], epoch, toy[2] if has_phrases else None)


def with_phrases(change: Augmentation, src: Ragged, tgt: Ragged) -> Augmented:
    """The first batch that is of phrases: it has fewer ids than its pairs have, and more than half of its rows."""
    found = (change(number, src, tgt) for number in range(20))
    return next(one for one in found if len(one.src[1]) > len(src[1]) / 2 and len(one.src[0]) < len(src[0]))


def texts(side: Ragged, toy: Toy) -> list[str]:
    return [toy[0].src.decode(row.tolist()) for row in np.split(side[0], np.cumsum(side[1])[:-1])]


def test_the_phrases_of_a_known_dictionary_are_its_words_in_every_length(toy: Toy) -> None:
    pairs = np.arange(300)
    src, tgt = toy[1].src.gather(pairs), toy[1].tgt.gather(pairs)
    drawn = draw_phrases(toy[2], src, tgt, np.random.default_rng(1))
    assert len(drawn) > 290
    sizes: Counter[int] = Counter()
    sources = texts(src, toy)
    for phrase in drawn:
        text, translated = (toy[0].src.decode(side.tolist()) for side in (phrase.src, phrase.tgt))
        sizes[len(text.split())] += 1
        assert f" {text}" in f" {sources[phrase.row]}"
        assert translated == translation(text.split())
        assert toy[0].src.encode(text) == phrase.src.tolist()
        assert toy[0].tgt.encode(translated) == phrase.tgt.tolist()
    for size, chance in enumerate(LENGTH_CHANCES, start=1):
        assert sizes[size] / len(drawn) == pytest.approx(chance, abs=4 * (chance / len(drawn)) ** 0.5)


@pytest.mark.parametrize(
    ("has_phrases", "shares"),
    [
        (True, {"phrases": 0.2, "joined": 0.2, "as they are": 0.6}),
        (False, {"phrases": 0.0, "joined": 0.4, "as they are": 0.6}),
    ],
)
def test_one_half_of_the_fragments_are_phrases_and_the_other_half_joined(
    toy: Toy, has_phrases: bool, shares: dict[str, float]
) -> None:
    pairs = np.arange(40)
    src, tgt = toy[1].src.gather(pairs), toy[1].tgt.gather(pairs)
    plain, change = texts(src, toy), augmentation(toy, has_phrases=has_phrases, fragments=0.4)
    kinds: Counter[str] = Counter()
    for number in range(300):
        found = change(number, src, tgt)
        sources = texts(found.src, toy)
        is_short = all(len(text.split()) <= MAX_WORDS and text[-1] not in ".?!" for text in sources)
        kinds["phrases" if is_short else "as they are" if sources == plain else "joined"] += 1
        if is_short:
            assert [translation(text.split()) for text in sources] == texts(found.tgt, toy)
            assert found.tgt_seen.tolist() == found.tgt[0].tolist()
    for kind, chance in shares.items():
        assert kinds[kind] / 300 == pytest.approx(chance, abs=4 * (chance * (1 - chance) / 300) ** 0.5)


def test_phrases_depend_on_epoch_and_batch_and_are_the_same_in_another_process(toy: Toy) -> None:
    pairs = np.arange(60)
    src, tgt = toy[1].src.gather(pairs), toy[1].tgt.gather(pairs)

    def drawn(change: Augmentation) -> list[list[int]]:
        every = [change(number, src, tgt) for number in range(6)]
        return [[*found.src[0].tolist(), *found.tgt[0].tolist()] for found in every]

    change = augmentation(toy, 2, fragments=0.999)
    first = drawn(change)
    assert drawn(pickle.loads(pickle.dumps(change))) == first
    assert len({*map(tuple, first)}) > 2
    assert all(one != other for one, other in zip(first, drawn(augmentation(toy, 1, fragments=0.999)), strict=True))


def test_typed_input_changes_the_sources_of_phrases(toy: Toy) -> None:
    pairs = np.arange(60)
    src, tgt = toy[1].src.gather(pairs), toy[1].tgt.gather(pairs)
    plain, typed = (augmentation(toy, fragments=0.999, typed_input=share) for share in (0.0, 0.999))
    headlines = 0
    for number in range(40):
        one, other = plain(number, src, tgt), typed(number, src, tgt)
        assert texts(one.tgt, toy) == texts(other.tgt, toy)
        if len(one.src[0]) < len(src[0]):  # phrases
            both = [*zip(texts(one.src, toy), texts(other.src, toy), strict=True)]
            assert all(before == after.lower() for before, after in both)
            # A capital may take a piece more than there is room for.
            headlines += any(before != after == before.title() for before, after in both)
    assert headlines


def test_a_phrase_keeps_the_tag_of_its_pair_and_has_no_unknown_word() -> None:
    config = TokenizerConfig(type="word", vocab_size=24, joint=False, tags=("bt",))  # a word is left out
    random = Random(1)
    sentences = [random.sample(SRC_WORDS, 5) for _ in range(200)]
    Path("src.txt").write_text("".join(f"{' '.join(words)}\n" for words in sentences))
    Path("tgt.txt").write_text("".join(f"{translation(words)}\n" for words in sentences))
    tokenizers = ensure_tokenizers([FILES], config, Path("tokenizer"))
    files = TrainingFiles(src=FILES.src, tgt=FILES.tgt, tag="bt")
    corpus = encode_corpus([files], tokenizers, Path("tokenizer"), 50, num_processes=0)
    lexicon = learn_lexicon(corpus, tokenizers, (False, False))
    pairs = np.arange(200)
    change = augmentation((tokenizers, corpus, lexicon), fragments=0.999)
    found = with_phrases(change, corpus.src.gather(pairs), corpus.tgt.gather(pairs))
    rows = [row.tolist() for row in np.split(found.src[0], np.cumsum(found.src[1])[:-1])]
    assert len(rows) > 150
    assert all(
        row[0] == 4 and 4 not in row[1:] and UNK_ID not in row and 2 <= len(row) <= 1 + MAX_WORDS for row in rows
    )
    assert UNK_ID not in found.tgt[0]


def test_a_batch_without_any_phrase_stays_as_it_is(toy: Toy) -> None:
    ids = toy[0].src.encode("Unknown?")
    side, change = as_ragged([ids, ids]), augmentation(toy, fragments=0.999)
    found = [change(number, side, side) for number in range(20)]
    assert {len(one.src[1]) for one in found} == {1, 2}  # joined, and as they are
    assert all(one.src[0].tolist() == one.tgt[0].tolist() == [*ids, *ids] for one in found)
