"""Tags of training corpora: ids that no text has, before each source of their corpus, and in no output."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from conftest import COPY_TASK, Cli
from made_runs import LINES, made_run, text

import nmt
from nmt.batches.augmentation import Augmentation
from nmt.batches.batches import batch_loader
from nmt.batches.dataset import Ragged, encode_corpus
from nmt.config.corpus import HeldOutFiles, TrainingFiles
from nmt.config.data import DataConfig
from nmt.config.inference import TokenizerConfig
from nmt.config.reading import load_config
from nmt.config.training import AugmentationConfig, Config, TrainingConfig
from nmt.decoding.hypothesis import Request, Sampling, forbidden_ids
from nmt.decoding.torch_engine import load_model
from nmt.errors import ConfigError, DataError
from nmt.interop.argos import export_argos
from nmt.interop.ctranslate2 import export_ctranslate2
from nmt.interop.huggingface import export_huggingface
from nmt.runs.folder import RunFolder
from nmt.runs.weights import save_weights
from nmt.system.files import read_json
from nmt.tokenizers.building import train_tokenizers
from nmt.tokenizers.tokenizer import Tokenizers, load_tokenizers, save_tokenizers, tag_id
from nmt.training.start import train

Kind = Literal["bpe", "unigram", "char", "word"]
LIKE_A_TAG = "<tag bt> x <bt> bt <tag st>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two corpora of 60 pairs, the second in other words."""
    folder = tmp_path_factory.mktemp("tags")
    for name, seed in (("real", 5), ("bt", 6)):
        for side, language in enumerate(("en", "de")):
            lines = [f"{line} {LIKE_A_TAG if number == 3 else ''}" for number, line in enumerate(text(60, seed + side))]
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def corpora(folder: Path, tag: str | None = "bt") -> tuple[TrainingFiles, TrainingFiles]:
    real, bt = (TrainingFiles(src=folder / f"{name}.en", tgt=folder / f"{name}.de") for name in ("real", "bt"))
    return real, bt.model_copy(update={"tag": tag})


def tokenizers_of(folder: Path, kind: Kind, joint: bool = True, vocab_size: int = 320) -> Tokenizers:
    config = TokenizerConfig(type=kind, vocab_size=vocab_size, tags=("st", "bt"), joint=joint)
    made = train_tokenizers(corpora(folder), config)
    save_tokenizers(made, Path(kind), "")
    return load_tokenizers(Path(kind))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("kind", "joint"), [("bpe", True), ("unigram", False), ("char", True), ("word", False)])
def test_no_text_is_encoded_to_a_tag_and_no_tag_is_decoded(folder: Path, kind: Kind, joint: bool) -> None:
    tokenizers = tokenizers_of(folder, kind, joint)
    for tokenizer in (tokenizers.src, tokenizers.tgt):
        ids = [tag_id(tokenizer, tag) for tag in ("st", "bt")]
        assert ids == list(tokenizer.special.tags) == [4, 5]
        assert tokenizer.encode("a b", 5) == [5, *tokenizer.encode("a b")]
        assert tokenizer.encode("", 5) == []
        assert not set(tokenizer.encode(LIKE_A_TAG)) & set(ids)
        assert tokenizer.decode([5, *tokenizer.encode(LIKE_A_TAG), 4]) == LIKE_A_TAG
        assert set(ids) <= set(forbidden_ids(tokenizer.special))
        assert kind not in ("bpe", "unigram") or tokenizer.vocab_size == 320
        with pytest.raises(ConfigError, match="the vocabulary has no tag noise"):
            tag_id(tokenizer, "noise")


def rows(side: Ragged) -> list[list[int]]:
    return [part.tolist() for part in np.split(side[0], np.cumsum(side[1])[:-1])]


def test_only_the_sources_of_the_corpus_begin_with_its_tag(folder: Path) -> None:
    tokenizers = tokenizers_of(folder, "bpe")
    plain, tagged = (
        encode_corpus(corpora(folder, tag), tokenizers, Path("bpe"), 200, num_processes=processes)
        for tag, processes in ((None, 0), ("bt", 2))
    )
    assert plain.key != tagged.key
    assert tagged.sizes == (60, 60)
    for pair in range(120):
        expected = plain[pair][0].tolist()
        assert tagged[pair][0].tolist() == (expected if pair < 60 else [5, *expected])
        assert tagged[pair][1].tolist() == plain[pair][1].tolist()
    src, tgt = (side.lengths[60:] for side in (plain.src, plain.tgt))
    limit = int(src[src >= tgt].max())
    for tag, longer in ((None, 0), ("bt", 1)):
        kept = encode_corpus(corpora(folder, tag)[1:], tokenizers, Path("bpe"), limit, num_processes=0)
        assert len(kept) == ((src + longer <= limit) & (tgt <= limit)).sum()  # the tag counts
    with pytest.raises(ConfigError, match="has no tag other"):
        encode_corpus(corpora(folder, "other"), tokenizers, Path("bpe"), 200, num_processes=0)


