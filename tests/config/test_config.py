"""A run's YAML: the values read from it, and the message of each mistake."""

import ast
import inspect
import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from conftest import Cli, assert_says, refused
from PIL import Image
from pydantic import ValidationError

from nmt.config import corpus, data, inference, source, training
from nmt.config.corpus import HeldOutFiles, TrainingFiles
from nmt.config.inference import InferenceConfig
from nmt.config.reading import load_config, load_inference_config, to_yaml
from nmt.config.section import Section
from nmt.config.training import Config
from nmt.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED = sorted((REPOSITORY / "configs").rglob("*.yaml"))
SECTIONS = [
    member
    for module in (corpus, data, inference, source, training)
    for _, member in inspect.getmembers(module, inspect.isclass)
    if issubclass(member, Section) and member is not Section and member.__module__ == module.__name__
]

DATA = """\
data:
  train: {src: train.en, tgt: train.de}
  validation:
    src: val.en
    tgt: val.de
"""
TRAINING = """\
training:
  max_steps: 5000
"""

Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """`load(text, *overrides)` writes run.yaml and reads it."""

    def from_text(text: str, *overrides: str) -> Config:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(path, overrides)

    return from_text


def message_of(load: Load, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return str(caught.value)


def line_with(text: str, part: str) -> int:
    """The number of the one line that holds `part`."""
    (number,) = [number for number, line in enumerate(text.split("\n"), start=1) if part in line]
    return number


# ------------------------------------------------------------------------------------------- unknown keys


@pytest.mark.parametrize(
    ("text", "key", "meant"),
    [
        (DATA + TRAINING + "modle: {}\n", "modle", "model"),
        (DATA + TRAINING + "model:\n  nun_heads: 8\n", "model.nun_heads", "model.num_heads"),
        (DATA + TRAINING + "  warm_up_steps: 8\n", "training.warm_up_steps", "training.warmup_steps"),
        (DATA + TRAINING + "model:\n  learning_rate: 1.0\n", "model.learning_rate", "training.learning_rate"),
        (DATA + "  beam_size: 4\n" + TRAINING, "data.beam_size", "decoding.beam_size"),
        (DATA + "    tgtt: val.fr\n" + TRAINING, "data.validation.tgtt", "data.validation.tgt"),
        (DATA + "  test:\n    a: {src: a.en, tgt: a.de}\n    b: {src: b.en, tgt: b.de, scr: c}\n" + TRAINING,
         "data.test.b.scr", "data.test.b.src"),
        ("data:\n  validation: {src: v.en, tgt: v.de}\n  train:\n  - {src: a.en, tgt: a.de}\n"
         "  - src: b.en\n    tgt: b.de\n    trgt: c.de\n" + TRAINING, "data.train.1.trgt", "data.train.1.tgt"),
        (DATA.replace("src: train.en", "src: train.en, trgt: x") + TRAINING, "data.train.trgt", "data.train.tgt"),
        (DATA + "  test: {src: x.en, tgt: x.de, tgy: y}\n" + TRAINING, "data.test.test.tgy", "data.test.test.tgt"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_named_with_its_line_and_a_suggestion(
    load: Load, tmp_path: Path, text: str, key: str, meant: str
) -> None:
    line = line_with(text, f"{key.rpartition('.')[2]}:")
    message = message_of(load, text)
    assert_says(message, f"{tmp_path / 'run.yaml'}:{line}: unknown key {key};", f"{meant}?")
    assert "\n" not in message


def test_an_unknown_key_without_a_similar_one_is_reported_with_the_known_keys(load: Load) -> None:
    message = message_of(load, DATA + TRAINING + "evaluation:\n  zzzzzz: 1\n")
    assert "unknown key evaluation.zzzzzz; known here: metrics, " in message
    message = message_of(load, DATA + TRAINING + "  betas: [0.9, 0.98]\n")
    assert "unknown key training.betas; known here: " in message


def test_every_mistake_is_reported_at_once_each_on_its_line(load: Load, tmp_path: Path) -> None:
    text = DATA + TRAINING + "  sede: 3\nmodel:\n  d_model: big\n  drop_out: 0.1\n"
    lines = message_of(load, text).split("\n")
    for part, line in zip(("training.sede", "model.d_model is 'big'", "model.drop_out"), (8, 10, 11), strict=True):
        assert any(shown.startswith(f"{tmp_path / 'run.yaml'}:{line}: ") and part in shown for shown in lines), part
    assert len(lines) == 3


def test_a_missing_key_is_named_with_the_line_of_its_section(load: Load, tmp_path: Path) -> None:
    for text, place in (
        ("data:\n  train: {src: a.en, tgt: a.de}\n  validation:\n    src: v.en\n", "3: data.validation.tgt"),
        (DATA.replace("src: train.en, ", ""), "2: data.train.src"),
    ):
        message = message_of(load, text + TRAINING)
        assert_says(message, f"{tmp_path / 'run.yaml'}:{place} ")
        assert "\n" not in message


# -------------------------------------------------------------------------------------------- YAML itself


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        (DATA + TRAINING + "  seed: 1\n  max_steps: 6000\n", 9, "max_steps"),
        (DATA + TRAINING + "data:\n  max_length: 3\n", 8, "data"),
        (DATA + "    src: other.en\n" + TRAINING, 6, "src"),
        ("data:\n  train:\n  - {src: a.en, tgt: a.de}\n  - {src: b.en,\n     src: c.en}\n", 5, "src"),
    ],
)
def test_a_duplicate_key_is_refused(load: Load, tmp_path: Path, text: str, line: int, key: str) -> None:
    assert_says(message_of(load, text), f"{tmp_path / 'run.yaml'}:{line}: ", f"{key!r} occurs twice")


@pytest.mark.parametrize(
    ("broken", "line"),
    [("model: {d_model: [3}\n", 8), ("\tmodel: 3\n", 8), ("model: 'a\n", 9), ("model: d_ff: 3\n", 8)],
)
def test_a_syntax_error_names_the_line(load: Load, tmp_path: Path, broken: str, line: int) -> None:
    assert message_of(load, DATA + TRAINING + broken).startswith(f"{tmp_path / 'run.yaml'}:{line}: not valid YAML: ")


def test_norwegian_is_a_language_and_not_false(load: Load) -> None:
    assert load(f"{DATA}  src_lang: no\n  tgt_lang: 'no'\n{TRAINING}").data.src_lang == "no"


@pytest.mark.parametrize("word", ["no", "NO", "on", "y", "off", "Yes"])
def test_a_word_that_yaml_reads_as_a_boolean_stays_text(load: Load, word: str) -> None:
    config = load(f"{DATA}  test:\n    {word}: {{src: t.en, tgt: t.de}}\n{TRAINING}")
    assert list(config.data.test) == [word]


@pytest.mark.parametrize("written", ["true", "True", "false", "False"])
def test_true_and_false_are_still_booleans(load: Load, written: str) -> None:
    config = load(f"{DATA}{TRAINING}tokenizer: {{byte_fallback: {written}}}\n")
    assert config.tokenizer.byte_fallback is (written.lower() == "true")


@pytest.mark.parametrize("written", ["1e-3", "1E-3", "1.e-3", "0.001", ".1e-2", "+1e-3", "100e-5"])
def test_a_float_may_be_written_with_an_exponent_and_no_point(load: Load, written: str) -> None:
    assert load(f"{DATA}{TRAINING}  learning_rate: {written}\n").training.learning_rate == 1e-3


@pytest.mark.parametrize("written", ["100", "0100", "+100", "1_00", "1e2"])
def test_a_number_is_decimal(load: Load, written: str) -> None:
    """In YAML 1.1, 0100 is 64 and 1:40 is 100."""
    assert load(f"{DATA}training: {{max_steps: {written}}}\n").training.max_steps == 100
    assert "max_steps is '1:40'; it should be a valid integer" in message_of(
        load, f"{DATA}training: {{max_steps: 1:40}}\n"
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("  cleaning: {script: true}\n" + TRAINING, "data.cleaning.script is True"),
        (f"{TRAINING}  patience: true\n", "training.patience is True"),
        (f"{TRAINING}  r_drop: false\n", "training.r_drop is False"),
    ],
)
def test_true_and_false_are_no_numbers(load: Load, text: str, key: str) -> None:
    assert f"{key}; it should be a valid {'integer' if 'patience' in key else 'number'}" in message_of(
        load, DATA + text
    )


def test_a_language_may_be_undetermined(load: Load, tmp_path: Path) -> None:
    data = "data:\n  train: {pairs: t.tsv}\n  validation: {pairs: v.tsv}\n  src_lang: und\n  tgt_lang: de\n"
    (files,) = load(data + TRAINING).data.train
    assert files.columns == (1, 2)
    assert "data.train" in message_of(load, data.replace("{pairs: t.tsv}", "{}") + TRAINING)


def test_an_exponent_makes_a_float_where_the_type_does_not_say_so(load: Load) -> None:
    message = message_of(load, f"{DATA}{TRAINING}tokenizer: {{type: 1e-3}}\n")
    assert "tokenizer.type is 0.001;" in message


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("data: Köln\n".encode("latin-1"))
    for bad, place in ((tmp_path / "absent.yaml", ": no such file"), (tmp_path, ": "), (path, ":1: ")):
        with refused(ConfigError, f"{bad}{place}"):
            load_config(bad)


@pytest.mark.parametrize("text", ["", "# only a remark\n", "- data\n- training\n", "data\n", "---\n"])
def test_a_file_without_sections_is_reported_with_the_known_sections(load: Load, text: str) -> None:
    message = message_of(load, text)
    assert "run.yaml: not a configuration; " in message
    assert message.endswith(", ".join(Config.model_fields))


# ------------------------------------------------------------------------------------ values and agreement


@pytest.mark.parametrize(
    ("rest", "parts"),
    [
        ("model: {d_model: 100, num_heads: 3}", ["model.d_model (100)", "divisible by model.num_heads (3)"]),
        ("model: {d_model: 35, num_heads: 5}", ["model.d_model (35)", "even", "sinusoidal"]),
        ("model: {architecture: cnn}", ["run.yaml:", "model.architecture", "'cnn'", "'transformer'", "'rnn'"]),
        ("model: {architecture: rnn, attention: none, input_feeding: true}", ["model.input_feeding", "attention"]),
        ("model: {architecture: rnn, d_model: 35}", ["model.d_model (35)", "even"]),
        ("model: {architecture: rnn, num_heads: 4}", ["unknown key model.num_heads", "architecture, cell, "]),
        ("tokenizer: {joint: false}", ["model.tie_embeddings: all", "tokenizer.joint: true", "decoder", "none"]),
        ("model: {max_positions: 128}\ndecoding: {max_length: 100}",
         ["data.max_length (128)", "less than model.max_positions (128)"]),
        ("model: {max_positions: 256}", ["decoding.max_length (256)", "less than model.max_positions (256)"]),
        ("decoding: {min_length: 11}", ["decoding.min_length (11)", "at most 10"]),
        ("decoding: {min_length: 4, max_length: 3}", ["decoding.min_length (4)", "decoding.max_length"]),
    ],
)  # fmt: skip
def test_contradictory_values_are_refused(load: Load, rest: str, parts: list[str]) -> None:
    message = message_of(load, f"{DATA}{TRAINING}{rest}\n")
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    ("training", "parts"),
    [
        ("{seed: 3}", ["one of", "training.max_steps", "training.max_epochs", "training.max_minutes"]),
        ("{max_epochs: 3, schedule: cosine}", ["training.schedule: cosine", "training.max_steps", "not set"]),
        ("{max_minutes: 3, schedule: linear}", ["training.schedule: linear", "training.max_steps", "not set"]),
        ("{max_steps: 1000, warmup_steps: 1000, schedule: cosine}",
         ["training.warmup_steps (1000)", "less than training.max_steps (1000)"]),
        ("{max_steps: 9, warmup_steps: 10, schedule: linear}", ["warmup_steps (10)", "training.max_steps (9)"]),
        ("{max_steps: 9, learning_rate: 1e-3, min_learning_rate: 2e-3}",
         ["training.min_learning_rate (0.002)", "training.learning_rate (0.001)"]),
        ("{max_steps: 9, batch_tokens: 128}", ["training.batch_tokens (128)", "more than data.max_length (128)"]),
    ],
)  # fmt: skip
def test_contradictory_training_values_are_refused(load: Load, training: str, parts: list[str]) -> None:
    message = message_of(load, f"{DATA}training: {training}\n")
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    "rest",
    [
        "training: {max_epochs: 1}",
        "training: {max_minutes: 0.5}",
        "training: {max_steps: 9, schedule: constant}",  # ends before the warm-up does: allowed without an end point
        "training: {max_steps: 11, warmup_steps: 10, schedule: cosine}",
        "training: {max_steps: 9, learning_rate: 1e-3, min_learning_rate: 1e-3}",
        "training: {max_steps: 9, batch_tokens: 129}",
        "training: {max_steps: 9}\nmodel: {d_model: 35, num_heads: 5, positions: learned}",
        "training: {max_steps: 9}\nmodel: {max_positions: 257}",
        "training: {max_steps: 9}\nmodel: {tie_embeddings: decoder}\ntokenizer: {joint: false}",
        "training: {max_steps: 9}\ndecoding: {min_length: 3, max_length: 3}",
    ],
)
def test_boundary_values_are_accepted(load: Load, rest: str) -> None:
    config = load(f"{DATA}{rest}\n")
    for section, values in yaml.safe_load(rest).items():
        for key, value in values.items():
            assert getattr(getattr(config, section), key) == (float(value) if value == "1e-3" else value)


