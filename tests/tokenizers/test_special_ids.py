"""Tokenizers with other special ids than ours: the same batches, losses and gradients, up to a permutation of ids."""

import dataclasses
import io
import pickle
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import sentencepiece
import torch
from test_augmentation import augmentation
from torch import Tensor, nn

from nmt.batches.augmentation import Augmentation
from nmt.batches.batches import Batch, batch_loader, plan_epoch
from nmt.batches.dataset import EncodedCorpus, encode_corpus
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TokenizerConfig, TransformerConfig
from nmt.errors import RunError
from nmt.interop.ctranslate2 import write_model
from nmt.models.factory import build_model
from nmt.models.source import source_of
from nmt.models.transformer import Transformer
from nmt.tokenizers.statistics import side_report
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizers, save_tokenizers
from nmt.tokenizers.vocabulary import OWN_SPECIAL_IDS, SpecialIds
from nmt.training.loss import Objective

V = 70
WORDS = ("red", "blue", "green", "old", "new")
LINES = [f"the {word} dog number {number}" + number % 3 * " in a house" for number in range(12) for word in WORDS]


def elsewhere(**ids: int) -> bytes:
    """A SentencePiece model of LINES with other special ids than ours."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, model_type="bpe", vocab_size=V, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=1.0, **ids,
    )  # fmt: skip
    return model.getvalue()


class StartsWithPad(SentencePieceTokenizer):
    """As the models of Marian do: the decoder reads `<pad>` first."""

    def __init__(self, model: bytes) -> None:
        super().__init__(model)
        self.special = dataclasses.replace(self.special, start=self.special.pad)

    def __reduce__(self) -> Any:
        return StartsWithPad, (self.model,)


OURS = SentencePieceTokenizer.train(LINES, TokenizerConfig(vocab_size=V, byte_fallback=False))
PAD_LAST = elsewhere(eos_id=0, unk_id=1, bos_id=V - 2, pad_id=V - 1)
THEIRS = SentencePieceTokenizer(PAD_LAST)
STARTS_WITH_PAD = StartsWithPad(PAD_LAST)
SIDES = [(THEIRS, THEIRS), (OURS, THEIRS), (THEIRS, OURS), (STARTS_WITH_PAD, STARTS_WITH_PAD)]


def renaming(tokenizer: SentencePieceTokenizer) -> Tensor:
    """(V,): the tokenizer's id for each of our ids, by their pieces; the first four are special."""
    own = OURS.pieces(range(V))
    places = {piece: index for index, piece in enumerate(tokenizer.pieces(range(V)))}
    new = torch.tensor([places[piece] for piece in own])
    special = OWN_SPECIAL_IDS
    new[[special.pad, special.start]] = torch.tensor([tokenizer.special.pad, tokenizer.special.start])
    return new


def encoded(folder: Path, monkeypatch: pytest.MonkeyPatch, src: Any, tgt: Any) -> tuple[Tokenizers, EncodedCorpus]:
    """LINES, some in capitals, which are `<unk>`; and their reverse as their translations."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    lines = [*LINES, *(line.replace("dog", "DOG") for line in LINES[:20])]
    sides = {"src": lines, "tgt": [" ".join(reversed(line.split()[1:])) for line in lines]}
    for side, text in sides.items():
        Path(side).write_text("".join(f"{line}\n" for line in text))
    tokenizers = Tokenizers(src, tgt)
    save_tokenizers(tokenizers, Path("tokenizer"), "")
    files = CorpusFiles(src=folder / "src", tgt=folder / "tgt")
    return tokenizers, pickle.loads(pickle.dumps(encode_corpus([files], tokenizers, Path("tokenizer"), 60)))


def batches(corpus: EncodedCorpus, augmentation: Augmentation | None = None) -> list[Batch]:
    plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, 200, seed=1, epoch=0)
    return list(batch_loader(corpus, plan, torch.device("cpu"), augmentation=augmentation))


def assert_renamed(found: Batch, own: Batch, src: SentencePieceTokenizer, tgt: SentencePieceTokenizer) -> None:
    assert torch.equal(found.source.values, renaming(src)[own.source.values])
    assert torch.equal(found.source.mask, own.source.mask)
    assert torch.equal(found.tgt_in, renaming(tgt)[own.tgt_in])
    assert torch.equal(found.tgt_out, renaming(tgt)[own.tgt_out])
    assert torch.equal(found.tgt_positions, own.tgt_positions)
    assert found.num_tgt_tokens == own.num_tgt_tokens


def test_special_ids_are_read_from_a_sentencepiece_model() -> None:
    assert OURS.special == OWN_SPECIAL_IDS == SpecialIds(pad=0, start=1, eos=2, unk=3)
    assert THEIRS.special == SpecialIds(pad=V - 1, start=V - 2, eos=0, unk=1)
    assert pickle.loads(pickle.dumps(THEIRS)).special == THEIRS.special
    ids = THEIRS.encode("the red dog")
    special = THEIRS.special
    assert THEIRS.decode([special.start, *ids, special.unk, special.eos, special.pad]) == "the red dog"
    assert THEIRS.pieces(ids) == OURS.pieces(OURS.encode("the red dog"))
    for index, theirs in enumerate(renaming(THEIRS).tolist()[4:], start=4):
        assert THEIRS.decode([theirs, theirs]) == OURS.decode([index, index]) != ""


def test_a_sentencepiece_model_without_a_special_id_is_refused_by_name() -> None:
    with pytest.raises(RunError, match=r"joint\.model: lacks one of <pad>, <s>, </s>, <unk>"):
        SentencePieceTokenizer(elsewhere(pad_id=-1, bos_id=1, eos_id=2, unk_id=0), "joint.model")


def test_unknown_pieces_are_counted_wherever_unk_is() -> None:
    for tokenizer in (OURS, THEIRS):
        report = side_report(["the red dog 学", "学 学"], tokenizer, "en")
        assert report.unknown_share == 3 / sum(len(tokenizer.encode(line)) for line in ("the red dog 学", "学 学"))


@pytest.mark.parametrize(("src", "tgt"), SIDES)
def test_batches_are_ours_with_ids_permuted(
    src: SentencePieceTokenizer, tgt: SentencePieceTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, own = encoded(tmp_path / "own", monkeypatch, OURS, OURS)
    _, other = encoded(tmp_path / "other", monkeypatch, src, tgt)
    pairs = list(zip(batches(other), batches(own), strict=True))
    assert not all(batch.source.mask.all() for batch, _ in pairs), "there is padding"
    for found, expected in pairs:
        assert_renamed(found, expected, src, tgt)


@pytest.mark.parametrize(("src", "tgt"), SIDES)
def test_augmented_batches_are_ours_with_ids_permuted(
    src: SentencePieceTokenizer, tgt: SentencePieceTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word dropout inserts the tokenizer's `<unk>`, and a text with that `<unk>` is not rewritten."""
    settings = {"tgt_word_dropout": 0.3, "subword_sampling": 0.2, "typed_input": 0.3, "fragments": 0.3}
    found = []
    for name, sides in (("own", (OURS, OURS)), ("other", (src, tgt))):
        corpus = encoded(tmp_path / name, monkeypatch, *sides)
        found.append(batches(corpus[1], augmentation(corpus, **settings)))
    assert any((batch.tgt_in == OWN_SPECIAL_IDS.unk).any() for batch in found[0])
    for other, own in zip(found[1], found[0], strict=True):
        assert_renamed(other, own, src, tgt)