def config_of(folder: Path, max_length: int = 400, **settings: float) -> Config:
    real, bt = corpora(folder)
    held_out = HeldOutFiles(src=real.src, tgt=real.tgt)
    return Config(
        data=DataConfig(train=(real, bt), validation=held_out, max_length=max_length),
        tokenizer=TokenizerConfig(tags=("st", "bt")),
        training=TrainingConfig(max_steps=1),
        augmentation=AugmentationConfig(**settings),
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"subword_sampling": 0.4},
        {"typed_input": 0.9},
        {"copies": 0.9},
        {"subword_sampling": 0.2, "typed_input": 0.6, "copies": 0.3, "tgt_word_dropout": 0.2},
    ],
)
def test_augmentation_changes_a_tagged_source_as_it_changes_one_without(
    folder: Path, settings: dict[str, float]
) -> None:
    tokenizers = tokenizers_of(folder, "bpe")
    change = Augmentation(config_of(folder, **settings), tokenizers, 2)
    plain, tagged = (
        encode_corpus(corpora(folder, tag), tokenizers, Path("bpe"), 200, num_processes=0) for tag in (None, "bt")
    )
    pairs = np.array([70, 3, 119, 60, 61, 63, 12, 13])
    one, other = (change(7, corpus.src.gather(pairs), corpus.tgt.gather(pairs)) for corpus in (plain, tagged))
    expected = [[5, *row] if pair >= 60 else row for pair, row in zip(pairs, rows(one.src), strict=True)]
    assert rows(other.src) == expected
    assert rows(one.src) != rows(plain.src.gather(pairs))
    assert rows(other.tgt) == rows(one.tgt)
    assert (other.tgt_seen == one.tgt_seen).all()


def test_two_joined_pairs_have_one_tag_and_pairs_of_different_tags_stay_apart(folder: Path) -> None:
    tokenizers = tokenizers_of(folder, "bpe")
    corpus = encode_corpus(corpora(folder), tokenizers, Path("bpe"), 200, num_processes=0)
    pairs = np.array([70, 3, 61, 12, 80, 5, 9, 90, 62])  # 70 and 80, 3 and 5; not 61 and 9, 12 and 90; 62 is alone
    src, tgt = corpus.src.gather(pairs), corpus.tgt.gather(pairs)
    found = Augmentation(config_of(folder, fragments=0.999), tokenizers, 0)(1, src, tgt)
    before = rows(src)
    expected = [before[0] + before[4][1:], before[1] + before[5], before[2], before[6], before[3], before[7], before[8]]
    assert rows(found.src) == expected
    assert len(rows(found.tgt)) == len(expected)
    limit = max(len(expected[0]), len(rows(found.tgt)[0]), len(expected[1]) + 1, len(rows(found.tgt)[1]))
    for max_length, count in ((limit, 7), (len(expected[0]) - 1, 8)):
        change = Augmentation(config_of(folder, max_length, fragments=0.999), tokenizers, 0)
        assert len(change(1, src, tgt).src[1]) >= count


def tagged_run(folder: Path, model: dict[str, object] | None = None) -> RunFolder:
    """A random model with tags that likes nothing better than to emit them."""
    run = made_run(folder, model or {}, tags=("st", "bt"))
    tokenizers = load_tokenizers(run.tokenizer)
    ours = load_model(run, tokenizers)
    with torch.no_grad():
        ours.output.bias[list(tokenizers.tgt.special.tags)] = 8.0
    save_weights(ours, run.model_file)
    return run


def without_tags(lines: list[str]) -> bool:
    return not any("tag" in line for line in lines)


def test_no_search_and_no_engine_emits_a_tag(tmp_path: Path) -> None:
    run = tagged_run(tmp_path)
    lines = text(12, seed=3)
    tokenizers = load_tokenizers(run.tokenizer)
    ids = {tag_id(tokenizers.tgt, tag) for tag in ("st", "bt")}
    expected = {}
    for engine in ("torch", "ctranslate2"):
        if engine == "ctranslate2":
            result = export_ctranslate2(run, "float32", device="cpu")
            assert all(one.same_lines == one.lines for one in result.comparisons)
        for name, beam_size, request in (
            ("greedy", 1, Request()),
            ("beam", 4, Request(num_scored=4)),
            ("samples", 1, Request(sampling=Sampling(count=4), num_scored=4)),
        ):
            if engine == "ctranslate2" and request.sampling:
                continue
            decoding = run.inference_config().decoding.model_copy(update={"beam_size": beam_size})
            translator = nmt.load(run.path, engine=engine, device="cpu", decoding=decoding)
            found = list(translator.stream([lines], request=request))
            pieces = {piece for one in found for scored in one.scored for piece in scored.tokens}
            assert not pieces & set(tokenizers.tgt.pieces(sorted(ids)))
            assert len({one.text for one in found}) > 3
            if name != "samples":
                assert expected.setdefault(name, [one.text for one in found]) == [one.text for one in found]


