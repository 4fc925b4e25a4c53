"""Samples, n-best lists, forced prefixes and forbidden words, against brute force, numpy, sacreBLEU and CTranslate2.

Shapes: B draws, V vocabulary.
"""

import itertools
import json
import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli
from sacrebleu.metrics.chrf import CHRF
from test_ctranslate2 import ARCHITECTURES, SMALL, engine_for, random_model, random_sources, words
from test_search import TableModel, constraints, source

import nmt.decoding.translator
from nmt.config.inference import DecodingConfig, TokenizerConfig, TransformerConfig
from nmt.config.source import VectorSource
from nmt.decoding.constraints import Constraints
from nmt.decoding.forbidden_words import ForbiddenWords
from nmt.decoding.hypothesis import Hypothesis, Request, Sampling
from nmt.decoding.mbr import by_risk, expected_chrf
from nmt.decoding.sampling import draw_tokens, random_numbers, sample_batch, truncated_distribution
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import Translation, Translator, as_json
from nmt.errors import ConfigError, DataError, RunError
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizers
from nmt.tokenizers.vocabulary import EOS_ID, OWN_SPECIAL_IDS

A_, B_, C_ = 4, 5, 6
STEP = {A_: 0.5, B_: 0.2, EOS_ID: 0.3}


# --- Sampling --------------------------------------------------------------------------------------------


def chi_square(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], draws: int) -> float:
    assert set(counts) <= set(expected)
    assert sum(expected.values()) == pytest.approx(1)
    return sum((counts[key] - draws * p) ** 2 / (draws * p) for key, p in expected.items())


def all_sequences(probabilities: dict[int, float], longest: int) -> dict[tuple[int, ...], float]:
    """Brute force: the probability of each output of at most `longest` tokens that are independent of each other."""
    found = {}
    for length in range(longest + 1):
        for ids in itertools.product((A_, B_), repeat=length):
            p = math.prod(probabilities.get(token, 0.0) for token in ids)
            found[ids] = p * (probabilities.get(EOS_ID, 0.0) if length < longest else 1.0)
    return {ids: p for ids, p in found.items() if p}


@pytest.mark.parametrize(
    ("sampling", "tokens"),
    [
        (Sampling(), STEP),
        (Sampling(temperature=0.5), {A_: 0.25 / 0.38, B_: 0.04 / 0.38, EOS_ID: 0.09 / 0.38}),
        (Sampling(top_k=2), {A_: 0.5 / 0.8, EOS_ID: 0.3 / 0.8}),
        (Sampling(top_p=0.75), {A_: 0.5 / 0.8, EOS_ID: 0.3 / 0.8}),
        (Sampling(top_p=0.85), STEP),
        (Sampling(temperature=2.0, top_k=1), {A_: 1.0}),
    ],
)
def test_samples_are_as_frequent_as_the_models_distribution_says(sampling: Sampling, tokens: dict[int, float]) -> None:
    draws, longest = 1500, 2
    model = TableModel(lambda key, prefix: STEP)
    limits = constraints([longest] * draws, 0, 0)
    uniforms = np.random.default_rng(0).random((draws, longest))
    with torch.no_grad():
        found = sample_batch(model, source([[9]] * draws), limits, 1.0, sampling, uniforms)
    expected = all_sequences(tokens, longest)
    assert chi_square(Counter(one.tokens for one in found), expected, draws) < 22.5  # p 0.001 with 6 degrees
    for one in found[:20]:  # whatever is drawn, its probability is the model's
        log_prob = sum(math.log(STEP[token]) for token in (*one.tokens, EOS_ID)[:longest])
        assert one.log_prob == pytest.approx(log_prob, abs=1e-5)


