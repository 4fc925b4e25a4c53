"""What `nmt attention` says of a translation, against torch's attention, numpy, finite differences and brute force.

Shapes: S source positions with `</s>`, T target positions, V vocabulary.
"""

import json
import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli, assert_says
from test_attention_weights import SOURCES, TARGETS, names, torchs_weights
from test_search import Prefix, lively_model, next_log_probs, random_sentences
from test_transformer import make_model

from nmt.config.inference import DecodingConfig, TokenizerConfig, TransformerConfig
from nmt.decoding.beam_search import Node, SearchTree
from nmt.decoding.torch_engine import TorchEngine, load_model, load_torch_engine
from nmt.errors import ConfigError, RunError
from nmt.insight.attention import KINDS, attention_maps, word_at
from nmt.insight.explanation import Explanation, explain, explain_attention, gradient_times_input
from nmt.models.factory import build_model
from nmt.models.source import Source
from nmt.models.transformer import Transformer
from nmt.runs.folder import RunFolder
from nmt.runs.weights import save_weights
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizers, WordTokenizer, load_tokenizers, save_tokenizers
from nmt.tokenizers.vocabulary import BOS_ID, EOS_ID, SPECIAL_PIECES

SRC_WORDS, TGT_WORDS = "abcdefg", "ABCDEFGHI"


def words(extra: str) -> WordTokenizer:
    return WordTokenizer([*SPECIAL_PIECES, *extra])


DIGITS = Tokenizers(digits := words("abcdefg"), digits)  # 11 ids, as the models of the other tests have