@pytest.mark.parametrize(
    ("rest", "key", "found"),
    [
        ("model: {dropout: 1.0}", "model.dropout", "1.0"),
        ("model: {d_model: 0}", "model.d_model", "0"),
        ("model: {norm: sandwich}", "model.norm", "'sandwich'"),
        ("model: {num_heads: 4.5}", "model.num_heads", "4.5"),
        ("tokenizer: {vocab_size: 4}", "tokenizer.vocab_size", "4"),
        ("decoding: {length_penalty: .nan}", "decoding.length_penalty", "nan"),
        ("decoding: {max_length_ratio: .inf}", "decoding.max_length_ratio", "inf"),
        ("decoding: {no_repeat_ngram_size: -1}", "decoding.no_repeat_ngram_size", "-1"),
        ("decoding: {no_repeat_ngram_size: 65537}", "decoding.no_repeat_ngram_size", "65537"),
        ("evaluation: {metrics: []}", "evaluation.metrics", "[]"),
    ],
)
def test_a_value_that_does_not_fit_is_shown_with_its_key_and_line(load: Load, rest: str, key: str, found: str) -> None:
    assert f"run.yaml:8: {key} is {found}; it " in message_of(load, f"{DATA}{TRAINING}{rest}\n")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:", "CPU"])
