"""The translator: the order of lines, cut lines, memory, and the engine behind it."""

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt.config.inference import DecodingConfig, TokenizerConfig, TransformerConfig
from nmt.decoding.beam_search import beam_search, greedy_search
from nmt.decoding.constraints import Constraints
from nmt.decoding.hypothesis import NO_ALIGNMENT, Hypothesis, Request
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import LINES_AT_ONCE, Engine, Translation, Translator, batches_by_length
from nmt.models.source import Source, source_of
from nmt.models.transformer import Transformer
from nmt.tokenizers.tokenizer import (
    SentencePieceTokenizer,
    Tokenizer,
    Tokenizers,
    WordTokenizer,
    load_tokenizers,
    save_tokenizers,
)
from nmt.tokenizers.vocabulary import BOS_ID, EOS_ID, OWN_SPECIAL_IDS, PAD_ID, SPECIAL_PIECES, UNK_ID

WORDS = [f"w{number}" for number in range(500)]


class ReversingEngine:
    """Its best hypothesis is the source reversed, its second the source; records its inputs."""

    name = "reversing"
    batches_at_once = 1

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []

    def search(self, sources: Sequence[Sequence[int]], decoding: DecodingConfig, *_: object) -> list[list[Hypothesis]]:
        self.batches.append([list(ids) for ids in sources])
        assert all(sources), "an empty line needs no search"
        return [[Hypothesis(tuple(reversed(ids)), -1.0, -1.0), Hypothesis(tuple(ids), -2.0, -2.0)] for ids in sources]


def word_tokenizers(words: Sequence[str] = WORDS) -> Tokenizers:
    tokenizer = WordTokenizer([*SPECIAL_PIECES, *words])
    return Tokenizers(tokenizer, tokenizer)


def make_translator(engine: Engine, max_src_length: int = 100, batch_tokens: int = 2048) -> Translator:
    return Translator(word_tokenizers(), engine, DecodingConfig(batch_tokens=batch_tokens), max_src_length)


def backwards(line: str) -> str:
    return " ".join(reversed(line.split()))


def random_lines(count: int, longest: int = 30) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=random.integers(0, longest + 1))) for _ in range(count)]


# --- Lines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_tokens", [1, 100, 2048])
def test_the_order_is_kept_over_thousands_of_lines(batch_tokens: int) -> None:
    lines = random_lines(2 * LINES_AT_ONCE + 777)
    assert "" in lines
    translations = make_translator(ReversingEngine(), batch_tokens=batch_tokens).translate(lines)
    assert translations == [backwards(line) for line in lines]


def test_a_line_of_white_space_becomes_an_empty_line() -> None:
    lines = ["", "w1 w2", "   ", "\t", "　", "w3", ""]
    engine = ReversingEngine()
    assert make_translator(engine).translate(lines) == ["", "w2 w1", "", "", "", "w3", ""]
    assert engine.batches == [[[5, 6], [7]]]


@pytest.mark.parametrize("lines", [[], [""], ["", " "]])
def test_the_engine_is_not_called_with_nothing_to_translate(lines: list[str]) -> None:
    engine = ReversingEngine()
    assert make_translator(engine).translate(lines) == [""] * len(lines)
    assert engine.batches == []


def test_an_over_long_line_is_translated_in_parts_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    lines = ["w1 w2"] * (LINES_AT_ONCE + 10)
    lines[1] = "w1 w2 w3 w4 w5 w6 w7"
    lines[2] = "w1 w2 w3 w4 w5"  # just fits
    lines[LINES_AT_ONCE + 4] = "w9 w8 w7 w6 w5 w4"
    engine = ReversingEngine()
    with caplog.at_level(logging.WARNING, logger="nmt"):
        translations = make_translator(engine, max_src_length=5).translate(lines)
    assert len(translations) == len(lines)
    assert translations[:4] == ["w2 w1", "w3 w2 w1 w7 w6 w5 w4", "w5 w4 w3 w2 w1", "w2 w1"]
    assert translations[LINES_AT_ONCE + 4] == "w7 w8 w9 w4 w5 w6"
    assert max(len(ids) for batch in engine.batches for ids in batch) == 5
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("line 2: more than 5 pieces (data.max_length)")