# --- The maps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("num_encoder_layers", "num_decoder_layers"), [(2, 2), (6, 3)])
def test_a_pairs_maps_are_torchs_of_the_padded_batch(
    small_config: TransformerConfig, norm: str, num_encoder_layers: int, num_decoder_layers: int
) -> None:
    changes = {"norm": norm, "num_encoder_layers": num_encoder_layers, "num_decoder_layers": num_decoder_layers}
    config = small_config.model_copy(update=changes)
    model = make_model(config)
    batch = dict(zip(names(config), torchs_weights(model, config), strict=True))
    for row, (src, tgt) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        maps = attention_maps(model, DIGITS, src, tgt)
        lengths = {"encoder": (len(src) + 1, len(src) + 1), "decoder": (len(tgt) + 1,) * 2}
        lengths["cross"] = (len(tgt) + 1, len(src) + 1)
        for kind in KINDS:
            side, _, name = {"encoder": "encoder.self", "decoder": "decoder.self", "cross": "decoder.cross"}[
                kind
            ].partition(".")
            found = maps.of(kind)
            queries, keys = lengths[kind]
            assert found.dtype == np.float32
            assert found.shape == (changes[f"num_{side}_layers"], 2, queries, keys)
            assert tuple(map(len, maps.labels(kind))) == (queries, keys)
            for layer, of_layer in enumerate(found):
                expected = batch[f"{side}.{layer}.{name}"][row, :, :queries, :keys]
                np.testing.assert_allclose(of_layer, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
        assert (np.triu(maps.decoder, 1) == 0).all()


def tokens_to(tree: SearchTree, node: Node) -> tuple[int, ...]:
    """The ids from the root's first child to the node, `</s>` included."""
    if node.parent is None:
        return ()
    return (*tokens_to(tree, tree.nodes[node.parent]), node.token_id)


def test_positions_have_the_tokens_that_are_read_and_predicted(small_model: Transformer) -> None:
    maps = attention_maps(small_model, DIGITS, [4, 5], [6, 7, 8])
    assert maps.src_tokens == ("a", "b", "</s>")
    assert maps.tgt_tokens == ("<s>", "c", "d", "e")
    assert maps.out_tokens == ("c", "d", "e", "</s>")
    assert maps.labels("encoder") == (maps.src_tokens, maps.src_tokens)
    assert maps.labels("decoder") == (maps.out_tokens, maps.tgt_tokens)
    assert maps.labels("cross") == (maps.out_tokens, maps.src_tokens)


def test_pieces_belong_to_words_and_in_chinese_bytes_to_characters() -> None:
    src = SentencePieceTokenizer.train(["he said hello to her", "the hero held her"], TokenizerConfig(vocab_size=290))
    tgt = SentencePieceTokenizer.train(["你好 你好 你 好"] * 9, TokenizerConfig(vocab_size=265))
    src_ids, tgt_ids = src.encode("hello her"), tgt.encode("你好世好")
    config = TransformerConfig(d_model=8, num_heads=2, d_ff=8, tie_embeddings="none")
    maps = attention_maps(build_model(config, 290, 265).eval(), Tokenizers(src, tgt), src_ids, tgt_ids, "en", "zh")
    by_word = [
        "".join(piece for piece, of in zip(maps.src_tokens, maps.src_words, strict=True) if of == number)
        for number in range(max(maps.src_words) + 1)
    ]
    assert by_word == ["▁hello", "▁her", "</s>"]
    pieces = dict(zip(maps.out_tokens, maps.out_words, strict=True))
    in_bytes = [pieces[f"<0x{byte:02X}>"] for byte in "世".encode()]
    assert len(set(in_bytes)) == 1, "three bytes are one character"
    assert pieces["</s>"] == max(maps.out_words) > in_bytes[0]
    assert maps.out_words[-2] == in_bytes[0] + 1
    assert maps.tgt_words == (0, *(number + 1 for number in maps.out_words[:-1]))
    assert list(maps.out_words) == sorted(maps.out_words)
    hers = src.encode("hello hers")
    assert len(hers) > 2, "of several pieces"
    by_position = [word_at(src, hers, place, "en") for place in range(len(hers) + 1)]
    assert list(dict.fromkeys(by_position)) == ["hello", "hers", "</s>"]
    assert [word_at(tgt, tgt_ids, place, "zh") for place in range(len(tgt_ids))].count("世") == 3


# --- Gradients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_gradient_times_input_is_a_finite_difference(
    small_config: TransformerConfig, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stretching the embedding of one position by 1 + h changes a log-probability by h gradient times embedding."""
    monkeypatch.setattr("nmt.insight.explanation.GRADIENT_POSITIONS", 30)  # several batches
    model = make_model(small_config, norm=norm).double().requires_grad_(False)
    src, tgt, h = [5, 9, 4, 7], [8, 8, 6], 1e-4
    ids = torch.tensor([[*src, EOS_ID]])
    vectors, mask = model.src_embedding(ids), torch.ones(1, 5, dtype=torch.bool)

    def log_probs(position: int, stretch: float) -> torch.Tensor:
        stretched = vectors.clone()
        stretched[0, position] *= stretch
        logits = model(Source(stretched, mask), torch.tensor([[BOS_ID, *tgt]]))[0]
        return logits.log_softmax(dim=-1)[torch.arange(4), torch.tensor([*tgt, EOS_ID])]  # (T,)

    columns = [(log_probs(place, 1 + h) - log_probs(place, 1 - h)) / (2 * h) for place in range(5)]
    expected = torch.stack(columns, dim=1).abs().numpy()  # (T, S)
    found = gradient_times_input(model, DIGITS, src, tgt)
    np.testing.assert_allclose(found, expected / expected.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_embeddings_are_a_source_like_their_ids(small_config: TransformerConfig) -> None:
    model = make_model(small_config)
    ids, mask, tgt_in = torch.tensor([[5, 6, 2]]), torch.ones(1, 3, dtype=torch.bool), torch.tensor([[1, 7]])
    source = Source(ids, mask)
    assert torch.equal(model(model.embed_sources(source), tgt_in), model(source, tgt_in))


# --- The search tree -------------------------------------------------------------------------------------

SEARCHES = [
    (0, DecodingConfig(beam_size=1, max_length=12)),
    (1, DecodingConfig(beam_size=2, max_length=12, length_penalty=0.0, min_length=0)),
    (2, DecodingConfig(beam_size=3, max_length=9, no_repeat_ngram_size=2, length_penalty=1.4)),
    (3, DecodingConfig(beam_size=4, max_length=3, min_length=3)),
    (4, DecodingConfig(beam_size=5, max_length=12, no_repeat_ngram_size=1, length_penalty=0.6)),
    (5, DecodingConfig(beam_size=20, max_length=2, min_length=0)),
]


@pytest.mark.parametrize(("seed", "decoding"), SEARCHES)
def test_a_tree_holds_the_candidates_of_a_search_with_loops(seed: int, decoding: DecodingConfig) -> None:
    model, width = lively_model(seed), decoding.beam_size
    (sentence,) = random_sentences(seed, 1)
    engine = TorchEngine(model, DIGITS)
    found, tree = engine.traced_search(sentence, decoding)
    assert tree.nodes[0].parent is None
    assert tree.nodes[0].token == "<s>"
    assert [node.id for node in tree.nodes] == list(range(len(tree.nodes)))
    longest, last = decoding.longest_output(len(sentence)), tree.nodes[-1].step
    prefixes: dict[Prefix, float] = {(): 0.0}
    for step in range(1, last + 1):
        following = next_log_probs(model, sentence, list(prefixes), decoding.min_length, decoding.no_repeat_ngram_size)
        candidates = sorted(
            ((so_far + log_prob, (*prefix, token))
             for (prefix, so_far), log_probs in zip(prefixes.items(), following, strict=True)
             for token, log_prob in log_probs.items()),
            reverse=True,
        )[: 2 * width]  # fmt: skip
        nodes = [node for node in tree.nodes if node.step == step]
        assert [tokens_to(tree, node) for node in nodes] == [tokens for _, tokens in candidates]
        assert [node.log_prob for node in nodes] == pytest.approx([log_prob for log_prob, _ in candidates], abs=1e-4)
        assert [node.token for node in nodes] == digits.pieces([tokens[-1] for _, tokens in candidates])
        ends = [tokens[-1] == EOS_ID or step == longest for _, tokens in candidates]
        finished = [end and place < width for place, end in enumerate(ends)]
        assert [node.state == "finished" for node in nodes] == finished
        extended = [one for one in candidates if one[1][-1] != EOS_ID][:width] if step < last else []
        assert [tokens_to(tree, node) for node in nodes if node.state == "kept"] == [tokens for _, tokens in extended]
        prefixes = {tokens: log_prob for log_prob, tokens in extended}
    hypotheses = next(iter(engine.search([sentence], decoding)))
    assert found[0].tokens == hypotheses[0].tokens
    finished_nodes = sorted((node for node in tree.nodes if node.state == "finished"), key=lambda node: -node.score)
    assert [node.score for node in finished_nodes[: len(found)]] == [one.score for one in found]
    assert finished_nodes[0].id == tree.best
    assert tuple(index for index in tokens_to(tree, finished_nodes[0]) if index != EOS_ID) == hypotheses[0].tokens


# --- The whole explanation -------------------------------------------------------------------------------

CONFIG = """\
data: {src_lang: en, tgt_lang: de, max_length: 6}
tokenizer: {type: word, joint: false}
model: {tie_embeddings: none, d_model: 16, num_heads: 2, d_ff: 32, num_encoder_layers: 2, num_decoder_layers: 1,
  max_positions: 16}
decoding: {beam_size: 3, max_length: 9, length_penalty: 0.7, no_repeat_ngram_size: 2}
"""
DECODING = DecodingConfig(beam_size=3, max_length=9, length_penalty=0.7, no_repeat_ngram_size=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A random model with other words on the target side, in `runs/random`; what a search forbids is likely, too."""
    folder = RunFolder(tmp_path_factory.mktemp("explained") / "runs" / "random")
    folder.path.mkdir(parents=True)
    folder.config_file.write_text(CONFIG, encoding="utf-8")
    tokenizers = Tokenizers(words(SRC_WORDS), words(TGT_WORDS))
    save_tokenizers(tokenizers, folder.tokenizer, "")
    torch.manual_seed(4)  # its translations end before the maximum length
    model = build_model(folder.inference_config().model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    assert isinstance(model, Transformer)
    with torch.no_grad():
        model.output.weight.mul_(2.0)
        model.decoder[0].cross_attention.output.weight.mul_(3.0)
    save_weights(model, folder.model_file)
    return folder


@pytest.fixture(scope="module")
def own(run: RunFolder) -> Explanation:
    return explain(run, "c a f b", device="cpu")


@pytest.fixture(scope="module")
def given(run: RunFolder) -> Explanation:
    """Of a translation that no search may choose: it holds `<unk>` and repeats two words."""
    return explain(run, "c a f b", "A B unknown A B", device="cpu")


def ids_of(explanation: Explanation) -> list[int]:
    return words(TGT_WORDS).encode(" ".join(explanation.maps.out_tokens[:-1]))


def test_the_translation_is_that_of_translate(run: RunFolder, own: Explanation, cli: Cli) -> None:
    assert cli("translate", "--model", str(run.path), "--engine", "torch", "c a f b")[1] == f"{own.tgt}\n"
    tree = own.search
    assert tree.best is not None
    best = tokens_to(tree, tree.nodes[tree.best])
    assert words(TGT_WORDS).decode(best) == own.tgt == " ".join(own.maps.out_tokens[:-1])
    assert own.is_own
    assert (own.model, own.src, own.src_lang, own.tgt_lang) == ("random", "c a f b", "en", "de")
    assert own.maps.src_tokens == ("c", "a", "f", "b", "</s>")


def test_a_given_translation_is_followed_and_the_search_is_the_models_own(own: Explanation, given: Explanation) -> None:
    assert given.search == own.search
    assert not given.is_own
    assert given.tgt == "A B unknown A B"
    assert given.maps.out_tokens == ("A", "B", "<unk>", "A", "B", "</s>")


@pytest.mark.parametrize("which", ["own", "given"])
def test_steps_are_the_softmax_of_the_models_logits(which: str, run: RunFolder, request: pytest.FixtureRequest) -> None:
    explanation: Explanation = request.getfixturevalue(which)
    model, out = load_model(run, load_tokenizers(run.tokenizer)).eval(), [*ids_of(explanation), EOS_ID]
    src_ids = [*words(SRC_WORDS).encode("c a f b"), EOS_ID]
    with torch.no_grad():
        source = Source(torch.tensor([src_ids]), torch.ones(1, 5, dtype=torch.bool))
        logits = model(source, torch.tensor([[BOS_ID, *out[:-1]]]))[0].double().numpy()
    for row, step in enumerate(explanation.steps):
        probabilities = np.exp(logits[row]) / np.exp(logits[row]).sum()
        assert (step.token, step.id) == (explanation.maps.out_tokens[row], out[row])
        assert step.log_prob == pytest.approx(math.log(probabilities[out[row]]), abs=1e-5)
        assert step.entropy == pytest.approx(-(probabilities * np.log(probabilities)).sum(), abs=1e-5)
        best = np.argsort(-probabilities)[:10]
        assert [one.id for one in step.candidates] == best.tolist()
        np.testing.assert_allclose([one.log_prob for one in step.candidates], np.log(probabilities[best]), atol=1e-5)
        assert [one.token for one in step.candidates] == words(TGT_WORDS).pieces(best.tolist())
    assert {one.token for step in explanation.steps for one in step.candidates} >= {"<unk>", "<pad>"}, "unconstrained"


@pytest.mark.parametrize("which", ["own", "given"])
def test_each_what_if_is_forced_prefix_decoding_alone(
    which: str, run: RunFolder, request: pytest.FixtureRequest
) -> None:
    explanation: Explanation = request.getfixturevalue(which)
    tokenizers = load_tokenizers(run.tokenizer)
    model, engine = load_model(run, tokenizers).eval(), load_torch_engine([run], tokenizers, "cpu")
    src_ids, out = words(SRC_WORDS).encode("c a f b"), [*ids_of(explanation), EOS_ID]
    scores = iter(explanation.what_if)
    for position, token in enumerate(out):
        prefix = tuple(out[:position])
        (allowed,) = next_log_probs(model, src_ids, [prefix], 1, 2)
        others = sorted((other for other in allowed if other != token), key=lambda other: -allowed[other])[:2]
        for other in others:
            one = next(scores)
            assert (one.position, one.id, one.token) == (position, other, tokenizers.tgt.pieces([other])[0])
            step = explanation.steps[position]
            assert one.log_prob == pytest.approx({c.id: c.log_prob for c in step.candidates}.get(other, one.log_prob))
            (hypotheses,) = engine.search([src_ids], DECODING, [[*prefix, other]])
            assert one.text == tokenizers.tgt.decode(hypotheses[0].tokens)
            assert one.word == one.token  # of a tokenizer whose pieces are words
            assert list(one.tokens) == tokenizers.tgt.pieces(hypotheses[0].tokens)
            if which == "own":
                assert one.score == pytest.approx(searched_score(model, src_ids, hypotheses[0].tokens), abs=1e-4)
            assert math.isfinite(one.score)
    assert next(scores, None) is None


def searched_score(model: Transformer, src_ids: list[int], tokens: Prefix) -> float:
    """As a search with DECODING scores the tokens, and `</s>` if they are fewer than its maximum."""
    total = 0.0
    for place, token in enumerate([*tokens, EOS_ID][: DECODING.max_length]):
        total += next_log_probs(model, src_ids, [tuple(tokens[:place])], 1, 2)[0][token]
    return total / max(1, len(tokens)) ** 0.7


def test_tokens_are_unconstrained_and_the_search_is_not(run: RunFolder, own: Explanation) -> None:
    """The mass of what a search forbids: a search shares it among the other tokens."""
    tree = own.search
    assert tree.best is not None
    unconstrained = sum(step.log_prob for step in own.steps)
    assert tree.nodes[tree.best].log_prob > unconstrained + 0.1
    tokens = load_tokenizers(run.tokenizer)
    engine = load_torch_engine([run], tokens, "cpu")
    (scored,) = engine.score([words(SRC_WORDS).encode("c a f b")], [ids_of(own)])
    assert sum(scored) == pytest.approx(unconstrained, abs=1e-4)


def test_the_command_writes_all_of_it_as_json(run: RunFolder, own: Explanation, tmp_path: Path, cli: Cli) -> None:
    output = tmp_path / "x.json"
    code, out, err = cli("attention", "c", "a f b", "--model", str(run.path), "--output", str(output))
    assert (code, out) == (0, ""), err
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found == json.loads(json.dumps(own.to_json()))
    assert set(found) == {
        "format", "model", "src", "tgt", "is_own", "src_lang", "tgt_lang", "src_tokens", "tgt_tokens", "out_tokens",
        "src_words", "tgt_words", "out_words", "attention", "gradients", "steps", "search", "what_if",
    }  # fmt: skip
    for kind in KINDS:
        np.testing.assert_allclose(found["attention"][kind], own.maps.of(kind), rtol=5e-5)
    np.testing.assert_allclose(found["gradients"], own.gradients, rtol=5e-5)
    np.testing.assert_allclose(np.sum(found["gradients"], axis=1), 1.0, rtol=1e-4)
    assert set(found["steps"][0]) == {"token", "id", "log_prob", "entropy", "candidates"}
    assert set(found["search"]["nodes"][0]) == {
        "id",
        "parent",
        "step",
        "token",
        "token_id",
        "log_prob",
        "score",
        "state",
    }
    assert set(found["what_if"][0]) == {"position", "token", "id", "log_prob", "word", "text", "tokens", "score"}
    assert found["search"]["nodes"][0]["parent"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--output", "x.pdf"], "--output x.pdf: its name should end in"),
        (["a", "--output", "no/x.json"], "--output no/x.json: is not a file in an existing folder"),
        (["a", "--output", "x.json", "--kind", "cross"], "leave out --kind"),
        (["a", "--output", "x.html", "--head", "1", "--layer", "1"],
         "leave out --layer, --head"),
        (["  ", "--output", "x.json"], "the text is empty"),
        (["a", "--tgt", "", "--output", "x.json"], "the given translation is empty"),
        (["a", "--tgt", "A " * 16, "--output", "x.json"], "has 16 pieces; this model has room for 15"),
        (["a", "--device", "gpu", "--output", "x.json"], "device 'gpu' is not one of"),
    ],
)  # fmt: skip
def test_mistakes_are_one_plain_message(
    run: RunFolder, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("attention", *arguments, "--model", str(run.path))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_long_text_is_cut_as_in_translation(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    explanation = explain(run, "a b c d e f g a", device="cpu")
    assert explanation.maps.src_tokens == ("a", "b", "c", "d", "e", "f", "</s>")
    (message,) = caplog.messages
    assert_says(message, "the text: 8 pieces", "6 (data.max_length)")


def test_a_given_translation_longer_than_any_found_has_what_ifs_as_far_as_one_could_be(run: RunFolder) -> None:
    explanation = explain(run, "a", " ".join(TGT_WORDS + TGT_WORDS[:3]), device="cpu")
    assert len(explanation.steps) == 13
    assert sorted({one.position for one in explanation.what_if}) == list(range(9))
    assert max(len(one.tokens) for one in explanation.what_if) <= 9


def test_no_what_if_holds_a_forbidden_word(run: RunFolder, own: Explanation, tmp_path: Path) -> None:
    ((forbidden, _),) = Counter(one.token for one in own.what_if if one.id != EOS_ID).most_common(1)
    copied = RunFolder(Path(shutil.copytree(run.path, tmp_path / "copied")))
    copied.config_file.write_text(CONFIG.replace("{beam_size", f"{{forbidden_words: [{forbidden}], beam_size"))
    what_if = explain(copied, own.src, own.tgt, device="cpu").what_if
    assert {one.position for one in what_if} == {one.position for one in own.what_if}
    for one in what_if:
        assert forbidden not in one.tokens[one.position :]


def test_an_export_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.export_file.write_text("{}")
    with pytest.raises(RunError, match="an export, for CTranslate2, has no attention"):
        explain(folder, "a")


def test_an_empty_text_is_refused_from_python(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match="the text is empty"):
        explain(run, " ", device="cpu")


def test_the_maps_alone_are_the_same(run: RunFolder, own: Explanation, given: Explanation) -> None:
    for tgt, expected in ((None, own.maps), (given.tgt, given.maps)):
        maps = explain_attention(run, "c a f b", tgt, device="cpu")
        assert maps.labels("cross") == expected.labels("cross")
        assert all((maps.of(kind) == expected.of(kind)).all() for kind in KINDS)