def test_a_device_that_does_not_exist_is_refused(load: Load, device: str) -> None:
    assert f"training.device is '{device}'" in message_of(load, f"{DATA}{TRAINING}  device: '{device}'\n")


# ---------------------------------------------------------------------------------------------------- data


def test_paths_are_relative_to_the_configuration_in_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    data = "data:\n  train: {src: ../d/a.en, tgt: /d/a.de}\n  validation: {src: v.en, tgt: ~/v.de}\n"
    (tmp_path / "configs" / "run.yaml").write_text(data + TRAINING)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_config(Path("../configs/run.yaml"))
    assert config.data.train == (TrainingFiles(src=tmp_path / "d" / "a.en", tgt=Path("/d/a.de")),)
    assert config.data.validation.src == tmp_path / "configs" / "v.en"
    assert config.data.validation.tgt == tmp_path / "home" / "v.de"


def test_a_link_in_a_path_is_followed_as_the_system_does_and_a_file_keeps_its_name(load: Load, tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "a.en").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    (tmp_path / "a.de").symlink_to(tmp_path / "real" / "a.en")
    train = load(
        "data:\n  train: {src: link/../a.en, tgt: a.de}\n  validation: {src: a, tgt: b}\n" + TRAINING
    ).data.train
    assert train == (TrainingFiles(src=tmp_path / "real" / "a.en", tgt=tmp_path / "a.de"),)


