"""Word alignment: by hand, against the attention written out, and on a task with a known alignment."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli
from torch.nn import functional as F

from nmt.config.inference import TokenizerConfig, TransformerConfig
from nmt.decoding.alignment import WordAligner, align, word_numbers
from nmt.decoding.hypothesis import WordAlignment
from nmt.decoding.torch_engine import TorchEngine
from nmt.models.ensemble import Ensemble
from nmt.models.source import Source
from nmt.models.transformer import Memory, Transformer
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizers, WordTokenizer
from nmt.tokenizers.vocabulary import SPECIAL_PIECES


def test_attention_to_the_pieces_of_a_word_adds_up() -> None:
    """Source "ab c" in pieces a, b, c; target "x yz" in pieces x, y, z; the single piece c has the highest weights."""
    weights = np.array([[0.3, 0.3, 0.4], [0.1, 0.1, 0.8], [0.4, 0.3, 0.3]], dtype=np.float32)
    assert str(align(weights, [[0], [0], [1]], [[0], [1], [1]])) == "0-0 1-1"  # 0.6 to 0.4; 0.2 + 0.7 to 0.8 + 0.3
    assert str(align(weights, [[0], [1], [2]], [[0], [1], [2]])) == "2-0 2-1 0-2"
    assert align(weights[:0], [[0]], []) == WordAlignment((), 1, 0)


@pytest.mark.parametrize(
    ("pieces", "words", "language", "expected"),
    [
        (["▁he", "llo", "▁you", "."], [0, 0, 1, 1], "en", [[0], [0], [1], [1]]),
        (["▁你好", "吗", "？"], [0, 0, 0], "zh", [[0, 1], [2], [3]]),
        (["▁", "你", "<0xE4>", "<0xB8>", "<0x96>", "吗"], [0] * 6, "zh", [[0], [0], [1], [1], [1], [2]]),
        (["▁水", "▁あ"], [0, 1], "ja", [[0], [1]]),
        (["▁水", "▁あ"], [0, 1], "jpn", [[0], [1]]),
        (["▁你好", "吗"], [0, 0], "zh-Hant", [[0, 1], [2]]),
        (["▁你好", "吗"], [0, 0], "yue", [[0, 1], [2]]),
        (["▁nǐ", "hǎo"], [0, 0], "zh-Latn", [[0], [0]]),
    ],
)
def test_pieces_belong_to_words_or_characters(
    pieces: list[str], words: list[int], language: str, expected: list[list[int]]
) -> None:
    assert word_numbers(words, pieces, language) == expected


def test_ids_belong_to_the_words_that_white_space_separates() -> None:
    lines = ["the cat sat on the mat", "a dog sat on a log", "the dog and the cat", "we saw the dog run"]
    tokenizer = SentencePieceTokenizer.train(lines * 5, TokenizerConfig(type="bpe", vocab_size=300))
    for line in [*lines, "  the   unknown zebra, 水 ok ", "x"]:
        ids = tokenizer.encode(line)
        by_word = [tokenizer.decode([i for i, of in zip(ids, tokenizer.words(ids), strict=True) if of == number])
                   for number in range(len(line.split()))]  # fmt: skip
        assert [word.strip() for word in by_word] == line.split()
        assert max(tokenizer.words(ids)) == len(line.split()) - 1
    assert WordTokenizer([*SPECIAL_PIECES, "a", "b"]).words([4, 5, 4]) == [0, 1, 2]
    assert tokenizer.words([]) == []


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_attention_is_the_mean_of_torchs_attention_weights(norm: str) -> None:
    """Each layer's weights from torch's attention function on the recorded inputs of the layer."""
    config = TransformerConfig(d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=2, norm=norm)
    model = Transformer(config, 20, 20).eval()
    src_ids, tgt_in = torch.randint(4, 20, (3, 6)), torch.randint(4, 20, (3, 5))
    src_mask = torch.arange(6) < torch.tensor([6, 4, 5])[:, None]
    source = Source(src_ids, src_mask)
    seen = []
    for layer in model.decoder:
        layer.cross_attention.query.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    memory = model.encode(source).states
    model.decode(tgt_in, Memory(memory, src_mask))
    expected = []
    for layer, queries in zip(model.decoder, list(seen), strict=True):
        part = layer.cross_attention
        _, weights = F.multi_head_attention_forward(
            queries.transpose(0, 1), memory.transpose(0, 1), memory.transpose(0, 1), 16, 2, None,
            torch.cat([part.query.bias, part.key.bias, part.value.bias]), None, None, False, 0.0,
            part.output.weight, part.output.bias, False, ~src_mask, use_separate_proj_weight=True,
            q_proj_weight=part.query.weight, k_proj_weight=part.key.weight, v_proj_weight=part.value.weight,
        )  # fmt: skip
        expected.append(weights)
    found = model.attention(source, tgt_in)
    torch.testing.assert_close(found, expected[1])  # the second of two layers
    other = Transformer(config, 20, 20).eval()
    both = Ensemble([model, other]).attention(source, tgt_in)
    torch.testing.assert_close(both, (found + other.attention(source, tgt_in)) / 2)


def test_the_engine_leaves_padding_and_ends_out(small_model: Transformer) -> None:
    tokenizer = WordTokenizer([*SPECIAL_PIECES, *"abcdefg"])
    engine = TorchEngine(small_model, Tokenizers(tokenizer, tokenizer))
    together = engine.attention([[5, 6, 7], [8]], [[4], [9, 10]])
    assert [weights.shape for weights in together] == [(1, 3), (2, 1)]
    alone = engine.attention([[8]], [[9, 10]])
    np.testing.assert_allclose(together[1], alone[0], atol=1e-6)
    src_ids, mask = torch.tensor([[8, 2]]), torch.ones(1, 2, dtype=torch.bool)
    with torch.no_grad():
        expected = small_model.attention(Source(src_ids, mask), torch.tensor([[1, 9]]))  # row 0 was fed <s> and chose 9
    np.testing.assert_allclose(alone[0], expected[0, :, :1].numpy(), atol=1e-6)


def test_an_aligner_takes_each_sides_own_words() -> None:
    class Engine:
        def attention(self, sources: object, targets: object) -> list[np.ndarray]:
            return [np.array([[0.9, 0.1], [0.2, 0.8]], dtype=np.float32)]

    src, tgt = (WordTokenizer([*SPECIAL_PIECES, *words]) for words in (("a", "b"), ("甲乙", "丙")))
    assert WordAligner(Engine(), Tokenizers(src, tgt), "en", "de").align([[4, 5]], [[4, 5]]) == [
        WordAlignment(((0, 0), (1, 1)), 2, 2)
    ]
    assert WordAligner(Engine(), Tokenizers(src, tgt), "en", "zh").align([[4, 5]], [[4, 5]]) == [
        WordAlignment(((0, 0), (0, 1), (1, 2)), 2, 3)
    ]


def test_copied_digits_come_from_themselves(in_solved: Path, tmp_path: Path, cli: Cli) -> None:
    """The copy task's own alignment is the diagonal; chance would be right about one time in five."""
    code, out, _ = cli("translate", "--input", "test.en", "--alignments", str(tmp_path / "al"))
    assert code == 0
    right = total = 0
    rows = zip(Path("test.en").read_text().splitlines(), out.splitlines(), (tmp_path / "al").read_text().splitlines(),
               strict=True)  # fmt: skip
    for source, output, alignment in rows:
        pairs = [tuple(map(int, pair.split("-"))) for pair in alignment.split()]
        assert [tgt for _, tgt in pairs] == list(range(len(output.split())))
        assert all(src < len(source.split()) for src, _ in pairs)
        right += sum(src == tgt for src, tgt in pairs)
        total += len(pairs)
    assert right / total > 0.6, right / total


@pytest.mark.parametrize(
    ("line", "alignment"), [("1 2👍", "0-0 1-1"), ("😀1 2", "0-0 1-1"), ("1 2 👍", "0-0 1-1 2-2"), ("😀1👍", "0-0")]
)
def test_an_emoji_at_a_word_belongs_to_it(in_solved: Path, tmp_path: Path, cli: Cli, line: str, alignment: str) -> None:
    """Words are what white space separates, on both sides."""
    (tmp_path / "in").write_text(f"{line}\n", encoding="utf-8")
    assert cli("translate", "--input", str(tmp_path / "in"), "--alignments", str(tmp_path / "al"))[0] == 0
    assert (tmp_path / "al").read_text() == f"{alignment}\n"
