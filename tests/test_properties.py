"""Properties of any text, any configuration, any corpus and any model, tested on random ones."""

import contextlib
import dataclasses
import gzip
import io
import itertools
import math
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.batches.batches import batch_loader, plan_epoch
from nmt.batches.dataset import EncodedCorpus, encode_corpus
from nmt.batches.mixture import pairs_of_epoch
from nmt.cleaning.normalize import normalize
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import DecodingConfig, TokenizerConfig, TransformerConfig
from nmt.config.reading import load_config, to_yaml
from nmt.config.section import Section
from nmt.config.training import Config
from nmt.corpora.lines import count_lines, line_blocks, opened, read_lines
from nmt.decoding.beam_search import beam_search
from nmt.decoding.constraints import Constraints
from nmt.decoding.files import Files, translate_files
from nmt.decoding.hypothesis import Request
from nmt.decoding.translator import Translation
from nmt.errors import ConfigError
from nmt.models.source import Source, source_of
from nmt.models.transformer import Transformer
from nmt.system.distributed import Ranks
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer, Tokenizers, WordTokenizer, save_tokenizers
from nmt.tokenizers.vocabulary import BOS_ID, EOS_ID, OWN_SPECIAL_IDS, PAD_ID, SPECIAL_PIECES, UNK_ID
from nmt.training.feeding import updates_from

# ------------------------------------------------------------------------------------------------- lines

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n"), max_size=8)
TRICKY = st.text(st.sampled_from("aé漢\r\x0b\x0c\x1c\x85\u2028\u2029\ufeff\u3000 "), max_size=6)


class Echo:
    """A translator with given translations."""

    def stream(
        self, blocks: Iterable[Sequence[str]], first: int, prefixes: object, request: Request
    ) -> Iterator[Translation]:
        for block in blocks:
            yield from (Translation(line, 1) for line in block)


class Trickle(io.RawIOBase):
    """A file that returns a few bytes at a time, like a pipe."""

    def __init__(self, content: bytes, sizes: Sequence[int]) -> None:
        self._rest = content
        self._sizes = itertools.cycle(sizes)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(next(self._sizes), len(buffer))
        data, self._rest = self._rest[:size], self._rest[size:]
        buffer[: len(data)] = data
        return len(data)


@settings(max_examples=50)
@given(
    lines=st.lists(TEXT | TRICKY, max_size=9),
    is_whole=st.booleans(),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    suffix=st.sampled_from(["", ".gz"]),
)
def test_lines_are_counted_alike_wherever_they_are_counted(
    lines: list[str], is_whole: bool, sizes: list[int], suffix: str
) -> None:
    content = "\n".join(lines).encode() + b"\n" * (is_whole and bool(lines))
    # `wc -l` counts line ends; a last line without one is a line, too
    count = content.count(b"\n") + (content[-1:] not in (b"", b"\n"))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        source, target = Path(f"in{suffix}"), Path(f"out{suffix}")
        source.write_bytes(gzip.compress(content) if suffix else content)
        in_blocks = [line for block in line_blocks(BufferedReader(Trickle(content, sizes), 4), "-") for line in block]
        with opened(source) as file:
            assert len(in_blocks) == count_lines(file) == count
        assert in_blocks == list(read_lines(source))
        assert translate_files(Echo(), Files(source, target), {}, resume=False).lines == count
        written = gzip.decompress(target.read_bytes()) if suffix else target.read_bytes()
        assert written.count(b"\n") == count
        assert written.endswith(b"\n") or not count


# -------------------------------------------------------------------------------------------------- text

ANY_LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=20)
SPACED = st.text(st.sampled_from("ab \u2581\t\u3000\xa0e\u0301\u1100\u1161\u0327"), max_size=12)


@given(ANY_LINE | SPACED)
def test_a_normalized_line_is_in_nfc_with_single_spaces(line: str) -> None:
    words = unicodedata.normalize("NFC", line).replace("\u2581", " ").split(" ")
    normalized = normalize(line)
    assert normalized == " ".join(word for word in words if word).strip()
    assert unicodedata.is_normalized("NFC", normalized)
    assert normalize(normalized) == normalized
    assert normalize(f" {unicodedata.normalize('NFD', line)}\t") == normalized