def test_the_parts_of_a_line_make_one_translation() -> None:
    """The log-probabilities of three sentences add, -1 each, and each is reversed in its place."""
    words = [*WORDS, "w2.", "w4!"]
    tokenizers = word_tokenizers(words)
    decoding = DecodingConfig(length_penalty=0.5)
    translator = Translator(tokenizers, ReversingEngine(), decoding, 100, languages=("en", "de"))
    lines = ["  W1 w2.  W3 w4!\n\n w5 ".lower(), " \n", "w7 w6"]
    text, blank, plain = translator.stream([lines], request=Request(by_sentence=True))
    assert text.text == "  w2. w1  w4! w3\n\n w5 "
    assert text.num_tokens == 5
    assert text.score == pytest.approx(-3 / 5**0.5)
    assert blank.text == " \n"
    assert plain.text == "w6 w7"


def test_the_best_hypothesis_is_the_translation_and_special_ids_are_not_in_it() -> None:
    class Special(ReversingEngine):
        def search(
            self, sources: Sequence[Sequence[int]], decoding: DecodingConfig, *_: object
        ) -> list[list[Hypothesis]]:
            return [[Hypothesis((1, 4, 3, 5, 2, 0), -1.0, -1.0), Hypothesis((6,), -2.0, -2.0)] for _ in sources]

    assert make_translator(Special()).translate(["w9"]) == ["w0 w1"]


def test_the_engine_is_given_the_decoding_settings() -> None:
    class Settings(ReversingEngine):
        def search(
            self, sources: Sequence[Sequence[int]], decoding: DecodingConfig, *_: object
        ) -> list[list[Hypothesis]]:
            return [[Hypothesis((decoding.beam_size + 4,), -1.0, -1.0)] for _ in sources]

    translator = Translator(word_tokenizers(), Settings(), DecodingConfig(beam_size=7), max_src_length=10)
    assert translator.translate(["w1"]) == ["w7"]


@pytest.mark.parametrize(
    ("line", "translation"),
    [
        ("W1 W2.", "w2. w1"), ("W1 w2", "w2 W1"), ("W1", "W1"), ("w1 w2", "w2 w1"), ("1 2", "2 1"),
        ("HTTPS://A.COM/B?C WWW.D.ORG", "HTTPS://A.COM/B?C WWW.D.ORG"),
    ],
)  # fmt: skip
def test_lines_in_capitals_are_lowercased_with_lower_capitals(line: str, translation: str) -> None:
    tokenizers = word_tokenizers(["w1", "w2", "w2.", "W1", "W2.", "1", "2"])
    for lower_capitals, expected in ((True, translation), (False, backwards(line))):
        decoding = DecodingConfig(lower_capitals=lower_capitals, copied=("addresses",))
        translator = Translator(tokenizers, ReversingEngine(), decoding, 100)
        assert translator.translate([line]) == [line if "://" in line else expected]


@pytest.mark.parametrize(
    ("language", "line", "read"),
    [
        ("tr", "KIZ İNCİ", "kız inci"),
        ("de", "KIZ INCI", "kiz inci"),
        ("zh", "我 在 NASA 工作", "我 在 NASA 工作"),
        ("hi", "मैं NASA में हूँ", "मैं NASA में हूँ"),
        ("en", "NASA 2024", "NASA 2024"),
        ("chr", "ᎣᏏᏲ ᏩᏙ", "ᎣᏏᏲ ᏩᏙ"),
        ("uz", "OʻZBEKISTON RESPUBLIKASI", "oʻzbekiston respublikasi"),
    ],
)
def test_a_line_in_capitals_is_put_in_the_lowercase_of_its_language(language: str, line: str, read: str) -> None:
    """A name in capitals is not a line in capitals if the other letters have no case."""
    decoding = DecodingConfig(lower_capitals=True)
    tokenizers = word_tokenizers(sorted({*line.split(), *read.split()}))
    translator = Translator(tokenizers, ReversingEngine(), decoding, 100, languages=(language, "en"))
    assert translator.translate([line]) == [backwards(read)]


