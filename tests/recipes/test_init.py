"""`nmt init`: ten made-up situations, each a configuration that trains or a refusal; and the table of defaults."""

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from conftest import Cli

from nmt.cleaning.inspection import Inspection, inspect
from nmt.cleaning.normalize import CleaningCounts
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TransformerConfig
from nmt.config.reading import load_config
from nmt.config.training import Config
from nmt.corpora.discovery import Corpora, discover
from nmt.corpora.pairs import read_pairs
from nmt.errors import DataError
from nmt.recipes.starter import RECOMMENDED, holdout, named_tests, recommended, tokens_for
from nmt.runs.folder import RunFolder
from nmt.tokenizers.building import train_tokenizers
from nmt.training.preparation import TrainingInputs

TINY = Path(__file__).parents[2] / "data" / "tiny"
PAGE = Path(__file__).parents[2] / "docs" / "starting.md"
LETTERS = {
    "en": "abcdefghijklmnoprstuw", "de": "abcdefghiklmnoprstuwzäöüß", "fr": "abcdefilmnoprstuéèà",
    "ru": "абвгдежзиклмнопрстуыэя", "he": "אבגדהוזחטיכלמנסעפצקרשת", "ar": "ابتثجحدرسشصطعفقكلمنهوي",
    "th": "กขคงจชซดตถทธนบปผพภมยรลวสหอ", "ja": "日本語人大小中国山川田水火木金土上下左右のはをにが",
}  # fmt: skip


def words_of(language: str) -> list[str]:
    random = Random(language)
    return ["".join(random.choices(LETTERS[language], k=random.randint(2, 7))) for _ in range(400)]


def made_up_pairs(count: int, src: str, tgt: str) -> list[tuple[str, str]]:
    """Sentences of 3 to 9 made-up words, and the same words in the same order on the other side."""
    random = Random(count)
    sides = [(words_of(language), "" if language in ("th", "ja") else " ") for language in (src, tgt)]
    numbers = [[random.randrange(400) for _ in range(random.randint(3, 9))] for _ in range(count)]
    src_side, tgt_side = (
        [space.join(words[number] for number in line).capitalize() for line in numbers] for words, space in sides
    )
    return list(zip(src_side, tgt_side, strict=True))


def write(pairs: Sequence[tuple[str, str]], stem: str, src: str, tgt: str, encoding: str = "utf-8") -> None:
    for side, language in enumerate((src, tgt)):
        Path(f"{stem}.{language}").write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode(encoding))


def write_two(count: int, src: str, tgt: str) -> None:
    write(made_up_pairs(count, src, tgt), "train", src, tgt)


def write_table() -> None:
    rows = made_up_pairs(300, "en", "de")
    Path("memory.tsv").write_text("".join(f"{number}\t{src}\t{tgt}\n" for number, (src, tgt) in
                                          enumerate([("en", "de"), *rows])), encoding="utf-8")  # fmt: skip


def write_duplicates() -> None:
    write(made_up_pairs(200, "en", "de") * 5, "train", "en", "de")


def write_overlap() -> None:
    pairs = made_up_pairs(400, "en", "de")
    write(pairs, "train", "en", "de")
    write([*pairs[:30], *made_up_pairs(70, "en", "de")], "test", "en", "de")


@dataclasses.dataclass(frozen=True)
class Situation:
    name: str
    write: Callable[[], None]
    command: str
    settings: dict[str, object]
    """Dotted keys of the configuration, as they must be."""
    output: str = ""
    """Part of what is printed."""


def two(count: int, src: str, tgt: str) -> Callable[[], None]:
    return lambda: write_two(count, src, tgt)