@pytest.mark.parametrize(
    ("src", "tgt"), [("train.en", "train.de"), ("train.en.gz", "train.de.gz"), ("a.b/c.tok.en", "c.x.de.gz")]
)
def test_the_languages_are_the_suffixes_of_the_first_training_files(load: Load, src: str, tgt: str) -> None:
    text = f"data:\n  train:\n  - {{src: {src}, tgt: {tgt}}}\n  - {{src: x.fr, tgt: x.it}}\n"
    config = load(text + "  validation: {src: v.txt, tgt: v.txt}\n" + TRAINING)
    assert (config.data.src_lang, config.data.tgt_lang) == ("en", "de")


@pytest.mark.parametrize(
    ("name", "language"), [("train.zh-Hant", "zh-Hant"), ("train.pt-BR.gz", "pt-BR"), ("a.sr-Latn", "sr-Latn")]
)
def test_a_suffix_may_have_a_script_or_a_region(load: Load, name: str, language: str) -> None:
    assert load(DATA.replace("train.de", name) + TRAINING).data.tgt_lang == language


def test_a_given_language_takes_precedence_over_the_suffix(load: Load) -> None:
    config = load(f"{DATA}  tgt_lang: zh\n{TRAINING}")
    assert (config.data.src_lang, config.data.tgt_lang) == ("en", "zh")