def test_invisible_characters_change_no_translation() -> None:
    lines = ["the café is big", "a big dog", "the dog and the café"]
    tokenizer: Tokenizer = SentencePieceTokenizer.train(lines * 5, TokenizerConfig(type="bpe", vocab_size=300))
    translator = Translator(Tokenizers(tokenizer, tokenizer), ReversingEngine(), DecodingConfig(), 100)
    typed = ["  the  cafe\u0301 is big ", "a\u2581big dog\t", "\u3000", " \t"]
    assert translator.translate(typed) == [*translator.translate(["the café is big", "a big dog"]), "", ""]


def test_source_and_target_have_their_own_tokenizer() -> None:
    src = WordTokenizer([*SPECIAL_PIECES, "ein", "Hund"])
    tgt = WordTokenizer([*SPECIAL_PIECES, "a", "dog"])
    translator = Translator(Tokenizers(src, tgt), ReversingEngine(), DecodingConfig(), max_src_length=10)
    assert translator.translate(["ein Hund"]) == ["dog a"]


def test_a_decoded_line_end_never_makes_two_lines() -> None:
    """SentencePiece can spell a line end in bytes."""
    lines = ["the cat sat on the mat", "a dog sat on a log", "the dog and the cat", "we saw the dog run"]
    tokenizer: Tokenizer = SentencePieceTokenizer.train(lines * 5, TokenizerConfig(type="bpe", vocab_size=300))
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    line_end = pieces.index("<0x0A>")

    class Engine(ReversingEngine):
        def search(
            self, sources: Sequence[Sequence[int]], decoding: DecodingConfig, *_: object
        ) -> list[list[Hypothesis]]:
            return [[Hypothesis((*ids, line_end, line_end, *ids), -1.0, -1.0)] for ids in sources]

    assert "\n\n" in tokenizer.decode([*tokenizer.encode("the dog"), line_end, line_end])
    translator = Translator(Tokenizers(tokenizer, tokenizer), Engine(), DecodingConfig(), max_src_length=100)
    (translation,) = translator.translate(["the dog"])
    assert "\n" not in translation
    assert translation.split() == ["the", "dog", "the", "dog"]


def test_a_translation_keeps_its_score_and_n_best() -> None:
    """From the reversing engine: the source reversed, score -1, and unchanged, -2. An empty line has no hypotheses."""
    first, empty, last = make_translator(ReversingEngine()).stream([["w1 w2", "", "w3"]])
    assert first == Translation("w2 w1", 2, NO_ALIGNMENT, -1.0, (("w2 w1", -1.0), ("w1 w2", -2.0)))
    assert empty == Translation("", 0, status=("empty",))
    assert last.n_best == (("w3", -1.0), ("w3", -2.0))


def test_a_stream_holds_one_block_at_a_time_and_numbers_its_lines(caplog: pytest.LogCaptureFixture) -> None:
    taken = 0

    def blocks() -> Iterator[list[str]]:
        nonlocal taken
        for number in range(5):
            taken += 1
            yield [f"w{number} w7", "", "w1 w2 w3 w4" if number == 3 else "w9"]

    stream = make_translator(ReversingEngine(), max_src_length=3).stream(blocks(), first=101)
    assert taken == 0
    for number in range(3):
        assert [next(stream).text for _ in range(3)] == [f"w7 w{number}", "", "w9"]
        assert taken == number + 1
    assert [translation.num_tokens for translation in stream] == [2, 0, 4, 2, 0, 1]
    assert "line 112: more than 3 pieces" in caplog.text