@pytest.mark.parametrize("r_drop", [0.0, 1.0])
@pytest.mark.parametrize(("src", "tgt"), SIDES)
def test_the_loss_and_its_gradient_are_ours(
    src: SentencePieceTokenizer,
    tgt: SentencePieceTokenizer,
    r_drop: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the embeddings permuted like the ids; padding is masked, so its id has no influence."""
    config = TransformerConfig(
        d_model=16, num_heads=2, d_ff=32, dropout=0.0, tie_embeddings="none", layout="marianmt-own-start"
    )
    batch = batches(encoded(tmp_path / "own", monkeypatch, OURS, OURS)[1])[0]
    other_batch = batches(encoded(tmp_path / "other", monkeypatch, src, tgt)[1])[0]
    model = build_model(config, V, V)
    nn.init.normal_(model.output.bias)
    other = build_model(config, V, V)
    other.load_state_dict(model.state_dict())
    rows = {"src_embedding": model_rows(src), "tgt_embedding": model_rows(tgt), "output": model_rows(tgt)}
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if (part := name.split(".")[0]) in rows:
                parameter[rows[part]] = parameter.clone()
    sums, other_sums = Objective(model, 0.1, r_drop)(batch), Objective(other, 0.1, r_drop)(other_batch)
    torch.testing.assert_close(other_sums, sums, rtol=1e-5, atol=1e-4)
    sums.smoothed.backward()
    other_sums.smoothed.backward()
    for (name, parameter), its_twin in zip(model.named_parameters(), other.parameters(), strict=True):
        gradient = its_twin.grad[rows[part]] if (part := name.split(".")[0]) in rows else its_twin.grad
        torch.testing.assert_close(
            gradient, parameter.grad, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: name + text
        )


def model_rows(tokenizer: SentencePieceTokenizer) -> Tensor:
    """`renaming` as a permutation: where the decoder starts with `<pad>`, our `<pad>` takes the place of `<s>`."""
    rows = renaming(tokenizer)
    if tokenizer.special.start == tokenizer.special.pad:
        rows[OWN_SPECIAL_IDS.pad] = V - 2
    assert sorted(rows.tolist()) == list(range(V))
    return rows


@pytest.mark.parametrize(("src", "tgt"), SIDES)
def test_an_export_has_the_log_probabilities_of_the_model(
    src: SentencePieceTokenizer, tgt: SentencePieceTokenizer, tmp_path: Path
) -> None:
    """CTranslate2 adds `</s>` to the source and starts with the tokenizer's start id."""
    config = TransformerConfig(
        d_model=16, num_heads=2, d_ff=32, dropout=0.0, tie_embeddings="none", layout="marianmt-own-start"
    )
    model = Transformer(config, V, V).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.25 * torch.randn_like(parameter)
    write_model(model, Tokenizers(src, tgt), "float32", tmp_path)
    source_ids, target_ids = src.encode(LINES[2]), tgt.encode(LINES[7])
    with torch.no_grad():
        logits = model(source_of([source_ids], src.special), torch.tensor([[tgt.special.start, *target_ids]]))
    log_probs = logits[0].log_softmax(dim=-1)  # (T, V)
    expected = log_probs.gather(1, torch.tensor([*target_ids, tgt.special.eos])[:, None])[:, 0]
    (score,) = ctranslate2.Translator(str(tmp_path), intra_threads=1).score_batch(
        [src.pieces(source_ids)], [tgt.pieces(target_ids)]
    )
    assert score.log_probs == pytest.approx(expected.tolist(), abs=2e-5)