OF = "--src train.{} --tgt train.{}"
SITUATIONS = [
    Situation(
        "5 pairs", two(5, "en", "de"), OF.format("en", "de"),
        {"model.num_encoder_layers": 2, "tokenizer.joint": True, "data.cleaning.overlap": False, "data.test": {}},
        "en to de: 5 pairs\n",
    ),
    Situation("300", two(300, "en", "de"), OF.format("en", "de"), {"tokenizer.vocab_size": 500, "model.d_model": 128}),
    Situation(
        "10k", two(10_000, "en", "de"), "train.en train.de",
        {"tokenizer.vocab_size": 1_000, "training.max_steps": 5_000},
    ),
    Situation(
        "two scripts", two(300, "en", "ru"), OF.format("en", "ru"),
        {"tokenizer.joint": False, "model.tie_embeddings": "decoder", "augmentation.typed_input": 0.15},
    ),
    Situation(
        "right to left", two(300, "he", "ar"), OF.format("he", "ar"),
        {"tokenizer.joint": False, "augmentation.typed_input": 0.05, "augmentation.fragments": 0.1,
         "decoding.lower_capitals": False,
         "decoding.copied": ("symbols", "addresses", "numbers")},
    ),
    Situation(
        "no spaces", two(300, "th", "ja"), OF.format("th", "ja"), {"data.max_length": 128}, "th: without spaces, "
    ),
    Situation("one file", write_table, "memory.tsv", {"data.src_lang": "en", "data.tgt_lang": "de"}),
    Situation(
        "duplicated", write_duplicates, OF.format("en", "de"), {"data.cleaning.duplicates": "pair"},
        "duplicates           800  80.0%",
    ),
    Situation(
        "test overlap", write_overlap, OF.format("en", "de") + " --test test.en --test test.de",
        {"data.cleaning.overlap": True}, "overlap            30   7.5%",
    ),
]  # fmt: skip
each_situation = pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def setting(config: object, key: str) -> object:
    for part in key.split("."):
        config = getattr(config, part)
    return config


def the_config() -> tuple[Path, Config]:
    (file,) = Path().glob("*.yaml")
    return file, load_config(file)


@each_situation
def test_each_situation_gives_a_configuration_that_fits(cli: Cli, situation: Situation) -> None:
    situation.write()
    code, out, err = cli("init", *situation.command.split(), "--no-trial")
    assert (code, err) == (0, "")
    assert situation.output in out
    _, config = the_config()
    assert {key: setting(config, key) for key in situation.settings} == situation.settings


@pytest.mark.parametrize(
    "situation",
    [pytest.param(one, id=one.name, marks=() if one.name in ("5 pairs", "right to left") else pytest.mark.slow)
     for one in SITUATIONS],
)  # fmt: skip
def test_each_configuration_trains(cli: Cli, situation: Situation) -> None:
    situation.write()
    assert cli("init", *situation.command.split(), "--no-trial")[0] == 0
    short = "max_steps=2", "warmup_steps=1", "validate_every=2", "device=cpu", "processes=1", "threads=1"
    options = [word for key in short for word in ("--set", f"training.{key}")]
    code, _, err = cli("train", *options, "--set", "evaluation.report=false", "--set", "decoding.max_length=20",
                       "--set", "export.after_training=[]")  # fmt: skip
    assert code == 0, err
    assert "finished: training.max_steps, 2, is reached" in err


WRONG_ORDER = "swap the two texts, or --src-lang and --tgt-lang"