LINES = [
    "the small dog sees a red house and the children are playing", "a big cat likes the dog of the children",
    "der kleine Hund sieht ein rotes Haus und die Kinder spielen", "eine große Katze mag den Hund der Kinder",
    "ﬁve １２３ cafés", "学习 ｶﾀｶﾅ",
] * 5  # fmt: skip
SUBWORDS = {
    (kind, rule): SentencePieceTokenizer.train(
        LINES, TokenizerConfig(type=kind, vocab_size=310 if kind != "char" else 999, normalization=rule)
    )
    for kind in ("bpe", "unigram", "char")
    for rule in ("identity", "nfkc", "nmt_nfkc")
}


@given(ANY_LINE | SPACED)
def test_identity_round_trips_to_the_character(line: str) -> None:
    for kind in ("bpe", "unigram", "char"):
        tokenizer = SUBWORDS[kind, "identity"]
        for text in (line, normalize(line)):
            ids = tokenizer.encode(text)
            assert UNK_ID not in ids
            assert tokenizer.decode(ids) == text.replace("\u2581", " ")


@given(st.text(st.characters(max_codepoint=0x24F) | st.sampled_from(" ﬁ１Ａｶﾞ㍿　\xa0²学α"), max_size=20))
def test_nfkc_round_trips_to_the_nfkc_form(line: str) -> None:
    line = "".join(char for char in line if unicodedata.category(char) != "Cc")
    expected = " ".join(word for word in unicodedata.normalize("NFKC", normalize(line)).split(" ") if word)
    for kind in ("bpe", "unigram", "char"):
        tokenizer = SUBWORDS[kind, "nfkc"]
        ids = tokenizer.encode(normalize(line))
        assert UNK_ID not in ids
        assert tokenizer.decode(ids) == expected


@given(ANY_LINE | SPACED)
def test_normalizing_is_idempotent(line: str) -> None:
    for tokenizer in SUBWORDS.values():
        once = tokenizer.decode(tokenizer.encode(normalize(line)))
        again = tokenizer.encode(once)
        assert UNK_ID not in again
        assert tokenizer.decode(again) == once


@given(st.lists(st.sampled_from(["der", "Hund", "a\u200bb", "学习"])), st.sampled_from([" ", "  ", "\u3000", "\t\xa0"]))
def test_words_round_trip_with_single_spaces(words: list[str], space: str) -> None:
    tokenizer = WordTokenizer([*SPECIAL_PIECES, "der", "Hund", "a\u200bb", "学习"])
    assert tokenizer.decode(tokenizer.encode(space + space.join(words) + space)) == " ".join(words)


# ---------------------------------------------------------------------------------------------- settings


def keys_of(section: Any) -> set[str]:
    """The keys of a section, of every class that it may be."""
    if isinstance(section, type):
        return set(section.model_fields) if issubclass(section, Section) else set()
    return {key for part in get_args(section) for key in keys_of(part)}


KEYS = sorted(
    set(Config.model_fields)
    | {key for field in Config.model_fields.values() for key in keys_of(field.annotation)}
    | {"src", "tgt", "weight", "no", "1", "~", "<<", "", "a.b", "ünï"}
)
WORDS = ["bpe", "auto", "true", "no", "1e-3", "0x1F", "12:30", "2020-01-01", ".nan", "-.inf", "~", "=", "a b", "", "en"]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.integers(0, 100) | st.floats() | st.text(max_size=5)
    | st.sampled_from(WORDS) | st.binary(max_size=3) | st.dates()
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | SCALARS, inner, max_size=4),
    max_leaves=6,
)
SOUND: dict[str, Any] = {
    "data": {"train": {"src": "a.en", "tgt": "a.de"}, "validation": {"src": "b.en", "tgt": "b.de"}},
    "training": {"max_steps": 10},
}


