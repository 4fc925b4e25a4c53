"""`nmt score`: log-probabilities of translations, against forward of one pair alone, CTranslate2 and the trainer."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli, assert_says
from test_crafted import Echo
from test_ctranslate2 import APART, ARCHITECTURES, engine_for, random_model, random_sources
from test_search import lively_model, random_sentences

from nmt.config.inference import DecodingConfig, TransformerConfig
from nmt.decoding.hypothesis import ScoredTokens
from nmt.decoding.scoring import Scorer, Totals
from nmt.decoding.source_text import SourceText
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import LINES_AT_ONCE
from nmt.errors import TrainingError
from nmt.models.ensemble import Ensemble
from nmt.models.interface import Seq2SeqModel
from nmt.models.source import source_of
from nmt.tokenizers.tokenizer import Tokenizers, WordTokenizer
from nmt.tokenizers.vocabulary import BOS_ID, EOS_ID, OWN_SPECIAL_IDS, PAD_ID, SPECIAL_PIECES, UNK_ID

LETTERS = WordTokenizer([*SPECIAL_PIECES, *"abcdefg"])  # 11 ids, as the models of the other tests have
JOINT = Tokenizers(LETTERS, LETTERS)
Ids = Sequence[int]


def expected_scores(models: Sequence[Seq2SeqModel], src: Ids, tgt: Ids) -> list[float]:
    """Of one pair alone, with numpy, from the mean of the models' probabilities."""
    with torch.no_grad():
        logits = [m(source_of([src], OWN_SPECIAL_IDS), torch.tensor([[BOS_ID, *tgt]]))[0].numpy() for m in models]
    exps = [np.exp(of_one.astype(np.float64)) for of_one in logits]
    probabilities = sum(of_one / of_one.sum(axis=1, keepdims=True) for of_one in exps) / len(models)  # (T, V)
    return [math.log(probabilities[place, index]) for place, index in enumerate([*tgt, EOS_ID])]


# --- The engines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_a_score_is_forwards_in_any_batch(count: int) -> None:
    """Also of an empty side, and of ids that no search may choose."""
    models = [lively_model(seed) for seed in range(count)]
    sources = [*random_sentences(0, 6), [], [5, 6], []]
    targets = [*random_sentences(1, 6, longest=15), [4, UNK_ID, PAD_ID, BOS_ID, EOS_ID, 7], [], []]
    engine = TorchEngine(models[0] if count == 1 else Ensemble(models).eval(), JOINT)
    found = engine.score(sources, targets)
    for log_probs, src, tgt in zip(found, sources, targets, strict=True):
        assert log_probs == pytest.approx(expected_scores(models, src, tgt), abs=1e-4)


@pytest.mark.parametrize(("config", "tokenizers"), ARCHITECTURES)
def test_both_engines_have_the_same_scores(config: TransformerConfig, tokenizers: Tokenizers, tmp_path: Path) -> None:
    model = random_model(config, tokenizers)
    sources = [*random_sources(30, tokenizers.src.vocab_size), [], [5], [6, UNK_ID]]
    targets = [*random_sources(30, tokenizers.tgt.vocab_size, longest=60), [4, 4, 5], [], [UNK_ID, 5]]
    found = engine_for(model, tokenizers, tmp_path).score(sources, targets)
    expected = TorchEngine(model, tokenizers).score(sources, targets)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-3)


def test_no_engine_cuts_a_long_source(tmp_path: Path) -> None:
    """CTranslate2 would, at 1,024 tokens."""
    config = TransformerConfig(
        d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1, max_positions=1200
    )
    model, src = random_model(config, JOINT), random_sentences(0, 1)[0] * 200
    found = engine_for(model, JOINT, tmp_path).score([src[:1100]], [[4, 5]])
    assert found[0] == pytest.approx(TorchEngine(model, JOINT).score([src[:1100]], [[4, 5]])[0], abs=1e-4)
    assert found[0] != pytest.approx(TorchEngine(model, JOINT).score([src[:1023]], [[4, 5]])[0], abs=1e-4)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_searchs_log_probabilities_are_the_scores_if_nothing_is_masked(beam_size: int, masked: bool) -> None:
    """What is masked gives its probability to the other tokens, in the search alone."""
    model = lively_model(2, layout="marianmt-own-start")
    with torch.no_grad():
        assert model.output.bias is not None
        model.output.bias[[PAD_ID, BOS_ID, UNK_ID]] = 0.0 if masked else -60.0
    sources = random_sentences(2, 5)
    engine = TorchEngine(model, JOINT)
    decoding = DecodingConfig(beam_size=beam_size, max_length=40, min_length=0)
    ended = 0
    for src, (best, *_) in zip(sources, engine.search(sources, decoding), strict=True):
        (scored,) = engine.score([src], [best.tokens])
        has_ended = len(best.tokens) < decoding.longest_output(len(src))  # a search may stop before </s>
        ended += has_ended
        own = sum(scored if has_ended else scored[:-1])
        if masked:
            assert best.log_prob > own + 1e-3
        else:
            assert best.log_prob == pytest.approx(own, abs=1e-3)
    assert ended