def test_an_engine_gets_several_batches_at_once() -> None:
    """Two words and `</s>`: one line fits 4 tokens, and four fit three times as many."""
    for at_once, sizes in ((1, [1] * 6), (3, [4, 2])):
        engine = ReversingEngine()
        engine.batches_at_once = at_once
        assert make_translator(engine, batch_tokens=4).translate(["w1 w2"] * 6) == ["w2 w1"] * 6
        assert [len(batch) for batch in engine.batches] == sizes


def test_a_translation_is_yielded_once_it_and_all_before_it_are_done() -> None:
    """Batches of one line each, longest first: the second and third line wait for the first, which is shorter."""
    engine = ReversingEngine()
    stream = make_translator(engine, batch_tokens=1).stream([["w1 w2", "w1 w2 w3 w4", "w1 w2 w3", "w1"]])
    seen = [(translation.num_tokens, len(engine.batches)) for translation in stream]
    assert seen == [(2, 3), (4, 3), (3, 3), (1, 4)]


# --- Batches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_tokens", [1, 7, 64, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_batches_hold_each_source_once_within_the_budget(seed: int, batch_tokens: int) -> None:
    lengths = np.random.default_rng(seed).integers(0, 40, size=300).tolist()
    batches = list(batches_by_length([[5] * length for length in lengths], batch_tokens))
    indices = [index for batch in batches for index in batch]
    assert sorted(indices) == [index for index, length in enumerate(lengths) if length]
    in_order = [lengths[index] for index in indices]
    assert in_order == sorted(in_order, reverse=True)
    for batch, following in itertools.pairwise([*batches, []]):
        width = max(lengths[index] for index in batch) + 1  # with </s>
        assert len(batch) * width <= batch_tokens or len(batch) == 1
        assert not following or (len(batch) + 1) * width > batch_tokens  # no room was left


def test_batches_by_hand() -> None:
    """With </s> the lengths are 4, 2, -, 3, 2: at most 8 tokens are two of width 4, then two of width 2."""
    assert list(batches_by_length([[5, 5, 5], [5], [], [5, 5], [6]], batch_tokens=8)) == [[0, 3], [1, 4]]
    assert list(batches_by_length([[], []], batch_tokens=8)) == []


# --- The engine ------------------------------------------------------------------------------------------


@pytest.fixture
def engine_model() -> Transformer:
    """A random Transformer over the words, whose sentences end early or late."""
    config = TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.2,
        max_positions=128, tie_embeddings="none",
    )  # fmt: skip
    model = Transformer(config, 24, 24).eval()
    with torch.no_grad():
        model.decoder[0].cross_attention.output.weight.mul_(3.0)
        model.output.weight.mul_(2.0)
    return model