@pytest.mark.parametrize(
    ("files", "command", "message"),
    [
        (
            {"train.src": "ru", "train.tgt": "en"},
            "--src train.src --tgt train.tgt --src-lang en --tgt-lang ru",
            "train.src, train.tgt: by scripts, the source text is in ru and the target text in en",
        ),
        (
            {"train.src": "de", "train.tgt": "en"},
            "--src train.src --tgt train.tgt --src-lang en --tgt-lang de",
            "train.src, train.tgt: by letters, the source text is in de and the target text in en",
        ),
        (
            {"train.src": "fr", "train.tgt": "de"},
            "--src train.src --tgt train.tgt --src-lang de --tgt-lang fr",
            "train.src, train.tgt: by letters, the source text is in fr and the target text in de",
        ),
        (
            {"train.en": "en", "train.de": "ru"},
            "--src train.en --tgt train.de",
            "train.en, train.de: 100% of the lines on the side of de have no letter of its script (Latn)",
        ),
    ],
)
def test_a_side_in_another_language_is_refused(cli: Cli, files: dict[str, str], command: str, message: str) -> None:
    pairs = made_up_pairs(100, *files.values())
    for side, name in enumerate(files):
        Path(name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    code, out, err = cli("init", *command.split(), "--no-trial")
    assert (code, out) == (2, "")
    assert err.startswith(f"nmt: {message}")
    assert err.count("\n") == 1
    assert not list(Path().glob("*.yaml"))


@pytest.mark.parametrize("languages", [("en", "de"), ("de", "en"), ("fr", "de"), ("ru", "en"), ("en", "ru")])
def test_the_right_order_is_not_refused(languages: tuple[str, str]) -> None:
    write_two(100, *languages)
    inspect(discover([], *(Path(f"train.{language}") for language in languages)))


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        (
            "latin-1",
            r"train\.de:(\d+): not UTF-8, like (\d+) of 300 lines; .*"
            r"iconv -f LATIN1 -t UTF-8 train\.de > train\.utf8\.de",
        ),
        ("utf-16", r"train\.de:1: not UTF-8, .*iconv -f UTF-16 -t UTF-8 train\.de > train\.utf8\.de"),
    ],
)
def test_another_encoding_is_refused_with_the_command_that_converts_it(cli: Cli, encoding: str, message: str) -> None:
    pairs = made_up_pairs(300, "en", "de")
    write(pairs, "train", "en", "de")
    bytes_of = [f"{tgt}\n".encode(encoding) for _, tgt in pairs]
    Path("train.de").write_bytes(b"".join(bytes_of))
    code, _, err = cli("init", "--src", "train.en", "--tgt", "train.de", "--no-trial")
    assert code == 2
    found = re.fullmatch(f"nmt: {message}\n", err)
    assert found, err
    if encoding == "latin-1":
        damaged = [number for number, (_, tgt) in enumerate(pairs, start=1) if not tgt.isascii()]
        assert [int(group) for group in found.groups()] == [damaged[0], len(damaged)]


def test_a_single_damaged_line_is_left_to_cleaning() -> None:
    write_two(300, "en", "de")
    lines = Path("train.de").read_bytes().split(b"\n")
    lines[6] = b"caf\xe9"
    Path("train.de").write_bytes(b"\n".join(lines))
    assert inspect(discover([], Path("train.en"), Path("train.de"))).counts.dropped == {"encoding": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "en-de.yaml exists"),
        ("--output mine.yml", "mine.yml exists"),
        ("--output link.yaml", "link.yaml exists"),
        ("--output mine.txt", "--output mine.txt: "),
        ("--output missing/mine.yaml", "--output missing/mine.yaml: is not a file in an existing folder"),
    ],
)
def test_nothing_is_overwritten(cli: Cli, options: str, message: str) -> None:
    write_two(5, "en", "de")
    for name in ("en-de.yaml", "mine.yml"):
        Path(name).write_text("mine")
    Path("link.yaml").symlink_to("nowhere.yaml")
    code, out, err = cli("init", "train.en", "train.de", "--no-trial", *options.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"nmt: {message}")
    assert Path("en-de.yaml").read_text() == Path("mine.yml").read_text() == "mine"
    assert not Path("nowhere.yaml").exists()


def test_a_folder_with_a_test_set_is_not_taken_as_training_text(cli: Cli) -> None:
    Path("text").mkdir()
    for stem in ("train", "test_2016"):
        write(made_up_pairs(5, "en", "de"), f"text/{stem}", "en", "de")
    code, _, err = cli("init", "text", "--src-lang", "en", "--no-trial")
    assert code == 2
    assert err.startswith("nmt: text/test_2016.en looks like text for validation or tests")
    assert cli("init", "text/train.en", "text/train.de", "--test", "text/test_2016.en",
               "--test", "text/test_2016.de", "--no-trial")[0] == 0  # fmt: skip
    _, config = the_config()
    assert list(config.data.test) == ["test_2016"]
    assert len(list(read_pairs(config.data.train[0]))) == 5