def read_back(text: str) -> None:
    """A configuration that is written out and read back the same, or a message."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.yaml")
        path.write_bytes(text.encode("utf-8", errors="replace"))
        try:
            config = load_config(path)
        except ConfigError as error:
            assert str(error).startswith(str(path))
            assert len(str(error)) < 20_000
            return
        path.write_text(to_yaml(config), encoding="utf-8")
        assert load_config(path) == config


@settings(max_examples=80)
@given(st.dictionaries(st.sampled_from(sorted(Config.model_fields)) | st.sampled_from(KEYS), VALUES, max_size=4))
def test_any_mapping_is_a_configuration_or_a_message(mapping: dict[str, Any]) -> None:
    read_back(yaml.safe_dump(mapping, allow_unicode=True))


@settings(max_examples=150)
@given(st.sampled_from(sorted(Config.model_fields)), st.data())
def test_any_value_in_a_valid_configuration_is_accepted_or_named(section: str, data: st.DataObject) -> None:
    known = sorted(keys_of(Config.model_fields[section].annotation))
    key = data.draw(st.sampled_from(known))
    mapping = {**SOUND, section: {**SOUND.get(section, {}), key: data.draw(VALUES)}}
    read_back(yaml.safe_dump(mapping, allow_unicode=True))


@given(st.text(st.sampled_from("abc:-[]{}&*!|>%@`'\"#,? \n\t01.~<=\\\u2028\x85é"), max_size=30))
def test_any_text_is_a_configuration_or_a_message(text: str) -> None:
    read_back(text)


@pytest.mark.parametrize(
    "text",
    [
        "training: " + "[" * 3000,
        "training: " + "[" * 900 + "]" * 900,
        "training: {max_steps: " + "9" * 5000 + "}",
        "training: {max_steps: !!int abc}",
        "training: {max_steps: !!timestamp abc}",
        "training: {max_steps: !!timestamp 2020-99-99}",
        "training: {max_steps: !!float abc}",
        "training: {max_steps: !!bool abc}",
        "training: {max_steps: !!binary ä}",
        "training: !!set {a, b}",
        "training: !!omap [a: 1]",
        "training: !!python/object/apply:os.system [true]",
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
        + "training: *a11\n",
        "data: {train: {src: \"a\\0b.en\", tgt: b.de}}",
        "data: {train: {src: \"\\ud800.en\", tgt: b.de}}",
    ],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_settings_that_would_harm_the_reader_are_a_message(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}")
    assert len(str(caught.value)) < 5000


# ------------------------------------------------------------------------------------------------- batches


class Numbered:
    """A tokenizer of lines "7 3": the id 7, three times."""

    vocab_size = 500
    special = OWN_SPECIAL_IDS
    byte_ids: frozenset[int] = frozenset()
    model = b"numbered"

    def normalize(self, line: str) -> str:
        return normalize(line)

    def encode(self, line: str) -> list[int]:
        number, times = map(int, line.split())
        return [number] * times

    def encode_lines(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [self.encode(line) for line in lines]


NUM_PAIRS = (30, 11)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> EncodedCorpus:
    """Two corpora whose pairs are distinguished by their ids, from 4 on."""
    folder = tmp_path_factory.mktemp("numbered")
    random = np.random.default_rng(0)
    numbers = itertools.count(4)
    with contextlib.chdir(folder):
        corpora = []
        for name, count in zip("ab", NUM_PAIRS, strict=True):
            files = CorpusFiles(src=Path(f"{name}.en"), tgt=Path(f"{name}.de"))
            lines = [
                [f"{number} {random.integers(1, 30)}" for _ in "st"] for number in itertools.islice(numbers, count)
            ]
            for path, of_side in zip((files.src, files.tgt), zip(*lines, strict=True), strict=True):
                path.write_text("".join(f"{line}\n" for line in of_side))
            corpora.append(files)
        numbered: Tokenizer = Numbered()  # type: ignore[assignment]
        tokenizers = Tokenizers(numbered, numbered)
        save_tokenizers(tokenizers, Path("tokenizer"), "")
        return EncodedCorpus(
            encode_corpus(corpora, tokenizers, Path("tokenizer"), 30)._folder.resolve(),
            (OWN_SPECIAL_IDS, OWN_SPECIAL_IDS),
        )


@settings(max_examples=60)
@given(
    sessions=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 7), st.integers(1, 5)), min_size=1, max_size=6
    ),  # processes, batches of an update, updates until an interruption
    batch_tokens=st.integers(31, 200),
    seed=st.integers(0, 9),
    weights=st.none() | st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)),
)
def test_an_epoch_has_every_pair_as_often_as_it_should_when_shared_and_interrupted(
    corpus: EncodedCorpus,
    sessions: list[tuple[int, int, int]],
    batch_tokens: int,
    seed: int,
    weights: tuple[float, float] | None,
) -> None:
    data = Config.model_validate(SOUND).data
    if weights:
        files = data.train[0]
        data = data.model_copy(
            update={"train": tuple(files.model_copy(update={"weight": weight}) for weight in weights)}
        )
    else:
        data = data.model_copy(update={"train": data.train * 2})
    seen: Counter[int] = Counter()
    position, epoch = 0, 3
    for num_processes, per_update, num_updates in itertools.cycle(sessions):
        pairs = pairs_of_epoch(corpus.sizes, data, seed, epoch)  # drawn again after each interruption
        plan = plan_epoch(corpus.src.lengths, corpus.tgt.lengths, batch_tokens, seed, epoch, pairs)
        updates = updates_from(position, len(plan), max(per_update, num_processes))  # each process has one
        for rank in range(num_processes):
            ranks = Ranks(rank, num_processes)
            own = [number for of_one in updates[:num_updates] for number in ranks.share(list(of_one))]
            for batch in batch_loader(corpus, plan, CPU, own):
                assert torch.equal(batch.source.values[:, 0], batch.tgt_out[:, 0])
                seen.update(batch.source.values[:, 0].tolist())
        position += sum(map(len, updates[:num_updates]))
        if position == len(plan):
            break
    bounds = (4, 4 + NUM_PAIRS[0], 4 + sum(NUM_PAIRS))
    assert not seen.keys() - set(range(bounds[0], bounds[2]))
    for (begin, end), weight in zip(itertools.pairwise(bounds), weights or (1.0, 1.0), strict=True):
        times = [seen[number] for number in range(begin, end)]
        assert sum(times) == round((end - begin) * weight)
        assert max(times) - min(times) <= 1


# ------------------------------------------------------------------------------------------------- search


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    sentences=st.lists(
        st.tuples(st.lists(st.integers(4, 5), min_size=1, max_size=5), st.integers(1, 3)), min_size=1, max_size=3
    ),  # and the maximal length of each
    alpha=st.floats(0, 2),
    min_length=st.integers(0, 2),
)
def test_a_beam_that_holds_all_sentences_finds_the_models_best(
    seed: int, sentences: list[tuple[list[int], int]], alpha: float, min_length: int
) -> None:
    torch.manual_seed(seed)
    config = TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0, max_positions=16,
        tie_embeddings="none",
    )  # fmt: skip
    model = Transformer(config, 6, 6).eval()
    with torch.no_grad():
        model.output.weight.mul_(3.0)
    source = source_of([ids for ids, _ in sentences], OWN_SPECIAL_IDS)
    constraints = dataclasses.replace(
        Constraints.of(DecodingConfig(min_length=min_length), OWN_SPECIAL_IDS, [1] * len(sentences)),
        max_lengths=torch.tensor([length for _, length in sentences]),
    )
    with torch.no_grad():
        found = beam_search(model, source, constraints, 15, alpha)
    for (ids, most), hypotheses in zip(sentences, found, strict=True):
        scores = {}
        for length in range(most + 1):
            for words in itertools.product((4, 5), repeat=length):
                ends = (EOS_ID,) if length < most else ()
                if length >= min_length or not ends:
                    scores[words] = _log_prob(model, ids, (*words, *ends), min_length) / max(1, length) ** alpha
        assert {hypothesis.tokens for hypothesis in hypotheses} == scores.keys()
        assert hypotheses[0].score == pytest.approx(max(scores.values()), abs=1e-4)
        for hypothesis in hypotheses:
            assert hypothesis.score == pytest.approx(scores[hypothesis.tokens], abs=1e-4)


def _log_prob(model: Transformer, src: list[int], tokens: tuple[int, ...], min_length: int) -> float:
    """Over the words and, from `min_length` on, `</s>`: nothing else may be emitted."""
    src_ids = torch.tensor([[*src, EOS_ID]])
    with torch.no_grad():
        logits = model(Source(src_ids, src_ids != PAD_ID), torch.tensor([[BOS_ID, *tokens[:-1]]]))
    return math.fsum(
        math.log(powers[token] / sum(powers[4:] + (powers[EOS_ID:UNK_ID] if place >= min_length else [])))
        for place, (token, powers) in enumerate(zip(tokens, logits[0].double().exp().tolist(), strict=True))
    )