# --- Lines -----------------------------------------------------------------------------------------------


class Lengths(Echo):
    """An engine whose scores say how long a pair is; it records the sizes of its batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def score(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[list[float]]:
        self.batches.append(len(sources))
        return [[-float(len(src))] * (len(tgt) + 1) for src, tgt in zip(sources, targets, strict=True)]


def scorer_of(engine: Lengths, max_src: int = 5, max_tgt: int = 8, batch_tokens: int = 20) -> Scorer:
    return Scorer(JOINT, engine, SourceText(LETTERS, max_src, True, "en"), max_tgt, batch_tokens)


def test_pairs_keep_their_order_in_batches_of_the_longer_side() -> None:
    engine, random = Lengths(), np.random.default_rng(0)
    lengths = random.integers(0, 6, size=(300, 2)).tolist()
    lengths[7] = [0, 0]
    found = list(scorer_of(engine).stream((" ".join("a" * src), " ".join("b" * tgt)) for src, tgt in lengths))
    assert [pair.tokens for pair in found] == [(*"b" * tgt, "</s>") for _, tgt in lengths]
    assert [pair.log_prob for pair in found] == [-src * (tgt + 1) for src, tgt in lengths]
    assert max(engine.batches) <= 10
    assert len(engine.batches) > 50


def test_a_source_is_read_as_in_translation_and_no_target_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    lines = [("a " * 6, "b"), ("A B", "A B"), (" a \u2581 ", " b  b\t"), ("a", "b " * 8), ("a", "b " * 9), ("a", "c")]
    found = list(scorer_of(Lengths()).stream(lines))
    assert found[0] == ScoredTokens(("b", "</s>"), (-5.0, -5.0))
    assert found[1] == ScoredTokens(("<unk>", "<unk>", "</s>"), (-2.0,) * 3), "capitals are lowercased on one side only"
    assert found[2] == ScoredTokens(("b", "b", "</s>"), (-1.0,) * 3)
    assert len(found[3].tokens) == 9
    assert found[4] == ScoredTokens((), ())
    assert math.isnan(found[4].log_prob)
    assert found[5].tokens == ("c", "</s>")
    source, target = caplog.messages
    assert_says(source, "line 1: 6 pieces", "5 (data.max_length)")
    assert_says(target, "line 5: ", "8 pieces")


def test_one_block_is_read_at_a_time() -> None:
    taken = 0

    def endless() -> Iterator[tuple[str, str]]:
        nonlocal taken
        while True:
            taken += 1
            yield "a", "b"

    stream = scorer_of(Lengths(), batch_tokens=10_000).stream(endless())
    for _ in range(2 * LINES_AT_ONCE):
        next(stream)
    assert taken == 2 * LINES_AT_ONCE


def test_totals_by_hand() -> None:
    totals = Totals()
    assert math.isnan(totals.perplexity)
    for pair in (ScoredTokens(("a", "</s>"), (-1.0, -2.0)), ScoredTokens((), ()), ScoredTokens(("</s>",), (-3.0,))):
        totals.add(pair)
    assert (totals.pairs, totals.not_scored, totals.tokens, totals.log_prob) == (2, 1, 3, -6.0)
    assert totals.perplexity == pytest.approx(math.exp(2.0))


def test_a_diverged_model_is_an_error() -> None:
    model = random_model(TransformerConfig(d_model=8, num_heads=2, d_ff=8, tie_embeddings="none"), APART)
    with torch.no_grad():
        model.output.weight[5] = math.nan
    scorer = Scorer(APART, TorchEngine(model, APART), SourceText(APART.src, 9, False, "en"), 9, 100)
    with pytest.raises(TrainingError, match=r"not numbers \(NaN\)"):
        list(scorer.stream([("ß", "a")]))


# --- The command -----------------------------------------------------------------------------------------


def test_the_sum_over_the_validation_set_is_the_trainers_loss(in_solved: Path, cli: Cli) -> None:
    """Its loss is the cross-entropy a token, `</s>` counted, of the weights that it saves."""
    lines = [json.loads(line) for line in Path("runs/copy/metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if line["kind"] == "validation"}
    code, out, err = cli("score", "--src", "val.en", "--tgt", "val.de", "--json")
    assert (code, err) == (0, "")
    *pairs, totals = map(json.loads, out.splitlines())
    assert totals["log_prob"] == pytest.approx(sum(pair["log_prob"] for pair in pairs), abs=1e-4)
    assert totals["num_tokens"] == sum(pair["num_tokens"] for pair in pairs)
    assert (totals["pairs"], totals["not_scored"], len(pairs)) == (50, 0, 50)
    loss = -totals["log_prob"] / totals["num_tokens"]
    assert totals["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert min(abs(loss - of_validation) for of_validation in losses.values()) < 1e-5
    assert max(abs(loss - of_validation) for of_validation in losses.values()) > 1e-3


def test_a_line_or_a_piece(in_solved: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "src").write_text("1 2\n\n3\n1 x\n", encoding="utf-8")
    (tmp_path / "tgt").write_text("1 2\n\n\n7 y\n", encoding="utf-8")
    files = ["--src", str(tmp_path / "src"), "--tgt", str(tmp_path / "tgt")]
    code, plain, err = cli("score", *files)
    assert code == 0
    numbers = [float(line) for line in plain.splitlines()]
    assert len(numbers) == 4
    assert numbers[0] > -0.5 > numbers[3]
    code, by_piece, _ = cli("score", *files, "--tokens", "--device", "cpu", "--precision", "fp32", "--engine", "torch")
    rows = [line.split("\t") for line in by_piece.splitlines()]
    assert [float(row[0]) for row in rows] == numbers
    assert [[field.split()[0] for field in row[1:]] for row in rows] == [
        ["1", "2", "</s>"], ["</s>"], ["</s>"], ["7", "<unk>", "</s>"],
    ]  # fmt: skip
    for row in rows:
        assert sum(float(field.split()[1]) for field in row[1:]) == pytest.approx(float(row[0]), abs=1e-3)
    code, as_json, _ = cli("score", *files, "--tokens", "--json")
    objects = [json.loads(line) for line in as_json.splitlines()]
    assert objects[0]["tokens"] == ["1", "2", "</s>"]
    assert sum(objects[0]["log_probs"]) == pytest.approx(numbers[0], abs=1e-3)
    total, count = sum(numbers), 3 + 1 + 1 + 3
    assert err.startswith(f"4 pairs, {count} tokens with </s>: log-probability {total:.2f}, ")
    assert objects[-1]["log_prob"] == pytest.approx(total, abs=1e-3)


def test_a_file_with_both_sides_scores_as_two_texts_do(in_solved: Path, cli: Cli) -> None:
    lines = [Path(f"val.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")]
    rows = [f"{tgt}\t{src}" for src, tgt in zip(*lines, strict=True)]
    Path("pairs.tsv").write_text("".join(f"{row}\n" for row in ["de\ten", *rows]), encoding="utf-8")
    texts = cli("score", "--src", "val.en", "--tgt", "val.de")
    assert texts[0] == 0
    assert cli("score", "pairs.tsv") == cli("score", "--src", "pairs.tsv") == texts
    assert cli("score", "val.en", "val.de") == texts
    assert len(cli("score", "pairs.tsv", "val.en", "val.de")[1].splitlines()) == 100
    code, _, err = cli("score", "--src", "val.en")
    assert (code, "--src and --tgt" in err) == (2, True)


def test_an_ensemble_scores_too(in_solved: Path, cli: Cli) -> None:
    command = ["score", "--src", "val.en", "--tgt", "val.de"]
    twice, once = cli(*command, "--model", "copy", "--model", "copy")[1], cli(*command)[1]
    # Four decimals are printed, and one more or less in the last is rounding.
    assert [float(line) for line in twice.split()] == pytest.approx([float(line) for line in once.split()], abs=1.01e-4)


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        ("1\n2\n", "1\n2\n3\n", "src has 2 lines, {}/tgt has 3; every line needs its translation"),
        ("", "", "src and {}/tgt are empty"),
        ("1\n", None, "tgt: no such file"),
        ("1\n", "\xff\n", "tgt:1: not UTF-8"),
    ],
)
def test_files_that_are_no_pairs(
    in_solved: Path, tmp_path: Path, src: str, tgt: str | None, message: str, cli: Cli
) -> None:
    for name, text in (("src", src), ("tgt", tgt)):
        if text is not None:
            (tmp_path / name).write_text(text, encoding="latin-1")
    code, _, err = cli("score", "--src", str(tmp_path / "src"), "--tgt", str(tmp_path / "tgt"))
    assert code == 2
    assert message.format(tmp_path) in err
    assert "tokens with </s>" not in err