def test_truncation_is_that_of_numpy() -> None:
    log_probs = torch.randn(50, 23, generator=torch.manual_seed(0)).mul(3).log_softmax(1)
    for temperature, top_k, top_p in itertools.product((0.3, 1.0, 2.0), (0, 1, 5, 40), (0.05, 0.6, 1.0)):
        ours = truncated_distribution(log_probs, Sampling(temperature, top_k, top_p)).numpy()
        ours = ours / ours.sum(axis=1, keepdims=True)
        for row, found in zip(log_probs.double().numpy(), ours, strict=True):
            p = np.exp(row / temperature)
            order = np.argsort(-p)[: top_k or None]
            p = p[order] / p[order].sum()
            kept = np.searchsorted(np.cumsum(p), top_p - 1e-7) + 1
            expected = np.zeros(23)
            expected[order[:kept]] = p[:kept] / p[:kept].sum()
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_number_at_either_end_never_draws_an_impossible_token() -> None:
    log_probs = torch.tensor([[-math.inf, 0.25, 0.75, -math.inf]]).log_softmax(1).expand(3, 4)
    numbers = torch.tensor([0.0, math.nextafter(1.0, 0.0), 1.0], dtype=torch.float64)
    assert draw_tokens(log_probs, numbers, Sampling()).tolist() == [1, 2, 2]


def test_a_sample_depends_on_the_seed_and_the_sentence_alone() -> None:
    config, tokenizers = ARCHITECTURES[1]
    engine = TorchEngine(random_model(config, tokenizers, seed=3), tokenizers)
    sources = random_sources(12, tokenizers.src.vocab_size)
    decoding = DecodingConfig(max_length=12)

    def tokens(sources: Sequence[Sequence[int]], count: int = 3, seed: int = 5) -> list[list[tuple[int, ...]]]:
        found = engine.sample(sources, decoding, Sampling(count=count, seed=seed))
        return [[one.tokens for one in row] for row in found]

    together = tokens(sources)
    assert [tokens([one])[0] for one in sources] == together
    assert tokens(sources, count=1) == [row[:1] for row in together]
    assert tokens(sources[::-1])[::-1] == together
    assert tokens(sources, seed=6) != together
    assert len({one for row in together for one in row}) > len(sources)
    forced = engine.sample(sources, decoding, Sampling(count=2), [[5, 6]] * len(sources))
    assert all(one.tokens[:2] == (5, 6) for row in forced for one in row)


def test_random_numbers_of_vectors_and_ids_differ_by_content() -> None:
    ids = random_numbers([[4, 5], [4, 5], [5, 4]], Sampling(count=2), 3)
    assert ids.shape == (6, 3)
    assert (ids[:2] == ids[2:4]).all()
    assert len({tuple(row) for row in ids.tolist()}) == 4
    vectors = random_numbers([np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)], Sampling(), 3)
    assert (vectors[0] != vectors[1]).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 0.0}, "--temperature 0: must be more than 1e-06"),
        ({"temperature": 1e-40}, "--temperature 1e-40: must be more than 1e-06"),
        ({"temperature": math.nan}, "--temperature nan"),
        ({"top_p": 0.0}, "--top-p 0: "),
        ({"top_p": 1.1}, "--top-p 1.1: "),
        ({"seed": -1}, "--seed -1"),
    ],
)
def test_what_defines_no_distribution_is_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("-", r"\-")):
        Sampling(**values)


# --- Minimum Bayes risk ----------------------------------------------------------------------------------


def test_the_expected_chrf_is_the_mean_of_sacrebleus_sentence_scores() -> None:
    random = np.random.default_rng(0)
    texts = ["".join(random.choice(list("aab c"), size=length)) for length in (0, 1, 2, 3, 5, 9, 14, 14, 25)]
    texts += ["a b", "ab", texts[-1], "Ein Hund rennt.", "Ein Hund läuft.", "  "]
    metric = CHRF()
    expected = [np.mean([metric.sentence_score(one, [other]).score for other in texts]) for one in texts]
    np.testing.assert_allclose(expected_chrf(texts), expected, atol=1e-9)
    assert by_risk(texts)[0] == int(np.argmax(expected))