def test_paths_are_relative_to_the_configuration_and_names_are_quoted(cli: Cli, folder: Path) -> None:
    (folder / "no yes").mkdir()
    (folder / "configs").mkdir()
    write(made_up_pairs(5, "en", "de"), "no yes/a, b #1", "en", "no")
    files = "no yes/a, b #1.en", "no yes/a, b #1.no"
    assert cli("init", *files, "--output", "configs/mine.yaml", "--no-trial")[0] == 0
    text = Path("configs/mine.yaml").read_text()
    assert "'../no yes/a, b #1.en'" in text
    assert "tgt_lang: 'no'" in text
    (corpus,) = load_config(Path("configs/mine.yaml")).data.train
    assert corpus.src == folder / files[0]


def test_the_schema_is_named_only_where_there_is_one(cli: Cli) -> None:
    write_two(5, "en", "de")
    cli("init", "train.en", "train.de", "--no-trial")
    assert "yaml-language-server" not in Path("en-de.yaml").read_text()
    Path("schema.json").write_text("{}")
    cli("init", "train.en", "train.de", "--no-trial", "--output", "other.yaml")
    assert Path("other.yaml").read_text().startswith("# yaml-language-server: $schema=schema.json\n")


def test_the_next_commands_name_the_file(cli: Cli) -> None:
    write_two(300, "en", "de")
    first = cli("init", "train.en", "train.de", "--no-trial")[1]
    src = made_up_pairs(300, "en", "de")[0][0]
    assert first.endswith(f"wrote en-de.yaml; next:\n  nmt train en-de.yaml\n  nmt eval\n  nmt translate '{src}'\n")
    second = cli("init", "train.en", "train.de", "--no-trial", "--output", "b.yaml")[1]
    assert "wrote b.yaml; next:\n  nmt train b.yaml\n" in second


@pytest.mark.parametrize(("pairs", "said", "unsaid"), [
    (5, "5 pairs are enough to try nmt out", ""), (5, "of the training text itself", ""),
    (60, "fail on other text", "of the training text itself"), (301, "", "memorize them"),
])  # fmt: skip
def test_few_pairs_are_said_to_be_few(cli: Cli, pairs: int, said: str, unsaid: str) -> None:
    write_two(pairs, "en", "de")
    out = cli("init", "train.en", "train.de", "--no-trial")[1]
    assert said in out
    assert not unsaid or unsaid not in out


@pytest.mark.parametrize(
    ("pairs", "row", "held_out"),
    [(1, 300, 0), (99, 300, 0), (100, 300, 5), (300, 300, 15), (301, 2_000, 15), (29_000, 30_000, 1_000),
     (1_000_000, 1_000_000, 1_000), (1_000_001, None, 1_000)],
)  # fmt: skip
def test_the_row_of_the_table_is_the_first_that_is_large_enough(pairs: int, row: int | None, held_out: int) -> None:
    assert recommended(pairs).pairs == row
    assert holdout(pairs) == held_out


def test_the_table_in_the_docs_is_the_one_in_the_code() -> None:
    rows = re.findall(r"^\| ([\d,]+|more) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert [(pairs, cells.rpartition(" | ")[0]) for pairs, cells in rows] == [
        (
            f"{row.pairs:,}" if row.pairs else "more",
            f"{row.vocab_size:,} | {row.layers}+{row.layers}, {row.d_model:,}, {row.d_ff:,} | {row.dropout:g} | "
            f"{f'{row.r_drop:g}' if row.r_drop else 'off'} | "
            f"{row.max_steps:,} x {row.batch_tokens * row.batches_per_update:,}",
        )
        for row in RECOMMENDED
    ]


def test_larger_corpora_get_more_of_everything() -> None:
    sizes = [row.pairs for row in RECOMMENDED]
    assert sizes == [*sorted(sizes[:-1], key=int), None]  # type: ignore[arg-type]
    for smaller, larger in itertools.pairwise(RECOMMENDED):
        assert smaller.vocab_size <= larger.vocab_size
        assert smaller.max_steps <= larger.max_steps
        assert smaller.d_model <= larger.d_model
        assert larger.warmup_steps < larger.max_steps
        TransformerConfig(d_model=larger.d_model, num_heads=larger.num_heads, d_ff=larger.d_ff)