@pytest.mark.slow
def test_exports_to_programs_that_forbid_nothing_never_emit_a_tag(tmp_path: Path) -> None:
    run = tagged_run(tmp_path, {"preset": "marian"})
    source = tmp_path / "val.en"
    source.write_text(source.read_text().replace("e\u0301", "\u00e9"))  # Hugging Face's tokenizer leaves it as it is
    package = export_argos(run, "float32", device="cpu")
    assert all(one.same_lines >= LINES - 1 for one in package.comparisons)
    result = export_huggingface(run, device="cpu")
    assert all(one.same_lines >= LINES - 1 for one in result.comparisons)
    settings = read_json(Path(result.folder) / "generation_config.json")
    vocabulary = read_json(Path(result.folder) / "vocab.json")
    assert {vocabulary["<tag st>"], vocabulary["<tag bt>"]} <= {index for (index,) in settings["bad_words_ids"]}


TRAIN, TEST = "train: {src: train.en, tgt: train.de}", "  test: {src: test.en, tgt: test.de}\n"
TAGGED = (
    COPY_TASK.replace(TRAIN, "train: [{src: train.en, tgt: train.de}, {src: test.en, tgt: test.de, tag: bt}]")
    .replace(TEST, "")
    .replace("vocab_size: 14", "vocab_size: 16, tags: [bt]")
)


@pytest.mark.slow
def test_a_training_with_tags_and_what_starts_from_it(copy_task: Path, cli: Cli) -> None:
    copy_task.write_text(TAGGED)
    config = load_config(copy_task, ["training.max_steps=2", "training.validate_every=2", "augmentation.fragments=0.3"])
    run = RunFolder(Path("runs/old"))
    train(config, run)
    assert load_config(run.config_file).tokenizer == config.tokenizer
    assert cli("translate", "--model", "old", "1 2 3")[0] == 0
    tokenizers = load_tokenizers(run.tokenizer)
    corpus = encode_corpus(config.data.train, tokenizers, run.tokenizer, 20)
    batches = batch_loader(corpus, [np.array([0, len(corpus) - 1])], torch.device("cpu"))
    firsts = next(iter(batches)).source.values[:, 0].tolist()
    assert [first == tag_id(tokenizers.src, "bt") for first in firsts] == [False, True]
    fine = "data: {train: {src: val.en, tgt: val.de, tag: TAG}, validation: {src: test.en, tgt: test.de}}\n" + (
        "training: {init_from: old, max_steps: 1, device: cpu, threads: 1}\nevaluation: {report: false}\n"
        "export: {after_training: []}\n"
    )
    Path("fine.yaml").write_text(fine.replace("TAG", "bt"))
    assert cli("train", "fine.yaml")[0] == 0
    Path("other.yaml").write_text(fine.replace("TAG", "other"))
    code, _, err = cli("train", "other.yaml")
    assert code == 2
    assert "data.train.tag: other is not one of tokenizer.tags (bt); with training.init_from" in err
    Path("more.yaml").write_text(f"{fine.replace('TAG', 'st')}tokenizer: {{tags: [bt, st]}}\n")
    code, _, err = cli("train", "more.yaml")
    assert code == 2
    assert "tokenizer.tags: ['bt'] there, ['bt', 'st'] here" in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tags: [bt]": "tags: [st, st]"}, "tokenizer.tags: a tag is named twice"),
        ({"tags: [bt]": "tags: [st]"}, "data.train.tag: bt is not one of tokenizer.tags (st)"),
        ({", tags: [bt]": ""}, "data.train.tag: bt is not one of tokenizer.tags (none)"),
        ({"tags: [bt]": "tags: [b t]"}, "tokenizer.tags"),
        ({"vocab_size: 16": "vocab_size: 5"}, "tokenizer.vocab_size (5) leaves no room for words beside the tags"),
        (
            {"type: word, ": "type: marian, ", "max_steps: 12": "max_steps: 12\n  init_from: old"},
            "tokenizer.tags: the tokenizer of an imported model (nmt import) has no tags",
        ),
        (
            {"type: word, ": "type: marian, ", "max_steps: 12": "max_steps: 12\n  init_from: old", ", tags: [bt]": ""},
            "data.train.tag: the tokenizer of an imported model (nmt import) has no tags",
        ),
        (
            {"tokenizer:": "source: {type: vectors, features: 3}\ntokenizer:"},
            "tokenizer.tags and data.train.tag: needs text sources",
        ),
        (
            {"tokenizer:": "source: {type: vectors, features: 3}\ntokenizer:", ", tags: [bt]": ""},
            "data.train.tag: needs text sources",
        ),
    ],
)
def test_mistakes_are_named(copy_task: Path, changes: dict[str, str], message: str) -> None:
    written = TAGGED
    for old, new in changes.items():
        assert old in written
        written = written.replace(old, new)
    copy_task.write_text(written)
    with pytest.raises((ConfigError, DataError)) as caught:
        load_config(copy_task)
    assert message in str(caught.value)