def test_ties_of_risk_are_broken_by_the_text() -> None:
    assert by_risk(["xyz", "abc"]) == [1, 0]
    assert by_risk(["abc", "xyz"]) == [0, 1]
    assert by_risk(["b", "a", "a"]) == [1, 2, 0]  # more frequent ones are more like the others
    assert by_risk([""]) == [0]


# --- Forbidden words -------------------------------------------------------------------------------------

TEXT = ["the hound hunts", "a hundred hounds", "the hunt", "one hound ran", "an old hundred", "New York", "new hounds"]


@pytest.fixture(scope="module")
def pieces() -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(TEXT * 5, TokenizerConfig(vocab_size=300, type="bpe"))


def test_a_word_is_spelled_in_every_way(pieces: SentencePieceTokenizer) -> None:
    """Brute force: all sequences of pieces whose text is the word."""
    forbidden = ForbiddenWords(pieces)
    written = pieces.pieces(range(pieces.vocab_size))
    parts = [
        index for index, piece in enumerate(written) if piece in "▁hunt" and index > 3 and index not in pieces.byte_ids
    ]
    expected = {
        ids
        for size in range(1, 6)
        for ids in itertools.product(parts, repeat=size)
        if "".join(written[index] for index in ids) == "▁hunt"
    }
    found = forbidden.spellings(("hunt",))
    assert set(found) == expected
    assert len(found) == len(expected) > 3
    assert set(forbidden.spellings(("hunt", "New York"))) > expected
    assert forbidden.spellings(("🦊",)) == (tuple(pieces.encode("🦊")),)  # in bytes
    assert ForbiddenWords(words(["a", "b"])).spellings(("a", "b a", "unknown")) == ((4,), (5, 4))


def test_words_of_scripts_without_spaces_are_forbidden_inside_a_sentence() -> None:
    chinese = SentencePieceTokenizer.train(["我有狗", "狗在睡觉", "他的狗"] * 5, TokenizerConfig(vocab_size=280))
    written = {"".join(chinese.pieces(ids)) for ids in ForbiddenWords(chinese).spellings(("狗",))}
    assert written == {"▁狗", "狗"}


def test_a_forbidden_sequence_is_masked_by_hand() -> None:
    """a b is forbidden: after a, only a and </s> are left, in proportion to theirs."""
    decoding, spellings = DecodingConfig(min_length=0), ForbiddenWords(words(["a", "b"])).spellings(("a b",))
    limits = Constraints.of(decoding, OWN_SPECIAL_IDS, [3], None, None, spellings)
    logits = torch.full((1, 2, 6), -torch.inf)
    for token, p in STEP.items():
        logits[..., token] = math.log(p)
    after = limits.allowed_log_probs(logits, torch.tensor([[[B_, A_], [A_, B_]]])).exp()  # (1, K, V)
    assert after[0, 0, [A_, B_, EOS_ID]].tolist() == pytest.approx([0.5 / 0.8, 0.0, 0.3 / 0.8])
    assert after[0, 1, [A_, B_, EOS_ID]].tolist() == pytest.approx([0.5, 0.2, 0.3])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_both_engines_forbid_the_same_words_and_find_the_same_n_best(beam_size: int, tmp_path: Path) -> None:
    config, tokenizers = ARCHITECTURES[1]
    model = random_model(config, tokenizers, seed=3)
    sources = random_sources(40, tokenizers.src.vocab_size)
    ours, theirs = TorchEngine(model, tokenizers), engine_for(model, tokenizers, tmp_path)
    free = DecodingConfig(beam_size=beam_size, max_length=12, max_length_ratio=0.5)
    found = ours.search(sources, free)
    pairs = Counter(pair for one in found for pair in itertools.pairwise(one[0].tokens) if pair[0] != pair[1])
    (often, _), (once, _) = pairs.most_common(1)[0], Counter(one[0].tokens[-1] for one in found).most_common(1)[0]
    banned = (" ".join(tokenizers.tgt.pieces(often)), tokenizers.tgt.pieces([once])[0])
    decoding = free.model_copy(update={"forbidden_words": banned})
    expected, got = ours.search(sources, decoding), theirs.search(sources, decoding)
    assert [row[0].tokens for row in expected] != [row[0].tokens for row in found]
    for one, other in zip(expected, got, strict=True):
        assert other[0].tokens == one[0].tokens
        assert other[0].score == pytest.approx(one[0].score, abs=1e-4)
        for hypothesis in (*one, *other):
            assert once not in hypothesis.tokens
            assert often not in itertools.pairwise(hypothesis.tokens)