def inspected(pairs: Sequence[tuple[str, str]], src: str, tgt: str) -> tuple[Corpora, Inspection]:
    write(pairs, "x", src, tgt)
    corpora = discover([], Path(f"x.{src}"), Path(f"x.{tgt}"))
    return corpora, inspect(corpora)


@pytest.mark.parametrize(
    ("pairs", "src", "tgt"),
    [
        ([("hello", "hallo")] * 5, "en", "de"),
        ([("a", "b")], "en", "de"),
        (made_up_pairs(20, "en", "de"), "en", "de"),
        (made_up_pairs(50, "th", "ja"), "th", "ja"),
        ([(chr(0x4E00 + number), f"word{number}") for number in range(3000)], "zh", "en"),
        ([(f"a b {chr(0x4E00 + number)}", f"{chr(0x4E00 + number)}") for number in range(3000)], "ja", "zh"),
    ],
    ids=["one word", "one letter", "20", "no spaces", "3,000 characters", "a joint vocabulary of 3,000"],
)
def test_sentencepiece_can_build_every_vocabulary(pairs: list[tuple[str, str]], src: str, tgt: str) -> None:
    corpora, found = inspected(pairs, src, tgt)
    tokens = tokens_for(found, recommended(found.pairs))
    from nmt.config.inference import TokenizerConfig

    config = TokenizerConfig(
        vocab_size=tokens.vocab_size, joint=tokens.joint, character_coverage=tokens.character_coverage
    )
    assert train_tokenizers(corpora.files, config).tgt.vocab_size == tokens.vocab_size


@pytest.mark.parametrize(("words", "length"), [(9, 128), (60, 256), (150, 512), (2_000, 512)])
def test_the_maximum_length_follows_the_longest_lines(words: int, length: int) -> None:
    line = " ".join(["sieben"] * words)
    _, found = inspected([(line, line)] * 10, "en", "de")
    assert tokens_for(found, recommended(found.pairs)).max_length == length


def test_facts_are_counted() -> None:
    pairs = [("a b", "x"), ("a b", "x"), ("same", "same"), ("", "empty"), ("c\u0301a", "ja")]
    _, found = inspected(pairs, "en", "de")
    assert (found.pairs, found.counts) == (5, CleaningCounts(5, {"empty": 1, "identical": 1, "duplicates": 1}))
    assert (found.src.words, found.tgt.words) == ({"a", "b", "same", "ća"}, {"x", "same", "ja"})
    assert found.sample[-1] == ("ća", "ja")  # NFC
    assert found.share_a_script


@pytest.mark.parametrize(
    ("tgt", "language", "shared"),
    [
        ("ein Wort", "de", True), ("ein Wort", "qaa", True), ("λόγος", "grc", False), ("слово", "qaa", False),
        ("ᎤᏬᎯᏍᏗ", "chr", False),
    ],
)  # fmt: skip
def test_whether_the_sides_share_a_script_is_seen_by_their_text(tgt: str, language: str, shared: bool) -> None:
    write([("a word", tgt)] * 10, "x", "en", language)
    corpora = discover([], Path("x.en"), Path(f"x.{language}"), "en", language)
    assert inspect(corpora).share_a_script == shared


def test_pairs_that_share_a_sentence_are_not_counted_as_held_out(cli: Cli) -> None:
    write([(f"Line {number}", f"Zeile {number % 120}") for number in range(1000)], "x", "en", "de")
    assert cli("init", "x.en", "x.de", "--no-trial")[0] == 0
    assert "validation: {holdout: 6}" in Path("en-de.yaml").read_text()  # a twentieth of 120


def test_a_rule_that_would_leave_out_much_of_the_text_is_off(cli: Cli) -> None:
    pairs = made_up_pairs(100, "en", "de")
    write([(f"<b>{src}</b>", tgt) if number % 2 else (src, tgt) for number, (src, tgt) in enumerate(pairs)],
          "x", "en", "de")  # fmt: skip
    assert cli("init", "x.en", "x.de", "--no-trial")[0] == 0
    assert re.search(r"^    #html: true +# off: it would drop 50% of the pairs$", Path("en-de.yaml").read_text(), re.M)
    assert not the_config()[1].data.cleaning.html
    write([(f"<b>{src}</b>", tgt) if number % 20 == 0 else (src, tgt) for number, (src, tgt) in enumerate(pairs)],
          "x", "en", "de")  # fmt: skip
    assert cli("init", "x.en", "x.de", "--no-trial", "--output", "other.yaml")[0] == 0
    assert load_config(Path("other.yaml")).data.cleaning.html