@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_neither_batch_size_nor_order_changes_a_translation(engine_model: Transformer, beam_size: int) -> None:
    tokenizers = word_tokenizers(WORDS[:20])
    random = np.random.default_rng(1)
    lines = [" ".join(random.choice(WORDS[:20], size=random.integers(0, 15))) for _ in range(60)]

    def translate(lines: Sequence[str], batch_tokens: int) -> list[str]:
        decoding = DecodingConfig(beam_size=beam_size, batch_tokens=batch_tokens, max_length=20)
        return Translator(tokenizers, TorchEngine(engine_model, tokenizers), decoding, max_src_length=50).translate(
            lines
        )

    one_by_one = translate(lines, 1)
    assert len(set(one_by_one)) > 30
    assert len({len(translation.split()) for translation in one_by_one}) > 5
    for batch_tokens in (16, 50, 2048):
        assert translate(lines, batch_tokens) == one_by_one
    assert translate(lines[::-1], 64) == one_by_one[::-1]
    assert [translate([line], 64)[0] for line in lines[:20]] == one_by_one[:20]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_the_engine_searches_with_the_settings_it_is_given(engine_model: Transformer, beam_size: int) -> None:
    sources = [[5, 6, 7, 8], [9], [10, 11]]
    decoding = DecodingConfig(beam_size=beam_size, length_penalty=0.3, min_length=4, max_length=9, max_length_ratio=0.5)
    src_ids = torch.tensor(
        [[5, 6, 7, 8, EOS_ID], [9, EOS_ID, PAD_ID, PAD_ID, PAD_ID], [10, 11, EOS_ID, PAD_ID, PAD_ID]]
    )
    src_mask = src_ids != PAD_ID
    constraints = Constraints(
        special=OWN_SPECIAL_IDS,
        forbidden=torch.tensor([PAD_ID, BOS_ID, UNK_ID]),
        min_length=4,
        no_repeat_ngram_size=0,
        max_lengths=torch.tensor([9, 9, 9]),  # 12, 10 and 11 by their ratio
        forced=torch.tensor([[-1, -1], [7, 8], [-1, -1]]),
    )
    with torch.no_grad():
        if beam_size == 1:
            expected = greedy_search(engine_model, Source(src_ids, src_mask), constraints, 0.3)
        else:
            expected = beam_search(engine_model, Source(src_ids, src_mask), constraints, beam_size, 0.3)
    assert TorchEngine(engine_model, word_tokenizers()).search(sources, decoding, [[], [7, 8], []]) == expected


def test_the_longest_output_follows_from_the_source_without_its_end(engine_model: Transformer) -> None:
    """Sources of 1 and 8 pieces at ratio 1: at most 11 and 18 tokens, which a model that never ends reaches."""
    with torch.no_grad():
        engine_model.output.weight[EOS_ID] = 0.0
        engine_model.decoder_norm.bias += 3.0  # so that a word can be made certain
        engine_model.output.weight[5] = 3.0
    engine = TorchEngine(engine_model, word_tokenizers())
    found = engine.search([[7], [8] * 8], DecodingConfig(beam_size=2, max_length_ratio=1.0))
    assert [len(hypotheses[0].tokens) for hypotheses in found] == [11, 18]


def test_a_model_that_is_being_trained_is_refused(engine_model: Transformer) -> None:
    """Dropout would change the output, and changing the mode would affect other threads."""
    engine = TorchEngine(engine_model.train(), word_tokenizers())
    with pytest.raises(AssertionError):
        engine.search([[5, 6, 7]], DecodingConfig())
    with pytest.raises(AssertionError):
        engine.attention([[5, 6, 7]], [[5]])


def test_a_model_can_be_trained_after_a_search(engine_model: Transformer) -> None:
    TorchEngine(engine_model, word_tokenizers()).search([[5, 6]], DecodingConfig(beam_size=2, max_length=6))
    engine_model.train()(source_of([[5, 6]], OWN_SPECIAL_IDS), torch.tensor([[1, 5, 6]])).square().mean().backward()
    assert engine_model.output.weight.grad is not None


def test_a_line_is_one_source_with_its_end_and_its_own_limit(engine_model: Transformer, tmp_path: Path) -> None:
    """The whole way, done by hand: tokenize, search, decode; with tokenizers that were saved and read again."""
    save_tokenizers(word_tokenizers(WORDS[:20]), tmp_path / "tokenizer", "")
    tokenizer = load_tokenizers(tmp_path / "tokenizer").src
    decoding = DecodingConfig(beam_size=3, max_length=12)
    line = "w3 w1 w4 w1 w5"
    ids = torch.tensor([[7, 5, 8, 5, 9, EOS_ID]])  # w0 is 4
    with torch.no_grad():
        mask = torch.ones_like(ids, dtype=torch.bool)
        ((best, *_),) = beam_search(
            engine_model, Source(ids, mask), Constraints.of(decoding, OWN_SPECIAL_IDS, [5]), 3, 1.0
        )
    tokenizers = Tokenizers(tokenizer, tokenizer)
    translator = Translator(tokenizers, TorchEngine(engine_model, tokenizers), decoding, max_src_length=50)
    assert translator.translate([line]) == [" ".join(f"w{index - 4}" for index in best.tokens)]