# --- The translator --------------------------------------------------------------------------------------


def translator_of(decoding: DecodingConfig | None = None) -> tuple[Translator, TorchEngine, Tokenizers]:
    config, tokenizers = TransformerConfig(**SMALL), Tokenizers(tokenizer := words(["a", "b", "c"]), tokenizer)
    engine = TorchEngine(random_model(config, tokenizers, seed=3), tokenizers)
    decoding = decoding or DecodingConfig(max_length=8)
    return Translator(tokenizers, engine, decoding, 20), engine, tokenizers


def test_scored_pieces_are_the_models_own_probabilities() -> None:
    translator, engine, tokenizers = translator_of()
    lines = ["a b", "c", "", "b b a"]
    for line, one in zip(lines, translator.stream([lines], request=Request(num_scored=2)), strict=True):
        assert len(one.scored) == (2 if line else 0)
        for scored, (text, _) in zip(one.scored, one.n_best, strict=False):
            assert " ".join(scored.tokens[:-1]) == text
            (expected,) = engine.score([tokenizers.src.encode(line)], [tokenizers.tgt.encode(text)])
            assert scored.log_probs == pytest.approx(expected, abs=1e-5)


def test_a_request_limits_the_n_best() -> None:
    translator, *_ = translator_of()
    found, wanted = ([*translator.stream([["a b", "c"]], request=Request(n_best=n_best))] for n_best in (None, 2))
    assert [len(one.n_best) for one in found] == [DecodingConfig().beam_size] * 2
    assert [one.n_best for one in wanted] == [one.n_best[:2] for one in found]


def test_a_status_says_what_was_cut_and_what_did_not_end(caplog: pytest.LogCaptureFixture) -> None:
    """The same draws that may go on show which translations a limit of 3 pieces has ended."""
    lines = [" ".join(words) for count in (1, 2, 3) for words in itertools.product("abc", repeat=count)]
    free, limited = (translator_of(DecodingConfig(max_length=length))[0] for length in (19, 3))
    request = Request(sampling=Sampling(temperature=2))
    with caplog.at_level(logging.DEBUG, logger="nmt"):
        found = [one.status for one in limited.stream([[*lines, ""]], request=request)]
    ended, ends = ("ended at max_length",), ("translated",)
    expected = [ended if one.num_tokens >= 3 else ends for one in free.stream([lines], request=request)]
    assert found == [*expected, ("empty",)]
    assert {*expected} == {ended, ends}
    assert caplog.messages[0].startswith(f"line 1: {found[0][0]}: 'a' -> ")

    class Engine:
        name, batches_at_once = "one", 1

        def search(self, sources: Sequence[np.ndarray], decoding: DecodingConfig, *_: object) -> list[list[Hypothesis]]:
            return [[Hypothesis((4,), -1.0, -1.0)] for _ in sources]

    source = VectorSource(type="vectors", features=2)
    tokenizers = Tokenizers(tokenizer := words(["a"]), tokenizer)
    translator = Translator(tokenizers, Engine(), DecodingConfig(), 5, source=source)  # type: ignore[arg-type]
    vectors = [np.zeros((length, 2), dtype=np.float32) for length in (5, 6)]
    assert [one.status for one in translator.stream([vectors])] == [ends, ("cut",)]
    with pytest.raises(ConfigError, match="alignments are of words"):
        translator.translate(vectors, request=Request(alignment=True))