@pytest.mark.parametrize(
    "name", ["train.txt", "train.txt.gz", "train", "en", ".en", "train.EN", "train.eng", "x.en-de", "x.kr", "x.en-tok"]
)
def test_a_language_without_a_suffix_must_be_given(load: Load, name: str) -> None:
    text = DATA.replace("train.de", name) + TRAINING
    message = message_of(load, text)
    assert "data.tgt_lang" in message
    assert "add data.tgt_lang" in message
    assert name in message
    assert load(text.replace("training:", "  tgt_lang: de\ntraining:")).data.tgt_lang == "de"


def test_the_training_corpus_is_one_or_a_list(load: Load, tmp_path: Path) -> None:
    one = load(DATA + TRAINING)
    first = TrainingFiles(src=tmp_path / "train.en", tgt=tmp_path / "train.de")
    assert one.data.train == (first,)
    several = load(
        "data:\n  train:\n  - {src: train.en, tgt: train.de}\n  - {src: b.en.gz, tgt: b.de.gz}\n"
        "  validation: {src: val.en, tgt: val.de}\n" + TRAINING
    )
    assert several.data.train == (first, TrainingFiles(src=tmp_path / "b.en.gz", tgt=tmp_path / "b.de.gz"))


def test_an_empty_list_of_training_corpora_is_refused(load: Load) -> None:
    message = message_of(load, "data:\n  train: []\n  validation: {src: val.en, tgt: val.de}\n" + TRAINING)
    assert "run.yaml:2: data.train is []" in message


def test_a_test_set_is_one_or_named(load: Load, tmp_path: Path) -> None:
    files = HeldOutFiles(src=tmp_path / "t.en", tgt=tmp_path / "t.de")
    assert load(DATA + TRAINING).data.test == {}
    assert load(f"{DATA}  test: {{src: t.en, tgt: t.de}}\n{TRAINING}").data.test == {"test": files}
    named = load(
        f"{DATA}  test:\n    flickr: {{src: t.en, tgt: t.de}}\n    coco-2.x: {{src: t.en, tgt: t.de}}\n{TRAINING}"
    )
    assert named.data.test == {"flickr": files, "coco-2.x": files}
    assert list(named.data.test) == ["flickr", "coco-2.x"]


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "a b", ""])
def test_a_test_set_whose_name_cannot_be_a_file_is_refused(load: Load, name: str) -> None:
    message = message_of(load, f"{DATA}  test: {{'{name}': {{src: t.en, tgt: t.de}}}}\n{TRAINING}")
    assert repr(name) in message
    assert "data.test" in message


# --------------------------------------------------------------------------------------------------- --set


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("training.max_steps=100", "training", "max_steps", 100),
        ("training.learning_rate=5e-4", "training", "learning_rate", 5e-4),
        ("training.clip_norm=null", "training", "clip_norm", None),
        ("training.clip_norm=", "training", "clip_norm", None),
        ("tokenizer.byte_fallback=false", "tokenizer", "byte_fallback", False),
        ("data.tgt_lang=no", "data", "tgt_lang", "no"),
        ("model.norm=post", "model", "norm", "post"),
        ("evaluation.metrics=[ter, bleu]", "evaluation", "metrics", ("ter", "bleu")),
        ("decoding.beam_size= 7", "decoding", "beam_size", 7),
        ("decoding.beam_size =7", "decoding", "beam_size", 7),
    ],
)
def test_set_replaces_one_value_even_in_a_section_that_the_file_lacks(
    load: Load, override: str, section: str, key: str, value: object
) -> None:
    before = load(DATA + TRAINING).model_dump()
    after = load(DATA + TRAINING, override).model_dump()
    assert after[section].pop(key) == value
    del before[section][key]
    assert after == before


def test_the_last_of_several_sets_wins(load: Load) -> None:
    config = load(DATA + TRAINING, "training.seed=2", "model.d_ff=8", "training.seed=3")
    assert (config.training.seed, config.model.d_ff) == (3, 8)


def test_set_can_replace_a_whole_corpus_and_a_single_file_of_it(load: Load, tmp_path: Path) -> None:
    config = load(DATA + TRAINING, "data.train={src: b.en, tgt: b.de}", "data.validation.src=c.en")
    assert config.data.train == (TrainingFiles(src=tmp_path / "b.en", tgt=tmp_path / "b.de"),)
    assert config.data.validation == HeldOutFiles(src=tmp_path / "c.en", tgt=tmp_path / "val.de")


