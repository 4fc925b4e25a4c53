"""Hold-outs: drawn once from the training corpora, written beside the configuration, and read from there afterwards."""

import contextlib
import gzip
import io
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import COPY_TASK, Cli

from nmt.cleaning.holdout import draw, with_hold_outs
from nmt.cleaning.selection import select
from nmt.cleaning.sentence_index import SentenceIndex
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TokenizerConfig
from nmt.config.reading import load_config, to_yaml
from nmt.config.training import Config
from nmt.corpora.pairs import read_pairs
from nmt.errors import ConfigError, DataError, NmtError
from nmt.runs.base import load_run_config
from nmt.runs.folder import RunFolder
from nmt.system import files
from nmt.system.files import locked
from nmt.tokenizers.tokenizer import SentencePieceTokenizer

Pair = tuple[str, str]
NONE = SentenceIndex()
TINY = Path(__file__).parents[2] / "data" / "tiny"
WITHOUT_TEXT = COPY_TASK[COPY_TASK.index("  max_length") :]


def made_up(number: int, seed: int = 1) -> list[Pair]:
    """Pairs of which many share a source or a target, are repeated, or have an empty side."""
    random = Random(seed)
    pairs = [(f"s {random.randrange(number)}", f"t  {random.randrange(number)} ") for _ in range(number)]
    return [*pairs, *random.choices(pairs, k=number // 4), ("", "t empty"), ("s empty", "  ")]


def share_nothing(pairs: list[Pair]) -> bool:
    """True if no two pairs share a source or a target, white space aside."""
    return all(len({" ".join(pair[side].split()) for pair in pairs}) == len(pairs) for side in (0, 1))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`write(pairs, "validation: ...")`: train.en, train.de and run.yaml in an empty folder, the current one."""
    monkeypatch.chdir(tmp_path)

    def written(pairs: list[Pair], held_out: str = "", train: str = "{src: train.en, tgt: train.de}") -> Path:
        for side, name in enumerate(("train.en", "train.de")):
            Path(name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
        path = tmp_path / "run.yaml"
        lines = "".join(f"  {line}\n" for line in held_out.splitlines())
        path.write_text(f"data:\n  train: {train}\n{lines}  src_lang: en\n  tgt_lang: de\n{WITHOUT_TEXT}")
        return path

    return written


def drawn_by(path: Path, *overrides: str) -> tuple[Config, list[str]]:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        config = with_hold_outs(load_config(path, overrides))
    return config, said.getvalue().splitlines()


def pairs_in(stem: str) -> list[Pair]:
    sides = [Path(f"{stem}.{side}").read_text(encoding="utf-8").split("\n")[:-1] for side in ("en", "de")]
    return list(zip(*sides, strict=True))


@pytest.mark.parametrize("number", [1, 7, 40, 60])
def test_drawn_pairs_are_of_the_corpus_and_share_nothing(number: int) -> None:
    corpus = made_up(200)
    drawn = draw(lambda: corpus, number, 1, NONE)
    assert len(drawn) == number
    assert set(drawn) <= set(corpus)
    assert share_nothing(drawn)
    assert all(src.strip() and tgt.strip() for src, tgt in drawn)
    assert draw(lambda: corpus, number, 1, NONE) == drawn
    assert draw(lambda: corpus, number, 2, NONE) != drawn
    assert draw(lambda: corpus[::-1], number, 1, NONE) == drawn
    assert draw(lambda: corpus * 3, number, 1, NONE) == drawn


def test_a_draw_takes_what_there_is_and_finds_what_is_rare(write_lines: Callable[[str, list[str]], Path]) -> None:
    corpus = [("the same", f"t {index}") for index in range(1500)] + [("other", "t 3"), ("rare", "r")]
    drawn = draw(lambda: corpus, 3, 1, NONE)
    assert {src for src, _ in drawn} == {"the same", "other", "rare"}
    assert len(draw(lambda: corpus, 4, 1, NONE)) == 3
    taken = CorpusFiles(src=write_lines("a.en", ["the  same", "x"]), tgt=write_lines("a.de", ["x", "r"]))
    assert draw(lambda: corpus, 3, 1, SentenceIndex([taken])) == [("other", "t 3")]


def test_what_a_file_cannot_begin_with_is_not_drawn() -> None:
    corpus = [("\ufeffs", "t"), ("s", "\ufeff"), ("kept", "too")]
    assert draw(lambda: corpus, 3, 1, NONE) == [("kept", "too")]


def test_every_pair_is_as_likely_as_any_other() -> None:
    corpus = [(f"s {index}", f"t {index}") for index in range(20)]
    counts = dict.fromkeys(corpus, 0)
    for seed in range(1000):
        for pair in draw(lambda: corpus + 9 * corpus[:1], 5, seed, NONE):
            counts[pair] += 1
    assert min(counts.values()) > 200 and max(counts.values()) < 300  # 250 ± 3.6 standard deviations of 13.7


def test_hold_outs_are_drawn_once_and_then_read(write: Callable[..., Path]) -> None:
    corpus = made_up(300)
    path = write(corpus, "validation: {holdout: 20}\ntest:\n  one: {holdout: 10}\n  two: {holdout: 5}")
    config, said = drawn_by(path)
    assert [line.split(" of ")[0] for line in said] == ["20", "10", "5"]
    sets = {name: pairs_in(f"run.{name}") for name in ("validation", "one", "two")}
    assert {name: len(pairs) for name, pairs in sets.items()} == {"validation": 20, "one": 10, "two": 5}
    everything = [pair for pairs in sets.values() for pair in pairs]
    assert share_nothing(everything)
    assert set(everything) <= set(corpus)
    assert config.data.validation.src == path.with_name("run.validation.en")
    assert config.data.test["two"].tgt == path.with_name("run.two.de")

    files = {file: file.read_bytes() for file in path.parent.glob("run.*.??")}
    write(
        corpus[::-1], path.read_text().partition("  train: {src: train.en, tgt: train.de}\n")[2].partition("  src_")[0]
    )
    path.write_text(to_yaml(config))
    again, said = drawn_by(path, "training.seed=2")
    assert said == []
    assert again.data == config.data
    assert files == {file: file.read_bytes() for file in path.parent.glob("run.*.??")}


def test_sets_drawn_one_after_the_other_are_those_drawn_together(write: Callable[..., Path]) -> None:
    both = "validation: {holdout: 20}\ntest: {holdout: 10}"
    drawn_by(write(made_up(300), both))
    together = {file: file.read_bytes() for file in Path().glob("run.*.??")}
    for file in together:
        file.unlink()
    drawn_by(write(made_up(300), "validation: {holdout: 20}"))
    drawn_by(write(made_up(300), both))
    assert together == {file: file.read_bytes() for file in Path().glob("run.*.??")}


@pytest.mark.parametrize(
    "train", ["{pairs: t.tsv}", "{src: t.en.gz, tgt: t.de.gz}", "[{pairs: a.tsv}, {pairs: b.tsv}]"]
)
def test_the_form_of_the_corpora_does_not_matter(write: Callable[..., Path], train: str) -> None:
    corpus = [(" ".join(src.split()), " ".join(tgt.split())) for src, tgt in made_up(300)]
    drawn_by(write(corpus, "validation: {holdout: 30}"))
    as_texts = pairs_in("run.validation")
    for file in Path().glob("run.validation.*"):
        file.unlink()
    for side, name in enumerate(("t.en.gz", "t.de.gz")):
        Path(name).write_bytes(gzip.compress("".join(f"{pair[side]}\n" for pair in corpus).encode()))
    for name, part in (("t.tsv", corpus), ("a.tsv", corpus[200:]), ("b.tsv", corpus[:200])):
        Path(name).write_text("".join(f"{src}\t{tgt}\n" for src, tgt in part))
    drawn_by(write([], "validation: {holdout: 30}", train))
    assert pairs_in("run.validation") == as_texts


def test_what_is_in_a_named_test_set_is_not_drawn(write: Callable[..., Path]) -> None:
    corpus = [(f"s {index}", f"t {index}") for index in range(40)]
    for side, name in enumerate(("t.en", "t.de")):
        Path(write([], "").with_name(name)).write_text("".join(f" {pair[side]}\n" for pair in corpus[:20]))
    drawn_by(write(corpus, "validation: {holdout: 20}\ntest: {src: t.en, tgt: t.de}"))
    assert sorted(pairs_in("run.validation")) == sorted(corpus[20:])


@pytest.mark.parametrize(
    ("held_out", "names"),
    [
        ("", {"validation": "run.validation.en"}),
        ("validation: {holdout: auto}", {"validation": "run.validation.en"}),
        ("test: {holdout: 3}", {"validation": "run.validation.en", "test.test": "run.test.en"}),
        ("test: {holdout: {src: a.en, tgt: a.de}}", {"validation": "run.validation.en", "test.holdout": "a.en"}),
        ("validation: {src: v.en, tgt: v.de, holdout: 3}", {"validation": "v.en"}),
        ("validation: {src: v.en, tgt: v.de}", {"validation": "v.en"}),
        ("validation: {holdout: 0}", {"validation": "train.en"}),
    ],
)
def test_a_hold_out_has_files_beside_the_configuration(
    write: Callable[..., Path], held_out: str, names: dict[str, str]
) -> None:
    data = load_config(write([], held_out)).data
    assert {name: files.src_file.name for name, files in data.held_out.items()} == names
    excluded = {files.src_file.name for files in data.excluded_from_training}
    assert excluded == {name for name in names.values() if name not in ("train.en", "a.en")} - (
        {"v.en"} if "holdout" not in held_out else set()
    )


def test_a_value_on_the_command_line_asks_for_a_hold_out(write: Callable[..., Path]) -> None:
    path = write(made_up(300))
    config, _ = drawn_by(path, "data.validation.holdout=12", "data.test.holdout=7")
    assert (config.data.validation.holdout, config.data.test["test"].holdout) == (12, 7)
    assert len(pairs_in("run.validation")) == 12


def test_files_of_two_sides_in_one_language_have_different_names(write: Callable[..., Path]) -> None:
    data = load_config(write([]), ["data.tgt_lang=en"]).data
    assert [file.name for file in (data.validation.src_file, data.validation.tgt_file)] == [
        "run.validation.src.en", "run.validation.tgt.en",
    ]  # fmt: skip


@pytest.mark.parametrize(("pairs", "held_out"), [(49, 0), (50, 10), (199, 10), (400, 20), (30_000, 1000)])
def test_without_a_validation_set_a_small_hold_out_is_drawn(
    write: Callable[..., Path], pairs: int, held_out: int
) -> None:
    path = write([(f"s {index}", f"t {index}") for index in range(pairs)])
    config, said = drawn_by(path)
    assert config.data.validation.holdout == held_out
    assert len(said) == 1
    assert Path("run.validation.en").exists() == bool(held_out)
    assert config.training.best_metric == ("bleu" if held_out else "loss")
    assert config.data.validation.src_file.name == ("run.validation.en" if held_out else "train.en")
    path.write_text(to_yaml(config))
    again, _ = drawn_by(path)
    assert to_yaml(again) == to_yaml(config)


def test_one_sentence_repeated_is_no_validation_set(write: Callable[..., Path]) -> None:
    config, _ = drawn_by(write([("s", f"t {index}") for index in range(100)]))
    assert config.data.validation.holdout == 0
    assert not Path("run.validation.en").exists()


def test_a_metric_that_is_given_is_kept(write: Callable[..., Path]) -> None:
    config, said = drawn_by(write([("s", "t")] * 5), "training.best_metric=chrf")
    assert config.training.best_metric == "chrf"
    assert "chrf on them chooses" in said[0]


REFUSED = {
    "more than half": ("validation: {holdout: 151}", r"data.validation.holdout \(151\): more than half of the 300"),
    "more than half together": ("validation: {holdout: 100}\ntest: {holdout: 51}", r"\(100\) and data.test.test"),
    "a test set of a name that is taken": (
        "validation: {holdout: 5}\ntest: {validation: {holdout: 5}}",
        r"data.test.validation: run.validation.en is also a file of data.validation",
    ),
    "a training file": ("validation: {holdout: 5, src: train.en, tgt: v.de}", "train.en is also a file of data.train"),
    "one file": ("validation: {holdout: 5, src: v.en, tgt: v.en}", "src and tgt are both v.en"),
    "a table": ("validation: {holdout: 5, pairs: v.tsv}", "written as two texts, not as v.tsv"),
    "compressed": ("validation: {holdout: 5, src: v.en.gz, tgt: v.de}", "name v.en for v.en.gz"),
    "a test set of no pairs": ("test: {holdout: 0}", "a test set has at least one pair"),
    "tests from the validation set": ("validation: {holdout: 0}\ntest: {holdout: 5}", "give data.validation files"),
    "negative": ("validation: {holdout: -1}", "data.validation.holdout"),
    "misspelled": ("validation: {hold_out: 3}", "did you mean data.validation.holdout?"),
    "no text to read": ("test: {src: no.en, tgt: no.de}", "no.en: no such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_held_out_is_refused(write: Callable[..., Path], case: str) -> None:
    held_out, message = REFUSED[case]
    path = write([(f"s {index}", f"t {index}") for index in range(300)], held_out)
    with pytest.raises(NmtError, match=message):
        drawn_by(path)
    assert list(Path().glob("run.*.en")) == []


def test_half_of_the_pairs_is_not_too_many(write: Callable[..., Path]) -> None:
    corpus = [(f"s {index}", f"t {index}") for index in range(300)]
    drawn_by(write(corpus, "validation: {holdout: 150}"))
    assert set(pairs_in("run.validation")) < set(corpus)


def test_too_few_pairs_that_share_nothing_are_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"data.validation.holdout \(40\): only 10 training pairs"):
        drawn_by(write([(f"s {index % 10}", f"t {index}") for index in range(100)], "validation: {holdout: 40}"))
    with pytest.raises(ConfigError, match="49 training pairs are too few"):
        drawn_by(write(made_up(300)[:49], "test: {holdout: 5}"))
    with pytest.raises(ConfigError, match=r"data.test.test.holdout: auto .* 49"):
        drawn_by(write(made_up(300)[:49], "validation: {holdout: 5}\ntest: {holdout: auto}"))


def test_files_with_another_number_of_pairs_are_refused(write: Callable[..., Path]) -> None:
    path = write(made_up(300), "validation: {holdout: 20}")
    drawn_by(path)
    with pytest.raises(ConfigError, match=r"holdout is 30, and .*run.validation.en holds 20 pairs"):
        drawn_by(path, "data.validation.holdout=30")
    Path("run.validation.de").write_text("t 1\n")
    with pytest.raises(DataError, match="the two sides differ in length"):
        drawn_by(path)
    for side in ("en", "de"):
        Path(f"run.validation.{side}").write_text("")
    with pytest.raises(DataError, match="are empty"):
        drawn_by(path)


def test_a_side_that_is_missing_is_drawn_again_if_the_text_is_the_same(write: Callable[..., Path]) -> None:
    path = write(made_up(300), "validation: {holdout: 20}")
    drawn_by(path)
    before = pairs_in("run.validation")
    for side in ("en", "de"):
        Path(f"run.validation.{side}").unlink()
        drawn_by(path)
        assert pairs_in("run.validation") == before
    Path("run.validation.de").unlink()
    path = write(made_up(300, seed=2), "validation: {holdout: 20}")
    with pytest.raises(ConfigError, match=r"run.validation.en: .*\(run.validation.de\) is missing"):
        drawn_by(path)
    assert not Path("run.validation.de").exists()


def test_sources_that_are_not_text_are_not_drawn(write: Callable[..., Path]) -> None:
    vectors = ["source.type=vectors", "source.features=8", "data.train={src: v, tgt: train.de}"]
    with pytest.raises(ConfigError, match=r"data.validation: holdout: needs text sources"):
        drawn_by(write([]), *vectors)
    load_config(write([]), [*vectors, "data.validation={src: w, tgt: v.de}"])


def test_a_full_disk_is_named(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(files, "write_bytes", full)
    with pytest.raises(DataError, match=r"a held-out set cannot be written there \(No space left on device\)"):
        drawn_by(write(made_up(300)))


def test_a_killed_drawing_leaves_nothing_half(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(made_up(60), "validation: {holdout: 8}\ntest: {holdout: 4}")
    drawn_by(path)
    whole = {file.name: file.read_bytes() for file in Path().glob("run.*.??")}
    assert len(whole) == 4
    calls = 0
    last_call = -1

    def counted(name: str) -> Callable[..., None]:
        original: Callable[..., None] = getattr(files, name)

        def call(*arguments: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == last_call:
                raise KeyboardInterrupt
            original(*arguments)

        return call

    for name in ("write_bytes", "flush_one", "rename"):
        monkeypatch.setattr(files, name, counted(name))
    for last_call in range(1, 100):
        for file in whole:
            Path(file).unlink()
        calls = 0
        try:
            drawn_by(path)
        except KeyboardInterrupt:
            found = {file.name: file.read_bytes() for file in Path().glob("run.*.??")}
            assert found.items() <= whole.items()
            drawn_by(path)
        assert {file.name: file.read_bytes() for file in Path().glob("run.*.??")} == whole
        if calls < last_call:
            break
    assert calls == 16  # x # 4 files: one write, two flushes and a rename each
    last_call = -1
    leftover = Path(".run.test.de.abcdefgh.nmt-part")
    leftover.mkdir()
    Path("run.test.de").unlink()
    drawn_by(path)
    assert not leftover.exists()


def test_of_two_processes_one_draws(write: Callable[..., Path]) -> None:
    path = write(made_up(3000), "validation: {holdout: 300}")
    program = (
        "import sys; from pathlib import Path; from nmt.config.reading import load_config\n"
        "from nmt.system.console import show_messages; from nmt.cleaning.holdout import with_hold_outs\n"
        "config = load_config(Path(sys.argv[1]), ['training.seed=' + sys.argv[2]]); print('ready', flush=True)\n"
        "show_messages(); with_hold_outs(config)"
    )
    with locked(path.with_name("run.validation.en"), wait=True):  # until both are about to draw
        started = [
            subprocess.Popen(
                [sys.executable, "-c", program, path, str(seed)], stdout=-1, stderr=subprocess.STDOUT, text=True
            )
            for seed in (1, 2)
        ]
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
    said = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert sorted(text.count("held out") for text in said) == [0, 1]
    drawn = pairs_in("run.validation")
    assert len(drawn) == 300
    assert set(drawn) <= set(made_up(3000))  # both sides are of one draw
    assert not Path(".run.validation.en.lock").exists()


def kept_for_training(config: Config) -> list[Pair]:
    data = config.data
    selection = select(data.train, data.cleaning, (data.src_lang, data.tgt_lang), data.excluded_from_training)
    chosen = [None if selection is None else selection.chosen(index) for index in range(len(data.train))]
    return [pair for files, mask in zip(data.train, chosen, strict=True) for pair in read_pairs(files, mask)]


def words(line: str) -> str:
    return " ".join(line.split())


def without(corpus: list[Pair], *held_out: list[Pair]) -> list[Pair]:
    """The pairs with two sides that share neither with a held-out pair, by brute force."""
    sources = {words(src) for pairs in held_out for src, _ in pairs}
    targets = {words(tgt) for pairs in held_out for _, tgt in pairs}
    return [
        (src, tgt) for src, tgt in corpus
        if words(src) and words(tgt) and words(src) not in sources and words(tgt) not in targets
    ]  # fmt: skip


def test_what_shares_a_sentence_leaves_the_training_text(write: Callable[..., Path]) -> None:
    corpus = made_up(400)
    path = write(corpus, "validation: {holdout: 30}\ntest: {one: {holdout: 20}, two: {src: t.en, tgt: t.de}}")
    elsewhere = corpus[:3]
    for side, name in enumerate(("t.en", "t.de")):
        Path(name).write_text("".join(f"{pair[side]}\n" for pair in elsewhere))
    config, _ = drawn_by(path)
    drawn = pairs_in("run.validation"), pairs_in("run.one")
    assert kept_for_training(config) == without(corpus, *drawn)
    assert len(without(corpus, *drawn)) < len(corpus) - 60  # more than the pairs themselves
    assert set(elsewhere) <= set(kept_for_training(config))
    config, _ = drawn_by(path, "data.cleaning.overlap=true")
    assert kept_for_training(config) == without(corpus, *drawn, elsewhere)
    path.write_text(to_yaml(config))
    assert kept_for_training(load_config(path)) == without(corpus, *drawn, elsewhere)  # as a resumed run reads it


def test_the_validation_set_of_few_pairs_does_not_empty_the_training_text(write: Callable[..., Path]) -> None:
    config, _ = drawn_by(write([(f"s {index}", f"t {index}") for index in range(5)]), "data.cleaning.overlap=true")
    assert len(kept_for_training(config)) == 5


def test_dirt_is_not_held_out(write: Callable[..., Path]) -> None:
    corpus = [(f"s {index}", f"t {index}") for index in range(100)]
    dirt = [(f"same {index}", f"same {index}") for index in range(100)]
    drawn_by(write(corpus + dirt, "validation: {holdout: 90}"), "data.cleaning.identical=true")
    assert set(pairs_in("run.validation")) <= set(corpus)
    with pytest.raises(ConfigError, match=r"only 10 training pairs are kept by data.cleaning"):
        drawn_by(write([*corpus, *dirt, *dirt]), "data.cleaning.identical=true", "data.test.holdout=101")


def test_what_training_leaves_out_as_too_long_is_not_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As counted with the tokenizer that is trained later; a tenth of the lines is of twenty sentences or of 400 KB."""
    monkeypatch.chdir(tmp_path)
    sides = [(TINY / f"train.{side}").read_text(encoding="utf-8").split("\n")[:2000] for side in ("en", "zh")]
    for side, name in zip(sides, ("run.en", "run.zh"), strict=True):
        space = " " * (name == "run.en")
        long = [space.join(side[index : index + 20]) for index in range(0, 200)]
        Path(name).write_text("\n".join([*side, *long, 200_000 * f"a{space}", ""]), encoding="utf-8")
    path = Path("run.yaml")
    path.write_text(
        "data: {train: {src: run.en, tgt: run.zh}, max_length: 60, validation: {holdout: 400}}\n"
        "tokenizer: {vocab_size: 1000, joint: false}\nmodel: {tie_embeddings: decoder}\ntraining: {max_steps: 1}\n"
    )
    drawn_by(path)
    for side, name in zip(sides, ("run.validation.en", "run.validation.zh"), strict=True):
        held_out = Path(name).read_text(encoding="utf-8").split("\n")[:-1]
        tokenizer = SentencePieceTokenizer.train(side, TokenizerConfig(vocab_size=1000))
        assert max(map(len, tokenizer.encode_lines(held_out))) <= 60
        means = [sum(map(len, lines)) / len(lines) for lines in (held_out, side)]
        assert 0.9 < means[0] / means[1] < 1.1  # no shorter than the others


def test_a_replayed_corpus_stays_without_what_its_run_held_out(write: Callable[..., Path]) -> None:
    old, _ = drawn_by(write(made_up(300), "validation: {holdout: 20}\ntest: {holdout: 10}"))
    run = RunFolder(Path("runs/old"))
    run.path.mkdir(parents=True)
    run.config_file.write_text(to_yaml(old))
    run.model_file.touch()
    Path("new.en").write_text("".join(f"n {index}\n" for index in range(60)))
    Path("new.de").write_text("".join(f"m {index}\n" for index in range(60)))
    path = Path("fine.yaml")
    path.write_text("data:\n  train: {src: new.en, tgt: new.de}\n  replay: 0.5\ntraining: {init_from: old}\n")
    config = load_run_config(path, [], RunFolder(Path("runs/fine")), False)
    config = with_hold_outs(config)
    held_out = [pairs_in(stem) for stem in ("run.validation", "run.test", "fine.validation")]
    assert set(held_out[2]) < {(f"n {index}", f"m {index}") for index in range(60)}
    new = [(f"n {index}", f"m {index}") for index in range(60)]
    assert kept_for_training(config) == without(new + made_up(300), *held_out)
    path.write_text(to_yaml(config))
    assert load_config(path) == config


def test_five_pairs_train(write: Callable[..., Path], cli: Cli) -> None:
    write([("1 2", "1 2"), ("2 3 4", "2 3 4"), ("5", "5"), ("6 7", "6 7"), ("8", "8")])
    code, _, err = cli("train", "--set", "training.max_steps=4", "--set", "training.validate_every=2")
    assert code == 0, err
    assert err.count("no pairs are held out: ") == 1
    assert "also occur in the training text" not in err
    assert "validation 5 pairs" in err
    assert "best loss" in err
    code, _, err = cli("train", "--set", "training.max_steps=6")
    assert code == 0, err
    assert "changed: data" not in err


def test_a_training_holds_out_and_a_second_one_reads(write: Callable[..., Path], cli: Cli) -> None:
    random = Random(1)
    lines = sorted({unicodedata.normalize("NFC", " ".join(random.choices("0123456789", k=6))) for _ in range(300)})
    write([(line, line) for line in lines], "test: {holdout: 15}")
    short = ("train", "--set", "training.max_steps=4", "--set", "training.validate_every=2")
    code, _, err = cli(*short)
    assert code == 0, err
    assert err.count("held out") == 2
    assert "also occur in the training text" not in err
    assert "validation 14 pairs" in err or "validation 15 pairs" in err
    code, _, err = cli(*short, "--set", "training.seed=2", "--name", "second")
    assert code == 0, err
    assert "held out" not in err
    code, out, err = cli("eval", "--model", "run")
    assert code == 0, err
    assert "test" in out