def test_the_translation_by_risk_is_the_sample_with_the_highest_expected_chrf() -> None:
    translator, *_ = translator_of()
    lines = ["a b", "c", "b b a", "a"]
    drawn, chosen = (
        translator.stream([lines], request=Request(sampling=Sampling(count=16, by_risk=by_risk)))
        for by_risk in (False, True)
    )
    for one, best in zip(drawn, chosen, strict=True):
        texts = [text for text, _ in one.n_best]
        assert len(texts) == 16
        assert sorted(texts) == sorted(text for text, _ in best.n_best)
        scores = [np.mean([CHRF().sentence_score(text, [other]).score for other in texts]) for text in texts]
        assert scores[texts.index(best.text)] == pytest.approx(max(scores), abs=1e-6)


def test_prefixes_begin_the_translations_and_must_be_as_many_as_the_lines() -> None:
    translator, *_ = translator_of()

    def texts(blocks: Sequence[Sequence[str]], prefixes: Sequence[str] | str | None) -> list[str]:
        return [one.text for one in translator.stream(blocks, prefixes=prefixes)]

    lines = ["a b", "c", "", "b b a"]
    found = texts([lines[:2], lines[2:]], ["b a ", "", "a", "c"])
    assert found[0].startswith("b a")
    assert found[1] == texts([["c"]], None)[0]
    assert found[2] == ""
    assert found[3].startswith("c")
    assert texts([lines], "c a") == [*texts([["a b", "c"]], "c a"), "", *texts([["b b a"]], ["c a"])]
    with pytest.raises(DataError, match="line 4 has no prefix"):
        texts([lines[:2], lines[2:]], ["b a", "", "a"])
    with pytest.raises(DataError, match="more prefixes than the 4 lines"):
        texts([lines], ["b a"] * 5)
    with pytest.raises(DataError, match="line 2: the prefix 'b x' holds a word"):
        texts([lines], ["b", "b x", "", ""])


# --- The command -----------------------------------------------------------------------------------------