def test_a_large_corpus_is_sampled_evenly_and_counted(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr("nmt.cleaning.inspection.SAMPLED_PAIRS", 500)
    pairs = [(f"word {number}", f"wort {number}") for number in range(5000)]
    _, found = inspected(pairs, "en", "de")
    assert found.pairs == 5000
    numbers = [int(src.split()[1]) for src, _ in found.sample]
    assert len(set(numbers)) == 500
    assert numbers == sorted(numbers)
    assert 2250 < sum(numbers) / 500 < 2750  # its standard deviation is 65
    out = cli("init", "x.en", "x.de", "--no-trial")[1]
    assert out.startswith("en to de: 5,000 pairs; from an even sample of 500:\n")


@pytest.mark.parametrize(
    ("src", "message"), [("", "x.en and x.de are empty"), ("\n\n", "x.en: holds no pair with text")]
)
def test_a_corpus_without_text_is_refused(src: str, message: str) -> None:
    Path("x.en").write_text(src)
    Path("x.de").write_text(src)
    with pytest.raises(DataError, match=re.escape(message)):
        inspect(discover([Path("x.en"), Path("x.de")]))


def test_names_of_test_sets_are_those_of_their_files() -> None:
    files = tuple(CorpusFiles(pairs=Path(name)) for name in ("test 1.tsv", "other/test 1.csv", "-.tsv", "news.2.tmx"))
    assert list(named_tests(files)) == ["test_1", "test_1_2", "test", "news"]


@pytest.mark.parametrize(("slowdown", "timed"), [(70.0, ["fp32"]), (0.3, ["fp32", "bf16"])])
def test_bf16_is_timed_only_where_it_can_be_faster(
    slowdown: float, timed: list[str], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With made-up seconds an update, of which bf16 would have fewer."""
    tried = list[str]()

    def seconds(config: Config, run: RunFolder, prepared: TrainingInputs, limit: float) -> float:
        tried.append({torch.float32: "fp32", torch.bfloat16: "bf16"}[prepared.dtype])
        return {"fp32": 3.0, "bf16": 1.0}[tried[-1]]

    monkeypatch.setattr("nmt.training.trial.bf16_slowdown", lambda: slowdown)
    monkeypatch.setattr("nmt.training.trial._seconds_of_an_update", seconds)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for side in ("en", "zh"):
        Path(f"tiny.{side}").write_bytes((TINY / f"train.{side}").read_bytes())
    assert cli("init", "tiny.en", "tiny.zh")[0] == 0
    assert tried == timed
    assert the_config()[1].training.precision == ("auto" if timed == ["fp32"] else "bf16")


@pytest.mark.slow
def test_from_two_files_to_a_scored_translator_in_two_commands(cli: Cli) -> None:
    for side in ("en", "zh"):
        Path(f"tiny.{side}").write_bytes((TINY / f"train.{side}").read_bytes())
    code, out, _ = cli("init", "--src", "tiny.en", "--tgt", "tiny.zh")
    assert code == 0
    assert re.search(r"about .* on this machine \(5,000 updates of [\d.]+ s on [\w: ]+\), and validations", out)
    file, config = the_config()
    assert "s on the machine where this was written: about" in file.read_text()
    assert not Path("runs").exists()  # the trial leaves nothing
    assert config.training.max_steps == 5_000
    short = ("training.max_steps=200", "training.warmup_steps=60", "training.validate_every=100", "training.r_drop=0",
             "model.d_model=128", "training.batches_per_update=1", "training.device=cpu")  # fmt: skip
    assert cli("train", *(word for key in short for word in ("--set", key)))[0] == 0
    code, out, _ = cli("eval", "--json")
    assert code == 0
    scores = json.loads(out)
    assert scores["scores"]["bleu"]["value"] > 5, scores
    assert cli("translate", "hello world")[1].strip()