# --- Threads ---------------------------------------------------------------------------------------------


Call = tuple[Sequence[Sequence[int]], DecodingConfig, Sequence[Sequence[int]] | None]


def different_calls(vocab_size: int) -> list[Call]:
    """Searches of every kind, with different settings."""
    random = np.random.default_rng(5)
    calls: list[Call] = []
    for beam_size, length_penalty, max_length, no_repeat in (
        (1, 1.0, 20, 0), (4, 1.0, 20, 0), (2, 0.0, 7, 2), (1, 0.5, 12, 1), (5, 1.5, 15, 3), (3, 1.0, 20, 0),
    ):  # fmt: skip
        sources = [random.integers(4, vocab_size, size=random.integers(1, 15)).tolist() for _ in range(9)]
        prefixes = [random.integers(4, vocab_size, size=random.integers(0, 5)).tolist() for _ in range(9)]
        decoding = DecodingConfig(
            beam_size=beam_size, length_penalty=length_penalty, max_length=max_length, no_repeat_ngram_size=no_repeat
        )
        calls += [(sources, decoding, prefixes), (sources, decoding, None)]
    return calls


def assert_threads_find_what_one_finds(search: Callable[..., object], calls: Sequence[tuple[object, ...]]) -> None:
    """All calls at once, several times, against the same calls in sequence; with any number of threads."""
    one_after_the_other = [search(*call) for call in calls]
    barrier = threading.Barrier(len(calls))

    def together(call: tuple[object, ...]) -> object:
        barrier.wait()
        return search(*call)

    with ThreadPoolExecutor(len(calls)) as pool:
        for _ in range(3):
            assert list(pool.map(together, calls)) == one_after_the_other


def test_threads_may_search_with_one_engine_at_once(engine_model: Transformer) -> None:
    engine = TorchEngine(engine_model, word_tokenizers(WORDS[:20]))
    calls = different_calls(24)
    assert_threads_find_what_one_finds(engine.search, calls)
    assert not engine_model.training


def test_threads_may_translate_with_one_translator_at_once(engine_model: Transformer) -> None:
    tokenizers = word_tokenizers(WORDS[:20])
    engine = TorchEngine(engine_model, tokenizers)
    translator = Translator(tokenizers, engine, DecodingConfig(beam_size=3, max_length=12), max_src_length=20)
    random = np.random.default_rng(2)
    texts = [[" ".join(random.choice(WORDS[:20], size=length)) for length in random.integers(0, 9, size=12)]
             for _ in range(8)]  # fmt: skip
    assert_threads_find_what_one_finds(lambda text: list(translator.stream([text])), [(text,) for text in texts])


def test_a_prefix_begins_the_first_part_that_has_text() -> None:
    class Prefixing(ReversingEngine):
        def search(
            self,
            sources: Sequence[Sequence[int]],
            decoding: DecodingConfig,
            prefixes: Sequence[Sequence[int]] | None = None,
            *_: object,
        ) -> list[list[Hypothesis]]:
            assert prefixes is not None
            joined = ((*prefix, *ids) for prefix, ids in zip(prefixes, sources, strict=True))
            return [[Hypothesis(ids, -1.0, -1.0)] for ids in joined]

    tokenizers = word_tokenizers([*WORDS, "w2.", "w4."])
    translator = Translator(tokenizers, Prefixing(), DecodingConfig(), 100, languages=("en", "de"))
    (found,) = translator.stream([[" w1 w2.\nw3 w4."]], prefixes="w9", request=Request(by_sentence=True))
    assert found.text == " w9 w1 w2.\nw3 w4."