def test_json_has_the_text_its_pieces_and_the_n_best(
    in_solved: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = cli("translate", "--json", "--n-best", "2", "--align", "--tokens", "3 1 4")
    assert code == 0, err
    found = json.loads(out)
    assert found["text"] == "3 1 4"
    assert found["tokens"] == ["3", "1", "4", "</s>"]
    assert found["alignment"].split()[-1].endswith("-2")
    assert len(found["log_probs"]) == 4
    assert [len(one["log_probs"]) == len(one["tokens"]) for one in found["n_best"]] == [True, True]
    assert found["n_best"][0] == {key: found[key] for key in ("text", "score", "tokens", "log_probs")}
    assert found["status"] == ["translated"]
    (in_solved / "one.src").write_text("3 1 4\n")
    (in_solved / "one.tgt").write_text("3 1 4\n")
    scored = json.loads(cli("score", "--src", "one.src", "--tgt", "one.tgt", "--tokens", "--json")[1].splitlines()[0])
    assert found["log_probs"] == pytest.approx(scored["log_probs"], abs=1e-5)
    monkeypatch.delattr(TorchEngine, "score")  # takes as long as the search, so it is for those who ask for it
    short = [{key: one[key] for key in ("text", "score")} for one in found["n_best"]]
    assert json.loads(cli("translate", "--json", "--n-best", "2", "3 1 4")[1]) == {
        **short[0],
        "status": ["translated"],
        "n_best": short,
    }


def test_json_of_a_file_is_an_object_a_line_and_resumes(
    in_solved: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_text("1 2\n\n3 4 5\n6\n")
    (tmp_path / "prefixes").write_text("\n\n7\n8\n")
    command = ["translate", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--continue"]
    options = [
        "--json",
        "--tokens",
        "--sample",
        "--n-best",
        "3",
        "--seed",
        "4",
        "--prefixes",
        str(tmp_path / "prefixes"),
    ]
    code, _, err = cli(*command, *options)
    assert code == 0, err
    straight = (tmp_path / "out").read_bytes()
    objects = [json.loads(line) for line in straight.splitlines()]
    assert objects[1] == {"text": "", "score": None, "tokens": [], "log_probs": [], "status": ["empty"], "n_best": []}
    assert [len(one["n_best"]) for one in objects] == [3, 0, 3, 3]
    assert objects[2]["text"].startswith("7")
    (tmp_path / "out").unlink()

    def stops(translation: Translation, n_best: int, alignment: bool, tokens: bool) -> str:
        if translation.text == objects[2]["text"]:
            raise RunError("stopped here")
        return as_json(translation, n_best, alignment, tokens)

    with monkeypatch.context() as patched:
        patched.setattr(nmt.decoding.translator, "as_json", stops)
        assert "2 lines are in " in cli(*command, *options)[2]
    without = [[options[2], *options[5:]], [options[0], *options[2:]], options[:-2]]
    for changed in (*without, [*options[:-3], "5", *options[-2:]]):
        code, _, err = cli(*command, *changed)
        assert (code, "was started with another --" in err) == (2, True), err
    assert cli(*command, *options)[0] == 0
    assert (tmp_path / "out").read_bytes() == straight


def test_the_seed_chooses_the_samples_and_the_order_of_lines_does_not(
    in_solved: Path, tmp_path: Path, cli: Cli
) -> None:
    lines = ["1 2 3", "4 5", "1 2 3", "6 7 8 9"]

    def samples(lines: Sequence[str], *options: str) -> list[str]:
        (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
        code, out, err = cli("translate", "--input", str(tmp_path / "in"), "--temperature", "3", *options)
        assert code == 0, err
        return out.splitlines()

    found = samples(lines, "--sample")
    assert samples(lines[::-1], "--sample") == found[::-1]
    assert found[0] == found[2]
    assert samples(lines, "--sample", "--seed", "2") != found
    assert samples(lines, "--mbr", "8") == samples(lines, "--mbr", "8", "--seed", "1")


def test_lengths_prefixes_and_forbidden_words_are_honoured(in_solved: Path, cli: Cli) -> None:
    def translated(*options: str) -> str:
        code, out, err = cli("translate", "3 1 4", *options)
        assert code == 0, err
        return out.removesuffix("\n")

    assert len(translated("--min-length", "6").split()) >= 6
    assert translated("--max-length", "2") == "3 1"
    assert translated("--prefix", "5 6").startswith("5 6")
    assert "1" not in translated("--forbid", "1").split()
    assert not {"3", "4"} & set(translated("--forbid", "3", "--forbid", "4").split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-best", "3"], "--n-best needs --json"),
        (["--align"], "--align needs --json"),
        (["--tokens"], "--tokens needs --json"),
        (["--json", "--n-best", "9"], "the search keeps 3 hypotheses; add --beam-size 9"),
        (["--temperature", "2", "--seed", "3"], "--temperature and --seed: only for sampling; add --sample"),
        (["--sample", "--mbr", "4"], "leave out --sample"),
        (["--sample", "--beam-size", "2"], "--sample draws; leave out one"),
        (["--mbr", "4", "--json", "--n-best", "5"], "--mbr 4 draws 4 translations; draw at least 5"),
        (["--sample", "--engine", "ctranslate2"], "--sample and --mbr need --engine torch"),
        (["--min-length", "11"], "decoding.min_length (11) must be at most 10"),
        (["--max-length", "0"], "decoding.max_length: "),
        (["--forbid", " "], "decoding.forbidden_words: "),
        (["--max-length", "64"], "must be less than the model's max_positions"),
        (["--prefix", "1", "--prefixes", "val.en"], "give a text, or files"),
        (["--prefix", "x"], "outside the model's vocabulary"),
    ],
)
def test_what_cannot_be_honoured_is_one_line(in_solved: Path, cli: Cli, options: list[str], message: str) -> None:
    code, out, err = cli("translate", "1 2", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
