"""A shortlist: what is learned, and that a search chooses among the candidates and nothing else."""

import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from test_ctranslate2 import APART, SMALL, random_model, random_sources
from test_phrases import PAIRS, slow_model_1, words

import nmt.interop.ctranslate2
from nmt.batches.lexicon import ITERATIONS
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import DecodingConfig, TokenizerConfig, TransformerConfig
from nmt.decoding.ctranslate2_engine import load_ctranslate2_engine
from nmt.decoding.torch_engine import TorchEngine
from nmt.errors import DataError
from nmt.interop.ctranslate2 import SHORTLIST, learn_shortlist, write_model
from nmt.runs.folder import RunFolder
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizers
from nmt.tokenizers.vocabulary import UNK_ID

TINY = Path(__file__).parents[2] / "data" / "tiny"


def read(content: str) -> dict[str, list[str]]:
    """The candidates of each source piece; "": those of every batch."""
    lines = [line.split("\t") for line in content.splitlines()]
    assert len({piece for piece, _ in lines}) == len(lines)
    return {piece: candidates.split(" ") for piece, candidates in lines}


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tokenizers, CorpusFiles]:
    monkeypatch.chdir(tmp_path)
    tokenizers = words(*PAIRS, "rare rare", "das dog")  # "dog" is a word of both sides
    return tokenizers, CorpusFiles(src=Path("src.txt"), tgt=Path("tgt.txt"))


def test_candidates_are_the_most_probable_by_model_1_and_the_piece_itself(
    pairs: tuple[Tokenizers, CorpusFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers, files = pairs
    monkeypatch.setattr(nmt.interop.ctranslate2, "CANDIDATES", 2)
    monkeypatch.setattr(nmt.interop.ctranslate2, "MIN_CHANCE", 0.1)
    monkeypatch.setattr(nmt.interop.ctranslate2, "FREQUENT", 1)
    sides = [[line.split() for line in Path(name).read_text().splitlines()] for name in ("src.txt", "tgt.txt")]
    chances = slow_model_1(list(zip(*sides, strict=True)), ITERATIONS)
    found = read(learn_shortlist(files, tokenizers))
    count = Counter(word for line in sides[1] for word in line)
    assert found.pop("") == [max(count, key=count.__getitem__)]
    assert {*found} == {word for line in sides[0] for word in line}
    for src, candidates in found.items():
        learned = candidates[1:] if src == "dog" else candidates  # which is no translation of itself here
        best = sorted(
            (chance for (given, _), chance in chances.items() if given == src and chance >= 0.1), reverse=True
        )
        assert [chances[src, one] for one in learned] == pytest.approx(best[:2])
    assert found["dog"][0] == "dog"
    assert found["."][0] == "."


def test_a_text_without_words_is_named(pairs: tuple[Tokenizers, CorpusFiles]) -> None:
    for name in ("src.txt", "tgt.txt"):
        Path(name).write_text("\n\n")
    with pytest.raises(DataError, match=r"src\.txt and tgt\.txt are empty"):
        learn_shortlist(pairs[1], pairs[0])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_search_finds_what_a_model_finds_that_has_only_the_candidates(beam_size: int, tmp_path: Path) -> None:
    """Each source alone, since the candidates are those of a batch. Without a shortlist, other tokens are better."""
    config = TransformerConfig(**SMALL, layout="marianmt-own-start", tie_embeddings="none")
    model = random_model(config, APART)
    write_model(model, APART, "float32", tmp_path)
    random = np.random.default_rng(2)
    src, tgt = (tokenizer.pieces(range(4, tokenizer.vocab_size)) for tokenizer in (APART.src, APART.tgt))
    lists = {piece: {*random.choice(tgt, size=2).tolist()} for piece in src} | {"": {tgt[0]}}
    content = "".join(f"{piece}\t{' '.join(candidates)}\n" for piece, candidates in lists.items())
    (tmp_path / SHORTLIST).write_text(content, encoding="utf-8")
    decoding = DecodingConfig(beam_size=beam_size, max_length=9, min_length=1, length_penalty=0.7)
    engine, bias = load_ctranslate2_engine(RunFolder(tmp_path), APART, "cpu"), model.output.bias
    assert bias is not None
    changed = 0
    for ids in random_sources(25, APART.src.vocab_size, longest=3):
        unlimited = TorchEngine(model, APART).search([ids], decoding)[0]
        allowed = set().union(lists[""], *(lists[piece] for piece in APART.src.pieces(ids)))
        before = bias.detach().clone()
        with torch.no_grad():
            for index in range(UNK_ID, APART.tgt.vocab_size):
                if APART.tgt.pieces([index])[0] not in allowed:
                    bias[index] = -1e4
        expected = TorchEngine(model, APART).search([ids], decoding)[0]
        with torch.no_grad():
            bias.copy_(before)
        found = next(engine.search([ids], decoding))
        assert found[0].tokens == expected[0].tokens
        assert found[0].score == pytest.approx(expected[0].score, abs=1e-4)
        changed += found[0].tokens != unlimited[0].tokens
    assert changed > 10


def test_a_forbidden_word_of_several_pieces_is_left_out_as_without_a_shortlist(tmp_path: Path) -> None:
    """CTranslate2 takes pieces of such a word that are not on the list for others."""
    text = (TINY / "train.en").read_text(encoding="utf-8").splitlines()[:400]
    tokenizer = SentencePieceTokenizer.train(text, TokenizerConfig(type="char", vocab_size=300))
    tokenizers, config = Tokenizers(tokenizer, tokenizer), TransformerConfig(**SMALL)
    model = random_model(config, tokenizers)
    sources = [tokenizer.encode(line)[:30] for line in text[:5]]
    free = DecodingConfig(beam_size=2, max_length=9, min_length=9)
    forbidden = free.model_copy(update={"forbidden_words": ("man",)})
    write_model(model, tokenizers, "float32", tmp_path)
    (tmp_path / SHORTLIST).write_text("\t" + " ".join(tokenizer.pieces(range(20, 25))) + "\n", encoding="utf-8")
    engine, ours = load_ctranslate2_engine(RunFolder(tmp_path), tokenizers, "cpu"), TorchEngine(model, tokenizers)
    for decoding, is_same in ((forbidden, True), (free, False)):
        both = [[found[0].tokens for found in one.search(sources, decoding)] for one in (engine, ours)]
        assert (both[0] == both[1]) is is_same


def test_text_is_normalized_as_for_the_model(pairs: tuple[Tokenizers, CorpusFiles]) -> None:
    tokenizers = words("müde", "tired", "das", "the")
    for form in ("NFC", "NFD"):
        Path("src.txt").write_text(unicodedata.normalize(form, "müde\ndas\n") * 5, encoding="utf-8")
        Path("tgt.txt").write_text("tired\nthe\n" * 5)
        assert read(learn_shortlist(pairs[1], tokenizers))["müde"] == ["tired"]