@pytest.mark.parametrize(
    ("override", "place", "phrase"),
    [
        ("training.max_step=3", "--set training.max_step: ", "training.max_steps?"),
        ("model.beam_size=3", "--set model.beam_size: ", "decoding.beam_size?"),
        ("data.validation.scr=3", "--set data.validation.scr: ", "data.validation.src?"),
        ("modle.d_ff=3", "--set modle", ""),
        ("training.max_steps.x=3", "--set training.max_steps.x=3: ", ""),
        ("model.d_ff=wide", "--set model.d_ff: ", "'wide'"),
        ("training.seed=-1", "--set training.seed: ", "training.seed is -1"),
        ("model.d_ff=[3", "--set model.d_ff=[3", ""),
        ("data.train={src: a.en, src: b.en}", "--set data.train", "'src' occurs twice"),
    ],
)
def test_a_mistake_in_set_is_reported_as_such(load: Load, override: str, place: str, phrase: str) -> None:
    assert_says(message_of(load, DATA + TRAINING, override), place, phrase)


@pytest.mark.parametrize(
    "override", ["training.max_steps", "max_steps=3", "=3", ".=3", "training.=3", ".max_steps=3", ""]
)
def test_a_malformed_set_shows_how_it_is_written(load: Load, override: str) -> None:
    assert_says(message_of(load, DATA + TRAINING, override), f"--set {override}: ", "section.key=value")


# ------------------------------------------------------------------------------------------ the objects


@pytest.mark.parametrize(
    ("section", "key"), [("training", "seed"), ("model", "d_model"), ("data", "max_length"), ("decoding", "beam_size")]
)
def test_a_configuration_cannot_be_changed(load: Load, section: str, key: str) -> None:
    config = load(DATA + TRAINING)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(getattr(config, section), key, 3)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config, section, getattr(config, section))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("data.tgt_lang=no", "training.learning_rate=1e-05", "training.clip_norm=null", "training.max_minutes=1e+20"),
        ("data.test={coco: {src: ü/a b.en, tgt: '#1: x.de'}, '2016': {src: 译.en, tgt: b.de}}",),
        ("data.train=[{src: a.en.gz, tgt: a.de.gz}, {src: b.en, tgt: b.de}]", "evaluation.metrics=[ter]"),
        ("tokenizer.joint=false", "model.tie_embeddings=none", "tokenizer.type=word", "training.device='cuda:1'"),
    ],
)
def test_the_configuration_written_out_reads_back_the_same(
    load: Load, tmp_path: Path, overrides: Sequence[str]
) -> None:
    config = load(DATA + TRAINING, *overrides)
    elsewhere = tmp_path / "runs" / "x" / "config.yaml"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(elsewhere) == config


def classes_of(annotation: Any) -> list[type[Section]]:
    """The classes that a section may have."""
    classes = [annotation] if isinstance(annotation, type) else list(get_args(annotation))
    assert all(issubclass(one, Section) for one in classes)
    return classes


def test_the_configuration_written_out_holds_every_default(load: Load) -> None:
    written = yaml.safe_load(to_yaml(load(DATA + TRAINING)))
    assert set(written) == set(Config.model_fields)
    for name, field in Config.model_fields.items():
        section = classes_of(field.annotation)[0]  # of the model, the Transformer
        assert set(written[name]) == set(section.model_json_schema()["properties"])


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_field_of_every_section_says_what_it_is(section: type[Section]) -> None:
    assert section.__doc__
    (tree,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(tree, ast.ClassDef)
    said = {
        field.target.id
        for field, text in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and len(str(text.value.value)) >= 8
    }
    own = {name for name in section.__annotations__ if not name.startswith("_")}
    assert own
    assert own - said == set()


def test_every_section_is_checked() -> None:
    assert {"Config", "CorpusFiles"} < {section.__name__ for section in SECTIONS}
    assert {one for field in Config.model_fields.values() for one in classes_of(field.annotation)} < set(SECTIONS)


def test_there_are_configurations_to_try() -> None:
    assert SHIPPED


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_configuration_of_the_repository_loads(path: Path) -> None:
    config = load_config(path)
    for files in (*config.data.train, config.data.validation, *config.data.test.values()):
        assert files.src.is_relative_to(REPOSITORY / "data")
        assert files.tgt.is_relative_to(REPOSITORY / "data")


def train_shipped(path: Path, cli: Cli) -> None:
    """Two updates of a configuration's model, on a few pairs in place of its data: those of data/tiny, or pictures."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    is_text = content.get("source", {}).get("type", "text") == "text"
    for name in ("src", "tgt"):
        lines = (REPOSITORY / "data/tiny" / f"train.{'en' if name == 'src' else 'zh'}").read_text(encoding="utf-8")
        for file, count in ((name, 60), (f"{name}-held", 4)):
            text = "".join(lines.splitlines(keepends=True)[:count]) if is_text or name == "tgt" else "red.png\n" * count
            Path(file).write_text(text, encoding="utf-8")
    Image.new("RGB", (9, 9), "red").save("red.png")
    files, held_out = {"src": "src", "tgt": "tgt"}, {"src": "src-held", "tgt": "tgt-held"}
    languages = {"src_lang": "en"} if is_text else {}
    content["data"] |= {"train": files, "validation": held_out, "test": held_out, "tgt_lang": "zh", **languages}
    run = Path(path.name)
    run.write_text(yaml.safe_dump(content), encoding="utf-8")
    settings = ["tokenizer.vocab_size=500", "training.max_steps=2", "training.warmup_steps=1", "training.threads=1",
                "training.validate_every=2", "training.batch_tokens=200", "training.batches_per_update=1",
                "training.processes=1", "training.precision=fp32", "training.device=cpu", "evaluation.report=false",
                "export.after_training=[]",
                "training.max_epochs=null", "decoding.max_length=10"]  # fmt: skip
    code, _, err = cli("train", str(run), *(part for one in settings for part in ("--set", one)))
    assert code == 0, err
    assert "finished: training.max_steps, 2, is reached" in err


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_configuration_of_the_repository_trains(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = load_config(path)
    model = expected.model
    if (start := expected.training.init_from) is not None:
        train_shipped(path.parent / f"{start}.yaml", cli)
        changed = yaml.safe_load(path.read_text(encoding="utf-8"))["model"]
        model = load_config(path.parent / f"{start}.yaml").model.model_copy(update=changed)
    train_shipped(path, cli)
    written = load_config(Path(f"runs/{path.stem}/config.yaml"))
    assert (written.model, written.source, written.augmentation) == (model, expected.source, expected.augmentation)


# ------------------------------------------------------------------------- other properties of YAML files


@pytest.mark.parametrize(
    "text", ["? [a, b]\n: c\n", "{{name}}: c\n", "model: {[a]: 3}\n", "model: {d_model: 2024-99-99}\n"]
)
def test_a_key_that_is_not_a_word_and_an_invalid_date_are_refused(load: Load, text: str) -> None:
    assert "run.yaml:" in message_of(load, DATA + TRAINING + text)


def test_a_home_that_does_not_exist_is_refused(load: Load) -> None:
    assert "data.train" in message_of(load, DATA.replace("train.en", "~nosuchuser/train.en") + TRAINING)


def test_an_alias_of_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("data: &a [*a]\n")
    code = "from pathlib import Path\nfrom nmt.config.reading import load_config\nload_config(Path('run.yaml'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=10)
    assert "ConfigError" in done.stderr


@pytest.mark.parametrize(
    "language", ["jp", "german", "cn", "kr", "xx", "zh-Abcd", "zh-", "de_", "x-klingon", "ＺＨ", "en-Latn-Cyrl", "e"]
)
def test_a_language_that_no_standard_knows_is_refused(load: Load, language: str) -> None:
    assert "data.tgt_lang" in message_of(load, f"{DATA}  tgt_lang: '{language}'\n{TRAINING}")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("hsb", "hsb"), ("yue", "yue"), ("zh-Hant", "zh-Hant"), ("pt-BR", "pt-BR"), ("sr-Latn", "sr-Latn"),
        ("ZH", "zh"), ("zh-cn", "zh-CN"), ("pt_br", "pt-BR"), ("zho", "zho"), ("cmn-Hans-CN", "cmn-Hans-CN"),
        ("kau", "kau"), ("tok", "tok"), ("es-419", "es-419"), ("zh-yue", "zh-yue"), ("iw", "iw"),
    ],
)  # fmt: skip
def test_a_language_is_a_code_of_iso_639_or_bcp_47_and_kept_as_it_is(load: Load, given: str, kept: str) -> None:
    """Up to its capitals; `tok` is too recent for some lists."""
    config = load(f"{DATA}  tgt_lang: {given}\n{TRAINING}")
    assert config.data.tgt_lang == kept
    assert load(to_yaml(config)) == config


def test_a_test_set_named_like_a_number_survives_being_written_out(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"{DATA}  test: {{'1e3': {{src: x.en, tgt: x.de}}}}\n{TRAINING}")
    config = load_config(path)
    path.write_text(to_yaml(config))
    assert load_config(path) == config


def test_a_weight_is_for_training_corpora_and_excludes_a_temperature(load: Load) -> None:
    two = "data.train=[{src: a.en, tgt: a.de, weight: 3}, {src: b.en, tgt: b.de}]"
    assert [files.weight for files in load(DATA + TRAINING, two).data.train] == [3.0, 1.0]
    cases = [
        ([two, "data.temperature=5"], "exclude each other"),
        (["data.validation={src: a.en, tgt: a.de, weight: 3}"], "unknown key data.validation.weight; "),
        (["data.train={src: a.en, tgt: a.de, weigth: 3}"], "data.train.weight?"),
        (["data.train={src: a.en, tgt: a.de, weight: 0}"], "data.train.weight is 0; "),
        (["data.temperature=0.5"], "data.temperature is 0.5; "),
    ]
    for overrides, message in cases:
        assert message in message_of(load, DATA + TRAINING, *overrides)


def test_a_run_with_a_temperature_is_read_back_from_its_own_file(load: Load) -> None:
    config = load(DATA + TRAINING, "data.temperature=5", "data.cleaning.duplicates=pair")
    assert load(to_yaml(config)) == config


# ---------------------------------------------------------------------------------- what translating reads


LANGUAGES = "data: {src_lang: en, tgt_lang: de, max_length: 40}\n"
SHARED = ("source", "tokenizer", "model", "decoding")


def test_translating_reads_a_whole_runs_file_and_one_without_training_alike(tmp_path: Path) -> None:
    run, alone = tmp_path / "run.yaml", tmp_path / "alone.yaml"
    run.write_text(DATA + TRAINING + "model: {d_ff: 8}\ndecoding: {beam_size: 2}\n")
    config = load_config(run)
    run.write_text(to_yaml(config))
    inference = load_inference_config(run)
    assert type(inference) is InferenceConfig
    assert inference.data.model_dump() == {"src_lang": "en", "tgt_lang": "de", "max_length": 128}
    assert all(getattr(inference, section) == getattr(config, section) for section in SHARED)
    alone.write_text(to_yaml(inference))
    assert load_inference_config(alone) == inference
    written = yaml.safe_load(alone.read_text())
    assert list(written) == ["data", *SHARED]
    assert written["data"] == inference.data.model_dump()


def test_training_sections_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        LANGUAGES.replace("data: {", "data: {train: 3, ")
        + "training: {of: another version}\naugmentation: 3\nevaluation: {metrics: [comet]}\nmodel: {d_ff: 8}\n"
    )
    assert load_inference_config(path).model.d_ff == 8


@pytest.mark.parametrize(
    ("text", "place", "phrase"),
    [
        (LANGUAGES + "modle: {}\n", "2: unknown key modle;", "model?"),
        (LANGUAGES + "model:\n  dmodel: 3\n", "3: unknown key model.dmodel;", "model.d_model?"),
        ("data:\n  src_lang: en\n  tgt_lang: de\n  trian: x\n", "4: unknown key data.trian;",
         "src_lang, tgt_lang, max_length"),
        ("data: {src_lang: en}\n", "1: data.tgt_lang ", "missing"),
        (LANGUAGES + "decoding: {beam_size: 0}\n", "2: decoding.beam_size is 0;", "1"),
        (LANGUAGES + "model: {max_positions: 41}\n", "1: decoding.max_length (256)", "model.max_positions (41)"),
        ("- 3\n", " not a configuration;", "data, source, tokenizer, model, decoding"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_section_for_inference_is_named_with_its_line(
    tmp_path: Path, text: str, place: str, phrase: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with refused(ConfigError, f"{path}:{place}", phrase):
        load_inference_config(path)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("training.batch_tokens=-1", ["-1", "at least 1", "auto"]),
        ("training.processes=few", ["'few'", "at most 1,024", "auto"]),
        ("data.validation.holdout=some", ["'some'", "at least 0", "auto", "null"]),
        ("data.test={a: {holdout: some}}", ["'some'", "at least 0", "auto", "null"]),
    ],
)
def test_a_value_that_is_no_alternative_is_one_line_with_all_of_them(
    tmp_path: Path, setting: str, expected: list[str]
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("data: {train: {src: a.en, tgt: a.de}}\ntraining: {max_steps: 1}\n")
    key = setting.partition("=")[0].replace("test", "test.a.holdout")
    with pytest.raises(ConfigError) as error:
        load_config(path, [setting])
    assert_says(str(error.value), f"--set {key}: {key} is {expected[0]};", *expected)
    assert "\n" not in str(error.value)
